"""Each kind of await, and what the tasks of a soak do, chosen and cancelled at random, on three
loops in three threads that share streams.

`AIOSTREAM_TEST_SECONDS` makes it longer, `AIOSTREAM_TEST_SEED` begins elsewhere: see
CONTRIBUTING.md.
"""

from __future__ import annotations

import contextlib
import faulthandler
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest

import aiostream
import soak
from aiostream import Event, Stream, StreamPool, WaitStrategy, simulator, statistics
from awaits import AWAITS, scene_of
from installed import installed
from support import LIMIT, chosen_seconds, chosen_seed, run_on

KINDS = installed(["asyncio", "trio", "uvloop"])
PATIENCE = [0, 0.0001, 0.001, 0.003, 30, 30, 30]
"""Seconds after which an operation is cancelled. Nothing lasts 30 s: that is a hang."""


class Shared:
    """What all loops use."""

    def __init__(self) -> None:
        self.streams = [Stream(wait=wait) for wait in (*WaitStrategy, WaitStrategy.AUTO)]
        self.events = [Event() for _ in range(3)]
        self.end = time.monotonic() + chosen_seconds(1)
        self.done: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.errors: list[str] = []
        self.next: list[str] = []  # operations that no loop has drawn yet, in random order

    def goes_on(self) -> bool:
        """Whether its time is not over. On a busy machine it lasts until enough has happened."""
        late = time.monotonic() - self.end
        return not self.errors and (late < 0 or (late < 30 and not self.is_enough()))

    def is_enough(self) -> bool:
        """Whether each operation has ended, and most in both ways."""
        ended = {"end_streams", "use_the_pool", *AWAITS} <= {*self.done, *self.cancelled}
        return ended and len(self.done) > 20 and len(self.cancelled) > 10

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        for event in self.events:
            event.close()


class Tasks(soak.Activities):
    """The operations of one loop's tasks."""

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(seed, shared.streams)
        self.shared = shared
        self.end = time.monotonic() + self.rng.uniform(0.1, 1.5)
        self.pool = StreamPool(2)
        activities = [
            *(self.cancel, self.call_host_functions, self.use_a_pool, self.capture, self.borrow),
            *(self.end_streams, self.leave_pending, self.use_the_pool, self.order_streams),
            *(self.wait_for_futures_of_a_closed_stream, self.drain),
        ]
        self.operations: dict[str, Callable[[], Awaitable[Any]]] = {
            **{activity.__name__: activity for activity in activities},
            # What drains waits for what the other loops do.
            **{name: partial(self.share, name) for name in AWAITS if name != "drain"},
        }

    async def share(self, name: str) -> None:
        """Awaits what another loop uses at the same time."""
        scene, begin = scene_of(name, shared=self.some_stream())
        try:
            await begin()
        finally:
            scene.close()

    async def use_the_pool(self) -> None:
        async with self.pool.stream() as own:
            self.some_work(own)
            await own.synchronize_async()

    async def order_streams(self) -> None:
        event = self.rng.choice(self.shared.events)
        event.record(self.some_stream())
        stream = self.some_stream()
        stream.wait_event(event)
        await event.synchronize_async()
        await stream.synchronize_async()

    async def wait_for_futures_of_a_closed_stream(self) -> None:
        own = Stream()
        self.some_work(own)
        futures = [own.completion_future() for _ in range(3)]
        own.close()
        await aiostream.wait(
            futures, return_when=self.rng.choice(["ALL_COMPLETED", "FIRST_COMPLETED"])
        )

    async def drain(self) -> None:
        await aiostream.drain(0.001)

    def draw(self) -> str:
        """Each operation comes once before any comes again."""
        with contextlib.suppress(IndexError):
            return self.shared.next.pop()
        self.shared.next += self.rng.sample([*self.operations], len(self.operations))
        return self.shared.next.pop()

    async def one_after_the_other(self) -> None:
        while time.monotonic() < self.end and self.shared.goes_on():
            name, patience = self.draw(), self.rng.choice(PATIENCE)
            with anyio.move_on_after(patience) as scope:
                await self.operations[name]()
            if scope.cancelled_caught:
                assert patience < 30, f"{name} hangs"
                self.shared.cancelled[name] += 1
            else:
                self.shared.done[name] += 1
            await anyio.sleep(0)

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(self.one_after_the_other)
            if self.rng.random() < 0.3:  # all of them, in the middle of what they do
                await anyio.sleep(self.rng.uniform(0, 0.3))
                group.cancel_scope.cancel()
        await self.pool.aclose()


async def run_tasks(shared: Shared, seed: str) -> None:
    await Tasks(shared, seed).run()


def run_loops(shared: Shared, kind: str) -> None:
    """One loop after another: each ends, and the next one gets what is recycled."""
    number = chosen_seed() * 1000
    while shared.goes_on():
        number += 1
        try:
            run_on(kind, run_tasks, shared, f"{kind} {number}")
        except BaseException:
            shared.errors.append(traceback.format_exc())


@pytest.fixture
def random_order(driver_kind: str) -> Iterator[None]:
    """The simulator moves its streams in an order of its own choice."""
    if driver_kind == "simulator":
        simulator.seed(chosen_seed())
    yield
    if driver_kind == "simulator":
        simulator.seed(None)


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.usefixtures("random_order")
def test_fuzz_of_three_loops() -> None:
    shared = Shared()
    threads = [
        threading.Thread(target=run_loops, args=(shared, kind), name=kind, daemon=True)
        for kind in KINDS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    hanging = [thread for thread in threads if thread.is_alive()]
    if hanging:
        faulthandler.dump_traceback(2)
    assert not hanging, f"{hanging} hang; {statistics()}"
    assert not shared.errors, "\n".join(shared.errors)
    shared.close()
    assert shared.is_enough(), f"most operations never ended: {shared.done}, {shared.cancelled}"
    print(
        f"{sum(shared.done.values())} done, {sum(shared.cancelled.values())} cancelled: "
        f"{shared.done}, {shared.cancelled}"
    )
