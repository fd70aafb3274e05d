"""`python -m benchmarks compare --older WHEEL`: compares this tree's library with an older one.

    python -m benchmarks compare --older dist/aiostream_cuda-0.1.0-cp311-abi3-linux_x86_64.whl

In each round each measure runs once with each library, in new processes, and the library that comes
first changes from round to round. The measuring code is this tree's for both. Rounds are made
until the time is over, and their samples are scaled so that at least 14 rounds should fit into it.

A figure of a round is one value for each library. The table has the median of these values over the
rounds, with their minimum and maximum, and the difference: the median of all differences between a
value of the new library and one of the older library, with an interval.

The interval comes from the ranks (Mann and Whitney), so it assumes nothing about how the values are
distributed. It is wide enough that in 19 of 20 comparisons *all* cells hold their true difference
(Bonferroni). A cell is marked if its interval does not hold 0. So a comparison of a version with
itself has a mark in at most one of 20 runs. With fewer than 7 rounds or so no difference is large
enough, and the command says this.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import stats, tables
from benchmarks.child import reason
from benchmarks.latency import Latency
from benchmarks.loops import LOOPS, missing
from benchmarks.measure import Measure, Row
from benchmarks.patterns import Patterns
from benchmarks.peers import AUTO, ENQUEUE
from benchmarks.results import SIMULATED
from benchmarks.runner import Runner, unpacked
from benchmarks.server import BUSY, OPEN, Server
from benchmarks.windows import Mixed
from benchmarks.work import MS, US, duration

OLD, NEW = "older", "new"
LENGTHS = (5 * US, 20 * US, 100 * US, 300 * US, 1 * MS, 5 * MS, 20 * MS)
ROUNDS = 14  # that should fit into the time: marks need 7, and a busy machine halves them
FALSE_ALARMS = 0.05  # how often a version that is compared with itself may have a mark
STARTS = 10  # of processes for each library in a round, as a guess of all that is not measuring

Values = dict[str, list[float]]  # of a cell, by library
Cell = tuple[str, str, str]  # measure, setting, figure

# ------------------------------------------------------------------------------- what is measured


def jobs(measure: str, loop: str, scale: float) -> list[Measure]:
    """The settings of a measure in one round.

    Args:
        measure: One of `MEASURES`.
        loop: On which loop.
        scale: How much of it, where 1 is that of a long comparison.
    """
    on: tuple[tuple[str, ...], tuple[str, ...]] = ((loop,), (AUTO,))
    window = max(0.1, 0.5 * scale)
    if measure == "patterns":
        return [Patterns(*on, waits=max(3, round(60 * scale)), rounds=1)]
    if measure == "mixed":
        return [Mixed(*on, streams=streams, rounds=1, window=window) for streams in (16, 64, 128)]
    if measure == "latency":
        samples = max(5, round(40 * scale))
        return [Latency(*on, length=length, samples=samples, rounds=1) for length in LENGTHS]
    pooled = "pool enqueue_async"
    ways = {BUSY: (AUTO, ENQUEUE, "pool", pooled), OPEN: (AUTO, pooled)}
    return [
        Server((loop,), peers, load=each, rounds=1, window=window, trial=min(0.2, window))
        for each, peers in ways.items()
    ]


def _patterns(row: Row) -> tuple[str, dict[str, Any]]:
    figures = {"p50, us": row["p50_us"], "p99, us": row["p99_us"], "CPU, %": row["cpu_percent"]}
    return row["pattern"], figures


def _mixed(row: Row) -> tuple[str, dict[str, Any]]:
    figures = {"p99, us": row["p99_us"], "per second": row["per_second"], "cores": row["cores"]}
    return f"{row['streams']} streams", figures


def _latency(row: Row) -> tuple[str, dict[str, Any]]:
    return duration(row["length_ns"]), {"median, us": row["median_us"]}


def _server(row: Row) -> tuple[str, dict[str, Any]]:
    late = {"p99 beyond the kernel, us": row["beyond"]["p99_us"]}
    figures = late if row["rate"] else {"per second": row["per_second"]}
    return f"{row['load']}, {row['peer']}", {**figures, "CPU us each": row["cpu_us"]}


MEASURES: dict[str, Callable[[Row], tuple[str, dict[str, Any]]]] = {
    "patterns": _patterns,
    "mixed": _mixed,
    "latency": _latency,
    "server": _server,
}


class Comparison:
    """Both libraries, and what the rounds have found.

    Args:
        older: The folder of the older library.
        measures: Some of `MEASURES`.
        loop: On which loop.
        say: Prints a line.

    Attributes:
        libraries: The versions and files that were imported, by library.
        cells: The values of each cell.
        not_run: What could not be measured, with the reason.
        rounds: How many rounds were made.

    Raises:
        RuntimeError: A library cannot be imported, or another one was.
    """

    def __init__(
        self, older: str, measures: Sequence[str], loop: str, say: Callable[[str], None] = print
    ) -> None:
        self._paths = {OLD: older, NEW: None}
        self._measures, self._loop, self._say = measures, loop, say
        self.libraries: dict[str, str] = {}
        self.cells: dict[Cell, Values] = {}
        self.not_run: dict[str, None] = {}
        self.rounds = 0
        began = time.monotonic()
        for which in (OLD, NEW):
            with contextlib.closing(self._runner(which)) as runner:
                self.libraries[which] = runner.library
                self.simulator = runner.simulator
        self._start = (time.monotonic() - began) / 2  # s, of a process

    def run(self, until: float, least: int = 2, rounds: int = ROUNDS) -> None:
        """Makes rounds until the next would end later than `until`, but `least` in any case.

        Args:
            until: By the monotonic clock.
            least: How many rounds it makes in any case.
            rounds: How many should fit into the time.
        """
        left = until - time.monotonic()
        short, full = self._seconds(0), self._seconds(1)
        starts = self._start * STARTS * len(self._measures) / len(MEASURES)
        scale = min(1.0, max(0.0, (left / rounds / 2 - starts - short) / (full - short)))
        self._say(f"each round has {scale:.0%} of the samples of a long one, but a few at least")
        longest = 0.0
        while self.rounds < least or time.monotonic() + longest < until:
            began = time.monotonic()
            order = (OLD, NEW) if self.rounds % 2 == 0 else (NEW, OLD)
            for measure in self._measures:
                for which in order:
                    self._measure(measure, which, scale)
            self.rounds += 1
            took, left = time.monotonic() - began, max(0, until - time.monotonic())
            longest = max(longest, took)
            self._say(f"round {self.rounds} took {took:.0f} s, {left:.0f} s are left")

    def _seconds(self, scale: float) -> float:
        """About how long each library is measured in a round, without the starts of processes."""
        every = (job for each in self._measures for job in jobs(each, self._loop, scale))
        return sum(len(job.peers) * job.turn_seconds() for job in every)

    def _runner(self, which: str) -> Runner:
        return Runner([self._loop], [AUTO], say=lambda line: None, older=self._paths[which])

    def _measure(self, measure: str, which: str, scale: float) -> None:
        """One measure with one library, in a worker of its own."""
        try:
            with contextlib.closing(self._runner(which)) as runner:
                runner.try_out()
                rows = [row for job in jobs(measure, self._loop, scale) for row in job.run(runner)]
                missed = [f"{each['peer']}: {each['reason']}" for each in runner.not_run]
                if runner.library != self.libraries[which]:
                    raise RuntimeError(f"{runner.library} was imported")
        except Exception as error:  # one that fails does not cost the others
            rows, missed = [], [reason(error)]
        self.not_run.update((f"{which} library, {measure}: {each}", None) for each in missed)
        for row in rows:
            if row["peer"].startswith("/ping"):
                continue
            setting, figures = MEASURES[measure](row)
            for figure, value in figures.items():
                values = self.cells.setdefault((measure, setting, figure), {OLD: [], NEW: []})
                if value is not None:
                    values[which].append(float(value))


# ------------------------------------------------------------------------------------- statistics


@functools.cache
def rank(ours: int, theirs: int, chance: float) -> int:
    """Which of the ordered differences of two samples bounds the interval, from either end.

    The number of pairs in which a value of one sample is below a value of the other has a known
    distribution if both samples have the same one.

    Args:
        ours: The one sample's size.
        theirs: The other one's.
        chance: With which the true difference may lie outside.

    Returns:
        1 for the extremes, or 0 if not even they are far enough.
    """
    # ways[u]: in how many orders of both samples u pairs are so, by Gauss's binomial coefficients.
    ways = [1] + [0] * (ours * theirs)
    for k in range(1, ours + 1):
        for u in range(len(ways) - 1, theirs + k - 1, -1):
            ways[u] -= ways[u - theirs - k]
        for u in range(k, len(ways)):
            ways[u] += ways[u - k]
    found = below = 0
    for u, count in enumerate(ways):
        below += count
        if below > chance / 2 * math.comb(ours + theirs, ours):
            break
        found = u + 1
    return found


def difference(values: Values, chance: float) -> tuple[float, stats.Interval | None]:
    """The median of the differences between new and older values, and its interval.

    Args:
        values: Of one cell. Neither list is empty.
        chance: With which the true difference may lie outside of the interval.

    Returns:
        No interval if there are too few values.
    """
    every = sorted(new - old for new in values[NEW] for old in values[OLD])
    at = rank(len(values[NEW]), len(values[OLD]), chance)
    return stats.median(every), (every[at - 1], every[-at]) if at else None


def lines(cells: dict[Cell, Values]) -> list[list[str]]:
    """The table: a line for each cell."""
    found = []
    for (measure, setting, figure), values in cells.items():
        line = [f"{measure}, {setting}: {figure}", *(_spread(values[each]) for each in (OLD, NEW))]
        if values[OLD] and values[NEW]:
            middle, interval = difference(values, FALSE_ALARMS / len(cells))
            line += [
                _percent(middle, values),
                " to ".join(_percent(end, values) for end in interval) if interval else "-",
                _mark(figure, interval),
            ]
        found.append([*line, "", "", ""][:6])
    return found


def _mark(figure: str, interval: stats.Interval | None) -> str:
    if not interval or interval[0] <= 0 <= interval[1]:
        return ""
    return "BETTER" if (interval[0] > 0) == (figure == "per second") else "WORSE"


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{_number(stats.median(values))} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(part: float, values: Values) -> str:
    whole = abs(stats.median(values[OLD]))
    return f"{part / whole:+.1%}" if whole else f"{part:+.3g}"


# ---------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str]) -> int:
    """Compares, prints the table, and returns the exit code: 0 with marks too."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description="Compares this tree's library with an older one. AIOSTREAM_SIMULATOR=1 and "
        "CUDA_VISIBLE_DEVICES choose the driver and the GPU.",
    )
    add = parser.add_argument
    add("measures", nargs="*", help=f"some of: {', '.join(MEASURES)} (default: all)")
    add("--older", type=Path, metavar="WHEEL", required=True, help="the older library")
    add("--minutes", type=float, default=20, help="for all of it, at least 2 (default: 20)")
    options = parser.parse_args(arguments)
    measures = options.measures or list(MEASURES)
    if unknown := set(measures) - MEASURES.keys():
        parser.error(f"measures: there is no {unknown.pop()!r}; choose from {', '.join(MEASURES)}")
    if not options.minutes >= 2:
        parser.error("--minutes must be at least 2")
    try:
        with unpacked(options.older) as folder:
            until = began + 60 * options.minutes - 3  # for the end
            compared(folder, options.older.name, measures, until)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except RuntimeError as error:
        parser.exit(1, f"The comparison did not get through: {error}\n")
    return 0


def compared(folder: str, wheel: str, measures: Sequence[str], until: float) -> None:
    """Compares with the library in a folder, and prints the table.

    Raises:
        RuntimeError: A library cannot be used.
    """
    console = Console(highlight=False, emoji=False, markup=False, soft_wrap=True, width=200)
    loop = next(name for name in LOOPS if not missing(name))
    comparison = Comparison(folder, measures, loop, console.print)
    for which, where in comparison.libraries.items():
        console.print(f"{which}: {where}{f', of {wheel}' if which == OLD else ''}")
    comparison.run(until)
    head = ["", OLD, NEW, "difference", "interval", ""]
    title = f"Medians of {comparison.rounds} rounds on {loop} (minimum to maximum)"
    console.print(tables.table(title, head, lines(comparison.cells)))
    chance = FALSE_ALARMS / max(1, len(comparison.cells))
    if not rank(comparison.rounds, comparison.rounds, chance):
        console.print("These are too few rounds for an interval, so nothing can be marked.")
    if comparison.simulator:
        console.print(SIMULATED)
    for text in comparison.not_run:
        console.print(f"not run: {text}")
