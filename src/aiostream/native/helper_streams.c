/* The pool of helper streams of each context. Making one may block while the GPU is busy (from some 34 streams on). */
#include "helper_streams.h"

#include <pthread.h>

enum { KEPT = 32 };

static struct {
    void *idle[KEPT];
    int count;
} helpers[MAX_CONTEXTS]; /* under helper_lock, which is never held across a driver call */
static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER;

void *helper_take(struct context *context) {
    pthread_mutex_lock(&helper_lock);
    int number = context_index(context);
    void *stream = helpers[number].count > 0 ? helpers[number].idle[--helpers[number].count] : NULL;
    pthread_mutex_unlock(&helper_lock);
    return stream;
}

int helper_count(struct context *context) {
    pthread_mutex_lock(&helper_lock);
    int count = helpers[context_index(context)].count;
    pthread_mutex_unlock(&helper_lock);
    return count;
}

int helper_make(struct context *context, void **stream) {
    int mode = relaxed_enter(); /* making a stream must not end a capture */
    int status = driver.ctx_push(context_handle(context));
    if (status == CUDA_SUCCESS) {
        void *popped;
        status = driver.stream_create(stream, 1 /* CU_STREAM_NON_BLOCKING */);
        driver.ctx_pop(&popped);
    }
    relaxed_leave(mode);
    return status;
}

void helper_put(struct context *context, void *stream, bool idle) {
    int number = context_index(context);
    pthread_mutex_lock(&helper_lock);
    bool keep = idle && helpers[number].count < KEPT;
    if (keep) helpers[number].idle[helpers[number].count++] = stream;
    pthread_mutex_unlock(&helper_lock);
    if (!keep) {
        int mode = relaxed_enter();
        driver.stream_destroy(stream);
        relaxed_leave(mode);
    }
}
