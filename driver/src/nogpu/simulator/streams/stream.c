/* Streams: their handles, their lives, and the questions about them. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

struct stream *stream_make(struct context *context, unsigned flags, int priority) {
    struct stream *stream = object_new(OBJECT_STREAM, sizeof *stream);
    stream->context = context;
    stream->id = ++sim.next_id;
    stream->flags = flags;
    attributes_start(&stream->attributes, priority);
    stream->blocking = !(flags & 1);
    stream->next = context->streams;
    if (stream->next != NULL) stream->next->previous = stream;
    context->streams = stream;
    return stream;
}

struct stream *stream_make_hidden(struct context *context, int priority) {
    struct stream *stream = stream_make(context, 1, priority);
    object_unregister(stream);
    stream->destroyed = true;
    return stream;
}

static void end(struct stream *stream) {
    capture_unregister_stream(stream);
    stream->destroyed = true;
    stream_release(stream);
}

static void destroy(struct stream *stream) {
    object_unregister(stream);
    end(stream);
}

void streams_unregister(struct context *context) {
    for (struct stream *stream = context->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->destroyed) continue;
        object_bury(stream);
        end(stream);
    }
    context->legacy = NULL;
}

/* --- the per-thread default streams --- */

static void destroy_own(void) {
    pthread_mutex_lock(&sim.lock);
    for (size_t i = 0; i < me.stream_count; i++) {
        struct stream *stream = object_find(me.streams[i].stream, OBJECT_STREAM);
        if (stream != NULL && stream->id == me.streams[i].id) destroy(stream);
    }
    leave(OK);
}

static struct stream *per_thread_stream(struct context *context) {
    for (size_t i = 0; i < me.stream_count; i++) {
        struct stream *stream = object_find(me.streams[i].stream, OBJECT_STREAM);
        if (stream != NULL && stream->id == me.streams[i].id && stream->context == context)
            return stream;
    }
    me.at_end = destroy_own;
    me.streams = alloc_more(me.streams, (me.stream_count + 1) * sizeof *me.streams);
    struct stream *stream = stream_make(context, 0, 0);
    me.streams[me.stream_count].stream = stream;
    me.streams[me.stream_count++].id = stream->id;
    return stream;
}

CUresult find_stream(CUstream handle, struct stream **out) {
    if ((uintptr_t)handle > 2) {
        *out = object_find(handle, OBJECT_STREAM);
        if (*out == NULL && object_is_buried(handle)) note_use_of_gone();
        return *out != NULL ? OK : INVALID_HANDLE;
    }
    struct context *context;
    CUresult code = current_context(&context);
    if (code == OK)
        *out = handle == STREAM_PER_THREAD ? per_thread_stream(context) : context->legacy;
    return code;
}

/* --- waiting --- */

/* Waits until everything enqueued up to `target` is done. The stream may be destroyed in the
 * meantime. */
CUresult stream_wait(struct stream *stream, uint64_t target) {
    CUresult code = OK;
    stream->references++;
    while (code == OK && stream->head != NULL && stream->head->sequence <= target)
        code = wait_on(&stream->waiters, target);
    stream->references--;
    stream_release(stream);
    return code;
}

static bool blocking_streams_busy(const struct context *context) {
    for (const struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->blocking && stream->head != NULL) return true;
    return false;
}

static bool busy(const struct stream *stream) {
    return stream->head != NULL || (stream->legacy && blocking_streams_busy(stream->context));
}

/* Waits for all that the stream has to do now; the legacy stream's work includes that of the
 * blocking streams. */
CUresult drain(struct stream *stream) {
    if (!stream->legacy)
        return stream->tail != NULL ? stream_wait(stream, stream->tail->sequence) : OK;
    if (!busy(stream)) return OK;
    struct op *op = op_new(OP_EMPTY, 0);
    CUresult code = enqueue(stream, op);
    return code != OK ? code : stream_wait(stream, stream->tail->sequence);
}

CUresult context_drain(struct context *context) {
    uint64_t target = sim.next_sequence;
    for (;;) {
        const struct stream *stream = context->streams;
        while (stream != NULL && (stream->head == NULL || stream->head->sequence > target))
            stream = stream->next;
        if (stream == NULL) return OK;
        CUresult code = wait_on(&context->waiters, target);
        if (code != OK) return code;
    }
}

/* --- the calls --- */

