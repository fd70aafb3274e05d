/* What the library exports: the driver's functions under their symbols' names, and the simulator's
 * own controls. */
#ifndef AIOSTREAM_SIMULATOR_API_H
#define AIOSTREAM_SIMULATOR_API_H

#include "driver.h"
#include "graph.h"

/* capture.c */
EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode);
EXPORT CUresult cuStreamBeginCapture(CUstream handle);
EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                            const CUgraphNode *nodes, const void *edges,
                                            size_t count, int mode);
EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream handle, int mode, CUgraph graph_handle,
                                              CUrecaptureFn function, void *user_data);
EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *out);
EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status);
EXPORT CUresult cuStreamGetCaptureInfo(CUstream handle, int *status, uint64_t *id);
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id,
                                          CUgraph *graph, const CUgraphNode **nodes, size_t *count);
EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id,
                                          CUgraph *graph, const CUgraphNode **nodes,
                                          const void **edges, size_t *count);
EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream handle, const CUgraphNode *nodes,
                                                  size_t count, unsigned flags);
EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, const CUgraphNode *nodes,
                                                     const void *edges, size_t count,
                                                     unsigned flags);
EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode);

/* context.c */
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal);
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal);
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal);
EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags);
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active);
EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal);
EXPORT CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int affinity_count, unsigned flags,
                               CUdevice ordinal);
EXPORT CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice ordinal);
EXPORT CUresult cuCtxDestroy_v2(CUcontext handle);
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle);
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out);
EXPORT CUresult cuCtxSetCurrent(CUcontext handle);
EXPORT CUresult cuCtxGetCurrent(CUcontext *out);
EXPORT CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext handle);
EXPORT CUresult cuCtxGetDevice(CUdevice *out);
EXPORT CUresult cuCtxGetFlags(unsigned *out);
EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long *out);
EXPORT CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *out);
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
EXPORT CUresult cuCtxGetLimit(size_t *out, int limit);
EXPORT CUresult cuCtxSetLimit(int limit, size_t value);
EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle);
EXPORT CUresult cuCtxSynchronize(void);

/* control.c */
EXPORT CUresult aiostream_sim_configure(int devices, int driver_version, size_t memory_bytes,
                                        int hardware_queues);
EXPORT CUresult aiostream_sim_fail(const char *name, CUresult code, unsigned long nth);
EXPORT int aiostream_sim_clear_faults(void);
EXPORT void aiostream_sim_seed(uint64_t seed, int on);
EXPORT void aiostream_sim_adversary(int driver_lock, uint64_t enqueue_ns, int shuffle,
                                    uint64_t late_ns, int fire_after_fault);
EXPORT void aiostream_sim_break(CUresult code);
EXPORT CUresult aiostream_sim_recover(void);
EXPORT long aiostream_sim_calls(const char *name);
EXPORT int aiostream_sim_known(int i, const char **name, int *lacking, unsigned long *count);
EXPORT size_t aiostream_sim_pending(void);

/* copy.c */
EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                             CUcontext from_context, size_t bytes);
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                     CUstream stream);
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                     CUstream stream);
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                  CUcontext from_context, size_t bytes, CUstream stream);
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count);
EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count,
                                 CUstream stream);
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count);
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream);

/* device.c */
EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal);
EXPORT CUresult cuDeviceGetCount(int *out);
EXPORT CUresult cuDeviceGetName(char *out, int length, CUdevice device);
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device);
EXPORT CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device);
EXPORT CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device);
EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device);
EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device);
EXPORT CUresult cuDeviceGetPCIBusId(char *out, int length, CUdevice device);
EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *id);
EXPORT CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer);
EXPORT CUresult cuDeviceGetP2PAttribute(int *out, int which, CUdevice device, CUdevice peer);
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags);
EXPORT CUresult cuCtxDisablePeerAccess(CUcontext handle);

/* entry.c */
EXPORT CUresult cuInit(unsigned flags);
EXPORT CUresult cuDriverGetVersion(int *version);
EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                    int *status);

/* errors.c */
EXPORT CUresult cuGetErrorName(CUresult code, const char **out);
EXPORT CUresult cuGetErrorString(CUresult code, const char **out);

