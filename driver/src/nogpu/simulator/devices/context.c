/* Contexts: primary and created, the stack of each thread, and the wait for all of a context's
 * work. */
#include "../driver.h"

#include "../api.h"

/* Contexts are few and never freed, so a stale handle stays recognisable (709), and a stream may
 * always follow its context. */
static struct context *context_make(int device) {
    static size_t space;
    struct context *context = alloc_need(sizeof *context);
    sim.contexts = alloc_room(sim.contexts, sim.context_count, &space, sizeof *sim.contexts);
    sim.contexts[sim.context_count++] = context;
    context->device = device;
    context->id = ++sim.next_id;
    context->limits[0] = 1024;
    context->limits[1] = 1 << 20;
    context->limits[2] = 8 << 20;
    pthread_cond_init(&context->host_work, NULL);
    return context;
}

static void activate(struct context *context) {
    if (context->active) return;
    context->active = true;
    /* a reset leaves the handle, but what comes after it is another context */
    if (context->generation > 0) context->id = ++sim.next_id;
    context->legacy = stream_make(context, 0, 0);
    context->legacy->legacy = true;
    context->legacy->blocking = false;
}

static void deactivate(struct context *context) {
    context->active = false;
    context->generation++;
    streams_unregister(context);
    memory_release_context(context);
}

static CUresult find_device(CUdevice device, struct device **out) {
    if (device < 0 || device >= sim.device_count) return INVALID_DEVICE;
    *out = &sim.devices[device];
    return OK;
}

/* --- primary contexts --- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal) {
    ENTER(cuDevicePrimaryCtxRetain, 0);
    struct device *device;
    CUresult code = out == NULL ? INVALID_VALUE : find_device(ordinal, &device);
    if (code != OK) return leave(code);
    if (device->primary == NULL) {
        device->primary = context_make(ordinal);
        device->primary->primary = true;
    }
    device->primary->flags = device->primary_flags;
    device->primary->retained++;
    activate(device->primary);
    *out = device->primary;
    return leave(OK);
}

static CUresult drain_and_deactivate(struct context *context) {
    CUresult code = context_drain(context);
    if (code == OK && context->active) deactivate(context);
    return code;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    ENTER(cuDevicePrimaryCtxRelease, FREES);
    struct device *device;
    CUresult code = find_device(ordinal, &device);
    if (code == OK && (device->primary == NULL || device->primary->retained == 0))
        code = INVALID_CONTEXT;
    if (code == OK && --device->primary->retained == 0)
        code = drain_and_deactivate(device->primary);
    return leave(code);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    ENTER(cuDevicePrimaryCtxReset, FREES);
    struct device *device;
    CUresult code = find_device(ordinal, &device);
    if (code == OK && device->primary != NULL && device->primary->active)
        code = drain_and_deactivate(device->primary);
    return leave(code);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
    ENTER(cuDevicePrimaryCtxSetFlags, 0);
    struct device *device;
    CUresult code = flags > 0xff ? INVALID_VALUE : find_device(ordinal, &device);
    if (code == OK) {
        device->primary_flags = flags;
        if (device->primary != NULL) device->primary->flags = flags;
    }
    return leave(code);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
    ENTER(cuDevicePrimaryCtxGetState, DEAD_OK);
    struct device *device;
    CUresult code = flags == NULL || active == NULL ? INVALID_VALUE : find_device(ordinal, &device);
    if (code == OK) {
        *flags = device->primary_flags;
        *active = device->primary != NULL && device->primary->active;
    }
    return leave(code);
}

/* --- created contexts --- */

static void push(struct context *context) {
    me.stack = alloc_room(me.stack, me.depth, &me.space, sizeof *me.stack);
    me.stack[me.depth++] = context;
}

