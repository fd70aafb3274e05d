/* Waits: an event of ours recorded in the user's stream, and how its end is noticed.
 *
 * Recording an event never blocks, also on a full stream, and costs the GPU nothing. The waiting task first queries it itself
 * (it spins, yielding to its loop in between), or leaves that if its end is not near. A short wait whose end is certain enough
 * dozes until shortly before it, by a timer of its loop (timer.c). Any other is the watcher's, which queries the oldest event of
 * each line (a stream with waits on it) at intervals that grow with the age of the wait, and closely around the time at which
 * the line's history expects the end. A wait that grows old unexpectedly is given a host function on a helper stream
 * (sleeper.c) and hardly looked at any more.
 *
 * The life of a wait: pool --begin--> the task's --hand over--> arrivals --> its line's list --> pool, or `pending_hostfuncs` while its
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
static const int64_t SPIN = 50000;            /* how long a task polls itself before the watcher takes over */
static const int64_t FIRST_POLL_NS = 5000;       /* the shortest interval of an unexpected wait */
static const int64_t LONGEST_POLL_NS = 200000;   /* the longest, for a few lines; with many it grows */
static const int64_t CLOSE_POLL_NS = 1500;       /* the interval round the expected end */
static const int64_t SPARSE_POLL_NS = 100000;    /* the shortest interval before a trusted end */
static const int64_t LATEST_POLL_NS = 5000000;   /* the longest interval before a trusted end: so much too late at most */
static const int64_t HOSTFUNC_POLL_NS = 45000000;  /* the interval of a wait with a host function */
static const int64_t HOSTFUNC_AFTER_NS = 1500000;   /* the age at which a wait asks for a host function */
static const int64_t PASS_GAP_PER_LIST_NS = 1000;       /* with many lines, each keeps the next pass away for so long */
static const int64_t WINDOW_BEFORE_NS = 10000, WINDOW_AFTER_NS = 60000; /* before and after the expected end, besides the spread */
static const int64_t MAX_HAND_BACK_SPREAD_NS = 3000000;  /* the spread up to which a task is given its wait back */
static const int64_t SHORTEST_WINDOW_STEP_NS = 40000;      /* the shortest of these steps, unless the spread asks for shorter ones */
static const int64_t SHORTEST_WINDOW_SLEEP_NS = 15000;       /* a shorter interval is not worth falling asleep for */
enum {
    POLLS_PER_AGE = 8,       /* an unexpected wait is looked at after each eighth of its age */
    WINDOW_STEPS = 64, /* the spread is looked through in so many steps, */
    WINDOW_STEPS_PER_MEAN = 2500, /* or in steps of such a part of the expected length, if they are shorter */
    MAX_LISTS_POLLED_EXACTLY = 8,         /* up to so many lines, each is looked at just when it is due */
    MAX_LISTS_HANDED_BACK = 256,      /* up to so many, waits are given back to their tasks */
    SPIN_MAX_LOOP_TURNS = 3,       /* a wait that is likely to end within so many turns of its loop is left to its task */
    QUERY_EACH = 8,    /* a line that was never ready lately is asked again each so many waits */
};

/* A stream, as far as its waits are concerned. */
struct wait_list {
    _Atomic int64_t refs;   /* the owner, and each wait */
    _Atomic int waiting;    /* the waits whose records are not over, as far as is known */
    _Atomic uint64_t clock; /* counts the beginnings and the ends of records */
    struct context *context;    /* constant */
    bool ordered;           /* constant: later waits cannot be done before earlier ones */
    pthread_mutex_t lock;   /* guards the history; never held across a driver call */
    struct history history;
    _Atomic unsigned busy;  /* waits in a row that were not ready at once; any thread, and a lost one does not matter */
    _Atomic int64_t free_since; /* when the latest wait ended: the work of the next one began no earlier; by whoever saw it */
    /* The watcher's alone: */
    struct wait *first, *last;      /* in the order of their records; where there is none, in which they came */
    struct wait_list *next, *previous;   /* the lines with waits */
    int64_t next_poll;
    bool fresh; /* its first wait has only just begun: not worth a query yet */
};

