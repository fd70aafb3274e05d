/* The records of waits, as the task's side and the watcher's side share them. */
#ifndef AIOSTREAM_WAIT_RECORD_H
#define AIOSTREAM_WAIT_RECORD_H

#include <pthread.h>

#include "helper_hostfunc.h"
#include "helper_streams.h"
#include "policy.h"
#include "waits.h"

/* All in ns, and all chosen by measuring on an H200. */
static const int64_t SPIN = 50000;            /* how long a task polls itself before the watcher takes over */
static const int64_t FIRST_POLL_NS = 5000;       /* the shortest interval of an unexpected wait */
static const int64_t LONGEST_POLL_NS = 200000;   /* the longest, for a few lines; with many it grows */
static const int64_t CLOSE_POLL_NS = 1500;       /* the interval round the expected end */
static const int64_t SPARSE_POLL_NS = 100000;    /* the shortest interval before a trusted end */
static const int64_t LATEST_POLL_NS = 5000000;   /* the longest interval before a trusted end: so much too late at most */
static const int64_t HOSTFUNC_POLL_NS = 45000000;  /* the interval of a wait with a host function */
static const int64_t HOSTFUNC_AFTER_NS = 1500000;   /* the age at which a wait asks for a host function */
static const int64_t PASS_GAP_PER_LIST_NS = 1000;       /* with many lines, each keeps the next pass away for so long */
static const int64_t WINDOW_BEFORE_NS = 10000, WINDOW_AFTER_NS = 60000; /* before and after the expected end, besides the spread */
static const int64_t MAX_HAND_BACK_SPREAD_NS = 3000000;  /* the spread up to which a task is given its wait back */
static const int64_t SHORTEST_WINDOW_STEP_NS = 40000;      /* the shortest of these steps, unless the spread asks for shorter ones */
static const int64_t SHORTEST_WINDOW_SLEEP_NS = 15000;       /* a shorter interval is not worth falling asleep for */
enum {
    POLLS_PER_AGE = 8,       /* an unexpected wait is looked at after each eighth of its age */
    WINDOW_STEPS = 64, /* the spread is looked through in so many steps, */
    WINDOW_STEPS_PER_MEAN = 2500, /* or in steps of such a part of the expected length, if they are shorter */
    MAX_LISTS_POLLED_EXACTLY = 8,         /* up to so many lines, each is looked at just when it is due */
    MAX_LISTS_HANDED_BACK = 256,      /* up to so many, waits are given back to their tasks */
    SPIN_MAX_LOOP_TURNS = 3,       /* a wait that is likely to end within so many turns of its loop is left to its task */
    QUERY_EACH = 8,    /* a line that was never ready lately is asked again each so many waits */
};

/* A stream, as far as its waits are concerned. */
struct wait_list {
    _Atomic int64_t refs;   /* the owner, and each wait */
    _Atomic int waiting;    /* the waits whose records are not over, as far as is known */
    _Atomic uint64_t clock; /* counts the beginnings and the ends of records */
    struct context *context;    /* constant */
    bool ordered;           /* constant: later waits cannot be done before earlier ones */
    pthread_mutex_t lock;   /* guards the history; never held across a driver call */
    struct history history;
    _Atomic unsigned busy;  /* waits in a row that were not ready at once; any thread, and a lost one does not matter */
    _Atomic int64_t free_since; /* when the latest wait ended: the work of the next one began no earlier; by whoever saw it */
    /* The watcher's alone: */
    struct wait *first, *last;      /* in the order of their records; where there is none, in which they came */
    struct wait_list *next, *previous;   /* the lines with waits */
    int64_t next_poll;
    bool fresh; /* its first wait has only just begun: not worth a query yet */
};

struct wait {
    struct helper_hostfunc hostfunc; /* its host function on a helper; first, so that one pointer serves both */
    struct timer_entry timer_entry;
    void *event;        /* made with the record, constant */
    struct wait *next;  /* of one list at a time, with that list's owner: pool (pool_lock), new_waits, list, pending_hostfuncs */
    /* By wait_begin, constant until it is back in the pool: */
    struct wait_list *list;
    void *lent;              /* the helper stream on which a user's event is waited for */
    uint64_t opened, closed; /* the line's clock before and after the record */
    int64_t began;
    enum wait_mode mode;
    /* By the task while it spins: */
    int64_t spin_until, expected, polled; /* ns; expected: 0 if it is not */
    int polls;
    bool first_poll_due; /* by the watcher when it gives the wait back; until the task's first query */
    int64_t first_poll;  /* ns; the task's first query after it was given back; 0: the wait was over by then */
    int64_t start;    /* when its work began, as far as is known; by wait_begin, and by the watcher */
    uint64_t ticket;       /* by whoever hands it to the watcher; 0: nobody waits any more */
    struct queue *queue;   /* likewise */
    _Atomic bool fired;    /* whoever sets it fires the ticket: the watcher or the driver's thread */
    _Atomic int64_t ended; /* by the driver's thread before it fires; else 0 */
    bool closed_in;        /* by the watcher: it has looked closely */
    bool handed_back;       /* by the watcher, once for each wait */
};

extern _Atomic(struct wait *) new_waits;  /* pushed by any thread, taken whole by the watcher */
extern _Atomic bool hostfunc_ran;         /* set by the driver's thread, taken by the watcher */
extern _Atomic int active_count;          /* wait lists that the watcher has; written by it, read by any thread */

int wait_take_record(struct context *, struct wait **);
void wait_recycle(struct wait *); /* its event is complete, or will never be of use again, and no host function knows it */
void wait_leak(struct wait *);    /* its host function may still come: never used again */
void wait_list_learn(struct wait_list *, int64_t duration);
void wait_list_learn_hand_back(struct wait_list *, bool late, int64_t slack);
struct prediction wait_list_predict(struct wait_list *);
int64_t prediction_end(struct prediction); /* when an expected end counts as missed */
void wait_fire_hand_back(struct wait *); /* fires its ticket with STATUS_HANDED_BACK */
void wait_give_to_watcher(struct wait *, struct prediction);

#endif
