/* Drives the waits with a fake driver: tasks in several threads begin, poll, drop, are handed back
 * and go on, while streams move, loops close, contexts fail, and users' events are recorded again
 * and closed. Built with ThreadSanitizer and with AddressSanitizer by test_native.py.
 *
 * Usage: stress_waits SECONDS SEED. Ends with code 0 and one line per part, or with the first
 * promise that was broken.
 */
#include "stress_tasks.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

#include "stalls.h"
#include "wait_inside.h" /* active_count */

static void python_dispatch(uint64_t ticket, int status) {
    broken("host function %llx, %d: none was armed", (unsigned long long)ticket, status);
}

/* moved by the parts */
static struct stream *const still = &streams[0][STREAMS - 1], *const other =
                                                                  &streams[0][STREAMS - 2];

/* --- single waits --- */

static int64_t last_status;
static uint64_t awaited;

static bool emit_awaited(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused, (void)complete;
    if (ticket == awaited) awaited = 0, last_status = status;
    return true;
}

/* Whether the ticket is delivered now, or was with another one. */
static bool take_ticket(struct queue *queue, uint64_t ticket) {
    awaited = point_is_live(ticket) ? ticket : 0;
    if (!awaited) return true;
    struct pollfd descriptor = {.fd = queue->descriptor, .events = POLLIN};
    poll(&descriptor, 1, 1);
    run_due(queue);
    REQUIRE(queue_drain(queue, emit_awaited, NULL), "the drain stopped");
    return !awaited;
}

static int64_t await_ticket(struct queue *queue, uint64_t ticket, int64_t patience,
                            const char *what) {
    int64_t deadline = now_ns() + patience;
    while (!take_ticket(queue, ticket)) REQUIRE(now_ns() < deadline, "%s", what);
    return last_status;
}

static struct wait_result begin_one(struct wait_list *list, struct stream *stream,
                                    struct queue *queue, const struct strategy *strategy) {
    struct wait_result result;
    int before = relaxed_enter();
    wait_begin(&(struct waits){list, LIMIT_NS}, stream, queue, strategy, &result);
    relaxed_leave(before);
    REQUIRE(result.refusal == 0, "refused with %d", result.refusal);
    /* neither a ticket nor a wait: a regular stream was ready, because this thread was slow */
    return result;
}

static struct wait_result begin_for_event(struct users_event *event, struct shared_history *history,
                                          struct queue *queue, const struct strategy *strategy) {
    struct wait_result result;
    int before = relaxed_enter();
    struct handle *handle = atomic_load(&event->handle);
    REQUIRE(handle_pin(handle), "the event is closed");
    struct wait_list *list = wait_list_new(contexts[event->context], history, NULL);
    wait_begin_event(&(struct waits){list, 0}, handle, queue, strategy, &result);
    wait_list_unref(list);
    handle_unpin(handle);
    relaxed_leave(before);
    REQUIRE(result.refusal == 0, "refused with %d", result.refusal);
    return result;
}

/* One poll; true: it is over. */
static bool poll_once(struct wait *wait, struct wait_result *result) {
    int before = relaxed_enter();
    wait_poll(wait, result);
    relaxed_leave(before);
    return !result->spinning;
}

/* Polls until the wait is the watcher's or a timer's. 0: it ended before. */
static uint64_t spin_out(struct wait_result result) {
    struct wait *wait = result.spinning;
    while (wait && !result.ticket && !poll_once(wait, &result)) sched_yield();
    REQUIRE(result.ticket || result.refusal == 0, "it ended with %d", result.refusal);
    return result.ticket;
}

/* As a task does, to the wait's end. Returns how often it was handed back. */
static int see_through(struct wait_result result, struct queue *queue) {
    int hand_backs = 0;
    for (;;) {
        struct wait *wait = result.spinning;
        if (!wait && !result.ticket) return hand_backs;
        if (!wait) {
            int64_t status = await_ticket(queue, result.ticket, 5 * SECOND, "a wait does not end");
            wait = wait_handed_back(status);
            REQUIRE(wait || status == 0, "a wait ended with %lld", (long long)status);
            if (!wait) return hand_backs;
            hand_backs++;
        }
        while (!poll_once(wait, &result)) sched_yield();
        REQUIRE(result.refusal == 0, "a wait ended with %d", result.refusal);
    }
}

