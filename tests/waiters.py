"""The harness of the wait tests: a stream or an event, and how a wait for it gets into each of its
stages.

Gates and counters bring a wait into a stage, never a sleep. A test that uses a `Waiter` needs the
fixture `default_prediction`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import Event, Stream, StreamPool, WaitCounts, statistics
from internals import native_counters
from support import Gate, cases_on_loops, spin

THINGS = ["stream", "event"]
MOST_TIMERS = 256  # waits that a loop's timer takes
POLLS_IF_NOT_PREDICTED = 150  # more than the watcher makes before it would hand a wait back


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a pending wait is doing, and how it comes to do it."""

    strategy: str
    """The strategy of the stream and the event."""
    sign: int | None = None
    """The native counter that counts up when the wait is there."""
    predicted: bool = False
    """Equal waits come before it, until `sign` counts up.

    On a machine that is busy with other things even equal waits may take so different a time that
    none is predicted. Then the watcher polls the wait, and the test goes on with that, after
    `POLLS_IF_NOT_PREDICTED` polls.
    """
    timers: int = MOST_TIMERS
    """How many waits a loop's timer takes."""
    things: tuple[str, ...] = ("stream", "event", "future")
    """What can be waited for in this stage."""


STAGES = {
    "spinning": Stage("spin"),
    "watched": Stage("event", internals.WAITS_WATCHED),
    "by timer": Stage("auto", internals.WAITS_BY_TIMER, predicted=True),
    # No timers: of the waits that are alone on their stream the watcher hands back only those that
    # no timer takes.
    "handed back": Stage(
        "auto", internals.WAITS_HANDED_BACK, predicted=True, timers=0, things=("stream", "event")
    ),
    "host function": Stage("hostfunc", internals.POINTS_ARMED, things=("stream", "future")),
}
EVENT_STAGES = [name for name, stage in STAGES.items() if "event" in stage.things]
CASES = [(name, thing) for name, stage in STAGES.items() for thing in stage.things]

in_each_stage = pytest.mark.parametrize(
    ("stage", "thing"), CASES, ids=["-".join(case).replace(" ", "-") for case in CASES]
)
in_each_stage_on_loops = cases_on_loops("stage, thing", CASES)


def counts() -> WaitCounts:
    """The counters of waits, now."""
    return statistics().waits


def since(before: WaitCounts) -> WaitCounts:
    """How far the counters of waits have come since then."""
    now, then = dataclasses.asdict(counts()), dataclasses.asdict(before)
    return WaitCounts(**{name: now[name] - then[name] for name in now})


@contextlib.contextmanager
def default_wait(strategy: Any) -> Iterator[None]:
    """Streams and events that are made in the block have this strategy."""
    aiostream.set_default_wait(strategy)
    try:
        yield
    finally:
        aiostream.set_default_wait(None)


async def until(condition: Callable[..., bool]) -> None:
    """Lets the loop go on until it is so, and leaves the core to other tests meanwhile."""
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.0005)


async def turns(number: int = 20) -> None:
    """Lets the loop take that many turns."""
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


def end_lost_task(task: Any) -> None:
    """Ends the coroutine of a task whose loop is closed, as its collection would."""
    task.get_coro().close()
    task._log_destroy_pending = False  # asyncio would write to stderr that the task never ended


def waited_for(
    pool: StreamPool[Any],
) -> tuple[asyncio.AbstractEventLoop, Stream, asyncio.Task[Stream]]:
    """A loop that is not running, the only stream, which a task of it has, and another task that
    waits for it.
    """
    loop = asyncio.new_event_loop()
    used = loop.run_until_complete(pool.acquire())
    waiter = loop.create_task(pool.acquire())
    while pool.waiting == 0:
        loop.run_until_complete(asyncio.sleep(0))
    return loop, used, waiter


async def use_once(pool: StreamPool[Any]) -> None:
    """Gets a stream of the pool, and awaits it."""
    async with pool.stream() as stream:
        await stream.synchronize_async()


def take_spares(stream: Stream) -> list[Any]:
    """Until what it returns is dropped, each wait needs memory that is made for it, or that has
    come back since.
    """
    taken, made = [], native_counters()[internals.WAITS_MADE]
    while native_counters()[internals.WAITS_MADE] == made:
        taken.append(internals.reserve_wait(stream, internals.native_strategies().index("event")))
    return taken


