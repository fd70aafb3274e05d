/* Completion queues: a multi-producer stack for each loop, with the descriptor that wakes it. */
#ifndef AIOSTREAM_QUEUES_H
#define AIOSTREAM_QUEUES_H

#include "base.h"
#include "policy.h"
#include "timer.h"

struct queue;
struct queue_entry { /* part of what is queued, which stays valid until it was taken */
    struct queue_entry *next;
};
struct queue *queue_open(void); /* NULL: errno says why */
/* number 0, made at the first call, which comes before any other queue is opened; or NULL */
struct queue *queue_orphans(void);
void queue_close(struct queue *);
/* readable when something has arrived, or a timer is due */
int queue_descriptor(const struct queue *);
struct timer *queue_timer(const struct queue *);
/* by its consumer: until the drain that follows, what is pushed wakes nobody */
void queue_suppress_wakeup(struct queue *);
int queue_index(const struct queue *);
struct queue *queue_at(int index);
void queue_wake(struct queue *);
void queue_ref(struct queue *);   /* a point that may still be pushed */
void queue_unref(struct queue *); /* with the last reference it may be recycled */
void queue_push(struct queue *, struct queue_entry *);
/* all that has arrived, oldest first; by its consumer */
struct queue_entry *queue_take(struct queue *);
/* what the consumer could not take; it will be woken again */
void queue_put_back(struct queue *, struct queue_entry *oldest);
struct wait;
struct polled_waits {          /* by the loop's thread alone; in the order in which they came */
    struct wait *first, *last; /* last: only while there is a first */
    int near;                  /* how many of them are `near` */
    struct wait *taken;        /* those that tasks poll; guarded by taken_lock of future_waits.c */
};
struct polled_waits *queue_polled_waits(struct queue *); /* see future_waits.c */
/* ns; how long the loop takes just now to come back to what waits for it; 0: it is not busy */
int64_t queue_lag(const struct queue *);
void queue_note_lag(struct queue *, int64_t lag);

/* Ready waits do not yield to their loop by themselves, so the tasks of a loop share a budget for
 * each of its turns. By the loop's thread alone. */
enum { TURN_YIELD = 1, TURN_BEGAN = 2 };
/* a wait of that task was ready: the flags say what to do */
int queue_spend_turn(struct queue *, const void *task);
/* by a callback of the loop that TURN_BEGAN has asked for */
void queue_new_turn(struct queue *);

#endif