struct wait {
    struct helper_hostfunc hostfunc; /* its host function on a helper; first, so that one pointer serves both */
    struct timer_entry timer_entry;
    void *event;        /* made with the record, constant */
    struct wait *next;  /* of one list at a time, with that list's owner: pool (pool_lock), new_waits, list, pending_hostfuncs */
    /* By wait_begin, constant until it is back in the pool: */
    struct wait_list *list;
    void *lent;              /* the helper stream on which a user's event is waited for */
    uint64_t opened, closed; /* the line's clock before and after the record */
    int64_t began;
    enum wait_mode mode;
    /* By the task while it spins: */
    int64_t spin_until, expected, polled; /* ns; expected: 0 if it is not */
    int polls;
    bool first_poll_due; /* by the watcher when it gives the wait back; until the task's first query */
    int64_t first_poll;  /* ns; the task's first query after it was given back; 0: the wait was over by then */
    int64_t start;    /* when its work began, as far as is known; by wait_begin, and by the watcher */
    uint64_t ticket;       /* by whoever hands it to the watcher; 0: nobody waits any more */
    struct queue *queue;   /* likewise */
    _Atomic bool fired;    /* whoever sets it fires the ticket: the watcher or the driver's thread */
    _Atomic int64_t ended; /* by the driver's thread before it fires; else 0 */
    bool closed_in;        /* by the watcher: it has looked closely */
    bool handed_back;       /* by the watcher, once for each wait */
};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct wait *pools[MAX_CONTEXTS];                      /* by the context's number; under pool_lock */
static _Atomic(struct wait *) new_waits; /* pushed by any thread, taken whole by the watcher */
static struct wait_list *active;             /* the watcher's alone, as these two */
static struct wait *pending_hostfuncs;
static _Atomic bool hostfunc_ran; /* a host function has run; set by the driver's thread, taken by the watcher */
static _Atomic int active_count; /* read by any thread */
static _Atomic bool predicting = true;
/* ns. Nobody polls at a wait that dozes: if it ends much earlier than expected, that is noticed so late at most. */
static _Atomic int64_t longest_timer_wait = 10000000;
static _Atomic int max_timer_waits = 256; /* of one loop, less those that are watched: with more, common wake-ups are cheaper */

void waits_predict(bool enabled) { atomic_store(&predicting, enabled); }
void waits_limit_timer(long long *length, int *most) {
    *length = atomic_exchange(&longest_timer_wait, *length);
    *most = atomic_exchange(&max_timer_waits, *most);
}

/* ------------------------------------------------------------------------------------------------ lines */

struct wait_list *wait_list_new(struct context *context, bool ordered) {
    struct wait_list *list = calloc(1, sizeof *list);
    if (!list) return NULL;
    list->refs = 1;
    list->context = context;
    list->ordered = ordered;
    pthread_mutex_init(&list->lock, NULL);
    return list;
}

void wait_list_unref(struct wait_list *list) {
    if (atomic_fetch_sub(&list->refs, 1) != 1) return;
    pthread_mutex_destroy(&list->lock);
    free(list);
}

static void learn(struct wait_list *list, int64_t duration) {
    pthread_mutex_lock(&list->lock);
    history_learn(&list->history, duration);
    pthread_mutex_unlock(&list->lock);
}

static void learn_hand_back(struct wait_list *list, bool late, int64_t slack) {
    pthread_mutex_lock(&list->lock);
    history_learn_hand_back(&list->history, late, slack);
    pthread_mutex_unlock(&list->lock);
}

