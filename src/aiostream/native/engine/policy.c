/* When to poll a wait: a pure policy, in any thread, without a lock, a clock or a driver call.
 *
 * The loop's thread asks it after each poll of a wait (task_waits.c), and the watcher in each pass
 * (watched_waits.c). It answers with a plan: the task polls, a timer of the loop has the wait, or
 * the watcher, and until when. The lengths of waits that have ended come back into a history, under
 * a lock of the caller's.
 *
 * GPU work repeats itself, but not always the same work: one stream may run kernels of 9 and of 0.4
 * ms in turn. So a history keeps the last true lengths, and a prediction is the set of windows in
 * which ends have been. The task itself polls a narrow window. The watcher polls a wide one in
 * steps. Where no end is expected, the intervals grow with the age.
 *
 * Only what was seen is learnt. A wait that is first polled when its timer fires may have been over
 * for long. Then only an interval is known, and a wide interval teaches nothing, because a
 * prediction that learnt the time at which it noticed the end would confirm itself. So that the
 * history does not starve, some waits are polled closely: those after an end that no window
 * expected, and one in sixteen if no true length was seen otherwise.
 *
 * The bound of promise P16 is in one function, policy_latest_poll, which every path respects.
 */
#include "policy.h"

static const int64_t US = 1000, MS = 1000000;

/* All times are in ns. `python tools/ablate_policy.py NAME` halves and doubles a constant in the
 * model of the tests. The brackets have what that did for half and for twice (2026-11-29): how many
 * of 657 cells got worse, and how many better, or x if the model refused it. The model's loop is
 * quick. `python -m benchmarks full` measures busy ones. */
/* a task polls a wait of which nothing is known until this age [6-12, 21-9] */
static const int64_t SPIN_NS = 50000;
/* a window that opens before this age is polled from the beginning [0-0, x] */
static const int64_t START_SPIN_NS = 75000;
/* the shortest interval of the plain schedule, and the longest up to 48 ms [29-8, 9-30]
 * [21-20, x] */
static const int64_t SHORTEST_INTERVAL_NS = 5000, LONGEST_INTERVAL_NS = 120000;
/* the longest if many streams wait: this for each, and at most that [21-10, 0-0]
 * [21-10, 5-6] */
static const int64_t SHARED_PER_LIST_NS = 1600, LONGEST_SHARED_NS = 200000;
/* no guard poll comes before this age [29-21, x] */
static const int64_t GUARD_FLOOR_NS = 150000;
/* of the 0.25 ms of P16; the rest is for waking the watcher and the loop [x, x] */
static const int64_t GUARD_SLACK_NS = 130000;
static const int64_t GUARD_MOST_NS = 1000000; /* the 1 ms of P16 [50-13, x] */
/* a window closes this after the last length in it [x, 32-6] */
static const int64_t WINDOW_TAIL_NS = 60000;
/* a window is narrow if last - first <= first / NARROW_SHARE + this [21-2, 5-12] [x, 31-12] */
static const int64_t NARROW_NS = 50000;
/* an interval between two polls gives a true length if it is <= seen / TRUE_SHARE + this [90-13,
 * 31-31] [x, x] */
static const int64_t TRUE_NS = 40000;
/* two lengths are of one cluster if they differ by < longer / GAP_SHARE + this [x, 14-7]
 * [x, 12-6] */
static const int64_t CLUSTER_GAP_NS = 60000;
static const int64_t ROUGH_STEP_NS = 20000; /* the shortest step in a rough window [11-6, 49-5] */
static const int64_t LEAD_LEAST_NS = 5000;  /* [9-7, x] */
/* between passes for polls of which none is exact, because a pass costs a wake-up [42-84, x] */
static const int64_t SHARED_GAP_NS = 80000;
/* A loop that is late learns as late of an end, so its waits need no poll before. This is the most
 * that counts, for busy loops [0-0, 0-0]. */
