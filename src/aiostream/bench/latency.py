"""From the end of a kernel to the resumption of the task that awaits it, and the process's CPU meanwhile.

Latency is host time from launch to resumption less the kernel's own length, so the launch (some 3 us) and the GPU's own start
are in it, the same for every peer. CPU is the process's, all threads, while the wait lasts.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any

from aiostream.bench import gpu, stats
from aiostream.bench.gpu import BenchStream
from aiostream.bench.loops import LoopAdapter
from aiostream.bench.peers import Peer
from aiostream.bench.runner import Row, Runner
from aiostream.bench.turns import pause

UNPREDICTABLE = (50_000, 50_000_000)  # ns: log-uniform between
LOADS = ("steady", "varying", "unpredictable", "fresh")


@dataclass(frozen=True)
class Latency:
    """Waits for one kernel at a time.

    Attributes:
        loops: Where.
        peers: Who.
        length: The kernel's length in ns; 0 for unpredictable ones.
        load: "steady"; "varying" by +-10 %; "unpredictable"; "fresh": steady, with a new stream for each wait, of which nothing
            is known.
        samples: How many for each peer.
        rounds: In how many turns.
        warm: How many untimed waits before the first round; the later ones have two.
        busy: Whether another Python thread computes.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    length: int
    load: str = "steady"
    samples: int = 100
    rounds: int = 5
    warm: int = 12
    busy: bool = False

    @property
    def title(self) -> str:
        """What is measured."""
        what = (
            "unpredictable lengths"
            if self.load == "unpredictable"
            else f"{duration(self.length)} {self.load}"
        )
        return f"latency, {what}{', Python busy' if self.busy else ''}"

    def seconds(self) -> float:
        """About how long it will take."""
        low, high = UNPREDICTABLE
        mean = (high - low) / math.log(high / low) if self.load == "unpredictable" else self.length
        waits = self.samples + (0 if self.load == "fresh" else self.warm + 2 * self.rounds)
        each = mean / 1e9 + (0.012 if self.busy else 0.0005)
        return len(self.loops) * len(self.peers) * (waits * each + self.rounds * 0.03)

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        lengths = self._lengths()
        share = -(-len(lengths) // self.rounds)
        taken: dict[tuple[str, str], _Samples] = {}
        bench_streams: dict[tuple[str, str], BenchStream] = {}
        with gpu.computing(self.busy):
            for number in range(self.rounds):
                for loop in self.loops:
                    peers = runner.taking_part(self.peers, loop)
                    for peer in peers:
                        if (loop, peer.name) not in bench_streams:
                            bench_streams[loop, peer.name] = BenchStream(peer.new_stream())
                    now = lengths[number * share : (number + 1) * share]
                    measure = _measure(self, bench_streams, now, first=number == 0)
                    for peer, samples in runner.each_in_turn(loop, peers, number, measure):
                        taken.setdefault((loop, peer.name), _Samples()).extend(samples)
        for bench_stream in bench_streams.values():
            bench_stream.close()
        return [self._row(loop, name, samples) for (loop, name), samples in taken.items()]

    def _lengths(self) -> list[int]:
        """The same for every peer."""
        generator = random.Random(self.length + 1)
        if self.load == "varying":
            return [round(self.length * generator.uniform(0.9, 1.1)) for _ in range(self.samples)]
        if self.load == "unpredictable":
            low, high = (math.log(limit) for limit in UNPREDICTABLE)
            return [round(math.exp(generator.uniform(low, high))) for _ in range(self.samples)]
        return [self.length] * self.samples

    def _row(self, loop: str, peer: str, samples: _Samples) -> Row:
        micro = [latency / 1e3 for latency in samples.latency]
        low, high = stats.median_interval(micro)
        return {
            "measure": "latency",
            "loop": loop,
            "peer": peer,
            "load": self.load,
            "length_ns": self.length,
            "python_busy": self.busy,
            "samples": len(micro),
            "median_us": round(statistics.median(micro), 2),
            "low_us": round(low, 2),
            "high_us": round(high, 2),
            "p99_us": round(stats.percentile(micro, 99), 2),
            "cpu_percent": round(100 * sum(samples.cpu) / sum(samples.wall), 2),
            "wall_ns": sum(samples.wall),
            "latency_ns": samples.latency,
            "cpu_ns": samples.cpu,
        }


class _Samples:
    """All in ns."""

    def __init__(self) -> None:
        self.latency: list[int] = []
        self.cpu: list[int] = []
        self.wall: list[int] = []

    def extend(self, others: _Samples) -> None:
        """Adds another round's."""
        self.latency += others.latency
        self.cpu += others.cpu
        self.wall += others.wall


def _measure(
    job: Latency,
    bench_streams: dict[tuple[str, str], BenchStream],
    lengths: list[int],
    *,
    first: bool,
) -> Callable[[LoopAdapter, Peer], Any]:
    async def measure(adapter: LoopAdapter, peer: Peer) -> _Samples:
        if job.load == "fresh":
            return await _fresh(adapter, peer, lengths)
        bench_stream = bench_streams[adapter.name, peer.name]
        wait = peer.waiter(adapter, bench_stream)
        # Unpredictable work warms up on lengths of its own kind; the reversed ones are such, and
        # are not those that come next.
        warm = (job.warm if first else 2) if lengths else 0
        for number in range(warm):
            bench_stream.spin(lengths[-1 - number % len(lengths)])
            await wait()
        samples, generator = _Samples(), random.Random(len(lengths))
        with gpu.quiet():
            for length in lengths:
                pause(generator)
                await adapter.checkpoint()
                await _sample(samples, bench_stream, wait, length)
        return samples

    return measure


async def _sample(
    samples: _Samples, bench_stream: BenchStream, wait: Callable[[], Any], length: int
) -> None:
    cpu = process_time_ns()
    began = perf_counter_ns()
    bench_stream.spin(length)
    await wait()
    wall = perf_counter_ns() - began
    samples.cpu.append(process_time_ns() - cpu)
    samples.wall.append(wall)
    samples.latency.append(wall - length)


async def _fresh(adapter: LoopAdapter, peer: Peer, lengths: list[int]) -> _Samples:
    """A new stream for each wait, made and closed while nothing is in flight."""
    samples, generator = _Samples(), random.Random(len(lengths))
    with gpu.quiet():
        for length in lengths:
            bench_stream = BenchStream(peer.new_stream())
            wait = peer.waiter(adapter, bench_stream)
            pause(generator)
            await adapter.checkpoint()
            await _sample(samples, bench_stream, wait, length)
            bench_stream.close()
    return samples


def duration(nanoseconds: int) -> str:
    """`300 us`, `5 ms`."""
    if nanoseconds and nanoseconds % 1_000_000 == 0:
        return f"{nanoseconds // 1_000_000} ms"
    return f"{nanoseconds / 1000:g} us" if nanoseconds else "0"
