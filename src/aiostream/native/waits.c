/* Waits: an event of ours recorded in the user's stream, and how its end is noticed.
 *
 * Recording an event never blocks, also on a full stream, and costs the GPU nothing. The waiting task first queries it itself
 * (it spins, yielding to its loop in between), or leaves that if its end is not near. A short wait whose end is certain enough
 * dozes until shortly before it, by a timer of its loop (alarm.c). Any other is the watcher's, which queries the oldest event of
 * each line (a stream with waits on it) at intervals that grow with the age of the wait, and closely around the time at which
 * the line's forecast expects the end. A wait that grows old unexpectedly is given a host function on a helper stream
 * (sleeper.c) and hardly looked at any more.
 *
 * The life of a wait: pool --begin--> the task's --hand over--> arrivals --> its line's list --> pool, or `lingering` while its
 * host function has yet to run; from a line's list, and from its doze, it may come back to its task. Records and their events are
 * never freed: they are recycled within their context.
 */
#include "native.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_CONTEXTS = 4096 };
static const int64_t MICROSECOND = 1000, MILLISECOND = 1000000;
static const int64_t NEVER = INT64_MAX;
/* All in ns, and all chosen by measuring on an H200. */
static const int64_t SPIN = 50000;            /* how long a task looks itself before the watcher takes over */
static const int64_t FIRST_LOOK = 5000;       /* the shortest interval of an unexpected wait */
static const int64_t LONGEST_LOOK = 200000;   /* the longest, for a few lines; with many it grows */
static const int64_t CLOSE_LOOK = 1500;       /* the interval round the expected end */
static const int64_t SPARSE_LOOK = 100000;    /* the shortest interval before a trusted end */
static const int64_t LATEST_LOOK = 5000000;   /* the longest interval before a trusted end: so much too late at most */
static const int64_t ASLEEP_LOOK = 45000000;  /* the interval of a wait with a host function */
static const int64_t SLEEP_AFTER = 1500000;   /* the age at which a wait asks for a host function */
static const int64_t LOOK_SHARE = 1000;       /* with many lines, each keeps the next pass away for so long */
static const int64_t MARGIN = 10000, TAIL = 60000; /* before and after the expected end, besides the spread */
static const int64_t CLOSE_ENOUGH = 3000000;  /* the spread up to which a task is given its wait back */
static const int64_t LEAST_STEP = 40000;      /* the shortest of these steps, unless the spread asks for shorter ones */
static const int64_t BUSY_STEP = 15000;       /* a shorter interval is not worth falling asleep for */
enum {
    DENSE = 8,       /* an unexpected wait is looked at after each eighth of its age */
    STEP_SHARE = 64, /* the spread is looked through in so many steps, */
    STEP_MEAN = 2500, /* or in steps of such a part of the expected length, if they are shorter */
    FEW = 8,         /* up to so many lines, each is looked at just when it is due */
    MANY = 256,      /* up to so many, waits are given back to their tasks */
    TURNS = 3,       /* a wait that is likely to end within so many turns of its loop is left to its task */
    ASK_EACH = 8,    /* a line that was never ready lately is asked again each so many waits */
};

/* A stream, as far as its waits are concerned. */
struct line {
    _Atomic int64_t refs;   /* the owner, and each wait */
    _Atomic int waiting;    /* the waits whose records are not over, as far as is known */
    _Atomic uint64_t clock; /* counts the beginnings and the ends of records */
    struct probe *probe;    /* constant */
    bool ordered;           /* constant: later waits cannot be done before earlier ones */
    pthread_mutex_t lock;   /* guards the forecast; never held across a driver call */
    struct forecast forecast;
    _Atomic unsigned busy;  /* waits in a row that were not ready at once; any thread, and a lost one does not matter */
    _Atomic int64_t free_since; /* when the latest wait ended: the work of the next one began no earlier; by whoever saw it */
    /* The watcher's alone: */
    struct wait *first, *last;      /* in the order of their records; where there is none, in which they came */
    struct line *next, *previous;   /* the lines with waits */
    int64_t next_look;
    bool fresh; /* its first wait has only just begun: not worth a query yet */
};

