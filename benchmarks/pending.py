"""What many waits at once cost: CPU with 100, 1,000 and 10,000 pending on 16 streams, and memory.

Nothing is launched between the waits: on an H200 launches and event records together fill a stream
from some hundreds on, and then a launch blocks until the stream moves.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks import stats
from benchmarks.lag import PLAIN
from benchmarks.measure import Found, Measure, Row, Turn
from benchmarks.peers import AUTO

if TYPE_CHECKING:
    from benchmarks.runner import Runner

STREAMS = 16
LONGEST = 5_000_000_000  # ns for which a stream is held at most
GUESS = 60_000  # ns to begin a wait; the first attempt finds out better


@dataclass(frozen=True, kw_only=True)
class Pending(Measure):
    """The process's CPU for each of many waits at once: task, wait, wake-up.

    Each stream is first held by a kernel that lasts until all waits have begun, half as long again
    as beginning them takes, so that what is done while nothing happens is in proportion to their
    number.

    Attributes:
        counts: How many pending at once.
        total: How many in all, for each count.
    """

    streams: int = STREAMS
    rounds: int = 7
    counts: tuple[int, ...] = (100, 1_000, 10_000)
    total: int = 70_000

    name = "pending"
    shares = True
    can_block = False
    QUICK: ClassVar[dict[str, Any]] = {"counts": (20, 200), "total": 200, "rounds": 1}

    @property
    def title(self) -> str:
        return f"cost per completion, {', '.join(f'{count:,}' for count in self.counts)} pending"

    def turn_seconds(self) -> float:
        return (self.total / self.rounds + max(self.counts)) * len(self.counts) * 60e-6

    async def turn(self, turn: Turn) -> Found:
        found = {}
        for count in self.counts:
            key = f"{turn.adapter.name} {turn.peer.name} {count}"
            times = max(1, self.total // self.rounds // count)
            hold = turn.notes.get(key)
            turn.notes[key], found[str(count)] = await _batches(turn, count, times, hold)
        return found

    def rows(self, peer: str, turns: list[Found]) -> Iterator[Row]:
        """A row for each count."""
        for count in self.counts:
            values = [value for turn in turns for value in turn[str(count)]]
            if values:
                yield {
                    "peer": peer,
                    "pending": count,
                    "streams": self.streams,
                    "samples": len(values),
                    "cpu_us": round(stats.median(values), 3),
                    "costs_us": [round(value, 3) for value in values],
                }


async def _batches(turn: Turn, count: int, times: int, hold: int | None) -> tuple[int, list[float]]:
    """So many batches; returns how long they were held, and the CPU for each wait in us."""
    if hold is None:
        _, _, spent = await _batch(turn, count, GUESS * count + 2_000_000)
        hold = round(1.5 * spent) + 200_000
    costs: list[float] = []
    for _ in range(3 * times + 10):  # a busy machine spoils several in a row
        cost, whole, spent = await _batch(turn, count, hold)
        if whole:
            costs.append(cost)
        else:  # the kernel was over before all waits had begun
            hold = round(1.5 * spent) + 200_000
            if hold > LONGEST:
                held = f"as long as their stream is held, {hold / 1e9:.1f} s"
                raise RuntimeError(f"beginning {count:,} waits takes {held}")
        if len(costs) == times:
            break
    return hold, costs


async def _batch(turn: Turn, count: int, hold: int) -> tuple[float, bool, int]:
    """CPU in us for each wait; whether all were pending at once; ns that it took to begin them."""
    begun = ended = 0
    whole, spent = False, 0
    waits = [turn.waiter(lane) for lane in turn.lanes]

    def one(at: int) -> Callable[[], Awaitable[None]]:
        wait = waits[at % len(waits)]

        async def task() -> None:
            nonlocal begun, ended, whole, spent
            begun += 1
            if begun == count:
                whole, spent = ended == 0, perf_counter_ns() - began
            await wait()
            ended += 1

        return task

    tasks = [one(at) for at in range(count)]
    for lane in turn.lanes:
        lane.spin(hold)
    began, cpu = perf_counter_ns(), process_time_ns()
    await turn.adapter.together(tasks)
    cpu = process_time_ns() - cpu
    return cpu / 1e3 / count, whole, spent


# ------------------------------------------------------------------------------------------ memory


@dataclass(frozen=True, kw_only=True)
class Memory(Measure):
    """Bytes for each pending wait, and for a plain future, by Python's allocators and resident.

    Each turn has a worker of its own, because freed memory would be taken again. The tasks with
    plain futures launch the same kernels.

    Attributes:
        count: How many waits are pending.
        rounds: How many processes of each kind.
        by: "traced" or "rss", in a turn.
        plain: Whether the turn's tasks wait for plain futures.
        patience: By how much longer than usual the streams are held in a turn.
    """

    streams: int = STREAMS
    count: int = 10_000
    rounds: int = 3
    by: str = ""
    plain: bool = False
    patience: int = 1

    name = "memory"
    QUICK: ClassVar[dict[str, Any]] = {"count": 200, "rounds": 1}

    @property
    def title(self) -> str:
        return f"memory of {self.count:,} pending waits"

    def turn_seconds(self) -> float:
        return 4 * (0.6 + self.count * 2.5e-4)

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        found: dict[tuple[bool, str], list[float]] = {}
        for _ in range(self.rounds):
            for by in ("traced", "rss"):
                for plain in (True, False):
                    found.setdefault((plain, by), []).append(self._alone(runner, by, plain))
        return [
            {
                "measure": self.name,
                "loop": "asyncio",
                "peer": PLAIN if plain else AUTO,
                "by": by,
                "pending": self.count,
                "samples": len(values),
                "bytes": round(stats.median(values), 1),
                "values": values,
            }
            for (plain, by), values in found.items()
        ]

    def _alone(self, runner: Runner, by: str, plain: bool) -> float:
        for patience in (1, 2, 4, 8):
            job = replace(self, by=by, plain=plain, patience=patience)
            found = runner.alone(job, "asyncio", AUTO)
            if found["bytes"] is not None:
                return float(found["bytes"])
        raise RuntimeError("some waits ended before the memory was read")

    async def turn(self, turn: Turn) -> Found:
        await self._batch(turn, 100, self._hold(100))  # loads what is loaded once
        if self.by == "traced":
            tracemalloc.start()
        try:
            hold = self.patience * self._hold(self.count)
            return {"bytes": await self._batch(turn, self.count, hold)}
        finally:
            tracemalloc.stop()

    def _hold(self, size: int) -> int:
        """Long enough, in ns, to begin so many; what is traced takes longer."""
        return 30_000_000 + size * (300_000 if self.by == "traced" else 150_000)

    def _used(self) -> int:
        gc.collect()
        if self.by == "traced":
            return tracemalloc.get_traced_memory()[0]
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def _batch(self, turn: Turn, size: int, hold: int) -> float | None:
        loop = asyncio.get_running_loop()
        waits = [lane.stream.synchronize_async for lane in turn.lanes]
        plain: dict[int, asyncio.Future[None]] = {}

        async def one(at: int) -> None:
            if self.plain:
                plain[at] = loop.create_future()
                await plain[at]
            else:
                await waits[at % len(waits)]()

        for lane in turn.lanes:
            lane.spin(hold)
        before = self._used()
        tasks = [loop.create_task(one(at)) for at in range(size)]
        await asyncio.sleep(0.01)  # all have begun, and the first ones have given up spinning
        after = self._used()
        pending = not any(task.done() for task in tasks)
        for future in plain.values():
            future.set_result(None)
        await asyncio.gather(*tasks)
        for lane in turn.lanes:
            lane.synchronize()
        return (after - before) / size if pending else None
