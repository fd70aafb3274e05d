"""The goals, judged from the rows of a results file: what was measured, what it should be, and how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aiostream.bench import stats
from aiostream.bench.idle import added
from aiostream.bench.lag import PLAIN
from aiostream.bench.latency import duration
from aiostream.bench.plan import (
    AUTO,
    ENQUEUE,
    ENQUEUED,
    HOSTFUNC,
    LENGTHS,
    MS,
    SERVERS,
    SLEEPING,
    STEADY,
    TAILS,
    THREADS,
    TRIO_THROUGHPUT,
    UNPREDICTED,
    US,
)
from aiostream.bench.runner import Row
from aiostream.bench.server import BUSY, OPEN
from aiostream.bench.torch_server import MAIN
from aiostream.bench.torch_ways import GRAPH, LAUNCH, TO_THREAD

# Kernel length -> (latency, CPU) of steady work as ratios to to_thread's; below, the latency of
# varying work, and by how much more CPU it may cost.
STEADY_GOALS = {
    100 * US: (0.55, 0.5),
    300 * US: (0.6, 0.35),
    1 * MS: (0.85, 0.2),
    5 * MS: (0.8, 0.07),
    20 * MS: (0.85, 0.05),
    100 * MS: (0.75, 0.04),
}
VARYING_LATENCY, VARYING_CPU = 1.0, 2.5
ENQUEUE_LATENCY = 1.3  # of synchronize_async's
ENOUGH = 0.3  # ms: a wait that ends no later than this is never too late
MIXED_STREAMS = (16, 64)
SERVED = (AUTO, "enqueue_async", "pool", "pool enqueue_async")  # by a server, with the default wait


@dataclass(frozen=True)
class Goal:
    """One goal and what became of it.

    Attributes:
        group: Which part of the goals.
        what: What was measured, against what.
        measured: The figure; `None` when something was not measured.
        low: The lower end of its 95 % interval.
        high: The upper end.
        relation: "<=" or ">=".
        bound: The goal.
        unit: "x" for ratios.
        samples: How many values, of the smaller of the sides that are compared.
        verdict: "met", "missed" or "not measured".
        sure: Whether the whole interval is on the same side of the goal as the figure.
    """

    group: str
    what: str
    measured: float | None
    low: float | None
    high: float | None
    relation: str
    bound: float
    unit: str
    samples: int
    verdict: str
    sure: bool


def judge(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The goals' table: of the rows that were measured for the goals, and of those of late ends and the servers, if any."""
    of_goals = [row for row in rows if row.get("set") == "goals"]
    of_tails = [row for row in rows if row.get("set") in TAILS]
    of_server = [row for row in rows if row.get("set") == "server"]
    of_torch = [row for row in rows if row.get("set") == "torch"]
    found = _Judge(of_goals).all() if of_goals or not (of_tails or of_server or of_torch) else []
    found += _TailJudge(of_tails).all() if of_tails else []
    found += _ServerJudge(of_server).all() if of_server else []
    found += _TorchJudge(of_torch).all() if of_torch else []
    return [asdict(goal) for goal in found]


def judged(rows: Sequence[Row]) -> bool:
    """Whether there is anything to judge in these rows."""
    return any(row["set"] in ("goals", *TAILS, *SERVERS) for row in rows)


