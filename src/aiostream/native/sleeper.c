/* Helper streams, and the waits that sleep: a host function behind an event, on a private stream.
 *
 * On a helper the host function costs the user's stream nothing. But it may block whoever enqueues it (behind an event of a
 * stream that is full, on an H200), and so may making a stream (while the GPU is busy, from some 34 streams on). Hence a
 * thread of its own, the sleeper, which may be held up without holding up the watcher or a loop.
 */
#include "native.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { MAX_CONTEXTS = 4096, MAX_DEVICES = 64, KEPT = 32 };

/* ------------------------------------------------------------------------------------------------ helper streams */

static struct {
    void *idle[KEPT];
    int count;
} helpers[MAX_CONTEXTS]; /* under helper_lock, which is never held across a driver call */
static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER;

void *helper_take(struct probe *probe) {
    pthread_mutex_lock(&helper_lock);
    int number = probe_index(probe);
    void *stream = helpers[number].count > 0 ? helpers[number].idle[--helpers[number].count] : NULL;
    pthread_mutex_unlock(&helper_lock);
    return stream;
}

int helper_count(struct probe *probe) {
    pthread_mutex_lock(&helper_lock);
    int count = helpers[probe_index(probe)].count;
    pthread_mutex_unlock(&helper_lock);
    return count;
}

int helper_make(struct probe *probe, void **stream) {
    int mode = relaxed_enter(); /* making a stream must not end a capture */
    int status = driver.ctx_push(probe_context(probe));
    if (status == CUDA_SUCCESS) {
        void *popped;
        status = driver.stream_create(stream, 1 /* CU_STREAM_NON_BLOCKING */);
        driver.ctx_pop(&popped);
    }
    relaxed_leave(mode);
    return status;
}

void helper_put(struct probe *probe, void *stream, bool idle) {
    int number = probe_index(probe);
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

/* ------------------------------------------------------------------------------------------------ the sleeper */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows; never held across a driver call */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct sleep *first, **last = &first; /* what is to be enqueued, oldest first */
static int pending[MAX_DEVICES]; /* asked for and not yet ended */
static int limit = 4;            /* for each device: every one holds one of its hardware queues */
static bool running, stopping, away;
static pthread_t thread;

static void on_reached(void *data) {
    struct sleep *sleep = data;
    sleep->reached(sleep);
    atomic_store(&sleep->state, SLEEP_DONE); /* the last touch: the watcher may use it again from now on */
}

static int *pending_of(struct probe *probe) { return &pending[probe_device(probe) % MAX_DEVICES]; }

bool sleeper_try(struct sleep *sleep) {
    pthread_mutex_lock(&lock);
    bool room = running && !stopping && *pending_of(sleep->probe) < limit;
    if (room) {
        ++*pending_of(sleep->probe);
        atomic_store(&sleep->state, SLEEP_REQUESTED);
        sleep->stream = NULL;
        sleep->next = NULL;
        *last = sleep;
        last = &sleep->next;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    return room;
}

void sleeper_forget(struct sleep *sleep) {
    pthread_mutex_lock(&lock);
    --*pending_of(sleep->probe);
    pthread_mutex_unlock(&lock);
}

void sleeper_release(struct sleep *sleep) {
    int state = atomic_load(&sleep->state);
    if (state == SLEEP_NONE) return;
    if (sleep->stream) helper_put(sleep->probe, sleep->stream, state == SLEEP_DONE);
    atomic_store(&sleep->state, SLEEP_NONE);
    sleeper_forget(sleep);
}

void sleeper_limit(int number) {
    pthread_mutex_lock(&lock);
    limit = number;
    pthread_mutex_unlock(&lock);
}

/* Once the host function is enqueued the record is the driver thread's and then the watcher's: not a touch after that. */
static void enqueue(struct sleep *sleep) {
    void *stream = NULL;
    int status = -1;
    if (!atomic_load(&sleep->unwanted)) {
        stream = helper_take(sleep->probe);
        status = stream ? CUDA_SUCCESS : helper_make(sleep->probe, &stream);
        if (status != CUDA_SUCCESS) stream = NULL;
    }
    sleep->stream = stream;
    if (status == CUDA_SUCCESS) status = driver.stream_wait_event(stream, sleep->event, 0);
    if (status == CUDA_SUCCESS) {
        atomic_store(&sleep->state, SLEEP_ARMED);
        status = driver.launch_host_func(stream, on_reached, sleep);
    }
    if (status != CUDA_SUCCESS) atomic_store(&sleep->state, SLEEP_REFUSED);
}

static void *run(void *unused) {
    (void)unused;
    relaxed_enter(); /* for good: nothing that this thread does may disturb a capture */
    pthread_mutex_lock(&lock);
    while (!stopping) {
        struct sleep *sleep = first;
        if (!sleep) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        first = sleep->next;
        if (!first) last = &first;
        pthread_mutex_unlock(&lock);
        enqueue(sleep);
        pthread_mutex_lock(&lock);
    }
    away = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int sleeper_start(void) {
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
void sleeper_stop(void) {
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
