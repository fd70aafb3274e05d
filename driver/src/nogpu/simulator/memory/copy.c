/* Copies and fills: enqueued like any work, carried out by the engine in stream order. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <string.h>

enum { HOST_SIDE, DEVICE_SIDE, EITHER, PEER_SIDE };

/* The devices to which a pool gives access reach its memory. Between peers the driver itself
 * carries it. */
static CUresult check(const struct stream *stream, const void *address, size_t bytes, int side) {
    const struct allocation *found = find_allocation(address);
    if (found != NULL && found->pool != NULL && side != PEER_SIDE &&
        !pool_lets(found->pool, stream->context->device))
        return INVALID_VALUE;
    if (found != NULL || side == DEVICE_SIDE || side == PEER_SIDE)
        return check_device_memory((uintptr_t)address, bytes);
    /* pageable memory is trusted, as the driver does */
    return address != NULL ? OK : INVALID_VALUE;
}

static CUresult put(struct stream *stream, struct op *op, int node_type, bool wait) {
    if (stream->capture != NULL) {
        if (wait) {
            op_free(op);
            return capture_unsupported(stream);
        }
        return capture_add(stream, op, node_type);
    }
    CUresult code = enqueue(stream, op);
    return code == OK && wait ? stream_wait(stream, op->sequence) : code;
}

/* By the manual's rules for asynchronous copies, a pageable source was read when the call
 * returns, and a copy to pageable memory was carried out. Under capture the pointers are kept as
 * they are. */
static CUresult copy(CUstream handle, void *to, int to_side, const void *from, int from_side,
                     size_t bytes, bool wait) {
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && bytes == 0) return leave(OK);
    if (code == OK) code = check(stream, to, bytes, to_side);
    if (code == OK) code = check(stream, from, bytes, from_side);
    if (code != OK) return leave(code);
    bool captured = stream->capture != NULL;
    bool snapshot = !captured && !wait && find_allocation(from) == NULL;
    if (snapshot && !alloc_has(1, bytes)) return leave(OUT_OF_MEMORY);
    struct op *op = op_new(OP_COPY, snapshot ? bytes : 0);
    if (snapshot) memcpy(op->payload, from, bytes);
    op->u.copy.to = to;
    op->u.copy.from = snapshot ? op->payload : from;
    op->u.copy.bytes = bytes;
    op->u.copy.known_to = find_allocation(to) != NULL;
    op->u.copy.known_from = find_allocation(from) != NULL;
    return leave(put(stream, op, NODE_COPY, wait || (!captured && find_allocation(to) == NULL)));
}

#define DEVICE(address) ((void *)(uintptr_t)(address))

CUresult on_cuMemcpy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    ENTER(cuMemcpy, 0);
    return copy(stream, DEVICE(to), EITHER, DEVICE(from), EITHER, bytes, true);
}

CUresult on_cuMemcpyHtoD_v2(CUstream stream, CUdeviceptr to, const void *from, size_t bytes) {
    ENTER(cuMemcpyHtoD, 0);
    return copy(stream, DEVICE(to), DEVICE_SIDE, from, HOST_SIDE, bytes, true);
}

CUresult on_cuMemcpyDtoH_v2(CUstream stream, void *to, CUdeviceptr from, size_t bytes) {
    ENTER(cuMemcpyDtoH, 0);
    return copy(stream, to, HOST_SIDE, DEVICE(from), DEVICE_SIDE, bytes, true);
}

CUresult on_cuMemcpyDtoD_v2(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    ENTER(cuMemcpyDtoD, 0);
    return copy(stream, DEVICE(to), DEVICE_SIDE, DEVICE(from), DEVICE_SIDE, bytes, true);
}

CUresult on_cuMemcpyPeer(CUstream stream, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                         CUcontext from_context, size_t bytes) {
    ENTER(cuMemcpyPeer, 0);
    struct context *context;
    CUresult code = find_context(to_context, &context);
    if (code == OK) code = find_context(from_context, &context);
    if (code != OK) return leave(code);
    return copy(stream, DEVICE(to), PEER_SIDE, DEVICE(from), PEER_SIDE, bytes, true);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER(cuMemcpyAsync, ENQUEUES);
    return copy(stream, DEVICE(to), EITHER, DEVICE(from), EITHER, bytes, false);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                     CUstream stream) {
    ENTER(cuMemcpyHtoDAsync, ENQUEUES);
    return copy(stream, DEVICE(to), DEVICE_SIDE, from, HOST_SIDE, bytes, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER(cuMemcpyDtoHAsync, ENQUEUES);
    return copy(stream, to, HOST_SIDE, DEVICE(from), DEVICE_SIDE, bytes, false);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                     CUstream stream) {
    ENTER(cuMemcpyDtoDAsync, ENQUEUES);
    return copy(stream, DEVICE(to), DEVICE_SIDE, DEVICE(from), DEVICE_SIDE, bytes, false);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                  CUcontext from_context, size_t bytes, CUstream stream) {
    ENTER(cuMemcpyPeerAsync, ENQUEUES);
    struct context *context;
    CUresult code = find_context(to_context, &context);
    if (code == OK) code = find_context(from_context, &context);
    if (code != OK) return leave(code);
    return copy(stream, DEVICE(to), PEER_SIDE, DEVICE(from), PEER_SIDE, bytes, false);
}

/* --- fills --- */

/* A fill of device memory does not wait for its end, and a fill of other memory does. So the manual
 * says, and so an H200 answered for device memory and for pinned memory. */
static bool fill_waits(const void *to) {
    const struct allocation *found = find_allocation(to);
    return found == NULL || found->kind != MEMORY_DEVICE;
}

static CUresult fill(CUstream handle, CUdeviceptr to, uint32_t value, unsigned width, size_t count,
                     bool wait) {
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && count == 0) return leave(OK);
    if (code == OK && (to % width != 0 || count > SIZE_MAX / width)) code = INVALID_VALUE;
    if (code == OK) code = check(stream, DEVICE(to), count * width, DEVICE_SIDE);
    if (code != OK) return leave(code);
    struct op *op = op_new(OP_FILL, 0);
    op->u.fill.to = DEVICE(to);
    op->u.fill.value = value;
    op->u.fill.width = width;
    op->u.fill.count = count;
    bool waits = wait && (stream->capture != NULL || fill_waits(DEVICE(to)));
    return leave(put(stream, op, NODE_FILL, waits));
}

#define FILLS(name, type, width)                                                                   \
    CUresult on_##name##_v2(CUstream stream, CUdeviceptr to, type value, size_t count) {           \
        ENTER(name, 0);                                                                            \
        ;                                                                                          \
        return fill(stream, to, value, width, count, true);                                        \
    }                                                                                              \
    EXPORT CUresult name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {       \
        ENTER(name##Async, ENQUEUES);                                                              \
        return fill(stream, to, value, width, count, false);                                       \
    }
FILLS(cuMemsetD8, unsigned char, 1)
FILLS(cuMemsetD16, unsigned short, 2)
FILLS(cuMemsetD32, unsigned, 4)
