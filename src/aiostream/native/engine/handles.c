/* Handles: who may still use a stream, an event or a graph, and who destroys it.
 *
 * Each call pins the handle for as long as the driver may use it, in any thread. A wait for a
 * user's event pins it too. close() refuses new uses, and the last user destroys the driver's
 * object, in its own thread. release() (into_raw) is refused while there is a use. A handle that
 * another library has too is retired and not destroyed. A finalizer never calls the driver: it
 * leaves the handle to the janitor (handle_abandon), and so does the last wait for a closed event.
 *
 * One word holds the number of uses and all of these states, because a KeyboardInterrupt must not
 * come between the count and the call. No lock is held across a driver call, but that of related
 * graphs. Driver calls on one handle go through `operate`. python/handles.c is the face of this for
 * Python.
 */
#define _GNU_SOURCE /* recursive mutexes */
#include "handles.h"

#include <stdlib.h>

#include "failures.h"

static const uint64_t USES = 0xffffffffu, CLOSING = 1ull << 32, RELEASED = 1ull << 33;
static const uint64_t DESTROYED = 1ull << 34, NOT_OPEN = 7ull << 32; /* any of the three */
/* Another library has the handle too, so the library never destroys the object. */
static const uint64_t SHARED = 1ull << 35;

/* --- graphs --- */

/* All handles of graphs, in which a borrowed one finds its relatives, and their references. Nothing
 * else is done under it. */
static pthread_mutex_t graphs_guard = PTHREAD_MUTEX_INITIALIZER;
static struct handle *graphs;

static void graphs_add(struct handle *handle) {
    handle->root = handle;
    handle->lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    pthread_mutex_lock(&graphs_guard);
    if ((handle->next = graphs)) graphs->link = &handle->next;
    *(handle->link = &graphs) = handle;
    pthread_mutex_unlock(&graphs_guard);
}

/* Whether it may name a graph that exists. One that was released may come back by from_raw. */
static bool may_exist(struct handle *handle) {
    return !handle->owned || !(atomic_load(&handle->word) & (CLOSING | DESTROYED));
}

void graphs_relate(struct handle *made, struct handle *from) {
    pthread_mutex_lock(&graphs_guard);
    for (struct handle *each = graphs; each && !from; each = each->next)
        if (each != made && each->value == made->value && may_exist(each)) from = each;
    if (from) {
        made->root = from->root;
        atomic_fetch_add(&made->root->refs, 1);
    }
    pthread_mutex_unlock(&graphs_guard);
}

/* The time is counted in beats, of which a process that was stopped has missed all. */
bool graphs_lock(struct handle *handle) {
    enum { BEATS = 6000 }; /* some 0.16 ms each */
    const struct timespec beat = {.tv_nsec = 100000};
    int64_t before = 0, now;
    for (int beats = 0; pthread_mutex_trylock(&handle->root->lock); before = now) {
        now = atomic_load(&handle->root->destroying);
        beats = now % 2 && now == before ? beats + 1 : 0;
        if (beats == BEATS) return false;
        nanosleep(&beat, NULL);
    }
    return true;
}

void graphs_unlock(struct handle *handle) { pthread_mutex_unlock(&handle->root->lock); }

bool handle_try_drop(struct handle *handle) {
    if (handle->root && pthread_mutex_trylock(&handle->root->lock)) return false;
    handle_drop(handle);
    if (handle->root) graphs_unlock(handle);
    return true;
}

/* --- handles --- */

struct handle *handle_new(enum handle_kind kind, void *value, void *context, bool owned) {
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle) return NULL;
    *handle = (struct handle){.refs = 1,
                              .value = value,
                              .context = context,
                              .kind = kind,
                              .owned = owned,
                              .identity = context ? context_identity(context) : 0};
    if (kind == HANDLE_GRAPH || kind == HANDLE_GRAPH_EXEC) graphs_add(handle);
    if (owned) {
        atomic_fetch_add(&counters[HANDLES_CREATED], 1);
        atomic_fetch_add(&counters[HANDLES_OPEN], 1);
    }
    return handle;
}

