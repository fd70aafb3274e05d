/* How long the waits of one stream take, and what to expect of the next. Pure: no lock, no clock, no driver. */
#ifndef AIOSTREAM_POLICY_H
#define AIOSTREAM_POLICY_H

#include "base.h"

struct history { /* guarded by the wait list's lock */
    int64_t mean, deviation; /* ns; the deviation is the mean absolute one */
    int samples;
    int outliers; /* in a row */
    int64_t lead; /* ns; how long before the expected end the waiter is called */
    int streak;   /* waits in a row that did not end long before they were expected */
};
struct prediction { /* what a history says for one wait, in ns after its beginning */
    bool good;     /* there is something to expect */
    bool trusted;  /* for so long that looking meanwhile is hardly worth it */
    int64_t mean, spread, lead;
};
void history_learn(struct history *, int64_t duration);
void history_learn_hand_back(struct history *, bool late, int64_t slack);
struct prediction history_predict(const struct history *);

#endif
