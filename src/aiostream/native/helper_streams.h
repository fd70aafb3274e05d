/* Helper streams: private streams of a context that wait for a user's event, or carry a host function beside the user's stream. */
#ifndef AIOSTREAM_HELPER_STREAMS_H
#define AIOSTREAM_HELPER_STREAMS_H

#include "contexts.h"

void *helper_take(struct context *); /* NULL: none is idle */
int helper_make(struct context *, void **stream); /* may block until the GPU is idle */
void helper_put(struct context *, void *stream, bool idle); /* one that is not idle is destroyed */
int helper_count(struct context *);

#endif
