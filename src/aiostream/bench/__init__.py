"""`python -m aiostream bench`: the ways to wait for the GPU from Python, side by side in one process.

The peers take turns in several rounds, so that whatever drifts hits all alike; what is reported is medians with their spread.
The results are written after every setting, so that a run that was interrupted leaves what it had.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOOPS = ("uvloop", "asyncio", "trio")
TABLES = ("goals", "latency", "busy", "throughput", "idle", "lag", "pending", "memory", "import")
MEASURES = (*TABLES, "patterns", "mixed", "fairness", "one-core", "server")
ON_REQUEST = ("torch",)
SERVERS = ("server", "torch")
DESCRIPTION = (
    "Compares the ways to wait for the GPU from Python: latency, throughput, CPU, the GPU's idle time, the loop's lag, memory; "
    "and says whether this library reaches its goals. With AIOSTREAM_SIMULATOR=1 it runs on the simulator, and then its figures "
    "say nothing about a GPU."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    on_request = f"and, not among all: {','.join(ON_REQUEST)}"
    parser.add_argument(
        "--measures",
        default="all",
        help=f"some of: all, %(metavar)s (default: all); {on_request}",
        metavar=",".join(MEASURES),
    )
    parser.add_argument(
        "--loops",
        help="some of: uvloop, asyncio, trio (default: uvloop; goals also compare trio with asyncio)",
    )
    parser.add_argument(
        "--peers",
        help="only these peers in the tables, by name, separated by commas (--list names them)",
    )
    parser.add_argument(
        "--patterns",
        help="only the patterns whose names have one of these words, separated by commas",
    )
    parser.add_argument(
        "--loads",
        help="only the loads of server and torch whose names have one of these words; all: more than the usual ones",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="in how many rounds patterns, mixed, fairness, one-core, server and torch are measured",
    )
    parser.add_argument(
        "--older",
        type=Path,
        metavar="WHEEL",
        help="an older aiostream, too: patterns, mixed, fairness, server",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the peers and how long each measure takes, and measure nothing",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="as little of everything as shows that it works: seconds",
    )
    parser.add_argument(
        "--for", dest="limit", type=float, metavar="SECONDS", help="begin nothing new after so long"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.json",
        help="where the results go (default: by date, here)",
    )
    parser.add_argument(
        "--append", action="store_true", help="add to the results that the output file has already"
    )
    parser.add_argument(
        "--show",
        type=Path,
        metavar="FILE.json",
        help="print the tables of a results file, and measure nothing",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.json",
        help="draw a results file as PNG and SVG, and measure nothing",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with options of its own command line, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m aiostream bench", description=DESCRIPTION)
    add_arguments(parser)
    return run(parser, parser.parse_args(arguments))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Does what the options say, and returns the exit code."""
    if options.show or options.plot:
        return _reuse(parser, options)
    from aiostream import CudaError, NoDriverError

    measures = _chosen(parser, "--measures", options.measures, (*MEASURES, *ON_REQUEST), MEASURES)
    loops = _chosen(parser, "--loops", options.loops, LOOPS) if options.loops else ["uvloop"]
    try:
        return _measure(parser, options, measures, loops)
    except (CudaError, NoDriverError) as error:
        print(f"The benchmark did not get through: {error}", file=sys.stderr)
        return 1


def _chosen(
    parser: argparse.ArgumentParser,
    option: str,
    value: str,
    known: Sequence[str],
    every: Sequence[str] | None = None,
) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in known and name != "all":
            parser.error(f"{option}: there is no {name!r}; choose from {', '.join(known)}")
    if "all" not in names:
        return names
    return list(
        dict.fromkeys(
            [*(known if every is None else every), *(name for name in names if name != "all")]
        )
    )


