/* Points: places in a stream, or in a graph, that the library reports when the GPU comes there.
 *
 * A thread of Python reserves a point, gives it an owner (python/completions.h) and arms it: the
 * driver gets a host function or a callback, and with it the ticket: (generation << 24) | the
 * number of the point. For a wait the driver gets no ticket, and the thread that polls the event
 * fires it. When the GPU comes to the point, the driver's thread runs point_fire: it marks the
 * point, pushes it on the queue of the loop that waits, and counts itself out of the queue. The
 * watcher does the same for the points of a lost context (points_fail). The loop's thread, or the
 * janitor's if the loop is gone, takes the queue whole (queue_drain), gives each ticket to
 * python/drain.c, and frees the point.
 *
 * A firing takes no GIL, allocates and frees nothing, and follows no owner. Only a Python host
 * function of the user takes the GIL on the driver's thread. Points lie in chunks that are never
 * freed. So a firing that comes a second time, or long after its waiter has gone, reads valid
 * memory, finds another generation, and is counted and ignored.
 *
 * The life of a point, all in its `word` = (generation << 8) | flags:
 *
 *   0 --reserve--> RESERVED --arm--> ARMED
 *
 *   ARMED --fire---------------> ARMED|FIRED|QUEUED --drain--> 0 (next generation)
 *   ARMED --watcher------------> ARMED|FAILED|QUEUED
 *   ARMED --capture began------> QUARANTINED (never used again)
 *   ARMED --driver refused-----> 0
 *   ARMED --polled to its end--> ARMED|FIRED --> 0
 *   ARMED --its task has gone--> ARMED|ORPHANED, and the rest as without it
 *
 *   ARMED|FAILED|QUEUED --drain----------> ARMED|FAILED (leaked) --fire--> +FIRED|QUEUED
 *   ARMED|FAILED|QUEUED --fire-----------> +FIRED --drain--> 0
 *   ARMED|FAILED|QUEUED --driver refused-> +DISARMED --drain--> 0
 *
 * Only the thread that sets QUEUED pushes, so a point is on at most one stack and its `next` has
 * one writer. OWED says that the point ended while another thread may still be pushing it. The
 * consumer then gives back the point's reference to the queue.
 */
#include "points.h"

#include "failures.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum {
    RESERVED = 1,
    ARMED = 2,
    FIRED = 4,
    FAILED = 8,
    QUEUED = 16,
    DISARMED = 32,
    QUARANTINED = 64,
    OWED = 128,
    ORPHANED = RESERVED /* of a point that is armed: what comes is the janitor's */
};
enum { POINT_BITS = 24, CHUNK_POINTS = 64, MAX_CHUNKS = (1 << POINT_BITS) / CHUNK_POINTS };

struct point {
    /* It is the first field, because a queue knows a point by it. Its link belongs to the thread
     * that set QUEUED until the consumer has taken the stack. On a free list it is under that
     * list's lock. */
    struct queue_entry entry;
    _Atomic uint64_t word; /* any thread, by compare-and-swap as drawn above */
    /* Written by reserve, constant until the point is free again. A firing that comes too
     * late may read it at any time, but uses it only if its transition succeeds. */
    _Atomic(struct queue *) queue;
    _Atomic(struct context *) context; /* the same as queue */
    /* These three are written before the point is armed, and read by its own firing. For
     * KIND_FOREIGN only. */
    host_function foreign;
    void *foreign_data;
    int sync_mode;               /* of cuLaunchHostFunc_v2; -1 leaves it to the driver */
    _Atomic int64_t fire_status; /* written by the thread that sets FIRED, before it pushes */
    _Atomic int fail_status;     /* written by the watcher before it sets FAILED */
    uint32_t index;
    /* What a ticket stands for, and which one. This file never looks at it. Guarded by the GIL, or
     * by `owner_lock` if there is none. */
    _Atomic uint64_t owned; /* relaxed, because who reads it without the lock asks again under it */
    void *owner;
    atomic_flag owner_lock;
    /* Written before the point is armed. points_fail may read it at any time, and its transition
     * proves that what it read was right. */
    _Atomic uint8_t kind;
};

