"""How long the GPU stands idle, on the awaited stream, because somebody waits.

A kernel, a stamp of the GPU's clock, the wait, and another stamp, all enqueued while the kernel still runs, so that the GPU
never waits for a launch. What lies between the stamps with the wait, less what lies between them without, is what the wait
adds. The second stamp is launched in the very step in which the wait begins, by driving its coroutine by hand up to the point
where it first suspends.
"""

from __future__ import annotations

import ctypes
import statistics
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from aiostream.bench import gpu, stats
from aiostream.bench.gpu import BenchStream
from aiostream.bench.latency import duration
from aiostream.bench.loops import LoopAdapter
from aiostream.bench.peers import Peer
from aiostream.bench.runner import Row, Runner

NOBODY = "no wait"


@dataclass(frozen=True)
class Idle:
    """The gap between two stamps.

    Attributes:
        loops: Where.
        peers: Who.
        length: The kernel's length in ns: by how long it takes, one stage of waiting or another sees its end.
        samples: How many for each peer.
        rounds: In how many turns.
        busy: Whether another Python thread computes.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    length: int
    samples: int = 100
    rounds: int = 5
    busy: bool = False

    @property
    def title(self) -> str:
        """What is measured."""
        return f"GPU idle added after {duration(self.length)}{', Python busy' if self.busy else ''}"

    def seconds(self) -> float:
        """About how long it will take."""
        each = 2 * self.length / 1e9 + (0.08 if self.busy else 0.0005)
        return len(self.loops) * len(self.peers) * (self.samples * each + self.rounds * 0.02)

    def run(self, runner: Runner) -> list[Row]:
        """Measures, and the gap without a wait in turn with each wait's."""
        share = -(-self.samples // self.rounds)
        gaps: dict[tuple[str, str], dict[str, list[int]]] = {}
        with gpu.pinned(2) as words, gpu.computing(self.busy):

            async def measure(adapter: LoopAdapter, peer: Peer) -> dict[str, list[int]]:
                return await self._round(
                    adapter, peer, runner.bench_streams(peer, 1)[0], words, share
                )

            for number in range(self.rounds):
                for loop in self.loops:
                    # A task that blocks its loop launches nothing behind the wait.
                    peers = [
                        peer for peer in runner.taking_part(self.peers, loop) if not peer.blocks
                    ]
                    for peer in peers:
                        runner.bench_streams(peer, 1)
                    for peer, found in runner.each_in_turn(loop, peers, number, measure):
                        known = gaps.setdefault(
                            (loop, peer.name), {"with": [], "without": [], "late": []}
                        )
                        for key, values in found.items():
                            known[key] += values
        return [self._row(loop, name, found) for (loop, name), found in gaps.items()]

    async def _round(
        self, adapter: LoopAdapter, peer: Peer, bench_stream: BenchStream, words: Any, count: int
    ) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"with": [], "without": [], "late": []}
        address = ctypes.addressof(words)
        wait = peer.waiter(adapter, bench_stream)
        for number in range(2 * count + 2):
            waits = bool(number % 2)
            launched = 0

            def behind() -> None:
                nonlocal launched
                bench_stream.stamp(address + 8)
                launched = perf_counter_ns()

            await adapter.checkpoint()
            began = perf_counter_ns()
            bench_stream.spin(self.length)
            bench_stream.stamp(address)
            if waits:
                await _with_step(wait(), behind)
            else:
                behind()
            await adapter.in_thread(bench_stream.synchronize)
            if number < 2:
                continue  # the first of each warms up
            if launched - began > self.length:
                found["late"].append(launched - began)  # the GPU may have waited for the launch
            else:
                found["with" if waits else "without"].append(words[1] - words[0])
        return found

    def _row(self, loop: str, peer: str, found: dict[str, list[int]]) -> Row:
        row: Row = {
            "measure": "idle",
            "loop": loop,
            "peer": peer,
            "length_ns": self.length,
            "python_busy": self.busy,
            "samples": len(found["with"]),
            "late": len(found["late"]),
            "with_ns": found["with"],
            "without_ns": found["without"],
        }
        if found["with"] and found["without"]:
            low, high = stats.bootstrap(added, found["with"], found["without"])
            row.update(
                added_us=round(added(found["with"], found["without"]), 2),
                low_us=round(low, 2),
                high_us=round(high, 2),
                without_us=round(statistics.median(found["without"]) / 1e3, 2),
            )
        return row


def added(gaps: Sequence[float], gaps_without: Sequence[float]) -> float:
    """What the wait adds, in us, of gaps in ns."""
    return (statistics.median(gaps) - statistics.median(gaps_without)) / 1e3


@types.coroutine
def _with_step(awaitable: Awaitable[Any], step: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Awaits, and calls `step` when the awaited first suspends, before the loop gets its turn."""
    iterator: Any = awaitable.__await__()
    try:
        asked = next(iterator)
    except StopIteration:
        step()
        return
    step()
    while True:
        try:
            answer = yield asked
        except BaseException as error:
            resume, argument = iterator.throw, error
        else:
            resume, argument = iterator.send, answer
        try:
            asked = resume(argument)
        except StopIteration:
            return
