/* Races of points and queues that need one thread to lose its processor at one place: each is
 * played by hand, in one thread. */
#include <stdatomic.h>

/* Called before the head of a queue is taken whole: there the watcher loses its processor. */
static void before_exchange(const void *object);
#undef atomic_exchange
#define atomic_exchange(object, desired)                                                           \
    (before_exchange((const void *)(object)),                                                      \
     atomic_exchange_explicit(object, desired, memory_order_seq_cst))

#include "queues.c"
#define table_lock points_table_lock
#include "points.c"

#include <stdio.h>

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (condition) break;                                                                      \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, "\n");                                                                     \
        exit(1);                                                                                   \
    } while (0)

static void *given;
static host_function function;
static stream_callback callback;

static int fake_launch(void *stream, host_function launched, void *data) {
    (void)stream;
    function = launched;
    given = data;
    return 0;
}
static int fake_add_callback(void *stream, stream_callback added, void *data, unsigned flags) {
    (void)stream, (void)flags;
    callback = added;
    given = data;
    return 0;
}
static int fake_is_capturing(void *stream, int *status) {
    (void)stream;
    *status = 0;
    return 0;
}

static uint64_t delivered[16];
static int delivered_count;
static int64_t last_status;

static bool deliver(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused, (void)complete;
    delivered[delivered_count++] = ticket;
    last_status = status;
    return true;
}

static bool is_delivered(struct queue *queue, uint64_t ticket) {
    delivered_count = 0;
    REQUIRE(queue_drain(queue, deliver, NULL), "a drain was refused");
    for (int i = 0; i < delivered_count; i++)
        if (delivered[i] == ticket) return true;
    return false;
}

static void *const STREAM = (void *)16;
static struct context *failing, *healthy;
static struct queue *orphans, *closing, *reopened;
static uint64_t failed, completed;
static void *failed_data;
static bool preempted;

/* What the other threads do while the watcher has pushed a failed point, has read that its queue is
 * closed, and is idle. */
static void others_go_on(void) {
    push_to_orphans(closing); /* the closing thread */
    REQUIRE(is_delivered(orphans, failed), "the janitor gets the failed point");
    queue_unref(closing); /* the owner's reference */
    /* the driver comes late, and gives the point's reference back */
    callback(NULL, 709, failed_data);
    is_delivered(orphans, failed);
    reopened = queue_open(); /* another loop's */
    completed = point_reserve(reopened, healthy, KIND_HOST_FUNCTION);
    REQUIRE(point_arm(completed, STREAM) == 0, "a point was refused");
    function(given);
}

static void before_exchange(const void *object) {
    if (!preempted || !closing || object != &closing->head) return;
    preempted = false;
    others_go_on();
}

static void test_failing_a_point_of_a_queue_that_is_closed_and_opened_again(void) {
    closing = queue_open();
    failed = point_reserve(closing, failing, KIND_CALLBACK);
    REQUIRE(point_arm(failed, STREAM) == 0, "a point was refused");
    failed_data = given;
    closing->closed = true; /* the first step of queue_close */
    preempted = true;
    points_fail(failing, 709);
    REQUIRE(reopened && !preempted, "the watcher was not preempted");
    REQUIRE(is_delivered(reopened, completed),
            "the loop that has opened a queue meanwhile lost a completion");
    closing = NULL;
    queue_close(reopened);
}

static void test_each_use_of_a_point_has_a_ticket_of_its_own(void) {
    enum { USES = 100 };
    struct queue *queue = queue_open();
    uint64_t tickets[USES];
    for (int i = 0; i < USES; i++) {
        tickets[i] = point_reserve(queue, healthy, KIND_HOST_FUNCTION);
        point_unreserve(tickets[i]);
        for (int j = 0; j < i; j++)
            REQUIRE(tickets[j] != tickets[i], "uses %d and %d have one ticket", j, i);
    }
    queue_close(queue);
}

static void test_a_point_forgets_that_its_last_use_failed(void) {
    struct queue *queue = queue_open();
    uint64_t ticket = point_reserve(queue, failing, KIND_HOST_FUNCTION);
    REQUIRE(point_arm(ticket, STREAM) == 0, "a point was refused");
    points_fail(failing, 709);
    function(given);
    REQUIRE(is_delivered(queue, ticket) && last_status == 709, "a lost context was not reported");
    uint64_t next = point_reserve(queue, healthy, KIND_HOST_FUNCTION);
    REQUIRE(next % (1u << POINT_BITS) == ticket % (1u << POINT_BITS), "not the same point");
    REQUIRE(point_arm(next, STREAM) == 0, "a point was refused");
    function(given);
    REQUIRE(is_delivered(queue, next) && last_status == STATUS_UNKNOWN,
            "a healthy context has failed");
    queue_close(queue);
}

/* How long a loop takes to poll again, as its waits have seen it. */
static void test_the_lateness_of_a_loop_follows_its_turns(void) {
    const int64_t turn = 4000000;
    struct queue *queue = queue_open();
    for (int i = 0; i < 20; i++) queue_note_lateness(queue, turn);
    int64_t late = queue_lateness(queue);
    REQUIRE(late > turn * 9 / 10 && late <= turn, "turns of 4 ms: late by %d us",
            (int)(late / 1000));
    for (int i = 0; i < 20; i++) queue_note_lateness(queue, 0);
    REQUIRE(queue_lateness(queue) < turn / 10, "the lateness stays when the turns are short again");
    /* ends that have come together were unread for a turn */
    struct queue_entry ends[3];
    for (int i = 0; i < 3; i++) queue_push(queue, &ends[i]);
    while (now_ns() - queue_unread_since(queue) < turn) continue;
    REQUIRE(queue_take(queue), "no entry");
    REQUIRE(queue_lateness(queue) > turn / 5,
            "three ends that were unread for 4 ms showed no lateness");
    queue_close(queue);
}

/* A steady wait has the same point each time. */
static void test_a_point_that_was_used_as_often_as_a_ticket_can_say(void) {
    struct queue *queue = queue_open();
    uint64_t ticket = point_reserve(queue, healthy, KIND_HOST_FUNCTION);
    point_unreserve(ticket);
    point_of(queue->spares.entries)->word = ((1ull << 40) - 2) << 8;
    for (int i = 0; i < 4; i++) {
        ticket = point_reserve(queue, healthy, KIND_HOST_FUNCTION);
        REQUIRE(ticket, "a ticket is 0");
        REQUIRE(point_arm(ticket, STREAM) == 0, "a point was refused");
        function(given);
        REQUIRE(is_delivered(queue, ticket), "use 2^40%+d was not delivered", i - 2);
    }
    queue_close(queue);
}

int main(void) {
    driver = (struct driver_calls){.launch_host_func = fake_launch,
                                   .stream_add_callback = fake_add_callback,
                                   .stream_is_capturing = fake_is_capturing};
    bool is_taken;
    orphans = queue_orphans();
    failing = context_register(&failing, 1, STREAM, &is_taken);
    healthy = context_register(&healthy, 2, STREAM, &is_taken);
    test_failing_a_point_of_a_queue_that_is_closed_and_opened_again();
    test_each_use_of_a_point_has_a_ticket_of_its_own();
    test_a_point_that_was_used_as_often_as_a_ticket_can_say();
    test_a_point_forgets_that_its_last_use_failed();
    test_the_lateness_of_a_loop_follows_its_turns();
    return 0;
}
