/* Waits: how the library notices the end of a stream's work, or of what a user's event has
 * recorded. */
#ifndef AIOSTREAM_WAITS_H
#define AIOSTREAM_WAITS_H

#include "failures.h"
#include "handles.h"
#include "points.h"
#include "policy.h"

/* A status with this bit is the address of a wait that is handed back to its task, because its end
 * is near. */
#define STATUS_HANDED_BACK (1ll << 62)
struct wait;
static inline struct wait *wait_handed_back(int64_t status) { /* NULL: it is some other status */
    return status & STATUS_HANDED_BACK ? (struct wait *)(uintptr_t)(status & ~STATUS_HANDED_BACK)
                                       : NULL;
}

/* All waits that have begun fail at their next poll. */
void waits_drop_work(void);

/* What wait_begin and wait_poll answer. One of the three is set, or none if the wait is over. */
struct wait_result {
    int refusal;
    uint64_t ticket; /* the ticket of the wait, which the watcher or a timer has */
    /* the caller has the wait, and calls wait_poll until a timer or the watcher has it */
    struct wait *spinning;
};

/* what the waits on one stream, or on the streams of one pool, have learnt; counted */
struct shared_history;
struct shared_history *shared_history_new(void);
void shared_history_unref(struct shared_history *);
/* history_asked, in any thread. No wait_list has such a history. */
struct question shared_history_asked(struct shared_history *, int64_t start, int64_t false_at,
                                     int64_t now, bool over, int waits);

/* the waits on one stream, in its order; counted by its owner and by each wait on it */
struct wait_list;
/* With another list if both are of waits on the same stream, whose ends count for both then. */
struct wait_list *wait_list_new(struct context *, struct shared_history *, struct wait_list *same);
void wait_list_ref(struct wait_list *);
void wait_list_unref(struct wait_list *);
int wait_list_health(const struct wait_list *); /* of its context: see context_recent_health */
/* What operators call its stream. The latest counts. Any thread. */
void wait_list_label(struct wait_list *, const char *name);
/* The same list as one owner of the stream uses it. A wait is stalled after that time without an
 * end (0: never). Another owner, at the same time or later, has another limit. */
struct waits {
    struct wait_list *list;
    _Atomic int64_t limit;
};

/* Waits for what the stream has reached now. Call it without the GIL. */
void wait_begin(const struct waits *, void *stream, struct queue *, const struct strategy *,
                struct wait_result *);
/* Waits for what a user's event has recorded now, with the context and the history of the list.
 * Call it without the GIL, under RELAXED, with the handle pinned. */
void wait_begin_event(const struct waits *, struct handle *event, struct queue *,
                      const struct strategy *, struct wait_result *);
/* A wait of a future. It has one ticket for all its life, which fires at its end. Its loop polls
 * it. Everything is reserved before the work is enqueued, so nothing but the record itself can fail
 * afterwards. Call each of these without the GIL. */
int wait_reserve(const struct waits *, struct queue *, const struct strategy *, struct wait **);
uint64_t wait_ticket(const struct wait *);
void wait_unreserve(struct wait *);
/* ends it if there is nothing to record; any thread */
void wait_fire_unrecorded(struct wait *, int status);
/* Records what the stream has reached now. 0: the wait no longer belongs to the caller. Otherwise
 * it still does. */
int wait_record_future(struct wait *, void *stream);
/* Whether the stream has done everything already, so that there is nothing to record. */
bool wait_is_over_at_once(struct wait *, void *stream);
void wait_poll(struct wait *, struct wait_result *);
/* Blocks the thread until the wait is over (true, with its status), or until that time. It polls as
 * the policy says, and sleeps in between. Call it without the GIL, under RELAXED. Such a wait
 * begins with the orphans' queue, and no other thread polls it. */
bool wait_block(struct wait *, int64_t until, int *status);
void wait_drop(struct wait *); /* its task no longer waits */
/* Its task no longer waits, and its end goes to its loop or to the janitor: the ticket, or 0
 * without memory. Then the caller leaves it to the watcher. Not for a user's event. */
uint64_t wait_reserve_end(struct wait *, bool in_loop);
void wait_leave_to_watcher(struct wait *);
/* The same for one that a timer, the loop or the watcher has. The watcher has it then, and its end
 * goes to the janitor, because its loop may not run for long. Any thread. */
void wait_orphan(uint64_t ticket);
/* Polls those whose timer is due, and hands them back; by the loop's thread, under RELAXED, before
 * each drain. If it is to poll futures in its next turn, the timer is due at once. */
void waits_run_due(struct queue *);
/* before the queue is closed: the watcher takes those that the loop's timer has */
void waits_leave_loop(struct queue *);
/* The watcher takes what the loops should have polled long ago. By the watcher. */
void waits_leave_late(int64_t now);
/* sets how many waits a loop's timer takes; returns the old number */
int waits_limit_timer(int most);
bool waits_are_new(void);
int64_t waits_poll(int64_t now); /* one pass of the watcher; returns the time of the next */
void waits_fail(struct context *, int status);
void waits_predict(bool enabled);

/* A wait with a task, which may be one that the task polls. */
struct waiting {
    uint64_t ticket;         /* 0: the task polls it */
    int queue;               /* of its loop */
    int64_t began, expected; /* expected: the longest length in a window; 0: nothing is known */
    char name[STREAM_NAME];  /* what it waits for: the stream, or a user's event */
};
/* Fills in the one after `*latest`, which is set to it, and begins with NULL. False: it was the
 * last. The address is compared, never used. Any thread. */
bool waits_next(struct wait **latest, struct waiting *);

#endif
