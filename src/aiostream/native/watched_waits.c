/* The watcher's side of the waits: which event it polls when, and what it does with an end that it has seen. */
#include "wait_record.h"

#include "waker.h"

static const int64_t MICROSECOND = 1000, MILLISECOND = 1000000, NEVER = INT64_MAX;

static struct wait_list *active; /* the lists with waits; these two are the watcher's alone */
static struct wait *pending_hostfuncs; /* over, but their host function has yet to run */

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
    wait_leak(wait);
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
    wait_recycle(wait);
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
        wait_recycle(wait);
    }
    return pending_hostfuncs ? now + MILLISECOND : NEVER;
}

static void on_hostfunc_ran(struct helper_hostfunc *hostfunc) {
    struct wait *wait = (struct wait *)hostfunc;
    atomic_store(&wait->ended, now_ns());
    if (!atomic_exchange(&wait->fired, true) && wait->ticket) point_fire(wait->ticket, STATUS_UNKNOWN);
    /* Later waits of the list may be over too, and nobody polls them before this one is out of the way. The list itself is
     * not touched here: if the context has failed meanwhile it may be gone. */
    atomic_store(&hostfunc_ran, true);
    waker_wake_before(0);
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) { return value < least ? least : value > most ? most : value; }

/* Gives the only wait of a line back to its task, which polls itself in every turn of its loop: it has been woken by the time
 * the end comes, and resumes as fast as if it had blocked. */
static void hand_back(struct wait_list *list, int64_t end) {
    struct wait *wait = list->first;
    list->first = list->last = NULL;
    wait->spin_until = end;
    atomic_fetch_add(&counters[WAITS_HANDED_BACK], 1);
    wait_fire_hand_back(wait);
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
    struct prediction prediction = wait_list_predict(list);
    int64_t longest = clamp(active_count * 50 * MICROSECOND, LONGEST_POLL_NS, MILLISECOND);
    int64_t dense = clamp(age / POLLS_PER_AGE, FIRST_POLL_NS, longest);
    if (prediction.good) {
        bool alone = !wait->next && wait->ticket && wait->hostfunc.state == HOSTFUNC_NONE && !wait->handed_back;
        bool worth_it = active_count <= MAX_LISTS_HANDED_BACK && prediction.spread < MAX_HAND_BACK_SPREAD_NS && prediction.mean > 4 * queue_lag(wait->queue);
        bool returns = wait->mode == WAIT_AUTO && alone && worth_it;
        int64_t calls = returns ? prediction.mean - prediction.lead : NEVER;
        int64_t opens = prediction.mean - prediction.spread - WINDOW_BEFORE_NS;
        int64_t closes = prediction_end(prediction);
        opens -= waker_oversleep(opens - age);
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
            struct prediction prediction = wait_list_predict(list);
            bool too_late = prediction.good && !wait->handed_back && active_count <= MAX_LISTS_HANDED_BACK && end - start > prediction.mean - prediction.lead;
            if (too_late) wait_list_learn_hand_back(list, true, 0);
            wait_list_learn(list, end - start);
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
