/* Events: snapshots of a point of a stream. record.c has what they stand for. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags) {
    ENTER(cuEventCreate, 0);
    struct context *context;
    CUresult code = out == NULL || flags > 7 ? INVALID_VALUE : current_context(&context);
    if (code == OK && (flags & 4) && !(flags & 2))
        code = INVALID_VALUE; /* between processes, where no event has a time */
    if (code == OK) {
        struct event *event = object_new(OBJECT_EVENT, sizeof *event);
        event->references = 1;
        event->flags = flags;
        event->context = context;
        event->generation = context->generation;
        *out = event;
    }
    return leave(code);
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    ENTER(cuEventDestroy, FREES);
    struct event *event = object_find(handle, OBJECT_EVENT);
    if (event == NULL) return leave(INVALID_HANDLE);
    if (event_is_gone(event)) note_use_of_gone();
    object_unregister(event);
    event_release(event);
    return leave(OK);
}

/* With its flag, a captured record or wait is a node that does it at every launch, for events
 * outside the graph. */
static CUresult capture_event_node(struct stream *stream, struct event *event, int type) {
    struct node *node = node_new(type);
    node->event = event;
    event->references++;
    return capture_add_node(stream, node);
}

static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags) {
    struct event *event = find_event(handle);
    struct stream *stream;
    CUresult code = event == NULL ? INVALID_HANDLE
                    : flags > 1   ? INVALID_VALUE
                                  : find_stream(stream_handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && event->context != stream->context) code = INVALID_HANDLE;
    if (code == OK && stream->capture != NULL)
        return leave(flags == 1 ? capture_event_node(stream, event, NODE_RECORD_EVENT)
                                : capture_record(stream, event));
    if (code == OK && flags == 1)
        code = ILLEGAL_STATE; /* outside of a capture the flag means nothing */
    return leave(code == OK ? enqueue(stream, event_record_op(event)) : code);
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream) {
    ENTER(cuEventRecord, ENQUEUES);
    return record(handle, stream, 0);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned flags) {
    ENTER(cuEventRecordWithFlags, ENQUEUES);
    return record(handle, stream, flags);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
    ENTER(cuStreamWaitEvent, ENQUEUES);
    struct event *event = find_event(handle);
    struct stream *stream;
    CUresult code = event == NULL ? INVALID_HANDLE
                    : flags > 1   ? INVALID_VALUE
                                  : find_stream(stream_handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code != OK) return leave(code);
    if (stream->capture != NULL && flags == 1)
        return leave(capture_event_node(stream, event, NODE_WAIT_EVENT));
    if (flags == 1) return leave(ILLEGAL_STATE);
    if (event->capture != NULL || stream->capture != NULL)
        return leave(capture_wait(stream, event));
    struct op *op = event_wait_op(event, stream->legacy);
    return leave(op != NULL ? enqueue(stream, op) : OK);
}

/* An event that was last recorded under capture has no time and cannot be waited for. A query of it
 * ends a capture that is still valid (a question about its time does not). If the capture is over,
 * the event is only one that cannot be queried. */
static CUresult find_free_event(CUevent handle, bool harmful, struct event **out) {
    *out = find_event(handle);
    if (*out == NULL) return INVALID_HANDLE;
    struct capture *capture = (*out)->capture;
    if (capture == NULL) return OK;
    if (capture->ended || capture->invalid) return INVALID_VALUE;
    if (harmful) capture_invalidate(capture);
    return CAPTURED_EVENT;
}

EXPORT CUresult cuEventQuery(CUevent handle) {
    if (atomic_load(&sim.forked))
        return OK; /* so the H200 answers in a forked child, where nearly all else is 3 */
    ENTER(cuEventQuery, UNSAFE | HOST_OK | FREES);
    struct event *event;
    CUresult code = find_free_event(handle, true, &event);
    if (code == OK && event->marker != NULL && !event->marker->done) code = NOT_READY;
    return leave(code);
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
    ENTER(cuEventSynchronize, UNSAFE | FREES);
    struct event *event;
    CUresult code = find_free_event(handle, true, &event);
    if (code == OK && event->marker != NULL) code = marker_wait(event->marker);
    return leave(code);
}

EXPORT CUresult cuEventElapsedTime_v2(float *out, CUevent start_handle, CUevent end_handle) {
    ENTER(cuEventElapsedTime, 0);
    struct event *start, *end = NULL;
    CUresult code = find_free_event(start_handle, false, &start);
    if (code == OK) code = find_free_event(end_handle, false, &end);
    if (code == OK &&
        (((start->flags | end->flags) & 2) || start->marker == NULL || end->marker == NULL))
        code = INVALID_HANDLE;
    if (code == OK && start->context != end->context) code = INVALID_HANDLE;
    if (code == OK && !(start->marker->done && end->marker->done)) code = NOT_READY;
    if (code == OK && out == NULL) code = INVALID_VALUE;
    if (code == OK)
        *out = (float)((double)(int64_t)(end->marker->time - start->marker->time) / 1e6);
    return leave(code);
}

EXPORT CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(out, start, end);
}
