/* The engine: the one thread that moves all streams, so that a seed reproduces an order.
 *
 * A stream is in the ready ring when its head may be able to move. The engine takes one stream at a
 * time and moves it by one op. An op that cannot move waits where its cause will find it: in the
 * timer heap, among the polled words, on a marker, in its context's host queue, or behind a
 * hardware queue or the legacy stream. With nothing ready, the engine sleeps until the next timer,
 * for one polling interval if an op waits for a memory word, or until another thread wakes it.
 */
#include "../driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* All under sim.lock. */
static struct op **timers; /* binary heap by u.kernel.end */
static size_t timer_count, timer_space;
static struct op **words; /* ARMED OP_WAIT_VALUE, in the order they were reached */
static size_t word_count, word_space;
static uint64_t last_look; /* own_time() when the engine last polled the words, or had none */
static bool carrying_out;  /* run_unlocked carries out an op, without the lock */
/* a fault has come, and waits for that op to end before it abandons the streams */
static bool abandoning;
static struct waiter *settled_waiters;

/* --- timers --- */

static void timer_swap(size_t a, size_t b) {
    struct op *op = timers[a];
    timers[a] = timers[b];
    timers[b] = op;
}

static bool timer_before(size_t a, size_t b) {
    const struct op *first = timers[a], *second = timers[b];
    if (first->u.kernel.end != second->u.kernel.end)
        return first->u.kernel.end < second->u.kernel.end;
    return first->sequence < second->sequence;
}

static void timer_add(struct op *op, uint64_t end) {
    op->state = ARMED;
    op->u.kernel.end = end;
    timers = alloc_room(timers, timer_count, &timer_space, sizeof(void *));
    size_t i = timer_count++;
    timers[i] = op;
    for (; i > 0 && timer_before(i, (i - 1) / 2); i = (i - 1) / 2) timer_swap(i, (i - 1) / 2);
}

static struct op *timer_take(void) {
    struct op *first = timers[0];
    timers[0] = timers[--timer_count];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < timer_count; child++)
            if (timer_before(child, least)) least = child;
        if (least == i) return first;
        timer_swap(i, least);
        i = least;
    }
}

static void run_timers(void) {
    uint64_t now = now_ns();
    while (timer_count > 0 && timers[0]->u.kernel.end <= now) {
        struct op *op = timer_take();
        CUresult code = kernel_fault(op);
        if (code != OK) {
            fault(code); /* frees op with everything else */
            return;
        }
        op_done(op);
    }
}

/* --- memory words --- */

static bool word_satisfied(const struct op *op) {
    uint64_t value = op->u.word.value, found;
    bool wide = op->u.word.width == 8;
    /* Acquire, because the work behind the gate must see what the host wrote before it opened the
     * gate. */
    if (wide) found = __atomic_load_n((uint64_t *)op->u.word.address, __ATOMIC_ACQUIRE);
    else found = __atomic_load_n((uint32_t *)op->u.word.address, __ATOMIC_ACQUIRE);
    switch (op->u.word.flags & 3) {
    case 0:
        return wide ? (int64_t)(found - value) >= 0
                    : (int32_t)((uint32_t)found - (uint32_t)value) >= 0;
    case 1:
        return found == value;
    case 2:
        return (found & value) != 0;
    default:
        return wide ? ~(found | value) != 0 : (uint32_t)~(found | value) != 0;
    }
}

