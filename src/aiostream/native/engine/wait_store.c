/* How waits, wait lists and histories are made and recycled, and what they learn.
 *
 * wait_start takes a wait out of the spares of its loop, or makes one with its event, and gives it
 * to the task. When its event is complete, wait_recycle puts it back, in the thread that has seen
 * that. Each end that was polled goes into the history of its wait list (wait_learn), in the thread
 * that has seen it: the loop's or the watcher's. The next wait gets its prediction from there.
 *
 * All waits stand in one list from their making on, and none is freed. So any thread may list what
 * waits (waits_next) and what is stalled (stalls.c), under the lock of the list and of the spares,
 * and a wait writes nothing for that. Neither lock is held across a driver call. On its way
 * a wait takes the lock of its loop's spares and that of its history, so two loops share a lock
 * only if they wait on one stream.
 */
#include "wait_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failures.h"

pthread_mutex_t waits_lock = PTHREAD_MUTEX_INITIALIZER;
struct wait *all_waits;
sem_t limit_begun;
_Atomic bool limits_are_counted;
static _Atomic bool predicting = true;

_Atomic(struct wait *) new_waits;
_Atomic bool some_revisit;
_Atomic int active_count;

void waits_predict(bool enabled) { atomic_store(&predicting, enabled); }

/* --- histories --- */

static struct prediction predicted(struct shared_history *shared) {
    if (!atomic_load(&predicting)) return (struct prediction){.short_likely = true};
    pthread_mutex_lock(&shared->lock);
    struct prediction prediction = history_predict(&shared->history);
    pthread_mutex_unlock(&shared->lock);
    return prediction;
}

struct shared_history *shared_history_new(void) {
    struct shared_history *shared = calloc(1, sizeof *shared);
    if (!shared) return NULL;
    shared->refs = 1;
    pthread_mutex_init(&shared->lock, NULL);
    atomic_fetch_add(&counters[HISTORIES], 1);
    return shared;
}

void shared_history_unref(struct shared_history *shared) {
    if (atomic_fetch_sub(&shared->refs, 1) != 1) return;
    pthread_mutex_destroy(&shared->lock);
    free(shared);
    atomic_fetch_sub(&counters[HISTORIES], 1);
}

void wait_learn(struct wait *wait, int64_t seen, bool lead) {
    struct shared_history *shared = wait->list->history;
    int64_t start = atomic_load(&wait->start), slack = atomic_load(&wait->start_slack),
            pending_at = atomic_load(&wait->pending_at);
    pthread_mutex_lock(&shared->lock);
    history_learn(&shared->history, pending_at ? pending_at - start : 0, seen - start + slack);
    if (lead && wait->woken_for)
        history_learn_lead(&shared->history, wait->woken_for, wait->first_poll == 0,
                           seen - wait->first_poll);
    pthread_mutex_unlock(&shared->lock);
}

struct question shared_history_asked(struct shared_history *shared, int64_t start, int64_t false_at,
                                     int64_t now, bool over, int waits) {
    pthread_mutex_lock(&shared->lock);
    struct question next = history_asked(&shared->history, start, false_at, now, over, waits);
    pthread_mutex_unlock(&shared->lock);
    return next;
}

void wait_note_end(struct wait *wait, int64_t seen) {
    int64_t pending_at = atomic_load(&wait->pending_at);
    atomic_store(&wait->list->free_after, pending_at > wait->began ? pending_at : wait->began);
    atomic_store(&wait->list->free_since, seen);
    atomic_store(&wait->list->stream->ended, seen);
}

struct load wait_load(const struct wait *wait) {
    return (struct load){
        .lateness = queue_lateness(wait->queue),
        .lists = atomic_load(&active_count),
        .waits = atomic_load(&wait->queue->waits),
        .alone = atomic_load(&wait->list->waiting) == 1,
        .timers_allowed = true,
        .task_allowed = true,
    };
}

/* --- wait lists --- */

int wait_list_health(const struct wait_list *list) { return context_recent_health(list->context); }

