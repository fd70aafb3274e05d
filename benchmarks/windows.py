"""Many streams with a task each, for windows of time.

`Mixed` shows the neighbours that suffer: short
and long kernels side by side, and how late each wait ends. `Fairness` shows starvation: tasks that
get no turn, and a timer that fires late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any, ClassVar

from benchmarks import stats, work
from benchmarks.measure import Found, Measure, Row, Turn, merged
from benchmarks.work import MS, duration

Task = Callable[[], Awaitable[None]]


class Window:
    """What one window sees, while the tasks run.

    They look at the clock too, because no peer need ever let the loop go on by itself.
    """

    def __init__(self, turn: Turn, warm: float, length: float) -> None:
        self._turn, self._warm, self._length = turn, warm, length
        self._limit = perf_counter_ns() + round((warm + 2 * length + 1) * 1e9)
        self._stop = False
        self.recording = False
        self.counts = [0] * len(turn.lanes)
        self.late: list[int] = []
        self.timer: list[int] = []
        self.used: Found = {}

    def open(self) -> bool:
        """Whether the tasks go on."""
        return not self._stop and perf_counter_ns() < self._limit

    async def watch(self) -> None:
        """Records for the window's length after the warm-up."""
        await self._turn.adapter.sleep(self._warm)
        self.recording = True
        began, cpu, thread = perf_counter_ns(), process_time_ns(), thread_time_ns()
        await self._turn.adapter.sleep(self._length)
        self.used = {
            "wall_ns": perf_counter_ns() - began,
            "cpu_ns": process_time_ns() - cpu,
            "thread_ns": thread_time_ns() - thread,  # the loop's
        }
        self.recording, self._stop = False, True

    def timing(self, at: int, lengths: list[int]) -> Task:
        """A task that launches and awaits on one lane, and notes how late each wait ends."""
        lane, counts, late = self._turn.lanes[at], self.counts, self.late
        launch, wait = self._turn.launcher(lane), self._turn.waiter(lane, yields=True)
        is_open = self.open

        async def task() -> None:
            number = 0
            while is_open():
                length = lengths[number % len(lengths)]
                number += 1
                began = perf_counter_ns()
                launch(length)
                await wait()
                if self.recording:
                    counts[at] += 1
                    late.append(perf_counter_ns() - began - length)

        return task

    async def ask_for_a_millisecond(self) -> None:
        """Sleeps for 1 ms again and again, and notes how late the timer is."""
        while not self._stop:
            recording, began = self.recording, perf_counter_ns()
            await self._turn.adapter.sleep(0.001)
            if recording:
                self.timer.append(perf_counter_ns() - began - MS)

    async def run(self, *tasks: Task) -> Found:
        """Runs the tasks for the window, and returns what it has seen."""
        await self._turn.adapter.together([*tasks, self.watch])
        return {
            **self.used,
            "counts": self.counts,
            "latency_ns": self.late,
            "timer_ns": self.timer,
        }


@dataclass(frozen=True, kw_only=True)
class Crowd(Measure):
    """A window for each peer in each round.

    Attributes:
        streams: How many streams, and tasks.
        window: Seconds.
        warm: Seconds before the window.
    """

    streams: int = 64
    rounds: int = 10
    window: float = 0.5
    warm: float = 0.1

    QUICK: ClassVar[dict[str, Any]] = {"streams": 8, "rounds": 2, "window": 0.1, "warm": 0.01}

    def turn_seconds(self) -> float:
        return self.window + self.warm + 0.12

    def row(self, turns: list[Found]) -> Row:
        """The rate with its interval, and the cores; each window has its own."""
        each = [self.of_window(turn) for turn in turns]
        rates = [window["per_second"] for window in each]
        low, high = stats.median_interval(rates)
        return {
            "streams": self.streams,
            "samples": len(turns),
            "per_second": stats.median(rates),
            "low": low,
            "high": high,
            "cores": round(stats.median([window["cores"] for window in each]), 4),
            "windows": each,
        }

    def of_window(self, turn: Found) -> Row:
        """The figures of one window."""
        return {
            "per_second": round(sum(turn["counts"]) * 1e9 / turn["wall_ns"], 1),
            "cores": round(turn["cpu_ns"] / turn["wall_ns"], 4),
        }


