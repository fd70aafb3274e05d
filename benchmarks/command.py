"""The command line of `python -m benchmarks`."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import (
    peers,
    pictures,
    plan,
    results,
    serving,
    tables,
    torch_server,
    torch_ways,
    work,
)
from benchmarks import server as servers
from benchmarks.child import reason
from benchmarks.loops import LOOPS, missing
from benchmarks.measure import Measure, Row
from benchmarks.runner import Runner

DESCRIPTION = """Compares the ways to wait for the GPU from Python: late ends, completions, CPU,
servers. With AIOSTREAM_SIMULATOR=1 it runs on the simulator, and then its figures say nothing about
a GPU."""
WIDE = 200  # columns, where the output is no terminal


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=DESCRIPTION)
    add = parser.add_argument
    known = ", ".join(("all", *plan.MEASURES))
    also = ", ".join(plan.ON_REQUEST)
    add("measures", nargs="*", help=f"some of: {known}; and, not among all: {also} (default: all)")
    add(
        "--loops",
        help="some of: uvloop, asyncio, trio (default: uvloop)",
    )
    add("--peers", help="only these peers, by name, separated by commas")
    add("--patterns", help="only the patterns whose names have one of these words")
    add(
        "--loads",
        help="only the loads of servers whose names have one of these words; all: every load",
    )
    add(
        "--rounds",
        type=int,
        help=f"in how many rounds {', '.join((*plan.TAILS, *plan.SERVERS))} are measured",
    )
    add(
        "--quick",
        action="store_true",
        help="as little of everything as shows that it works: seconds",
    )
    add(
        "--for", dest="limit", type=float, metavar="SECONDS", help="begin nothing new after so long"
    )
    add("--json", type=Path, metavar="FILE", help="where the results go (default: by date, here)")
    add("--append", action="store_true", help="add to the results that the file has already")
    add(
        "--figure",
        type=Path,
        metavar="FILE",
        help="draw what there is, as SVG, with the file's name before each one's own",
    )
    add(
        "--show",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print the tables of results files, with --figure draw them, and measure nothing",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark, and returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, emoji=False, soft_wrap=True, width=WIDE)
    try:
        if options.show:
            return _show(options, console)
        return _Run(options, console).run()
    except (OSError, ValueError, pictures.UnavailableError) as error:
        parser.error(str(error))
    except RuntimeError as error:
        print(f"The benchmark did not get through: {reason(error)}", file=sys.stderr)
        return 1


def _show(options: argparse.Namespace, console: Console) -> int:
    files = [results.read(path) for path in options.show]
    for found in files:
        if not options.figure:
            console.print(tables.tables(found))
    if options.figure:
        for picture in pictures.draw(files, options.figure):
            console.print(str(picture))
    return 0


def _chosen(
    what: str, names: Sequence[str], known: Sequence[str], every: Sequence[str]
) -> list[str]:
    """The names, with all of `every` in the place of "all".

    Raises:
        ValueError: There is no such name.
    """
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"{what}: there is no {name!r}; choose from {', '.join(known)}")
    found = [each for name in names for each in (every if name == "all" else (name,))]
    return list(dict.fromkeys(found))


def _words(what: str, value: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Words, each of which is in one of the names.

    Raises:
        ValueError: A word is in none.
    """
    words = _split(value)
    for word in words:
        if not any(word in name for name in known):
            raise ValueError(f"{what}: no name has {word!r} in it; they are: {'; '.join(known)}")
    return words


def _split(value: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (value or "").split(",") if word.strip())


