/* The waits of futures. What enqueue_async keeps alive belongs to their ticket, so a future's wait
 * has one ticket for all its life.
 *
 * When the end of such a wait is near, the loop itself polls it, natively, once in each of its
 * turns: the drain of its queue does that, and asks for another turn while any is left. A task that
 * awaits the future takes the wait from the loop and polls it as its own, because it then continues
 * in the same turn in which it sees the end. At other times a timer of the loop or the watcher has
 * the wait, as it has any wait.
 */
#include "wait_record.h"

#include <pthread.h>

/* The call for the next turn may be lost, because a KeyboardInterrupt takes it or the loop is
 * closed. Then the timer brings the next drain, or the dispatcher finds that the loop is closed. */
static const int64_t SECOND_SOURCE_NS = 20000000;

static void drain_again(struct queue *queue) {
    timer_wake_by(queue_timer(queue), now_ns() + SECOND_SOURCE_NS);
}

int wait_reserve(struct wait_list *list, struct queue *queue, const struct strategy *strategy,
                 struct wait **reserved) {
    int status = wait_start(list, queue, strategy, reserved);
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
    wait_release(wait);
}

void wait_fire_unrecorded(struct wait *wait, int status) {
    point_arm_watched(wait->ticket);
    atomic_fetch_sub(&pending_waits, 1);
    point_fire(wait->ticket, status);
    wait_release(wait);
}

int wait_record_future(struct wait *wait, void *stream, enum stage *stage) {
    *stage = STAGE_WATCHER;
    int64_t now = now_ns();
    wait->began = now; /* the work was enqueued since the reservation */
    atomic_store(&wait->start, now);
    int status = wait_record(wait, stream);
    if (status != CUDA_SUCCESS) return status;
    uint64_t ticket = wait->ticket;
    point_arm_watched(ticket);
    *stage = wait_polls_on(wait, now, &ticket);
    if (*stage == STAGE_TASK) wait_poll_future(wait);
    return CUDA_SUCCESS;
}

/* --- the loop's list --- */

static void append(struct polled_waits *polled, struct wait *wait) {
    wait->next_polled = NULL;
    wait->previous_polled = polled->first ? polled->last : NULL;
    if (polled->first) polled->last->next_polled = wait;
    else polled->first = wait;
    polled->last = wait;
    polled->count++;
    atomic_store(&wait->polled_by_loop, true);
}

/* This comes before anything else is done with the wait, because its next holder may recycle it.
 * Then the field is another loop's. */
static void removed(struct polled_waits *polled, struct wait *wait) {
    atomic_store(&wait->polled_by_loop, false);
    polled->count--;
    if (wait->near) polled->near--;
    wait->near = false;
}

/* --- polling by a task --- */

/* A task of a closed loop is never resumed. So the thread that closes the loop's queue leaves to
 * the watcher what its tasks poll. At the same time another thread may drop the task. */
static pthread_mutex_t taken_lock = PTHREAD_MUTEX_INITIALIZER;

static void take(struct wait *wait) {
    struct polled_waits *polled = queue_polled_waits(wait->queue);
    wait->taken_at = now_ns();
    pthread_mutex_lock(&taken_lock);
    wait->taken = true;
    wait->previous_polled = NULL;
    wait->next_polled = polled->taken;
    if (polled->taken) polled->taken->previous_polled = wait;
    polled->taken = wait;
    pthread_mutex_unlock(&taken_lock);
}

bool wait_take_future(struct wait *wait, uint64_t ticket) {
    /* Read twice, because in between the record may have become another loop's, which polls it, but
     * never with the same ticket. */
    if (atomic_load(&wait->ticket) != ticket || !atomic_load(&wait->polled_by_loop) ||
        atomic_load(&wait->ticket) != ticket)
        return false;
    struct polled_waits *polled = queue_polled_waits(wait->queue);
    if (wait->previous_polled) wait->previous_polled->next_polled = wait->next_polled;
    else polled->first = wait->next_polled;
    if (wait->next_polled) wait->next_polled->previous_polled = wait->previous_polled;
    else polled->last = wait->previous_polled;
    removed(polled, wait);
    /* the lead is learnt from the task's first poll, which comes a turn later */
    wait->first_poll_due = true;
    wait->first_poll = 0;
    take(wait);
    return true;
}

/* With the same ticket it is the same wait, because a taken wait keeps its ticket. */
static bool is_taken(const struct wait *wait, uint64_t ticket) { /* lock held */
    return atomic_load(&wait->ticket) == ticket && wait->taken;
}

static void unlink_taken(struct wait *wait) { /* lock held */
    if (wait->previous_polled) wait->previous_polled->next_polled = wait->next_polled;
    else queue_polled_waits(wait->queue)->taken = wait->next_polled;
    if (wait->next_polled) wait->next_polled->previous_polled = wait->previous_polled;
    wait->taken = false;
}

