/* Drives the native files with a fake driver: threads that arm, fire (late, twice, at once), fail,
 * drain and close queues, and threads that pin, close and release handles. Built with
 * ThreadSanitizer and with AddressSanitizer by test_native.py.
 *
 * Usage: stress SECONDS SEED. Ends with code 0 and one line per part, or with the first promise
 * that was broken.
 *
 * What is known of a ticket stands in `fates`, in plain fields on purpose: a point may be reserved
 * again only after its last delivery, and ThreadSanitizer sees here whether the native files make
 * that so.
 */
#include "fake_points.h"

/* --- loops and the janitor --- */

static struct context *contexts[2];
static _Atomic bool stop_loops, stop_janitor, stop_failing;
/* by a queue's number; the latter stay */
static _Atomic bool seen_queue[MAX_SEEN], keeps_points[MAX_SEEN];

/* Waits until the queue's descriptor is readable: a wake-up that got lost shows here, and not as a
 * slow test. */
static void await_wake(struct queue *queue, const char *who) {
    struct pollfd descriptor = {.fd = queue->descriptor, .events = POLLIN};
    REQUIRE(poll(&descriptor, 1, 20000) == 1, "%s was not woken within 20 s", who);
}

static void drain_all(struct queue *queue) {
    while (!queue_drain(queue, emit, NULL)) {
    }
}

static _Thread_local bool meets_captures;

/* One point. Its thread may not use the ticket again after arming it: it may belong to another
 * point by then. */
static void arm_one(struct queue *queue) {
    static const enum point_kind kinds[] = {KIND_HOST_FUNCTION, KIND_HOST_FUNCTION,   KIND_CALLBACK,
                                            KIND_PYTHON_HOST,   KIND_PYTHON_CALLBACK, KIND_FOREIGN};
    static const uintptr_t streams[] = {STREAM_PLAIN,   STREAM_PLAIN,    STREAM_PLAIN,
                                        STREAM_REFUSES, STREAM_CAPTURES, STREAM_AT_ONCE};
    enum point_kind kind = kinds[chance(6)];
    uint64_t ticket = reserve(queue, contexts[chance(2)], kind);
    if (chance(32) == 0) {
        point_unreserve(ticket);
        atomic_fetch_add(&abandoned, 1);
        return;
    }
    if (kind == KIND_FOREIGN) point_set_call(ticket, foreign, &foreign_run, -1);
    uintptr_t stream = streams[chance(6)];
    /* Seldom and in one loop, because their points are never used again, nor are the queues of
     * those that failed. */
    if (stream == STREAM_CAPTURES &&
        (!meets_captures || chance(4) || atomic_load(&quarantined) > 4000))
        stream = STREAM_PLAIN;
    capture_checks = information = 0;
    swallowed = false;
    object_made = false;
    /* at the second check: between the check and the enqueue. Or before all. */
    capture_begins = chance(8) ? 1 : 0;
    int mode = relaxed_enter();
    int result = point_arm(ticket, (void *)(stream + chance(15)));
    relaxed_leave(mode);
    REQUIRE(capture_mode == 0, "the thread was left in capture mode %d", capture_mode);
    bool may_be_captured = stream == STREAM_CAPTURES && capture_begins == 0 &&
                           (kind == KIND_PYTHON_HOST || kind == KIND_FOREIGN);
    if (may_be_captured && information && (result == 0 || result == ERROR_REFUSED)) {
        /* Once the user object was made its destructor ends the point, also when a later step was
         * refused. */
        atomic_fetch_add(object_made ? &captured : &refused, 1);
    } else if (result == 0) {
        atomic_fetch_add(&accepted, 1);
        /* the waiter had failed before the second check, so it is not quarantined but leaked */
        if (swallowed) {
            atomic_fetch_add(&lost, 1);
            atomic_store(&keeps_points[queue->index], true);
            return;
        }
        if (kind == KIND_PYTHON_HOST || kind == KIND_PYTHON_CALLBACK)
            atomic_fetch_add(&python_accepted, 1);
        if (kind == KIND_FOREIGN) atomic_fetch_add(&foreign_accepted, 1);
    } else if (result == RESULT_QUARANTINED) {
        REQUIRE(stream == STREAM_CAPTURES, "quarantined, though no thread captured");
        atomic_fetch_add(&quarantined, 1);
        if (kind >= KIND_PYTHON_HOST) atomic_fetch_add(&users_quarantined, 1);
    } else if (result <= RESULT_CAPTURING) {
        REQUIRE(stream == STREAM_CAPTURES && capture_begins == 0,
                "refused as capturing, though no thread captured");
        atomic_fetch_add(&capture_refused, 1);
    } else {
        REQUIRE(result == ERROR_REFUSED && stream == STREAM_REFUSES, "point_arm answered %d",
                result);
        atomic_fetch_add(&refused, 1);
    }
}

