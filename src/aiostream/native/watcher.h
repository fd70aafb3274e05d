/* The watcher: the one native thread that polls the events of waits and reads the health of
 * contexts. */
#ifndef AIOSTREAM_WATCHER_H
#define AIOSTREAM_WATCHER_H

#include "base.h"

int watcher_start(void); /* once; 0, or an errno, after which it can be tried again */
bool watcher_stop(void); /* whether it ran */
/* Fails what is pending in contexts that are lost, and all waits, before the simulator recovers.
 * While the watcher is stopped. */
void watcher_fail_lost(void);
/* For the end of the process: a driver call that blocks does not hold it up for longer than that.
 * In a forked child it does nothing. */
void watcher_stop_within(int64_t patience_ns);
/* For how long the watcher has been in its present pass, or 0 if it sleeps. A pass takes
 * microseconds, unless a call of the driver blocks. From any thread. */
int64_t watcher_held_ns(void);
enum { EXIT_PATIENCE_NS = 1000000000 };

#endif
