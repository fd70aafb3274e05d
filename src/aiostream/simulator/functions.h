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
 * To simulate one more function, make its row a CALL and write the function. Its declaration, its
 * other form, and its place for cuGetProcAddress come from the row.
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

LACK(cuArray3DCreate, 3020, cuArray3DCreate_v2, none)
LACK(cuArray3DGetDescriptor, 3020, cuArray3DGetDescriptor_v2, none)
LACK(cuArrayCreate, 3020, cuArrayCreate_v2, none)
LACK(cuArrayDestroy, 2000, cuArrayDestroy, none)
LACK(cuArrayGetDescriptor, 3020, cuArrayGetDescriptor_v2, none)
LACK(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements, none)
LACK(cuArrayGetPlane, 11020, cuArrayGetPlane, none)
LACK(cuArrayGetSparseProperties, 11010, cuArrayGetSparseProperties, none)
LACK(cuCheckpointOperationComplete, 13041, cuCheckpointOperationComplete, none)
LACK(cuCheckpointProcessCheckpoint, 12080, cuCheckpointProcessCheckpoint, none)
LACK(cuCheckpointProcessGetRestoreThreadId, 12080, cuCheckpointProcessGetRestoreThreadId, none)
LACK(cuCheckpointProcessGetState, 12080, cuCheckpointProcessGetState, none)
LACK(cuCheckpointProcessLock, 12080, cuCheckpointProcessLock, none)
LACK(cuCheckpointProcessRestore, 12080, cuCheckpointProcessRestore, none)
LACK(cuCheckpointProcessUnlock, 12080, cuCheckpointProcessUnlock, none)
LACK(cuCoredumpDeregisterCompleteCallback, 13020, cuCoredumpDeregisterCompleteCallback, none)
LACK(cuCoredumpDeregisterStartCallback, 13020, cuCoredumpDeregisterStartCallback, none)
LACK(cuCoredumpGetAttribute, 12010, cuCoredumpGetAttribute, none)
LACK(cuCoredumpGetAttributeGlobal, 12010, cuCoredumpGetAttributeGlobal, none)
LACK(cuCoredumpRegisterCompleteCallback, 13020, cuCoredumpRegisterCompleteCallback, none)
LACK(cuCoredumpRegisterStartCallback, 13020, cuCoredumpRegisterStartCallback, none)
LACK(cuCoredumpSetAttribute, 12010, cuCoredumpSetAttribute, none)
LACK(cuCoredumpSetAttributeGlobal, 12010, cuCoredumpSetAttributeGlobal, none)
LACK(cuCtxAttach, 2000, cuCtxAttach, none)
LACK(cuCtxDetach, 2000, cuCtxDetach, none)
LACK(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx, none)
LACK(cuCtxGetCacheConfig, 3020, cuCtxGetCacheConfig, none)
LACK(cuCtxGetDevResource, 12040, cuCtxGetDevResource, none)
LACK(cuCtxGetExecAffinity, 11040, cuCtxGetExecAffinity, none)
LACK(cuCtxGetSharedMemConfig, 4020, cuCtxGetSharedMemConfig, none)
LACK(cuCtxRecordEvent, 12050, cuCtxRecordEvent, none)
LACK(cuCtxResetPersistingL2Cache, 11000, cuCtxResetPersistingL2Cache, none)
LACK(cuCtxSetCacheConfig, 3020, cuCtxSetCacheConfig, none)
LACK(cuCtxSetFlags, 12010, cuCtxSetFlags, none)
LACK(cuCtxSetSharedMemConfig, 4020, cuCtxSetSharedMemConfig, none)
LACK(cuCtxWaitEvent, 12050, cuCtxWaitEvent, none)
LACK(cuDestroyExternalMemory, 10000, cuDestroyExternalMemory, none)
LACK(cuDestroyExternalSemaphore, 10000, cuDestroyExternalSemaphore, none)
LACK(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc, none)
LACK(cuDevSmResourceSplit, 13010, cuDevSmResourceSplit, none)
LACK(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount, none)
LACK(cuDeviceGetCliqueCount, 13041, cuDeviceGetCliqueCount, none)
LACK(cuDeviceGetCliqueInfo, 13041, cuDeviceGetCliqueInfo, none)
LACK(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource, none)
LACK(cuDeviceGetExecAffinitySupport, 11040, cuDeviceGetExecAffinitySupport, none)
LACK(cuDeviceGetFabricClusterUuid, 13041, cuDeviceGetFabricClusterUuid, none)
LACK(cuDeviceGetHostAtomicCapabilities, 13000, cuDeviceGetHostAtomicCapabilities, none)
LACK(cuDeviceGetLuid, 10000, cuDeviceGetLuid, none)
LACK(cuDeviceGetNvSciSyncAttributes, 10020, cuDeviceGetNvSciSyncAttributes, none)
LACK(cuDeviceGetP2PAtomicCapabilities, 13000, cuDeviceGetP2PAtomicCapabilities, none)
LACK(cuDeviceGetProperties, 2000, cuDeviceGetProperties, none)
LACK(cuDeviceGetTexture1DLinearMaxWidth, 11010, cuDeviceGetTexture1DLinearMaxWidth, none)
LACK(cuDeviceRegisterAsyncNotification, 12040, cuDeviceRegisterAsyncNotification, none)
LACK(cuDeviceUnregisterAsyncNotification, 12040, cuDeviceUnregisterAsyncNotification, none)
LACK(cuEGLStreamConsumerAcquireFrame, 7000, cuEGLStreamConsumerAcquireFrame, none)
LACK(cuEGLStreamConsumerConnect, 7000, cuEGLStreamConsumerConnect, none)
LACK(cuEGLStreamConsumerConnectWithFlags, 8000, cuEGLStreamConsumerConnectWithFlags, none)
LACK(cuEGLStreamConsumerDisconnect, 7000, cuEGLStreamConsumerDisconnect, none)
LACK(cuEGLStreamConsumerReleaseFrame, 7000, cuEGLStreamConsumerReleaseFrame, none)
LACK(cuEGLStreamProducerConnect, 7000, cuEGLStreamProducerConnect, none)
LACK(cuEGLStreamProducerDisconnect, 7000, cuEGLStreamProducerDisconnect, none)
LACK(cuEGLStreamProducerPresentFrame, 7000, cuEGLStreamProducerPresentFrame, none)
LACK(cuEGLStreamProducerReturnFrame, 7000, cuEGLStreamProducerReturnFrame, none)
LACK(cuEventCreateFromEGLSync, 9000, cuEventCreateFromEGLSync, none)
LACK(cuExternalMemoryGetMappedBuffer, 10000, cuExternalMemoryGetMappedBuffer, none)
LACK(cuExternalMemoryGetMappedMipmappedArray, 10000, cuExternalMemoryGetMappedMipmappedArray, none)
LACK(cuFlushGPUDirectRDMAWrites, 11030, cuFlushGPUDirectRDMAWrites, none)
LACK(cuFuncSetBlockShape, 2000, cuFuncSetBlockShape, none)
LACK(cuFuncSetSharedSize, 2000, cuFuncSetSharedSize, none)
LACK(cuGLCtxCreate, 3020, cuGLCtxCreate_v2, none)
LACK(cuGLGetDevices, 6050, cuGLGetDevices_v2, none)
LACK(cuGLInit, 2000, cuGLInit, none)
LACK(cuGLMapBufferObject, 3020, cuGLMapBufferObject_v2, ptds)
LACK(cuGLMapBufferObjectAsync, 3020, cuGLMapBufferObjectAsync_v2, ptsz)
LACK(cuGLRegisterBufferObject, 2000, cuGLRegisterBufferObject, none)
LACK(cuGLSetBufferObjectMapFlags, 2030, cuGLSetBufferObjectMapFlags, none)
LACK(cuGLUnmapBufferObject, 2000, cuGLUnmapBufferObject, none)
LACK(cuGLUnmapBufferObjectAsync, 2030, cuGLUnmapBufferObjectAsync, none)
LACK(cuGLUnregisterBufferObject, 2000, cuGLUnregisterBufferObject, none)
LACK(cuGetExportTable, 3000, cuGetExportTable, none)
LACK(cuGraphAddExternalSemaphoresSignalNode, 11020, cuGraphAddExternalSemaphoresSignalNode, none)
LACK(cuGraphAddExternalSemaphoresWaitNode, 11020, cuGraphAddExternalSemaphoresWaitNode, none)
LACK(cuGraphConditionalHandleCreate, 12030, cuGraphConditionalHandleCreate, none)
LACK(cuGraphExecExternalSemaphoresSignalNodeSetParams, 11020,
     cuGraphExecExternalSemaphoresSignalNodeSetParams, none)
