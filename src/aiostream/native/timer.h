/* A timer that a loop watches itself, for the waits that are left alone until shortly before their
 * expected end. */
#ifndef AIOSTREAM_TIMER_H
#define AIOSTREAM_TIMER_H

#include "base.h"

struct timer;
struct timer_entry {      /* intrusive: part of what waits for its time */
    _Atomic int64_t time; /* by timer_add; read by any thread */
    struct timer_entry *next;
};
struct timer *timer_new(void); /* closed; NULL: no memory, or no descriptor */
void timer_free(struct timer *);
int timer_descriptor(const struct timer *);
void timer_open(struct timer *);
bool timer_is_due(const struct timer *, int64_t now); /* perhaps */
/* false: there are so many, or it is closed */
bool timer_add(struct timer *, struct timer_entry *, int64_t time, int most);
/* False: it was taken already, or is none of its entries, or `*state` is not `wanted`: it was
 * added, but its owner is not through. */
bool timer_remove(struct timer *, struct timer_entry *, const _Atomic int *state, int wanted);
/* makes the descriptor readable then, also without an entry */
void timer_wake_by(struct timer *, int64_t time);
/* takes some whose time has come */
struct timer_entry *timer_take_due(struct timer *, int64_t now);
struct timer_entry *timer_close(struct timer *); /* takes all */

#endif