async def wait_for_work(stream: Stream, seconds: float) -> None:
    """Waits for `seconds` of work, which begins only when the wait is pending."""
    pending = counts().pending
    with Gate() as gate:
        gate.hold(stream)
        spin(stream, seconds)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.synchronize_async)
            await until(lambda: counts().pending > pending)
            gate.open()


async def use_many_timers() -> int:
    """Has tasks wait for equal work on many streams, until timers had more than 100 of the waits.

    Returns how many they had.
    """
    streams, before = [Stream() for _ in range(24)], counts()

    async def serve(stream: Stream) -> None:
        for _ in range(25):
            spin(stream, 0.002)
            with anyio.fail_after(10):
                await stream.synchronize_async()

    for _ in range(40):  # more together than are woken at a time
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(serve, stream)
        if since(before).by_timer > 100:
            break
    for stream in streams:
        stream.close()
    return since(before).by_timer


def _nothing(*_: object) -> None:
    """What `enqueue_async` calls: the work is on the stream already."""


class Waiter:
    """A stream, and an event on it, whose waits get into one stage."""

    def __init__(self, stage: str, thing: str = "stream") -> None:
        self.stage, self.thing = STAGES[stage], thing
        with default_wait(self.stage.strategy):
            self.stream, self.event = Stream(), Event()
        self._mark()

    def _mark(self) -> None:
        self.turns, self.before, self.counters_before = 0, counts(), native_counters()

    async def wait(self, *kept: object) -> None:
        """Waits for the stream, the event, or a future of `enqueue_async`, which keeps these."""
        if self.thing == "future":
            future = self.stream.enqueue_async(_nothing, *kept)
            del kept  # from now on only the future keeps them
            await future
        else:
            await (
                self.stream.synchronize_async()
                if self.thing == "stream"
                else self.event.synchronize_async()
            )

    def work(self, length: float) -> None:
        """Enqueues that many seconds of work, and records the event behind it."""
        spin(self.stream, length)
        self.event.record(self.stream)

    async def learn(self, length: float) -> None:
        """Waits for equal work until one wait was in the stage: the next will be too, if nothing
        comes between.
        """
        assert self.stage.sign is not None
        sign, before = self.stage.sign, native_counters()[self.stage.sign]
        for _ in range(40):  # see `Stage.predicted`: on a busy machine it may never count up
            self.work(length)
            await self.wait()
            if native_counters()[sign] > before:
                return

    async def prepare(self, length: float = 0.008) -> None:
        """All that must come before the work that holds the wait in its stage."""
        internals.limit_timer(self.stage.timers)
        if self.stage.predicted:
            await self.learn(length)

    async def hold(self, gate: Gate, length: float = 0.008) -> None:
        """From now on a wait stays in its stage, sooner or later, until the gate is
        opened.
        """
        spin(self.stream, 0)
        self.stream.synchronize()
        await self.prepare(length)
        self.enclose(gate)

    def enclose(self, gate: Gate) -> None:
        """Holds the stream, and the event behind it, until the gate is opened."""
        gate.hold(self.stream)
        self.event.record(self.stream)
        self._mark()

    def reached(self) -> bool:
        """Whether the wait is in its stage."""
        self.turns += 1
        if self.stage.sign is None:
            return self.turns > 20
        if self.grown(self.stage.sign) > 0:
            return True
        return self.stage.predicted and self.grown(internals.EVENT_POLLS) > POLLS_IF_NOT_PREDICTED

    def grown(self, counter: int) -> int:
        """How far a native counter has come since the wait was held."""
        return native_counters()[counter] - self.counters_before[counter]

    async def reach(self) -> None:
        """Lets the loop take turns until the wait is in its stage."""
        await until(self.reached)

    def close(self) -> None:
        """Closes the stream and the event."""
        self.stream.close()
        self.event.close()


@contextlib.asynccontextmanager
async def waiter_in(stage: str, thing: str = "stream") -> AsyncIterator[tuple[Waiter, Gate]]:
    """A waiter that is held. At the end its gate is opened, and it must serve as before."""
    waiter = Waiter(stage, thing)
    with Gate() as gate:
        await waiter.hold(gate)
        yield waiter, gate
    await waiter.wait()
    await waiter.stream.synchronize_async()
    waiter.close()
