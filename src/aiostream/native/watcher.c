/* The watcher: one native thread that polls at the events of waits, and reads the health of each context while anything is
 * pending.
 *
 * After a sticky error no host function ever runs, so a waiter that only its host function could wake would hang for ever.
 * The fault shows at the same moment on every stream of the process, also on an idle one that nobody else knows; the watcher
 * therefore queries a private stream of ours per context, and never a user's, which might be capturing or destroyed.
 */
#define _GNU_SOURCE /* ppoll */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "native.h"

enum { MAX_CONTEXTS = 4096, IDLE_PASSES_BEFORE_PARKING = 4 };
static const int64_t HEALTH_PERIOD_NS = 15000000; /* ns between two polls at the contexts' health */
static const int64_t SHORTEST_SLEEP_NS = 12000; /* ns: a shorter pause is spent awake, because falling asleep takes as long */
static const int64_t NEVER = INT64_MAX;

struct context {
    void *stream; /* private and always idle; written by context_register, then constant */
    void *handle;
    int device;
    _Atomic int64_t pending; /* points armed and neither fired nor failed; any thread */
    int index;
};

static struct context contexts[MAX_CONTEXTS];
static _Atomic int context_count;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER; /* for context_register and watcher_start/stop alone */

static _Atomic int64_t pending_total;
static _Atomic bool parked;   /* written by the watcher; read by whoever arms a point */
static _Atomic bool stopping; /* written by watcher_stop; read by the watcher */
static _Atomic int64_t asleep_until; /* written by the watcher, 0 while awake; read by whoever hands it a wait */
static bool running;          /* under context_lock */
static int wake_descriptor = -1;
static pthread_t thread;

struct context *context_register(void *handle, void *private_stream, int device) {
    pthread_mutex_lock(&context_lock);
    struct context *context = NULL;
    int number = context_count;
    if (number < MAX_CONTEXTS) {
        context = &contexts[number];
        context->handle = handle;
        context->stream = private_stream;
        context->device = device;
        context->index = number;
        atomic_store(&context_count, number + 1);
    }
    pthread_mutex_unlock(&context_lock);
    return context;
}

int context_index(const struct context *context) { return context->index; }
int context_device(const struct context *context) { return context->device; }
void *context_handle(const struct context *context) { return context->handle; }
struct context *context_at(int index) { return index < 0 || index >= context_count ? NULL : &contexts[index]; }

static void wake(void) {
    uint64_t one = 1;
    while (write(wake_descriptor, &one, sizeof one) < 0 && errno == EINTR) {}
}

/* Add, then read `parked`; the watcher sets `parked`, then reads the total: one of the two sees the other. */
void context_add_pending(struct context *context) {
    atomic_fetch_add(&context->pending, 1);
    atomic_fetch_add(&pending_total, 1);
    if (atomic_load(&parked)) wake();
}

void context_drop_pending(struct context *context) {
    atomic_fetch_sub(&context->pending, 1);
    atomic_fetch_sub(&pending_total, 1);
}

int context_health(struct context *context) {
    int mode = relaxed_enter();
    int status = driver.stream_query(context->stream);
    relaxed_leave(mode);
    /* NOT_READY cannot come from an idle stream unless the driver is being slow; 9xx speak of somebody's capture. */
    if (status == CUDA_NOT_READY || (status >= CUDA_CAPTURE_FIRST && status <= CUDA_CAPTURE_LAST)) return CUDA_SUCCESS;
    return status;
}

int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void read_health(void) {
    int count = context_count;
    for (int i = 0; i < count; i++) {
        if (atomic_load(&contexts[i].pending) == 0) continue;
        int status = context_health(&contexts[i]);
        if (status == CUDA_SUCCESS || atomic_load(&stopping)) continue;
        waits_fail(&contexts[i], status);
        points_fail(&contexts[i], status);
    }
    atomic_fetch_add(&counters[WATCHER_PASSES], 1);
}

/* ------------------------------------------------------------------------------------------------ sleeping */

/* How much too long sleeps were, by the power of two of their length: a processor that has idled for long wakes slowly. The
 * watcher's alone. */
