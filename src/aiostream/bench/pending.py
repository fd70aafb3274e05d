"""What a completion costs when many are pending: 100, 1,000 and 10,000 waits on 16 streams."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns

from aiostream.bench import gpu
from aiostream.bench.gpu import BenchStream
from aiostream.bench.loops import LoopAdapter
from aiostream.bench.peers import Peer
from aiostream.bench.runner import Row, Runner

STREAMS = 16
LONGEST = 5_000_000_000  # ns for which a stream is held at most
GUESS = 60_000  # ns to begin a wait; the first attempt finds out better


@dataclass(frozen=True)
class Pending:
    """The process's CPU for each of many waits at once: task, wait, wake-up.

    Nothing is launched between the waits: on an H200 launches and event records together fill a stream from some hundreds on,
    and then a launch blocks until the stream moves.

    Each stream is first held by a kernel that lasts until all waits have begun, half as long again as beginning them takes, so
    that what is done while nothing happens is in proportion to their number.

    Attributes:
        loops: Where.
        peers: Who.
        counts: How many pending at once.
        total: How many in all, for each count.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    counts: tuple[int, ...] = (100, 1_000, 10_000)
    total: int = 70_000

    @property
    def title(self) -> str:
        """What is measured."""
        return f"cost per completion, {', '.join(f'{count:,}' for count in self.counts)} pending"

    def seconds(self) -> float:
        """About how long it will take."""
        return (
            len(self.loops)
            * len(self.peers)
            * (self.total + max(self.counts))
            * len(self.counts)
            * 60e-6
        )

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        costs: dict[tuple[str, str, int], list[float]] = {}
        rounds = max(1, self.total // max(self.counts))
        holds: dict[tuple[str, str, int], int] = {}
        for number in range(rounds):
            for loop in self.loops:
                peers = [peer for peer in runner.taking_part(self.peers, loop) if not peer.blocks]
                bench_streams = {peer.name: runner.bench_streams(peer, STREAMS) for peer in peers}

                async def measure(
                    adapter: LoopAdapter,
                    peer: Peer,
                    bench_streams: dict[str, list[BenchStream]] = bench_streams,
                ) -> dict[int, list[float]]:
                    found = {}
                    for count in self.counts:
                        key = (adapter.name, peer.name, count)
                        times = max(1, self.total // rounds // count)
                        holds[key], found[count] = await _batches(
                            adapter, peer, bench_streams[peer.name], count, times, holds.get(key)
                        )
                    return found

                for peer, found in runner.each_in_turn(loop, peers, number, measure):
                    for count, values in found.items():
                        costs.setdefault((loop, peer.name, count), []).extend(values)
        return [self._row(*key, values) for key, values in costs.items() if values]

    def _row(self, loop: str, peer: str, count: int, values: list[float]) -> Row:
        return {
            "measure": "pending",
            "loop": loop,
            "peer": peer,
            "pending": count,
            "streams": STREAMS,
            "samples": len(values),
            "cpu_us": round(statistics.median(values), 3),
            "costs_us": [round(value, 3) for value in values],
        }


async def _batches(
    adapter: LoopAdapter,
    peer: Peer,
    bench_streams: Sequence[BenchStream],
    count: int,
    times: int,
    hold: int | None,
) -> tuple[int, list[float]]:
    """So many batches; returns how long they were held, and the CPU for each wait in us."""
    if hold is None:
        _, _, spent = await _batch(adapter, peer, bench_streams, count, GUESS * count + 2_000_000)
        hold = round(1.5 * spent) + 200_000
    costs: list[float] = []
    for _ in range(3 * times):
        cost, whole, spent = await _batch(adapter, peer, bench_streams, count, hold)
        if whole:
            costs.append(cost)
        else:  # the kernel was over before all waits had begun
            hold = round(1.5 * spent) + 200_000
            if hold > LONGEST:
                raise RuntimeError(
                    f"beginning {count:,} waits takes as long as their stream is held, {hold / 1e9:.1f} s"
                )
        if len(costs) == times:
            break
    return hold, costs


async def _batch(
    adapter: LoopAdapter, peer: Peer, bench_streams: Sequence[BenchStream], count: int, hold: int
) -> tuple[float, bool, int]:
    """CPU in us for each wait; whether all were pending at once; ns that it took to begin them."""
    begun = ended = 0
    whole, spent = False, 0
    waits = [peer.waiter(adapter, bench_stream) for bench_stream in bench_streams]

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
    with gpu.quiet():
        for bench_stream in bench_streams:
            bench_stream.spin(hold)
        began, cpu = perf_counter_ns(), process_time_ns()
        await adapter.together(tasks)
        cpu = process_time_ns() - cpu
    return cpu / 1e3 / count, whole, spent
