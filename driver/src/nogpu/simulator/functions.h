/* Every driver function that the simulator knows, one row for each version of it:
 *
 *   CALL(name, version, symbol, forms, parameters)  It is simulated.
 *   AGAIN(...)                                      A further version of the one above.
 *   LACK(name, version, symbol, forms)              Real drivers have it. Here it answers 801.
 *   LACK_AGAIN(...)                                 A further version of the one above.
 *
 * A driver older than the CUDA version `version` does not have the function. The library exports
 * `symbol` for it, as libcuda.so.1 does, because programs look functions up by dlsym too, and NVRTC
 * crashes where a symbol is missing. `forms` says which form there is in addition, for programs
 * whose stream 0 is the thread's own:
 *
 *   none  There is no other form.
 *   ptsz  symbol_ptsz, which perthread.c makes: it replaces a CUstream parameter of 0.
 *   ptds  symbol_ptds. The call has no stream. perthread.c makes both forms, from on_symbol, which
 *         takes the stream as its first parameter and is the one that is written by hand.
 *   own   symbol_ptsz, written by hand.
 *
 * The rows of the last two kinds are in lacking.h. To simulate one more function, move its row from
 * there, make it a CALL and write the function. Its declaration, its other form, and its place for
 * cuGetProcAddress come from the row.
 *
 * Define what you want of the rows before each include. The other rows then expand to nothing. */
#ifndef CALL
#define CALL(name, version, symbol, forms, parameters)
#endif
#ifndef AGAIN
#define AGAIN(name, version, symbol, forms, parameters)
#endif
#ifndef LACK
#define LACK(name, version, symbol, forms)
#endif
#ifndef LACK_AGAIN
#define LACK_AGAIN(name, version, symbol, forms)
#endif

/* clang-format off */
CALL(cuGetErrorString, 6000, cuGetErrorString, none, (CUresult, const char **))
CALL(cuGetErrorName, 6000, cuGetErrorName, none, (CUresult, const char **))
CALL(cuInit, 2000, cuInit, none, (unsigned))
CALL(cuDriverGetVersion, 2020, cuDriverGetVersion, none, (int *))
CALL(cuGetProcAddress, 11030, cuGetProcAddress, none, (const char *, void **, int, uint64_t))
AGAIN(cuGetProcAddress, 12000, cuGetProcAddress_v2, none,
     (const char *, void **, int, uint64_t, int *))
CALL(cuDeviceGet, 2000, cuDeviceGet, none, (CUdevice *, int))
CALL(cuDeviceGetCount, 2000, cuDeviceGetCount, none, (int *))
CALL(cuDeviceGetName, 2000, cuDeviceGetName, none, (char *, int, CUdevice))
CALL(cuDeviceGetUuid, 9020, cuDeviceGetUuid, none, (CUuuid *, CUdevice))
AGAIN(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2, none, (CUuuid *, CUdevice))
CALL(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, none, (size_t *, CUdevice))
CALL(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute, none, (int *, int, CUdevice))
CALL(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability, none, (int *, int *, CUdevice))
CALL(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId, none, (char *, int, CUdevice))
CALL(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId, none, (CUdevice *, const char *))
CALL(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer, none, (int *, CUdevice, CUdevice))
CALL(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, none, (CUcontext *, CUdevice))
CALL(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease_v2, none, (CUdevice))
AGAIN(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, none, (CUdevice))
CALL(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2, none, (CUdevice, unsigned))
CALL(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState, none,
     (CUdevice, unsigned *, int *))
