/* Drives the native files with a fake driver: threads that arm, fire (late, twice, at once), fail,
 * drain and close queues, and threads that pin, close and release handles. Built with
 * ThreadSanitizer and with AddressSanitizer by test_native.py.
 *
 * Usage: stress SECONDS SEED. Ends with code 0 and one line per part, or with the first promise
 * that was broken.
 *
 * What is known of a ticket stands in `records`, in plain fields on purpose: a slot may be reserved
 * again only after its last delivery, and ThreadSanitizer sees here whether the native files make
 * that so.
 */
#include "stress.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum {
    LOOPS = 4,
    GPUS = 3,
    SLOTS = 1 << 16,
    MAILBOX = 1 << 12,
    IN_FLIGHT = 300,
    LATE = 256,
    KEPT = 64,
    MAX_SEEN = 1 << 16
};
enum { ERROR_REFUSED = 719, ERROR_FAILED = 700 };
enum {
    STREAM_PLAIN = 16,
    STREAM_REFUSES = 32,
    STREAM_CAPTURES = 48,
    STREAM_AT_ONCE = 64,
    PRIVATE_STREAM = 80
};

/* --- what became of a ticket --- */

struct record {
    uint64_t ticket;
    int failed, passed;
    /* false once the driver has refused it (known to the driver's thread of control alone) */
    bool may_pass;
};
static struct record records[SLOTS];
/* by the calls */
static _Atomic int64_t accepted, refused, quarantined, abandoned, capture_refused, lost,
    users_quarantined;
/* host functions that captures took in, and how often their graphs ran them */
static _Atomic int64_t captured, graph_runs;
static _Atomic int64_t python_accepted, foreign_accepted, dispatched, foreign_run, fire_calls,
    delivered_passed, delivered_failed;

static struct record *record_of(uint64_t ticket) {
    uint32_t index = ticket & 0xffffff;
    REQUIRE(index < SLOTS, "slot %u: more slots than points in flight", index);
    return &records[index];
}

static uint64_t reserve(struct queue *queue, struct context *context, enum point_kind kind) {
    uint64_t ticket = point_reserve(queue, context, kind);
    REQUIRE(ticket != 0, "no ticket");
    struct record *record = record_of(ticket);
    REQUIRE(record->ticket != ticket, "ticket %llx was given out twice",
            (unsigned long long)ticket);
    *record = (struct record){.ticket = ticket, .may_pass = true};
    return ticket;
}

/* Refuses now and then, as a drain does that runs out of memory or is struck by a
 * KeyboardInterrupt. */
static bool emit(void *argument, uint64_t ticket, int64_t status, bool complete) {
    bool never_refuse = argument != NULL;
    if (!never_refuse && chance(400) == 0) return false;
    struct record *record = record_of(ticket);
    REQUIRE(record->ticket == ticket, "ticket %llx was delivered after its slot had gone on",
            (unsigned long long)ticket);
    REQUIRE(record->passed == 0, "ticket %llx was delivered complete, and then again",
            (unsigned long long)ticket);
    if (complete) {
        REQUIRE(record->may_pass, "ticket %llx was refused by the driver and completed",
                (unsigned long long)ticket);
        record->passed = 1;
        atomic_fetch_add(&delivered_passed, 1);
        REQUIRE(status == (record->failed ? ERROR_FAILED : status),
                "a failed point completed with %d", (int)status);
        bool known = status == 0 || status == STATUS_UNKNOWN || status == ERROR_FAILED ||
                     status == ERROR_REFUSED;
        REQUIRE(known, "status %d", (int)status);
    } else {
        REQUIRE(record->failed == 0, "ticket %llx failed twice", (unsigned long long)ticket);
        REQUIRE(status == ERROR_FAILED, "failed with %d", (int)status);
        record->failed = 1;
        atomic_fetch_add(&delivered_failed, 1);
    }
    return true;
}

static void python_dispatch(uint64_t ticket, int status) {
    (void)ticket, (void)status;
    atomic_fetch_add(&dispatched, 1);
}

