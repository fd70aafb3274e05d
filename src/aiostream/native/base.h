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
#define CALL(field, name, version, parameters) int(*field) parameters;
#define NEWER(field, name, version, plain, parameters) int(*field) parameters;
#include "driver_calls.h"
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
    /* CU_STREAM_CAPTURE_MODE_RELAXED; THREAD_LOCAL is not enough on a thread that itself
     * captures */
    int mode = 2;
    return driver.exchange_capture_mode(&mode) == 0 ? mode : -1;
}
static inline void relaxed_leave(int mode) {
    if (mode >= 0) driver.exchange_capture_mode(&mode);
}

enum counter {
#define COUNTER(name) name,
#include "counters.h"
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
