"""What one peer does in its turn, and what is noted of it, on whichever library waits.

This module imports nothing but the standard library: `older.py` loads this same file in a process
with an older aiostream, so that both sides run the same code.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiostream.bench.loops import LoopAdapter

Lane = tuple[Callable[[int], None], Callable[[], Awaitable[Any]]]
"""A stream as a turn sees it: what launches a kernel of so many ns, and what waits for the stream."""

Found = dict[str, Any]  # what a turn has found, as JSON
MS = 1_000_000  # ns
SHORT_PAUSE = (0.00005, 0.00025)  # s


def patterns(seed: int, waits: int) -> dict[str, list[int]]:
    """The kernels' lengths in ns of each pattern of work, in the order in which they run.

    Args:
        seed: The same seed gives the same lengths.
        waits: About how many waits each pattern has.
    """
    rng = random.Random(seed)
    request = [30 * MS] + [2 * MS] * 12
    whole = waits + -waits % len(request) if waits > len(request) else waits
    drifting = max(2, waits * 3 // 2)
    return {
        "steady 1 ms": [MS] * waits,
        "steady 5 ms": [5 * MS] * waits,
        "within 10 % of 5 ms": [int(5 * MS * rng.uniform(0.9, 1.1)) for _ in range(waits)],
        "alternating 9 and 0.4 ms": [(9 * MS, 400_000)[k % 2] for k in range(waits)],
        "bimodal 9 or 0.4 ms": [rng.choice((9 * MS, 400_000)) for _ in range(waits)],
        "log-uniform 50 us to 50 ms": [int(10 ** rng.uniform(4.7, 7.7)) for _ in range(waits)],
        "prefill and decode": [request[k % len(request)] for k in range(whole)],
        "drifting from 1 to 4 ms": [
            int(MS * (1 + 3 * k / (drifting - 1))) for k in range(drifting)
        ],
        "steady 1 ms again": [MS] * waits,
    }


def pause(generator: random.Random) -> None:
    """Sleeps for a moment between two samples.

    Its length is uneven so that nothing falls into step, and the CPU is idle meanwhile.
    """
    time.sleep(generator.uniform(*SHORT_PAUSE))


async def waits(adapter: LoopAdapter, lanes: Sequence[Lane], settings: Found) -> Found:
    """One wait at a time on the first lane, pattern by pattern.

    Args:
        adapter: The loop.
        lanes: The stream.
        settings: `lengths`: (name, lengths in ns) of each pattern; `warm`: the lengths of waits
            before them that are not timed; `seed`: of the pauses.

    Returns:
        Of each name `latency_ns` (from launch to resumption, less the length), and the process's
        CPU and the time within the waits, `cpu_ns` and `wall_ns`.
    """
    spin, wait = lanes[0]
    generator = random.Random(settings["seed"])
    for length in settings["warm"]:
        spin(length)
        await wait()
    found: Found = {}
    for name, lengths in settings["lengths"]:
        late, cpu, wall = [], 0, 0
        for length in lengths:
            pause(generator)
            await adapter.checkpoint()
            used = process_time_ns()
            began = perf_counter_ns()
            spin(length)
            await wait()
            took = perf_counter_ns() - began
            cpu += process_time_ns() - used
            wall += took
            late.append(took - length)
        found[name] = {"latency_ns": late, "cpu_ns": cpu, "wall_ns": wall}
    return found


class _Window:
    """A task for each lane that launches and awaits again and again, for a window of time."""

    def __init__(self, adapter: LoopAdapter, lanes: Sequence[Lane], settings: Found) -> None:
        self._adapter, self._lanes = adapter, lanes
        self._warm, self._length, self._seed = (
            settings["warm"],
            settings["window"],
            settings["seed"],
        )
        self._log_normal, self._with_timer = settings["log_normal"], settings["timer"]
        # No peer need ever let the loop go on by itself, so the tasks look at the clock too.
        self._limit = perf_counter_ns() + round((self._warm + 2 * self._length + 1) * 1e9)
        self._recording = self._stop = False
        self._counts = [0] * len(lanes)
        self._late: list[int] = []
        self._timer: list[int] = []
        self._used: Found = {}

    def _task(self, at: int) -> Callable[[], Awaitable[None]]:
        spin, wait = self._lanes[at]
        lengths = log_normal(f"{self._seed} {at}") if self._log_normal else [0]
        counts, late = self._counts, self._late

        async def task() -> None:
            number = 0
            while not self._stop and perf_counter_ns() < self._limit:
                length = lengths[number % len(lengths)]
                number += 1
                began = perf_counter_ns()
                spin(length)
                await wait()
                if self._recording:
                    counts[at] += 1
                    late.append(perf_counter_ns() - began - length)

        return task

    async def _watch(self) -> None:
        await self._adapter.sleep(self._warm)
        self._recording = True
        began, cpu = perf_counter_ns(), process_time_ns()
        await self._adapter.sleep(self._length)
        self._used = {"wall_ns": perf_counter_ns() - began, "cpu_ns": process_time_ns() - cpu}
        self._recording, self._stop = False, True

    async def _ask_for_a_millisecond(self) -> None:
        while not self._stop:
            recording, began = self._recording, perf_counter_ns()
            await self._adapter.sleep(0.001)
            if recording:
                self._timer.append(perf_counter_ns() - began - MS)

    async def run(self) -> Found:
        tasks = [self._task(at) for at in range(len(self._lanes))]
        if self._with_timer:
            tasks.append(self._ask_for_a_millisecond)
        await self._adapter.together([*tasks, self._watch])
        return {
            **self._used,
            "counts": self._counts,
            "latency_ns": self._late,
            "timer_ns": self._timer,
        }


async def window(adapter: LoopAdapter, lanes: Sequence[Lane], settings: Found) -> Found:
    """All lanes at once for a window of time.

    Args:
        adapter: The loop.
        lanes: The streams, a task for each.
        settings: `warm` and `window`: seconds; `log_normal`: whether the kernels' lengths are
            log-normal, or all 0; `seed`: of the lengths; `timer`: whether one more task sleeps for
            1 ms again and again.

    Returns:
        `counts`: the completions of each task in the window; `latency_ns`: how much later than its
        kernel's length after the launch each wait ended; `timer_ns`: how late the timer was each
        time; `wall_ns`, `cpu_ns`: of the window, and of the process in it.
    """
    return await _Window(adapter, lanes, settings).run()


SHORTEST, MEDIAN, LONGEST = 0.2, 2.0, 20.0  # ms: log-normal with a deviation of 1, clipped


def log_normal(seed: str) -> list[int]:
    """512 kernel lengths in ns, the same for the same seed."""
    generator = random.Random(seed)
    lengths = (MEDIAN * generator.lognormvariate(0, 1) for _ in range(512))
    return [round(MS * min(LONGEST, max(SHORTEST, length))) for length in lengths]


TURNS = {"waits": waits, "window": window}


async def take(adapter: LoopAdapter, lanes: Sequence[Lane], request: Found) -> Found:
    """Takes the turn that a request names, with the settings in it."""
    return await TURNS[request["turn"]](adapter, lanes, request)