static struct prediction prediction_of(struct wait_list *list) {
    pthread_mutex_lock(&list->lock);
    struct prediction prediction = history_predict(&list->history);
    bool known = list->history.samples > 0;
    pthread_mutex_unlock(&list->lock);
    if (!atomic_load(&predicting)) prediction.good = prediction.trusted = false;
    if (!known) prediction.mean = 0;
    return prediction;
}

/* Whether the end is likely to be so near that a task does best to poll itself: by the clock, or by the turns of its loop, for
 * with a busy loop the end will have come by the time the loop comes back. */
static bool worth_spinning(struct prediction prediction, const struct queue *queue) {
    int64_t likely = prediction.good ? prediction.mean - prediction.spread : prediction.mean / 2;
    return likely < SPIN + SPIN / 2 || prediction.mean < SPIN_MAX_LOOP_TURNS * queue_lag(queue);
}

/* ------------------------------------------------------------------------------------------------ the pool */

static int make(struct context *context, struct wait **made) {
    void *event = NULL, *popped;
    int mode = relaxed_enter();
    int status = driver.ctx_push(context_handle(context));
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
    wait->hostfunc.event = event;
    wait->hostfunc.context = context;
    *made = wait;
    return CUDA_SUCCESS;
}

static void pool_put(struct wait *wait) {
    pthread_mutex_lock(&pool_lock);
    struct wait **pool = &pools[context_index(wait->hostfunc.context)];
    wait->next = *pool;
    *pool = wait;
    pthread_mutex_unlock(&pool_lock);
}

static int pool_take(struct context *context, struct wait **wait) {
    pthread_mutex_lock(&pool_lock);
    struct wait **pool = &pools[context_index(context)];
    *wait = *pool;
    if (*wait) *pool = (*wait)->next;
    pthread_mutex_unlock(&pool_lock);
    return *wait ? CUDA_SUCCESS : make(context, wait);
}

/* Its event is complete, or will never be of use again, and no host function knows it. */
static void recycle(struct wait *wait) {
    if (wait->lent) helper_put(wait->hostfunc.context, wait->lent, true);
    atomic_fetch_sub(&wait->list->waiting, 1);
    wait_list_unref(wait->list);
    pool_put(wait);
}

static void leak(struct wait *wait) {
    atomic_fetch_add(&counters[WAITS_LEAKED], 1);
    atomic_fetch_sub(&wait->list->waiting, 1);
    wait_list_unref(wait->list);
}

/* ------------------------------------------------------------------------------------------------ the waiting task's side */

/* Records our event: on `stream`, or on a helper behind the user's `event`. */
static int record(struct wait *wait, void *stream, void *event) {
    struct wait_list *list = wait->list;
    if (!event) {
        wait->opened = atomic_fetch_add(&list->clock, 1);
        int status = driver.event_record(wait->event, stream, 0);
        wait->closed = atomic_fetch_add(&list->clock, 1);
        if (status != CUDA_SUCCESS) return status;
        /* If the stream captures, the event stands for a point of that capture until it is recorded again. */
        int refusal = capture_refusal(stream);
        return refusal < 0 ? refusal : CUDA_SUCCESS;
    }
    void *helper = helper_take(list->context);
    if (!helper) return RESULT_NO_HELPER;
    int status = driver.stream_wait_event(helper, event, 0);
    bool idle = status != CUDA_SUCCESS;
    if (status == CUDA_SUCCESS) status = driver.event_record(wait->event, helper, 0);
    if (status == CUDA_SUCCESS) wait->lent = helper;
    else helper_put(list->context, helper, idle);
    return status;
}

static bool is_legacy(const void *stream) { return (uintptr_t)stream <= 1; }

/* The end of `stream`, or what `event` has recorded. Called without the GIL, and for an event under RELAXED; for a stream what
 * needs it is done so here, because each exchange of the mode costs, and most waits need none. */
