/* One wait list in virtual time, by the library's own code: the watcher's pass, the loops' timers
 * and drains, the tasks' polls. Only the clock, the sleeps and the driver are false.
 *
 * A schedule is random: waits and futures join the list at any age of those before them, are
 * cancelled, are handed back. After each step, each wait that a task still
 * wants must have been polled in time for promise 16, whenever its work ends. So the
 * work need not end at the one moment at which it would be noticed too late. What ends is checked
 * as well.
 *
 * Usage: one_list SECONDS SEED [SCHEDULE]. A single schedule is printed step by step.
 */
#include "stress.h"
#include "wait_inside.h"
#include "waker.h"

#include <math.h>
#include <sys/timerfd.h>
#include <time.h>

static const int64_t US = 1000, MS = 1000000, SECOND = 1000000000;
/* how late the watcher and a loop wake at most, and a loop's turn: less than the 0.12 ms of P16 */
static const int64_t WATCHER_LATE_NS = 20000, LOOP_LATE_NS = 30000, TURN_NS = 12000;
enum { LOOPS = 2, WAITS = 12, STEPS_MOST = 400000 };

static int64_t clock_ns = 1000000000000, began_at;
static bool is_printed;
static int number; /* of the schedule */
static uint64_t seed;

static void note(const char *format, ...) {
    va_list arguments;
    if (!is_printed) return;
    va_start(arguments, format);
    printf("%12.3f us: ", (clock_ns - began_at) / 1e3);
    vprintf(format, arguments);
    puts("");
    va_end(arguments);
}
#define HOLDS(condition, format, ...)                                                              \
    REQUIRE(condition, "seed %llu, schedule %d: " format, (unsigned long long)seed, number,        \
            __VA_ARGS__)

static double uniform(double low, double high) {
    return low + (high - low) * chance(1 << 30) / (1 << 30);
}
static int64_t any_time(double low, double high) {
    return (int64_t)exp(uniform(log(low), log(high)));
}

static int64_t bound_of(int64_t length) {
    int64_t eighth = length / 8 < MS ? length / 8 : MS, share = length / 150;
    return 250 * US + (eighth > share ? eighth : share);
}

/* --- who waits --- */

struct loop {
    struct queue *queue;
    int64_t at, timer_at; /* its next turn; its timer */
    bool is_woken;        /* by a write */
};
static struct loop loops[LOOPS];

struct event { int64_t end; };

/* its task polls; its ticket will say more; its task has gone on, and its ticket still comes */
enum state { FREE, POLLS, LEFT };
struct task {
    enum state state;
    bool future, wanted;
    struct wait *wait;
    struct event *event;
    uint64_t ticket;
    struct loop *loop;
    int64_t began, end, polled;
};
static struct task tasks[WAITS];
static struct wait_list *list;
static struct shared_history *history;
static struct context *context;
static int64_t work_ends; /* that of the stream */
static int64_t polls;
static int64_t least_slack = INT64_MAX;
static bool in_watcher;

static int number_of(const struct task *task) { return (int)(task - tasks); }

/* Its work may have ended just after `since`, and a task resumes for that at `until`. */
static void check(const struct task *task, int64_t since, int64_t until, const char *what) {
    int64_t slack = bound_of(since - task->began) - (until - since);
    if (slack < least_slack) least_slack = slack;
    HOLDS(slack >= 0, "wait %d of %.3f ms %s, %.1f us later than the bound", number_of(task),
          (since - task->began) / 1e6, what, -slack / 1e3);
}

static bool is_waiting(const struct task *task) {
    return (task->state == POLLS || task->state == LEFT) && task->wanted;
}

static void check_all(void) {
    for (int i = 0; i < WAITS; i++)
        if (is_waiting(&tasks[i])) check(&tasks[i], tasks[i].polled, clock_ns, "is not polled");
}

static void was_polled(struct task *task, const char *who) {
    int64_t resumes = clock_ns + (in_watcher ? LOOP_LATE_NS + 2 * TURN_NS : 0);
    if (is_waiting(task)) check(task, task->polled, resumes, who);
    task->polled = clock_ns;
    polls++;
}

static void polled_event(const struct event *event, const char *who) {
    for (int i = 0; i < WAITS; i++)
        if ((tasks[i].state == POLLS || tasks[i].state == LEFT) && tasks[i].event == event)
            was_polled(&tasks[i], who);
}

/* --- the driver --- */

static struct event *recorded; /* the latest */

