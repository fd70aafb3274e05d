/* The driver's table, the counters, the clock, and the question that every enqueue asks: does this
 * stream capture? */
#include "base.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

struct driver_calls driver;
_Atomic int64_t counters[COUNTERS];

int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static _Thread_local struct {
    const char *call;
    int status;
} failed;

void failed_forget(void) { failed.call = NULL; }

int failed_in(const char *call, int status) {
    if (status != CUDA_SUCCESS && status != CUDA_NOT_READY) {
        failed.call = call;
        failed.status = status;
    }
    return status;
}

const char *failed_call(int status) {
    const char *call = failed.status == status ? failed.call : NULL;
    failed.call = NULL;
    return call;
}

/* A thread of the library takes no signals, because it would take them from a thread of the program
 * that waits in sigwait or on a signalfd, and it would die of a signal that all others block. The
 * signals of faults stay open, because they are meant for the thread itself. */
int thread_start(pthread_t *thread, void *(*run)(void *)) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    /* a new thread has the mask of the thread that makes it */
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void descriptor_wake(int descriptor) {
    uint64_t one = 1;
    /* EAGAIN means that the counter is full, so the reader is awake. EINTR is retried. */
    while (write(descriptor, &one, sizeof one) < 0 && errno == EINTR) continue;
}

void descriptor_read(int descriptor) {
    uint64_t ignored;
    while (read(descriptor, &ignored, sizeof ignored) < 0 && errno == EINTR) continue;
}

int capture_refusal(void *stream) {
    int capturing = 0;
    int status = driver.stream_is_capturing(stream, &capturing);
    /* 906: the legacy stream */
    if (status >= CUDA_CAPTURE_FIRST && status <= CUDA_CAPTURE_LAST) return -status;
    if (status != CUDA_SUCCESS) return failed_in("cuStreamIsCapturing", status);
    /* 1, active: -900. 2, invalidated: -901. */
    return capturing ? RESULT_CAPTURING - (capturing - 1) : 0;
}

int context_push(void *context) { return failed_in("cuCtxPushCurrent", driver.ctx_push(context)); }

void context_pop(void) {
    void *popped;
    driver.ctx_pop(&popped);
}

uint64_t context_identity(void *context) {
    uint64_t identity = 0;
    return driver.ctx_get_id(context, &identity) == CUDA_SUCCESS ? identity : 0;
}

bool says_gone(int status) {
    return status == CUDA_INVALID_CONTEXT || status == CUDA_INVALID_HANDLE ||
           status == CUDA_CONTEXT_IS_DESTROYED;
}

bool context_is_gone(void *context, uint64_t identity) {
    uint64_t now = 0;
    if (!context || !identity) return false;
    int status = driver.ctx_get_id(context, &now);
    return status == CUDA_SUCCESS ? now != identity : says_gone(status);
}
