/* The watcher: one native thread that reads the health of each context while anything is pending.
 *
 * After a sticky error no host function ever runs, so a waiter that only its host function could wake would hang for ever.
 * The fault shows at the same moment on every stream of the process, also on an idle one that nobody else knows; the watcher
 * therefore queries a private stream of ours per context, and never a user's, which might be capturing or destroyed.
 */
#include "native.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_PROBES = 4096, PERIOD_MS = 10, IDLE_PASSES_BEFORE_PARKING = 4 };

struct probe {
    void *stream; /* private and always idle; written by probe_open, then constant */
    void *context;
    _Atomic int64_t pending; /* points armed and neither fired nor failed; any thread */
    int index;
};

static struct probe probes[MAX_PROBES];
static _Atomic int probe_count;
static pthread_mutex_t probe_lock = PTHREAD_MUTEX_INITIALIZER; /* for probe_open and watcher_start/stop alone */

static _Atomic int64_t pending_total;
static _Atomic bool parked;   /* written by the watcher; read by whoever arms a point */
static _Atomic bool stopping; /* written by watcher_stop; read by the watcher */
static bool running;          /* under probe_lock */
static int wake_descriptor = -1;
static pthread_t thread;

struct probe *probe_open(void *context, void *private_stream) {
    pthread_mutex_lock(&probe_lock);
    struct probe *probe = NULL;
    int number = probe_count;
    if (number < MAX_PROBES) {
        probe = &probes[number];
        probe->context = context;
        probe->stream = private_stream;
        probe->index = number;
        atomic_store(&probe_count, number + 1);
    }
    pthread_mutex_unlock(&probe_lock);
    return probe;
}

int probe_index(const struct probe *probe) { return probe->index; }
struct probe *probe_at(int index) { return index < 0 || index >= probe_count ? NULL : &probes[index]; }

static void wake(void) {
    uint64_t one = 1;
    while (write(wake_descriptor, &one, sizeof one) < 0 && errno == EINTR) {}
}

/* Add, then read `parked`; the watcher sets `parked`, then reads the total: one of the two sees the other. */
void probe_add_pending(struct probe *probe) {
    atomic_fetch_add(&probe->pending, 1);
    atomic_fetch_add(&pending_total, 1);
    if (atomic_load(&parked)) wake();
}

void probe_drop_pending(struct probe *probe) {
    atomic_fetch_sub(&probe->pending, 1);
    atomic_fetch_sub(&pending_total, 1);
}

int probe_health(struct probe *probe) {
    int mode = relaxed_enter();
    int status = driver.stream_query(probe->stream);
    relaxed_leave(mode);
    /* NOT_READY cannot come from an idle stream unless the driver is being slow; 9xx speak of somebody's capture. */
    if (status == CUDA_NOT_READY || (status >= CUDA_CAPTURE_FIRST && status <= CUDA_CAPTURE_LAST)) return CUDA_SUCCESS;
    return status;
}

static void look(void) {
    int count = probe_count;
    for (int i = 0; i < count; i++) {
        if (atomic_load(&probes[i].pending) == 0) continue;
        int status = probe_health(&probes[i]);
        if (status != CUDA_SUCCESS && !atomic_load(&stopping)) points_fail(&probes[i], status);
    }
    atomic_fetch_add(&counters[WATCHER_PASSES], 1);
}

/* Returns when woken or after the timeout; -1 waits for ever. */
static void doze(int timeout_ms) {
    struct pollfd descriptor = {.fd = wake_descriptor, .events = POLLIN};
    if (poll(&descriptor, 1, timeout_ms) > 0) {
        uint64_t ignored;
        if (read(wake_descriptor, &ignored, sizeof ignored) < 0) return;
    }
}

static void *watch(void *unused) {
    (void)unused;
    int idle_passes = 0;
    while (!atomic_load(&stopping)) {
        if (atomic_load(&pending_total) > 0) {
            idle_passes = 0;
            look();
        } else if (++idle_passes > IDLE_PASSES_BEFORE_PARKING) {
            atomic_store(&parked, true);
            if (atomic_load(&pending_total) == 0 && !atomic_load(&stopping)) doze(-1);
            atomic_store(&parked, false);
            idle_passes = 0;
            continue;
        }
        doze(PERIOD_MS);
    }
    return NULL;
}

int watcher_start(void) {
    pthread_mutex_lock(&probe_lock);
    int error = 0;
    if (!running) {
        if (wake_descriptor < 0) wake_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        stopping = false;
        error = wake_descriptor < 0 ? errno : pthread_create(&thread, NULL, watch, NULL);
        running = error == 0;
    }
    pthread_mutex_unlock(&probe_lock);
    return error;
}

void watcher_stop(void) {
    pthread_mutex_lock(&probe_lock);
    if (running) {
        stopping = true;
        wake();
        pthread_join(thread, NULL);
        running = false;
    }
    pthread_mutex_unlock(&probe_lock);
}