struct wait_list *wait_list_new(struct context *context, struct shared_history *history,
                                struct wait_list *same) {
    struct wait_list *list = calloc(1, sizeof *list);
    if (!list) return NULL;
    list->refs = 1;
    list->stream = same ? same->stream : list;
    if (same) wait_list_ref(list->stream);
    list->context = context;
    list->history = history;
    atomic_fetch_add(&history->refs, 1);
    return list;
}

void wait_list_ref(struct wait_list *list) { atomic_fetch_add(&list->refs, 1); }

void wait_list_unref(struct wait_list *list) {
    if (atomic_fetch_sub(&list->refs, 1) != 1) return;
    shared_history_unref(list->history);
    if (list->stream != list) wait_list_unref(list->stream);
    free(list);
}

/* --- waits --- */

static int make(struct queue *queue, struct context *context, struct wait **made) {
    void *event;
    int mode = relaxed_enter(), status = event_make(context->handle, EVENT_DISABLE_TIMING, &event);
    relaxed_leave(mode);
    if (status != CUDA_SUCCESS) return status;
    struct wait *wait = calloc(1, sizeof *wait);
    if (!wait) {
        driver.event_destroy(event);
        return RESULT_NO_MEMORY;
    }
    wait->event = event;
    wait->context = context;
    wait->queue = queue;
    atomic_fetch_add(&counters[WAITS_MADE], 1);
    pthread_mutex_lock(&waits_lock);
    wait->next_made = all_waits;
    all_waits = wait;
    pthread_mutex_unlock(&waits_lock);
    *made = wait;
    return CUDA_SUCCESS;
}

static struct wait **spares_for(struct spares *spares, const struct context *context) {
    return &spares->waits[context->index % SPARE_WAITS];
}

/* A wait refers to its list until it is used again, so that one that is over still has a name. */
static int take(struct queue *queue, struct context *context, struct wait **taken) {
    struct spares *spares = &queue->spares;
    pthread_mutex_lock(&spares->lock);
    struct wait **place = spares_for(spares, context);
    while (*place && (*place)->context != context) place = &(*place)->next;
    struct wait *wait = *taken = *place;
    struct wait_list *last = wait ? atomic_exchange(&wait->list, NULL) : NULL;
    if (wait) *place = wait->next;
    pthread_mutex_unlock(&spares->lock);
    if (last) wait_list_unref(last);
    return wait ? CUDA_SUCCESS : make(queue, context, taken);
}

static void put(struct wait *wait) {
    struct spares *spares = &wait->queue->spares;
    pthread_mutex_lock(&spares->lock);
    wait->in_use = false;
    struct wait **place = spares_for(spares, wait->context);
    wait->next = *place;
    *place = wait;
    pthread_mutex_unlock(&spares->lock);
}

int wait_start(const struct waits *waits, struct queue *queue, const struct strategy *strategy,
               struct handle *users_event, struct wait **started) {
    struct wait_list *list = waits->list;
    int64_t limit = atomic_load(&waits->limit);
    int status = take(queue, list->context, started);
    if (status != CUDA_SUCCESS) return status;
    struct wait *wait = *started;
    if (users_event) { /* the caller has pinned it; it may have been closed since */
        atomic_fetch_add(&users_event->word, 1);
        atomic_fetch_add(&users_event->refs, 1);
        atomic_fetch_add(&users_event->waits, 1);
    }
    wait_list_ref(list);
    atomic_fetch_add(&list->waiting, 1);
    atomic_fetch_add(&queue->waits, 1);
    atomic_store_explicit(&wait->list, list, memory_order_relaxed);
    atomic_store_explicit(&wait->limit, limit, memory_order_relaxed);
    wait->loop = queue->identity;
    wait->users_event = users_event;
    wait->strategy = strategy;
    wait->ticket = 0;
    atomic_store_explicit(&wait->future, false, memory_order_relaxed);
    wait->holder = HELD_BY_TASK;
    wait->opened = wait->closed = 0;
    wait->woken_for = 0;
    wait->first_poll_due = false;
    wait->pending_at = 0;
    wait->polls = 0;
    int64_t now = now_ns();
    atomic_store_explicit(&wait->began, now, memory_order_relaxed);
    wait->start = now;
    wait->start_slack = 0;
    wait->prediction = predicted(list->history);
    wait->in_use = true;
    if (limit) wait_has_limit();
    return CUDA_SUCCESS;
}

