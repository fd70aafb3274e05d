"""P17: launches by `run` keep the loop for one launch and a millisecond, and come in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from aiostream import PoolFullError, Stream, StreamClosedError, StreamPool, metrics
from support import Gate
from waiters import end_lost_task, until, use_once

pytestmark = pytest.mark.all_loops

LONG = 0.003  # seconds of a launch that uses up a turn


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Record:
    """The launches of tasks, and the turns of a task that does nothing else."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.over = False

    async def turns(self) -> None:
        while not self.over:
            self.events.append("turn")
            await anyio.lowlevel.checkpoint()

    def launch(self, number: int, seconds: float) -> None:
        self.events.append(number)
        burn(seconds)

    def launches(self) -> list[object]:
        return [each for each in self.events if each != "turn"]

    def most_in_a_row(self) -> int:
        longest = length = 0
        for each in self.events:
            length = 0 if each == "turn" else length + 1
            longest = max(longest, length)
        return longest


async def launch_all(record: Record, seconds: list[float], times: int = 1) -> None:
    """A task for each of them, which launches on a stream of its own, and one that takes turns."""

    async def task(number: int, stream: Stream) -> None:
        for _ in range(times):
            await stream.run(record.launch, number, seconds[number])
            await anyio.lowlevel.checkpoint()  # it may have been over at once

    streams = [Stream() for _ in seconds]
    async with anyio.create_task_group() as turns:
        turns.start_soon(record.turns)
        async with anyio.create_task_group() as tasks:
            for number, stream in enumerate(streams):
                tasks.start_soon(task, number, stream)
        record.over = True
    for stream in streams:
        stream.close()


async def test_loop_goes_on_between_long_launches() -> None:
    record = Record()
    await launch_all(record, [LONG] * 12)
    assert len(record.launches()) == 12
    assert record.most_in_a_row() == 1


async def test_launches_that_become_longer_end_the_turn() -> None:
    """Many tasks were woken, because the last launches were short."""
    record = Record()
    await launch_all(record, [0.0001] * 60 + [LONG] * 12)
    long = [each for each in record.events if each == "turn" or int(str(each)) >= 60]
    record.events = long
    assert record.most_in_a_row() <= 2  # one that was woken with short ones, and the next


async def test_short_launches_share_a_turn() -> None:
    record = Record()
    await launch_all(record, [0.0001] * 64, times=3)
    assert record.events.count("turn") < len(record.launches())


async def test_no_task_launches_more_than_others() -> None:
    record, counts = Record(), Counter[int]()
    streams = [Stream() for _ in range(64)]
    end = time.monotonic() + 0.4

    async def task(number: int) -> None:
        while time.monotonic() < end:
            await streams[number].run(burn, 0.0001)
            await anyio.lowlevel.checkpoint()  # it may have been over at once
            counts[number] += 1

    async with anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(task, number)
    assert max(counts.values()) <= 1.2 * min(counts.values()) + 1, counts
    for stream in streams:
        stream.close()
    assert not record.events


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_first_come_is_first_served() -> None:
    record = Record()
    await launch_all(record, [LONG] * 8, times=3)
    launches = record.launches()
    assert launches[:8] == list(range(8))
    # A task comes again when its work is done, so all have launched before.
    assert all(set(launches[n : n + 8]) == set(range(8)) for n in (0, 8, 16)), launches


async def test_enqueue_async_launches_at_once_and_its_time_counts() -> None:
    record = Record()
    async with Stream() as one, Stream() as other, anyio.create_task_group() as tasks:
        tasks.start_soon(record.turns)
        await until(lambda: bool(record.events))
        record.events.clear()
        launch = record.launch
        futures = [one.enqueue_async(lambda _, n: launch(n, LONG), n) for n in (1, 2)]
        assert record.events == [1, 2]
        await other.run(record.launch, 3, LONG)
        record.over = True
        for future in futures:
            await future
    assert "turn" in record.events[2 : record.events.index(3)]


async def test_first_that_waits_launches_although_enqueue_async_uses_up_each_turn() -> None:
    """Short calls of it come between, so several tasks are woken in one turn."""
    record = Record()

    async def enqueue() -> None:
        while len(record.launches()) < 6:
            for seconds in [0.0] * 20 + [LONG]:
                stream.enqueue_async(lambda _, n: burn(n), seconds).cancel()
            record.events.append("turn")
            await anyio.lowlevel.checkpoint()

    async with StreamPool(6) as pool, Stream() as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(enqueue)
        await until(lambda: "turn" in record.events)
        for number in range(6):
            tasks.start_soon(pool.run, record.launch, number, 0)
    assert sorted(map(str, record.launches())) == [str(n) for n in range(6)]
    assert record.events.count("turn") < 60


async def test_cancelled_while_it_waits_launches_nothing() -> None:
    record = Record()
    async with Stream() as one, Stream() as other, Stream() as third:
        one.enqueue_async(lambda _: burn(LONG))
        with anyio.move_on_after(0) as scope:
            await other.run(record.launch, 1, 0)
        assert scope.cancelled_caught
        await third.run(record.launch, 2, 0)
    assert record.events == [2]


