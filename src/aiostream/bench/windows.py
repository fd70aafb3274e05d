"""Many streams with a task each, for windows of time: late ends among mixed work, and how fair a loop stays.

`Mixed` shows the neighbours that suffer: short and long kernels side by side, and how late each
wait ends. `Fairness` shows starvation: tasks that get no turn, and a timer that fires late.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from aiostream.bench import stats
from aiostream.bench.runner import Row, Runner

Windows = list[dict[str, Any]]


@dataclass(frozen=True)
class _Crowd:
    """A window for each peer in each round.

    Attributes:
        loops: Where.
        peers: Who.
        streams: How many streams, and tasks.
        rounds: How many windows for each peer, in turn.
        window: Seconds.
        warm: Seconds before the window.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    streams: int = 64
    rounds: int = 10
    window: float = 0.5
    warm: float = 0.1

    @property
    def title(self) -> str:
        """What is measured."""
        raise NotImplementedError

    def seconds(self) -> float:
        """About how long it will take."""
        return len(self.loops) * len(self.peers) * self.rounds * (self.window + self.warm + 0.12)

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        found: dict[tuple[str, str], Windows] = {}
        for number in range(self.rounds):
            for loop in self.loops:
                request = self._request(loop, number)
                for peer, window in runner.take_turns(
                    loop, self.peers, number, request, self.window + self.warm
                ):
                    found.setdefault((loop, peer.name), []).append(window)
        for loop in self.loops:
            runner.close_pool(f"{self.title} on {loop}")
        return [self._row(loop, peer, windows) for (loop, peer), windows in found.items()]

    def _request(self, loop: str, number: int) -> dict[str, Any]:
        streams = {"pool": f"{self.title} on {loop}", "streams": self.streams}
        return {
            "turn": "window",
            **streams,
            "warm": self.warm,
            "window": self.window,
            "seed": number,
        }

    def _row(self, loop: str, peer: str, windows: Windows) -> Row:
        each = [self._of_window(window) for window in windows]
        rates = [window["per_second"] for window in each]
        low, high = stats.median_interval(rates)
        return {
            "loop": loop,
            "peer": peer,
            "streams": self.streams,
            "per_second": statistics.median(rates),
            "low": low,
            "high": high,
            "cores": round(statistics.median(window["cores"] for window in each), 4),
            "windows": each,
        }

    @staticmethod
    def _of_window(window: dict[str, Any]) -> dict[str, Any]:
        return {
            "per_second": round(sum(window["counts"]) * 1e9 / window["wall_ns"], 1),
            "cores": round(window["cpu_ns"] / window["wall_ns"], 4),
        }


@dataclass(frozen=True)
class Mixed(_Crowd):
    """Log-normal kernels of 0.2 to 20 ms, 2 ms at the median: how late each wait ends."""

    @property
    def title(self) -> str:
        """What is measured."""
        return f"mixed, {self.streams} x log-normal 0.2 to 20 ms"

    def _request(self, loop: str, number: int) -> dict[str, Any]:
        return {**super()._request(loop, number), "log_normal": True, "timer": False}

    def _row(self, loop: str, peer: str, windows: Windows) -> Row:
        late = [latency for window in windows for latency in window["latency_ns"]]
        row = super()._row(loop, peer, windows)
        return {"measure": "mixed", **row, "samples": len(late), **stats.tails(late)}

    @staticmethod
    def _of_window(window: dict[str, Any]) -> dict[str, Any]:
        return {**_Crowd._of_window(window), **stats.tails(window["latency_ns"])}


@dataclass(frozen=True)
class Fairness(_Crowd):
    """Empty kernels: how often each task gets its turn, and how late a timer of 1 ms beside them fires."""

    @property
    def title(self) -> str:
        """What is measured."""
        return f"fairness, {self.streams} x empty kernels beside a timer"

    def _request(self, loop: str, number: int) -> dict[str, Any]:
        return {**super()._request(loop, number), "log_normal": False, "timer": True}

    def _row(self, loop: str, peer: str, windows: Windows) -> Row:
        timer = [late for window in windows for late in window["timer_ns"]]
        row = super()._row(loop, peer, windows)
        each = row["windows"]
        return {
            "measure": "fairness",
            **row,
            "samples": len(windows),
            "fewest": min(window["fewest"] for window in each),
            "most": max(window["most"] for window in each),
            "ratio": statistics.median(window["ratio"] for window in each),
            "timer": {**stats.tails(timer), "samples": len(timer)},
            "timer_ns": timer,
        }

    @staticmethod
    def _of_window(window: dict[str, Any]) -> dict[str, Any]:
        fewest, most = min(window["counts"]), max(window["counts"])
        ratio = round(most / max(1, fewest), 3)  # a task without any counts as one with one
        return {**_Crowd._of_window(window), "fewest": fewest, "most": most, "ratio": ratio}
