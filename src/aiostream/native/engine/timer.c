/* A timer of the waits' own loop, for waits that need no poll until shortly before their
 * expected end. It costs one wake-up in place of three: the watcher need not hear of the wait,
 * wake, and wake the loop. */
#include "timer.h"

#include <limits.h>
#include <sys/timerfd.h>

static const int64_t DUE_SOON_NS = 2000; /* what is due within this is due now */

/* It also makes the descriptor unreadable. */
static void set(struct timer *timer, int64_t time) { /* lock held */
    struct itimerspec when = {
        .it_value = {.tv_sec = time / 1000000000, .tv_nsec = time % 1000000000}};
    timerfd_settime(timer->descriptor, TFD_TIMER_ABSTIME, &when, NULL);
    atomic_store(&timer->set_for, time);
}

static void set_by(struct timer *timer, int64_t time) { /* lock held */
    int64_t set_for = atomic_load(&timer->set_for);
    if (!set_for || time < set_for) set(timer, time);
}

void timer_open(struct timer *timer) {
    pthread_mutex_lock(&timer->lock);
    timer->closed = false;
    pthread_mutex_unlock(&timer->lock);
}

static void insert(struct timer *timer, struct timer_entry *entry) {
    struct timer_entry **link = &timer->first;
    if (timer->last && timer->last->time <= entry->time) link = &timer->last->next;
    else
        while (*link && (*link)->time < entry->time) link = &(*link)->next;
    entry->next = *link;
    *link = entry;
    if (!entry->next) timer->last = entry;
    timer->count += entry->counts;
}

bool timer_add(struct timer *timer, struct timer_entry *entry, int64_t time, int most) {
    pthread_mutex_lock(&timer->lock);
    bool taken = !timer->closed && timer->count < most;
    if (taken) {
        entry->time = time;
        entry->counts = most < INT_MAX;
        insert(timer, entry);
        set_by(timer, time);
    }
    pthread_mutex_unlock(&timer->lock);
    return taken;
}

void timer_wake_by(struct timer *timer, int64_t time) {
    pthread_mutex_lock(&timer->lock);
    if (!timer->closed) set_by(timer, time);
    pthread_mutex_unlock(&timer->lock);
}

struct timer_entry *timer_remove(struct timer *timer, bool (*is_it)(struct timer_entry *, uint64_t),
                                 uint64_t argument) {
    pthread_mutex_lock(&timer->lock);
    struct timer_entry **link = &timer->first, *previous = NULL, *found;
    while ((found = *link) && !is_it(found, argument)) previous = found, link = &found->next;
    if (found) {
        *link = found->next;
        if (timer->last == found) timer->last = previous;
        timer->count -= found->counts; /* the descriptor may wake the loop for nothing */
    }
    pthread_mutex_unlock(&timer->lock);
    return found;
}

bool timer_is_due(const struct timer *timer, int64_t now) {
    int64_t set_for = atomic_load(&timer->set_for);
    return set_for && set_for <= now + DUE_SOON_NS;
}

struct timer_entry *timer_take_due(struct timer *timer, int64_t now, int64_t soon) {
    if (!timer_is_due(timer, now)) return NULL;
    pthread_mutex_lock(&timer->lock);
    struct timer_entry *due = timer->first, **link = &due;
    while (*link && (*link)->time <= now + soon) {
        timer->count -= (*link)->counts;
        link = &(*link)->next;
    }
    timer->first = *link;
    *link = NULL;
    if (!timer->first) timer->last = NULL;
    if (!timer->closed) set(timer, timer->first ? timer->first->time : 0);
    pthread_mutex_unlock(&timer->lock);
    return due;
}

struct timer_entry *timer_close(struct timer *timer) {
    pthread_mutex_lock(&timer->lock);
    struct timer_entry *left = timer->first;
    timer->first = timer->last = NULL;
    timer->count = 0;
    set(timer, 0);
    timer->closed = true; /* nothing uses the descriptor from now on */
    pthread_mutex_unlock(&timer->lock);
    return left;
}