struct handle *handle_borrow(struct handle *parent) {
    /* without the context, of which handle_new would ask the driver the identity */
    struct handle *handle = handle_new(parent->kind, parent->value, NULL, false);
    if (!handle) return NULL;
    handle->context = parent->context;
    handle->identity = parent->identity;
    handle->parent = parent;
    if (handle->root) graphs_relate(handle, parent);
    return handle;
}

static void count_end(const struct handle *handle, int counter) {
    if (!handle->owned || handle->hidden) return;
    atomic_fetch_add(&counters[counter], 1);
    atomic_fetch_sub(&counters[HANDLES_OPEN], 1);
}

void handle_hide(struct handle *handle) {
    handle->hidden = true;
    atomic_fetch_sub(&counters[HANDLES_CREATED], 1);
    atomic_fetch_sub(&counters[HANDLES_OPEN], 1);
}

void handle_unref(struct handle *handle) {
    struct handle *root = handle->root;
    if (root) pthread_mutex_lock(&graphs_guard);
    bool is_last = atomic_fetch_sub(&handle->refs, 1) == 1;
    if (is_last && root && (*handle->link = handle->next)) handle->next->link = handle->link;
    if (root) pthread_mutex_unlock(&graphs_guard);
    if (is_last && root && root != handle) handle_unref(root);
    if (is_last) free(handle);
}

bool handle_is_open(const struct handle *handle) {
    if (atomic_load(&handle->word) & NOT_OPEN) return false;
    return !handle->parent || handle_is_open(handle->parent);
}

bool handle_is_gone(const struct handle *handle) {
    return context_is_gone(handle->context, handle->identity);
}

/* The legacy and per-thread streams, 0 to 2, belong to the *current* context. */
static bool needs_context(const struct handle *handle) {
    return handle->kind == HANDLE_STREAM && (uintptr_t)handle->value <= 2;
}

static const char *const DESTRUCTORS[] = {"cuStreamDestroy", "cuEventDestroy", "cuGraphDestroy",
                                          "cuGraphExecDestroy"};

static int call_destructor(struct handle *handle) {
    int (*const destructors[])(void *) = {driver.stream_destroy, driver.event_destroy,
                                          driver.graph_destroy, driver.graph_exec_destroy};
    if (!handle->root) return destructors[handle->kind](handle->value);
    if (!graphs_lock(handle)) return CUDA_NOT_READY;
    atomic_fetch_add(&handle->root->destroying, 1);
    int status = destructors[handle->kind](handle->value);
    atomic_fetch_add(&handle->root->destroying, 1);
    graphs_unlock(handle);
    return status;
}

static int destroy(struct handle *handle, bool shared) {
    if (!handle->owned || shared) {
        count_end(handle, HANDLES_RETIRED);
        return CUDA_SUCCESS;
    }
    int status = CUDA_SUCCESS;
    if (!handle_is_gone(handle)) { /* otherwise the object went with its context */
        bool entered = handle->context && driver.ctx_push(handle->context) == CUDA_SUCCESS;
        /* RELAXED, because destroying an executable graph gives memory back, which would end
         * another thread's capture */
        int mode = relaxed_enter();
        status = failure_noted(call_destructor(handle), DESTRUCTORS[handle->kind]);
        relaxed_leave(mode);
        if (entered) context_pop();
    }
    if (status == CUDA_NOT_READY) { /* see graphs_lock: the janitor destroys it as a last user */
        atomic_store(&handle->word, CLOSING + 1);
        atomic_fetch_add(&handle->refs, 1);
        event_wait_let_go(handle);
        return CUDA_SUCCESS;
    }
    /* After a fatal code the object went with its context. */
    bool is_left = status != CUDA_SUCCESS && !failure_is_fatal(status);
    count_end(handle, is_left ? HANDLES_LEAKED : HANDLES_DESTROYED);
    return status;
}

/* --- refusals --- */

/* the latest refusal of each kind that handle_take_refusal has yet to give; any thread */
static _Atomic int refusals[HANDLE_KINDS];

