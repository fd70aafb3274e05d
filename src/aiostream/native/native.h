/* What the native files share. Only module*.c know Python: nothing in the others takes the GIL or holds a Python object,
 * because the driver's threads run them.
 *
 * Memory orders: every atomic here is sequentially consistent (C11's default). The few that could be weaker are not on any
 * path that a measurement has shown to matter, and the proofs below are written for the strong order.
 */
#ifndef AIOSTREAM_NATIVE_H
#define AIOSTREAM_NATIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The driver, called by raw address: cuda-bindings' own cuLaunchHostFunc and cuStreamAddCallback wrap the function in one
 * that takes the GIL on the driver's thread. Written once by native_bind() before any other call; read by every thread. */
typedef void (*host_function)(void *);
typedef void (*stream_callback)(void *stream, int status, void *data);

struct driver_calls {
    int (*launch_host_func)(void *stream, host_function, void *data);
    int (*stream_add_callback)(void *stream, stream_callback, void *data, unsigned flags);
    int (*stream_query)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*stream_is_capturing)(void *stream, int *status);
    int (*stream_destroy)(void *stream);
    int (*exchange_capture_mode)(int *mode);
    int (*event_query)(void *event);
    int (*event_record)(void *event, void *stream, unsigned flags);
    int (*event_synchronize)(void *event);
    int (*event_destroy)(void *event);
    int (*event_create)(void **event, unsigned flags);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*ctx_push)(void *context);
    int (*ctx_pop)(void **context);
    int (*capture_info)(void *stream, int *status, uint64_t *id, void **graph, void *nodes, void *count); /* as of CUDA 11.3 */
    int (*user_object_create)(void **object, void *data, host_function, unsigned references, unsigned flags);
    int (*user_object_release)(void *object, unsigned references);
    int (*graph_retain_user_object)(void *graph, void *object, unsigned references, unsigned flags);
    int (*graph_release_user_object)(void *graph, void *object, unsigned references);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_upload)(void *executable, void *stream);
    int (*graph_update)(void *executable, void *graph, void *result);
    int (*graph_destroy)(void *graph);
    int (*graph_exec_destroy)(void *executable);
    int (*launch_host_func_v2)(void *stream, host_function, void *data, unsigned mode); /* NULL where the driver is too old */
};
extern struct driver_calls driver;

/* Results: 0 and positive numbers are the driver's own codes. */
enum {
    RESULT_CLOSED = -1,      /* the handle was closed or released: nothing was done */
    RESULT_QUARANTINED = -2, /* a capture began between the check and the enqueue: the point is kept for ever */
    RESULT_NO_HELPER = -3,   /* no helper stream is idle: make one where blocking does no harm, and come again */
    RESULT_NO_MEMORY = -4,
    RESULT_CAPTURING = -900, /* -900, -901, -906: refused before the stream was touched */
};
enum { CUDA_SUCCESS = 0, CUDA_NOT_READY = 600, CUDA_CAPTURE_FIRST = 900, CUDA_CAPTURE_LAST = 908 };

/* What a firing says of its success. A host function brings no status, and by the manual never runs after an error; some
 * drivers were reported to run it all the same, so whoever delivers reads the context's health after it. */
enum { STATUS_UNKNOWN = 1 << 20 };
/* A status with this bit is the address of a wait that the watcher gives back to its task: the end is near. */
#define STATUS_HANDED_BACK (1ll << 62)

/* Runs a few driver calls so that they can disturb nobody's capture: every query of ours happens between these two. */
static inline int relaxed_enter(void) {
    int mode = 2; /* CU_STREAM_CAPTURE_MODE_RELAXED; THREAD_LOCAL is not enough on a thread that itself captures */
    return driver.exchange_capture_mode(&mode) == 0 ? mode : -1;
}
static inline void relaxed_leave(int mode) {
    if (mode >= 0) driver.exchange_capture_mode(&mode);
}

/* ---------------------------------------------------------------- points.c: tickets, points, queues */

struct context;
struct queue;

enum point_kind {
    KIND_HOST_FUNCTION = 0,   /* a completion: push the ticket, nothing else */
    KIND_CALLBACK = 1,        /* the same by stream callback, which brings a status */
    KIND_PYTHON_HOST = 2,     /* a user's Python host function, then the ticket */
    KIND_PYTHON_CALLBACK = 3, /* a user's Python stream callback, then the ticket */
    KIND_FOREIGN = 4,         /* a user's native function pointer, then the ticket */
    KIND_WATCHED = 5,         /* an event of ours that the watcher polls at: the driver is given no ticket */
    KIND_GRAPH_PYTHON = 6,    /* a KIND_PYTHON_HOST that a capture took in: runs at each launch, ends with its user object */
    KIND_GRAPH_FOREIGN = 7,   /* likewise a KIND_FOREIGN; the driver was given the user's own pointer */
};

