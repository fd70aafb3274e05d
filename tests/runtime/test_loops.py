"""Loops: each is woken in its own thread, once per batch, also when it ends badly."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import types
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
    Blind,
    Gate,
    Kept,
    held_stream,
    new_uvloop,
    run_on,
    settle,
    spin,
)

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


def test_several_loops_in_several_threads_wait_on_one_stream() -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        kinds = [kind for kind in installed(LOOPS) if kind != "asyncio-eager"] + ["asyncio"]
        waiting = threading.Barrier(len(kinds) + 1)
        woken: dict[str, tuple[int, int]] = {}

        def serve(kind: str) -> None:
            async def main() -> None:
                future = stream.completion_future()
                await anyio.to_thread.run_sync(waiting.wait)
                await future
                await stream.synchronize_async()
                woken[kind] = (threading.get_ident(), ident)

            ident = threading.get_ident()
            run_on(kind, main)

        threads = [threading.Thread(target=serve, args=(kind,)) for kind in kinds]
        for thread in threads:
            thread.start()
        waiting.wait()
        gate.open()
        for thread in threads:
            thread.join()
        stream.close()
    assert set(woken) == set(kinds)
    assert all(here == there for here, there in woken.values())


# ----------------------------------------------------------------------------------- loops that end


def test_a_completion_whose_loop_has_closed_is_dropped_quietly(
    loop_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Buffer:
        pass

    buffer = Buffer()
    alive = weakref.ref(buffer)
    before = aiostream.statistics().futures
    with Gate() as gate:
        stream = held_stream(gate)

        async def main(given: Buffer) -> None:
            stream.completion_future()
            stream.enqueue_async(lambda on, kept: None, given)

        run_on(loop_kind, main, buffer)
        del buffer
        gc.collect()
        assert alive() is not None, "the GPU has not passed yet"
        gate.open()
        assert settle(lambda: aiostream.statistics().points.pending == 0)
        stream.close()

    def released() -> bool:
        gc.collect()
        return alive() is None

    assert settle(released)
    now = aiostream.statistics().futures
    assert now.dropped + now.cancelled == before.dropped + before.cancelled + 2
    assert caplog.records == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_uvloop])
def test_what_arrived_before_the_loop_closed_and_was_not_read_is_dropped_too(new_loop: Any) -> None:
    before = aiostream.statistics().futures

    def main() -> None:
        stream = Stream()
        stream.completion_future()
        stream.synchronize()
        stream.close()
        loop.stop()  # before it could look; asyncio.run would give it another turn

    loop = new_loop()
    loop.call_soon(main)
    loop.run_forever()
    loop.close()
    gc.collect()

    def ended() -> int:
        now = aiostream.statistics().futures
        # uvloop looks at its descriptors once more after stop(), and may have settled it.
        return (
            now.dropped - before.dropped + (now.done - before.done if new_loop is new_uvloop else 0)
        )

    assert settle(lambda: ended() == 1)


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


@pytest.mark.parametrize("loop_kind", ["asyncio"])
async def test_an_interrupt_leaves_waits_that_share_a_turn(
    loop_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call for the next turn was lost. Each later wait would take a turn of its own."""
    loop, turns = asyncio.get_running_loop(), 0

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Stream() as stream:
        await asyncio.sleep(0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop, "call_soon", interrupt)
            await stream.synchronize_async()
        counting = asyncio.ensure_future(count())
        for _ in range(2000):
            await stream.synchronize_async()
        counting.cancel()
    assert turns < 1000


def test_a_queue_is_used_again_by_a_later_loop() -> None:
    queues = set()

    async def main() -> None:
        async with Stream() as stream:
            await stream.synchronize_async()
            queues.add(internals.current_bridge().queue)

    for _ in range(20):
        asyncio.run(main())
        gc.collect()
        assert settle(internals.janitor_is_idle)
    assert len(queues) < 10


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


def test_loop_without_add_reader_is_woken_by_the_janitor() -> None:
    async def main() -> None:
        with Gate() as gate:
            async with held_stream(gate) as stream:
                futures = [stream.completion_future() for _ in range(100)]
                gate.open()
                await asyncio.gather(*futures)
                for _ in range(100):
                    await stream.synchronize_async()

    with asyncio.Runner(loop_factory=Blind) as runner:
        runner.run(main())


def test_timer_waits_of_a_loop_without_add_reader() -> None:
    """Their timer is behind the descriptor that the janitor watches, which reports each change
    once.
    """

    async def main() -> None:
        streams = [Stream() for _ in range(20)]
        before = statistics().waits.by_timer

        async def serve(stream: Stream) -> None:
            for _ in range(25):
                spin(stream, 0.002)
                await asyncio.wait_for(stream.synchronize_async(), 10)

        for _ in range(40):  # more together than are woken at a time
            await asyncio.gather(*map(serve, streams))
            if statistics().waits.by_timer > before + 100:
                break
        assert (
            statistics().waits.by_timer > before + 10
        )  # few on a machine that is busy with other things
        for stream in streams:
            stream.close()

    with asyncio.Runner(loop_factory=Blind) as runner:
        runner.run(main())