CALL(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2, none, (CUdevice))
CALL(cuCtxCreate, 3020, cuCtxCreate_v2, none, (CUcontext *, unsigned, CUdevice))
AGAIN(cuCtxCreate, 11040, cuCtxCreate_v3, none, (CUcontext *, void *, int, unsigned, CUdevice))
AGAIN(cuCtxCreate, 12050, cuCtxCreate_v4, none, (CUcontext *, void *, unsigned, CUdevice))
CALL(cuCtxDestroy, 4000, cuCtxDestroy_v2, none, (CUcontext))
CALL(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2, none, (CUcontext))
CALL(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2, none, (CUcontext *))
CALL(cuCtxSetCurrent, 4000, cuCtxSetCurrent, none, (CUcontext))
CALL(cuCtxGetCurrent, 4000, cuCtxGetCurrent, none, (CUcontext *))
CALL(cuCtxGetDevice, 2000, cuCtxGetDevice, none, (CUdevice *))
AGAIN(cuCtxGetDevice, 13000, cuCtxGetDevice_v2, none, (CUdevice *, CUcontext))
CALL(cuCtxGetFlags, 7000, cuCtxGetFlags, none, (unsigned *))
CALL(cuCtxGetId, 12000, cuCtxGetId, none, (CUcontext, unsigned long long *))
CALL(cuCtxSynchronize, 2000, cuCtxSynchronize, none, (void))
AGAIN(cuCtxSynchronize, 13000, cuCtxSynchronize_v2, none, (CUcontext))
CALL(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange, none, (int *, int *))
CALL(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion, none, (CUcontext, unsigned *))
CALL(cuCtxGetLimit, 3010, cuCtxGetLimit, none, (size_t *, int))
CALL(cuCtxSetLimit, 3010, cuCtxSetLimit, none, (int, size_t))
CALL(cuStreamCreate, 2000, cuStreamCreate, none, (CUstream *, unsigned))
CALL(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority, none,
     (CUstream *, unsigned, int))
CALL(cuStreamDestroy, 4000, cuStreamDestroy_v2, none, (CUstream))
CALL(cuStreamGetPriority, 5050, cuStreamGetPriority, ptsz, (CUstream, int *))
CALL(cuStreamGetFlags, 5050, cuStreamGetFlags, ptsz, (CUstream, unsigned *))
CALL(cuStreamGetId, 12000, cuStreamGetId, ptsz, (CUstream, unsigned long long *))
CALL(cuStreamGetDevice, 12080, cuStreamGetDevice, ptsz, (CUstream, CUdevice *))
CALL(cuStreamGetCtx, 9020, cuStreamGetCtx, ptsz, (CUstream, CUcontext *))
AGAIN(cuStreamGetCtx, 12050, cuStreamGetCtx_v2, ptsz, (CUstream, CUcontext *, void **))
CALL(cuStreamWaitEvent, 3020, cuStreamWaitEvent, ptsz, (CUstream, CUevent, unsigned))
CALL(cuStreamQuery, 2000, cuStreamQuery, ptsz, (CUstream))
CALL(cuStreamSynchronize, 2000, cuStreamSynchronize, ptsz, (CUstream))
CALL(cuStreamAddCallback, 5000, cuStreamAddCallback, ptsz,
     (CUstream, CUstreamCallback, void *, unsigned))
CALL(cuLaunchHostFunc, 10000, cuLaunchHostFunc, ptsz, (CUstream, CUhostFn, void *))
AGAIN(cuLaunchHostFunc, 13020, cuLaunchHostFunc_v2, ptsz, (CUstream, CUhostFn, void *, unsigned))
CALL(cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync, ptsz,
     (CUstream, CUdeviceptr, size_t, unsigned))
CALL(cuStreamBeginCapture, 10000, cuStreamBeginCapture, ptsz, (CUstream))
AGAIN(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, ptsz, (CUstream, int))
CALL(cuStreamEndCapture, 10000, cuStreamEndCapture, ptsz, (CUstream, CUgraph *))
CALL(cuStreamIsCapturing, 10000, cuStreamIsCapturing, ptsz, (CUstream, int *))
CALL(cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo, ptsz, (CUstream, int *, uint64_t *))
AGAIN(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2, ptsz,
     (CUstream, int *, uint64_t *, CUgraph *, const CUgraphNode **, size_t *))
AGAIN(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3, ptsz,
     (CUstream, int *, uint64_t *, CUgraph *, const CUgraphNode **, const void **, size_t *))
CALL(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode, none, (int *))
CALL(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2, ptsz,
     (CUstream, CUdeviceptr, uint32_t, unsigned))
CALL(cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2, ptsz,
     (CUstream, CUdeviceptr, uint64_t, unsigned))
CALL(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2, ptsz,
     (CUstream, CUdeviceptr, uint32_t, unsigned))
CALL(cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2, ptsz,
     (CUstream, CUdeviceptr, uint64_t, unsigned))
