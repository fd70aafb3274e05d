"""The goals, judged from the rows of a results file: what was measured, and what it should be.

Each function below yields the goals of one part of the rows. A goal is a line: the group, what is
compared, the figure with its interval and its samples or `None`, the relation, the bound and the
unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import stats
from benchmarks.lag import PLAIN
from benchmarks.measure import Row
from benchmarks.peers import AUTO, ENQUEUE, HOSTFUNC, SLEEPING, THREADS, UNPREDICTED
from benchmarks.plan import ENQUEUED, LENGTHS, SERVERS, STEADY, TAILS, TRIO_THROUGHPUT
from benchmarks.server import BUSY, OPEN
from benchmarks.serving import KNOWN
from benchmarks.work import MS, US, duration

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
SERVED = (AUTO, ENQUEUE, "pool", "pool enqueue_async")  # by a server, with the default wait

Figure = tuple[float, stats.Interval, int] | None  # what was measured, its 95 % interval, samples


Goal = dict[str, Any]


def goal(
    group: str, what: str, figure: Figure, relation: str, bound: float, unit: str = "x"
) -> Goal:
    """Judges a figure. It is sure if the whole interval is on the figure's side of the goal."""
    bound = round(bound, 4)
    found: Goal = {"group": group, "what": what, "measured": None, "low": None, "high": None}
    found |= {"relation": relation, "bound": bound, "unit": unit, "samples": 0}
    found |= {"verdict": "not measured", "sure": False}
    if figure is None:
        return found
    measured, ends, samples = figure
    numbers = [float(number) for number in (measured, *ends)]
    met, *also = (number <= bound if relation == "<=" else number >= bound for number in numbers)
    found |= zip(("measured", "low", "high"), (round(number, 4) for number in numbers), strict=True)
    verdict = "met" if met else "missed"
    return found | {"samples": samples, "verdict": verdict, "sure": all(end == met for end in also)}


def judged(rows: Sequence[Row]) -> bool:
    """Whether there is anything to judge in these rows."""
    return any(row["set"] in ("goals", *TAILS, *SERVERS) for row in rows)


def judge(rows: Sequence[Row]) -> list[Goal]:
    """The goals of the rows that were measured for them, and of late ends and servers, if any."""
    parts: list[tuple[Sequence[str], tuple[Callable[[_Rows], Iterator[Goal]], ...]]] = [
        (("goals",), (_short, _steady, _enqueued, _unpredictable, _throughput, _beside, _trio)),
        (TAILS, (_patterns, _mixed, _fairness, _one_core)),
        (("server",), (_busy_server, _open_server)),
    ]
    found: list[Goal] = []
    for sets, functions in parts:
        some = [row for row in rows if row.get("set") in sets]
        if some or (sets == ("goals",) and not judged(rows)):
            found += [each for function in functions for each in function(_Rows(some))]
    return found


class _Rows:
    """The rows of one part, on the loop that is judged."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        loops = {row["loop"] for row in rows if row["measure"] == "lag"}
        loops = loops or {row["loop"] for row in rows}
        self._main = "uvloop" if "uvloop" in loops else min(loops, default="uvloop")
        known = {row["peer"] for row in rows if row["measure"] in ("latency", "patterns")}
        self.thread = next((name for name in THREADS if name in known), THREADS[0])

    def find(self, measure: str, peer: str, **keys: Any) -> Row | None:
        """The row of a peer; on the loop that is judged, if `keys` name no other."""
        wanted = {"measure": measure, "peer": peer, "loop": self._main, **keys}
        return next((row for row in self._rows if _matches(row, wanted)), None)

    def latency(self, peer: str, length: int, load: str = "steady", **keys: Any) -> Row | None:
        """The row of a latency."""
        return self.find("latency", peer, length_ns=length, load=load, **keys)

    def throughput(self, peer: str, streams: int, length: int, **keys: Any) -> Row | None:
        """The row of a throughput."""
        setting = {"streams": streams, "length_ns": length, "neighbours": 0, **keys}
        return self.find("throughput", peer, **setting)

    def patterns_of(self, measure: str) -> list[str]:
        """The patterns that were measured."""
        rows = (row for row in self._rows if row["set"] == measure and row["measure"] == "patterns")
        return list(dict.fromkeys(row["pattern"] for row in rows))

    def has(self, **keys: Any) -> bool:
        """Whether something was measured."""
        return any(_matches(row, keys) for row in self._rows)


def _matches(row: Row, wanted: dict[str, Any]) -> bool:
    return all(row.get(key) == value for key, value in wanted.items())


# ----------------------------------------------------------------------------------------- figures


def _compare(
    ours: Any, theirs: Any, statistic: Any = stats.ratio_of_medians, by: float = 1
) -> Figure:
    """A statistic of two lists of values, multiplied; `None` if one of them is missing or empty."""
    if not ours or not theirs or (statistic is stats.ratio_of_means and not sum(theirs)):
        return None
    low, high = stats.bootstrap(statistic, ours, theirs)
    return by * float(statistic(ours, theirs)), (by * low, by * high), min(len(ours), len(theirs))


def _of(row: Row | None, key: str) -> list[float] | None:
    """A row's list of values."""
    return row[key] if row else None