def test_a_loop_without_add_reader_may_close_early() -> None:
    before = aiostream.statistics().futures.dropped
    with Gate() as gate:
        stream = held_stream(gate)

        async def main() -> None:
            stream.completion_future()

        runner = asyncio.Runner(loop_factory=Blind)
        with runner:
            runner.run(main())
        gate.open()
        assert settle(lambda: aiostream.statistics().futures.dropped == before + 1)
        stream.close()


@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
def test_a_loop_without_add_reader_may_close_before_its_drain(
    strategy: Any, completes: bool
) -> None:
    """The drain that was asked for dies with the loop, and so does the next turn, in which the loop
    would have polled.
    """
    before = aiostream.statistics().futures.dropped
    asked = threading.Event()
    things = [{number} for number in range(3)]
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


def test_trio_as_a_guest_of_asyncio() -> None:
    """Both loops run in one thread; each task's wait belongs to its own."""
    import trio

    async def in_trio(stream: Stream) -> str:
        future = stream.completion_future()
        assert not issubclass(type(future), asyncio.Future)
        await future
        await stream.synchronize_async()
        return "trio"

    async def host() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        async with Stream() as stream:
            trio.lowlevel.start_guest_run(
                in_trio,
                stream,
                run_sync_soon_threadsafe=loop.call_soon_threadsafe,
                done_callback=lambda outcome: ended.set_result(outcome.unwrap()),
                host_uses_signal_set_wakeup_fd=True,
            )
            future = stream.completion_future()
            assert isinstance(future, asyncio.Future)
            await future
            assert await ended == "trio"

    asyncio.run(host())


# -------------------------------------------------------------------------------- KeyboardInterrupt


def test_a_keyboard_interrupt_in_a_drain_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bare loop SIGINT raises wherever Python is: here, at many places inside deliveries of
    200 points.

    It looks at futures and not at tasks: an interrupt inside asyncio's own call_soon can lose
    asyncio's own callback.
    """
    loop = asyncio.new_event_loop()
    interrupts = 0

    def interrupt_and_drain(orphaned: bool, drain: Callable[[], None]) -> None:
        nonlocal interrupts
        if not orphaned and len(internals.owners()) > 2 and interrupts < 30:
            interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0.00001 * interrupts)
        try:
            return drain()
        finally:
            if not orphaned:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    def turn() -> None:
        try:
            loop.call_soon(loop.stop)
            loop.run_forever()
        except KeyboardInterrupt:
            pass

    internals.intercept_drain(monkeypatch, interrupt_and_drain)
    previous = signal.signal(signal.SIGALRM, strike)
    stream = Stream()
    futures: list[Any] = []
    try:
        for _ in range(30):
            loop.call_soon(lambda: futures.extend(stream.completion_future() for _ in range(200)))
            turn()
            stream.synchronize()
            assert settle(lambda: turn() or all(future.done() for future in futures))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        loop.close()
        stream.close()
    assert len(futures) == 30 * 200
    assert interrupts == 30


async def test_an_interrupt_at_any_step_of_a_delivery_loses_nothing() -> None:
    """The same without chance: the delivery of each of three points is broken off in each method of
    its future, before and after the method does its work.
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
    completion = internals.pending_completion(Divided())
    completion.complete(0, True)
    after = statistics().futures
    assert after.pending == before.pending
    assert after.created == before.created + 1
    assert (after.dropped - before.dropped) + (after.cancelled - before.cancelled) == 1


def outside_a_run() -> None:
    """Answers as trio does where none of its runs is at work."""
    raise RuntimeError("must be called from async context")


@pytest.mark.parametrize("has_lowlevel", [False, True])
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_trio_that_another_thread_is_importing_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, has_lowlevel: bool
) -> None:
    half: Any = types.ModuleType("trio")
    if has_lowlevel:  # which Python sets when all of it is there
        half.lowlevel = types.ModuleType("trio.lowlevel")
        half.lowlevel.current_task = half.lowlevel.current_trio_token = outside_a_run
    monkeypatch.setitem(sys.modules, "trio", half)
    internals.forget_trio(monkeypatch)
    async with Stream() as stream:  # waits for nothing: only a trio run needs a checkpoint
        with stream.context.as_current():
            pass
        await stream.enqueue_async(lambda _: None)
    await stream.aclose()
    in_callback: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(
        lambda: in_callback.set_result(internals.current_bridge())
    )  # no task runs there
    assert await in_callback is internals.current_bridge()