static void foreign(void *data) { atomic_fetch_add((_Atomic int64_t *)data, 1); }

/* --- the fake driver --- */

struct firing {
    host_function function;
    stream_callback callback;
    void *data;
    int status;
};
struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct firing items[MAILBOX];
    unsigned first, count;
    bool closed;
};
static struct mailbox mailboxes[GPUS];

static void fire(struct firing firing) {
    atomic_fetch_add(&fire_calls, 1);
    if (firing.function) firing.function(firing.data);
    else firing.callback(NULL, firing.status, firing.data);
}

static void post(struct mailbox *box, struct firing firing) {
    pthread_mutex_lock(&box->lock);
    while (box->count == MAILBOX) pthread_cond_wait(&box->changed, &box->lock);
    box->items[(box->first + box->count++) % MAILBOX] = firing;
    pthread_cond_broadcast(&box->changed);
    pthread_mutex_unlock(&box->lock);
}

static bool take(struct mailbox *box, struct firing *firing) {
    pthread_mutex_lock(&box->lock);
    while (box->count == 0 && !box->closed) pthread_cond_wait(&box->changed, &box->lock);
    bool taken = box->count > 0;
    if (taken) {
        *firing = box->items[box->first++ % MAILBOX];
        box->count--;
        pthread_cond_broadcast(&box->changed);
    }
    pthread_mutex_unlock(&box->lock);
    return taken;
}

/* A driver thread. Some firings come at once, some only many others later, some twice, the second
 * one any time later. */
static void *gpu(void *argument) {
    struct mailbox *box = argument;
    seed_thread(7, (uint64_t)(box - mailboxes));
    struct firing late[LATE], kept[KEPT], firing;
    unsigned late_count = 0, kept_count = 0;
    while (take(box, &firing)) {
        if (chance(4) == 0) {
            if (late_count == LATE) {
                unsigned which = chance(LATE);
                fire(late[which]);
                late[which] = late[--late_count];
            }
            late[late_count++] = firing;
        } else {
            fire(firing);
            if (chance(8) == 0) fire(firing);
            if (chance(8) == 0) {
                unsigned place = kept_count < KEPT ? kept_count++ : chance(KEPT);
                kept[place] = firing;
            }
        }
        if (kept_count && chance(8) == 0) fire(kept[chance(kept_count)]);
        /* Nobody may wait for ever for a late one: with nothing else to do, they come. */
        pthread_mutex_lock(&box->lock);
        bool idle = box->count == 0;
        pthread_mutex_unlock(&box->lock);
        while (idle && late_count) fire(late[--late_count]);
    }
    while (late_count) fire(late[--late_count]);
    while (kept_count) fire(kept[--kept_count]);
    return NULL;
}

static _Thread_local int capture_checks; /* of the arm that this thread is in */
static _Thread_local int capture_begins; /* at which check the capture is on */
/* the arm that this thread is in became a node of a graph that never runs */
static _Thread_local bool swallowed;

/* A graph, as far as a host function in it is concerned: the user object that owns it, and
 * launches. */
struct user_object {
    host_function destructor;
    void *data;
};
static _Thread_local struct user_object object; /* of the capture that this thread's arm has met */
static _Thread_local bool object_made, owned_by_graph;
static _Thread_local int information; /* how often this arm has asked for the capture */

