/* The tasks of the stress of waits, their loops, the users' events for which they wait, and
 * contexts that fail. */
#ifndef AIOSTREAM_STRESS_TASKS_H
#define AIOSTREAM_STRESS_TASKS_H

#include "fake_gpu.h"

#include <poll.h>

enum {
    TASKS = 12,
    LOOPS = 3,
    TICKETS = 1 << 16,
    EVENTS = 4,
    USERS_EVENTS = 1 << 15,
    USERS_HANDLES = 1 << 20
};
/* of a wait that is over: after that nothing polls it any more */
static const int64_t FORGOTTEN_NS = 5000000000;

static _Atomic bool stop_tasks, stop_janitor;
/* one in each loop, on regular streams: the conditions under which waits are handed back */
static _Atomic bool few_tasks;

enum task_state { IDLE, SPINNING, WATCHED };
struct task {
    enum task_state state;
    struct wait *spinning;
    uint64_t ticket;
    struct position target; /* what it waits for was enqueued by then */
    int context;
    bool cancelled;
    bool future;          /* its ticket is for all its life */
    struct wait *wait;    /* of a future, another's once the ticket was fired */
    int64_t polled;       /* when it took the wait or polled it last */
    bool may_be_captured; /* it began while its event was, or was being, recorded into a capture */
    int returned;         /* how often it was handed back */
    int64_t over_since;   /* when its loop saw its target reached */
};
/* By point. Written by the loop that began the wait, read by the thread that gets its ticket. */
static struct {
    uint64_t ticket;
    int context;
    struct task *task; /* of the loop that drains its own queue */
} tickets[TICKETS];

struct loop {
    pthread_t thread;
    uint64_t seed;
    struct queue *queue;
    struct task tasks[TASKS];
};
static _Atomic int64_t begun_count, delivered, orphaned, handed_back, repeated, dropped, ended,
    failures, captured;
static _Atomic int64_t outstanding[CONTEXTS];
static _Atomic int64_t futures_begun, futures_dropped, events_awaited, events_recorded,
    records_refused, events_closed;

static struct shared_history *histories[2];
static struct wait_list *wait_lists[CONTEXTS][STREAMS];
enum { LIMIT_NS = 200000 };

static void await_wake(struct queue *queue, const char *who) {
    struct pollfd descriptor = {.fd = queue->descriptor, .events = POLLIN};
    REQUIRE(poll(&descriptor, 1, 20000) == 1, "%s was not woken within 20 s", who);
}

/* --- users' events --- */

/* An Event. `handle` is that of its Operand. The test keeps the handles that were replaced, and
 * closes them at once. */
struct users_event {
    _Atomic(struct handle *) handle;
    int context;
    _Atomic bool closed;
    _Atomic int64_t started, finished; /* records of it */
};
static struct users_event users_events[USERS_EVENTS];
static struct handle *users_handles[USERS_HANDLES];
static _Atomic int64_t users_event_count, users_handle_count, replaced_count;
static _Atomic(struct users_event *) current_events[EVENTS];

static struct handle *keep(struct handle *handle) {
    int64_t number = relaxed_add(&users_handle_count, 1);
    if (number < USERS_HANDLES) users_handles[number] = handle;
    return handle;
}

static struct users_event *open_event(int context) { /* NULL: enough were opened */
    int64_t number = relaxed_add(&users_event_count, 1);
    if (number >= USERS_EVENTS) return NULL;
    struct users_event *event = &users_events[number];
    void *value;
    while (event_make(contexts[context], USERS_FLAGS, &value)) continue;
    event->context = context;
    event->handle = keep(handle_new(HANDLE_EVENT, value, contexts[context], true));
    return event;
}

static void close_event(struct users_event *event) {
    int mode = relaxed_enter();
    atomic_store(&event->closed, true);
    handle_close(atomic_load(&event->handle));
    relaxed_leave(mode);
}

/* As Event.record() does, also after another thread has closed the event. */
static int record_event_into(struct users_event *event, struct stream *stream, bool capture) {
    struct handle *handle = atomic_load(&event->handle), *fresh = NULL;
    relaxed_add(&event->started, 1);
    int mode = relaxed_enter();
    capture_checks = 0;
    capture_begins = capture ? 0 : NO_CAPTURE;
    int status = event_record(handle, stream, USERS_FLAGS, &fresh);
    capture_begins = NO_CAPTURE;
    REQUIRE(!fresh || status == 0, "a refused record has made an event");
    if (fresh) {
        handle_close(atomic_exchange(&event->handle, keep(fresh)));
        if (atomic_load(&event->closed)) handle_close(fresh);
        relaxed_add(&replaced_count, 1);
    }
    relaxed_leave(mode);
    relaxed_add(&event->finished, 1);
    return status;
}

