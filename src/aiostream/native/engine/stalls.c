/* Stalls: what has not come back within its limit. docs/promises.md says what that is, who hears
 * of it, and when it is over.
 *
 * While something with a limit is pending, a native thread beats every 5 ms. At each beat a wait or
 * a call either has come on, or is one beat older. A stall is a number of beats without progress.
 * A beat that comes late is one beat, so a process that was stopped, for however long, is older by
 * one.
 *
 * At a stall the beat makes the news, one at a time, and wakes a thread of Python's that does
 * nothing else (`_runtime/stalls.py`). That one asks whether a loop runs, ends the process with the
 * stacks of all threads, and has the listeners called. If it has not come back after two seconds,
 * Python does not run, and the beat ends the process, or writes to stderr.
 *
 * The thread calls no driver, runs no Python, and takes no lock that is held across either. So
 * nothing can hold it, and no second thread has to look after it. With nothing to count it sleeps.
 */
#define _GNU_SOURCE
#include "stalls.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "failures.h"
#include "wait_inside.h"

/* a fourth of the shortest limit */
static const int64_t BEAT_NS = 5000000, DONE_WITHIN_NS = 2000000000;

/* All of this is under waits_lock. */
struct call {
    struct call *next;
    const struct wait_list *list;
    int64_t limit, ns;
    _Atomic int64_t said;
};
static struct call *calls; /* those under way, the newest first */
static struct stall news;  /* its limit is 0: there is none */
static bool is_taken;
static int64_t last_beat;
static int news_eventfd = -1; /* written once, by the start */

/* --- what is stalled --- */

struct call *call_begin(const struct waits *waits) {
    int64_t limit = atomic_load(&waits->limit);
    struct call *call = limit ? malloc(sizeof *call) : NULL;
    if (!call) return NULL;
    pthread_mutex_lock(&waits_lock);
    *call = (struct call){.next = calls, .list = waits->list, .limit = limit};
    calls = call;
    pthread_mutex_unlock(&waits_lock);
    wait_has_limit();
    return call;
}

void call_end(struct call *call) {
    if (!call) return;
    pthread_mutex_lock(&waits_lock);
    struct call **link = &calls;
    while (*link != call) link = &(*link)->next;
    *link = call->next;
    pthread_mutex_unlock(&waits_lock);
    free(call);
}

static int64_t later(int64_t one, int64_t other) { return one > other ? one : other; }

/* The watcher polls it, or the thread that it blocks, so its loop need not run. */
static bool has_no_loop(const struct wait *wait) {
    return wait->in_use &&
           (atomic_load(&wait->holder) == HELD_BY_WATCHER || wait->queue->index == 0);
}

/* When a wait with a limit came on last: it began, or work on its stream ended, or it is over and
 * lies in the queue of its loop. 0: it waits for nothing. Under waits_lock and the lock of its
 * spares, as the next two. */
static int64_t progress_of(const struct wait *wait) {
    struct wait_list *list = wait->list;
    int64_t began = wait->began, since;
    if (!list || !atomic_load(&wait->limit) || atomic_load(&wait->queue->closed) ||
        wait->loop != wait->queue->identity)
        return 0;
    if (!wait->in_use) since = point_unread_since(atomic_load(&wait->ticket));
    else if (atomic_load(&wait->holder) == OVER_LISTED) since = 0;
    /* a future whose work is not enqueued yet: that takes as long as its function */
    else if (wait->future && atomic_load(&wait->polled) < began) since = now_ns();
    else since = later(began, atomic_load(&list->stream->ended));
    if (!since || has_no_loop(wait)) return since;
    return later(since, atomic_load(&wait->queue->loop.changed));
}

/* The GPU has the beats up to the last one in which it was seen pending, also if a call of the
 * driver holds the watcher. The others are those of the loop that did not look. */
static void count_beat(struct wait *wait, int64_t progress) {
    int64_t pending_at = atomic_load(&wait->pending_at);
    if (progress == wait->progress) wait->unseen += BEAT_NS;
    else wait->progress = progress, wait->seen = wait->unseen = 0;
    if (!wait->users_event) pending_at = later(pending_at, atomic_load(&wait->list->pending_at));
    if (has_no_loop(wait) || (wait->in_use && pending_at >= last_beat))
        wait->seen += wait->unseen, wait->unseen = 0;
}

/* Whether the stall is one, and was said or is new. The first beat may have come at once. */
static bool counts(struct stall *stall, const char *name, const char *form, bool said,
                   _Atomic int64_t *said_at, int64_t since) {
    if (stall->ns - BEAT_NS < stall->limit || (atomic_load(said_at) >= since) != said) return false;
    stall->form = form;
    snprintf(stall->name, sizeof stall->name, "%s", name);
    if (!said && !stall->loop) atomic_store(said_at, now_ns());
    return true;
}

