/* All interleavings of a few threads of the native code: the life of a point, queues, handles. See
 * explore.h. Run by test_interleavings.py.
 *
 * The threads are those of the library: the GPU's (the driver calls the host function), the watcher
 * (points_fail), a loop (the consumer), the janitor (who takes what closed loops leave behind).
 * What is promised of a point: its completion is delivered once, to the queue on which it was
 * opened, or to the janitor if that queue was closed; and it may be announced as failed once,
 * before. A queue with something on it is readable. A queue that was closed comes back when all
 * points have ended, and not before.
 */
#include "explore.h"
#include "waker.h"

enum { POINTS = 4, NOT_FATAL = 999, STATUS_FAILED = 3 };
enum { STREAM_PLAIN = 16, STREAM_REFUSES = 32, STREAM_CAPTURES = 48, PRIVATE_STREAM = 80 };
enum who { NONE, LOOP, JANITOR, NEW_LOOP };

static struct queue *queue, *orphans;
static struct context *context, *healthy; /* the watcher fails the points of the former */
static struct {
    uint64_t ticket;
    int passed, failed;
    enum who by; /* who has had the end of it */
    int64_t status;
} points[POINTS];
static int point_count, refusals; /* how many times emit will refuse */
static int capture_checks;

static bool emit(void *argument, uint64_t ticket, int64_t status, bool complete) {
    if (refusals && refusals--) return false;
    for (int i = 0; i < point_count; i++) {
        if (points[i].ticket != ticket) continue;
        HOLDS(!points[i].passed, "point %d was delivered after its end", i);
        if (complete) {
            points[i].passed = 1;
            points[i].by = *(enum who *)argument;
            points[i].status = status;
        } else {
            HOLDS(!points[i].failed, "point %d has failed twice", i);
            points[i].failed = 1;
        }
        return true;
    }
    violated("a ticket was delivered that is no longer in use");
    return false;
}

static bool drain(struct queue *from, enum who who) { return queue_drain(from, emit, &who); }

static int launch(void *stream, host_function function, void *data) {
    (void)function, (void)data;
    return (uintptr_t)stream == STREAM_REFUSES ? NOT_FATAL : 0;
}
static int add_callback(void *stream, stream_callback callback, void *data, unsigned flags) {
    (void)stream, (void)callback, (void)data, (void)flags;
    return 0;
}
static int is_capturing(void *stream, int *status) {
    *status = (uintptr_t)stream == STREAM_CAPTURES &&
              capture_checks++ > 0; /* it begins between the two checks */
    return 0;
}
static int get_id(void *handle, uint64_t *id) {
    (void)handle, *id = 1;
    return 0;
}
static int push(void *handle) {
    (void)handle;
    return 0;
}
static int pop(void **handle) {
    (void)handle;
    return 0;
}
static int exchange(int *mode) {
    (void)mode;
    return 0;
}

/* A point that is reserved; its number. */
static int reserve_on(struct queue *where, struct context *of, enum point_kind kind) {
    points[point_count].ticket = point_reserve(where, of, kind);
    HOLDS(points[point_count].ticket, "no ticket");
    return point_count++;
}
static int arm_on(struct queue *where, struct context *of, enum point_kind kind) {
    int number = reserve_on(where, of, kind);
    HOLDS(point_arm(points[number].ticket, (void *)STREAM_PLAIN) == 0, "refused");
    return number;
}

static void begin(void) {
    memset(points, 0, sizeof points);
    point_count = refusals = capture_checks = 0;
    queue = queue_open();
}
static void begin_one(void) { begin(), arm_on(queue, context, KIND_CALLBACK); }
static void begin_two(void) {
    begin(), arm_on(queue, context, KIND_CALLBACK), arm_on(queue, context, KIND_CALLBACK);
}
static void begin_reserved(void) { begin(), reserve_on(queue, context, KIND_HOST_FUNCTION); }