bool wait_is_taken(const struct wait *wait, uint64_t ticket) {
    pthread_mutex_lock(&taken_lock);
    bool taken = is_taken(wait, ticket);
    pthread_mutex_unlock(&taken_lock);
    return taken;
}

static void untake(struct wait *wait) {
    pthread_mutex_lock(&taken_lock);
    unlink_taken(wait);
    pthread_mutex_unlock(&taken_lock);
}

void wait_drop_future(struct wait *wait, uint64_t ticket) {
    pthread_mutex_lock(&taken_lock);
    bool taken = is_taken(wait, ticket);
    if (taken) unlink_taken(wait);
    pthread_mutex_unlock(&taken_lock);
    if (taken) wait_leave_to_watcher(wait);
}

bool wait_task_polls_on(struct wait *wait, uint64_t *ticket) {
    untake(wait); /* first, because its next holder may recycle it */
    if (wait_polls_on(wait, wait->polled, ticket) != STAGE_TASK) return false;
    take(wait);
    return true;
}

void wait_end_future(struct wait *wait) {
    untake(wait);
    atomic_fetch_sub(&pending_waits, 1);
    wait_release(wait);
}

static struct wait *take_back(struct queue *queue) {
    pthread_mutex_lock(&taken_lock);
    struct wait *wait = queue_polled_waits(queue)->taken;
    if (wait) unlink_taken(wait);
    pthread_mutex_unlock(&taken_lock);
    return wait;
}

/* A second source. A task that polls does so in each turn. If it does not, a program steps the
 * coroutine by hand, or the coroutine is in a dropped reference cycle. Other tasks may await the
 * future too. */
static void take_back_forgotten(struct queue *queue) {
    struct polled_waits *polled = queue_polled_waits(queue);
    int64_t now = now_ns();
    bool left = false;
    pthread_mutex_lock(&taken_lock);
    for (struct wait *wait = polled->taken, *next; wait; wait = next) {
        next = wait->next_polled;
        int64_t since = wait->polled > wait->taken_at ? wait->polled : wait->taken_at;
        if (now - since > SECOND_SOURCE_NS) {
            unlink_taken(wait);
            append(polled, wait);
        } else {
            left = true;
        }
    }
    pthread_mutex_unlock(&taken_lock);
    if (left) drain_again(queue);
}

/* --- polling by the loop --- */

void wait_poll_future(struct wait *wait) {
    struct polled_waits *polled = queue_polled_waits(wait->queue);
    wait->first_poll_due = true;
    wait->first_poll = 0;
    wait->polls = 0;
    append(polled, wait);
    drain_again(wait->queue);
}

/* Whether the loop polls on. If not, the wait is over, or another holder's. */
static bool poll_on(struct wait *wait, struct queue *queue) {
    int status;
    uint64_t ticket;
    switch (wait_look(wait, queue, &status)) {
    case LOOK_OVER:
        wait_end_in_loop(wait, status);
        return false;
    case LOOK_EXPIRED:
        return wait_polls_on(wait, wait->polled, &ticket) == STAGE_TASK;
    default:
        return true;
    }
}

uint64_t waits_next_near(struct queue *queue) {
    struct polled_waits *polled = queue_polled_waits(queue);
    if (polled->near == 0) return 0;
    struct wait *wait = polled->last; /* those that have just come stand last */
    while (!wait->near) wait = wait->previous_polled;
    wait->near = false;
    polled->near--;
    return wait->ticket;
}

bool waits_poll_futures(struct queue *queue) {
    struct polled_waits *polled = queue_polled_waits(queue);
    take_back_forgotten(queue);
    struct wait *wait = polled->first;
    if (!wait) return false;
    queue_suppress_wakeup(queue); /* the drain that follows takes what is fired here */
    polled->first = NULL;
    while (wait) {
        struct wait *next = wait->next_polled; /* read before the wait may be another's */
        bool near = wait->near;
        removed(polled, wait);
        if (poll_on(wait, queue)) {
            append(polled, wait);
            wait->near = near;
            polled->near += near;
        }
        wait = next;
    }
    if (!polled->first) return false;
    drain_again(queue);
    return true;
}

/* --- the loop is closed --- */

void waits_leave_futures(struct queue *queue) {
    struct polled_waits *polled = queue_polled_waits(queue);
    struct wait *wait = polled->first;
    polled->first = NULL;
    while (wait) {
        struct wait *next = wait->next_polled;
        removed(polled, wait);
        wait_leave_to_watcher(wait);
        wait = next;
    }
    while ((wait = take_back(queue))) wait_leave_to_watcher(wait);
}
