/* Waits: an event of ours recorded in the user's stream, and how its end is noticed.
 *
 * Recording an event never blocks, also on a full stream, and costs the GPU nothing. The waiting task first queries it itself
 * (it spins, yielding to its loop in between), or leaves that if its end is not near. A short wait whose end is certain enough
 * dozes until shortly before it, by a timer of its loop (timer.c). Any other is the watcher's, which queries the oldest event of
 * each line (a stream with waits on it) at intervals that grow with the age of the wait, and closely around the time at which
 * the line's history expects the end. A wait that grows old unexpectedly is given a host function on a helper stream
 * (sleeper.c) and hardly looked at any more.
 *
 * The life of a wait: pool --begin--> the task's --hand over--> arrivals --> its line's list --> pool, or `pending_hostfuncs` while its
 * host function has yet to run; from a line's list, and from its doze, it may come back to its task. Records and their events are
 * never freed: they are recycled within their context.
 */
#include "wait_record.h"

#include <stddef.h>

#include "waker.h"

static const int64_t NEVER = INT64_MAX;

/* ns. Nobody polls a wait that waits by timer: if it ends much earlier than expected, that is noticed so late at most. */
static _Atomic int64_t longest_timer_wait = 10000000;
static _Atomic int max_timer_waits = 256; /* of one loop, less those that are watched: with more, common wake-ups are cheaper */

void waits_limit_timer(long long *length, int *most) {
    *length = atomic_exchange(&longest_timer_wait, *length);
    *most = atomic_exchange(&max_timer_waits, *most);
}

/* Whether the end is likely to be so near that a task does best to poll itself: by the clock, or by the turns of its loop, for
 * with a busy loop the end will have come by the time the loop comes back. */
static bool worth_spinning(struct prediction prediction, const struct queue *queue) {
    int64_t likely = prediction.good ? prediction.mean - prediction.spread : prediction.mean / 2;
    return likely < SPIN + SPIN / 2 || prediction.mean < SPIN_MAX_LOOP_TURNS * queue_lag(queue);
}

/* Records our event: on `stream`, or on a helper behind the user's `event`. */
static int record(struct wait *wait, void *stream, void *event) {
    struct wait_list *list = wait->list;
    if (!event) {
        wait->opened = atomic_fetch_add(&list->clock, 1);
        int status = driver.event_record(wait->event, stream, 0);
        wait->closed = atomic_fetch_add(&list->clock, 1);
        if (status != CUDA_SUCCESS) return status;
        /* If the stream captures, the event stands for a point of that capture until it is recorded again. */
        int refusal = capture_refusal(stream);
        return refusal < 0 ? refusal : CUDA_SUCCESS;
    }
    void *helper = helper_take(list->context);
    if (!helper) return RESULT_NO_HELPER;
    int status = driver.stream_wait_event(helper, event, 0);
    bool idle = status != CUDA_SUCCESS;
    if (status == CUDA_SUCCESS) status = driver.event_record(wait->event, helper, 0);
    if (status == CUDA_SUCCESS) wait->lent = helper;
    else helper_put(list->context, helper, idle);
    return status;
}

static bool is_legacy(const void *stream) { return (uintptr_t)stream <= 1; }

/* The end of `stream`, or what `event` has recorded. Called without the GIL, and for an event under RELAXED; for a stream what
 * needs it is done so here, because each exchange of the mode costs, and most waits need none. */
void wait_begin(struct wait_list *list, void *stream, void *event, struct queue *queue, enum wait_mode mode, struct wait_result *result) {
    *result = (struct wait_result){0};
    int status = CUDA_NOT_READY;
    if (event) {
        status = driver.event_query(event);
    } else {
        /* A stream that was busy every time is taken to be busy: its query, with what has to surround it, costs as much as the
         * record that follows anyway. */
        unsigned busy = list->busy;
        bool ask = busy < QUERY_EACH || busy % QUERY_EACH == 0;
        /* Whether it captures is seen after the record, which harms no capture, except on the legacy stream. */
        int refusal = ask || is_legacy(stream) ? capture_refusal(stream) : 0;
        if (refusal) {
            result->refusal = refusal;
            return;
        }
        if (ask) {
            int former = relaxed_enter();
            status = driver.stream_query(stream);
            relaxed_leave(former);
        }
        list->busy = status == CUDA_NOT_READY ? busy + 1 : 0;
    }
    if (status != CUDA_NOT_READY) {
        if (status == CUDA_SUCCESS) atomic_fetch_add(&counters[WAITS_READY], 1);
        result->refusal = status;
        return;
    }
    struct wait *wait;
    status = wait_take_record(list->context, &wait);
    if (status != CUDA_SUCCESS) {
        result->refusal = status;
        return;
    }
    atomic_fetch_add(&list->refs, 1);
    atomic_fetch_add(&list->waiting, 1);
    wait->list = list;
    wait->lent = NULL;
    wait->mode = mode;
    wait->ticket = 0;
    wait->queue = queue;
    wait->closed_in = wait->handed_back = wait->first_poll_due = false;
    wait->fired = false;
    wait->ended = 0;
    wait->hostfunc.unwanted = false;
    wait->began = now_ns();
    result->refusal = record(wait, stream, event);
    if (result->refusal) {
        wait_recycle(wait);
        return;
    }
    struct prediction prediction = wait_list_predict(list);
    wait->start = wait->began;
    if (mode == WAIT_SPIN || (mode == WAIT_AUTO && worth_spinning(prediction, queue))) {
        wait->spin_until = mode == WAIT_SPIN ? NEVER : wait->began + SPIN + (prediction.good ? prediction.spread : 0);
        wait->expected = prediction.mean ? wait->began + prediction.mean : 0;
        wait->polled = wait->began;
        wait->polls = 0;
        result->spinning = wait;
    } else {
        wait_poll(wait, queue, result);
    }
}