/* guards the growth; never held across a driver call */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct point *) chunks[MAX_CHUNKS + 1]; /* up to the first NULL */
static uint32_t chunk_count;
/* set once, before any Python host function is armed */
static python_dispatcher dispatch_to_python;

void points_set_dispatcher(python_dispatcher dispatcher) { dispatch_to_python = dispatcher; }

/* --- points --- */

static struct point *point_of(struct queue_entry *entry) { return (struct point *)entry; }

static struct point *point_number(uint32_t index) { /* NULL: there are no more */
    struct point *chunk = atomic_load(&chunks[index / CHUNK_POINTS]);
    return chunk ? &chunk[index % CHUNK_POINTS] : NULL;
}

static struct point *point_at(uint64_t ticket) {
    return point_number(ticket & ((1u << POINT_BITS) - 1));
}

static uint64_t generation_of(uint64_t ticket) { return ticket >> POINT_BITS; }

static void put(struct spares *spares, struct point *point) { /* their lock held */
    point->entry.next = spares->entries;
    spares->entries = &point->entry;
}

/* Makes the next points for a loop, to which they come back. The lock of its spares is held, and
 * is taken before this one. */
static void grow(struct spares *spares) {
    pthread_mutex_lock(&table_lock);
    struct point *chunk = chunk_count < MAX_CHUNKS ? calloc(CHUNK_POINTS, sizeof *chunk) : NULL;
    for (int i = CHUNK_POINTS - 1; chunk && i >= 0; i--) {
        chunk[i].index = chunk_count * CHUNK_POINTS + i;
        put(spares, &chunk[i]);
    }
    if (chunk) {
        atomic_fetch_add(&counters[POINTS_MADE], CHUNK_POINTS);
        atomic_store(&chunks[chunk_count++], chunk);
    }
    pthread_mutex_unlock(&table_lock);
}

/* Gives back its reference to its queue too, unless that has gone. Queues are never freed. */
static void point_give_back(struct point *point, bool refers) {
    struct queue *queue = point->queue;
    /* as many as a ticket can name */
    uint64_t next_generation = generation_of(((atomic_load(&point->word) >> 8) + 1) << POINT_BITS);
    atomic_store(&point->word, next_generation << 8);
    pthread_mutex_lock(&queue->spares.lock);
    put(&queue->spares, point);
    pthread_mutex_unlock(&queue->spares.lock);
    if (refers) queue_unref(queue);
}

static struct point *take(struct queue *queue) {
    struct spares *spares = &queue->spares;
    pthread_mutex_lock(&spares->lock);
    if (!spares->entries) grow(spares);
    struct point *point = point_of(spares->entries);
    if (point) spares->entries = point->entry.next;
    pthread_mutex_unlock(&spares->lock);
    return point;
}

uint64_t point_reserve(struct queue *queue, struct context *context, enum point_kind kind) {
    struct point *point = take(queue);
    if (!point) return 0;
    queue_ref(queue); /* the caller is the owner, so the owner's reference is held */
    point->queue = queue;
    point->context = context;
    point->kind = kind;
    point->foreign = NULL;
    point->sync_mode = -1;
    uint64_t generation = atomic_load(&point->word) >> 8;
    if (generation == 0) generation = 1; /* so that no ticket is 0 */
    atomic_store(&point->word, generation << 8 | RESERVED);
    return generation << POINT_BITS | point->index;
}

/* Not a mutex, because it is held for some ns, and there are many points. */
void point_lock_owner(uint64_t ticket) {
    struct point *point = point_at(ticket);
    while (point && atomic_flag_test_and_set(&point->owner_lock)) sched_yield();
}

void point_unlock_owner(uint64_t ticket) {
    struct point *point = point_at(ticket);
    if (point) atomic_flag_clear(&point->owner_lock);
}

/* The thread that releases a point need not hold the owners' lock, so an owner may stay in a point
 * until the next one comes. */
