/* Fatal codes, and the end of the process.
 *
 * Whatever thread first sees a code of the driver, native or Python, calls failure_note before any
 * other code sees it. If the code is fatal and the program has called exit_on_context_failed, the
 * process ends here, at once or after its grace period. Otherwise the code is noted once, and the
 * janitor is woken, which takes the note (failure_take) and has the listeners called. A stall
 * (stalls.c) may end the process too.
 *
 * After a fatal code every CUDA call of the process fails, so a server would answer errors from
 * then on. The end needs no GIL and no Python, because Python may be blocked in a call that never
 * returns. The lock is a leaf, and no driver call is made here.
 */
#define _GNU_SOURCE /* dprintf */
#include "failures.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const struct fatal_code fatal_codes[] = {
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"},
    {226, "CUDA_ERROR_CONTAINED"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {710, "CUDA_ERROR_ASSERT"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"},
    {718, "CUDA_ERROR_INVALID_PC"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE"},
    {0, NULL},
};

/* a leaf; it guards all of these but the last two */
static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;
/* the call that first answered a code, by the code's place in the table; "": not met */
static char calls[MAX_FATAL_CODES][48];
/* a bit for each code that failure_take has yet to give */
static uint32_t unreported;
static struct ending {
    pid_t process; /* The process that asked for it. A process that it forks has not. 0: none. */
    int status, signal;
    int64_t grace_ns;
    bool stalled;
    int number; /* of the latest exit_arm */
} ending;
static bool has_begun_to_end;              /* then only `process` above may change */
static _Atomic int output = STDERR_FILENO; /* the descriptor of what is said here */
static void (*_Atomic failure_listener)(void);
static _Atomic int expecting;

static int place_of(int code) {
    for (int i = 0; fatal_codes[i].code; i++)
        if (fatal_codes[i].code == code) return i;
    return -1;
}

bool failure_is_fatal(int code) { return place_of(code) >= 0; }

/* --- the end --- */

static const int64_t LINE_NS = 300000000; /* the process waits for stderr no longer */

static void *end_after_grace(void *unused) {
    (void)unused;
    int64_t ns = ending.grace_ns ? ending.grace_ns : LINE_NS;
    struct timespec left = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (nanosleep(&left, &left) < 0) continue;
    _exit(ending.status);
}

/* The process must also end if stderr is a full pipe that no process reads. */
void failure_say(const char *form, ...) {
    struct pollfd out = {.fd = output, .events = POLLOUT};
    va_list values;
    va_start(values, form);
    /* POLLERR: the pipe is closed, and a write might raise SIGPIPE */
    if (poll(&out, 1, 100) == 1 && out.revents == POLLOUT) vdprintf(output, form, values);
    va_end(values);
}

/* Called under failure_lock, so that no other thread learns of the failure before the process ends.
 * It returns only for a grace period. */
static void end_process(const char *what, const char *stacks) {
    if (!ending.process || ending.process != getpid() || has_begun_to_end) return;
    has_begun_to_end = true;
    /* Before the write of the line, which may block, this makes the thread that ends the process in
     * any case. It is a thread of its own, because every other thread of the process may hang in
     * the driver, or wait for one that hangs. */
    pthread_t thread;
    bool ends = thread_start(&thread, end_after_grace) == 0;
    if (ends) pthread_detach(thread);
    char when[48] = "now";
    if (ending.grace_ns)
        snprintf(when, sizeof when, "in %.3g s at the latest", (double)ending.grace_ns / 1e9);
    failure_say(
        "aiostream: %s. Process %ld ends %s, with exit code %d (exit_on_context_failed).\n%s", what,
        (long)getpid(), when, ending.status, stacks);
    if (!ending.grace_ns || !ends) _exit(ending.status);
    if (ending.signal) kill(getpid(), ending.signal);
}

static void end_for_code(int place) {
    /* which says that one context was destroyed */
    if (fatal_codes[place].code == CUDA_CONTEXT_IS_DESTROYED) return;
    char what[160];
    snprintf(what, sizeof what, "%.47s reported %s (%d): the CUDA context is lost", calls[place],
             fatal_codes[place].name, fatal_codes[place].code);
    end_process(what, "");
}

int exit_arm(int status, int64_t grace_ns, int signal, bool stalled, int descriptor) {
    pthread_mutex_lock(&failure_lock);
    output = descriptor;
    int number = ending.number + 1;
    if (!has_begun_to_end) {
        if (!ending.process) failures_expect(1);
        ending = (struct ending){getpid(), status, signal, grace_ns, stalled, number};
    }
    for (int i = 0; fatal_codes[i].code; i++)
        if (calls[i][0]) end_for_code(i);
    pthread_mutex_unlock(&failure_lock);
    return number;
}

void exit_disarm(int number) {
    pthread_mutex_lock(&failure_lock);
    if (ending.process && (!number || number == ending.number)) {
        failures_expect(-1);
        ending.process = 0;
    }
    pthread_mutex_unlock(&failure_lock);
}

/* --- codes --- */

void failure_note(int code, const char *call) {
    int place = place_of(code);
    if (place < 0) return;
    pthread_mutex_lock(&failure_lock);
    bool first = !calls[place][0];
    if (first) snprintf(calls[place], sizeof calls[place], "%s", call);
    if (first) unreported |= 1u << place;
    end_for_code(place);
    pthread_mutex_unlock(&failure_lock);
    if (first) failures_call_listener();
}

int failure_take(const char **call) {
    pthread_mutex_lock(&failure_lock);
    int place = __builtin_ffs((int)unreported) - 1;
    unreported &= unreported - 1; /* without the first of them */
    pthread_mutex_unlock(&failure_lock);
    if (place < 0) return 0;
    *call = calls[place];
    return fatal_codes[place].code;
}

void failures_forget(void) {
    pthread_mutex_lock(&failure_lock);
    for (int i = 0; fatal_codes[i].code; i++) calls[i][0] = 0;
    unreported = 0;
    pthread_mutex_unlock(&failure_lock);
}

void failures_set_listener(void (*listener)(void)) { atomic_store(&failure_listener, listener); }
void failures_call_listener(void) {
    void (*listener)(void) = atomic_load(&failure_listener);
    if (listener) listener();
}
void failures_expect(int more) { atomic_fetch_add(&expecting, more); }
bool failures_expected(void) { return atomic_load(&expecting) > 0; }

void exit_if_stalled(const char *text, const char *stacks) {
    pthread_mutex_lock(&failure_lock);
    if (ending.stalled) end_process(text, stacks);
    pthread_mutex_unlock(&failure_lock);
}
