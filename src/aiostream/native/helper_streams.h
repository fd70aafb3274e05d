/* Helper streams: private streams of a context, on which an event of ours waits for what a user's event has recorded. */
#ifndef AIOSTREAM_HELPER_STREAMS_H
#define AIOSTREAM_HELPER_STREAMS_H

#include "contexts.h"

/* Takes an idle one, or makes one (which may block until the GPU is idle), or shares one. 0, or the driver's error. */
int helper_take(struct context *, void **stream);
void helper_put(struct context *, void *stream, bool idle); /* one that is not idle is destroyed with its last user */
int helper_make(struct context *);                          /* an idle one, ahead of time; may block */
int helper_count(struct context *);                         /* those that are idle */
int helpers_made(struct context *);                         /* those that exist */

#endif