void *point_set_owner(uint64_t ticket, void *owner) {
    struct point *point = point_at(ticket);
    void *former = point->owner;
    atomic_store_explicit(&point->owned, ticket, memory_order_relaxed);
    point->owner = owner;
    return former;
}

void *point_owner(uint64_t ticket) {
    struct point *point = point_at(ticket);
    return point && atomic_load_explicit(&point->owned, memory_order_relaxed) == ticket
               ? point->owner
               : NULL;
}

void points_visit_owned(void (*visit)(void *argument, uint64_t ticket), void *argument) {
    for (struct point *point = point_number(0); point; point = point_number(point->index + 1)) {
        uint64_t ticket = atomic_load_explicit(&point->owned, memory_order_relaxed);
        if (ticket) visit(argument, ticket);
    }
}

struct context *point_context(uint64_t ticket) { return point_at(ticket)->context; }

/* 0 if the point is another ticket's by now */
static int flags_of(uint64_t ticket) {
    struct point *point = point_at(ticket);
    uint64_t word = point ? atomic_load(&point->word) : 0;
    return word >> 8 == generation_of(ticket) ? word & 0xff : 0;
}

int64_t point_unread_since(uint64_t ticket) {
    return flags_of(ticket) & QUEUED ? queue_unread_since(point_at(ticket)->queue) : 0;
}

void point_set_call(uint64_t ticket, host_function function, void *data, int sync_mode) {
    struct point *point = point_at(ticket);
    point->foreign = function;
    point->foreign_data = data;
    point->sync_mode = sync_mode;
}

static bool in_graph(const struct point *point) {
    return point->kind == KIND_GRAPH_PYTHON || point->kind == KIND_GRAPH_FOREIGN;
}
static bool in_stream(const struct point *point) {
    return !in_graph(point) && point->kind != KIND_POLLED;
}

/* Changes the flags of the point of `ticket`: it clears `clear` and sets `set`. It fails and
 * returns false if the point has another generation, if any flag of `unless` is set, or if a flag
 * of `when` is not. */
static bool transition(struct point *point, uint64_t ticket, int when, int unless, int clear,
                       int set) {
    uint64_t word = atomic_load(&point->word);
    do {
        int flags = word & 0xff;
        if (word >> 8 != generation_of(ticket) || (flags & when) != when || (flags & unless))
            return false;
    } while (!atomic_compare_exchange_weak(&point->word, &word, (word & ~(uint64_t)clear) | set));
    return true;
}

void point_unreserve(uint64_t ticket) {
    struct point *point = point_at(ticket);
    if (point && transition(point, ticket, RESERVED, ARMED, RESERVED, 0))
        point_give_back(point, true);
}

/* --- firing --- */

struct queue *point_orphan(uint64_t ticket) {
    struct point *point = point_at(ticket);
    if (!point) return NULL;
    struct queue *queue = point->queue; /* of this ticket if the transition succeeds */
    bool orphans = transition(point, ticket, ARMED, FIRED | FAILED | ORPHANED, 0, ORPHANED);
    return orphans ? queue : NULL;
}

/* The driver was given the ticket, and the consumer has not seen its end yet. */
bool point_is_live(uint64_t ticket) { return (flags_of(ticket) & (ARMED | DISARMED)) == ARMED; }

static bool awaits_firing(uint64_t word, uint64_t ticket) {
    return word >> 8 == generation_of(ticket) &&
           (word & (ARMED | FIRED | QUARANTINED | DISARMED)) == ARMED;
}

/* The GPU has come to the point. The last act is to count itself out of the queue, which may be
 * recycled from then on. */
