"""The staged waits: each strategy in each of its stages, ended by the work, a cancellation, a failure, or the end of its loop.

A wait is brought into a stage by gates and by the counters that say so, never by a sleep. `statistics().waits` tells which stages
were really taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import ContextFailedError, Event, Stream, StreamCaptureError, WaitCounts, _loops, _native, statistics, waiting
from captures import CAPTURES, MODE_NAMES, MODES
from internals import idle_helpers
from support import Gate, held_stream, recover, run_on, run_script, run_together, settle, spin, succeed

STRATEGIES = ["auto", "event", "spin", "hostfunc"]
OURS = STRATEGIES[:3]  # those that record an event
# What a pending wait may be doing, and the strategy that brings it there.
STAGES = {
    "spinning": "spin",
    "watched": "event",
    "asleep": "auto",
    "given back": "auto",
    "dozing": "auto",
    "host function": "hostfunc",
}
EXPECTED = ["given back", "dozing"]
MAY_DOZE = (10_000_000, 256)  # ns, and how many at a time
# What counts up as a wait gets there. On a machine that is busy with other things even equal waits may take so different a time
# that none is expected: then it sleeps where it should have dozed or been given back, and the test goes on with that.
SIGNS = {
    "watched": [_native.WAITS_WATCHED],
    "asleep": [_native.WAITS_BY_HOSTFUNC],
    "given back": [_native.WAITS_HANDED_BACK, _native.WAITS_BY_HOSTFUNC],
    "dozing": [_native.WAITS_BY_TIMER, _native.WAITS_BY_HOSTFUNC],
    "host function": [_native.POINTS_ARMED],
}
THINGS = ["stream", "event"]
CASES = [(stage, thing) for stage in STAGES for thing in THINGS if (stage, thing) != ("host function", "event")]

in_each_stage = pytest.mark.parametrize(("stage", "thing"), CASES, ids=["-".join(case).replace(" ", "-") for case in CASES])


def counts() -> WaitCounts:
    return statistics().waits


def since(before: WaitCounts) -> WaitCounts:
    now, then = dataclasses.asdict(counts()), dataclasses.asdict(before)
    return WaitCounts(**{name: now[name] - then[name] for name in now})


@contextlib.contextmanager
def default_wait(strategy: str | None) -> Iterator[None]:
    aiostream.set_default_wait(strategy)
    try:
        yield
    finally:
        aiostream.set_default_wait(None)


class Waiter:
    """A stream, or an event on it, and how a wait for it gets into a stage."""

    def __init__(self, stage: str, thing: str = "stream") -> None:
        self.stage, self.thing = stage, thing
        with default_wait(STAGES[stage]):
            self.stream, self.event = Stream(), Event()
        # Else a wait on the event would be in a thread that makes a helper stream, and not in its stage. (Failed contexts, which
        # the simulator can recover, have lost theirs.)
        while idle_helpers(self.event) < 3:
            self.event.context._add_helper()
        self.turns, self.before, self.then = 0, counts(), _native.counters()

    async def wait(self) -> None:
        await (self.stream.synchronize_async() if self.thing == "stream" else self.event.synchronize_async())

    async def learn(self, length: float = 0.004) -> None:
        """Equal waits, until one of them was given back, or has dozed: the next will be too, if nothing comes between."""
        _native.timer_limits(*((0, 0) if self.stage == "given back" else MAY_DOZE))  # the watcher sees to none that dozes
        before = counts()
        for _ in range(60):  # see SIGNS: on a busy machine none may ever be
            self.work(length)
            await self.wait()
            if since(before).handed_back > 0 if self.stage == "given back" else since(before).by_timer > 0:
                return

    def work(self, length: float) -> None:
        spin(self.stream, length)
        self.event.record(self.stream)

    async def hold(self, gate: Gate) -> None:
        """From now on a wait stands still, sooner or later, in its stage."""
        spin(self.stream, 0)
        self.stream.synchronize()
        _native.predict(self.stage in EXPECTED)  # what is expected does not sleep
        if self.stage in EXPECTED:
            await self.learn()
        gate.hold(self.stream)
        self.event.record(self.stream)
        self.turns, self.before, self.then = 0, counts(), _native.counters()

    def reached(self) -> bool:
        self.turns += 1
        if self.stage == "spinning":
            return self.turns > 20
        now = _native.counters()
        return any(now[counter] > self.then[counter] for counter in SIGNS[self.stage])

    async def reach(self) -> None:
        with anyio.fail_after(20):
            while not self.reached():
                await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        self.stream.close()
        self.event.close()


@pytest.fixture(autouse=True)
def as_ever() -> Iterator[None]:
    length, most = _native.timer_limits(0, 0)
    _native.timer_limits(length, most)
    yield
    _native.predict(True)
    _native.timer_limits(length, most)


@contextlib.asynccontextmanager
async def waiter_in(stage: str, thing: str = "stream") -> AsyncIterator[tuple[Waiter, Gate]]:
    """One that is held; at the end it is let through, and must serve as before."""
    waiter = Waiter(stage, thing)
    with Gate() as gate:
        await waiter.hold(gate)
        yield waiter, gate
    await waiter.wait()
    await waiter.stream.synchronize_async()
    waiter.close()


# ------------------------------------------------------------------------------------------------ the end of the work


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_each_strategy_waits_for_the_work_and_no_longer(strategy: str) -> None:
    with Gate() as first, Gate() as second:
        async with held_stream(first, wait=strategy) as stream:
            event = Event()
            event.record(stream)
            woken = anyio.Event()

            async def wait() -> None:
                await stream.synchronize_async()
                assert event.query()
                woken.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
                assert not woken.is_set()
                second.hold(stream)  # later work does not prolong the wait
                first.open()
                with anyio.fail_after(20):
                    await woken.wait()
            second.open()
            event.close()


@in_each_stage
async def test_a_wait_in_each_stage_ends_with_the_work(stage: str, thing: str) -> None:
    async with waiter_in(stage, thing) as (waiter, gate), anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        await waiter.reach()
        gate.open()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_two_waits_on_one_stream_end_in_its_order(strategy: str) -> None:
    with Gate() as first, Gate() as second:
        async with held_stream(first, wait=strategy) as stream:
            early, late = anyio.Event(), anyio.Event()

            async def wait(end: anyio.Event) -> None:
                await stream.synchronize_async()
                end.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, early)
                for _ in range(30):
                    await anyio.lowlevel.checkpoint()
                second.hold(stream)
                tasks.start_soon(wait, late)
                for _ in range(30):
                    await anyio.lowlevel.checkpoint()
                first.open()
                with anyio.fail_after(20):
                    await early.wait()
                assert not late.is_set()
                second.open()


async def test_a_wait_that_comes_late_to_the_watcher_is_not_late() -> None:
    """It is given back, and later ones of its stream are handed over before it comes again: its record still was the first."""
    waiter = Waiter("given back")
    with Gate() as first, Gate() as second:
        await waiter.hold(first)
        ended = anyio.Event()

        async def wait() -> None:
            await waiter.wait()
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await waiter.reach()
            for _ in range(3):
                second.hold(waiter.stream)
                with default_wait("event"):
                    tasks.start_soon(Stream.borrow(waiter.stream).synchronize_async)
                    await anyio.lowlevel.checkpoint()
            with anyio.fail_after(10):
                while since(waiter.before).watched < 4:
                    await anyio.lowlevel.checkpoint()
                looks = counts().polls
                while counts().polls < looks + 3:  # and it has come again behind them, unless it still spins
                    await anyio.lowlevel.checkpoint()
            first.open()
            with anyio.fail_after(10):
                await ended.wait()
            second.open()
    waiter.close()


async def test_waits_behind_one_that_sleeps_are_soon_noticed() -> None:
    """When the first of a stream wakes by its host function, the others are looked at too."""
    least = 1.0
    for _ in range(5):
        async with waiter_in("asleep") as (waiter, gate):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await waiter.reach()
                for _ in range(3):
                    tasks.start_soon(waiter.wait)
                before = counts()
                while since(before).watched < 3:
                    await anyio.lowlevel.checkpoint()
                gate.open()
                began = time.monotonic()
            least = min(least, time.monotonic() - began)
    assert least < 0.03, f"{least * 1000:.1f} ms: they were left until the watcher's next look at one that sleeps"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_several_loops_wait_on_one_stream_in_each_strategy(strategy: str) -> None:
    stream = Stream(wait=strategy)
    kinds = ["asyncio", "uvloop", "trio", "asyncio"]
    together = threading.Barrier(len(kinds))

    async def main() -> None:
        thread = threading.get_ident()
        for number in range(30):
            if number % 10 == 0:
                together.wait(30)
            spin(stream, 0.0003)
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stream.synchronize_async)
                    await stream.synchronize_async()
            assert threading.get_ident() == thread

    run_together(kinds, main, together)
    stream.close()


@pytest.mark.parametrize("strategy", OURS)
def test_the_per_thread_stream_is_another_one_in_each_thread(strategy: str) -> None:
    """The two share a name and what is learnt, and must not share an order."""
    with default_wait(strategy):
        stream = Stream.per_thread()
    gates = [Gate(), Gate()]
    ended = [threading.Event(), threading.Event()]
    begun = threading.Barrier(3)
    errors: list[BaseException] = []

    async def main(number: int) -> None:
        gates[number].hold(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.synchronize_async)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            begun.wait(30)
        ended[number].set()

    def run(number: int) -> None:
        try:
            run_on("asyncio", main, number)
        except BaseException as error:
            errors.append(error)
            begun.abort()

    threads = [threading.Thread(target=run, args=(number,), name=f"aiostream-test-{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    for number in (1, 0):
        gates[number].open()
        assert ended[number].wait(20), "it waits for the other thread's stream"
        assert ended[0].is_set() == (number == 0)
    for thread in threads:
        thread.join(20)
    assert not errors, errors


def test_what_is_learnt_of_very_many_streams_is_forgotten_by_several_threads_at_once() -> None:
    """A context remembers the latest 1,024 streams."""
    context = aiostream.Device(0).primary_context
    context._ensure_monitored()
    errors: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            for identity in range(5000):
                context._wait_list(1 << 40 | number << 20 | identity)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask, args=(number,), name=f"aiostream-test-{number}") for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not errors, errors
    assert len(context._wait_lists) < 1100


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_legacy_stream_is_waited_for_in_each_strategy(strategy: str) -> None:
    with default_wait(strategy):
        legacy = Stream.legacy()
    blocking, other = Stream(non_blocking=False), Stream()
    await legacy.synchronize_async()
    with Gate() as gate:
        gate.hold(blocking)
        event = Event()
        event.record(blocking)
        spin(legacy, 0)  # it waits for all blocking streams
        woken = []

        async def wait() -> None:
            await legacy.synchronize_async()
            woken.append(event.query())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await other.synchronize_async()
            for _ in range(30):
                await anyio.lowlevel.checkpoint()
            assert woken == []
            gate.open()
        assert woken == [True]
    for thing in (blocking, other, event):
        thing.close()


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("strategy", OURS)
def test_a_full_stream_does_not_block_the_loop(driver_kind: str, strategy: str, thing: str) -> None:
    """P10: 1,022 launches deep the driver blocks a launch and a host function, but not the record of an event."""
    with default_wait(strategy):
        stream, event = Stream(), Event()
    spin(stream, 0)
    stream.synchronize()
    safety = threading.Timer(30, lambda: gate.open())  # if it does block, the test fails and does not hang
    safety.daemon = True

    async def main() -> None:
        gate.hold(stream)
        for _ in range(1000):
            spin(stream, 0)
        event.record(stream)
        before = counts()
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.synchronize_async if thing == "stream" else event.synchronize_async)
            while strategy == "auto" and since(before).by_hostfunc == 0:
                await anyio.lowlevel.checkpoint()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert time.monotonic() - began < 10, "something blocked the loop"
            gate.open()

    with Gate() as gate:
        safety.start()
        asyncio.run(main())
        safety.cancel()
        safety.join()
    stream.close()
    event.close()


# ------------------------------------------------------------------------------------------------ cancellation


@in_each_stage
async def test_a_cancelled_wait_raises_at_once(stage: str, thing: str) -> None:
    async with waiter_in(stage, thing) as (waiter, _):
        caught = []

        async def wait(scope: anyio.CancelScope) -> None:
            with scope:
                await waiter.wait()
            caught.append(scope.cancelled_caught)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()
                tasks.start_soon(wait, scope)
                await waiter.reach()
                scope.cancel()
        assert caught == [True]
        assert not waiter.stream.query(), "the work goes on"


@in_each_stage
def test_an_asyncio_timeout_and_a_cancelled_task(stage: str, thing: str) -> None:
    async def main() -> None:
        async with waiter_in(stage, thing) as (waiter, _):
            task = asyncio.ensure_future(waiter.wait())
            await waiter.reach()
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await waiter.wait()
            with anyio.move_on_after(0.005) as scope:
                await waiter.wait()
            assert scope.cancelled_caught

    asyncio.run(main())


@pytest.mark.simulator_only("a GPU does not count its calls")
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_a_wait_that_is_given_back_is_asked_once_in_each_turn(monkeypatch: pytest.MonkeyPatch, loop_kind: str) -> None:
    """At once when its task resumes, and then not before the loop has taken a turn: that is also how long a turn is told."""
    from aiostream import simulator

    handed_back = waiting._Watched.handed_back
    asked: list[int] = []

    def strike(watched: Any, wait: Any, orphaned: bool) -> None:
        before = simulator.calls("cuEventQuery")
        assert wait.poll() is wait
        asked.append(simulator.calls("cuEventQuery") - before)
        assert next(wait.__await__()) is None
        asked.append(simulator.calls("cuEventQuery") - before)
        handed_back(watched, wait, orphaned)

    while not asked:  # see SIGNS: on a busy machine it may not doze
        async with waiter_in("dozing") as (waiter, gate):
            monkeypatch.setattr(waiting._Watched, "handed_back", strike)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await waiter.reach()
                while not asked and since(waiter.before).by_hostfunc == 0:
                    await anyio.lowlevel.checkpoint()
                gate.open()
            monkeypatch.undo()
    assert asked == [1, 1]


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_wait_that_is_cancelled_as_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch, loop_kind: str, moment: str, thing: str
) -> None:
    """Between the delivery and the task's next step; and just before it, when the future is cancelled and nobody knows."""
    handed_back = waiting._Watched.handed_back
    struck = []

    def strike(watched: Any, wait: Any, orphaned: bool) -> None:
        if moment == "before":
            cancel()
        handed_back(watched, wait, orphaned)
        if moment == "after":
            cancel()
        struck.append(wait)

    async def wait(waiter: Waiter) -> None:
        if loop_kind == "trio":
            with scope:
                await waiter.wait()
            outcome.append(scope.cancelled_caught)
            return
        task.append(asyncio.current_task())
        try:
            await waiter.wait()
        except asyncio.CancelledError:
            outcome.append(True)

    def cancel() -> None:
        if loop_kind == "trio":
            scope.cancel()
        else:
            task[-1].cancel()

    task: list[Any] = []
    while not struck:
        async with waiter_in("given back", thing) as (waiter, _):
            outcome: list[bool] = []
            scope = anyio.CancelScope()
            monkeypatch.setattr(waiting._Watched, "handed_back", strike)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, waiter)
                await waiter.reach()
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                if not struck:  # it was not expected after all
                    tasks.cancel_scope.cancel()
            monkeypatch.undo()
    assert outcome == [True]
    assert len(struck) == 1


