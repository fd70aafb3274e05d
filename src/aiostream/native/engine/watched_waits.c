/* The watcher's side of the waits: which event it polls when, and what it does with an end that it
 * has seen. All of it runs in the watcher's thread.
 *
 * Tasks push waits on `new_waits`. Each pass takes them whole, puts each into the list of its
 * stream in the order of the records, polls the lists that are due, and returns the time of the
 * next pass. Of a list it polls only the oldest event, because a later one cannot be complete
 * before it, unless their records overlapped in time. An end is learnt, the wait is recycled, and
 * its ticket is fired into the queue of its loop. Shortly before an expected end the wait is handed
 * back to its task instead.
 *
 * The watcher never frees or recycles a wait that a task holds. It finds in `holder` who has it
 * (wait_inside.h), and takes a wait that a timer has only together with its entry in that timer.
 * The lists here are its own, so they need no lock.
 */
#include "wait_inside.h"

#include "waker.h"

static const int64_t TOGETHER_NS = 3000; /* what is due within this is polled in this pass */

static struct wait_list *active; /* the lists with waits; used by the watcher alone */

bool waits_are_new(void) { return atomic_load(&new_waits) != NULL || atomic_load(&some_revisit); }

/* --- lists --- */

/* Puts it in the order of the records, which is that of their ends. A wait that its task polled
 * first comes late. */
static void insert(struct wait_list *list, struct wait *wait) {
    struct wait **link = &list->first;
    if (list->last && list->last->opened <= wait->opened) link = &list->last->next;
    else
        while (*link && (*link)->opened < wait->opened) link = &(*link)->next;
    wait->next = *link;
    *link = wait;
    if (!wait->next) list->last = wait;
}

/* While a list is active, the watcher has a reference to it. */
static void activate(struct wait_list *list) {
    atomic_fetch_add(&list->refs, 1);
    list->active = true;
    list->next = active;
    active = list;
    list->next_poll = NEVER;
    atomic_fetch_add(&active_count, 1);
}

/* The link to the next active list. A list without a wait is taken out here. */
static struct wait_list **following(struct wait_list **link) {
    struct wait_list *list = *link;
    if (list->first) return &list->next;
    *link = list->next;
    list->active = false;
    atomic_fetch_sub(&active_count, 1);
    wait_list_unref(list);
    return link;
}

/* The watcher no longer lists a wait, whose link is out of the list already. The wait belongs to
 * its task, unless the task has left it again. Then it is new once more, even if a timer has it,
 * because the guard polls before that timer are still to be planned. */
static void unlist(struct wait *wait) {
    int holder = HELD_BY_TASK_LISTED;
    if (atomic_compare_exchange_strong(&wait->holder, &holder, HELD_BY_TASK)) return;
    if (holder == OVER_LISTED) wait_recycle(wait);
    else wait_push_new(wait);
}

/* --- ends --- */

static bool is_timers(struct timer_entry *entry, uint64_t wait) {
    return (uintptr_t)entry == wait &&
           atomic_load(&((struct wait *)entry)->holder) == HELD_BY_TIMER;
}

/* Whether the watcher owns a wait whose end it has seen. If a timer has it, it is the task's once
 * the timer is due. `holder` may be old: the task may have polled the wait since then, and be just
 * leaving it to the timer again. Then its entry is in the timer, but the task still uses it until
 * it has changed the holder. */
static bool claim(struct wait *wait, int holder) {
    return holder == HELD_BY_WATCHER ||
           timer_remove(&wait->queue->timer, is_timers, (uintptr_t)wait);
}

static void note_start(struct wait *wait) {
    struct wait_list *list = wait->list;
    int64_t since = atomic_load(&list->free_since);
    if (since <= wait->began) return;
    int64_t after = atomic_load(&list->free_after);
    atomic_store(&wait->start_slack, since - (after > wait->began ? after : wait->began));
    atomic_store(&wait->start, since);
}

/* Polls the oldest event of a list, and the next ones as long as they are complete. A later event
 * can only be complete if it was recorded after the oldest incomplete one, unless the two records
 * overlapped in time. The list's clock shows that. With a failure none is polled, and all end with
 * that. Returns the number of polls. */