struct loop {
    pthread_t thread;
    uint64_t seed;
    bool meets_captures;
};

static struct queue *open_seen(void) {
    struct queue *queue = queue_open();
    REQUIRE(queue, "no queue");
    REQUIRE(queue->index < MAX_SEEN, "queues are not recycled: this one has number %d",
            queue->index);
    REQUIRE(queue_lateness(queue) == 0, "a new queue has the lag of its former owner: %lld ns",
            (long long)queue_lateness(queue));
    atomic_store(&seen_queue[queue->index], true);
    return queue;
}

static void *loop(void *argument) {
    struct loop *self = argument;
    seed_thread(self->seed, self->seed);
    meets_captures = self->meets_captures;
    while (!atomic_load(&stop_loops)) {
        int64_t opened = now_ns();
        struct queue *queue = open_seen();
        int rounds = 1 + (int)chance(40);
        while (rounds-- && !atomic_load(&stop_loops)) {
            int64_t in_flight = atomic_load(&counters[POINTS_ARMED]) -
                                atomic_load(&counters[POINTS_FIRED]) -
                                atomic_load(&counters[POINTS_QUARANTINED]) - atomic_load(&lost);
            int number = in_flight > IN_FLIGHT ? 0 : 1 + (int)chance(30);
            if (!number) sched_yield();
            while (number--) arm_one(queue);
            /* Sometimes as a loop does, sometimes without a reason (a descriptor is recycled with
             * its queue). */
            struct pollfd descriptor = {.fd = queue->descriptor, .events = POLLIN};
            if (poll(&descriptor, 1, 0) == 1 || chance(3) == 0) drain_all(queue);
            int64_t lag = queue_lateness(queue);
            REQUIRE(lag <= now_ns() - opened,
                    "a lag of %lld ns is longer than there has been a queue", (long long)lag);
        }
        queue_close(queue); /* what is pending goes to the janitor */
        if (chance(2)) queues_trim();
    }
    return NULL;
}

static void *janitor(void *argument) {
    struct queue *orphans = argument;
    seed_thread(3, 3);
    for (;;) {
        await_wake(orphans, "the janitor");
        drain_all(orphans);
        if (atomic_load(&stop_janitor)) return NULL;
    }
}

/* Stands for the watcher, which is the only one to call points_fail, and calls it much more
 * often. */
static void *failing(void *unused) {
    (void)unused;
    seed_thread(5, 5);
    while (!atomic_load(&stop_failing)) {
        if (chance(3) == 0) points_fail(contexts[chance(2)], ERROR_FAILED);
        else sched_yield();
    }
    return NULL;
}

/* The real watcher. The private streams show it that the context fails, and recovers, and fails. */
static void *flickering(void *unused) {
    (void)unused;
    while (!atomic_load(&stop_failing)) {
        int64_t passes = atomic_load(&counters[WATCHER_PASSES]);
        atomic_store(&context_failed, !atomic_load(&context_failed));
        while (atomic_load(&counters[WATCHER_PASSES]) == passes && !atomic_load(&stop_failing))
            sched_yield();
    }
    atomic_store(&context_failed, false);
    return NULL;
}

