/* The registry of contexts, and their health.
 *
 * After a sticky error no host function ever runs. So a waiter that only its host function could
 * wake would hang. The fault shows at the same moment on every stream of the process, on idle ones
 * too. So the watcher queries one private stream for each context. It never queries a user's
 * stream, because that might be capturing or destroyed.
 */
#include "contexts.h"

#include <pthread.h>

#include "failures.h"
#include "waker.h"

/* One query of an idle stream takes 1.4 us of a GPU's driver. A request of a server would make some
 * 50. */
static const int64_t FRESH_NS = 1000000;

static struct context contexts[MAX_CONTEXTS];
static _Atomic int context_count;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER; /* for context_register alone */

static _Atomic int64_t pending_total;

struct context *context_register(void *handle, uint64_t identity, void *private_stream,
                                 bool *is_taken) {
    pthread_mutex_lock(&context_lock);
    struct context *context = NULL;
    int number = context_count;
    for (int i = 0; identity && i < number; i++)
        if (contexts[i].identity == identity) context = &contexts[i];
    *is_taken = !context && number < MAX_CONTEXTS;
    if (*is_taken) {
        context = &contexts[number];
        context->handle = handle;
        context->identity = identity;
        context->stream = private_stream;
        context->index = number;
        atomic_store(&context_count, number + 1);
    }
    pthread_mutex_unlock(&context_lock);
    return context;
}

struct context *context_at(int index) {
    return index < 0 || index >= context_count ? NULL : &contexts[index];
}

/* This thread adds, then reads `parked`. The watcher sets `parked`, then reads the total. So one of
 * the two sees the other. */
void context_add_pending(struct context *context) {
    atomic_fetch_add(&context->pending, 1);
    atomic_fetch_add(&pending_total, 1);
    waker_wake_if_parked();
}

void context_drop_pending(struct context *context) {
    atomic_fetch_sub(&context->pending, 1);
    atomic_fetch_sub(&pending_total, 1);
}

/* Neither is an error of the context: an idle stream does not answer NOT_READY, unless the driver
 * is slow, and 9xx speak of a capture of another thread. */
static bool says_nothing(int status) {
    return status == CUDA_NOT_READY ||
           (status >= CUDA_CAPTURE_FIRST && status <= CUDA_CAPTURE_LAST);
}

/* A lost context gives the same answer again. Any other error may pass, such as a driver that is
 * out of memory for a moment, and must not fail what waits in the context. */
static bool may_pass(int status) {
    return status != CUDA_SUCCESS && !says_nothing(status) && !says_gone(status) &&
           !failure_is_fatal(status);
}

static int query(const struct context *context) {
    return failure_noted(driver.stream_query(context->stream), "cuStreamQuery");
}

int context_health(struct context *context) {
    int gone = atomic_load(&context->gone);
    if (gone) return gone;
    /* taken before the query, because the answer says nothing of what comes after it */
    int64_t before = now_ns();
    int status = CUDA_CONTEXT_IS_DESTROYED;
    if (!context_was_ended(context)) {
        int mode = relaxed_enter();
        status = query(context);
        if (may_pass(status)) status = query(context);
        relaxed_leave(mode);
    }
    if (says_nothing(status)) status = CUDA_SUCCESS;
    if (status == CUDA_SUCCESS) {
        atomic_store(&context->healthy_at, before);
    } else if (says_gone(status)) {
        /* Whatever the driver calls it: the context may end while its stream is queried. The stream
         * was destroyed with it, and must not be queried again. */
        status = CUDA_CONTEXT_IS_DESTROYED;
        atomic_store(&context->gone, status);
        failure_note(status, "cuStreamQuery");
    }
    return status;
}

bool context_was_ended(const struct context *context) {
    return context_is_gone(context->handle, context->identity);
}

int context_recent_health(struct context *context) {
    bool fresh = now_ns() - atomic_load(&context->healthy_at) < FRESH_NS;
    return fresh ? CUDA_SUCCESS : context_health(context);
}

int64_t contexts_pending(void) { return atomic_load(&pending_total); }
