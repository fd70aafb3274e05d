/* A fake driver for points: it fires late, twice or at once, refuses, captures, and checks what
 * became of each ticket. Used by stress.c. */
#ifndef AIOSTREAM_FAKE_POINTS_H
#define AIOSTREAM_FAKE_POINTS_H

#include "fake_contexts.h"
#include "stress.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum {
    LOOPS = 4,
    GPUS = 3,
    TICKETS = 1 << 16,
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

struct fate {
    uint64_t ticket;
    int failed, passed;
    /* false once the driver has refused it (known to the driver's thread of control alone) */
    bool may_pass;
};
static struct fate fates[TICKETS];
/* by the calls */
static _Atomic int64_t accepted, refused, quarantined, abandoned, capture_refused, lost,
    users_quarantined;
/* host functions that captures took in, and how often their graphs ran them */
static _Atomic int64_t captured, graph_runs;
static _Atomic int64_t python_accepted, foreign_accepted, dispatched, foreign_run, fire_calls,
    delivered_passed, delivered_failed;

static struct fate *fate_of(uint64_t ticket) {
    uint32_t index = ticket & 0xffffff;
    REQUIRE(index < TICKETS, "point %u: more than points in flight", index);
    return &fates[index];
}

static uint64_t reserve(struct queue *queue, struct context *context, enum point_kind kind) {
    uint64_t ticket = point_reserve(queue, context, kind);
    REQUIRE(ticket != 0, "no ticket");
    struct fate *fate = fate_of(ticket);
    REQUIRE(fate->ticket != ticket, "ticket %llx was given out twice", (unsigned long long)ticket);
    *fate = (struct fate){.ticket = ticket, .may_pass = true};
    return ticket;
}

/* Refuses now and then, as a drain does that runs out of memory or is struck by a
 * KeyboardInterrupt. */
static bool emit(void *argument, uint64_t ticket, int64_t status, bool complete) {
    bool never_refuse = argument != NULL;
    if (!never_refuse && chance(400) == 0) return false;
    struct fate *fate = fate_of(ticket);
    REQUIRE(fate->ticket == ticket, "ticket %llx was delivered after its point had gone on",
            (unsigned long long)ticket);
    REQUIRE(fate->passed == 0, "ticket %llx was delivered complete, and then again",
            (unsigned long long)ticket);
    if (complete) {
        REQUIRE(fate->may_pass, "ticket %llx was refused by the driver and completed",
                (unsigned long long)ticket);
        fate->passed = 1;
        atomic_fetch_add(&delivered_passed, 1);
        REQUIRE(status == (fate->failed ? ERROR_FAILED : status),
                "a failed point completed with %d", (int)status);
        bool known = status == 0 || status == STATUS_UNKNOWN || status == ERROR_FAILED ||
                     status == ERROR_REFUSED;
        REQUIRE(known, "status %d", (int)status);
    } else {
        REQUIRE(fate->failed == 0, "ticket %llx failed twice", (unsigned long long)ticket);
        REQUIRE(status == ERROR_FAILED, "failed with %d", (int)status);
        fate->failed = 1;
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
        /* No thread may wait without an end for a late one. With nothing else to do, they come. */
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
            "a reference was given back that is another thread's");
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

/* A node. Its graph is launched some times, and destroyed by any thread. */
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
        fate_of((uint64_t)(uintptr_t)firing.data)->may_pass = false;
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

static const struct driver_calls fake_driver = {
    .launch_host_func = fake_launch_host_func,
    .stream_add_callback = fake_stream_add_callback,
    .stream_query = fake_stream_query,
    .stream_is_capturing = fake_stream_is_capturing,
    .stream_destroy = fake_destroy,
    .exchange_capture_mode = fake_exchange_capture_mode,
    .event_query = fake_synchronize,
    .event_record = fake_event_record,
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

#endif