static const int64_t LATENESS_MOST_NS = 500000;
/* what ready waits may take of one turn of a loop, all tasks together: half of the millisecond of
 * P17, which test_fair_turns.py measures */
static const int64_t TURN_BUDGET_NS = 500000;
/* What no task waits for is let go of this late at most. P4 sets no limit, and a stream of a pool
 * comes back with it. */
static const int64_t UNWANTED_MOST_NS = 45000000;
/* between the polls that all waits of a crowded loop share, because a wake-up costs some 10 us: the
 * 0.2 ms of P16 [x, x]; and where an end is expected [4-16, x] */
static const int64_t CROWD_STEP_NS = 200000, CROWD_WINDOW_NS = 60000;
/* where none is expected, before it falls together with others: this for each wait of the loop,
 * because with more waits the loop has less time for each [2-1, 0-0] */
static const int64_t CROWD_PER_WAIT_NS = 12000;
/* the shortest and the longest of these [14-19, x] [7-12, 8-1] */
static const int64_t CROWD_SHORTEST_NS = 300000, CROWD_LONGEST_NS = 450000;
/* a poll of a crowded loop that is due within this may save a wake-up if it comes now
 * [2-2, 7-4] */
static const int64_t CROWD_DUE_SOON_NS = 40000;
/* the watcher has what is older, so that old waits do not wake their loop [14-5, 2-3] */
static const int64_t CROWD_AGE_NS = 32000000;
/* between questions to a Python function, each of which costs a wake-up of the loop: where an end
 * is expected [x, 5-3], and where it is expected later [x, x] */
