/* The policy of waits in virtual time: what is learnt depends on when the end is asked for. Run by
 * test_native.py.
 *
 * One stream, one wait at a time, with assumed costs: sleeps end late, a wake-up of the loop takes
 * its time. For each pattern of work: how late the task runs again, against the bound of promise
 * P16, the CPU, and for each wait the polls, the watcher's passes and the wake-ups of the loop,
 * which tests/waits/test_counts.py reads. Usage: policy [HISTORIES [SEED]].
 */
#include "policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "stress.h"

static const int64_t US = 1000, MS = 1000000;
enum { MOST = 4096 };
static uint64_t seed = 1;

static double uniform(double low, double high) {
    return low + (high - low) * (chance(1u << 30) / (double)(1u << 30));
}
static double normal(void) {
    return sqrt(-2 * log(uniform(1e-12, 1))) * cos(6.283185307179586 * uniform(0, 1));
}

/* How much too late a sleep ends. The bound leaves 150 us for the watcher's and the loop's; here
 * they take less. */
static int64_t oversleep(int64_t slept) {
    if (slept < 12 * US) return 0;
    int64_t late = (int64_t)((slept < MS ? 20 : 35) * US * exp(0.3 * normal()));
    int64_t most = slept < MS ? 60 * US : 90 * US;
    return late < most ? late : most;
}
static int64_t deliver(void) { return (int64_t)uniform(15 * US, 45 * US); }

struct run {
    struct history history;
    const struct strategy *strategy;
    int64_t turn; /* of the loop */
    int lists;    /* that the watcher has; for the others there is a pass now and then, too */
    int waits;    /* of the loop */
    int64_t clock;
    double cpu, total;
    int polls, left;   /* left: waits that their task did not poll to the end */
    int passes, wakes; /* of the watcher; of the loop, by its timer or the watcher */
};

static void wake_loop(struct run *run) { run->cpu += 12 * US, run->wakes++; }

/* One wait of the true length `length`, and what is known of it. */
struct one {
    struct run *run;
    int64_t length, age, not_before, resumed;
};

/* Whether it is over: then the history learns it. */
static bool is_seen(struct one *one) {
    bool over = one->age >= one->length;
    one->run->polls++;
    if (over) history_learn(&one->run->history, one->not_before, one->age);
    else one->not_before = one->age;
    return over;
}

/* The task polls, and goes on if it sees the end. `woken_for`: the length for which it was woken;
 * 0: it was not. */
static void poll_in_task(struct one *one, const struct prediction *prediction,
                         const struct load *load, int64_t until, int64_t woken_for) {
    struct run *run = one->run;
    int64_t first_poll = one->age;
    for (int polls = 0;; one->age += run->turn) {
        if (woken_for && one->age >= one->length)
            history_learn_lead(&run->history, woken_for, one->age == first_poll,
                               one->length - first_poll);
        if (is_seen(one)) {
            one->resumed = one->age + 2 * US;
            break;
        }
        if (one->age >= until && !policy_poll_on(prediction, one->age, ++polls, load)) break;
    }
    run->cpu += one->age - first_poll;
    one->age += US;
}

/* The watcher has seen the end, and wakes the loop. */
static void resume_by_loop(struct one *one) {
    one->resumed = one->age + deliver();
    wake_loop(one->run);
}

/* The watcher's polls until the timer. */
static void guard(struct one *one, const struct prediction *prediction, const struct load *load,
                  int64_t timer) {
    struct run *run = one->run;
    int64_t at;
    while ((at = policy_guard(prediction, one->age, timer, load)) < timer) {
        one->age = at + (int64_t)uniform(0, policy_pass_gap(run->lists, false, run->turn)) +
                   oversleep(at - one->age);
        run->cpu += 6 * US, run->passes++;
        if (is_seen(one)) return resume_by_loop(one);
        if (one->age >= timer) return;
    }
}