static int record_event(struct users_event *event, struct stream *stream) {
    return record_event_into(event, stream, false);
}

static void disturb_event(void) {
    _Atomic(struct users_event *) *place = &current_events[chance(EVENTS)];
    struct users_event *event = atomic_load(place);
    if (chance(60) == 0) {
        struct users_event *next = open_event((int)chance(CONTEXTS));
        if (!next) return;
        /* If another thread has put in a new one meanwhile, this one is closed unused. */
        bool replaced = atomic_compare_exchange_strong(place, &event, next);
        close_event(replaced ? event : next);
        relaxed_add(&events_closed, 1);
        return;
    }
    int status =
        record_event_into(event, &streams[event->context][chance(STREAMS)], chance(20) == 0);
    bool refused = status == ERROR_REFUSED || status == ERROR_FAILED || status == RESULT_CLOSED ||
                   status == ERROR_CAPTURED;
    REQUIRE(status == 0 || refused, "an event was recorded with %d", status);
    relaxed_add(status ? &records_refused : &events_recorded, 1);
}

/* The target is known only if no record overlaps with this call in time: else it may be either
 * record. */
static bool begin_event(struct queue *queue, const struct strategy *strategy, struct task *task,
                        struct wait_result *result) {
    struct users_event *event = atomic_load(&current_events[chance(EVENTS)]);
    struct handle *handle = atomic_load(&event->handle);
    if (!handle_pin(handle)) return false;
    int64_t finished = relaxed_load(&event->finished), started = relaxed_load(&event->started);
    uint64_t packed = relaxed_load(&((struct event *)handle->value)->packed);
    *task = (struct task){.context = event->context};
    relaxed_add(&outstanding[task->context], 1);
    struct wait_list *list = wait_list_new(contexts[event->context], histories[1], NULL);
    wait_begin_event(&(struct waits){list, 0}, handle, queue, strategy, result);
    wait_list_unref(list);
    if (started == finished && relaxed_load(&event->started) == started)
        task->target = unpack(packed);
    task->may_be_captured = task->target.stream == NULL || (!result->ticket && !result->spinning);
    handle_unpin(handle);
    relaxed_add(&events_awaited, 1);
    return true;
}

/* --- tasks and their loops --- */

static void task_ends(struct task *task, int64_t status) {
    if (status == 0) {
        REQUIRE(is_over(task->target), "a wait ended before its stream was there");
        relaxed_add(&ended, 1);
    } else {
        bool refused =
            status == ERROR_REFUSED || status == RESULT_CAPTURING || status == RESULT_CLOSED;
        refused |= status == ERROR_CAPTURED && task->may_be_captured;
        REQUIRE(refused || status == ERROR_FAILED, "a wait ended with %lld", (long long)status);
        relaxed_add(&failures, 1);
    }
    relaxed_add(&outstanding[task->context], -1);
    *task = (struct task){0};
}

static struct task *taken(uint64_t ticket, int *context) {
    uint32_t index = ticket & 0xffffff;
    REQUIRE(index < TICKETS, "point %u: more than waits in flight", index);
    REQUIRE(tickets[index].ticket == ticket, "ticket %llx was fired twice, or is no task's",
            (unsigned long long)ticket);
    tickets[index].ticket = 0;
    *context = tickets[index].context;
    relaxed_add(&delivered, 1);
    return tickets[index].task;
}

static void drop(struct task *task, struct wait *wait) {
    wait_drop(wait);
    relaxed_add(&dropped, 1);
    relaxed_add(&outstanding[task->context], -1);
    *task = (struct task){0};
}

static void end_orphan(int context, int64_t status) {
    relaxed_add(&orphaned, 1);
    relaxed_add(&outstanding[context], -1);
    struct wait *wait = wait_handed_back(status);
    if (wait) wait_drop(wait);
}

