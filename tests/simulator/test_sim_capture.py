"""Stream capture: as docs/driver.md says of an H200."""

from __future__ import annotations

import threading

import pytest
from simdriver import callback, code, cu, host, in_thread, ok

from aiostream import simulator

GLOBAL, THREAD_LOCAL, RELAXED = (cu.CUstreamCaptureMode(n) for n in range(3))
MODES = [GLOBAL, THREAD_LOCAL, RELAXED]


def begin(stream, mode=GLOBAL):
    ok(cu.cuStreamBeginCapture(stream, mode))


def end(stream) -> int:
    answer, graph = cu.cuStreamEndCapture(stream)
    if int(answer) == 0:
        ok(cu.cuGraphDestroy(graph))
    return int(answer)


def status(stream) -> int:
    return int(ok(cu.cuStreamIsCapturing(stream)))


def nodes(graph) -> list[int]:
    found, count = ok(cu.cuGraphGetNodes(graph, 64))
    return [int(ok(cu.cuGraphNodeGetType(node))) for node in found[:count]]


def test_work_is_collected_and_not_done(stream, kernels):
    fired, memory, other = [], ok(cu.cuMemAlloc(64)), ok(cu.cuStreamCreate(1))
    event = ok(cu.cuEventCreate(0))
    begin(stream)
    ok(kernels.launch("empty", stream))
    host(stream, lambda: fired.append(1))
    ok(cu.cuMemsetD8Async(memory, 1, 64, stream))
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuStreamWaitEvent(other, event, 0))
    assert status(other) == 1
    ok(kernels.launch("empty", other))
    ok(cu.cuEventRecord(event, other))
    ok(cu.cuStreamWaitEvent(stream, event, 0))
    graph = ok(cu.cuStreamEndCapture(stream))
    assert nodes(graph) == [0, 3, 2, 0]
    assert status(stream) == status(other) == 0
    ok(cu.cuStreamSynchronize(stream))
    assert fired == []
    found = cu.cuGraphGetRootNodes(graph, 8)
    assert found[2] == 1
    ok(cu.cuGraphDestroy(graph))
    assert code(cu.cuGraphDestroy(graph)) == 400
    ok(cu.cuMemFree(memory))


def test_capture_information(stream):
    assert int(ok(cu.cuStreamGetCaptureInfo(stream))[0]) == 0
    begin(stream, RELAXED)
    host(stream, lambda: None)
    info = ok(cu.cuStreamGetCaptureInfo(stream))
    assert int(info[0]) == 1
    assert int(info[1]) > 0
    assert info[-1] == 1
    assert end(stream) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ["query", "synchronize", "callback"])
def test_what_invalidates_it_in_every_mode(stream, mode, call):
    begin(stream, mode)
    if call == "callback":
        assert callback(stream, lambda _: None) == 900
    else:
        assert code(cu.cuStreamQuery(stream) if call == "query" else cu.cuStreamSynchronize(stream)) == 900
    assert status(stream) == 2
    assert end(stream) == 901
    assert status(stream) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ["event", "stream", "alloc"])
def test_unsafe_calls_of_another_thread(stream, mode, call):
    context, other, event = ok(cu.cuCtxGetCurrent()), ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0))

    def ask(thread_mode) -> int:
        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuThreadExchangeStreamCaptureMode(thread_mode))
        if call == "alloc":
            answer, memory = cu.cuMemAlloc(64)
            if int(answer) == 0:
                cu.cuMemFree(memory)
            return int(answer)
        return code(cu.cuEventQuery(event) if call == "event" else cu.cuStreamQuery(other))

    begin(stream, mode)
    assert in_thread(lambda: ask(THREAD_LOCAL)) == in_thread(lambda: ask(RELAXED)) == 0
    assert in_thread(lambda: ask(GLOBAL)) == (900 if mode == GLOBAL else 0)
    assert end(stream) == (901 if mode == GLOBAL else 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("thread_mode", MODES)
def test_unsafe_calls_of_the_capturing_thread(stream, mode, thread_mode):
    event, other = ok(cu.cuEventCreate(0)), ok(cu.cuStreamCreate(1))
    allowed = mode == RELAXED or thread_mode == RELAXED
    begin(stream, mode)
    before = ok(cu.cuThreadExchangeStreamCaptureMode(thread_mode))
    assert code(cu.cuEventQuery(event)) == (0 if allowed else 900)
    assert code(cu.cuStreamQuery(other)) == (0 if allowed else 900)
    assert ok(cu.cuThreadExchangeStreamCaptureMode(before)) == thread_mode
    assert end(stream) == (0 if allowed else 901)


@pytest.mark.parametrize("mode", MODES)
def test_records_and_host_functions_elsewhere_are_allowed(stream, mode):
    context, other, event, fired = ok(cu.cuCtxGetCurrent()), ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0)), []

    def work() -> bool:
        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuEventRecord(event, other))
        host(other, lambda: fired.append(1))
        return True

    begin(stream, mode)
    assert in_thread(work)
    assert work()
    assert end(stream) == 0
    ok(cu.cuStreamSynchronize(other))
    assert fired == [1, 1]


