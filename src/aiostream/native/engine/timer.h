/* A timer of a loop, for waits that need no poll until shortly before their
 * expected end. */
#ifndef AIOSTREAM_TIMER_H
#define AIOSTREAM_TIMER_H

#include "base.h"

struct timer;
struct timer_entry {      /* intrusive: part of what waits for its time */
    _Atomic int64_t time; /* by timer_add; read by any thread */
    struct timer_entry *next;
};
struct timer *timer_new(void); /* a new timer is closed; NULL: no memory, or no descriptor */
void timer_free(struct timer *);
int timer_descriptor(const struct timer *);
void timer_open(struct timer *);
bool timer_is_due(const struct timer *, int64_t now); /* it may be */
/* false: it has `most` entries, or is closed */
bool timer_add(struct timer *, struct timer_entry *, int64_t time, int most);
/* Takes the entry for which `is_it` answers true, under the timer's lock. NULL: it was taken
 * already, or is not in this timer. */
struct timer_entry *timer_remove(struct timer *, bool (*is_it)(struct timer_entry *, uint64_t),
                                 uint64_t argument);
/* makes the descriptor readable then, even without an entry */
void timer_wake_by(struct timer *, int64_t time);
/* takes the entries whose time has come, or comes so soon */
struct timer_entry *timer_take_due(struct timer *, int64_t now, int64_t soon);
struct timer_entry *timer_close(struct timer *); /* takes all entries */

#endif
