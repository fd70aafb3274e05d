/* The pool of helper streams of each context, at most MAX_HELPERS of them. When all are in use, they are shared: then an event
 * may be noticed only after another one that was recorded before. */
#include "helper_streams.h"

#include <pthread.h>

enum { MAX_HELPERS = 4 }; /* all made when the context is first used: to make one later may block until the GPU is idle */

struct helper {
    void *stream;
    int users;
    bool spoilt; /* a user left it before it was idle */
};

static struct {
    struct helper all[MAX_HELPERS];
    int count;
} helpers[MAX_CONTEXTS]; /* under helper_lock, which is never held across a driver call */
static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER;

static int create(struct context *context, void **stream) {
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

static void destroy(void *stream) {
    int mode = relaxed_enter();
    driver.stream_destroy(stream);
    relaxed_leave(mode);
}

/* Whether it serves a new user better: idle ones first, and those that will be idle again. */
static bool is_better(const struct helper *one, const struct helper *other) {
    return one->spoilt != other->spoilt ? !one->spoilt : one->users < other->users;
}

/* NULL: none is idle and there may be more. */
static struct helper *choose(struct context *context) {
    struct helper *all = helpers[context_index(context)].all, *found = NULL;
    int count = helpers[context_index(context)].count;
    for (int i = 0; i < count; i++)
        if (!found || is_better(&all[i], found)) found = &all[i];
    return found && (found->users == 0 || count == MAX_HELPERS) ? found : NULL;
}

static bool add(struct context *context, void *stream, int users) { /* false: there are enough */
    pthread_mutex_lock(&helper_lock);
    int number = context_index(context);
    bool room = helpers[number].count < MAX_HELPERS;
    if (room) helpers[number].all[helpers[number].count++] = (struct helper){.stream = stream, .users = users};
    pthread_mutex_unlock(&helper_lock);
    return room;
}

int helper_take(struct context *context, void **stream) {
    for (;;) {
        pthread_mutex_lock(&helper_lock);
        struct helper *helper = choose(context);
        if (helper) {
            helper->users++;
            *stream = helper->stream;
        }
        pthread_mutex_unlock(&helper_lock);
        if (helper) return CUDA_SUCCESS;
        int status = create(context, stream);
        if (status != CUDA_SUCCESS || add(context, *stream, 1)) return status;
        destroy(*stream); /* other threads made as many meanwhile: share one of theirs */
    }
}

void helper_put(struct context *context, void *stream, bool idle) {
    int number = context_index(context);
    bool gone = false;
    pthread_mutex_lock(&helper_lock);
    struct helper *all = helpers[number].all;
    for (int i = 0; i < helpers[number].count; i++) {
        if (all[i].stream != stream) continue;
        all[i].spoilt |= !idle;
        gone = --all[i].users == 0 && all[i].spoilt;
        if (gone) all[i] = all[--helpers[number].count];
        break;
    }
    pthread_mutex_unlock(&helper_lock);
    if (gone) destroy(stream);
}

int helper_make(struct context *context) {
    void *stream;
    int status = create(context, &stream);
    if (status == CUDA_SUCCESS && !add(context, stream, 0)) destroy(stream);
    return status;
}

int helper_count(struct context *context) {
    int idle = 0;
    pthread_mutex_lock(&helper_lock);
    for (int i = 0; i < helpers[context_index(context)].count; i++) idle += helpers[context_index(context)].all[i].users == 0;
    pthread_mutex_unlock(&helper_lock);
    return idle;
}

int helpers_made(struct context *context) {
    pthread_mutex_lock(&helper_lock);
    int count = helpers[context_index(context)].count;
    pthread_mutex_unlock(&helper_lock);
    return count;
}