static int fake_capture_info(void *stream, int *status, uint64_t *id, void **graph, void *nodes,
                             void *count) {
    REQUIRE(((uintptr_t)stream & ~15u) == STREAM_CAPTURES && !nodes && !count,
            "asked for the capture of a stream that has none");
    bool second = information++ > 0;
    *status = second && chance(16) == 0 ? (int)chance(2) * 2 : 1; /* ended, or invalidated */
    *id = second && chance(16) == 0 ? 8 : 7;
    *graph = &object;
    return 0;
}
static int fake_user_object_create(void **out, void *data, host_function destructor,
                                   unsigned references, unsigned flags) {
    REQUIRE(references == 1 && flags == 1, "a user object with %u references and flags %u",
            references, flags);
    if (chance(16) == 0) return ERROR_REFUSED;
    object = (struct user_object){destructor, data};
    object_made = true;
    owned_by_graph = false;
    *out = &object;
    return 0;
}
static int fake_retain(void *graph, void *user_object, unsigned references, unsigned flags) {
    REQUIRE(graph == &object && user_object == &object && references == 1 && flags == 1,
            "retained otherwise than moved");
    if (chance(16) == 0) return ERROR_REFUSED;
    owned_by_graph = true;
    return 0;
}
static int release(bool owned) {
    REQUIRE(owned_by_graph == owned && object.destructor,
            "a reference was given back that is somebody else's");
    fire((struct firing){.function = object.destructor, .data = object.data});
    object.destructor = NULL;
    return 0;
}
static int fake_user_object_release(void *user_object, unsigned references) {
    REQUIRE(user_object == &object && references == 1, "released %u", references);
    return release(false);
}
static int fake_graph_release(void *graph, void *user_object, unsigned references) {
    REQUIRE(graph == &object && user_object == &object && references == 1, "released %u",
            references);
    return release(true);
}

/* A node: its graph is launched some times, and destroyed by whoever. */
static int add_node(struct firing firing) {
    REQUIRE(owned_by_graph, "a host function became a node before the graph had its owner");
    if (chance(16) == 0) return ERROR_REFUSED;
    for (int launches = (int)chance(4); launches > 0; launches--) {
        atomic_fetch_add(&graph_runs, 1);
        firing.function(firing.data);
    }
    post(&mailboxes[chance(GPUS)],
         (struct firing){.function = object.destructor, .data = object.data});
    return 0;
}

static int enqueue(void *stream, struct firing firing) {
    uintptr_t kind = (uintptr_t)stream & ~15u;
    if (kind == STREAM_CAPTURES && capture_begins == 0) return add_node(firing);
    if (kind == STREAM_REFUSES && chance(2)) {
        record_of((uint64_t)(uintptr_t)firing.data)->may_pass = false;
        return ERROR_REFUSED;
    }
    swallowed = kind == STREAM_CAPTURES && capture_begins == 1 && chance(2);
    if (swallowed) return 0;
    if (kind == STREAM_AT_ONCE) fire(firing);
    else post(&mailboxes[chance(GPUS)], firing);
    return 0;
}

static int fake_launch_host_func(void *stream, host_function function, void *data) {
    return enqueue(stream, (struct firing){.function = function, .data = data});
}
static int fake_stream_add_callback(void *stream, stream_callback callback, void *data,
                                    unsigned flags) {
    REQUIRE(flags == 0, "cuStreamAddCallback's flags are %u", flags);
    return enqueue(stream, (struct firing){.callback = callback,
                                           .data = data,
                                           .status = chance(3) ? 0 : ERROR_REFUSED});
}
static int fake_stream_is_capturing(void *stream, int *status) {
    bool captures =
        ((uintptr_t)stream & ~15u) == STREAM_CAPTURES && capture_checks++ >= capture_begins;
    if (captures && chance(4) == 0) return 906;
    *status = captures ? 1 + (int)chance(2) : 0;
    return 0;
}
static _Atomic bool context_failed; /* what the contexts' private streams answer */
static int fake_stream_query(void *stream) {
    REQUIRE(((uintptr_t)stream & ~15u) == PRIVATE_STREAM,
            "a stream was queried that is not the library's own");
    return atomic_load(&context_failed) ? ERROR_FAILED : 0;
}
static _Thread_local int capture_mode; /* 0 GLOBAL, 2 RELAXED */
static int fake_exchange_capture_mode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}
static int fake_synchronize(void *object) {
    (void)object;
    return 0;
}
static int fake_event_record(void *event, void *stream, unsigned flags) {
    (void)event, (void)stream, (void)flags;
    return 0;
}

