/* What every native file stands on: the driver's functions, result codes, counters, the clock, and
 * questions about captures.
 *
 * The native part has two floors. This one, engine/, knows no Python and nothing of python/, the
 * other: nothing here takes the GIL or holds a Python object, because the driver's threads run it.
 * A header includes only headers of lower floors. A test holds that (tests/project/test_house.py).
 * No lock, native or Python's, is held across a call of the driver.
 *
 * Memory orders: every atomic of the native part is sequentially consistent, which is C11's
 * default. A few could be weaker, but no measurement has shown that this matters, and the proofs in
 * the comments are written for the strong order.
 */
#ifndef AIOSTREAM_BASE_H
#define AIOSTREAM_BASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Native code calls the driver by raw address, because cuda-bindings wraps the functions that it
 * gives to cuLaunchHostFunc and cuStreamAddCallback: its wrapper takes the GIL on the driver's
 * thread. native_bind() writes the table once, before any other call. Every thread reads it. */
typedef void (*host_function)(void *);
typedef void (*stream_callback)(void *stream, int status, void *data);

struct driver_calls {
#define CALL(field, name, version, parameters) int(*field) parameters;
#include "driver_calls.h"
};
extern struct driver_calls driver;

/* Results. 0 and positive numbers are the driver's own codes. */
enum {
    RESULT_CLOSED = -1, /* The handle was closed or released. Nothing was done. */
    /* A capture began between the check and the enqueue. The point is never used again. */
    RESULT_QUARANTINED = -2,
    RESULT_AWAITED = -3, /* The event cannot get a new handle, and something awaits the old one. */
    RESULT_NO_MEMORY = -4,
    RESULT_CAPTURING = -900, /* -900, -901, -906: refused before the stream was touched */
};
enum { CUDA_INVALID_CONTEXT = 201, CUDA_INVALID_HANDLE = 400, CUDA_CONTEXT_IS_DESTROYED = 709 };
enum { CUDA_LAUNCH_FAILED = 719 };
enum { CUDA_SUCCESS = 0, CUDA_INVALID_VALUE = 1, CUDA_NOT_READY = 600 };
enum { EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4 }; /* CU_EVENT_... */
enum { CUDA_CAPTURE_FIRST = 900, CUDA_CAPTURED_EVENT = 907, CUDA_CAPTURE_LAST = 908 };

/* What a firing says of its success. A host function brings no status. By the manual it never runs
 * after an error, but some drivers were reported to run it. So the code that delivers the firing
 * reads the context's health afterwards. */
enum { STATUS_UNKNOWN = 1 << 20 };

/* The id of a context. Unlike a handle, an id is never used again. 0: the driver does not say. */
uint64_t context_identity(void *context);
/* Whether the driver says so of a handle whose context was destroyed. */
bool says_gone(int status);
/* Whether the context that had this id has been destroyed or reset. If so, do not touch what lived
 * in it: on an H200 (driver 580.159) the process crashes if one of its streams is queried or
 * destroyed, or if it is made current. cuCtxGetId alone answers safely. */
bool context_is_gone(void *context, uint64_t identity);

/* The library makes its driver calls between these two, so that they cannot end a capture of
 * another thread or library. */
static inline int relaxed_enter(void) {
    /* CU_STREAM_CAPTURE_MODE_RELAXED. THREAD_LOCAL is not enough on a thread that itself
     * captures. */
    int mode = 2;
    return driver.exchange_capture_mode(&mode) == 0 ? mode : -1;
}
static inline void relaxed_leave(int mode) {
    if (mode >= 0) driver.exchange_capture_mode(&mode);
}

enum { STREAM_NAME = 96 }; /* the longest name of a stream, with its device */

enum counter {
#define COUNTER(name) name,
#include "counters.h"
    COUNTERS,
};
extern _Atomic int64_t counters[COUNTERS];

int64_t now_ns(void); /* CLOCK_MONOTONIC */
static const int64_t NEVER = INT64_MAX;
/* The power of two of a length in ns, for what is learnt by it. */
enum { LENGTH_BUCKETS = 40 };
static inline int bucket_of(int64_t length) {
    int bucket = 0;
    while (length > 1 && bucket < LENGTH_BUCKETS - 1) length >>= 1, bucket++;
    return bucket;
}

/* An operation of several driver calls notes which of them has failed, because the error is named
 * after another one. Each thread has its own note. An operation forgets the old note when it
 * begins. */
void failed_forget(void);
int failed_in(const char *call, int status); /* returns the status */
/* the call that was noted with this status, or NULL; forgets it */
const char *failed_call(int status);

int context_push(void *context); /* makes it current: 0, or the driver's code */
void context_pop(void);

/* Starts a thread that takes no signals. 0, or an errno. */
int thread_start(pthread_t *, void *(*run)(void *));
/* Makes the reader of an eventfd wake up, and reads one, or a timer. */
void descriptor_wake(int descriptor);
void descriptor_read(int descriptor);
int capture_refusal(void *stream); /* 0, RESULT_CAPTURING.., or the driver's error */

#endif