/* When the task runs again, after a wait of the true length `length`; and what was learnt of it. */
static int64_t one_wait(struct run *run, int64_t length) {
    struct prediction prediction = history_predict(&run->history);
    struct load load = {.lateness = run->turn,
                        .alone = true,
                        .timers_allowed = true,
                        .task_allowed = true,
                        .lists = run->lists,
                        .waits = run->waits};
    struct one one = {.run = run, .length = length, .age = 2 * US};
    int64_t woken_for = 0;
    bool with_watcher = false, left = false;
    for (int steps = 1; !one.resumed; steps++) {
        int64_t age = one.age;
        REQUIRE(steps < 2000000, "a wait of %lld us does not end", (long long)(length / US));
        struct plan plan = run->strategy->plan(&prediction, age, &load);
        if (plan.stage != STAGE_TASK && !left) left = true, run->left++;
        if (plan.stage == STAGE_TASK) {
            if (with_watcher) { /* handed back */
                one.age += deliver(), wake_loop(run);
                woken_for = plan.length;
            }
            with_watcher = false;
            poll_in_task(&one, &prediction, &load, plan.until, woken_for);
            load.timers_allowed = true;
        } else if (plan.common) {
            int64_t now = run->clock + age, at = run->clock + plan.at;
            if (!plan.exact) at = policy_common_poll(now, at);
            REQUIRE(at > now && at <= now + policy_crowd_latest(age) - age + 100 * US,
                    "the loop polls %lld us after age %lld us", (long long)((at - now) / US),
                    (long long)(age / US));
            one.age += at - now + oversleep(at - now);
            run->cpu += US;
            if (is_seen(&one)) one.resumed = one.age + 8 * US;
        } else if (plan.stage == STAGE_TIMER) {
            REQUIRE(plan.at > age, "a timer in the past");
            guard(&one, &prediction, &load, plan.at);
            if (one.resumed) break;
            if (one.age < plan.at) one.age = plan.at;
            one.age += oversleep(plan.at) + 3 * US;
            wake_loop(run);
            if (!plan.by_loop) {
                poll_in_task(&one, &prediction, &load, plan.until, plan.length);
            } else if (is_seen(&one)) { /* the loop polls itself */
                one.resumed = one.age + 8 * US;
                run->cpu += 8 * US;
            } else {
                one.age += US;
            }
        } else {
            if (!with_watcher) run->cpu += 6 * US;
            with_watcher = true;
            int64_t at = plan.at > age ? plan.at : age;
            REQUIRE(at <= policy_latest_poll(age, run->lists) || at <= age + run->turn / 8,
                    "the watcher polls after the latest poll, at age %lld us",
                    (long long)(age / US));
            /* since the pass for another list */
            at += (int64_t)uniform(0, policy_pass_gap(run->lists, plan.exact, run->turn));
            int64_t slept = at - age;
            one.age = at + oversleep(slept);
            run->cpu += slept < 12 * US ? slept + US / 2 : 6 * US;
            run->passes++;
            if (is_seen(&one)) resume_by_loop(&one);
        }
    }
    run->total += one.resumed;
    run->clock += one.resumed;
    return one.resumed - length;
}

static int64_t bound_of(int64_t length, int waits) {
    int64_t share = length / (waits > 8 ? 2 : 8);
    if (share > MS) share = MS;
    if (share < length / 150) share = length / 150;
    return (waits > 8 ? 400 : 250) * US + share;
}

/* --- patterns --- */

/* Its lengths: the k-th, or always about the same one. */
struct work {
    int64_t length;
    double spread;
    int64_t (*varying)(int);
};
static int64_t length_of(const struct work *work, int k) {
    if (work->varying) return work->varying(k);
    if (!work->spread) return work->length;
    return (int64_t)(work->length * uniform(1 - work->spread, 1 + work->spread));
}

struct pattern {
    const char *name;
    int count;
    struct work work;
    double most_p90, most_p99, most_cpu; /* us, us, percent of a core; 0: not asked */
};

static int64_t shorter(int k) { return k < 64 ? 8 * MS : MS; }
static int64_t alternating(int k) { return k % 2 ? 400 * US : 9 * MS; }
static int64_t bimodal(int k) {
    (void)k;
    return uniform(0, 1) < 0.5 ? 400 * US : 9 * MS;
}
static int64_t eight_eight_one(int k) { return k < 64 || k % 3 ? 8 * MS : MS; }
static int64_t log_uniform(int k) {
    (void)k;
    return (int64_t)pow(10, uniform(4.7, 7.7));
}
static int64_t prefill(int k) { return k % 13 ? 2 * MS : 30 * MS; }
static int64_t drifting(int k) { return (int64_t)(MS * (1 + 0.02 * (k % 150))); }
static int64_t heavy_tail(int k) {
    (void)k;
    double l = 0.3 * MS * pow(uniform(1e-6, 1), -1 / 1.2);
    return l > 30 * MS ? 30 * MS : (int64_t)l;
}
static int64_t log_normal(int k) {
    (void)k;
    double l = 2 * MS * exp(normal());
    return l < 200 * US ? 200 * US : l > 20 * MS ? 20 * MS : (int64_t)l;
}
static int64_t three(int k) {
    (void)k;
    double u = uniform(0, 1);
    return u < 0.4 ? 700 * US : u < 0.8 ? 3 * MS : 12 * MS;
}

