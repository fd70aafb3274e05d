/* The policy of waits in virtual time: what is learnt depends on when one looks. Run by
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
#include <string.h>

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
    int looks, left;   /* left: waits that their task did not poll to the end */
    int passes, wakes; /* of the watcher; of the loop, by its timer or the watcher */
};

static void wake_loop(struct run *run) { run->cpu += 12 * US, run->wakes++; }

/* When the task runs again, after a wait of the true length `length`; and what was learnt of it. */
static int64_t one_wait(struct run *run, int64_t length) {
    struct prediction prediction = history_predict(&run->history);
    struct load load = {.loop_lag_ns = run->turn,
                        .alone = true,
                        .timers_allowed = true,
                        .task_allowed = true,
                        .lists = run->lists,
                        .waits = run->waits};
    int64_t age = 2 * US, not_before = 0, resumed = 0, handed_back = 0;
    bool with_watcher = false, left = false;
    int steps = 0;
    while (!resumed) {
        REQUIRE(++steps < 2000000, "a wait of %lld us does not end", (long long)(length / US));
        struct plan plan = run->strategy->plan(&prediction, age, &load);
        if (plan.stage != STAGE_TASK && !left) left = true, run->left++;
        if (plan.stage == STAGE_TASK) {
            if (with_watcher) age += deliver(), wake_loop(run); /* handed back */
            int64_t first_poll = age;
            if (with_watcher) handed_back = plan.length;
            with_watcher = false;
            for (int polls = 0;; age += run->turn) {
                run->looks++;
                if (age >= length) {
                    if (handed_back)
                        history_learn_lead(&run->history, length, age == first_poll,
                                           length - first_poll);
                    history_learn(&run->history, not_before, age);
                    resumed = age + 2 * US;
                    break;
                }
                not_before = age;
                if (age >= plan.until && !policy_poll_on(&prediction, age, ++polls, &load)) break;
            }
            run->cpu += age - first_poll;
            age += US;
            load.timers_allowed = true;
        } else if (plan.common) {
            int64_t now = run->clock + age, at = run->clock + plan.at;
            if (!plan.exact) at = policy_common_look(now, at);
            REQUIRE(at > now && at <= now + policy_crowd_latest(age) - age + 100 * US,
                    "the loop looks %lld us after age %lld us", (long long)((at - now) / US),
                    (long long)(age / US));
            age += at - now + oversleep(at - now);
            run->looks++;
            run->cpu += US;
            if (age >= length) {
                history_learn(&run->history, not_before, age);
                resumed = age + 8 * US;
                break;
            }
            not_before = age;
        } else if (plan.stage == STAGE_TIMER) {
            int64_t timer = plan.at;
            REQUIRE(timer > age, "a timer in the past");
            for (int64_t guard = policy_guard(&prediction, age, timer, &load); guard < timer;
                 guard = policy_guard(&prediction, age, timer, &load)) {
                age = guard + (int64_t)uniform(0, policy_pass_gap(run->lists, false, run->turn)) +
                      oversleep(guard - age);
                run->cpu += 6 * US, run->passes++, run->looks++;
                if (age >= length) {
                    history_learn(&run->history, not_before, age);
                    resumed = age + deliver();
                    wake_loop(run);
                    break;
                }
                not_before = age;
                if (age >= timer) break;
            }
            if (resumed) break;
            if (age < timer) age = timer;
            age += oversleep(timer) + 3 * US;
            wake_loop(run);
            if (plan.look) { /* the loop looks itself */
                run->looks++;
                if (age >= length) {
                    history_learn(&run->history, not_before, age);
                    resumed = age + 8 * US;
                    run->cpu += 8 * US;
                    break;
                }
                not_before = age;
                age += US;
                continue;
            }
            int64_t first_poll = age;
            for (int polls = 0;; age += run->turn) {
                run->looks++;
                if (age >= length) {
                    history_learn_lead(&run->history, plan.length, age == first_poll,
                                       length - first_poll);
                    history_learn(&run->history, not_before, age);
                    resumed = age + 2 * US;
                    break;
                }
                not_before = age;
                if (age >= plan.until && !policy_poll_on(&prediction, age, ++polls, &load)) break;
            }
            run->cpu += age - first_poll;
            age += US;
        } else {
            if (!with_watcher) run->cpu += 6 * US;
            with_watcher = true;
            int64_t at = plan.at > age ? plan.at : age;
            REQUIRE(at <= policy_latest_look(age, run->lists) || at <= age + run->turn / 8,
                    "the watcher looks after the latest look, at age %lld us",
                    (long long)(age / US));
            /* since the pass for another list */
            at += (int64_t)uniform(0, policy_pass_gap(run->lists, plan.exact, run->turn));
            int64_t slept = at - age;
            age = at + oversleep(slept);
            run->cpu += slept < 12 * US ? slept + US / 2 : 6 * US;
            run->passes++, run->looks++;
            if (age >= length) {
                history_learn(&run->history, not_before, age);
                resumed = age + deliver();
                wake_loop(run);
                break;
            }
            not_before = age;
        }
    }
    run->total += resumed;
    run->clock += resumed;
    return resumed - length;
}