/* How long this thread has run. What other programs of a busy machine do meanwhile is not in it. */
static uint64_t own_time(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The engine polls the words when nothing else is ready. By then every stream whose gate was
 * enqueued before the host opened it has come as far as its gate, and all that wait for one word
 * move together, in the order in which they came. Otherwise the instant of the host's write would
 * decide the order, and no seed could reproduce it. For the same reason there is a second pass once
 * a word has changed. Streams that are ready all the time would keep the engine from the words, so
 * it polls them also after a millisecond of other work. It is a millisecond of its own time: a
 * pause that the kernel makes brings no stream any further. */
static bool run_words(void) {
    bool any = false;
    last_look = own_time();
    for (size_t i = 0; i < word_count && !any; i++) any = word_satisfied(words[i]);
    if (!any) return false;
    size_t kept = 0, opened = 0;
    struct op **open = alloc_need(word_count * sizeof *open);
    for (size_t i = 0; i < word_count; i++)
        if (word_satisfied(words[i])) open[opened++] = words[i];
        else words[kept++] = words[i];
    word_count = kept;
    for (size_t i = 0; i < opened; i++) op_done(open[i]);
    free(open);
    return true;
}

/* --- moving --- */

/* Implicit ordering: an op of the legacy stream and an op of a blocking stream of its context never
 * pass each other. */
static bool legacy_blocks(struct stream *stream, const struct op *op) {
    struct context *context = stream->context;
    stream->legacy_blocked = false;
    if (stream->legacy) {
        for (struct stream *other = context->streams; other != NULL; other = other->next)
            if (other->blocking && other->head != NULL && other->head->sequence < op->sequence) {
                context->legacy_waits_for = other;
                return true;
            }
    } else if (stream->blocking && context->legacy != NULL) {
        const struct op *head = context->legacy->head;
        stream->legacy_blocked = head != NULL && head->sequence < op->sequence;
    }
    return stream->legacy_blocked;
}

static void abandon_all(void);

static void run_unlocked(struct op *op) {
    op->state = BUSY;
    carrying_out = true;
    pthread_mutex_unlock(&sim.lock);
    switch (op->kind) {
    case OP_KERNEL:
        kernel_run(op);
        break;
    case OP_COPY:
        memmove(op->u.copy.to, op->u.copy.from, op->u.copy.bytes);
        break;
    default: /* OP_FILL */
        if (op->u.fill.width == 1) memset(op->u.fill.to, (int)op->u.fill.value, op->u.fill.count);
        for (size_t i = 0; op->u.fill.width == 2 && i < op->u.fill.count; i++)
            ((uint16_t *)op->u.fill.to)[i] = (uint16_t)op->u.fill.value;
        for (size_t i = 0; op->u.fill.width == 4 && i < op->u.fill.count; i++)
            ((uint32_t *)op->u.fill.to)[i] = op->u.fill.value;
        break;
    }
    pthread_mutex_lock(&sim.lock);
    carrying_out = false;
    op_done(op);
    if (abandoning) abandon_all();
}

static void start_kernel(struct op *op) {
    uint64_t duration;
    CUresult code = kernel_fault(op);
    if (code != OK && sim.adversary.late_faults == 0) fault(code);
    else if (code != OK) timer_add(op, now_ns() + sim.adversary.late_faults);
    else if (kernel_is_timed(op, &duration)) timer_add(op, now_ns() + duration);
    else run_unlocked(op);
}

/* A program may have freed what a graph's work refers to since the node was made. On a GPU that is
 * an illegal address. */
static bool dangles(const struct op *op) {
    if (op->launch_refs == NULL) return false;
    switch (op->kind) {
    case OP_COPY:
        return (op->u.copy.known_to &&
                check_device_memory((uintptr_t)op->u.copy.to, op->u.copy.bytes) != OK) ||
               (op->u.copy.known_from &&
                check_device_memory((uintptr_t)op->u.copy.from, op->u.copy.bytes) != OK);
    case OP_FILL:
        return check_device_memory((uintptr_t)op->u.fill.to, op->u.fill.count * op->u.fill.width) !=
               OK;
    case OP_WAIT_VALUE:
    case OP_WRITE_VALUE:
        return check_device_memory((uintptr_t)op->u.word.address, op->u.word.width) != OK;
    default:
        return false;
    }
}

static void start(struct op *op) {
    struct marker *marker;
    if (dangles(op)) {
        fault(ILLEGAL_ADDRESS);
        return;
    }
    switch (op->kind) {
    case OP_KERNEL:
        start_kernel(op);
        break;
    case OP_COPY:
    case OP_FILL:
        run_unlocked(op);
        break;
    case OP_HOST:
    case OP_CALLBACK:
        host_push(op);
        break;
    case OP_RECORD:
        marker_finish(op->u.mark.marker, now_ns());
        op_done(op);
        break;
    case OP_WAIT_EVENT:
        marker = op->u.mark.marker;
        if (marker->done) {
            op_done(op);
            break;
        }
        op->state = ARMED;
        op->stream->marker_next = marker->blocked;
        marker->blocked = op->stream;
        break;
    case OP_WAIT_VALUE:
        op->state = ARMED; /* even if satisfied already: see run_words */
        op->u.word.since = now_ns();
        if (word_count == 0) last_look = own_time();
        words = alloc_room(words, word_count, &word_space, sizeof(void *));
        words[word_count++] = op;
        break;
    case OP_WRITE_VALUE:
        if (op->u.word.width == 8)
            __atomic_store_n((uint64_t *)op->u.word.address, op->u.word.value, __ATOMIC_RELEASE);
        else
            __atomic_store_n((uint32_t *)op->u.word.address, (uint32_t)op->u.word.value,
                             __ATOMIC_RELEASE);
        op_done(op);
        break;
    case OP_FREE:
        memory_freed(op->u.memory);
        op_done(op);
        break;
    case OP_EMPTY:
        op_done(op);
        break;
    }
}

static void advance(struct stream *stream) {
    struct op *op = stream->head;
    if (op == NULL) {
        stream_release(stream);
        return;
    }
    if (op->state != QUEUED) {
        if (op->kind == OP_WAIT_EVENT && op->u.mark.marker->done) op_done(op);
        return;
    }
    stream->queue_blocked = queue_blocks(stream, op);
    if (!stream->queue_blocked && !legacy_blocks(stream, op)) start(op);
}

/* --- faults --- */

static void abandon_op(struct op *op) {
    op->stream = NULL;
    switch (op->kind) {
    case OP_RECORD:
        marker_finish(op->u.mark.marker, now_ns());
        break;
    case OP_FREE:
        memory_freed(op->u.memory);
        break;
    case OP_HOST:
        if (!sim.adversary.fire_after_fault) break;
        host_push(op);
        return;
    case OP_CALLBACK: /* is called once with the status, whatever happens */
        host_push(op);
        return;
    default:
        break;
    }
    op_free(op);
}

static void abandon_stream(struct stream *stream) {
    struct op *op = stream->head;
    queue_unregister(stream);
    stream->head = stream->tail = NULL;
    stream->launches = 0;
    stream->queue_blocked = stream->legacy_blocked = false;
    while (op != NULL) {
        struct op *next = op->next;
        if (op->state == BUSY)
            op->stream =
                NULL; /* a host function that was already due still runs; its thread frees this */
        else abandon_op(op);
        op = next;
    }
    wake(&stream->waiters, UINT64_MAX);
}

static void abandon_all(void) {
    abandoning = false;
    timer_count = word_count = 0;
    /* First no stream waits on a marker any more, so that finishing a marker touches no stream. */
    for (size_t c = 0; c < sim.context_count; c++)
        for (struct stream *stream = sim.contexts[c]->streams; stream != NULL;
             stream = stream->next)
            if (stream->head != NULL && stream->head->kind == OP_WAIT_EVENT)
                stream->head->u.mark.marker->blocked = NULL;
    for (size_t c = 0; c < sim.context_count; c++) {
        struct context *context = sim.contexts[c];
        context->legacy_waits_for = NULL;
        for (struct stream *stream = context->streams, *next; stream != NULL; stream = next) {
            next = stream->next;
            abandon_stream(stream);
            stream_release(stream);
        }
        wake(&context->waiters, UINT64_MAX);
    }
    wake(&settled_waiters, UINT64_MAX);
}

/* Every call answers the error from here on. But the streams give up their ops, and their waiters
 * wake, only when the engine carries out no op, because that op reads and writes memory. An
 * abandoned cuMemFreeAsync could free that memory, or the blocked caller whose copy it is, or any
 * thread after a recovery, which would find nothing in flight to wait for. */
void fault(CUresult code) {
    if (sim.sticky != OK) return;
    sim.sticky = sim.last_fault = code;
    sim.fault_epoch++;
    abandoning = true;
    if (!carrying_out) abandon_all();
}

/* Waits until nothing is left of what a fault abandons. The engine's own thread must not call this,
 * because it is what is waited for. */
void fault_wait_settled(void) {
    while (abandoning) wait_on(&settled_waiters, 0);
}

/* --- the thread --- */

/* Every 50 us at first, because gates in tests open within milliseconds. A gate that stays shut
 * longer is not worth a third of a core. */
static uint64_t polling_interval(uint64_t now) {
    uint64_t youngest = 0;
    for (size_t i = 0; i < word_count; i++)
        if (words[i]->u.word.since > youngest) youngest = words[i]->u.word.since;
    return now - youngest < 20000000u ? 50000 : 200000;
}

static void sleep_until_needed(void) {
    uint64_t now = now_ns(), until = timer_count > 0 ? timers[0]->u.kernel.end : UINT64_MAX;
    if (word_count > 0 && now + polling_interval(now) < until) until = now + polling_interval(now);
    ready_wait(until);
}

static void *engine(void *unused) {
    (void)unused;
    me.is_engine = true;
    prctl(PR_SET_NAME, "sim-engine");
    /* the kernel's default, 50 us, would round every short kernel up */
    prctl(PR_SET_TIMERSLACK, 1000);
    pthread_mutex_lock(&sim.lock);
    for (;;) {
        run_timers();
        struct stream *stream = take_ready();
        if (stream != NULL) advance(stream);
        if (word_count > 0 && (stream == NULL || own_time() - last_look > 1000000) && run_words())
            continue;
        if (stream == NULL) sleep_until_needed();
    }
    return NULL;
}

/* By cuInit. */
CUresult engine_start(void) {
    ready_start();
    return start_thread(engine, NULL) ? OK : OPERATING_SYSTEM;
}
