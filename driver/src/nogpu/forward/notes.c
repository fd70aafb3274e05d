/* The wrappers of functions that can block, and the notes that they leave.
 *
 * A wrapper runs within native code of others, perhaps under their locks. So it never takes the
 * GIL. While a call goes on, its note says which one. A thread of Python, the reader, looks at the
 * notes from time to time, and reads the Python line of a call that blocks. If a call has blocked
 * and its line is not read yet, the wrapper waits for the reader before it returns, because the
 * thread's frames stay as they are until then. It waits for a bounded time: the reader needs the
 * GIL, and the thread that has it may be waiting for a lock of the wrapper's caller. */
#define _GNU_SOURCE
#include "forward.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { WAITS, COPIES, STAGES, ALLOCATES, LOADS, ENQUEUES, BEGINS };
enum { NO_STREAM = -1, IN_CONFIG = -2 };

static const struct blocking {
    enum kind kind;
    int stream;
    const char *names;
} blocking[] = {
#define BLOCKS(kind, stream, names) {kind, stream, names},
#include "calls.h"
};

/* Twelve words hold the parameters of every function in calls.h. To pass more words than a function
 * takes is safe in the ABIs of Linux on x86-64 and aarch64: they are registers that it does not
 * read, and words of the stack that its caller cleans up. */
typedef uintptr_t word;
#define PARAMETERS                                                                                 \
    word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l
#define ARGUMENTS a, b, c, d, e, f, g, h, i, j, k, l
typedef int (*wrapped)(PARAMETERS);

static struct wrapper {
    const struct blocking *of;
    char *name;
    wrapped real;
} wrappers[512]; /* written once, under `lock`, before its address is given away */
static int wrapper_count;

/* What a thread's call is doing. Notes are never freed: the reader may read one at any time. The
 * note of a thread that has ended goes to a new one. */
struct note {
    /* Counts up at each begin and end of a call: odd while one goes on. Python reads it here. */
    _Atomic uint64_t call;
    struct note *next; /* written before the note is in `notes` */
    atomic_bool taken;
    bool is_python; /* of the thread alone */
    /* Of the call that goes on. The thread writes them while `call` is even. */
    _Atomic(pthread_t) thread;
    _Atomic(const struct wrapper *) wrapper;
    _Atomic word stream;
    _Atomic int64_t began;
    /* The calls that the reader has read, and that may return. Under `lock`. */
    uint64_t read, done;
};

static _Atomic(struct note *) notes;
/* initial-exec: a plain load. It is one pointer of the room that the C library keeps for this, and
 * this library is loaded before most others. */
static _Thread_local struct note *my_note __attribute__((tls_model("initial-exec")));
/* This thread is the reader now. Its own calls, as of a finalizer, must not wait for it. */
static _Thread_local bool reads __attribute__((tls_model("initial-exec")));
static pthread_key_t key; /* its destructor gives the note away */

/* What the reader gets: a call that goes on, or one that has ended. `struct Call` in Python. */
struct call {
    struct note *note;
    uint64_t number, thread, stream;
    const char *name;
    int64_t began, ended; /* CLOCK_MONOTONIC; 0: it goes on */
    void *frames;         /* what `capture` has returned */
    int kind;
};

#define NEVER INT64_MAX
/* Nanoseconds from which on a call has blocked: of one that always waits, and of all others. While
 * no call is asked for, the first is NEVER. */
static _Atomic int64_t limits[2] = {NEVER, NEVER};

static pthread_mutex_t lock; /* a leaf; guards the rest */
static pthread_cond_t for_reader, for_wrappers;
static struct call ended[256]; /* a ring, from `first` to `last` */
static uint64_t first, last;

enum { PATIENCE = 1000000000, INTERVAL = 2000000 }; /* nanoseconds */

/* Of Python. They need no GIL. `capture` returns what a thread that holds the GIL says of itself,
 * as a new reference, and NULL in any other thread. */
static int (*is_python)(void);
static void *(*capture)(void);

static bool is_on(void) { return atomic_load_explicit(&limits[0], memory_order_relaxed) != NEVER; }

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void wait_until(pthread_cond_t *condition, int64_t time) {
    struct timespec until = {time / 1000000000, time % 1000000000};
    pthread_cond_timedwait(condition, &lock, &until);
}

static void give_away(void *note) {
    my_note = NULL;
    atomic_store(&((struct note *)note)->taken, false);
}