void point_fire(uint64_t ticket, int64_t status) {
    struct point *point = point_at(ticket);
    uint64_t word = atomic_load(&point->word);
    do
        if (!awaits_firing(word, ticket)) {
            atomic_fetch_add(&counters[POINTS_STALE], 1);
            return;
        }
    while (!atomic_compare_exchange_weak(&point->word, &word,
                                         word | FIRED | (word & QUEUED ? OWED : QUEUED)));
    atomic_fetch_add(&counters[POINTS_FIRED], 1);
    if (word & FAILED) atomic_fetch_sub(&counters[POINTS_LEAKED], 1);
    else if (!in_graph(point)) context_drop_pending(point->context);
    /* The watcher has failed the waiter, and the consumer has not taken it yet. The consumer will
     * see both and release the point. */
    if (word & QUEUED) return;
    /* No other thread touches the point until it is pushed. */
    struct queue *queue = point->queue;
    atomic_store(&point->fire_status, status);
    queue_push(word & ORPHANED ? queue_orphans() : queue, &point->entry);
    queue_unref(queue);
}

static uint64_t ticket_of(void *data) { return (uint64_t)(uintptr_t)data; }

/* Calls the user's function of the point, if it has one. */
static void call_user(uint64_t ticket, int status) {
    struct point *point = point_at(ticket);
    int kind = point->kind; /* of this ticket, if it awaits its firing after that */
    if (kind == KIND_HOST_FUNCTION || kind == KIND_CALLBACK ||
        !awaits_firing(atomic_load(&point->word), ticket))
        return;
    if (kind == KIND_FOREIGN) point->foreign(point->foreign_data);
    else dispatch_to_python(ticket, status);
}

static void on_host_function(void *data) {
    call_user(ticket_of(data), CUDA_SUCCESS);
    point_fire(ticket_of(data), STATUS_UNKNOWN);
}

static void on_callback(void *stream, int status, void *data) {
    (void)stream;
    failure_noted(status, "cuStreamAddCallback");
    call_user(ticket_of(data), status);
    point_fire(ticket_of(data), status);
}

/* In a graph, at each launch. The ticket stays armed. */
static void on_graph_host_function(void *data) { call_user(ticket_of(data), CUDA_SUCCESS); }

/* The user object's destructor. No graph can call the function any more. The driver calls this on a
 * thread of its choice. */
static void on_graph_released(void *data) { point_fire(ticket_of(data), CUDA_SUCCESS); }

/* --- arming --- */

static int enqueue(struct point *point, uint64_t ticket, void *stream) {
    void *data = (void *)(uintptr_t)ticket;
    if (point->kind == KIND_CALLBACK || point->kind == KIND_PYTHON_CALLBACK)
        return driver.stream_add_callback(stream, on_callback, data, 0);
    host_function function = on_host_function;
    if (point->kind == KIND_GRAPH_PYTHON) function = on_graph_host_function;
    if (point->kind == KIND_GRAPH_FOREIGN) {
        function = point->foreign;
        data = point->foreign_data;
    }
    if (point->sync_mode >= 0)
        return driver.launch_host_func_v2(stream, function, data, point->sync_mode);
    return driver.launch_host_func(stream, function, data);
}

/* The driver refused, so nothing will ever fire. The watcher may have failed the point in the
 * meantime. Then the consumer either still has it on its stack and releases it, or has seen it
 * already, and it is released here. */
static void disarm(struct point *point, uint64_t ticket) {
    uint64_t word = atomic_load(&point->word);
    do
        if (!awaits_firing(word, ticket)) return; /* it has fired after all */
    while (!atomic_compare_exchange_weak(
        &point->word, &word, word & QUEUED ? word | DISARMED | OWED : word & ~(uint64_t)ARMED));
    atomic_fetch_sub(&counters[POINTS_ARMED], 1);
    if (word & FAILED) atomic_fetch_sub(&counters[POINTS_LEAKED], 1);
    else context_drop_pending(point->context);
    if (!(word & QUEUED)) point_give_back(point, true);
}

static void arm(struct point *point, uint64_t ticket) {
    atomic_fetch_add(&counters[POINTS_ARMED], 1);
    if (!in_graph(point)) context_add_pending(point->context);
    transition(point, ticket, RESERVED, ARMED, RESERVED, ARMED);
}

void point_arm_polled(uint64_t ticket) { arm(point_at(ticket), ticket); }

