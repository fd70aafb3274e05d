/* The watcher's sleep: ppoll on an eventfd, with a published time of waking so that most new work need not write to it. */
#define _GNU_SOURCE /* ppoll */
#include "waker.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static const int64_t SHORTEST_SLEEP_NS = 12000; /* a shorter pause is spent awake, because falling asleep takes as long */
static const int64_t NEVER = INT64_MAX;

static _Atomic bool parked;          /* written by the watcher; read by whoever arms a point */
static _Atomic int64_t asleep_until; /* written by the watcher, 0 while awake; read by whoever gives it work */
static int wake_descriptor = -1;

int waker_open(void) {
    if (wake_descriptor < 0) wake_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return wake_descriptor < 0 ? errno : 0;
}

void waker_wake(void) {
    uint64_t one = 1;
    while (write(wake_descriptor, &one, sizeof one) < 0 && errno == EINTR) {}
}

void waker_wake_before(int64_t time) {
    if (atomic_load(&asleep_until) > time) waker_wake();
}

void waker_wake_if_parked(void) {
    if (atomic_load(&parked)) waker_wake();
}

void waker_set_parked(bool value) { atomic_store(&parked, value); }

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

int64_t waker_oversleep(int64_t delay) {
    if (delay < SHORTEST_SLEEP_NS) return 0;
    int bucket = bucket_of(delay);
    int64_t late = lateness[bucket].mean + 2 * lateness[bucket].deviation;
    return late < 10000 ? 10000 : late > 500000 ? 500000 : late;
}

/* Publish, then poll for new_waits; who hands over a wait pushes it, then reads what is published: one of the two sees the
 * other (both sequentially consistent). */
void waker_sleep_until(int64_t time, bool (*must_wake)(void)) {
    int64_t now = now_ns();
    int64_t delay = time == NEVER ? NEVER : time - now;
    if (delay < SHORTEST_SLEEP_NS) {
        while (now_ns() < time && !must_wake())
#if defined(__x86_64__)
            __builtin_ia32_pause()
#endif
                ;
        return;
    }
    atomic_store(&asleep_until, time);
    if (!must_wake()) {
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