def _reuse(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from aiostream.bench import goals, plot, report

    try:
        results = report.read(options.show or options.plot)
        if options.show:
            results["goals"] = goals.judge(results["rows"])
            print(report.tables(results))
            return 0
        for path in plot.draw(results, options.plot):
            print(path)
    except (OSError, ValueError, plot.UnavailableError) as error:
        parser.error(str(error))
    return 0


def _measure(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    measures: list[str],
    loops: list[str],
) -> int:
    from aiostream.bench import peers, report, serving, torch_ways
    from aiostream.bench.companion import WAITS, Companion
    from aiostream.bench.runner import Runner

    known = list(peers.all_peers())
    served = [name for name in serving.WAYS if options.older or name not in WAITS]
    every = list(dict.fromkeys([*known, *served, *torch_ways.WAYS]))
    names = _chosen(parser, "--peers", options.peers, every) if options.peers else known
    _check_words(parser, options)
    if options.list:
        _list(options, loops, names)
        return 0
    progress = Progress(options.limit)
    loops = _installed(loops, progress)
    wanted = (
        loops
        if "goals" not in measures or options.quick
        else list(dict.fromkeys([*loops, "asyncio", "trio"]))
    )
    simulator = _on_simulator()
    companion = None
    if options.older:
        try:
            companion = Companion(options.older, simulator=simulator)
        except (OSError, RuntimeError) as error:
            parser.error(f"--older: {error}")
    runner = Runner(
        wanted, _tried(options, measures, names), simulator=simulator, say=progress.note
    )
    try:
        if companion is not None:
            runner.add(companion)
            progress.note(
                f"the older library is version {companion.version} of {options.older.name}"
            )
        progress.note(f"trying out {len(runner.peers)} peers on {', '.join(wanted)}")
        runner.try_out()
        path = options.output or Path(
            f"aiostream-bench-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
        )
        asked = {"measures": measures, "loops": loops, "quick": options.quick}
        if options.older:
            asked["older"] = options.older.name
        earlier = report.read(path) if options.append and path.exists() else None
        results = report.describe(runner, asked, earlier)
        for measure, ways in (("server", serving.WAYS), ("torch", torch_ways.WAYS)):
            if measure in measures:
                summaries = {name: ways[name][0] for name in _names(options, measure, names)}
                results["peers"] = {**summaries, **results["peers"]}
        _work_off(
            _settings(options, runner, measures, loops, names),
            runner,
            progress,
            results,
            path,
            earlier,
        )
    finally:
        runner.close()
    print(f"\n{report.tables(results)}\n\nResults: {path}")
    _draw_if_possible(results, path)
    return 0


def _check_words(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Makes the options lists of words, each of which is in the name of a pattern, or of a load."""
    from aiostream.bench import server, torch_server, turns

    options.patterns = _words(
        parser, "--patterns", "pattern", options.patterns, list(turns.patterns(0, 1))
    )
    loads = [*server.LOADS, *torch_server.LOADS]
    options.loads = (
        loads if options.loads == "all" else _words(parser, "--loads", "load", options.loads, loads)
    )
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")


def _words(
    parser: argparse.ArgumentParser, option: str, what: str, value: str | None, known: Sequence[str]
) -> list[str]:
    words = [word.strip() for word in (value or "").split(",") if word.strip()]
    for word in words:
        if not any(word in name for name in known):
            parser.error(
                f"{option}: no {what} has {word!r} in its name; they are: {'; '.join(known)}"
            )
    return words


def _installed(loops: list[str], progress: Progress) -> list[str]:
    """The loops that can be used, or asyncio in their place."""
    from aiostream.bench.loops import missing

    reasons = [reason for reason in map(missing, loops) if reason]
    if len(reasons) < len(loops):
        return loops
    progress.note(f"{'; '.join(reasons)}. asyncio's own loop is measured instead.")
    return ["asyncio"]


def _settings(
    options: argparse.Namespace,
    runner: Any,
    measures: list[str],
    loops: list[str],
    names: list[str],
) -> list[tuple[str, Any]]:
    """What is to be measured: (measure, job)."""
    if "goals" in measures:
        measures = [
            measure for measure in measures if measure != "memory"
        ]  # the goals measure just that
    loops = [loop for loop in loops if loop in runner.loops]
    found: list[tuple[str, Any]] = []
    for measure in measures:
        of_measure = runner.loops if measure == "goals" else loops
        wanted = list(runner.peers) if measure == "goals" else _names(options, measure, names)
        if measure in SERVERS:  # their peers are tried out where they wait: in the server
            found += [(measure, job) for job in _jobs(options, measure, of_measure, wanted)]
            continue
        able = [peer.name for peer in runner.taking_part(wanted, of_measure[0])]
        found += [(measure, job) for job in _jobs(options, measure, of_measure, able)]
    return found


def _names(options: argparse.Namespace, measure: str, names: list[str]) -> list[str]:
    """The peers of a measure: those that were asked for, or its own choice, and the older library's."""
    from aiostream.bench import companion, plan, server, serving, torch_server, torch_ways

    if measure == "torch":
        return [
            name
            for name in (names if options.peers else torch_server.PEERS)
            if name in torch_ways.WAYS
        ]
    older = [name for name in companion.WAITS if name in names] or list(companion.WAITS)
    older = older if options.older and measure != "one-core" else []
    names = [name for name in names if name not in companion.WAITS]
    if measure == "server":
        return [
            *(name for name in (names if options.peers else server.PEERS) if name in serving.WAYS),
            *older,
        ]
    names = [name for name in names if name not in serving.ONLY and name not in torch_ways.ONLY]
    if measure not in plan.TAILS:
        return names
    return [*(names if options.peers else plan.TAIL_PEERS), *older]


def _tried(options: argparse.Namespace, measures: list[str], names: list[str]) -> list[str] | None:
    """The peers that any of the measures needs; `None` for all."""
    from aiostream.bench import companion

    if "goals" in measures:
        return None
    needed = [
        name
        for measure in measures
        if measure not in SERVERS
        for name in _names(options, measure, names)
    ]
    return [name for name in dict.fromkeys(needed) if name not in companion.WAITS]


def _jobs(
    options: argparse.Namespace, measure: str, loops: Sequence[str], names: Sequence[str]
) -> list[Any]:
    from aiostream.bench import plan

    cut = {
        "quick": options.quick,
        "rounds": options.rounds,
        "words": options.patterns,
        "loads": options.loads,
    }
    return list(plan.jobs(measure, loops, names, **cut))


def _work_off(
    work: list[tuple[str, Any]],
    runner: Any,
    progress: Progress,
    results: dict[str, Any],
    path: Path,
    earlier: dict[str, Any] | None,
) -> None:
    """Measures one setting after the other, and writes the results after each."""
    from aiostream.bench import goals, report

    if earlier is not None:
        now = {_name(measure, job) for measure, job in work}
        runner.not_run[:0] = [entry for entry in earlier["not_run"] if entry["peer"] not in now]
    progress.begin([job.seconds() for _, job in work])
    try:
        for measure, job in work:
            if progress.over():
                runner.leave_out(_name(measure, job), "", f"{progress.limit} was over")
                continue
            progress.next(measure, job.title, job.seconds())
            try:
                rows = [{"set": measure, **row} for row in job.run(runner)]
            except (
                Exception
            ) as error:  # one setting that cannot be measured does not cost the others
                runner.leave_out(_name(measure, job), "", error)
                continue
            progress.done(rows)
            report.add(results, rows)
            results["goals"] = goals.judge(results["rows"]) if goals.judged(results["rows"]) else []
            results["not_run"] = _unique(runner.not_run)
            report.write(results, path)
    except KeyboardInterrupt:
        progress.note("interrupted")
    finally:
        results["not_run"] = _unique(runner.not_run)
        report.write(results, path)


def _name(measure: str, job: Any) -> str:
    return f"{measure}: {job.title}"


def _on_simulator() -> bool:
    from aiostream import _driver, simulator

    _driver.bindings()
    return simulator.installed()


def _unique(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(
        {(entry["peer"], entry["loop"], entry["reason"]): entry for entry in entries}.values()
    )


def _list(options: argparse.Namespace, loops: list[str], names: list[str]) -> None:
    """Prints the peers and the measures. It needs no driver."""
    from aiostream.bench import peers, plan, server, serving, torch_server, torch_ways

    summaries = {
        name: way[0] for ways in (torch_ways.WAYS, serving.WAYS) for name, way in ways.items()
    }
    summaries |= {name: peer.summary for name, peer in peers.all_peers().items()}
    only = {"server": serving.ONLY, "torch": torch_ways.ONLY}
    for name in names:
        print(f"{name:24}{summaries[name]}")
    if not options.peers:
        for measure, ways in only.items():
            for name in ways:
                print(f"{name:24}{summaries[name]}; of the measure {measure} only")
    print()
    missing = {"server": server.missing(), "torch": torch_server.missing()}
    for measure in (*plan.MEASURES, *plan.ON_REQUEST):
        on = ["uvloop", "asyncio", "trio"] if measure == "goals" else loops
        of_measure = names if measure == "goals" else _names(options, measure, names)
        seconds = sum(job.seconds() for job in _jobs(options, measure, on, of_measure))
        note = "; not among all" if measure in ON_REQUEST else ""
        note += f"; not here: {missing[measure]}" if missing.get(measure) else ""
        print(f"{measure:12}about {clock(seconds)} min on {', '.join(on)}{note}")


def _draw_if_possible(results: dict[str, Any], path: Path) -> None:
    from aiostream.bench import plot

    try:
        drawn = plot.draw(results, path)
    except plot.UnavailableError as reason:
        print(f"No plot: {reason}")
    else:
        for picture in drawn:
            print(f"Plot: {picture}")


class Progress:
    """Says what is being measured, and about how long the rest will take, by how the estimates have held so far."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._started = time.monotonic()
        self._number = self._count = 0
        self._left = self._estimated = 0.0
        self._began = 0.0

    def note(self, text: str) -> None:
        """Prints a line."""
        print(text, flush=True)

    def begin(self, estimates: Sequence[float]) -> None:
        """Says how much there is to do."""
        self._count, self._left, self._began = len(estimates), sum(estimates), time.monotonic()
        self.note(f"{self._count} settings, about {clock(self._left)} min")

    @property
    def limit(self) -> str:
        """The option that says when the time is up."""
        return f"--for {self._limit:g}"

    def over(self) -> bool:
        """Whether the time is up."""
        return self._limit is not None and time.monotonic() - self._started > self._limit

    def next(self, measure: str, title: str, estimate: float) -> None:
        """Says what comes now."""
        self._number += 1
        gone = time.monotonic() - self._began
        scale = gone / self._estimated if self._estimated > 5 else 1.0
        rest = clock(scale * self._left)
        self._left, self._estimated = self._left - estimate, self._estimated + estimate
        self.note(
            f"[{self._number}/{self._count}, {clock(gone)}, about {rest} left] {measure}: {title}"
        )

    def done(self, rows: Sequence[dict[str, Any]]) -> None:
        """Says what was found, in a line for each loop."""
        by_loop: dict[str, dict[str, list[str]]] = {}
        for row in rows:
            by_loop.setdefault(row["loop"], {}).setdefault(row["peer"], []).append(short(row))
        for loop, by_peer in by_loop.items():
            found = "; ".join(f"{peer} {', '.join(figures)}" for peer, figures in by_peer.items())
            self.note(f"    {loop}: {found}" if loop else f"    {found}")


def short(row: dict[str, Any]) -> str:
    """A row's figure in a few characters."""
    measure = row["measure"]
    if measure == "latency":
        return f"{row['median_us']:.1f} us, {row['cpu_percent']:.3g} %"
    if measure == "throughput":
        return f"{row['per_second']:,.0f}/s, {row['cores']:.2f} cores"
    if measure == "idle":
        return f"{row['added_us']:.1f} us" if "added_us" in row else "none in time"
    if measure == "lag":
        return f"p99 {row['p99_us']:.0f} us"
    if measure in SERVERS:
        return f"{row['per_second']:,.0f}/s, p99 {row['p99_us'] / 1e3:.1f} ms"
    if measure == "mixed":
        return f"{row['per_second']:,.0f}/s, p99 {row['p99_us']:.0f} us"
    if measure == "fairness":
        return f"{row['per_second']:,.0f}/s, {row['ratio']:.2f} x, timer p99 {row['timer']['p99_us']:.0f} us"
    if measure == "patterns":
        return f"p99 {row['p99_us']:.0f} us"
    if measure == "pending":
        return f"{row['pending']:,}: {row['cpu_us']:.1f} us"
    if measure == "memory":
        return f"{row['by']} {row['bytes']:.0f} bytes"
    return f"{row['median_ms']:.1f} ms"


def clock(seconds: float) -> str:
    """`4:10`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
