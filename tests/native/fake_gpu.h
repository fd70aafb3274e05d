/* A fake driver for waits: streams that come further at random times, events, helpers, host functions, failures that pass.
 *
 * Its state is in relaxed atomics and plain fields, and under no lock, on purpose: a lock of the fake's would put an order between
 * the threads that the library itself has to make, and ThreadSanitizer would see nothing. An event's and a helper's fields are
 * plain, because only the one who has the wait may touch them.
 */
#ifndef AIOSTREAM_FAKE_GPU_H
#define AIOSTREAM_FAKE_GPU_H

#include "stress.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { CONTEXTS = 2, STREAMS = 8, REGULAR = 3, FUNCTIONS = 256 };
enum { ERROR_REFUSED = 2, ERROR_FAILED = 700 };
static const int64_t MICROSECOND = 1000, MILLISECOND = 1000000, SECOND = 1000000000;

#define relaxed_load(address) atomic_load_explicit(address, memory_order_relaxed)
#define relaxed_store(address, value) atomic_store_explicit(address, value, memory_order_relaxed)
#define relaxed_add(address, value) atomic_fetch_add_explicit(address, value, memory_order_relaxed)

struct position { /* of a stream: behind the work that it had then */
    struct stream *stream;
    int64_t number;
    int64_t due; /* ns; of a regular stream; else 0 */
};
struct stream {
    _Atomic int64_t end, done; /* numbers of the last work that was enqueued, and that is over */
    _Atomic int64_t period;    /* ns; a regular stream's work takes so long; 0: it moves when `moving` moves it */
    _Atomic int64_t last_due;  /* ns; of a regular stream's last work */
    int context;
    /* Of helpers alone, and of the one who has it: */
    struct position behind;
    _Atomic int functions; /* pending on it */
};
struct event {
    struct position position;
    int context;
    bool recorded, taken; /* taken: by a capture */
};
static struct stream streams[CONTEXTS][STREAMS]; /* the users' */
static struct stream health[CONTEXTS];           /* the contexts' */
static struct context *contexts[CONTEXTS];
static _Atomic bool failed[CONTEXTS]; /* what the driver answers */
static _Atomic bool hides_failure;    /* private streams do not show it yet */
static _Atomic int64_t events_made, helpers_made, helpers_destroyed;
static _Atomic bool unruly; /* refuses and delays now and then */

static bool is_over(struct position position) {
    if (!position.stream || relaxed_load(&position.stream->done) >= position.number) return true;
    return position.due && now_ns() >= position.due;
}

static struct position enqueue_work(struct stream *stream) {
    int64_t period = relaxed_load(&stream->period), due = period ? now_ns() + period : 0, last = relaxed_load(&stream->last_due);
    while (due > last && !atomic_compare_exchange_weak(&stream->last_due, &last, due)) {}
    return (struct position){stream, relaxed_add(&stream->end, 1) + 1, due};
}

static _Thread_local int capture_checks, capture_begins = 1000; /* the check from which on the stream captures */
static _Thread_local bool was_taken;
static _Thread_local int capture_mode;
static _Thread_local int contexts_entered;

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
    bool hides = relaxed_load(&hides_failure) && stream == &health[stream->context];
    if (relaxed_load(&failed[stream->context]) && !hides) return ERROR_FAILED;
    if (relaxed_load(&stream->done) >= relaxed_load(&stream->end)) return 0;
    bool regular = relaxed_load(&stream->period) != 0;
    return regular && now_ns() >= relaxed_load(&stream->last_due) ? 0 : CUDA_NOT_READY;
}

static int fake_event_create(void **event, unsigned flags) {
    REQUIRE(flags == 2 && contexts_entered == 1, "an event without a context, or with timing");
    if (relaxed_load(&unruly) && chance(64) == 0) return ERROR_REFUSED;
    relaxed_add(&events_made, 1);
    struct event *made = calloc(1, sizeof *made);
    *event = made;
    return 0;
}

static int fake_event_destroy(void *event) {
    free(event);
    return 0;
}

static void (*during_record)(void); /* once, as another thread might come in between */

