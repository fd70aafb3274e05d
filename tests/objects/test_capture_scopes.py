"""How captures begin, are steered and end: always, whatever happens in them, and with the driver's
own errors.
"""

from __future__ import annotations

import gc
import itertools
from contextlib import nullcontext, suppress
from typing import Any

import pytest

import aiostream
import internals
from aiostream import (
    CaptureMode,
    CaptureStatus,
    CudaError,
    DependencyUpdate,
    Event,
    Graph,
    GraphDependency,
    GraphDependencyType,
    GraphEdgeData,
    GraphNodeType,
    InstantiateFlags,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    WaitEventFlags,
    statistics,
)
from captures import PROGRAMMATIC, code_of, in_thread
from interrupts import Striker
from support import PLAIN_LOOPS, STRATEGIES, Gate, settle, spin

MODES = list(CaptureMode)


@pytest.mark.parametrize("mode", MODES)
def test_captured_work_runs_at_each_launch(stream: Stream, mode: CaptureMode) -> None:
    calls: list[int] = []
    with stream.capture(mode) as capture:
        assert stream.capture_status() is CaptureStatus.ACTIVE
        with pytest.raises(RuntimeError, match="no graph"):
            _ = capture.graph
        spin(stream, 0)
        stream.launch_host_func(calls.append, 1)
        spin(stream, 0)
    assert stream.capture_status() is CaptureStatus.NONE
    with pytest.raises(RuntimeError, match="no executable"):
        _ = capture.executable
    with capture.graph as graph:
        kernel, host = GraphNodeType.KERNEL, GraphNodeType.HOST
        assert sorted(node.type for node in graph.nodes) == [kernel, kernel, host]
        assert calls == []
        with graph.instantiate() as executable:
            for _ in range(3):
                executable.launch(stream)
            stream.synchronize()
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_captured_executable_has_no_graph(stream: Stream, mode: CaptureMode) -> None:
    with stream.capture_executable(mode, InstantiateFlags.AUTO_FREE_ON_LAUNCH) as capture:
        spin(stream, 0)
    with pytest.raises(RuntimeError, match="no graph"):
        _ = capture.graph
    capture.executable.launch(stream)
    stream.synchronize()
    capture.executable.close()


@pytest.mark.parametrize("executable", [False, True])
def test_an_exception_ends_the_capture_and_wins(stream: Stream, executable: bool) -> None:
    before = statistics().handles
    scope = stream.capture_executable() if executable else stream.capture()
    with pytest.raises(KeyError, match="mine"), scope as capture:
        spin(stream, 0)
        raise KeyError("mine")
    assert stream.capture_status() is CaptureStatus.NONE
    after = statistics().handles
    assert (after.open, after.created - before.created) == (before.open, 1)
    with pytest.raises(RuntimeError):
        _ = capture.graph
    stream.synchronize()


async def test_cancellation_ends_the_capture(stream: Stream, other: Stream) -> None:
    import anyio

    with anyio.CancelScope() as scope:
        with stream.capture(CaptureMode.GLOBAL):
            spin(stream, 0)
            await other.synchronize_async()  # others can be awaited meanwhile
            scope.cancel()
            await anyio.lowlevel.checkpoint()
            raise AssertionError("not cancelled")
    assert scope.cancelled_caught
    assert stream.capture_status() is CaptureStatus.NONE
    await stream.synchronize_async()


def test_body_that_ends_the_capture_itself(stream: Stream) -> None:
    with pytest.raises(CudaError) as caught, stream.capture():
        stream.end_capture().close()
    assert (caught.value.code, caught.value.call) == (401, "cuStreamEndCapture")
    with pytest.raises(ValueError, match="later"), stream.capture():
        stream.end_capture().close()
        raise ValueError("later")


def test_body_that_closes_the_stream(stream: Stream) -> None:
    with pytest.raises((StreamClosedError, CudaError)), stream.capture(CaptureMode.RELAXED):
        again = Stream.from_raw(stream.into_raw())
    again.end_capture().close()
    with pytest.raises((StreamClosedError, CudaError)), again.capture(CaptureMode.RELAXED):
        again.close()


# -------------------------------------------------------------------------- the driver's own errors