/* A part that needs luck with the scheduler tries again until then. */
static int64_t patience_ends(void) { return now_ns() + 40 * SECOND; }

static void await_true(bool (*is_true)(void), const char *what) {
    for (int64_t deadline = now_ns() + 5 * SECOND; !is_true(); pause_for(200000))
        REQUIRE(now_ns() < deadline, "%s", what);
}
static bool none_is_active(void) { return atomic_load(&active_count) == 0 && !waits_are_new(); }
static bool events_are_destroyed(void) {
    handles_drop_abandoned(); /* as the janitor does */
    return atomic_load(&users_events_made) == atomic_load(&users_events_destroyed);
}

/* After each part. */
static void require_nothing_left(void) {
    await_true(none_is_active, "the watcher still has wait lists");
    REQUIRE(waits_pending() == 0, "%d waits are pending", waits_pending());
    REQUIRE(counters[POINTS_STALE] == 0, "a ticket was fired that is no wait's");
}

/* How many waits are back with their loops. Each refers to its list until it is used again, and
 * forgets that here. */
static int64_t count_spares(void) {
    struct queue *queue;
    int64_t count = 0;
    for (int i = 0; (queue = queue_at(i)); i++) {
        struct spares *spares = &queue->spares;
        pthread_mutex_lock(&spares->lock);
        for (int place = 0; place < SPARE_WAITS; place++)
            for (struct wait *wait = spares->waits[place]; wait; wait = wait->next) {
                struct wait_list *last = atomic_exchange(&wait->list, NULL);
                if (last) wait_list_unref(last);
                count++;
            }
        pthread_mutex_unlock(&spares->lock);
    }
    return count;
}

/* Waits until the last reference is the caller's. The watcher has its own reference while it looks
 * at a list, and gives it back only after the list is no longer active. So a count that is read
 * right after require_nothing_left() may still have it. */
static void require_last_reference(const void *counted, const char *what) {
    _Atomic int64_t *references = (_Atomic int64_t *)counted; /* the first field */
    count_spares();
    for (int64_t deadline = now_ns() + 5 * SECOND; atomic_load(references) != 1;) {
        REQUIRE(now_ns() < deadline, "%s has %lld references too many", what,
                (long long)atomic_load(references) - 1);
        pause_for(200000);
        count_spares();
    }
}

static const void *handle_references(const struct handle *handle) {
    return (const int64_t *)handle + 1; /* the second field */
}

static void free_list(struct wait_list *list) {
    require_last_reference(list, "a wait list");
    wait_list_unref(list);
}

static void free_history(struct shared_history *history) {
    require_last_reference(history, "a history");
    shared_history_unref(history);
}

/* --- order --- */

static struct wait_list *shared_list;
static struct queue *shared_queue;
static uint64_t recorded_within;
static int64_t position_within;

static void record_within(void) {
    recorded_within = begin_one(shared_list, still, shared_queue, WAIT_EVENT).ticket;
    position_within = end_of(still);
}

/* Two threads record at once: the one that began first may come second in the stream. */
static void overlap(struct queue *queue) {
    shared_list = wait_list_new(contexts[0], histories[0], NULL);
    shared_queue = queue;
    enqueue_work(still);
    during_record = record_within;
    uint64_t around = begin_one(shared_list, still, queue, WAIT_EVENT).ticket;
    relaxed_store(&still->done, position_within);
    await_ticket(queue, recorded_within, 5 * SECOND,
                 "a wait is held up by one that was recorded at the same time");
    REQUIRE(point_is_live(around), "it ended too early");
    finish(still);
    await_ticket(queue, around, 5 * SECOND, "it does not end");
    require_nothing_left();
    free_list(shared_list);
    printf("overlap: waits that were recorded at once do not hold each other up\n");
}

