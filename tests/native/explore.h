/* Runs a few threads of the real native code through all their interleavings. Used by
 * interleavings.c.
 *
 * gcc compiles the library's own files with -fsanitize=thread, which calls a function at each
 * access to memory, and these functions stand here in place of ThreadSanitizer's. So each atomic
 * operation, each lock and each read or write of an eventfd is a place at which another thread can
 * go on. The threads are coroutines of one thread, so that a schedule can be repeated exactly.
 *
 * Memory is sequentially consistent here. The library uses no weaker order for its atomics
 * (base.h), and for the rest this program checks, in each interleaving, that no two threads access
 * the same memory without an order between them (a data race). A weak compare-and-exchange never
 * fails without a reason.
 *
 * Interleavings that differ only in the order of independent operations give the same results, so
 * one of each such class is run: dynamic partial order reduction with source sets and sleep sets
 * (Abdulla, Aronis, Jonsson, Sagonas: "Optimal dynamic partial order reduction", POPL 2014).
 * Nothing else is left out: no bound on preemptions or on depth. These are no places to switch
 * threads: memory that one thread alone uses, or that all only read; memory whose values decide
 * nothing here (see is_statistics); and the inside of a locked section, which is one step, because
 * what it protects is free of races.
 */
#ifndef AIOSTREAM_EXPLORE_H
#define AIOSTREAM_EXPLORE_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "stress.h"

enum {
    THREADS = 5,
    STEPS = 4096,
    ACCESSES = 24,
    STACK = 1 << 18,
    LOCATIONS = 1 << 14,
    UNDO = 1 << 14,
    DESCRIPTORS = 64
};
enum kind {
    LOAD,
    STORE,
    SWAP,
    LOCK,
    WAKE,
    READ_WAKE,
    PUSHES,
    HAS_PUSHED,
    REOPENS,
    WAITS,
    PLAIN_READ,
    PLAIN_WRITE
};
static const char *const kind_names[] = {"loads",
                                         "stores",
                                         "swaps",
                                         "locks",
                                         "writes the eventfd",
                                         "reads the eventfd",
                                         "begins to push",
                                         "has pushed",
                                         "opens the queue",
                                         "waits",
                                         "reads",
                                         "writes"};

struct scenario {
    const char *name;
    void (*begin)(void); /* before the threads, and `end` after them: alone */
    struct {
        const char *name;
        void (*run)(void);
    } threads[THREADS];
    void (*end)(void);
    bool with_parking; /* the number of pending points matters, because the watcher reads it */
};

/* --- coroutines --- */

struct thread {
    jmp_buf top, here;
    const char *name;
    void (*run)(void);
    bool done;
    int locks;                /* how many it holds: it is not interrupted */
    const int64_t *waits_for; /* it cannot go on before this has changed */
    int64_t waited_value;
    /* what it has seen of the others, by the rules of C11: only release and acquire count */
    unsigned clock[THREADS + 1];
};
static struct thread threads[THREADS + 1]; /* the last one is for what is alone */
static struct thread *const alone = &threads[THREADS];
static struct thread *current;
static jmp_buf scheduler;
static char *stacks;
static ucontext_t starting, starter;
static const struct scenario *scenario;

static void yield(void) {
    if (_setjmp(current->here) == 0) _longjmp(scheduler, 1);
}

static void coroutine(void) {
    struct thread *self = current;
    /* once; from then on each run begins by a jump to here */
    if (_setjmp(self->top) == 0) swapcontext(&starting, &starter);
    current->run();
    current->done = true;
    _longjmp(scheduler, 1);
}

