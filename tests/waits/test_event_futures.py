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
from aiostream import (
    ContextFailedError,
    CudaError,
    OutOfMemoryError,
    Stream,
    statistics,
)
from internals import ENQUEUE_STEPS
from interrupts import Striker
from support import PLAIN_LOOPS, Gate, Kept, held_stream, is_at_rest, recover, settle, spin


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


@pytest.mark.simulator_only("a GPU refuses nothing on command, and its context is not recovered")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
@pytest.mark.parametrize("failure", ["the record is refused", "the context is lost"])
async def test_objects_of_a_failed_future_are_leaked(
    breakable: Any, failure: str, loop_kind: str
) -> None:
    kept = Kept()
    watched = weakref.ref(kept)
    with Gate() as gate:
        stream = held_stream(gate)  # what is over at once needs no event
        if failure == "the record is refused":
            breakable.fail("cuEventRecordWithFlags", 2)
            with pytest.raises(OutOfMemoryError):
                stream.enqueue_async(lambda _, thing: None, kept)
        else:
            future = stream.enqueue_async(lambda _, thing: None, kept)
            breakable.break_context(700)
            with anyio.fail_after(20), pytest.raises(ContextFailedError):
                await future
            del future
        del kept
        gc.collect()
        assert watched() is not None
    recover()
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
    """What is enqueued later ends when the GPU has passed it, not with the interrupted future."""
    before = aiostream.Context.get_current()
    for striker in strikes():
        loop, stream = asyncio.new_event_loop(), Stream(wait="event")
        kept = [Kept()]
        watched = weakref.ref(kept[0])

        def work(own: Stream, thing: Kept) -> None:
            if raises:
                raise ValueError

        async def interrupted(stream: Stream, kept: list[Kept], striker: Striker) -> None:
            with striker:
                stream.enqueue_async(work, kept.pop())

        async def later(stream: Stream, first: Gate, second: Gate) -> None:
            second.hold(stream)
            future = stream.enqueue_async(lambda _: 7)
            first.open()
            await anyio.sleep(0.003)
            assert not future.done()
            second.open()
            with anyio.fail_after(5):
                assert await future == 7

        with Gate() as first, Gate() as second:
            first.hold(stream)
            try:
                loop.run_until_complete(interrupted(stream, kept, striker))
            except (KeyboardInterrupt, ValueError):
                pass
            assert aiostream.Context.get_current() == before
            kept.clear()  # the strike may have come before the call
            gc.collect()
            loop.run_until_complete(later(stream, first, second))
        gc.collect()
        assert settle(lambda watched=watched: watched() is None)
        loop.close()
        stream.close()
        assert settle(is_at_rest), statistics()


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