void wait_recycle(struct wait *wait) {
    struct handle *users_event = wait->users_event;
    put(wait); /* from now on it may be another wait's */
    if (users_event) event_wait_let_go(users_event);
}

/* --- what waits --- */

void wait_list_label(struct wait_list *list, const char *name) {
    pthread_mutex_lock(&waits_lock);
    snprintf(list->name, sizeof list->name, "%s", name);
    pthread_mutex_unlock(&waits_lock);
}

/* Whether `wait`, under the lock of its spares, has a task. If its holder changes meanwhile, it
 * counts or not. */
static bool is_pending(const struct wait *wait) {
    int holder = atomic_load(&wait->holder);
    /* the watcher has those that were dropped, without a ticket */
    return wait->in_use && holder != OVER_LISTED &&
           (holder != HELD_BY_WATCHER || atomic_load(&wait->ticket));
}

/* Under waits_lock and the lock of its spares. */
static void describe(const struct wait *wait, struct waiting *waiting) {
    const struct prediction *prediction = &wait->prediction;
    int count = prediction->count;
    uint64_t ticket = atomic_load(&wait->ticket);
    *waiting = (struct waiting){
        .ticket = ticket ? ticket : atomic_load(&wait->handed_back),
        .queue = wait->queue->index,
        .began = wait->began,
        .expected = count ? prediction->windows[count - 1].last : 0,
    };
    memcpy(waiting->name, wait->list->name, sizeof waiting->name);
    if (wait->users_event)
        snprintf(waiting->name, sizeof waiting->name, "event %p", wait->users_event->value);
}

bool waits_next(struct wait **latest, struct waiting *waiting) {
    bool found = false;
    pthread_mutex_lock(&waits_lock);
    struct wait *wait = *latest ? (*latest)->next_made : all_waits;
    for (; wait; wait = wait->next_made) {
        pthread_mutex_lock(&wait->queue->spares.lock);
        found = is_pending(wait);
        if (found) describe(wait, waiting);
        pthread_mutex_unlock(&wait->queue->spares.lock);
        if (found) break;
    }
    pthread_mutex_unlock(&waits_lock);
    *latest = wait;
    return found;
}

/* The time at which the simulator dropped all work, before it recovered from a fault. The events of
 * waits that had begun by then are complete, although their work is not. Any thread. */
static _Atomic int64_t dropped_at;
void waits_drop_work(void) { atomic_store(&dropped_at, now_ns()); }

int wait_query(const struct wait *wait) {
    if (wait->began < atomic_load(&dropped_at)) return CUDA_LAUNCH_FAILED;
    /* Asked before each poll, because the event is gone with its context, and the driver may crash
     * at a query of it. If the context ends between these two calls, nothing can help. */
    int status =
        context_was_ended(wait->context)
            ? CUDA_CONTEXT_IS_DESTROYED
            : driver.event_query(wait->users_event ? wait->users_event->value : wait->event);
    /* The library's event is valid. So another thread's capture took its record, and that capture
     * had ended when wait_record looked for one. */
    if (status == CUDA_INVALID_VALUE && !wait->users_event) status = CUDA_CAPTURED_EVENT;
    if (says_gone(status) && context_was_ended(wait->context)) status = CUDA_CONTEXT_IS_DESTROYED;
    return failed_in("cuEventQuery", failure_noted(status, "cuEventQuery"));
}

void wait_push_new(struct wait *wait) {
    struct wait *head = atomic_load(&new_waits);
    do wait->next = head;
    while (!atomic_compare_exchange_weak(&new_waits, &head, wait));
}