int handle_take_refusal(const char **call) {
    for (int i = 0; i < HANDLE_KINDS; i++) {
        int status = atomic_exchange(&refusals[i], 0);
        *call = DESTRUCTORS[i];
        if (status) return status;
    }
    return 0;
}

static void note_refusal(const struct handle *handle, int status) {
    if (status == CUDA_SUCCESS || failure_is_fatal(status)) return;
    atomic_store(&refusals[handle->kind], status);
    failures_call_listener();
}

/* The thread that turns "closing, no uses" into "destroyed" destroys the object. No other one
 * can. */
static int destroy_if_last(struct handle *handle) {
    /* which does not change, because a closed handle cannot be shared */
    uint64_t shared = atomic_load(&handle->word) & SHARED, word = CLOSING | shared;
    bool is_last = atomic_compare_exchange_strong(&handle->word, &word, DESTROYED | shared);
    return is_last ? destroy(handle, shared) : CUDA_SUCCESS;
}

bool handle_is_used(const struct handle *handle) { return atomic_load(&handle->word) & USES; }

bool handle_is_shared(const struct handle *handle) {
    return (atomic_load(&handle->word) & (SHARED | RELEASED)) == SHARED;
}

/* Sets flags and adds uses. False: the handle has a flag of `unless`. */
static bool change(struct handle *handle, uint64_t unless, uint64_t flags, uint64_t uses) {
    uint64_t word = atomic_load(&handle->word);
    do
        if (word & unless) return false;
    while (!atomic_compare_exchange_weak(&handle->word, &word, (word | flags) + uses));
    return true;
}

bool handle_share(struct handle *handle) {
    if (!change(handle, NOT_OPEN, SHARED, 0)) return false;
    return !handle->parent || handle_share(handle->parent);
}

static void unpin_one(struct handle *handle) {
    uint64_t word = atomic_fetch_sub(&handle->word, 1) - 1;
    if ((word & USES) == 0 && word & CLOSING) note_refusal(handle, destroy_if_last(handle));
}

bool handle_pin(struct handle *handle) {
    if (!change(handle, NOT_OPEN, 0, 1)) return false;
    if (!handle->parent || handle_pin(handle->parent)) return true;
    unpin_one(handle);
    return false;
}

void handle_unpin(struct handle *handle) {
    unpin_one(handle);
    if (handle->parent) handle_unpin(handle->parent);
}

static bool unpin_one_at_once(struct handle *handle) {
    uint64_t word = atomic_load(&handle->word);
    do
        if ((word & USES) == 1 && word & CLOSING) return false;
    while (!atomic_compare_exchange_weak(&handle->word, &word, word - 1));
    return true;
}

struct handle *handle_unpin_at_once(struct handle *handle) {
    while (handle && unpin_one_at_once(handle)) handle = handle->parent;
    return handle;
}

int handle_close(struct handle *handle) {
    return change(handle, NOT_OPEN, CLOSING, 0) ? destroy_if_last(handle) : CUDA_SUCCESS;
}

void handle_drop(struct handle *handle) { note_refusal(handle, handle_close(handle)); }

/* This includes a handle that was closed before and left to its last user. */
void handle_mark_destroyed(struct handle *handle) {
    if (change(handle, RELEASED | DESTROYED, DESTROYED, 0)) count_end(handle, HANDLES_DESTROYED);
}

bool handle_release(struct handle *handle, bool while_used) {
    if (!change(handle, while_used ? NOT_OPEN : NOT_OPEN | USES, RELEASED, 0)) return false;
    count_end(handle, HANDLES_RELEASED);
    return true;
}

static _Atomic(struct handle *) let_go;

void handle_abandon(struct handle *handle) {
    change(handle, NOT_OPEN, CLOSING, 1); /* so this is the last user, unless a wait goes on */
    event_wait_let_go(handle);
}

void handles_drop_abandoned(void) {
    struct handle *handle = atomic_exchange(&let_go, NULL);
    while (handle) {
        struct handle *next = handle->next_let_go;
        handle_unpin(handle);
        handle_unref(handle);
        handle = next;
    }
}

/* --- driver calls on a handle --- */