/* --- waits without a task --- */

/* As if the latest waits had taken that long: on a busy machine they would not. */
static void teach(struct shared_history *shared, int64_t length) {
    pthread_mutex_lock(&shared->lock);
    for (int i = 0; i < 8; i++)
        history_learn(&shared->history, length - 5 * MICROSECOND, length + 5 * MICROSECOND);
    pthread_mutex_unlock(&shared->lock);
}

/* A loop that closes leaves the waits in its timer to the watcher, and their ends to the orphans'
 * queue. */
static void close_loop(struct queue *orphans) {
    static struct stream regular;
    struct queue *queue = queue_open();
    struct shared_history *history = shared_history_new();
    struct wait_list *list = wait_list_new(contexts[0], history, NULL);
    int64_t by_timer = counters[WAITS_BY_TIMER], latest = patience_ends();
    set_periods(&regular, 9 * MILLISECOND, 9 * MILLISECOND);
    for (int i = 0; counters[WAITS_BY_TIMER] < by_timer + 4 && now_ns() < latest; i++) {
        teach(history, 9 * MILLISECOND);
        enqueue_work(&regular);
        uint64_t ticket = spin_out(begin_one(list, &regular, queue, WAIT_AUTO));
        if (!ticket) continue;
        if (i % 2) pause_for(chance(8000000)); /* with and without a guard poll before */
        close_queue(queue);
        struct wait *wait = wait_handed_back(
            await_ticket(orphans, ticket, 5 * SECOND, "a closed loop's wait does not end"));
        if (wait) wait_drop(wait);
        queue = queue_open();
        require_nothing_left();
    }
    REQUIRE(counters[WAITS_BY_TIMER] >= by_timer + 4, "no timer had the waits");
    queue_close(queue);
    free_list(list);
    free_history(history);
    printf("close: waits in the timer of a loop that was closed end as orphans\n");
}

/* With nothing to do the watcher parks: a process that waits for nothing costs nothing. */
static void require_peace(void) {
    struct rusage before, after;
    for (int i = 0; i < 50; i++) {
        getrusage(RUSAGE_SELF, &before);
        pause_for(100000000);
        getrusage(RUSAGE_SELF, &after);
        if (after.ru_nvcsw - before.ru_nvcsw < 20) return;
    }
    broken("the watcher finds no peace: %ld wake-ups in 100 ms", after.ru_nvcsw - before.ru_nvcsw);
}

/* The watcher comes only when the waits that were left to it are over, or their tasks poll them
 * again. A wait for an event owns its list alone. */
static void late_watcher(void) {
    struct stream *regular = &streams[0][0];
    struct shared_history *history = shared_history_new();
    struct users_event *event = open_event(0);
    int64_t periods[2] = {relaxed_load(&regular->periods[0]), relaxed_load(&regular->periods[1])};
    set_periods(regular, 6 * MILLISECOND, 6 * MILLISECOND);
    int met = 0;
    int64_t latest = patience_ends();
    for (int i = 0; met < 6 && now_ns() < latest; i++) {
        struct queue *queue = queue_open(); /* which knows of no lateness of its loop */
        teach(history, 6 * MILLISECOND);
        REQUIRE(record_event(event, regular) == 0, "a record was refused");
        watcher_stop(ANY_PATIENCE_S);
        uint64_t ticket = spin_out(begin_for_event(event, history, queue, WAIT_AUTO));
        /* by its timer */
        for (int64_t end = now_ns() + 10 * MILLISECOND; ticket && now_ns() < end;)
            take_ticket(queue, ticket);
        struct wait *wait = ticket && !point_is_live(ticket) ? wait_handed_back(last_status) : NULL;
        if (wait && i % 3 == 0) wait_drop(wait);
        else if (wait) see_through((struct wait_result){.spinning = wait}, queue);
        met += wait != NULL;
        REQUIRE(watcher_start() == 0, "the watcher did not start again");
        if (ticket && !wait) see_through((struct wait_result){.ticket = ticket}, queue);
        require_nothing_left();
        close_queue(queue);
    }
    REQUIRE(met >= 6, "no timer hands a wait back");
    set_periods(regular, periods[1], periods[0]);
    close_event(event);
    await_true(events_are_destroyed, "a closed event is not destroyed");
    free_history(history);
    printf("late: a watcher that comes late finds what was left to it\n");
}