static struct {
    int64_t mean, deviation;
} lateness[40];

static int bucket_of(int64_t delay) {
    int bucket = 0;
    while (delay > 1 && bucket < 39) delay >>= 1, bucket++;
    return bucket;
}

static void learn_lateness(int64_t delay, int64_t late) {
    int bucket = bucket_of(delay);
    int64_t error = late - lateness[bucket].mean;
    lateness[bucket].mean += error / 8;
    lateness[bucket].deviation += ((error < 0 ? -error : error) - lateness[bucket].deviation) / 8;
}

int64_t watcher_oversleep(int64_t delay) {
    if (delay < SHORTEST_SLEEP_NS) return 0;
    int bucket = bucket_of(delay);
    int64_t late = lateness[bucket].mean + 2 * lateness[bucket].deviation;
    return late < 10000 ? 10000 : late > 500000 ? 500000 : late;
}

/* Publish, then poll for new_waits; who hands over a wait pushes it, then reads what is published: one of the two sees the
 * other (both sequentially consistent). */
static void sleep_until(int64_t time) {
    int64_t now = now_ns();
    int64_t delay = time == NEVER ? NEVER : time - now;
    if (delay < SHORTEST_SLEEP_NS) {
        while (now_ns() < time && !waits_are_new())
#if defined(__x86_64__)
            __builtin_ia32_pause()
#endif
                ;
        return;
    }
    atomic_store(&asleep_until, time);
    if (!waits_are_new() && !atomic_load(&stopping)) {
        struct pollfd descriptor = {.fd = wake_descriptor, .events = POLLIN};
        struct timespec timeout = {.tv_sec = delay / 1000000000, .tv_nsec = delay % 1000000000};
        if (ppoll(&descriptor, 1, time == NEVER ? NULL : &timeout, NULL) > 0) {
            uint64_t ignored;
            while (read(wake_descriptor, &ignored, sizeof ignored) < 0 && errno == EINTR) {}
        } else if (time != NEVER) {
            learn_lateness(delay, now_ns() - time);
        }
    }
    atomic_store(&asleep_until, 0);
}

void watcher_wake_before(int64_t time) {
    if (atomic_load(&asleep_until) > time) wake();
}

static void *watch(void *unused) {
    (void)unused;
    relaxed_enter();                 /* for good: no query of this thread may disturb anybody's capture */
    prctl(PR_SET_TIMERSLACK, 1UL);   /* ns; 50 us by default, which is the length of a short wait */
    int idle_passes = 0;
    int64_t next_health = 0;
    while (!atomic_load(&stopping)) {
        int64_t now = now_ns();
        int64_t next = waits_poll(now);
        if (atomic_load(&pending_total) > 0 || next != NEVER) {
            idle_passes = 0;
            if (now >= next_health) {
                read_health();
                next_health = now + HEALTH_PERIOD_NS;
            }
            sleep_until(next < next_health ? next : next_health);
        } else if (++idle_passes <= IDLE_PASSES_BEFORE_PARKING) {
            sleep_until(now + HEALTH_PERIOD_NS);
        } else {
            atomic_store(&parked, true);
            if (atomic_load(&pending_total) == 0) sleep_until(NEVER);
            atomic_store(&parked, false);
            idle_passes = 0;
        }
    }
    return NULL;
}

int watcher_start(void) {
    pthread_mutex_lock(&context_lock);
    int error = 0;
    if (!running) {
        if (wake_descriptor < 0) wake_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        stopping = false;
        error = wake_descriptor < 0 ? errno : pthread_create(&thread, NULL, watch, NULL);
        running = error == 0;
        if (running) error = helper_hostfunc_start();
    }
    pthread_mutex_unlock(&context_lock);
    return error;
}

void watcher_stop(void) {
    helper_hostfunc_stop();
    pthread_mutex_lock(&context_lock);
    if (running) {
        stopping = true;
        wake();
        pthread_join(thread, NULL);
        running = false;
    }
    pthread_mutex_unlock(&context_lock);
}