enum counter {
    POINTS_ARMED, POINTS_FIRED, POINTS_LEAKED,
    POINTS_STALE,       /* firings of a ticket that was no longer armed: ignored */
    POINTS_QUARANTINED, /* armed into a capture that began meanwhile; counted as leaked too */
    HOST_FUNCTIONS_LATE, /* Python host functions that came after the exit gate had closed: not run */
    WATCHER_PASSES,
    HANDLES_CREATED, HANDLES_DESTROYED, HANDLES_RELEASED, HANDLES_OPEN,
    FUTURES_CREATED, FUTURES_DONE, FUTURES_FAILED, FUTURES_CANCELLED, FUTURES_DROPPED,
    WAITS_READY,     /* nothing to wait for */
    WAITS_BY_TIMER,     /* left alone until shortly before their expected end, by a timer of their loop */
    WAITS_HANDED_BACK, /* given back to the task because the end was near */
    WAITS_SPUN,      /* ended in the waiting task's own queries */
    WAITS_WATCHED,   /* given to the watcher */
    WAITS_PREDICTED, /* of these, the ones whose end was expected */
    WAITS_BY_HOSTFUNC,     /* of these, the ones that were given a host function on a helper stream */
    WAITS_LEAKED,      /* their record was kept for ever: the context failed under a helper */
    EVENT_POLLS,           /* queries by the watcher */
    COUNTERS,
};
extern _Atomic int64_t counters[COUNTERS];

struct queue *queue_open(void);
void queue_close(struct queue *);
int queue_descriptor(const struct queue *); /* readable when something has arrived, or an timer is due */
struct timer *queue_timer(const struct queue *);
void queue_suppress_wakeup(struct queue *); /* by its consumer: until the drain that follows, what is pushed wakes nobody */
int queue_index(const struct queue *);
struct queue *queue_at(int index);
void queue_wake(struct queue *);
int64_t queue_lag(const struct queue *); /* ns; how long the loop takes these days to come back to what waits for it */
void queue_note_lag(struct queue *, int64_t lag);

/* Takes everything that has arrived; calls emit(context, ticket, status, passed) for each, oldest first. passed is false
 * when the waiter failed but the driver may still come to the point: what is kept alive for it must stay. An emit that
 * returns false stops the drain and what is left goes back: nothing is lost. */
typedef bool (*emit_function)(void *argument, uint64_t ticket, int64_t status, bool complete);
bool queue_drain(struct queue *, emit_function, void *context);

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
uint64_t point_watch(struct queue *, struct context *); /* reserve and arm in one: the watcher will fire it; 0: no memory */
void point_fire(uint64_t ticket, int64_t status);

/* module.c: runs the user's Python function for a ticket behind the exit gate, on the driver's thread. */
void python_dispatch(uint64_t ticket, int status);

/* ---------------------------------------------------------------- watcher.c: the thread, the health of each context */

struct context *context_register(void *context, void *private_stream, int device);
void *context_handle(const struct context *);
int context_device(const struct context *);
int context_index(const struct context *);
struct context *context_at(int index);
void context_add_pending(struct context *); /* may wake the watcher */
void context_drop_pending(struct context *);
int context_health(struct context *); /* 0, or the error that has befallen the context */
int watcher_start(void);
void watcher_stop(void);
void watcher_wake_before(int64_t time); /* wakes it unless it will poll about by then anyway */
int64_t now_ns(void);
int64_t watcher_oversleep(int64_t delay); /* by how much a sleep of that length is likely to be too long */

/* ---------------------------------------------------------------- timer.c: a timer that a loop watches itself */

struct timer;
struct timer_entry { /* whoever waits for its time; a part of what it belongs to */
    int64_t time;
    struct timer_entry *next;
};
struct timer *timer_new(void); /* closed; NULL: no memory, or no descriptor */
void timer_free(struct timer *);
int timer_descriptor(const struct timer *);
void timer_open(struct timer *);
bool timer_add(struct timer *, struct timer_entry *, int64_t time, int most); /* false: there are so many, or it is closed */
struct timer_entry *timer_take_due(struct timer *, int64_t now);         /* takes some whose time has come */
struct timer_entry *timer_close(struct timer *);                    /* takes all */

