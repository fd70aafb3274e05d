/* A timer of a loop, for waits that need no poll until shortly before their
 * expected end. */
#ifndef AIOSTREAM_TIMER_H
#define AIOSTREAM_TIMER_H

#include <pthread.h>

#include "base.h"

struct timer_entry {      /* intrusive: part of what waits for its time */
    _Atomic int64_t time; /* by timer_add; read by any thread */
    struct timer_entry *next;
    bool counts; /* among the most that timer_add takes */
};
struct timer {
    int descriptor; /* the timer's; constant */
    /* guards the rest: the loop's thread sets and takes, and the watcher, or the thread that closes
     * the queue, takes what is left */
    pthread_mutex_t lock;
    struct timer_entry *first, *last; /* by their time */
    int count;                        /* of those that count */
    bool closed;
    /* Written under the lock. The loop's thread also reads it without. 0: the timer is not
     * running. */
    _Atomic int64_t set_for;
};

bool timer_is_due(const struct timer *, int64_t now); /* it may be */
void timer_open(struct timer *);
/* false: it has `most` entries, or is closed. With INT_MAX the entry does not count. */
bool timer_add(struct timer *, struct timer_entry *, int64_t time, int most);
/* Takes the entry for which `is_it` answers true, under the timer's lock. NULL: it was taken
 * already, or is not in this timer. */
struct timer_entry *timer_remove(struct timer *, bool (*is_it)(struct timer_entry *, uint64_t),
                                 uint64_t argument);
/* makes the descriptor readable then, even without an entry */
void timer_wake_by(struct timer *, int64_t time);
/* takes the entries whose time has come, or comes within `soon` */
struct timer_entry *timer_take_due(struct timer *, int64_t now, int64_t soon);
struct timer_entry *timer_close(struct timer *); /* takes all entries */

#endif