def test_work_from_before_fires_during_the_capture(stream, gate):
    fired, event = threading.Event(), ok(cu.cuEventCreate(0))
    gate.hold(stream)
    host(stream, fired.set)
    ok(cu.cuEventRecord(event, stream))
    begin(stream, RELAXED)
    gate.open()
    assert fired.wait(10)
    while code(cu.cuEventQuery(event)) == 600:
        pass
    assert end(stream) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", [cu.cuStreamGetFlags, cu.cuStreamGetId])
def test_even_these_questions_end_it_on_an_h200(stream, mode, call):
    begin(stream, mode)
    ok(cu.cuStreamGetPriority(stream))
    ok(cu.cuStreamGetCtx(stream))
    assert code(call(stream)) == 900
    assert end(stream) == 901


def test_the_legacy_stream_while_a_blocking_stream_captures():
    blocking = ok(cu.cuStreamCreate(0))
    begin(blocking, RELAXED)
    assert code(cu.cuStreamIsCapturing(cu.CUstream(0))) == 906
    assert code(cu.cuStreamGetCaptureInfo(cu.CUstream(0))) == 906
    assert end(blocking) == 0
    begin(blocking, RELAXED)
    assert code(cu.cuStreamQuery(cu.CUstream(0))) == 906
    assert end(blocking) == 901
    assert code(cu.cuStreamBeginCapture(cu.CUstream(0), RELAXED)) == 900
    ok(cu.cuStreamDestroy(blocking))


def test_it_ends_where_and_by_whom_it_began(stream):
    assert code(cu.cuStreamEndCapture(stream)) == 401
    begin(stream, GLOBAL)
    assert code(cu.cuStreamBeginCapture(stream, GLOBAL)) == 401
    assert in_thread(lambda: code(cu.cuStreamEndCapture(stream))) == 908
    assert end(stream) == 0
    begin(stream, RELAXED)
    assert in_thread(lambda: end(stream)) == 0


def test_an_unjoined_stream(stream, kernels):
    other, event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0))
    begin(stream, RELAXED)
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuStreamWaitEvent(other, event, 0))
    assert code(cu.cuStreamEndCapture(other)) == 903
    assert end(stream) == 901
    begin(stream, RELAXED)
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuStreamWaitEvent(other, event, 0))
    ok(kernels.launch("empty", other))
    assert end(stream) == 904


def test_dependencies_across_the_border(stream, gate):
    outside, event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(event, outside))
    begin(stream, RELAXED)
    assert code(cu.cuStreamWaitEvent(stream, event, 0)) == 905
    assert end(stream) == 901
    second = ok(cu.cuStreamCreate(1))
    begin(stream, RELAXED)
    begin(second, RELAXED)
    ok(cu.cuEventRecord(event, stream))
    assert code(cu.cuStreamWaitEvent(second, event, 0)) == 902
    assert end(stream) == end(second) == 901


def test_a_captured_event_can_be_asked_nothing_and_the_capture_goes_on(stream):
    event = ok(cu.cuEventCreate(0))
    begin(stream, RELAXED)
    ok(cu.cuEventRecord(event, stream))
    assert code(cu.cuEventQuery(event)) == 1
    assert code(cu.cuEventSynchronize(event)) == 907
    assert code(cu.cuEventElapsedTime(event, event)) == 907
    assert end(stream) == 0
    assert code(cu.cuEventSynchronize(event)) == 907
    assert code(cu.cuStreamWaitEvent(stream, event, 0)) == 907
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuEventSynchronize(event))


def test_destroying_the_stream_ends_the_capture(kernels):
    stream = ok(cu.cuStreamCreate(1))
    begin(stream, GLOBAL)
    ok(kernels.launch("empty", stream))
    ok(cu.cuStreamDestroy(stream))
    assert code(cu.cuMemGetInfo()) == 0
    other = ok(cu.cuEventCreate(0))
    assert code(cu.cuEventQuery(other)) == 0
    assert simulator.pending_work() == 0