/* Wakes the watcher unless it will poll in time by itself; what it will make of the wait is guessed from the history. */
void wait_give_to_watcher(struct wait *wait, struct prediction prediction) {
    int64_t due = wait->began + FIRST_POLL_NS;
    if (prediction.good && prediction.trusted) due = wait->began + prediction.mean / 8;
    struct wait *head = atomic_load(&new_waits);
    do wait->next = head;
    while (!atomic_compare_exchange_weak(&new_waits, &head, wait));
    waker_wake_before(due);
}

/* Whether a task whose wait is not over had better poll again itself after one more turn of its loop. */
static bool go_on_spinning(struct wait *wait, struct queue *queue, int64_t now) {
    if (now < wait->spin_until || ++wait->polls < 2) return true;
    int64_t turns = SPIN_MAX_LOOP_TURNS * queue_lag(queue);
    return wait->expected && wait->expected - now < turns && now - wait->expected < turns;
}

/* Leaves the only wait of a line alone until shortly before its end, which is as good as certain. false: it may not be. */
static bool wait_by_timer(struct wait *wait, struct prediction prediction, struct queue *queue) {
    bool alone = wait->list->waiting == 1, worth_it = prediction.mean <= longest_timer_wait && prediction.mean > 4 * queue_lag(queue);
    if (wait->mode != WAIT_AUTO || !alone || !worth_it) return false;
    wait->spin_until = wait->began + prediction_end(prediction);
    int64_t time = wait->began + prediction.mean - prediction.lead;
    if (!timer_add(queue_timer(queue), &wait->timer_entry, time, max_timer_waits - active_count)) return false;
    atomic_fetch_add(&counters[WAITS_BY_TIMER], 1);
    return true;
}

bool wait_poll(struct wait *wait, struct queue *queue, struct wait_result *result) {
    bool spinning = result->spinning != NULL;
    *result = (struct wait_result){0};
    if (spinning) {
        struct wait_list *list = wait->list;
        int status = driver.event_query(wait->event);
        int64_t now = now_ns();
        bool first = wait->first_poll_due;
        wait->first_poll_due = false;
        if (!first) queue_note_lag(queue, now - wait->polled);
        wait->polled = now;
        if (first && status == CUDA_NOT_READY) wait->first_poll = now;
        if (status == CUDA_NOT_READY && go_on_spinning(wait, queue, now)) {
            result->spinning = wait;
            return false;
        }
        if (status != CUDA_NOT_READY) {
            if (status == CUDA_SUCCESS) {
                wait_list_learn(list, now - wait->start);
                if (wait->handed_back) wait_list_learn_hand_back(list, wait->first_poll == 0, now - wait->first_poll);
            }
            if (list->ordered) list->free_since = now;
            atomic_fetch_add(&counters[WAITS_SPUN], 1);
            result->refusal = status;
            wait_recycle(wait);
            return true;
        }
    }
    wait->ticket = point_watch(queue, wait->list->context);
    result->ticket = wait->ticket;
    if (!wait->ticket) result->refusal = RESULT_NO_MEMORY;
    struct prediction prediction = wait->handed_back || !wait->ticket ? (struct prediction){0} : wait_list_predict(wait->list);
    if (prediction.trusted && wait_by_timer(wait, prediction, queue)) return true;
    if (!wait->handed_back) atomic_fetch_add(&counters[WAITS_WATCHED], 1);
    wait_give_to_watcher(wait, prediction);
    return true;
}

/* The task has gone: the watcher recycles the record once the event is complete. */
void wait_drop(struct wait *wait) {
    wait->ticket = 0;
    wait_give_to_watcher(wait, (struct prediction){0});
}

void wait_fire_hand_back(struct wait *wait) {
    uint64_t ticket = wait->ticket;
    wait->ticket = 0;
    wait->first_poll_due = wait->handed_back = true;
    wait->first_poll = 0;
    wait->polls = 0;
    wait->expected = 0;
    point_fire(ticket, STATUS_HANDED_BACK | (int64_t)(uintptr_t)wait);
}

void waits_hand_back_due(struct queue *queue) {
    struct timer_entry *due = timer_take_due(queue_timer(queue), now_ns());
    if (due) queue_suppress_wakeup(queue);
    while (due) {
        struct wait *wait = (struct wait *)((char *)due - offsetof(struct wait, timer_entry));
        due = due->next;
        wait_fire_hand_back(wait);
    }
}

void waits_leave_loop(struct queue *queue) {
    struct timer_entry *left = timer_close(queue_timer(queue));
    while (left) {
        struct wait *wait = (struct wait *)((char *)left - offsetof(struct wait, timer_entry));
        left = left->next;
        wait_give_to_watcher(wait, (struct prediction){0});
    }
}