static bool emit(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused;
    int context;
    if (chance(100) == 0) return false; /* as a drain that runs out of memory does */
    struct task *task = taken(ticket, &context);
    if (!task) { /* it was left just after it had come */
        end_orphan(context, status);
        return true;
    }
    REQUIRE(complete, "a watched ticket failed without being passed");
    REQUIRE(task->state == WATCHED && task->ticket == ticket,
            "a task was delivered a ticket that is not its own");
    struct wait *wait = wait_handed_back(status);
    if (!wait) {
        task_ends(task, status);
        return true;
    }
    REQUIRE(!task->future, "a future was handed back");
    relaxed_add(&handed_back, 1);
    if (++task->returned > 1) relaxed_add(&repeated, 1);
    task->ticket = 0;
    if (task->cancelled) {
        drop(task, wait);
    } else {
        task->state = SPINNING;
        task->spinning = wait;
    }
    return true;
}

static bool emit_orphan(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused, (void)complete;
    int context;
    if (chance(100) == 0) return false;
    taken(ticket, &context);
    end_orphan(context, status);
    return true;
}

static void *janitor(void *argument) {
    struct queue *orphans = argument;
    seed_thread(3, 3);
    for (;;) {
        await_wake(orphans, "the janitor");
        while (!queue_drain(orphans, emit_orphan, NULL)) {
        }
        handles_drop_abandoned();
        if (atomic_load(&stop_janitor)) return NULL;
    }
}

static void note_begun(struct task *task, const struct wait_result *result) {
    task->spinning = result->spinning;
    task->ticket = result->ticket;
    task->state = result->spinning ? SPINNING : WATCHED;
    if (!result->ticket) return;
    uint32_t index = result->ticket & 0xffffff;
    REQUIRE(index < TICKETS, "point %u: more than waits in flight", index);
    tickets[index].ticket = result->ticket;
    tickets[index].context = task->context;
    tickets[index].task = task;
}

/* As enqueue_async does: everything is reserved before the work is enqueued. */
static void begin_future(struct loop *loop, struct wait_list *list, struct stream *stream,
                         const struct strategy *strategy, struct task *task,
                         struct wait_result *result) {
    struct wait *wait;
    *result = (struct wait_result){0};
    result->refusal = wait_reserve(&(struct waits){list, LIMIT_NS}, loop->queue, strategy, &wait);
    if (result->refusal) return;
    uint64_t ticket = wait_ticket(wait);
    enqueue_work(stream);
    result->refusal = chance(50) ? wait_record_future(wait, stream) : ERROR_REFUSED;
    if (result->refusal) wait_unreserve(wait);
    else result->ticket = ticket;
    task->future = true;
    task->wait = wait;
    relaxed_add(&futures_begun, 1);
}

static void begin_stream(struct loop *loop, const struct strategy *strategy, bool few,
                         struct task *task, struct wait_result *result) {
    int context = (int)chance(CONTEXTS), number = (int)chance(few ? REGULAR : STREAMS);
    struct stream *stream = &streams[context][number];
    bool own_list = !few && chance(6) == 0; /* it ends with its last wait */
    struct wait_list *list = own_list ? wait_list_new(contexts[context], histories[0], NULL)
                                      : wait_lists[context][number];
    if (chance(3) == 0) enqueue_work(stream);
    *task = (struct task){.context = context, .target = {stream, end_of(stream)}};
    capture_checks = 0;
    was_taken = false;
    capture_begins = chance(50) ? NO_CAPTURE : (int)chance(2);
    relaxed_add(&outstanding[context], 1);
    if (chance(4))
        wait_begin(&(struct waits){list, LIMIT_NS}, stream, loop->queue, strategy, result);
    else begin_future(loop, list, stream, strategy, task, result);
    capture_begins = NO_CAPTURE;
    if (own_list) wait_list_unref(list);
    if (!was_taken) return;
    REQUIRE(result->refusal == RESULT_CAPTURING,
            "a capture has taken the event, and nothing noticed");
    relaxed_add(&captured, 1);
}

static void begin(struct loop *loop, struct task *task) {
    bool few = atomic_load(&few_tasks);
    const struct strategy *strategy = few || chance(3) ? WAIT_AUTO
                                      : chance(2)      ? WAIT_EVENT
                                                       : WAIT_SPIN;
    struct wait_result result;
    int before = relaxed_enter();
    bool begun = true;
    if (chance(few ? 12 : 3) == 0) begun = begin_event(loop->queue, strategy, task, &result);
    else begin_stream(loop, strategy, few, task, &result);
    relaxed_leave(before);
    if (!begun) return;
    REQUIRE(!result.ticket || !result.spinning, "two answers at once");
    relaxed_add(&begun_count, 1);
    if (result.ticket || result.spinning) {
        REQUIRE(result.refusal == 0, "begun, and refused with %d", result.refusal);
        note_begun(task, &result);
    } else {
        task_ends(task, result.refusal);
    }
}