def _each(row: Row | None, key: str) -> list[float] | None:
    """The figures of a row's windows."""
    return [window[key] for window in row["windows"] if window[key]] if row else None


def _latencies(ours: Row | None, theirs: Row | None) -> Figure:
    return _compare(_of(ours, "latency_ns"), _of(theirs, "latency_ns"))


def _windows(ours: Row | None, theirs: Row | None, key: str) -> Figure:
    """Of the medians of windows that were taken in turn."""
    return _compare(_each(ours, key), _each(theirs, key))


def _cpu(ours: Row | None, theirs: Row | None) -> Figure:
    """Of the shares of a core: each side's CPU divided by the time that it waited."""
    if not ours or not theirs:
        return None
    walls = theirs["wall_ns"] / theirs["samples"] / (ours["wall_ns"] / ours["samples"])
    return _compare(ours["cpu_ns"], theirs["cpu_ns"], stats.ratio_of_means, walls)


def _rounds(ours: Row | None, theirs: Row | None, key: str) -> Figure:
    """The median ratio of two windows of a round: what drifts between rounds hits both of them."""
    if not ours or not theirs:
        return None
    known = {window["round"]: window[key] for window in theirs["windows"] if window[key]}
    ratios = [
        window[key] / known[window["round"]]
        for window in ours["windows"]
        if window[key] and window["round"] in known
    ]
    return _single(ratios, stats.medians) if ratios else None


def _single(values: list[float], statistic: Any, by: float = 1) -> Figure:
    """A statistic of one list of values, multiplied."""
    low, high = stats.bootstrap(statistic, values)
    return by * float(statistic(values)), (by * low, by * high), len(values)


def _late(row: Row | None, percent: float, key: str = "latency_ns") -> Figure:
    """A percentile in ms, by order statistics."""
    if not row or not row[key]:
        return None
    low, high = stats.percentile_interval(row[key], percent)
    return _at(row, percent, key), (low / MS, high / MS), len(row[key])


def _at(row: Row, percent: float, key: str = "latency_ns") -> float:
    """A percentile in ms."""
    return float(stats.percentile(row[key], percent)) / MS


def _tail(whole: Row | None, windows: list[float] | None, key: str) -> Figure:
    """A percentile of all windows in ms, and the interval of the single windows' median with it."""
    if not whole or not windows:
        return None
    figure = whole[key] / 1e3
    low, high = stats.median_interval(windows)
    return figure, (min(low / 1e3, figure), max(high / 1e3, figure)), whole["samples"]


def _end(figure: Figure, which: int) -> Figure:
    """One end of the interval in place of the figure."""
    return figure and (figure[1][which], figure[1], figure[2])


# ----------------------------------------------------------------------------- the measure "goals"


