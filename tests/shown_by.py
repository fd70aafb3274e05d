"""Which tests show each name of the coverage tables in `docs/make_reference.py`.

`tests/test_reference.py` checks that every row has its tests, that they exist, and that they use
the names of the row. A test is written `file: function`, without `test_` and `.py`.
"""

from __future__ import annotations

# The driver functions.
DRIVER: dict[str, list[str]] = {
    "cuStreamCreate": ["stream: properties"],
    "cuStreamCreateWithPriority": ["attributes: priorities_are_clamped"],
    "cuStreamDestroy": [
        "stream: close_destroys_at_once_and_may_be_called_again",
        "stream: shutdown_synchronizes_first",
        "stream: a_closed_stream_refuses_everything",
        "stream: a_cancelled_close_destroys_and_raises",
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
        "graph_hostfunc: ten_thousand_replays",
        "hostfunc: native_functions_are_called_with_their_data",
    ],
    "cuLaunchHostFunc_v2": ["attributes: what_newer_drivers_can"],
    "cuStreamGetFlags": ["stream: properties"],
    "cuStreamGetPriority": ["stream: properties", "attributes: priorities_are_clamped"],
    "cuStreamGetId": ["stream: properties"],
    "cuStreamGetDevice": ["stream: properties"],
    "cuStreamGetCtx": ["stream: a_stream_lives_in_the_current_context_or_on_the_device_asked_for"],
    "cuStreamGetCtx_v2": [
        "attributes: an_ordinary_stream_has_no_green_context",
        "attributes: a_green_contexts_stream_tells_of_it",
    ],
    "cuStreamGetAttribute": ["attributes: each_attribute_can_be_set"],
    "cuStreamSetAttribute": ["attributes: each_attribute_can_be_set"],
    "cuStreamCopyAttributes": ["attributes: attributes_are_copied"],
    "cuStreamAttachMemAsync": ["memory: managed_memory_is_attached"],
    "cuStreamBeginCapture": [
        "capture_scopes: a_capture_collects_work_that_then_runs_any_number_of_times"
    ],
    "cuStreamBeginCaptureToGraph": [
        "capture_to_graph: a_capture_into_a_graph_gives_that_very_graph_back",
        "capture_to_graph: capture_into_a_graph_with_annotated_dependencies",
    ],
    "cuStreamEndCapture": [
        "capture_scopes: a_capture_collects_work_that_then_runs_any_number_of_times",
        "capture_scopes: unjoined_and_unmatched",
    ],
    "cuStreamIsCapturing": ["capture_scopes: an_invalidated_capture_is_told_and_must_be_ended"],
    "cuStreamGetCaptureInfo": ["capture_scopes: capture_info_lends_the_graph_until_the_end"],
    "cuStreamGetCaptureInfo_v2": ["capture_scopes: a_joined_stream_tells_of_the_same_capture"],
    "cuStreamGetCaptureInfo_v3": ["capture_scopes: annotated_dependencies"],
    "cuStreamUpdateCaptureDependencies": ["capture_scopes: dependencies_can_be_added_and_replaced"],
    "cuStreamUpdateCaptureDependencies_v2": ["capture_scopes: annotated_dependencies"],
    "cuThreadExchangeStreamCaptureMode": ["capture_scopes: a_threads_mode_is_pushed_and_popped"],
    "cudaThreadExchangeStreamCaptureMode": [
        "capture_scopes: a_relaxed_thread_may_do_what_a_global_capture_forbids",
        "capture_scopes: a_threads_mode_is_pushed_and_popped",
    ],
    "cuCtxGetStreamPriorityRange": ["stream: properties"],
    "cuStreamGetDevResource": ["memory: a_streams_share_of_the_device"],
    "cuStreamBeginRecaptureToGraph": ["attributes: what_newer_drivers_can"],
    "cuStreamWaitValue32": ["memory: work_waits_for_a_value"],
    "cuStreamWaitValue64": ["memory: work_waits_for_a_value"],
    "cuStreamWriteValue32": ["memory: values_are_written_in_order"],
    "cuStreamWriteValue64": ["memory: values_are_written_in_order"],
    "cuStreamBatchMemOp": ["memory: a_batch_is_done_in_order", "memory: barriers_and_flushes"],
}