struct wait {
    struct sleep sleep; /* its host function on a helper; first, so that one pointer serves both */
    struct doze doze;
    void *event;        /* made with the record, constant */
    struct wait *next;  /* of one list at a time, with that list's owner: pool (pool_lock), arrivals, line, lingering */
    /* By wait_begin, constant until it is back in the pool: */
    struct line *line;
    void *lent;              /* the helper stream on which a user's event is waited for */
    uint64_t opened, closed; /* the line's clock before and after the record */
    int64_t began;
    enum wait_mode mode;
    /* By the task while it spins: */
    int64_t spin_until, expected, polled; /* ns; expected: 0 if it is not */
    int polls;
    bool approaching; /* by the watcher when it gives the wait back; until the task's first query */
    int64_t arrived;  /* ns; the task's first query after it was given back; 0: the wait was over by then */
    int64_t start;    /* when its work began, as far as is known; by wait_begin, and by the watcher */
    uint64_t ticket;       /* by whoever hands it to the watcher; 0: nobody waits any more */
    struct queue *queue;   /* likewise */
    _Atomic bool fired;    /* whoever sets it fires the ticket: the watcher or the driver's thread */
    _Atomic int64_t ended; /* by the driver's thread before it fires; else 0 */
    bool closed_in;        /* by the watcher: it has looked closely */
    bool given_back;       /* by the watcher, once for each wait */
};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct wait *pools[MAX_CONTEXTS];                      /* by the probe's number; under pool_lock */
static _Atomic(struct wait *) arrivals; /* pushed by any thread, taken whole by the watcher */
static struct line *active;             /* the watcher's alone, as these two */
static struct wait *lingering;
static _Atomic bool reached; /* a host function has run; set by the driver's thread, taken by the watcher */
static _Atomic int active_count; /* read by any thread */
static _Atomic bool predicting = true;
/* ns. Nobody looks at a wait that dozes: if it ends much earlier than expected, that is noticed so late at most. */
static _Atomic int64_t longest_doze = 10000000;
static _Atomic int most_dozing = 256; /* of one loop, less those that are watched: with more, common wake-ups are cheaper */

void waits_predict(bool enabled) { atomic_store(&predicting, enabled); }
void waits_doze(long long *length, int *most) {
    *length = atomic_exchange(&longest_doze, *length);
    *most = atomic_exchange(&most_dozing, *most);
}

/* ------------------------------------------------------------------------------------------------ lines */

struct line *line_new(struct probe *probe, bool ordered) {
    struct line *line = calloc(1, sizeof *line);
    if (!line) return NULL;
    line->refs = 1;
    line->probe = probe;
    line->ordered = ordered;
    pthread_mutex_init(&line->lock, NULL);
    return line;
}

void line_unref(struct line *line) {
    if (atomic_fetch_sub(&line->refs, 1) != 1) return;
    pthread_mutex_destroy(&line->lock);
    free(line);
}

static void learn(struct line *line, int64_t duration) {
    pthread_mutex_lock(&line->lock);
    forecast_learn(&line->forecast, duration);
    pthread_mutex_unlock(&line->lock);
}

static void learn_approach(struct line *line, bool late, int64_t slack) {
    pthread_mutex_lock(&line->lock);
    forecast_approached(&line->forecast, late, slack);
    pthread_mutex_unlock(&line->lock);
}

static struct outlook outlook_of(struct line *line) {
    pthread_mutex_lock(&line->lock);
    struct outlook outlook = forecast_outlook(&line->forecast);
    bool known = line->forecast.samples > 0;
    pthread_mutex_unlock(&line->lock);
    if (!atomic_load(&predicting)) outlook.good = outlook.trusted = false;
    if (!known) outlook.mean = 0;
    return outlook;
}

/* Whether the end is likely to be so near that a task does best to look itself: by the clock, or by the turns of its loop, for
 * with a busy loop the end will have come by the time the loop comes back. */
static bool worth_spinning(struct outlook outlook, const struct queue *queue) {
    int64_t likely = outlook.good ? outlook.mean - outlook.spread : outlook.mean / 2;
    return likely < SPIN + SPIN / 2 || outlook.mean < TURNS * queue_lag(queue);
}

/* ------------------------------------------------------------------------------------------------ the pool */

