/* The inside of a wait: what the four files of the waits share.
 *
 * A wait is an event and what is known of its end. Exactly one holder looks after it: its task, a
 * timer of its loop, or the watcher. task_waits.c is the task's side: it begins a wait, polls it,
 * and leaves it to one of the other two, all in the thread of the loop. loop_waits.c is the loop's:
 * what its timer has, and the waits of futures, which the loop polls. watched_waits.c is the
 * watcher's side, and uses both. wait_store.c makes waits, recycles them, and learns from their
 * ends.
 *
 * The word `holder` says who holds it, and the drawing below shows each change. The present holder
 * writes it: the task in the thread of its loop, or the watcher. While a timer has the wait, the
 * thread writes it that has taken the entry out of the timer, under the timer's lock. And only the
 * watcher ends that a wait is listed. Where two may come at once, they change it by
 * compare-and-swap. A wait is never freed, only recycled, and a thread that comes late sees that by
 * the ticket.
 */
#ifndef AIOSTREAM_WAIT_INSIDE_H
#define AIOSTREAM_WAIT_INSIDE_H

#include <pthread.h>
#include <semaphore.h>

#include "waits.h"

struct shared_history {
    _Atomic int64_t refs;
    pthread_mutex_t lock; /* guards the rest; never held across a driver call */
    struct history history;
};

struct wait_list {
    /* the owner's, the watcher's while it is active, and one for each wait that was on it last */
    _Atomic int64_t refs;
    _Atomic int waiting;     /* waits that are not known to be over */
    _Atomic uint64_t clock;  /* counts the beginnings and the ends of records */
    struct context *context; /* these two are constant */
    struct shared_history *history;
    /* the list of all other waits on the stream, or itself: constant too */
    struct wait_list *stream;
    char name[STREAM_NAME]; /* of its stream, for operators; under `waits_lock` */
    /* Of a stream: its latest end, and when it was said to be stalled. Any thread. */
    _Atomic int64_t ended, said;
    /* Waits in a row that were not ready at once. Any thread. A lost count does not matter. */
    _Atomic unsigned busy;
    /* The latest end lay between these two, and the work of the next wait began then. Written by
     * the thread that saw the end. If two did, either will do. */
    _Atomic int64_t free_after, free_since;
    /* the last time at which the oldest wait of a stream was pending, and so all behind it */
    _Atomic int64_t pending_at;
    /* a wait that the watcher lists has changed hands; set by its task, cleared by the watcher */
    _Atomic bool revisit;
    /* Used by the watcher alone: */
    struct wait *first, *last; /* in the order of their records */
    struct wait_list *next;    /* among the lists with waits */
    bool active;
    int64_t next_poll, polled_at; /* the next poll and the last */
    bool exact;                   /* an end is expected then */
    /* The latest time for that poll by the bound, whatever the gap between passes has become
     * since. */
    int64_t latest;
    int64_t loop_lateness; /* the lateness of the loop of its oldest wait */
};

/* Who may touch a wait. "Listed" means that the watcher has it in a wait list, or will find it
 * among the new ones. Only the watcher ends that, so a task never recycles a listed wait.
 *
 *   TASK           --leave-------> TIMER or WATCHER  (pushed on new_waits)
 *   TASK_LISTED    --leave-------> TIMER or WATCHER
 *   TASK_LISTED    --over--------> OVER_LISTED       (by the task)
 *   TASK_LISTED    --unlisted----> TASK              (by the watcher)
 *   TIMER          --due---------> TASK_LISTED       (by the loop's thread)
 *   TIMER          --cancelled---> WATCHER           (by the thread that takes it out of its timer)
 *   TIMER          --unlisted----> TASK              (by the watcher: the timer comes before the
 *                                                     next guard poll)
 *   TIMER, WATCHER --over--------> the spares        (by the watcher, which fires the ticket)
 *   WATCHER        --handed back-> TASK              (by the watcher)
 *   OVER_LISTED    --unlisted----> the spares        (by the watcher)
 *
 * A timer may have a wait (TIMER, or TASK between leave and due, and while the loop polls it). Then
 * the wait belongs to the thread that removes its entry from the timer, which has a lock of its
 * own. That is the loop's thread when the entry is due, or the watcher when it has seen the end and
 * the holder is TIMER. */
enum holder { HELD_BY_TASK, HELD_BY_TASK_LISTED, HELD_BY_TIMER, HELD_BY_WATCHER, OVER_LISTED };

