"""Loops: each is woken in its own thread, once per batch, also when it ends badly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import Stream, statistics
from installed import installed
from support import (
    EVENT_STRATEGIES,
    LOOPS,
    PLAIN_LOOPS,
    Blind,
    Gate,
    Kept,
    held_stream,
    new_uvloop,
    run_on,
    settle,
)
from waiters import turns, use_many_timers

pytestmark = pytest.mark.all_loops


async def test_one_wake_up_serves_all_that_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def count_and_drain(orphaned: bool, drain: Callable[[], None]) -> None:
        before = statistics().futures.done
        again = drain()
        if not orphaned and statistics().futures.done > before:
            batches.append(statistics().futures.done - before)
        return again

    internals.intercept_drain(monkeypatch, count_and_drain)
    with Gate() as gate:
        async with held_stream(gate) as stream:
            futures = [stream.completion_future() for _ in range(50)]
            gate.open()
            stream.synchronize()  # the loop's thread is busy: all fifty arrive meanwhile
            for future in futures:
                await future
    assert batches[0] == 50


# ----------------------------------------------------------------------------------- loops that end


@pytest.mark.parametrize("wait", EVENT_STRATEGIES)
def test_a_completion_whose_loop_has_closed_is_dropped_quietly(
    loop_kind: str, wait: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    things = [Kept() for _ in range(20)]
    watched = [weakref.ref(thing) for thing in things]
    before = statistics().futures
    with Gate() as gate:
        stream = held_stream(gate, wait=wait)

        async def main() -> None:
            stream.completion_future()
            while things:
                stream.enqueue_async(lambda on, kept: None, things.pop())
            await turns()

        run_on(loop_kind, main)
        stream.close()
        gc.collect()
        assert all(each() for each in watched), "the GPU has not passed yet"
        gate.open()
        assert settle(lambda: statistics().points.pending == 0)
    assert settle(lambda: gc.collect() >= 0 and not any(each() for each in watched))
    now = statistics().futures
    assert now.dropped + now.cancelled == before.dropped + before.cancelled + 21
    said = [record.getMessage() for record in caplog.records]
    assert not [each for each in said if " took " not in each]  # asyncio's own, if it was slow
    assert capfd.readouterr().err == ""


def test_what_arrived_before_the_loop_closed_and_was_not_read_is_dropped_too() -> None:
    before = statistics().futures.dropped

    def main() -> None:
        stream = Stream()
        stream.completion_future()
        stream.synchronize()
        stream.close()
        loop.stop()  # before it could look; asyncio.run would give it another turn

    loop = asyncio.new_event_loop()
    loop.call_soon(main)
    loop.run_forever()
    loop.close()
    gc.collect()
    assert settle(lambda: statistics().futures.dropped == before + 1)


class Owner:
    """Something that work uses. It can be referred to weakly."""


def begin_in(loop: asyncio.AbstractEventLoop, way: str, stream: Stream, kept: Owner) -> None:
    """Leaves something behind in a loop that then does not run any more."""
    called: list[Owner] = []

    async def main() -> None:
        if way == "completion_future":
            stream.completion_future()
        elif way == "enqueue_async":
            stream.enqueue_async(lambda stream, kept: None, kept)
        elif way == "run_in_thread":
            loop.create_task(stream.run_in_thread(called.append, kept))
            while not called:
                await asyncio.sleep(0.001)
            called.clear()
        else:
            loop.create_task(stream.run(lambda kept: None, kept))
        await asyncio.sleep(0.005)

    loop.run_until_complete(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of asyncio
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("over", ["before", "after"])
@pytest.mark.parametrize("way", ["enqueue_async", "completion_future", "run", "run_in_thread"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, Blind])
def test_a_loop_that_is_dropped_and_not_closed(
    way: str, over: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Once the GPU is done, its futures are not pending, and what they keep is freed. Descriptors
    do not grow with each such loop.
    """

    def drop_one() -> weakref.ref[Owner]:
        kept = Owner()
        with Gate() as gate:
            gate.hold(stream)
            begin_in(new_loop(), way, stream, kept)
            if over == "after":  # a collection
                gc.collect()
        stream.synchronize()
        return weakref.ref(kept)

    def end_one() -> None:
        kept = drop_one()
        if way != "run":
            assert asyncio.run(aiostream.drain(5)), "a dropped loop's future is pending"
        gc.collect()
        assert settle(lambda: (gc.collect(), kept() is None)[1])
        assert asyncio.run(aiostream.drain(5))

    with contextlib.closing(Stream()) as stream:
        end_one()
        end_one()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(4):
            end_one()
        # A loop may have found the queue of the one before it not yet given back. Each has three.
        assert len(os.listdir("/proc/self/fd")) - before < 3 * 4


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of asyncio
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("end", ["dropped", "closed"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, Blind])
def test_descriptors_of_many_loops_are_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], end: str
) -> None:
    """Those that were there at once, too."""

    def begin(gate: Gate, count: int) -> None:
        gate.hold(stream)
        for _ in range(count):
            loop = new_loop()
            begin_in(loop, "enqueue_async", stream, Owner())
            if end == "closed":
                loop.close()

    def more() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd")) - before

    with contextlib.closing(Stream()) as stream:
        with Gate() as gate:
            begin(gate, 1)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            with Gate() as gate:
                begin(gate, 10)
            assert asyncio.run(aiostream.drain(5))
            assert settle(lambda: more() < 10)