static const int64_t QUESTION_STEP_NS = 75000, QUESTION_GUARD_NS = 2400000;
enum {
    /* the plain schedule polls after each eighth of the age [x, 161-33], or after each 400th
     * if that is more [9-3, 1-2] */
    INTERVALS_PER_AGE = 8,
    LATE_INTERVALS = 400,
    LATE_SHARE = 150,   /* P16 [x, x] */
    DENSE_PER_AGE = 32, /* a close poll: after each 32nd of the age [6-7, 6-3] */
    CROWD_PER_AGE = 16, /* a poll of a crowded loop [13-7, 6-7] */
    TRUE_SHARE = 24,
    /* waits in which at least one true length is learnt [x, x] */
    TRUE_WITHIN = 16,
    /* waits in turn that look for ends before the window, each earlier: the bound of a shift */
    MOST_TRIES = 6,
    GAP_SHARE = 16,
    LEAD_SHARE = 64, /* the lead before one was learnt [7-5, 9-3] */
    NARROW_SHARE = 32,
    STEPS = 24, /* in which a wide window is polled [28-23, 30-15] */
    /* members of a cluster that decide whether its window is narrow [x, 26-24] */
    RECENT = 8,
    /* a wide window is wider than its cluster by two eighths [9-4, 3-5] */
    MARGIN_SHARE = 8,
    /* lengths that are spread over more than a third are no cluster [14-24, x] */
    WIDEST_SHARE = 3,
    /* a task is woken only for a window in which a quarter of the longer waits end [47-15, 5-20] */
    LIKELY_SHARE = 4,
    /* the task polls for an end that comes within these turns of the loop [0-0, 0-0], and
     * is woken for one only if the wait is longer than these [0-0, 0-0] */
    SPIN_MAX_LOOP_TURNS = 3,
    WORTH_LOOP_TURNS = 4,
    ROUGH_STEPS = 12, /* in which a rough window is polled [x, x] */
    /* The windows do not count if more than these of the last 16 waits ended in none
     * [8-13, x], and one of the last four [x, 8-5]. */
    MAX_UNEXPECTED = 2,
    LATEST_FEW = 0xf,
    /* With no more wait lists, each is polled just when it is due, if its poll is exact, and the
     * loop polls a wide window, because it is awake then. [22-7, 0-0] */
    SOME_LISTS = 8,
    FEW_LISTS = 2,  /* with more, passes for polls that are not exact are spaced [0-0, 0-0] */
    FEW_WAITS = 12, /* with more, their loop polls all of them [x, 1-4] */
    /* polls of a busy loop's wait in each of its turns [x, 1-0] */
    LATENESS_SHARE = 8,
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static bool is_near(int64_t a, int64_t b) {
    return greatest(a, b) - least(a, b) < CLUSTER_GAP_NS + greatest(a, b) / GAP_SHARE;
}

/* --- the windows --- */

static int64_t lead_of(const struct history *history, int64_t length) {
    int64_t lead = history->leads[bucket_of(length)];
    if (!lead) lead = length / LEAD_SHARE;
    return clamp(lead, LEAD_LEAST_NS, length < MS ? length / 2 : length / 8);
}

/* The latest is number 1. */
static int64_t latest_length(const struct history *history, int i) {
    return history->lengths[(history->next - i + HISTORY_LENGTHS) % HISTORY_LENGTHS];
}

/* If the latest members of a cluster agree closely, they are the window, so that work that drifts
 * is expected where it is now. Otherwise all members are, with a margin for those that will be a
 * little shorter or longer. */
static struct window window_of(const struct history *history, int64_t low, int64_t high) {
    struct window window = {.first = high, .last = low};
    int found = 0;
    for (int i = 1; i <= history->count && found < RECENT; i++) {
        int64_t length = latest_length(history, i);
        if (length < low || length > high) continue;
        window.first = least(window.first, length);
        window.last = greatest(window.last, length);
        found++;
    }
    window.narrow = window.last - window.first <= NARROW_NS + window.first / NARROW_SHARE;
    if (!window.narrow) {
        window.first = low - (high - low) / MARGIN_SHARE;
        window.last = high + (high - low) / MARGIN_SHARE;
    }
    window.closes = window.last + WINDOW_TAIL_NS;
    window.wakes = greatest(window.first - lead_of(history, window.first), 0);
    return window;
}

/* Lengths that agree by chance are no cluster. So the more lengths are known, the more have to
 * agree. */
static int enough(int known) { return known >= 8 ? 4 : 2; }

static void predict(struct history *history) {
    struct prediction *prediction = &history->prediction;
    const int64_t *sorted = history->sorted;
    prediction->count = 0;
    for (int begin = 0, end; begin < history->count; begin = end) {
        end = begin + 1;
        while (end < history->count && is_near(sorted[end - 1], sorted[end])) end++;
        int members = end - begin, longer = history->count - begin;
        /* The last cluster need agree only among the waits that get so old, because prefill is rare
         * among decoding steps. */
        bool last_one = end == history->count && !prediction->irregular;
        if (members < enough(last_one ? longer : history->count) ||
            prediction->count == MAX_WINDOWS)
            continue;
        struct window window = window_of(history, sorted[begin], sorted[end - 1]);
        int64_t width = window.last - window.first;
        if (width > window.last / WIDEST_SHARE && width > CLUSTER_GAP_NS) continue;
        window.narrow &= members * LIKELY_SHARE >= longer;
        prediction->windows[prediction->count++] = window;
    }
    prediction->short_likely = false;
    for (int i = 1; i <= history->count && i <= RECENT; i++)
        prediction->short_likely |= latest_length(history, i) < START_SPIN_NS;
}

struct prediction history_predict(const struct history *history) {
    struct prediction prediction = history->prediction;
    if (history->count == 0) prediction.short_likely = true;
    prediction.dense = history->since_true >= TRUE_WITHIN - 1;
    return prediction;
}

/* --- learning --- */

static void remember(struct history *history, int64_t length) {
    int64_t *sorted = history->sorted;
    int at = history->count;
    if (at < HISTORY_LENGTHS) history->count++;
    else /* in the place of the oldest */
        while (sorted[--at] != history->lengths[history->next]) continue;
    for (; at > 0 && sorted[at - 1] > length; at--) sorted[at] = sorted[at - 1];
    for (; at + 1 < history->count && sorted[at + 1] < length; at++) sorted[at] = sorted[at + 1];
    sorted[at] = length;
    history->lengths[history->next] = length;
    history->next = (history->next + 1) % HISTORY_LENGTHS;
    predict(history);
}

static bool is_expected(const struct prediction *prediction, int64_t not_before, int64_t seen) {
    for (int i = 0; i < prediction->count; i++) {
        const struct window *window = &prediction->windows[i];
        if (seen >= window->first - window->first / NARROW_SHARE && not_before <= window->closes)
            return true;
    }
    return false;
}

void history_learn(struct history *history, int64_t not_before, int64_t seen) {
    not_before = greatest(not_before, 0);
    seen = greatest(seen, not_before);
    bool is_true = seen - not_before <= TRUE_NS + seen / TRUE_SHARE;
    bool expected = is_expected(&history->prediction, not_before, seen);
    struct rough *rough = &history->prediction.rough;
    int64_t length = not_before + (seen - not_before) / 2;
    if (not_before <= rough->to && seen >= rough->from) rough->to = 0;
    history->unexpected = (uint16_t)(history->unexpected << 1 | !expected);
    /* When the windows fit again, as after a change of the work, a few waits show it. */
    history->prediction.irregular = __builtin_popcount(history->unexpected) > MAX_UNEXPECTED &&
                                    (history->unexpected & LATEST_FEW);
    /* This is not a true length. But in a busy loop even a short wait is seen only a turn later,
     * and nothing else would show it. */
    history->prediction.early = !expected && !is_true && not_before < SPIN_NS;
    if (is_true) {
        history->since_true = 0;
        remember(history, length);
    } else {
        history->since_true++;
    }
    if (expected || is_expected(&history->prediction, not_before, seen)) return;
    int64_t around = length / GAP_SHARE + CLUSTER_GAP_NS / 2;
    *rough = is_true ? (struct rough){greatest(length - around, 0), length + around}
                     : (struct rough){not_before, seen};
}

void history_learn_lead(struct history *history, int64_t length, bool late, int64_t slack) {
    int bucket = bucket_of(length);
    int64_t lead = lead_of(history, length);
    /* One step up is as large as three down, so the task is late in a quarter of the waits. */
    if (late) lead += lead / 8 + 2 * US;
    else if (slack > lead / 3) lead -= slack / 8;
    else lead -= lead / 24;
    history->leads[bucket] = (int32_t)clamp(lead, LEAD_LEAST_NS, INT32_MAX);
}

/* --- deciding --- */

int64_t policy_pass_gap(int lists, bool exact, int64_t loop_lateness) {
    if (lists <= FEW_LISTS) return 0;
    int64_t gap = exact && lists <= SOME_LISTS ? 0 : SHARED_GAP_NS;
    /* the loop sees together what ends within one of its turns */
    return greatest(gap, least(loop_lateness, LATENESS_MOST_NS));
}

int64_t policy_latest_poll(int64_t age, int lists) {
    int64_t interval =
        greatest(least(age / INTERVALS_PER_AGE, GUARD_MOST_NS), age / LATE_SHARE) + GUARD_SLACK_NS;
    /* the pass may come later by its gap */
    return greatest(age + interval, GUARD_FLOOR_NS) - policy_pass_gap(lists, false, 0);
}

int64_t policy_latest_pass(int64_t age, int64_t loop_lateness) {
    return greatest(policy_latest_poll(age, 1), age + least(loop_lateness, LATENESS_MOST_NS));
}

bool policy_keep_turn(int64_t elapsed, int ops, int tasks) {
    /* The next wait is likely to take as long as those before it. */
    return elapsed + elapsed / (ops > 0 ? ops : 1) < TURN_BUDGET_NS / (tasks > 0 ? tasks : 1);
}

int64_t policy_unwanted(int64_t age) {
    return age + clamp(age / INTERVALS_PER_AGE, SHORTEST_INTERVAL_NS, UNWANTED_MOST_NS);
}

static const struct window *next_window(const struct prediction *prediction, int64_t age) {
    for (int i = 0; i < prediction->count; i++)
        if (prediction->windows[i].closes > age) return &prediction->windows[i];
    return NULL;
}

static int64_t plain_interval(const struct prediction *prediction, int64_t age,
                              const struct load *load) {
    int64_t shortest = SHORTEST_INTERVAL_NS, longest = LONGEST_INTERVAL_NS;
    /* with few of these, each pass polls all lists, because that costs less than to wake for
     * each */
    if (load->lists > FEW_LISTS) {
        shortest = SHARED_GAP_NS;
        longest = clamp(load->lists * SHARED_PER_LIST_NS, shortest, LONGEST_SHARED_NS);
    }
    if (prediction->dense) return clamp(age / DENSE_PER_AGE, shortest, longest);
    return greatest(clamp(age / INTERVALS_PER_AGE, shortest, longest), age / LATE_INTERVALS);
}

/* The next poll that a rough window asks for. */
static int64_t rough_poll(const struct prediction *prediction, int64_t age) {
    const struct rough *rough = &prediction->rough;
    if (!rough->to || age > rough->to) return NEVER;
    int64_t step = greatest((rough->to - rough->from) / ROUGH_STEPS, ROUGH_STEP_NS);
    return age < rough->from ? rough->from : age + step;
}

int64_t policy_guard(const struct prediction *prediction, int64_t age, int64_t timer,
                     const struct load *load) {
    /* A loop that comes late does not come earlier because the watcher has seen the end. */
    int64_t next = policy_latest_poll(age, load->lists);
    if (prediction->dense || prediction->irregular)
        next = least(next, age + plain_interval(prediction, age, load));
    next = least(next, rough_poll(prediction, age));
    next = greatest(next, age + least(load->lateness, LATENESS_MOST_NS));
    return next < timer ? next : NEVER;
}

/* In a window that the watcher polls, or the loop. */
static int64_t step_of(const struct window *window) {
    int64_t width = window->last - window->first;
    return clamp(width / STEPS, SHORTEST_INTERVAL_NS, LONGEST_INTERVAL_NS);
}

/* A loop that has slept for milliseconds takes longer to wake than the steps in a wide window. So
 * the loop itself polls there. */
static bool is_loop_window(const struct prediction *prediction, const struct window *window,
                           const struct load *load) {
    return window && !window->narrow && !prediction->irregular && load->alone &&
           load->timers_allowed && load->lists <= SOME_LISTS &&
           window->first > WORTH_LOOP_TURNS * load->lateness;
}

/* When the watcher polls next, before or in the window, or where no end is expected. */
static inline struct plan watch(const struct prediction *prediction, const struct window *window,
                                int64_t age, const struct load *load) {
    /* Before a window no end is expected, so only the guard polls are due. */
    int64_t at = window ? window->first : NEVER;
    if (window && age >= at) at = age + step_of(window);
    else if (!window || prediction->dense || prediction->irregular)
        at = least(at, age + plain_interval(prediction, age, load));
    at = least(at, rough_poll(prediction, age));
    at = least(at, policy_latest_poll(age, load->lists));
    /* P16 holds for loops that are not busy */
    at = greatest(at, age + load->lateness / LATENESS_SHARE);
    bool exact = window && window->narrow && !prediction->irregular && at >= window->first;
    return (struct plan){.stage = STAGE_WATCHER, .at = at, .exact = exact};
}

/* --- a crowd --- */

int64_t policy_crowd_latest(int64_t age) {
    return age + greatest(least(age / 2, GUARD_MOST_NS), age / LATE_SHARE) + CROWD_STEP_NS;
}

/* Of a wait whose end is expected, only the ends of the window matter, and a few polls before. Most
 * of these polls cost no wake-up of their own, because all waits of the loop share them. */
static struct plan crowd_plan(const struct prediction *prediction, const struct window *window,
                              int64_t age, int waits) {
    struct plan plan = {
        .stage = STAGE_TIMER, .at = policy_crowd_latest(age), .by_loop = true, .common = true};
    if (prediction->dense) {
        plan.exact = true;
        plan.at = age + clamp(age / DENSE_PER_AGE, CROWD_WINDOW_NS, CROWD_STEP_NS);
    } else if (!window || !window->narrow || prediction->irregular) {
        int64_t most = waits * CROWD_PER_WAIT_NS;
        plan.at = age + clamp(age / CROWD_PER_AGE, least(most, CROWD_SHORTEST_NS),
                              least(most, CROWD_LONGEST_NS));
    } else if (age >= window->first || window->first <= plan.at) {
        plan.exact = true;
        plan.at = greatest(window->first, age + CROWD_WINDOW_NS);
    }
    return plan;
}

int64_t policy_due_soon(int waits) { return waits > FEW_WAITS ? CROWD_DUE_SOON_NS : 0; }

int64_t policy_common_poll(int64_t now, int64_t time) {
    int64_t step = CROWD_STEP_NS;
    while (4 * step <= time - now) step *= 2;
    return greatest(time / step * step, now + CROWD_WINDOW_NS);
}

/* --- what only a Python function knows --- */

/* The loop needs some time to wake. In a loop with many waits one wake-up serves several. */
static struct question question_at(int64_t time, int waits) {
    int64_t half = CROWD_DUE_SOON_NS / 2;
    return (struct question){.from = time - 2 * half,
                             .by = waits > FEW_WAITS ? time + half : time - half};
}

/* One that need not be exact comes along with others. */
static struct question question_within(int64_t interval, int64_t now) {
    int64_t by = policy_common_poll(now, now + interval);
    return (struct question){.from = least(now + interval - interval / 3, by), .by = by};
}

static struct question next_question(const struct prediction *prediction, int tries, int64_t start,
                                     int64_t now, int waits) {
    int64_t age = now - start;
    if (age < SPIN_NS && prediction->short_likely) return question_at(now, waits);
    const struct window *window = prediction->irregular ? NULL : next_window(prediction, age);
    int64_t shortest = prediction->dense ? CROWD_WINDOW_NS : 4 * QUESTION_STEP_NS;
    int64_t longest = greatest(5 * shortest / 2, age / LATE_SHARE);
    int64_t interval = clamp(age / INTERVALS_PER_AGE, shortest, longest);
    /* The work of a wide window may have changed, so this looks for all lengths. */
    if (!window || (prediction->dense && !window->narrow)) return question_within(interval, now);
    int64_t width = window->last - window->first, first = window->first;
    int64_t step = clamp(width / INTERVALS_PER_AGE, QUESTION_STEP_NS, CROWD_STEP_NS);
    if (prediction->dense) {
        /* Ends before the window are seen only if the questions begin before them. */
        int64_t before = least(2 * step << tries, first / 2);
        first -= before;
        step = greatest(step,
                        least(before / INTERVALS_PER_AGE, TRUE_NS / 2 + first / (2 * TRUE_SHARE)));
    }
    int64_t guard = clamp(age, QUESTION_GUARD_NS, 2 * QUESTION_GUARD_NS + age / LATE_SHARE);
    if (age + guard < first) return question_within(guard, now);
    /* A turn of the loop costs less than to sleep and wake. */
    bool turns = window->narrow && width < CROWD_STEP_NS && waits <= FEW_WAITS;
    if (turns && age >= first - CROWD_DUE_SOON_NS && age < window->last)
        return question_at(now, waits);
    return question_at(start + greatest(first, age + step), waits);
}

struct question history_asked(struct history *history, int64_t start, int64_t false_at, int64_t now,
                              bool over, int waits) {
    if (over) {
        /* Two questions that the loop wakes for cannot be nearer, so this is near enough. */
        int64_t first = false_at - start, last = now - start, gap = last - first;
        if (gap > TRUE_NS && gap < 2 * QUESTION_STEP_NS)
            first += (gap - TRUE_NS) / 2, last -= (gap - TRUE_NS) / 2;
        history_learn(history, first, last);
        if (history->closely == start) {
            history->closely = 0;
            history->closely_tries = (history->closely_tries + 1) % MOST_TRIES;
        }
        if (history->since_true == 0) history->closely_tries = 0;
        return (struct question){.from = NEVER, .by = NEVER};
    }
    struct prediction prediction = history_predict(history);
    if (history->count < 2) prediction.dense = true; /* so that it soon knows something */
    if (prediction.dense) history->closely = start;
    return next_question(&prediction, history->closely_tries, start, now, waits);
}

/* --- the strategies --- */

static struct plan plan_auto(const struct prediction *prediction, int64_t age,
                             const struct load *load) {
    const struct window *window = next_window(prediction, age);
    struct plan watcher = watch(prediction, window, age, load);
    if (!load->task_allowed) return watcher;
    bool begins = age < SPIN_NS, opens_soon = !window || window->first < START_SPIN_NS;
    if (begins && (prediction->early || (prediction->short_likely && opens_soon)))
        return (struct plan){.stage = STAGE_TASK, .at = age, .until = SPIN_NS};
    if (load->waits > FEW_WAITS && load->alone && age < CROWD_AGE_NS)
        return load->timers_allowed ? crowd_plan(prediction, window, age, load->waits) : watcher;
    if (is_loop_window(prediction, window, load)) {
        int64_t poll_at = age < window->first ? window->first
                                              : age + greatest(step_of(window), 2 * load->lateness);
        return (struct plan){
            .stage = STAGE_TIMER, .at = poll_at, .until = window->closes, .by_loop = true};
    }
    if (!window || !window->narrow) return watcher;
    struct plan poll = {
        .stage = STAGE_TASK, .at = age, .until = window->closes, .length = window->first};
    /* By the clock, or by the turns of the loop, because in a busy loop the end will have come by
     * the time the loop comes back. */
    bool soon = window->wakes <= age || window->first - age < SPIN_MAX_LOOP_TURNS * load->lateness;
    if (soon && (begins || load->alone)) return poll;
    bool worth_waking = load->alone && window->first > WORTH_LOOP_TURNS * load->lateness;
    if (soon || !worth_waking) return watcher;
    if (!load->timers_allowed) {
        watcher.at = least(watcher.at, window->wakes);
        return watcher;
    }
    return (struct plan){.stage = STAGE_TIMER,
                         .at = window->wakes,
                         .until = window->closes,
                         .length = window->first};
}

/* The watcher alone. */
static struct plan plan_event(const struct prediction *prediction, int64_t age,
                              const struct load *load) {
    return watch(prediction, next_window(prediction, age), age, load);
}

/* The task alone. */
static struct plan plan_spin(const struct prediction *prediction, int64_t age,
                             const struct load *load) {
    if (!load->task_allowed) return plan_event(prediction, age, load);
    return (struct plan){.stage = STAGE_TASK, .at = age, .until = NEVER};
}

const struct strategy strategies[] = {
    {"auto", plan_auto},
    {"event", plan_event},
    {"spin", plan_spin},
    /* A host function on the stream reports the end, and this policy has nothing to decide. But a
     * host function cannot wait for an Event, so those waits are planned like this. */
    {"hostfunc", plan_auto},
};
const int strategy_count = sizeof strategies / sizeof *strategies;

bool policy_poll_on(const struct prediction *prediction, int64_t age, int polls,
                    const struct load *load) {
    if (polls < 2) return true;
    int64_t turns = SPIN_MAX_LOOP_TURNS * load->lateness;
    const struct window *window = next_window(prediction, age - turns);
    return window && window->first - age < turns && age - window->last < turns;
}
