/* The forms for programs whose stream 0 is the calling thread's own (cuGetProcAddress flag 2). */
#include "driver.h"

#include "api.h"

static CUstream or_mine(CUstream stream) { return stream != NULL ? stream : STREAM_PER_THREAD; }

EXPORT CUresult cuStreamGetPriority_ptsz(CUstream handle, int *out) {
    return cuStreamGetPriority(or_mine(handle), out);
}

EXPORT CUresult cuStreamGetFlags_ptsz(CUstream handle, unsigned *out) {
    return cuStreamGetFlags(or_mine(handle), out);
}

EXPORT CUresult cuStreamGetId_ptsz(CUstream handle, unsigned long long *out) {
    return cuStreamGetId(or_mine(handle), out);
}

EXPORT CUresult cuStreamGetDevice_ptsz(CUstream handle, CUdevice *out) {
    return cuStreamGetDevice(or_mine(handle), out);
}

EXPORT CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *out) {
    return cuStreamGetCtx(or_mine(handle), out);
}

EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream handle, CUcontext *out, void **green) {
    return cuStreamGetCtx_v2(or_mine(handle), out, green);
}

EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream_handle, CUevent handle, unsigned flags) {
    return cuStreamWaitEvent(or_mine(stream_handle), handle, flags);
}

EXPORT CUresult cuStreamQuery_ptsz(CUstream handle) { return cuStreamQuery(or_mine(handle)); }

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream handle) {
    return cuStreamSynchronize(or_mine(handle));
}

EXPORT CUresult cuStreamAddCallback_ptsz(CUstream handle, CUstreamCallback callback,
                                         void *user_data, unsigned flags) {
    return cuStreamAddCallback(or_mine(handle), callback, user_data, flags);
}

EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream handle, CUhostFn function, void *user_data) {
    return cuLaunchHostFunc(or_mine(handle), function, user_data);
}

EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream handle, CUdeviceptr address, size_t bytes,
                                            unsigned flags) {
    return cuStreamAttachMemAsync(or_mine(handle), address, bytes, flags);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream handle) {
    return cuStreamBeginCapture(or_mine(handle));
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream handle, int mode) {
    return cuStreamBeginCapture_v2(or_mine(handle), mode);
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream handle, CUgraph *out) {
    return cuStreamEndCapture(or_mine(handle), out);
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream handle, int *status) {
    return cuStreamIsCapturing(or_mine(handle), status);
}

EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream handle, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo(or_mine(handle), status, id);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream handle, int *status, uint64_t *id,
                                               CUgraph *graph, const CUgraphNode **nodes,
                                               size_t *count) {
    return cuStreamGetCaptureInfo_v2(or_mine(handle), status, id, graph, nodes, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream handle, int *status, uint64_t *id,
                                               CUgraph *graph, const CUgraphNode **nodes,
                                               const void **edges, size_t *count) {
    return cuStreamGetCaptureInfo_v3(or_mine(handle), status, id, graph, nodes, edges, count);
}

EXPORT CUresult cuStreamWaitValue32_v2_ptsz(CUstream handle, CUdeviceptr address, uint32_t value,
                                            unsigned flags) {
    return cuStreamWaitValue32_v2(or_mine(handle), address, value, flags);
}

EXPORT CUresult cuStreamWaitValue64_v2_ptsz(CUstream handle, CUdeviceptr address, uint64_t value,
                                            unsigned flags) {
    return cuStreamWaitValue64_v2(or_mine(handle), address, value, flags);
}

EXPORT CUresult cuStreamWriteValue32_v2_ptsz(CUstream handle, CUdeviceptr address, uint32_t value,
                                             unsigned flags) {
    return cuStreamWriteValue32_v2(or_mine(handle), address, value, flags);
}

EXPORT CUresult cuStreamWriteValue64_v2_ptsz(CUstream handle, CUdeviceptr address, uint64_t value,
                                             unsigned flags) {
    return cuStreamWriteValue64_v2(or_mine(handle), address, value, flags);
}

EXPORT CUresult cuEventRecord_ptsz(CUevent handle, CUstream stream) {
    return cuEventRecord(handle, or_mine(stream));
}

EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent handle, CUstream stream, unsigned flags) {
    return cuEventRecordWithFlags(handle, or_mine(stream), flags);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream handle) {
    return cuMemAllocAsync(out, bytes, or_mine(handle));
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream handle) {
    return cuMemFreeAsync(address, or_mine(handle));
}

EXPORT CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(STREAM_PER_THREAD, to, from, bytes);
}

EXPORT CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                   CUstream stream) {
    return cuMemcpyAsync(to, from, bytes, or_mine(stream));
}

EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
    return copy_to_device(STREAM_PER_THREAD, to, from, bytes);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes,
                                          CUstream stream) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, or_mine(stream));
}

EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
    return copy_to_host(STREAM_PER_THREAD, to, from, bytes);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes,
                                          CUstream stream) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, or_mine(stream));
}

EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_on_device(STREAM_PER_THREAD, to, from, bytes);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                          CUstream stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, or_mine(stream));
}

EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                  CUcontext from_context, size_t bytes) {
    return copy_to_peer(STREAM_PER_THREAD, to, to_context, from, from_context, bytes);
}

EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                       CUcontext from_context, size_t bytes, CUstream stream) {
    return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, or_mine(stream));
}

EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
    return fill1(STREAM_PER_THREAD, to, value, count);
}

EXPORT CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
    return fill2(STREAM_PER_THREAD, to, value, count);
}

EXPORT CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count) {
    return fill4(STREAM_PER_THREAD, to, value, count);
}

EXPORT CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count,
                                     CUstream stream) {
    return cuMemsetD8Async(to, value, count, or_mine(stream));
}

EXPORT CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count,
                                      CUstream stream) {
    return cuMemsetD16Async(to, value, count, or_mine(stream));
}

EXPORT CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count,
                                      CUstream stream) {
    return cuMemsetD32Async(to, value, count, or_mine(stream));
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y,
                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                    unsigned block_z, unsigned shared, CUstream stream,
                                    void **parameters, void **extra) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                          or_mine(stream), parameters, extra);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                      void **parameters, void **extra) {
    if (config == NULL || config->stream != NULL)
        return cuLaunchKernelEx(config, function, parameters, extra);
    CUlaunchConfig mine = *config;
    mine.stream = STREAM_PER_THREAD;
    return cuLaunchKernelEx(&mine, function, parameters, extra);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream handle, CUgraph graph_handle,
                                                 const CUgraphNode *nodes, const void *edges,
                                                 size_t count, int mode) {
    return cuStreamBeginCaptureToGraph(or_mine(handle), graph_handle, nodes, edges, count, mode);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream handle, int mode, CUgraph graph_handle,
                                                   CUrecaptureFn function, void *user_data) {
    return cuStreamBeginRecaptureToGraph(or_mine(handle), mode, graph_handle, function, user_data);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream handle, const CUgraphNode *nodes,
                                                       size_t count, unsigned flags) {
    return cuStreamUpdateCaptureDependencies(or_mine(handle), nodes, count, flags);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream handle, const CUgraphNode *nodes,
                                                          const void *edges, size_t count,
                                                          unsigned flags) {
    return cuStreamUpdateCaptureDependencies_v2(or_mine(handle), nodes, edges, count, flags);
}

EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream handle, int which, void *out) {
    return cuStreamGetAttribute(or_mine(handle), which, out);
}

EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream handle, int which, const void *value) {
    return cuStreamSetAttribute(or_mine(handle), which, value);
}

EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream to_handle, CUstream from_handle) {
    return cuStreamCopyAttributes(or_mine(to_handle), or_mine(from_handle));
}

EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream handle, unsigned count,
                                           const union word_params *words, unsigned flags) {
    return cuStreamBatchMemOp_v2(or_mine(handle), count, words, flags);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec handle, CUstream stream_handle) {
    return cuGraphUpload(handle, or_mine(stream_handle));
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec handle, CUstream stream_handle) {
    return cuGraphLaunch(handle, or_mine(stream_handle));
}

EXPORT CUresult cuLaunchHostFunc_v2_ptsz(CUstream handle, CUhostFn function, void *user_data,
                                         unsigned sync_mode) {
    return cuLaunchHostFunc_v2(or_mine(handle), function, user_data, sync_mode);
}

/* The stream is one to upload to, and nothing is carried anywhere here. */
EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph_handle,
                                                  struct instantiate_params *params) {
    return cuGraphInstantiateWithParams(out, graph_handle, params);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
    return cuMemAllocFromPoolAsync(out, bytes, pool, or_mine(stream));
}

EXPORT CUresult cuMemcpy2D_v2_ptds(const struct copy_params_2d *params) {
    return copy_2d_now(STREAM_PER_THREAD, params);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const struct copy_params_2d *params) {
    return copy_2d_unaligned(STREAM_PER_THREAD, params);
}

EXPORT CUresult cuMemcpy3D_v2_ptds(const struct copy_params *params) {
    return copy_3d_now(STREAM_PER_THREAD, params);
}

EXPORT CUresult cuMemcpy2DAsync_v2_ptsz(const struct copy_params_2d *params, CUstream stream) {
    return cuMemcpy2DAsync_v2(params, or_mine(stream));
}

EXPORT CUresult cuMemcpy3DAsync_v2_ptsz(const struct copy_params *params, CUstream stream) {
    return cuMemcpy3DAsync_v2(params, or_mine(stream));
}

#define FILLS(name, type, width)                                                                   \
    EXPORT CUresult name##_v2_ptds(CUdeviceptr to, size_t pitch, type value, size_t count,         \
                                   size_t height) {                                                \
        return fill_2d##width(STREAM_PER_THREAD, to, pitch, value, count, height);                 \
    }                                                                                              \
    EXPORT CUresult name##Async_ptsz(CUdeviceptr to, size_t pitch, type value, size_t count,       \
                                     size_t height, CUstream stream) {                             \
        return name##Async(to, pitch, value, count, height, or_mine(stream));                      \
    }
FILLS(cuMemsetD2D8, unsigned char, 1)
FILLS(cuMemsetD2D16, unsigned short, 2)
FILLS(cuMemsetD2D32, unsigned, 4)
