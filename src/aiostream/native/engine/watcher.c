/* The watcher: the library's one native thread, and the second source of truth of every wait.
 *
 * In each pass it takes the waits that tasks have left to it, polls the events that are due
 * (watched_waits.c), and fires the ticket of each wait that is over or is handed back to its task.
 * Every 15 ms it reads the health of each context in which something is pending, and fails what
 * waits in a lost one. In between it sleeps until the next event is due (waker.c). With nothing
 * pending it parks until a wait or a point wakes it, or to read the health now and then if a
 * listener wants that.
 *
 * A host function never runs after its context has failed. So without this thread a wait for one
 * would hang. The watcher never runs Python, and never queries a stream of the user's. Its capture
 * mode is RELAXED for good, so no query of this thread can end a capture.
 */
#define _GNU_SOURCE
#include "watcher.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "contexts.h"
#include "failures.h"
#include "points.h"
#include "waits.h"
#include "waker.h"

enum { IDLE_PASSES_BEFORE_PARKING = 4 };
/* of contexts with nothing pending, if a listener wants to know; P19 promises a second */
static const int64_t IDLE_HEALTH_PERIOD_NS = 900000000;

/* for watcher_start and watcher_stop alone */
static pthread_mutex_t watcher_lock = PTHREAD_MUTEX_INITIALIZER;
static bool running;          /* under watcher_lock */
static _Atomic bool stopping; /* written by watcher_stop; read by the watcher */
static pthread_t thread;
static pid_t process; /* the process in which it runs; under watcher_lock */

static bool must_wake(void) { return waits_are_new() || atomic_load(&stopping); }

static void read_health(bool all) {
    struct context *context;
    for (int i = 0; (context = context_at(i)); i++) {
        if (!all && atomic_load(&context->pending) <= 0) continue;
        int status = context_health(context);
        if (status == CUDA_SUCCESS || atomic_load(&stopping)) continue;
        waits_fail(context, status);
        points_fail(context, status);
    }
    atomic_fetch_add(&counters[WATCHER_PASSES], 1);
}

static void *watch(void *unused) {
    (void)unused;
    bool relaxed = false;
    prctl(PR_SET_TIMERSLACK, 1UL); /* ns. The default, 50 us, is the length of a short wait. */
    int idle_passes = 0;
    int64_t next_health = 0, next_idle_health = 0;
    while (!atomic_load(&stopping)) {
        /* for good, so that no query of this thread can end a capture */
        if (!relaxed) relaxed = relaxed_enter() >= 0;
        int64_t now = now_ns();
        int64_t next = waits_poll(now);
        bool busy = contexts_pending() > 0 || next != NEVER;
        bool all = failures_expected() && now >= next_idle_health;
        if (all || (busy && now >= next_health)) {
            read_health(all);
            waits_leave_late(now);
            next_health = now + HEALTH_PERIOD_NS;
            if (all) next_idle_health = now + IDLE_HEALTH_PERIOD_NS;
        }
        if (busy) {
            idle_passes = 0;
            waker_sleep_until(next < next_health ? next : next_health, must_wake);
        } else if (++idle_passes <= IDLE_PASSES_BEFORE_PARKING) {
            waker_sleep_until(now + HEALTH_PERIOD_NS, must_wake);
        } else {
            /* Who arms a point, or begins to listen for failures, reads `parked` afterwards, and
             * this thread reads both after it has written that. So one of the two sees the other.
             */
            waker_set_parked(true);
            if (contexts_pending() == 0)
                waker_sleep_until(failures_expected() ? next_idle_health : NEVER, must_wake);
            waker_set_parked(false);
            /* only its time was up */
            idle_passes = must_wake() || contexts_pending() > 0 ? 0 : IDLE_PASSES_BEFORE_PARKING;
        }
    }
    return NULL;
}

int watcher_start(void) {
    pthread_mutex_lock(&watcher_lock);
    int error = 0;
    if (!running) {
        stopping = false;
        error = waker_open();
        if (!error) error = thread_start(&thread, watch);
        running = error == 0;
        process = getpid();
    }
    pthread_mutex_unlock(&watcher_lock);
    return error;
}

bool watcher_stop(int patience_s) {
    /* in a forked child there is no such thread, and the lock may be held without an end */
    if (process != getpid()) return false;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += patience_s;
    pthread_mutex_lock(&watcher_lock);
    bool ran = running;
    if (running) {
        stopping = true;
        waker_wake();
        stopping = running = pthread_timedjoin_np(thread, NULL, &deadline) != 0;
    }
    pthread_mutex_unlock(&watcher_lock);
    return ran;
}

void watcher_fail_lost(void) {
    waits_drop_work();
    read_health(true);
}