static int make(struct probe *probe, struct wait **made) {
    void *event = NULL, *popped;
    int mode = relaxed_enter();
    int status = driver.ctx_push(probe_context(probe));
    if (status == CUDA_SUCCESS) {
        status = driver.event_create(&event, 2 /* CU_EVENT_DISABLE_TIMING */);
        driver.ctx_pop(&popped);
    }
    relaxed_leave(mode);
    if (status != CUDA_SUCCESS) return status;
    struct wait *wait = calloc(1, sizeof *wait);
    if (!wait) {
        driver.event_destroy(event);
        return RESULT_NO_MEMORY;
    }
    wait->event = event;
    wait->sleep.event = event;
    wait->sleep.probe = probe;
    *made = wait;
    return CUDA_SUCCESS;
}

static void pool_put(struct wait *wait) {
    pthread_mutex_lock(&pool_lock);
    struct wait **pool = &pools[probe_index(wait->sleep.probe)];
    wait->next = *pool;
    *pool = wait;
    pthread_mutex_unlock(&pool_lock);
}

static int pool_take(struct probe *probe, struct wait **wait) {
    pthread_mutex_lock(&pool_lock);
    struct wait **pool = &pools[probe_index(probe)];
    *wait = *pool;
    if (*wait) *pool = (*wait)->next;
    pthread_mutex_unlock(&pool_lock);
    return *wait ? CUDA_SUCCESS : make(probe, wait);
}

/* Its event is complete, or will never be of use again, and no host function knows it. */
static void recycle(struct wait *wait) {
    if (wait->lent) helper_put(wait->sleep.probe, wait->lent, true);
    atomic_fetch_sub(&wait->line->waiting, 1);
    line_unref(wait->line);
    pool_put(wait);
}

static void lose(struct wait *wait) {
    atomic_fetch_add(&counters[WAITS_LOST], 1);
    atomic_fetch_sub(&wait->line->waiting, 1);
    line_unref(wait->line);
}

/* ------------------------------------------------------------------------------------------------ the waiting task's side */

/* Records our event: on `stream`, or on a helper behind the user's `event`. */
static int record(struct wait *wait, void *stream, void *event) {
    struct line *line = wait->line;
    if (!event) {
        wait->opened = atomic_fetch_add(&line->clock, 1);
        int status = driver.event_record(wait->event, stream, 0);
        wait->closed = atomic_fetch_add(&line->clock, 1);
        if (status != CUDA_SUCCESS) return status;
        /* If the stream captures, the event stands for a point of that capture until it is recorded again. */
        int refusal = capture_refusal(stream);
        return refusal < 0 ? refusal : CUDA_SUCCESS;
    }
    void *helper = helper_take(line->probe);
    if (!helper) return RESULT_NO_HELPER;
    int status = driver.stream_wait_event(helper, event, 0);
    bool idle = status != CUDA_SUCCESS;
    if (status == CUDA_SUCCESS) status = driver.event_record(wait->event, helper, 0);
    if (status == CUDA_SUCCESS) wait->lent = helper;
    else helper_put(line->probe, helper, idle);
    return status;
}

static bool is_legacy(const void *stream) { return (uintptr_t)stream <= 1; }

/* The end of `stream`, or what `event` has recorded. Called without the GIL, and for an event under RELAXED; for a stream what
 * needs it is done so here, because each exchange of the mode costs, and most waits need none. */