CALL(cuEventCreate, 2000, cuEventCreate, none, (CUevent *, unsigned))
CALL(cuEventDestroy, 4000, cuEventDestroy_v2, none, (CUevent))
CALL(cuEventRecord, 2000, cuEventRecord, ptsz, (CUevent, CUstream))
CALL(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags, ptsz, (CUevent, CUstream, unsigned))
CALL(cuEventQuery, 2000, cuEventQuery, none, (CUevent))
CALL(cuEventSynchronize, 2000, cuEventSynchronize, none, (CUevent))
CALL(cuEventElapsedTime, 2000, cuEventElapsedTime, none, (float *, CUevent, CUevent))
AGAIN(cuEventElapsedTime, 12080, cuEventElapsedTime_v2, none, (float *, CUevent, CUevent))
CALL(cuMemGetInfo, 3020, cuMemGetInfo_v2, none, (size_t *, size_t *))
CALL(cuMemAlloc, 3020, cuMemAlloc_v2, none, (CUdeviceptr *, size_t))
CALL(cuMemFree, 3020, cuMemFree_v2, none, (CUdeviceptr))
CALL(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2, none,
     (CUdeviceptr *, size_t *, CUdeviceptr))
CALL(cuMemAllocHost, 3020, cuMemAllocHost_v2, none, (void **, size_t))
CALL(cuMemFreeHost, 2000, cuMemFreeHost, none, (void *))
CALL(cuMemHostAlloc, 2020, cuMemHostAlloc, none, (void **, size_t, unsigned))
CALL(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2, none,
     (CUdeviceptr *, void *, unsigned))
CALL(cuMemHostGetFlags, 2030, cuMemHostGetFlags, none, (unsigned *, void *))
CALL(cuMemHostRegister, 6050, cuMemHostRegister_v2, none, (void *, size_t, unsigned))
CALL(cuMemHostUnregister, 4000, cuMemHostUnregister, none, (void *))
CALL(cuMemAllocManaged, 6000, cuMemAllocManaged, none, (CUdeviceptr *, size_t, unsigned))
CALL(cuMemAdvise, 8000, cuMemAdvise, none, (CUdeviceptr, size_t, int, CUdevice))
AGAIN(cuMemAdvise, 12020, cuMemAdvise_v2, none, (CUdeviceptr, size_t, int, struct location))
CALL(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync, ptsz, (CUdeviceptr, size_t, CUdevice, CUstream))
AGAIN(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2, ptsz,
     (CUdeviceptr, size_t, struct location, unsigned, CUstream))
CALL(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync, ptsz,
     (CUdeviceptr *, size_t *, size_t, struct location *, size_t *, size_t, unsigned long long,
      CUstream))
CALL(cuMemDiscardBatchAsync, 13000, cuMemDiscardBatchAsync, ptsz,
     (CUdeviceptr *, size_t *, size_t, unsigned long long, CUstream))
CALL(cuMemDiscardAndPrefetchBatchAsync, 13000, cuMemDiscardAndPrefetchBatchAsync, ptsz,
     (CUdeviceptr *, size_t *, size_t, struct location *, size_t *, size_t, unsigned long long,
      CUstream))
CALL(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute, none,
     (void *, size_t, int, CUdeviceptr, size_t))
CALL(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes, none,
     (void **, size_t *, int *, size_t, CUdeviceptr, size_t))
CALL(cuMemAllocAsync, 11020, cuMemAllocAsync, ptsz, (CUdeviceptr *, size_t, CUstream))
CALL(cuMemFreeAsync, 11020, cuMemFreeAsync, ptsz, (CUdeviceptr, CUstream))
CALL(cuPointerGetAttribute, 4000, cuPointerGetAttribute, none, (void *, int, CUdeviceptr))
CALL(cuPointerGetAttributes, 7000, cuPointerGetAttributes, none,
     (unsigned, int *, void **, CUdeviceptr))
CALL(cuMemcpy, 4000, cuMemcpy, ptds, (CUdeviceptr, CUdeviceptr, size_t))
CALL(cuMemcpyAsync, 4000, cuMemcpyAsync, ptsz, (CUdeviceptr, CUdeviceptr, size_t, CUstream))
CALL(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, ptds, (CUdeviceptr, const void *, size_t))
CALL(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2, ptsz,
     (CUdeviceptr, const void *, size_t, CUstream))
CALL(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, ptds, (void *, CUdeviceptr, size_t))
CALL(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, ptsz, (void *, CUdeviceptr, size_t, CUstream))
CALL(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2, ptds, (CUdeviceptr, CUdeviceptr, size_t))
CALL(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, ptsz,
     (CUdeviceptr, CUdeviceptr, size_t, CUstream))
CALL(cuMemcpyPeer, 4000, cuMemcpyPeer, ptds,
     (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t))
CALL(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync, ptsz,
     (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))