def test_begin_and_end_that_are_refused(stream: Stream) -> None:
    none, already = "The stream is not capturing", "The stream is capturing already"
    assert code_of(stream.end_capture, match=none) == (CudaError, 401, "cuStreamEndCapture")
    assert code_of(stream.update_capture_dependencies, [], match=none)[:2] == (CudaError, 401)
    legacy = code_of(Stream.legacy().begin_capture)
    assert legacy == (StreamCaptureError, 900, "cuStreamBeginCapture")
    assert code_of(Stream.legacy().begin_capture_to_graph, Graph())[:2] == (StreamCaptureError, 900)
    stream.begin_capture()
    begun = code_of(stream.begin_capture, match=already)
    assert begun == (CudaError, 401, "cuStreamBeginCapture")
    assert code_of(stream.begin_capture_to_graph, Graph(), match=already)[:2] == (CudaError, 401)
    assert stream.capture_status() is CaptureStatus.ACTIVE
    stream.end_capture().close()


@pytest.mark.parametrize("mode", MODES)
def test_another_thread_may_end_a_relaxed_capture_only(stream: Stream, mode: CaptureMode) -> None:
    stream.begin_capture(mode)
    outcome = in_thread(stream.end_capture, stream)
    if mode is CaptureMode.RELAXED:
        outcome.close()
        return
    assert isinstance(outcome, StreamCaptureError)
    assert outcome.code == 908
    assert code_of(stream.end_capture)[1] == 401  # it has ended nevertheless
    with stream.capture(mode) as capture:
        spin(stream, 0)
    capture.graph.close()


def test_unjoined_and_unmatched_captures(stream: Stream, other: Stream, event: Event) -> None:

    def fork() -> None:
        stream.begin_capture()
        event.record(stream)
        other.wait_event(event)
        spin(other, 0)

    fork()
    assert code_of(stream.end_capture) == (StreamCaptureError, 904, "cuStreamEndCapture")
    assert stream.capture_status() is other.capture_status() is CaptureStatus.NONE
    fork()
    assert code_of(other.end_capture) == (StreamCaptureError, 903, "cuStreamEndCapture")
    assert code_of(stream.end_capture)[:2] == (StreamCaptureError, 901)
    assert stream.capture_status() is other.capture_status() is CaptureStatus.NONE
    fork()
    event.record(other)
    stream.wait_event(event)
    with stream.end_capture() as graph:
        assert len(graph.nodes) == 1
    with pytest.raises(ValueError, match="body"), stream.capture():
        event.record(stream)
        other.wait_event(event)
        raise ValueError("body")  # wins over the error of the capture
    assert stream.capture_status() is other.capture_status() is CaptureStatus.NONE


def test_invalidated_capture_has_to_be_ended(stream: Stream) -> None:
    driver = internals.bindings()
    stream.begin_capture()
    driver.cuStreamQuery(driver.CUstream(stream.handle))  # what aiostream never does
    assert stream.capture_status() is CaptureStatus.INVALIDATED
    invalidated = aiostream.CaptureInfo(CaptureStatus.INVALIDATED, None, None, ())
    assert stream.capture_info() == invalidated
    assert code_of(stream.launch_host_func, print)[:2] == (StreamCaptureError, 901)
    assert code_of(stream.end_capture) == (StreamCaptureError, 901, "cuStreamEndCapture")
    assert stream.capture_info().status is CaptureStatus.NONE
    with pytest.raises(StreamCaptureError), stream.capture():
        driver.cuStreamQuery(driver.CUstream(stream.handle))
    stream.synchronize()


# ------------------------------------------------------------------------------ asking and steering


def test_graph_of_capture_info_is_closed_at_the_end(stream: Stream) -> None:
    assert stream.capture_info() == aiostream.CaptureInfo(CaptureStatus.NONE)
    stream.begin_capture()
    empty = stream.capture_info()
    assert empty.status is CaptureStatus.ACTIVE
    assert empty.dependencies == ()
    spin(stream, 0)
    info = stream.capture_info()
    assert info.id == empty.id
    assert info.graph is not None
    assert info.graph == empty.graph
    (dependency,) = info.dependencies
    assert dependency.node.type is GraphNodeType.KERNEL
    assert dependency.edge_data == GraphEdgeData()
    assert info.graph.nodes == (dependency.node,)
    with pytest.raises(ValueError, match="borrowed"):
        info.graph.into_raw()
    handle = info.graph.handle
    graph = stream.end_capture()
    assert graph.handle == handle
    assert info.graph.closed
    for stale in (
        lambda: info.graph.nodes,
        lambda: dependency.node.type,
        lambda: dependency.node.handle,
    ):
        with pytest.raises(StreamClosedError):
            stale()
    assert len(graph.nodes) == 1
    stream.begin_capture()
    assert stream.capture_info().id != info.id
    stream.end_capture().close()
    graph.close()


