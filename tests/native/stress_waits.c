/* Drives the staged waits with a fake driver: tasks in several threads begin, poll, leave, are given back and go on, while streams
 * move, contexts fail, and host functions on helpers run at once, late or never. Built with ThreadSanitizer and with
 * AddressSanitizer by test_native.py.
 *
 * Usage: stress_waits SECONDS SEED. Ends with code 0 and one line per part, or with the first promise that was broken.
 */
#include "fake_gpu.h"

#include <poll.h>
#include <sys/resource.h>

enum { TASKS = 12, LOOPS = 3, SLOTS = 1 << 16 };

static void python_dispatch(uint64_t ticket, int status) {
    broken("host function %llx, %d: nobody armed one", (unsigned long long)ticket, status);
}

/* ------------------------------------------------------------------------------------------------ tasks and their loops */

static _Atomic bool stop_tasks, stop_janitor;
static _Atomic bool few_tasks; /* one in each loop, on regular streams: the conditions under which waits are given back */

enum task_state { IDLE, SPINNING, WATCHED };
struct task {
    enum task_state state;
    struct wait *wait;
    uint64_t ticket;
    struct position target; /* what it waits for was enqueued by then */
    int context;
    bool cancelled;
    int returned; /* how often it was given back */
};
/* By slot; written by the loop that began the wait, read by whoever is delivered its ticket. */
static struct {
    uint64_t ticket;
    int context;
    struct task *task; /* of the loop that drains its own queue */
} tickets[SLOTS];

struct loop {
    pthread_t thread;
    uint64_t seed;
    struct queue *queue;
    struct task tasks[TASKS];
    struct wait_list *wait_lists[CONTEXTS][STREAMS]; /* the same in every loop */
};
static _Atomic int64_t begun_count, delivered, orphaned, handed_back, dropped, ended, failures, captured, outstanding[CONTEXTS];

static void await_wake(struct queue *queue, const char *who) {
    struct pollfd descriptor = {.fd = queue_descriptor(queue), .events = POLLIN};
    REQUIRE(poll(&descriptor, 1, 20000) == 1, "%s was not woken within 20 s", who);
}

static void task_ends(struct task *task, int64_t status) {
    if (status == 0 || status == STATUS_UNKNOWN) {
        REQUIRE(is_over(task->target), "a wait ended before its stream was there");
        relaxed_add(&ended, 1);
    } else {
        bool refused = status == ERROR_REFUSED || status == RESULT_CAPTURING;
        REQUIRE(refused || status == ERROR_FAILED, "a wait ended with %lld", (long long)status);
        relaxed_add(&failures, 1);
    }
    relaxed_add(&outstanding[task->context], -1);
    *task = (struct task){0};
}

static struct task *taken(uint64_t ticket, int *context) {
    uint32_t index = ticket & 0xffffff;
    REQUIRE(index < SLOTS, "slot %u: more slots than waits in flight", index);
    REQUIRE(tickets[index].ticket == ticket, "ticket %llx was fired twice, or is of nobody", (unsigned long long)ticket);
    tickets[index].ticket = 0;
    *context = tickets[index].context;
    relaxed_add(&delivered, 1);
    return tickets[index].task;
}

static bool emit(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused;
    int context;
    if (chance(100) == 0) return false; /* as a drain that runs out of memory does */
    struct task *task = taken(ticket, &context);
    REQUIRE(complete, "a watched ticket failed without being passed");
    REQUIRE(task->state == WATCHED && task->ticket == ticket, "a task was delivered a ticket that is not its own");
    struct wait *wait = wait_handed_back(status);
    if (!wait) {
        task_ends(task, status);
        return true;
    }
    REQUIRE(++task->returned == 1, "a wait was given back twice");
    relaxed_add(&handed_back, 1);
    task->ticket = 0;
    if (task->cancelled) {
        wait_drop(wait);
        relaxed_add(&dropped, 1);
        relaxed_add(&outstanding[task->context], -1);
        *task = (struct task){0};
    } else {
        task->state = SPINNING;
        task->wait = wait;
    }
    return true;
}

static bool emit_orphan(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused, (void)complete;
    int context;
    if (chance(100) == 0) return false;
    taken(ticket, &context);
    relaxed_add(&orphaned, 1);
    relaxed_add(&outstanding[context], -1);
    struct wait *wait = wait_handed_back(status);
    if (wait) wait_drop(wait);
    return true;
}

