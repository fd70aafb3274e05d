/* A fake driver for waits: streams that come further at random times, events, failures that
 * pass.
 *
 * Its state is in relaxed atomics and plain fields, and under no lock, on purpose: a lock here
 * would put an order between the threads that the library itself has to make, and ThreadSanitizer
 * would see nothing. The fields of the library's own events are plain, because only who has the
 * wait may touch them. Users' events and all streams are shared by threads, as with the driver.
 */
#ifndef AIOSTREAM_FAKE_GPU_H
#define AIOSTREAM_FAKE_GPU_H

#include "fake_contexts.h"
#include "stress.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum { CONTEXTS = 2, STREAMS = 8, REGULAR = 3, DUES = 1 << 14 };
enum { ERROR_REFUSED = 2, ERROR_FAILED = 700, ERROR_CAPTURED = 907 };
static const int64_t MICROSECOND = 1000, MILLISECOND = 1000000, SECOND = 1000000000;

#define relaxed_load(address) atomic_load_explicit(address, memory_order_relaxed)
#define relaxed_store(address, value) atomic_store_explicit(address, value, memory_order_relaxed)
#define relaxed_add(address, value) atomic_fetch_add_explicit(address, value, memory_order_relaxed)

static void pause_for(int64_t time) { nanosleep(&(struct timespec){.tv_nsec = time}, NULL); }

struct stream {
    /* number of the last work that was enqueued, and when it is over: see `end_of` */
    _Atomic uint64_t tail;
    _Atomic int64_t done; /* number of the last work that is over */
    /* ns; of a regular stream: its work takes these in turn; 0: it moves when `moving` moves it */
    _Atomic int64_t periods[2];
    _Atomic int64_t *dues; /* of a regular stream: when each work is over, in us; a ring */
    _Atomic int context;
    int number;
};
struct position { /* of a stream: behind the work that it had then */
    struct stream *stream;
    int64_t number;
};
struct event {
    int context;
    bool users;
    _Atomic uint64_t packed; /* of a user's: its position */
    _Atomic bool captured;   /* a user's, by a capture: a query would end that */
    /* Of the library's: */
    struct position position;
    bool recorded, taken; /* taken: by a capture */
};
static struct stream streams[CONTEXTS][STREAMS]; /* the users' */
static struct stream health[CONTEXTS];           /* the contexts' */
static struct context *contexts[CONTEXTS];
static _Atomic bool failed[CONTEXTS]; /* what the driver answers */
static _Atomic bool hides_failure;    /* private streams do not show it yet */
static _Atomic int64_t events_made, users_events_made, users_events_destroyed;
static _Atomic bool unruly; /* refuses and delays now and then */

static bool is_regular(struct stream *stream) { return relaxed_load(&stream->periods[0]) != 0; }

/* In one word, so that works that are enqueued at once have the same order by number and by
 * time. */
enum { DUE_BITS = 36 };
static int64_t first_time; /* us */
static int64_t now_us(void) { return now_ns() / 1000 - first_time; }
static int64_t number_of(uint64_t tail) { return (int64_t)(tail >> DUE_BITS); }
static int64_t due_of(uint64_t tail) { return (int64_t)(tail & ((1ull << DUE_BITS) - 1)); }
static int64_t end_of(struct stream *stream) { return number_of(relaxed_load(&stream->tail)); }

static bool is_over(struct position position) {
    struct stream *stream = position.stream;
    if (!stream || relaxed_load(&stream->done) >= position.number) return true;
    if (!stream->dues || !is_regular(stream)) return false;
    uint64_t tail = relaxed_load(&stream->tail);
    /* its due is overwritten: it was long ago */
    if (number_of(tail) - position.number >= DUES) return true;
    return now_us() >= (number_of(tail) == position.number
                            ? due_of(tail)
                            : relaxed_load(&stream->dues[position.number % DUES]));
}

static uint64_t pack(struct position position) {
    return (uint64_t)position.number << 8 | (uint64_t)position.stream->context << 4 |
           (uint64_t)position.stream->number;
}
static struct position unpack(uint64_t packed) { /* 0: never recorded */
    return packed
               ? (struct position){&streams[packed >> 4 & 15][packed & 15], (int64_t)(packed >> 8)}
               : (struct position){0};
}