/* Asks first whether the context is there. Other code may have destroyed or reset it, and the
 * driver crashes the process, or finds a new stream at the old address. Each operation asks anew,
 * because no answer holds for longer: the reset may come from the next line of the same thread. */
int operate(struct handle *handle, int how, handle_operation operation, void *argument) {
    if (!(how & PINNED) && !handle_pin(handle)) return RESULT_CLOSED;
    failed_forget();
    int mode = how & AS_IS ? -1 : relaxed_enter();
    bool enters = needs_context(handle);
    int result = handle_is_gone(handle) ? CUDA_CONTEXT_IS_DESTROYED
                 : enters               ? context_push(handle->context)
                                        : CUDA_SUCCESS;
    if (!result) {
        result = operation(handle, argument);
        if (enters) context_pop();
    }
    relaxed_leave(mode);
    if (!(how & PINNED)) handle_unpin(handle);
    return result;
}

int do_capture_refusal(struct handle *handle, void *unused) {
    (void)unused;
    return capture_refusal(handle->value);
}

/* --- events --- */

int event_make(void *context, unsigned flags, void **event) {
    int status = context_push(context);
    if (status != CUDA_SUCCESS) return status;
    status = failed_in("cuEventCreate", driver.event_create(event, flags));
    context_pop();
    return status;
}

/* The janitor destroys a closed event whose last wait ends, because a cancelled wait ends under the
 * GIL, or in a finalizer, and a driver call there could wait for a thread that wants the GIL. */
void event_wait_let_go(struct handle *event) {
    if (!handle_unpin_at_once(event)) {
        handle_unref(event);
        return;
    }
    event->next_let_go = atomic_load(&let_go);
    while (!atomic_compare_exchange_weak(&let_go, &event->next_let_go, event)) continue;
    failures_call_listener();
}

bool event_is_captured(const struct handle *event) {
    return atomic_load(&((struct handle *)event)->captured);
}

static int renew(const struct handle *event, unsigned flags, struct handle **fresh) {
    void *value;
    if (flags & EVENT_INTERPROCESS) return RESULT_AWAITED;
    int status = event_make(event->context, flags, &value);
    if (status != CUDA_SUCCESS) return status;
    *fresh = handle_new(HANDLE_EVENT, value, event->context, true);
    if (*fresh) return CUDA_SUCCESS;
    driver.event_destroy(value);
    return RESULT_NO_MEMORY;
}

/* Whether the driver's event may take the record. Waits that another thread begins at this moment
 * may be for either record. Into a capture it may not if anything else uses the handle. What uses
 * it after this check has pinned it first, and then sees `captured`. */
static bool may_take(struct handle *event, bool captures) {
    if (atomic_load(&event->waits)) return false;
    if (!captures) return true;
    bool before = atomic_exchange(&event->captured, true);
    if ((atomic_load(&event->word) & USES) == 1) return true;
    atomic_store(&event->captured, before);
    return false;
}

/* The event is pinned. */
static int record(struct handle *event, void *stream, unsigned flags, bool captures,
                  struct handle **fresh) {
    struct handle *target = event;
    bool before = event_is_captured(event);
    if (!may_take(event, captures)) {
        int status = renew(event, flags, &target);
        if (status != CUDA_SUCCESS) return status;
    }
    int status = driver.event_record(target->value, stream, 0);
    if (status == CUDA_SUCCESS) {
        /* asked again, because another thread may have begun a capture just now */
        atomic_store(&target->captured, captures || capture_refusal(stream) < 0);
        if (target != event) *fresh = target;
    } else if (target == event) {
        atomic_store(&event->captured, before);
    } else {
        handle_drop(target);
        handle_unref(target);
    }
    return status;
}

int event_record(struct handle *event, void *stream, unsigned flags, struct handle **fresh) {
    int refusal = capture_refusal(stream);
    /* 906: touching the legacy stream would end the other's capture */
    if (refusal > 0 || refusal == -906) return refusal;
    if (!handle_pin(event)) return RESULT_CLOSED;
    int status = handle_is_gone(event) ? CUDA_CONTEXT_IS_DESTROYED
                                       : record(event, stream, flags, refusal < 0, fresh);
    handle_unpin(event);
    return status;
}
