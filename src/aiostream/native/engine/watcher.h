/* The watcher: the one native thread that polls the events of waits and reads the health of
 * contexts. */
#ifndef AIOSTREAM_WATCHER_H
#define AIOSTREAM_WATCHER_H

#include "base.h"

enum { HEALTH_PERIOD_NS = 15000000 };
int watcher_start(void); /* once; 0, or an errno, after which it can be tried again */
/* Whether it ran. A driver call that blocks holds this up for that patience at most, and then the
 * watcher still runs. In a forked child it does nothing. */
bool watcher_stop(int patience_s);
enum { EXIT_PATIENCE_S = 1, ANY_PATIENCE_S = 1 << 30 };
/* Fails what is pending in contexts that are lost, and all waits, before the simulator recovers.
 * While the watcher is stopped. */
void watcher_fail_lost(void);

#endif
