"""Writes `docs/reference.md`: every driver function and Rust method that this library follows, and what it is called here.

    python docs/make_reference.py            # writes the page
    python docs/make_reference.py --check    # fails if the page is stale

What a name does, and which driver it needs, is read from the library; which tests show it stands in the tables here.
`tests/test_reference.py` fails if a name does not exist, has no docstring, or is not in the tests that are named for it.
"""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import aiostream
from aiostream import _driver

PAGE = Path(__file__).parent / "reference.md"
OLDEST = 12000  # the oldest driver that the library runs on


class Row(NamedTuple):
    """A function or method of theirs, what it is called here, and the tests that show it."""

    theirs: str
    ours: list[str]
    tests: list[str]  # "file: function", without "test_" and ".py"


def row(theirs: str, ours: str, tests: str) -> Row:
    """A row from text: names and tests are separated by commas."""
    return Row(
        theirs,
        [name.strip() for name in ours.split(",")],
        [test.strip() for test in tests.split(",")],
    )


# The chapter "Stream Management" of the driver's manual, from CUDA 7 to 13, and what newer headers
# add to it.
DRIVER = [
    row("cuStreamCreate", "Stream", "stream: properties"),
    row("cuStreamCreateWithPriority", "Stream", "attributes: priorities_are_clamped"),
    row(
        "cuStreamDestroy",
        "Stream.close, Stream.shutdown, Stream.aclose",
        "stream: close_destroys_at_once_and_may_be_called_again, stream: shutdown_synchronizes_first, "
        "stream: closed_stream_refuses_everything, stream: cancelled_close_destroys_and_raises",
    ),
    row(
        "cuStreamSynchronize",
        "Stream.synchronize, Stream.synchronize_async",
        "stream: query_and_synchronize, waits: synchronize_async_waits_for_the_work",
    ),
    row("cuStreamQuery", "Stream.query", "stream: query_and_synchronize"),
    row(
        "cuStreamWaitEvent",
        "Stream.wait_event",
        "stream: wait_event_orders_streams, interop: events_of_other_libraries",
    ),
    row(
        "cuStreamAddCallback",
        "Stream.add_callback",
        "hostfunc: host_functions_run_in_order_with_their_arguments",
    ),
    row(
        "cuLaunchHostFunc",
        "Stream.launch_host_func",
        "hostfunc: host_functions_run_in_order_with_their_arguments, graph_hostfunc: ten_thousand_replays, "
        "hostfunc: native_functions_are_called_with_their_data",
    ),
    row(
        "cuLaunchHostFunc_v2",
        "Stream.launch_host_func, HostFunctionSync",
        "attributes: functions_of_newer_drivers",
    ),
    row("cuStreamGetFlags", "Stream.flags", "stream: properties"),
    row(
        "cuStreamGetPriority",
        "Stream.priority",
        "stream: properties, attributes: priorities_are_clamped",
    ),
    row("cuStreamGetId", "Stream.id", "stream: properties"),
    row("cuStreamGetDevice", "Stream.device", "stream: properties"),
    row(
        "cuStreamGetCtx",
        "Stream.context",
        "stream: stream_lives_in_the_current_context_or_on_its_device",
    ),
    row(
        "cuStreamGetCtx_v2",
        "Stream.green_context",
        "attributes: ordinary_stream_has_no_green_context, attributes: stream_of_a_green_context",
    ),
    row(
        "cuStreamGetAttribute",
        "Stream.get_attribute, StreamAttribute",
        "attributes: each_attribute_can_be_set",
    ),
    row(
        "cuStreamSetAttribute",
        "Stream.set_attribute, AccessPolicyWindow, SynchronizationPolicy, MemSyncDomainMap",
        "attributes: each_attribute_can_be_set",
    ),
    row("cuStreamCopyAttributes", "Stream.copy_attributes", "attributes: attributes_are_copied"),
    row(
        "cuStreamAttachMemAsync",
        "Stream.attach_mem_async, MemAttach",
        "memory: managed_memory_is_attached",
    ),
    row(
        "cuStreamBeginCapture",
        "Stream.begin_capture, CaptureMode",
        "capture_scopes: captured_work_runs_at_each_launch",
    ),
    row(
        "cuStreamBeginCaptureToGraph",
        "Stream.begin_capture_to_graph",
        "capture_to_graph: capture_into_a_graph_returns_that_graph, "
        "capture_to_graph: capture_into_a_graph_with_annotated_dependencies",
    ),
    row(
        "cuStreamEndCapture",
        "Stream.end_capture",
        "capture_scopes: captured_work_runs_at_each_launch, capture_scopes: unjoined_and_unmatched_captures",
    ),
    row(
        "cuStreamIsCapturing",
        "Stream.capture_status, CaptureStatus",
        "capture_scopes: invalidated_capture_has_to_be_ended",
    ),
    row(
        "cuStreamGetCaptureInfo",
        "Stream.capture_info, CaptureInfo",
        "capture_scopes: graph_of_capture_info_is_closed_at_the_end",
    ),
    row(
        "cuStreamGetCaptureInfo_v2",
        "Stream.capture_info",
        "capture_scopes: capture_info_of_a_joined_stream",
    ),
    row(
        "cuStreamGetCaptureInfo_v3", "Stream.capture_info", "capture_scopes: annotated_dependencies"
    ),
    row(
        "cuStreamUpdateCaptureDependencies",
        "Stream.update_capture_dependencies, DependencyUpdate",
        "capture_scopes: dependencies_can_be_added_and_replaced",
    ),
    row(
        "cuStreamUpdateCaptureDependencies_v2",
        "Stream.update_capture_dependencies",
        "capture_scopes: annotated_dependencies",
    ),
    row(
        "cuThreadExchangeStreamCaptureMode",
        "capture_mode, exchange_capture_mode",
        "capture_scopes: capture_mode_puts_the_mode_back",
    ),
    row(
        "cudaThreadExchangeStreamCaptureMode",
        "capture_mode, exchange_capture_mode",
        "capture_scopes: relaxed_thread_may_allocate_during_a_global_capture, "
        "capture_scopes: capture_mode_puts_the_mode_back",
    ),
    row("cuCtxGetStreamPriorityRange", "Device.stream_priority_range", "stream: properties"),
    row(
        "cuStreamGetDevResource",
        "Stream.dev_resource, DevResourceType",
        "memory: dev_resource",
    ),
    row(
        "cuStreamBeginRecaptureToGraph",
        "Stream.begin_recapture_to_graph",
        "attributes: functions_of_newer_drivers",
    ),
    row(
        "cuStreamWaitValue32", "Stream.wait_value, WaitValueFlags", "memory: work_waits_for_a_value"
    ),
    row("cuStreamWaitValue64", "Stream.wait_value", "memory: work_waits_for_a_value"),
    row(
        "cuStreamWriteValue32",
        "Stream.write_value, WriteValueFlags",
        "memory: values_are_written_in_order",
    ),
    row("cuStreamWriteValue64", "Stream.write_value", "memory: values_are_written_in_order"),
    row(
        "cuStreamBatchMemOp",
        "Stream.batch_mem_op, WaitValue, WriteValue, FlushRemoteWrites, MemoryBarrier",
        "memory: a_batch_is_done_in_order, memory: barriers_and_flushes",
    ),
]