static const struct pattern patterns[] = {
    {"steady 20 us", 2000, {.length = 20 * US}, 20, 60, 0},
    {"steady 100 us", 2000, {.length = 100 * US}, 60, 150, 60},
    {"steady 300 us", 2000, {.length = 300 * US, .spread = 0.01}, 60, 150, 40},
    {"steady 1 ms", 2000, {.length = MS}, 60, 200, 20},
    {"steady 5 ms", 2000, {.length = 5 * MS, .spread = 0.002}, 80, 250, 8},
    {"steady 20 ms", 400, {.length = 20 * MS}, 0, 0, 5},
    {"steady 100 ms", 200, {.length = 100 * MS}, 0, 0, 2.5},
    {"1 ms after 8 ms", 2000, {.varying = shorter}, 100, 280, 20},
    {"within 10 % of 5 ms", 2000, {.length = 5 * MS, .spread = 0.1}, 180, 250, 15},
    {"alternating 9 and 0.4 ms", 2000, {.varying = alternating}, 100, 250, 15},
    {"bimodal 9 or 0.4 ms", 2000, {.varying = bimodal}, 100, 250, 15},
    {"8, 8 and 1 ms", 2000, {.varying = eight_eight_one}, 150, 250, 15},
    {"log-uniform 50 us to 50 ms", 2000, {.varying = log_uniform}, 280, 450, 15},
    {"prefill and decode", 2000, {.varying = prefill}, 200, 300, 15},
    {"drifting 1 to 4 ms", 1950, {.varying = drifting}, 180, 280, 18},
    {"heavy tail", 2000, {.varying = heavy_tail}, 200, 400, 0},
    {"log-normal 0.2 to 20 ms", 2000, {.varying = log_normal}, 250, 320, 18},
    {"three lengths", 2000, {.varying = three}, 200, 300, 18},
};

static int ascending(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

static void each_pattern(const struct strategy *strategy, int lists, int waits) {
    static double late[MOST];
    printf("%5s, %3d %s%c %9s %7s %7s %7s %7s us %6s %% %9s %7s %7s %7s\n", strategy->name,
           waits > 8 ? waits : lists, waits > 8 ? "wait" : "wait list",
           waits > 8 || lists > 1 ? 's' : ' ', "", "p50", "p90", "p99", "max", "CPU", "of bound",
           "polls", "passes", "wakes");
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        const struct pattern *pattern = &patterns[i];
        struct run run = {.strategy = strategy, .turn = 8 * US, .lists = lists, .waits = waits};
        seed_thread(seed, i + 1); /* so that no pattern depends on those before it */
        double worst = 0;
        for (int k = 0; k < pattern->count; k++) {
            int64_t length = length_of(&pattern->work, k), lateness = one_wait(&run, length);
            late[k] = (double)lateness / US;
            double share = (double)lateness / bound_of(length, waits);
            if (share > worst) worst = share;
        }
        qsort(late, pattern->count, sizeof *late, ascending);
        double p50 = late[pattern->count / 2], p90 = late[pattern->count * 9 / 10],
               p99 = late[pattern->count * 99 / 100];
        double cpu = 100 * run.cpu / run.total;
        printf("%-28s %7.0f %7.0f %7.0f %7.0f    %6.1f   %9.2f %7.1f %7.1f %7.1f\n", pattern->name,
               p50, p90, p99, late[pattern->count - 1], cpu, worst,
               (double)run.polls / pattern->count, (double)run.passes / pattern->count,
               (double)run.wakes / pattern->count);
        REQUIRE(worst <= 1, "%s: later than the bound", pattern->name);
        if (strategy != WAIT_AUTO || lists > 1 || waits > 1) continue;
        REQUIRE(!pattern->most_p90 || p90 <= pattern->most_p90, "%s: p90 is %.0f us", pattern->name,
                p90);
        REQUIRE(!pattern->most_p99 || p99 <= pattern->most_p99, "%s: p99 is %.0f us", pattern->name,
                p99);
        REQUIRE(!pattern->most_cpu || cpu <= pattern->most_cpu, "%s: %.1f %% of a core",
                pattern->name, cpu);
    }
}

