/* The driver functions that native code calls, one row each:
 *
 *   CALL(field, name, version, parameters)
 *
 * `driver.field` is the address. `name` is the function's name in error messages. cuGetProcAddress
 * finds it by that name without its `_v2`, and by the CUDA version that has these parameters. If
 * that is newer than 12.0, the address is NULL with an older driver.
 *
 * Define CALL before each include. To add a call, add a row. */
/* clang-format off */
CALL(launch_host_func, cuLaunchHostFunc, 10000, (void *stream, host_function, void *data))
CALL(stream_add_callback, cuStreamAddCallback, 5000,
     (void *stream, stream_callback, void *data, unsigned flags))
CALL(stream_query, cuStreamQuery, 2000, (void *stream))
CALL(stream_is_capturing, cuStreamIsCapturing, 10000, (void *stream, int *status))
CALL(stream_destroy, cuStreamDestroy, 4000, (void *stream))
CALL(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (int *mode))
CALL(event_query, cuEventQuery, 2000, (void *event))
CALL(event_record, cuEventRecordWithFlags, 11010, (void *event, void *stream, unsigned flags))
CALL(event_destroy, cuEventDestroy, 4000, (void *event))
CALL(event_create, cuEventCreate, 2000, (void **event, unsigned flags))
CALL(ctx_push, cuCtxPushCurrent, 4000, (void *context))
CALL(ctx_pop, cuCtxPopCurrent, 4000, (void **context))
CALL(ctx_get_id, cuCtxGetId, 12000, (void *context, uint64_t *id))
CALL(capture_info, cuStreamGetCaptureInfo, 11030,
     (void *stream, int *status, uint64_t *id, void **graph, void *nodes, void *count))
CALL(user_object_create, cuUserObjectCreate, 11030,
     (void **object, void *data, host_function, unsigned references, unsigned flags))
CALL(user_object_release, cuUserObjectRelease, 11030, (void *object, unsigned references))
CALL(graph_retain_user_object, cuGraphRetainUserObject, 11030,
     (void *graph, void *object, unsigned references, unsigned flags))
CALL(graph_release_user_object, cuGraphReleaseUserObject, 11030,
     (void *graph, void *object, unsigned references))
CALL(graph_clone, cuGraphClone, 10000, (void **clone, void *graph))
CALL(graph_instantiate, cuGraphInstantiateWithParams, 12000,
     (void **executable, void *graph, void *parameters))
CALL(graph_launch, cuGraphLaunch, 10000, (void *executable, void *stream))
CALL(graph_upload, cuGraphUpload, 11010, (void *executable, void *stream))
CALL(graph_update, cuGraphExecUpdate, 12000, (void *executable, void *graph, void *result))
CALL(graph_destroy, cuGraphDestroy, 10000, (void *graph))
CALL(graph_exec_destroy, cuGraphExecDestroy, 10000, (void *executable))
CALL(launch_host_func_v2, cuLaunchHostFunc_v2, 13020,
     (void *stream, host_function, void *data, unsigned mode))
/* clang-format on */
#undef CALL
