/* How long the waits of one stream take. GPU work repeats itself: a running mean and a running mean deviation tell when the
 * next wait will end, so that the watcher can sleep until shortly before.
 *
 * One odd wait (another kind of request, a hiccup) is passed over; two in a row mean that the work has changed, and everything
 * is learnt anew. So it learns within three waits and forgets within two.
 */
#include "policy.h"

enum { WEIGHT = 8, ENOUGH = 3, TRUSTED_AFTER = 8, MICROSECOND = 1000 };

static int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

void history_learn(struct history *history, int64_t duration) {
    int64_t error = duration - history->mean;
    int64_t ordinary = 4 * history->deviation;
    if (ordinary < history->mean / 4) ordinary = history->mean / 4;
    if (history->samples > 0 && magnitude(error) > ordinary + 20 * MICROSECOND) {
        /* One that took longer costs nothing but the polls around the expected end; an earlier one would be noticed late. */
        if (error < 0) history->streak = 0;
        if (++history->outliers < 2) return;
        history->samples = 0;
        history->streak = 0;
    }
    history->outliers = 0;
    if (history->samples == 0) {
        history->samples = 1;
        history->lead = 40 * MICROSECOND + duration / 64;
        history->mean = duration;
        history->deviation = 0;
        return;
    }
    /* The plain average at first, so that a few waits are enough; then one that forgets. */
    if (history->samples < WEIGHT) history->samples++;
    history->mean += error / history->samples;
    history->deviation += (magnitude(error) - history->deviation) / history->samples;
    if (history->streak < TRUSTED_AFTER) history->streak++;
}

/* Waking the watcher and the loop takes its time, and a processor that has idled for long wakes slowly. So the lead is learnt,
 * as that quantile by which the waiter is on the spot in about three of four waits: to be so more often costs more
 * than it is worth. */
void history_learn_hand_back(struct history *history, bool late, int64_t slack) {
    if (late) history->lead += history->lead / 8 + 2 * MICROSECOND;
    else if (slack > history->lead / 3) history->lead -= slack / 8;
    else history->lead -= history->lead / 24;
    int64_t most = history->mean / (history->mean < 1000 * MICROSECOND ? 2 : 8);
    if (history->lead > most) history->lead = most;
    if (history->lead < 5 * MICROSECOND) history->lead = 5 * MICROSECOND;
}

struct prediction history_predict(const struct history *history) {
    bool good = history->samples >= ENOUGH && history->deviation <= history->mean / 8 + 30 * MICROSECOND;
    return (struct prediction){
        .good = good,
        .trusted = good && history->streak >= TRUSTED_AFTER,
        .mean = history->mean,
        .spread = 2 * history->deviation,
        .lead = history->lead,
    };
}
