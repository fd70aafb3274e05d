"""From a kernel's end to the resumption of the task that awaits it, and the CPU meanwhile."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from benchmarks import stats, work
from benchmarks.measure import Found, Measure, Row, Samples, Turn, merged, pause
from benchmarks.work import MS, duration


@dataclass(frozen=True, kw_only=True)
class Latency(Measure):
    """Waits for one kernel at a time.

    Attributes:
        length: The kernel's length in ns; 0 for unpredictable ones.
        load: One of `work.LOADS`; "fresh" is steady, with a new stream for each wait, of which
            nothing is known.
        samples: How many for each peer.
        warm: How many untimed waits before the first round; the later ones have two.
    """

    length: int
    load: str = "steady"
    samples: int = 100
    rounds: int = 5
    warm: int = 12

    name = "latency"
    QUICK: ClassVar[dict[str, Any]] = {"samples": 6, "rounds": 2, "warm": 1}

    @property
    def title(self) -> str:
        steady = f"{duration(self.length)} {self.load}"
        what = "unpredictable lengths" if self.load == "unpredictable" else steady
        return f"latency, {what}"

    @property
    def long(self) -> bool:
        return self.length > MS or self.load == "unpredictable"

    def turn_seconds(self) -> float:
        waits = self.samples + (0 if self.load == "fresh" else self.warm + 2 * self.rounds)
        each = work.mean_length(self.load, self.length) / 1e9 + 0.0005
        return waits * each / self.rounds + 0.03

    async def turn(self, turn: Turn) -> Found:
        share, fresh = -(-self.samples // self.rounds), self.load == "fresh"
        every = work.loads(self.load, self.length, self.samples)
        lengths = every[turn.number * share : (turn.number + 1) * share]
        lane, samples, generator = turn.lanes[0], Samples(), random.Random(len(lengths))
        wait, launch = turn.waiter(lane), turn.launcher(lane)
        # Unpredictable work warms up on lengths of its own kind: the reversed ones are such,
        # and are not those that come next.
        warm = 0 if fresh or not lengths else 2 if turn.number else self.warm
        for number in range(warm):
            launch(lengths[-1 - number % len(lengths)])
            await wait()
        for length in lengths:
            if fresh:  # made and closed while nothing is in flight
                lane = turn.new_lane()
                wait, launch = turn.waiter(lane), turn.launcher(lane)
            await pause(turn.adapter, generator)
            await samples.take(launch, wait, length)
            if fresh:
                lane.close()
        return asdict(samples)

    def row(self, turns: list[Found]) -> Row:
        """The median and its interval, the p99, and the share of a core."""
        latency, cpu, wall = (merged(turns, key) for key in ("latency_ns", "cpu_ns", "wall_ns"))
        low, high = stats.median_interval(latency)
        return {
            "load": self.load,
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