static void make_coroutines(void) {
    stacks = mmap(NULL, (THREADS + 1) * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    REQUIRE(stacks != MAP_FAILED, "no memory for stacks");
    for (int i = 0; i <= THREADS; i++) {
        current = &threads[i];
        getcontext(&starting);
        starting.uc_stack.ss_sp = stacks + i * STACK;
        starting.uc_stack.ss_size = STACK;
        starting.uc_link = NULL;
        makecontext(&starting, coroutine, 0);
        swapcontext(&starter, &starting);
    }
    current = NULL;
}

static void go_on(struct thread *thread, jmp_buf where) {
    current = thread;
    if (_setjmp(scheduler) == 0) _longjmp(where, 1);
    current = NULL;
}

static void run_alone(void (*function)(void)) {
    alone->run = function;
    alone->done = false;
    go_on(alone, alone->top);
    REQUIRE(alone->done, "a thread that is alone cannot wait");
}

static bool on_a_stack(const void *address) {
    return (const char *)address >= stacks &&
           (const char *)address < stacks + (THREADS + 1) * STACK;
}

/* --- memory as it was --- */

static struct {
    void *address;
    uint64_t value;
    int size;
} undo_log[UNDO];
static int undo_count;
/* the counts of the eventfds; nothing is asked of the kernel */
static int64_t readable[DESCRIPTORS];
/* the eventfd of each queue, by the queue's number */
static int queue_descriptors[DESCRIPTORS], queue_descriptor_count;
static struct queue *queues_made[DESCRIPTORS]; /* likewise */

static void note_old(void *address, int size) {
    if (!current || on_a_stack(address)) return;
    REQUIRE(undo_count < UNDO && size <= 8, "more is written than can be restored");
    undo_log[undo_count].address = address;
    undo_log[undo_count].size = size;
    memcpy(&undo_log[undo_count++].value, address, (size_t)size);
}

static void undo_all(void) {
    while (undo_count) {
        undo_count--;
        memcpy(undo_log[undo_count].address, &undo_log[undo_count].value,
               (size_t)undo_log[undo_count].size);
    }
}

/* --- steps and their order --- */

struct access {
    uintptr_t address;
    bool write;
    enum kind kind;
    void *where; /* in the code */
};
struct step { /* of one thread: an access, and what follows until its next */
    int thread, count;
    struct access accesses[ACCESSES];
    /* how many steps of this run, from the first, are before it, for each thread's latest */
    int clock[THREADS];
};
struct point { /* of the tree of schedules: the state before a step */
    struct step step;
    unsigned enabled, tried, wanted, asleep; /* sets of threads */
    struct step of[THREADS];                 /* the steps of those that are asleep or were tried */
};
static struct point path[STEPS];
static int depth, replayed;

struct location {
    uintptr_t address;              /* 0: none */
    int64_t run;                    /* the rest is of this run */
    int write, reads[THREADS];      /* the latest steps, plus one */
    unsigned released[THREADS + 1]; /* what whoever acquires it has seen */
    unsigned plain_write, plain_writer, plain_reads[THREADS + 1];
    unsigned readers, writers; /* sets of threads, of all runs */
    enum { STATISTICS = 1, DECIDES } known;
};
extern const size_t queue_size; /* these three of interleaved.c */
bool is_lag(const struct queue *, const void *address);
bool is_pending(const void *address);
static struct location locations[LOCATIONS];
static int64_t runs, complete_runs, all_runs;
/* memory is used by more threads than was known: what was explored so far is void */
static bool found_shared;

static struct location *location_of(uintptr_t address) {
    size_t place = (address >> 3 ^ address << 9 ^ address >> 15) * 0x9e3779b97f4a7c15ull >> 50;
    while (locations[place].address != address) {
        if (!locations[place].address) {
            locations[place].address = address;
            break;
        }
        place = (place + 1) % LOCATIONS;
    }
    struct location *location = &locations[place];
    if (location->run != all_runs) {
        location->run = all_runs;
        location->write = 0;
        memset(location->reads, 0, sizeof location->reads);
        memset(location->released, 0, sizeof location->released);
        location->plain_write = location->plain_writer = 0;
        memset(location->plain_reads, 0, sizeof location->plain_reads);
    }
    return location;
}

static int number_of(const struct thread *thread) { return (int)(thread - threads); }

/* The lines of the code, if there is an addr2line. */
static void show_path(void) {
    char command[256];
    for (int i = 0; i < depth + (path[depth].step.count > 0); i++)
        for (int j = 0; j < path[i].step.count; j++) {
            struct access *access = &path[i].step.accesses[j];
            fprintf(stderr, "  %-16s %-20s %#lx  ", threads[path[i].step.thread].name,
                    kind_names[access->kind], (unsigned long)access->address);
            snprintf(command, sizeof command,
                     "addr2line -e /proc/%d/exe -f -s %#lx 2>/dev/null | tr '\\n' ' ' >&2",
                     getpid(), (unsigned long)access->where - 1);
            if (system(command) != 0) fprintf(stderr, "%p", access->where);
            fprintf(stderr, "\n");
        }
}

#define HOLDS(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) violated(__VA_ARGS__);                                                   \
    } while (0)