@dataclass(frozen=True, kw_only=True)
class Mixed(Crowd):
    """Log-normal kernels of 0.2 to 20 ms, 2 ms at the median: how late each wait ends."""

    name = "mixed"

    @property
    def title(self) -> str:
        return f"mixed, {self.streams} x log-normal 0.2 to 20 ms"

    async def turn(self, turn: Turn) -> Found:
        window = Window(turn, self.warm, self.window)
        lengths = (work.log_normal(f"{turn.number} {at}") for at in range(self.streams))
        return await window.run(*(window.timing(at, own) for at, own in enumerate(lengths)))

    def row(self, turns: list[Found]) -> Row:
        """The rate, and the tails of all windows together."""
        late = merged(turns, "latency_ns")
        return {**super().row(turns), "samples": len(late), **stats.tails(late)}

    def of_window(self, turn: Found) -> Row:
        """Also the window's own tails."""
        return {**super().of_window(turn), **stats.tails(turn["latency_ns"])}


@dataclass(frozen=True, kw_only=True)
class Full(Crowd):
    """Many waits in one loop, up to a loop that has no time left: what each completion costs.

    Attributes:
        length: The kernels' length in ns; 0 for log-normal ones, as in `Mixed`.
    """

    length: int = 0
    rounds: int = 5

    name = "full"
    can_block = False
    # More than eight, because the policy is another one then.
    QUICK: ClassVar[dict[str, Any]] = {**Crowd.QUICK, "streams": 16}

    @property
    def title(self) -> str:
        return f"full, {self.load}"

    @property
    def load(self) -> str:
        """The setting, in a few words."""
        return f"{self.streams} x {duration(self.length) if self.length else 'log-normal'}"

    async def turn(self, turn: Turn) -> Found:
        window = Window(turn, self.warm, self.window)
        own = [
            [self.length] if self.length else work.log_normal(f"{turn.number} {at}")
            for at in range(self.streams)
        ]
        tasks = (window.timing(at, lengths) for at, lengths in enumerate(own))
        return await window.run(*tasks, window.ask_for_a_millisecond)

    def row(self, turns: list[Found]) -> Row:
        """The rate, the CPU of a completion, the tails of all windows, and the timer's."""
        late, timer, row = (
            merged(turns, "latency_ns"),
            merged(turns, "timer_ns"),
            super().row(turns),
        )
        costs = {
            key: stats.median([window[key] for window in row["windows"]])
            for key in ("cpu_us", "thread_us")
        }
        return {
            **row,
            **costs,
            **stats.tails(late),
            "load": self.load,
            "length_ns": self.length,
            "samples": len(late),
            "timer": stats.tails(timer),
        }

    def of_window(self, turn: Found) -> Row:
        """Also what each completion has cost."""
        count = max(1, sum(turn["counts"]))
        return {
            **super().of_window(turn),
            "cpu_us": round(turn["cpu_ns"] / 1e3 / count, 3),
            "thread_us": round(turn["thread_ns"] / 1e3 / count, 3),
        }


@dataclass(frozen=True, kw_only=True)
class Fairness(Crowd):
    """Empty kernels: how often each task gets its turn, and how late a 1 ms timer fires."""

    name = "fairness"

    @property
    def title(self) -> str:
        return f"fairness, {self.streams} x empty kernels beside a timer"

    async def turn(self, turn: Turn) -> Found:
        window = Window(turn, self.warm, self.window)
        tasks = (window.timing(at, [0]) for at in range(len(turn.lanes)))
        return await window.run(*tasks, window.ask_for_a_millisecond)

    def row(self, turns: list[Found]) -> Row:
        """The rate, the fewest and the most completions of a task, and the timer's tails."""
        timer, row = merged(turns, "timer_ns"), super().row(turns)
        each = row["windows"]
        return {
            **row,
            "fewest": min(window["fewest"] for window in each),
            "most": max(window["most"] for window in each),
            "ratio": stats.median([window["ratio"] for window in each]),
            "timer": {**stats.tails(timer), "samples": len(timer)},
            "timer_ns": timer,
        }

    def of_window(self, turn: Found) -> Row:
        """Also how fair it was. A task without any completion counts as one with one."""
        fewest, most = min(turn["counts"]), max(turn["counts"])
        ratio = round(most / max(1, fewest), 3)
        return {**super().of_window(turn), "fewest": fewest, "most": most, "ratio": ratio}
