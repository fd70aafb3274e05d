"""How late a wait ends, by pattern of work: one stream for each peer, one wait at a time.

The patterns run one after the other on the same stream, so each begins with what the one before it
has taught. A peer that learns when to poll, and learns it wrongly, shows it in its tail.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from benchmarks import stats, work
from benchmarks.measure import Found, Measure, Row, Samples, Turn, merged, pause

FIRST_SEED = 3


@dataclass(frozen=True, kw_only=True)
class Patterns(Measure):
    """In each round each peer runs all patterns in order.

    Attributes:
        words: Words of which a pattern's name must have one; with none, all patterns are measured.
        waits: About how many waits of each pattern in a round.
    """

    words: tuple[str, ...] = ()
    waits: int = 100
    rounds: int = 10

    name = "patterns"
    QUICK: ClassVar[dict[str, Any]] = {"waits": 3, "rounds": 2}

    @property
    def title(self) -> str:
        return f"patterns, {', '.join(self.words)}" if self.words else "patterns"

    def turn_seconds(self) -> float:
        lengths = [length for chosen in self.lengths(0).values() for length in chosen]
        return 0.06 + sum(lengths) / 1e9 + 0.0005 * len(lengths)

    def lengths(self, number: int) -> dict[str, list[int]]:
        """The kernels' lengths of one round, by pattern."""
        return {
            name: found
            for name, found in work.patterns(FIRST_SEED + number, self.waits).items()
            if not self.words or any(word in name for word in self.words)
        }

    async def turn(self, turn: Turn) -> Found:
        lane, every, generator = (
            turn.lanes[0],
            self.lengths(turn.number),
            random.Random(turn.number),
        )
        wait, launch = turn.waiter(lane, yields=True), turn.launcher(lane)
        for length in next(iter(every.values()))[:2]:  # untimed
            launch(length)
            await wait()
        found = {}
        for name, lengths in every.items():
            samples = Samples()
            for length in lengths:
                await pause(turn.adapter, generator)
                await samples.take(launch, wait, length)
            found[name] = asdict(samples)
        return found

    def rows(self, peer: str, turns: list[Found]) -> Iterator[Row]:
        """A row for each pattern."""
        for name in turns[0]:
            rounds = [turn[name] for turn in turns]
            late = merged(rounds, "latency_ns")
            lengths = [n for number in range(self.rounds) for n in self.lengths(number)[name]]
            cpu, wall = (merged(rounds, key) for key in ("cpu_ns", "wall_ns"))
            yield {
                "peer": peer,
                "pattern": name,
                "mean_ns": round(statistics.fmean(lengths)),
                "samples": len(late),
                **stats.tails(late),
                "cpu_percent": round(100 * sum(cpu) / sum(wall), 2),
                "windows": [_of_round(found) for found in rounds],
            }


def _of_round(found: Found) -> Row:
    share = 100 * sum(found["cpu_ns"]) / sum(found["wall_ns"])
    return {**stats.tails(found["latency_ns"]), "cpu_percent": round(share, 2)}
