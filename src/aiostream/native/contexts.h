/* CUDA contexts as the watcher monitors them: a private idle stream each, whose state is the context's health. */
#ifndef AIOSTREAM_CONTEXTS_H
#define AIOSTREAM_CONTEXTS_H

#include "base.h"

struct context;
enum { MAX_CONTEXTS = 4096 };

struct context *context_register(void *handle, void *private_stream, int device);
void *context_handle(const struct context *);
int context_device(const struct context *);
int context_index(const struct context *);
struct context *context_at(int index);
void context_add_pending(struct context *); /* may wake the watcher */
void context_drop_pending(struct context *);
bool context_has_pending(const struct context *);
int64_t contexts_pending(void);
int context_health(struct context *); /* 0, or the context's error */
int context_recent_health(struct context *); /* the same, but it may have been good up to 1 ms ago */

#endif
