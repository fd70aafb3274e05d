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
    _Atomic int queries;   /* threads that are polling the event, or are about to look up which one */
    struct handle *handle; /* pinned */
    struct wait *replaced; /* the record whose event stands in, and the helper; by wait_snapshot_before_record */
    void *helper;
    struct context *context;
};

static pthread_mutex_t snapshot_lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */

/* If another thread was first, this one stays alone. */
static void attach(struct handle *event, struct snapshot *snapshot) {
    pthread_mutex_lock(&snapshot_lock);
    if (!*handle_attachment(event)) *handle_attachment(event) = snapshot;
    pthread_mutex_unlock(&snapshot_lock);
}

struct snapshot *snapshot_of(struct handle *event) {
    pthread_mutex_lock(&snapshot_lock);
    struct snapshot *snapshot = *handle_attachment(event);
    if (snapshot) snapshot->refs++;
    pthread_mutex_unlock(&snapshot_lock);
    if (snapshot) return snapshot;
    snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot || !handle_pin(event)) { /* the caller has pinned it too, so it is open or will stay until we are through */
        free(snapshot);
        return NULL;
    }
    handle_ref(event);
    *snapshot = (struct snapshot){.refs = 1, .event = handle_value(event), .handle = event};
    attach(event, snapshot);
    return snapshot;
}

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

static int stand_in(struct snapshot *snapshot, struct context *context) {
    struct wait *record;
    void *helper;
    int status = wait_record_take(context, &record);
    if (status != CUDA_SUCCESS) return status;
    status = helper_take(context, &helper);
    if (status != CUDA_SUCCESS) {
        wait_record_put(record);
        return status;
    }
    status = driver.stream_wait_event(helper, atomic_load(&snapshot->event), 0);
    bool idle = status != CUDA_SUCCESS;
    if (status == CUDA_SUCCESS) status = driver.event_record(record->event, helper, 0);
    if (status != CUDA_SUCCESS) {
        helper_put(context, helper, idle);
        wait_record_put(record);
        return status;
    }
    snapshot->replaced = record;
    snapshot->helper = helper;
    snapshot->context = context;
    atomic_store(&snapshot->event, record->event);
    /* A thread may still poll the user's event. After the next record it would see that one, and end the wait; and if that record
     * is into a capture, the poll would end the capture. A later poll reads the new event (both sequentially consistent). */
    while (atomic_load(&snapshot->queries)) sched_yield();
    return CUDA_SUCCESS;
}

int wait_snapshot_before_record(struct context *context, struct handle *event) {
    pthread_mutex_lock(&snapshot_lock);
    struct snapshot *snapshot = *handle_attachment(event);
    *handle_attachment(event) = NULL; /* later waits are for the next record */
    if (snapshot) snapshot->refs++;
    pthread_mutex_unlock(&snapshot_lock);
    if (!snapshot) return CUDA_SUCCESS;
    int status = driver.event_query(atomic_load(&snapshot->event));
    bool complete = status == CUDA_SUCCESS; /* then the waits need not see it: the next record must not hide that */
    if (complete || status == CUDA_NOT_READY) status = stand_in(snapshot, context);
    if (status != CUDA_SUCCESS) attach(event, snapshot); /* the record is refused, and the next one must find the waits again */
    snapshot_unref(snapshot, complete);
    return status;
}
