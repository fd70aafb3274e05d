/* The queues of streams: how an op is made, gets into its stream's queue, and leaves it when it is
 * done, and how threads wait for that. engine.c moves what is in the queues.
 */
#include "../driver.h"

#include "../graph.h"

#include <stdlib.h>
#include <string.h>

struct op *op_new(enum op_kind kind, size_t payload_bytes) {
    struct op *op = alloc_need(sizeof *op + payload_bytes);
    op->kind = kind;
    op->payload_bytes = payload_bytes;
    return op;
}

void op_free(struct op *op) {
    if (op->sequence != 0) sim.pending--;
    if ((op->kind == OP_RECORD || op->kind == OP_WAIT_EVENT) && op->u.mark.marker != NULL)
        marker_release(op->u.mark.marker);
    if (op->launch_refs != NULL) launch_refs_drop(op->launch_refs);
    free(op);
}

/* A copy of a node's pattern, which refers to nothing that is counted. */
struct op *op_copy(const struct op *pattern) {
    struct op *op = op_new(pattern->kind, pattern->payload_bytes);
    op->context = pattern->context;
    op->u = pattern->u;
    memcpy(op->payload, pattern->payload, pattern->payload_bytes);
    return op;
}

/* Copies and fills are counted as launches, because they travel in the same ring. This was not
 * measured. */
static bool is_launch(const struct op *op) {
    return op->kind == OP_KERNEL || op->kind == OP_COPY || op->kind == OP_FILL;
}

void stream_release(struct stream *stream) {
    if (!stream->destroyed || stream->head != NULL || stream->references > 0 || stream->ready)
        return;
    struct context *context = stream->context;
    if (stream->previous != NULL) stream->previous->next = stream->next;
    else context->streams = stream->next;
    if (stream->next != NULL) stream->next->previous = stream->previous;
    dependencies_clear(&stream->dependencies);
    free(stream);
}

CUresult enqueue_room(struct stream *stream, unsigned depth) {
    while (stream->launches >= depth) {
        stream->references++;
        CUresult code = wait_on(&stream->waiters, 0);
        stream->references--;
        if (code == OK && stream->destroyed) code = INVALID_HANDLE;
        if (code != OK) {
            stream_release(stream);
            return code;
        }
    }
    return OK;
}

void enqueue_now(struct stream *stream, struct op *op) {
    op->stream = stream;
    op->context = stream->context;
    op->sequence = ++sim.next_sequence;
    sim.pending++;
    if (stream->tail != NULL) stream->tail->next = op;
    else stream->head = op;
    stream->tail = op;
    stream->launches += op->counted;
    if (needs_queue(op)) queue_request(stream, op);
    if (stream->head == op) make_ready(stream);
}

CUresult enqueue(struct stream *stream, struct op *op) {
    op->counted = is_launch(op);
    CUresult code = op->counted || (needs_queue(op) && op->kind != OP_RECORD)
                        ? enqueue_room(stream, LAUNCH_DEPTH)
                        : OK;
    if (code == OK) enqueue_now(stream, op);
    else op_free(op);
    return code;
}

void op_done(struct op *op) {
    struct stream *stream = op->stream;
    if (stream == NULL) {
        op_free(op);
        return;
    }
    struct context *context = stream->context;
    stream->head = op->next;
    if (stream->head == NULL) stream->tail = NULL;
    stream->launches -= op->counted;
    if (needs_queue(op)) queue_release(stream, op);
    uint64_t done = stream->head != NULL ? stream->head->sequence - 1 : UINT64_MAX;
    wake(&stream->waiters, done);
    wake(&context->waiters, done);
    if (stream->legacy) {
        for (struct stream *other = context->streams; other != NULL; other = other->next)
            if (other->legacy_blocked) make_ready(other);
    } else if (context->legacy_waits_for == stream) {
        context->legacy_waits_for = NULL;
        make_ready(context->legacy);
    }
    op_free(op);
    if (stream->head != NULL) make_ready(stream);
    else stream_release(stream);
}
