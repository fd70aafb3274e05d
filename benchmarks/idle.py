"""How long the GPU stands idle, on the awaited stream, because a task waits.

A kernel, a stamp of the GPU's clock, the wait, and another stamp, all enqueued while the kernel
still runs, so that the GPU never waits for a launch. What lies between the stamps with the wait,
less what lies between them without, is what the wait adds. The second stamp is launched in the very
step in which the wait begins: the measure drives its coroutine by hand up to the point where it
first suspends.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

from benchmarks import lanes, stats
from benchmarks.measure import Found, Measure, Row, Turn, merged
from benchmarks.work import MS, duration


@dataclass(frozen=True, kw_only=True)
class Idle(Measure):
    """The gap between two stamps, with a wait and without in turn.

    Attributes:
        length: The kernel's length in ns: by how long it takes, one stage of waiting or another
            sees its end.
        samples: How many for each peer.
        busy: Whether another Python thread computes.
    """

    length: int
    samples: int = 100
    rounds: int = 5
    busy: bool = False

    name = "idle"
    shares = True
    can_block = False  # a task that blocks its loop launches nothing behind the wait
    QUICK: ClassVar[dict[str, Any]] = {"samples": 4, "rounds": 1}

    @property
    def title(self) -> str:
        return f"GPU idle added after {duration(self.length)}{', Python busy' if self.busy else ''}"

    @property
    def long(self) -> bool:
        return self.length > MS

    def turn_seconds(self) -> float:
        each = 2 * self.length / 1e9 + (0.08 if self.busy else 0.0005)
        return self.samples / self.rounds * each + 0.02

    async def turn(self, turn: Turn) -> Found:
        found: dict[str, list[int]] = {"with_ns": [], "without_ns": [], "late": []}
        lane, wait = turn.lanes[0], turn.waiter(turn.lanes[0])
        with lanes.pinned(2) as words, lanes.computing(self.busy):
            address = ctypes.addressof(words)
            for number in range(2 * -(-self.samples // self.rounds) + 2):
                waits = bool(number % 2)
                launched = 0

                def behind() -> None:
                    nonlocal launched
                    lane.stamp(address + 8)
                    launched = perf_counter_ns()

                await turn.adapter.checkpoint()
                began = perf_counter_ns()
                lane.spin(self.length)
                lane.stamp(address)
                if waits:
                    await _with_step(wait(), behind)
                else:
                    behind()
                await turn.adapter.in_thread(lane.synchronize)
                if number < 2:
                    continue  # the first of each warms up
                if launched - began > self.length:  # the GPU may have waited for the launch
                    found["late"].append(launched - began)
                else:
                    found["with_ns" if waits else "without_ns"].append(words[1] - words[0])
        return found

    def row(self, turns: list[Found]) -> Row:
        """What the wait adds, with its interval."""
        gaps, without = merged(turns, "with_ns"), merged(turns, "without_ns")
        row: Row = {
            "length_ns": self.length,
            "python_busy": self.busy,
            "samples": len(gaps),
            "late": len(merged(turns, "late")),
            "with_ns": gaps,
            "without_ns": without,
        }
        if gaps and without:
            low, high = stats.bootstrap(stats.difference, gaps, without)
            row.update(
                added_us=round(float(stats.difference(gaps, without)) / 1e3, 2),
                low_us=round(low / 1e3, 2),
                high_us=round(high / 1e3, 2),
                without_us=round(stats.median(without) / 1e3, 2),
            )
        return row


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
