/* CUDA contexts as the watcher monitors them. Each has a private idle stream, whose state is the
 * context's health. */
#ifndef AIOSTREAM_CONTEXTS_H
#define AIOSTREAM_CONTEXTS_H

#include "base.h"

struct context {
    void *stream; /* private and always idle; written by context_register, then constant */
    void *handle;
    uint64_t identity;          /* see context_is_gone */
    _Atomic int64_t healthy_at; /* when its health was last read and was good; any thread */
    /* What the private stream answered when the context was destroyed. From then on it is not
     * queried. Any thread. */
    _Atomic int gone;
    /* points that are armed and have neither fired nor failed; any thread */
    _Atomic int64_t pending;
    int index;
};

enum { MAX_CONTEXTS = 4096 };

/* The context with that id. If it is new, it takes the private stream. NULL: there are too many. */
struct context *context_register(void *handle, uint64_t identity, void *private_stream,
                                 bool *is_taken);
struct context *context_at(int index);
void context_add_pending(struct context *); /* may wake the watcher */
void context_drop_pending(struct context *);
int64_t contexts_pending(void);
int context_health(struct context *); /* 0, or the context's error */
/* Whether other code has destroyed or reset it: see context_is_gone. */
bool context_was_ended(const struct context *);
/* its health, but the answer may be 1 ms old if it was good */
int context_recent_health(struct context *);

#endif
