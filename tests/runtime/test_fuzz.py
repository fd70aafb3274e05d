"""Seventeen kinds of operations, chosen and cancelled at random, on three loops in three threads
that share streams.

`AIOSTREAM_TEST_SECONDS` makes it longer, `AIOSTREAM_TEST_SEED` begins elsewhere: see
CONTRIBUTING.md.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import anyio
import pytest

import aiostream
from aiostream import (
    CaptureMode,
    Event,
    Stream,
    StreamClosedError,
    StreamPool,
    WaitStrategy,
    simulator,
    statistics,
)
from installed import installed
from support import LIMIT, chosen_seconds, chosen_seed, run_on, spin

KINDS = installed(["asyncio", "trio", "uvloop"])
LENGTHS = [0, 0.00005, 0.0003, 0.001, 0.004]
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

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        for event in self.events:
            event.close()


class Tasks:
    """The operations of one loop's tasks; each method that begins with `do_` is one."""

    def __init__(self, shared: Shared, seed: str) -> None:
        self.shared = shared
        self.dice = random.Random(seed)
        self.end = min(shared.end, time.monotonic() + self.dice.uniform(0.1, 1.5))
        self.pool = StreamPool(2)
        names = sorted(name for name in dir(self) if name.startswith("do_"))
        self.operations: list[Callable[[Stream, float], Awaitable[None]]] = [
            getattr(self, name) for name in names
        ]

    async def do_synchronize(self, stream: Stream, seconds: float) -> None:
        spin(stream, seconds)
        await stream.synchronize_async()

    async def do_event(self, stream: Stream, seconds: float) -> None:
        event = self.dice.choice(self.shared.events)
        event.record(stream)
        await event.synchronize_async()

    async def do_completion_future(self, stream: Stream, seconds: float) -> None:
        await stream.completion_future()

    async def do_checked_completion_future(self, stream: Stream, seconds: float) -> None:
        await stream.checked_completion_future()

    async def do_enqueue(self, stream: Stream, seconds: float) -> None:
        def work(target: Stream, value: int) -> int:
            spin(target, seconds)
            return value

        assert await stream.enqueue_async(work, 5) == 5

    async def do_enqueue_in_thread(self, stream: Stream, seconds: float) -> None:
        assert await stream.enqueue_in_thread(lambda target: spin(target, seconds)) is None

    async def do_own_stream(self, stream: Stream, seconds: float) -> None:
        async with Stream() as own:
            spin(own, seconds)

    async def do_pool(self, stream: Stream, seconds: float) -> None:
        async with self.pool.stream() as own:
            spin(own, seconds)
            await own.synchronize_async()

    async def do_wait_for_futures_of_a_closed_stream(self, stream: Stream, seconds: float) -> None:
        own = Stream()
        spin(own, seconds)
        futures = [own.completion_future() for _ in range(3)]

        async def synchronize() -> None:
            with contextlib.suppress(StreamClosedError):
                await own.synchronize_async()

        async with anyio.create_task_group() as group:
            group.start_soon(synchronize)
            await anyio.sleep(0)
            own.close()  # under the wait, perhaps
            await aiostream.wait(
                futures, return_when=self.dice.choice(["ALL_COMPLETED", "FIRST_COMPLETED"])
            )

    async def do_host_function(self, stream: Stream, seconds: float) -> None:
        stream.launch_host_func(int)
        stream.add_callback(lambda error: None)

    async def do_cancel_and_drop(self, stream: Stream, seconds: float) -> None:
        own = Stream()
        spin(own, seconds)
        own.completion_future().cancel()
        own.completion_future()  # no task awaits it, and the loop may end first

    async def do_borrowed(self, stream: Stream, seconds: float) -> None:
        await stream.to_borrowed().synchronize_async()

    async def do_drain(self, stream: Stream, seconds: float) -> None:
        await aiostream.drain(0.001)

    async def do_capture(self, stream: Stream, seconds: float) -> None:
        own = Stream()
        with own.capture_executable(CaptureMode.THREAD_LOCAL) as capture:
            spin(own, seconds)
            own.launch_host_func(int)
        await capture.executable.launch_and_wait(own)

    async def do_wait_event(self, stream: Stream, seconds: float) -> None:
        event, own = Event(), Stream()
        event.record(own)
        stream.wait_event(event)
        event.close()
        await stream.synchronize_async()

    async def do_raise(self, stream: Stream, seconds: float) -> None:
        with pytest.raises(ZeroDivisionError):
            stream.enqueue_async(lambda _: 1 // 0)

    async def do_sleep(self, stream: Stream, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def one_after_the_other(self) -> None:
        while time.monotonic() < self.end and not self.shared.errors:
            operation = self.dice.choice(self.operations)
            name, patience = operation.__name__, self.dice.choice(PATIENCE)
            with anyio.move_on_after(patience) as scope:
                await operation(self.dice.choice(self.shared.streams), self.dice.choice(LENGTHS))
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
            if self.dice.random() < 0.3:  # all of them, in the middle of what they do
                await anyio.sleep(self.dice.uniform(0, 0.3))
                group.cancel_scope.cancel()
        await self.pool.aclose()


async def run_tasks(shared: Shared, seed: str) -> None:
    await Tasks(shared, seed).run()


def run_loops(shared: Shared, kind: str) -> None:
    """One loop after another: each ends, and the next one gets what is recycled."""
    number = chosen_seed() * 1000
    while time.monotonic() < shared.end and not shared.errors:
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
    assert len(shared.done) == 17, f"some operations never ended: {shared.done}"
    assert (
        min(shared.cancelled[name] for name in ("do_synchronize", "do_enqueue", "do_pool")) > 0
    ), shared.cancelled
    print(
        f"{sum(shared.done.values())} done, {sum(shared.cancelled.values())} cancelled: "
        f"{shared.done}, {shared.cancelled}"
    )
