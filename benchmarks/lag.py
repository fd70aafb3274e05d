"""How late a loop full of completions comes to something else, and how late without a GPU.

A timer descriptor fires every millisecond, and what is measured is from its instant to the task
that waits for it. At the same time run 64 streams, each with its task. Their resumptions are noted,
and the same pattern is then played back to as many tasks that wait for plain futures of the loop.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, ClassVar

from benchmarks import stats
from benchmarks.lanes import Lane
from benchmarks.loops import LoopAdapter, Timer
from benchmarks.measure import Found, Measure, Row, Turn, merged
from benchmarks.work import MS, duration

PLAIN = "plain futures"
TICK = MS  # ns
Task = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Lag(Measure):
    """The lag of a loop with busy streams. The first peer's wake-ups are played back without a GPU.

    Attributes:
        streams: How many streams.
        length: The kernels' length in ns.
        window: Seconds.
        warm: Seconds before the window.
    """

    streams: int = 64
    length: int = 5 * MS
    rounds: int = 3
    window: float = 1.0
    warm: float = 0.2

    name = "lag"
    shares = True
    QUICK: ClassVar[dict[str, Any]] = {"streams": 8, "rounds": 1, "window": 0.1, "warm": 0.02}

    @property
    def title(self) -> str:
        return f"loop lag beside {self.streams} x {duration(self.length)}"

    def turn_seconds(self) -> float:
        return (self.window + self.warm + 0.1) * (1 + 1 / max(1, len(self.peers)))

    async def turn(self, turn: Turn) -> Found:
        beside = _Window(turn.adapter, self.warm, self.window)
        await _beside_streams(turn, beside, self.length)
        windows = {"": beside}
        if turn.peer.name == self.peers[0]:
            windows[PLAIN] = _Window(turn.adapter, self.warm, self.window)
            await _beside_futures(turn, windows[PLAIN], beside.resumed)
        return {
            name: {"lag_ns": window.lags, "count": len(window.resumed)}
            for name, window in windows.items()
        }

    def rows(self, peer: str, turns: list[Found]) -> Iterator[Row]:
        """A row of the peer, and of what was played back."""
        for name in turns[0]:
            windows = [turn[name] for turn in turns]
            lags, tails = merged(windows, "lag_ns"), stats.tails(merged(windows, "lag_ns"))
            seconds = self.rounds * (self.window + self.warm)
            yield {
                "peer": name or peer,
                "streams": self.streams,
                "length_ns": self.length,
                "samples": len(lags),
                "wake_ups_per_second": round(sum(each["count"] for each in windows) / seconds),
                **{key: tails[key] for key in ("p50_us", "p99_us", "p999_us")},
                "lag_ns": lags,
            }


async def _beside_streams(turn: Turn, window: _Window, length: int) -> None:
    def busy(lane: Lane) -> Task:
        wait = turn.waiter(lane, yields=True)

        async def task() -> None:
            while not window.stop:
                lane.spin(length)
                await wait()
                window.resumed.append(monotonic_ns())

        return task

    await window.run(*map(busy, turn.lanes))


async def _beside_futures(turn: Turn, window: _Window, pattern: list[int]) -> None:
    adapter = turn.adapter
    waiting: collections.deque[Callable[[], Any]] = collections.deque()

    async def task() -> None:
        while not window.stop:
            done, wake = adapter.plain()
            waiting.append(wake)
            await done
            window.resumed.append(monotonic_ns())

    async def player() -> None:
        offset = monotonic_ns() + TICK - pattern[0]
        due = collections.deque(when + offset for when in pattern)
        with Timer() as timer:
            while due and not window.stop:
                timer.set(due[0])
                await adapter.readable(timer.descriptor)
                timer.take()
                now = monotonic_ns()
                while due and due[0] <= now:
                    due.popleft()
                    if waiting:
                        waiting.popleft()()

    async def end() -> None:
        while not window.stop:
            await adapter.sleep(0.01)
        while waiting:
            waiting.popleft()()

    await window.run(*[task] * len(turn.lanes), player, end)


@dataclass
class _Window:
    """What one window saw; times in ns of the monotonic clock."""

    adapter: LoopAdapter
    warm: float
    length: float
    resumed: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    recording: bool = False
    stop: bool = False

    async def run(self, *tasks: Task) -> None:
        """Runs tasks next to the two that measure."""
        await self.adapter.together([*tasks, self._clock, self._ticks])

    async def _clock(self) -> None:
        await self.adapter.sleep(self.warm)
        self.recording = True
        await self.adapter.sleep(self.length)
        self.recording, self.stop = False, True

    async def _ticks(self) -> None:
        with Timer() as timer:
            due = monotonic_ns() + TICK
            timer.set(due, TICK)
            while not self.stop:
                await self.adapter.readable(timer.descriptor)
                fired = timer.take()  # before the clock is read, or one might fire in between
                now = monotonic_ns()
                for _ in range(fired):
                    if self.recording:
                        self.lags.append(now - due)
                    due += TICK