/* --- events --- */
#include "stress_events.h"

/* --- all at once --- */

static pthread_t gpu;

static bool has_met_everything(void) {
    return ended > 0 && failures > 0 && dropped > 0 && orphaned > 0 && captured > 0 &&
           repeated > 0 && events_closed > 0 && counters[WAITS_BY_TIMER] > 20 &&
           counters[WAITS_HANDED_BACK] > 20 && replaced_count > 100 && futures_dropped > 5;
}

/* Lists what waits and what is stalled, while all of it changes. */
static void *lister(void *unused) {
    static int64_t listed;
    REQUIRE(stalls_start(eventfd(0, 0)) == 0, "no thread counts");
    while (!atomic_load(&stop_tasks)) {
        struct stall stall;
        struct waiting each;
        if (stall_lasts(&stall) || stall_take(&stall))
            REQUIRE(stall.ns > LIMIT_NS, "a stall of %lld ns is none", (long long)stall.ns);
        for (struct wait *wait = NULL; waits_next(&wait, &each); listed++) {
            REQUIRE(each.began > 0 && each.began <= now_ns() && each.expected >= 0,
                    "a wait that was listed is none");
            /* some tasks have a list of their own, without a name */
            bool known = !*each.name || strcmp(each.name, "stressed") == 0 ||
                         strncmp(each.name, "event ", 6) == 0;
            REQUIRE(known, "its stream is %s", each.name);
        }
        pause_for(100000);
    }
    REQUIRE(listed > 0, "no wait was listed");
    return unused;
}

static void stress(struct queue *orphans, double seconds, uint64_t seed) {
    static struct loop loops[LOOPS];
    pthread_t janitor_thread, lister_thread;
    atomic_store(&unruly, true);
    for (int context = 0; context < CONTEXTS; context++)
        for (int i = 0; i < STREAMS; i++) {
            wait_lists[context][i] =
                wait_list_new(contexts[context], histories[i < REGULAR ? 1 : 0], NULL);
            wait_list_label(wait_lists[context][i], "stressed");
        }
    for (int i = 0; i < EVENTS; i++) atomic_store(&current_events[i], open_event(i % CONTEXTS));
    pthread_create(&gpu, NULL, moving, NULL);
    pthread_create(&janitor_thread, NULL, janitor, orphans);
    pthread_create(&lister_thread, NULL, lister, NULL);
    for (int i = 0; i < LOOPS; i++) {
        loops[i].seed = seed + (uint64_t)i;
        pthread_create(&loops[i].thread, NULL, loop, &loops[i]);
    }
    /* Longer on a machine so busy that the rarest case has not come by then. */
    int64_t end = now_ns() + (int64_t)(seconds * 1e9), latest = end + 60 * SECOND;
    for (int round = 0; now_ns() < end || (!has_met_everything() && now_ns() < latest); round++) {
        atomic_store(&few_tasks, round % 2);
        pause_for(150000000); /* the length of a round; nothing waits for it */
        if (round % 2 == 0) fail_and_recover((int)chance(CONTEXTS));
    }
    atomic_store(&stop_tasks, true);
    for (int i = 0; i < LOOPS; i++) pthread_join(loops[i].thread, NULL);
    pthread_join(lister_thread, NULL);
    int64_t deadline = now_ns() + 20 * SECOND;
    while (atomic_load(&outstanding[0]) + atomic_load(&outstanding[1]) > 0) {
        REQUIRE(now_ns() < deadline, "%lld and %lld waits never ended", (long long)outstanding[0],
                (long long)outstanding[1]);
        pause_for(1000000);
    }
    atomic_store(&stop_janitor, true);
    queue_wake(orphans);
    pthread_join(janitor_thread, NULL);
    /* The GPU goes on until the memory of all waits is back: see require_all_back. */
    atomic_store(&unruly, false);
    int64_t pending = points_pending().all;
    REQUIRE(pending == 0, "%lld points are pending", (long long)pending);
    REQUIRE(counters[POINTS_ARMED] == counters[POINTS_FIRED], "%lld were armed, %lld fired",
            (long long)counters[POINTS_ARMED], (long long)counters[POINTS_FIRED]);
    REQUIRE(counters[POINTS_LEAKED] == 0 && counters[POINTS_STALE] == 0, "leaked, or fired late");
    for (int i = 0; i < TICKETS; i++)
        REQUIRE(tickets[i].ticket == 0, "ticket %llx never fired",
                (unsigned long long)tickets[i].ticket);
}