/* One hang of a stream, or of a loop, is one stall, whatever waits there. */
static bool wait_is_stalled(struct wait *wait, bool said, struct stall *stall) {
    struct wait_list *list = wait->list, *stream = list->stream;
    *stall = (struct stall){.limit = wait->limit, .ns = wait->seen};
    if (counts(stall, list->name,
               "%s is stalled: no work that is awaited there has ended for %.3g s", said,
               &stream->said, stream->ended + 1))
        return true;
    stall->ns = wait->unseen, stall->loop = wait->queue->index;
    return counts(stall, list->name, "%s is stalled: its loop has not come back for %.3g s", said,
                  &wait->queue->loop.said, wait->progress);
}

/* The first that was said and lasts, or the first that is new. */
static bool find(bool said, struct stall *stall) {
    bool found = false;
    for (struct wait *wait = all_waits; wait && !found; wait = wait->next_made) {
        pthread_mutex_lock(&wait->queue->spares.lock);
        int64_t progress = progress_of(wait);
        found = progress && progress == wait->progress && wait_is_stalled(wait, said, stall);
        pthread_mutex_unlock(&wait->queue->spares.lock);
    }
    for (struct call *call = calls; call && !found; call = call->next) {
        *stall = (struct stall){.limit = call->limit, .ns = call->ns};
        found =
            counts(stall, call->list->name,
                   "%s is stalled: a call on it has not returned for %.3g s", said, &call->said, 1);
    }
    return found;
}

/* Whether there was something to count. */
static bool count_all(void) {
    bool some = calls || news.limit;
    for (struct wait *wait = all_waits; wait; wait = wait->next_made) {
        pthread_mutex_lock(&wait->queue->spares.lock);
        int64_t progress = progress_of(wait);
        if (progress) count_beat(wait, progress), some = true;
        pthread_mutex_unlock(&wait->queue->spares.lock);
    }
    for (struct call *call = calls; call; call = call->next) call->ns += BEAT_NS;
    news.ns += BEAT_NS;
    last_beat = now_ns();
    return some;
}

/* --- the news --- */

static void say(struct stall *stall) {
    snprintf(stall->text, sizeof stall->text, stall->form, stall->name, (double)stall->ns / 1e9);
}

bool stall_lasts(struct stall *stall) {
    pthread_mutex_lock(&waits_lock);
    /* a stall of which there is news is not said yet */
    bool found = (!news.limit || is_taken) && find(true, stall);
    pthread_mutex_unlock(&waits_lock);
    if (found) say(stall);
    return found;
}

bool stall_take(struct stall *stall) {
    pthread_mutex_lock(&waits_lock);
    if (is_taken) news.limit = 0;
    is_taken = news.limit;
    *stall = news;
    pthread_mutex_unlock(&waits_lock);
    if (stall->limit) say(stall);
    return stall->limit;
}

bool stall_is_sure(struct queue *queue, bool runs) {
    bool was_idle = atomic_exchange(&queue->loop.idle, !runs), is_sure = runs && !was_idle;
    atomic_store(is_sure ? &queue->loop.said : &queue->loop.changed, now_ns());
    return is_sure;
}

/* --- the thread --- */

/* Once for each stall. Without a lock, because stderr may block. */
static void end_without_python(struct stall *stall) {
    char line[400];
    say(stall);
    snprintf(line, sizeof line,
             "%s. Python has not taken this for 2 s: a call keeps the GIL, or blocks the library's "
             "threads",
             stall->text);
    exit_if_stalled(line, "");
    failure_say("aiostream: %s. The listeners are called later.\n", line);
}

static void *beat(void *unused) {
    int idle = 0;
    for (int64_t next = 0;;) {
        struct stall stall;
        /* not at once, because an end may be on its way to its loop */
        if (idle == 2) atomic_store(&limits_are_counted, false);
        if (idle > 2) sem_wait(&limit_begun), idle = 0;
        int64_t now = now_ns();
        next = (now - next > BEAT_NS ? now : next) + BEAT_NS;
        struct timespec time = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
        pthread_mutex_lock(&waits_lock);
        idle = count_all() ? 0 : idle + 1;
        bool is_new = !news.limit && find(false, &stall);
        if (is_new) news = stall, is_taken = false;
        stall = news;
        pthread_mutex_unlock(&waits_lock);
        int64_t late = stall.ns - stall.limit - DONE_WITHIN_NS;
        if (is_new) descriptor_wake(news_eventfd);
        else if (stall.limit && late > 0 && late <= BEAT_NS) end_without_python(&stall);
    }
    return unused;
}

int stalls_start(int eventfd) {
    static bool runs;
    pthread_t thread;
    news_eventfd = eventfd;
    int error = runs ? 0 : thread_start(&thread, beat);
    runs = !error;
    return error;
}