void wait_begin(struct wait_list *list, void *stream, void *event, struct queue *queue, enum wait_mode mode, struct wait_result *result) {
    *result = (struct wait_result){0};
    int status = CUDA_NOT_READY;
    if (event) {
        status = driver.event_query(event);
    } else {
        /* A stream that was busy every time is taken to be busy: its query, with what has to surround it, costs as much as the
         * record that follows anyway. */
        unsigned busy = list->busy;
        bool ask = busy < QUERY_EACH || busy % QUERY_EACH == 0;
        /* Whether it captures is seen after the record, which harms no capture, except on the legacy stream. */
        int refusal = ask || is_legacy(stream) ? capture_refusal(stream) : 0;
        if (refusal) {
            result->refusal = refusal;
            return;
        }
        if (ask) {
            int former = relaxed_enter();
            status = driver.stream_query(stream);
            relaxed_leave(former);
        }
        list->busy = status == CUDA_NOT_READY ? busy + 1 : 0;
    }
    if (status != CUDA_NOT_READY) {
        if (status == CUDA_SUCCESS) atomic_fetch_add(&counters[WAITS_READY], 1);
        result->refusal = status;
        return;
    }
    struct wait *wait;
    status = pool_take(list->context, &wait);
    if (status != CUDA_SUCCESS) {
        result->refusal = status;
        return;
    }
    atomic_fetch_add(&list->refs, 1);
    atomic_fetch_add(&list->waiting, 1);
    wait->list = list;
    wait->lent = NULL;
    wait->mode = mode;
    wait->ticket = 0;
    wait->queue = queue;
    wait->closed_in = wait->handed_back = wait->first_poll_due = false;
    wait->fired = false;
    wait->ended = 0;
    wait->hostfunc.unwanted = false;
    wait->began = now_ns();
    result->refusal = record(wait, stream, event);
    if (result->refusal) {
        recycle(wait);
        return;
    }
    struct prediction prediction = prediction_of(list);
    wait->start = wait->began;
    if (mode == WAIT_SPIN || (mode == WAIT_AUTO && worth_spinning(prediction, queue))) {
        wait->spin_until = mode == WAIT_SPIN ? NEVER : wait->began + SPIN + (prediction.good ? prediction.spread : 0);
        wait->expected = prediction.mean ? wait->began + prediction.mean : 0;
        wait->polled = wait->began;
        wait->polls = 0;
        result->spinning = wait;
    } else {
        wait_poll(wait, queue, result);
    }
}

/* Wakes the watcher unless it will poll in time by itself; what it will make of the wait is guessed from the history. */
static void give_to_watcher(struct wait *wait, struct prediction prediction) {
    int64_t due = wait->began + FIRST_POLL_NS;
    if (prediction.good && prediction.trusted) due = wait->began + prediction.mean / 8;
    struct wait *head = atomic_load(&new_waits);
    do wait->next = head;
    while (!atomic_compare_exchange_weak(&new_waits, &head, wait));
    watcher_wake_before(due);
}

/* When an expected end counts as missed. */
static int64_t end_of(struct prediction prediction) { return prediction.mean + prediction.spread + WINDOW_AFTER_NS + prediction.mean / 64; }

/* Whether a task whose wait is not over had better poll again itself after one more turn of its loop. */
static bool go_on_spinning(struct wait *wait, struct queue *queue, int64_t now) {
    if (now < wait->spin_until || ++wait->polls < 2) return true;
    int64_t turns = SPIN_MAX_LOOP_TURNS * queue_lag(queue);
    return wait->expected && wait->expected - now < turns && now - wait->expected < turns;
}