CALL(cuMemsetD8, 3020, cuMemsetD8_v2, ptds, (CUdeviceptr, unsigned char, size_t))
CALL(cuMemsetD16, 3020, cuMemsetD16_v2, ptds, (CUdeviceptr, unsigned short, size_t))
CALL(cuMemsetD32, 3020, cuMemsetD32_v2, ptds, (CUdeviceptr, unsigned, size_t))
CALL(cuMemsetD8Async, 3020, cuMemsetD8Async, ptsz, (CUdeviceptr, unsigned char, size_t, CUstream))
CALL(cuMemsetD16Async, 3020, cuMemsetD16Async, ptsz,
     (CUdeviceptr, unsigned short, size_t, CUstream))
CALL(cuMemsetD32Async, 3020, cuMemsetD32Async, ptsz, (CUdeviceptr, unsigned, size_t, CUstream))
CALL(cuModuleLoad, 2000, cuModuleLoad, none, (CUmodule *, const char *))
CALL(cuModuleLoadData, 2000, cuModuleLoadData, none, (CUmodule *, const void *))
CALL(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx, none,
     (CUmodule *, const void *, unsigned, int *, void **))
CALL(cuModuleUnload, 2000, cuModuleUnload, none, (CUmodule))
CALL(cuModuleGetFunction, 2000, cuModuleGetFunction, none, (CUfunction *, CUmodule, const char *))
CALL(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode, none, (int *))
CALL(cuLaunchKernel, 4000, cuLaunchKernel, ptsz,
     (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
      void **, void **))
CALL(cuLaunchKernelEx, 11060, cuLaunchKernelEx, own,
     (const CUlaunchConfig *, CUfunction, void **, void **))
CALL(cuLibraryLoadData, 12000, cuLibraryLoadData, none,
     (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))
CALL(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile, none,
     (CUlibrary *, const char *, int *, void **, unsigned, int *, void **, unsigned))
CALL(cuLibraryUnload, 12000, cuLibraryUnload, none, (CUlibrary))
CALL(cuLibraryGetKernel, 12000, cuLibraryGetKernel, none, (CUkernel *, CUlibrary, const char *))
CALL(cuLibraryGetModule, 12000, cuLibraryGetModule, none, (CUmodule *, CUlibrary))
CALL(cuKernelGetFunction, 12000, cuKernelGetFunction, none, (CUfunction *, CUkernel))
CALL(cuKernelGetName, 12030, cuKernelGetName, none, (const char **, CUkernel))
CALL(cuKernelGetAttribute, 12000, cuKernelGetAttribute, none, (int *, int, CUkernel, CUdevice))
CALL(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo, none,
     (CUkernel, size_t, size_t *, size_t *))
CALL(cuFuncGetAttribute, 2020, cuFuncGetAttribute, none, (int *, int, CUfunction))
CALL(cuFuncGetName, 12030, cuFuncGetName, none, (const char **, CUfunction))
CALL(cuFuncGetModule, 11000, cuFuncGetModule, none, (CUmodule *, CUfunction))
CALL(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo, none, (CUfunction, size_t, size_t *, size_t *))
CALL(cuFuncLoad, 12040, cuFuncLoad, none, (CUfunction))
CALL(cuFuncIsLoaded, 12040, cuFuncIsLoaded, none, (int *, CUfunction))
CALL(cuGraphCreate, 10000, cuGraphCreate, none, (CUgraph *, unsigned))
CALL(cuGraphDestroy, 10000, cuGraphDestroy, none, (CUgraph))
CALL(cuGraphGetNodes, 10000, cuGraphGetNodes, none, (CUgraph, CUgraphNode *, size_t *))
CALL(cuGraphGetRootNodes, 10000, cuGraphGetRootNodes, none, (CUgraph, CUgraphNode *, size_t *))
CALL(cuGraphNodeGetType, 10000, cuGraphNodeGetType, none, (CUgraphNode, int *))
CALL(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph, ptsz,
     (CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int))
CALL(cuStreamBeginRecaptureToGraph, 13030, cuStreamBeginRecaptureToGraph, ptsz,
     (CUstream, int, CUgraph, CUrecaptureFn, void *))
CALL(cuStreamUpdateCaptureDependencies, 11030, cuStreamUpdateCaptureDependencies, ptsz,
     (CUstream, const CUgraphNode *, size_t, unsigned))
AGAIN(cuStreamUpdateCaptureDependencies, 12030, cuStreamUpdateCaptureDependencies_v2, ptsz,
     (CUstream, const CUgraphNode *, const void *, size_t, unsigned))