/* From now on a firing does nothing, and what the ticket keeps alive is leaked. */
static int quarantine(struct point *point, uint64_t ticket) {
    if (!transition(point, ticket, ARMED, FIRED | FAILED, 0, QUARANTINED))
        return CUDA_SUCCESS; /* it has fired already, so it was no node */
    atomic_fetch_add(&counters[POINTS_QUARANTINED], 1);
    atomic_fetch_add(&counters[POINTS_LEAKED], 1);
    if (!in_graph(point)) context_drop_pending(point->context);
    queue_unref(point->queue); /* a firing that comes finds that, and touches no queue */
    return RESULT_QUARANTINED;
}

enum { NO_DESTRUCTOR_SYNC = 1, MOVE_REFERENCE = 1 };

struct capture {
    int status;  /* CUstreamCaptureStatus: none, active, invalidated */
    uint64_t id; /* these two only while the capture is active */
    void *graph;
};

static int capture_of(void *stream, struct capture *capture) {
    *capture = (struct capture){0};
    int status =
        driver.capture_info(stream, &capture->status, &capture->id, &capture->graph, NULL, NULL);
    return failed_in("cuStreamGetCaptureInfo", status);
}

/* Makes a host function a node of the graph that the stream captures into. The graph gets the user
 * object before the node, so that no node is ever without it. From then on the user object's
 * destructor alone ends the point, even if a later step fails. The ticket is then still live, and
 * its consumer drops it. */
static int point_capture(struct point *point, uint64_t ticket, void *stream) {
    struct capture capture, after;
    void *object;
    int status = capture_of(stream, &capture);
    /* the capture has just ended, so the caller may try again */
    if (status == CUDA_SUCCESS && capture.status != 1) status = RESULT_CAPTURING;
    void *data = (void *)(uintptr_t)ticket;
    if (status == CUDA_SUCCESS)
        status = failed_in(
            "cuUserObjectCreate",
            driver.user_object_create(&object, data, on_graph_released, 1, NO_DESTRUCTOR_SYNC));
    if (status != CUDA_SUCCESS) {
        point_unreserve(ticket);
        return status;
    }
    point->kind = point->kind == KIND_FOREIGN ? KIND_GRAPH_FOREIGN : KIND_GRAPH_PYTHON;
    arm(point, ticket);
    status = failed_in("cuGraphRetainUserObject",
                       driver.graph_retain_user_object(capture.graph, object, 1, MOVE_REFERENCE));
    if (status != CUDA_SUCCESS) {
        driver.user_object_release(object, 1);
        return status;
    }
    status = enqueue(point, ticket, stream);
    if (status != CUDA_SUCCESS) {
        driver.graph_release_user_object(capture.graph, object, 1);
        return status;
    }
    /* the graph will be destroyed */
    if (capture_of(stream, &after) != CUDA_SUCCESS || after.status == 2) return CUDA_SUCCESS;
    if (after.status == 1 && after.id == capture.id) return CUDA_SUCCESS;
    /* Another thread has ended the capture. What was enqueued may be plain work of the stream,
     * which no graph keeps. So the ticket is never used again, a firing does nothing, and what the
     * ticket keeps alive is leaked. */
    return quarantine(point, ticket);
}

/* Call this without the GIL, under RELAXED. After any answer but 0 and RESULT_QUARANTINED the
 * ticket is gone, or is about to be. */
int point_arm(uint64_t ticket, void *stream) {
    struct point *point = point_at(ticket);
    int refusal = capture_refusal(stream);
    bool may_be_captured = point->kind == KIND_PYTHON_HOST || point->kind == KIND_FOREIGN;
    if (refusal == RESULT_CAPTURING && may_be_captured) return point_capture(point, ticket, stream);
    if (refusal) {
        point_unreserve(ticket);
        return refusal;
    }
    arm(point, ticket);
    int status = enqueue(point, ticket, stream);
    if (status != CUDA_SUCCESS) {
        disarm(point, ticket);
        return status;
    }
    if (capture_refusal(stream) >= 0) return CUDA_SUCCESS;
    /* A capture is on now. The host function may have become a node, which runs once for each
     * launch of the graph, or never. Or it went in just before the capture, and fires once. The
     * driver does not say which, so the ticket is never used again. */
    return quarantine(point, ticket);
}

