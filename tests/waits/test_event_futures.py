"""Futures that end by an event: `enqueue_async`, `launch_async` and `upload_async`, on
every loop.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import ContextFailedError, CudaError, Device, Stream, StreamCaptureError, statistics
from internals import ENQUEUE_STEPS
from interrupts import Striker
from support import PLAIN_LOOPS, STRATEGIES, Gate, Kept, held_stream, recover, run_on, settle, spin


def leaked() -> int:
    return statistics().points.leaked


async def test_no_host_function_is_enqueued(driver_kind: str) -> None:
    stream, plain = Stream(), Stream(wait="hostfunc")
    if driver_kind == "simulator":
        from aiostream import simulator

        before = simulator.calls("cuLaunchHostFunc")
        assert await stream.enqueue_async(lambda _: 7) == 7
        assert simulator.calls("cuLaunchHostFunc") == before
        assert await plain.enqueue_async(lambda _: 8) == 8
        assert simulator.calls("cuLaunchHostFunc") == before + 1
    else:
        assert [await each.enqueue_async(lambda _: 9) for each in (stream, plain)] == [9, 9]
    stream.close()
    plain.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_future_waits_for_the_work_and_no_longer(strategy: str) -> None:
    with Gate() as first, Gate() as second:
        stream = held_stream(first, wait=strategy)
        future = stream.enqueue_async(lambda _: "result")
        second.hold(stream)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert not future.done()
        first.open()
        with anyio.fail_after(20):
            assert await future == "result"
        second.open()
    await stream.synchronize_async()
    stream.close()


@pytest.mark.parametrize("length", [0.0, 0.0003, 0.003])
async def test_futures_settle_in_the_order_of_their_stream(length: float) -> None:
    stream = Stream()
    for number in range(100):
        lengths = [length, 0.0, length * (number % 3)]
        futures = [stream.enqueue_async(spin, each) for each in lengths]
        await futures[-1]
        assert all(future.done() for future in futures), number
    stream.close()


async def test_futures_of_two_tasks_settle_in_order() -> None:
    stream = Stream()
    ended: list[int] = []

    async def wait(number: int) -> None:
        future = stream.enqueue_async(lambda own: spin(own, 0.0002 * (number % 4)))
        future.add_done_callback(lambda _: ended.append(number))
        await future

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(wait, number)
    await anyio.wait_all_tasks_blocked()
    assert len(ended) == 40
    stream.close()


async def test_function_runs_with_the_streams_context_current() -> None:
    context = Device(0).primary_context
    stream = Stream()
    before = aiostream.Context.get_current()
    seen: list[Any] = []

    def fail(_: Stream) -> None:
        seen.append(aiostream.Context.get_current())
        raise KeyError("own")

    await stream.enqueue_async(lambda _: seen.append(aiostream.Context.get_current()))
    with pytest.raises(KeyError):
        stream.enqueue_async(fail)
    assert seen == [context, context]
    assert aiostream.Context.get_current() == before
    await stream.synchronize_async()
    stream.close()


async def test_cancelled_future_keeps_its_objects_until_the_gpu_has_passed() -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        kept = Kept()
        watched = weakref.ref(kept)
        future = stream.enqueue_async(lambda _, thing: None, kept)
        del kept
        future.cancel()
        gc.collect()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert watched() is not None
        gate.open()
        with anyio.fail_after(20):
            while watched() is not None:
                await anyio.lowlevel.checkpoint()
    stream.close()


async def test_objects_are_kept_when_the_function_raises() -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        kept = Kept()
        watched = weakref.ref(kept)

        def fail(_: Stream, thing: Kept) -> None:
            raise ValueError("own")

        with pytest.raises(ValueError, match="own"):
            stream.enqueue_async(fail, kept)
        del kept, fail
        gc.collect()
        assert watched() is not None
        gate.open()
        with anyio.fail_after(20):
            while watched() is not None:
                await anyio.lowlevel.checkpoint()
    stream.close()


@pytest.mark.parametrize("stage", ["polled", "left"])
def test_objects_outlive_the_loop_and_the_stream(loop_kind: str, stage: str) -> None:
    with Gate() as gate:
        stream = held_stream(gate, wait="spin" if stage == "polled" else "event")
        streams, kept = [stream], [Kept()]
        watched = weakref.ref(kept[0])

        async def begin() -> None:
            streams[0].enqueue_async(lambda _, thing: None, kept.pop())
            for _ in range(10):
                await anyio.lowlevel.checkpoint()

        run_on(loop_kind, begin)
        stream.close()
        streams.clear()
        del stream
        gc.collect()
        assert watched() is not None
        gate.open()
        assert settle(lambda: watched() is None)


async def test_refusals_come_before_the_function_runs() -> None:
    stream = Stream()
    called: list[int] = []
    with stream.capture() as capture:
        with pytest.raises(StreamCaptureError):
            stream.enqueue_async(lambda _: called.append(1))
        assert stream.capture_status() is aiostream.CaptureStatus.ACTIVE
    capture.graph.close()
    stream.close()
    with pytest.raises(aiostream.StreamClosedError):
        stream.enqueue_async(lambda _: called.append(1))
    assert called == []


@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
async def test_function_that_leaves_the_stream_capturing_is_refused(loop_kind: str) -> None:
    stream = Stream()
    before = leaked()
    with pytest.raises(StreamCaptureError) as caught:
        stream.enqueue_async(lambda own: own.begin_capture())
    assert leaked() == before + 1
    assert statistics().waits.pending == 0, (
        caught
    )  # also while somebody keeps the error, and so its frames
    stream.end_capture().close()
    assert await stream.enqueue_async(lambda _: 1) == 1
    stream.close()


async def test_what_is_done_already_gives_a_future_that_is_done() -> None:
    async with Stream() as stream:
        future = stream.enqueue_async(lambda _: 3)
        assert future.done()
        assert await future == 3


async def test_earlier_futures_of_the_stream_are_done_before() -> None:
    def numbered(_: Stream, number: int) -> int:
        return number

    async with Stream() as stream:
        with Gate() as gate:
            gate.hold(stream)
            earlier = [stream.enqueue_async(numbered, n) for n in range(3)]
        assert settle(stream.query)  # no turn of the loop is between these lines
        assert stream.enqueue_async(lambda _: 3).done()
        assert [future.done() for future in earlier] == [True] * 3
        assert [await future for future in earlier] == [0, 1, 2]


async def test_futures_that_are_done_at_once_leave_the_others_their_turns() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while turns < 5:
            await anyio.lowlevel.checkpoint()
            turns += 1

    with anyio.fail_after(20):
        async with Stream() as stream, anyio.create_task_group() as group:
            group.start_soon(take_turns)
            while turns < 5:
                await stream.enqueue_async(lambda _: None)


@pytest.mark.simulator_only("a GPU refuses nothing on command")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
async def test_record_that_is_refused_after_the_function_leaks_its_objects(
    breakable: Any, loop_kind: str
) -> None:
    stream = Stream()
    kept = Kept()
    watched = weakref.ref(kept)
    with Gate() as gate:
        gate.hold(stream)  # what is over at once needs no event
        breakable.fail("cuEventRecordWithFlags", 2)
        with pytest.raises(CudaError) as caught:
            stream.enqueue_async(lambda _, thing: None, kept)
    assert caught.value.code == 2
    del kept, caught
    gc.collect()
    assert watched() is not None
    assert await stream.enqueue_async(lambda _: 1) == 1
    stream.close()


@pytest.mark.simulator_only("a GPU refuses nothing on command")
async def test_event_that_cannot_be_made_is_refused_before_the_function(breakable: Any) -> None:
    stream = Stream()
    called: list[int] = []
    with Gate() as gate:
        gate.hold(stream)
        futures = []
        for _ in range(internals.native_counters()[internals.WAITS_MADE] + 1):  # each is taken
            breakable.fail("cuEventCreate", 2)
            try:
                futures.append(stream.enqueue_async(lambda _: called.append(1)))
            except CudaError:
                break
        else:
            pytest.fail("no event was made")
        breakable.clear_faults()
        assert len(called) == len(futures)
        gate.open()
        for future in futures:
            await future
    stream.close()


@pytest.mark.simulator_only("a GPU's context cannot be recovered")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
async def test_lost_context_fails_the_future_and_leaks_its_objects(
    breakable: Any, loop_kind: str
) -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        kept = Kept()
        watched = weakref.ref(kept)
        future = stream.enqueue_async(lambda _, thing: None, kept)
        del kept
        breakable.break_context(700)
        with anyio.fail_after(20), pytest.raises(ContextFailedError):
            await future
        del future
        gc.collect()
        assert watched() is not None
    recover()
    stream.close()


async def test_graph_launches_and_uploads_end_by_an_event(driver_kind: str) -> None:
    stream = Stream()
    with stream.capture_executable() as capture:
        spin(stream, 0.0005)
    executable = capture.executable
    if driver_kind == "simulator":
        from aiostream import simulator

        before = simulator.calls("cuLaunchHostFunc")
    for _ in range(20):
        await executable.launch_async(stream)
        await executable.upload_async(stream)
    if driver_kind == "simulator":
        assert simulator.calls("cuLaunchHostFunc") == before
    executable.close()
    stream.close()


async def test_waiting_is_a_coroutine_function_that_holds_its_stream() -> None:
    assert inspect.iscoroutinefunction(Stream.synchronize_async)
    with Gate() as gate:
        stream = held_stream(gate)
        watched = weakref.ref(stream)
        coroutine = stream.synchronize_async()
        del stream
        gc.collect()
        assert watched() is not None
        gate.open()
        await coroutine
        del coroutine
        gc.collect()
        assert watched() is None


# --------------------------------------------------------------------------------------- interrupts


def strikes() -> Iterator[Striker]:
    """One after another, until there is no such place any more."""
    number, missed = 0, 0
    while missed < 3:
        number += 1
        assert number < 500
        striker = Striker(number, codes=ENQUEUE_STEPS)
        yield striker
        missed = 0 if striker.has_struck else missed + 1


@pytest.mark.parametrize("raises", [False, True])
def test_interrupt_of_an_enqueue_loses_nothing(raises: bool) -> None:
    before = aiostream.Context.get_current()
    for striker in strikes():
        loop, stream = asyncio.new_event_loop(), Stream()
        kept = [Kept()]
        watched = weakref.ref(kept[0])

        async def interrupted(stream: Stream, kept: list[Kept], striker: Striker) -> None:
            def work(own: Stream, thing: Kept) -> None:
                spin(own, 0.0002)
                if raises:
                    raise ValueError

            with striker:
                await stream.enqueue_async(work, kept.pop())

        async def later(stream: Stream) -> None:
            with anyio.fail_after(5):
                assert await stream.enqueue_async(lambda _: 5) == 5
            with Gate() as gate:
                gate.hold(stream)
                future = stream.enqueue_async(lambda _: 6)
                await anyio.sleep(0.002)
                assert not future.done()
                gate.open()
                with anyio.fail_after(5):
                    assert await future == 6

        task = loop.create_task(interrupted(stream, kept, striker))
        try:
            loop.run_until_complete(task)
        except (KeyboardInterrupt, ValueError):
            pass
        assert aiostream.Context.get_current() == before
        task.cancel()
        del task
        loop.run_until_complete(later(stream))
        gc.collect()
        assert settle(lambda watched=watched: watched() is None)
        loop.close()
        stream.close()
        assert settle(lambda: statistics().balanced and statistics().futures.pending == 0), (
            statistics()
        )


def test_interrupted_future_does_not_end_those_behind_it() -> None:
    """Whatever the step: what is enqueued later ends when the GPU has passed it, and not with the
    interrupted one.
    """
    loop, stream = asyncio.new_event_loop(), Stream(wait="event")

    async def interrupted(striker: Striker, gate: Gate) -> None:
        gate.hold(stream)
        with striker:
            stream.enqueue_async(lambda _: None)

    async def later(first: Gate, second: Gate) -> None:
        second.hold(stream)
        future = stream.enqueue_async(lambda _: 7)
        first.open()
        await anyio.sleep(0.003)
        assert not future.done()
        second.open()
        with anyio.fail_after(5):
            assert await future == 7

    for striker in strikes():
        with Gate() as first, Gate() as second:
            try:
                loop.run_until_complete(interrupted(striker, first))
            except KeyboardInterrupt:
                pass
            loop.run_until_complete(later(first, second))
    loop.close()
    stream.close()


@pytest.mark.parametrize("strategy", ["auto", "hostfunc"])
async def test_interrupt_in_the_function_keeps_the_objects_until_the_gpu_has_passed(
    strategy: str,
) -> None:
    """It comes out of a function that has enqueued work, in the middle of the native step."""
    kept = [Kept()]
    watched = weakref.ref(kept[0])

    def work(own: Stream, thing: Kept) -> None:
        raise KeyboardInterrupt

    with Gate() as gate:
        stream = held_stream(gate, wait=strategy)
        with pytest.raises(KeyboardInterrupt):
            stream.enqueue_async(work, kept.pop())
        gc.collect()
        assert watched() is not None
        gate.open()
    assert settle(lambda: watched() is None)
    assert await stream.enqueue_async(lambda _: 5) == 5
    stream.close()


def test_interrupt_in_the_loop_s_call_soon_leaves_the_rest_to_the_next_drain() -> None:
    """asyncio calls it for a callback of a future, which the native drain settles."""

    class Loop(asyncio.SelectorEventLoop):
        strikes = 0

        def call_soon(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            if self.strikes:
                self.strikes -= 1
                raise KeyboardInterrupt
            return super().call_soon(*args, **options)

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        with Gate() as gate:
            stream = held_stream(gate)
            futures = [stream.completion_future() for _ in range(3)]
            futures.append(stream.enqueue_async(lambda _: None))
            for future in futures:
                future.add_done_callback(lambda _: None)
            gate.open()
            stream.synchronize()
        drain = internals.current_bridge().drain
        for _ in range(2):
            loop.strikes = 1
            with pytest.raises(KeyboardInterrupt):
                drain()
        drain()
        assert [future.done() for future in futures[:3]] == [True] * 3
        await futures[3]
        stream.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_error_in_a_finalizer_of_what_was_kept_harms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The drain drops the objects of a future that is done. Python reports what a finalizer raises
    and goes on.
    """
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: seen.append(each.exc_type))

    class Striking:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    async def main() -> None:
        stream = Stream(wait="event")
        futures = [stream.enqueue_async(lambda _, thing: None, Striking()) for _ in range(3)]
        for future in futures:
            await future
        stream.close()

    asyncio.run(main())
    gc.collect()
    assert seen == [KeyboardInterrupt] * 3


def test_objects_outlive_a_closed_loop_that_watches_nothing() -> None:
    """The janitor asks such a loop, and has to find out that it is closed, also if
    nothing arrives.
    """

    class Blind(asyncio.SelectorEventLoop):
        def add_reader(self, fd: Any, *_: Any) -> None:  # type: ignore[override]
            if fd is self._ssock or fd == self._ssock.fileno():  # type: ignore[attr-defined]
                return super().add_reader(fd, *_)
            raise NotImplementedError

    loop = Blind()
    with Gate() as gate:
        stream = held_stream(gate, wait="spin")
        kept = [Kept()]
        watched = weakref.ref(kept[0])

        async def begin() -> None:
            stream.enqueue_async(lambda _, thing: None, kept.pop())
            await asyncio.sleep(0)

        loop.run_until_complete(begin())
        loop.close()
        gate.open()
        assert settle(lambda: watched() is None)
    stream.close()
