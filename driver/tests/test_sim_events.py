"""Events and memory operations."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from simdriver import Gate, Kernels, code, cu, host, ok


def test_an_event_never_recorded_is_done(stream: Any) -> None:
    event = ok(cu.cuEventCreate(0))
    assert code(cu.cuEventQuery(event)) == 0
    ok(cu.cuEventSynchronize(event))
    ok(cu.cuStreamWaitEvent(stream, event, 0))
    ok(cu.cuStreamSynchronize(stream))


def test_events_between_processes() -> None:
    assert code(cu.cuEventCreate(4)) == 1, "they have no time"
    event = ok(cu.cuEventCreate(4 | 2))
    assert code(cu.cuIpcGetEventHandle(event)) == 801, "no other process gets it"
    ok(cu.cuEventDestroy(event))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_wait_of_the_legacy_stream_is_a_barrier_if_its_event_was_recorded(
    gate: Gate, recorded: Any
) -> None:
    """So on an H200, although the event is complete and holds up nothing."""
    first, second, order = ok(cu.cuStreamCreate(0)), ok(cu.cuStreamCreate(0)), []
    event = ok(cu.cuEventCreate(0))
    if recorded:
        ok(cu.cuEventRecord(event, second))
        ok(cu.cuEventSynchronize(event))
    gate.hold(first)
    host(first, lambda: order.append("first"))
    ok(cu.cuStreamWaitEvent(cu.CUstream(1), event, 0))
    host(second, lambda: order.append("second"))
    if recorded:
        assert code(cu.cuStreamQuery(second)) == 600
    else:
        ok(cu.cuStreamSynchronize(second))
    gate.open()
    ok(cu.cuCtxSynchronize())
    assert order == (["first", "second"] if recorded else ["second", "first"])


def test_recording_again_overwrites_and_waits_bind_at_the_call(stream: Any) -> None:
    first, second, order = Gate(), Gate(), []
    other, waiting = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1))
    event = ok(cu.cuEventCreate(0))
    first.hold(stream)
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuStreamWaitEvent(waiting, event, 0))
    host(waiting, lambda: order.append("waited"))
    second.hold(other)
    ok(cu.cuEventRecord(event, other))
    first.open()
    ok(cu.cuStreamSynchronize(waiting))  # bound to the first record
    assert order == ["waited"]
    assert code(cu.cuEventQuery(event)) == 600  # shows the second
    second.open()
    ok(cu.cuEventSynchronize(event))
    assert code(cu.cuEventQuery(event)) == 0


def test_a_wait_outlives_the_event(stream: Any, gate: Gate) -> None:
    other, event, order = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0)), []
    gate.hold(stream)
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuStreamWaitEvent(other, event, 0))
    ok(cu.cuEventDestroy(event))
    host(other, lambda: order.append(1))
    assert code(cu.cuStreamQuery(other)) == 600
    gate.open()
    ok(cu.cuStreamSynchronize(other))
    assert order == [1]


def test_elapsed_time(stream: Any, kernels: Kernels, gate: Gate) -> None:
    start, end, untimed = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(2))
    assert code(cu.cuEventElapsedTime(start, end)) == 400
    ok(cu.cuEventRecord(start, stream))
    kernels.spin(stream, 0.05)
    gate.hold(stream)
    ok(cu.cuEventRecord(end, stream))
    assert code(cu.cuEventElapsedTime(start, end)) == 600
    gate.open()
    ok(cu.cuEventSynchronize(end))
    assert 50 <= ok(cu.cuEventElapsedTime(start, end)) < 10_000  # milliseconds, on a busy machine
    ok(cu.cuEventRecord(untimed, stream))
    ok(cu.cuEventSynchronize(untimed))
    assert code(cu.cuEventElapsedTime(start, untimed)) == 400


@pytest.mark.parametrize(
    ("flags", "value", "before", "after"),
    [(0, 5, 4, 5), (0, 5, 0xFFFFFFFF, 6), (1, 5, 6, 5), (2, 4, 3, 12), (3, 0xFFFFFFF0, 0xF, 0xE)],
)
def test_the_four_conditions(stream: Any, flags: Any, value: Any, before: Any, after: Any) -> None:
    gate = Gate()
    gate.word.value = before
    ok(cu.cuStreamWaitValue32(stream, gate.address, value, flags))
    other = ok(cu.cuStreamCreate(1))
    ok(cu.cuStreamWriteValue32(other, gate.address + 4, 1, 0))
    ok(cu.cuStreamSynchronize(other))
    assert code(cu.cuStreamQuery(stream)) == 600
    gate.word.value = after
    ok(cu.cuStreamSynchronize(stream))


def test_64_bits_and_device_memory(stream: Any) -> None:
    memory = ok(cu.cuMemAlloc(64))
    ok(cu.cuMemsetD8(memory, 0, 64))
    ok(cu.cuCtxSynchronize())
    other = ok(cu.cuStreamCreate(1))
    ok(cu.cuStreamWaitValue64(stream, memory, 1 << 40, 0))
    assert code(cu.cuStreamQuery(stream)) == 600
    ok(cu.cuStreamWriteValue64(other, memory, (1 << 40) + 1, 0))
    ok(cu.cuStreamSynchronize(stream))
    assert code(cu.cuStreamWaitValue32(stream, 0x1000, 1, 0)) == 1
    assert code(cu.cuStreamWaitValue32(stream, int(memory) + 2, 1, 0)) == 1
    ok(cu.cuMemFree(memory))


def test_synchronizing_threads_wake_as_their_point_passes(stream: Any) -> None:
    context, gates, done = ok(cu.cuCtxGetCurrent()), [Gate() for _ in range(3)], []
    threads = []
    for number, gate in enumerate(gates):
        gate.hold(stream)
        event = ok(cu.cuEventCreate(0))
        ok(cu.cuEventRecord(event, stream))

        def wait(number: int = number, event: cu.CUevent = event) -> None:
            ok(cu.cuCtxSetCurrent(context))
            ok(cu.cuEventSynchronize(event))
            done.append(number)

        threads.append(threading.Thread(target=wait))
    for thread in threads:
        thread.start()
    for number, gate in enumerate(gates):
        assert done == list(range(number))
        gate.open()
        threads[number].join(10)
        assert done == list(range(number + 1))


def test_stamps_grow(stream: Any, kernels: Kernels) -> None:
    memory = ok(cu.cuMemAlloc(32))
    for index in range(4):
        ok(kernels.launch("stamp", stream, ctypes.c_uint64(int(memory) + 8 * index)))
    times = (ctypes.c_uint64 * 4)()
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemcpyDtoH(ctypes.addressof(times), memory, 32))
    assert list(times) == sorted(times)
    assert times[0] > 0
    ok(cu.cuMemFree(memory))