/* Leaves the only wait of a line alone until shortly before its end, which is as good as certain. false: it may not be. */
static bool wait_by_timer(struct wait *wait, struct prediction prediction, struct queue *queue) {
    bool alone = wait->list->waiting == 1, worth_it = prediction.mean <= longest_timer_wait && prediction.mean > 4 * queue_lag(queue);
    if (wait->mode != WAIT_AUTO || !alone || !worth_it) return false;
    wait->spin_until = wait->began + end_of(prediction);
    int64_t time = wait->began + prediction.mean - prediction.lead;
    if (!timer_add(queue_timer(queue), &wait->timer_entry, time, max_timer_waits - active_count)) return false;
    atomic_fetch_add(&counters[WAITS_BY_TIMER], 1);
    return true;
}

bool wait_poll(struct wait *wait, struct queue *queue, struct wait_result *result) {
    bool spinning = result->spinning != NULL;
    *result = (struct wait_result){0};
    if (spinning) {
        struct wait_list *list = wait->list;
        int status = driver.event_query(wait->event);
        int64_t now = now_ns();
        bool first = wait->first_poll_due;
        wait->first_poll_due = false;
        if (!first) queue_note_lag(queue, now - wait->polled);
        wait->polled = now;
        if (first && status == CUDA_NOT_READY) wait->first_poll = now;
        if (status == CUDA_NOT_READY && go_on_spinning(wait, queue, now)) {
            result->spinning = wait;
            return false;
        }
        if (status != CUDA_NOT_READY) {
            if (status == CUDA_SUCCESS) {
                learn(list, now - wait->start);
                if (wait->handed_back) learn_hand_back(list, wait->first_poll == 0, now - wait->first_poll);
            }
            if (list->ordered) list->free_since = now;
            atomic_fetch_add(&counters[WAITS_SPUN], 1);
            result->refusal = status;
            recycle(wait);
            return true;
        }
    }
    wait->ticket = point_watch(queue, wait->list->context);
    result->ticket = wait->ticket;
    if (!wait->ticket) result->refusal = RESULT_NO_MEMORY;
    struct prediction prediction = wait->handed_back || !wait->ticket ? (struct prediction){0} : prediction_of(wait->list);
    if (prediction.trusted && wait_by_timer(wait, prediction, queue)) return true;
    if (!wait->handed_back) atomic_fetch_add(&counters[WAITS_WATCHED], 1);
    give_to_watcher(wait, prediction);
    return true;
}

/* The task has gone: the watcher recycles the record once the event is complete. */
void wait_drop(struct wait *wait) {
    wait->ticket = 0;
    give_to_watcher(wait, (struct prediction){0});
}

/* ------------------------------------------------------------------------------------------------ the watcher's side */

bool waits_are_new(void) { return atomic_load(&new_waits) != NULL || atomic_load(&hostfunc_ran); }

/* In the order of the records, which is that of their ends, and not of the arrivals: a wait that spun, or was given back, comes
 * late. Its opening tells where it belongs; nearly always at the end. */
static void insert(struct wait_list *list, struct wait *wait) {
    struct wait **link = &list->first;
    if (!list->ordered || list->last->opened < wait->opened) link = &list->last->next;
    else
        while ((*link)->opened < wait->opened) link = &(*link)->next;
    wait->next = *link;
    *link = wait;
    if (!wait->next) list->last = wait;
}

static void take_new_waits(int64_t now) {
    struct wait *wait = atomic_exchange(&new_waits, NULL), *oldest = NULL;
    while (wait) {
        struct wait *next = wait->next;
        wait->next = oldest;
        oldest = wait;
        wait = next;
    }
    while ((wait = oldest)) {
        oldest = wait->next;
        wait->next = NULL;
        struct wait_list *list = wait->list;
        list->next_poll = now;
        if (list->first) {
            insert(list, wait);
        } else {
            list->first = list->last = wait;
            list->previous = NULL;
            list->next = active;
            if (active) active->previous = list;
            active = list;
            active_count++;
            list->fresh = now - wait->began < FIRST_POLL_NS;
        }
    }
}

static void deactivate(struct wait_list *list) {
    if (list->previous) list->previous->next = list->next;
    else active = list->next;
    if (list->next) list->next->previous = list->previous;
    active_count--;
}