CALL(cuStreamGetAttribute, 11000, cuStreamGetAttribute, ptsz, (CUstream, int, void *))
CALL(cuStreamSetAttribute, 11000, cuStreamSetAttribute, ptsz, (CUstream, int, const void *))
CALL(cuStreamCopyAttributes, 11000, cuStreamCopyAttributes, ptsz, (CUstream, CUstream))
CALL(cuStreamGetGreenCtx, 12040, cuStreamGetGreenCtx, none, (CUstream, CUgreenCtx *))
CALL(cuStreamBatchMemOp, 11070, cuStreamBatchMemOp_v2, ptsz,
     (CUstream, unsigned, const union word_params *, unsigned))
CALL(cuGraphClone, 10000, cuGraphClone, none, (CUgraph *, CUgraph))
CALL(cuGraphNodeFindInClone, 10000, cuGraphNodeFindInClone, none,
     (CUgraphNode *, CUgraphNode, CUgraph))
CALL(cuGraphDestroyNode, 10000, cuGraphDestroyNode, none, (CUgraphNode))
CALL(cuGraphGetId, 13010, cuGraphGetId, none, (CUgraph, unsigned *))
CALL(cuGraphExecGetId, 13010, cuGraphExecGetId, none, (CUgraphExec, unsigned *))
CALL(cuGraphNodeGetLocalId, 13010, cuGraphNodeGetLocalId, none, (CUgraphNode, unsigned *))
CALL(cuGraphNodeGetContainingGraph, 13010, cuGraphNodeGetContainingGraph, none,
     (CUgraphNode, CUgraph *))
CALL(cuGraphDebugDotPrint, 11030, cuGraphDebugDotPrint, none, (CUgraph, const char *, unsigned))
CALL(cuGraphAddDependencies, 10000, cuGraphAddDependencies, none,
     (CUgraph, const CUgraphNode *, const CUgraphNode *, size_t))
AGAIN(cuGraphAddDependencies, 12030, cuGraphAddDependencies_v2, none,
     (CUgraph, const CUgraphNode *, const CUgraphNode *, const void *, size_t))
CALL(cuGraphRemoveDependencies, 10000, cuGraphRemoveDependencies, none,
     (CUgraph, const CUgraphNode *, const CUgraphNode *, size_t))
AGAIN(cuGraphRemoveDependencies, 12030, cuGraphRemoveDependencies_v2, none,
     (CUgraph, const CUgraphNode *, const CUgraphNode *, const void *, size_t))
CALL(cuGraphGetEdges, 10000, cuGraphGetEdges, none,
     (CUgraph, CUgraphNode *, CUgraphNode *, size_t *))
AGAIN(cuGraphGetEdges, 12030, cuGraphGetEdges_v2, none,
     (CUgraph, CUgraphNode *, CUgraphNode *, void *, size_t *))
CALL(cuGraphNodeGetDependencies, 10000, cuGraphNodeGetDependencies, none,
     (CUgraphNode, CUgraphNode *, size_t *))
AGAIN(cuGraphNodeGetDependencies, 12030, cuGraphNodeGetDependencies_v2, none,
     (CUgraphNode, CUgraphNode *, void *, size_t *))
CALL(cuGraphNodeGetDependentNodes, 10000, cuGraphNodeGetDependentNodes, none,
     (CUgraphNode, CUgraphNode *, size_t *))
AGAIN(cuGraphNodeGetDependentNodes, 12030, cuGraphNodeGetDependentNodes_v2, none,
     (CUgraphNode, CUgraphNode *, void *, size_t *))
CALL(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct kernel_params *))
CALL(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct copy_params *, CUcontext))
CALL(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct fill_params *, CUcontext))
CALL(cuGraphAddHostNode, 10000, cuGraphAddHostNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct host_params *))
CALL(cuGraphAddChildGraphNode, 10000, cuGraphAddChildGraphNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))
CALL(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))
CALL(cuGraphAddEventRecordNode, 11010, cuGraphAddEventRecordNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent))
CALL(cuGraphAddEventWaitNode, 11010, cuGraphAddEventWaitNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent))
CALL(cuGraphAddBatchMemOpNode, 11070, cuGraphAddBatchMemOpNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct words_params *))
CALL(cuGraphAddNode, 12020, cuGraphAddNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct node_params *))
AGAIN(cuGraphAddNode, 12030, cuGraphAddNode_v2, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,
      const struct node_params *))
AGAIN(cuGraphAddNode, 13041, cuGraphAddNode_v2, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,
      const struct node_params *))
