"""How late a wait ends, by pattern of work: one stream for each peer, one wait at a time.

The patterns run one after the other on the same stream, so each begins with what the one before it
has taught. A peer that learns when to look, and learns it wrongly, shows it in its tail.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiostream.bench import stats, turns
from aiostream.bench.runner import Row, Runner

FIRST_SEED = 3


@dataclass(frozen=True)
class Patterns:
    """Each round, each peer runs all patterns in order.

    Attributes:
        loops: Where.
        peers: Who.
        words: Words of which a pattern's name must have one; with none, all patterns are measured.
        waits: About how many waits of each pattern in a round.
        rounds: In how many turns.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    words: tuple[str, ...] = ()
    waits: int = 100
    rounds: int = 10

    @property
    def title(self) -> str:
        """What is measured."""
        return f"patterns, {', '.join(self.words)}" if self.words else "patterns"

    def seconds(self) -> float:
        """About how long it will take."""
        return len(self.loops) * len(self.peers) * self.rounds * self._turn_seconds()

    def _turn_seconds(self) -> float:
        lengths = [length for chosen in self._lengths(0).values() for length in chosen]
        return 0.06 + sum(lengths) / 1e9 + 0.0005 * len(lengths)

    def _lengths(self, number: int) -> dict[str, list[int]]:
        every = turns.patterns(FIRST_SEED + number, self.waits)
        return {name: found for name, found in every.items() if chosen(name, self.words)}

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
        lengths: dict[str, list[int]] = {}
        for number in range(self.rounds):
            now = self._lengths(number)
            for name, found in now.items():
                lengths.setdefault(name, []).extend(found)
            for loop in self.loops:
                request = {
                    "turn": "waits",
                    "pool": f"patterns on {loop}",
                    "streams": 1,
                    "lengths": list(now.items()),
                    "warm": next(iter(now.values()))[:2],
                    "seed": number,
                }
                for peer, found in runner.take_turns(
                    loop, self.peers, number, request, self._turn_seconds()
                ):
                    rounds.setdefault((loop, peer.name), []).append(found)
        for loop in self.loops:
            runner.close_pool(f"patterns on {loop}")
        return [
            self._row(
                loop,
                peer,
                name,
                statistics.fmean(lengths[name]),
                [found[name] for found in all_found],
            )
            for (loop, peer), all_found in rounds.items()
            for name in lengths
        ]

    @staticmethod
    def _row(loop: str, peer: str, name: str, mean: float, rounds: list[dict[str, Any]]) -> Row:
        late = [latency for found in rounds for latency in found["latency_ns"]]
        cpu, wall = (sum(found[key] for found in rounds) for key in ("cpu_ns", "wall_ns"))
        return {
            "measure": "patterns",
            "loop": loop,
            "peer": peer,
            "pattern": name,
            "mean_ns": round(mean),
            "samples": len(late),
            **stats.tails(late),
            "cpu_percent": round(100 * cpu / wall, 2),
            "cpu_shares": [round(found["cpu_ns"] / found["wall_ns"], 5) for found in rounds],
            "latency_ns": late,
        }


def chosen(name: str, words: Iterable[str]) -> bool:
    """Whether a pattern's name has one of the words, or there are none."""
    words = tuple(words)
    return not words or any(word in name for word in words)