/* event.c */
EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags);
EXPORT CUresult cuEventDestroy_v2(CUevent handle);
EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream);
EXPORT CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned flags);
EXPORT CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags);
EXPORT CUresult cuEventQuery(CUevent handle);
EXPORT CUresult cuEventSynchronize(CUevent handle);
EXPORT CUresult cuEventElapsedTime_v2(float *out, CUevent start_handle, CUevent end_handle);
EXPORT CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end);

/* graph.c */
EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned flags);
EXPORT CUresult cuGraphDestroy(CUgraph handle);
EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph handle);
EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode handle, CUgraph clone_handle);
EXPORT CUresult cuGraphDestroyNode(CUgraphNode handle);
EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count);
EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *count);
EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, int *out);
EXPORT CUresult cuGraphGetId(CUgraph handle, unsigned *out);
EXPORT CUresult cuGraphNodeGetLocalId(CUgraphNode handle, unsigned *out);
EXPORT CUresult cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph *out);
EXPORT CUresult cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned flags);

/* kernels.c */
EXPORT CUresult aiostream_sim_register_kernel(const char *name, void (*function)(void **),
                                              const unsigned *sizes, const unsigned *aligns,
                                              unsigned count);
EXPORT int aiostream_sim_has_kernel(const char *name);

/* memory.c */
EXPORT CUresult cuMemGetInfo_v2(size_t *unused, size_t *total);
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                   unsigned element);
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags);
EXPORT CUresult cuMemFree_v2(CUdeviceptr address);
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle);
EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes);
EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
EXPORT CUresult cuMemFreeHost(void *address);
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned flags);
EXPORT CUresult cuMemHostGetFlags(unsigned *out, void *address);
EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags);
EXPORT CUresult cuMemHostUnregister(void *address);
EXPORT CUresult cuPointerGetAttribute(void *out, int which, CUdeviceptr address);
EXPORT CUresult cuPointerGetAttributes(unsigned count, int *which, void **out, CUdeviceptr address);

/* pool.c */
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const struct pool_props *props);
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle);
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep);
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int which, void *out);
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int which, const void *value);
EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const struct access *map, size_t count);
EXPORT CUresult cuMemPoolGetAccess(int *out, CUmemoryPool handle, const struct location *location);
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device);
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device);
EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, const struct location *location,
                                       int allocation);
EXPORT CUresult cuMemGetMemPool(CUmemoryPool *out, const struct location *location, int allocation);
EXPORT CUresult cuMemSetMemPool(const struct location *location, int allocation, CUmemoryPool pool);
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream handle);
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool handle,
                                        CUstream stream_handle);

/* rows.c */
EXPORT CUresult cuMemcpy2D_v2(const struct copy_params_2d *params);
EXPORT CUresult cuMemcpy2DUnaligned_v2(const struct copy_params_2d *params);
EXPORT CUresult cuMemcpy3D_v2(const struct copy_params *params);
EXPORT CUresult cuMemcpy2DAsync_v2(const struct copy_params_2d *params, CUstream stream);
EXPORT CUresult cuMemcpy3DAsync_v2(const struct copy_params *params, CUstream stream);
EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t count,
                                size_t height);
EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t count,
                                  size_t height, CUstream stream);
EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t count,
                                 size_t height);
EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t count,
                                   size_t height, CUstream stream);
EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t count,
                                 size_t height);
EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t count,
                                   size_t height, CUstream stream);

/* module.c */
EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path);
EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image);
EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options,
                                   void **values);
EXPORT CUresult cuModuleUnload(CUmodule handle);
EXPORT CUresult cuModuleGetLoadingMode(int *out);
EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name);
EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *bytes, CUmodule handle,
                                     const char *name);
EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jit, void **jit_values,
                                  unsigned jit_count, int *options, void **values, unsigned count);
EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values,
                                      unsigned jit_count, int *options, void **values,
                                      unsigned count);
EXPORT CUresult cuLibraryUnload(CUlibrary handle);
EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name);
EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle);
EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *out, size_t *bytes, CUlibrary handle,
                                   const char *name);
EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel);
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                               unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared, CUstream stream,
                               void **parameters, void **extra);
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                 void **parameters, void **extra);

