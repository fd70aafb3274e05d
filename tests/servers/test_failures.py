"""P5 and P1: a failed context fails every waiter, once, soon, and each with an error of its own. A
refused call changes nothing.

A fault loses the whole process, so each has a process of its own here; the simulator, which can go
on, meets them in the testing process too.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import ContextFailedError, CudaError, Device, Event, Stream, statistics
from support import (
    BACKENDS,
    PLAIN_LOOPS,
    USUAL,
    Gate,
    Kept,
    held_stream,
    recover,
    run_script,
    succeed,
)
from waiters import until

# 32 awaited streams; the first will meet the fault, the others are busy for much longer than that
# takes. Hardware queues are few, so the stream that will fault takes its own first.
FAULT = """
    import contextlib, gc, os, sys, threading, time, weakref
    import anyio
    if os.environ["AIOSTREAM_SIMULATOR"]:
        from aiostream import simulator
        simulator.install(devices=2)
        simulator.adversary({adversary})
    from aiostream import ContextFailedError, CudaError, Device, Stream, statistics
    import internals
    from support import Gate, settle, spin
    KERNEL, CODE, devices = {kernel!r}, {code}, {devices}

    gate = Gate()
    streams = [Stream(device=n % devices, wait="hostfunc" if n == 5 else "auto") for n in range(32)]
    for stream in streams:
        spin(stream, 0)  # loads the module on each device
        stream.synchronize()
    with Device(0).primary_context.as_current():
        # now: with work in flight the driver may make no other
        _, private = internals.bindings().cuStreamCreate(1)
    gate.hold(streams[0])
    internals.launch_kernel(streams[0], KERNEL)
    for stream in streams[1:]:
        spin(stream, 25.0)

    errors, times, first_report, given_up, kept = {{}}, {{}}, [], [], threading.Event()
    too_late = []
    watched = weakref.ref(kept)

    def poll():
        # A user's own query: the moment at which it first says that the context has
        # failed.
        driver = internals.bindings()
        while True:
            (code,) = driver.cuStreamQuery(private)
            if int(code) not in (0, 600):
                first_report.extend([time.monotonic(), int(code)])
                return
            time.sleep(0.001)

    poller = threading.Thread(target=poll, name="poller")
    poller.start()

    async def wait_for(number, make):
        try:
            await make()
        except CudaError as error:
            times[number] = time.monotonic()
            errors[number] = error

    def never(*_):
        raise AssertionError("it was called although the context has failed")

    async def main():
        async with anyio.create_task_group() as group:
            for number, stream in enumerate(streams):
                waits = (stream.synchronize_async, stream.completion_future,
                    stream.checked_completion_future)
                group.start_soon(wait_for, number, waits[number % 3])
            future = streams[5].enqueue_async(lambda stream, thing: None, kept)
            group.start_soon(wait_for, 32, lambda: future)
            while statistics().points.pending < 33:
                await anyio.lowlevel.checkpoint()
            given_up.append(streams[1].completion_future())
            given_up[0].cancel()
            gate.open()
            began = time.monotonic()
        poller.join()
        # Also when the driver runs host functions although the context has failed: its health is
        # read before a settlement.
        assert errors.keys() == set(range(33)), errors.keys()
        assert len({{id(error) for error in errors.values()}}) == len(errors)
        for number, error in errors.items():
            assert isinstance(error, ContextFailedError) and error.code == CODE, (number, error)
            assert error.call and error.stream, (number, error)
        reported, code = first_report
        assert code == CODE, code
        late = [(moment - reported) * 1000 for moment in times.values()]
        print(f"{{KERNEL}}: reported {{(reported - began) * 1000:.1f}} ms after the gate opened; "
              f"waiters failed "
              f"{{min(late):.1f}} to {{max(late):.1f}} ms after that")
        too_late.extend(each for each in late if each > 50)

        one = streams[1]
        calls = [one.completion_future, one.checked_completion_future, one.synchronize_async,
            one.query, one.synchronize, Stream, *(lambda ask=ask: ask(never) for ask in
            (one.enqueue_async, one.launch_host_func, one.add_callback))]
        for call in calls:
            try:
                await call()
            except ContextFailedError as error:
                assert error.code == CODE, error
            else:
                raise AssertionError("not refused")

    anyio.run(main, backend={backend!r})
    del kept
    gc.collect()
    # Callbacks still come, host functions never do (unless the adversary fires them): the janitor
    # has those of the dead loop.
    def settled():
        count = statistics()
        nothing_pending = count.points.pending == count.futures.pending == 0
        none_leaked = count.points.leaked == 0
        return (
            count.balanced and nothing_pending and (watched() is None) == none_leaked == {fires}
        )
    assert settle(settled), (statistics(), watched())
    count = statistics()
    print("leaked", count.points.leaked, "failed", count.futures.failed)
    assert given_up[0].cancelled() and count.futures.failed >= 22 and count.futures.done == 0, count
    for stream in streams[:16]:
        with contextlib.suppress(CudaError):
            stream.close()
        assert stream.closed
    sys.exit(8 if too_late else 7)
