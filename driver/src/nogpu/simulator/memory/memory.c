/* Memory: allocating and freeing it, also in stream order, and the questions about pointers.
 * allocations.c has what there is. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <string.h>

/* Whether cuMemFree and cuMemFreeAsync free it: memory of a pool too, wherever it is. */
static bool is_freed_as_device(const struct allocation *allocation) {
    return is_on_device(allocation) || allocation->pool != NULL;
}

/* Freeing waits for the work of the memory's context, as cuMemFree does, because an op may still be
 * using it. */
static CUresult free_now(void *base, bool host) {
    struct allocation *found = find_allocation(base);
    if (found == NULL || found->base != (uintptr_t)base || found->freeing ||
        (host ? found->kind != MEMORY_HOST || found->pool != NULL : !is_freed_as_device(found)))
        return INVALID_VALUE;
    uint64_t id = found->id;
    CUresult code = context_drain(found->context);
    if (code != OK) return code;
    /* the table may have moved, or another thread may have freed it */
    found = find_allocation(base);
    if (found == NULL || found->id != id) return INVALID_VALUE;
    if (found->graph_memory == NULL) allocation_remove(found);
    else if (graph_memory_end(found->graph_memory) == OK) graph_memory_release(found->graph_memory);
    else return INVALID_VALUE;
    return OK;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    ENTER(cuMemGetInfo, 0);
    struct context *context;
    CUresult code = current_context(&context);
    if (code != OK) return leave(code);
    const struct device *device = &sim.devices[context->device];
    if (total != NULL) *total = device->total;
    if (unused != NULL) *unused = device->total - device->used;
    return leave(OK);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    ENTER(cuMemAlloc, UNSAFE);
    struct context *context;
    void *memory = NULL;
    CUresult code = out == NULL ? INVALID_VALUE : current_context(&context);
    if (code == OK) code = memory_make(context, bytes, MEMORY_DEVICE, 0, &memory);
    if (code == OK || (out != NULL && bytes == 0)) *out = (uintptr_t)memory; /* or NULL, and 1 */
    return leave(code);
}

/* Rows begin at multiples of 512 bytes, as on an H200. */
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    ENTER(cuMemAllocPitch, UNSAFE);
    struct context *context;
    void *memory;
    bool valid = out != NULL && pitch != NULL && width > 0 && height > 0 &&
                 (element == 4 || element == 8 || element == 16);
    CUresult code =
        !valid || width > SIZE_MAX / 2 / height - 512 ? INVALID_VALUE : current_context(&context);
    size_t row = (width + 511) / 512 * 512;
    if (code == OK) code = memory_make(context, row * height, MEMORY_DEVICE, 0, &memory);
    if (code != OK) return leave(code);
    *out = (uintptr_t)memory;
    *pitch = row;
    return leave(OK);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    ENTER(cuMemAllocManaged, UNSAFE);
    struct context *context;
    void *memory = NULL;
    CUresult code =
        out == NULL || (flags != 1 && flags != 2) ? INVALID_VALUE : current_context(&context);
    if (code == OK) code = memory_make(context, bytes, MEMORY_MANAGED, flags, &memory);
    if (code == OK || (out != NULL && bytes == 0)) *out = (uintptr_t)memory; /* or NULL, and 1 */
    return leave(code);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER(cuMemFree, UNSAFE | FREES);
    return leave(address == 0 ? OK : free_now((void *)(uintptr_t)address, false));
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    ENTER(cuMemGetAddressRange, 0);
    const struct allocation *found = find_allocation((void *)(uintptr_t)address);
    if (found == NULL) return leave(NOT_FOUND);
    if (base != NULL) *base = found->base;
    if (bytes != NULL) *bytes = found->bytes;
    return leave(OK);
}

/* --- in stream order --- */

/* The memory is there at once, for use in stream order; cuMemFreeAsync gives it back in stream
 * order. */
