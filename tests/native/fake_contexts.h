/* The calls of the fake drivers that concern contexts. */
#ifndef AIOSTREAM_FAKE_CONTEXTS_H
#define AIOSTREAM_FAKE_CONTEXTS_H

#include <stddef.h>
#include <stdint.h>

static _Thread_local int contexts_entered; /* and not left, by this thread */
static _Thread_local void *latest_entered;

static int fake_get_id(void *context, uint64_t *id) {
    *id = (uintptr_t)context;
    return 0;
}
static int fake_push(void *context) {
    latest_entered = context;
    contexts_entered++;
    return 0;
}
static int fake_pop(void **context) {
    *context = NULL;
    contexts_entered--;
    return 0;
}

#endif