struct thing { /* what a handle stands for */
    _Atomic int users, destroyed;
};
static int fake_destroy(void *object) {
    struct thing *thing = object;
    REQUIRE(atomic_load(&thing->users) == 0, "destroyed under a user");
    atomic_fetch_add(&thing->destroyed, 1);
    return 0;
}
static _Thread_local int contexts_entered;
static int fake_get_id(void *context, uint64_t *id) {
    *id = (uintptr_t)context;
    return 0;
}
static int fake_push(void *context) {
    (void)context;
    contexts_entered++;
    return 0;
}
static int fake_pop(void **context) {
    *context = NULL;
    contexts_entered--;
    return 0;
}

static const struct driver_calls fake_driver = {
    .launch_host_func = fake_launch_host_func,
    .stream_add_callback = fake_stream_add_callback,
    .stream_query = fake_stream_query,
    .stream_synchronize = fake_synchronize,
    .stream_is_capturing = fake_stream_is_capturing,
    .stream_destroy = fake_destroy,
    .exchange_capture_mode = fake_exchange_capture_mode,
    .event_query = fake_synchronize,
    .event_record = fake_event_record,
    .event_synchronize = fake_synchronize,
    .event_destroy = fake_destroy,
    .ctx_push = fake_push,
    .ctx_get_id = fake_get_id,
    .ctx_pop = fake_pop,
    .capture_info = fake_capture_info,
    .user_object_create = fake_user_object_create,
    .user_object_release = fake_user_object_release,
    .graph_retain_user_object = fake_retain,
    .graph_release_user_object = fake_graph_release,
    .graph_destroy = fake_destroy,
    .graph_exec_destroy = fake_destroy,
};

/* --- loops and the janitor --- */

static struct context *contexts[2];
static _Atomic bool stop_loops, stop_janitor, stop_failing;
/* by a queue's number; the latter for ever */
static _Atomic bool seen_queue[MAX_SEEN], keeps_points[MAX_SEEN];

/* Waits until the queue's descriptor is readable: a wake-up that got lost shows here, and not as a
 * slow test. */
static void await_wake(struct queue *queue, const char *who) {
    struct pollfd descriptor = {.fd = queue_descriptor(queue), .events = POLLIN};
    REQUIRE(poll(&descriptor, 1, 20000) == 1, "%s was not woken within 20 s", who);
}

static void drain_all(struct queue *queue) {
    while (!queue_drain(queue, emit, NULL)) {
    }
}

static _Thread_local bool meets_captures;

/* One point. Its thread may not look at the ticket again after arming it: it may belong to another
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
    if (kind == KIND_FOREIGN) point_set_foreign(ticket, foreign, &foreign_run);
    uintptr_t stream = streams[chance(6)];
    /* Seldom and in one loop, because their slots, and the queues of those that failed too, are
     * kept for ever. */
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
            atomic_store(&keeps_points[queue_index(queue)], true);
            return;
        }
        if (kind == KIND_PYTHON_HOST || kind == KIND_PYTHON_CALLBACK)
            atomic_fetch_add(&python_accepted, 1);
        if (kind == KIND_FOREIGN) atomic_fetch_add(&foreign_accepted, 1);
    } else if (result == RESULT_QUARANTINED) {
        REQUIRE(stream == STREAM_CAPTURES, "quarantined, though nobody captured");
        atomic_fetch_add(&quarantined, 1);
        if (kind >= KIND_PYTHON_HOST) atomic_fetch_add(&users_quarantined, 1);
    } else if (result <= RESULT_CAPTURING) {
        REQUIRE(stream == STREAM_CAPTURES && capture_begins == 0,
                "refused as capturing, though nobody captured");
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
    REQUIRE(queue_index(queue) < MAX_SEEN, "queues are not recycled: this one has number %d",
            queue_index(queue));
    REQUIRE(queue_lag(queue) == 0, "a new queue has the lag of its former owner: %lld ns",
            (long long)queue_lag(queue));
    atomic_store(&seen_queue[queue_index(queue)], true);
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
            struct pollfd descriptor = {.fd = queue_descriptor(queue), .events = POLLIN};
            if (poll(&descriptor, 1, 0) == 1 || chance(3) == 0) drain_all(queue);
            int64_t lag = queue_lag(queue);
            REQUIRE(lag <= now_ns() - opened,
                    "a lag of %lld ns is longer than there has been a queue", (long long)lag);
        }
        queue_close(queue); /* what is pending goes to the janitor */
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