/* Random histories: up to five kinds of work, mixed, drifting, in blocks. */
static void random_histories(int count) {
    double worst = 0;
    int64_t waits = 0;
    for (int number = 0; number < count; number++) {
        static const int lists[] = {1, 1, 1, 3, 8, 20, 64, 128, 256};
        struct run run = {.strategy = number % 4 ? WAIT_AUTO : WAIT_EVENT,
                          .turn = (int64_t)uniform(4 * US, 12 * US)};
        run.lists = lists[number % 9];
        run.waits = number % 5 ? run.lists : 64;
        int kinds = 1 + (int)uniform(0, 5);
        double length[5], noise[5], drift[5];
        for (int i = 0; i < kinds; i++) {
            length[i] = pow(10, uniform(4, 7.9)),
            noise[i] = uniform(0, 1) < 0.5 ? 0 : pow(10, uniform(-4, -0.3));
            drift[i] = uniform(0, 1) < 0.7 ? 1 : uniform(0.97, 1.03);
        }
        int block = uniform(0, 1) < 0.4 ? 1 : (int)uniform(1, 60), kind = 0;
        for (int k = 0; k < 300; k++, waits++) {
            if (k % block == 0) kind = (int)uniform(0, kinds);
            length[kind] *= drift[kind];
            if (length[kind] < 5 * US) length[kind] = 5 * US;
            if (length[kind] > 200 * MS) length[kind] = 200 * MS;
            int64_t true_length = (int64_t)(length[kind] * (1 + noise[kind] * uniform(-1, 1)));
            double share = (double)one_wait(&run, true_length) /
                           bound_of(true_length, run.strategy == WAIT_AUTO ? run.waits : 0);
            if (share > worst) worst = share;
            REQUIRE(share <= 1, "history %d, wait %d of %lld us: %.2f of the bound", number, k,
                    (long long)(true_length / US), share);
        }
    }
    printf("%d random histories, %lld waits: at most %.2f of the bound\n", count, (long long)waits,
           worst);
}

/* Streams whose work has become short, in a loop that is busy with it. Each poll comes a turn late,
 * so no true length is seen. The task must still poll, and not leave each wait to a watcher that
 * the loop is too busy to hear ("64 x empty"). */
static void short_work_in_a_busy_loop(void) {
    enum { WAITS = 100, MOST_LEFT = 4 };
    struct run run = {.strategy = WAIT_AUTO, .turn = 8 * US, .lists = 1};
    for (int k = 0; k < 64; k++) one_wait(&run, 5 * MS);
    run.turn = 600 * US;
    run.left = 0;
    for (int k = 0; k < WAITS; k++) one_wait(&run, 10 * US);
    printf("10 us in a busy loop, after 5 ms: %d of %d waits left to others\n", run.left, WAITS);
    REQUIRE(run.left <= MOST_LEFT, "%d of %d short waits were left to timer or watcher", run.left,
            WAITS);
    run.left = 0;
    for (int k = 0; k < WAITS; k++) one_wait(&run, 5 * MS); /* and back */
    REQUIRE(run.left >= WAITS - MOST_LEFT, "only %d of %d long waits were left to timer or watcher",
            run.left, WAITS);
}

/* A loop that comes back each 4 ms hears of an end up to 4 ms late: then the watcher polls seldom,
 * and the other waits pay less. */
static void long_work_in_a_busy_loop(void) {
    enum { WAITS = 200, LISTS = 128, MOST_POLLS = 9 };
    static struct run run;
    for (int busy = 0; busy < 2; busy++) {
        run = (struct run){.strategy = WAIT_EVENT, .turn = busy ? 4 * MS : 8 * US, .lists = LISTS};
        for (int k = 0; k < WAITS; k++) one_wait(&run, log_normal(k));
        printf("log-normal, 128 wait lists, a turn of %lld us: %.1f polls for each wait\n",
               (long long)(run.turn / US), (double)run.polls / WAITS);
    }
    REQUIRE(run.polls <= MOST_POLLS * WAITS, "%d polls", run.polls);
}

