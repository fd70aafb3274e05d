/* Tickets, points and completion queues: what the driver's threads touch.
 *
 * The driver is given a ticket, a number: (generation << 24) | slot. Slots live in chunks that are never freed, so a firing
 * that comes a second time, or long after its waiter has gone, reads valid memory, finds another generation and is counted
 * as stale.
 *
 * The life of a slot, all in its `word` = (generation << 8) | flags:
 *
 *   0 --reserve--> RESERVED --arm--> ARMED --fire--> ARMED|FIRED|QUEUED --drain--> 0 (next generation)
 *                     |                |--watcher--> ARMED|FAILED|QUEUED --drain--> ARMED|FAILED ("leaked")
 *                     |                |                 `--fire--> +FIRED --drain--> 0         `--fire--> +FIRED|QUEUED
 *                     |                |--capture began meanwhile--> QUARANTINED (kept for ever)
 *                     `<--disarm-------'  (the driver refused; +DISARMED if the watcher has already queued it)
 *
 * Only the thread that sets QUEUED pushes, so a slot is on at most one stack and its `next` has one writer. OWED says that
 * the point ended while another thread may still be pushing it: the consumer then gives back its reference to the queue.
 */
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RESERVED = 1, ARMED = 2, FIRED = 4, FAILED = 8, QUEUED = 16, DISARMED = 32, QUARANTINED = 64, OWED = 128 };
enum { SLOT_BITS = 24, CHUNK_SLOTS = 1024, MAX_CHUNKS = (1 << SLOT_BITS) / CHUNK_SLOTS, MAX_QUEUES = 65536 };

struct slot {
    _Atomic uint64_t word;   /* any thread, by compare-and-swap as drawn above */
    struct slot *next;       /* whoever set QUEUED, until the consumer has taken the stack; free list: under table_lock */
    _Atomic(struct queue *) queue; /* written by reserve, constant until the slot is free again; a stale firing may read
                                      it at any time, but uses it only if its transition succeeds */
    _Atomic(struct context *) context; /* likewise */
    host_function foreign;   /* these three are written before the slot is armed; read by its own firing; KIND_FOREIGN only */
    void *foreign_data;
    int sync_mode;           /* of cuLaunchHostFunc_v2; -1 leaves it to the driver */
    _Atomic int64_t fire_status; /* written by the one that sets FIRED, before it pushes */
    _Atomic int fail_status; /* written by the watcher before it sets FAILED */
    uint32_t index;
    _Atomic uint8_t kind; /* written before the slot is armed; points_fail may read it at any time, and is proved right by its
                             transition */
};

/* A multi-producer stack that is drained whole, with the eventfd that wakes its consumer, and an timer that does so too: the
 * consumer watches one descriptor for both. Queues are recycled, never freed, and their descriptors are never closed: a write
 * that comes late can only wake the next owner for nothing.
 * `refs` counts the owner and every point that has not fired; at zero nobody can push any more and it may be recycled. */
struct queue {
    _Atomic(struct slot *) head; /* pushed by any thread; taken whole by the consumer, or by whoever sees `closed` */
    _Atomic int64_t refs;
    _Atomic bool closed; /* set once by the owner, then the stack is drained; a pusher reads it after its push */
    _Atomic int64_t pushed;  /* when its stack stopped being empty; by that pusher */
    _Atomic int64_t lag;     /* a running mean; by the owner's thread, read by any */
    _Atomic bool wakeup_suppressed;     /* the consumer is about to take the stack: no need to wake it; by its thread, read by any */
    struct timer *timer;     /* these four are constant */
    int eventfd;
    int descriptor; /* an epoll of the eventfd and the timer's */
    int index;
    struct queue *next_free; /* under table_lock */
};

_Atomic int64_t counters[COUNTERS];

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* free lists and growth; never held across a driver call */
static _Atomic(struct slot *) chunks[MAX_CHUNKS];
static _Atomic uint32_t chunk_count;
static struct slot *free_slots;
static _Atomic(struct queue *) queues[MAX_QUEUES]; /* number 0 is the orphans' */
static int queue_count;
static struct queue *free_queues;