class _Judge:
    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self.goals: list[Goal] = []
        loops = {row["loop"] for row in rows if row["measure"] == "lag"} or {
            row["loop"] for row in rows
        }
        self._main = "uvloop" if "uvloop" in loops else next(iter(sorted(loops)), "uvloop")
        known = {row["peer"] for row in rows if row["measure"] in ("latency", "patterns")}
        self._thread = next((name for name in THREADS if name in known), THREADS[0])

    def all(self) -> list[Goal]:
        """Judges all groups."""
        self.short()
        self.steady()
        self.enqueued()
        self.unpredictable()
        self.throughput()
        self.beside()
        self.pending()
        self.trio()
        return self.goals

    def _find(self, measure: str, peer: str, **keys: Any) -> Row | None:
        wanted = {"measure": measure, "peer": peer, "loop": self._main, **keys}
        return next(
            (
                row
                for row in self._rows
                if all(row.get(key) == value for key, value in wanted.items())
            ),
            None,
        )

    def _add(
        self, group: str, what: str, value: Any, relation: str, bound: float, unit: str = "x"
    ) -> None:
        """`value` is (figure, (low, high), samples), or `None`."""
        if value is None:
            self.goals.append(
                Goal(group, what, None, None, None, relation, bound, unit, 0, "not measured", False)
            )
            return
        figure, (low, high), samples = value
        met, *ends = (
            number <= bound if relation == "<=" else number >= bound
            for number in (figure, low, high)
        )
        figure, low, high = (round(number, 4) for number in (figure, low, high))
        verdict, sure = "met" if met else "missed", all(end == met for end in ends)
        self.goals.append(
            Goal(group, what, figure, low, high, relation, bound, unit, samples, verdict, sure)
        )

    # -------------------------------------------------------------------------------------------- latency

    def short(self) -> None:
        """A kernel of 20 us."""
        ours, bounds = (
            self._latency(AUTO, 20 * US),
            (("blocking", 1.3), ("cupy", 0.3), (self._thread, 0.4)),
        )
        for peer, bound in bounds:
            self._add(
                "20 us kernel",
                f"latency / {peer}",
                _latency_ratio(ours, self._latency(peer, 20 * US)),
                "<=",
                bound,
            )

    def steady(self) -> None:
        """Steady work, and work that varies."""
        for load in ("steady", "varying"):
            for length in STEADY:
                latency, cpu = STEADY_GOALS[length]
                if load == "varying":
                    latency, cpu = VARYING_LATENCY, VARYING_CPU * cpu
                ours, theirs = (
                    self._latency(AUTO, length, load),
                    self._latency(self._thread, length, load),
                )
                what = f"{duration(length)} / {self._thread}"
                self._add(
                    f"{load} work", f"latency, {what}", _latency_ratio(ours, theirs), "<=", latency
                )
                self._add(
                    f"{load} work", f"CPU, {what}", _cpu_ratio(ours, theirs), "<=", round(cpu, 4)
                )

    def enqueued(self) -> None:
        """Another way to wait for the same."""
        for length in ENQUEUED:
            value = _latency_ratio(self._latency(ENQUEUE, length), self._latency(AUTO, length))
            self._add(
                "enqueue_async",
                f"latency, {duration(length)} / synchronize_async",
                value,
                "<=",
                ENQUEUE_LATENCY,
            )

    def unpredictable(self) -> None:
        """Work of which nothing can be known."""
        ours, plain, without = (
            self._latency(peer, 0, "unpredictable") for peer in (AUTO, HOSTFUNC, UNPREDICTED)
        )
        group = "unpredictable work"
        self._add(
            group, "latency, 50 us to 50 ms / host function", _latency_ratio(ours, plain), "<=", 1.0
        )
        self._add(
            group, "CPU, 50 us to 50 ms / unpredicted stages", _cpu_ratio(ours, without), "<=", 1.5
        )
        lone, plain = (self._latency(peer, 100 * MS, "fresh") for peer in (AUTO, HOSTFUNC))
        self._add(
            group, "latency, a lone 100 ms / host function", _latency_ratio(lone, plain), "<=", 1.1
        )
        self._add(group, "CPU, a lone 100 ms", _cpu_percent(lone), "<=", 2.5, "%")

    def _latency(
        self, peer: str, length: int, load: str = "steady", loop: str | None = None
    ) -> Row | None:
        return self._find("latency", peer, length_ns=length, load=load, loop=loop or self._main)

    # -------------------------------------------------------------------------------------------- throughput

    def throughput(self) -> None:
        """Many streams."""
        setting = {"streams": 128, "length_ns": 5 * MS, "neighbours": 0}
        ours = self._find("throughput", AUTO, **setting)
        for peer, bound in (("polling", 1.0), (HOSTFUNC, 14.0), (self._thread, 3.0)):
            rate = _window_ratio(ours, self._find("throughput", peer, **setting), "per_second")
            self._add("128 streams x 5 ms", f"completions per second / {peer}", rate, ">=", bound)
        self._add("128 streams x 5 ms", "cores busy", _windows(ours, "cores"), "<=", 1.1, "cores")
        setting = {"streams": 64, "length_ns": 0, "neighbours": 0}
        ours = self._find("throughput", AUTO, **setting)
        polling, cupy = (self._find("throughput", peer, **setting) for peer in ("polling", "cupy"))
        group = "64 tasks x empty kernels"
        self._add(
            group,
            "completions per second / polling",
            _window_ratio(ours, polling, "per_second"),
            ">=",
            0.9,
        )
        self._add(
            group, "CPU per completion / polling", _window_ratio(ours, polling, "cpu_us"), "<=", 1.3
        )
        self._add(
            group,
            "completions per second / cupy",
            _window_ratio(ours, cupy, "per_second"),
            ">=",
            2.7,
        )
        setting = {"streams": 126, "length_ns": 500 * US, "neighbours": 2}
        ours, polling = (self._find("throughput", peer, **setting) for peer in (AUTO, "polling"))
        group = "126 x 0.5 ms beside 2 x 1.2 s"
        self._add(
            group,
            "completions per second / polling",
            _window_ratio(ours, polling, "per_second"),
            ">=",
            1.0,
        )
        self._add(group, "CPU / polling", _window_ratio(ours, polling, "cores"), "<=", 1.3)

    # -------------------------------------------------------------------------------------------- what it does to others

    def beside(self) -> None:
        """The GPU's idle time, and the loop's lag."""
        settings = [(AUTO, length, False) for length in (100 * US, 1 * MS, 20 * MS)]
        settings += [(AUTO, 60 * MS, True), (UNPREDICTED, 60 * MS, True)]
        for peer, length, busy in settings:
            row = self._find("idle", peer, length_ns=length, python_busy=busy)
            what = f"after {duration(length)}{', Python busy' if busy else ''}, {peer.removeprefix('aiostream ')}"
            self._add("GPU idle added", what, _idle(row), "<=", 2.0, "us")
        ours, plain = (self._find("lag", peer) for peer in (AUTO, PLAIN))
        self._add(
            "loop lag, 64 x 5 ms",
            "p99 less that of plain futures",
            _lag(ours, plain),
            "<=",
            0.2,
            "ms",
        )

    def pending(self) -> None:
        """Many waits at once."""
        many, few = (self._find("pending", AUTO, pending=count) for count in (10_000, 100))
        ratio = None
        if many and few:
            ours, theirs = many["costs_us"], few["costs_us"]
            interval = stats.bootstrap(stats.ratio_of_medians, ours, theirs)
            ratio = (stats.ratio_of_medians(ours, theirs), interval, min(len(ours), len(theirs)))
        self._add("10,000 pending waits", "CPU per completion / at 100 pending", ratio, "<=", 1.2)
        for by, words in (("traced", "Python's allocators"), ("rss", "resident")):
            ours_row = self._find("memory", AUTO, by=by, loop="asyncio")
            plain_row = self._find("memory", PLAIN, by=by, loop="asyncio")
            value = None
            if ours_row and plain_row:
                ours, theirs = ours_row["values"], plain_row["values"]
                value = (
                    _difference(ours, theirs),
                    stats.bootstrap(_difference, ours, theirs),
                    len(ours),
                )
            self._add(
                "10,000 pending waits",
                f"beyond task and future, {words}",
                value,
                "<=",
                512,
                "bytes",
            )

    # -------------------------------------------------------------------------------------------- trio

    def trio(self) -> None:
        """Trio against asyncio with its own loop."""
        for streams, length in TRIO_THROUGHPUT:
            setting = {"streams": streams, "length_ns": length, "neighbours": 0}
            ours, theirs = (
                self._find("throughput", AUTO, loop=loop, **setting) for loop in ("trio", "asyncio")
            )
            what = f"completions per second, {streams} x {duration(length)} / asyncio"
            self._add("trio", what, _window_ratio(ours, theirs, "per_second"), ">=", 0.6)
        for length in LENGTHS:
            ours, theirs = (self._latency(AUTO, length, loop=loop) for loop in ("trio", "asyncio"))
            value = None
            if ours and theirs:
                groups = [
                    [latency / 1e3 for latency in row["latency_ns"]] for row in (ours, theirs)
                ]
                value = (
                    _difference(*groups),
                    stats.bootstrap(_difference, *groups),
                    min(map(len, groups)),
                )
            self._add("trio", f"latency, {duration(length)}, less asyncio's", value, "<=", 30, "us")


