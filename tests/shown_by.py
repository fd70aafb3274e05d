"""Which tests show each name of the coverage tables in `docs/make_reference.py`.

`tests/project/test_reference.py` checks that every row has its tests, that they exist, and that
they use the names of the row. A test is written `file: function`, without `test_` and `.py`.
"""

from __future__ import annotations

# The driver functions.
DRIVER: dict[str, list[str]] = {
    "cuStreamCreate": ["stream: properties"],
    "cuStreamCreateWithPriority": ["attributes: priorities_are_clamped"],
    "cuStreamDestroy": [
        "owned: closed_object_refuses_with_its_name",
        "stream: shutdown_synchronizes_first",
        "stream: closed_stream_refuses_everything",
        "stream: cancelled_close_destroys_and_raises",
    ],
    "cuStreamSynchronize": [
        "stream: query_and_synchronize",
        "waits: synchronize_async_waits_for_the_work",
    ],
    "cuStreamQuery": ["stream: query_and_synchronize"],
    "cuStreamWaitEvent": [
        "stream: wait_event_orders_streams",
        "interop: events_of_other_libraries",
    ],
    "cuStreamAddCallback": ["hostfunc: host_functions_run_in_order_with_their_arguments"],
    "cuLaunchHostFunc": [
        "hostfunc: host_functions_run_in_order_with_their_arguments",
        "graph_hostfunc: thousands_of_replays",
        "hostfunc: native_functions_are_called_with_their_data",
    ],
    "cuLaunchHostFunc_v2": ["attributes: functions_of_newer_drivers"],
    "cuStreamGetFlags": ["stream: properties"],
    "cuStreamGetPriority": ["stream: properties", "attributes: priorities_are_clamped"],
    "cuStreamGetId": ["stream: properties"],
    "cuStreamGetDevice": ["stream: properties"],
    "cuStreamGetCtx": ["stream: stream_lives_in_the_current_context_or_on_its_device"],
    "cuStreamGetCtx_v2": [
        "attributes: ordinary_stream_has_no_green_context",
        "attributes: stream_of_a_green_context",
    ],
    "cuStreamGetAttribute": ["attributes: each_attribute_can_be_set"],
    "cuStreamSetAttribute": ["attributes: each_attribute_can_be_set"],
    "cuStreamCopyAttributes": ["attributes: attributes_are_copied"],
    "cuStreamAttachMemAsync": ["memory: managed_memory_is_attached"],
    "cuStreamBeginCapture": ["capture_scopes: captured_work_runs_at_each_launch"],
    "cuStreamBeginCaptureToGraph": [
        "capture_to_graph: capture_into_a_graph_returns_that_graph",
        "capture_to_graph: capture_into_a_graph_with_annotated_dependencies",
    ],
    "cuStreamEndCapture": [
        "capture_scopes: captured_work_runs_at_each_launch",
        "capture_scopes: unjoined_and_unmatched_captures",
    ],
    "cuStreamIsCapturing": ["capture_scopes: invalidated_capture_has_to_be_ended"],
    "cuStreamGetCaptureInfo": ["capture_scopes: graph_of_capture_info_is_closed_at_the_end"],
    "cuStreamGetCaptureInfo_v2": ["capture_scopes: capture_info_of_a_joined_stream"],
    "cuStreamGetCaptureInfo_v3": ["capture_scopes: annotated_dependencies"],
    "cuStreamUpdateCaptureDependencies": ["capture_scopes: dependencies_can_be_added_and_replaced"],
    "cuStreamUpdateCaptureDependencies_v2": ["capture_scopes: annotated_dependencies"],
    "cuThreadExchangeStreamCaptureMode": ["capture_scopes: capture_mode_puts_the_mode_back"],
    "cudaThreadExchangeStreamCaptureMode": [
        "capture_scopes: relaxed_thread_may_allocate_during_a_global_capture",
        "capture_scopes: capture_mode_puts_the_mode_back",
    ],
    "cuCtxGetStreamPriorityRange": ["stream: properties"],
    "cuStreamGetDevResource": ["memory: dev_resource"],
    "cuStreamBeginRecaptureToGraph": ["attributes: functions_of_newer_drivers"],
    "cuStreamWaitValue32": ["memory: work_waits_for_a_value"],
    "cuStreamWaitValue64": ["memory: work_waits_for_a_value"],
    "cuStreamWriteValue32": ["memory: values_are_written_in_order"],
    "cuStreamWriteValue64": ["memory: values_are_written_in_order"],
    "cuStreamBatchMemOp": ["memory: a_batch_is_done_in_order", "memory: barriers_and_flushes"],
}

