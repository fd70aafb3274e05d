/* The task's side of the waits, in the thread of its loop: how a wait begins, how its task polls
 * it, and when the task leaves it to a timer or the watcher.
 *
 * wait_begin records an event behind the work, which never blocks, even on a full stream, and costs
 * the GPU nothing. Then the policy says what comes next, here and after each poll
 * (wait_leave_as_planned). The task polls the event once in each turn of its loop (wait_poll). Or
 * it leaves the wait: a timer of the loop has it until shortly before the expected end, while the
 * watcher makes guard polls, or the watcher has it alone. A wait that was left is handed back to
 * its task when its end is near, as often as the policy says.
 *
 * If the task goes away, wait_drop or wait_orphan gives the wait to the watcher, from any thread,
 * and the GPU goes on. No function here runs Python. All but wait_block return at once.
 */
#define _GNU_SOURCE
#include "wait_inside.h"

#include <sys/prctl.h>
#include <time.h>

#include "failures.h"
#include "waker.h"

/* after this number of waits that found the stream busy, one in the same number queries it */
enum { QUERY_EACH = 8 };

/* waits of one loop; with more, common wake-ups by the watcher cost less */
static _Atomic int max_timer_waits = 256;

int waits_limit_timer(int most) { return atomic_exchange(&max_timer_waits, most); }

/* --- leaving --- */

/* Leaves a wait to a timer or the watcher, which polls it at `due`. Its next holder may end it
 * before this returns. */
static void leave_to(struct wait *wait, enum holder holder, int64_t due) {
    int expected = HELD_BY_TASK_LISTED;
    if (atomic_load(&wait->holder) == HELD_BY_TASK_LISTED) {
        /* The watcher still lists it, and has to come by. This is written before the exchange,
         * because after it the list may be freed. If the watcher comes in between, it unlists the
         * wait, and the exchange fails. */
        atomic_store(&wait->list->revisit, true);
        atomic_store(&some_revisit, true);
    }
    if (!atomic_compare_exchange_strong(&wait->holder, &expected, holder)) {
        atomic_store(&wait->holder, holder);
        wait_push_new(wait);
    }
    waker_wake_before(due);
}

/* Leaves the wait as planned. False: the plan was a timer, and the timer takes no more. */
static bool leave(struct wait *wait, const struct plan *plan, const struct load *load) {
    int64_t start = atomic_load(&wait->start);
    /* the time from here to the next poll says nothing of the loop's lateness */
    wait->first_poll_due = true;
    wait->first_poll = 0;
    wait->polls = 0;
    if (plan->stage == STAGE_WATCHER) {
        atomic_fetch_add(&counters[WAITS_WATCHED], 1);
        leave_to(wait, HELD_BY_WATCHER, start + plan->at);
        return true;
    }
    wait->poll_until = start + plan->until;
    wait->woken_for = plan->length;
    wait->by_loop = plan->by_loop;
    int64_t now = now_ns(), at = start + plan->at, guard = NEVER;
    if (at < now) at = now; /* waits_leave_late must not take it from this thread */
    if (!plan->common) guard = policy_guard(&wait->prediction, now - start, plan->at, load);
    else if (!plan->exact) at = policy_common_poll(now, at);
    bool listed = atomic_load(&wait->holder) == HELD_BY_TASK_LISTED;
    if (!timer_add(&wait->queue->timer, &wait->timer_entry, at, atomic_load(&max_timer_waits)))
        return false;
    atomic_fetch_add(&counters[WAITS_BY_TIMER], 1);
    /* Without a guard poll before the timer, the watcher need not hear of it. (If it still lists
     * the wait, it finds that out.) */
    if (listed || guard != NEVER)
        leave_to(wait, HELD_BY_TIMER, guard == NEVER ? NEVER : start + guard);
    return true;
}

