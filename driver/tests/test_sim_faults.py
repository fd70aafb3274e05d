"""Sticky errors, and the adversaries that make them worse."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import nogpu as simulator
from simdriver import HOST, Gate, Kernels, callback, code, cu, host, keep, ok, until


@contextlib.contextmanager
def called(*names: str) -> Iterator[None]:
    """Ends when other threads have called these functions since its beginning, and have most
    probably come to where they block.
    """
    before = {name: simulator.calls(name) for name in names}
    yield
    until(lambda: all(simulator.calls(name) > count for name, count in before.items()))
    time.sleep(0.02)


@pytest.mark.parametrize(("kernel", "status"), [("trap", 719), ("illegal_address", 700)])
def test_a_fault_takes_the_whole_process(
    stream: Any, kernels: Kernels, gate: Gate, kernel: Any, status: Any
) -> None:
    second = ok(cu.cuDevicePrimaryCtxRetain(1))
    ok(cu.cuCtxPushCurrent(second))
    elsewhere, event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0))
    ok(cu.cuCtxPopCurrent())
    fired: list[Any] = []
    statuses: list[Any] = []
    ok(kernels.launch("empty", stream))
    host(stream, lambda: fired.append("before"))
    ok(cu.cuStreamSynchronize(stream))
    gate.hold(stream)
    ok(kernels.launch(kernel, stream))
    host(stream, lambda: fired.append("after"))
    callback(stream, statuses.append)
    gate.open()
    assert code(cu.cuStreamSynchronize(stream)) == status
    until(lambda: statuses)
    answers = {
        code(cu.cuStreamQuery(stream)), code(cu.cuStreamQuery(elsewhere)),
        code(cu.cuEventQuery(event)),
        code(cu.cuStreamCreate(1)), code(cu.cuStreamDestroy(stream)),
        code(cu.cuEventRecord(event, elsewhere)),
        code(cu.cuMemAlloc(64)), code(cu.cuCtxSynchronize()), callback(stream, statuses.append),
        code(kernels.launch("empty", stream)), code(cu.cuDevicePrimaryCtxReset(0)),
    }  # fmt: skip
    assert answers == {status}
    assert (
        code(cu.cuCtxGetCurrent())
        == code(cu.cuDriverGetVersion())
        == code(cu.cuDeviceGetCount())
        == 0
    )
    assert code(cu.cuGetErrorName(cu.CUresult(status))) == 0
    # An H200 exchanges them then too, so that a thread can put its mode back.
    relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = ok(cu.cuThreadExchangeStreamCaptureMode(relaxed))
    assert ok(cu.cuThreadExchangeStreamCaptureMode(before)) == relaxed
    assert fired == ["before"]
    assert statuses == [status]
    simulator.recover()
    assert code(cu.cuStreamQuery(elsewhere)) == 0
    ok(cu.cuDevicePrimaryCtxRelease(1))


def test_every_waiter_gets_it(stream: Any, gate: Gate) -> None:
    context, codes = ok(cu.cuCtxGetCurrent()), []
    event = ok(cu.cuEventCreate(0))
    gate.hold(stream)
    ok(cu.cuEventRecord(event, stream))

    def wait(call: Any, *args: Any) -> None:
        ok(cu.cuCtxSetCurrent(context))
        codes.append(code(call(*args)))

    threads = [
        threading.Thread(target=wait, args=arguments)
        for arguments in (
            (cu.cuStreamSynchronize, stream),
            (cu.cuEventSynchronize, event),
            (cu.cuCtxSynchronize,),
        )
    ]
    names = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")
    with called(*names):
        for thread in threads:
            thread.start()
    simulator.break_context(700)
    for thread in threads:
        thread.join(10)
    assert codes == [700] * 3


def test_pending_work_on_other_streams(gate: Gate) -> None:
    first, second = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(0))
    fired: list[Any] = []
    statuses: list[Any] = []
    for each in (first, second):
        gate.hold(each)
        host(each, lambda: fired.append(1))
        callback(each, statuses.append)
        callback(each, statuses.append)
    simulator.break_context(700)
    until(lambda: len(statuses) == 4)
    simulator.recover()
    assert statuses == [700] * 4
    assert fired == []
    assert simulator.pending_work() == 0
    host(first, lambda: fired.append("again"))
    ok(cu.cuStreamSynchronize(first))
    assert fired == ["again"]


def test_bad_pointers_are_illegal_addresses(stream: Any, kernels: Kernels) -> None:
    ok(
        kernels.launch(
            "fill32", stream, ctypes.c_uint64(64), ctypes.c_uint32(1), ctypes.c_uint32(1)
        )
    )
    assert code(cu.cuStreamSynchronize(stream)) == 700


def test_late_faults(stream: Any, kernels: Kernels) -> None:
    other = ok(cu.cuStreamCreate(1))
    with simulator.adversary(late_faults=0.1):
        start, answers = time.monotonic(), set()
        ok(kernels.launch("trap", stream))
        while True:
            before = code(cu.cuStreamQuery(other))  # the fault may come between the two queries
            if (answer := code(cu.cuStreamQuery(stream))) != 600:
                break
            answers.add(before)
            time.sleep(0.001)
        assert answer == 719
        assert time.monotonic() - start >= 0.1
        assert answers <= {0}  # a busy machine may leave none
        assert code(cu.cuStreamQuery(other)) == 719


def test_fire_after_fault(stream: Any, gate: Gate) -> None:
    fired = []
    with simulator.adversary(fire_after_fault=True):
        gate.hold(stream)
        host(stream, lambda: fired.append(1))
        simulator.break_context(719)
        until(lambda: fired)
        simulator.recover()
    assert fired == [1]


def test_a_launch_that_blocks_is_reported_too(stream: Any, kernels: Kernels, gate: Gate) -> None:
    context, codes = ok(cu.cuCtxGetCurrent()), []
    gate.hold(stream)
    for _ in range(1022):
        ok(kernels.launch("empty", stream))

    def launch() -> None:
        ok(cu.cuCtxSetCurrent(context))
        codes.append(code(kernels.launch("empty", stream)))

    thread = threading.Thread(target=launch)
    with called("cuLaunchKernel"):
        thread.start()
    simulator.break_context(700)
    thread.join(10)
    assert codes == [700]


def hold_the_engine(kernels: Kernels, stream: cu.CUstream) -> threading.Event:
    """Launches a kernel that runs until the event is set; returns once it is running."""
    running, release = threading.Event(), threading.Event()

    def kernel(_: object) -> None:
        running.set()
        release.wait(30)

    native = HOST(kernel)
    keep.append(native)
    simulator.register_kernel(
        "mine", ctypes.cast(native, ctypes.c_void_p).value or 0, parameters=[]
    )
    ok(kernels.launch("mine", stream))
    assert running.wait(10)
    return release


def test_nothing_is_let_go_before_the_running_kernel_ends(stream: Any, kernels: Kernels) -> None:
    """Until then the engine may be writing to what would be let go of: freed memory, or a blocked
    caller's own.
    """
    context = ok(cu.cuCtxGetCurrent())
    codes: list[Any] = []
    statuses: list[Any] = []
    release = hold_the_engine(kernels, stream)
    callback(stream, statuses.append)

    def wait() -> None:
        ok(cu.cuCtxSetCurrent(context))
        codes.append(code(cu.cuStreamSynchronize(stream)))

    waiting, recovering = threading.Thread(target=wait), threading.Thread(target=simulator.recover)
    with called("cuStreamSynchronize"):
        waiting.start()
    simulator.break_context(700)
    assert (
        code(cu.cuStreamQuery(stream)) == 700
    )  # at once: no call waits for the kernel to hear of the fault
    recovering.start()
    time.sleep(0.05)
    before = (
        waiting.is_alive(),
        recovering.is_alive(),
        code(cu.cuStreamQuery(stream)),
        list(statuses),
    )
    release.set()
    waiting.join(10)
    recovering.join(10)
    assert before == (True, True, 700, [])
    assert (codes, statuses) == ([700], [700])
    assert simulator.pending_work() == 0
    ok(cu.cuStreamSynchronize(stream))


def test_a_kernel_that_breaks_the_driver(stream: Any, kernels: Kernels) -> None:
    """It cannot be waited for by itself."""
    reported = []

    def kernel(_: object) -> None:
        simulator.break_context(719)
        try:
            simulator.recover()
        except RuntimeError as error:
            reported.append(error)

    native = HOST(kernel)
    keep.append(native)
    simulator.register_kernel(
        "mine", ctypes.cast(native, ctypes.c_void_p).value or 0, parameters=[]
    )
    ok(kernels.launch("mine", stream))
    assert code(cu.cuStreamSynchronize(stream)) == 719
    assert len(reported) == 1
    simulator.recover()
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.parametrize("wrong", [-1, 0, 1, 2, 5, 45, 100, 600, 720, 2**32 + 700])
def test_a_code_that_loses_no_context_is_refused(stream: Any, wrong: int) -> None:
    """Awaits would hang after it, because the library would wait on."""
    with pytest.raises(ValueError, match=rf"^{wrong} is not a code .*700.*simulator\.fail\(\)"):
        simulator.break_context(wrong)
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.parametrize("wrong", ["700", True, 700.0, None])
def test_a_code_is_an_int(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a code is an int"):
        simulator.break_context(wrong)


def test_each_code_of_a_lost_context_is_taken(stream: Any) -> None:
    for each in (46, 214, 700, cu.CUresult.CUDA_ERROR_LAUNCH_FAILED, 999):
        simulator.break_context(each)
        assert code(cu.cuStreamQuery(stream)) == int(each)
        simulator.recover()


def test_a_call_that_hangs_goes_on(stream: Any) -> None:
    """The second from now, in another thread. Then it does its work."""
    simulator.hang("cuStreamQuery", nth=2)
    assert code(cu.cuStreamQuery(stream)) == 0
    answers: list[int] = []
    before = simulator.calls("cuStreamQuery")
    thread = threading.Thread(target=lambda: answers.append(code(cu.cuStreamQuery(stream))))
    thread.start()
    until(lambda: simulator.calls("cuStreamQuery") > before)
    assert code(cu.cuStreamQuery(stream)) == 0  # others do not wait for it
    assert not answers
    assert simulator.clear_faults() == 0  # it has happened
    thread.join()
    assert answers == [0]


def test_what_is_to_hang_is_checked(stream: Any) -> None:
    with pytest.raises(ValueError, match="cuStreamQuery"):
        simulator.hang("cuStreamQuer")
    with pytest.raises(ValueError, match="nth"):
        simulator.hang("cuStreamQuery", nth=0)
