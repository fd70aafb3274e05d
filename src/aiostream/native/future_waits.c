/* The waits of futures: no task polls them. What enqueue_async keeps alive hangs on their ticket, so that is one for all their life.
 *
 * When the end of one is near, the loop itself polls it, natively, once in each of its turns: the drain of its queue does that,
 * and asks for another turn while any is left. Otherwise a timer of the loop or the watcher has it, as any wait.
 */
#include "wait_record.h"

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

void wait_poll_future(struct wait *wait) {
    struct wait **link = (struct wait **)queue_attachment(wait->queue);
    while (*link) link = &(*link)->next_polled;
    wait->next_polled = NULL;
    wait->first_poll_due = true;
    wait->first_poll = 0;
    wait->polls = 0;
    *link = wait;
}

bool waits_poll_futures(struct queue *queue) {
    struct wait **link = (struct wait **)queue_attachment(queue), *wait;
    if (!*link) return false;
    queue_suppress_wakeup(queue); /* the drain that follows takes what is fired here */
    while ((wait = *link)) {
        int status;
        uint64_t ticket;
        struct wait *next = wait->next_polled;
        switch (wait_look(wait, queue, &status)) {
        case LOOK_OVER:
            *link = next;
            wait_end_in_loop(wait, status);
            continue;
        case LOOK_EXPIRED:
            *link = next; /* before it is left, because it may be over then */
            if (!wait_polls_on(wait, wait->polled, &ticket)) continue;
            wait->next_polled = next;
            *link = wait;
            break;
        default: break;
        }
        link = &wait->next_polled;
    }
    return *queue_attachment(queue) != NULL;
}

void waits_leave_futures(struct queue *queue) {
    struct wait *wait = *queue_attachment(queue);
    *queue_attachment(queue) = NULL;
    while (wait) {
        struct wait *next = wait->next_polled;
        wait_leave_to_watcher(wait);
        wait = next;
    }
}
