"""Completions per second, and what each costs: a task for each stream launches a kernel and awaits it, again and again."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns

from aiostream.bench import gpu, stats
from aiostream.bench.gpu import BenchStream
from aiostream.bench.latency import duration
from aiostream.bench.loops import LoopAdapter
from aiostream.bench.peers import Peer
from aiostream.bench.runner import Row, Runner

LONG = 1_200_000_000  # ns: the neighbour that keeps on


@dataclass(frozen=True)
class Throughput:
    """Busy streams, for a window of time.

    Attributes:
        loops: Where.
        peers: Who.
        streams: How many streams, and tasks.
        length: The kernels' length in ns.
        rounds: How many windows for each peer, in turn.
        window: Seconds.
        warm: Seconds before the window.
        neighbours: How many more streams have a kernel of 1.2 s awaited on them meanwhile.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    streams: int
    length: int
    rounds: int = 3
    window: float = 0.3
    warm: float = 0.1
    neighbours: int = 0

    @property
    def title(self) -> str:
        """What is measured."""
        beside = f" beside {self.neighbours} of 1.2 s" if self.neighbours else ""
        return f"throughput, {self.streams} x {duration(self.length)}{beside}"

    def seconds(self) -> float:
        """About how long it will take."""
        each = (
            max(self.window + self.warm, LONG / 1e9 if self.neighbours else 0)
            + 0.08
            + self.length / 1e9
        )
        return len(self.loops) * len(self.peers) * self.rounds * each

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        rounds: dict[tuple[str, str], list[Row]] = {}
        for number in range(self.rounds):
            for loop in self.loops:
                peers = runner.taking_part(self.peers, loop)
                bench_streams = {
                    peer.name: runner.bench_streams(peer, self.streams + self.neighbours)
                    for peer in peers
                }

                async def measure(
                    adapter: LoopAdapter,
                    peer: Peer,
                    bench_streams: dict[str, list[BenchStream]] = bench_streams,
                ) -> Row:
                    return await self._window(adapter, peer, bench_streams[peer.name])

                for peer, window in runner.each_in_turn(loop, peers, number, measure):
                    rounds.setdefault((loop, peer.name), []).append(window)
        return [self._row(loop, name, windows) for (loop, name), windows in rounds.items()]

    async def _window(
        self, adapter: LoopAdapter, peer: Peer, bench_streams: Sequence[BenchStream]
    ) -> Row:
        counts = [0] * self.streams
        # No peer need ever let the loop go on by itself, so the tasks look at the clock too.
        limit = perf_counter_ns() + round((self.warm + 2 * self.window + 1) * 1e9)
        if peer.blocks:  # the task that counts gets its turn after each task of the others
            limit += 4 * self.streams * self.length
        stop = False

        def busy(at: int) -> Callable[[], Awaitable[None]]:
            bench_stream, length, blocks = bench_streams[at], self.length, peer.blocks
            wait = peer.waiter(adapter, bench_stream)

            async def task() -> None:
                while not stop and perf_counter_ns() < limit:
                    bench_stream.spin(length)
                    await wait()
                    counts[at] += 1
                    if blocks:
                        await adapter.checkpoint()

            return task

        def long(bench_stream: BenchStream) -> Callable[[], Awaitable[None]]:
            wait = peer.waiter(adapter, bench_stream)

            async def task() -> None:
                bench_stream.spin(LONG)
                await wait()

            return task

        result: Row = {}

        async def watch() -> None:
            nonlocal stop
            await adapter.sleep(self.warm)
            began, cpu, count = perf_counter_ns(), process_time_ns(), sum(counts)
            await adapter.sleep(self.window)
            wall, cpu, count = (
                perf_counter_ns() - began,
                process_time_ns() - cpu,
                sum(counts) - count,
            )
            stop = True
            result.update(
                per_second=round(count * 1e9 / wall, 1), cores=round(cpu / wall, 4), count=count
            )
            result["cpu_us"] = round(cpu / 1e3 / count, 3) if count else None

        with gpu.quiet():
            neighbours = [long(bench_stream) for bench_stream in bench_streams[self.streams :]]
            await adapter.together([*neighbours, *(busy(at) for at in range(self.streams)), watch])
        return result

    def _row(self, loop: str, peer: str, windows: list[Row]) -> Row:
        rates = [window["per_second"] for window in windows]
        low, high = stats.median_interval(rates)
        costs = [window["cpu_us"] for window in windows if window["cpu_us"] is not None]
        return {
            "measure": "throughput",
            "loop": loop,
            "peer": peer,
            "streams": self.streams,
            "length_ns": self.length,
            "neighbours": self.neighbours,
            "samples": len(windows),
            "per_second": statistics.median(rates),
            "low": low,
            "high": high,
            "cpu_us": statistics.median(costs) if costs else None,
            "cores": statistics.median(window["cores"] for window in windows),
            "windows": windows,
        }