def test_capture_info_of_a_joined_stream(stream: Stream, other: Stream, event: Event) -> None:
    with stream.capture() as capture:
        spin(stream, 0)
        event.record(stream)
        other.wait_event(event)
        mine, others = stream.capture_info(), other.capture_info()
        assert mine == others
        event.record(other)
        stream.wait_event(event)
    assert others.graph is not None
    assert others.graph.closed
    capture.graph.close()


@pytest.mark.needs_edge_data
def test_dependencies_can_be_added_and_replaced(stream: Stream) -> None:
    with stream.capture() as capture:
        spin(stream, 0)
        (first,) = stream.capture_info().dependencies
        stream.update_capture_dependencies([], mode=DependencyUpdate.SET)
        assert stream.capture_info().dependencies == ()
        spin(stream, 0)
        (second,) = stream.capture_info().dependencies
        assert second != first
        stream.update_capture_dependencies([first.node])
        assert set(stream.capture_info().dependencies) == {first, second}
        spin(stream, 0)
        (third,) = stream.capture_info().dependencies
    with capture.graph as graph:
        assert set(graph.root_nodes) == {graph.nodes[0], graph.nodes[1]}
        last = next(node for node in graph.nodes if node == third.node)
        handles = {internals.last_handle_of(each.node) for each in (first, second)}
        assert {dependency.node.handle for dependency in last.dependencies} == handles
        assert [dependency.node for dependency in graph.nodes[0].dependents] == [last]


def test_annotated_dependencies(stream: Stream) -> None:
    assert GraphEdgeData() == GraphEdgeData(0, 0, GraphDependencyType.DEFAULT) != PROGRAMMATIC
    with stream.capture() as capture:
        spin(stream, 0)
        (plain,) = stream.capture_info().dependencies
        stream.update_capture_dependencies(
            [GraphDependency(plain.node, PROGRAMMATIC)], mode=DependencyUpdate.SET
        )
        assert stream.capture_info().dependencies == (GraphDependency(plain.node, PROGRAMMATIC),)
        stream.update_capture_dependencies([plain], mode=DependencyUpdate.SET)
        assert stream.capture_info().dependencies == (plain,)
        for wrong in (3.5, "node", [None]):
            with pytest.raises(TypeError):
                stream.update_capture_dependencies(wrong if isinstance(wrong, list) else [wrong])
    capture.graph.close()


def test_external_events_become_nodes(stream: Stream, other: Stream, event: Event) -> None:
    """Waited for at each launch, and not joined to the capture."""
    with stream.capture_executable() as capture:
        stream.wait_event(event, WaitEventFlags.EXTERNAL)
        (dependency,) = stream.capture_info().dependencies
        assert dependency.node.type is GraphNodeType.WAIT_EVENT
    with Gate() as gate:
        gate.hold(other)
        event.record(other)
        capture.executable.launch(stream)
        assert not stream.query()
        gate.open()
        stream.synchronize()
    with pytest.raises(CudaError):
        stream.wait_event(event, WaitEventFlags.EXTERNAL)  # no capture
    capture.executable.close()


# ----------------------------------------------------------------------------- the modes of threads


def test_capture_mode_puts_the_mode_back() -> None:
    with aiostream.capture_mode(CaptureMode.RELAXED) as before:
        assert before is CaptureMode.GLOBAL
        with pytest.raises(KeyError), aiostream.capture_mode(CaptureMode.THREAD_LOCAL) as inner:
            assert inner is CaptureMode.RELAXED
            raise KeyError
        assert aiostream.exchange_capture_mode(CaptureMode.RELAXED) is CaptureMode.RELAXED
    assert aiostream.exchange_capture_mode(CaptureMode.GLOBAL) is CaptureMode.GLOBAL