# The methods of the Rust `Stream`, and of the types that it gives.
RUST = [
    row("completion_future", "Stream.completion_future", "waits: several_tasks_await_one_future"),
    row(
        "checked_completion_future",
        "Stream.checked_completion_future",
        "capture: other_streams_and_events_work_during_a_capture",
    ),
    row(
        "synchronize_async",
        "Stream.synchronize_async",
        "waits: synchronize_async_waits_for_the_work",
    ),
    row(
        "enqueue_async",
        "Stream.enqueue_async",
        "waits: enqueue_async_calls_now_and_settles_with_the_result, waits: enqueue_async_refuses_before_it_calls",
    ),
    row("from_raw", "Stream.from_raw", "stream: into_raw_and_from_raw"),
    row("into_raw", "Stream.into_raw", "stream: into_raw_and_from_raw"),
    row("as_raw", "Stream.handle", "stream: into_raw_and_from_raw"),
    row(
        "to_borrowed, BorrowedStream",
        "Stream.to_borrowed",
        "stream: borrowed_stream_is_closed_with_its_owner",
    ),
    row(
        "BorrowedStream of other libraries",
        "Stream.borrow, Stream.core",
        "interop: streams_of_cuda_core",
    ),
    row("sync_scope", "Stream.sync_scope", "stream: sync_scope_always_synchronizes"),
    row("synchronize", "Stream.synchronize", "stream: query_and_synchronize"),
    row("query", "Stream.query", "stream: query_and_synchronize"),
    row("shutdown", "Stream.shutdown", "stream: shutdown_synchronizes_first"),
    row("wait_event", "Stream.wait_event", "stream: wait_event_orders_streams"),
    row(
        "wait_event_with_flags",
        "Stream.wait_event, WaitEventFlags",
        "capture_scopes: external_events_become_nodes",
    ),
    row("begin_capture", "Stream.begin_capture", "capture_scopes: begin_and_end_that_are_refused"),
    row(
        "end_capture",
        "Stream.end_capture",
        "capture_scopes: another_thread_may_end_a_relaxed_capture_only",
    ),
    row(
        "capture_status",
        "Stream.capture_status",
        "capture_scopes: invalidated_capture_has_to_be_ended",
    ),
    row(
        "capture_info, StreamCaptureInfo",
        "Stream.capture_info, CaptureInfo",
        "capture_scopes: graph_of_capture_info_is_closed_at_the_end",
    ),
    row(
        "begin_capture_to_graph",
        "Stream.begin_capture_to_graph",
        "capture_to_graph: capture_into_a_graph_returns_that_graph",
    ),
    row(
        "begin_capture_to_graph_with_data, _with_dependencies",
        "Stream.begin_capture_to_graph, GraphDependency",
        "capture_to_graph: capture_into_a_graph_with_annotated_dependencies",
    ),
    row(
        "update_capture_dependencies, _with_mode",
        "Stream.update_capture_dependencies, DependencyUpdate",
        "capture_scopes: dependencies_can_be_added_and_replaced",
    ),
    row(
        "update_capture_dependencies_with_data, _with_dependencies",
        "Stream.update_capture_dependencies, GraphDependency",
        "capture_scopes: annotated_dependencies",
    ),
    row(
        "capture",
        "Stream.capture, CaptureScope.graph",
        "capture_scopes: the_scopes, capture_scopes: an_exception_ends_the_capture_and_wins",
    ),
    row(
        "capture_executable, _with_flags",
        "Stream.capture_executable, CaptureScope.executable, InstantiateFlags",
        "capture_scopes: the_scopes",
    ),
    row(
        "add_callback",
        "Stream.add_callback",
        "hostfunc: host_functions_run_in_order_with_their_arguments",
    ),
    row(
        "launch_host_func",
        "Stream.launch_host_func",
        "graph_hostfunc: graphs_are_dropped_while_launches_are_in_flight, "
        "hostfunc: host_functions_run_in_order_with_their_arguments",
    ),
    row("flags, StreamFlags", "Stream.flags, StreamFlags", "stream: properties"),
    row("priority", "Stream.priority", "stream: properties"),
    row("id", "Stream.id", "stream: properties"),
    row("device", "Stream.device", "stream: properties"),
    row(
        "context",
        "Stream.context",
        "stream: stream_lives_in_the_current_context_or_on_its_device",
    ),
    row("Context::create_stream_with_flags, _with_priority", "Stream", "stream: properties"),
    row(
        "Device::stream_priority_range",
        "Device.stream_priority_range",
        "attributes: priorities_are_clamped",
    ),
    row(
        "Event::record",
        "Event.record",
        "event: second_record_replaces_the_first",
    ),
    row(
        "Event::query, synchronize",
        "Event.query, Event.synchronize",
        "event: second_record_replaces_the_first",
    ),
    row("Event::synchronize_async_on", "Event.synchronize_async", "event: awaiting_an_event"),
    row("Event::elapsed_time", "Event.elapsed_time", "event: elapsed_time_is_in_milliseconds"),
    row(
        "Event::completion_future_on, checked_completion_future_on",
        "Event.completion_future_on, Event.checked_completion_future_on",
        "event: waiting_for_an_event_on_a_stream",
    ),
    row(
        "Graph",
        "Graph, Graph.nodes, Graph.clone",
        "graph: nodes_know_their_neighbours, graph: clone_is_independent",
    ),
    row("Graph::debug_dot", "Graph.debug_dot, DebugDotFlags", "graph: debug_dot"),
    row(
        "Graph::instantiate, GraphInstantiateFlags",
        "Graph.instantiate, InstantiateFlags",
        "graph: instantiate_flags",
    ),
    row(
        "ExecutableGraph::launch", "ExecutableGraph.launch", "graph: an_empty_graph_can_be_launched"
    ),
    row(
        "ExecutableGraph::launch_async",
        "ExecutableGraph.launch_async",
        "graph: many_launches_in_flight",
    ),
    row(
        "ExecutableGraph::launch_and_wait",
        "ExecutableGraph.launch_and_wait",
        "graph: launch_can_be_awaited",
    ),
    row(
        "ExecutableGraph::upload",
        "ExecutableGraph.upload",
        "graph: launches_from_a_thread_without_a_context",
    ),
    row(
        "ExecutableGraph::upload_async, upload_and_wait",
        "ExecutableGraph.upload_async, ExecutableGraph.upload_and_wait",
        "graph: launch_can_be_awaited",
    ),
    row(
        "ExecutableGraph::update",
        "ExecutableGraph.update, GraphUpdateError, GraphUpdateResult",
        "graph: an_update_takes_over_the_parameters, graph: update_that_does_not_fit_says_why",
    ),
    row(
        "GraphNode",
        "GraphNode.type, GraphNode.dependencies, GraphNode.dependents, GraphNodeType",
        "graph: nodes_know_their_neighbours",
    ),
    row(
        "GraphEdgeData",
        "GraphEdgeData, GraphDependencyType",
        "capture_scopes: annotated_dependencies",
    ),
    row("GraphDependency", "GraphDependency", "capture_scopes: annotated_dependencies"),
    row(
        "StreamCaptureMode",
        "CaptureMode",
        "capture_scopes: another_thread_may_end_a_relaxed_capture_only",
    ),
    row(
        "StreamCaptureStatus",
        "CaptureStatus",
        "capture_scopes: invalidated_capture_has_to_be_ended",
    ),
    row(
        "StreamCaptureDependencyUpdate",
        "DependencyUpdate",
        "capture_scopes: dependencies_can_be_added_and_replaced",
    ),
    row("Status", "CudaError", "attributes: refusals_of_the_driver"),
]