static int event_create(void **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return 0;
}
static int event_destroy(void *event) {
    free(event);
    return 0;
}
static int fake_event_record(void *object, void *stream, unsigned flags) {
    (void)stream, (void)flags;
    struct event *event = object;
    HOLDS(event->end <= clock_ns, "recorded again %.3f ms too early",
          (event->end - clock_ns) / 1e6);
    event->end = work_ends;
    recorded = event;
    return 0;
}
static int event_query(void *object) {
    struct event *event = object;
    clock_ns += 200 + chance(300);
    bool pending = event->end > clock_ns;
    bool reached = !in_watcher;
    for (struct wait *wait = in_watcher ? list->first : NULL; wait; wait = wait->next) {
        reached |= wait->event == event;
        int holder = wait->holder;
        if (reached && (pending || wait->event == event) &&
            (holder == HELD_BY_TIMER || holder == HELD_BY_WATCHER))
            polled_event(wait->event, "is polled by the watcher");
    }
    if (!in_watcher) polled_event(event, "is polled by its loop");
    return pending ? CUDA_NOT_READY : 0;
}
static int stream_query(void *stream) {
    (void)stream;
    return work_ends > clock_ns ? CUDA_NOT_READY : 0;
}
static int is_capturing(void *stream, int *status) {
    (void)stream, *status = 0;
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

/* --- time --- */

static int64_t watcher_at = NEVER, asleep_until = NEVER, next_health;

int64_t __wrap_now_ns(void) { return clock_ns; }
int64_t __wrap_waker_oversleep(int64_t delay) { return delay < 12 * US ? 0 : 10 * US; }
static void sleep_until(int64_t time) {
    asleep_until = time;
    watcher_at = time == NEVER      ? NEVER
                 : time <= clock_ns ? clock_ns
                                    : time + chance(WATCHER_LATE_NS);
}
void __wrap_waker_wake_before(int64_t time) {
    if (time < asleep_until) sleep_until(time > clock_ns ? time : clock_ns + 2 * US);
}
static void wake_loop(struct loop *loop, int64_t time) {
    time = (time > clock_ns ? time : clock_ns) + chance(LOOP_LATE_NS);
    if (time < loop->at) loop->at = time;
}
/* which of the loops is not asked: one that is woken for nothing does no harm */
long __wrap_write(int descriptor, const void *buffer, size_t size) {
    (void)descriptor, (void)buffer;
    for (int i = 0; i < LOOPS; i++) {
        loops[i].is_woken = true;
        wake_loop(&loops[i], clock_ns);
    }
    return (long)size;
}
long __wrap_read(int descriptor, void *buffer, size_t size) {
    (void)descriptor, (void)buffer;
    return (long)size;
}
int __wrap_timerfd_settime(int descriptor, int flags, const struct itimerspec *when,
                           struct itimerspec *before) {
    (void)flags, (void)before;
    for (int i = 0; i < LOOPS; i++) {
        if (loops[i].queue->timer.descriptor != descriptor) continue;
        int64_t time = when->it_value.tv_sec * SECOND + when->it_value.tv_nsec;
        loops[i].timer_at = time ? time : NEVER;
        if (time) wake_loop(&loops[i], time);
    }
    return 0;
}

/* --- what a task does --- */

static void resume(struct task *task) {
    if (task->wanted) check(task, task->end, clock_ns, "is over");
    note("wait %d is over", number_of(task));
}

static void follow(struct task *task, const struct wait_result *result) {
    REQUIRE(result->refusal == 0, "refused with %d", result->refusal);
    if (result->spinning) {
        task->state = POLLS;
        task->wait = result->spinning;
        if (task->loop->at > clock_ns + TURN_NS)
            task->loop->at = clock_ns + 4 * US + chance(8 * US);
    } else if (result->ticket) {
        task->state = LEFT;
        task->ticket = result->ticket;
    } else {
        resume(task);
        task->state = FREE;
    }
}

static void poll(struct task *task) {
    struct wait_result result;
    wait_poll(task->wait, &result);
    if (!result.spinning) note("wait %d leaves its task", number_of(task));
    follow(task, &result);
}

static bool emit(void *unused, uint64_t ticket, int64_t status, bool complete) {
    (void)unused, (void)complete;
    struct task *task = NULL;
    for (int i = 0; i < WAITS; i++)
        if (tasks[i].state != FREE && tasks[i].state != POLLS && tasks[i].ticket == ticket)
            task = &tasks[i];
    REQUIRE(task, "a ticket arrives that is no wait's");
    struct wait *wait = wait_handed_back(status);
    if (wait && task->wanted) {
        note("wait %d is handed back", number_of(task));
        task->state = POLLS;
        task->wait = wait;
        return true;
    }
    if (wait) wait_drop(wait);
    else resume(task);
    task->state = FREE;
    return true;
}

static void turn(struct loop *loop) {
    loop->at = NEVER;
    bool polls = false;
    note("loop %d turns", (int)(loop - loops));
    if (loop->is_woken || loop->timer_at <= clock_ns) {
        loop->is_woken = false;
        waits_run_due(loop->queue);
        queue_drain(loop->queue, emit, NULL);
    }
    for (int i = 0; i < WAITS; i++) {
        if (tasks[i].loop != loop || tasks[i].state != POLLS) continue;
        poll(&tasks[i]);
        polls |= tasks[i].state == POLLS;
    }
    if (polls) loop->at = clock_ns + 4 * US + chance(8 * US);
    else if (loop->timer_at != NEVER) wake_loop(loop, loop->timer_at);
}

/* --- what happens to a list --- */

static int64_t lengths[2]; /* which the history has learnt; 0: it has learnt nothing */

static struct task *latest; /* to join */

/* a free place, or NULL */
static struct task *begin(void) {
    struct task *task = tasks;
    while (task < tasks + WAITS && task->state != FREE) task++;
    if (task == tasks + WAITS) return NULL;
    int64_t length = lengths[0] && chance(2) ? (int64_t)(lengths[chance(2)] * uniform(0.95, 1.05))
                                             : any_time(20e3, 8e9);
    int64_t end = clock_ns + length;
    if (end > work_ends) work_ends = end;
    *task = (struct task){.loop = &loops[chance(LOOPS)],
                          .wanted = true,
                          .began = clock_ns,
                          .polled = clock_ns,
                          .end = work_ends};
    return task;
}

static void join(void) {
    struct task *task = latest = begin();
    if (!task) return;
    struct wait_result result;
    const struct strategy *strategy = chance(4) ? WAIT_AUTO : WAIT_EVENT;
    note("wait %d joins, %s, of %.3f ms", number_of(task), strategy->name,
         (task->end - clock_ns) / 1e6);
    wait_begin(&(struct waits){list, 0}, &work_ends, task->loop->queue, strategy, &result);
    task->event = recorded;
    follow(task, &result);
}

static void join_future(void) {
    struct task *task = latest = begin();
    if (!task) return;
    task->future = true;
    const struct strategy *strategy = chance(4) ? WAIT_AUTO : WAIT_EVENT;
    REQUIRE(wait_reserve(&(struct waits){list, 0}, task->loop->queue, strategy, &task->wait) == 0,
            "refused");
    task->ticket = wait_ticket(task->wait);
    task->event = task->wait->event;
    task->state = LEFT;
    note("future %d joins, %s, of %.3f ms", number_of(task), strategy->name,
         (task->end - clock_ns) / 1e6);
    REQUIRE(wait_record_future(task->wait, &work_ends) == 0, "refused");
}

/* forget: a future goes on without its task */
static void cancel(struct task *task, bool forget) {
    if (!is_waiting(task)) return;
    note("%s %d is %s", task->future ? "future" : "wait", number_of(task),
         forget ? "forgotten" : "cancelled");
    task->wanted = forget;
    if (task->state == POLLS) {
        wait_drop(task->wait);
        task->state = FREE;
    }
    if (task->state == LEFT && !forget) wait_orphan(task->ticket);
}

static void act(void) {
    struct task *task;
    switch (chance(7)) {
    case 0:
    case 1:
        join();
        break;
    case 2:
    case 3:
        join_future();
        break;
    case 4:
    case 5:
        task = latest && chance(2) ? latest : &tasks[chance(WAITS)];
        cancel(task, task->future && chance(3) == 0);
        break;
    default: /* another list's wait */
        if (clock_ns < watcher_at) sleep_until(clock_ns);
    }
}

static void pass(void) {
    in_watcher = true;
    asleep_until = 0;
    int64_t next = waits_poll(clock_ns);
    in_watcher = false;
    note("the watcher has made a pass, the next in %.1f us",
         next == NEVER ? INFINITY : (next - clock_ns) / 1e3);
    if (clock_ns >= next_health) next_health = clock_ns + HEALTH_PERIOD_NS;
    if (next != NEVER && next_health < next) next = next_health;
    sleep_until(waits_are_new() ? clock_ns : next);
}

static bool is_idle; /* its loops no longer run */

static bool step(int64_t until) {
    queue_drain(queue_orphans(), emit, NULL);
    int64_t next = watcher_at;
    struct loop *first = NULL;
    for (int i = 0; i < LOOPS && !is_idle; i++)
        if (loops[i].at < next) first = &loops[i], next = first->at;
    if (next > until) {
        if (until > clock_ns) clock_ns = until;
        check_all();
        return false;
    }
    if (next > clock_ns) clock_ns = next;
    check_all();
    if (first) turn(first);
    else pass();
    return true;
}

static bool all_are_over(void) {
    for (int i = 0; i < WAITS; i++)
        if (tasks[i].state != FREE) return false;
    return !waits_are_new() && !list->active;
}

static void run_one(void) {
    static const int others[] = {0, 0, 0, 1, 3, 20, 128};
    seed_thread(seed, (uint64_t)number);
    clock_ns += SECOND;
    began_at = clock_ns;
    history = shared_history_new();
    list = wait_list_new(context, history, NULL);
    latest = NULL;
    atomic_store(&active_count, others[chance(7)]); /* the lists of other streams */
    note("there are %d other lists", atomic_load(&active_count));
    lengths[0] = lengths[1] = 0;
    if (chance(2)) {
        lengths[0] = any_time(20e3, 100e6);
        lengths[1] = chance(2) ? lengths[0] : any_time(20e3, 100e6);
        double noise = chance(2) ? 0.002 : 0.05;
        for (int i = 0; i < 24; i++) {
            int64_t length = (int64_t)(lengths[i % 2] * uniform(1 - noise, 1 + noise));
            history_learn(&history->history, length - 2 * US, length + 2 * US);
        }
    }
    int actions = 2 + (int)chance(10);
    double longest = chance(3) ? 5e6 : 3e9;
    int steps = 0;
    for (int i = 0; i < actions; i++) {
        act();
        int64_t until = clock_ns + any_time(500, longest);
        while (step(until)) HOLDS(steps++ < STEPS_MOST, "%d steps", steps);
    }
    /* Loops that no longer run need not be closed: what their tasks have left ends without them. */
    is_idle = chance(2);
    for (int i = 0; is_idle && i < WAITS; i++) cancel(&tasks[i], false);
    for (int i = 0; is_idle && i < LOOPS; i++) turn(&loops[i]); /* what had come before */
    /* all that is left ends now */
    if (work_ends > clock_ns) work_ends = clock_ns;
    for (int i = 0; i < WAITS; i++) {
        if (tasks[i].end > clock_ns) tasks[i].end = clock_ns;
        if (tasks[i].event && tasks[i].event->end > clock_ns) tasks[i].event->end = clock_ns;
    }
    for (struct wait *wait = list->first; wait; wait = wait->next)
        ((struct event *)wait->event)->end = clock_ns;
    for (struct wait *wait = new_waits; wait; wait = wait->next)
        ((struct event *)wait->event)->end = clock_ns;
    while (!all_are_over()) {
        HOLDS(step(clock_ns + SECOND) || all_are_over(), "%s", "nothing polls a wait that is over");
        HOLDS(steps++ < STEPS_MOST, "%d steps", steps);
    }
    is_idle = false;
    HOLDS(waits_pending() == 0 && list->waiting == 0, "%d waits are left", waits_pending());
    wait_list_unref(list);
    shared_history_unref(history);
}

int main(int count, char **arguments) {
    driver = (struct driver_calls){
        .stream_query = stream_query,
        .stream_is_capturing = is_capturing,
        .exchange_capture_mode = exchange,
        .event_query = event_query,
        .event_record = fake_event_record,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .ctx_get_id = get_id,
        .ctx_push = push,
        .ctx_pop = pop,
    };
    bool is_taken;
    queue_orphans();
    context = context_register(&driver, 1, &work_ends, &is_taken);
    for (int i = 0; i < LOOPS; i++)
        loops[i] = (struct loop){.queue = queue_open(), .at = NEVER, .timer_at = NEVER};
    double seconds = count > 1 ? atof(arguments[1]) : 1;
    seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    if (count > 3) {
        number = atoi(arguments[3]);
        is_printed = true;
        run_one();
        return 0;
    }
    clock_t latest = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
    for (number = 0; clock() < latest; number++) run_one();
    printf("%d schedules, %lld polls: at least %.1f us before the bound\n", number,
           (long long)polls, least_slack / 1e3);
    return 0;
}