/* What is left on a queue must have woken its consumer. */
static void take_rest(struct queue *from, enum who who) {
    bool woken = queue_is_readable(from);
    int before = 0, after = 0;
    for (int i = 0; i < point_count; i++) before += points[i].passed + points[i].failed;
    while (!drain(from, who)) {
    }
    for (int i = 0; i < point_count; i++) after += points[i].passed + points[i].failed;
    HOLDS(woken || before == after,
          "something has arrived, and the descriptor is not readable: a wake-up was lost");
}

/* All have ended once, the loop's for the loop; all points and references are given back. */
static void require_all_ended(void) {
    for (int i = 0; i < point_count; i++)
        HOLDS(points[i].passed, "point %d was never delivered", i);
    HOLDS(points_pending().all == 0 && contexts_pending() == 0, "points are pending");
    HOLDS(counters[POINTS_ARMED] == counters[POINTS_FIRED] && counters[POINTS_LEAKED] == 0,
          "%lld were armed, %lld fired, %lld leaked", (long long)counters[POINTS_ARMED],
          (long long)counters[POINTS_FIRED], (long long)counters[POINTS_LEAKED]);
}
static void require_recycled(struct queue *closed) {
    HOLDS(queue_open() == closed, "a queue was closed and did not come back");
}
static void end_with_loop(void) {
    take_rest(queue, LOOP);
    require_all_ended();
    for (int i = 0; i < point_count; i++)
        HOLDS(points[i].by == LOOP, "point %d was not delivered to its loop", i);
    queue_close(queue);
    require_recycled(queue);
}

/* --- a loop that is open --- */

static void fire_0(void) { point_fire(points[0].ticket, 0); }
static void fire_1(void) { point_fire(points[1].ticket, 0); }
static void fail(void) { points_fail(context, STATUS_FAILED); }
static void drain_twice(void) { drain(queue, LOOP), drain(queue, LOOP); }
static void drain_once(void) { drain(queue, LOOP); }
static void drain_busy(void) {
    queue->wakeup_suppressed = true;
    drain(queue, LOOP);
}
static void drain_refusing(void) {
    refusals = 1;
    drain(queue, LOOP);
    drain(queue, LOOP);
}

/* Of two firings of one ticket one counts, also when its memory is another point's by then. */
static void drain_and_reserve(void) {
    drain(queue, LOOP);
    if (points[0].passed) arm_on(queue, context, KIND_CALLBACK);
    drain(queue, LOOP);
    HOLDS(point_count < 2 || !points[1].passed,
          "a late firing has fired the next point of this memory");
}
static void end_reserved(void) {
    HOLDS(counters[POINTS_STALE] == 1, "%lld late firings", (long long)counters[POINTS_STALE]);
    if (point_count > 1) fire_1();
    end_with_loop();
}

/* The watcher fails a point that the driver refuses at the same moment. It is announced as failed,
 * or not at all. */
static int arm_answer;
static void arm_refused(void) { arm_answer = point_arm(points[0].ticket, (void *)STREAM_REFUSES); }
static void end_refused(void) {
    take_rest(queue, LOOP);
    HOLDS(arm_answer == NOT_FATAL, "the refusal was not reported");
    if (points[0].passed)
        HOLDS(points[0].status == STATUS_FAILED, "a refused point was delivered as complete");
    points[0].passed = 1;
    require_all_ended();
    queue_close(queue);
    require_recycled(queue);
}

/* A capture begins while a point is armed: it is kept, unless it has fired or failed before. */
static void arm_captured(void) {
    arm_answer = point_arm(points[0].ticket, (void *)STREAM_CAPTURES);
}
static void end_captured(void) {
    take_rest(queue, LOOP);
    if (arm_answer == RESULT_QUARANTINED) {
        HOLDS(!points[0].passed && !points[0].failed, "a point was delivered, and kept as well");
        HOLDS(counters[POINTS_LEAKED] == 1 && contexts_pending() == 0,
              "it is not counted as leaked");
        HOLDS(queue_drain(queue, emit, NULL), "nothing is there");
    } else {
        HOLDS(arm_answer == 0, "the arming answered %d", arm_answer);
        /* failed, and the driver comes later */
        if (!points[0].passed) fire_0(), take_rest(queue, LOOP);
        require_all_ended();
    }
    queue_close(queue);
    require_recycled(queue);
}