static void violated(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "%s: ", scenario->name);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\nin interleaving %lld:\n", (long long)runs);
    va_end(arguments);
    show_path();
    _Exit(1);
}

static bool is_shared(const struct location *location) {
    unsigned all = location->readers | location->writers;
    return location->writers && (all & (all - 1));
}

/* Memory whose values decide nothing in this scenario. */
static bool is_statistics(const void *address) {
    if ((char *)address >= (char *)counters && (char *)address < (char *)(counters + COUNTERS))
        return true;
    for (int i = 0; i < queue_descriptor_count; i++) {
        const struct queue *queue = queues_made[i];
        if ((char *)address >= (char *)queue && (char *)address < (char *)queue + queue_size)
            return is_lag(queue, address);
    }
    return !scenario->with_parking && is_pending(address);
}

/* Whether an access is a place to switch threads. Memory that is found to be shared only now voids
 * what was explored. */
static bool is_visible(const void *address, bool write) {
    if (!current || current == alone || on_a_stack(address)) return false;
    struct location *location = location_of((uintptr_t)address);
    if (!location->known) location->known = is_statistics(address) ? STATISTICS : DECIDES;
    if (location->known == STATISTICS) return false;
    bool before = is_shared(location);
    *(write ? &location->writers : &location->readers) |= 1u << number_of(current);
    if (!before && is_shared(location)) found_shared = true;
    return before;
}

static void add_access(const void *address, enum kind kind, bool write, void *where) {
    struct step *step = &path[depth].step;
    REQUIRE(step->count < ACCESSES, "too many accesses in one step");
    step->accesses[step->count++] = (struct access){(uintptr_t)address, write, kind, where};
}

/* Before an access that is visible: others may go first. */
static void may_switch(void) {
    if (current->locks == 0) yield();
}

static void join(unsigned *into, const unsigned *from) {
    for (int i = 0; i <= THREADS; i++)
        if (from[i] > into[i]) into[i] = from[i];
}

static void acquire(const void *address) {
    join(current->clock, location_of((uintptr_t)address)->released);
}
static void release(const void *address, bool keep) {
    struct location *location = location_of((uintptr_t)address);
    if (!keep) memset(location->released, 0, sizeof location->released);
    join(location->released, current->clock);
    current->clock[number_of(current)]++;
}

/* A plain access: no other thread may be able to make one at the same time. */
static void plain(void *address, bool write, int size, void *where) {
    if (write) note_old(address, size);
    if (!current || current == alone || on_a_stack(address)) return;
    struct location *location = location_of((uintptr_t)address);
    int self = number_of(current);
    int writer = (int)location->plain_writer;
    bool ordered =
        !location->plain_write || writer == self || current->clock[writer] >= location->plain_write;
    for (int i = 0; write && i < THREADS; i++)
        ordered &= i == self || current->clock[i] >= location->plain_reads[i];
    if (!ordered) {
        add_access(address, write ? PLAIN_WRITE : PLAIN_READ, write, where);
        violated("a data race at %p", address);
    }
    if (write)
        location->plain_write = current->clock[self], location->plain_writer = (unsigned)self;
    else location->plain_reads[self] = current->clock[self];
}

/* --- what gcc calls --- */