def _short(rows: _Rows) -> Iterator[Goal]:
    ours = rows.latency(AUTO, 20 * US)
    for peer, bound in (("blocking", 1.3), ("cupy", 0.3), (rows.thread, 0.4)):
        figure = _latencies(ours, rows.latency(peer, 20 * US))
        yield goal("20 us kernel", f"latency / {peer}", figure, "<=", bound)


def _steady(rows: _Rows) -> Iterator[Goal]:
    """Steady work, and work that varies."""
    for load in ("steady", "varying"):
        for length in STEADY:
            latency, cpu = STEADY_GOALS[length]
            if load == "varying":
                latency, cpu = VARYING_LATENCY, VARYING_CPU * cpu
            both = rows.latency(AUTO, length, load), rows.latency(rows.thread, length, load)
            group, what = f"{load} work", f"{duration(length)} / {rows.thread}"
            yield goal(group, f"latency, {what}", _latencies(*both), "<=", latency)
            yield goal(group, f"CPU, {what}", _cpu(*both), "<=", cpu)


def _enqueued(rows: _Rows) -> Iterator[Goal]:
    """Another way to wait for the same."""
    for length in ENQUEUED:
        figure = _latencies(rows.latency(ENQUEUE, length), rows.latency(AUTO, length))
        what = f"latency, {duration(length)} / synchronize_async"
        yield goal("enqueue_async", what, figure, "<=", ENQUEUE_LATENCY)


def _unpredictable(rows: _Rows) -> Iterator[Goal]:
    """Work of which nothing can be known."""
    group, lengths = "unpredictable work", "50 us to 50 ms"
    ours, plain, without = (
        rows.latency(peer, 0, "unpredictable") for peer in (AUTO, HOSTFUNC, UNPREDICTED)
    )
    figure = _latencies(ours, plain)
    yield goal(group, f"latency, {lengths} / host function", figure, "<=", 1.0)
    yield goal(group, f"CPU, {lengths} / unpredicted stages", _cpu(ours, without), "<=", 1.5)
    lone, plain = (rows.latency(peer, 100 * MS, "fresh") for peer in (AUTO, HOSTFUNC))
    figure = _latencies(lone, plain)
    yield goal(group, "latency, a lone 100 ms / host function", figure, "<=", 1.1)
    scale = 100 * lone["samples"] / lone["wall_ns"] if lone else 0
    figure = _single(lone["cpu_ns"], stats.means, scale) if lone else None
    yield goal(group, "CPU, a lone 100 ms", figure, "<=", 2.5, "%")


def _throughput(rows: _Rows) -> Iterator[Goal]:
    """Many streams."""
    group, rate, setting = "128 streams x 5 ms", "completions per second", (128, 5 * MS)
    ours = rows.throughput(AUTO, *setting)
    for peer, bound in (("polling", 1.0), (HOSTFUNC, 14.0), (rows.thread, 3.0)):
        figure = _windows(ours, rows.throughput(peer, *setting), "per_second")
        yield goal(group, f"{rate} / {peer}", figure, ">=", bound)
    cores = [window["cores"] for window in ours["windows"]] if ours else []
    figure = (stats.median(cores), stats.median_interval(cores), len(cores)) if cores else None
    yield goal(group, "cores busy", figure, "<=", 1.1, "cores")
    group, setting = "64 tasks x empty kernels", (64, 0)
    ours, polling, cupy = (rows.throughput(name, *setting) for name in (AUTO, "polling", "cupy"))
    yield goal(group, f"{rate} / polling", _windows(ours, polling, "per_second"), ">=", 0.9)
    figure = _windows(ours, polling, "cpu_us")
    yield goal(group, "CPU per completion / polling", figure, "<=", 1.3)
    yield goal(group, f"{rate} / cupy", _windows(ours, cupy, "per_second"), ">=", 2.7)
    group, setting = "126 x 0.5 ms beside 2 x 1.2 s", (126, 500 * US)
    ours, polling = (rows.throughput(name, *setting, neighbours=2) for name in (AUTO, "polling"))
    yield goal(group, f"{rate} / polling", _windows(ours, polling, "per_second"), ">=", 1.0)
    yield goal(group, "CPU / polling", _windows(ours, polling, "cores"), "<=", 1.3)