/* Stands for the watcher, which is the only one to call points_fail, and calls it much more often.
 */
static void *failing(void *unused) {
    (void)unused;
    seed_thread(5, 5);
    while (!atomic_load(&stop_failing)) {
        if (chance(3) == 0) points_fail(contexts[chance(2)], ERROR_FAILED);
        else sched_yield();
    }
    return NULL;
}

/* The real watcher, told by the private streams that the context fails, and recovers, and fails. */
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
    int64_t end = now_ns() + (int64_t)(seconds * 1e9);
    struct timespec tick = {.tv_nsec = 20000000};
    while (now_ns() < end) nanosleep(&tick, NULL); /* the length of the run; nothing waits for it */
    stop_loops = true;
    for (int i = 0; i < LOOPS; i++) pthread_join(loops[i].thread, NULL);
    stop_failing = true;
    pthread_join(failing_thread, NULL);
    if (real_watcher) watcher_stop();
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
                  "fired or stale, and firings");
    require_equal(points_pending(), 0, "pending at the end");
    /* One that was just running when its point was quarantined has run; how many did, nobody can
     * say. */
    int64_t ran = dispatched + foreign_run - graph_runs, taken = python_accepted + foreign_accepted;
    REQUIRE(ran >= taken && ran <= taken + users_quarantined,
            "%lld functions run, %lld armed, %lld quarantined", (long long)ran, (long long)taken,
            (long long)users_quarantined);
    REQUIRE(delivered_failed > 0 && counters[POINTS_STALE] > 0 && quarantined > 0,
            "the run was too short to meet everything");
    REQUIRE(refused > 0 && capture_refused > 0 && abandoned > 0 && captured > 0 && graph_runs > 0,
            "the run was too short to meet everything");
}

/* Every queue that was closed can be had again, and no other: all have counted themselves out. */
static void require_all_queues_back(void) {
    int known = 0, opened = 0;
    for (int i = 1; i < MAX_SEEN; i++) known += seen_queue[i] && !keeps_points[i];
    struct queue **queues = calloc((size_t)known, sizeof *queues);
    for (; opened < known; opened++) {
        queues[opened] = queue_open();
        REQUIRE(seen_queue[queue_index(queues[opened])],
                "queue %d is new: another one was never given back", queue_index(queues[opened]));
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
        if (end == 0 && handle_release(the_handle)) {
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
        the_handle = handle_new(generation % 4, &the_thing, &the_thing, true, false, NULL);
        the_child = handle_new(HANDLE_STREAM, &the_thing, &the_thing, false, false, the_handle);
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
    REQUIRE(orphans && queue_index(orphans) == 0, "the first queue is not number 0");
    bool is_taken;
    contexts[0] = context_register(&contexts[0], (uintptr_t)&contexts[0],
                                   (void *)(uintptr_t)PRIVATE_STREAM, 0, &is_taken);
    contexts[1] = context_register(&contexts[1], (uintptr_t)&contexts[1],
                                   (void *)(uintptr_t)(PRIVATE_STREAM + 1), 1, &is_taken);
    stress_points(orphans, seconds / 2, seed, false);
    stress_points(orphans, seconds / 2, seed + 100, true);
    printf("points: %lld passed, %lld failed first, %lld refused, %lld quarantined, %lld stale, "
           "%lld passes of the watcher\n",
           (long long)delivered_passed, (long long)delivered_failed, (long long)refused,
           (long long)quarantined, (long long)counters[POINTS_STALE],
           (long long)counters[WATCHER_PASSES]);
    order();
    require_all_queues_back();
    stress_handles();
    return 0;
}
