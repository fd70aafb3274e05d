/* Completion queues. Each loop has a stack that any thread pushes on, with the descriptor that
 * wakes the loop. */
#ifndef AIOSTREAM_QUEUES_H
#define AIOSTREAM_QUEUES_H

#include <pthread.h>

#include "base.h"
#include "policy.h"
#include "timer.h"

struct queue_entry { /* part of what is queued; it stays valid until the consumer has taken it */
    struct queue_entry *next;
};
/* What Python last saw of the loop, and when it was noted that the loop does not come back. Any
 * thread. */
struct loop_state {
    _Atomic bool idle; /* it did not run */
    /* when it did not, or was seen running after that; when it was said to be stalled */
    _Atomic int64_t changed, said;
    /* The loop's thread is leaving a wait to a timer, and still uses it when the timer has it. */
    _Atomic bool leaving;
};

struct wait;
/* What is free for the next waits of this loop. So no two loops take one lock on the way of a wait.
 * It stays when the queue is recycled. */
enum { SPARE_WAITS = 8 };
struct spares {
    /* guards the rest; never held across a driver call */
    pthread_mutex_t lock;
    struct queue_entry *entries;
    struct wait *waits[SPARE_WAITS]; /* by the context's number, modulo */
};

/* `refs` counts the owner and every point that has not fired. At zero no thread can push any more,
 * and the queue may be recycled. */
struct queue {
    /* any thread pushes; the consumer takes it whole, or a thread that sees `closed` */
    _Atomic(struct queue_entry *) head;
    _Atomic int64_t refs;
    /* set once by the owner, who then drains the stack; a pusher reads it after its push */
    _Atomic bool closed;
    /* when the stack stopped being empty; written by the pusher that filled it */
    _Atomic int64_t pushed;
    _Atomic int64_t lateness; /* a running mean; written by the owner's thread, read by any */
    /* when `lateness` was last noted; written by the owner's thread, read by any */
    _Atomic int64_t lateness_noted;
    /* The consumer is about to take the stack, so a pusher need not wake it. Written by its thread,
     * read by any. */
    _Atomic bool wakeup_suppressed;
    struct {                   /* used by the owner's thread alone */
        bool open;             /* a callback of the loop will begin the next turn */
        const void *task;      /* the task whose waits were ready last; compared, never used */
        int64_t since;         /* when that task's run began */
        int ops;               /* its ready waits since then */
        int tasks, last_tasks; /* tasks with ready waits in this turn, and in the one before */
        int64_t latest;        /* when the latest wait was ready */
    } turn;
    struct loop_state loop;
    struct spares spares; /* any thread */
    /* Its waits that are not over, any thread. Those of cancelled futures count until the GPU has
     * passed them, and those of a closed loop for the next loop that uses the queue. */
    _Atomic int waits;
    struct timer timer;
    int eventfd; /* these two are constant until it is free, and then -1 if they were closed */
    /* readable when something has arrived, or a timer is due: an epoll of the eventfd and the
     * timer's descriptor */
    int descriptor;
    int index;                 /* constant */
    _Atomic uint64_t identity; /* unlike an index, never used again; written before it is open */
    struct queue *next_free;   /* under table_lock */
};

struct queue *queue_open(void); /* NULL: errno says why */
/* Queue 0, or NULL. The first call makes it, before any other queue is opened. */
struct queue *queue_orphans(void);
void queue_close(struct queue *);
struct queue *queue_at(int index);
void queue_wake(struct queue *);
void queue_ref(struct queue *);   /* for a point that may still be pushed */
void queue_unref(struct queue *); /* after the last one the queue may be recycled */
/* Closes the descriptors of all queues that are free, but for those of the next one. */
void queues_trim(void);
void queue_push(struct queue *, struct queue_entry *);
/* takes all that has arrived, oldest first; by the consumer */
struct queue_entry *queue_take(struct queue *);
/* gives back what the consumer could not take, and wakes it again */
void queue_put_back(struct queue *, struct queue_entry *oldest);
/* Since when the oldest of what has arrived waits for the loop; 0: that is not known. */
int64_t queue_unread_since(struct queue *);
/* How long the loop now takes to come back to what waits for it, in ns. 0: it is not busy. */
int64_t queue_lateness(const struct queue *);
void queue_note_lateness(struct queue *, int64_t lateness);

/* A ready wait does not yield to its loop. So the tasks of a loop share a budget for each of its
 * turns. Used by the loop's thread alone. */
enum { TURN_YIELD = 1, TURN_BEGAN = 2 };
/* a wait of that task was ready: the flags say what to do */
int queue_spend_turn(struct queue *, const void *task);
/* by a callback of the loop that TURN_BEGAN has asked for */
void queue_new_turn(struct queue *);

#endif
