/* Completion queues. Each loop has a stack that any thread pushes on, with the descriptor that
 * wakes the loop. */
#ifndef AIOSTREAM_QUEUES_H
#define AIOSTREAM_QUEUES_H

#include <pthread.h>

#include "base.h"
#include "policy.h"
#include "timer.h"

struct queue;
struct queue_entry { /* part of what is queued; it stays valid until the consumer has taken it */
    struct queue_entry *next;
};
struct queue *queue_open(void); /* NULL: errno says why */
/* Queue 0, or NULL. The first call makes it. It comes before any other queue is opened. */
struct queue *queue_orphans(void);
void queue_close(struct queue *);
bool queue_is_closed(const struct queue *);
/* readable when something has arrived, or a timer is due */
int queue_descriptor(const struct queue *);
struct timer *queue_timer(const struct queue *);
/* By the consumer. Until the next drain, a push does not wake it. */
void queue_suppress_wakeup(struct queue *);
int queue_index(const struct queue *);
uint64_t queue_identity(const struct queue *); /* unlike an index, never used again */
struct queue *queue_at(int index);
void queue_wake(struct queue *);
void queue_ref(struct queue *);   /* for a point that may still be pushed */
void queue_unref(struct queue *); /* after the last one the queue may be recycled */
void queue_push(struct queue *, struct queue_entry *);
/* takes all that has arrived, oldest first; by the consumer */
struct queue_entry *queue_take(struct queue *);
struct queue_entry *queue_arrived(struct queue *); /* the newest; it stays there */
/* gives back what the consumer could not take, and wakes it again */
void queue_put_back(struct queue *, struct queue_entry *oldest);
/* Its waits that are not over. Those of cancelled futures count until the GPU has passed them, and
 * those of a closed loop for the next loop that uses the queue. */
_Atomic int *queue_waits(struct queue *);
/* When Python last saw that the loop runs, or that it does not, and when it was noted that the loop
 * does not come back. Any thread. What is older than a wait says nothing of its loop, so the next
 * loop begins with the old times. */
struct loop_state {
    _Atomic int64_t first_ran, ran; /* the first since `idle`, and the last */
    _Atomic int64_t idle, noted;
    /* The loop's thread is leaving a wait to a timer, and still uses it when the timer has it. */
    _Atomic bool leaving;
};
struct loop_state *queue_loop_state(struct queue *);
/* Since when the oldest of what has arrived waits for the loop; 0: that is not known. */
int64_t queue_unread_since(struct queue *);
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
struct spares *queue_spares(struct queue *);
/* In the order in which they came. `last` is valid only if there is a `first`. The loop's thread
 * uses them, and the watcher takes them if the loop does not come. */
struct polled_waits {
    pthread_mutex_t lock; /* guards the rest */
    _Atomic(struct wait *) first;
    struct wait *last;
};
struct polled_waits *queue_polled_waits(struct queue *); /* see loop_waits.c */
/* How long the loop now takes to come back to what waits for it, in ns. 0: it is not busy. */
int64_t queue_lag(const struct queue *);
void queue_note_lag(struct queue *, int64_t lag);

/* A ready wait does not yield to its loop. So the tasks of a loop share a budget for each of its
 * turns. Used by the loop's thread alone. */
enum { TURN_YIELD = 1, TURN_BEGAN = 2 };
/* a wait of that task was ready: the flags say what to do */
int queue_spend_turn(struct queue *, const void *task);
/* by a callback of the loop that TURN_BEGAN has asked for */
void queue_new_turn(struct queue *);

#endif