static struct position enqueue_work(struct stream *stream) {
    /* than expected: a guard poll sees it */
    bool is_short = relaxed_load(&unruly) && chance(12) == 0;
    uint64_t tail = relaxed_load(&stream->tail), next;
    do {
        int64_t number = number_of(tail) + 1,
                period = relaxed_load(&stream->periods[number % 2]) / MICROSECOND;
        int64_t due = period ? now_us() + (is_short ? period / 6 : period) : 0;
        if (due < due_of(tail)) due = due_of(tail);
        next = (uint64_t)number << DUE_BITS | (uint64_t)due;
    } while (!atomic_compare_exchange_weak_explicit(&stream->tail, &tail, next,
                                                    memory_order_relaxed, memory_order_relaxed));
    if (stream->dues) relaxed_store(&stream->dues[number_of(next) % DUES], due_of(next));
    return (struct position){stream, number_of(next)};
}

enum { NO_CAPTURE = 1 << 30 };
/* the check from which on the stream captures */
static _Thread_local int capture_checks, capture_begins = NO_CAPTURE;
static _Thread_local bool was_taken;
static _Thread_local int capture_mode;

static int fake_is_capturing(void *stream, int *status) {
    (void)stream;
    *status = capture_checks++ >= capture_begins;
    return 0;
}

static int fake_exchange_capture_mode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

static int fake_stream_query(void *object) {
    struct stream *stream = object;
    REQUIRE(capture_mode == 2, "a stream was queried in capture mode %d", capture_mode);
    bool hides = relaxed_load(&hides_failure) && stream == &health[relaxed_load(&stream->context)];
    if (relaxed_load(&failed[relaxed_load(&stream->context)]) && !hides) return ERROR_FAILED;
    return is_over((struct position){stream, end_of(stream)}) ? 0 : CUDA_NOT_READY;
}

enum { USERS_FLAGS = 1 };                   /* with which users' events are made */
static _Thread_local int refused_creations; /* how many to refuse */
static _Thread_local void (*before_create)(
    void); /* once, as another thread might come in between */

static int fake_event_create(void **event, unsigned flags) {
    bool users = flags == USERS_FLAGS;
    REQUIRE((flags == 2 || users) && contexts_entered == 1, "an event without a context");
    if (before_create) {
        void (*other)(void) = before_create;
        before_create = NULL;
        other();
    }
    if (refused_creations && refused_creations--) return ERROR_REFUSED;
    if (relaxed_load(&unruly) && chance(64) == 0) return ERROR_REFUSED;
    relaxed_add(users ? &users_events_made : &events_made, 1);
    struct event *made = *event = calloc(1, sizeof(struct event));
    made->users = users;
    made->context = latest_entered == contexts[1];
    return 0;
}

static int fake_event_destroy(void *object) {
    struct event *event = object;
    if (event->users) relaxed_add(&users_events_destroyed, 1);
    free(event);
    return 0;
}

static void (*during_record)(void); /* once, as another thread might come in between */

static int fake_event_record(void *object, void *target, unsigned flags) {
    struct event *event = object;
    struct stream *stream = target;
    REQUIRE(flags == 0, "recorded with flags %u", flags);
    if (relaxed_load(&failed[relaxed_load(&stream->context)])) return ERROR_FAILED;
    if (relaxed_load(&unruly) && chance(200) == 0) return ERROR_REFUSED;
    if (event->users) {
        bool captured = capture_begins <= 1;
        relaxed_store(&event->captured, captured);
        if (!captured) relaxed_store(&event->packed, pack(enqueue_work(stream)));
        return 0;
    }
    REQUIRE(!event->recorded || is_over(event->position),
            "recorded again, but its stream had not come to it");
    event->context = relaxed_load(&stream->context);
    /* it has begun, or does so now: the event is its until it is recorded again */
    if (capture_begins <= 1) {
        capture_begins = 0;
        was_taken = event->taken = true;
        event->recorded = false;
        return 0;
    }
    if (during_record) {
        void (*other)(void) = during_record;
        during_record = NULL;
        other();
    }
    event->position = enqueue_work(stream);
    event->recorded = true;
    event->taken = false;
    if (relaxed_load(&unruly) && chance(16) == 0) sched_yield(); /* records of one stream overlap */
    return 0;
}

