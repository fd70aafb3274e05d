/* What a user's event has recorded, for the waits for it.
 *
 * A wait polls the user's event itself, which needs no stream and no record of the library. All
 * waits for one record share a snapshot. It pins the event's handle, so close() destroys the event
 * only when no wait polls it any more.
 *
 * A later record must not prolong the waits. So before an Event of this library is recorded again,
 * a helper stream waits for what it has recorded so far, the library records an event of its own
 * there, and the snapshot's waits poll that event from then on. The library does not see a record
 * that another library makes through the raw handle. Such a record prolongs the waits.
 */
#include "wait_record.h"

#include <sched.h>
#include <stdlib.h>

#include "helper_streams.h"

struct snapshot {
    /* under snapshot_lock, as handle_attachment(): the waits on it, and a record that replaces
     * it */
    int64_t refs;
    _Atomic(void *) event;
    /* threads that use the user's event, or are about to see that another one stands in for it */
    _Atomic int users;
    struct handle *handle; /* pinned */
    /* the record whose event stands in, and its helper stream; written by
     * wait_snapshot_before_record */
    struct wait *replaced;
    void *helper;
    struct context *context;
    int64_t pending_in; /* see snapshot_note_pending; used by the watcher alone */
};

/* never held across a driver call */
static pthread_mutex_t snapshot_lock = PTHREAD_MUTEX_INITIALIZER;

/* The handle's snapshot with a reference. If it has none, `made` becomes it. */
static struct snapshot *join(struct handle *event, struct snapshot *made) {
    pthread_mutex_lock(&snapshot_lock);
    struct snapshot **attached = (struct snapshot **)handle_attachment(event),
                    *snapshot = *attached;
    if (snapshot) snapshot->refs++;
    else *attached = snapshot = made;
    pthread_mutex_unlock(&snapshot_lock);
    return snapshot;
}

static void detach(struct handle *event, struct snapshot *snapshot) {
    pthread_mutex_lock(&snapshot_lock);
    if (*handle_attachment(event) == snapshot) *handle_attachment(event) = NULL;
    pthread_mutex_unlock(&snapshot_lock);
}

int snapshot_of(struct handle *event, struct snapshot **snapshot) {
    *snapshot = join(event, NULL);
    if (*snapshot) return CUDA_SUCCESS;
    struct snapshot *made = calloc(1, sizeof *made);
    if (!made) return RESULT_NO_MEMORY;
    /* closed since then: the caller's pin keeps it only until the call is through */
    if (!handle_pin(event)) {
        free(made);
        return RESULT_CLOSED;
    }
    handle_ref(event);
    *made = (struct snapshot){.refs = 1, .event = handle_value(event), .handle = event};
    *snapshot = join(event, made);
    if (*snapshot == made) return CUDA_SUCCESS;
    /* Another thread was first. A snapshot that stayed alone would be unknown to the next
     * record. */
    handle_unpin(event);
    handle_unref(event);
    free(made);
    return CUDA_SUCCESS;
}

/* Whether the user's event still stands for the snapshot. If so, no thread records it until this
 * thread lets it go. */
static bool hold_users_event(struct snapshot *snapshot) {
    atomic_fetch_add(&snapshot->users, 1);
    if (atomic_load(&snapshot->event) == handle_value(snapshot->handle)) return true;
    atomic_fetch_sub(&snapshot->users, 1);
    return false;
}

static void let_users_event_go(struct snapshot *snapshot) { atomic_fetch_sub(&snapshot->users, 1); }

/* Called before a record, when another event stands in. A thread that still used the user's event
 * would meet the new record: its poll would end the wait with it, or end the capture that it is
 * part of. A thread that comes later sees the other event (both are sequentially consistent), so
 * this takes no longer than a few driver calls. */
static void await_users(struct snapshot *snapshot) {
    while (atomic_load(&snapshot->users)) sched_yield();
}

int snapshot_query(struct snapshot *snapshot) {
    if (!hold_users_event(snapshot)) return driver.event_query(atomic_load(&snapshot->event));
    int status = driver.event_query(handle_value(snapshot->handle));
    let_users_event_go(snapshot);
    return status;
}

void snapshot_note_pending(struct snapshot *snapshot, int64_t pass) { snapshot->pending_in = pass; }
bool snapshot_was_pending(const struct snapshot *snapshot, int64_t pass) {
    return snapshot->pending_in == pass;
}

void snapshot_unref(struct snapshot *snapshot, bool complete) {
    struct handle *handle = snapshot->handle;
    pthread_mutex_lock(&snapshot_lock);
    bool last = --snapshot->refs == 0;
    if (last && *handle_attachment(handle) == snapshot) *handle_attachment(handle) = NULL;
    pthread_mutex_unlock(&snapshot_lock);
    if (!last) return;
    if (snapshot->replaced) wait_record_put(snapshot->replaced);
    if (snapshot->helper) helper_put(snapshot->context, snapshot->helper, complete);
    handle_unpin(handle);
    handle_unref(handle);
    free(snapshot);
}

/* The user's event is held. Of several records at once, the first whose event stands in wins. */
static int stand_in(struct snapshot *snapshot, struct context *context, bool complete) {
    struct wait *record;
    void *users = handle_value(snapshot->handle), *expected = users, *helper;
    int status = wait_record_take(context, &record);
    if (status != CUDA_SUCCESS) return status;
    status = helper_take(context, &helper);
    if (status != CUDA_SUCCESS) {
        wait_record_put(record);
        return status;
    }
    status = failed_in("cuStreamWaitEvent", driver.stream_wait_event(helper, users, 0));
    bool idle = status != CUDA_SUCCESS || complete;
    if (status == CUDA_SUCCESS) status = driver.event_record(record->event, helper, 0);
    if (status == CUDA_SUCCESS &&
        atomic_compare_exchange_strong(&snapshot->event, &expected, record->event)) {
        snapshot->replaced = record;
        snapshot->helper = helper;
        snapshot->context = context;
        return CUDA_SUCCESS;
    }
    helper_put(context, helper, idle);
    wait_record_put(record);
    return status;
}

static int replace(struct snapshot *snapshot, struct context *context, bool *complete) {
    int status = CUDA_SUCCESS;
    *complete = false;
    if (hold_users_event(snapshot)) {
        status = failed_in("cuEventQuery", driver.event_query(handle_value(snapshot->handle)));
        /* the waits need not have seen it yet, and the next record must not hide it */
        *complete = status == CUDA_SUCCESS;
        if (*complete || status == CUDA_NOT_READY) status = stand_in(snapshot, context, *complete);
        let_users_event_go(snapshot);
    }
    if (status == CUDA_SUCCESS) await_users(snapshot);
    return status;
}

int wait_snapshot_before_record(struct context *context, struct handle *event) {
    for (;;) {
        struct snapshot *snapshot = join(event, NULL);
        if (!snapshot) return CUDA_SUCCESS;
        bool complete;
        int status = replace(snapshot, context, &complete);
        /* Later waits are for the next record. After an error there is none, and this one stays
         * known. */
        if (status == CUDA_SUCCESS) detach(event, snapshot);
        snapshot_unref(snapshot, complete);
        if (status != CUDA_SUCCESS) return status;
        /* If another thread has recorded since then, there may be waits for that record too. */
    }
}