/* function.c */
EXPORT CUresult cuFuncGetName(const char **out, CUfunction handle);
EXPORT CUresult cuKernelGetName(const char **out, CUkernel handle);
EXPORT CUresult cuFuncGetModule(CUmodule *out, CUfunction handle);
EXPORT CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel handle);
EXPORT CUresult cuFuncLoad(CUfunction handle);
EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction handle);
EXPORT CUresult cuFuncGetAttribute(int *out, int which, CUfunction handle);
EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int which, int value);
EXPORT CUresult cuKernelGetAttribute(int *out, int which, CUkernel handle, CUdevice device);
EXPORT CUresult cuKernelSetAttribute(int which, int value, CUkernel handle, CUdevice device);
EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, int config);
EXPORT CUresult cuKernelSetCacheConfig(CUkernel handle, int config, CUdevice device);
EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction handle, int config);
EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *bytes);
EXPORT CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *bytes);
EXPORT CUresult cuFuncGetParamCount(CUfunction handle, size_t *count);
EXPORT CUresult cuKernelGetParamCount(CUkernel handle, size_t *count);
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction function,
                                                            int block_size, size_t shared_bytes);
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction function,
                                                                     int block_size,
                                                                     size_t shared_bytes,
                                                                     unsigned flags);
EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                                 size_t (*shared_of)(int), size_t shared_bytes,
                                                 int limit);
EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block,
                                                          CUfunction function,
                                                          size_t (*shared_of)(int),
                                                          size_t shared_bytes, int limit,
                                                          unsigned flags);
EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *out, CUfunction handle, int blocks,
                                                        int block_size);
EXPORT CUresult cuProfilerStart(void);
EXPORT CUresult cuProfilerStop(void);

/* stream.c */
EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags);
EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority);
EXPORT CUresult cuStreamDestroy_v2(CUstream handle);
EXPORT CUresult cuStreamGetPriority(CUstream handle, int *out);
EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *out);
EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *out);
EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *out);
EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *out, void **green);
EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *out);
EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *out);
EXPORT CUresult cuStreamQuery(CUstream handle);
EXPORT CUresult cuStreamSynchronize(CUstream handle);
EXPORT CUresult cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *user_data,
                                    unsigned sync_mode);
EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user_data);
EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *user_data,
                                    unsigned flags);
EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t bytes,
                                       unsigned flags);

/* attributes.c */
EXPORT CUresult cuStreamGetAttribute(CUstream handle, int which, void *out);
EXPORT CUresult cuStreamSetAttribute(CUstream handle, int which, const void *value);
EXPORT CUresult cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle);
EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, int which, void *out);
EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, int which, const void *value);
EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to_handle, CUgraphNode from_handle);

/* dependencies.c */
EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from,
                                       const CUgraphNode *to, size_t count);
EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                          const CUgraphNode *to, const void *edges, size_t count);
EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from,
                                          const CUgraphNode *to, size_t count);
EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                             const CUgraphNode *to, const void *edges,
                                             size_t count);
EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *edges,
                                   size_t *count);
EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count);
EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, void *edges,
                                              size_t *count);
EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count);
EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, void *edges,
                                                size_t *count);

/* executable.c */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                            unsigned long long flags);
EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph_handle,
                                             struct instantiate_params *params);
EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle);
EXPORT CUresult cuGraphExecGetFlags(CUgraphExec handle, uint64_t *out);
EXPORT CUresult cuGraphExecGetId(CUgraphExec handle, unsigned *out);
EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle,
                                     struct update_info *info);
EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
                                                  const struct kernel_params *params);
EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                               const struct copy_params *params, CUcontext context);
EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                               const struct fill_params *params, CUcontext context);
EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                             const struct host_params *params);
EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                   CUgraph child);
EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec handle, CUgraphNode node,
                                                   CUevent event);
EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec handle, CUgraphNode node,
                                                 CUevent event);
EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                   const struct words_params *params);
EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                         const struct node_params *params);
EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node_handle,
                                      unsigned enabled);
EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned *out);

/* graphmemory.c */
EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int which, void *out);
EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int which, void *value);
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device);

/* launch.c */
EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle);
EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle);

/* memop.c */
EXPORT CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, uint32_t value,
                                       unsigned flags);
