/* Alarms: for the waits that are left alone until shortly before their expected end, a timer that their own loop watches. One
 * wake-up in place of three: the watcher need not be told of them, nor wake, nor wake the loop.
 */
#include "native.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

static const int64_t SOON = 2000; /* ns: what is due so soon is due now */
enum { AT_A_TIME = 8 };           /* tasks that are woken together run in one turn of their loop, and all others wait for that */

struct alarm {
    int descriptor;           /* of the timer; constant */
    pthread_mutex_t lock;     /* guards the rest: the loop's thread sets and takes, whoever closes the queue takes what is left */
    struct doze *first, *last; /* by their time */
    int count;
    bool closed;
    _Atomic int64_t set_for; /* written under the lock; read without it by the loop's thread; 0: the timer is not running */
};

struct alarm *alarm_new(void) {
    struct alarm *alarm = calloc(1, sizeof *alarm);
    if (!alarm) return NULL;
    alarm->descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (alarm->descriptor < 0) {
        free(alarm);
        return NULL;
    }
    pthread_mutex_init(&alarm->lock, NULL);
    return alarm;
}

void alarm_free(struct alarm *alarm) {
    close(alarm->descriptor);
    pthread_mutex_destroy(&alarm->lock);
    free(alarm);
}

int alarm_descriptor(const struct alarm *alarm) { return alarm->descriptor; }

/* Also takes back that the descriptor is readable. */
static void set(struct alarm *alarm, int64_t time) { /* lock held */
    struct itimerspec when = {.it_value = {.tv_sec = time / 1000000000, .tv_nsec = time % 1000000000}};
    timerfd_settime(alarm->descriptor, TFD_TIMER_ABSTIME, &when, NULL);
    atomic_store(&alarm->set_for, time);
}

void alarm_open(struct alarm *alarm) {
    pthread_mutex_lock(&alarm->lock);
    alarm->closed = false;
    pthread_mutex_unlock(&alarm->lock);
}

static void insert(struct alarm *alarm, struct doze *doze) {
    struct doze **link = &alarm->first;
    if (alarm->last && alarm->last->time <= doze->time) link = &alarm->last->next;
    else
        while (*link && (*link)->time <= doze->time) link = &(*link)->next;
    doze->next = *link;
    *link = doze;
    if (!doze->next) alarm->last = doze;
    alarm->count++;
}

bool alarm_set(struct alarm *alarm, struct doze *doze, int64_t time, int most) {
    pthread_mutex_lock(&alarm->lock);
    bool taken = !alarm->closed && alarm->count < most;
    if (taken) {
        doze->time = time;
        insert(alarm, doze);
        int64_t set_for = atomic_load(&alarm->set_for);
        if (!set_for || time < set_for) set(alarm, time);
    }
    pthread_mutex_unlock(&alarm->lock);
    return taken;
}

struct doze *alarm_due(struct alarm *alarm, int64_t now) {
    int64_t set_for = atomic_load(&alarm->set_for);
    if (!set_for || set_for > now + SOON) return NULL;
    pthread_mutex_lock(&alarm->lock);
    struct doze *due = alarm->first, **link = &due;
    for (int taken = 0; *link && (*link)->time <= now + SOON && taken < AT_A_TIME; taken++) {
        link = &(*link)->next;
        alarm->count--;
    }
    alarm->first = *link;
    *link = NULL;
    if (!alarm->first) alarm->last = NULL;
    set(alarm, alarm->first ? alarm->first->time : 0); /* which may be over: then the descriptor is readable again */
    pthread_mutex_unlock(&alarm->lock);
    return due;
}

struct doze *alarm_close(struct alarm *alarm) {
    pthread_mutex_lock(&alarm->lock);
    struct doze *left = alarm->first;
    alarm->first = alarm->last = NULL;
    alarm->count = 0;
    alarm->closed = true;
    set(alarm, 0);
    pthread_mutex_unlock(&alarm->lock);
    return left;
}