class _TailJudge(_Judge):
    """The goals of late ends, of neighbours that suffer and of starved loops."""

    def all(self) -> list[Goal]:
        """Judges what was measured. A bound "by" a peer is computed from that peer's own figure."""
        self.patterns()
        for streams in MIXED_STREAMS:
            if self._measured("mixed", streams=streams):
                self.mixed(streams)
        if self._measured("fairness"):
            self.fairness()
        self.one_core()
        return self.goals

    def _measured(self, measure: str, **keys: Any) -> bool:
        wanted = {"set": measure, **keys}
        return any(
            all(row.get(key) == value for key, value in wanted.items()) for row in self._rows
        )

    def _patterns_of(self, measure: str) -> list[str]:
        rows = [row for row in self._rows if row["set"] == measure and row["measure"] == "patterns"]
        return list(dict.fromkeys(row["pattern"] for row in rows))

    def patterns(self) -> None:
        """Late ends, against a thread for each wait."""
        for name in self._patterns_of("patterns"):
            ours, theirs = (
                self._find("patterns", peer, pattern=name, set="patterns")
                for peer in (AUTO, self._thread)
            )
            for percent, factor in ((90, 1.0), (99, 1.25)):
                bound = max(ENOUGH, factor * _at(theirs, percent)) if theirs else ENOUGH
                self._late(
                    "patterns",
                    f"p{percent}, {name}, bound by {self._thread}",
                    ours if theirs else None,
                    percent,
                    bound,
                )
            if name.startswith(("alternating", "bimodal")):
                self._add(
                    "patterns",
                    f"median, {name} / {self._thread}",
                    _latency_ratio(ours, theirs),
                    "<=",
                    0.7,
                )
            enqueued = self._find("patterns", ENQUEUE, pattern=name, set="patterns")
            if enqueued:
                value = _latency_ratio(enqueued, ours)
                self._add(
                    "patterns",
                    f"median of enqueue_async, {name} / synchronize_async",
                    value,
                    "<=",
                    ENQUEUE_LATENCY,
                )
            if ours and ours["mean_ns"] >= 1 * MS:
                self._add(
                    "patterns",
                    f"CPU, {name} / {self._thread}",
                    _share_ratio(ours, theirs),
                    "<=",
                    0.2,
                )

    def _late(
        self,
        group: str,
        what: str,
        row: Row | None,
        percent: float,
        bound: float,
        key: str = "latency_ns",
    ) -> None:
        """A percentile in ms, by order statistics."""
        value = None
        if row and row[key]:
            low, high = stats.percentile_interval(row[key], percent)
            value = _at(row, percent, key), (low / MS, high / MS), len(row[key])
        self._add(group, what, value, "<=", round(bound, 4), "ms")

    def mixed(self, streams: int) -> None:
        """Late ends among many streams with short and long kernels."""
        ours, older, polling = (
            self._find("mixed", peer, streams=streams) for peer in (AUTO, "older event", "polling")
        )
        group = f"mixed, {streams} streams"
        self._add(group, "p99", _window_tail(ours, "p99_us"), "<=", 1.0, "ms")
        if older:
            bound = round(1.1 * older["p99_us"] / 1e3, 4)
            self._add(
                group, "p99, bound by older event", _window_tail(ours, "p99_us"), "<=", bound, "ms"
            )
        self._add(group, "p99.9", _window_tail(ours, "p999_us"), "<=", 3.0, "ms")
        rate = _window_ratio(ours, polling, "per_second")
        upper = rate and (rate[1][1], rate[1], rate[2])
        self._add(group, "completions per second / polling, upper end", upper, ">=", 0.95)

    def fairness(self) -> None:
        """Tasks and timers that starve."""
        ours, polling = (self._find("fairness", peer, set="fairness") for peer in (AUTO, "polling"))
        self._add(
            "fairness", "most / fewest completions of a task", _windows(ours, "ratio"), "<=", 1.5
        )
        bound = 1.2 * polling["timer"]["p99_us"] / 1e3 if polling else 0.0
        self._late(
            "fairness",
            "p99 of a 1 ms timer, bound by polling",
            ours if polling else None,
            99,
            bound,
            "timer_ns",
        )

    def one_core(self) -> None:
        """Waits whose threads and loop share one core."""
        for name in self._patterns_of("one-core"):
            ours, sleeping = (
                self._find("patterns", peer, pattern=name, set="one-core")
                for peer in (AUTO, SLEEPING)
            )
            bound = _at(sleeping, 99) if sleeping else 0.0
            self._late(
                "one core",
                f"p99, {name}, bound by {SLEEPING}",
                ours if sleeping else None,
                99,
                bound,
            )