BEYOND = [
    row("", "drain", "service: drain_waits_for_everything"),
    row(
        "",
        "on_context_failed",
        "service: listeners_are_told_once, lost_context: fault_that_nobody_awaits_is_told_within_a_second",
    ),
    row(
        "",
        "Stream.torch, Stream.cupy, Stream.numba",
        "shared_streams: stream_of_another_library_is_on_the_same_handle",
    ),
    row("", "health", "lost_context: health_is_none_or_the_error"),
    row(
        "", "exit_on_context_failed", "lost_context: process_ends_wherever_the_error_first_appears"
    ),
    row("", "as_completed", "service: futures_come_in_the_order_in_which_they_end"),
    row("", "wait", "service: waiting_for_all, service: waiting_for_the_first"),
    row("", "StreamPool, StreamPool.stream", "pool: streams_are_lent_in_turn_and_come_back"),
    row(
        "",
        "Stream.legacy, Stream.per_thread",
        "stream: special_streams_can_be_awaited_without_a_context",
    ),
    row("", "Graph.borrow, ExecutableGraph.borrow", "graph: graphs_of_other_libraries"),
    row(
        "",
        "Graph.from_raw, Graph.into_raw, ExecutableGraph.from_raw, ExecutableGraph.into_raw",
        "graph: ownership",
    ),
    row("", "statistics", "graph_hostfunc: a_graph_that_is_never_launched"),
]

