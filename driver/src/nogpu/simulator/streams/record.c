/* What an event stands for: its last record, or a point of a capture. event.c has the driver's
 * calls. */
#include "../driver.h"

#include "../graph.h"

#include <stdlib.h>

/* An event dies with its context. A primary context that is made anew is another generation. */
bool event_is_gone(const struct event *event) {
    return !event->context->active || event->generation != event->context->generation;
}

struct event *find_event(CUevent handle) {
    struct event *event = object_find(handle, OBJECT_EVENT);
    if (event == NULL || !event_is_gone(event)) return event;
    note_use_of_gone();
    return NULL;
}

void capture_release(struct capture *capture) {
    if (--capture->references > 0 || !capture->ended) return;
    dependencies_clear(&capture->exempt);
    dependencies_clear(&capture->left);
    free(capture);
}

void event_unregister_capture(struct event *event) {
    if (event->capture == NULL) return;
    capture_release(event->capture);
    event->capture = NULL;
    dependencies_clear(&event->dependencies);
}

void event_release(struct event *event) {
    if (--event->references > 0) return;
    event_unregister_capture(event);
    if (event->marker != NULL) marker_release(event->marker);
    free(event);
}

/* The event stands for this record from here on. */
struct op *event_record_op(struct event *event) {
    event_unregister_capture(event);
    if (event->marker != NULL) marker_release(event->marker);
    struct op *op = op_new(OP_RECORD, 0);
    event->marker = op->u.mark.marker = marker_new();
    event->marker->references++;
    op->u.mark.needs_queue = event->flags & 1;
    return op;
}

struct op *event_wait_op(const struct event *event, bool on_legacy) {
    if (event->marker == NULL) return NULL;
    if (event->marker->done) return on_legacy ? op_new(OP_EMPTY, 0) : NULL;
    struct op *op = op_new(OP_WAIT_EVENT, 0);
    op->u.mark.marker = event->marker;
    event->marker->references++;
    return op;
}