def test_relaxed_thread_may_allocate_during_a_global_capture(stream: Stream) -> None:
    driver = internals.bindings()

    def allocate() -> int:
        code, pointer = driver.cuMemAlloc(64)
        if int(code) == 0:
            driver.cuMemFree(pointer)
        return int(code)

    def relaxed() -> int:
        with aiostream.capture_mode(CaptureMode.RELAXED):
            return allocate()

    with stream.capture(CaptureMode.GLOBAL) as capture:
        assert in_thread(relaxed, stream) == 0
        with stream.context.as_current():
            assert relaxed() == 0
        spin(stream, 0)
    capture.graph.close()
    with pytest.raises(StreamCaptureError), stream.capture(CaptureMode.GLOBAL):
        assert in_thread(allocate, stream) == 900


# ------------------------------------------------------------------------- a block for each capture


def test_a_scope_is_entered_once(stream: Stream) -> None:
    """Entered again, it gave the first block's graph while the second went on, and after that had
    failed.
    """
    scope = stream.capture()
    with scope:
        pass
    message = r"entered before: call stream\.capture\(\) for each block"
    with pytest.raises(RuntimeError, match=message), scope:
        pass
    assert stream.capture_status() is CaptureStatus.NONE
    scope.graph.close()
    refused = stream.capture()
    with stream.capture() as outer:
        with pytest.raises(CudaError, match="The stream is capturing already"), refused:
            pass
        assert stream.capture_status() is CaptureStatus.ACTIVE
    outer.graph.close()
    with refused:  # one that did not begin may begin now
        pass
    refused.graph.close()


async def test_closing_a_capturing_stream_says_that_the_capture_is_gone() -> None:
    """It said that the capture goes on."""
    message = r"The stream was capturing\. It is closed now, and its capture gives no graph"
    for how in ("aclose", "shutdown", "async with"):
        stream = Stream()
        with pytest.raises(StreamCaptureError, match=message):
            async with stream if how == "async with" else nullcontext():
                stream.begin_capture()
            await stream.aclose() if how == "aclose" else stream.shutdown()
        assert stream.closed


async def test_closing_a_borrowed_stream_leaves_the_capture_alone(stream: Stream) -> None:
    borrowed = stream.to_borrowed()
    stream.begin_capture()
    with pytest.raises(StreamCaptureError, match="the capture goes on"):
        await borrowed.aclose()
    assert borrowed.closed
    assert stream.capture_status() is CaptureStatus.ACTIVE
    stream.end_capture().close()


@pytest.mark.cuda_leaks(2)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
@pytest.mark.parametrize("wait", STRATEGIES)
async def test_enqueue_async_function_that_leaves_the_stream_capturing(wait: Any) -> None:
    """It is refused, and its work is kept. The stream goes on."""
    stream, leaked = Stream(wait=wait), statistics().points.leaked
    message = "The function has left the stream capturing.*End the capture in the function"
    with pytest.raises(StreamCaptureError, match=message) as caught:
        stream.enqueue_async(lambda stream: stream.begin_capture())
    # Also while the error, and so its frames, is kept.
    assert statistics().waits.pending == 0, caught
    assert stream.capture_status() is CaptureStatus.ACTIVE
    stream.end_capture().close()
    assert statistics().points.leaked == leaked + 1
    assert await stream.enqueue_async(lambda _: "next") == "next"
    with pytest.raises(StreamCaptureError, match=message):
        await stream.enqueue_in_thread(lambda stream: stream.begin_capture(CaptureMode.RELAXED))
    stream.end_capture().close()
    assert statistics().points.leaked == leaked + 2
    assert await stream.enqueue_in_thread(lambda _: "next") == "next"
    stream.close()


def test_a_scope_keeps_its_stream() -> None:
    """A stream that only the scope refers to was closed by its finalizer."""
    for begin in (Stream.capture, Stream.capture_executable):
        scope = begin(Stream())
        gc.collect()
        assert settle(internals.janitor_is_idle)
        with scope:
            pass


def test_interrupt_of_the_beginning_leaves_the_graph_one_owner(stream: Stream) -> None:
    """Two objects that own one graph would destroy it twice."""
    for number in itertools.count(1):
        with Graph() as graph:
            with suppress(KeyboardInterrupt), Striker(number) as striker:
                stream.begin_capture_to_graph(graph)
            if stream.capture_status() is CaptureStatus.ACTIVE:
                assert stream.end_capture() is graph, striker.where
            stream.begin_capture_to_graph(graph)
            assert stream.end_capture() is graph, striker.where
        if not striker.has_struck:
            break
    assert number > 20