/* This thread's note. NULL: there is no memory. */
static struct note *take_note(void) {
    struct note *note = atomic_load(&notes);
    bool free = false;
    while (note != NULL && !atomic_compare_exchange_strong(&note->taken, &free, true)) {
        note = note->next;
        free = false;
    }
    if (note == NULL) {
        note = calloc(1, sizeof *note);
        if (note == NULL) return NULL;
        atomic_store(&note->taken, true);
        note->next = atomic_load(&notes);
        while (!atomic_compare_exchange_weak(&notes, &note->next, note));
    }
    atomic_store(&note->thread, pthread_self());
    note->is_python = false;
    pthread_setspecific(key, note);
    return my_note = note;
}

static int64_t limit_of(const struct blocking *of) {
    return atomic_load_explicit(&limits[of->kind > COPIES], memory_order_relaxed);
}

static struct call call_of(struct note *note, uint64_t number) {
    const struct wrapper *wrapper = atomic_load(&note->wrapper);
    return (struct call){.note = note,
                         .number = number,
                         .thread = atomic_load(&note->thread),
                         .stream = atomic_load(&note->stream),
                         .name = wrapper->name,
                         .began = atomic_load(&note->began),
                         .kind = (int)wrapper->of->kind};
}

/* A call has blocked. Its thread reports that, and returns once the line is known. */
static void report(struct note *note, uint64_t number, int64_t end) {
    struct call call = call_of(note, number);
    call.ended = end;
    pthread_mutex_lock(&lock);
    if (last - first < sizeof ended / sizeof *ended) {
        call.frames = capture();
        ended[last++ % (sizeof ended / sizeof *ended)] = call;
    }
    pthread_cond_signal(&for_reader);
    int64_t until = now() + PATIENCE;
    while (call.frames == NULL && is_on() && now() < until && note->done != number)
        wait_until(&for_wrappers, until);
    pthread_mutex_unlock(&lock);
}

static __attribute__((noinline)) int pass_on(const struct wrapper *wrapper, PARAMETERS) {
    const struct blocking *of = wrapper->of;
    int64_t limit = limit_of(of);
    struct note *note = my_note != NULL ? my_note : take_note();
    if (note == NULL || reads) return wrapper->real(ARGUMENTS);
    if (!note->is_python) note->is_python = is_python();
    uint64_t number = atomic_load_explicit(&note->call, memory_order_relaxed);
    /* The second: within another call. */
    if (!note->is_python || number & 1) return wrapper->real(ARGUMENTS);

    const word words[] = {ARGUMENTS};
    word stream = (word)-1; /* none */
    if (of->stream >= 0) stream = words[of->stream];
    else if (of->stream == IN_CONFIG && a != 0) memcpy(&stream, (char *)a + 32, sizeof stream);
    /* The reader trusts these only if it reads the same odd number before and after them. So they
     * need no order among themselves, and each is one plain store. */
    atomic_store_explicit(&note->wrapper, wrapper, memory_order_relaxed);
    atomic_store_explicit(&note->stream, stream, memory_order_relaxed);
    int64_t began = now();
    atomic_store_explicit(&note->began, began, memory_order_relaxed);
    atomic_store_explicit(&note->call, ++number, memory_order_release);
    int code = wrapper->real(ARGUMENTS);
    int64_t end = now();
    if (end - began >= limit) report(note, number, end);
    atomic_store_explicit(&note->call, number + 1, memory_order_release);
    return code;
}

