/* The driver functions that can block, by their names for cuGetProcAddress:
 *
 *   BLOCKS(kind, stream, names)
 *
 * `kind` is one of `enum kind`. `stream` is the place of the stream among the parameters, from 0,
 * or NO_STREAM, or IN_CONFIG for cuLaunchKernelEx. The form of a function for an older version of
 * CUDA has its stream at the same place. A space stands before and behind each name. A function
 * with a struct or a float by value must not stand here, because a wrapper passes words on. */
/* clang-format off */
BLOCKS(WAITS, 0, " cuStreamSynchronize ")
BLOCKS(WAITS, NO_STREAM, " cuEventSynchronize cuCtxSynchronize ")
BLOCKS(COPIES, NO_STREAM, " cuMemcpy cuMemcpyHtoD cuMemcpyDtoH cuMemcpyAtoH cuMemcpyHtoA"
    " cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy3D ")
BLOCKS(STAGES, NO_STREAM, " cuMemcpyDtoD cuMemcpyPeer cuMemcpy3DPeer cuMemcpyBatchAsync cuMemsetD8"
    " cuMemsetD16 cuMemsetD32 cuMemsetD2D8 cuMemsetD2D16 cuMemsetD2D32 ")
BLOCKS(STAGES, 1, " cuMemcpy2DAsync cuMemcpy3DAsync cuMemcpy3DPeerAsync ")
BLOCKS(STAGES, 3, " cuMemcpyAsync cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync"
    " cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async ")
BLOCKS(STAGES, 4, " cuMemcpyHtoAAsync cuMemcpyAtoHAsync ")
BLOCKS(STAGES, 5, " cuMemcpyPeerAsync cuMemsetD2D8Async cuMemsetD2D16Async cuMemsetD2D32Async ")
BLOCKS(ALLOCATES, NO_STREAM, " cuMemAlloc cuMemAllocPitch cuMemAllocManaged cuMemAllocHost"
    " cuMemHostAlloc cuMemHostRegister cuMemHostUnregister cuMemFree cuMemFreeHost cuMemPoolTrimTo"
    " cuMemPoolDestroy cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuArrayCreate"
    " cuArray3DCreate cuArrayDestroy ")
BLOCKS(ALLOCATES, 1, " cuMemFreeAsync ")
BLOCKS(ALLOCATES, 2, " cuMemAllocAsync ")
BLOCKS(ALLOCATES, 3, " cuMemAllocFromPoolAsync ")
BLOCKS(LOADS, NO_STREAM, " cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary"
    " cuModuleGetFunction cuModuleUnload cuLibraryLoadData cuLibraryLoadFromFile cuLibraryGetKernel"
    " cuLibraryGetModule cuLibraryUnload cuKernelGetFunction cuFuncLoad cuLinkAddData"
    " cuLinkComplete cuGraphInstantiate cuGraphInstantiateWithFlags cuGraphInstantiateWithParams"
    " cuGraphExecUpdate ")
BLOCKS(LOADS, 1, " cuGraphUpload ")
BLOCKS(ENQUEUES, 0, " cuLaunchHostFunc cuStreamAddCallback cuStreamWaitValue32 cuStreamWaitValue64"
    " cuStreamWriteValue32 cuStreamWriteValue64 cuStreamBatchMemOp ")
BLOCKS(ENQUEUES, 1, " cuGraphLaunch ")
BLOCKS(ENQUEUES, 8, " cuLaunchKernel cuLaunchCooperativeKernel ")
BLOCKS(ENQUEUES, IN_CONFIG, " cuLaunchKernelEx ")
BLOCKS(BEGINS, NO_STREAM, " cuInit cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease"
    " cuDevicePrimaryCtxReset cuCtxCreate cuCtxDestroy cuStreamCreate cuStreamCreateWithPriority"
    " cuStreamDestroy cuEventDestroy cuGraphExecDestroy cuGraphDestroy ")
