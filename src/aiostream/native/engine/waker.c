/* The watcher's sleep: ppoll on an eventfd. The watcher publishes its time of waking, so that most
 * new work need not write to the eventfd. */
#define _GNU_SOURCE /* ppoll */
#include "waker.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* the watcher spends a shorter pause awake, because falling asleep takes as long */
static const int64_t SHORTEST_SLEEP_NS = 12000;

static _Atomic bool parked; /* written by the watcher; read by each thread that arms a point */
/* When the watcher will wake; 0 while it is awake. The watcher writes it. Others only make it
 * earlier. */
static _Atomic int64_t asleep_until;
static int wake_descriptor = -1;
static int timer_descriptor = -1; /* wakes the watcher earlier than it meant to */

int waker_open(void) {
    if (wake_descriptor < 0) wake_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_descriptor >= 0 && timer_descriptor < 0)
        timer_descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return wake_descriptor < 0 || timer_descriptor < 0 ? errno : 0;
}

void waker_wake(void) { descriptor_wake(wake_descriptor); }

/* asleep_until only becomes earlier while the watcher sleeps. A thread that has set a later time
 * than another one sees that when it looks again, and sets the earlier one. So no lock is needed.
 */
static void set_timer(void) {
    int64_t set = 0, time;
    while ((time = atomic_load(&asleep_until)) != 0 && time != set) {
        struct itimerspec when = {
            .it_value = {.tv_sec = time / 1000000000, .tv_nsec = time % 1000000000}};
        timerfd_settime(timer_descriptor, TFD_TIMER_ABSTIME, &when, NULL);
        set = time;
    }
}

/* To set a timer costs less than to wake a thread that has nothing to do until then. */
void waker_wake_before(int64_t time) {
    int64_t until = atomic_load(&asleep_until);
    if (until <= time) return;
    if (time < now_ns() + SHORTEST_SLEEP_NS) {
        waker_wake();
        return;
    }
    while (!atomic_compare_exchange_weak(&asleep_until, &until, time))
        if (until <= time) return;
    set_timer();
}

void waker_wake_if_parked(void) {
    if (atomic_load(&parked)) waker_wake();
}

void waker_set_parked(bool value) { atomic_store(&parked, value); }

/* How much too long sleeps were, by the power of two of their length, because a processor that has
 * idled for long wakes slowly. Used by the watcher alone. */
static struct { int64_t mean, deviation; } lateness[LENGTH_BUCKETS];

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

/* The watcher publishes its time of waking, then asks for work. A thread that adds work makes it
 * visible, then reads the published time. One of the two sees the other (both are sequentially
 * consistent). */
void waker_sleep_until(int64_t time, bool (*must_wake)(void)) {
    int64_t now = now_ns();
    int64_t delay = time == NEVER ? NEVER : time - now;
    if (delay < SHORTEST_SLEEP_NS) {
        while (now_ns() < time && !must_wake())
#if defined(__x86_64__)
            __builtin_ia32_pause()
#elif defined(__aarch64__)
            __asm__ volatile("yield")
#endif
                ;
        return;
    }
    atomic_store(&asleep_until, time);
    if (!must_wake()) {
        struct pollfd descriptors[] = {{.fd = wake_descriptor, .events = POLLIN},
                                       {.fd = timer_descriptor, .events = POLLIN}};
        struct timespec timeout = {.tv_sec = delay / 1000000000, .tv_nsec = delay % 1000000000};
        int ready = ppoll(descriptors, 2, time == NEVER ? NULL : &timeout, NULL);
        int64_t until = atomic_exchange(&asleep_until, 0), woken = now_ns();
        if (ready > 0 && descriptors[0].revents) descriptor_read(wake_descriptor);
        else if (ready >= 0 && until != NEVER && woken >= until)
            learn_lateness(until - now, woken - until);
        if (ready > 0 && descriptors[1].revents) descriptor_read(timer_descriptor);
    }
    atomic_store(&asleep_until, 0);
}