/* One wrapper for each row of `wrappers`: 512 of them, by three digits to the base of 8. */
#define WRAPPER(n)                                                                                 \
    static int wrapper_##n(PARAMETERS) {                                                           \
        if (!is_on()) return wrappers[0##n].real(ARGUMENTS); /* a jump */                          \
        return pass_on(&wrappers[0##n], ARGUMENTS);                                                \
    }
/* clang-format off */
#define EIGHT(of, n) of(n##0) of(n##1) of(n##2) of(n##3) of(n##4) of(n##5) of(n##6) of(n##7)
#define MORE(of, n) EIGHT(of, n##0) EIGHT(of, n##1) EIGHT(of, n##2) EIGHT(of, n##3) \
    EIGHT(of, n##4) EIGHT(of, n##5) EIGHT(of, n##6) EIGHT(of, n##7)
#define ALL(of) MORE(of, 0) MORE(of, 1) MORE(of, 2) MORE(of, 3) MORE(of, 4) MORE(of, 5) \
    MORE(of, 6) MORE(of, 7)
/* clang-format on */
ALL(WRAPPER)
#define ADDRESS(n) wrapper_##n,
static const wrapped addresses[] = {ALL(ADDRESS)};

function wrapper_of(const char *name, function real) {
    enum { COUNT = sizeof blocking / sizeof *blocking, MOST = sizeof wrappers / sizeof *wrappers };
    char sought[100];
    int of = 0, n = 0;
    snprintf(sought, sizeof sought, " %s ", name);
    while (of < COUNT && strstr(blocking[of].names, sought) == NULL) of++;
    if (of == COUNT) return real;
    pthread_mutex_lock(&lock);
    while (n < wrapper_count && wrappers[n].real != (wrapped)real) n++;
    if (n == wrapper_count && n < MOST) {
        wrappers[n] = (struct wrapper){&blocking[of], strdup(name), (wrapped)real};
        wrapper_count++;
    }
    pthread_mutex_unlock(&lock);
    return n < MOST ? (function)addresses[n] : real;
}

/* Notes the calls of a function as those of the driver's function of that name. */
EXPORT function nogpu_forward_wrap(const char *name, function real) {
    return wrapper_of(name, real);
}

/* --- for Python --- */

static void make_lock(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&for_reader, &monotonic);
    pthread_cond_init(&for_wrappers, &monotonic);
}

/* A forked child has no reader until Python starts one, and another thread may have held the lock
 * at the fork. */
static void forked(void) {
    make_lock();
    first = last;
    atomic_store(&limits[0], NEVER);
}

static __attribute__((constructor)) void loaded(void) {
    make_lock();
    pthread_key_create(&key, give_away);
    pthread_atfork(NULL, NULL, forked);
}

/* Called before the first call of nogpu_forward_limit. */
EXPORT void nogpu_forward_connect(int (*is_python_thread)(void), void *(*capture_frames)(void)) {
    is_python = is_python_thread;
    capture = capture_frames;
}

/* From now on, reports calls that take at least these nanoseconds. Negative: none. */
EXPORT void nogpu_forward_limit(int64_t waits, int64_t others) {
    atomic_store(&limits[0], waits < 0 ? NEVER : waits);
    atomic_store(&limits[1], others < 0 ? NEVER : others);
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&for_reader);
    pthread_cond_broadcast(&for_wrappers);
    pthread_mutex_unlock(&lock);
}

/* A call that goes on, has blocked, and has not been read. Its caller holds `lock`. */
static bool find_blocked(struct call *call) {
    int64_t time = now();
    for (struct note *note = atomic_load(&notes); note != NULL; note = note->next) {
        uint64_t number = atomic_load(&note->call);
        if (!(number & 1) || note->read == number) continue;
        *call = call_of(note, number);
        int64_t limit = limit_of(atomic_load(&note->wrapper)->of);
        if (limit != NEVER && time - call->began >= limit && atomic_load(&note->call) == number)
            return true;
    }
    return false;
}

/* Waits until there is a call for the reader. 0: no call is asked for any more. */
EXPORT int nogpu_forward_wait(void) {
    struct call call;
    pthread_mutex_lock(&lock);
    while (first == last && is_on() && !find_blocked(&call))
        wait_until(&for_reader, now() + INTERVAL);
    bool goes_on = is_on();
    pthread_mutex_unlock(&lock);
    return goes_on;
}

/* The next call that the reader has to read, if there is one. */
EXPORT int nogpu_forward_next(struct call *call) {
    pthread_mutex_lock(&lock);
    bool has_ended = first != last;
    if (has_ended) *call = ended[first++ % (sizeof ended / sizeof *ended)];
    bool blocks = !has_ended && find_blocked(call);
    if (blocks) call->note->read = call->number;
    pthread_mutex_unlock(&lock);
    reads = has_ended || blocks;
    return reads;
}

/* The call may return: the reader has read its line, and does no more in its thread. */
EXPORT void nogpu_forward_done(const struct call *call) {
    pthread_mutex_lock(&lock);
    if (call->note->done < call->number) call->note->done = call->number;
    pthread_cond_broadcast(&for_wrappers);
    pthread_mutex_unlock(&lock);
}