async def test_stream_that_is_closed_while_the_call_waits() -> None:
    record = Record()
    async with Stream() as one, anyio.create_task_group() as tasks:
        other = Stream()

        async def close() -> None:
            other.close()

        one.enqueue_async(lambda _: burn(LONG))
        tasks.start_soon(close)
        with pytest.raises(StreamClosedError):
            await other.run(record.launch, 1, 0)
    assert record.events == []


@pytest.mark.parametrize("observed", [False, True])
async def test_tasks_of_a_pool_that_wait_for_their_turn_hold_no_stream(
    loop_kind: str, observed: bool, request: pytest.FixtureRequest
) -> None:
    """Others get one before they launch, and they launch in the order in which they came."""
    record = Record()
    if observed:
        request.addfinalizer(metrics.on_wait(lambda wait: None))
    async with StreamPool(4) as pool, anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(pool.run, record.launch, number, LONG)
        await until(lambda: len(record.launches()) > 0)
        async with pool.stream():
            assert len(record.launches()) < 6
    launches = [int(str(each)) for each in record.launches()]
    assert sorted(launches) == list(range(12))
    assert launches == list(range(12)) or loop_kind == "trio"  # where new tasks have no order


async def test_a_call_in_a_thread_does_not_wait_for_the_launches_of_the_loop() -> None:
    is_called, record = threading.Event(), Record()

    def launch(number: int) -> None:
        record.launch(number, LONG)
        assert len(record.launches()) < 12 or is_called.wait(10)

    async with StreamPool(2) as pool, anyio.create_task_group() as tasks:
        await pool.run_in_thread(burn, 0)  # which makes the thread
        for number in range(12):
            tasks.start_soon(pool.run, launch, number)
        await anyio.lowlevel.checkpoint()
        await pool.run_in_thread(is_called.set)


@pytest.mark.parametrize("end", ["turns", "close", "cancel"])
async def test_tasks_of_a_pool_that_wait_for_their_turn_count(end: str) -> None:
    """As tasks that are about to get a stream, or that wait for one, up to `max_waiting`."""
    numbers: list[tuple[int, int, int]] = []
    refused: list[type[Exception]] = []

    def launch() -> None:
        numbers.append((pool.idle, pool.lent, pool.waiting))
        if end == "close":
            pool.close()
        elif end == "cancel":
            tasks.cancel_scope.cancel()

    async def request() -> None:
        try:
            await pool.run(launch)
        except (PoolFullError, StreamClosedError) as error:
            refused.append(type(error))

    pool = StreamPool(2, max_waiting=1)
    async with Stream() as other, anyio.create_task_group() as tasks:
        other.enqueue_async(lambda _: burn(LONG)).cancel()
        for _ in range(4):
            tasks.start_soon(request)
    assert numbers[0] == (0, 2, 1)
    assert len(numbers) == (3 if end == "turns" else 1)
    assert refused == [PoolFullError] + 2 * [StreamClosedError] * (end == "close")
    assert (pool.lent, pool.waiting) == (0, 0)
    pool.close()


async def test_close_of_a_pool_tells_tasks_that_wait_for_their_turn_at_once() -> None:
    record, told = Record(), 0

    async def request() -> None:
        nonlocal told
        with pytest.raises(StreamClosedError):
            await pool.run(record.launch, 0, LONG)
        told += 1

    pool, others = StreamPool(2), [Stream() for _ in range(12)]
    async with anyio.create_task_group() as tasks:
        for stream in others:
            tasks.start_soon(stream.run, record.launch, 1, LONG)
        await until(lambda: len(record.launches()) > 0)
        for _ in range(3):
            tasks.start_soon(request)
        await until(lambda: pool.waiting == 1)
        pool.close()
        await until(lambda: told == 3)
        assert len(record.launches()) < 12
    assert 0 not in record.launches()
    for stream in others:
        stream.close()


def test_task_of_a_pool_in_a_loop_that_has_ended_counts_no_more() -> None:
    pool = StreamPool(1)
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[None]:
        async with Stream() as other:
            task = loop.create_task(pool.run(burn, 0))
            other.enqueue_async(lambda _: burn(LONG)).cancel()
            await asyncio.sleep(0)
            loop.stop()
            return task

    task = loop.run_until_complete(begin())
    loop.close()
    assert (pool.lent, pool.waiting) == (1, 0)
    asyncio.run(use_once(pool))
    end_lost_task(task)
    assert (pool.idle, pool.lent, pool.waiting) == (1, 0, 0)
    pool.close()


async def test_a_task_alone_launches_on() -> None:
    """It does not wait for a turn before each launch, only after a millisecond of them."""
    record = Record()
    await launch_all(record, [0], times=100)
    async with Stream() as stream:
        with Gate() as gate:
            gate.hold(stream)
            future = stream.completion_future()
            gate.open()
        await future
    assert len(record.launches()) == 100


def test_loop_that_is_closed_while_a_task_waits() -> None:
    record = Record()

    async def main() -> None:
        one = Stream()
        other = Stream()
        one.enqueue_async(lambda _: burn(LONG))
        task = asyncio.get_running_loop().create_task(other.run(record.launch, 1, 0))
        await asyncio.sleep(0)
        task.cancel()
        one.close()
        other.close()

    asyncio.run(main())
    assert record.events == []