LACK(cuGraphExecExternalSemaphoresWaitNodeSetParams, 11020,
     cuGraphExecExternalSemaphoresWaitNodeSetParams, none)
LACK(cuGraphExternalSemaphoresSignalNodeGetParams, 11020,
     cuGraphExternalSemaphoresSignalNodeGetParams, none)
LACK(cuGraphExternalSemaphoresSignalNodeSetParams, 11020,
     cuGraphExternalSemaphoresSignalNodeSetParams, none)
LACK(cuGraphExternalSemaphoresWaitNodeGetParams, 11020,
     cuGraphExternalSemaphoresWaitNodeGetParams, none)
LACK(cuGraphExternalSemaphoresWaitNodeSetParams, 11020,
     cuGraphExternalSemaphoresWaitNodeSetParams, none)
LACK(cuGraphNodeGetToolsId, 13010, cuGraphNodeGetToolsId, none)
LACK(cuGraphicsEGLRegisterImage, 7000, cuGraphicsEGLRegisterImage, none)
LACK(cuGraphicsGLRegisterBuffer, 3000, cuGraphicsGLRegisterBuffer, none)
LACK(cuGraphicsGLRegisterImage, 3000, cuGraphicsGLRegisterImage, none)
LACK(cuGraphicsMapResources, 3000, cuGraphicsMapResources, ptsz)
LACK(cuGraphicsResourceGetMappedEglFrame, 7000, cuGraphicsResourceGetMappedEglFrame, none)
LACK(cuGraphicsResourceGetMappedMipmappedArray, 5000,
     cuGraphicsResourceGetMappedMipmappedArray, none)
