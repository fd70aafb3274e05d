/* Waits: the end of a stream's work, or of what a user's event has recorded, and how it is
 * noticed. */
#ifndef AIOSTREAM_WAITS_H
#define AIOSTREAM_WAITS_H

#include "handles.h"
#include "points.h"
#include "policy.h"

/* A status with this bit is the address of a wait that is handed back to its task: the end is
 * near. */
#define STATUS_HANDED_BACK (1ll << 62)
struct wait;
static inline struct wait *wait_handed_back(int64_t status) { /* NULL: it is some other status */
    return status & STATUS_HANDED_BACK ? (struct wait *)(uintptr_t)(status & ~STATUS_HANDED_BACK)
                                       : NULL;
}

/* What wait_begin and wait_poll answer: one of the three is set, or none if the wait is over. */
struct wait_result {
    int refusal;
    uint64_t ticket; /* of the wait, which the watcher or a timer has */
    /* the caller's: it calls wait_poll until that leaves the wait to the watcher or a timer */
    struct wait *spinning;
};

/* what the waits on one stream, or on the streams of one pool, have learnt; counted */
struct shared_history;
struct shared_history *shared_history_new(void);
void shared_history_ref(struct shared_history *);
void shared_history_unref(struct shared_history *);

/* the waits on one stream, in its order; counted by its owner and by each wait on it */
struct wait_list;
struct wait_list *wait_list_new(struct context *, struct shared_history *);
void wait_list_unref(struct wait_list *);

/* Waits for the present end of a stream. Called without the GIL. */
void wait_begin(struct wait_list *, void *stream, struct queue *, enum wait_mode,
                struct wait_result *);
/* Waits for what a user's event has recorded now. Called without the GIL, under RELAXED; the handle
 * is pinned. */
void wait_begin_event(struct context *, struct shared_history *, struct handle *event,
                      struct queue *, enum wait_mode, struct wait_result *);
/* A wait of a future: it has one ticket for all its life, which is fired at its end. Its loop polls
 * it, or a task that awaits the future and has taken the wait. Everything is reserved before the
 * work is enqueued; nothing but the record itself can fail afterwards. Each without the GIL. */
int wait_reserve(struct wait_list *, struct queue *, enum wait_mode, struct wait **);
uint64_t wait_ticket(const struct wait *);
void wait_unreserve(struct wait *);
/* its end, when there is nothing to record; any thread */
void wait_fire_unrecorded(struct wait *, int status);
/* Records what the stream has reached now. 0: the wait is no longer the caller's; else it still is.
 * STAGE_TASK: the loop has to call waits_poll_futures soon. */
int wait_record_future(struct wait *, void *stream, enum stage *);
/* In the loop's thread: the wait is its caller's, who polls it with wait_poll from now on. False:
 * the loop does not poll it. Here and in the next two the record may be another wait's by now; the
 * ticket tells. */
bool wait_take_future(struct wait *, uint64_t ticket);
/* false: its loop was closed, and the watcher has it */
bool wait_is_taken(const struct wait *, uint64_t ticket);
/* leaves a taken wait to the watcher; any thread, any number of times */
void wait_drop_future(struct wait *, uint64_t ticket);
/* In the loop's thread: the ticket of a future that the loop has begun to poll, because its timer
 * was due; 0: no more of them. */
uint64_t waits_next_near(struct queue *);
/* In the loop's thread, under RELAXED, before each drain: polls the futures whose end is near.
 * True: again in its next turn. */
bool waits_poll_futures(struct queue *);
/* false: the caller goes on polling */
bool wait_poll(struct wait *, struct queue *, struct wait_result *);
void wait_drop(struct wait *); /* its task has gone */
/* by the loop's thread, under RELAXED, before each drain: those whose timer is due */
void waits_run_due(struct queue *);
bool waits_are_due(struct queue *); /* whether there may be any, or futures to poll */
/* before the queue is closed: the watcher takes those that its timer has */
void waits_leave_loop(struct queue *);
int waits_limit_timer(int most); /* exchanges how many waits a loop's timer takes */
bool waits_are_new(void);
int64_t waits_poll(int64_t now); /* the watcher's pass; when to come again */
void waits_fail(struct context *, int status);
void waits_predict(bool enabled);
int64_t waits_pending(void); /* waits with a task, also those that the task polls */

/* Before a user's event is recorded again: waits for what it has recorded so far must not be
 * prolonged. 0, or an error. */
int wait_snapshot_before_record(struct context *, struct handle *event);

#endif