/* ------------------------------------------------------------------------------------------------ queues */

static bool watch(struct queue *queue, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(queue->descriptor, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

static struct queue *queue_allocate(void) { /* table_lock held */
    if (queue_count == MAX_QUEUES) return NULL;
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue) return NULL;
    queue->timer = timer_new();
    queue->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    queue->descriptor = epoll_create1(EPOLL_CLOEXEC);
    if (queue->timer && watch(queue, queue->eventfd) && watch(queue, timer_descriptor(queue->timer))) {
        queue->index = queue_count;
        queues[queue_count++] = queue;
        return queue;
    }
    if (queue->timer) timer_free(queue->timer);
    if (queue->eventfd >= 0) close(queue->eventfd);
    if (queue->descriptor >= 0) close(queue->descriptor);
    free(queue);
    return NULL;
}

struct queue *queue_open(void) {
    pthread_mutex_lock(&table_lock);
    struct queue *queue = free_queues;
    if (queue) free_queues = queue->next_free;
    else queue = queue_allocate();
    pthread_mutex_unlock(&table_lock);
    if (!queue) return NULL;
    uint64_t ignored;
    while (read(queue->eventfd, &ignored, sizeof ignored) < 0 && errno == EINTR) {}
    queue->lag = 0; /* its former owner's says nothing of this one */
    queue->refs = 1;
    queue->closed = false;
    timer_open(queue->timer);
    return queue;
}

int queue_descriptor(const struct queue *queue) { return queue->descriptor; }
struct timer *queue_timer(const struct queue *queue) { return queue->timer; }
void queue_suppress_wakeup(struct queue *queue) { atomic_store(&queue->wakeup_suppressed, true); }
int queue_index(const struct queue *queue) { return queue->index; }
struct queue *queue_at(int index) { return index < 0 || index >= MAX_QUEUES ? NULL : queues[index]; }

void queue_wake(struct queue *queue) {
    uint64_t one = 1;
    /* EAGAIN means that the counter is full, so the consumer is awake; EINTR is retried. */
    while (write(queue->eventfd, &one, sizeof one) < 0 && errno == EINTR) {}
}

int64_t queue_lag(const struct queue *queue) { return atomic_load(&((struct queue *)queue)->lag); }

void queue_note_lag(struct queue *queue, int64_t lag) {
    int64_t mean = atomic_load(&queue->lag);
    atomic_store(&queue->lag, mean + (lag - mean) / 4);
}

static void queue_unref(struct queue *queue) {
    if (atomic_fetch_sub(&queue->refs, 1) != 1) return;
    pthread_mutex_lock(&table_lock);
    queue->next_free = free_queues;
    free_queues = queue;
    pthread_mutex_unlock(&table_lock);
}

/* Links a chain (first is the newest) onto a stack; true if the stack was empty. */
static bool stack_push(struct queue *queue, struct slot *first, struct slot *last) {
    struct slot *head = atomic_load(&queue->head);
    do last->next = head;
    while (!atomic_compare_exchange_weak(&queue->head, &head, first));
    return head == NULL;
}

static void push_to_orphans(struct queue *queue) {
    struct slot *first = atomic_exchange(&queue->head, NULL);
    if (!first) return;
    struct slot *last = first;
    while (last->next) last = last->next;
    if (stack_push(queues[0], first, last)) queue_wake(queues[0]);
}

/* Push, then read `closed`; the closer sets `closed`, then drains: whichever comes second sees the other (both sequentially
 * consistent), so no ticket stays behind on a queue that nobody reads. */
static void queue_push(struct queue *queue, struct slot *slot) {
    /* Noted before the push, because the consumer may take the slot at once. Two that find it empty note nearly the same. */
    if (!atomic_load(&queue->head)) atomic_store(&queue->pushed, now_ns());
    bool was_empty = stack_push(queue, slot, slot);
    if (atomic_load(&queue->closed)) push_to_orphans(queue);
    else if (was_empty && !atomic_load(&queue->wakeup_suppressed)) queue_wake(queue);
}

void queue_close(struct queue *queue) {
    if (queue->index == 0 || atomic_exchange(&queue->closed, true)) return;
    push_to_orphans(queue);
    queue_unref(queue);
}

/* ------------------------------------------------------------------------------------------------ slots */

static struct slot *slot_at(uint64_t ticket) {
    uint32_t index = ticket & ((1u << SLOT_BITS) - 1);
    struct slot *chunk = atomic_load(&chunks[index / CHUNK_SLOTS]);
    return chunk ? &chunk[index % CHUNK_SLOTS] : NULL;
}

static uint64_t generation_of(uint64_t ticket) { return ticket >> SLOT_BITS; }

static bool grow(void) { /* table_lock held */
    uint32_t number = chunk_count;
    if (number == MAX_CHUNKS) return false;
    struct slot *chunk = calloc(CHUNK_SLOTS, sizeof *chunk);
    if (!chunk) return false;
    for (int i = CHUNK_SLOTS - 1; i >= 0; i--) {
        chunk[i].index = number * CHUNK_SLOTS + i;
        chunk[i].next = free_slots;
        free_slots = &chunk[i];
    }
    atomic_store(&chunks[number], chunk);
    atomic_store(&chunk_count, number + 1);
    return true;
}

static void slot_release(struct slot *slot) {
    uint64_t next_generation = (atomic_load(&slot->word) >> 8) + 1;
    atomic_store(&slot->word, next_generation << 8);
    pthread_mutex_lock(&table_lock);
    slot->next = free_slots;
    free_slots = slot;
    pthread_mutex_unlock(&table_lock);
}

uint64_t point_reserve(struct queue *queue, struct context *context, enum point_kind kind) {
    pthread_mutex_lock(&table_lock);
    struct slot *slot = free_slots || grow() ? free_slots : NULL;
    if (slot) free_slots = slot->next;
    pthread_mutex_unlock(&table_lock);
    if (!slot) return 0;
    atomic_fetch_add(&queue->refs, 1); /* the owner's reference is held: it is the caller */
    slot->queue = queue;
    slot->context = context;
    slot->kind = kind;
    slot->foreign = NULL;
    slot->sync_mode = -1;
    uint64_t generation = atomic_load(&slot->word) >> 8;
    if (generation == 0) generation = 1; /* so that no ticket is 0 */
    atomic_store(&slot->word, generation << 8 | RESERVED);
    return generation << SLOT_BITS | slot->index;
}

void point_set_foreign(uint64_t ticket, host_function function, void *data) {
    struct slot *slot = slot_at(ticket);
    slot->foreign = function;
    slot->foreign_data = data;
}

void point_set_sync_mode(uint64_t ticket, int mode) { slot_at(ticket)->sync_mode = mode; }

static bool in_graph(const struct slot *slot) { return slot->kind == KIND_GRAPH_PYTHON || slot->kind == KIND_GRAPH_FOREIGN; }

/* Changes the flags of `ticket` if it is still that ticket's slot: clears `clear`, sets `set`. Fails, and says so, when the
 * generation is another, or any of `unless` is set, or not all of `when` are. *before gets the flags as they were. */
static bool transition(struct slot *slot, uint64_t ticket, int when, int unless, int clear, int set, int *before) {
    uint64_t word = atomic_load(&slot->word);
    do {
        int flags = word & 0xff;
        if (word >> 8 != generation_of(ticket) || (flags & when) != when || (flags & unless)) return false;
        *before = flags;
    } while (!atomic_compare_exchange_weak(&slot->word, &word, (word & ~(uint64_t)clear) | set));
    return true;
}

void point_unreserve(uint64_t ticket) {
    struct slot *slot = slot_at(ticket);
    int before;
    if (!slot || !transition(slot, ticket, RESERVED, ARMED, RESERVED, 0, &before)) return;
    struct queue *queue = slot->queue;
    slot_release(slot);
    queue_unref(queue);
}

/* ------------------------------------------------------------------------------------------------ firing */

static bool awaits_firing(uint64_t ticket) {
    struct slot *slot = slot_at(ticket);
    if (!slot) return false;
    uint64_t word = atomic_load(&slot->word);
    return word >> 8 == generation_of(ticket) && (word & ARMED) && !(word & (FIRED | QUARANTINED | DISARMED));
}

/* The driver was given the ticket, and its consumer has not yet seen the end of it. */
bool point_is_live(uint64_t ticket) {
    struct slot *slot = slot_at(ticket);
    uint64_t word = slot ? atomic_load(&slot->word) : 0;
    return slot && word >> 8 == generation_of(ticket) && (word & ARMED) && !(word & DISARMED);
}

/* The GPU has come to the point. On a driver thread: no GIL, no allocation. The last thing it does is to count itself out
 * of the queue, which may be recycled from then on. */
void point_fire(uint64_t ticket, int64_t status) {
    struct slot *slot = slot_at(ticket);
    int before;
    /* The watcher and the consumer may move the slot between the two attempts: then they are made again. */
    while (slot && awaits_firing(ticket)) {
        if (transition(slot, ticket, ARMED | FAILED | QUEUED, FIRED | DISARMED, 0, FIRED | OWED, &before)) {
            /* The watcher has failed the waiter and the consumer has not looked yet: it will see both and release. */
            atomic_fetch_add(&counters[POINTS_FIRED], 1);
            atomic_fetch_sub(&counters[POINTS_LEAKED], 1);
            return;
        }
        if (transition(slot, ticket, ARMED, FIRED | QUEUED | QUARANTINED | DISARMED, 0, FIRED | QUEUED, &before)) {
            /* Nobody else polls at the slot until it is pushed. */
            struct queue *queue = slot->queue;
            atomic_store(&slot->fire_status, status);
            atomic_fetch_add(&counters[POINTS_FIRED], 1);
            if (before & FAILED) atomic_fetch_sub(&counters[POINTS_LEAKED], 1);
            else if (!in_graph(slot)) context_drop_pending(slot->context);
            queue_push(queue, slot);
            queue_unref(queue);
            return;
        }
    }
    atomic_fetch_add(&counters[POINTS_STALE], 1);
}

static void on_host_function(void *data) { point_fire((uint64_t)(uintptr_t)data, STATUS_UNKNOWN); }

static void on_callback(void *stream, int status, void *data) {
    (void)stream;
    point_fire((uint64_t)(uintptr_t)data, status);
}

static void on_python_host_function(void *data) {
    uint64_t ticket = (uint64_t)(uintptr_t)data;
    if (awaits_firing(ticket)) python_dispatch(ticket, CUDA_SUCCESS);
    point_fire(ticket, STATUS_UNKNOWN);
}

static void on_python_callback(void *stream, int status, void *data) {
    (void)stream;
    uint64_t ticket = (uint64_t)(uintptr_t)data;
    if (awaits_firing(ticket)) python_dispatch(ticket, status);
    point_fire(ticket, status);
}

static void on_foreign(void *data) {
    uint64_t ticket = (uint64_t)(uintptr_t)data;
    if (awaits_firing(ticket)) {
        struct slot *slot = slot_at(ticket);
        slot->foreign(slot->foreign_data);
    }
    point_fire(ticket, STATUS_UNKNOWN);
}

/* In a graph: at each launch. The ticket stays armed. */
static void on_graph_host_function(void *data) {
    uint64_t ticket = (uint64_t)(uintptr_t)data;
    if (awaits_firing(ticket)) python_dispatch(ticket, CUDA_SUCCESS);
}

/* The user object's destructor: nothing will call the function any more. On whatever thread the driver likes. */
static void on_graph_released(void *data) { point_fire((uint64_t)(uintptr_t)data, CUDA_SUCCESS); }

/* ------------------------------------------------------------------------------------------------ arming */

int capture_refusal(void *stream) {
    int capturing = 0;
    int status = driver.stream_is_capturing(stream, &capturing);
    if (status >= CUDA_CAPTURE_FIRST && status <= CUDA_CAPTURE_LAST) return -status; /* 906: the legacy stream */
    if (status != CUDA_SUCCESS) return status;
    return capturing ? RESULT_CAPTURING - (capturing - 1) : 0; /* 1 active: -900; 2 invalidated: -901 */
}

static int launch(const struct slot *slot, void *stream, host_function function, void *data) {
    if (slot->sync_mode >= 0) return driver.launch_host_func_v2(stream, function, data, slot->sync_mode);
    return driver.launch_host_func(stream, function, data);
}

static int enqueue(struct slot *slot, uint64_t ticket, void *stream) {
    void *data = (void *)(uintptr_t)ticket;
    switch (slot->kind) {
    case KIND_CALLBACK: return driver.stream_add_callback(stream, on_callback, data, 0);
    case KIND_PYTHON_CALLBACK: return driver.stream_add_callback(stream, on_python_callback, data, 0);
    case KIND_PYTHON_HOST: return launch(slot, stream, on_python_host_function, data);
    case KIND_FOREIGN: return launch(slot, stream, on_foreign, data);
    case KIND_GRAPH_PYTHON: return launch(slot, stream, on_graph_host_function, data);
    case KIND_GRAPH_FOREIGN: return launch(slot, stream, slot->foreign, slot->foreign_data);
    default: return launch(slot, stream, on_host_function, data);
    }
}

/* The driver refused: nothing will ever fire. The watcher may have failed the point meanwhile, in which case the consumer
 * has it on its stack (and releases it) or has had it (and it is released here). */
static void disarm(struct slot *slot, uint64_t ticket) {
    int before;
    struct queue *queue = slot->queue;
    struct context *context = slot->context;
    bool queued = transition(slot, ticket, ARMED | FAILED | QUEUED, FIRED, 0, DISARMED | OWED, &before);
    if (!queued && !transition(slot, ticket, ARMED, FIRED | QUEUED, ARMED, 0, &before)) {
        /* Queued between the two transitions: from now on only this thread and the consumer move it. */
        queued = transition(slot, ticket, ARMED | FAILED | QUEUED, FIRED, 0, DISARMED | OWED, &before);
        if (!queued && !transition(slot, ticket, ARMED, FIRED | QUEUED, ARMED, 0, &before)) return; /* it fired after all */
    }
    atomic_fetch_sub(&counters[POINTS_ARMED], 1);
    if (before & FAILED) atomic_fetch_sub(&counters[POINTS_LEAKED], 1);
    else context_drop_pending(context);
    if (queued) return;
    slot_release(slot);
    queue_unref(queue);
}

enum { NO_DESTRUCTOR_SYNC = 1, MOVE_REFERENCE = 1 };

struct capture {
    int status; /* CUstreamCaptureStatus: none, active, invalidated */
    uint64_t id; /* these two only while it is active */
    void *graph;
};

static int capture_of(void *stream, struct capture *capture) {
    *capture = (struct capture){0};
    return driver.capture_info(stream, &capture->status, &capture->id, &capture->graph, NULL, NULL);
}

/* Makes a host function a node of the graph that the stream captures into. The graph is given the owner before the node, so
 * that no node is ever without; from then on the user object's destructor alone ends the point, also when a later step fails
 * (the ticket is then still live, and its consumer drops it). */
static int point_capture(struct slot *slot, uint64_t ticket, void *stream) {
    struct capture capture, after;
    void *object;
    int before;
    int status = capture_of(stream, &capture);
    if (status == CUDA_SUCCESS && capture.status != 1) status = RESULT_CAPTURING; /* it has just ended: the caller may try again */
    if (status == CUDA_SUCCESS)
        status = driver.user_object_create(&object, (void *)(uintptr_t)ticket, on_graph_released, 1, NO_DESTRUCTOR_SYNC);
    if (status != CUDA_SUCCESS) {
        point_unreserve(ticket);
        return status;
    }
    slot->kind = slot->kind == KIND_FOREIGN ? KIND_GRAPH_FOREIGN : KIND_GRAPH_PYTHON;
    atomic_fetch_add(&counters[POINTS_ARMED], 1);
    transition(slot, ticket, RESERVED, ARMED, RESERVED, ARMED, &before);
    status = driver.graph_retain_user_object(capture.graph, object, 1, MOVE_REFERENCE);
    if (status != CUDA_SUCCESS) {
        driver.user_object_release(object, 1);
        return status;
    }
    status = enqueue(slot, ticket, stream);
    if (status != CUDA_SUCCESS) {
        driver.graph_release_user_object(capture.graph, object, 1);
        return status;
    }
    if (capture_of(stream, &after) != CUDA_SUCCESS || after.status == 2) return CUDA_SUCCESS; /* the graph will be destroyed */
    if (after.status == 1 && after.id == capture.id) return CUDA_SUCCESS;
    /* Another thread ended the capture meanwhile: what was enqueued may be plain work of the stream, which no graph keeps. The
     * ticket is never used again, so a firing does nothing; what was given to it is kept for ever. */
    if (!transition(slot, ticket, ARMED, FIRED | FAILED, 0, QUARANTINED, &before)) return CUDA_SUCCESS;
    atomic_fetch_add(&counters[POINTS_QUARANTINED], 1);
    atomic_fetch_add(&counters[POINTS_LEAKED], 1);
    queue_unref(slot->queue);
    return RESULT_QUARANTINED;
}

static bool may_be_captured(const struct slot *slot) { return slot->kind == KIND_PYTHON_HOST || slot->kind == KIND_FOREIGN; }

/* Called without the GIL, under RELAXED. On any answer but 0 and RESULT_QUARANTINED the ticket is gone, or about to be. */
int point_arm(uint64_t ticket, void *stream) {
    struct slot *slot = slot_at(ticket);
    int before;
    int refusal = capture_refusal(stream);
    if (refusal == RESULT_CAPTURING && may_be_captured(slot)) return point_capture(slot, ticket, stream);
    if (refusal) {
        point_unreserve(ticket);
        return refusal;
    }
    context_add_pending(slot->context);
    atomic_fetch_add(&counters[POINTS_ARMED], 1);
    transition(slot, ticket, RESERVED, ARMED, RESERVED, ARMED, &before);
    int status = enqueue(slot, ticket, stream);
    if (status != CUDA_SUCCESS) {
        disarm(slot, ticket);
        return status;
    }
    if (capture_refusal(stream) >= 0) return CUDA_SUCCESS;
    /* A capture is on now: our function may have become a node, to run once for each launch of the graph, or never. Or it
     * went in just before, and fires once. Nobody can tell, so the ticket is never given to anybody else. */
    if (transition(slot, ticket, ARMED, FIRED | FAILED, 0, QUARANTINED, &before)) {
        atomic_fetch_add(&counters[POINTS_QUARANTINED], 1);
        atomic_fetch_add(&counters[POINTS_LEAKED], 1);
        context_drop_pending(slot->context);
        queue_unref(slot->queue); /* a firing that comes is stale, and touches no queue */
        return RESULT_QUARANTINED;
    }
    return CUDA_SUCCESS; /* it has fired already, so it was no node */
}

uint64_t point_watch(struct queue *queue, struct context *context) {
    uint64_t ticket = point_reserve(queue, context, KIND_WATCHED);
    if (!ticket) return 0;
    int before;
    context_add_pending(context);
    atomic_fetch_add(&counters[POINTS_ARMED], 1);
    transition(slot_at(ticket), ticket, RESERVED, ARMED, RESERVED, ARMED, &before);
    return ticket;
}

/* ------------------------------------------------------------------------------------------------ the consumer */

static struct slot *reversed(struct slot *slot) {
    struct slot *result = NULL;
    while (slot) {
        struct slot *next = slot->next;
        slot->next = result;
        result = slot;
        slot = next;
    }
    return result;
}

static void consumer_release(struct slot *slot) {
    struct queue *queue = slot->queue;
    bool owed = atomic_load(&slot->word) & OWED;
    slot_release(slot);
    if (owed) queue_unref(queue);
}

/* What the consumer does with one slot that it has taken off a stack; false: emit refused, and it belongs back on one. */
static bool consume(struct slot *slot, emit_function emit, void *context) {
    uint64_t word = atomic_load(&slot->word);
    uint64_t ticket = (word >> 8) << SLOT_BITS | slot->index;
    int before = word & 0xff;
    if (before & FIRED) {
        int64_t status = before & FAILED && slot->fail_status ? slot->fail_status : slot->fire_status;
        if (!emit(context, ticket, status, true)) return false;
        consumer_release(slot);
        return true;
    }
    /* Failed by the watcher. If it fires or is disarmed before the transition, that is seen there. */
    if (!(before & DISARMED) && !emit(context, ticket, slot->fail_status, false)) return false;
    if (!transition(slot, ticket, QUEUED, FIRED | DISARMED, QUEUED, 0, &before)) {
        if (!(atomic_load(&slot->word) & DISARMED) && !emit(context, ticket, slot->fail_status, true)) return false;
        consumer_release(slot);
    }
    return true;
}

bool queue_drain(struct queue *queue, emit_function emit, void *context) {
    uint64_t ignored;
    while (read(queue->eventfd, &ignored, sizeof ignored) < 0 && errno == EINTR) {}
    /* Who reads `wakeup_suppressed` before this has pushed before, and is found on the stack (both sequentially consistent). */
    atomic_store(&queue->wakeup_suppressed, false);
    struct slot *slot = reversed(atomic_exchange(&queue->head, NULL));
    /* Of a few together: a single one may have come to a loop that by_hostfunc, whose slow waking says nothing of its turns. */
    if (slot && slot->next && slot->next->next) queue_note_lag(queue, now_ns() - atomic_load(&queue->pushed));
    while (slot) {
        struct slot *next = slot->next;
        if (!consume(slot, emit, context)) {
            /* Put the rest back, newest on top as it was, and come again. */
            struct slot *oldest = slot, *newest = reversed(slot);
            stack_push(queue, newest, oldest);
            if (atomic_load(&queue->closed)) push_to_orphans(queue);
            else queue_wake(queue);
            return false;
        }
        slot = next;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------ the watcher's side */

/* Fails every waiter of a context. The points stay armed: a stream callback still comes, and a host function might. */
void points_fail(struct context *context, int status) {
    uint32_t chunk_total = atomic_load(&chunk_count);
    for (uint32_t i = 0; i < chunk_total; i++) {
        struct slot *chunk = atomic_load(&chunks[i]);
        for (int j = 0; j < CHUNK_SLOTS; j++) {
            struct slot *slot = &chunk[j];
            uint64_t word = atomic_load(&slot->word);
            if (!(word & ARMED) || word & (FIRED | FAILED | QUARANTINED) || slot->context != context) continue;
            if (in_graph(slot)) continue; /* nobody waits for it, and its destructor comes all the same */
            if (slot->kind == KIND_WATCHED) continue; /* the driver has no ticket of it: the watcher fires it with the status */
            uint64_t ticket = (word >> 8) << SLOT_BITS | slot->index;
            int before;
            atomic_store(&slot->fail_status, status);
            if (!transition(slot, ticket, ARMED, FIRED | FAILED | QUARANTINED, 0, FAILED | QUEUED, &before)) continue;
            atomic_fetch_add(&counters[POINTS_LEAKED], 1);
            context_drop_pending(context);
            queue_push(slot->queue, slot);
        }
    }
}

static int64_t count_pending(bool captured_only) {
    int64_t pending = 0;
    uint32_t chunk_total = atomic_load(&chunk_count);
    for (uint32_t i = 0; i < chunk_total; i++) {
        struct slot *chunk = atomic_load(&chunks[i]);
        for (int j = 0; j < CHUNK_SLOTS; j++) {
            uint64_t word = atomic_load(&chunk[j].word);
            if (!(word & ARMED) || word & (FIRED | FAILED | QUARANTINED | DISARMED)) continue;
            if (!captured_only || in_graph(&chunk[j])) pending++;
        }
    }
    return pending;
}

/* Counted slot by slot, and not from the counters, so that the ledger checks one against the other. */
int64_t points_pending(void) { return count_pending(false); }
int64_t points_captured(void) { return count_pending(true); }