/* It is over, and its host function has yet to run. Until then it counts as pending, because the context may fail before, and
 * the health of a context is read only while something is. */
static void await_hostfunc(struct wait *wait) {
    context_add_pending(wait->hostfunc.context);
    wait->next = pending_hostfuncs;
    pending_hostfuncs = wait;
}

/* Its context has failed: its host function will hardly come, but if it does it finds the record as it was. */
static void leak_armed(struct wait *wait) {
    helper_hostfunc_forget(&wait->hostfunc);
    leak(wait);
}

static void settle(struct wait *wait, int status) {
    if (!atomic_exchange(&wait->fired, true) && wait->ticket) point_fire(wait->ticket, status);
    atomic_store(&wait->hostfunc.unwanted, true);
    int state = atomic_load(&wait->hostfunc.state);
    if (state == HOSTFUNC_REQUESTED || state == HOSTFUNC_ARMED) {
        if (status == CUDA_SUCCESS) await_hostfunc(wait);
        else leak_armed(wait);
        return;
    }
    helper_hostfunc_release(&wait->hostfunc);
    recycle(wait);
}

/* Those whose host function has run by now, or was refused. */
static int64_t poll_pending_hostfuncs(int64_t now) {
    struct wait **link = &pending_hostfuncs, *wait;
    while ((wait = *link)) {
        int state = atomic_load(&wait->hostfunc.state);
        if (state == HOSTFUNC_REQUESTED || state == HOSTFUNC_ARMED) {
            link = &wait->next;
            continue;
        }
        *link = wait->next;
        context_drop_pending(wait->hostfunc.context);
        helper_hostfunc_release(&wait->hostfunc);
        recycle(wait);
    }
    return pending_hostfuncs ? now + MILLISECOND : NEVER;
}

static void on_hostfunc_ran(struct helper_hostfunc *hostfunc) {
    struct wait *wait = (struct wait *)hostfunc;
    atomic_store(&wait->ended, now_ns());
    if (!atomic_exchange(&wait->fired, true) && wait->ticket) point_fire(wait->ticket, STATUS_UNKNOWN);
    /* Later waits of the line may be over too, and nobody polls at them before this one is out of the way. The line itself is
     * not touched here: if the context has failed meanwhile it may be gone. */
    atomic_store(&hostfunc_ran, true);
    watcher_wake_before(0);
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) { return value < least ? least : value > most ? most : value; }

static void fire_hand_back(struct wait *wait) {
    uint64_t ticket = wait->ticket;
    wait->ticket = 0;
    wait->first_poll_due = wait->handed_back = true;
    wait->first_poll = 0;
    wait->polls = 0;
    wait->expected = 0;
    point_fire(ticket, STATUS_HANDED_BACK | (int64_t)(uintptr_t)wait);
}

/* Gives the only wait of a line back to its task, which polls itself in every turn of its loop: it has been woken by the time
 * the end comes, and resumes as fast as if it had blocked. */
static void hand_back(struct wait_list *list, int64_t end) {
    struct wait *wait = list->first;
    list->first = list->last = NULL;
    wait->spin_until = end;
    atomic_fetch_add(&counters[WAITS_HANDED_BACK], 1);
    fire_hand_back(wait);
}

void waits_hand_back_due(struct queue *queue) {
    struct timer_entry *due = timer_take_due(queue_timer(queue), now_ns());
    if (due) queue_suppress_wakeup(queue);
    while (due) {
        struct wait *wait = (struct wait *)((char *)due - offsetof(struct wait, timer_entry));
        due = due->next;
        fire_hand_back(wait);
    }
}

void waits_leave_loop(struct queue *queue) {
    struct timer_entry *left = timer_close(queue_timer(queue));
    while (left) {
        struct wait *wait = (struct wait *)((char *)left - offsetof(struct wait, timer_entry));
        left = left->next;
        give_to_watcher(wait, (struct prediction){0});
    }
}