@pytest.mark.simulator_only("a GPU does not count its calls")
@in_each_stage
async def test_cancelled_waits_lose_no_records(stage: str, thing: str) -> None:
    """Their events are used again once the GPU has passed them."""
    from aiostream import simulator

    waiter = Waiter(stage, thing)
    made = 0
    for number in range(12):
        if number == 2:  # the watcher may still have the first ones
            made = simulator.calls("cuEventCreate")
        with Gate() as gate:
            await waiter.hold(gate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await waiter.reach()
                tasks.cancel_scope.cancel()
        await waiter.wait()
    assert simulator.calls("cuEventCreate") - made <= 4
    assert counts().leaked == waiter.before.leaked
    waiter.close()


# ------------------------------------------------------------------------------------------------ failing contexts


@pytest.mark.simulator_only("a GPU's context cannot be recovered")
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize(
    ("stage", "thing"),
    [pytest.param(*case, marks=pytest.mark.leaks(2 if case[0] == "host function" else 0)) for case in CASES],
)
async def test_a_failing_context_fails_the_wait(breakable: Any, stage: str, thing: str, loop_kind: str) -> None:
    async with waiter_in(stage, thing) as (waiter, _):
        errors, before = [], counts()

        async def wait() -> None:
            with pytest.raises(ContextFailedError) as caught:
                await waiter.wait()
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await waiter.reach()
            while stage == "host function" and statistics().points.armed < waiter.then[_native.POINTS_ARMED] + 2:
                await anyio.lowlevel.checkpoint()  # both, or the second is refused and leaks nothing
            breakable.break_context(719)
            began = time.monotonic()
        assert time.monotonic() - began < 1.0
        assert [error.code for error in errors] == [719, 719]
        assert errors[0] is not errors[1]
        assert all(error.call for error in errors)
        assert since(before).leaked <= 2, "only those that slept"
        recover(breakable)


@pytest.mark.simulator_only("a GPU's context cannot be recovered")
@pytest.mark.parametrize("loop_kind", ["asyncio", "trio"])
async def test_a_context_that_fails_as_a_wait_is_given_back(
    breakable: Any, monkeypatch: pytest.MonkeyPatch, loop_kind: str
) -> None:
    handed_back = waiting._Watched.handed_back
    struck: list[Any] = []
    errors: list[ContextFailedError] = []

    def strike(watched: Any, wait: Any, orphaned: bool) -> None:
        breakable.break_context(700)
        struck.append(wait)
        handed_back(watched, wait, orphaned)

    while not struck:
        async with waiter_in("given back") as (waiter, gate):
            monkeypatch.setattr(waiting._Watched, "handed_back", strike)

            async def open_if_not_expected(waiter: Waiter = waiter, gate: Gate = gate) -> None:
                await waiter.reach()
                if not struck and not since(waiter.before).handed_back:
                    struck.clear()
                    monkeypatch.undo()
                    gate.open()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(open_if_not_expected)
                try:
                    with anyio.fail_after(20):
                        await waiter.wait()
                    assert not struck
                except ContextFailedError as error:
                    errors.append(error)
            monkeypatch.undo()
            recover(breakable)
    assert [error.code for error in errors] == [700]


@pytest.mark.simulator_only("a GPU's context cannot be recovered")
@pytest.mark.parametrize("loop_kind", ["asyncio"])
async def test_sleepers_of_failed_contexts_do_not_count_for_ever(breakable: Any, loop_kind: str) -> None:
    """Four may sleep at a time: more than four have slept and failed, and the next sleeps all the same."""
    for _ in range(6):
        async with waiter_in("asleep") as (waiter, _gate):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await waiter.reach()
                tasks.cancel_scope.cancel()
            breakable.break_context(700)
            assert settle(lambda: statistics().points.pending == 0)
            recover(breakable)


# ------------------------------------------------------------------------------------------------ loops that end


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
@pytest.mark.parametrize("collected", ["by hand", "at once", "when the GPU has passed"])
@in_each_stage
def test_a_loop_that_is_closed_in_each_stage(
    loop_kind: str, stage: str, thing: str, collected: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody cancels its task: it is dropped with its loop. (trio ends no run before its tasks have ended.)"""
    import uvloop

    waiter = Waiter(stage, thing)
    loop = uvloop.new_event_loop() if loop_kind == "uvloop" else asyncio.new_event_loop()
    with Gate() as gate:
        loop.run_until_complete(waiter.hold(gate))
        coroutine = waiter.wait()
        task = loop.create_task(coroutine)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own complaint, which is right
        loop.run_until_complete(waiter.reach())
        loop.close()
        if collected == "by hand":
            coroutine.close()
        del coroutine
        if collected == "at once":
            del task
            gc.collect()
    if collected == "when the GPU has passed":
        waiter.stream.synchronize()
        assert settle(lambda: statistics().points.pending == 0)
        del task
        gc.collect()
    assert settle(lambda: statistics().futures.pending == 0)
    run_on(loop_kind, waiter.wait)  # the stream serves the next loop
    waiter.close()
    assert capfd.readouterr().err == ""
    assert not caplog.records


# ------------------------------------------------------------------------------------------------ what was done, by the counters


@pytest.mark.simulator_only("a GPU does not count its calls")
@pytest.mark.parametrize("strategy", OURS)
async def test_a_ready_stream_costs_one_query(strategy: str) -> None:
    from aiostream import simulator

    calls = ("cuStreamQuery", "cuEventQuery", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchHostFunc")
    async with Stream(wait=strategy) as stream:
        await stream.synchronize_async()
        # The watcher asks for the health of contexts while anything is pending, so nothing may be.
        assert settle(lambda: statistics().points.pending == 0)
        passes, before = statistics().watcher_passes, counts()
        asked = [simulator.calls(call) for call in calls]
        for _ in range(20):
            await stream.synchronize_async()
        answered = [simulator.calls(call) for call in calls]
        assert statistics().watcher_passes == passes
        assert [after - start for start, after in zip(asked, answered, strict=True)] == [20, 0, 0, 0, 0]
        assert since(before) == WaitCounts(20, 0, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.simulator_only("a GPU does not count its calls")
async def test_a_stream_that_is_always_busy_is_not_asked_each_time() -> None:
    """After eight waits in a row that were not ready its query is spared, but for each eighth: then it may be ready again."""
    from aiostream import simulator

    with Gate() as gate:
        stream = held_stream(gate, wait="event")
        before = counts()
        asked = simulator.calls("cuStreamQuery") - statistics().watcher_passes
        async with anyio.create_task_group() as tasks:
            for _ in range(24):
                tasks.start_soon(stream.synchronize_async)
            while since(before).watched < 24:
                await anyio.lowlevel.checkpoint()
            asked = simulator.calls("cuStreamQuery") - statistics().watcher_passes - asked
            gate.open()
    assert 9 <= asked <= 12, "8 in a row, then each eighth; and the health of the contexts, as often as was counted"
    ready = counts()
    for _ in range(16):
        await stream.synchronize_async()
    assert since(ready).ready >= 8, "it is asked again now that it is ready"
    stream.close()


@pytest.mark.simulator_only("a GPU does not count its calls")
@pytest.mark.parametrize("strategy", OURS)
async def test_a_ready_event_costs_one_query(strategy: str) -> None:
    from aiostream import simulator

    calls = ("cuStreamQuery", "cuEventQuery", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchHostFunc")
    async with Stream() as stream:
        with default_wait(strategy):
            event = Event()
        event.record(stream)
        stream.synchronize()
        await event.synchronize_async()
        assert settle(lambda: statistics().points.pending == 0)
        asked = [simulator.calls(call) for call in calls]
        for _ in range(20):
            await event.synchronize_async()
        answered = [simulator.calls(call) for call in calls]
        assert [after - start for start, after in zip(asked, answered, strict=True)] == [0, 20, 0, 0, 0]
        event.close()


async def test_a_wait_that_spins_is_never_the_watchers() -> None:
    async with waiter_in("spinning") as (waiter, gate):
        before = counts()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            gate.open()
        now = since(before)
        assert (now.spun, now.watched, now.polls) == (1, 0, 0)


async def test_a_wait_of_which_nothing_is_known_spins_and_is_handed_over() -> None:
    """Nothing tells how long it will take: the task looks for a moment, then the watcher, then it sleeps."""
    async with waiter_in("asleep") as (waiter, gate), anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        await waiter.reach()
        now = since(waiter.before)
        assert (now.watched, now.by_hostfunc, now.spun, now.handed_back) == (1, 1, 0, 0)
        assert now.polls > 0, "it was looked at before"
        gate.open()


async def test_a_watched_wait_does_not_sleep() -> None:
    async with waiter_in("watched") as (waiter, gate):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            while since(waiter.before).polls < 40:
                await anyio.lowlevel.checkpoint()
            gate.open()
        now = since(waiter.before)
        assert (now.watched, now.by_hostfunc, now.spun, now.handed_back) == (1, 0, 0, 0)


async def test_equal_waits_are_expected_and_given_back() -> None:
    waiter = Waiter("given back")
    await waiter.learn()
    before = now = counts()
    for _ in range(200):
        waiter.work(0.004)
        await waiter.wait()
        now = since(before)
        if now.handed_back >= 10 and now.spun >= 5:  # on an idle machine after a dozen
            break
    assert now.handed_back >= 10, now
    assert now.spun >= 5, "many of those that are given back end in the task's own looks"
    assert now.handed_back <= now.predicted <= now.watched <= 200, now
    waiter.close()


async def test_short_equal_waits_doze_and_the_watcher_hears_nothing_of_them() -> None:
    waiter = Waiter("dozing")
    await waiter.learn(0.002)
    looks = before = now = counts()
    for _ in range(200):
        one = counts()
        waiter.work(0.002)
        await waiter.wait()
        now = since(one)
        if now.by_timer == now.spun == 1:  # over when its task looked, or soon after
            assert (now.watched, now.polls) == (0, 0)
        if since(before).by_timer >= 10:
            break
    assert since(before).by_timer >= 10, since(looks)
    waiter.close()


async def test_a_doze_that_does_not_end_when_expected_is_watched() -> None:
    for _ in range(20):
        async with waiter_in("dozing") as (waiter, gate), anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            dozed = since(waiter.before).by_timer > 0
            while since(waiter.before).by_hostfunc == 0:
                await anyio.lowlevel.checkpoint()
            now = since(waiter.before)
            gate.open()
        if dozed:
            assert (now.by_timer, now.watched, now.handed_back, now.by_hostfunc, now.spun) == (1, 0, 0, 1, 0)
            return
    raise AssertionError("equal waits, and the next did not doze, 20 times")


async def test_only_the_one_wait_of_a_stream_dozes() -> None:
    """Of two, the later one's end is not that of a wait by itself."""
    async with waiter_in("dozing") as (waiter, gate), anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        tasks.start_soon(waiter.wait)
        with anyio.fail_after(10):
            while since(waiter.before).watched == 0:
                await anyio.lowlevel.checkpoint()
        assert since(waiter.before).by_timer <= 1
        gate.open()


async def test_many_that_doze_are_all_woken() -> None:
    """Some in one turn of the loop and the others in the next ones, however many are due."""
    streams = [Stream() for _ in range(24)]
    before = counts()

    async def serve(stream: Stream) -> None:
        for _ in range(25):
            spin(stream, 0.002)
            with anyio.fail_after(10):
                await stream.synchronize_async()

    for _ in range(40):
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(serve, stream)
        if since(before).by_timer > 100:
            break
    assert since(before).by_timer > 10  # few on a machine that is busy with other things: see SIGNS
    for stream in streams:
        stream.close()


async def test_no_more_doze_than_may_at_a_time() -> None:
    waiters = [Waiter("dozing") for _ in range(3)]
    for waiter in waiters:
        await waiter.learn()
    _native.timer_limits(MAY_DOZE[0], 1)
    before = counts()
    async with anyio.create_task_group() as tasks:
        for waiter in waiters:
            waiter.work(0.004)
            tasks.start_soon(waiter.wait)
    assert since(before).by_timer <= 1
    for waiter in waiters:
        waiter.close()


async def test_a_loop_that_ends_leaves_its_dozing_waits_to_the_watcher(loop_kind: str) -> None:
    """As a task does that is never resumed: the record is used again once the GPU has passed it."""
    waiter = Waiter("dozing")
    await waiter.learn()
    lost = counts().leaked

    def elsewhere() -> None:
        async def leave() -> None:
            waiter.work(0.004)
            with anyio.move_on_after(0):
                await waiter.wait()

        run_on(loop_kind, leave)

    await anyio.to_thread.run_sync(elsewhere)
    waiter.work(0)
    await waiter.wait()
    assert counts().leaked == lost
    waiter.close()


async def test_a_wait_that_does_not_end_when_expected_is_watched_again() -> None:
    for _ in range(20):
        async with waiter_in("given back") as (waiter, gate), anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            expected = since(waiter.before).handed_back > 0
            while since(waiter.before).by_hostfunc == 0:  # the task has looked long enough, and so has the watcher
                await anyio.lowlevel.checkpoint()
            now = since(waiter.before)
            gate.open()
        if expected:
            assert (now.watched, now.predicted, now.handed_back, now.by_hostfunc, now.spun) == (1, 1, 1, 1, 0)
            return
    raise AssertionError("equal waits, and the next was not expected, 20 times")


async def test_expected_waits_that_are_not_given_back_are_looked_at_closely_and_then_sleep() -> None:
    """Two tasks on one stream: neither is given its wait back, because the other's is to be looked at too."""
    async with waiter_in("given back") as (waiter, gate):
        async with anyio.create_task_group() as tasks:
            with default_wait("event"):
                tasks.start_soon(waiter.wait)
                tasks.start_soon(waiter.wait)
            with anyio.fail_after(10):
                while since(waiter.before).by_hostfunc == 0:
                    await anyio.lowlevel.checkpoint()
            now = since(waiter.before)
            gate.open()
        assert (now.watched, now.handed_back) == (2, 0)
        assert now.predicted <= 1  # none, if the machine is so busy that nothing can be expected


async def test_without_prediction_nothing_is_expected() -> None:
    waiter = Waiter("given back")
    await waiter.learn()
    _native.predict(False)
    try:
        before = counts()
        for _ in range(5):
            waiter.work(0.004)
            await waiter.wait()
        assert (since(before).predicted, since(before).handed_back) == (0, 0)
    finally:
        _native.predict(True)
    waiter.close()


async def test_only_so_many_sleep_and_the_others_are_watched() -> None:
    """Each that sleeps holds one of the device's hardware queues."""
    with Gate() as gate:
        streams = [held_stream(gate) for _ in range(6)]
        before = counts()
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(stream.synchronize_async)
            while since(before).by_hostfunc < 4:
                await anyio.lowlevel.checkpoint()
            looks = counts().polls
            while counts().polls < looks + 30:
                await anyio.lowlevel.checkpoint()
            assert since(before).by_hostfunc == 4
            gate.open()
        for stream in streams:
            stream.close()


async def test_a_cancelled_wait_that_nobody_is_behind_does_not_sleep() -> None:
    """Its record only waits to be used again: for that no hardware queue is held, and the watcher hardly looks."""
    with Gate() as gate:
        left, other = held_stream(gate), held_stream(gate)
        before = counts()
        for _ in range(4):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(left.synchronize_async)
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        assert since(before).watched == 0, "they were still spinning"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other.synchronize_async)
            while since(before).by_hostfunc == 0:  # it is younger
                await anyio.lowlevel.checkpoint()
            passes = statistics().watcher_passes
            while statistics().watcher_passes < passes + 3:
                await anyio.lowlevel.checkpoint()
            assert since(before).by_hostfunc == 1
            gate.open()
        await left.aclose()
        await other.aclose()


async def test_none_sleeps_where_none_may() -> None:
    _native.hostfunc_limit(0)
    try:
        with Gate() as gate:
            stream = held_stream(gate)
            before = counts()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.synchronize_async)
                while since(before).polls < 60:
                    await anyio.lowlevel.checkpoint()
                assert since(before).by_hostfunc == 0
                _native.hostfunc_limit(4)
                while since(before).by_hostfunc == 0:
                    await anyio.lowlevel.checkpoint()
                gate.open()
            stream.close()
    finally:
        _native.hostfunc_limit(4)


