/* The helper streams of each context. There are at most MAX_HELPERS, made together and kept for
 * good, because making a stream may block until the GPU is idle. When all are in use, waits share
 * them. Then an event may be noticed only after another one that was recorded before it. */
#include "helper_streams.h"

#include <pthread.h>

enum { MAX_HELPERS = 4 };

struct helper {
    void *stream;
    int users;
    /* how often a user left it before it was idle, and how many of these it is known to have
     * passed */
    int left, passed;
};

static struct {
    struct helper all[MAX_HELPERS];
    int count;
} helpers[MAX_CONTEXTS]; /* under helper_lock, which is never held across a driver call */
static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER;

static int create(struct context *context, void **stream) {
    int mode = relaxed_enter(); /* RELAXED, because making a stream must not end a capture */
    int status = failed_in("cuCtxPushCurrent", driver.ctx_push(context_handle(context)));
    if (status == CUDA_SUCCESS) {
        void *popped;
        status = failed_in("cuStreamCreate",
                           driver.stream_create(stream, 1 /* CU_STREAM_NON_BLOCKING */));
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

static bool add(struct context *context, void *stream) { /* false: there are enough */
    pthread_mutex_lock(&helper_lock);
    int number = context_index(context);
    bool room = helpers[number].count < MAX_HELPERS;
    if (room) helpers[number].all[helpers[number].count++] = (struct helper){.stream = stream};
    pthread_mutex_unlock(&helper_lock);
    return room;
}

int helpers_make(struct context *context) {
    while (helpers_made(context) < MAX_HELPERS) {
        void *stream;
        int status = create(context, &stream);
        if (status != CUDA_SUCCESS) return status;
        if (!add(context, stream)) destroy(stream); /* another thread has made as many since then */
    }
    return CUDA_SUCCESS;
}

static bool is_left(const struct helper *helper) { return helper->left != helper->passed; }

/* A copy of one that may be busy with work for which no task waits any more. */
static bool find_left(struct context *context, unsigned asked, int *index, struct helper *copy) {
    bool found = false;
    pthread_mutex_lock(&helper_lock);
    for (int i = 0; i < helpers[context_index(context)].count && !found; i++) {
        *copy = helpers[context_index(context)].all[*index = i];
        found = is_left(copy) && !(asked & 1u << i);
    }
    pthread_mutex_unlock(&helper_lock);
    return found;
}

/* Finds out which of the streams that were left busy have become idle. */
static void look_at_left(struct context *context) {
    struct helper copy;
    unsigned asked = 0;
    for (int i; find_left(context, asked, &i, &copy); asked |= 1u << i) {
        int mode = relaxed_enter();
        bool idle = driver.stream_query(copy.stream) != CUDA_NOT_READY;
        relaxed_leave(mode);
        if (!idle) continue;
        pthread_mutex_lock(&helper_lock);
        /* it may have been left once more since then */
        helpers[context_index(context)].all[i].passed = copy.left;
        pthread_mutex_unlock(&helper_lock);
    }
}

/* Whether it serves a new user better: idle ones first, then those that will be idle again. */
static bool is_better(const struct helper *one, const struct helper *other) {
    return is_left(one) != is_left(other) ? !is_left(one) : one->users < other->users;
}

int helper_take(struct context *context, void **stream) {
    /* nothing is left to make, unless the driver refused it before */
    int status = helpers_make(context);
    if (helpers_made(context) == 0) return status;
    look_at_left(context);
    struct helper *found = NULL;
    pthread_mutex_lock(&helper_lock);
    struct helper *all = helpers[context_index(context)].all;
    for (int i = 0; i < helpers[context_index(context)].count; i++)
        if (!found || is_better(&all[i], found)) found = &all[i];
    found->users++;
    *stream = found->stream;
    pthread_mutex_unlock(&helper_lock);
    return CUDA_SUCCESS;
}

void helper_put(struct context *context, void *stream, bool idle) {
    pthread_mutex_lock(&helper_lock);
    struct helper *helper = helpers[context_index(context)].all;
    while (helper->stream != stream) helper++;
    helper->users--;
    helper->left += !idle;
    pthread_mutex_unlock(&helper_lock);
}

int helper_count(struct context *context) {
    int idle = 0;
    pthread_mutex_lock(&helper_lock);
    for (int i = 0; i < helpers[context_index(context)].count; i++)
        idle += helpers[context_index(context)].all[i].users == 0;
    pthread_mutex_unlock(&helper_lock);
    return idle;
}

int helpers_made(struct context *context) {
    pthread_mutex_lock(&helper_lock);
    int count = helpers[context_index(context)].count;
    pthread_mutex_unlock(&helper_lock);
    return count;
}