/* Whether anybody still waits: those who were dropped while they spun have left only their records. */
static bool is_wanted(const struct wait_list *list) {
    for (const struct wait *wait = list->first; wait; wait = wait->next)
        if (wait->ticket) return true;
    return false;
}

/* When to poll again at a line whose oldest wait is not over; it may be without a wait afterwards. */
static int64_t schedule(struct wait_list *list, int64_t now) {
    struct wait *wait = list->first;
    int64_t free_since = list->free_since;
    wait->start = list->ordered && free_since > wait->began ? free_since : wait->began;
    int64_t age = now - wait->start;
    if (!is_wanted(list)) return now + clamp(age / POLLS_PER_AGE, FIRST_POLL_NS, HOSTFUNC_POLL_NS);
    struct prediction prediction = prediction_of(list);
    int64_t longest = clamp(active_count * 50 * MICROSECOND, LONGEST_POLL_NS, MILLISECOND);
    int64_t dense = clamp(age / POLLS_PER_AGE, FIRST_POLL_NS, longest);
    if (prediction.good) {
        bool alone = !wait->next && wait->ticket && wait->hostfunc.state == HOSTFUNC_NONE && !wait->handed_back;
        bool worth_it = active_count <= MAX_LISTS_HANDED_BACK && prediction.spread < MAX_HAND_BACK_SPREAD_NS && prediction.mean > 4 * queue_lag(wait->queue);
        bool returns = wait->mode == WAIT_AUTO && alone && worth_it;
        int64_t calls = returns ? prediction.mean - prediction.lead : NEVER;
        int64_t opens = prediction.mean - prediction.spread - WINDOW_BEFORE_NS;
        int64_t closes = end_of(prediction);
        opens -= watcher_oversleep(opens - age);
        if (returns && (opens > calls || prediction.spread < prediction.lead)) opens = calls;
        if (age < opens) {
            int64_t step = dense;
            if (prediction.trusted) {
                int64_t first = clamp(prediction.mean / 2, 0, 2 * SPARSE_POLL_NS);
                if (first < prediction.mean / 8) first = prediction.mean / 8;
                step = clamp(age / 2, SPARSE_POLL_NS, LATEST_POLL_NS);
                if (step < first - age) step = first - age;
            }
            return age + step < opens ? now + step : wait->start + opens;
        }
        if (age < closes) {
            if (!wait->closed_in) atomic_fetch_add(&counters[WAITS_PREDICTED], 1);
            wait->closed_in = true;
            if (returns && age >= calls) {
                hand_back(list, wait->start + closes);
                return NEVER;
            }
            int64_t step = prediction.spread / WINDOW_STEPS, most = clamp(prediction.mean / WINDOW_STEPS_PER_MEAN, SHORTEST_WINDOW_STEP_NS, LONGEST_POLL_NS);
            if (step < SHORTEST_WINDOW_SLEEP_NS) step = CLOSE_POLL_NS;
            else if (step > most) step = most;
            return returns && age + step > calls ? wait->start + calls : now + step;
        }
    }
    if (wait->mode == WAIT_AUTO && age >= HOSTFUNC_AFTER_NS) {
        if (atomic_load(&wait->hostfunc.state) == HOSTFUNC_NONE) {
            wait->hostfunc.hostfunc_ran = on_hostfunc_ran;
            if (helper_hostfunc_request(&wait->hostfunc)) atomic_fetch_add(&counters[WAITS_BY_HOSTFUNC], 1);
        }
        if (atomic_load(&wait->hostfunc.state) == HOSTFUNC_ARMED) return now + HOSTFUNC_POLL_NS;
    }
    return now + dense;
}

/* Queries the oldest event of a line, and on while they are complete. A later one can only be complete if it was recorded
 * after the oldest incomplete one, unless the two records overlapped in time: the line's clock tells. */