class _ServerJudge(_Judge):
    """The goals of a server that waits for the GPU."""

    def all(self) -> list[Goal]:
        """Judges the loads that were measured."""
        loads = {row["load"] for row in self._rows}
        if BUSY.name in loads:
            self.busy()
        if OPEN.name in loads:
            self.open()
        return self.goals

    def _row(self, peer: str, load: str) -> Row | None:
        return self._find("server", peer, load=load)

    def busy(self) -> None:
        """As many requests per second as it can serve."""
        group = f"server, {BUSY.name}"
        ours, older, polling = (
            self._row(peer, BUSY.name) for peer in (AUTO, "older event", "polling")
        )
        rivals = [row for row in (polling, older) if row]
        best = max(rivals, key=lambda row: float(row["per_second"]), default=None)
        rate = _round_ratio(ours, best, "per_second")
        lower = rate and (rate[1][0], rate[1], rate[2])
        name = best["peer"] if best else "polling or older event"
        self._add(group, f"requests per second / {name}, the better, lower end", lower, ">=", 0.97)
        to_thread = self._row(THREADS[1], BUSY.name)
        self._add(
            group,
            f"requests per second / {THREADS[1]}",
            _round_ratio(ours, to_thread, "per_second"),
            ">=",
            3.5,
        )
        self._add(
            group, "CPU per request / older event", _round_ratio(ours, older, "cpu_us"), "<=", 1.0
        )
        for peer in SERVED[1:]:
            ratio = _round_ratio(self._row(peer, BUSY.name), ours, "per_second")
            self._add(group, f"requests per second, {peer} / synchronize_async", ratio, ">=", 0.9)

    def open(self) -> None:
        """How late requests are that arrive by chance, and what they cost."""
        group = f"server, {OPEN.name}"
        polling = self._row("polling", OPEN.name)
        for peer in SERVED:
            ours, name = self._row(peer, OPEN.name), "synchronize_async" if peer == AUTO else peer
            late, cpu = (_round_ratio(ours, polling, key) for key in ("beyond_p99_us", "cpu_us"))
            self._add(group, f"p99 beyond the kernel, {name} / polling", late, "<=", 1.25)
            self._add(group, f"CPU per request, {name} / polling", cpu, "<=", 0.75)


