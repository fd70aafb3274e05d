/* How every call begins and ends: counting, injected faults, and the rules that hold for all of
 * them. */
#include "../driver.h"

#include "../api.h"

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
    if (me.dead.first != NULL) user_objects_destroy();
    return code;
}

EXPORT CUresult cuInit(unsigned flags) {
    CUresult code = enter(CALL_cuInit, PURE);
    if (code != OK) return code;
    if (atomic_load(&sim.forked))
        return NOT_INITIALIZED; /* as every other call of a child whose parent used the driver */
    if (flags != 0) return INVALID_VALUE;
    if (me.in_host_function) return NOT_PERMITTED;
    return initialise();
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion, PURE);
    if (version == NULL) return INVALID_VALUE;
    *version = sim.driver_version; /* does not change once installed */
    return OK;
}

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static int look_up(const char *symbol, int version, uint64_t flags, void **out) {
    const struct version *best = NULL;
    bool known = false;
    for (size_t i = 0; i < version_count; i++) {
        const struct version *entry = &versions[i];
        if (strcmp(entry->name, symbol) != 0 || entry->version > sim.driver_version)
            continue; /* a function newer than the driver that is played does not exist in it */
        known = true;
        if (entry->version <= version && (best == NULL || entry->version > best->version))
            best = entry;
    }
    if (best == NULL) return known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
    void (*function)(void) = (flags & 2) && best->per_thread ? best->per_thread : best->function;
    memcpy(out, &function, sizeof *out);
    return FOUND;
}

/* A version newer than the driver is INVALID_VALUE, by the manual and on the H200. */
static CUresult get_proc_address(const char *symbol, void **out, int version, uint64_t flags,
                                 int *status) {
    if (out == NULL || symbol == NULL || flags > 2) return INVALID_VALUE;
    *out = NULL;
    int found =
        version > sim.driver_version ? SYMBOL_NOT_FOUND : look_up(symbol, version, flags, out);
    if (status != NULL) *status = found;
    if (version > sim.driver_version) return INVALID_VALUE;
    /* A function newer than the version is no error for a caller that asks for the status, as on
     * the H200. */
    return found == FOUND || (found == VERSION_NOT_SUFFICIENT && status != NULL) ? OK : NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags) {
    ENTER(cuGetProcAddress, PURE);
    return get_proc_address(symbol, out, version, flags, NULL);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                    int *status) {
    ENTER(cuGetProcAddress, PURE);
    return get_proc_address(symbol, out, version, flags, status);
}
