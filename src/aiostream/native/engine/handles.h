/* Handles: who may still use a stream, an event or a graph. */
#ifndef AIOSTREAM_HANDLES_H
#define AIOSTREAM_HANDLES_H

#include <pthread.h>

#include "base.h"

enum handle_kind { HANDLE_STREAM, HANDLE_EVENT, HANDLE_GRAPH, HANDLE_GRAPH_EXEC, HANDLE_KINDS };

struct handle {
    _Atomic uint64_t word; /* the number of uses, and the states of handles.c; any thread */
    /* references to this struct: the Python object's, and those of waits for an event */
    _Atomic int64_t refs;
    /* Of an event, any thread: the waits that are not over, event_is_captured */
    _Atomic int64_t waits;
    _Atomic bool captured;
    /* The watcher's pass that has found it pending, for which its other waits need no query. Used
     * by the watcher alone. */
    int64_t pending_in;
    void *value; /* handle_new writes the rest, which is constant from then on */
    void *context;
    uint64_t identity; /* of the context; see context_is_gone */
    /* A stream that is borrowed from this library pins its owner's handle too. python/handles.c
     * keeps that alive. */
    struct handle *parent;
    /* Of a graph: the handle whose lock it uses, to which it has a reference if it is not this one.
     * Constant as soon as threads share it. */
    struct handle *root;
    struct handle *next, **link; /* of graphs, in the list of all; see graphs_guard */
    enum handle_kind kind;
    bool owned;
    bool hidden;                /* in no count; written before another thread has it */
    pthread_mutex_t lock;       /* of a root, as the next: see graphs_lock */
    _Atomic int64_t destroying; /* odd while a thread is in the driver's call that destroys */
    struct handle *next_let_go; /* see event_wait_let_go; written once, by the last user */
};

struct handle *handle_new(enum handle_kind, void *value, void *context, bool owned);
/* Another one of the same thing. It owns nothing, and pins the first, which the caller keeps. */
struct handle *handle_borrow(struct handle *);
/* It is the library's own, and no longer in the counters. Once, by the thread that made it. */
void handle_hide(struct handle *);
/* the struct goes with the last reference; the driver's object never does */
void handle_unref(struct handle *);
bool handle_pin(struct handle *);
/* the last user of a closed handle destroys the driver's object */
void handle_unpin(struct handle *);
/* As far as that calls no driver and takes no lock. What is left for handle_unpin, or NULL. */
struct handle *handle_unpin_at_once(struct handle *);
int handle_close(struct handle *);
/* handle_close for a caller that cannot get an error: see handle_take_refusal */
void handle_drop(struct handle *);
/* Another library has got the handle. From now on closing it retires it, and the library does
 * not destroy it. This holds for the owner too, if the handle is borrowed. False: it was closed
 * before. */
bool handle_share(struct handle *);
bool handle_is_shared(const struct handle *); /* also once it was retired */
/* at this moment; another thread may begin or end a use at any time */
bool handle_is_used(const struct handle *);
/* the driver has destroyed the object, so the library does not */
void handle_mark_destroyed(struct handle *);
/* Gives the object away: from now on it is the receiver's, and new uses are refused. False: it was
 * closed before, or is in use and must not be. */
bool handle_release(struct handle *, bool while_used);
/* The code and call of a destruction that the driver has refused, where no caller got the error. 0:
 * none. The listener of failures.h is called when there is one. */
int handle_take_refusal(const char **call);
/* Takes over the Python object's reference to an open handle. A finalizer may not call the driver,
 * so it calls the listener of failures.h, and handles_drop_abandoned drops all of these. Each in
 * any thread, at any time. */
void handle_abandon(struct handle *);
void handles_drop_abandoned(void);
bool handle_is_open(const struct handle *);
bool handle_is_gone(const struct handle *); /* its context was destroyed: see context_is_gone */

/* Pins a handle, and makes one driver call on it, in its context, under RELAXED. The answer of the
 * operation, or RESULT_CLOSED, or why there was no call. Call it without the GIL. */
typedef int (*handle_operation)(struct handle *, void *argument);
/* The caller has pinned the handle; the call is made in the thread's own capture mode. */
enum { PINNED = 1, AS_IS = 2 };
int operate(struct handle *, int how, handle_operation, void *argument);
int do_capture_refusal(struct handle *, void *unused); /* a handle_operation */

/* --- graphs --- */

/* A graph, its clones, their executables, and what was borrowed of them share a lock. It is held
 * during each call that clones, instantiates, updates or destroys one of them. The driver notes in
 * a graph what was made of it, without a lock of its own: it crashed when a graph was cloned,
 * instantiated or destroyed while a clone or an executable of it was destroyed in another thread
 * (driver 580). The janitor destroys those that a program drops, so the program cannot prevent it.
 * The lock is recursive, because the driver runs destructors of user objects in the call, and
 * refuses what they call. Such a destructor may wait for a lock that this thread has. So this gives
 * up, and returns false, if one call of another thread that destroys does not return for a second.
 * Take it without the GIL. */
bool graphs_lock(struct handle *);
void graphs_unlock(struct handle *);
/* The first was made of the second just now, and no other thread has it yet. NULL: it was borrowed
 * or taken over, so it may be one that is known, or a relative. */
void graphs_relate(struct handle *made, struct handle *from);
/* handle_drop, if no other thread has the lock. Whether it was dropped. */
bool handle_try_drop(struct handle *);

/* --- events --- */

/* Makes an event of the driver's in a context. Call it under RELAXED. */
int event_make(void *context, unsigned flags, void **event);
/* A wait for a user's event pins its handle from its start on, until nothing will query the event
 * any more. */
void event_wait_let_go(struct handle *);
/* Whether it was recorded on a capturing stream. A query would invalidate that capture. */
bool event_is_captured(const struct handle *);
/* Records what the stream has reached. If tasks await the event, or another thread might query it
 * while it becomes part of a capture, a fresh event with these flags is recorded in its place, and
 * *fresh is the caller's. Otherwise, and after an error, *fresh stays as it was. 0, or why not.
 * Call it under RELAXED, with the stream pinned. */
int event_record(struct handle *event, void *stream, unsigned flags, struct handle **fresh);

#endif
