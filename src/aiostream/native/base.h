/* What every native file stands on: the driver's functions, result codes, counters, the clock, and
 * questions about captures.
 *
 * Only module*.c know Python. Nothing in the other files takes the GIL or holds a Python object,
 * because the driver's threads run them. The include order is held by a test (tests/test_house.py):
 * a header includes only headers of lower floors.
 *
 * Memory orders: every atomic of the native part is sequentially consistent (C11's default). The
 * few that could be weaker are not on any path that a measurement has shown to matter, and the
 * proofs beside them are written for the strong order.
 */
#ifndef AIOSTREAM_BASE_H
#define AIOSTREAM_BASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The driver, called by raw address: cuda-bindings' own cuLaunchHostFunc and cuStreamAddCallback
 * wrap the function in one that takes the GIL on the driver's thread. Written once by native_bind()
 * before any other call; read by every thread. */
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
    int (*ctx_get_id)(void *context, uint64_t *id);
    /* as of CUDA 11.3 */
    int (*capture_info)(void *stream, int *status, uint64_t *id, void **graph, void *nodes,
                        void *count);
    int (*user_object_create)(void **object, void *data, host_function, unsigned references,
                              unsigned flags);
    int (*user_object_release)(void *object, unsigned references);
    int (*graph_retain_user_object)(void *graph, void *object, unsigned references, unsigned flags);
    int (*graph_release_user_object)(void *graph, void *object, unsigned references);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_upload)(void *executable, void *stream);
    int (*graph_update)(void *executable, void *graph, void *result);
    int (*graph_destroy)(void *graph);
    int (*graph_exec_destroy)(void *executable);
    /* NULL where the driver is too old */
    int (*launch_host_func_v2)(void *stream, host_function, void *data, unsigned mode);
};
extern struct driver_calls driver;

/* Results: 0 and positive numbers are the driver's own codes. */
enum {
    RESULT_CLOSED = -1, /* the handle was closed or released: nothing was done */
    /* a capture began between the check and the enqueue: the point is kept for ever */
    RESULT_QUARANTINED = -2,
    RESULT_NO_MEMORY = -4,
    RESULT_CAPTURING = -900, /* -900, -901, -906: refused before the stream was touched */
};
enum { CUDA_INVALID_CONTEXT = 201, CUDA_INVALID_HANDLE = 400, CUDA_CONTEXT_IS_DESTROYED = 709 };
enum { CUDA_SUCCESS = 0, CUDA_INVALID_VALUE = 1, CUDA_NOT_READY = 600 };
enum { CUDA_CAPTURE_FIRST = 900, CUDA_CAPTURED_EVENT = 907, CUDA_CAPTURE_LAST = 908 };

/* What a firing says of its success. A host function brings no status, and by the manual never runs
 * after an error; some drivers were reported to run it all the same, so whoever delivers reads the
 * context's health after it. STATUS_NEAR is no firing: the end of a future's wait is near, and its
 * loop polls it. */
enum { STATUS_UNKNOWN = 1 << 20, STATUS_NEAR = 1 << 21 };

/* The id of a context, which is never used again as handles are; 0: the driver does not say. */
uint64_t context_identity(void *context);
/* Whether a context that had this id has been destroyed or reset. Then what lived in it must not be
 * touched: on an H200 (driver 580.159) to query or destroy its streams crashes the process, and so
 * does to make it current. cuCtxGetId alone answers safely. */
bool context_is_gone(void *context, uint64_t identity);

/* Runs a few driver calls so that they can disturb nobody's capture: every query of ours happens
 * between these two. */
static inline int relaxed_enter(void) {
    /* CU_STREAM_CAPTURE_MODE_RELAXED; THREAD_LOCAL is not enough on a thread that itself captures
     */
    int mode = 2;
    return driver.exchange_capture_mode(&mode) == 0 ? mode : -1;
}
static inline void relaxed_leave(int mode) {
    if (mode >= 0) driver.exchange_capture_mode(&mode);
}

enum counter {
    POINTS_ARMED,
    POINTS_FIRED,
    POINTS_LEAKED,
    POINTS_STALE,       /* firings of a ticket that was no longer armed: ignored */
    POINTS_QUARANTINED, /* armed into a capture that began meanwhile; counted as leaked too */
    /* Python host functions that came after the exit gate had closed: not run */
    HOST_FUNCTIONS_LATE,
    WATCHER_PASSES,
    HANDLES_CREATED,
    HANDLES_DESTROYED,
    HANDLES_RELEASED,
    HANDLES_OPEN,
    HANDLES_RETIRED, /* closed and not destroyed, because another library has the handle too */
    HANDLES_LEAKED,  /* closed, and the driver has refused to destroy them */
    FUTURES_CREATED,
    FUTURES_DONE,
    FUTURES_FAILED,
    FUTURES_CANCELLED,
    FUTURES_DROPPED,
    WAITS_READY,       /* nothing to wait for */
    WAITS_SPUN,        /* ended in the waiting task's own polls */
    WAITS_BY_TIMER,    /* how often a wait was left to a timer of its loop */
    WAITS_WATCHED,     /* how often one was left to the watcher */
    WAITS_HANDED_BACK, /* how often the watcher handed one back to its task */
    EVENT_POLLS,       /* by the watcher */
    EVENT_PASSES,      /* in so many of its passes, or more: some find nothing due */
    /* made so far: they are recycled, so these follow the most that was in use at once */
    POINT_SLOTS,
    WAIT_RECORDS,
    HISTORIES, /* that exist now */
    COUNTERS,
};
extern _Atomic int64_t counters[COUNTERS];

int64_t now_ns(void); /* CLOCK_MONOTONIC */

/* An operation of several driver calls notes which of them has failed, if it is not the one that
 * its errors are named after. Each thread has its own note, and an operation that begins forgets
 * what was noted before. */
void failed_forget(void);
int failed_in(const char *call, int status); /* the status */
/* what was noted with this status, or NULL; forgets it */
const char *failed_call(int status);

/* a thread that takes no signals; 0, or an errno */
int thread_start(pthread_t *, void *(*run)(void *));
/* for the condition, or a few hundredths of a second */
void wait_briefly(pthread_cond_t *, pthread_mutex_t *);
int capture_refusal(void *stream); /* 0, RESULT_CAPTURING.., or the driver's error */

#endif