class _TorchJudge(_Judge):
    """The goals of a server with a torch model."""

    def all(self) -> list[Goal]:
        """Judges the load that has goals, if it was measured."""
        if not any(row["load"] == MAIN.name for row in self._rows):
            return self.goals
        group = f"torch, {MAIN.name}"
        launch, graph, thread = (
            self._find("torch", peer, load=MAIN.name) for peer in (LAUNCH, GRAPH, TO_THREAD)
        )
        self._add(
            group,
            f"requests per second, {LAUNCH} / {TO_THREAD}",
            _round_ratio(launch, thread, "per_second"),
            ">=",
            2.0,
        )
        self._add(
            group, f"p99, {LAUNCH} / {TO_THREAD}", _round_ratio(launch, thread, "p99_us"), "<=", 0.6
        )
        self._add(group, f"/ping p99, {GRAPH}", _ping_tail(graph), "<=", 2.0, "ms")
        return self.goals


# ------------------------------------------------------------------------------------------------ figures of rows


def _at(row: Row, percent: float, key: str = "latency_ns") -> float:
    """A percentile in ms."""
    return stats.percentile(row[key], percent) / MS


def _window_tail(row: Row | None, key: str) -> Any:
    """A percentile of all windows together in ms; its interval is that of the single windows' median, with the figure in it."""
    if not row:
        return None
    figure = row[key] / 1e3
    low, high = stats.median_interval([window[key] / 1e3 for window in row["windows"]])
    return figure, (min(low, figure), max(high, figure)), row["samples"]