static void require_equal(int64_t left, int64_t right, const char *what) {
    REQUIRE(left == right, "%s: %lld and %lld", what, (long long)left, (long long)right);
}

static bool has_met_everything(void) {
    return delivered_failed > 0 && counters[POINTS_STALE] > 0 && quarantined > 0 && refused > 0 &&
           capture_refused > 0 && abandoned > 0 && captured > 0 && graph_runs > 0;
}

static void stress_points(struct queue *orphans, double seconds, uint64_t seed, bool real_watcher) {
    pthread_t gpus[GPUS], janitor_thread, failing_thread;
    struct loop loops[LOOPS];
    stop_loops = stop_janitor = stop_failing = false;
    for (int i = 0; i < GPUS; i++) {
        mailboxes[i].closed = false;
        pthread_create(&gpus[i], NULL, gpu, &mailboxes[i]);
    }
    pthread_create(&janitor_thread, NULL, janitor, orphans);
    if (real_watcher) REQUIRE(watcher_start() == 0, "the watcher did not start");
    pthread_create(&failing_thread, NULL, real_watcher ? flickering : failing, NULL);
    for (int i = 0; i < LOOPS; i++) {
        loops[i].seed = seed + (uint64_t)i;
        loops[i].meets_captures = i == 0;
        pthread_create(&loops[i].thread, NULL, loop, &loops[i]);
    }
    /* Longer on a machine so busy that the rarest case has not come by then. */
    int64_t end = now_ns() + (int64_t)(seconds * 1e9), latest = end + 60000000000;
    struct timespec tick = {.tv_nsec = 20000000};
    while (now_ns() < end || (!has_met_everything() && now_ns() < latest)) nanosleep(&tick, NULL);
    stop_loops = true;
    for (int i = 0; i < LOOPS; i++) pthread_join(loops[i].thread, NULL);
    stop_failing = true;
    pthread_join(failing_thread, NULL);
    if (real_watcher) watcher_stop(ANY_PATIENCE_S);
    for (int i = 0; i < GPUS; i++) {
        pthread_mutex_lock(&mailboxes[i].lock);
        mailboxes[i].closed = true;
        pthread_cond_broadcast(&mailboxes[i].changed);
        pthread_mutex_unlock(&mailboxes[i].lock);
    }
    for (int i = 0; i < GPUS; i++) pthread_join(gpus[i], NULL);
    stop_janitor = true;
    queue_wake(orphans);
    pthread_join(janitor_thread, NULL);
    drain_all(orphans);

    require_equal(counters[POINTS_ARMED], accepted + quarantined + captured,
                  "armed, and what the driver took");
    require_equal(counters[POINTS_FIRED], accepted - lost + captured,
                  "fired, and what the driver took");
    require_equal(delivered_passed, accepted - lost + captured,
                  "delivered as passed, and what the driver took");
    require_equal(counters[POINTS_LEAKED], quarantined + lost,
                  "leaked, and what captures have swallowed");
    require_equal(counters[POINTS_QUARANTINED], quarantined,
                  "quarantined, and what the calls said");
    require_equal(counters[POINTS_FIRED] + counters[POINTS_STALE], fire_calls,
                  "fired in time or late, and firings");
    require_equal(points_pending().all, 0, "pending at the end");
    /* One that was just running when its point was quarantined has run. How many did is not
     * known. */
    int64_t ran = dispatched + foreign_run - graph_runs, taken = python_accepted + foreign_accepted;
    REQUIRE(ran >= taken && ran <= taken + users_quarantined,
            "%lld functions run, %lld armed, %lld quarantined", (long long)ran, (long long)taken,
            (long long)users_quarantined);
    REQUIRE(has_met_everything(), "the run was too short to meet everything");
}

