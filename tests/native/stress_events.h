/* Waits for users' events: a part of stress_waits.c. */
#ifndef AIOSTREAM_STRESS_EVENTS_H
#define AIOSTREAM_STRESS_EVENTS_H

/* A wait is for what its event had recorded. A later record must not prolong it, nor end it, and
 * close() destroys the event only when no wait polls it. */
static void recorded_again(struct queue *queue) {
    enum { SHARING = 3 };
    for (int round = 0; round < 6; round++) {
        struct users_event *event = open_event(0);
        uint64_t first[SHARING];
        REQUIRE(record_event(event, still) == 0, "a record was refused");
        for (int i = 0; i < SHARING; i++)
            first[i] = begin_for_event(event, histories[0], queue, WAIT_EVENT).ticket;
        struct wait *dropped_wait = begin_for_event(event, histories[0], queue, WAIT_SPIN).spinning;
        refused_creations = round % 2; /* a record that was refused changes nothing */
        if (refused_creations)
            REQUIRE(record_event(event, other) == ERROR_REFUSED, "the refusal is not passed on");
        REQUIRE(record_event(event, other) == 0, "a record was refused");
        uint64_t second = begin_for_event(event, histories[0], queue, WAIT_EVENT).ticket;
        if (round % 3) wait_drop(dropped_wait);
        close_event(event);
        finish(round < 3 ? still : other);
        for (int i = 0; round < 3 && i < SHARING; i++)
            REQUIRE(await_ticket(queue, first[i], 5 * SECOND,
                                 "a later record has prolonged a wait") == 0,
                    "it failed");
        if (round >= 3)
            REQUIRE(await_ticket(queue, second, 5 * SECOND, "a wait does not end") == 0,
                    "it failed");
        for (int i = 0; round >= 3 && i < SHARING; i++)
            REQUIRE(point_is_live(first[i]), "a later record has ended a wait");
        if (round < 3) REQUIRE(point_is_live(second), "an earlier record has ended a wait");
        finish(still);
        finish(other);
        await_ticket(queue, second, 5 * SECOND, "a wait does not end");
        for (int i = 0; i < SHARING; i++)
            await_ticket(queue, first[i], 5 * SECOND, "a wait does not end");
        if (round % 3 == 0) see_through((struct wait_result){.spinning = dropped_wait}, queue);
        await_true(events_are_destroyed, "a closed event is not destroyed");
        require_nothing_left();
    }
    printf("again: waits for an event end with what it had recorded\n");
}

static struct users_event *meanwhile;
static pthread_t recorder;

static void *record(void *capture) {
    REQUIRE(record_event_into(meanwhile, other, capture != NULL) == 0, "a record was refused");
    finish(other);
    return NULL;
}

/* Another thread gets as far as it can before the query. */
static void record_meanwhile(void) {
    pthread_create(&recorder, NULL, record, NULL);
    pause_for(3000000);
}
static void capture_meanwhile(void) {
    pthread_create(&recorder, NULL, record, &meanwhile);
    pause_for(3000000);
}

static struct wait *begin_meanwhile(struct queue *queue) {
    meanwhile = open_event(0);
    REQUIRE(record_event(meanwhile, still) == 0, "a record was refused");
    return begin_for_event(meanwhile, histories[0], queue, WAIT_SPIN).spinning;
}

static void end_meanwhile(struct wait *wait, struct queue *queue) {
    struct wait_result result;
    pthread_join(recorder, NULL);
    REQUIRE(!poll_once(wait, &result), "a later record has ended a wait");
    finish(still);
    see_through((struct wait_result){.spinning = wait}, queue);
    close_event(meanwhile);
    await_true(events_are_destroyed, "a closed event is not destroyed");
    require_nothing_left();
}

/* A poll has chosen the user's event; another thread records it on an idle stream, or into a
 * capture, before the query. */
static void recorded_during_a_poll(struct queue *queue) {
    struct wait_result result;
    for (int i = 0; i < 2; i++) {
        struct wait *wait = begin_meanwhile(queue);
        before_query = i ? capture_meanwhile : record_meanwhile;
        REQUIRE(!poll_once(wait, &result), "a record during a poll has ended the wait with %d",
                result.refusal);
        end_meanwhile(wait, queue);
    }
    printf("poll: a record during a poll does not end the wait\n");
}

/* Two threads record one event: each of them must find the waits for what it had recorded
 * before. */
static void recorded_twice_at_once(struct queue *queue) {
    for (int i = 0; i < 2; i++) {
        struct wait *wait = begin_meanwhile(queue);
        before_create = i ? capture_meanwhile : record_meanwhile;
        REQUIRE(record_event(meanwhile, other) == 0, "a record was refused");
        finish(other);
        end_meanwhile(wait, queue);
    }
    printf("twice: two records at once do not end a wait\n");
}

/* Two threads begin to wait for one event at the same moment. */
static _Atomic int together_round, together_begun;
static struct users_event *together_event;
static struct wait *together_wait;

static void *second_beginner(void *argument) {
    struct queue *queue = queue_open();
    for (int round = 1; round <= *(int *)argument; round++) {
        while (atomic_load(&together_round) < round) {
        }
        together_wait = begin_for_event(together_event, histories[0], queue, WAIT_SPIN).spinning;
        atomic_store(&together_begun, round);
    }
    queue_close(queue);
    return NULL;
}

static void begin_together(void) {
    int rounds = 3000;
    struct queue *queue = queue_open();
    pthread_t thread;
    pthread_create(&thread, NULL, second_beginner, &rounds);
    together_event = open_event(0);
    for (int round = 1; round <= rounds; round++) {
        struct wait_result result;
        REQUIRE(record_event(together_event, still) == 0, "a record was refused");
        atomic_store(&together_round, round);
        for (int i = (int)chance(200); i > 0; i--) atomic_load(&together_round);
        struct wait *wait =
            begin_for_event(together_event, histories[0], queue, WAIT_SPIN).spinning;
        while (atomic_load(&together_begun) < round) {
        }
        REQUIRE(record_event(together_event, other) == 0, "a record was refused");
        finish(other);
        bool ended_early = poll_once(wait, &result) || poll_once(together_wait, &result);
        REQUIRE(!ended_early,
                "round %d: one of two waits that began at once was not known to the record", round);
        finish(still);
        REQUIRE(poll_once(wait, &result) && poll_once(together_wait, &result),
                "a wait does not end");
    }
    pthread_join(thread, NULL);
    close_event(together_event);
    await_true(events_are_destroyed, "a closed event is not destroyed");
    queue_close(queue);
    require_nothing_left();
    printf("together: %d times two threads began to wait for one event\n", rounds);
}

#endif