/* The one function on which the bound rests, over all ages and for any history. */
static void latest_poll(int lists) {
    for (int64_t age = 0; age < 1000 * MS; age += age / 1000 + 100) {
        int64_t next = policy_latest_poll(age, lists), pass = policy_pass_gap(lists, false, 0);
        REQUIRE(next > age, "no progress at age %lld", (long long)age);
        /* An end right after this poll is seen at the next: with 120 us for waking watcher and loop
         * that is in time. */
        REQUIRE(next + pass - age + 120 * US <= bound_of(age, 0) || next <= 150 * US,
                "too late at age %lld", (long long)age);
    }
}

/* What the rest of the library counts on, of each row of the table, for random histories and
 * loads. */
static void each_strategy_keeps_to_the_load(void) {
    for (int number = 0; number < strategy_count; number++) {
        const struct strategy *strategy = &strategies[number];
        int stages[3] = {0};
        for (int i = 0; i < 20000; i++) {
            static struct run run;
            if (i % 100 == 0) {
                run = (struct run){.strategy = WAIT_AUTO, .turn = 8 * US, .lists = 1};
                double length = pow(10, uniform(4, 7.9)), noise = uniform(0, 1) < 0.5 ? 0.01 : 0.3;
                for (int k = (int)uniform(0, 40); k > 0; k--)
                    one_wait(&run, (int64_t)(length * (1 + noise * uniform(-1, 1))));
            }
            struct prediction prediction = history_predict(&run.history);
            int64_t age = (int64_t)pow(10, uniform(0, 8.5));
            struct load load = {.lateness = (int64_t)pow(10, uniform(3, 7)),
                                .lists = (int)uniform(1, 256),
                                .waits = (int)uniform(0, 20),
                                .alone = chance(2),
                                .timers_allowed = chance(2),
                                .task_allowed = chance(2)};
            struct plan plan = strategy->plan(&prediction, age, &load);
            stages[plan.stage]++;
            REQUIRE(plan.stage == STAGE_WATCHER || load.task_allowed, "%s: stage %d without a task",
                    strategy->name, plan.stage);
            REQUIRE(!plan.common || (plan.stage == STAGE_TIMER && plan.by_loop),
                    "%s: a common poll that no loop makes", strategy->name);
            REQUIRE(plan.stage != STAGE_TIMER || load.timers_allowed,
                    "%s: a timer where none is allowed", strategy->name);
            if (plan.stage == STAGE_TIMER) {
                REQUIRE(plan.until < INT64_MAX / 2, "%s: no end after a timer", strategy->name);
                load.timers_allowed = false;
                REQUIRE(strategy->plan(&prediction, age, &load).stage == STAGE_WATCHER,
                        "%s: the timer is full, and the watcher does not have it", strategy->name);
            }
            REQUIRE(plan.stage == STAGE_TASK ? plan.until > age : plan.at > age,
                    "%s: no progress at age %lld in stage %d", strategy->name, (long long)age,
                    plan.stage);
        }
        printf("%8s: the task polls in %d plans, a timer has %d, the watcher polls in %d\n",
               strategy->name, stages[STAGE_TASK], stages[STAGE_TIMER], stages[STAGE_WATCHER]);
    }
}

/* `aiostream.ready`: how late ends are noticed, and the questions of each wait, after a history has
 * learnt the work. That many tasks of a loop wait, one time after another. A question takes 3 us,
 * and then the loop leaves as much time to others. A loop that sleeps for a millisecond asks a 5 ms
 * wait five times, and is 0.5 ms late. */