_HEAD = """# Names

Every function of the driver's chapter on streams (CUDA 7 to 13) and every method of the Rust `Stream` that this library follows,
the name that each has here, the oldest driver that it needs, and the tests that show it. Written by `docs/make_reference.py` from
the library's docstrings; `tests/test_reference.py` holds it to be complete and true. The docstrings say the rest:
`help(aiostream.Stream.capture)`.
"""


def find(name: str) -> Any:
    """What a name stands for; raises `AttributeError` if there is no such thing."""
    found: Any = aiostream
    for part in name.split("."):
        found = getattr(found, part)
    return found


def summary(name: str) -> str:
    """The first sentence of its docstring."""
    text = inspect.getdoc(find(name)) or ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()


def needed_driver(each: Row) -> int:
    """The oldest driver with which it works: of the function itself, or of those that the names' docstrings speak of."""
    if each.theirs in _driver.MINIMUM:
        return _driver.MINIMUM[each.theirs]
    mentioned = {
        call
        for name in each.ours
        for call in re.findall(r"`(cu[A-Z]\w+)`", inspect.getdoc(find(name)) or "")
    }
    return max([OLDEST, *(_driver.MINIMUM[call] for call in mentioned if call in _driver.MINIMUM)])


def _table(rows: list[Row], head: str) -> list[str]:
    lines = [f"| {head} | here | what it does | needs CUDA | tests |", "|---|---|---|---|---|"]
    for each in rows:
        needed = needed_driver(each)
        what = summary(each.ours[0]).replace("|", "\\|")
        names = ", ".join(f"`{name}`" for name in each.ours)
        tests = ", ".join(f"`{test}`" for test in each.tests)
        lines.append(
            f"| {each.theirs} | {names} | {what} | {needed // 1000}.{needed % 1000 // 10} | {tests} |"
        )
    return lines


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, head, rows in (
        ("Driver functions", "driver", DRIVER),
        ("Methods of the Rust Stream", "Rust", RUST),
        ("Beyond both", "", BEYOND),
    ):
        parts += [f"## {title}\n", *_table(rows, head), ""]
    return "\n".join(parts)


def main() -> None:
    """Writes the page, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page is stale"
    )
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        raise SystemExit(f"{PAGE} is stale: run python docs/make_reference.py")


if __name__ == "__main__":
    main()