/* --- a loop that closes --- */

static struct queue *new_queue;
static int new_point;

/* A loop closes, and a new one gets its queue if that has come back. A point of the new one, of a
 * healthy context, fires and is the new one's. */
static void open_new(void) {
    new_queue = queue_open();
    new_point = arm_on(new_queue, healthy, KIND_HOST_FUNCTION);
    point_fire(points[new_point].ticket, STATUS_UNKNOWN);
    drain(new_queue, NEW_LOOP);
    HOLDS(points[new_point].passed && points[new_point].by == NEW_LOOP,
          "a completion was taken from the new owner of a recycled queue");
}
static void close_and_open_new(void) {
    queue_close(queue);
    drain(orphans, JANITOR);
    open_new();
}
static void drain_and_close(void) {
    drain(queue, LOOP);
    queue_close(queue);
}
static void drain_close_and_open_new(void) {
    drain(queue, LOOP);
    close_and_open_new();
}
static void drain_orphans(void) { drain(orphans, JANITOR); }
static void end_closed(void) {
    take_rest(orphans, JANITOR);
    require_all_ended();
    for (int i = 0; i < point_count; i++)
        HOLDS(points[i].by != NONE, "point %d was not delivered", i);
    if (new_queue && new_queue != queue) require_recycled(queue);
    new_queue = NULL;
}
static void begin_one_closing(void) { begin_one(), new_queue = NULL; }
static void begin_two_closing(void) { begin_two(), new_queue = NULL; }

/* --- handles --- */

static struct handle *handle;
static int64_t users; /* of what the handle stands for */
static int destroyed, released;

static int destroy(void *value) {
    (void)value;
    note_use(&users, 0, REOPENS, __builtin_return_address(0));
    HOLDS(users == 0, "destroyed under a user");
    HOLDS(!released, "destroyed after it was given away");
    destroyed++;
    return 0;
}
static void begin_handle(void) { destroyed = released = 0; }
static void use(void) {
    if (!handle_pin(handle)) return;
    HOLDS(!destroyed && !released, "a use of what is gone");
    note_use(&users, 1, PUSHES, __builtin_return_address(0));
    note_use(&users, -1, HAS_PUSHED, __builtin_return_address(0));
    handle_unpin(handle);
}
static void close_it(void) { handle_close(handle); }
static void share(void) { handle_share(handle); }
static void release_it(void) {
    if (!handle_release(handle, false)) return;
    note_use(&users, 0, REOPENS, __builtin_return_address(0));
    HOLDS(users == 0 && !destroyed, "given away under a user");
    released++;
}
static void end_handle(void) {
    handle_close(handle);
    HOLDS(destroyed + released + (int)counters[HANDLES_RETIRED] == 1,
          "destroyed %d times, given away %d times, retired %d times", destroyed, released,
          (int)counters[HANDLES_RETIRED]);
    HOLDS(!handle_pin(handle) && counters[HANDLES_OPEN] == 0, "a closed handle took a use");
}

/* --- the watcher parks --- */

/* If a point is armed, the watcher is awake, or will be woken: else both threads have ended but for
 * the watcher, which waits. */
static bool never(void) { return false; }
static void arm(void) { point_arm(points[0].ticket, (void *)STREAM_PLAIN); }
static void park(void) {
    waker_set_parked(true);
    if (contexts_pending() == 0) waker_sleep_until(INT64_MAX, never);
    waker_set_parked(false);
}
static void end_parking(void) {
    fire_0();
    end_with_loop();
}

