/* The state of the simulator and of each thread, and how threads wait, wake and start. */
#include "../driver.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

struct simulator sim = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .host_returned = PTHREAD_COND_INITIALIZER,
    .driver_version = 13000,
    .device_count = 1,
    .queues = 8,
};

/* --- what a thread owns: its context stack and its per-thread default streams --- */

static pthread_key_t thread_ends;
static pthread_once_t thread_ends_once = PTHREAD_ONCE_INIT;

static void forget_thread(void *state) {
    if (atomic_load(&sim.forked)) return;
    pthread_setspecific(thread_ends, state); /* again, for what is called here */
    if (me.at_end != NULL) me.at_end();
    free(me.streams);
    free(me.stack);
    free(state);
    pthread_setspecific(thread_ends, NULL);
}

static void make_thread_key(void) { pthread_key_create(&thread_ends, forget_thread); }

struct thread_state *this_thread(void) {
    pthread_once(&thread_ends_once, make_thread_key);
    struct thread_state *state = pthread_getspecific(thread_ends);
    if (state == NULL) {
        state = alloc_more(NULL, sizeof *state);
        *state = (struct thread_state){0};
        pthread_setspecific(thread_ends, state);
    }
    return state;
}

CUresult find_context(CUcontext handle, struct context **out) {
    for (size_t i = 0; i < sim.context_count; i++)
        if (sim.contexts[i] == handle) {
            *out = sim.contexts[i];
            return sim.contexts[i]->active ? OK : CONTEXT_IS_DESTROYED;
        }
    return INVALID_CONTEXT;
}

CUresult current_context(struct context **out) {
    *out = me.depth > 0 ? me.stack[me.depth - 1] : NULL;
    if (*out == NULL) return INVALID_CONTEXT;
    return (*out)->active ? OK : CONTEXT_IS_DESTROYED;
}

/* --- waiting --- */

CUresult wait_on(struct waiter **list, uint64_t target) {
    struct waiter waiter = {.next = *list, .target = target};
    uint64_t epoch = sim.fault_epoch;
    pthread_cond_init(&waiter.cond, NULL);
    *list = &waiter;
    while (!waiter.woken) pthread_cond_wait(&waiter.cond, &sim.lock);
    pthread_cond_destroy(&waiter.cond);
    return sim.fault_epoch != epoch ? sim.last_fault : OK;
}

void wake(struct waiter **list, uint64_t done) {
    for (struct waiter **link = list; *link != NULL;) {
        struct waiter *waiter = *link;
        if (waiter->target > done) {
            link = &waiter->next;
            continue;
        }
        *link = waiter->next;
        waiter->woken = true;
        pthread_cond_signal(&waiter->cond);
    }
}

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* --- threads of the simulator --- */

static atomic_bool exiting; /* set by exit(): no further function of the user's is called */

static void stop_calling(void) { atomic_store(&exiting, true); }

bool host_exiting(void) { return atomic_load(&exiting); }

/* The thread takes no signals, because those are for the program's own threads. */
bool start_thread(void *(*function)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    bool started = pthread_create(&thread, NULL, function, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}

/* It calls functions of the user's, but none once the process exits. */
void start_host_thread(void *(*function)(void *), void *argument) {
    static bool registered;
    if (!registered) {
        registered = true;
        atexit(stop_calling);
    }
    if (!start_thread(function, argument))
        give_up("the system has no thread left for host functions");
}