EXPORT CUresult cuStreamWaitValue64_v2(CUstream handle, CUdeviceptr address, uint64_t value,
                                       unsigned flags);
EXPORT CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, uint32_t value,
                                        unsigned flags);
EXPORT CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr address, uint64_t value,
                                        unsigned flags);
EXPORT CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned count,
                                      const union word_params *words, unsigned flags);

/* nodes.c */
EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                        size_t count, const struct kernel_params *params);
EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                     size_t count, const struct copy_params *params,
                                     CUcontext context);
EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                     size_t count, const struct fill_params *params,
                                     CUcontext context);
EXPORT CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                   size_t count, const struct host_params *params);
EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                         size_t count, CUgraph child);
EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                    size_t count);
EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph,
                                          const CUgraphNode *before, size_t count, CUevent event);
EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                        size_t count, CUevent event);
EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                         size_t count, const struct words_params *params);
EXPORT CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                               size_t count, const struct node_params *params);
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                  const void *edges, size_t count,
                                  const struct node_params *params);
EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, struct kernel_params *out);
EXPORT CUresult cuGraphNodeGetParams(CUgraphNode node, struct node_params *out);
EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const struct kernel_params *params);
EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const struct copy_params *params);
EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const struct fill_params *params);
EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node, const struct host_params *params);
EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event);
EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event);
EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const struct words_params *params);
EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, const struct node_params *params);
EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, struct copy_params *out);
EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, struct fill_params *out);
EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode node, struct host_params *out);
EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *out);
EXPORT CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *out);
EXPORT CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *out);
EXPORT CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, struct words_params *out);

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                       size_t count, struct alloc_params *params);
EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                      size_t count, CUdeviceptr address);
EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, struct alloc_params *out);
EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *out);

/* userobject.c */
EXPORT CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy,
                                   unsigned count, unsigned flags);
EXPORT CUresult cuUserObjectRetain(CUuserObject handle, unsigned count);
EXPORT CUresult cuUserObjectRelease(CUuserObject handle, unsigned count);
EXPORT CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                        unsigned flags);
EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count);

/* copy.c and rows.c, for the per-thread forms of perthread.c: synchronous, on a stream of choice;
 * hidden */
CUresult copy_now(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult copy_to_device(CUstream stream, CUdeviceptr to, const void *from, size_t bytes);
CUresult copy_to_host(CUstream stream, void *to, CUdeviceptr from, size_t bytes);
CUresult copy_on_device(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult copy_to_peer(CUstream stream, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes);
CUresult fill1(CUstream stream, CUdeviceptr to, unsigned char value, size_t count);
CUresult fill2(CUstream stream, CUdeviceptr to, unsigned short value, size_t count);
CUresult fill4(CUstream stream, CUdeviceptr to, unsigned value, size_t count);
CUresult copy_2d_now(CUstream stream, const struct copy_params_2d *params);
CUresult copy_2d_unaligned(CUstream stream, const struct copy_params_2d *params);
CUresult copy_3d_now(CUstream stream, const struct copy_params *params);
CUresult fill_2d1(CUstream stream, CUdeviceptr to, size_t pitch, unsigned char value, size_t count,
                  size_t height);
CUresult fill_2d2(CUstream stream, CUdeviceptr to, size_t pitch, unsigned short value, size_t count,
                  size_t height);
CUresult fill_2d4(CUstream stream, CUdeviceptr to, size_t pitch, unsigned value, size_t count,
                  size_t height);

/* perthread.c */
EXPORT CUresult cuStreamGetPriority_ptsz(CUstream handle, int *out);
EXPORT CUresult cuStreamGetFlags_ptsz(CUstream handle, unsigned *out);
EXPORT CUresult cuStreamGetId_ptsz(CUstream handle, unsigned long long *out);
EXPORT CUresult cuStreamGetDevice_ptsz(CUstream handle, CUdevice *out);
EXPORT CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *out);
EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream handle, CUcontext *out, void **green);
EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream_handle, CUevent handle, unsigned flags);
EXPORT CUresult cuStreamQuery_ptsz(CUstream handle);
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream handle);
EXPORT CUresult cuStreamAddCallback_ptsz(CUstream handle, CUstreamCallback callback,
                                         void *user_data, unsigned flags);
EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream handle, CUhostFn function, void *user_data);
EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream handle, CUdeviceptr address, size_t bytes,
                                            unsigned flags);
EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream handle);
EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream handle, int mode);
EXPORT CUresult cuStreamEndCapture_ptsz(CUstream handle, CUgraph *out);
EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream handle, int *status);
EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream handle, int *status, uint64_t *id);
EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream handle, int *status, uint64_t *id,
                                               CUgraph *graph, const CUgraphNode **nodes,
                                               size_t *count);
EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream handle, int *status, uint64_t *id,
                                               CUgraph *graph, const CUgraphNode **nodes,
                                               const void **edges, size_t *count);
EXPORT CUresult cuStreamWaitValue32_v2_ptsz(CUstream handle, CUdeviceptr address, uint32_t value,
                                            unsigned flags);
EXPORT CUresult cuStreamWaitValue64_v2_ptsz(CUstream handle, CUdeviceptr address, uint64_t value,
                                            unsigned flags);
EXPORT CUresult cuStreamWriteValue32_v2_ptsz(CUstream handle, CUdeviceptr address, uint32_t value,
                                             unsigned flags);
EXPORT CUresult cuStreamWriteValue64_v2_ptsz(CUstream handle, CUdeviceptr address, uint64_t value,
                                             unsigned flags);
EXPORT CUresult cuEventRecord_ptsz(CUevent handle, CUstream stream);
EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent handle, CUstream stream, unsigned flags);
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream handle);
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream handle);
EXPORT CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes);
EXPORT CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes,
                                          CUstream stream);
EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes,
                                          CUstream stream);
EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
EXPORT CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                          CUstream stream);
EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                  CUcontext from_context, size_t bytes);
EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                       CUcontext from_context, size_t bytes, CUstream stream);
EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count);
EXPORT CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count);
EXPORT CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count);
EXPORT CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count,
                                     CUstream stream);
EXPORT CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count,
                                      CUstream stream);
EXPORT CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count,
                                      CUstream stream);
EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y,
                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                    unsigned block_z, unsigned shared, CUstream stream,
                                    void **parameters, void **extra);
EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                      void **parameters, void **extra);
EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream handle, CUgraph graph_handle,
                                                 const CUgraphNode *nodes, const void *edges,
                                                 size_t count, int mode);
EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream handle, int mode, CUgraph graph_handle,
                                                   CUrecaptureFn function, void *user_data);
EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream handle, const CUgraphNode *nodes,
                                                       size_t count, unsigned flags);
EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream handle, const CUgraphNode *nodes,
                                                          const void *edges, size_t count,
                                                          unsigned flags);
EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream handle, int which, void *out);
EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream handle, int which, const void *value);
EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream to_handle, CUstream from_handle);
EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream handle, unsigned count,
                                           const union word_params *words, unsigned flags);
EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec handle, CUstream stream_handle);
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec handle, CUstream stream_handle);
EXPORT CUresult cuLaunchHostFunc_v2_ptsz(CUstream handle, CUhostFn function, void *user_data,
                                         unsigned sync_mode);
EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph_handle,
                                                  struct instantiate_params *params);
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
                                             CUstream stream);
EXPORT CUresult cuMemcpy2D_v2_ptds(const struct copy_params_2d *params);
EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const struct copy_params_2d *params);
EXPORT CUresult cuMemcpy3D_v2_ptds(const struct copy_params *params);
EXPORT CUresult cuMemcpy2DAsync_v2_ptsz(const struct copy_params_2d *params, CUstream stream);
EXPORT CUresult cuMemcpy3DAsync_v2_ptsz(const struct copy_params *params, CUstream stream);
EXPORT CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value,
                                     size_t count, size_t height);
EXPORT CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value,
                                       size_t count, size_t height, CUstream stream);
EXPORT CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value,
                                      size_t count, size_t height);
EXPORT CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value,
                                        size_t count, size_t height, CUstream stream);
EXPORT CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned value, size_t count,
                                      size_t height);
EXPORT CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned value, size_t count,
                                        size_t height, CUstream stream);

#endif