"""


LATE = pytest.mark.simulator_only("no GPU lets one choose how late a fault shows")
FIRES = pytest.mark.simulator_only("an H200 never runs a host function after a fault")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("kernel", "backend", "devices", "adversary"),
    [
        ("illegal_address", "asyncio", 1, ""),
        pytest.param("trap", "trio", 1, "", marks=pytest.mark.slow),
        ("illegal_address", "asyncio", 2, ""),
        pytest.param("illegal_address", "asyncio", 1, "late_faults=0.3", marks=LATE),
        pytest.param("illegal_address", "asyncio", 1, "fire_after_fault=True", marks=FIRES),
        pytest.param("illegal_address", "trio", 1, "fire_after_fault=True", marks=FIRES),
    ],
)
def test_a_fault_in_one_of_32_streams_fails_every_waiter(
    driver_kind: str, kernel: str, backend: str, devices: int, adversary: str
) -> None:
    """Those of the other device too, and also if it shows late."""
    if Device.count() < devices:
        pytest.skip("there is one device")
    script = FAULT.format(
        kernel=kernel,
        code={"illegal_address": 700, "trap": 719}[kernel],
        backend=backend,
        devices=devices,
        adversary=adversary,
        fires="fire" in adversary,
    )
    # The simulator's threads share their cores with other programs, which may delay them.
    for _ in range(1 if driver_kind == "gpu" else 5):
        done = run_script(driver_kind, script, forked=USUAL)
        print(done.stdout)
        if done.returncode != 8:
            break
    assert (done.returncode, done.stderr) == (7, ""), done.stderr


def test_a_callback_is_called_with_the_fault_and_a_host_function_is_not_called(
    driver_kind: str,
) -> None:
    script = """
        import threading
        from aiostream import Stream
        from support import Gate, spin
        import internals
        called, gate, stream = threading.Event(), Gate(), Stream()
        spin(stream, 0)
        def note(*arguments):
            failed = [isinstance(a, Exception) and f"{type(a).__name__} {a.code}"
                      for a in arguments]
            print(*(said or a for said, a in zip(failed, arguments)), flush=True)
        stream.add_callback(note, "before")
        stream.synchronize()
        gate.hold(stream)
        internals.launch_kernel(stream, "trap")
        stream.launch_host_func(note, "never")
        stream.add_callback(note, "after")
        stream.add_callback(lambda error: called.set())
        gate.open()
        assert called.wait(20)
    """
    printed = succeed(driver_kind, script, forked=USUAL)
    assert printed == "None before\nContextFailedError 719 after\n"


# ------------------------------------------------------------------- in this process: the simulator


@pytest.mark.simulator_only("a GPU's context cannot be recovered")
@pytest.mark.cuda_leaks(200)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
async def test_callbacks_and_the_watcher_meet(breakable: Any, loop_kind: str) -> None:
    """The driver calls callbacks with the status just as the watcher fails their waiters: each
    settles once, none leaks.
    """
    before = statistics()
    for _ in range(20):
        with Gate() as gate:
            streams = [held_stream(gate) for _ in range(5)]
            futures = [
                make() for stream in streams for make in [stream.checked_completion_future] * 20
            ]
            lost = [make() for stream in streams for make in [stream.completion_future] * 2]
            breakable.break_context(719)
            for future in (*futures, *lost):
                with pytest.raises(ContextFailedError):
                    await future
            recover()
        for stream in streams:
            stream.close()
    assert statistics().futures.failed - before.futures.failed == 20 * 110


# -------------------------------------------------------------------------- one refusal of one call


class Things:
    """Streams of three kinds."""

    def __init__(self) -> None:
        self.stream, self.plain, self.legacy = Stream(), Stream(wait="hostfunc"), Stream.legacy()

    def close(self) -> None:
        self.stream.close()
        self.plain.close()


async def _wait_on_a_busy_stream(things: Things) -> None:
    async def open_when_pending(pending: int) -> None:
        await until(lambda: statistics().waits.pending > pending)
        gate.open()

    with Gate() as gate:
        gate.hold(things.stream)
        errors: list[CudaError] = []
        async with anyio.create_task_group() as group:
            group.start_soon(open_when_pending, statistics().waits.pending)
            try:
                await things.stream.synchronize_async()
            except CudaError as error:
                errors.append(error)
            group.cancel_scope.cancel()
    if errors:
        raise errors[0]


# `test_faults.py` fails each call of each path. Here are those that differ in what is refused.
# Of what is refused without a loop, `test_faults.py` fails each call.
REFUSALS: dict[str, tuple[str, Callable[[Things], Any]]] = {
    "completion": ("cuLaunchHostFunc", lambda t: t.stream.completion_future()),
    "completion-legacy": ("cuCtxPushCurrent", lambda t: t.legacy.completion_future()),
    "checked": ("cuStreamAddCallback", lambda t: t.stream.checked_completion_future()),
    "synchronize_async": ("cuStreamQuery", lambda t: t.stream.synchronize_async()),
    "synchronize_async-check": ("cuStreamIsCapturing", lambda t: t.stream.synchronize_async()),
    "synchronize_async-record": ("cuEventRecordWithFlags", _wait_on_a_busy_stream),
    "synchronize_async-poll": ("cuEventQuery", _wait_on_a_busy_stream),
    "synchronize_async-hostfunc": ("cuLaunchHostFunc", lambda t: t.plain.synchronize_async()),
    "enqueue_async-health": ("cuStreamQuery", lambda t: t.stream.enqueue_async(lambda _: None)),
}


@pytest.mark.simulator_only("a GPU refuses nothing on command")
@pytest.mark.parametrize("loop_kind", BACKENDS)
@pytest.mark.parametrize("case", REFUSALS)
async def test_one_refusal_raises_and_harms_nothing_else(
    breakable: Any, case: str, loop_kind: str
) -> None:
    call, action = REFUSALS[case]
    things = Things()
    await action(things)  # it works, and what it makes once is made
    await things.stream.completion_future()
    if case == "enqueue_async-health":
        time.sleep(0.002)  # the health of a context is asked again after 1 ms
    before, asked = statistics(), breakable.calls(call)
    breakable.fail(call, 2)
    if case == "enqueue_async-health":
        breakable.fail(call, 2, nth=2)  # which is asked again, because a passing error says nothing
    with pytest.raises(aiostream.OutOfMemoryError) as caught:
        await action(things)
    assert breakable.calls(call) > asked
    assert (caught.value.code, caught.value.name) == (2, "CUDA_ERROR_OUT_OF_MEMORY")
    assert caught.value.call.startswith("cu")
    now = statistics()
    assert now.points.leaked == before.points.leaked
    assert now.futures.done == before.futures.done
    await action(things)  # and the next time it works again
    await things.stream.synchronize_async()
    things.close()


@pytest.mark.simulator_only("a GPU refuses nothing on command")
@pytest.mark.parametrize("make", [Stream, Event], ids=["stream", "event"])
@pytest.mark.parametrize("fails", ["the destruction", "the context"])
def test_a_destruction_that_is_refused_closes_it(breakable: Any, make: Any, fails: str) -> None:
    thing, before = make(), statistics()
    breakable.fail("cuCtxPushCurrent" if fails == "the context" else f"cu{make.__name__}Destroy", 2)
    if fails == "the context":
        thing.close()  # destroying needs no context when its handle says where it belongs
    else:
        with pytest.raises(CudaError) as caught:
            thing.close()
        assert caught.value.code == 2
        assert caught.value.call == f"cu{make.__name__}Destroy"
    thing.close()
    assert statistics().handles.open == before.handles.open - 1
    assert statistics().handles.leaked == before.handles.leaked + (fails == "the destruction")
    with pytest.raises(aiostream.StreamClosedError):
        _ = thing.handle


@pytest.mark.simulator_only("a GPU refuses nothing on command")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", BACKENDS)
async def test_enqueue_async_whose_completion_is_refused_keeps_the_work(
    breakable: Any, loop_kind: str
) -> None:
    """Its `fn` has run, so the GPU may be using what it was given, and nothing will show when it no
    longer does.
    """
    stream, kept, before = Stream(wait="hostfunc"), Kept(), statistics()
    watched = weakref.ref(kept)
    breakable.fail("cuLaunchHostFunc", 2)
    with pytest.raises(CudaError) as caught:
        stream.enqueue_async(lambda _, thing: None, kept)
    assert caught.value.code == 2
    del kept, caught
    gc.collect()
    assert watched() is not None
    assert statistics().points.leaked == before.points.leaked + 1
    assert await stream.enqueue_async(lambda _: 1) == 1
    stream.close()