LACK(cuGraphicsResourceGetMappedPointer, 3020, cuGraphicsResourceGetMappedPointer_v2, none)
LACK(cuGraphicsResourceSetMapFlags, 6050, cuGraphicsResourceSetMapFlags_v2, none)
LACK(cuGraphicsSubResourceGetMappedArray, 3000, cuGraphicsSubResourceGetMappedArray, none)
LACK(cuGraphicsUnmapResources, 3000, cuGraphicsUnmapResources, ptsz)
LACK(cuGraphicsUnregisterResource, 3000, cuGraphicsUnregisterResource, none)
LACK(cuGraphicsVDPAURegisterOutputSurface, 3010, cuGraphicsVDPAURegisterOutputSurface, none)
LACK(cuGraphicsVDPAURegisterVideoSurface, 3010, cuGraphicsVDPAURegisterVideoSurface, none)
LACK(cuGreenCtxCreate, 12040, cuGreenCtxCreate, none)
LACK(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy, none)
LACK(cuGreenCtxGetDevResource, 12040, cuGreenCtxGetDevResource, none)
LACK(cuGreenCtxGetId, 13000, cuGreenCtxGetId, none)
LACK(cuGreenCtxRecordEvent, 12040, cuGreenCtxRecordEvent, none)
LACK(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate, none)
LACK(cuGreenCtxWaitEvent, 12040, cuGreenCtxWaitEvent, none)
LACK(cuImportExternalMemory, 10000, cuImportExternalMemory, none)
LACK(cuImportExternalSemaphore, 10000, cuImportExternalSemaphore, none)
LACK(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle, none)
LACK(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle, none)
LACK(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle, none)
LACK(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle, none)
LACK(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2, none)
LACK(cuLaunch, 2000, cuLaunch, none)
LACK(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, ptsz)
LACK(cuLaunchCooperativeKernelMultiDevice, 9000, cuLaunchCooperativeKernelMultiDevice, none)
LACK(cuLaunchGrid, 2000, cuLaunchGrid, none)
LACK(cuLaunchGridAsync, 2000, cuLaunchGridAsync, none)
LACK(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels, none)
LACK(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount, none)
LACK(cuLibraryGetManaged, 12000, cuLibraryGetManaged, none)
LACK(cuLibraryGetUnifiedFunction, 12000, cuLibraryGetUnifiedFunction, none)
LACK(cuLinkAddData, 6050, cuLinkAddData_v2, none)
LACK(cuLinkAddFile, 6050, cuLinkAddFile_v2, none)
LACK(cuLinkComplete, 5050, cuLinkComplete, none)
LACK(cuLinkCreate, 6050, cuLinkCreate_v2, none)
LACK(cuLinkDestroy, 5050, cuLinkDestroy, none)
LACK(cuLogicalEndpointAddDevice, 13030, cuLogicalEndpointAddDevice, none)
LACK(cuLogicalEndpointBindAddr, 13030, cuLogicalEndpointBindAddr, none)
LACK(cuLogicalEndpointBindMem, 13030, cuLogicalEndpointBindMem, none)
LACK(cuLogicalEndpointCreate, 13030, cuLogicalEndpointCreate, none)
LACK(cuLogicalEndpointDestroy, 13030, cuLogicalEndpointDestroy, none)
LACK(cuLogicalEndpointExport, 13030, cuLogicalEndpointExport, none)
LACK(cuLogicalEndpointGetLimits, 13030, cuLogicalEndpointGetLimits, none)
LACK(cuLogicalEndpointIdRelease, 13030, cuLogicalEndpointIdRelease, none)
LACK(cuLogicalEndpointIdReserve, 13030, cuLogicalEndpointIdReserve, none)
LACK(cuLogicalEndpointImport, 13030, cuLogicalEndpointImport, none)
LACK(cuLogicalEndpointQuery, 13030, cuLogicalEndpointQuery, none)
LACK(cuLogicalEndpointUnbind, 13030, cuLogicalEndpointUnbind, none)
LACK(cuLogsCurrent, 12080, cuLogsCurrent, none)
LACK(cuLogsDumpToFile, 12080, cuLogsDumpToFile, none)
LACK(cuLogsDumpToMemory, 12080, cuLogsDumpToMemory, none)
LACK(cuLogsRegisterCallback, 12080, cuLogsRegisterCallback, none)
LACK(cuLogsUnregisterCallback, 12080, cuLogsUnregisterCallback, none)
LACK(cuMemAddressFree, 10020, cuMemAddressFree, none)
LACK(cuMemAddressReserve, 10020, cuMemAddressReserve, none)
LACK(cuMemAdvise, 8000, cuMemAdvise, none)
LACK_AGAIN(cuMemAdvise, 12020, cuMemAdvise_v2, none)
LACK(cuMemBatchDecompressAsync, 12060, cuMemBatchDecompressAsync, ptsz)
LACK(cuMemCreate, 10020, cuMemCreate, none)
LACK(cuMemDiscardAndPrefetchBatchAsync, 13000, cuMemDiscardAndPrefetchBatchAsync, ptsz)
LACK(cuMemDiscardBatchAsync, 13000, cuMemDiscardBatchAsync, ptsz)
LACK(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle, none)
LACK(cuMemGetAccess, 10020, cuMemGetAccess, none)
LACK(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity, none)
LACK(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle, none)
LACK(cuMemGetHandleForAddressRange, 11070, cuMemGetHandleForAddressRange, none)
LACK(cuMemGetLocationInfo, 13041, cuMemGetLocationInfo, none)
LACK(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle, none)
LACK(cuMemMap, 10020, cuMemMap, none)
LACK(cuMemMapArrayAsync, 11010, cuMemMapArrayAsync, ptsz)
LACK(cuMemPoolExportPointer, 11020, cuMemPoolExportPointer, none)
LACK(cuMemPoolExportToShareableHandle, 11020, cuMemPoolExportToShareableHandle, none)
LACK(cuMemPoolImportFromShareableHandle, 11020, cuMemPoolImportFromShareableHandle, none)
LACK(cuMemPoolImportPointer, 11020, cuMemPoolImportPointer, none)
LACK(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync, ptsz)
LACK_AGAIN(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2, ptsz)
LACK(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync, ptsz)
LACK(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute, none)
LACK(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes, none)
LACK(cuMemRelease, 10020, cuMemRelease, none)
LACK(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle, none)
LACK(cuMemSetAccess, 10020, cuMemSetAccess, none)
LACK(cuMemUnmap, 10020, cuMemUnmap, none)
LACK(cuMemcpy3DBatchAsync, 12080, cuMemcpy3DBatchAsync, ptsz)
LACK_AGAIN(cuMemcpy3DBatchAsync, 13000, cuMemcpy3DBatchAsync_v2, ptsz)
LACK(cuMemcpy3DPeer, 4000, cuMemcpy3DPeer, ptds)
LACK(cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync, ptsz)
LACK(cuMemcpy3DWithAttributesAsync, 13020, cuMemcpy3DWithAttributesAsync, ptsz)
LACK(cuMemcpyAtoA, 3020, cuMemcpyAtoA_v2, ptds)
LACK(cuMemcpyAtoD, 3020, cuMemcpyAtoD_v2, ptds)
LACK(cuMemcpyAtoH, 3020, cuMemcpyAtoH_v2, ptds)
LACK(cuMemcpyAtoHAsync, 3020, cuMemcpyAtoHAsync_v2, ptsz)
LACK(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync, ptsz)
LACK_AGAIN(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2, ptsz)
LACK(cuMemcpyDtoA, 3020, cuMemcpyDtoA_v2, ptds)
LACK(cuMemcpyHtoA, 3020, cuMemcpyHtoA_v2, ptds)
LACK(cuMemcpyHtoAAsync, 3020, cuMemcpyHtoAAsync_v2, ptsz)
LACK(cuMemcpyWithAttributesAsync, 13020, cuMemcpyWithAttributesAsync, ptsz)
LACK(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate, none)
LACK(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy, none)
LACK(cuMipmappedArrayGetLevel, 5000, cuMipmappedArrayGetLevel, none)
LACK(cuMipmappedArrayGetMemoryRequirements, 11060, cuMipmappedArrayGetMemoryRequirements, none)
LACK(cuMipmappedArrayGetSparseProperties, 11010, cuMipmappedArrayGetSparseProperties, none)
LACK(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions, none)
LACK(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount, none)
LACK(cuModuleGetSurfRef, 3000, cuModuleGetSurfRef, none)
LACK(cuModuleGetTexRef, 2000, cuModuleGetTexRef, none)
LACK(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary, none)
LACK(cuMulticastAddDevice, 12010, cuMulticastAddDevice, none)
LACK(cuMulticastBindAddr, 12010, cuMulticastBindAddr, none)
LACK_AGAIN(cuMulticastBindAddr, 13010, cuMulticastBindAddr_v2, none)
LACK(cuMulticastBindMem, 12010, cuMulticastBindMem, none)
LACK_AGAIN(cuMulticastBindMem, 13010, cuMulticastBindMem_v2, none)
LACK(cuMulticastCreate, 12010, cuMulticastCreate, none)
LACK(cuMulticastGetGranularity, 12010, cuMulticastGetGranularity, none)
LACK(cuMulticastUnbind, 12010, cuMulticastUnbind, none)
LACK(cuOccupancyMaxActiveClusters, 11070, cuOccupancyMaxActiveClusters, none)
LACK(cuOccupancyMaxPotentialClusterSize, 11070, cuOccupancyMaxPotentialClusterSize, none)
LACK(cuParamSetSize, 2000, cuParamSetSize, none)
LACK(cuParamSetTexRef, 2000, cuParamSetTexRef, none)
LACK(cuParamSetf, 2000, cuParamSetf, none)
LACK(cuParamSeti, 2000, cuParamSeti, none)
LACK(cuParamSetv, 2000, cuParamSetv, none)
LACK(cuPointerSetAttribute, 6000, cuPointerSetAttribute, none)
LACK(cuProfilerInitialize, 4000, cuProfilerInitialize, none)
LACK(cuSignalExternalSemaphoresAsync, 10000, cuSignalExternalSemaphoresAsync, ptsz)
LACK(cuStreamBeginCaptureToCig, 13020, cuStreamBeginCaptureToCig, ptsz)
LACK(cuStreamEndCaptureToCig, 13020, cuStreamEndCaptureToCig, ptsz)
LACK(cuStreamGetDevResource, 13010, cuStreamGetDevResource, ptsz)
LACK(cuSurfObjectCreate, 5000, cuSurfObjectCreate, none)
LACK(cuSurfObjectDestroy, 5000, cuSurfObjectDestroy, none)
LACK(cuSurfObjectGetResourceDesc, 5000, cuSurfObjectGetResourceDesc, none)
LACK(cuSurfRefGetArray, 3000, cuSurfRefGetArray, none)
LACK(cuSurfRefSetArray, 3000, cuSurfRefSetArray, none)
LACK(cuTensorMapEncodeIm2col, 12000, cuTensorMapEncodeIm2col, none)
LACK(cuTensorMapEncodeIm2colWide, 12080, cuTensorMapEncodeIm2colWide, none)
LACK(cuTensorMapEncodeTiled, 12000, cuTensorMapEncodeTiled, none)
LACK(cuTensorMapReplaceAddress, 12000, cuTensorMapReplaceAddress, none)
LACK(cuTexObjectCreate, 5000, cuTexObjectCreate, none)
LACK(cuTexObjectDestroy, 5000, cuTexObjectDestroy, none)
LACK(cuTexObjectGetResourceDesc, 5000, cuTexObjectGetResourceDesc, none)
LACK(cuTexObjectGetResourceViewDesc, 5000, cuTexObjectGetResourceViewDesc, none)
LACK(cuTexObjectGetTextureDesc, 5000, cuTexObjectGetTextureDesc, none)
LACK(cuTexRefCreate, 2000, cuTexRefCreate, none)
LACK(cuTexRefDestroy, 2000, cuTexRefDestroy, none)
LACK(cuTexRefGetAddress, 3020, cuTexRefGetAddress_v2, none)
LACK(cuTexRefGetAddressMode, 2000, cuTexRefGetAddressMode, none)
LACK(cuTexRefGetArray, 2000, cuTexRefGetArray, none)
LACK(cuTexRefGetBorderColor, 8000, cuTexRefGetBorderColor, none)
LACK(cuTexRefGetFilterMode, 2000, cuTexRefGetFilterMode, none)
LACK(cuTexRefGetFlags, 2000, cuTexRefGetFlags, none)
LACK(cuTexRefGetFormat, 2000, cuTexRefGetFormat, none)
LACK(cuTexRefGetMaxAnisotropy, 5000, cuTexRefGetMaxAnisotropy, none)
LACK(cuTexRefGetMipmapFilterMode, 5000, cuTexRefGetMipmapFilterMode, none)
LACK(cuTexRefGetMipmapLevelBias, 5000, cuTexRefGetMipmapLevelBias, none)
LACK(cuTexRefGetMipmapLevelClamp, 5000, cuTexRefGetMipmapLevelClamp, none)
LACK(cuTexRefGetMipmappedArray, 5000, cuTexRefGetMipmappedArray, none)
LACK(cuTexRefSetAddress, 3020, cuTexRefSetAddress_v2, none)
LACK(cuTexRefSetAddress2D, 4010, cuTexRefSetAddress2D_v3, none)
LACK(cuTexRefSetAddressMode, 2000, cuTexRefSetAddressMode, none)
LACK(cuTexRefSetArray, 2000, cuTexRefSetArray, none)
LACK(cuTexRefSetBorderColor, 8000, cuTexRefSetBorderColor, none)
LACK(cuTexRefSetFilterMode, 2000, cuTexRefSetFilterMode, none)
LACK(cuTexRefSetFlags, 2000, cuTexRefSetFlags, none)
LACK(cuTexRefSetFormat, 2000, cuTexRefSetFormat, none)
LACK(cuTexRefSetMaxAnisotropy, 5000, cuTexRefSetMaxAnisotropy, none)
LACK(cuTexRefSetMipmapFilterMode, 5000, cuTexRefSetMipmapFilterMode, none)
LACK(cuTexRefSetMipmapLevelBias, 5000, cuTexRefSetMipmapLevelBias, none)
LACK(cuTexRefSetMipmapLevelClamp, 5000, cuTexRefSetMipmapLevelClamp, none)
LACK(cuTexRefSetMipmappedArray, 5000, cuTexRefSetMipmappedArray, none)
LACK(cuVDPAUCtxCreate, 3020, cuVDPAUCtxCreate_v2, none)
LACK(cuVDPAUGetDevice, 3010, cuVDPAUGetDevice, none)
LACK(cuWaitExternalSemaphoresAsync, 10000, cuWaitExternalSemaphoresAsync, ptsz)
/* clang-format on */

#undef CALL
#undef AGAIN
#undef LACK
#undef LACK_AGAIN
