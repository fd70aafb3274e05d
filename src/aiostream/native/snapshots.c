/* What a user's event has recorded, for those who wait for it.
 *
 * A wait polls the user's event itself: that needs no stream and no record of ours. All waits for one record share a snapshot,
 * which pins the event's handle, so that close() destroys it only when nobody polls it any more.
 *
 * A later record must not prolong the waits. So before our own Event is recorded again, a helper stream waits for what it has
 * recorded so far, an event of ours is recorded there, and the snapshot's waits poll that one from then on. (A record through the
 * raw handle, by another library, is not seen here: it prolongs the waits.)
 */
#include "wait_record.h"

#include <sched.h>
#include <stdlib.h>

#include "helper_streams.h"

struct snapshot {
    int64_t refs; /* under snapshot_lock, as handle_attachment(): the waits on it, and a record that replaces it */
    _Atomic(void *) event;
    _Atomic int queries;   /* threads that poll, or are about to choose which event */
    struct handle *handle; /* pinned */
    struct wait *replaced; /* the record whose event stands in, and the helper; by wait_snapshot_before_record */
    void *helper;
    struct context *context;
};

static pthread_mutex_t snapshot_lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */

/* The handle's snapshot with a reference, or else `made`, which becomes it. */
static struct snapshot *join(struct handle *event, struct snapshot *made) {
    pthread_mutex_lock(&snapshot_lock);
    struct snapshot **attached = (struct snapshot **)handle_attachment(event), *snapshot = *attached;
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
    if (!handle_pin(event)) { /* closed meanwhile: the caller's pin keeps it only until the call is through */
        free(made);
        return RESULT_CLOSED;
    }
    handle_ref(event);
    *made = (struct snapshot){.refs = 1, .event = handle_value(event), .handle = event};
    *snapshot = join(event, made);
    if (*snapshot == made) return CUDA_SUCCESS;
    handle_unpin(event); /* another thread was first. One that stayed alone would be unknown to the next record. */
    handle_unref(event);
    free(made);
    return CUDA_SUCCESS;
}

/* A record waits until the polls that may have chosen the user's event are over: see wait_snapshot_before_record. */
int snapshot_query(struct snapshot *snapshot) {
    atomic_fetch_add(&snapshot->queries, 1);
    int status = driver.event_query(atomic_load(&snapshot->event));
    atomic_fetch_sub(&snapshot->queries, 1);
    return status;
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

/* Of several records at once, the first whose event stands in wins. None of them has recorded before that, so what the winner's
 * helper waits for is the former record. The others' helpers may wait for a later one. */
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
    status = driver.stream_wait_event(helper, users, 0);
    bool idle = status != CUDA_SUCCESS || complete;
    if (status == CUDA_SUCCESS) status = driver.event_record(record->event, helper, 0);
    if (status == CUDA_SUCCESS && atomic_compare_exchange_strong(&snapshot->event, &expected, record->event)) {
        snapshot->replaced = record;
        snapshot->helper = helper;
        snapshot->context = context;
        return CUDA_SUCCESS;
    }
    helper_put(context, helper, idle && expected == users);
    wait_record_put(record);
    return status;
}

static int replace(struct snapshot *snapshot, struct context *context, bool *complete) {
    void *users = handle_value(snapshot->handle);
    *complete = false;
    if (atomic_load(&snapshot->event) != users) return CUDA_SUCCESS; /* another record was first */
    int status = driver.event_query(users);
    *complete = status == CUDA_SUCCESS; /* the waits need not have seen it yet, and the next record must not hide it */
    return *complete || status == CUDA_NOT_READY ? stand_in(snapshot, context, *complete) : status;
}

int wait_snapshot_before_record(struct context *context, struct handle *event) {
    for (;;) {
        struct snapshot *snapshot = join(event, NULL);
        if (!snapshot) return CUDA_SUCCESS;
        bool complete;
        int status = replace(snapshot, context, &complete);
        /* Later waits are for the next record. After an error there is none, and this one stays known. */
        if (status == CUDA_SUCCESS) {
            /* A poll that has chosen the user's event would see the next record, and end its wait with that one. If that record
             * is into a capture, the poll would even end the capture. Later polls choose the new event (sequentially
             * consistent), and each is one call of the driver. */
            while (atomic_load(&snapshot->queries)) sched_yield();
            detach(event, snapshot);
        }
        snapshot_unref(snapshot, complete);
        if (status != CUDA_SUCCESS) return status;
        /* If another thread has recorded meanwhile, there may be waits for that, too. */
    }
}