static void *janitor(void *argument) {
    struct queue *orphans = argument;
    seed_thread(3, 3);
    for (;;) {
        await_wake(orphans, "the janitor");
        while (!queue_drain(orphans, emit_orphan, NULL)) {}
        if (atomic_load(&stop_janitor)) return NULL;
    }
}

static void note_begun(struct task *task, const struct wait_result *result) {
    task->wait = result->spinning;
    task->ticket = result->ticket;
    task->state = result->spinning ? SPINNING : WATCHED;
    if (!result->ticket) return;
    uint32_t index = result->ticket & 0xffffff;
    REQUIRE(index < SLOTS, "slot %u: more slots than waits in flight", index);
    tickets[index].ticket = result->ticket;
    tickets[index].context = task->context;
    tickets[index].task = task;
}

static void begin(struct loop *loop, struct task *task) {
    bool few = atomic_load(&few_tasks);
    int context = (int)chance(CONTEXTS), number = (int)chance(few ? REGULAR : STREAMS);
    struct stream *stream = &streams[context][number];
    struct wait_list *list = loop->wait_lists[context][number];
    enum wait_mode mode = few || chance(3) ? WAIT_AUTO : chance(2) ? WAIT_EVENT : WAIT_SPIN;
    struct event users = {.recorded = true, .context = context};
    bool for_event = !few && chance(5) == 0, own_list = for_event || (!few && chance(6) == 0);
    if (own_list) list = wait_list_new(contexts[context], chance(2) && !for_event); /* it ends with its last wait */
    if (chance(3) == 0) enqueue_work(stream);
    *task = (struct task){.context = context, .target = {stream, relaxed_load(&stream->end), relaxed_load(&stream->last_due)}};
    if (for_event) users.position = enqueue_work(stream), task->target = users.position;
    capture_checks = 0;
    was_taken = false;
    capture_begins = for_event || chance(50) ? 1000 : (int)chance(2);
    struct wait_result result;
    relaxed_add(&outstanding[context], 1);
    int mode_before = relaxed_enter();
    wait_begin(list, stream, for_event ? &users : NULL, loop->queue, mode, &result);
    relaxed_leave(mode_before);
    if (for_event && result.refusal == RESULT_NO_HELPER) {
        void *helper;
        if (helper_make(contexts[context], &helper) == 0) helper_put(contexts[context], helper, true);
    }
    if (own_list) wait_list_unref(list);
    if (was_taken) {
        REQUIRE(result.refusal == RESULT_CAPTURING, "a capture has taken the event, and nobody noticed");
        relaxed_add(&captured, 1);
    }
    REQUIRE(!result.ticket || !result.spinning, "two answers at once");
    capture_begins = 1000;
    relaxed_add(&begun_count, 1);
    if (result.ticket || result.spinning) {
        REQUIRE(result.refusal == 0, "begun, and refused with %d", result.refusal);
        note_begun(task, &result);
    } else {
        task_ends(task, result.refusal == RESULT_NO_HELPER ? ERROR_REFUSED : result.refusal);
    }
}

static void poll_task(struct loop *loop, struct task *task) {
    struct wait_result result = {.spinning = task->wait};
    int mode = relaxed_enter();
    bool over = wait_poll(task->wait, loop->queue, &result);
    relaxed_leave(mode);
    if (!over) return;
    if (result.ticket) note_begun(task, &result);
    else task_ends(task, result.refusal);
}

static void leave(struct task *task) {
    if (task->state == SPINNING) {
        wait_drop(task->wait);
        relaxed_add(&dropped, 1);
        relaxed_add(&outstanding[task->context], -1);
        *task = (struct task){0};
    } else if (task->state == WATCHED) {
        task->cancelled = true; /* it stays registered until its ticket is delivered */
    }
}

/* One turn of a loop. */
static void turn(struct loop *loop, bool may_begin) {
    int spinning = 0, watched = 0;
    for (int i = 0; i < TASKS; i++) {
        struct task *task = &loop->tasks[i];
        if (task->state == IDLE && may_begin && (i == 0 || !atomic_load(&few_tasks)) && chance(4) == 0) begin(loop, task);
        else if (task->state == SPINNING && chance(60) == 0) leave(task);
        else if (task->state == SPINNING) poll_task(loop, task);
        else if (task->state == WATCHED && chance(400) == 0) leave(task);
        spinning += task->state == SPINNING;
        watched += task->state == WATCHED;
    }
    if (watched && !spinning && chance(2)) await_wake(loop->queue, "a loop");
    do waits_hand_back_due(loop->queue);
    while (!queue_drain(loop->queue, emit, NULL));
    if (chance(3) == 0) nanosleep(&(struct timespec){.tv_nsec = chance(200000)}, NULL);
}