def _ping_tail(row: Row | None) -> Any:
    """The p99 of all pings in ms; its interval is that of the single windows' median, with the figure in it."""
    if not row or not row["ping"]:
        return None
    figure = row["ping"]["p99_us"] / 1e3
    low, high = stats.median_interval(
        [window["ping_p99_us"] / 1e3 for window in row["windows"] if window["ping_p99_us"]]
    )
    return figure, (min(low, figure), max(high, figure)), row["ping"]["samples"]


def _share_ratio(ours: Row | None, theirs: Row | None) -> Any:
    """Of the shares of a core in each round."""
    if not ours or not theirs or not sum(theirs["cpu_shares"]):
        return None
    groups = ours["cpu_shares"], theirs["cpu_shares"]
    return (
        stats.ratio_of_means(*groups),
        stats.bootstrap(stats.ratio_of_means, *groups),
        min(map(len, groups)),
    )


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(ours) - statistics.median(theirs)


def _latency_ratio(ours: Row | None, theirs: Row | None) -> Any:
    if not ours or not theirs:
        return None
    first, second = ours["latency_ns"], theirs["latency_ns"]
    interval = stats.bootstrap(stats.ratio_of_medians, first, second)
    return stats.ratio_of_medians(first, second), interval, min(len(first), len(second))


def _cpu_ratio(ours: Row | None, theirs: Row | None) -> Any:
    """Of the shares of a core: each side's CPU divided by the time that it waited."""
    if not ours or not theirs or not sum(theirs["cpu_ns"]):
        return None
    walls = theirs["wall_ns"] / theirs["samples"] / (ours["wall_ns"] / ours["samples"])
    low, high = stats.bootstrap(stats.ratio_of_means, ours["cpu_ns"], theirs["cpu_ns"])
    figure = walls * stats.ratio_of_means(ours["cpu_ns"], theirs["cpu_ns"])
    return figure, (walls * low, walls * high), min(ours["samples"], theirs["samples"])


def _cpu_percent(row: Row | None) -> Any:
    if not row:
        return None
    scale = 100 * row["samples"] / row["wall_ns"]
    low, high = stats.bootstrap(statistics.fmean, row["cpu_ns"])
    return scale * statistics.fmean(row["cpu_ns"]), (scale * low, scale * high), row["samples"]


def _windows(row: Row | None, key: str) -> Any:
    if not row:
        return None
    values = [window[key] for window in row["windows"]]
    return statistics.median(values), stats.median_interval(values), len(values)


def _window_ratio(ours: Row | None, theirs: Row | None, key: str) -> Any:
    """Of the medians of windows that were taken in turn."""
    if not ours or not theirs:
        return None
    groups = [[window[key] for window in row["windows"] if window[key]] for row in (ours, theirs)]
    if not all(groups):
        return None
    return (
        stats.ratio_of_medians(*groups),
        stats.bootstrap(stats.ratio_of_medians, *groups),
        min(map(len, groups)),
    )


def _round_ratio(ours: Row | None, theirs: Row | None, key: str) -> Any:
    """The median ratio of two windows of the same round. What drifts from round to round hits both of them."""
    if not ours or not theirs:
        return None
    known = {window["round"]: window[key] for window in theirs["windows"] if window[key]}
    ratios = [
        window[key] / known[window["round"]]
        for window in ours["windows"]
        if window[key] and window["round"] in known
    ]
    if not ratios:
        return None
    return statistics.median(ratios), stats.bootstrap(statistics.median, ratios), len(ratios)


def _idle(row: Row | None) -> Any:
    if not row or not row["with_ns"] or not row["without_ns"]:
        return None
    groups = row["with_ns"], row["without_ns"]
    return added(*groups), stats.bootstrap(added, *groups), min(map(len, groups))


def _lag(ours: Row | None, plain: Row | None) -> Any:
    if not ours or not plain:
        return None

    def tails(first: Sequence[float], second: Sequence[float]) -> float:
        return (stats.percentile(first, 99) - stats.percentile(second, 99)) / 1e6

    groups = ours["lag_ns"], plain["lag_ns"]
    return tails(*groups), stats.bootstrap(tails, *groups), min(map(len, groups))
