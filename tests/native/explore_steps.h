/* What explore.h stands on: the coroutines, the memory that is put back, and the order of steps. */
#ifndef AIOSTREAM_EXPLORE_STEPS_H
#define AIOSTREAM_EXPLORE_STEPS_H

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
static struct queue *queues_made[DESCRIPTORS]; /* by the queue's number too */

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
    unsigned released[THREADS + 1]; /* what a thread that acquires it has seen */
    unsigned plain_write, plain_writer, plain_reads[THREADS + 1];
    unsigned readers, writers; /* sets of threads, of all runs */
    enum { STATISTICS = 1, DECIDES } known;
};
extern const size_t queue_size; /* these three of interleaved.c */
bool is_lateness(const struct queue *, const void *address);
bool is_pending(const void *address);
static struct location locations[LOCATIONS];
static int64_t runs, complete_runs, all_runs;
/* memory is used by more threads than was known: what was explored before is void */
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
            return is_lateness(queue, address);
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

#endif
