/* Beats: the clock of what is stalled. */
#ifndef AIOSTREAM_BEATS_H
#define AIOSTREAM_BEATS_H

#include "failures.h"

/* Once; 0, or an errno, after which it can be tried again. One thread at a time. The function is
 * waits_stalled, which stands above this file. */
int beats_start(bool (*count)(bool beat, struct stall *));
/* A wait with a limit is pending. Any thread. */
void beats_go_on(void);

#endif