static int64_t bound_of(int64_t length, int waits) {
    if (waits > 8) {
        int64_t half = length / 2 < MS ? length / 2 : MS;
        return 400 * US + (length / 150 > half ? length / 150 : half);
    }
    int64_t share = length / 8 < MS ? length / 8 : MS;
    if (length / 150 > share) share = length / 150;
    return 250 * US + share;
}

/* --- patterns --- */

struct pattern {
    const char *name;
    int count;
    int64_t (*length)(int);
    double most_p90, most_p99, most_cpu; /* us, us, percent of a core; 0: not asked */
};

static int64_t steady_1(int k) {
    (void)k;
    return MS;
}
static int64_t steady_5(int k) {
    (void)k;
    return (int64_t)(5 * MS * uniform(0.998, 1.002));
}
static int64_t steady_300(int k) {
    (void)k;
    return (int64_t)(300 * US * uniform(0.99, 1.01));
}
static int64_t steady_100(int k) {
    (void)k;
    return 100 * US;
}
static int64_t steady_20(int k) {
    (void)k;
    return 20 * US;
}
static int64_t steady_20ms(int k) {
    (void)k;
    return 20 * MS;
}
static int64_t steady_100ms(int k) {
    (void)k;
    return 100 * MS;
}
static int64_t shorter(int k) { return k < 64 ? 8 * MS : MS; }
static int64_t within_10(int k) {
    (void)k;
    return (int64_t)(5 * MS * uniform(0.9, 1.1));
}
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
    {"steady 20 us", 2000, steady_20, 20, 60, 0},
    {"steady 100 us", 2000, steady_100, 60, 150, 60},
    {"steady 300 us", 2000, steady_300, 60, 150, 40},
    {"steady 1 ms", 2000, steady_1, 60, 200, 20},
    {"steady 5 ms", 2000, steady_5, 80, 250, 8},
    {"steady 20 ms", 400, steady_20ms, 0, 0, 5},
    {"steady 100 ms", 200, steady_100ms, 0, 0, 2.5},
    {"1 ms after 8 ms", 2000, shorter, 100, 280, 20},
    {"within 10 % of 5 ms", 2000, within_10, 180, 250, 15},
    {"alternating 9 and 0.4 ms", 2000, alternating, 100, 250, 15},
    {"bimodal 9 or 0.4 ms", 2000, bimodal, 100, 250, 15},
    {"8, 8 and 1 ms", 2000, eight_eight_one, 150, 250, 15},
    {"log-uniform 50 us to 50 ms", 2000, log_uniform, 280, 450, 15},
    {"prefill and decode", 2000, prefill, 200, 300, 15},
    {"drifting 1 to 4 ms", 1950, drifting, 180, 280, 18},
    {"heavy tail", 2000, heavy_tail, 200, 400, 0},
    {"log-normal 0.2 to 20 ms", 2000, log_normal, 250, 320, 18},
    {"three lengths", 2000, three, 200, 300, 18},
};