void wait_begin(struct line *line, void *stream, void *event, struct queue *queue, enum wait_mode mode, struct begun *begun) {
    *begun = (struct begun){0};
    int status = CUDA_NOT_READY;
    if (event) {
        status = driver.event_query(event);
    } else {
        /* A stream that was busy every time is taken to be busy: its query, with what has to surround it, costs as much as the
         * record that follows anyway. */
        unsigned busy = line->busy;
        bool ask = busy < ASK_EACH || busy % ASK_EACH == 0;
        /* Whether it captures is seen after the record, which harms no capture, except on the legacy stream. */
        int refusal = ask || is_legacy(stream) ? capture_refusal(stream) : 0;
        if (refusal) {
            begun->refusal = refusal;
            return;
        }
        if (ask) {
            int former = relaxed_enter();
            status = driver.stream_query(stream);
            relaxed_leave(former);
        }
        line->busy = status == CUDA_NOT_READY ? busy + 1 : 0;
    }
    if (status != CUDA_NOT_READY) {
        if (status == CUDA_SUCCESS) atomic_fetch_add(&counters[WAITS_READY], 1);
        begun->refusal = status;
        return;
    }
    struct wait *wait;
    status = pool_take(line->probe, &wait);
    if (status != CUDA_SUCCESS) {
        begun->refusal = status;
        return;
    }
    atomic_fetch_add(&line->refs, 1);
    atomic_fetch_add(&line->waiting, 1);
    wait->line = line;
    wait->lent = NULL;
    wait->mode = mode;
    wait->ticket = 0;
    wait->queue = queue;
    wait->closed_in = wait->given_back = wait->approaching = false;
    wait->fired = false;
    wait->ended = 0;
    wait->sleep.unwanted = false;
    wait->began = now_ns();
    begun->refusal = record(wait, stream, event);
    if (begun->refusal) {
        recycle(wait);
        return;
    }
    struct outlook outlook = outlook_of(line);
    wait->start = wait->began;
    if (mode == WAIT_SPIN || (mode == WAIT_AUTO && worth_spinning(outlook, queue))) {
        wait->spin_until = mode == WAIT_SPIN ? NEVER : wait->began + SPIN + (outlook.good ? outlook.spread : 0);
        wait->expected = outlook.mean ? wait->began + outlook.mean : 0;
        wait->polled = wait->began;
        wait->polls = 0;
        begun->spinning = wait;
    } else {
        wait_poll(wait, queue, begun);
    }
}

/* Wakes the watcher unless it will look in time by itself; what it will make of the wait is guessed from the forecast. */
static void hand_over(struct wait *wait, struct outlook outlook) {
    int64_t due = wait->began + FIRST_LOOK;
    if (outlook.good && outlook.trusted) due = wait->began + outlook.mean / 8;
    struct wait *head = atomic_load(&arrivals);
    do wait->next = head;
    while (!atomic_compare_exchange_weak(&arrivals, &head, wait));
    watcher_wake_before(due);
}

/* When an expected end counts as missed. */
static int64_t end_of(struct outlook outlook) { return outlook.mean + outlook.spread + TAIL + outlook.mean / 64; }

/* Whether a task whose wait is not over had better look again itself after one more turn of its loop. */
static bool go_on_spinning(struct wait *wait, struct queue *queue, int64_t now) {
    if (now < wait->spin_until || ++wait->polls < 2) return true;
    int64_t turns = TURNS * queue_lag(queue);
    return wait->expected && wait->expected - now < turns && now - wait->expected < turns;
}

/* Leaves the only wait of a line alone until shortly before its end, which is as good as certain. false: it may not be. */
static bool doze(struct wait *wait, struct outlook outlook, struct queue *queue) {
    bool alone = wait->line->waiting == 1, worth_it = outlook.mean <= longest_doze && outlook.mean > 4 * queue_lag(queue);
    if (wait->mode != WAIT_AUTO || !alone || !worth_it) return false;
    wait->spin_until = wait->began + end_of(outlook);
    int64_t time = wait->began + outlook.mean - outlook.lead;
    if (!alarm_set(queue_alarm(queue), &wait->doze, time, most_dozing - active_count)) return false;
    atomic_fetch_add(&counters[WAITS_DOZED], 1);
    return true;
}

bool wait_poll(struct wait *wait, struct queue *queue, struct begun *begun) {
    bool spinning = begun->spinning != NULL;
    *begun = (struct begun){0};
    if (spinning) {
        struct line *line = wait->line;
        int status = driver.event_query(wait->event);
        int64_t now = now_ns();
        bool first = wait->approaching;
        wait->approaching = false;
        if (!first) queue_note_lag(queue, now - wait->polled);
        wait->polled = now;
        if (first && status == CUDA_NOT_READY) wait->arrived = now;
        if (status == CUDA_NOT_READY && go_on_spinning(wait, queue, now)) {
            begun->spinning = wait;
            return false;
        }
        if (status != CUDA_NOT_READY) {
            if (status == CUDA_SUCCESS) {
                learn(line, now - wait->start);
                if (wait->given_back) learn_approach(line, wait->arrived == 0, now - wait->arrived);
            }
            if (line->ordered) line->free_since = now;
            atomic_fetch_add(&counters[WAITS_SPUN], 1);
            begun->refusal = status;
            recycle(wait);
            return true;
        }
    }
    wait->ticket = point_watch(queue, wait->line->probe);
    begun->ticket = wait->ticket;
    if (!wait->ticket) begun->refusal = RESULT_NO_MEMORY;
    struct outlook outlook = wait->given_back || !wait->ticket ? (struct outlook){0} : outlook_of(wait->line);
    if (outlook.trusted && doze(wait, outlook, queue)) return true;
    if (!wait->given_back) atomic_fetch_add(&counters[WAITS_WATCHED], 1);
    hand_over(wait, outlook);
    return true;
}

