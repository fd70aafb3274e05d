/* Waits: an event of ours recorded in the user's stream, and how its end is noticed. */
#ifndef AIOSTREAM_WAITS_H
#define AIOSTREAM_WAITS_H

#include "points.h"

/* A status with this bit is the address of a wait that the watcher hands back to its task: the end is near. */
#define STATUS_HANDED_BACK (1ll << 62)
struct wait_list; /* a stream, as far as its waits are concerned; counted by its owner and by each wait on it */
struct wait;
static inline struct wait *wait_handed_back(int64_t status) { /* NULL: it is some other status */
    return status & STATUS_HANDED_BACK ? (struct wait *)(uintptr_t)(status & ~STATUS_HANDED_BACK) : NULL;
}
enum wait_mode { WAIT_AUTO = 0, WAIT_EVENT = 1, WAIT_SPIN = 2 };
struct wait_result { /* what wait_begin answers: one of the three is set, or none if there was nothing to wait for */
    int refusal;
    uint64_t ticket;       /* the watcher has it */
    struct wait *spinning; /* the caller queries it with wait_poll, until wait_poll gives it to the watcher */
};
struct wait_list *wait_list_new(struct context *, bool ordered);
void wait_list_unref(struct wait_list *);
void wait_begin(struct wait_list *, void *stream, void *event, struct queue *, enum wait_mode, struct wait_result *);
bool wait_poll(struct wait *, struct queue *, struct wait_result *); /* false: go on spinning */
void wait_drop(struct wait *);                                 /* nobody spins any more */
void waits_hand_back_due(struct queue *);  /* by the loop's thread, before each drain: hands back the waits by timer whose time has come */
void waits_leave_loop(struct queue *); /* before the queue is closed: the watcher sees to those that doze */
void waits_limit_timer(long long *length, int *most); /* exchanges the longest wait (ns) that may doze, and how many of a loop may */
bool waits_are_new(void);
int64_t waits_poll(int64_t now); /* the watcher's pass; when to come again */
void waits_fail(struct context *, int status);
void waits_predict(bool enabled);

#endif