static int ascending(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

static void each_pattern(const struct strategy *strategy, int lists, int waits) {
    static double late[MOST], sorted[MOST];
    printf("%5s, %3d %s%c %9s %7s %7s %7s %7s us %6s %% %9s %7s %7s %7s\n", strategy->name,
           waits > 8 ? waits : lists, waits > 8 ? "wait" : "wait list",
           waits > 8 || lists > 1 ? 's' : ' ', "", "p50", "p90", "p99", "max", "CPU", "of bound",
           "polls", "passes", "wakes");
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        const struct pattern *pattern = &patterns[i];
        static struct run run;
        run = (struct run){.strategy = strategy, .turn = 8 * US, .lists = lists, .waits = waits};
        seed_thread(seed, i + 1); /* so that no pattern depends on those before it */
        double worst = 0;
        for (int k = 0; k < pattern->count; k++) {
            int64_t length = pattern->length(k), lateness = one_wait(&run, length);
            late[k] = (double)lateness / US;
            double share = (double)lateness / bound_of(length, waits);
            if (share > worst) worst = share;
        }
        memcpy(sorted, late, sizeof late);
        qsort(sorted, pattern->count, sizeof *sorted, ascending);
        double p50 = sorted[pattern->count / 2], p90 = sorted[pattern->count * 9 / 10],
               p99 = sorted[pattern->count * 99 / 100];
        double cpu = 100 * run.cpu / run.total;
        printf("%-28s %7.0f %7.0f %7.0f %7.0f    %6.1f   %9.2f %7.1f %7.1f %7.1f\n", pattern->name,
               p50, p90, p99, sorted[pattern->count - 1], cpu, worst,
               (double)run.looks / pattern->count, (double)run.passes / pattern->count,
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
        static struct run run;
        static const int lists[] = {1, 1, 1, 3, 8, 20, 64, 128, 256};
        run = (struct run){.strategy = number % 4 ? WAIT_AUTO : WAIT_EVENT,
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

/* Streams whose work has become short, in a loop that is busy with it. Each look comes a turn late,
 * so no true length is seen. The task must still poll, and not leave each wait to a watcher that
 * the loop is too busy to hear ("64 x empty"). */
static void short_work_in_a_busy_loop(void) {
    enum { WAITS = 100, MOST_LEFT = 4 };
    static struct run run;
    run = (struct run){.strategy = WAIT_AUTO, .turn = 8 * US, .lists = 1};
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

/* A loop that comes back each 4 ms hears of an end so late anyway: then the watcher looks seldom,
 * and the other waits pay less. */
static void long_work_in_a_busy_loop(void) {
    enum { WAITS = 200, LISTS = 128, MOST_LOOKS = 9 };
    static struct run run;
    for (int busy = 0; busy < 2; busy++) {
        run = (struct run){.strategy = WAIT_EVENT, .turn = busy ? 4 * MS : 8 * US, .lists = LISTS};
        for (int k = 0; k < WAITS; k++) one_wait(&run, log_normal(k));
        printf("log-normal, 128 wait lists, a turn of %lld us: %.1f looks for each wait\n",
               (long long)(run.turn / US), (double)run.looks / WAITS);
    }
    REQUIRE(run.looks <= MOST_LOOKS * WAITS, "%d looks", run.looks);
}

/* The one function on which the bound rests, over all ages and for any history. */
static void latest_look(int lists) {
    for (int64_t age = 0; age < 1000 * MS; age += age / 1000 + 100) {
        int64_t next = policy_latest_look(age, lists), pass = policy_pass_gap(lists, false, 0);
        REQUIRE(next > age, "no progress at age %lld", (long long)age);
        /* An end right after this look is seen at the next: with 120 us for waking watcher and loop
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
        int stages[3] = {0}, common = 0;
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
            struct load load = {.loop_lag_ns = (int64_t)pow(10, uniform(3, 7)),
                                .lists = (int)uniform(1, 256),
                                .waits = (int)uniform(0, 20),
                                .alone = chance(2),
                                .timers_allowed = chance(2),
                                .task_allowed = chance(2)};
            struct plan plan = strategy->plan(&prediction, age, &load);
            stages[plan.stage]++;
            common += plan.common;
            REQUIRE(plan.stage == STAGE_WATCHER || load.task_allowed, "%s: stage %d without a task",
                    strategy->name, plan.stage);
            REQUIRE(!plan.common || (plan.stage == STAGE_TIMER && plan.look),
                    "%s: a common look that no loop makes", strategy->name);
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
        printf("%8s: the task polls in %d plans, a timer has %d, %d of them in common, the watcher "
               "polls in %d\n",
               strategy->name, stages[STAGE_TASK], stages[STAGE_TIMER], common,
               stages[STAGE_WATCHER]);
    }
}

/* `aiostream.ready`: how late ends are noticed, and the questions of each wait, after a history has
 * learnt the work. So many tasks of a loop wait, one time after another. A question takes 3 us, and
 * then the loop leaves as much time to others. A loop that sleeps for a millisecond asks a 5 ms
 * wait five times, and is 0.5 ms late. */
static void questions(const char *name, int64_t (*length_of)(int), int tasks, int64_t most_late,
                      double most_asked) {
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
                int64_t length = length_of(began++ / tasks);
                now += 10 * US; /* the task runs, and begins the next one */
                waits[i].start = waits[i].no = now, waits[i].length = length;
            } else {
                waits[i].no = now;
            }
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
static int64_t always_1_ms(int k) { return (void)k, 1 * MS; }
static int64_t always_5_ms(int k) { return (void)k, 5 * MS; }
static int64_t always_20_ms(int k) { return (void)k, 20 * MS; }
static int64_t first_5_then_4_ms(int k) { return k < 60 ? 5 * MS : 4 * MS; }
static int64_t always_3_s(int k) { return (void)k, 3000 * MS; }
static int64_t about_5_ms(int k) { return (void)k, (int64_t)uniform(4.5 * MS, 5.5 * MS); }
static int64_t settled; /* the length that varying work has in the end */
static int64_t about_5_ms_then_settled(int k) { return k < 60 ? about_5_ms(k) : settled; }

int main(int count, char **arguments) {
    int histories = count > 1 ? atoi(arguments[1]) : 2000;
    if (count > 2) seed = strtoull(arguments[2], NULL, 10);
    seed_thread(seed, 0);
    for (int lists = 1; lists <= 256; lists++) latest_look(lists);
    each_pattern(WAIT_AUTO, 1, 1);
    each_pattern(WAIT_EVENT, 1, 1);
    each_pattern(WAIT_AUTO, 8, 8);
    each_pattern(WAIT_AUTO, 128, 8);
    each_pattern(WAIT_AUTO, 1, 64);
    questions("1 ms", always_1_ms, 1, 150 * US, 3);
    questions("about 5 ms", about_5_ms, 1, 200 * US, 12);
    questions("3 s", always_3_s, 1, 150 * US, 400);
    for (int tasks = 1; tasks <= 16; tasks += 15) {
        questions("5 ms", always_5_ms, tasks, 150 * US, 6);
        questions("20 ms", always_20_ms, tasks, 150 * US, 14);
        questions("5, then 4 ms", first_5_then_4_ms, tasks, 150 * US, 6);
    }
    questions("about 5 ms", about_5_ms, 16, 350 * US, 12);
    questions("20 ms", always_20_ms, 128, 200 * US, 12);
    for (settled = MS; settled <= 7 * MS; settled += MS / 20)
        questions("about 5 ms, then another length", about_5_ms_then_settled, 1, 400 * US, 30);
    short_work_in_a_busy_loop();
    long_work_in_a_busy_loop();
    random_histories(histories);
    each_strategy_keeps_to_the_load();
    return 0;
}