static int poll_list(struct wait_list *list, int64_t now, int failure) {
    struct wait **link = &list->first, *wait, *kept = NULL;
    uint64_t fence = UINT64_MAX;
    int polls = 0;
    while ((wait = *link)) {
        int holder = atomic_load(&wait->holder);
        if (holder == HELD_BY_TASK_LISTED || holder == OVER_LISTED) {
            *link = wait->next;
            unlist(wait);
            continue;
        }
        if (wait->opened > fence) break;
        int64_t before = polls ? now_ns() : now;
        int status = failure ? failure : CUDA_NOT_READY;
        int64_t *pending_in = wait->users_event ? &wait->users_event->pending_in : NULL;
        if (!failure && (!pending_in || *pending_in != now)) {
            status = wait_query(wait);
            polls++;
            if (pending_in && status == CUDA_NOT_READY) *pending_in = now;
        }
        if (status == CUDA_NOT_READY || !claim(wait, holder)) {
            if (status == CUDA_NOT_READY) {
                atomic_store(&wait->pending_at, before);
                if (!wait->users_event) atomic_store(&list->pending_at, before);
                atomic_store(&wait->polled, before);
                if (wait->closed < fence) fence = wait->closed;
            }
            kept = wait;
            link = &wait->next;
            continue;
        }
        int64_t seen = now_ns();
        if (status == CUDA_SUCCESS && wait->ticket) {
            note_start(wait);
            wait_learn(wait, seen, false);
        }
        wait_note_end(wait, seen);
        *link = wait->next;
        if (wait->ticket) wait_fire(wait, status);
        else wait_release(wait);
    }
    if (!wait) list->last = kept;
    return polls;
}

/* --- what comes next --- */

/* The youngest wait that still has a task, or NULL. A dropped wait stays listed until its event is
 * complete. */
static const struct wait *latest_wanted(const struct wait_list *list) {
    const struct wait *latest = list->last;
    if (latest->ticket) return latest;
    latest = NULL;
    for (const struct wait *wait = list->first; wait; wait = wait->next)
        if (wait->ticket) latest = wait;
    return latest;
}

static void take_first_off(struct wait_list *list) {
    list->first = list->first->next;
    if (!list->first) list->last = NULL;
}

/* A wait that began just now may be over as soon as an old one before it. So the bound holds for
 * the youngest wait with a task too, from the last poll of it or of an older one. */
static int64_t bound_by_latest(const struct wait_list *list, int64_t time) {
    const struct wait *latest = latest_wanted(list);
    if (!latest) return time;
    int64_t last = atomic_load(&latest->polled),
            polled_at = last > list->polled_at ? last : list->polled_at,
            age = polled_at > latest->began ? polled_at - latest->began : 0,
            bound = latest->began + policy_latest_poll(age, active_count);
    return bound < time ? bound : time;
}

/* When to poll a list whose oldest wait was pending at `polled_at`, or, for 0, at its own last
 * poll. It may hand that wait back, and then the list may be without one. If the age were that of
 * now, and not that of the last poll, the watcher would pass over a poll for which it has just
 * woken. */