# ------------------------------------------------------------------------------------------------ captures


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_capture_is_refused_before_it_is_touched(strategy: str, driver_kind: str) -> None:
    stream, event = Stream(wait=strategy), Event()
    spin(stream, 0)
    stream.synchronize()
    for _ in range(12):  # also when its query is spared
        before, armed = counts(), statistics().points.armed
        for where, mode in zip(("here", "elsewhere", "here"), MODES, strict=True):
            capture = CAPTURES[where](stream, mode)
            with pytest.raises(StreamCaptureError) as caught:
                await stream.synchronize_async()
            assert caught.value.code == 900
            spin(stream, 0)
            event.record(stream)
            with pytest.raises(StreamCaptureError) as caught:
                await event.synchronize_async()
            assert caught.value.code == 907
            assert capture.end() == 1
        now = since(before)
        assert (now.ready, now.spun, now.watched, now.leaked) == (0, 0, 0, 0)
        assert statistics().points.armed == armed
        with Gate() as gate:
            gate.hold(stream)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.synchronize_async)
                await anyio.lowlevel.checkpoint()
                gate.open()
    stream.close()
    event.close()


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("where", CAPTURES)
async def test_waits_in_all_stages_end_no_capture(where: str, mode: int) -> None:
    """P6, also by the threads of ours that look, make helper streams and enqueue host functions."""
    waiters = [Waiter(stage, thing) for stage, thing in CASES]
    captured = Stream()
    spin(captured, 0)
    for waiter in waiters:
        waiter.work(0)
        await waiter.wait()
        if waiter.stage in EXPECTED:
            await waiter.learn()
    gates = [Gate() for _ in range(4)]
    before = counts()
    async with anyio.create_task_group() as tasks:
        # Four held streams at a time, because each holds a hardware queue, and the helpers behind them do too.
        for number, waiter in enumerate(waiters):
            gate = gates[number // 3]
            gate.hold(waiter.stream)
            waiter.event.record(waiter.stream)
            if number % 3 == 0:
                capture = CAPTURES[where](captured, mode)
            tasks.start_soon(waiter.wait)
            if number % 3 == 2 or number == len(waiters) - 1:
                spin(captured, 0)
                looks = counts().polls
                passes = statistics().watcher_passes
                while counts().polls < looks + 8 or statistics().watcher_passes < passes + 2:
                    await anyio.lowlevel.checkpoint()
                gate.open()
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                assert capture.end() == 1
    assert since(before).by_hostfunc > 0
    assert since(before).leaked == 0
    for waiter in waiters:
        waiter.close()
    captured.close()


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
async def test_a_busy_stream_that_captures_refuses_its_waits(mode: int) -> None:
    """Whether it captures is asked after the record then, which takes our event into the capture: no harm to either."""
    stream = Stream()
    spin(stream, 0)
    for _ in range(40):  # until it is taken to be busy
        spin(stream, 0.0002)
        await stream.synchronize_async()
    before = counts()
    for _ in range(3):
        with stream.capture(aiostream.CaptureMode(mode)) as capture:
            spin(stream, 0)
            for _ in range(20):
                with pytest.raises(StreamCaptureError) as refused:
                    await stream.synchronize_async()
                assert refused.value.code == 900
            spin(stream, 0)
            assert stream.capture_status() is aiostream.CaptureStatus.ACTIVE
        assert len(capture.graph.nodes) == 2
        capture.graph.close()
        for _ in range(20):
            spin(stream, 0.0002)
            await stream.synchronize_async()
    assert since(before).leaked == 0
    stream.close()


# ------------------------------------------------------------------------------------------------ choosing a strategy


def test_strategies_are_chosen_by_name_or_value() -> None:
    for name in STRATEGIES:
        stream = Stream(wait=name)
        assert stream.wait_strategy == aiostream.WaitStrategy(name)
        other = Stream(wait=aiostream.WaitStrategy(name))
        assert other.wait_strategy == stream.wait_strategy
        with default_wait(name):
            assert aiostream.default_wait() == name
            third = Stream()
        assert third.wait_strategy == name
        assert aiostream.default_wait() == "auto"
        for each in (stream, other, third):
            each.close()


def test_a_strategy_that_does_not_exist_is_refused() -> None:
    before = statistics().handles.created
    for wrong in ("Spin", "", "poll", 3):
        with pytest.raises(ValueError, match="'auto', 'hostfunc', 'event', 'spin'") as caught:
            Stream(wait=wrong)  # type: ignore[arg-type]
        assert repr(wrong) in str(caught.value)
        with pytest.raises(ValueError, match="'auto', 'hostfunc', 'event', 'spin'"):
            aiostream.set_default_wait(wrong)  # type: ignore[arg-type]
    assert aiostream.default_wait() == "auto"
    assert statistics().handles.created == before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_environment_s_strategy(driver_kind: str, strategy: str) -> None:
    script = """
        import asyncio
        from aiostream import Stream, default_wait, set_default_wait, statistics
        from support import spin
        stream = Stream()
        print(stream.wait_strategy, default_wait())
        async def main():
            for _ in range(5):
                spin(stream, 0.001)
                await stream.synchronize_async()
        asyncio.run(main())
        stream.close()
        waits = statistics().waits
        print(waits.watched > 0, waits.spun > 0)
        set_default_wait("event")
        print(default_wait())
        set_default_wait(None)
        print(default_wait())
    """
    watched = {"auto": True, "event": True, "spin": False, "hostfunc": False}[strategy]
    first, stages, *rest = succeed(driver_kind, script, AIOSTREAM_WAIT=strategy).splitlines()
    assert first == f"{strategy} {strategy}"
    assert stages.split()[0] == str(watched)
    if strategy != "auto":
        assert stages.split()[1] == str(strategy == "spin")
    assert rest == ["event", strategy]


def test_an_environment_that_names_no_strategy(driver_kind: str) -> None:
    done = run_script(driver_kind, "from aiostream import Stream; Stream()", AIOSTREAM_WAIT="fast")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ValueError: the environment variable AIOSTREAM_WAIT is one of 'auto', 'hostfunc', 'event', 'spin', not 'fast'"


# ------------------------------------------------------------------------------------------------ trio's rule


@in_each_stage
def test_each_wait_is_a_checkpoint_on_trio(stage: str, thing: str) -> None:
    import trio
    import trio.testing

    async def main() -> None:
        async with waiter_in(stage, thing) as (waiter, gate):

            async def open_soon() -> None:
                await waiter.reach()
                gate.open()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_soon)
                with trio.testing.assert_checkpoints():
                    await waiter.wait()
            with trio.testing.assert_checkpoints():
                await waiter.wait()  # ready, or about to be
            with trio.CancelScope() as scope:
                scope.cancel()
                await waiter.wait()
            assert scope.cancelled_caught

    trio.run(main)


