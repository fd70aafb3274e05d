/* The driver's table, the counters, the clock, and the one question that every enqueue asks: does this stream capture? */
#include "base.h"

#include <time.h>

struct driver_calls driver;
_Atomic int64_t counters[COUNTERS];

int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

int capture_refusal(void *stream) {
    int capturing = 0;
    int status = driver.stream_is_capturing(stream, &capturing);
    if (status >= CUDA_CAPTURE_FIRST && status <= CUDA_CAPTURE_LAST) return -status; /* 906: the legacy stream */
    if (status != CUDA_SUCCESS) return status;
    return capturing ? RESULT_CAPTURING - (capturing - 1) : 0; /* 1 active: -900; 2 invalidated: -901 */
}

uint64_t context_identity(void *context) {
    uint64_t identity = 0;
    return driver.ctx_get_id(context, &identity) == CUDA_SUCCESS ? identity : 0;
}

bool context_is_gone(void *context, uint64_t identity) {
    uint64_t now = 0;
    if (!context || !identity) return false;
    int status = driver.ctx_get_id(context, &now);
    if (status == CUDA_SUCCESS) return now != identity;
    return status == CUDA_INVALID_CONTEXT || status == CUDA_INVALID_HANDLE || status == CUDA_CONTEXT_IS_DESTROYED;
}