static void poll_task(struct task *task) {
    struct wait_result result = {.spinning = task->spinning};
    int mode = relaxed_enter();
    wait_poll(task->spinning, &result);
    bool over = !result.spinning;
    relaxed_leave(mode);
    if (!over) return;
    if (result.ticket) note_begun(task, &result);
    else task_ends(task, result.refusal);
}

static void leave(struct task *task) {
    if (task->state == SPINNING) {
        drop(task, task->spinning);
    } else if (task->state == WATCHED && chance(2)) {
        task->cancelled = true; /* it stays registered until its ticket is delivered */
    } else if (task->state == WATCHED) {
        tickets[task->ticket & 0xffffff].task = NULL;
        if (task->future) relaxed_add(&futures_dropped, 1);
        wait_orphan(task->ticket);
        *task = (struct task){0};
    }
}

/* Whatever wakes its loop: a wait that is over must not be known to its task alone. */
static void require_not_forgotten(struct task *task) {
    if (!task->target.stream || !is_over(task->target)) return;
    if (!task->over_since) task->over_since = now_ns();
    REQUIRE(now_ns() - task->over_since < FORGOTTEN_NS, "a wait that is over is polled no more");
}

/* As the drain of a loop's queue does. */
static void run_due(struct queue *queue) {
    int mode = relaxed_enter();
    waits_run_due(queue);
    relaxed_leave(mode);
}

static void turn(struct loop *loop, bool may_begin) {
    int spinning = 0, watched = 0;
    for (int i = 0; i < TASKS; i++) {
        struct task *task = &loop->tasks[i];
        bool may = may_begin && (i == 0 || !atomic_load(&few_tasks));
        if (task->state == IDLE && may && chance(4) == 0) begin(loop, task);
        else if (task->state == SPINNING && chance(60) == 0) leave(task);
        else if (task->state == SPINNING) poll_task(task);
        else if (task->state == WATCHED && chance(400) == 0) leave(task);
        if (task->state == WATCHED) require_not_forgotten(task);
        spinning += task->state == SPINNING;
        watched += task->state == WATCHED;
    }
    if (chance(10) == 0) disturb_event();
    if (watched && !spinning && chance(2)) await_wake(loop->queue, "a loop");
    do run_due(loop->queue);
    while (!queue_drain(loop->queue, emit, NULL));
    if (chance(3) == 0) pause_for(chance(200000));
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
        /* The loop is closed with its tasks in all stages. Those that poll drop their waits; the
         * others are the janitor's. */
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
        /* A task that polls without end is left to the GPU, which still moves. */
        for (int i = 0; i < TASKS; i++) busy |= self->tasks[i].state != IDLE;
    }
    close_queue(self->queue);
    return NULL;
}

/* --- failing contexts --- */

static bool emit_canary(void *argument, uint64_t ticket, int64_t status, bool complete) {
    (void)ticket, (void)complete;
    *(int64_t *)argument = status;
    return true;
}

/* Fails a context and has it come back, which no GPU does: everything that the failure concerned
 * must have been settled by then. The watcher fails its waits before its points, so a point that
 * has failed says that this has happened. */
static void fail_and_recover(int context) {
    struct queue *queue = queue_open();
    int64_t failure = 0;
    uint64_t canary = point_reserve(queue, contexts[context], KIND_HOST_FUNCTION);
    int mode = relaxed_enter();
    REQUIRE(point_arm(canary, &health[context]) == 0, "the canary was refused");
    relaxed_leave(mode);
    relaxed_store(&hides_failure, chance(2));
    relaxed_store(&failed[context], true);
    pause_for(chance(3000000));
    relaxed_store(&hides_failure, false);
    while (!failure) {
        await_wake(queue, "the canary");
        queue_drain(queue, emit_canary, &failure);
    }
    REQUIRE(failure == ERROR_FAILED, "the canary died of %lld", (long long)failure);
    watcher_stop(ANY_PATIENCE_S);
    recover(context);
    REQUIRE(watcher_start() == 0, "the watcher did not start again");
    point_fire(canary, STATUS_UNKNOWN);
    while (!queue_drain(queue, emit_canary, &failure)) {
    }
    queue_close(queue);
}

#endif