def _beside(rows: _Rows) -> Iterator[Goal]:
    """The GPU's idle time, the loop's lag, and many waits at once."""
    settings = [(AUTO, length, False) for length in (100 * US, 1 * MS, 20 * MS)]
    settings += [(AUTO, 60 * MS, True), (UNPREDICTED, 60 * MS, True)]
    for peer, length, busy in settings:
        row = rows.find("idle", peer, length_ns=length, python_busy=busy)
        short = f"{', Python busy' if busy else ''}, {peer.removeprefix('aiostream ')}"
        gaps = _of(row, "with_ns"), _of(row, "without_ns")
        figure = _compare(*gaps, stats.difference, 1e-3)
        yield goal("GPU idle added", f"after {duration(length)}{short}", figure, "<=", 2.0, "us")
    ours, plain = (_of(rows.find("lag", peer), "lag_ns") for peer in (AUTO, PLAIN))
    figure = _compare(ours, plain, stats.difference_of_p99, 1e-6)
    what = "p99 less that of plain futures"
    yield goal("loop lag, 64 x 5 ms", what, figure, "<=", 0.2, "ms")
    group = "10,000 pending waits"
    many, few = (_of(rows.find("pending", AUTO, pending=n), "costs_us") for n in (10_000, 100))
    yield goal(group, "CPU per completion / at 100 pending", _compare(many, few), "<=", 1.2)
    for by, words in (("traced", "Python's allocators"), ("rss", "resident")):
        found = (rows.find("memory", peer, by=by, loop="asyncio") for peer in (AUTO, PLAIN))
        ours, plain = (_of(row, "values") for row in found)
        figure = _compare(ours, plain, stats.difference)
        yield goal(group, f"beyond task and future, {words}", figure, "<=", 512, "bytes")


def _trio(rows: _Rows) -> Iterator[Goal]:
    """Trio against asyncio with its own loop."""
    loops = ("trio", "asyncio")
    for streams, length in TRIO_THROUGHPUT:
        trio, own = (rows.throughput(AUTO, streams, length, loop=loop) for loop in loops)
        what = f"completions per second, {streams} x {duration(length)} / asyncio"
        yield goal("trio", what, _windows(trio, own, "per_second"), ">=", 0.6)
    for length in LENGTHS:
        both = (rows.latency(AUTO, length, loop=loop) for loop in loops)
        waits, own_waits = (_of(row, "latency_ns") for row in both)
        figure = _compare(waits, own_waits, stats.difference, 1e-3)
        yield goal("trio", f"latency, {duration(length)}, less asyncio's", figure, "<=", 30, "us")


# --------------------------------------------------------------------------------------- late ends


def _patterns(rows: _Rows) -> Iterator[Goal]:
    """Late ends, against a thread for each wait. A bound "by" a peer is that peer's own figure."""
    group, thread = "patterns", rows.thread
    for name in rows.patterns_of("patterns"):
        ours, theirs, enqueued = (
            rows.find("patterns", peer, pattern=name, set="patterns")
            for peer in (AUTO, thread, ENQUEUE)
        )
        for percent, factor in ((90, 1.0), (99, 1.25)):
            bound = max(ENOUGH, factor * _at(theirs, percent)) if theirs else ENOUGH
            figure = _late(ours if theirs else None, percent)
            yield goal(group, f"p{percent}, {name}, bound by {thread}", figure, "<=", bound, "ms")
        if name.startswith(("alternating", "bimodal")):
            yield goal(group, f"median, {name} / {thread}", _latencies(ours, theirs), "<=", 0.7)
        if enqueued:
            what = f"median of enqueue_async, {name} / synchronize_async"
            yield goal(group, what, _latencies(enqueued, ours), "<=", ENQUEUE_LATENCY)
        if ours and ours["mean_ns"] >= 1 * MS:
            shares = _of(ours, "cpu_shares"), _of(theirs, "cpu_shares")
            figure = _compare(*shares, stats.ratio_of_means)
            yield goal(group, f"CPU, {name} / {thread}", figure, "<=", 0.2)