/* ---------------------------------------------------------------- waits.c: events of ours, and when to poll at them */

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
void waits_hand_back_due(struct queue *);  /* by the loop's thread, before each drain: gives back the by_timer waits whose time has come */
void waits_leave_loop(struct queue *); /* before the queue is closed: the watcher sees to those that doze */
void waits_limit_timer(long long *length, int *most); /* exchanges the longest wait (ns) that may doze, and how many of a loop may */
bool waits_are_new(void);
int64_t waits_poll(int64_t now); /* the watcher's pass; when to come again */
void waits_fail(struct context *, int status);
void waits_predict(bool enabled);

/* ---------------------------------------------------------------- history.c: how long the waits of a line take */

struct history { /* guarded by the line's lock */
    int64_t mean, deviation; /* ns; the deviation is the mean absolute one */
    int samples;
    int outliers; /* in a row */
    int64_t lead; /* ns; how long before the expected end the waiter is called */
    int streak;   /* waits in a row that did not end long before they were expected */
};
struct prediction { /* what a history says for one wait, in ns after its beginning */
    bool good;     /* there is something to expect */
    bool trusted;  /* for so long that looking meanwhile is hardly worth it */
    int64_t mean, spread, lead;
};
void history_learn(struct history *, int64_t duration);
void history_learn_hand_back(struct history *, bool late, int64_t slack);
struct prediction history_predict(const struct history *);

/* ---------------------------------------------------------------- sleeper.c: helper streams, and waits that sleep */

void *helper_take(struct context *); /* NULL: none is idle */
int helper_make(struct context *, void **stream); /* may block until the GPU is idle */
void helper_put(struct context *, void *stream, bool idle); /* one that is not idle is destroyed */
int helper_count(struct context *);
enum helper_hostfunc_state {
    HOSTFUNC_NONE,
    HOSTFUNC_REQUESTED, /* on the sleeper's list, or in its hands */
    HOSTFUNC_ARMED,     /* the host function is pending */
    HOSTFUNC_DONE,      /* it has run */
    HOSTFUNC_REFUSED,   /* the driver refused, or nobody wanted it any more */
};
struct helper_hostfunc {
    struct context *context; /* these three by the watcher, before helper_hostfunc_request */
    void *event;
    void (*hostfunc_ran)(struct helper_hostfunc *); /* runs on the driver's thread */
    void *stream;                    /* by the sleeper; the watcher reads it in a final state */
    _Atomic int state;               /* REQUESTED, NONE by the watcher; ARMED, REFUSED by the sleeper; DONE by the driver's thread */
    _Atomic bool unwanted;           /* by the watcher */
    struct helper_hostfunc *next;              /* under the sleeper's lock */
};
/* Has `reached` run behind an event, on a helper stream, enqueued by the sleeper's own thread because that may block. false:
 * as many as may be are pending already. */
bool helper_hostfunc_request(struct helper_hostfunc *);
void helper_hostfunc_release(struct helper_hostfunc *); /* in a final state: DONE or REFUSED */
void helper_hostfunc_forget(struct helper_hostfunc *);  /* it will never end: its context has failed */
void helper_hostfunc_limit(int pending);
int helper_hostfunc_start(void);
void helper_hostfunc_stop(void);

/* ---------------------------------------------------------------- handles.c: who may still use a stream or event */

struct handle;
enum handle_kind { HANDLE_STREAM = 0, HANDLE_EVENT = 1, HANDLE_GRAPH = 2, HANDLE_GRAPH_EXEC = 3 };
struct handle *handle_new(enum handle_kind, void *value, void *context, bool owned, bool needs_context, struct handle *parent);
void handle_free(struct handle *); /* the record only, never the driver's object */
void *handle_value(const struct handle *);
void *handle_context(const struct handle *);
bool handle_pin(struct handle *);
void handle_unpin(struct handle *); /* the last user of a closed handle destroys it */
int handle_close(struct handle *);
void handle_mark_destroyed(struct handle *); /* the driver did it by itself: nobody is to do it again */
bool handle_release(struct handle *); /* blocks until nobody uses it; false: it was closed before */
bool handle_is_open(const struct handle *);
int handle_enter_context(const struct handle *, bool *entered); /* makes the context current where the driver needs one */
void handle_leave_context(bool entered);

int capture_refusal(void *stream); /* 0, RESULT_CAPTURING.., or the driver's error */

#endif