static int poll_list(struct wait_list *list, int64_t now) {
    struct wait **link = &list->first, *wait, *kept = NULL;
    uint64_t fence = UINT64_MAX;
    int polls = 0;
    bool learnt = false;
    while ((wait = *link)) {
        if (list->ordered && wait->opened > fence) break;
        int status = CUDA_SUCCESS;
        if (!atomic_load(&wait->fired)) {
            status = driver.event_query(wait->event);
            polls++;
        }
        if (status == CUDA_NOT_READY) {
            if (wait->closed < fence) fence = wait->closed;
            kept = wait;
            link = &wait->next;
            continue;
        }
        /* 9xx: in RELAXED mode only an event that a capture has taken can answer so, and such a one is not here. */
        int64_t end = atomic_load(&wait->ended);
        if (!end) end = polls > 1 ? now_ns() : now;
        if (!learnt && status == CUDA_SUCCESS && wait->ticket) {
            int64_t free_since = list->free_since;
            int64_t start = list->ordered && free_since > wait->began ? free_since : wait->began;
            struct prediction prediction = prediction_of(list);
            bool too_late = prediction.good && !wait->handed_back && active_count <= MAX_LISTS_HANDED_BACK && end - start > prediction.mean - prediction.lead;
            if (too_late) learn_hand_back(list, true, 0);
            learn(list, end - start);
            learnt = true;
        }
        if (list->ordered) list->free_since = end;
        *link = wait->next;
        settle(wait, status);
    }
    if (!wait) list->last = kept;
    return polls;
}

static bool has_fired(const struct wait_list *list) {
    for (struct wait *wait = list->first; wait; wait = wait->next)
        if (atomic_load(&wait->fired)) return true;
    return false;
}

int64_t waits_poll(int64_t now) {
    bool some_ran = atomic_exchange(&hostfunc_ran, false);
    if (atomic_load(&new_waits)) take_new_waits(now);
    int64_t next = poll_pending_hostfuncs(now);
    int polls = 0;
    for (struct wait_list *list = active, *following; list; list = following) {
        following = list->next;
        if (some_ran && has_fired(list)) list->next_poll = now;
        if (list->next_poll <= now) {
            atomic_fetch_add(&list->refs, 1); /* its last wait may be its last user */
            if (!list->fresh) polls += poll_list(list, now);
            list->fresh = false;
            if (list->first) list->next_poll = schedule(list, now);
            bool gone = !list->first;
            if (gone) deactivate(list);
            int64_t again = list->next_poll;
            wait_list_unref(list);
            if (gone) continue;
            if (again < next) next = again;
        } else if (list->next_poll < next) {
            next = list->next_poll;
        }
    }
    if (polls) atomic_fetch_add(&counters[EVENT_POLLS], polls);
    /* With many lines a pass takes its time: the more there are, the longer until the next, which then finds more to do. */
    int64_t earliest = active_count > MAX_LISTS_POLLED_EXACTLY ? now + active_count * PASS_GAP_PER_LIST_NS : now;
    return next < earliest ? earliest : next;
}

/* The context has failed: so have all waits in it, and a host function of theirs never comes. */
void waits_fail(struct context *context, int status) {
    take_new_waits(now_ns());
    for (struct wait_list *list = active, *following; list; list = following) {
        following = list->next;
        if (list->context != context) continue;
        deactivate(list);
        struct wait *wait = list->first;
        list->first = NULL; /* the line itself lives as long as one of its waits */
        while (wait) {
            struct wait *next = wait->next;
            settle(wait, status);
            wait = next;
        }
    }
    struct wait **link = &pending_hostfuncs, *wait;
    while ((wait = *link)) {
        if (wait->hostfunc.context != context) {
            link = &wait->next;
            continue;
        }
        *link = wait->next;
        context_drop_pending(wait->hostfunc.context);
        leak_armed(wait);
    }
}