static const struct scenario scenarios[] = {
    {"two firings, drained",
     begin_two,
     {{"driver", fire_0}, {"other driver", fire_1}, {"loop", drain_twice}},
     end_with_loop,
     0},
    {"two firings, drained by a busy loop",
     begin_two,
     {{"driver", fire_0}, {"other driver", fire_1}, {"loop", drain_busy}},
     end_with_loop,
     0},
    {"two firings, a drain that stops",
     begin_two,
     {{"driver", fire_0}, {"other driver", fire_1}, {"loop", drain_refusing}},
     end_with_loop,
     0},
    {"one ticket fires twice, its point is used again",
     begin_one,
     {{"driver", fire_0}, {"other driver", fire_0}, {"loop", drain_and_reserve}},
     end_reserved,
     0},
    {"fired and failed, drained",
     begin_one,
     {{"driver", fire_0}, {"watcher", fail}, {"loop", drain_twice}},
     end_with_loop,
     0},
    {"fired and failed, a drain that stops",
     begin_one,
     {{"driver", fire_0}, {"watcher", fail}, {"loop", drain_refusing}},
     end_with_loop,
     0},
    {"refused and failed, drained",
     begin_reserved,
     {{"task", arm_refused}, {"watcher", fail}, {"loop", drain_twice}},
     end_refused,
     0},
    {"armed into a capture, fired, failed, drained",
     begin_reserved,
     {{"task", arm_captured}, {"driver", fire_0}, {"watcher", fail}, {"loop", drain_once}},
     end_captured,
     0},
    {"two firings, the loop closes, a new one opens",
     begin_two_closing,
     {{"driver", fire_0}, {"other driver", fire_1}, {"loop", close_and_open_new}},
     end_closed,
     0},
    {"fired and failed, the loop closes, a new one opens",
     begin_one_closing,
     {{"driver", fire_0}, {"watcher", fail}, {"loop", close_and_open_new}},
     end_closed,
     0},
    {"fired and failed, drained, the loop closes, a new one opens",
     begin_one_closing,
     {{"driver", fire_0}, {"watcher", fail}, {"loop", drain_close_and_open_new}},
     end_closed,
     0},
    {"fired and failed, the loop closes, the janitor drains",
     begin_one_closing,
     {{"driver", fire_0}, {"watcher", fail}, {"loop", drain_and_close}, {"janitor", drain_orphans}},
     end_closed,
     0},
    {"a handle is used twice and closed",
     begin_handle,
     {{"user", use}, {"other user", use}, {"closer", close_it}},
     end_handle,
     0},
    {"a handle is used twice and given away",
     begin_handle,
     {{"user", use}, {"other user", use}, {"taker", release_it}},
     end_handle,
     0},
    {"a handle is used, given away and closed",
     begin_handle,
     {{"user", use}, {"closer", close_it}, {"taker", release_it}},
     end_handle,
     0},
    {"a handle is used, shared and closed",
     begin_handle,
     {{"user", use}, {"sharer", share}, {"closer", close_it}},
     end_handle,
     0},
    {"the watcher parks while a point is armed",
     begin_reserved,
     {{"task", arm}, {"watcher", park}},
     end_parking,
     true},
};

int main(int count, char **arguments) {
    driver = (struct driver_calls){
        .launch_host_func = launch,
        .stream_add_callback = add_callback,
        .stream_is_capturing = is_capturing,
        .ctx_get_id = get_id,
        .ctx_push = push,
        .ctx_pop = pop,
        .exchange_capture_mode = exchange,
        .stream_destroy = destroy,
    };
    orphans = queue_open();
    bool is_taken;
    context = context_register(&context, 1, (void *)PRIVATE_STREAM, &is_taken);
    healthy = context_register(&healthy, 2, (void *)PRIVATE_STREAM, &is_taken);
    struct queue *spare[3];
    for (int i = 0; i < 3; i++) {
        spare[i] = queue_open();
        point_unreserve(point_reserve(spare[i], context, KIND_HOST_FUNCTION)); /* makes slots */
    }
    for (int i = 0; i < 3; i++) queue_close(spare[i]);
    handle = handle_new(HANDLE_STREAM, &handle, NULL, true);
    REQUIRE(waker_open() == 0, "no descriptors");
    make_coroutines();
    int64_t total = 0;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (count > 1 && !strstr(scenarios[i].name, arguments[1])) continue;
        explore(&scenarios[i]);
        total += complete_runs;
    }
    printf("%lld interleavings, all of them\n", (long long)total);
    return 0;
}
