/* The loop's side of the waits, in its thread: the waits of futures, how one is reserved, recorded
 * and polled, and the waits that the loop's timer has.
 *
 * What enqueue_async keeps alive belongs to a ticket, so a future's wait has one ticket for all its
 * life. python/enqueue.c reserves everything before the user's function runs, and records the event
 * behind its work (wait_record_future). From then on a timer of the loop or the watcher has the
 * wait, as any wait. For enqueue_in_thread a worker records it, and the watcher alone has it.
 *
 * When the end is near, the loop itself polls the wait natively, once in each of its turns: the
 * drain of its queue does that, and sets the timer for the next turn. No task is resumed before the
 * end. If a future is cancelled, the watcher takes its wait out of the timer (wait_orphan).
 *
 * The drain calls waits_run_due for the waits whose timer is due. If the loop is closed,
 * waits_leave_loop gives all that it has to the watcher. If it does not come for its timer,
 * waits_leave_late does.
 */
#include "wait_inside.h"

#include <limits.h>

/* Of a future. The loop drains again in its next turn, because its timer is due at once. A
 * KeyboardInterrupt cannot take that away, as it could take a callback. */
static void poll_next_turn(struct wait *wait, int64_t now) {
    wait->by_loop = false;
    if (!timer_add(&wait->queue->timer, &wait->timer_entry, now, INT_MAX))
        wait_leave_to_watcher(wait); /* the loop is closed */
}

int wait_reserve(const struct waits *waits, struct queue *queue, const struct strategy *strategy,
                 struct wait **reserved) {
    int status = wait_start(waits, queue, strategy, NULL, reserved);
    if (status != CUDA_SUCCESS) return status;
    struct wait *wait = *reserved;
    wait->ticket = point_reserve(queue, wait->context, KIND_POLLED);
    atomic_store_explicit(&wait->future, true, memory_order_relaxed);
    wait->first_poll_due = true;
    if (wait->ticket) return CUDA_SUCCESS;
    wait_unreserve(wait);
    return RESULT_NO_MEMORY;
}

uint64_t wait_ticket(const struct wait *wait) { return wait->ticket; }

void wait_unreserve(struct wait *wait) {
    if (wait->ticket) point_unreserve(wait->ticket);
    wait_end(wait);
}

void wait_fire_unrecorded(struct wait *wait, int status) {
    point_arm_polled(wait->ticket);
    wait_fire(wait, status);
}

bool wait_is_over_at_once(struct wait *wait, void *stream) {
    if (wait_ask(wait->list, stream) != CUDA_SUCCESS) return false;
    atomic_fetch_add(&counters[WAITS_READY], 1);
    return true;
}

int wait_record_future(struct wait *wait, void *stream) {
    int64_t now = now_ns();
    /* the work was enqueued since the reservation */
    atomic_store_explicit(&wait->began, now, memory_order_relaxed);
    atomic_store(&wait->start, now);
    int status = wait_record(wait, stream);
    if (status != CUDA_SUCCESS) return status;
    point_arm_polled(wait->ticket);
    if (!wait_leave_as_planned(wait, now)) poll_next_turn(wait, now);
    return CUDA_SUCCESS;
}

/* --- polling by the loop --- */

void wait_hand_back(struct wait *wait) {
    uint64_t ticket = wait->ticket;
    wait->first_poll_due = true;
    wait->handed_back = ticket;
    wait->ticket = 0;
    point_fire(ticket, STATUS_HANDED_BACK | (int64_t)(uintptr_t)wait);
}

/* One native poll: of a future whose end is near, in each turn, or of any wait whose time has
 * come. */
static void poll_by_loop(struct wait *wait, int64_t now) {
    int status = wait_poll_once(wait);
    if (status != CUDA_NOT_READY) wait_fire(wait, status);
    else if (!wait->by_loop && wait_polls_on(wait)) poll_next_turn(wait, now);
    else if (wait_leave_as_planned(wait, wait->polled)) return;
    else if (wait->future) poll_next_turn(wait, now);
    else wait_hand_back(wait);
}

void waits_run_due(struct queue *queue) {
    int64_t now = now_ns();
    struct timer_entry *due =
        timer_take_due(&queue->timer, now, policy_due_soon(atomic_load(&queue->waits)));
    if (due) queue->wakeup_suppressed = true;
    int polls = 0;
    while (due) {
        struct wait *wait = (struct wait *)due;
        due = due->next;
        /* The exchange fails if the watcher has unlisted the wait, or has never listed it. */
        int expected = HELD_BY_TIMER;
        atomic_compare_exchange_strong(&wait->holder, &expected, HELD_BY_TASK_LISTED);
        polls += wait->by_loop;
        if (wait->by_loop || wait->future) poll_by_loop(wait, now);
        else wait_hand_back(wait);
    }
    if (!polls) return;
    atomic_fetch_add(&counters[EVENT_POLLS], polls);
    atomic_fetch_add(&counters[EVENT_PASSES], 1);
}

/* --- the task has gone, or the loop is closed or does not come --- */

/* The caller has taken it out of its timer. */
static void leave_timer(struct wait *wait) {
    int expected = HELD_BY_TIMER;
    atomic_compare_exchange_strong(&wait->holder, &expected, HELD_BY_TASK_LISTED);
    wait_leave_to_watcher(wait);
}

static bool has_ticket(struct timer_entry *entry, uint64_t ticket) {
    return atomic_load(&((struct wait *)entry)->ticket) == ticket;
}

void wait_orphan(uint64_t ticket) {
    struct queue *queue = point_orphan(ticket);
    void *wait = queue ? timer_remove(&queue->timer, has_ticket, ticket) : NULL;
    if (wait) leave_timer(wait);
}

static void leave_all(struct timer_entry *left) {
    while (left) {
        struct wait *wait = (struct wait *)left;
        left = left->next;
        leave_timer(wait);
    }
}

void waits_leave_loop(struct queue *queue) { leave_all(timer_close(&queue->timer)); }

/* a loop that is later is blocked, or does not run, and perhaps never again */
static const int64_t LATE_NS = 100000000;

void waits_leave_late(int64_t now) {
    struct queue *queue;
    for (int i = 1; (queue = queue_at(i)); i++) {
        if (atomic_load(&queue->loop.leaving) || !timer_is_due(&queue->timer, now - LATE_NS))
            continue;
        leave_all(timer_take_due(&queue->timer, now - LATE_NS, 0));
        timer_wake_by(&queue->timer, now); /* the loop may have other reasons to drain */
    }
}
