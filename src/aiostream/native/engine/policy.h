/* When to poll a wait: a pure policy. It has no lock, no clock and no driver call.
 * tests/native/policy.c runs it in virtual time.
 *
 * Every time here is an age: nanoseconds after the work of the wait began, as far as that is known.
 */
#ifndef AIOSTREAM_POLICY_H
#define AIOSTREAM_POLICY_H

#include "base.h"

enum {
    HISTORY_LENGTHS = 32, /* true lengths that a history remembers */
    /* windows of a prediction; what ends later is left to the plain schedule */
    MAX_WINDOWS = 4,
};

/* Where ends have been. The windows of a prediction are in order and do not overlap. */
struct window {
    int64_t first, last; /* the shortest and the longest of the latest lengths in it */
    int64_t wakes;       /* when to wake the task, so that it polls by `first` */
    int64_t closes;      /* an end is expected here until this age */
    bool narrow;         /* so narrow that the task itself polls through it */
};

/* A window in which an end was seen only roughly. It is polled in steps, so that the next end there
 * is a true length. */
struct rough { int64_t from, to; /* to is 0: there is none */ };

struct prediction {
    int count;
    /* some of the latest waits ended before a task would have stopped polling, or nothing is known
     * yet */
    bool short_likely;
    /* the latest wait was over at its first poll, at an age that no window expected */
    bool early;
    /* too many of the latest waits ended in no window, so the windows cannot be counted on */
    bool irregular;
    /* no true length was seen for long, so this wait is polled closely all the time */
    bool dense;
    struct window windows[MAX_WINDOWS];
    struct rough rough;
};

/* The lengths of waits on one stream or on the streams of one pool. Its owner guards it with a
 * lock. */
struct history {
    int64_t lengths[HISTORY_LENGTHS]; /* a ring, of true lengths only */
    int64_t sorted[HISTORY_LENGTHS];  /* the same, in order */
    int count, next;
    int since_true;      /* waits since a true length was learnt */
    uint16_t unexpected; /* a bit for each of the latest waits: it ended in no window */
    /* by the power of two of the length: how long before an end the task is woken; 0: not learnt */
    int32_t leads[LENGTH_BUCKETS];
    struct prediction prediction; /* of the next wait */
    /* Of Python functions: when the latest wait began that is asked closely, and how many such
     * waits were in vain. */
    int64_t closely;
    int closely_tries;
};

/* An end lay between two polls: the last that said "not ready" (at 0, if there was none), and the
 * first that said "ready". */
void history_learn(struct history *, int64_t not_before, int64_t seen);
/* A task was woken for the window of `length`: too late, or `slack` before the end. */
void history_learn_lead(struct history *, int64_t length, bool late, int64_t slack);
struct prediction history_predict(const struct history *);

/* When to ask a Python function again, by the clock. */
struct question {
    int64_t from; /* if the loop is awake then */
    int64_t by;   /* the loop is woken for it */
};
/* A Python function was asked at `now` whether a wait is over that began at `start`. Its latest no
 * was at `false_at`. If it is over, the history learns, and nothing more is to be asked. Only the
 * loop's thread may ask, so a question costs the loop a wake-up. `waits`: such waits of the
 * loop. */
struct question history_asked(struct history *, int64_t start, int64_t false_at, int64_t now,
                              bool over, int waits);

/* What else a decision depends on. */
struct load {
    int64_t lateness;    /* of the loop, in ns */
    int lists;           /* wait lists that the watcher has */
    int waits;           /* of the loop */
    bool alone;          /* no other wait is pending on the stream */
    bool timers_allowed; /* the loop's timer takes another wait */
    bool task_allowed;   /* who asks can leave the wait to its task, or to a future's loop */
};

enum stage {
    STAGE_TASK, /* the task polls once in each turn of its loop, until `until` */
    /* a timer of the loop wakes the task at `at`, or polls itself; the watcher makes the guard
     * polls before */
    STAGE_TIMER,
    STAGE_WATCHER, /* the watcher polls at `at` */
};

struct plan {
    enum stage stage;
    int64_t at, until;
    int64_t length; /* of the window for which the task polls or is woken; 0: none */
    /* STAGE_TIMER: the loop polls natively at `at`, and does not resume the task for that */
    bool by_loop;
    /* an end is expected at `at`, so the watcher or the loop polls exactly then */
    bool exact;
    /* With `by_loop`: the loop is crowded, so the watcher makes no guard polls. If the poll need
     * not be exact, `policy_common_poll` says when it comes. */
    bool common;
};

/* How a wait proceeds. The strategies are the rows of the table in policy.c. CONTRIBUTING.md says
 * how to add one. */
struct strategy {
    const char *name; /* the value of its member of Python's WaitStrategy */
    /* What to do with a wait of that age that was pending at the last poll. It answers STAGE_TIMER
     * only if the load allows timers. Where it would, it answers STAGE_WATCHER if the load allows
     * none, because a wait that a full timer has refused must have another holder. If the load
     * allows no task, only STAGE_WATCHER is left. */
    struct plan (*plan)(const struct prediction *, int64_t age, const struct load *);
};
extern const struct strategy strategies[]; /* Python knows a strategy by its place here */
extern const int strategy_count;

/* Whether a task that has polled until its `until` should go on for some turns of its loop. */
bool policy_poll_on(const struct prediction *, int64_t age, int polls, const struct load *);
/* The latest next poll that keeps promise P16. `lists`: wait lists that the watcher has. Every path
 * takes the earlier of this time and its own. */
int64_t policy_latest_poll(int64_t age, int lists);
/* The next guard poll of a wait that a timer has, or NEVER if the timer comes first. */
int64_t policy_guard(const struct prediction *, int64_t age, int64_t timer, const struct load *);
/* Whether a task whose waits were over at once may go on without a turn of its loop (P17). `ops`
 * waits took `elapsed` so far. `tasks` shared the last turn. */
bool policy_keep_turn(int64_t elapsed, int ops, int tasks);
/* How soon the watcher's next pass may come, for an exact poll or for others. `loop_lateness` is
 * that of the loop that is least late. */
int64_t policy_pass_gap(int lists, bool exact, int64_t loop_lateness);
/* The latest next poll of a wait of a crowded loop, by P16. */
int64_t policy_crowd_latest(int64_t age);
/* When a poll of a crowded loop comes that was planned for `time` and need not be exact. Such polls
 * fall together, so that one wake-up serves many. Both are times of the clock. */
int64_t policy_common_poll(int64_t now, int64_t time);
/* What is due within this time is due now, in a loop with these waits. */
int64_t policy_due_soon(int waits);
/* By when a pass comes in spite of that, because of P16, which holds for loops that are not
 * busy. */
int64_t policy_latest_pass(int64_t age, int64_t loop_lateness);
/* When to poll again a wait that has no task any more. */
int64_t policy_unwanted(int64_t age);

#endif
