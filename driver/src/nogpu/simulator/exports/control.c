/* How the driver begins, and what tests do to it: options, adversaries, counters. Exported under
 * the prefix nogpu_. entry.c has the injected faults. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>

static size_t memory = (size_t)1 << 30;

/* The environment is read here, at cuInit, as the real driver does. */
static CUresult initialise(void) {
    pthread_mutex_lock(&sim.lock);
    if (!sim.initialised && !atomic_load(&sim.forked)) {
        const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
        long queues = connections != NULL ? strtol(connections, NULL, 10) : 8;
        if (sim.queues != 0) sim.queues = queues < 1 || queues > 32 ? 8 : (unsigned)queues;
        const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
        /* 2 is off on the H200 */
        sim.launch_blocking = blocking != NULL && strtol(blocking, NULL, 10) == 1;
        CUresult code = devices_choose(getenv("CUDA_VISIBLE_DEVICES"));
        if (code != OK) return leave(code); /* and every other call answers 3 */
        for (int i = 0; i < sim.device_count; i++) sim.devices[i].total = memory;
        code = alloc_ready() ? engine_start() : OUT_OF_MEMORY;
        if (code != OK) return leave(code);
        pthread_atfork(NULL, NULL, in_forked_child);
        sim.initialised = true;
    }
    return leave(OK);
}

/* Of `python -m nogpu`, for programs that never call nogpu_configure. */
static __attribute__((constructor)) void loaded(void) {
    const char *devices = getenv("NOGPU_DEVICES"), *version = getenv("NOGPU_DRIVER_VERSION"),
               *seed = getenv("NOGPU_SEED");
    long count = devices != NULL ? strtol(devices, NULL, 10) : 1;
    sim.device_count = count < 0 || count > MAX_DEVICES ? 1 : (int)count;
    if (version != NULL) sim.driver_version = (int)strtol(version, NULL, 10);
    if (seed != NULL) nogpu_seed(strtoull(seed, NULL, 10), 1);
}

/* Once, before cuInit. */
EXPORT CUresult nogpu_configure(int devices, int driver_version, size_t memory_bytes,
                                int hardware_queues) {
    if (devices < 0 || devices > MAX_DEVICES) return INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (sim.initialised) return leave(ILLEGAL_STATE);
    sim.device_count = devices;
    sim.driver_version = driver_version;
    sim.queues = hardware_queues ? 8 : 0;
    memory = memory_bytes;
    return leave(OK);
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

/* --- order and adversaries --- */

EXPORT void nogpu_seed(uint64_t seed, int on) {
    pthread_mutex_lock(&sim.lock);
    sim.seeded = on;
    sim.seed = seed;
    sim.seed_start = sim.next_sequence;
    leave(OK);
}

EXPORT void nogpu_adversary(int driver_lock, uint64_t enqueue_ns, int shuffle, uint64_t late_ns,
                            int fire_after_fault) {
    pthread_mutex_lock(&sim.lock);
    sim.adversary.driver_lock = driver_lock;
    sim.adversary.shuffle_callbacks = shuffle;
    sim.adversary.late_faults = late_ns;
    sim.adversary.fire_after_fault = fire_after_fault;
    atomic_store(&sim.enqueue_delay, enqueue_ns);
    pthread_cond_broadcast(&sim.host_returned);
    leave(OK);
}

EXPORT void nogpu_break(CUresult code) {
    pthread_mutex_lock(&sim.lock);
    fault(code);
    leave(OK);
}

/* Goes on after a sticky error, which no GPU can. Pending work fails first: fail_pending is called
 * while the driver answers the error. Host threads finish what they have to do. */
EXPORT CUresult nogpu_recover(void (*fail_pending)(void)) {
    /* this thread would wait for itself */
    if (me.in_host_function || me.is_engine) return NOT_PERMITTED;
    if (atomic_load(&sim.forked)) return NOT_INITIALIZED; /* there is no thread to wait for */
    pthread_mutex_lock(&sim.lock);
    if (sim.pending > 0) fault(LAUNCH_FAILED);
    fault_wait_settled();
    if (sim.sticky != OK) {
        pthread_mutex_unlock(&sim.lock);
        fail_pending();
        pthread_mutex_lock(&sim.lock);
    }
    while (sim.captures != NULL) capture_unregister_stream(sim.captures->origin);
    host_wait_empty();
    user_objects_wait();
    sim.sticky = OK;
    return leave(OK);
}

/* --- counters --- */

EXPORT long nogpu_calls(const char *name) {
    int id = find_call(name);
    return id < 0 ? -1 : (long)atomic_load(&calls[id].count);
}

/* The i-th known function's name, whether it is simulated, and how often it was called; 0 past the
 * end. */
EXPORT int nogpu_known(int i, const char **name, int *lacking, unsigned long *count) {
    if (i < 0 || i >= CALL_COUNT) return 0;
    *name = calls[i].name;
    *lacking = calls[i].lacking;
    *count = atomic_load(&calls[i].count);
    return 1;
}

EXPORT size_t nogpu_pending(void) {
    pthread_mutex_lock(&sim.lock);
    size_t pending = sim.pending;
    pthread_mutex_unlock(&sim.lock);
    return pending;
}
