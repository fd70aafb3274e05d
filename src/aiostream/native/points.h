/* Points: places of a stream at which something of ours was enqueued; known by tickets. */
#ifndef AIOSTREAM_POINTS_H
#define AIOSTREAM_POINTS_H

#include "contexts.h"
#include "queues.h"

enum point_kind {
    KIND_HOST_FUNCTION = 0,   /* a completion: push the ticket, nothing else */
    KIND_CALLBACK = 1,        /* the same by stream callback, which brings a status */
    KIND_PYTHON_HOST = 2,     /* a user's Python host function, then the ticket */
    KIND_PYTHON_CALLBACK = 3, /* a user's Python stream callback, then the ticket */
    KIND_FOREIGN = 4,         /* a user's native function pointer, then the ticket */
    KIND_WATCHED = 5,         /* an event of ours that the watcher polls: the driver is given no ticket */
    KIND_GRAPH_PYTHON = 6,    /* a KIND_PYTHON_HOST that a capture took in: runs at each launch, ends with its user object */
    KIND_GRAPH_FOREIGN = 7,   /* likewise a KIND_FOREIGN; the driver was given the user's own pointer */
    KIND_HEALTH = 8,          /* no place in a stream: fires if the context fails; in no count */
};

enum { FIRST_TICKET = 1 << 24 }; /* no ticket is smaller, so a number below it is an error or a refusal */

/* Takes everything that has arrived; calls emit(argument, ticket, status, complete) for each, oldest first. complete is false
 * when the waiter failed but the driver may still come to the point: what is kept alive for it must stay. An emit that
 * returns false stops the drain and what is left goes back: nothing is lost. */
typedef bool (*emit_function)(void *argument, uint64_t ticket, int64_t status, bool complete);
bool queue_drain(struct queue *, emit_function, void *argument);

/* Reserve, register in Python, arm: a point may fire before the call that arms it has returned. */
uint64_t point_reserve(struct queue *, struct context *, enum point_kind);
void point_set_foreign(uint64_t ticket, host_function, void *data);
void point_set_sync_mode(uint64_t ticket, int mode); /* of cuLaunchHostFunc_v2, which must be there */
void point_unreserve(uint64_t ticket); /* reserved but never armed */
int point_arm(uint64_t ticket, void *stream);
bool point_is_live(uint64_t ticket); /* the driver may still come to it, or its consumer has yet to */
int64_t points_pending(void);
int64_t points_captured(void); /* of the pending ones, those that live in graphs */
void points_fail(struct context *, int status);
void point_arm_watched(uint64_t ticket); /* a reserved KIND_WATCHED one: whoever watches its event will fire it */
uint64_t point_watch(struct queue *, struct context *); /* reserve and arm in one: the watcher will fire it; 0: no memory */
void point_fire(uint64_t ticket, int64_t status);
uint64_t point_watch_health(struct queue *, struct context *); /* fires when the context fails; 0: no memory */
void point_end_health(uint64_t ticket);                        /* fires it with 0, if it has not fired */

/* Runs the user's Python function for a ticket, on the driver's thread. Set once by the Python face, before any is armed. */
typedef void (*python_dispatcher)(uint64_t ticket, int status);
void points_set_dispatcher(python_dispatcher);

#endif
