/* How every call begins and ends: counting, injected faults, and the rules that hold for all of
 * them. */
#include "../driver.h"

#include "../api.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALL(name, version, symbol, forms, parameters) {#name, false, 0, 0},
#define LACK(name, version, symbol, forms) {#name, true, 0, 0},
struct call calls[] = {
#include "../functions.h"
};

int find_call(const char *name) {
    for (int id = 0; id < CALL_COUNT; id++)
        if (strcmp(calls[id].name, name) == 0) return id;
    return -1;
}

static void delay(uint64_t ns) {
    struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&time, &time) != 0);
}

/* --- injected faults --- */

/* It has its own lock, under which no other is taken, because calls look here before they take
 * sim.lock. */
static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;
enum { HANGS = -1 }; /* in place of a code: the call does not return until faults are cleared */
static struct injected {
    struct call *call;
    unsigned long nth;
    CUresult code;
    struct injected *next;
} *injected;

EXPORT CUresult nogpu_fail(const char *name, CUresult code, unsigned long nth) {
    int id = find_call(name);
    if (id < 0 || nth == 0) return id < 0 ? NOT_FOUND : INVALID_VALUE;
    struct injected *entry = alloc_try(sizeof *entry);
    if (entry == NULL) return OUT_OF_MEMORY;
    pthread_mutex_lock(&faults_lock);
    *entry = (struct injected){&calls[id], atomic_load(&calls[id].count) + nth, code, injected};
    injected = entry;
    atomic_fetch_add(&calls[id].faults, 1);
    pthread_mutex_unlock(&faults_lock);
    return OK;
}

static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static unsigned long releases; /* under faults_lock */

static CUresult injected_fault(struct call *call, unsigned long nth) {
    CUresult code = OK;
    pthread_mutex_lock(&faults_lock);
    for (struct injected **link = &injected; *link != NULL; link = &(*link)->next)
        if ((*link)->call == call && (*link)->nth == nth) {
            struct injected *entry = *link;
            code = entry->code;
            *link = entry->next;
            atomic_fetch_sub(&call->faults, 1);
            free(entry);
            break;
        }
    if (code == HANGS) {
        code = OK;
        for (unsigned long before = releases; releases == before;)
            pthread_cond_wait(&released, &faults_lock);
    }
    pthread_mutex_unlock(&faults_lock);
    return code;
}

/* Also lets go on the calls that hang. They have happened, so they are not counted. */
EXPORT int nogpu_clear_faults(void) {
    int cleared = 0;
    pthread_mutex_lock(&faults_lock);
    for (; injected != NULL; cleared++) {
        struct injected *entry = injected;
        injected = entry->next;
        atomic_fetch_sub(&entry->call->faults, 1);
        free(entry);
    }
    releases++;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&faults_lock);
    return cleared;
}

/* --- entering and leaving --- */

/* In the child the simulator's threads are gone, and one may have held a lock. Driver calls answer
 * before they take one. For the control functions the locks are made anew. */
void in_forked_child(void) {
    atomic_store(&sim.forked, true);
    pthread_mutex_init(&sim.lock, NULL);
    pthread_mutex_init(&faults_lock, NULL);
}

CUresult enter(enum call_id id, unsigned rules) {
    struct call *call = &calls[id];
    me.call = call;
    unsigned long nth = atomic_fetch_add_explicit(&call->count, 1, memory_order_relaxed) + 1;
    /* In a forked child the simulator's threads do not exist, and one of them may have held the
     * lock at the fork. */
    if (atomic_load_explicit(&sim.forked, memory_order_relaxed) && !(rules & PURE))
        return NOT_INITIALIZED;
    if (atomic_load_explicit(&call->faults, memory_order_relaxed) != 0) {
        CUresult code = injected_fault(call, nth);
        if (code != OK) return code;
    }
    if (rules & PURE) return OK;
    if (me.in_host_function && !(rules & HOST_OK)) return NOT_PERMITTED;
    uint64_t wait =
        rules & ENQUEUES ? atomic_load_explicit(&sim.enqueue_delay, memory_order_relaxed) : 0;
    if (wait != 0) delay(wait);
    pthread_mutex_lock(&sim.lock);
    while (sim.adversary.driver_lock && sim.host_functions_running > 0 && !me.in_host_function)
        pthread_cond_wait(&sim.host_returned, &sim.lock);
    if (!sim.initialised) return leave(NOT_INITIALIZED);
    if (sim.sticky != OK && !(rules & DEAD_OK)) return leave(sim.sticky);
    if (!(rules & FREES) && !alloc_ready()) return leave(OUT_OF_MEMORY);
    if (rules & UNSAFE) {
        CUresult code = capture_forbids_unsafe();
        if (code != OK) return leave(code);
    }
    return OK;
}

CUresult leave(CUresult code) {
    pthread_mutex_unlock(&sim.lock);
    if (me.dead.first != NULL) me.dead.destroy();
    return code;
}