static _Thread_local void (*before_query)(void); /* once, as another thread might come in between */

static int fake_event_query(void *object) {
    struct event *event = object;
    REQUIRE(capture_mode == 2, "an event was queried in mode %d", capture_mode);
    if (before_query) {
        void (*other)(void) = before_query;
        before_query = NULL;
        other();
    }
    /* The polling thread has decided to do so, and then loses its processor. */
    if (relaxed_load(&unruly) && chance(300) == 0) pause_for(chance(600000));
    if (relaxed_load(&failed[event->context])) return ERROR_FAILED;
    REQUIRE(!event->users || !relaxed_load(&event->captured), "a query has ended a capture");
    if (event->users) return is_over(unpack(relaxed_load(&event->packed))) ? 0 : CUDA_NOT_READY;
    REQUIRE(!event->taken, "an event was queried that a capture has taken");
    if (!event->recorded) return 0;
    return is_over(event->position) ? 0 : CUDA_NOT_READY;
}

/* the test's own point: see fail_and_recover */
static int fake_launch_host_func(void *stream, host_function call, void *data) {
    (void)call, (void)data;
    REQUIRE((struct stream *)stream >= health && (struct stream *)stream < health + CONTEXTS,
            "a host function for a wait");
    return 0;
}

static const struct driver_calls fake_driver = {
    .stream_query = fake_stream_query,
    .stream_is_capturing = fake_is_capturing,
    .exchange_capture_mode = fake_exchange_capture_mode,
    .event_query = fake_event_query,
    .event_record = fake_event_record,
    .event_destroy = fake_event_destroy,
    .event_create = fake_event_create,
    .launch_host_func = fake_launch_host_func,
    .ctx_push = fake_push,
    .ctx_get_id = fake_get_id,
    .ctx_pop = fake_pop,
};

static void set_periods(struct stream *stream, int64_t odd, int64_t even) {
    if (!stream->dues) stream->dues = calloc(DUES, sizeof *stream->dues);
    relaxed_store(&stream->periods[1], odd);
    relaxed_store(&stream->periods[0], even);
}

static void open_contexts(void) {
    bool is_taken;
    first_time = now_ns() / 1000;
    static const int64_t periods[REGULAR][2] = {{300, 300}, {1200, 1200}, {400, 2500}}; /* us */
    for (int context = 0; context < CONTEXTS; context++) {
        health[context].context = context;
        contexts[context] = context_register(&contexts[context], (uintptr_t)&contexts[context],
                                             &health[context], &is_taken);
        for (int i = 0; i < STREAMS; i++) {
            streams[context][i].context = context;
            streams[context][i].number = i;
            if (i < REGULAR)
                set_periods(&streams[context][i], periods[i][0] * MICROSECOND,
                            periods[i][1] * MICROSECOND);
        }
    }
}

static _Atomic bool stop_moving;

/* The GPU: each stream is idle for a while and then comes some way further. */
static void *moving(void *unused) {
    (void)unused;
    int64_t next[CONTEXTS][STREAMS] = {{0}};
    static const int64_t pauses[] = {20 * MICROSECOND, 200 * MICROSECOND, 2 * MILLISECOND,
                                     12 * MILLISECOND};
    seed_thread(21, 0);
    while (!atomic_load(&stop_moving)) {
        int64_t now = now_ns();
        for (int context = 0; context < CONTEXTS; context++) {
            for (int i = 0; i < STREAMS && !relaxed_load(&failed[context]); i++) {
                struct stream *stream = &streams[context][i];
                int64_t left = end_of(stream) - relaxed_load(&stream->done);
                if (left <= 0 || is_regular(stream) || now < next[context][i]) continue;
                relaxed_add(&stream->done, 1 + chance((uint32_t)left));
                next[context][i] = now + chance((uint32_t)pauses[chance(4)]);
            }
        }
        pause_for(10000);
    }
    return NULL;
}

static void finish(struct stream *stream) { relaxed_store(&stream->done, end_of(stream)); }

/* Abandons what is pending, as the simulator's recover() does. The watcher must be stopped: nothing
 * in the library expects it. */
static void recover(int context) {
    for (int i = 0; i < STREAMS; i++) finish(&streams[context][i]);
    relaxed_store(&failed[context], false);
}

#endif