def _mixed(rows: _Rows) -> Iterator[Goal]:
    """Late ends among many streams with short and long kernels."""
    for streams in MIXED_STREAMS:
        if not rows.has(set="mixed", streams=streams):
            continue
        ours, polling = (rows.find("mixed", peer, streams=streams) for peer in (AUTO, "polling"))
        group, p99 = f"mixed, {streams} streams", _tail(ours, _each(ours, "p99_us"), "p99_us")
        yield goal(group, "p99", p99, "<=", 1.0, "ms")
        figure = _tail(ours, _each(ours, "p999_us"), "p999_us")
        yield goal(group, "p99.9", figure, "<=", 3.0, "ms")
        upper = _end(_windows(ours, polling, "per_second"), 1)
        yield goal(group, "completions per second / polling, upper end", upper, ">=", 0.95)


def _fairness(rows: _Rows) -> Iterator[Goal]:
    """Tasks and timers that starve."""
    if not rows.has(set="fairness"):
        return
    group = "fairness"
    ours, polling = (rows.find("fairness", peer, set="fairness") for peer in (AUTO, "polling"))
    ratios = _each(ours, "ratio")
    figure = (stats.median(ratios), stats.median_interval(ratios), len(ratios)) if ratios else None
    yield goal(group, "most / fewest completions of a task", figure, "<=", 1.5)
    bound = 1.2 * polling["timer"]["p99_us"] / 1e3 if polling else 0.0
    figure = _late(ours if polling else None, 99, "timer_ns")
    yield goal(group, "p99 of a 1 ms timer, bound by polling", figure, "<=", bound, "ms")


def _one_core(rows: _Rows) -> Iterator[Goal]:
    """Waits whose threads and loop share one core."""
    for name in rows.patterns_of("one-core"):
        ours, sleeping = (
            rows.find("patterns", peer, pattern=name, set="one-core") for peer in (AUTO, SLEEPING)
        )
        bound = _at(sleeping, 99) if sleeping else 0.0
        figure = _late(ours if sleeping else None, 99)
        yield goal("one core", f"p99, {name}, bound by {SLEEPING}", figure, "<=", bound, "ms")


# ----------------------------------------------------------------------------------------- servers


def _busy_server(rows: _Rows) -> Iterator[Goal]:
    """As many requests per second as it can serve."""
    load, group = BUSY.name, f"server, {BUSY.name}"
    if not rows.has(load=load):
        return
    rate, key = "requests per second", "per_second"
    ours, polling, thread = (
        rows.find("server", peer, load=load) for peer in (AUTO, "polling", THREADS[1])
    )
    lower = _end(_rounds(ours, polling, key), 0)
    yield goal(group, f"{rate} / polling, lower end", lower, ">=", 0.97)
    yield goal(group, f"{rate} / {THREADS[1]}", _rounds(ours, thread, key), ">=", 3.5)
    for peer in SERVED[1:]:
        figure = _rounds(rows.find("server", peer, load=load), ours, key)
        yield goal(group, f"{rate}, {peer} / synchronize_async", figure, ">=", 0.9)


def _open_server(rows: _Rows) -> Iterator[Goal]:
    """How late requests are that arrive by chance, and what they cost."""
    load, group = OPEN.name, f"server, {OPEN.name}"
    if not rows.has(load=load):
        return
    polling, known = (rows.find("server", peer, load=load) for peer in ("polling", KNOWN))
    for peer in SERVED:
        ours, name = (
            rows.find("server", peer, load=load),
            peer if peer != AUTO else "synchronize_async",
        )
        # Polling never sleeps. A timer that knows the length is the floor of a loop that does.
        late, cpu = _rounds(ours, known, "beyond_p99_us"), _rounds(ours, polling, "cpu_us")
        yield goal(group, f"p99 beyond the kernel, {name} / {KNOWN}", late, "<=", 1.25)
        yield goal(group, f"CPU per request, {name} / polling", cpu, "<=", 0.45)