/* Every queue that was closed can be had again, and no other: all have counted themselves out. */
static void require_all_queues_back(void) {
    int known = 0, opened = 0;
    for (int i = 1; i < MAX_SEEN; i++) known += seen_queue[i] && !keeps_points[i];
    struct queue **queues = calloc((size_t)known, sizeof *queues);
    for (; opened < known; opened++) {
        queues[opened] = queue_open();
        REQUIRE(seen_queue[queues[opened]->index],
                "queue %d is new: another one was never given back", queues[opened]->index);
    }
    while (opened) queue_close(queues[--opened]);
    free(queues);
    printf("queues: %d, all given back\n", known);
}

/* --- order --- */

static uint64_t expected[10000];
static _Atomic int arrived;

static bool emit_in_order(void *argument, uint64_t ticket, int64_t status, bool complete) {
    (void)argument;
    REQUIRE(complete && status == STATUS_UNKNOWN,
            "a host function brings no status, and this one brought %d", (int)status);
    int number = arrived++;
    REQUIRE(expected[number] == ticket, "arrival %d is another ticket", number);
    return true;
}

static void *fire_in_order(void *unused) {
    (void)unused;
    struct firing firing;
    while (take(&mailboxes[0], &firing)) fire(firing);
    return NULL;
}

static int launch_in_order(void *stream, host_function function, void *data) {
    (void)stream;
    post(&mailboxes[0], (struct firing){.function = function, .data = data});
    return 0;
}

/* A single driver thread's firings arrive in their order, and each batch needs one wake-up. */
static void order(void) {
    mailboxes[0].closed = false;
    pthread_t thread;
    pthread_create(&thread, NULL, fire_in_order, NULL);
    struct queue *queue = open_seen();
    driver.launch_host_func = launch_in_order;
    int64_t fired = counters[POINTS_FIRED];
    for (int i = 0; i < 10000; i++) {
        expected[i] = point_reserve(queue, contexts[0], KIND_HOST_FUNCTION);
        capture_checks = capture_begins = 0;
        REQUIRE(point_arm(expected[i], (void *)(uintptr_t)STREAM_PLAIN) == 0, "refused");
        if (i % 500 == 499)
            while (arrived < i / 2) {
                await_wake(queue, "the loop");
                REQUIRE(queue_drain(queue, emit_in_order, NULL), "the drain stopped");
            }
    }
    while (arrived < 10000) {
        await_wake(queue, "the loop");
        REQUIRE(queue_drain(queue, emit_in_order, NULL), "the drain stopped");
    }
    require_equal(counters[POINTS_FIRED] - fired, 10000, "fired");
    driver.launch_host_func = fake_launch_host_func;
    pthread_mutex_lock(&mailboxes[0].lock);
    mailboxes[0].closed = true;
    pthread_cond_broadcast(&mailboxes[0].changed);
    pthread_mutex_unlock(&mailboxes[0].lock);
    pthread_join(thread, NULL);
    queue_close(queue);
    printf("order: 10000 arrivals in order\n");
}

/* --- handles --- */

enum { USERS = 4, GENERATIONS = 2000 };
static struct handle *the_handle, *the_child;
static struct thing the_thing;
static pthread_barrier_t barrier;
static _Atomic int released_by, pins;

static void use(struct handle *handle) {
    if (!handle_pin(handle)) {
        REQUIRE(!handle_is_open(handle), "an open handle refused a pin");
        return;
    }
    atomic_fetch_add(&the_thing.users, 1);
    atomic_fetch_add(&pins, 1);
    REQUIRE(the_thing.destroyed == 0, "pinned, and destroyed");
    REQUIRE(released_by == 0, "pinned, and given away");
    if (chance(2)) sched_yield();
    REQUIRE(the_thing.destroyed == 0, "destroyed under a pin");
    REQUIRE(released_by == 0, "given away under a pin");
    atomic_fetch_sub(&the_thing.users, 1);
    handle_unpin(handle);
}