static int fake_event_record(void *object, void *target, unsigned flags) {
    struct event *event = object;
    struct stream *stream = target;
    REQUIRE(flags == 0, "recorded with flags %u", flags);
    REQUIRE(!event->recorded || is_over(event->position) || relaxed_load(&failed[event->context]),
            "an event was recorded again although its stream had not come to it");
    if (relaxed_load(&failed[stream->context])) return ERROR_FAILED;
    if (relaxed_load(&unruly) && chance(200) == 0) return ERROR_REFUSED;
    if (capture_begins <= 1) { /* it has begun, or does so now: the event is its until it is recorded again */
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
    bool helper = stream->behind.stream != NULL;
    event->position = helper ? stream->behind : enqueue_work(stream);
    event->context = stream->context;
    event->recorded = true;
    event->taken = false;
    if (relaxed_load(&unruly) && chance(16) == 0) sched_yield(); /* records of one stream overlap */
    return 0;
}

static int fake_event_query(void *object) {
    struct event *event = object;
    REQUIRE(capture_mode == 2, "an event was queried in mode %d", capture_mode);
    REQUIRE(!event->taken, "an event was queried that a capture has taken");
    if (!event->recorded) return 0;
    if (relaxed_load(&failed[event->context])) return ERROR_FAILED;
    return is_over(event->position) ? 0 : CUDA_NOT_READY;
}

static int fake_stream_create(void **stream, unsigned flags) {
    REQUIRE(flags == 1 && contexts_entered == 1, "a helper without a context, or that blocks");
    if (relaxed_load(&unruly)) {
        if (chance(16) == 0) return ERROR_REFUSED;
        if (chance(8) == 0) nanosleep(&(struct timespec){.tv_nsec = chance(3000000)}, NULL);
    }
    *stream = calloc(1, sizeof(struct stream));
    relaxed_add(&helpers_made, 1);
    return 0;
}

static int fake_stream_destroy(void *object) {
    struct stream *stream = object;
    REQUIRE(relaxed_load(&stream->functions) == 0, "a helper was destroyed under its host function");
    relaxed_add(&helpers_destroyed, 1);
    free(stream);
    return 0;
}

static int fake_stream_wait_event(void *object, void *awaited, unsigned flags) {
    struct stream *helper = object;
    struct event *event = awaited;
    (void)flags;
    if (relaxed_load(&failed[event->context])) return ERROR_FAILED;
    REQUIRE(is_over(helper->behind) && relaxed_load(&helper->functions) == 0, "a helper was lent that still waits");
    helper->behind = event->position;
    helper->context = event->context;
    return 0;
}

/* Host functions on helpers: those whose event is over are run, some at once and some much later. */
static struct function {
    host_function call;
    void *data;
    struct stream *helper;
    struct position behind;
    int64_t not_before;
} functions[FUNCTIONS];
static int function_count;
static bool firing; /* one is being run */
static pthread_mutex_t function_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t fired_one = PTHREAD_COND_INITIALIZER;

static int fake_launch_host_func(void *object, host_function call, void *data) {
    struct stream *helper = object;
    if (helper >= health && helper < health + CONTEXTS) return 0; /* the test's own point: see fail_and_recover */
    if (relaxed_load(&failed[helper->context])) return ERROR_FAILED;
    if (relaxed_load(&unruly) && chance(16) == 0) return ERROR_REFUSED;
    if (relaxed_load(&unruly) && chance(8) == 0 && is_over(helper->behind)) {
        call(data);
        return 0;
    }
    relaxed_add(&helper->functions, 1);
    int64_t late = relaxed_load(&unruly) && chance(4) == 0 ? chance(20) * MILLISECOND : 0;
    pthread_mutex_lock(&function_lock);
    REQUIRE(function_count < FUNCTIONS, "more than %d host functions are pending", FUNCTIONS);
    functions[function_count++] = (struct function){call, data, helper, helper->behind, now_ns() + late};
    pthread_mutex_unlock(&function_lock);
    return 0;
}

/* Runs one that is due. After a failure none is. */
static bool run_a_function(void) {
    pthread_mutex_lock(&function_lock);
    for (int i = 0; i < function_count; i++) {
        struct function function = functions[i];
        if (relaxed_load(&failed[function.helper->context]) || now_ns() < function.not_before) continue;
        if (!is_over(function.behind)) continue;
        functions[i] = functions[--function_count];
        firing = true;
        pthread_mutex_unlock(&function_lock);
        relaxed_add(&function.helper->functions, -1); /* before: the helper may be lent again once it has returned */
        function.call(function.data);
        pthread_mutex_lock(&function_lock);
        firing = false;
        pthread_cond_broadcast(&fired_one);
        pthread_mutex_unlock(&function_lock);
        return true;
    }
    pthread_mutex_unlock(&function_lock);
    return false;
}

static int functions_pending(void) {
    pthread_mutex_lock(&function_lock);
    int count = function_count;
    pthread_mutex_unlock(&function_lock);
    return count;
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
    .stream_query = fake_stream_query, .stream_is_capturing = fake_is_capturing, .stream_destroy = fake_stream_destroy,
    .exchange_capture_mode = fake_exchange_capture_mode, .event_query = fake_event_query, .event_record = fake_event_record,
    .event_destroy = fake_event_destroy, .event_create = fake_event_create, .stream_create = fake_stream_create,
    .stream_wait_event = fake_stream_wait_event, .launch_host_func = fake_launch_host_func, .ctx_push = fake_push,
    .ctx_pop = fake_pop,
};

static _Atomic bool stop_moving;

/* The GPU: each stream stands still for a while and then comes some way further. */
static void *moving(void *unused) {
    (void)unused;
    int64_t next[CONTEXTS][STREAMS] = {{0}};
    static const int64_t pauses[] = {20 * MICROSECOND, 200 * MICROSECOND, 2 * MILLISECOND, 12 * MILLISECOND};
    seed_thread(21, 0);
    while (!atomic_load(&stop_moving)) {
        int64_t now = now_ns();
        for (int context = 0; context < CONTEXTS; context++) {
            for (int i = 0; i < STREAMS && !relaxed_load(&failed[context]); i++) {
                struct stream *stream = &streams[context][i];
                int64_t left = relaxed_load(&stream->end) - relaxed_load(&stream->done);
                if (left == 0 || relaxed_load(&stream->period) || now < next[context][i]) continue;
                relaxed_add(&stream->done, 1 + chance((uint32_t)left));
                next[context][i] = now + chance((uint32_t)pauses[chance(4)]);
            }
        }
        while (run_a_function()) {}
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    }
    return NULL;
}

static void finish(struct stream *stream) { relaxed_store(&stream->done, relaxed_load(&stream->end)); }

/* Abandons what is pending, as the simulator's recover() does. The watcher must be stopped: nothing in the library expects it. */
static void recover(int context) {
    pthread_mutex_lock(&function_lock);
    while (firing) pthread_cond_wait(&fired_one, &function_lock);
    for (int i = 0; i < function_count; i++) {
        if (functions[i].helper->context != context) continue;
        relaxed_add(&functions[i].helper->functions, -1);
        functions[i--] = functions[--function_count];
    }
    pthread_mutex_unlock(&function_lock);
    for (int i = 0; i < STREAMS; i++) finish(&streams[context][i]);
    relaxed_store(&failed[context], false);
}

#endif