static CUresult create(CUstream *out, unsigned flags, int priority) {
    struct context *context;
    CUresult code = out == NULL || flags > 1 ? INVALID_VALUE : current_context(&context);
    if (code == OK) *out = (CUstream)stream_make(context, flags, priority);
    return leave(code);
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    ENTER(cuStreamCreate, 0);
    return create(out, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    ENTER(cuStreamCreateWithPriority, 0);
    return create(out, flags, priority);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER(cuStreamDestroy, FREES);
    struct stream *stream;
    if ((uintptr_t)handle <= 2 || find_stream(handle, &stream) != OK) return leave(INVALID_HANDLE);
    destroy(stream);
    return leave(OK);
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *out) {
    ENTER(cuStreamGetPriority, 0);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK) *out = stream->attributes.priority;
    return leave(code);
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *out) {
    ENTER(cuStreamGetFlags, 0);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_question(stream);
    if (code == OK) *out = stream->flags;
    return leave(code);
}

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *out) {
    ENTER(cuStreamGetId, 0);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_question(stream);
    if (code == OK) *out = stream->id;
    return leave(code);
}

EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *out) {
    ENTER(cuStreamGetDevice, 0);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_question(stream);
    if (code == OK) *out = stream->context->device;
    return leave(code);
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *out, void **green) {
    ENTER(cuStreamGetCtx, 0);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK) {
        *out = stream->context;
        if (green != NULL) *green = NULL;
    }
    return leave(code);
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) {
    return cuStreamGetCtx_v2(handle, out, NULL);
}

/* No stream here has a green context. */
EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *out) {
    ENTER(cuStreamGetGreenCtx, 0);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK) *out = NULL;
    return leave(code);
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    if (atomic_load(&sim.forked))
        return OK; /* so the H200 answers in a forked child, where nearly all else is 3 */
    ENTER(cuStreamQuery, HOST_OK | FREES);
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_query(stream);
    if (code == OK && busy(stream)) code = NOT_READY;
    return leave(code);
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    if (atomic_load(&sim.forked))
        return OK; /* so the H200 answers in a forked child, where nearly all else is 3 */
    ENTER(cuStreamSynchronize, HOST_OK | FREES);
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_query(stream);
    if (code == OK && me.in_host_function && busy(stream)) code = NOT_PERMITTED;
    if (code == OK) code = drain(stream);
    return leave(code);
}

/* Enqueues op, or puts it into the stream's capture if there is one. Owns op. */
static CUresult submit(CUstream handle, struct op *op, int node_type) {
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code != OK) {
        op_free(op);
        return code;
    }
    return stream->capture != NULL ? capture_add(stream, op, node_type) : enqueue(stream, op);
}

/* The mode says how the host thread waits for its next task, blocking or spinning. That is a matter
 * of microseconds, so here it always blocks. */
EXPORT CUresult cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *user_data,
                                    unsigned sync_mode) {
    ENTER(cuLaunchHostFunc, ENQUEUES | HOST_OK);
    if (function == NULL || sync_mode > 1) return leave(INVALID_VALUE);
    struct op *op = op_new(OP_HOST, 0);
    op->u.host.host = function;
    op->u.host.user_data = user_data;
    return leave(submit(handle, op, NODE_HOST));
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user_data) {
    return cuLaunchHostFunc_v2(handle, function, user_data, 0);
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *user_data,
                                    unsigned flags) {
    ENTER(cuStreamAddCallback, ENQUEUES);
    struct stream *stream;
    CUresult code = callback == NULL || flags != 0 ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK && stream->capture != NULL) code = capture_unsupported(stream);
    if (code != OK) return leave(code);
    struct op *op = op_new(OP_CALLBACK, 0);
    op->u.host.callback = callback;
    op->u.host.handle = handle;
    op->u.host.user_data = user_data;
    return leave(submit(handle, op, -1));
}

/* --- attributes --- */

EXPORT CUresult cuStreamGetAttribute(CUstream handle, int which, void *out) {
    ENTER(cuStreamGetAttribute, 0);
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    return leave(code == OK ? attribute_get(&stream->attributes, OF_STREAMS, which, out) : code);
}

EXPORT CUresult cuStreamSetAttribute(CUstream handle, int which, const void *value) {
    ENTER(cuStreamSetAttribute, 0);
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    return leave(code == OK ? attribute_set(&stream->attributes, OF_STREAMS, which, value) : code);
}

EXPORT CUresult cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
    ENTER(cuStreamCopyAttributes, 0);
    struct stream *to, *from;
    CUresult code = find_stream(to_handle, &to);
    if (code == OK) code = find_stream(from_handle, &from);
    if (code == OK && to->context != from->context) code = INVALID_VALUE;
    if (code == OK) to->attributes = from->attributes;
    return leave(code);
}