static int64_t schedule(struct wait_list *list, int64_t polled_at) {
    struct wait *wait;
    list->exact = false;
    list->latest = NEVER;
    while ((wait = list->first)) {
        int holder = atomic_load(&wait->holder);
        if (holder == HELD_BY_TASK_LISTED || holder == OVER_LISTED) {
            take_first_off(list);
            unlist(wait);
            continue;
        }
        note_start(wait);
        int64_t start = atomic_load(&wait->start),
                seen = polled_at ? polled_at : atomic_load(&wait->polled),
                age = seen > start ? seen - start : 0;
        struct load load = wait_load(wait);
        list->loop_lateness = load.lateness;
        if (!latest_wanted(list)) return start + policy_unwanted(age);
        list->latest = start + policy_latest_pass(age, load.lateness);
        if (holder == HELD_BY_TIMER) {
            int64_t guard =
                policy_guard(&wait->prediction, age, wait->timer_entry.time - start, &load);
            if (guard != NEVER) return bound_by_latest(list, start + guard);
            /* The timer comes before the next guard poll, so the watcher need not list it. */
            take_first_off(list);
            if (!atomic_compare_exchange_strong(&wait->holder, &holder, HELD_BY_TASK)) unlist(wait);
            continue;
        }
        /* A dropped wait has no task to hand it back to, and a future never had one. */
        load.task_allowed = wait->ticket && !wait->future;
        load.waits = 1; /* only the loop's thread uses its timer */
        struct plan plan = wait->strategy->plan(&wait->prediction, age, &load);
        if (plan.stage == STAGE_WATCHER) {
            list->exact = plan.exact;
            return bound_by_latest(list, start + plan.at);
        }
        if (plan.stage == STAGE_TIMER) {
            /* As a timer would: guard polls before, and awake when the task is to be woken. */
            int64_t wake = plan.at - waker_oversleep(plan.at - age),
                    guard = policy_guard(&wait->prediction, age, wake, &load);
            if (wake > age) {
                list->exact = wake < guard;
                return bound_by_latest(list, start + (guard < wake ? guard : wake));
            }
        }
        take_first_off(list);
        wait->poll_until = plan.until == NEVER ? NEVER : start + plan.until;
        wait->woken_for = plan.length;
        atomic_fetch_add(&counters[WAITS_HANDED_BACK], 1);
        atomic_store(&wait->holder, HELD_BY_TASK);
        wait_hand_back(wait);
    }
    return NEVER;
}

/* A wait has come to the list. The next poll comes no later for that. */
static void schedule_new(struct wait_list *list) {
    int64_t time = schedule(list, 0);
    if (time < list->next_poll) list->next_poll = time;
}

/* The newest lie on top of the stack. */
static void take_new_waits(void) {
    struct wait *wait = atomic_exchange(&new_waits, NULL), *oldest = NULL;
    while (wait) {
        struct wait *next = wait->next;
        wait->next = oldest;
        oldest = wait;
        wait = next;
    }
    while ((wait = oldest)) {
        oldest = wait->next;
        struct wait_list *list = wait->list;
        if (!list->active) activate(list);
        insert(list, wait);
        schedule_new(list);
    }
}

/* --- the pass --- */

static int poll_due(struct wait_list *list, int64_t now) {
    if (atomic_exchange(&list->revisit, false)) schedule_new(list);
    if (list->next_poll > now + TOGETHER_NS) return 0;
    int polls = poll_list(list, now, CUDA_SUCCESS);
    list->polled_at = now;
    list->next_poll = schedule(list, now);
    return polls;
}

int64_t waits_poll(int64_t now) {
    atomic_store(&some_revisit, false);
    if (atomic_load(&new_waits)) take_new_waits();
    /* the next pass for polls that are exact, and for the others; by the bound */
    int64_t next[2] = {NEVER, NEVER}, latest = NEVER;
    int64_t loop_lateness = NEVER;
    int polls = 0;
    for (struct wait_list **link = &active; *link; link = following(link)) {
        struct wait_list *list = *link;
        polls += poll_due(list, now);
        if (!list->first) continue;
        if (list->next_poll < next[!list->exact]) next[!list->exact] = list->next_poll;
        /* A pass before the list's own poll would find nothing to do, and the next would come at
         * once. */
        int64_t bound = list->latest > list->next_poll ? list->latest : list->next_poll;
        if (bound < latest) latest = bound;
        if (list->loop_lateness < loop_lateness) loop_lateness = list->loop_lateness;
    }
    if (polls) atomic_fetch_add(&counters[EVENT_POLLS], polls);
    if (active) atomic_fetch_add(&counters[EVENT_PASSES], 1);
    for (int i = 0; i < 2; i++) {
        int64_t earliest = now + policy_pass_gap(active_count, i == 0, loop_lateness);
        if (next[i] < earliest) next[i] = earliest;
    }
    int64_t first = next[0] < next[1] ? next[0] : next[1];
    return first < latest ? first : latest;
}

/* The context has failed, and with it all waits in it. The driver answers so to the tasks that poll
 * theirs. */
void waits_fail(struct context *context, int status) {
    take_new_waits();
    for (struct wait_list **link = &active; *link; link = following(link))
        if ((*link)->context == context) poll_list(*link, now_ns(), status);
}