static void *handle_user(void *argument) {
    seed_thread(11, (uint64_t)(uintptr_t)argument);
    for (int generation = 0; generation < GENERATIONS; generation++) {
        pthread_barrier_wait(&barrier);
        int uses = (int)chance(12), end = (int)chance(8);
        while (uses--) use(chance(2) ? the_handle : the_child);
        if (end == 0 && handle_release(the_handle, false)) {
            REQUIRE(atomic_load(&the_thing.users) == 0, "given away under a user");
            atomic_fetch_add(&released_by, 1);
        } else if (end < 4) {
            REQUIRE(handle_close(the_handle) == 0, "close failed");
        } else if (end == 4) {
            handle_close(the_child); /* borrowed: only lets go */
        }
        use(the_child);
        REQUIRE(contexts_entered == 0, "a context was left current");
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void stress_handles(void) {
    pthread_t users[USERS];
    int64_t created = counters[HANDLES_CREATED],
            gone = counters[HANDLES_DESTROYED] + counters[HANDLES_RELEASED];
    int released = 0;
    pthread_barrier_init(&barrier, NULL, USERS + 1);
    for (int i = 0; i < USERS; i++)
        pthread_create(&users[i], NULL, handle_user, (void *)(uintptr_t)i);
    for (int generation = 0; generation < GENERATIONS; generation++) {
        the_thing.destroyed = the_thing.users = released_by = 0;
        the_handle = handle_new(generation % 4, &the_thing, &the_thing, true);
        the_child = handle_borrow(the_handle);
        REQUIRE(the_handle && the_child && handle_is_open(the_child), "a new handle is closed");
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        handle_close(the_handle);
        REQUIRE(!handle_pin(the_handle) && !handle_pin(the_child), "a closed handle took a pin");
        require_equal(the_thing.destroyed + released_by, 1, "destroyed or given away, once");
        released += released_by;
        handle_unref(the_child);
        handle_unref(the_handle);
    }
    for (int i = 0; i < USERS; i++) pthread_join(users[i], NULL);
    pthread_barrier_destroy(&barrier);
    require_equal(counters[HANDLES_CREATED] - created, GENERATIONS, "created");
    require_equal(counters[HANDLES_DESTROYED] + counters[HANDLES_RELEASED] - gone, GENERATIONS,
                  "destroyed or released");
    require_equal(counters[HANDLES_OPEN], 0, "open");
    printf("handles: %d, of which %d given away, %d pins\n", GENERATIONS, released, (int)pins);
}

int main(int count, char **arguments) {
    driver = fake_driver;
    points_set_dispatcher(python_dispatch);
    double seconds = count > 1 ? atof(arguments[1]) : 1.0;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    for (int i = 0; i < GPUS; i++) {
        pthread_mutex_init(&mailboxes[i].lock, NULL);
        pthread_cond_init(&mailboxes[i].changed, NULL);
    }
    struct queue *orphans = queue_open();
    REQUIRE(orphans && orphans->index == 0, "the first queue is not number 0");
    bool is_taken;
    contexts[0] = context_register(&contexts[0], (uintptr_t)&contexts[0],
                                   (void *)(uintptr_t)PRIVATE_STREAM, &is_taken);
    contexts[1] = context_register(&contexts[1], (uintptr_t)&contexts[1],
                                   (void *)(uintptr_t)(PRIVATE_STREAM + 1), &is_taken);
    stress_points(orphans, seconds / 2, seed, false);
    stress_points(orphans, seconds / 2, seed + 100, true);
    printf("points: %lld passed, %lld failed first, %lld refused, %lld quarantined, %lld late, "
           "%lld passes of the watcher\n",
           (long long)delivered_passed, (long long)delivered_failed, (long long)refused,
           (long long)quarantined, (long long)counters[POINTS_STALE],
           (long long)counters[WATCHER_PASSES]);
    order();
    require_all_queues_back();
    stress_handles();
    return 0;
}