class _Run:
    """One run of the benchmark, by the options.

    Raises:
        ValueError: The options make no sense.
    """

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options, self._console = options, console
        every = (*plan.MEASURES, *plan.ON_REQUEST)
        self._measures = _chosen("measures", options.measures or ["all"], every, plan.MEASURES)
        loops = _split(options.loops) or LOOPS[:1]
        self._loops = _chosen("--loops", loops, LOOPS, LOOPS)
        self._known = list(peers.all_peers())
        names = list(dict.fromkeys([*self._known, *serving.WAYS, *torch_ways.WAYS]))
        asked = _split(options.peers)
        self._asked = _chosen("--peers", asked, names, self._known) if asked else None
        loads = [*servers.LOADS, *torch_server.LOADS]
        every_load = tuple(loads) if options.loads == "all" else None
        if options.rounds is not None and options.rounds < 1:
            raise ValueError("--rounds must be at least 1")
        self._cut = plan.Cut(
            quick=options.quick,
            rounds=options.rounds,
            words=_words("--patterns", options.patterns, list(work.patterns(0, 1))),
            loads=every_load or _words("--loads", options.loads, loads),
        )
        self._began = time.monotonic()

    def run(self) -> int:
        """Measures, and prints what was found."""
        absent = [text for text in map(missing, self._loops) if text]
        if len(absent) == len(self._loops):
            self._say(f"{'; '.join(absent)}. asyncio's own loop is measured instead.")
            self._loops = ["asyncio"]
        with contextlib.closing(Runner(self._loops, self._tried(), say=self._say)) as runner:
            found, path = self._measure(runner)
        self._console.print(tables.tables(found))
        self._say(f"Results: {path}")
        if self._options.figure:
            for picture in pictures.draw([found], self._options.figure):
                self._say(f"Figure: {picture}")
        return 0

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def _peers_of(self, measure: str) -> list[str]:
        return plan.peers_of(measure, self._asked, self._known)

    def _tried(self) -> list[str]:
        """The peers that any measure needs. Those of the servers are tried out where they wait."""
        tried = (
            name
            for each in self._measures
            for name in self._peers_of(each)
            if each not in plan.SERVERS
        )
        return [name for name in dict.fromkeys(tried) if name in self._known]

    def _jobs(self, measure: str, runner: Runner) -> list[Measure]:
        loops = [loop for loop in self._loops if loop in runner.loops]
        wanted = self._peers_of(measure)
        if measure not in plan.SERVERS and loops:
            wanted = runner.taking_part(wanted, loops[0])
        return plan.jobs(measure, loops, wanted, self._cut)

    def _measure(self, runner: Runner) -> tuple[Row, Path]:
        options = self._options
        self._say(f"trying out {len(runner.peers)} peers on {', '.join(runner.loops)}")
        runner.try_out()
        by_date = f"aiostream-bench-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
        path = options.json or Path(by_date)
        asked = {"measures": self._measures, "loops": self._loops, "quick": options.quick}
        earlier = results.read(path) if options.append and path.exists() else None
        found = results.describe(runner, asked, earlier)
        for measure, ways in (("server", serving.WAYS), ("torch", torch_ways.WAYS)):
            if measure in self._measures:
                summaries = {name: ways[name][0] for name in self._peers_of(measure)}
                found["peers"] = {**summaries, **found["peers"]}
        work_list = [(each, job) for each in self._measures for job in self._jobs(each, runner)]
        if earlier is not None:
            now = {f"{measure}: {job.title}" for measure, job in work_list}
            runner.not_run[:0] = [entry for entry in earlier["not_run"] if entry["peer"] not in now]
        self._work_off(work_list, runner, found, path)
        return found, path

    def _work_off(
        self, work_list: list[tuple[str, Measure]], runner: Runner, found: Row, path: Path
    ) -> None:
        """Measures one setting after the other, and writes the results after each."""
        estimates = [job.seconds() for _, job in work_list]
        limit, begun = self._options.limit, time.monotonic()
        self._say(f"{len(work_list)} settings, about {clock(sum(estimates))} min")
        try:
            for number, (measure, job) in enumerate(work_list):
                name = f"{measure}: {job.title}"
                if limit is not None and time.monotonic() - self._began > limit:
                    runner.leave_out(name, "", f"--for {limit:g} was over")
                    continue
                gone, done = time.monotonic() - begun, sum(estimates[:number])
                left = sum(estimates[number:]) * (gone / done if done > 5 else 1)
                place = f"{number + 1}/{len(work_list)}"
                self._say(f"[{place}, {clock(gone)}, about {clock(left)} left] {name}")
                try:
                    rows = [{"set": measure, **row} for row in job.run(runner)]
                except Exception as error:  # one setting that fails does not cost the others
                    runner.leave_out(name, "", reason(error))
                    continue
                results.add(found, rows)
                self._write(found, runner, path)
        except KeyboardInterrupt:
            self._say("interrupted")
        finally:
            self._write(found, runner, path)

    @staticmethod
    def _write(found: Row, runner: Runner, path: Path) -> None:
        known = {(each["peer"], each["loop"], each["reason"]): each for each in runner.not_run}
        found["not_run"] = list(known.values())
        results.write(found, path)


def clock(seconds: float) -> str:
    """`4:10`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