static void close_queue(struct queue *queue) {
    waits_leave_loop(queue);
    queue_close(queue);
}

static void *loop(void *argument) {
    struct loop *self = argument;
    seed_thread(self->seed, self->seed);
    self->queue = queue_open();
    while (!atomic_load(&stop_tasks)) {
        turn(self, true);
        if (chance(500)) continue;
        /* The loop is closed with its tasks in all stages; those that spin are told, the others are the janitor's. */
        close_queue(self->queue);
        for (int i = 0; i < TASKS; i++) {
            if (self->tasks[i].state == SPINNING) leave(&self->tasks[i]);
            self->tasks[i] = (struct task){0};
        }
        self->queue = queue_open();
    }
    for (bool busy = true; busy;) {
        turn(self, false);
        busy = false;
        for (int i = 0; i < TASKS; i++) {
            /* A task that polls itself for ever is left to the GPU, which still moves. */
            busy |= self->tasks[i].state != IDLE;
        }
    }
    close_queue(self->queue);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ failing contexts */

static bool emit_canary(void *argument, uint64_t ticket, int64_t status, bool complete) {
    (void)ticket, (void)complete;
    *(int64_t *)argument = status;
    return true;
}

/* Fails a context and has it come back, which no GPU does: everything that the failure concerned must have been settled by then.
 * The watcher fails its waits before its points, so a point that has failed says that this has happened. */
static void fail_and_recover(int context) {
    struct queue *queue = queue_open();
    int64_t failure = 0;
    uint64_t canary = point_reserve(queue, contexts[context], KIND_HOST_FUNCTION);
    int mode = relaxed_enter();
    REQUIRE(point_arm(canary, &health[context]) == 0, "the canary was refused");
    relaxed_leave(mode);
    relaxed_store(&hides_failure, chance(2));
    relaxed_store(&failed[context], true);
    nanosleep(&(struct timespec){.tv_nsec = chance(3000000)}, NULL);
    relaxed_store(&hides_failure, false);
    while (!failure) {
        await_wake(queue, "the canary");
        queue_drain(queue, emit_canary, &failure);
    }
    REQUIRE(failure == ERROR_FAILED, "the canary died of %lld", (long long)failure);
    watcher_stop();
    recover(context);
    REQUIRE(watcher_start() == 0, "the watcher did not start again");
    point_fire(canary, STATUS_UNKNOWN);
    while (!queue_drain(queue, emit_canary, &failure)) {}
    queue_close(queue);
}

/* ------------------------------------------------------------------------------------------------ the parts */

static int64_t last_status;
static uint64_t awaited;

static bool emit_awaited(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused, (void)complete;
    if (ticket == awaited) awaited = 0, last_status = status;
    return true;
}

/* Waits until one ticket has been delivered, if it was not already with another one. */
static int64_t await_ticket(struct queue *queue, uint64_t ticket, int64_t patience, const char *what) {
    int64_t deadline = now_ns() + patience;
    awaited = point_is_live(ticket) ? ticket : 0;
    while (awaited) {
        struct pollfd descriptor = {.fd = queue_descriptor(queue), .events = POLLIN};
        poll(&descriptor, 1, 1);
        waits_hand_back_due(queue);
        REQUIRE(queue_drain(queue, emit_awaited, NULL), "the drain stopped");
        REQUIRE(!awaited || now_ns() < deadline, "%s", what);
    }
    return last_status;
}

static struct wait_result begin_one(struct wait_list *list, struct stream *stream, struct queue *queue, enum wait_mode mode) {
    struct wait_result result;
    int before = relaxed_enter();
    wait_begin(list, stream, NULL, queue, mode, &result);
    relaxed_leave(before);
    REQUIRE(result.refusal == 0 && (result.ticket || result.spinning), "refused with %d", result.refusal);
    return result;
}

/* Looks until the wait is the watcher's. */
static uint64_t spin_out(struct wait_result result, struct queue *queue) {
    struct wait *wait = result.spinning;
    REQUIRE(wait, "it does not spin");
    int before = relaxed_enter();
    while (!wait_poll(wait, queue, &result)) sched_yield();
    relaxed_leave(before);
    REQUIRE(result.ticket, "it ended with %d", result.refusal);
    return result.ticket;
}

/* Its records say in which order the waits of a stream end, whatever the order in which the watcher gets them. */
static void order(struct queue *queue) {
    struct stream *stream = &streams[0][STREAMS - 1];
    struct wait_list *list = wait_list_new(contexts[0], true);
    enqueue_work(stream);
    struct wait_result first = begin_one(list, stream, queue, WAIT_AUTO);
    int64_t position = relaxed_load(&stream->end);
    uint64_t second = begin_one(list, stream, queue, WAIT_EVENT).ticket;
    uint64_t third = begin_one(list, stream, queue, WAIT_EVENT).ticket;
    uint64_t ticket = spin_out(first, queue);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    relaxed_store(&stream->done, position);
    REQUIRE(await_ticket(queue, ticket, 5 * SECOND, "a wait is held up by later ones of its stream") == 0, "it failed");
    REQUIRE(point_is_live(second) && point_is_live(third), "a later wait ended first");
    finish(stream);
    await_ticket(queue, third, 5 * SECOND, "the last wait does not end");
    REQUIRE(!point_is_live(second), "the second wait came after the third");
    while (run_a_function()) {} /* the first, by its host function */
    wait_list_unref(list);
    printf("order: a wait that comes late to the watcher is not late\n");
}

static struct wait_list *shared_list;
static struct queue *shared_queue;
static uint64_t recorded_within;
static int64_t position_within;

static void record_within(void) {
    struct stream *stream = &streams[0][STREAMS - 1];
    recorded_within = begin_one(shared_list, stream, shared_queue, WAIT_EVENT).ticket;
    position_within = relaxed_load(&stream->end);
}

/* Two threads record at once: the one that began first may come second in the stream. And where there is no order at all (the
 * per-thread stream), each wait ends by itself. */
static void no_order(struct queue *queue) {
    struct stream *stream = &streams[0][STREAMS - 1], *other = &streams[0][STREAMS - 2];
    shared_list = wait_list_new(contexts[0], true);
    shared_queue = queue;
    enqueue_work(stream);
    during_record = record_within;
    uint64_t around = begin_one(shared_list, stream, queue, WAIT_EVENT).ticket;
    relaxed_store(&stream->done, position_within);
    await_ticket(queue, recorded_within, 5 * SECOND, "a wait is held up by one that was recorded at the same time");
    REQUIRE(point_is_live(around), "it ended too early");
    finish(stream);
    await_ticket(queue, around, 5 * SECOND, "it does not end");
    wait_list_unref(shared_list);

    struct wait_list *unordered = wait_list_new(contexts[0], false);
    enqueue_work(stream);
    enqueue_work(other);
    uint64_t first = begin_one(unordered, stream, queue, WAIT_EVENT).ticket;
    uint64_t second = begin_one(unordered, other, queue, WAIT_EVENT).ticket;
    finish(other);
    await_ticket(queue, second, 5 * SECOND, "a wait is held up by one of another thread's stream");
    REQUIRE(point_is_live(first), "it ended too early");
    finish(stream);
    await_ticket(queue, first, 5 * SECOND, "it does not end");
    wait_list_unref(unordered);
    printf("no order: waits that have none do not hold each other up\n");
}

static int by_size(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

/* A watcher that has nothing to poll soon is woken by a new wait. */
static void wake(struct queue *queue) {
    enum { TRIALS = 21 };
    struct stream *stream = &streams[0][STREAMS - 1];
    struct wait_list *list = wait_list_new(contexts[0], true);
    int64_t delays[TRIALS];
    for (int i = 0; i < TRIALS; i++) {
        nanosleep(&(struct timespec){.tv_nsec = chance(12000000)}, NULL);
        enqueue_work(stream);
        uint64_t ticket = begin_one(list, stream, queue, WAIT_EVENT).ticket;
        finish(stream);
        int64_t began = now_ns();
        await_ticket(queue, ticket, 5 * SECOND, "a wait that is over does not end");
        delays[i] = now_ns() - began;
    }
    qsort(delays, TRIALS, sizeof *delays, by_size);
    REQUIRE(delays[TRIALS / 2] < 4 * MILLISECOND, "the watcher is not woken: half of the waits took %lld us",
            (long long)(delays[TRIALS / 2] / 1000));
    wait_list_unref(list);
    printf("wake: a watcher that dozes sees the end of a new wait after %lld us\n", (long long)(delays[TRIALS / 2] / 1000));
}

static uint64_t begin_until_hostfunc(struct wait_list *list, struct stream *stream, struct queue *queue) {
    enqueue_work(stream);
    struct wait_result result = begin_one(list, stream, queue, WAIT_AUTO);
    uint64_t ticket = result.ticket ? result.ticket : spin_out(result, queue);
    int64_t deadline = now_ns() + 5 * SECOND;
    while (functions_pending() == 0) {
        REQUIRE(now_ns() < deadline, "an old wait is given no host function: %lld were", (long long)counters[WAITS_BY_HOSTFUNC]);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return ticket;
}

/* Waits behind one that sleeps are looked at when its host function has run, and not in their turn, which is much later. */
static void awaken(struct queue *queue) {
    struct stream *stream = &streams[0][STREAMS - 1];
    struct wait_list *list = wait_list_new(contexts[0], true);
    int64_t least = SECOND;
    for (int i = 0; i < 5; i++) {
        uint64_t first = begin_until_hostfunc(list, stream, queue);
        uint64_t second = begin_one(list, stream, queue, WAIT_EVENT).ticket;
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL); /* the watcher is asleep, or not: both may happen */
        finish(stream);
        int64_t began = now_ns();
        REQUIRE(run_a_function(), "its host function was not due");
        int64_t status = await_ticket(queue, first, 5 * SECOND, "a host function wakes nobody");
        REQUIRE(status == STATUS_UNKNOWN || status == 0, "it came with %lld", (long long)status);
        await_ticket(queue, second, 5 * SECOND, "the wait behind it does not end");
        if (now_ns() - began < least) least = now_ns() - began;
    }
    REQUIRE(least < 20 * MILLISECOND, "a wait behind one with a host function was noticed after %lld us", (long long)(least / 1000));
    wait_list_unref(list);
    printf("awaken: a wait behind one that by_hostfunc is noticed after %lld us\n", (long long)(least / 1000));
}

/* A context may fail while a wait of it sleeps, seen first by its own event or by the health; and between the event's
 * completion and the host function. Neither its place among the sleepers nor the watcher's peace may be lost with it. */
static void hostfunc_in_a_failing_context(struct queue *queue) {
    struct wait_list *list = wait_list_new(contexts[0], true);
    struct stream *stream = &streams[0][STREAMS - 1];
    int64_t lost = atomic_load(&counters[WAITS_LEAKED]);
    for (int i = 0; i < 9; i++) {
        uint64_t ticket = begin_until_hostfunc(list, stream, queue);
        if (i % 3 == 2) finish(stream); /* the host function comes too late */
        else relaxed_store(&hides_failure, i % 3);
        if (i % 3 != 2) relaxed_store(&failed[0], true);
        int64_t status = await_ticket(queue, ticket, 5 * SECOND, "a wait hangs although its context has failed");
        REQUIRE(status == (i % 3 == 2 ? 0 : ERROR_FAILED), "it ended with %lld", (long long)status);
        relaxed_store(&failed[0], true);
        relaxed_store(&hides_failure, false);
        int64_t deadline = now_ns() + 5 * SECOND;
        while (atomic_load(&counters[WAITS_LEAKED]) < lost + i + 1) {
            REQUIRE(now_ns() < deadline, "case %d: the record of a wait that by_hostfunc is not let go of", i % 3);
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        }
        watcher_stop();
        recover(0);
        REQUIRE(watcher_start() == 0, "the watcher did not start again");
    }
    wait_list_unref(list);
    printf("failing: 9 waits by_hostfunc while their context failed, and left nothing behind\n");
}

static struct wait_list *wait_lists[CONTEXTS][STREAMS];
static pthread_t gpu;

static void stress(struct queue *orphans, double seconds, uint64_t seed) {
    static struct loop loops[LOOPS];
    pthread_t janitor_thread;
    atomic_store(&unruly, true);
    for (int context = 0; context < CONTEXTS; context++)
        for (int i = 0; i < STREAMS; i++) wait_lists[context][i] = wait_list_new(contexts[context], i != REGULAR); /* one of them unordered */
    pthread_create(&gpu, NULL, moving, NULL);
    pthread_create(&janitor_thread, NULL, janitor, orphans);
    for (int i = 0; i < LOOPS; i++) {
        loops[i].seed = seed + (uint64_t)i;
        for (int context = 0; context < CONTEXTS; context++)
            for (int j = 0; j < STREAMS; j++) loops[i].wait_lists[context][j] = wait_lists[context][j];
        pthread_create(&loops[i].thread, NULL, loop, &loops[i]);
    }
    int64_t end = now_ns() + (int64_t)(seconds * 1e9);
    for (int round = 0; now_ns() < end; round++) {
        atomic_store(&few_tasks, round % 2);
        nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL); /* the length of a round; nothing waits for it */
        if (round % 2 == 0) fail_and_recover((int)chance(CONTEXTS));
    }
    atomic_store(&stop_tasks, true);
    for (int i = 0; i < LOOPS; i++) pthread_join(loops[i].thread, NULL);
    int64_t deadline = now_ns() + 20 * SECOND;
    while (atomic_load(&outstanding[0]) + atomic_load(&outstanding[1]) > 0) {
        REQUIRE(now_ns() < deadline, "%lld and %lld waits never ended", (long long)outstanding[0], (long long)outstanding[1]);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int context = 0; context < CONTEXTS; context++)
        for (int i = 0; i < STREAMS; i++) relaxed_store(&streams[context][i].period, 0); /* all come to their end now */
    while (functions_pending()) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_store(&stop_janitor, true);
    queue_wake(orphans);
    pthread_join(janitor_thread, NULL);
    /* The GPU goes on until all records are back: see require_all_back. */
    atomic_store(&unruly, false);
    REQUIRE(points_pending() == 0, "%lld points are pending", (long long)points_pending());
    REQUIRE(counters[POINTS_ARMED] == counters[POINTS_FIRED], "%lld were armed, %lld fired", (long long)counters[POINTS_ARMED],
            (long long)counters[POINTS_FIRED]);
    REQUIRE(counters[POINTS_LEAKED] == 0 && counters[POINTS_STALE] == 0, "leaked or stale");
    for (int i = 0; i < SLOTS; i++)
        REQUIRE(tickets[i].ticket == 0, "ticket %llx never fired", (unsigned long long)tickets[i].ticket);
}

/* Begins waits until a new event has to be made: as many as there are records in the pools. */
static int64_t take_all(int context, struct queue *queue) {
    static struct stream ours[CONTEXTS]; /* which nobody else moves: a wait on it must find something to wait for */
    struct stream *stream = &ours[context];
    stream->context = context;
    struct wait_list *list = wait_list_new(contexts[context], false);
    int64_t made = atomic_load(&events_made), taken = 0, capacity = made + 2;
    struct wait **waits = calloc((size_t)capacity, sizeof *waits);
    finish(stream);
    while (atomic_load(&events_made) == made) {
        enqueue_work(stream);
        waits[taken++] = begin_one(list, stream, queue, WAIT_SPIN).spinning;
    }
    finish(stream);
    for (int64_t i = 0; i < taken; i++) {
        struct wait_result result = {.spinning = waits[i]};
        int before = relaxed_enter();
        REQUIRE(wait_poll(waits[i], queue, &result) && result.refusal == 0, "it is over, and was not seen");
        relaxed_leave(before);
    }
    REQUIRE(*(_Atomic int64_t *)list == 1, "the first field of a wait list, its references, is not 1"); /* only the owner's are left */
    wait_list_unref(list);
    free(waits);
    return taken - 1;
}

/* With nothing to do the watcher parks: a process that waits for nothing costs nothing. */
static void require_peace(void) {
    struct rusage before, after;
    for (int i = 0; i < 50; i++) {
        getrusage(RUSAGE_SELF, &before);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        getrusage(RUSAGE_SELF, &after);
        if (after.ru_nvcsw - before.ru_nvcsw < 20) return;
    }
    broken("the watcher finds no peace: %ld wake-ups in 100 ms", after.ru_nvcsw - before.ru_nvcsw);
}

/* Nothing is pending for a wait that was dropped, and yet the watcher must see to its record. */
static void dropped_to_a_parked_watcher(struct queue *queue) {
    struct stream *stream = &streams[0][STREAMS - 1];
    struct wait_list *list = wait_list_new(contexts[0], true);
    int64_t records = take_all(0, queue), deadline = now_ns() + 5 * SECOND;
    enqueue_work(stream);
    struct wait *wait = begin_one(list, stream, queue, WAIT_SPIN).spinning;
    wait_drop(wait);
    finish(stream);
    for (int64_t more = 1; take_all(0, queue) < records + more; more++) { /* each poll makes one more */
        REQUIRE(now_ns() < deadline, "the record of a dropped wait does not come back");
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    wait_list_unref(list);
    require_peace();
    printf("dropped: a parked watcher takes a dropped wait back, and parks again\n");
}

static void require_all_back(struct queue *queue) {
    int64_t deadline = now_ns() + 20 * SECOND, known = 0, lost = 0, taken = 0, helpers;
    do {
        REQUIRE(now_ns() < deadline, "of %lld records %lld were lost and only %lld are back", (long long)known, (long long)lost,
                (long long)taken);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        known = atomic_load(&events_made);
        lost = atomic_load(&counters[WAITS_LEAKED]);
        taken = take_all(0, queue) + take_all(1, queue);
    } while (taken < known - lost);
    REQUIRE(taken == known - lost, "%lld records, %lld lost, %lld back", (long long)known, (long long)lost, (long long)taken);
    helpers = helpers_made - helpers_destroyed - helper_count(contexts[0]) - helper_count(contexts[1]);
    REQUIRE(helpers >= 0 && helpers <= 2 * lost, "%lld helpers are missing, and %lld records", (long long)helpers,
            (long long)lost);
    printf("records: %lld, all back but %lld, %lld times taken by a capture; helpers: %lld, all back but %lld\n", (long long)known,
           (long long)lost, (long long)captured, (long long)helpers_made, (long long)helpers);
    for (int context = 0; context < CONTEXTS; context++) {
        for (int i = 0; i < STREAMS; i++) {
            int64_t refs = *(_Atomic int64_t *)wait_lists[context][i];
            REQUIRE(refs == 1, "a wait list has %lld references too many", (long long)refs - 1);
            wait_list_unref(wait_lists[context][i]);
        }
    }
}

int main(int count, char **arguments) {
    driver = fake_driver;
    points_set_dispatcher(python_dispatch);
    double seconds = count > 1 ? atof(arguments[1]) : 1.0;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    seed_thread(seed, 1000);
    struct queue *orphans = queue_open(), *queue = queue_open();
    for (int context = 0; context < CONTEXTS; context++) {
        health[context].context = context;
        contexts[context] = context_register(&contexts, &health[context], context);
        for (int i = 0; i < STREAMS; i++) {
            streams[context][i].context = context;
            if (i < REGULAR) relaxed_store(&streams[context][i].period, (300 + 900 * i) * MICROSECOND);
        }
    }
    REQUIRE(watcher_start() == 0, "the watcher did not start");
    order(queue);
    no_order(queue);
    waits_predict(false); /* these are not to be expected */
    wake(queue);
    awaken(queue);
    hostfunc_in_a_failing_context(queue);
    waits_predict(true);
    require_peace();
    dropped_to_a_parked_watcher(queue);
    stress(orphans, seconds, seed);
    printf("waits: %lld begun, %lld ended, %lld refused or failed, %lld dropped, %lld orphaned, %lld given back; %lld by_timer, %lld "
           "by_hostfunc\n",
           (long long)begun_count, (long long)ended, (long long)failures, (long long)dropped, (long long)orphaned,
           (long long)handed_back, (long long)counters[WAITS_BY_TIMER], (long long)counters[WAITS_BY_HOSTFUNC]);
    bool met = ended > 0 && failures > 0 && dropped > 0 && orphaned > 0 && handed_back > 0 && captured > 0;
    met &= counters[WAITS_BY_HOSTFUNC] > 20 && counters[WAITS_BY_TIMER] > 20 && counters[WAITS_HANDED_BACK] > 20;
    REQUIRE(met, "the run was too short to meet everything");
    require_all_back(queue);
    atomic_store(&stop_moving, true);
    pthread_join(gpu, NULL);
    require_peace();
    watcher_stop();
    return 0;
}