uint64_t wait_leave_as_planned(struct wait *wait, int64_t now) {
    struct load load = wait_load(wait);
    int64_t start = atomic_load(&wait->start);
    atomic_store(&wait->polled, now);
    struct plan plan = wait->strategy->plan(&wait->prediction, now - start, &load);
    /* The ticket must be there before the next holder may fire it. Without memory for one the task
     * goes on polling, which needs none. */
    if (plan.stage != STAGE_TASK && !wait->ticket)
        wait->ticket = point_reserve_armed(wait->queue, wait->context, KIND_POLLED);
    uint64_t ticket = wait->ticket;
    if (plan.stage == STAGE_TASK || !ticket) {
        wait->poll_until =
            plan.until == NEVER || plan.stage != STAGE_TASK ? NEVER : start + plan.until;
        return 0;
    }
    struct loop_state *loop = &wait->queue->loop; /* the wait may be another's once it was left */
    atomic_store(&loop->leaving, true);
    if (!leave(wait, &plan, &load)) {
        load.timers_allowed = false;
        plan = wait->strategy->plan(&wait->prediction, now - start, &load);
        leave(wait, &plan, &load);
    }
    atomic_store(&loop->leaving, false);
    return ticket;
}

/* Decides what comes next for a task's wait that was pending at `now`. */
static void go_on(struct wait *wait, struct wait_result *result, int64_t now) {
    /* A thread that blocks polls the wait itself, and its queue is the janitor's. */
    result->ticket = wait->queue->index == 0 ? 0 : wait_leave_as_planned(wait, now);
    if (!result->ticket) result->spinning = wait;
}

/* --- beginning --- */

int wait_ask(struct wait_list *list, void *stream) {
    /* A stream that was always busy is taken to be busy, because a query and the calls around it
     * cost as much as the record that follows in any case. */
    unsigned busy = list->busy;
    bool query = busy < QUERY_EACH || busy % QUERY_EACH == 0;
    /* Whether the stream captures is seen after the record, because the record harms no capture,
     * except on the legacy stream. */
    int refusal = query || (uintptr_t)stream <= 1 ? capture_refusal(stream) : 0;
    if (refusal) return refusal;
    int status = CUDA_NOT_READY;
    if (query) {
        int former = relaxed_enter();
        status = failure_noted(driver.stream_query(stream), "cuStreamQuery");
        relaxed_leave(former);
    }
    list->busy = status == CUDA_NOT_READY ? busy + 1 : 0;
    return status;
}

int wait_record(struct wait *wait, void *stream) {
    struct wait_list *list = wait->list;
    wait->opened = atomic_fetch_add(&list->clock, 1);
    int status =
        failed_in("cuEventRecord",
                  failure_noted(driver.event_record(wait->event, stream, 0), "cuEventRecord"));
    wait->closed = atomic_fetch_add(&list->clock, 1);
    if (status != CUDA_SUCCESS) return status;
    /* If the stream captures, the event stands for a point of that capture until it is recorded
     * again. */
    int refusal = capture_refusal(stream);
    return refusal < 0 ? refusal : CUDA_SUCCESS;
}

void wait_release(struct wait *wait) {
    atomic_fetch_sub(&wait->list->waiting, 1);
    if (wait->users_event) atomic_fetch_sub(&wait->users_event->waits, 1);
    int expected = HELD_BY_TASK_LISTED;
    if (!atomic_compare_exchange_strong(&wait->holder, &expected, OVER_LISTED)) wait_recycle(wait);
}

void wait_end(struct wait *wait) {
    atomic_fetch_sub(&wait->queue->waits, 1);
    wait_release(wait);
}

/* It is recycled before its task may go on, and look for what is pending. */
void wait_fire(struct wait *wait, int status) {
    uint64_t ticket = wait->ticket;
    wait_end(wait);
    point_fire(ticket, status);
}

static bool is_over(int status, struct wait_result *result) {
    if (status == CUDA_NOT_READY) return false;
    if (status == CUDA_SUCCESS) atomic_fetch_add(&counters[WAITS_READY], 1);
    result->refusal = status;
    return true;
}

void wait_begin(const struct waits *waits, void *stream, struct queue *queue,
                const struct strategy *strategy, struct wait_result *result) {
    *result = (struct wait_result){0};
    if (is_over(wait_ask(waits->list, stream), result)) return;
    struct wait *wait;
    result->refusal = wait_start(waits, queue, strategy, NULL, &wait);
    if (result->refusal) return;
    result->refusal = wait_record(wait, stream);
    if (result->refusal) wait_end(wait);
    else go_on(wait, result, now_ns());
}