CALL(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2, none,
     (CUgraphNode, struct kernel_params *))
CALL(cuGraphKernelNodeSetParams, 12000, cuGraphKernelNodeSetParams_v2, none,
     (CUgraphNode, const struct kernel_params *))
CALL(cuGraphMemcpyNodeGetParams, 10000, cuGraphMemcpyNodeGetParams, none,
     (CUgraphNode, struct copy_params *))
CALL(cuGraphMemcpyNodeSetParams, 10000, cuGraphMemcpyNodeSetParams, none,
     (CUgraphNode, const struct copy_params *))
CALL(cuGraphMemsetNodeGetParams, 10000, cuGraphMemsetNodeGetParams, none,
     (CUgraphNode, struct fill_params *))
CALL(cuGraphMemsetNodeSetParams, 10000, cuGraphMemsetNodeSetParams, none,
     (CUgraphNode, const struct fill_params *))
CALL(cuGraphHostNodeGetParams, 10000, cuGraphHostNodeGetParams, none,
     (CUgraphNode, struct host_params *))
CALL(cuGraphHostNodeSetParams, 10000, cuGraphHostNodeSetParams, none,
     (CUgraphNode, const struct host_params *))
CALL(cuGraphChildGraphNodeGetGraph, 10000, cuGraphChildGraphNodeGetGraph, none,
     (CUgraphNode, CUgraph *))
CALL(cuGraphEventRecordNodeGetEvent, 11010, cuGraphEventRecordNodeGetEvent, none,
     (CUgraphNode, CUevent *))
CALL(cuGraphEventRecordNodeSetEvent, 11010, cuGraphEventRecordNodeSetEvent, none,
     (CUgraphNode, CUevent))
CALL(cuGraphEventWaitNodeGetEvent, 11010, cuGraphEventWaitNodeGetEvent, none,
     (CUgraphNode, CUevent *))
CALL(cuGraphEventWaitNodeSetEvent, 11010, cuGraphEventWaitNodeSetEvent, none,
     (CUgraphNode, CUevent))
CALL(cuGraphBatchMemOpNodeGetParams, 11070, cuGraphBatchMemOpNodeGetParams, none,
     (CUgraphNode, struct words_params *))
CALL(cuGraphBatchMemOpNodeSetParams, 11070, cuGraphBatchMemOpNodeSetParams, none,
     (CUgraphNode, const struct words_params *))
CALL(cuGraphNodeGetParams, 13020, cuGraphNodeGetParams, none, (CUgraphNode, struct node_params *))
CALL(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams, none,
     (CUgraphNode, const struct node_params *))
AGAIN(cuGraphNodeSetParams, 13041, cuGraphNodeSetParams, none,
     (CUgraphNode, const struct node_params *))
CALL(cuGraphKernelNodeGetAttribute, 11000, cuGraphKernelNodeGetAttribute, none,
     (CUgraphNode, int, void *))
CALL(cuGraphKernelNodeSetAttribute, 11000, cuGraphKernelNodeSetAttribute, none,
     (CUgraphNode, int, const void *))
CALL(cuGraphKernelNodeCopyAttributes, 11000, cuGraphKernelNodeCopyAttributes, none,
     (CUgraphNode, CUgraphNode))
CALL(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags, none,
     (CUgraphExec *, CUgraph, unsigned long long))
CALL(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams, ptsz,
     (CUgraphExec *, CUgraph, struct instantiate_params *))
CALL(cuGraphExecDestroy, 10000, cuGraphExecDestroy, none, (CUgraphExec))
CALL(cuGraphExecGetFlags, 12000, cuGraphExecGetFlags, none, (CUgraphExec, uint64_t *))
CALL(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2, none,
     (CUgraphExec, CUgraph, struct update_info *))
CALL(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2, none,
     (CUgraphExec, CUgraphNode, const struct kernel_params *))
CALL(cuGraphExecMemcpyNodeSetParams, 10020, cuGraphExecMemcpyNodeSetParams, none,
     (CUgraphExec, CUgraphNode, const struct copy_params *, CUcontext))
CALL(cuGraphExecMemsetNodeSetParams, 10020, cuGraphExecMemsetNodeSetParams, none,
     (CUgraphExec, CUgraphNode, const struct fill_params *, CUcontext))
CALL(cuGraphExecHostNodeSetParams, 10020, cuGraphExecHostNodeSetParams, none,
     (CUgraphExec, CUgraphNode, const struct host_params *))