/* The task has gone: the watcher recycles the record once the event is complete. */
void wait_drop(struct wait *wait) {
    wait->ticket = 0;
    hand_over(wait, (struct outlook){0});
}

/* ------------------------------------------------------------------------------------------------ the watcher's side */

bool waits_arrived(void) { return atomic_load(&arrivals) != NULL || atomic_load(&reached); }

/* In the order of the records, which is that of their ends, and not of the arrivals: a wait that spun, or was given back, comes
 * late. Its opening tells where it belongs; nearly always at the end. */
static void insert(struct line *line, struct wait *wait) {
    struct wait **link = &line->first;
    if (!line->ordered || line->last->opened < wait->opened) link = &line->last->next;
    else
        while ((*link)->opened < wait->opened) link = &(*link)->next;
    wait->next = *link;
    *link = wait;
    if (!wait->next) line->last = wait;
}

static void take_arrivals(int64_t now) {
    struct wait *wait = atomic_exchange(&arrivals, NULL), *oldest = NULL;
    while (wait) {
        struct wait *next = wait->next;
        wait->next = oldest;
        oldest = wait;
        wait = next;
    }
    while ((wait = oldest)) {
        oldest = wait->next;
        wait->next = NULL;
        struct line *line = wait->line;
        line->next_look = now;
        if (line->first) {
            insert(line, wait);
        } else {
            line->first = line->last = wait;
            line->previous = NULL;
            line->next = active;
            if (active) active->previous = line;
            active = line;
            active_count++;
            line->fresh = now - wait->began < FIRST_LOOK;
        }
    }
}

static void deactivate(struct line *line) {
    if (line->previous) line->previous->next = line->next;
    else active = line->next;
    if (line->next) line->next->previous = line->previous;
    active_count--;
}

/* It is over, and its host function has yet to run. Until then it counts as pending, because the context may fail before, and
 * the health of a context is read only while something is. */
static void linger(struct wait *wait) {
    probe_add_pending(wait->sleep.probe);
    wait->next = lingering;
    lingering = wait;
}

/* Its context has failed: its host function will hardly come, but if it does it finds the record as it was. */
static void abandon(struct wait *wait) {
    sleeper_forget(&wait->sleep);
    lose(wait);
}

static void settle(struct wait *wait, int status) {
    if (!atomic_exchange(&wait->fired, true) && wait->ticket) point_fire(wait->ticket, status);
    atomic_store(&wait->sleep.unwanted, true);
    int state = atomic_load(&wait->sleep.state);
    if (state == SLEEP_REQUESTED || state == SLEEP_ARMED) {
        if (status == CUDA_SUCCESS) linger(wait);
        else abandon(wait);
        return;
    }
    sleeper_release(&wait->sleep);
    recycle(wait);
}

/* Those whose host function has run by now, or was refused. */
static int64_t look_at_lingering(int64_t now) {
    struct wait **link = &lingering, *wait;
    while ((wait = *link)) {
        int state = atomic_load(&wait->sleep.state);
        if (state == SLEEP_REQUESTED || state == SLEEP_ARMED) {
            link = &wait->next;
            continue;
        }
        *link = wait->next;
        probe_drop_pending(wait->sleep.probe);
        sleeper_release(&wait->sleep);
        recycle(wait);
    }
    return lingering ? now + MILLISECOND : NEVER;
}

static void on_reached(struct sleep *sleep) {
    struct wait *wait = (struct wait *)sleep;
    atomic_store(&wait->ended, now_ns());
    if (!atomic_exchange(&wait->fired, true) && wait->ticket) point_fire(wait->ticket, STATUS_UNPROVED);
    /* Later waits of the line may be over too, and nobody looks at them before this one is out of the way. The line itself is
     * not touched here: if the context has failed meanwhile it may be gone. */
    atomic_store(&reached, true);
    watcher_wake_before(0);
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) { return value < least ? least : value > most ? most : value; }

