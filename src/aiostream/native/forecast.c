/* How long the waits of one stream take. GPU work repeats itself: a running mean and a running mean deviation tell when the
 * next wait will end, so that the watcher can sleep until shortly before.
 *
 * One odd wait (another kind of request, a hiccup) is passed over; two in a row mean that the work has changed, and everything
 * is learnt anew. So it learns within three waits and forgets within two.
 */
#include "native.h"

enum { WEIGHT = 8, ENOUGH = 3, TRUSTED_AFTER = 8, MICROSECOND = 1000 };

static int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

void forecast_learn(struct forecast *forecast, int64_t duration) {
    int64_t error = duration - forecast->mean;
    int64_t ordinary = 4 * forecast->deviation;
    if (ordinary < forecast->mean / 4) ordinary = forecast->mean / 4;
    if (forecast->samples > 0 && magnitude(error) > ordinary + 20 * MICROSECOND) {
        /* One that took longer costs nothing but the looks around the expected end; an earlier one would be noticed late. */
        if (error < 0) forecast->streak = 0;
        if (++forecast->outliers < 2) return;
        forecast->samples = 0;
        forecast->streak = 0;
    }
    forecast->outliers = 0;
    if (forecast->samples == 0) {
        forecast->samples = 1;
        forecast->lead = 40 * MICROSECOND + duration / 64;
        forecast->mean = duration;
        forecast->deviation = 0;
        return;
    }
    /* The plain average at first, so that a few waits are enough; then one that forgets. */
    if (forecast->samples < WEIGHT) forecast->samples++;
    forecast->mean += error / forecast->samples;
    forecast->deviation += (magnitude(error) - forecast->deviation) / forecast->samples;
    if (forecast->streak < TRUSTED_AFTER) forecast->streak++;
}

/* Waking the watcher and the loop takes its time, and a processor that has idled for long wakes slowly. So the lead is learnt,
 * as that quantile by which the waiter is on the spot in about three of four waits: to be so more often costs more
 * than it is worth. */
void forecast_approached(struct forecast *forecast, bool late, int64_t slack) {
    if (late) forecast->lead += forecast->lead / 8 + 2 * MICROSECOND;
    else if (slack > forecast->lead / 3) forecast->lead -= slack / 8;
    else forecast->lead -= forecast->lead / 24;
    int64_t most = forecast->mean / (forecast->mean < 1000 * MICROSECOND ? 2 : 8);
    if (forecast->lead > most) forecast->lead = most;
    if (forecast->lead < 5 * MICROSECOND) forecast->lead = 5 * MICROSECOND;
}

struct outlook forecast_outlook(const struct forecast *forecast) {
    bool good = forecast->samples >= ENOUGH && forecast->deviation <= forecast->mean / 8 + 30 * MICROSECOND;
    return (struct outlook){
        .good = good,
        .trusted = good && forecast->streak >= TRUSTED_AFTER,
        .mean = forecast->mean,
        .spread = 2 * forecast->deviation,
        .lead = forecast->lead,
    };
}