#define HOOK __attribute__((used, noinline)) /* its caller is the line that is shown */
#define HERE __builtin_return_address(0)
typedef unsigned __int128 uint128;

HOOK void __tsan_init(void) {}
HOOK void __tsan_func_entry(void *caller) { (void)caller; }
HOOK void __tsan_func_exit(void) {}
HOOK void __tsan_read_range(void *address, long size) {
    if (size <= 8) plain(address, false, (int)size, HERE);
}
HOOK void __tsan_write_range(void *address, long size) {
    for (long i = 0; i < size; i += 8)
        note_old((char *)address + i, (int)(size - i < 8 ? size - i : 8));
}
#define PLAIN(size)                                                                                \
    HOOK void __tsan_read##size(void *address) { plain(address, false, size, HERE); }              \
    HOOK void __tsan_write##size(void *address) { plain(address, true, size, HERE); }              \
    HOOK void __tsan_unaligned_read##size(void *address) { plain(address, false, size, HERE); }    \
    HOOK void __tsan_unaligned_write##size(void *address) { plain(address, true, size, HERE); }
PLAIN(1) PLAIN(2) PLAIN(4) PLAIN(8) HOOK void __tsan_read16(void *address) {
    __tsan_read_range(address, 16);
}
HOOK void __tsan_write16(void *address) { __tsan_write_range(address, 16); }

static bool has_others(const void *address) {
    return current && current != alone && !on_a_stack(address);
}
static void after_load(const void *address, bool visible, void *where) {
    if (visible) add_access(address, LOAD, false, where);
    if (has_others(address)) acquire(address);
}
static void after_write(const void *address, bool visible, bool read, void *where) {
    if (visible) add_access(address, read ? SWAP : STORE, true, where);
    if (!has_others(address)) return;
    if (read) acquire(address);
    release(address, read);
}
#define CHANGE(bits, name, expression)                                                             \
    HOOK uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *address,             \
                                                     uint##bits##_t value, int order) {            \
        (void)order;                                                                               \
        bool visible = is_visible((void *)address, true);                                          \
        if (visible) may_switch();                                                                 \
        note_old((void *)address, bits / 8);                                                       \
        uint##bits##_t before = *address;                                                          \
        *address = expression;                                                                     \
        after_write((void *)address, visible, true, HERE);                                         \
        return before;                                                                             \
    }
