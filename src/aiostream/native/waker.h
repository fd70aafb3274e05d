/* How the watcher thread sleeps and how others wake it. One for the process. */
#ifndef AIOSTREAM_WAKER_H
#define AIOSTREAM_WAKER_H

#include "base.h"

int waker_open(void); /* makes the descriptor once; 0, or an errno */
void waker_wake(void);
/* wakes the watcher unless it will look about by then anyway */
void waker_wake_before(int64_t time);
void waker_wake_if_parked(void);
void waker_set_parked(bool parked); /* by the watcher */
/* Sleeps, in the watcher's thread. must_wake() is asked after the time of waking was published:
 * whoever adds work makes it visible first and then reads that time, so one of the two sees the
 * other. */
void waker_sleep_until(int64_t time, bool (*must_wake)(void));
/* by how much a sleep of that length is likely to be too long */
int64_t waker_oversleep(int64_t delay);

#endif