void wait_begin_event(const struct waits *of, struct handle *event, struct queue *queue,
                      const struct strategy *strategy, struct wait_result *result) {
    *result = (struct wait_result){0};
    int status = event_is_captured(event)
                     ? CUDA_CAPTURED_EVENT
                     : failure_noted(driver.event_query(event->value), "cuEventQuery");
    if (is_over(status, result)) return;
    /* It has a list of its own, because waits for events have no order among each other. */
    struct wait_list *list = wait_list_new(of->list->context, of->list->history, NULL);
    struct waits waits = {.list = list};
    struct wait *wait = NULL;
    result->refusal = list ? wait_start(&waits, queue, strategy, event, &wait) : RESULT_NO_MEMORY;
    if (list) wait_list_unref(list);
    if (wait) go_on(wait, result, now_ns());
}

/* --- polling --- */

int wait_poll_once(struct wait *wait) {
    int64_t before = now_ns();
    int status = wait_query(wait);
    int64_t now = now_ns();
    if (!wait->first_poll_due) queue_note_lateness(wait->queue, now - wait->polled);
    wait->polled = now;
    if (status == CUDA_NOT_READY) {
        atomic_store(&wait->pending_at, before);
        if (wait->first_poll_due) wait->first_poll = now;
        wait->first_poll_due = false;
    } else {
        if (status == CUDA_SUCCESS) wait_learn(wait, now, true);
        wait_note_end(wait, now);
        atomic_fetch_add(&counters[WAITS_SPUN], 1);
    }
    return status;
}

bool wait_polls_on(struct wait *wait) {
    int64_t now = wait->polled;
    if (now < wait->poll_until) return true;
    struct load load = wait_load(wait);
    if (policy_poll_on(&wait->prediction, now - atomic_load(&wait->start), ++wait->polls, &load))
        return true;
    wait->woken_for = 0; /* the end for which the task was woken did not come */
    return false;
}

void wait_poll(struct wait *wait, struct wait_result *result) {
    int status = wait_poll_once(wait);
    *result = (struct wait_result){0};
    if (status != CUDA_NOT_READY) {
        result->refusal = status;
        wait_end(wait);
    } else if (wait_polls_on(wait)) {
        result->spinning = wait;
    } else {
        go_on(wait, result, wait->polled);
    }
}

bool wait_block(struct wait *wait, int64_t until, int *status) {
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1UL); /* ns, as in the watcher */
    for (;;) {
        wait->first_poll_due = true; /* there is no loop whose lateness a poll would show */
        *status = wait_poll_once(wait);
        if (*status != CUDA_NOT_READY) break;
        int64_t now = atomic_load(&wait->polled), start = atomic_load(&wait->start);
        if (now >= until) break;
        struct load load = {.lists = 1, .waits = 1, .alone = true, .task_allowed = true};
        struct plan plan = wait->strategy->plan(&wait->prediction, now - start, &load);
        int64_t at = plan.stage == STAGE_TASK ? now : start + plan.at;
        if (at > until) at = until;
        struct timespec time = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    }
    prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
    if (*status == CUDA_NOT_READY) return false;
    wait_end(wait);
    return true;
}

void wait_leave_to_watcher(struct wait *wait) {
    leave_to(wait, HELD_BY_WATCHER, atomic_load(&wait->start));
}

/* The watcher recycles the wait once the library's event is complete. The user's event need not be
 * polled any more. */
void wait_drop(struct wait *wait) {
    wait->ticket = 0;
    atomic_fetch_sub(&wait->queue->waits, 1);
    if (wait->users_event) wait_release(wait);
    else wait_leave_to_watcher(wait);
}

uint64_t wait_reserve_end(struct wait *wait, bool in_loop) {
    struct queue *queue = in_loop ? wait->queue : queue_orphans();
    wait->ticket = point_reserve_armed(queue, wait->context, KIND_POLLED);
    atomic_store_explicit(&wait->future, true, memory_order_relaxed); /* never handed back */
    return wait->ticket;
}