#define ATOMIC(bits)                                                                               \
    HOOK uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *address,         \
                                                   int order) {                                    \
        (void)order;                                                                               \
        bool visible = is_visible((void *)address, false);                                         \
        if (visible) may_switch();                                                                 \
        after_load((void *)address, visible, HERE);                                                \
        return *address;                                                                           \
    }                                                                                              \
    HOOK void __tsan_atomic##bits##_store(volatile uint##bits##_t *address, uint##bits##_t value,  \
                                          int order) {                                             \
        (void)order;                                                                               \
        bool visible = is_visible((void *)address, true);                                          \
        if (visible) may_switch();                                                                 \
        note_old((void *)address, bits / 8);                                                       \
        *address = value;                                                                          \
        after_write((void *)address, visible, false, HERE);                                        \
    }                                                                                              \
    CHANGE(bits, exchange, value)                                                                  \
    CHANGE(bits, fetch_add, before + value)                                                        \
    CHANGE(bits, fetch_sub, before - value)                                                        \
    CHANGE(bits, fetch_or, before | value)                                                         \
    CHANGE(bits, fetch_and, before &value)                                                         \
    HOOK int __tsan_atomic##bits##_compare_exchange_strong(                                        \
        volatile uint##bits##_t *address, uint##bits##_t *expected, uint##bits##_t value,          \
        int order, int failed) {                                                                   \
        (void)order, (void)failed;                                                                 \
        bool visible = is_visible((void *)address, true);                                          \
        if (visible) may_switch();                                                                 \
        if (*address != *expected) {                                                               \
            *expected = *address;                                                                  \
            after_load((void *)address, visible, HERE);                                            \
            return 0;                                                                              \
        }                                                                                          \
        note_old((void *)address, bits / 8);                                                       \
        *address = value;                                                                          \
        after_write((void *)address, visible, true, HERE);                                         \
        return 1;                                                                                  \
    }                                                                                              \
    HOOK int __tsan_atomic##bits##_compare_exchange_weak(                                          \
        volatile uint##bits##_t *address, uint##bits##_t *expected, uint##bits##_t value,          \
        int order, int failed)                                                                     \
        __attribute__((alias("__tsan_atomic" #bits "_compare_exchange_strong")));
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

/* --- what the linker puts in their place --- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
    (void)clock;
    *time = (struct timespec){.tv_sec = 1000};
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
    if (!current || current == alone) return 0;
    if (current->locks == 0 && is_visible(mutex, true)) {
        yield();
        add_access(mutex, LOCK, true, HERE);
    }
    acquire(mutex);
    current->locks++;
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
    if (!current || current == alone) return 0;
    release(mutex, true);
    if (current->locks) current->locks--;
    return 0;
}

/* Lets others go on until *counter has changed. */
static void wait_for_change(const int64_t *counter, void *where) {
    current->waits_for = counter;
    current->waited_value = *counter;
    yield();
    current->waits_for = NULL;
    add_access(counter, WAITS, false, where);
}

static int64_t broadcasts; /* of the one condition variable that there is, handles.c's */
/* Its time is never up: whoever waits must be woken. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until) {
    (void)condition, (void)until;
    add_access(&broadcasts, LOAD, false, HERE);
    release(mutex, true);
    int locks = current->locks;
    current->locks = 0;
    wait_for_change(&broadcasts, HERE);
    current->locks = locks;
    add_access(mutex, LOCK, true, HERE);
    acquire(mutex);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition) {
    (void)condition;
    if (!current || current == alone) return 0;
    add_access(&broadcasts, STORE, true, HERE); /* under its lock, and so in one step with that */
    note_old(&broadcasts, 8);
    broadcasts++;
    return 0;
}

int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags) {
    int descriptor = __real_eventfd(value, flags);
    REQUIRE(descriptor >= 0 && descriptor < DESCRIPTORS, "no eventfd");
    queue_descriptors[queue_descriptor_count++] = descriptor;
    return descriptor;
}

ssize_t __wrap_write(int descriptor, const void *data, size_t size) {
    (void)data;
    bool visible = is_visible(&readable[descriptor], true);
    if (visible) may_switch(), add_access(&readable[descriptor], WAKE, true, HERE);
    note_old(&readable[descriptor], 8);
    readable[descriptor]++;
    return (ssize_t)size;
}

ssize_t __wrap_read(int descriptor, void *data, size_t size) {
    (void)data;
    bool visible = is_visible(&readable[descriptor], true);
    if (visible) may_switch(), add_access(&readable[descriptor], READ_WAKE, true, HERE);
    note_old(&readable[descriptor], 8);
    bool was = readable[descriptor] > 0;
    readable[descriptor] = 0;
    errno = EAGAIN;
    return was ? (ssize_t)size : -1;
}

/* A queue is in use by whoever pushes to it: then it may not be recycled. Uses do not depend on
 * each other, but the look at them does: so these are the "reads", and that is the "write". */
static int64_t pushing[DESCRIPTORS];
static void note_use(int64_t *use, int change, enum kind kind, void *where) {
    bool visible = is_visible(use, change == 0);
    if (visible) may_switch(), add_access(use, kind, change == 0, where);
    note_old(use, 8);
    *use += change;
}

void __real_queue_push(struct queue *queue, struct queue_entry *entry);
void __wrap_queue_push(struct queue *queue, struct queue_entry *entry) {
    int64_t *use = &pushing[queue_index(queue)];
    note_use(use, 1, PUSHES, HERE);
    __real_queue_push(queue, entry);
    note_use(use, -1, HAS_PUSHED, HERE);
}

struct queue *__real_queue_open(void);
struct queue *__wrap_queue_open(void) {
    struct queue *queue = __real_queue_open();
    queues_made[queue_index(queue)] = queue;
    int64_t *use = &pushing[queue_index(queue)];
    note_use(use, 0, REOPENS, HERE);
    HOLDS(*use == 0, "a queue was recycled while a thread pushes to it");
    return queue;
}

/* Without a limit in time. Of the timer's descriptor it is not woken here. */
int __wrap_ppoll(struct pollfd *descriptors, unsigned long count, const struct timespec *timeout,
                 const void *signals) {
    REQUIRE(count == 2 && !timeout && !signals, "another sleep than that of a parked watcher");
    const int64_t *ready = &readable[descriptors->fd];
    if (is_visible(ready, false)) may_switch(), add_access(ready, LOAD, false, HERE);
    if (*ready == 0) wait_for_change(ready, HERE);
    descriptors->revents = POLLIN;
    return 1;
}

static bool queue_is_readable(struct queue *queue) {
    return readable[queue_descriptors[queue_index(queue)]] > 0;
}

/* --- all interleavings --- */

static bool conflict(const struct step *left, const struct step *right) {
    for (int i = 0; i < left->count; i++)
        for (int j = 0; j < right->count; j++)
            if (left->accesses[i].address == right->accesses[j].address &&
                (left->accesses[i].write || right->accesses[j].write))
                return true;
    return false;
}

static bool is_before(int step, const struct step *other) {
    return other->clock[path[step].step.thread] > step;
}

/* The threads that can make the first step of what follows `from` without being after it, up to and
 * with the last step. */
static unsigned first_steps(int from, int last) {
    unsigned first = 0, met = 0;
    static int kept[STEPS];
    int count = 0;
    for (int i = from + 1; i <= last; i++) {
        struct step *step = &path[i].step;
        if (i < last && is_before(from, step)) continue;
        bool free = !(met & 1u << step->thread);
        for (int j = 0; free && j < count; j++) free = !is_before(kept[j], step);
        if (free) first |= 1u << step->thread;
        met |= 1u << step->thread;
        kept[count++] = i;
    }
    return first;
}

/* The step at `depth` was made: which steps come before it, and which of these could also come
 * after it. */
static void order_step(bool find_races) {
    struct step *step = &path[depth].step;
    int self = step->thread, candidates[ACCESSES * (THREADS + 1)], count = 0, previous = -1;
    for (int i = depth - 1; i >= 0 && previous < 0; i--)
        if (path[i].step.thread == self) previous = i;
    memset(step->clock, 0, sizeof step->clock);
    if (previous >= 0) memcpy(step->clock, path[previous].step.clock, sizeof step->clock);
    for (int i = 0; i < step->count; i++) {
        struct access *access = &step->accesses[i];
        struct location *location = location_of(access->address);
        if (location->write) candidates[count++] = location->write - 1;
        for (int j = 0; access->write && j < THREADS; j++)
            if (location->reads[j]) candidates[count++] = location->reads[j] - 1;
    }
    for (int i = 0; find_races && i < count; i++) {
        int early = candidates[i], other = path[early].step.thread;
        bool race = other != self && !(previous >= 0 && is_before(early, &path[previous].step));
        for (int j = 0; race && j < count; j++)
            race = candidates[j] == early || !is_before(early, &path[candidates[j]].step);
        /* not enabled: the earlier step is what let it go on */
        if (!race || !(path[early].enabled & 1u << self)) continue;
        unsigned first = first_steps(early, depth);
        if (first & path[early].wanted) continue;
        path[early].wanted |= first & 1u << self ? 1u << self : first & -first;
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < THREADS; j++)
            if (path[candidates[i]].step.clock[j] > step->clock[j])
                step->clock[j] = path[candidates[i]].step.clock[j];
    step->clock[self] = depth + 1;
    for (int i = 0; i < step->count; i++) {
        struct access *access = &step->accesses[i];
        struct location *location = location_of(access->address);
        if (!access->write) {
            location->reads[self] = depth + 1;
            continue;
        }
        location->write = depth + 1;
        memset(location->reads, 0, sizeof location->reads);
    }
}

static unsigned enabled_threads(int *unfinished) {
    unsigned enabled = 0;
    *unfinished = 0;
    for (int i = 0; i < THREADS; i++) {
        if (threads[i].done) continue;
        ++*unfinished;
        if (!threads[i].waits_for || *threads[i].waits_for != threads[i].waited_value)
            enabled |= 1u << i;
    }
    return enabled;
}

/* A new point of the path: who is asleep there, and who goes first. False: all who could go have
 * been explored elsewhere. */
static bool choose(struct point *point, unsigned enabled) {
    point->tried = point->asleep = 0;
    if (depth > 0) {
        struct point *parent = &path[depth - 1];
        unsigned candidates = (parent->asleep | parent->tried) & ~(1u << parent->step.thread);
        for (int i = 0; i < THREADS; i++) {
            if (!(candidates & 1u << i) || conflict(&parent->of[i], &parent->step)) continue;
            point->asleep |= 1u << i;
            point->of[i] = parent->of[i];
        }
    }
    unsigned free = enabled & ~point->asleep;
    if (!free) return false;
    unsigned same = depth > 0 ? 1u << path[depth - 1].step.thread : 0;
    point->step.thread = __builtin_ctz(free & same ? free & same : free);
    point->wanted = 1u << point->step.thread;
    return true;
}

/* One run: along the path as far as it is given, then on. */
static void run_once(void) {
    int unfinished;
    all_runs++;
    memset(pushing, 0, sizeof pushing);
    run_alone(scenario->begin);
    for (depth = 0; depth < THREADS; depth++) {
        struct thread *thread = &threads[depth];
        memset(thread->clock, 0, sizeof thread->clock);
        thread->clock[depth] = 1;
        thread->name = scenario->threads[depth].name;
        thread->run = scenario->threads[depth].run;
        thread->done = !thread->run;
        thread->locks = 0;
        thread->waits_for = NULL;
    }
    depth = 0;
    path[0].step.count = 0;
    for (int i = 0; i < THREADS; i++) /* to their first access that others can see */
        if (!threads[i].done) go_on(&threads[i], threads[i].top);
    unsigned enabled = enabled_threads(&unfinished);
    for (depth = 0; unfinished; depth++) {
        REQUIRE(depth + 1 < STEPS, "%s does not end", scenario->name);
        struct point *point = &path[depth];
        point->step.count = 0;
        HOLDS(enabled, "all threads wait: nothing wakes them");
        if (depth >= replayed) {
            if (!choose(point, enabled)) return;
            point->enabled = enabled;
        }
        REQUIRE(point->enabled == enabled, "%s is not deterministic", scenario->name);
        struct thread *thread = &threads[point->step.thread];
        path[depth + 1].step.count = 0;
        go_on(thread, thread->here);
        order_step(depth >= replayed - 1);
        enabled = enabled_threads(&unfinished);
    }
    path[depth].step.count = 0;
    complete_runs++;
    run_alone(scenario->end);
}

/* To the deepest point at which another thread should go first; false: there is none. */
static bool turn_back(void) {
    while (depth > 0) {
        struct point *point = &path[--depth];
        point->of[point->step.thread] = point->step;
        point->tried |= 1u << point->step.thread;
        unsigned left = point->wanted & ~point->tried & ~point->asleep;
        if (!left) continue;
        point->step.thread = __builtin_ctz(left);
        replayed = depth + 1;
        return true;
    }
    return false;
}

static void explore(const struct scenario *which) {
    scenario = which;
    memset(locations, 0, sizeof locations);
    do {
        found_shared = false;
        runs = complete_runs = replayed = 0;
        do {
            runs++;
            run_once();
            undo_all();
        } while (!found_shared && turn_back());
    } while (found_shared);
    printf("%-64s %8lld interleavings\n", scenario->name, (long long)complete_runs);
    fflush(stdout);
}

#endif