# ------------------------------------------------------------------------------------------------ interrupts, exits and forks


def drive(coroutine: Any, bridge: Any) -> None:
    """Carries out a coroutine without asyncio's tasks, whose own callbacks an interrupt may lose."""
    with contextlib.suppress(StopIteration):
        while True:
            future = coroutine.send(None)
            while future is not None and not future.done():
                select.select([bridge.descriptor], [], [], 0.01)
                bridge.drain()


@pytest.mark.parametrize("strategy", OURS)
def test_keyboard_interrupts_lose_no_wait(driver_kind: str, strategy: str) -> None:
    """On a bare loop SIGINT raises wherever Python is: between the beginning of a wait and what is noted of it, or between a look
    and its answer. No record is lost, and none is used twice."""
    armed = False

    def strike(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    stream, loop = Stream(wait=strategy), asyncio.new_event_loop()
    spin(stream, 0)
    stream.synchronize()
    events = event_creations(driver_kind)
    before, interrupts = statistics(), 0
    previous = signal.signal(signal.SIGALRM, strike)
    asyncio._set_running_loop(loop)
    try:
        bridge = _loops.current_bridge()
        drive(stream.synchronize_async(), bridge)
        made = events()
        for number in range(600):
            spin(stream, 0.0003)
            coroutine = stream.synchronize_async()
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 0.00001 + number % 60 * 0.00001)
                drive(coroutine, bridge)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            coroutine.close()
            del coroutine
            stream.synchronize()  # or the waits that were broken off pile up
        stream.synchronize()
        assert settle(lambda: statistics().points.pending == 0)
        bridge.drain()
    finally:
        asyncio._set_running_loop(None)
        signal.signal(signal.SIGALRM, previous)
        loop.close()
    assert interrupts > 200, interrupts
    assert settle(lambda: statistics().balanced), statistics()
    assert statistics().waits.leaked == before.waits.leaked
    assert events() - made <= 20, f"{events() - made} records were lost by {interrupts} interrupts"
    stream.close()