@pytest.mark.needs_gil("the loop may begin to run meanwhile")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_uvloop])
def test_drain_does_not_wait_for_a_loop_that_does_not_run(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Such as that of a Runner between two runs. Its future settles when it runs again."""

    async def begin() -> Any:
        gate.hold(stream)
        future = stream.enqueue_async(lambda stream, kept: 7, kept.pop())
        await asyncio.sleep(0.005)
        return future

    async def end(future: Any) -> Any:
        return await future

    kept = [Owner()]
    alive = weakref.ref(kept[0])
    with (
        contextlib.closing(Stream()) as stream,
        Gate() as gate,
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        future = runner.run(begin())
        assert not asyncio.run(aiostream.drain(0.3))
        assert alive() is not None
        gate.open()
        assert asyncio.run(aiostream.drain(5))
        assert settle(lambda: alive() is None)
        assert runner.run(end(future)) == 7


def test_loops_of_all_kinds_one_after_the_other() -> None:
    """Queues are recycled as loops come and go: the end of an old loop must not close the queue of
    a new one.
    """
    kinds, stream = installed(PLAIN_LOOPS), Stream()

    async def once() -> None:
        with anyio.fail_after(20):
            await stream.completion_future()
        stream.completion_future()  # left pending as the loop ends

    for number in range(300):
        run_on(kinds[number % len(kinds)], once)
    stream.close()


@pytest.mark.parametrize("loop_kind", [kind for kind in LOOPS if kind != "trio"])
def test_task_that_has_yielded_keeps_nothing_of_its_closed_loop(loop_kind: str) -> None:
    """Its wait was over at once. What other tasks of the loop have enqueued is released."""
    stream, idle = Stream(), Stream()
    watched: list[weakref.ref[Kept]] = []
    loop = new_uvloop() if loop_kind == "uvloop" else asyncio.new_event_loop()

    async def wait_on_and_on() -> None:
        while True:
            await idle.synchronize_async()

    async def begin(gate: Gate) -> Any:
        task = asyncio.ensure_future(wait_on_and_on())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        thing = Kept()
        watched.append(weakref.ref(thing))
        gate.hold(stream)
        stream.enqueue_async(lambda _, __: None, thing)
        return task

    with Gate() as gate:
        task: Any = loop.run_until_complete(begin(gate))
        loop.close()
        gate.open()
        assert settle(lambda: watched[0]() is None)
        assert settle(lambda: statistics().futures.pending == 0)
    task._log_destroy_pending = False
    del task
    gc.collect()
    stream.close()
    idle.close()


@pytest.mark.parametrize("shielded", [False, True])
def test_trio_finalizers_of_generators_can_wait(shielded: bool) -> None:
    """trio runs them after it has cancelled its system tasks, the bridge's among them."""
    import trio

    waited = []

    async def main(gate: Gate, stream: Stream) -> None:
        async def generator() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                with trio.CancelScope(shield=shielded):
                    if shielded:
                        gate.open()
                    await stream.synchronize_async()
                    waited.append("to the end")

        iterator = generator()
        await iterator.__anext__()
        kept.append(iterator)  # not exhausted, not closed: trio does it at its end

    kept: list[Any] = []
    with Gate() as gate:
        stream = held_stream(gate)
        trio.run(main, gate, stream)
        gate.open()
        stream.synchronize()
        stream.close()
        kept.clear()
    assert waited == (["to the end"] if shielded else [])


# -------------------------------------------------------------------------------------- other loops


def test_timer_waits_of_a_loop_without_add_reader() -> None:
    """Their timer is behind the descriptor that the janitor watches, which reports each change
    once.
    """
    assert run_on("blind", use_many_timers) > 10  # few on a machine that is busy with other things


@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
def test_a_loop_without_add_reader_may_close_before_its_drain(
    strategy: Any, completes: bool
) -> None:
    """The drain that was asked for dies with the loop, and so does the next turn, in which the loop
    would have polled.
    """
    before = statistics().futures.dropped
    asked = threading.Event()
    things = [Kept() for _ in range(3)]
    watched = [weakref.ref(thing) for thing in things]

    class Asked(Blind):
        def call_soon_threadsafe(  # type: ignore[override]
            self, callback: Any, *args: Any, **options: Any
        ) -> Any:
            handle = super().call_soon_threadsafe(callback, *args, **options)
            if internals.is_drain(callback):
                asked.set()
            return handle

    with Gate() as gate:
        stream = Stream(wait=strategy)

        async def main() -> None:
            gate.hold(stream)
            while things:
                stream.enqueue_async(lambda on, thing: None, things.pop())
            if completes:
                stream.completion_future()

        loop = Asked()
        loop.run_until_complete(main())
        gate.open()
        assert not completes or asked.wait(20)
        loop.close()
        del loop
        assert settle(lambda: statistics().futures.dropped == before + 3 + completes)
        assert settle(lambda: gc.collect() >= 0 and not any(each() for each in watched))
        stream.close()


def test_a_run_of_trio_that_refuses_requests_finishes_its_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The janitor closes the bridge of a run that is ending. The run may be in its last drain,
    and what that drain has begun must not go to the janitor too.
    """
    import trio

    closed: list[None] = []
    dropped = statistics().futures.dropped

    def close_and_drain(orphaned: bool, drain: Callable[[], None]) -> None:
        if not orphaned and not closed:
            closed.append(None)
            thread = threading.Thread(target=internals.current_bridge().close)
            thread.start()
            thread.join()
        return drain()

    async def main() -> None:
        with Gate() as gate:
            async with held_stream(gate) as stream:
                futures = [stream.completion_future() for _ in range(5)]
                internals.intercept_drain(monkeypatch, close_and_drain)
                gate.open()
                stream.synchronize()
                with trio.fail_after(20):
                    for future in futures:
                        await future
                monkeypatch.undo()

    trio.run(main)
    assert closed
    assert statistics().futures.dropped == dropped


# -------------------------------------------------------------------------------- broken deliveries


async def test_an_interrupt_at_any_step_of_a_delivery_loses_nothing() -> None:
    """The delivery of each of three points is broken off in each method of its future, before and
    after the method does its work.
    """
    bridge = internals.current_bridge()
    for broken in range(1, 40):
        calls: list[str] = []

        class Future:
            """A future that counts the calls of its methods."""

            result: Any = None

            def step(self, calls: list[str] = calls, broken: int = broken) -> None:
                calls.append("")
                if len(calls) == broken:
                    raise KeyboardInterrupt

            def done(self) -> bool:
                self.step()
                return self.result is not None

            def cancelled(self) -> bool:
                self.step()
                return False

            def set_result(self, result: Any) -> None:
                self.step()
                assert self.result is None
                self.result = "done"
                self.step()

        futures = [Future() for _ in range(3)]
        points = [internals.pending_completion(future) for future in futures]
        before = statistics().futures.done
        for point in points:
            internals.arrive(point)
        try:
            bridge.drain()
        except KeyboardInterrupt:
            bridge.drain()
        assert [future.result for future in futures] == ["done"] * 3
        assert not any(point.is_pending for point in points)
        assert statistics().futures.done == before + 3
        assert not [owner for owner in internals.owners() if owner in points]
        if len(calls) < broken:
            break
    assert broken > 9


def test_a_task_that_ends_while_the_janitor_delivers_is_counted_once() -> None:
    """The loop is closed. The task's thread may lose the GIL to the janitor between two steps."""

    class Divided:
        """A future within whose methods the other thread does all of its work."""

        def done(self) -> bool:
            completion.cancel()
            return False

    before = statistics().futures
    completion = internals.pending_completion(Divided(), orphaned=True)
    completion.complete(0, True)
    after = statistics().futures
    internals.arrive(completion)
    assert after.pending == before.pending
    assert after.created == before.created + 1
    assert (after.dropped - before.dropped) + (after.cancelled - before.cancelled) == 1