uint64_t point_reserve_armed(struct queue *queue, struct context *context, enum point_kind kind) {
    uint64_t ticket = point_reserve(queue, context, kind);
    if (ticket) point_arm_polled(ticket);
    return ticket;
}

/* --- the consumer --- */

/* What the consumer does with one point that it has taken off a stack. False: emit refused, and the
 * point belongs back on a stack. */
static bool consume(struct point *point, emit_function emit, void *argument) {
    uint64_t word = atomic_load(&point->word);
    uint64_t ticket = (word >> 8) << POINT_BITS | point->index;
    if (!(word & (FIRED | DISARMED))) {
        /* The watcher has failed it. If it fires or is disarmed before the transition, that shows
         * it. */
        if (!emit(argument, ticket, point->fail_status, false)) return false;
        if (transition(point, ticket, QUEUED, FIRED | DISARMED, QUEUED, 0)) return true;
    }
    word = atomic_load(&point->word);
    int64_t status = word & FAILED ? point->fail_status : point->fire_status;
    if (!(word & DISARMED) && !emit(argument, ticket, status, true)) return false;
    point_give_back(point, word & OWED);
    return true;
}

bool queue_drain(struct queue *queue, emit_function emit, void *argument) {
    struct queue_entry *entry = queue_take(queue);
    while (entry) {
        struct queue_entry *next = entry->next;
        if (!consume(point_of(entry), emit, argument)) {
            queue_put_back(queue, entry);
            return false;
        }
        entry = next;
    }
    return true;
}

int points_visit_arrived(struct queue *queue, int (*visit)(void *owner, void *argument),
                         void *argument) {
    int answer = 0;
    for (struct queue_entry *entry = atomic_load(&queue->head); entry && !answer;
         entry = entry->next) {
        struct point *point = point_of(entry);
        if (atomic_load(&point->word) & FIRED && point->owner)
            answer = visit(point->owner, argument);
    }
    return answer;
}

/* --- the watcher's side --- */

/* Fails every waiter of a context. The points stay armed, because a stream callback still comes,
 * and a host function might. */
void points_fail(struct context *context, int status) {
    for (struct point *point = point_number(0); point; point = point_number(point->index + 1)) {
        uint64_t word = atomic_load(&point->word);
        if (!(word & ARMED) || word & (FIRED | FAILED | QUARANTINED) || point->context != context)
            continue;
        uint64_t ticket = (word >> 8) << POINT_BITS | point->index;
        /* In a graph no task waits for it, and its destructor still comes. Of a polled one the
         * driver has no ticket, so the watcher fires it with the status. */
        if (!in_stream(point)) continue;
        atomic_store(&point->fail_status, status);
        if (!transition(point, ticket, ARMED, FIRED | FAILED | QUARANTINED, 0, FAILED | QUEUED))
            continue;
        atomic_fetch_add(&counters[POINTS_LEAKED], 1);
        context_drop_pending(context);
        /* After the push, the point's reference belongs to its consumer or to a late firing.
         * So this thread takes one of its own. Without it, the queue could become another
         * loop's before queue_push has read it again, and would lose what arrives for
         * that loop. */
        struct queue *queue = point->queue;
        queue_ref(queue);
        bool orphaned = atomic_load(&point->word) & ORPHANED; /* since it has failed, for good */
        queue_push(orphaned ? queue_orphans() : queue, &point->entry);
        queue_unref(queue);
    }
}

/* Counted point by point and not from the counters, so that statistics() checks one against the
 * other. */
struct pending_points points_pending(void) {
    struct pending_points pending = {0};
    for (struct point *point = point_number(0); point; point = point_number(point->index + 1)) {
        uint64_t word = atomic_load(&point->word);
        if (!(word & ARMED) || word & (FIRED | FAILED | QUARANTINED | DISARMED)) continue;
        pending.all++;
        pending.captured += in_graph(point);
        pending.in_streams += in_stream(point);
    }
    return pending;
}
