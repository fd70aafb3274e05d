/* What the files about completions share. See completions.c. */
#ifndef AIOSTREAM_MODULE_COMPLETIONS_H
#define AIOSTREAM_MODULE_COMPLETIONS_H

#include "module.h"
#include "../engine/stalls.h"

enum state { NEW, PENDING, DONE, FAILED, CANCELLED, DROPPED };

typedef struct order {
    PyObject_HEAD
    struct completion *first, *last;
} OrderObject;

typedef struct completion {
    PyObject_HEAD
    /* Any thread reads these two and `state`. The thread that ends it clears them. */
    PyObject *future;                   /* NULL once it has ended */
    PyObject *keepalive;                /* stays alive until the GPU has passed the point */
    PyObject *result;                   /* what the future's result will be */
    PyObject *name;                     /* of the stream, in errors */
    PyObject *order;                    /* NULL: it stands in none */
    struct completion *next, *previous; /* in that order, which guards them */
    /* NULL: it ends by a host function, and not by an event */
    struct wait *wait;
    struct queue *queue;
    uint64_t queue_identity;
    uint64_t ticket;  /* 0: nothing is reserved */
    const char *call; /* of the driver, in errors */
    /* When it was first counted as pending; 0 once it has a wait, which knows. Any thread reads it,
     * and not `wait`, which its own thread writes. */
    _Atomic int64_t began;
    _Atomic enum state state;
    _Atomic bool recorded;
} CompletionObject;

extern PyTypeObject *completion_type, *order_type;
/* -1: it has raised */
int call_truth(PyObject *object, PyObject *method);
/* Sets a future's exception, or without one its result. -1: it has raised */
int settle_future(PyObject *future, PyObject *error, PyObject *result);
bool is_own_future(PyObject *);

void completion_fill(CompletionObject *, PyObject *future, PyObject *name, PyObject *keepalive);
/* its point will arrive there */
static inline void completion_expect(CompletionObject *self, struct queue *queue) {
    self->queue = queue;
    self->queue_identity = queue->identity;
}
/* it has no future, and ends by an event that another function records */
static inline void completion_is_watched(CompletionObject *self, struct wait *wait) {
    self->wait = wait, self->recorded = true;
}
/* counts the future as pending, if it is new */
void completion_begin(CompletionObject *);
/* counts its end, if it is pending */
void completion_end(CompletionObject *, enum state outcome);
void completion_enter(CompletionObject *, PyObject *order);
/* The GPU has passed its point. Or it has not, because the context has failed: then the GPU may
 * still use the objects, and they stay. -1: it has raised, and may be called again. */
int completion_complete(CompletionObject *, int code, bool orphaned, bool passed);
/* Nothing proves that the GPU has passed the work: what it may use is never released. */
static inline void count_leak(void) {
    atomic_fetch_add(&counters[POINTS_ARMED], 1);
    atomic_fetch_add(&counters[POINTS_LEAKED], 1);
}
void completion_leak(CompletionObject *);
/* No task waits any more. The watcher and the janitor see to the end of its event, because its loop
 * may not run for long. In the loop's thread. */
void completion_give_up(CompletionObject *);
/* Makes the context of a pinned stream current for a call of Python: 0, or why not. If it asks,
 * also because a wait behind the call would be refused. *call is for call_leave. Without the GIL,
 * because a driver may hold a lock while a host function runs. If that is a Python function, it
 * waits for the GIL, and the two threads would wait for each other. */
int call_enter(struct handle *, const struct waits *, bool asks, struct call **call);
/* With the GIL. In a child that the call has forked it returns. */
void call_leave(struct call *);
PyObject *Completion_enqueue(PyObject *, PyObject *args);
PyObject *Completion_expect(PyObject *, PyObject *args);
PyObject *Completion_run(PyObject *, PyObject *args);
PyObject *Completion_fire(PyObject *, PyObject *args);

/* Only these follow the owner of a point. Another thread may take it out at any time, so a
 * reference is taken under the lock, and given back behind it. */
#ifdef Py_GIL_DISABLED
#define lock_owner(ticket) point_lock_owner(ticket)
#define unlock_owner(ticket) point_unlock_owner(ticket)
#else
#define lock_owner(ticket)
#define unlock_owner(ticket)
#endif

static inline void set_owner(uint64_t ticket, PyObject *object) {
    Py_INCREF(object);
    lock_owner(ticket);
    PyObject *former = point_set_owner(ticket, object);
    unlock_owner(ticket);
    Py_XDECREF(former);
}

/* Puts another owner, or NULL, in the place of one. False: that is not the owner any more, and
 * the ticket may be another's. */
static inline bool replace_owner(uint64_t ticket, PyObject *former, PyObject *owner) {
    lock_owner(ticket);
    bool is_owner = point_owner(ticket) == former;
    if (is_owner) point_set_owner(ticket, Py_XNewRef(owner));
    unlock_owner(ticket);
    if (is_owner) Py_DECREF(former);
    return is_owner;
}

/* A reference to it, or NULL. */
static inline PyObject *owner_of(uint64_t ticket) {
    lock_owner(ticket);
    PyObject *owner = Py_XNewRef((PyObject *)point_owner(ticket));
    unlock_owner(ticket);
    return owner;
}

#endif