static void questions(const char *name, struct work work, int tasks, int64_t most_late,
                      double most_asked) {
    seed_thread(seed, (uint64_t)tasks); /* so that a new pattern changes nothing here */
    enum { WAITS = 400, UNTAUGHT = 100, TASKS = 128 };
    struct history history = {0};
    struct {
        int64_t start, length, no;
        struct question next;
    } waits[TASKS] = {{0}};
    int64_t now = MS, late[WAITS * TASKS];
    int began = 0, ended = 0, asked = 0, untaught = UNTAUGHT * tasks;
    while (ended < WAITS * tasks) {
        int64_t pass = now, next = INT64_MAX;
        for (int i = 0; i < tasks; i++) {
            bool first = !waits[i].start, over = false;
            if (!first && waits[i].next.from > pass) goto asked;
            now += 3 * US;
            if (!first) {
                over = now - waits[i].start >= waits[i].length;
                asked += ended >= untaught;
            }
            if (over) {
                history_asked(&history, waits[i].start, waits[i].no, now, true, tasks);
                late[ended++] = now - waits[i].start - waits[i].length;
                if (ended == WAITS * tasks) break;
            }
            if (first || over) {
                now += 10 * US; /* the task runs, and begins the next one */
                waits[i].length = length_of(&work, began++ / tasks);
                waits[i].start = now;
            }
            waits[i].no = now;
            waits[i].next = history_asked(&history, waits[i].start, waits[i].no, now, false, tasks);
            REQUIRE(waits[i].next.by >= now - 40 * US && waits[i].next.from <= waits[i].next.by &&
                        waits[i].next.by - now < 5 * MS + (now - waits[i].start) / 150,
                    "%s: the next question of a wait at %lld us comes after %lld us", name,
                    (long long)((now - waits[i].start) / US),
                    (long long)((waits[i].next.by - now) / US));
        asked:
            if (waits[i].next.by < next) next = waits[i].next.by;
        }
        int64_t rest = now + (now - pass) + 15 * US; /* a turn of the loop */
        now = next > rest ? next + oversleep(next - now) + deliver() : rest;
    }
    qsort(late + untaught, (size_t)(ended - untaught), sizeof *late, ascending);
    int64_t median = late[untaught + (ended - untaught) / 2];
    double each = (double)asked / (ended - untaught);
    printf("ready, %d x %s: median %lld us, %.1f questions\n", tasks, name,
           (long long)(median / US), each);
    REQUIRE(median <= most_late && each <= most_asked, "ready, %s: %lld us late, %.1f questions",
            name, (long long)(median / US), each);
}
static int64_t first_5_then_4_ms(int k) { return k < 60 ? 5 * MS : 4 * MS; }
static const struct work about_5_ms = {.length = 5 * MS, .spread = 0.1};
static int64_t settled; /* the length that varying work has in the end */
static int64_t about_5_ms_then_settled(int k) {
    return k < 60 ? length_of(&about_5_ms, k) : settled;
}

int main(int count, char **arguments) {
    int histories = count > 1 ? atoi(arguments[1]) : 2000;
    if (count > 2) seed = strtoull(arguments[2], NULL, 10);
    seed_thread(seed, 0);
    for (int lists = 1; lists <= 256; lists++) latest_poll(lists);
    each_pattern(WAIT_AUTO, 1, 1);
    each_pattern(WAIT_EVENT, 1, 1);
    each_pattern(WAIT_AUTO, 8, 8);
    each_pattern(WAIT_AUTO, 128, 8);
    each_pattern(WAIT_AUTO, 1, 64);
    questions("1 ms", (struct work){.length = MS}, 1, 150 * US, 3);
    questions("about 5 ms", about_5_ms, 1, 200 * US, 12);
    questions("3 s", (struct work){.length = 3000 * MS}, 1, 150 * US, 400);
    for (int tasks = 1; tasks <= 16; tasks += 15) {
        questions("5 ms", (struct work){.length = 5 * MS}, tasks, 150 * US, 6);
        questions("20 ms", (struct work){.length = 20 * MS}, tasks, 150 * US, 14);
        questions("5, then 4 ms", (struct work){.varying = first_5_then_4_ms}, tasks, 150 * US, 6);
    }
    questions("about 5 ms", about_5_ms, 16, 350 * US, 12);
    questions("20 ms", (struct work){.length = 20 * MS}, 128, 200 * US, 12);
    for (settled = MS; settled <= 7 * MS; settled += MS / 20)
        questions("about 5 ms, then another length",
                  (struct work){.varying = about_5_ms_then_settled}, 1, 400 * US, 30);
    short_work_in_a_busy_loop();
    long_work_in_a_busy_loop();
    random_histories(histories);
    each_strategy_keeps_to_the_load();
    return 0;
}
