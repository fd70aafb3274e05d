/* The watcher: one native thread that polls the events of waits, and reads the health of contexts. */
#ifndef AIOSTREAM_WATCHER_H
#define AIOSTREAM_WATCHER_H

#include "base.h"

int watcher_start(void);
void watcher_stop(void);

#endif