def event_creations(driver_kind: str) -> Callable[[], int]:
    if driver_kind != "simulator":
        return lambda: 0
    from aiostream import simulator

    return lambda: simulator.calls("cuEventCreate")


PENDING = """
    import asyncio, atexit, os, sys, time
    import anyio
    from aiostream import statistics
    from support import Gate
    from test_staged import CASES, EXPECTED, Waiter

    gate = Gate()
    waiters = [Waiter(*case) for case in CASES]

    async def prepare():
        for waiter in waiters:
            waiter.work(0)
            await waiter.wait()
            if waiter.stage in EXPECTED:
                await waiter.learn()
        for waiter in waiters:
            gate.hold(waiter.stream)
            waiter.event.record(waiter.stream)

    async def until_some_sleep():
        while statistics().waits.by_hostfunc == 0:
            await anyio.lowlevel.checkpoint()

    atexit.register(gate.open)  # runs before the library's own end, whose threads then meet what comes
"""
CANCELLED = (
    PENDING
    + """
    async def main():
        await prepare()
        async with anyio.create_task_group() as tasks:
            for waiter in waiters:
                tasks.start_soon(waiter.wait)
            await until_some_sleep()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend={backend!r})
    sys.exit(5)
"""
)
NEVER_CLOSED = (
    PENDING
    + """
    loop = asyncio.new_event_loop()
    loop.run_until_complete(prepare())
    tasks = [loop.create_task(waiter.wait()) for waiter in waiters]
    for task in tasks:
        task._log_destroy_pending = False
    loop.run_until_complete(until_some_sleep())
    import warnings
    warnings.simplefilter("ignore", ResourceWarning)  # asyncio's own, about the loop
    sys.exit(5)
"""
)


@pytest.mark.parametrize("script", [CANCELLED.format(backend=backend) for backend in ("asyncio", "trio")] + [NEVER_CLOSED])
def test_the_interpreter_ends_with_waits_in_every_stage(driver_kind: str, script: str) -> None:
    began = time.monotonic()
    done = run_script(driver_kind, script)
    assert (done.returncode, done.stderr) == (5, ""), done.stderr
    assert time.monotonic() - began < 20


@pytest.mark.simulator_only("a GPU does not block on command")
def test_the_interpreter_ends_while_the_driver_holds_the_sleeper_up(driver_kind: str) -> None:
    script = """
        import asyncio, sys, time
        from aiostream import Stream, simulator, statistics
        from support import Gate
        gate, stream = Gate(), Stream()
        gate.hold(stream)
        async def main():
            task = asyncio.ensure_future(stream.synchronize_async())
            while statistics().waits.watched == 0:
                await asyncio.sleep(0)
            simulator.adversary(blocking_enqueue=20.0)
            while statistics().waits.by_hostfunc == 0:
                await asyncio.sleep(0)
            looks = statistics().waits.polls
            while statistics().waits.polls < looks + 20:  # the watcher is not held up with it
                await asyncio.sleep(0)
            task.cancel()
            print(time.monotonic(), flush=True)
        asyncio.run(main())
    """
    done = run_script(driver_kind, script)
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert ended - float(done.stdout) < 2.0


def test_a_forked_child_leaves_the_parent_s_waits_alone(driver_kind: str) -> None:
    """In the child every wait is refused, coroutines end quietly, and the parent's watcher and loop hear nothing of it."""
    script = """
        import asyncio, gc, os, sys, warnings
        from aiostream import statistics
        from support import Gate
        from test_staged import Waiter
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's own, about threads and fork

        def child(coroutines, waiter):
            try:
                waiter.wait().send(None)
            except RuntimeError as error:  # asyncio knows that its loop does not run here
                print("refused")
            for coroutine in coroutines:
                coroutine.close()
            del coroutines, waiter
            gc.collect()
            sys.stdout.flush()
            os._exit(0)

        async def main():
            gate = Gate()
            waiters = [Waiter("spinning"), Waiter("watched"), Waiter("asleep")]
            for waiter in waiters:
                gate.hold(waiter.stream)
            coroutines = [waiter.wait() for waiter in waiters]
            tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
            while statistics().waits.by_hostfunc == 0:
                await asyncio.sleep(0)
            if os.fork() == 0:
                child(coroutines, waiters[1])
            os.wait()
            gate.open()
            await asyncio.gather(*tasks)
            print("all ended", statistics().balanced)
            for waiter in waiters:
                waiter.close()

        asyncio.run(main())
    """
    assert succeed(driver_kind, script) == "refused\nall ended True\n"