static void give_back(struct wait *wait) {
    uint64_t ticket = wait->ticket;
    wait->ticket = 0;
    wait->approaching = wait->given_back = true;
    wait->arrived = 0;
    wait->polls = 0;
    wait->expected = 0;
    point_fire(ticket, STATUS_GIVEN_BACK | (int64_t)(uintptr_t)wait);
}

/* Gives the only wait of a line back to its task, which looks itself in every turn of its loop: it has been woken by the time
 * the end comes, and resumes as fast as if it had blocked. */
static void call_early(struct line *line, int64_t end) {
    struct wait *wait = line->first;
    line->first = line->last = NULL;
    wait->spin_until = end;
    atomic_fetch_add(&counters[WAITS_APPROACHED], 1);
    give_back(wait);
}

void waits_wake(struct queue *queue) {
    struct doze *due = alarm_due(queue_alarm(queue), now_ns());
    if (due) queue_hush(queue);
    while (due) {
        struct wait *wait = (struct wait *)((char *)due - offsetof(struct wait, doze));
        due = due->next;
        give_back(wait);
    }
}

void waits_leave(struct queue *queue) {
    struct doze *left = alarm_close(queue_alarm(queue));
    while (left) {
        struct wait *wait = (struct wait *)((char *)left - offsetof(struct wait, doze));
        left = left->next;
        hand_over(wait, (struct outlook){0});
    }
}

/* Whether anybody still waits: those who were dropped while they spun have left only their records. */
static bool is_wanted(const struct line *line) {
    for (const struct wait *wait = line->first; wait; wait = wait->next)
        if (wait->ticket) return true;
    return false;
}

/* When to look again at a line whose oldest wait is not over; it may be without a wait afterwards. */
static int64_t schedule(struct line *line, int64_t now) {
    struct wait *wait = line->first;
    int64_t free_since = line->free_since;
    wait->start = line->ordered && free_since > wait->began ? free_since : wait->began;
    int64_t age = now - wait->start;
    if (!is_wanted(line)) return now + clamp(age / DENSE, FIRST_LOOK, ASLEEP_LOOK);
    struct outlook outlook = outlook_of(line);
    int64_t longest = clamp(active_count * 50 * MICROSECOND, LONGEST_LOOK, MILLISECOND);
    int64_t dense = clamp(age / DENSE, FIRST_LOOK, longest);
    if (outlook.good) {
        bool alone = !wait->next && wait->ticket && wait->sleep.state == SLEEP_NONE && !wait->given_back;
        bool worth_it = active_count <= MANY && outlook.spread < CLOSE_ENOUGH && outlook.mean > 4 * queue_lag(wait->queue);
        bool returns = wait->mode == WAIT_AUTO && alone && worth_it;
        int64_t calls = returns ? outlook.mean - outlook.lead : NEVER;
        int64_t opens = outlook.mean - outlook.spread - MARGIN;
        int64_t closes = end_of(outlook);
        opens -= watcher_oversleep(opens - age);
        if (returns && (opens > calls || outlook.spread < outlook.lead)) opens = calls;
        if (age < opens) {
            int64_t step = dense;
            if (outlook.trusted) {
                int64_t first = clamp(outlook.mean / 2, 0, 2 * SPARSE_LOOK);
                if (first < outlook.mean / 8) first = outlook.mean / 8;
                step = clamp(age / 2, SPARSE_LOOK, LATEST_LOOK);
                if (step < first - age) step = first - age;
            }
            return age + step < opens ? now + step : wait->start + opens;
        }
        if (age < closes) {
            if (!wait->closed_in) atomic_fetch_add(&counters[WAITS_PREDICTED], 1);
            wait->closed_in = true;
            if (returns && age >= calls) {
                call_early(line, wait->start + closes);
                return NEVER;
            }
            int64_t step = outlook.spread / STEP_SHARE, most = clamp(outlook.mean / STEP_MEAN, LEAST_STEP, LONGEST_LOOK);
            if (step < BUSY_STEP) step = CLOSE_LOOK;
            else if (step > most) step = most;
            return returns && age + step > calls ? wait->start + calls : now + step;
        }
    }
    if (wait->mode == WAIT_AUTO && age >= SLEEP_AFTER) {
        if (atomic_load(&wait->sleep.state) == SLEEP_NONE) {
            wait->sleep.reached = on_reached;
            if (sleeper_try(&wait->sleep)) atomic_fetch_add(&counters[WAITS_SLEPT], 1);
        }
        if (atomic_load(&wait->sleep.state) == SLEEP_ARMED) return now + ASLEEP_LOOK;
    }
    return now + dense;
}