struct wait {
    struct timer_entry timer_entry; /* first, because the loop's timer knows a wait by it */
    /* the library's; these two are made with the wait and constant */
    void *event;
    struct context *context;
    struct queue *queue;    /* whose loop uses it for all its waits; constant too */
    struct wait *next_made; /* of all waits, constant too */
    /* of one list at a time, and used by that list's owner: the queue's spares (their lock),
     * new_waits, wait list */
    struct wait *next;
    _Atomic int holder;
    /* Written by wait_start, constant until it is used again: */
    _Atomic uint64_t loop;            /* the queue's identity; another one: the loop is gone */
    _Atomic(struct wait_list *) list; /* these three are relaxed, as they order nothing */
    _Atomic int64_t limit;
    /* constant until it is back in the spares, as the rest: */
    /* a user's event, which is polled in place of the library's; otherwise NULL */
    struct handle *users_event;
    uint64_t opened, closed; /* the clock of the list before and after its record */
    /* written once more for a future, when its work was enqueued; relaxed, as it orders nothing */
    _Atomic int64_t began;
    const struct strategy *strategy;
    struct prediction prediction; /* as its history was when it began */
    _Atomic bool future; /* its ticket is for all its life, and its loop polls it natively */
    /* Set last by wait_start, and cleared under the lock of the queue's spares. While it is set, a
     * thread that has that lock may read the fields above. */
    _Atomic bool in_use;
    /* What its last beat saw, and since when: the beats up to the last at which its work was seen
     * pending, and those after it. Under waits_lock. */
    int64_t progress, seen, unseen;
    /* Used by its holder: */
    _Atomic int64_t start;       /* when its work began, as far as is known */
    _Atomic int64_t start_slack; /* the work may have begun earlier by this */
    _Atomic int64_t pending_at;  /* the last time at which a poll saw it pending; 0: never */
    /* 0: no task waits for it now. The watcher reads it of all that it lists. */
    _Atomic uint64_t ticket;
    /* The one with which it was handed back last. For those who list what waits: its task may not
     * have heard of it. */
    _Atomic uint64_t handed_back;
    int64_t poll_until;     /* used by the task while it polls, ns */
    _Atomic int64_t polled; /* the last poll of it, or the plan that followed */
    int polls;
    /* the loop polls it when its timer is due, and does not resume the task for that */
    bool by_loop;
    bool first_poll_due; /* it was handed back, and not yet polled */
    int64_t woken_for;   /* the length for which the task was woken; 0: for none */
    /* the time of the task's first poll after that; 0: the wait was over by then */
    int64_t first_poll;
};

/* Guards what is made or renamed, and not what each wait uses. Never held across a driver call. The
 * lock of a queue's spares comes after it. */
extern pthread_mutex_t waits_lock;
extern struct wait *all_waits; /* all that were made, the newest first; under waits_lock */
/* Posted when something with a limit is pending, and stalls.c does not count. */
extern sem_t limit_begun;
extern _Atomic bool limits_are_counted;
static inline void wait_has_limit(void) {
    if (!atomic_load(&limits_are_counted) && !atomic_exchange(&limits_are_counted, true))
        sem_post(&limit_begun);
}
extern _Atomic(struct wait *) new_waits; /* any thread pushes; the watcher takes it whole */
int wait_query(const struct wait *);     /* polls its event */
extern _Atomic bool some_revisit;        /* the `revisit` of some list is set */
/* wait lists that the watcher has; it writes this, any thread reads it */
extern _Atomic int active_count;

/* A wait on a list, from the spares or new. The task holds it. Nothing is recorded yet. */
int wait_start(const struct waits *, struct queue *, const struct strategy *,
               struct handle *users_event, struct wait **);
/* Its event is complete, or will never be used again, and the watcher does not list it. */
void wait_recycle(struct wait *);
void wait_push_new(struct wait *);
/* notes for its list that work behind it began no earlier than it was last pending */
void wait_note_end(struct wait *, int64_t seen);
/* Learns that its end was first seen then, and by its task also how early that was woken. */
void wait_learn(struct wait *, int64_t seen, bool lead);
struct load wait_load(const struct wait *);
/* Decides what a task or a loop does next with a wait that was pending at `now`. The ticket with
 * which it has left the wait to a timer or the watcher; 0: it polls on. */
uint64_t wait_leave_as_planned(struct wait *, int64_t now);
/* Polls a wait that its task or loop holds. */
int wait_poll_once(struct wait *);
/* Whether who has polled it, and found it pending, polls it again in the next turn. */
bool wait_polls_on(struct wait *);
/* Its holder needs it no more. Its list, and a user's event, hear that. */
void wait_release(struct wait *);
void wait_end(struct wait *);              /* the same, and it is no longer pending */
void wait_fire(struct wait *, int status); /* the same, and fires its ticket */
/* Whether the stream has something to wait for: CUDA_NOT_READY, or another answer. */
int wait_ask(struct wait_list *, void *stream);
/* records its event at what the stream has reached; 0, or why not */
int wait_record(struct wait *, void *stream);
/* Its task polls it from now on, and gets it as STATUS_HANDED_BACK. */
void wait_hand_back(struct wait *);

#endif