static CUresult allocate_async(CUdeviceptr *out, size_t bytes, struct pool *pool,
                               struct stream *stream) {
    void *memory;
    CUresult code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL)
        return leave(graph_memory_capture(stream, bytes, out));
    if (code == OK && bytes == 0) {
        *out = 0; /* NVIDIA's own tests allocate nothing, and free it */
        return leave(OK);
    }
    if (code == OK) code = memory_make_from(pool, stream->context, bytes, &memory);
    if (code == OK) *out = (uintptr_t)memory;
    return leave(code);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream handle) {
    ENTER(cuMemAllocAsync, ENQUEUES);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    return code == OK ? allocate_async(out, bytes, pool_now(stream->context->device), stream)
                      : leave(code);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool handle,
                                        CUstream stream_handle) {
    ENTER(cuMemAllocFromPoolAsync, ENQUEUES);
    struct pool *pool = object_find(handle, OBJECT_POOL);
    struct stream *stream;
    CUresult code = out == NULL || pool == NULL ? INVALID_VALUE : OK;
    if (code == OK) code = find_stream(stream_handle, &stream);
    return code == OK ? allocate_async(out, bytes, pool, stream) : leave(code);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    ENTER(cuMemFreeAsync, ENQUEUES);
    struct stream *stream;
    struct allocation *found = find_allocation((void *)(uintptr_t)address);
    CUresult code = find_stream(handle, &stream);
    if (code == OK && address == 0) return leave(OK);
    if (code == OK && (found == NULL || found->base != address || found->freeing))
        code = INVALID_VALUE;
    if (code == OK && found->pool == NULL && found->kind != MEMORY_DEVICE)
        code = found->kind == MEMORY_MANAGED ? NOT_SUPPORTED : INVALID_VALUE;
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL)
        return leave(graph_memory_capture_free(stream, address));
    if (code == OK && found->graph_memory != NULL) code = graph_memory_end(found->graph_memory);
    if (code != OK) return leave(code);
    found->freeing = found->graph_memory == NULL; /* a graph's memory has many lives */
    struct op *op = op_new(OP_FREE, 0);
    op->u.memory = (void *)(uintptr_t)address;
    return leave(enqueue(stream, op));
}

/* --- pinned host memory --- */

static CUresult allocate_host(void **out, size_t bytes, unsigned flags) {
    struct context *context;
    CUresult code = out == NULL || flags > 7 ? INVALID_VALUE : current_context(&context);
    if (code == OK && bytes == 0) *out = NULL; /* which is no error here, unlike for the others */
    else if (code == OK) code = memory_make(context, bytes, MEMORY_HOST, flags, out);
    return leave(code);
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
    ENTER(cuMemAllocHost, UNSAFE);
    return allocate_host(out, bytes, 0);
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER(cuMemHostAlloc, UNSAFE);
    return allocate_host(out, bytes, flags);
}

EXPORT CUresult cuMemFreeHost(void *address) {
    ENTER(cuMemFreeHost, UNSAFE | FREES);
    return leave(address == NULL ? OK : free_now(address, true));
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned flags) {
    ENTER(cuMemHostGetDevicePointer, 0);
    const struct allocation *found = find_allocation(address);
    if (out == NULL || flags != 0 || found == NULL || is_on_device(found))
        return leave(INVALID_VALUE);
    *out = (uintptr_t)address;
    return leave(OK);
}

EXPORT CUresult cuMemHostGetFlags(unsigned *out, void *address) {
    ENTER(cuMemHostGetFlags, 0);
    const struct allocation *found = find_allocation(address);
    if (out == NULL || found == NULL || is_on_device(found)) return leave(INVALID_VALUE);
    *out = found->flags;
    return leave(OK);
}

EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    ENTER(cuMemHostRegister, UNSAFE);
    struct context *context;
    CUresult code =
        address == NULL || bytes == 0 || flags > 15 ? INVALID_VALUE : current_context(&context);
    if (code == OK) {
        const struct allocation *last = allocation_before((uintptr_t)address + bytes - 1);
        if (last != NULL && last->base + last->bytes > (uintptr_t)address)
            code = last->kind == MEMORY_REGISTERED ? HOST_ALREADY_REGISTERED : INVALID_VALUE;
    }
    if (code == OK) allocation_add(address, bytes, context, MEMORY_REGISTERED, flags);
    return leave(code);
}

EXPORT CUresult cuMemHostUnregister(void *address) {
    ENTER(cuMemHostUnregister, UNSAFE | FREES);
    struct allocation *found = find_allocation(address);
    if (address == NULL) return leave(INVALID_VALUE);
    if (found == NULL || found->kind != MEMORY_REGISTERED) return leave(HOST_NOT_REGISTERED);
    if (found->base != (uintptr_t)address) return leave(INVALID_VALUE);
    allocation_remove(found);
    return leave(OK);
}

/* --- pointer attributes --- */

static CUresult attribute(void *out, int which, CUdeviceptr address,
                          const struct allocation *found) {
    switch (which) {
    case 1:
        *(CUcontext *)out = found->context;
        return OK;
    case 2:
        *(unsigned *)out = is_on_device(found) ? 2 : 1;
        return OK;
    case 3:
        *(CUdeviceptr *)out = address;
        return OK;
    case 4:
        if (found->kind == MEMORY_DEVICE) return INVALID_VALUE;
        *(void **)out = (void *)(uintptr_t)address;
        return OK;
    case 6: /* SYNC_MEMOPS: whether synchronous calls wait also where they need not */
        *(unsigned *)out = found->kind == MEMORY_MANAGED;
        return OK;
    case 7:
        *(unsigned long long *)out = found->id;
        return OK;
    case 8:
        *(unsigned *)out =
            found->kind == MEMORY_MANAGED; /* the manual says boolean, the driver writes an int */
        return OK;
    case 9:
        *(int *)out = found->device;
        return OK;
    case 10: /* IS_LEGACY_CUDA_IPC_CAPABLE: an H200 says so of device memory, but IPC is refused */
        *(unsigned *)out = 0;
        return OK;
    case 11:
        *(CUdeviceptr *)out = found->base;
        return OK;
    case 12:
        *(size_t *)out = found->bytes;
        return OK;
    case 13: /* MAPPED */
        *(unsigned *)out = 1;
        return OK;
    case 14: /* ALLOWED_HANDLE_TYPES */
        *(uint64_t *)out = found->pool != NULL ? (uint64_t)pool_handles(found->pool) : 0;
        return OK;
    case 16: /* ACCESS_FLAGS */
        *(unsigned *)out = 3;
        return OK;
    case 17:
        *(CUmemoryPool *)out = found->pool;
        return OK;
    default:
        return NOT_SUPPORTED;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *out, int which, CUdeviceptr address) {
    ENTER(cuPointerGetAttribute, FREES);
    const struct allocation *found = find_allocation((void *)(uintptr_t)address);
    return leave(out == NULL || found == NULL ? INVALID_VALUE
                                              : attribute(out, which, address, found));
}

static size_t attribute_bytes(int which) {
    bool word =
        which == 2 || which == 6 || (which >= 8 && which <= 10) || which == 13 || which == 16;
    return word ? 4 : 8;
}

/* Unlike the single call, this one answers for foreign pointers too: with zeros, and a device of
 * -2. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, int *which, void **out,
                                       CUdeviceptr address) {
    ENTER(cuPointerGetAttributes, 0);
    const struct allocation *found = find_allocation((void *)(uintptr_t)address);
    for (unsigned i = 0; i < count; i++) {
        memset(out[i], 0, attribute_bytes(which[i]));
        CUresult code = OK;
        if (found != NULL) code = attribute(out[i], which[i], address, found);
        else if (which[i] == 9) *(int *)out[i] = -2;
        if (code == NOT_SUPPORTED) return leave(code);
    }
    return leave(OK);
}