static void require_all_back(void) {
    int64_t deadline = now_ns() + 20 * SECOND, known = 0, taken = 0;
    do {
        REQUIRE(now_ns() < deadline, "of %lld waits only the memory of %lld is back",
                (long long)known, (long long)taken);
        pause_for(5000000);
        known = atomic_load(&events_made);
        taken = count_spares();
    } while (taken < known);
    REQUIRE(taken == known, "%lld waits, the memory of %lld back", (long long)known,
            (long long)taken);
    require_nothing_left();
    for (int i = 0; i < EVENTS; i++) close_event(atomic_load(&current_events[i]));
    await_true(events_are_destroyed, "a closed event is not destroyed");
    for (int64_t i = 0; i < USERS_HANDLES && i < users_handle_count; i++) {
        require_last_reference(handle_references(users_handles[i]), "an event's handle");
        handle_unref(users_handles[i]);
    }
    for (int context = 0; context < CONTEXTS; context++)
        for (int i = 0; i < STREAMS; i++) free_list(wait_lists[context][i]);
    for (int i = 0; i < 2; i++) free_history(histories[i]);
    printf("back: the memory of %lld waits, %lld events\n", (long long)known,
           (long long)users_events_made);
}

static void report(void) {
    printf("waits: %lld begun, %lld ended, %lld refused or failed, %lld dropped, %lld orphaned, "
           "%lld captured; %lld handed back, "
           "%lld of them again; %lld by timer, %lld watched\n",
           (long long)begun_count, (long long)ended, (long long)failures, (long long)dropped,
           (long long)orphaned, (long long)captured, (long long)handed_back, (long long)repeated,
           (long long)counters[WAITS_BY_TIMER], (long long)counters[WAITS_WATCHED]);
    printf("events: %lld futures, %lld dropped; %lld awaited, %lld recorded, "
           "%lld refused, %lld closed, %lld got another handle\n",
           (long long)futures_begun, (long long)futures_dropped, (long long)events_awaited,
           (long long)events_recorded, (long long)records_refused, (long long)events_closed,
           (long long)replaced_count);
    REQUIRE(has_met_everything(), "the run was too short to meet everything");
}

int main(int count, char **arguments) {
    driver = fake_driver;
    points_set_dispatcher(python_dispatch);
    double seconds = count > 1 ? atof(arguments[1]) : 1.0;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    seed_thread(seed, 1000);
    struct queue *orphans = queue_open(), *queue = queue_open();
    open_contexts();
    for (int i = 0; i < 2; i++) histories[i] = shared_history_new();
    REQUIRE(watcher_start() == 0, "the watcher did not start");
    overlap(queue);
    waits_predict(false); /* these are not to be expected */
    require_peace();
    recorded_again(queue);
    recorded_during_a_poll(queue);
    recorded_twice_at_once(queue);
    begin_together();
    waits_predict(true);
    late_watcher();
    close_loop(orphans);
    stress(orphans, seconds, seed);
    report();
    require_all_back();
    atomic_store(&stop_moving, true);
    pthread_join(gpu, NULL);
    require_peace();
    watcher_stop(ANY_PATIENCE_S);
    return 0;
}
