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

#include "explore_steps.h"

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
/* Its time is never up, so a thread that waits must be woken. */
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

/* A thread that pushes to a queue uses it, so the queue may not be recycled. Uses do not depend on
 * each other, but a read of them depends on each. So these are the "reads", and that is the
 * "write". */
static int64_t pushing[DESCRIPTORS];
static void note_use(int64_t *use, int change, enum kind kind, void *where) {
    bool visible = is_visible(use, change == 0);
    if (visible) may_switch(), add_access(use, kind, change == 0, where);
    note_old(use, 8);
    *use += change;
}

void __real_queue_push(struct queue *queue, struct queue_entry *entry);
void __wrap_queue_push(struct queue *queue, struct queue_entry *entry) {
    int64_t *use = &pushing[queue->index];
    note_use(use, 1, PUSHES, HERE);
    __real_queue_push(queue, entry);
    note_use(use, -1, HAS_PUSHED, HERE);
}

struct queue *__real_queue_open(void);
struct queue *__wrap_queue_open(void) {
    struct queue *queue = __real_queue_open();
    queues_made[queue->index] = queue;
    int64_t *use = &pushing[queue->index];
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
    return readable[queue_descriptors[queue->index]] > 0;
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
