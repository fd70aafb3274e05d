/* Helper streams, and the waits that sleep: a host function behind an event, on a private stream.
 *
 * On a helper the host function costs the user's stream nothing. But it may block whoever enqueues it (behind an event of a
 * stream that is full, on an H200), and so may making a stream (while the GPU is busy, from some 34 streams on). Hence a
 * thread of its own, the sleeper, which may be held up without holding up the watcher or a loop.
 */
#include "helper_hostfunc.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "helper_streams.h"

enum { MAX_DEVICES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows; never held across a driver call */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct helper_hostfunc *first, **last = &first; /* what is to be enqueued, oldest first */
static int pending[MAX_DEVICES]; /* asked for and not yet ended */
static int limit = 4;            /* for each device: every one holds one of its hardware queues */
static bool running, stopping, away;
static pthread_t thread;

static void on_hostfunc_ran(void *data) {
    struct helper_hostfunc *hostfunc = data;
    hostfunc->hostfunc_ran(hostfunc);
    atomic_store(&hostfunc->state, HOSTFUNC_DONE); /* the last touch: the watcher may use it again from now on */
}

static int *pending_of(struct context *context) { return &pending[context_device(context) % MAX_DEVICES]; }

bool helper_hostfunc_request(struct helper_hostfunc *hostfunc) {
    pthread_mutex_lock(&lock);
    bool room = running && !stopping && *pending_of(hostfunc->context) < limit;
    if (room) {
        ++*pending_of(hostfunc->context);
        atomic_store(&hostfunc->state, HOSTFUNC_REQUESTED);
        hostfunc->stream = NULL;
        hostfunc->next = NULL;
        *last = hostfunc;
        last = &hostfunc->next;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    return room;
}

void helper_hostfunc_forget(struct helper_hostfunc *hostfunc) {
    pthread_mutex_lock(&lock);
    --*pending_of(hostfunc->context);
    pthread_mutex_unlock(&lock);
}

void helper_hostfunc_release(struct helper_hostfunc *hostfunc) {
    int state = atomic_load(&hostfunc->state);
    if (state == HOSTFUNC_NONE) return;
    if (hostfunc->stream) helper_put(hostfunc->context, hostfunc->stream, state == HOSTFUNC_DONE);
    atomic_store(&hostfunc->state, HOSTFUNC_NONE);
    helper_hostfunc_forget(hostfunc);
}

void helper_hostfunc_limit(int number) {
    pthread_mutex_lock(&lock);
    limit = number;
    pthread_mutex_unlock(&lock);
}

/* Once the host function is enqueued the record is the driver thread's and then the watcher's: not a touch after that. */
static void enqueue(struct helper_hostfunc *hostfunc) {
    void *stream = NULL;
    int status = -1;
    if (!atomic_load(&hostfunc->unwanted)) {
        stream = helper_take(hostfunc->context);
        status = stream ? CUDA_SUCCESS : helper_make(hostfunc->context, &stream);
        if (status != CUDA_SUCCESS) stream = NULL;
    }
    hostfunc->stream = stream;
    if (status == CUDA_SUCCESS) status = driver.stream_wait_event(stream, hostfunc->event, 0);
    if (status == CUDA_SUCCESS) {
        atomic_store(&hostfunc->state, HOSTFUNC_ARMED);
        status = driver.launch_host_func(stream, on_hostfunc_ran, hostfunc);
    }
    if (status != CUDA_SUCCESS) atomic_store(&hostfunc->state, HOSTFUNC_REFUSED);
}

static void *run(void *unused) {
    (void)unused;
    relaxed_enter(); /* for good: nothing that this thread does may disturb a capture */
    pthread_mutex_lock(&lock);
    while (!stopping) {
        struct helper_hostfunc *hostfunc = first;
        if (!hostfunc) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        first = hostfunc->next;
        if (!first) last = &first;
        pthread_mutex_unlock(&lock);
        enqueue(hostfunc);
        pthread_mutex_lock(&lock);
    }
    away = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int helper_hostfunc_start(void) {
    pthread_mutex_lock(&lock);
    int error = 0;
    if (!running) {
        stopping = away = false;
        error = pthread_create(&thread, NULL, run, NULL);
        running = error == 0;
        if (running) pthread_detach(thread);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* The process ends. The driver may hold the thread up for as long as a stream is full: it is not waited for then. */
void helper_hostfunc_stop(void) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_nsec += 100000000;
    if (deadline.tv_nsec >= 1000000000) deadline.tv_sec++, deadline.tv_nsec -= 1000000000;
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_broadcast(&changed);
    while (running && !away)
        if (pthread_cond_timedwait(&changed, &lock, &deadline) != 0) break;
    running = false;
    pthread_mutex_unlock(&lock);
}
