/* Points: places of a stream at which the library enqueued something that it will report. A ticket
 * stands for a point. */
#ifndef AIOSTREAM_POINTS_H
#define AIOSTREAM_POINTS_H

#include "contexts.h"
#include "queues.h"

enum point_kind {
    KIND_HOST_FUNCTION = 0,   /* a completion: it pushes the ticket and does nothing else */
    KIND_CALLBACK = 1,        /* the same by a stream callback, which brings a status */
    KIND_PYTHON_HOST = 2,     /* runs a user's Python host function, then pushes the ticket */
    KIND_PYTHON_CALLBACK = 3, /* runs a user's Python stream callback, then pushes the ticket */
    KIND_FOREIGN = 4,         /* runs a user's native function, then pushes the ticket */
    /* an event of the library that the watcher polls: the driver gets no ticket */
    KIND_POLLED = 5,
    /* a KIND_PYTHON_HOST that a capture took in: runs at each launch, ends with its user object */
    KIND_GRAPH_PYTHON = 6,
    /* the same for a KIND_FOREIGN; the driver was given the user's own pointer */
    KIND_GRAPH_FOREIGN = 7,
};

/* Takes everything that has arrived, and calls emit(argument, ticket, status, complete) for each,
 * oldest first. complete is false if the waiter failed but the driver may still come to the point,
 * so what is kept alive for it must stay. An emit that returns false stops the drain. What is left
 * goes back to the queue, so nothing is lost. */
typedef bool (*emit_function)(void *argument, uint64_t ticket, int64_t status, bool complete);
bool queue_drain(struct queue *, emit_function, void *argument);

/* Reserve the ticket, register it in Python, then arm it, because a point may fire before the call
 * that arms it has returned. */
uint64_t point_reserve(struct queue *, struct context *, enum point_kind);
/* What the ticket stands for. The owners of points call these under Python's GIL, or without one
 * under the lock of the point. They set the owner before the point is armed, or in the thread that
 * drains its queue. The consumer takes it back once the point was passed. point_set_owner returns
 * what was there: NULL, or an owner whose ticket has ended. */
void point_lock_owner(uint64_t ticket); /* for a few steps without a call of Python */
void point_unlock_owner(uint64_t ticket);
void *point_set_owner(uint64_t ticket, void *owner);
void *point_owner(uint64_t ticket); /* NULL: it has none, or has ended */
/* calls it with the ticket of each point that has an owner */
void points_visit_owned(void (*visit)(void *argument, uint64_t ticket), void *argument);
struct context *point_context(uint64_t ticket);
/* since when its queue waits for the loop; 0: its consumer has it, or that is not known */
int64_t point_unread_since(uint64_t ticket);
/* What a user's point calls, and the mode of cuLaunchHostFunc_v2, which the driver must have. -1:
 * without a mode, by cuLaunchHostFunc. */
void point_set_call(uint64_t ticket, host_function, void *data, int sync_mode);
void point_unreserve(uint64_t ticket); /* gives back a ticket that was reserved and never armed */
int point_arm(uint64_t ticket, void *stream);
/* What comes for the ticket goes to the orphans' queue. The queue that it would have gone to, or
 * NULL: it has come already. */
struct queue *point_orphan(uint64_t ticket);
/* the driver may still come to the point, or its consumer has not seen its end */
bool point_is_live(uint64_t ticket);
/* All that are armed now; of these, the host functions that live in graphs, and those that the
 * driver has in streams. */
struct pending_points { int64_t all, captured, in_streams; };
struct pending_points points_pending(void);
void points_fail(struct context *, int status);
/* fires a reserved KIND_POLLED ticket, by the thread that polls its event */
void point_arm_polled(uint64_t ticket);
/* Reserves and arms in one; the watcher will fire it. 0: no memory. */
uint64_t point_reserve_armed(struct queue *, struct context *, enum point_kind);
void point_fire(uint64_t ticket, int64_t status);

/* Calls `visit` with the owner of each point that the GPU has passed and its loop has not taken
 * yet, until it does not answer 0, and returns that answer. No thread takes them meanwhile. */
int points_visit_arrived(struct queue *, int (*visit)(void *owner, void *argument), void *argument);

/* Sets the function that runs a user's Python function for a ticket, on the driver's thread. Once,
 * before any such ticket is armed. */
typedef void (*python_dispatcher)(uint64_t ticket, int status);
void points_set_dispatcher(python_dispatcher);

#endif