CALL(cuGraphExecChildGraphNodeSetParams, 11010, cuGraphExecChildGraphNodeSetParams, none,
     (CUgraphExec, CUgraphNode, CUgraph))
CALL(cuGraphExecEventRecordNodeSetEvent, 11010, cuGraphExecEventRecordNodeSetEvent, none,
     (CUgraphExec, CUgraphNode, CUevent))
CALL(cuGraphExecEventWaitNodeSetEvent, 11010, cuGraphExecEventWaitNodeSetEvent, none,
     (CUgraphExec, CUgraphNode, CUevent))
CALL(cuGraphExecBatchMemOpNodeSetParams, 11070, cuGraphExecBatchMemOpNodeSetParams, none,
     (CUgraphExec, CUgraphNode, const struct words_params *))
CALL(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams, none,
     (CUgraphExec, CUgraphNode, const struct node_params *))
CALL(cuGraphNodeSetEnabled, 11060, cuGraphNodeSetEnabled, none,
     (CUgraphExec, CUgraphNode, unsigned))
CALL(cuGraphNodeGetEnabled, 11060, cuGraphNodeGetEnabled, none,
     (CUgraphExec, CUgraphNode, unsigned *))
CALL(cuGraphUpload, 11010, cuGraphUpload, ptsz, (CUgraphExec, CUstream))
CALL(cuGraphLaunch, 10000, cuGraphLaunch, ptsz, (CUgraphExec, CUstream))
CALL(cuUserObjectCreate, 11030, cuUserObjectCreate, none,
     (CUuserObject *, void *, CUhostFn, unsigned, unsigned))
CALL(cuUserObjectRetain, 11030, cuUserObjectRetain, none, (CUuserObject, unsigned))
CALL(cuUserObjectRelease, 11030, cuUserObjectRelease, none, (CUuserObject, unsigned))
CALL(cuGraphRetainUserObject, 11030, cuGraphRetainUserObject, none,
     (CUgraph, CUuserObject, unsigned, unsigned))
CALL(cuGraphReleaseUserObject, 11030, cuGraphReleaseUserObject, none,
     (CUgraph, CUuserObject, unsigned))
CALL(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2, none,
     (CUdeviceptr *, size_t *, CUmodule, const char *))
CALL(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal, none,
     (CUdeviceptr *, size_t *, CUlibrary, const char *))
CALL(cuKernelGetLibrary, 12050, cuKernelGetLibrary, none, (CUlibrary *, CUkernel))
CALL(cuFuncSetAttribute, 9000, cuFuncSetAttribute, none, (CUfunction, int, int))
CALL(cuKernelSetAttribute, 12000, cuKernelSetAttribute, none, (int, int, CUkernel, CUdevice))
CALL(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig, none, (CUfunction, int))
CALL(cuKernelSetCacheConfig, 12000, cuKernelSetCacheConfig, none, (CUkernel, int, CUdevice))
CALL(cuFuncSetSharedMemConfig, 4020, cuFuncSetSharedMemConfig, none, (CUfunction, int))
CALL(cuFuncGetParamCount, 13020, cuFuncGetParamCount, none, (CUfunction, size_t *))
CALL(cuKernelGetParamCount, 13020, cuKernelGetParamCount, none, (CUkernel, size_t *))
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050,
     cuOccupancyMaxActiveBlocksPerMultiprocessor, none,
     (int *, CUfunction, int, size_t))
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000,
     cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, none,
     (int *, CUfunction, int, size_t, unsigned))
CALL(cuOccupancyMaxPotentialBlockSize, 6050, cuOccupancyMaxPotentialBlockSize, none,
     (int *, int *, CUfunction, CUoccupancyB2DSize, size_t, int))
CALL(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, cuOccupancyMaxPotentialBlockSizeWithFlags,
     none,
     (int *, int *, CUfunction, CUoccupancyB2DSize, size_t, int, unsigned))
CALL(cuOccupancyAvailableDynamicSMemPerBlock, 10020, cuOccupancyAvailableDynamicSMemPerBlock, none,
     (size_t *, CUfunction, int, int))
CALL(cuOccupancyMaxActiveClusters, 11070, cuOccupancyMaxActiveClusters, none,
     (int *, CUfunction, const CUlaunchConfig *))
CALL(cuOccupancyMaxPotentialClusterSize, 11070, cuOccupancyMaxPotentialClusterSize, none,
     (int *, CUfunction, const CUlaunchConfig *))
