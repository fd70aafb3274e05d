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
