/* How the watcher thread sleeps and how others wake it. The process has one. */
#ifndef AIOSTREAM_WAKER_H
#define AIOSTREAM_WAKER_H

#include "base.h"

int waker_open(void); /* makes the descriptor once; 0, or an errno */
void waker_wake(void);
/* wakes the watcher, unless it will wake by then anyway */
void waker_wake_before(int64_t time);
void waker_wake_if_parked(void);
void waker_set_parked(bool parked); /* called by the watcher */
/* Sleeps, in the watcher's thread. It publishes its time of waking before it asks must_wake(). A
 * thread that adds work makes the work visible before it reads that time. So one of the two sees
 * the other. */
void waker_sleep_until(int64_t time, bool (*must_wake)(void));
/* how much too long a sleep of that length is likely to be */
int64_t waker_oversleep(int64_t delay);

#endif