/* Queries the oldest event of a line, and on while they are complete. A later one can only be complete if it was recorded
 * after the oldest incomplete one, unless the two records overlapped in time: the line's clock tells. */
static int look_at(struct line *line, int64_t now) {
    struct wait **link = &line->first, *wait, *kept = NULL;
    uint64_t fence = UINT64_MAX;
    int looks = 0;
    bool learnt = false;
    while ((wait = *link)) {
        if (line->ordered && wait->opened > fence) break;
        int status = CUDA_SUCCESS;
        if (!atomic_load(&wait->fired)) {
            status = driver.event_query(wait->event);
            looks++;
        }
        if (status == CUDA_NOT_READY) {
            if (wait->closed < fence) fence = wait->closed;
            kept = wait;
            link = &wait->next;
            continue;
        }
        /* 9xx: in RELAXED mode only an event that a capture has taken can answer so, and such a one is not here. */
        int64_t end = atomic_load(&wait->ended);
        if (!end) end = looks > 1 ? now_ns() : now;
        if (!learnt && status == CUDA_SUCCESS && wait->ticket) {
            int64_t free_since = line->free_since;
            int64_t start = line->ordered && free_since > wait->began ? free_since : wait->began;
            struct outlook outlook = outlook_of(line);
            bool too_late = outlook.good && !wait->given_back && active_count <= MANY && end - start > outlook.mean - outlook.lead;
            if (too_late) learn_approach(line, true, 0);
            learn(line, end - start);
            learnt = true;
        }
        if (line->ordered) line->free_since = end;
        *link = wait->next;
        settle(wait, status);
    }
    if (!wait) line->last = kept;
    return looks;
}

static bool has_fired(const struct line *line) {
    for (struct wait *wait = line->first; wait; wait = wait->next)
        if (atomic_load(&wait->fired)) return true;
    return false;
}

int64_t waits_look(int64_t now) {
    bool some_reached = atomic_exchange(&reached, false);
    if (atomic_load(&arrivals)) take_arrivals(now);
    int64_t next = look_at_lingering(now);
    int looks = 0;
    for (struct line *line = active, *following; line; line = following) {
        following = line->next;
        if (some_reached && has_fired(line)) line->next_look = now;
        if (line->next_look <= now) {
            atomic_fetch_add(&line->refs, 1); /* its last wait may be its last user */
            if (!line->fresh) looks += look_at(line, now);
            line->fresh = false;
            if (line->first) line->next_look = schedule(line, now);
            bool gone = !line->first;
            if (gone) deactivate(line);
            int64_t again = line->next_look;
            line_unref(line);
            if (gone) continue;
            if (again < next) next = again;
        } else if (line->next_look < next) {
            next = line->next_look;
        }
    }
    if (looks) atomic_fetch_add(&counters[LOOKS], looks);
    /* With many lines a pass takes its time: the more there are, the longer until the next, which then finds more to do. */
    int64_t earliest = active_count > FEW ? now + active_count * LOOK_SHARE : now;
    return next < earliest ? earliest : next;
}

/* The context has failed: so have all waits in it, and a host function of theirs never comes. */
void waits_fail(struct probe *probe, int status) {
    take_arrivals(now_ns());
    for (struct line *line = active, *following; line; line = following) {
        following = line->next;
        if (line->probe != probe) continue;
        deactivate(line);
        struct wait *wait = line->first;
        line->first = NULL; /* the line itself lives as long as one of its waits */
        while (wait) {
            struct wait *next = wait->next;
            settle(wait, status);
            wait = next;
        }
    }
    struct wait **link = &lingering, *wait;
    while ((wait = *link)) {
        if (wait->sleep.probe != probe) {
            link = &wait->next;
            continue;
        }
        *link = wait->next;
        probe_drop_pending(wait->sleep.probe);
        abandon(wait);
    }
}
