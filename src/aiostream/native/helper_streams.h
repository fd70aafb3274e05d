/* Helper streams: private streams of a context. On one, an event of the library waits for what a
 * user's event has recorded. */
#ifndef AIOSTREAM_HELPER_STREAMS_H
#define AIOSTREAM_HELPER_STREAMS_H

#include "contexts.h"

/* Makes those that are still missing. It may block until the GPU is idle. 0, or the driver's
 * error. */
int helpers_make(struct context *);
/* Gives an idle one, or else one that others use. 0, or the driver's error if there is none. */
int helper_take(struct context *, void **stream);
void helper_put(struct context *, void *stream, bool idle);
int helper_count(struct context *); /* those that are not in use */
int helpers_made(struct context *); /* those that exist */

#endif