CALL(cuProfilerStart, 4000, cuProfilerStart, none, (void))
CALL(cuProfilerStop, 4000, cuProfilerStop, none, (void))
CALL(cuMemPoolCreate, 11020, cuMemPoolCreate, none, (CUmemoryPool *, const struct pool_props *))
CALL(cuMemPoolDestroy, 11020, cuMemPoolDestroy, none, (CUmemoryPool))
CALL(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo, none, (CUmemoryPool, size_t))
CALL(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute, none, (CUmemoryPool, int, void *))
CALL(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute, none, (CUmemoryPool, int, const void *))
CALL(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess, none,
     (CUmemoryPool, const struct access *, size_t))
CALL(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess, none,
     (int *, CUmemoryPool, const struct location *))
CALL(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool, none, (CUmemoryPool *, CUdevice))
CALL(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool, none, (CUmemoryPool *, CUdevice))
CALL(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool, none, (CUdevice, CUmemoryPool))
CALL(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool, none,
     (CUmemoryPool *, const struct location *, int))
CALL(cuMemGetMemPool, 13000, cuMemGetMemPool, none, (CUmemoryPool *, const struct location *, int))
CALL(cuMemSetMemPool, 13000, cuMemSetMemPool, none, (const struct location *, int, CUmemoryPool))
CALL(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, ptsz,
     (CUdeviceptr *, size_t, CUmemoryPool, CUstream))
CALL(cuMemAllocPitch, 3020, cuMemAllocPitch_v2, none,
     (CUdeviceptr *, size_t *, size_t, size_t, unsigned))
CALL(cuMemcpy2D, 3020, cuMemcpy2D_v2, ptds, (const struct copy_params_2d *))
CALL(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2, ptds, (const struct copy_params_2d *))
CALL(cuMemcpy3D, 3020, cuMemcpy3D_v2, ptds, (const struct copy_params *))
CALL(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2, ptsz, (const struct copy_params_2d *, CUstream))
CALL(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2, ptsz, (const struct copy_params *, CUstream))
CALL(cuMemsetD2D8, 3020, cuMemsetD2D8_v2, ptds,
     (CUdeviceptr, size_t, unsigned char, size_t, size_t))
CALL(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async, ptsz,
     (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream))
CALL(cuMemsetD2D16, 3020, cuMemsetD2D16_v2, ptds,
     (CUdeviceptr, size_t, unsigned short, size_t, size_t))
CALL(cuMemsetD2D16Async, 3020, cuMemsetD2D16Async, ptsz,
     (CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream))
CALL(cuMemsetD2D32, 3020, cuMemsetD2D32_v2, ptds, (CUdeviceptr, size_t, unsigned, size_t, size_t))
CALL(cuMemsetD2D32Async, 3020, cuMemsetD2D32Async, ptsz,
     (CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream))
CALL(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute, none, (int *, int, CUdevice, CUdevice))
CALL(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess, none, (CUcontext, unsigned))
CALL(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess, none, (CUcontext))
CALL(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, struct alloc_params *))
CALL(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode, none,
     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))
CALL(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams, none,
     (CUgraphNode, struct alloc_params *))
CALL(cuGraphMemFreeNodeGetParams, 11040, cuGraphMemFreeNodeGetParams, none,
     (CUgraphNode, CUdeviceptr *))
CALL(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute, none,
     (CUdevice, int, void *))
CALL(cuDeviceSetGraphMemAttribute, 11040, cuDeviceSetGraphMemAttribute, none,
     (CUdevice, int, void *))
CALL(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim, none, (CUdevice))
CALL(cuCtxGetCacheConfig, 3020, cuCtxGetCacheConfig, none, (int *))
CALL(cuCtxSetCacheConfig, 3020, cuCtxSetCacheConfig, none, (int))
CALL(cuCtxSetFlags, 12010, cuCtxSetFlags, none, (unsigned))
CALL(cuCtxRecordEvent, 12050, cuCtxRecordEvent, none, (CUcontext, CUevent))
CALL(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, ptsz,
     (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
      void **))
CALL(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount, none, (unsigned *, CUmodule))
CALL(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions, none,
     (CUfunction *, unsigned, CUmodule))
CALL(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount, none, (unsigned *, CUlibrary))
CALL(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels, none,
     (CUkernel *, unsigned, CUlibrary))
/* clang-format on */

#include "lacking.h"

#undef CALL
#undef AGAIN
#undef LACK
#undef LACK_AGAIN
