"""From a kernel's end to the resumption of the task that awaits it, and the CPU meanwhile."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from benchmarks import stats
from benchmarks.measure import Found, Measure, Row, Samples, Turn, merged, pause
from benchmarks.work import duration


@dataclass(frozen=True, kw_only=True)
class Latency(Measure):
    """Waits for one kernel at a time.

    Attributes:
        length: The kernel's length in ns.
        samples: How many for each peer.
        warm: How many untimed waits before the first round; the later ones have two.
    """

    length: int
    samples: int = 100
    rounds: int = 5
    warm: int = 12

    name = "latency"
    QUICK: ClassVar[dict[str, Any]] = {"samples": 6, "rounds": 2, "warm": 1}

    @property
    def title(self) -> str:
        return f"latency, {duration(self.length)}"

    def turn_seconds(self) -> float:
        waits = self.samples + self.warm + 2 * self.rounds
        return waits * (self.length / 1e9 + 0.0005) / self.rounds + 0.03

    async def turn(self, turn: Turn) -> Found:
        share = -(-self.samples // self.rounds)
        lane, samples, generator = turn.lanes[0], Samples(), random.Random(share)
        wait, launch = turn.waiter(lane), turn.launcher(lane)
        for _ in range(2 if turn.number else self.warm):
            launch(self.length)
            await wait()
        for _ in range(share):
            await pause(turn.adapter, generator)
            await samples.take(launch, wait, self.length)
        return asdict(samples)

    def row(self, turns: list[Found]) -> Row:
        """The median and its interval, the p99, and the share of a core."""
        latency, cpu, wall = (merged(turns, key) for key in ("latency_ns", "cpu_ns", "wall_ns"))
        low, high = stats.median_interval(latency)
        return {
            "length_ns": self.length,
            "samples": len(latency),
            "median_us": round(stats.median(latency) / 1e3, 2),
            "low_us": round(low / 1e3, 2),
            "high_us": round(high / 1e3, 2),
            "p99_us": round(float(stats.percentile(latency, 99)) / 1e3, 2),
            "cpu_percent": round(100 * sum(cpu) / sum(wall), 2),
            "wall_ns": sum(wall),
            "latency_ns": latency,
            "cpu_ns": cpu,
        }