static bool valid_flags(unsigned flags) {
    unsigned scheduling = flags & 7; /* one way at most */
    return flags <= 0xff && (scheduling & (scheduling - 1)) == 0;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice ordinal) {
    struct device *device;
    CUresult code =
        out == NULL || !valid_flags(flags) ? INVALID_VALUE : find_device(ordinal, &device);
    if (code != OK) return leave(code);
    struct context *context = context_make(ordinal);
    context->flags = flags;
    activate(context);
    push(context);
    *out = context;
    return leave(OK);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal) {
    ENTER(cuCtxCreate, 0);
    return create(out, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int affinity_count, unsigned flags,
                               CUdevice ordinal) {
    ENTER(cuCtxCreate, 0);
    if (affinity != NULL || affinity_count != 0) return leave(NOT_SUPPORTED);
    return create(out, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice ordinal) {
    ENTER(cuCtxCreate, 0);
    if (parameters != NULL) return leave(NOT_SUPPORTED);
    return create(out, flags, ordinal);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
    ENTER(cuCtxDestroy, FREES);
    struct context *context;
    CUresult code = find_context(handle, &context);
    if (code == OK && context->primary) code = INVALID_CONTEXT;
    if (code == OK && me.depth > 0 && me.stack[me.depth - 1] == context) me.depth--;
    if (code == OK) code = drain_and_deactivate(context);
    return leave(code);
}

/* --- the current context --- */

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    ENTER(cuCtxPushCurrent, DEAD_OK);
    struct context *context;
    CUresult code = find_context(handle, &context);
    if (code == OK) push(context);
    if (code == CONTEXT_IS_DESTROYED) note_use_of_gone();
    return leave(code);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out) {
    ENTER(cuCtxPopCurrent, DEAD_OK | FREES);
    if (me.depth == 0) return leave(INVALID_CONTEXT);
    me.depth--;
    if (out != NULL) *out = me.stack[me.depth];
    return leave(OK);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
    ENTER(cuCtxSetCurrent, DEAD_OK | FREES);
    struct context *context = NULL;
    CUresult code = handle == NULL ? OK : find_context(handle, &context);
    if (code == OK) {
        me.depth -= me.depth > 0;
        if (context != NULL) push(context);
    }
    if (code == CONTEXT_IS_DESTROYED) note_use_of_gone();
    return leave(code);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out) {
    ENTER(cuCtxGetCurrent, DEAD_OK | FREES);
    if (out == NULL) return leave(INVALID_VALUE);
    *out = me.depth > 0 ? me.stack[me.depth - 1] : NULL;
    return leave(OK);
}

static CUresult chosen_context(CUcontext handle, struct context **out) {
    return handle == NULL ? current_context(out) : find_context(handle, out);
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext handle) {
    ENTER(cuCtxGetDevice, DEAD_OK);
    struct context *context;
    CUresult code = out == NULL ? INVALID_VALUE : chosen_context(handle, &context);
    if (code == OK) *out = context->device;
    return leave(code);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *out) { return cuCtxGetDevice_v2(out, NULL); }

EXPORT CUresult cuCtxGetFlags(unsigned *out) {
    ENTER(cuCtxGetFlags, DEAD_OK);
    struct context *context;
    CUresult code = out == NULL ? INVALID_VALUE : current_context(&context);
    if (code == OK) *out = context->flags;
    return leave(code);
}

EXPORT CUresult cuCtxSetFlags(unsigned flags) {
    ENTER(cuCtxSetFlags, 0);
    struct context *context;
    CUresult code = valid_flags(flags) ? current_context(&context) : INVALID_VALUE;
    if (code == OK) context->flags = flags;
    return leave(code);
}

/* A preference, which a GPU need not follow either. */
EXPORT CUresult cuCtxSetCacheConfig(int config) {
    ENTER(cuCtxSetCacheConfig, 0);
    struct context *context;
    CUresult code = config < 0 || config > 3 ? INVALID_VALUE : current_context(&context);
    if (code == OK) context->cache_config = config;
    return leave(code);
}

EXPORT CUresult cuCtxGetCacheConfig(int *out) {
    ENTER(cuCtxGetCacheConfig, 0);
    struct context *context;
    CUresult code = out == NULL ? INVALID_VALUE : current_context(&context);
    if (code == OK) *out = context->cache_config;
    return leave(code);
}

EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long *out) {
    ENTER(cuCtxGetId, DEAD_OK);
    struct context *context;
    CUresult code = out == NULL ? INVALID_VALUE : chosen_context(handle, &context);
    if (code == OK) *out = context->id;
    return leave(code);
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *out) {
    ENTER(cuCtxGetApiVersion, DEAD_OK);
    struct context *context;
    CUresult code = out == NULL ? INVALID_VALUE : chosen_context(handle, &context);
    if (code == OK) *out = 3020;
    return leave(code);
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(cuCtxGetStreamPriorityRange, 0);
    struct context *context;
    CUresult code = current_context(&context);
    if (code == OK && least != NULL) *least = 0;
    if (code == OK && greatest != NULL) *greatest = -5;
    return leave(code);
}

/* Only the three limits that mean something without a GPU. They are kept and have no effect. */
EXPORT CUresult cuCtxGetLimit(size_t *out, int limit) {
    ENTER(cuCtxGetLimit, 0);
    struct context *context;
    CUresult code = out == NULL ? INVALID_VALUE : current_context(&context);
    if (code == OK && (limit < 0 || limit > 2)) code = 215; /* CUDA_ERROR_UNSUPPORTED_LIMIT */
    if (code == OK) *out = context->limits[limit];
    return leave(code);
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    ENTER(cuCtxSetLimit, 0);
    struct context *context;
    CUresult code = current_context(&context);
    if (code == OK && (limit < 0 || limit > 2)) code = 215;
    if (code == OK) context->limits[limit] = value;
    return leave(code);
}

/* What concerns all streams of a context ends a capture of one of them. */
static CUresult find_uncaptured(CUcontext handle, struct context **out) {
    CUresult code = chosen_context(handle, out);
    for (struct capture *capture = sim.captures; code == OK && capture != NULL;
         capture = capture->next)
        if (capture->context == *out) {
            capture_invalidate(capture);
            code = CAPTURE_UNSUPPORTED;
        }
    return code;
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER(cuCtxSynchronize, UNSAFE | FREES);
    struct context *context;
    CUresult code = find_uncaptured(handle, &context);
    if (code == OK) code = context_drain(context);
    return leave(code);
}

/* All that the context has to do now: a hidden stream waits for each stream. */
EXPORT CUresult cuCtxRecordEvent(CUcontext handle, CUevent event_handle) {
    ENTER(cuCtxRecordEvent, ENQUEUES);
    struct context *context;
    struct event *event = find_event(event_handle);
    CUresult code = event == NULL ? INVALID_HANDLE : find_uncaptured(handle, &context);
    if (code == OK && event->context != context) code = INVALID_HANDLE;
    if (code != OK) return leave(code);
    struct stream *all = stream_make_hidden(context, 0);
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        if (stream == all || stream->tail == NULL) continue;
        struct op *record = op_new(OP_RECORD, 0), *wait = op_new(OP_WAIT_EVENT, 0);
        record->u.mark.marker = wait->u.mark.marker = marker_new();
        record->u.mark.marker->references++;
        enqueue_now(stream, record);
        enqueue_now(all, wait);
    }
    enqueue_now(all, event_record_op(event));
    return leave(OK);
}

EXPORT CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }
