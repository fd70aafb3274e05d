"""Random operations at the same time: the ledger balances, nothing leaks, no call fails, and each
stream runs its work in order.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import machines
from aiostream import Event, Stream, StreamClosedError, WaitStrategy, set_default_wait, statistics
from installed import installed
from support import Gate, held_stream, run_on, run_together, settle, spin

KINDS = installed(["asyncio", "uvloop", "trio"])
STRATEGIES = list(WaitStrategy)


class Session:
    """One loop's life: some streams, 25 waits of all kinds, of which some are cancelled, orphaned,
    or lose their stream.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.streams = [Stream(wait=rng.choice(STRATEGIES)) for _ in range(3)]
        self.steady = Stream(wait="auto")
        self.length = rng.choice(
            [None, 0.0002, 0.002]
        )  # the same for all work, so that it is expected; or any
        self.outcomes = {"waited": 0, "cancelled": 0, "closed": 0}

    def work(self, stream: Stream) -> None:
        if (
            self.rng.random() < 0.5 and stream.handle
        ):  # raises once it is closed; no driver survives a stale handle
            spin(stream, self.rng.random() * 0.0003 if self.length is None else self.length)

    async def wait(self, number: int, scope: anyio.CancelScope) -> None:
        stream = self.rng.choice(self.streams)
        with scope:
            try:
                self.work(stream)
                await self.one_wait(number, stream)
                self.outcomes["waited"] += 1
            except StreamClosedError:
                self.outcomes["closed"] += 1
        if scope.cancelled_caught:
            self.outcomes["cancelled"] += 1

    async def one_wait(self, number: int, stream: Stream) -> None:
        kind = self.rng.randrange(9)
        if kind in (0, 6, 7, 8):
            await stream.synchronize_async()
        elif kind == 1:
            await stream.completion_future()
        elif kind == 2:
            await stream.checked_completion_future()
        elif kind == 3:
            assert await stream.enqueue_async(lambda _, value: value, number) == number
        elif kind == 4:
            event = Event()
            event.record(stream)
            await event.synchronize_async()  # and dropped without a close
        else:
            future = stream.completion_future()
            if self.rng.random() < 0.5:
                future.cancel()
            else:
                await future

    async def wait_steadily(self, scope: anyio.CancelScope) -> None:
        """Equal work, one wait at a time: the later ones are predicted."""
        with scope:
            for _ in range(6):
                spin(self.steady, 0.002)
                await self.steady.synchronize_async()
                self.outcomes["waited"] += 1
        if scope.cancelled_caught:
            self.outcomes["cancelled"] += 1

    async def run(self) -> None:
        scopes = [anyio.CancelScope() for _ in range(26)]
        async with anyio.create_task_group() as group:
            group.start_soon(self.wait_steadily, scopes[25])
            for number, scope in enumerate(scopes[:25]):
                group.start_soon(self.wait, number, scope)
            for scope in self.rng.sample(scopes, 12):
                for _ in range(self.rng.randrange(4)):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
                if self.rng.random() < 0.15:
                    self.rng.choice(self.streams).close()  # with work and waits in flight
            if self.rng.random() < 0.2:
                group.cancel_scope.cancel()
        for stream in self.streams:
            if not stream.closed:
                self.work(stream)
                stream.completion_future()  # nobody waits: the loop ends first
        if self.rng.random() < 0.5:
            del self.streams[0]  # dropped without a close, with work in flight


def one_session(rng: random.Random, kind: str) -> dict[str, int]:
    session = Session(rng)
    set_default_wait(rng.choice(STRATEGIES))  # what the session's events are waited for with
    try:
        run_on(kind, session.run)
    finally:
        set_default_wait(None)
    for stream in (*session.streams, session.steady):
        stream.close()
    return session.outcomes


@pytest.mark.slow
def test_random_cancellations_loop_closures_and_stream_closures(
    driver_kind: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """One seed after another, until 1,000 waits were really cancelled, streams closed under waits,
    and loops closed.
    """
    before = statistics()
    total = {"waited": 0, "cancelled": 0, "closed": 0}
    loops = seed = 0

    def stages() -> dict[str, int]:
        now = statistics().waits
        names = ("ready", "spun", "watched", "by_timer")
        return {name: getattr(now, name) - getattr(before.waits, name) for name in names}

    try:
        while (
            total["cancelled"] + total["closed"] + loops < 1000
            or min(total.values()) == 0
            or min(stages().values()) == 0  # on a busy machine hardly any wait is predicted
        ):
            seed += 1
            assert seed < 100, f"too little happens: {total}, {stages()}"
            rng = random.Random(seed)
            if driver_kind == "simulator":
                from aiostream import simulator

                simulator.seed(seed)
            with caplog.at_level(logging.DEBUG, logger="aiostream"):
                for _ in range(40):
                    loops += 1
                    for name, count in one_session(rng, rng.choice(KINDS)).items():
                        total[name] += count
                gc.collect()

                def ended() -> bool:
                    now = statistics()
                    quiet = now.points.pending == now.futures.pending == 0
                    return now.balanced and quiet and now.handles.open == before.handles.open

                assert settle(ended), f"seed {seed}: {before} -> {statistics()}"
    finally:
        if driver_kind == "simulator":
            simulator.seed(None)
    after = statistics()
    assert after.points.leaked == before.points.leaked
    assert after.futures.dropped > before.futures.dropped
    assert after.waits.pending == 0
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not complaints, complaints
    assert capfd.readouterr().err == ""
    print(f"{seed} seeds, {loops} loops: {total}, {stages()}")


def test_loops_of_all_kinds_one_after_the_other() -> None:
    """Queues are recycled as loops come and go: the end of an old loop must not close the queue of
    a new one.
    """
    stream = Stream()

    async def once() -> None:
        future = stream.completion_future()
        with anyio.fail_after(20):
            await future
        stream.completion_future()  # left pending as the loop ends

    for number in range(300):
        run_on(KINDS[number % len(KINDS)], once)
    stream.close()


def test_several_loops_in_several_threads_await_one_stream() -> None:
    stream, waits = Stream(), []
    kinds = installed(["asyncio", "uvloop", "trio", "asyncio", "trio"])
    together = threading.Barrier(len(kinds))

    async def main() -> None:
        thread = threading.get_ident()
        for number in range(60):
            if number % 10 == 0:
                together.wait(30)
            spin(stream, 0.0001)
            with anyio.fail_after(30):
                if number % 3 == 0:
                    await stream.synchronize_async()
                elif number % 3 == 1:
                    await stream.completion_future()
                else:
                    futures = [stream.checked_completion_future(), stream.completion_future()]
                    for future in futures:
                        await future
            assert threading.get_ident() == thread
            waits.append(number)

    run_together(kinds, main, together)
    assert len(waits) == 60 * len(kinds)
    stream.close()


def test_dropped_streams_are_destroyed_by_the_janitor() -> None:
    before = statistics()
    gc.disable()
    try:
        for _ in range(300):
            stream = Stream()
            spin(stream, 0)
            knot: list[Any] = [stream]
            knot.append(knot)  # only the cycle collector finds it
        del stream, knot
        assert statistics().handles.open >= before.handles.open + 299
    finally:
        gc.enable()
    gc.collect()
    assert settle(lambda: statistics().handles.open == before.handles.open)
    assert statistics().handles.destroyed == before.handles.destroyed + 300


async def test_streams_dropped_in_flight_finish_their_work() -> None:
    before = statistics()
    with Gate() as gate:
        futures = []
        for _ in range(4):
            stream = held_stream(gate)
            spin(stream, 0.0002)
            futures.append(stream.completion_future())
            del stream
        gc.collect()
        while (
            statistics().handles.open > before.handles.open
        ):  # the janitor does not wait for the work
            await anyio.lowlevel.checkpoint()
        assert not any(future.done() for future in futures)
        gate.open()
        for future in futures:
            await future


def test_finalizers_that_run_inside_a_host_function() -> None:
    """The collector may strike on the driver's thread, where no CUDA call is allowed: the janitor
    destroys.
    """
    before, stream = statistics(), Stream()
    collected = threading.Event()

    def collect() -> None:
        gc.collect()
        collected.set()

    gc.disable()
    try:
        for _ in range(10):
            knot: list[Any] = [Stream(), Event()]
            knot.append(knot)
        del knot
        stream.launch_host_func(collect)
        assert collected.wait(30)
    finally:
        gc.enable()
    stream.close()
    assert settle(lambda: statistics().handles.open == before.handles.open)


# ------------------------------------------------------------------------------------------ a model


class Point:
    """What the model knows of one future."""

    def __init__(self, future: Any, gates: frozenset[int]) -> None:
        self.future = future
        self.gates = gates  # it may come only when all of these are open
        self.cancelled = False


class Streams(RuleBasedStateMachine):
    """Streams with gates in them, events between them, and futures: which may be done, and which
    must be.

    `ahead` of a stream or an event is the set of gates in front of its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = statistics()
        self.loop = asyncio.new_event_loop()
        self.streams: dict[int, Stream] = {}
        self.ahead: dict[int, frozenset[int]] = {}
        self.points: dict[int, list[Point]] = {}  # of each stream, closed ones too, in order
        self.gates: dict[int, Gate] = {}
        self.opened: set[int] = set()
        self.event, self.event_ahead = Event(), frozenset[int]()
        self.numbers = iter(range(1_000_000))

    def in_loop(self, function: Callable[[], Any]) -> Any:
        async def main() -> Any:
            return function()

        return self.loop.run_until_complete(main())

    def some_stream(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.streams)))

    @initialize()
    def begin(self) -> None:
        self.make_stream(WaitStrategy.AUTO)

    @precondition(lambda self: len(self.streams) < 4)
    @rule(wait=st.sampled_from(STRATEGIES))
    def make_stream(self, wait: WaitStrategy) -> None:
        number = next(self.numbers)
        self.streams[number] = Stream(wait=wait)
        self.ahead[number], self.points[number] = frozenset(), []

    @precondition(lambda self: self.streams and len(self.gates) - len(self.opened) < 3)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        stream, gate = self.some_stream(data), next(self.numbers)
        self.gates[gate] = Gate()
        self.gates[gate].hold(self.streams[stream])
        self.ahead[stream] |= {gate}

    @precondition(lambda self: set(self.gates) - self.opened)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        gate = data.draw(st.sampled_from(sorted(set(self.gates) - self.opened)))
        self.gates[gate].open()
        self.opened.add(gate)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), microseconds=st.integers(0, 100))
    def work(self, data: st.DataObject, microseconds: int) -> None:
        spin(self.streams[self.some_stream(data)], microseconds * 1e-6)

    @precondition(lambda self: self.streams)
    @rule(
        data=st.data(),
        kind=st.sampled_from(
            ["completion_future", "checked_completion_future", "enqueue_async", "task"]
        ),
    )
    def wait(self, data: st.DataObject, kind: str) -> None:
        number = self.some_stream(data)
        stream = self.streams[number]
        if kind == "enqueue_async":
            future = self.in_loop(lambda: stream.enqueue_async(lambda _: kind))
        elif kind == "task":
            future = self.in_loop(lambda: self.loop.create_task(stream.synchronize_async()))
            self.in_loop(lambda: None)  # its first step is what marks the point
        else:
            future = self.in_loop(getattr(stream, kind))
        self.points[number].append(Point(future, self.ahead[number]))

    @precondition(lambda self: any(self.points.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(
            st.sampled_from(sorted(number for number, points in self.points.items() if points))
        )
        point = data.draw(st.sampled_from(self.points[number]))
        if point.future.cancel():
            point.cancelled = True
            self.in_loop(lambda: None)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        number = self.some_stream(data)
        self.event.record(self.streams[number])
        self.event_ahead = self.ahead[number]

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def wait_event(self, data: st.DataObject) -> None:
        number = self.some_stream(data)
        self.streams[number].wait_event(self.event)
        self.ahead[number] |= self.event_ahead

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), drop=st.booleans())
    def end_stream(self, data: st.DataObject, drop: bool) -> None:
        stream = self.streams.pop(self.some_stream(data))
        if not drop:
            stream.close()
            with pytest.raises(StreamClosedError):
                self.in_loop(stream.completion_future)

    @rule()
    def let_everything_come_that_can(self) -> None:
        due = [
            point
            for points in self.points.values()
            for point in points
            if not self.closed(point.gates)
        ]
        pending = [point.future for point in due if not point.future.done()]
        if pending:
            self.loop.run_until_complete(asyncio.wait(pending, timeout=20))
        assert all(point.future.done() for point in due), (
            "a future whose gates are open does not come"
        )

    def closed(self, gates: frozenset[int]) -> frozenset[int]:
        return gates - self.opened

    @invariant()
    def what_is_done_may_be_done(self) -> None:
        for points in self.points.values():
            for point in points:
                if point.future.done() and not point.cancelled:
                    assert not self.closed(point.gates), (
                        "it is done, though a gate in front of it is closed"
                    )
                    assert point.future.exception() is None
                    assert point.future.result() in (None, "enqueue_async")

    @invariant()
    def each_stream_is_first_in_first_out(self) -> None:
        for points in self.points.values():
            # Tasks take a step more than futures to be done, and a cancelled one says nothing.
            done = [
                p.future.done()
                for p in points
                if not p.cancelled and not isinstance(p.future, asyncio.Task)
            ]
            assert done == sorted(done, reverse=True), (
                "a later point of a stream was done before an earlier one"
            )

    @invariant()
    def the_ledger_balances(self) -> None:
        now = statistics()
        assert now.balanced, now
        assert now.points.leaked == self.before.points.leaked

    def teardown(self) -> None:
        for gate in self.gates.values():
            gate.open()
        self.opened |= set(self.gates)
        self.let_everything_come_that_can()
        self.what_is_done_may_be_done()
        for stream in self.streams.values():
            stream.close()
        self.event.close()
        self.loop.close()
        # A cancelled task keeps its error, whose traceback keeps a stream that was dropped.
        self.points.clear()
        gc.collect()

        def ended() -> bool:
            now = statistics()
            return (
                now.balanced
                and now.points.pending == 0
                and now.handles.open == self.before.handles.open
            )

        assert settle(ended), f"{self.before} -> {statistics()}"


@pytest.mark.simulator_only(
    "on a GPU it would take minutes, and the simulator moves streams in more orders"
)
def test_a_model_of_streams_gates_events_and_futures() -> None:
    machines.let_hypothesis_see()
    run_state_machine_as_test(
        Streams,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_loop_that_is_closed_with_a_thousand_waits(capfd: pytest.CaptureFixture[str]) -> None:
    """They are dropped, counted, and what they kept alive is let go of, as the GPU comes to
    them.
    """
    before, kept = statistics(), [object() for _ in range(1000)]
    references = sys.getrefcount(kept[0])
    with Gate() as gate:
        stream = held_stream(gate)

        async def main() -> None:
            for thing in kept:
                stream.enqueue_async(lambda _, thing: None, thing)

        asyncio.run(main())
        gc.collect()
        assert statistics().futures.pending == before.futures.pending + 1000
        assert sys.getrefcount(kept[0]) > references
    assert settle(lambda: statistics().futures.dropped == before.futures.dropped + 1000)
    assert settle(lambda: sys.getrefcount(kept[0]) == references)
    stream.close()
    assert capfd.readouterr().err == ""
