/* The waits of futures: no task polls them. What enqueue_async keeps alive hangs on their ticket, so that is one for all their life.
 *
 * When the end of one is near, the loop itself polls it, natively, once in each of its turns: the drain of its queue does that,
 * and asks for another turn while any is left. Otherwise a timer of the loop or the watcher has it, as any wait.
 */
#include "wait_record.h"

/* The call for the next turn may be lost: a KeyboardInterrupt takes it, or the loop is closed. Then the timer brings the next drain,
 * or has the dispatcher find out that the loop is closed. */
static const int64_t SECOND_SOURCE_NS = 20000000;

static void drain_again(struct queue *queue) { timer_wake_by(queue_timer(queue), now_ns() + SECOND_SOURCE_NS); }

int wait_reserve(struct wait_list *list, struct queue *queue, enum wait_mode mode, struct wait **reserved) {
    int status = wait_start(list, queue, mode, reserved);
    if (status != CUDA_SUCCESS) return status;
    struct wait *wait = *reserved;
    wait->ticket = point_reserve(queue, wait->context, KIND_WATCHED);
    wait->future = true;
    if (wait->ticket) return CUDA_SUCCESS;
    wait_unreserve(wait);
    return RESULT_NO_MEMORY;
}

uint64_t wait_ticket(const struct wait *wait) { return wait->ticket; }

void wait_unreserve(struct wait *wait) {
    if (wait->ticket) point_unreserve(wait->ticket);
    atomic_fetch_sub(&pending_waits, 1);
    wait_release(wait, CUDA_NOT_READY);
}

int wait_record_future(struct wait *wait, void *stream, bool *poll) {
    *poll = false;
    int64_t now = now_ns();
    wait->began = now; /* the work was enqueued since the reservation */
    atomic_store(&wait->start, now);
    int status = wait_record(wait, stream);
    if (status != CUDA_SUCCESS) return status;
    uint64_t ticket = wait->ticket;
    point_arm_watched(ticket);
    *poll = wait_polls_on(wait, now, &ticket);
    if (*poll) wait_poll_future(wait);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------ polling by the loop */

static void append(struct polled_waits *polled, struct wait *wait) {
    wait->next_polled = NULL;
    if (polled->first) polled->last->next_polled = wait;
    else polled->first = wait;
    polled->last = wait;
}

void wait_poll_future(struct wait *wait) {
    struct polled_waits *polled = queue_polled_waits(wait->queue);
    wait->first_poll_due = true;
    wait->first_poll = 0;
    wait->polls = 0;
    append(polled, wait);
    drain_again(wait->queue);
}

/* Whether the loop polls on; if not, the wait is over, or another's. */
static bool poll_on(struct wait *wait, struct queue *queue) {
    int status;
    uint64_t ticket;
    switch (wait_look(wait, queue, &status)) {
    case LOOK_OVER: wait_end_in_loop(wait, status); return false;
    case LOOK_EXPIRED: return wait_polls_on(wait, wait->polled, &ticket);
    default: return true;
    }
}

bool waits_poll_futures(struct queue *queue) {
    struct polled_waits *polled = queue_polled_waits(queue);
    struct wait *wait = polled->first;
    if (!wait) return false;
    queue_suppress_wakeup(queue); /* the drain that follows takes what is fired here */
    polled->first = NULL;
    while (wait) {
        struct wait *next = wait->next_polled; /* read before the wait may be another's */
        if (poll_on(wait, queue)) append(polled, wait);
        wait = next;
    }
    if (!polled->first) return false;
    drain_again(queue);
    return true;
}

void waits_leave_futures(struct queue *queue) {
    struct polled_waits *polled = queue_polled_waits(queue);
    struct wait *wait = polled->first;
    polled->first = NULL;
    while (wait) {
        struct wait *next = wait->next_polled;
        wait_leave_to_watcher(wait);
        wait = next;
    }
}