# The methods of the Rust crate.
RUST: dict[str, list[str]] = {
    "completion_future": ["waits: several_tasks_await_one_future"],
    "checked_completion_future": ["capture: other_streams_and_events_work_during_a_capture"],
    "synchronize_async": ["waits: synchronize_async_waits_for_the_work"],
    "enqueue_async": [
        "waits: enqueue_async_calls_now_and_settles_with_the_result",
        "waits: enqueue_async_refuses_before_it_calls",
    ],
    "from_raw": ["stream: into_raw_and_from_raw"],
    "into_raw": ["stream: into_raw_and_from_raw"],
    "as_raw": ["stream: into_raw_and_from_raw"],
    "to_borrowed, BorrowedStream": ["stream: borrowed_stream_is_closed_with_its_owner"],
    "BorrowedStream of other libraries": ["interop: streams_of_cuda_core"],
    "sync_scope": ["stream: sync_scope_always_synchronizes"],
    "synchronize": ["stream: query_and_synchronize"],
    "query": ["stream: query_and_synchronize"],
    "shutdown": ["stream: shutdown_synchronizes_first"],
    "wait_event": ["stream: wait_event_orders_streams"],
    "wait_event_with_flags": ["capture_scopes: external_events_become_nodes"],
    "begin_capture": ["capture_scopes: begin_and_end_that_are_refused"],
    "end_capture": ["capture_scopes: another_thread_may_end_a_relaxed_capture_only"],
    "capture_status": ["capture_scopes: invalidated_capture_has_to_be_ended"],
    "capture_info, StreamCaptureInfo": [
        "capture_scopes: graph_of_capture_info_is_closed_at_the_end"
    ],
    "begin_capture_to_graph": ["capture_to_graph: capture_into_a_graph_returns_that_graph"],
    "begin_capture_to_graph_with_data, _with_dependencies": [
        "capture_to_graph: capture_into_a_graph_with_annotated_dependencies"
    ],
    "update_capture_dependencies, _with_mode": [
        "capture_scopes: dependencies_can_be_added_and_replaced"
    ],
    "update_capture_dependencies_with_data, _with_dependencies": [
        "capture_scopes: annotated_dependencies"
    ],
    "capture": [
        "capture_scopes: the_scopes",
        "capture_scopes: an_exception_ends_the_capture_and_wins",
    ],
    "capture_executable, _with_flags": ["capture_scopes: the_scopes"],
    "add_callback": ["hostfunc: host_functions_run_in_order_with_their_arguments"],
    "launch_host_func": [
        "graph_hostfunc: graphs_are_dropped_while_launches_are_in_flight",
        "hostfunc: host_functions_run_in_order_with_their_arguments",
    ],
    "flags, StreamFlags": ["stream: properties"],
    "priority": ["stream: properties"],
    "id": ["stream: properties"],
    "device": ["stream: properties"],
    "context": ["stream: stream_lives_in_the_current_context_or_on_its_device"],
    "Context::create_stream_with_flags, _with_priority": ["stream: properties"],
    "Device::stream_priority_range": ["attributes: priorities_are_clamped"],
    "Event::record": ["event: second_record_replaces_the_first"],
    "Event::query, synchronize": ["event: second_record_replaces_the_first"],
    "Event::synchronize_async_on": ["event: awaiting_an_event"],
    "Event::elapsed_time": ["event: elapsed_time_is_in_milliseconds"],
    "Event::completion_future_on, checked_completion_future_on": [
        "event: waiting_for_an_event_on_a_stream"
    ],
    "Graph": ["graph: nodes_know_their_neighbours", "graph: clone_is_independent"],
    "Graph::debug_dot": ["graph: debug_dot"],
    "Graph::instantiate, GraphInstantiateFlags": ["graph: instantiate_flags"],
    "ExecutableGraph::launch": ["graph: an_empty_graph_can_be_launched"],
    "ExecutableGraph::launch_async": ["graph: many_launches_in_flight"],
    "ExecutableGraph::launch_and_wait": ["graph: launch_can_be_awaited"],
    "ExecutableGraph::upload": ["graph: launches_from_a_thread_without_a_context"],
    "ExecutableGraph::upload_async, upload_and_wait": ["graph: launch_can_be_awaited"],
    "ExecutableGraph::update": [
        "graph: an_update_takes_over_the_parameters",
        "graph: update_that_does_not_fit_says_why",
    ],
    "GraphNode": ["graph: nodes_know_their_neighbours"],
    "GraphEdgeData": ["capture_scopes: annotated_dependencies"],
    "GraphDependency": ["capture_scopes: annotated_dependencies"],
    "StreamCaptureMode": ["capture_scopes: another_thread_may_end_a_relaxed_capture_only"],
    "StreamCaptureStatus": ["capture_scopes: invalidated_capture_has_to_be_ended"],
    "StreamCaptureDependencyUpdate": ["capture_scopes: dependencies_can_be_added_and_replaced"],
    "Status": ["attributes: refusals_of_the_driver"],
}

# The what neither has.
BEYOND: dict[str, list[str]] = {
    "drain": ["service: drain_waits_for_everything"],
    "on_context_failed": [
        "lost_context: listeners_are_told_once",
        "lost_context: fault_that_nobody_awaits_is_told_within_a_second",
    ],
    "Stream.torch, Stream.cupy, Stream.numba": [
        "shared_streams: stream_of_another_library_is_on_the_same_handle"
    ],
    "health": ["lost_context: health_is_none_or_the_error"],
    "exit_on_context_failed": ["lost_context: process_ends_wherever_the_error_first_appears"],
    "as_completed": ["service: futures_come_in_the_order_in_which_they_end"],
    "wait": ["service: waiting_for_all", "service: waiting_for_the_first"],
    "ready": ["ready: ready_returns_the_first_answer_that_is_true"],
    "Stream.run, StreamPool.run": ["run: run_returns_the_result_when_the_gpu_has_passed"],
    "Stream.run_in_thread, StreamPool.run_in_thread": ["run: program_of_tasks"],
    "StreamPool, StreamPool.stream": ["pool: streams_come_back_and_the_last_one_is_lent_again"],
    "Stream.legacy, Stream.per_thread": [
        "stream: special_streams_can_be_awaited_without_a_context"
    ],
    "Graph.borrow, ExecutableGraph.borrow": ["graph: graphs_of_other_libraries"],
    "Graph.from_raw, Graph.into_raw, ExecutableGraph.from_raw, ExecutableGraph.into_raw": [
        "graph: ownership"
    ],
    "statistics": ["graph_hostfunc: a_graph_that_is_never_launched"],
}