# The methods of the Rust crate.
RUST: dict[str, list[str]] = {
    "completion_future": ["waits: several_tasks_await_one_future"],
    "checked_completion_future": ["capture: other_streams_and_events_serve_during_a_capture"],
    "synchronize_async": ["waits: synchronize_async_waits_for_the_work"],
    "enqueue_async": [
        "waits: enqueue_async_calls_now_and_settles_with_the_result",
        "waits: enqueue_async_refuses_before_it_calls",
    ],
    "from_raw": ["stream: raw_handles_come_and_go"],
    "into_raw": ["stream: raw_handles_come_and_go"],
    "as_raw": ["stream: raw_handles_come_and_go"],
    "to_borrowed, BorrowedStream": ["stream: a_borrowed_stream_of_ours_ends_with_its_owner"],
    "BorrowedStream of other libraries": ["interop: streams_of_cuda_core"],
    "sync_scope": ["stream: sync_scope_synchronizes_on_every_way_out"],
    "synchronize": ["stream: query_and_synchronize"],
    "query": ["stream: query_and_synchronize"],
    "shutdown": ["stream: shutdown_synchronizes_first"],
    "wait_event": ["stream: wait_event_orders_streams"],
    "wait_event_with_flags": ["capture_scopes: external_events_become_nodes"],
    "begin_capture": ["capture_scopes: what_cannot_begin_or_end"],
    "end_capture": ["capture_scopes: another_thread_may_end_a_relaxed_capture_only"],
    "capture_status": ["capture_scopes: an_invalidated_capture_is_told_and_must_be_ended"],
    "capture_info, StreamCaptureInfo": [
        "capture_scopes: capture_info_lends_the_graph_until_the_end"
    ],
    "begin_capture_to_graph": [
        "capture_to_graph: a_capture_into_a_graph_gives_that_very_graph_back"
    ],
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
    "context": ["stream: a_stream_lives_in_the_current_context_or_on_the_device_asked_for"],
    "Context::create_stream_with_flags, _with_priority": ["stream: properties"],
    "Device::stream_priority_range": ["attributes: priorities_are_clamped"],
    "Event::record": ["event: a_record_is_a_snapshot_and_a_second_one_replaces_it"],
    "Event::query, synchronize": ["event: a_record_is_a_snapshot_and_a_second_one_replaces_it"],
    "Event::synchronize_async_on": ["event: awaiting_an_event"],
    "Event::elapsed_time": ["event: elapsed_time_is_in_milliseconds"],
    "Event::completion_future_on, checked_completion_future_on": [
        "event: waiting_for_an_event_on_a_stream"
    ],
    "Graph": ["graph: nodes_know_their_neighbours", "graph: a_clone_is_a_graph_of_its_own"],
    "Graph::debug_dot": ["graph: debug_dot"],
    "Graph::instantiate, GraphInstantiateFlags": ["graph: instantiate_flags"],
    "ExecutableGraph::launch": ["graph: an_empty_graph_can_be_launched"],
    "ExecutableGraph::launch_async": ["graph: many_launches_in_flight"],
    "ExecutableGraph::launch_and_wait": ["graph: an_awaited_launch"],
    "ExecutableGraph::upload": ["graph: launches_from_a_thread_without_a_context"],
    "ExecutableGraph::upload_async, upload_and_wait": ["graph: an_awaited_launch"],
    "ExecutableGraph::update": [
        "graph: an_update_takes_over_the_parameters",
        "graph: an_update_that_does_not_fit_says_why_and_changes_nothing",
    ],
    "GraphNode": ["graph: nodes_know_their_neighbours"],
    "GraphEdgeData": ["capture_scopes: annotated_dependencies"],
    "GraphDependency": ["capture_scopes: annotated_dependencies"],
    "StreamCaptureMode": ["capture_scopes: another_thread_may_end_a_relaxed_capture_only"],
    "StreamCaptureStatus": ["capture_scopes: an_invalidated_capture_is_told_and_must_be_ended"],
    "StreamCaptureDependencyUpdate": ["capture_scopes: dependencies_can_be_added_and_replaced"],
    "Status": ["attributes: what_the_driver_refuses"],
}

# The what neither has.
BEYOND: dict[str, list[str]] = {
    "drain": ["service: drain_waits_for_everything"],
    "on_context_failed": [
        "service: listeners_are_told_once",
        "lost_context: fault_that_nobody_awaits_is_told_within_a_second",
    ],
    "Stream.torch, Stream.cupy, Stream.numba": [
        "shared_streams: stream_of_another_library_is_on_the_same_handle"
    ],
    "health": ["lost_context: health_is_none_or_the_error"],
    "exit_on_context_failed": ["lost_context: process_ends_wherever_the_error_first_appears"],
    "as_completed": ["service: futures_come_in_the_order_in_which_they_end"],
    "wait": ["service: waiting_for_all", "service: waiting_for_the_first"],
    "StreamPool, StreamPool.stream": ["pool: streams_are_lent_in_turn_and_come_back"],
    "Stream.legacy, Stream.per_thread": [
        "stream: the_special_streams_can_be_awaited_without_a_current_context"
    ],
    "Graph.borrow, ExecutableGraph.borrow": ["graph: graphs_of_other_libraries"],
    "Graph.from_raw, Graph.into_raw, ExecutableGraph.from_raw, ExecutableGraph.into_raw": [
        "graph: whose_a_graph_is"
    ],
    "statistics": ["graph_hostfunc: a_graph_that_is_never_launched"],
}
