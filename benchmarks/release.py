"""`python -m benchmarks release`: every figure that README and the pages quote, in one file.

    python -m benchmarks release --for 570       # what there is time for
    python -m benchmarks release --for 570       # the rest
    python -m benchmarks release --write         # the tables of the pages, and the pictures

All of it takes some 15 minutes of one GPU. It has parts, and the parts have settings. The file is
written after each setting, and what it has is not measured again. In each setting the ways take
turns in several rounds. A row has the median of each figure, and each round's own.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import engines, launches, pages, peers, results, stats, steps
from benchmarks.child import Child, reason
from benchmarks.clients import PROCESSES
from benchmarks.loops import LOOPS, missing
from benchmarks.measure import Measure, Row
from benchmarks.patterns import Patterns
from benchmarks.pictures import UnavailableError
from benchmarks.runner import Runner
from benchmarks.server import BUSY, OPEN, Load, Server
from benchmarks.torch_server import CAPTURED, EAGER, TorchServer
from benchmarks.torch_ways import WAYS as TORCH_WAYS
from benchmarks.windows import Mixed

FOLDER = Path(__file__).parent / "results"
NEW: Row = {"done": {}, "not_run": []}  # of a file
SAME = ("gpu", "driver", "cpu", "cores", "python", "aiostream", "torch")  # of one file

OURS = (peers.POOL_RUN, peers.RUN, peers.AUTO, peers.ENQUEUE, peers.IN_THREAD)
WAITS = (*OURS[:4], "polling", peers.SLEEPING, peers.THREADS[1])
PATTERNS = ("steady", "within", "log-uniform", "prefill", "heavy")
PEERS = (*(peers.POOL_RUN, "torch events", "cuda.core", "cuda.core in a thread", "ctypes", "cupy"),)
PEER_PATTERNS = ("steady 5", "log-uniform", "prefill")
STREAMS = (peers.POOL_RUN, peers.AUTO, "polling", peers.SLEEPING, peers.THREADS[1])
SERVER = (peers.POOL_RUN, peers.AUTO, peers.IN_THREAD, "polling", peers.SLEEPING, "to_thread 40")
LAUNCHES = (
    *("run_in_thread", "pool run", "ThreadPoolExecutor(2), then await stream"),
    "to_thread, blocking",
)
ENGINES = (
    *("granian RSGI", "granian RSGI x2", "bare ASGI", "aiostream graphs", "sketch graphs"),
    *("mosec graphs", "LitServe graphs", "to_thread graphs"),
)
STEPS = (
    *("Steps", "Steps, granian", "Steps, FastAPI", "one ahead by hand", "blocking thread"),
    "LitServe",
)


@dataclass(frozen=True)
class Setting:
    """What is measured at once, and written then.

    Attributes:
        part: One of `PARTS`.
        title: What it is.
        seconds: About how long it takes.
        run: Measures, and returns the rows.
    """

    part: str
    title: str
    seconds: float
    run: Callable[[Release], list[Row]]


def row(part: str, peer: str, where: Row, windows: list[Row]) -> Row:
    """A row: the medians of the rounds, and the rounds.

    Args:
        part: One of `PARTS`.
        peer: The way that was measured.
        where: What distinguishes the setting: `load` or `pattern`.
        windows: The figures of each round.
    """
    keys = dict.fromkeys(key for each in windows for key in each if key != "round")
    figures = {key: [each[key] for each in windows if each.get(key) is not None] for key in keys}
    medians = {key: round(stats.median(found), 4) for key, found in figures.items() if found}
    return {"set": part, "peer": peer, **where, **medians, "windows": windows}


# ------------------------------------------------------------------------------------- the parts


def _of_job(part: str, job: Measure, quick: bool) -> Setting:
    """A setting that a `Measure` measures."""
    if quick:
        job = replace(job, **job.QUICK)

    def run(release: Release) -> list[Row]:
        found = []
        runner = release.runner(() if isinstance(job, Server) else job.peers)
        for each in job.run(runner):
            where: Row = {key: each[key] for key in ("load", "pattern", "server") if key in each}
            if isinstance(job, Mixed):
                where["load"] = f"{job.streams} streams"
            found.append(row(part, each["peer"], where, each["windows"]))
        return found

    return Setting(part, f"{part}: {job.title}", job.seconds() + 3, run)


def _waits(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    job = Patterns(loops, WAITS, words=PATTERNS, waits=70, rounds=5)
    yield _of_job("waits", job, quick)


def _peers(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    job = Patterns(loops, PEERS, words=PEER_PATTERNS, waits=70, rounds=5)
    yield _of_job("peers", job, quick)


def _streams(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    for streams in (16,) if quick else (16, 64, 128):
        yield _of_job("streams", Mixed(loops, STREAMS, streams=streams, rounds=5), quick)


def _server(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    for load in (BUSY,) if quick else (BUSY, Load(128), OPEN):
        yield _of_job("server", Server(loops, SERVER, load=load, rounds=5), quick)


def _torch(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    for load in (EAGER, CAPTURED):
        # A captured launch takes microseconds, and no thread for it.
        ways = tuple(way for way in TORCH_WAYS if load is EAGER or way != "batches in threads")
        yield _of_job("torch", TorchServer(loops, ways, load=load, rounds=5), quick)


def _launches(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    options = argparse.Namespace(rounds=1, seconds=0.1, server=True, connections=4, older=None)
    if not quick:
        options = argparse.Namespace(rounds=5, seconds=0.8, server=True, connections=32, older=None)
    each = options.rounds * (1.2 * options.seconds + 0.1)

    def run(release: Release, ms: float, load: str) -> list[Row]:
        found = launches.measured(ms, 16, list(LAUNCHES), options)
        return [row("launches", way, {"load": load}, each) for (way, _), each in found.items()]

    for ms in (0.3,) if quick else (0.3, 4.0):
        load = f"launches of some {ms:g} ms"
        yield Setting(
            *("launches", f"launches: {load}", 15 + len(LAUNCHES) * each),
            partial(run, ms=ms, load=load),
        )


def _engines(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    ways = list(ENGINES)
    options = argparse.Namespace(rounds=5, seconds=1.0, clients=(1, 32, 256), processes=PROCESSES)
    if quick:
        ways, options = (
            ways[2:4],
            argparse.Namespace(rounds=1, seconds=0.2, clients=(1, 4), processes=1),
        )

    def run(release: Release) -> list[Row]:
        options.until = release.until
        found: list[Row] = []
        left_out: dict[str, str] = {}
        engines.run(ways, options, left_out, lambda rows: found.__setitem__(slice(None), rows))
        for way, why in left_out.items():
            release.leave_out(way, why)
        return [
            row("engines", each["peer"], {"load": each["load"]}, each["windows"]) for each in found
        ]

    each = options.rounds * len(options.clients) * (options.seconds + 0.6)
    yield Setting("engines", "engines", 30 + len(ways) * each, run)


def _steps(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    given = ["--ways", "|".join(STEPS), "--clients", "64,256", "--seconds", "1"]
    seconds = {"loops": 25.0, "servers": 25.0 + len(STEPS) * 2 * 5 * 1.8}
    if quick:
        given, seconds = ["--quick", "--spin"], {"loops": 10.0}

    def run(release: Release, part: str) -> list[Row]:
        limit = ["--for", str(release.until - time.monotonic())]
        found = steps.measure(steps.parsed([*given, *limit, "--parts", part]))
        for way, why in found.left_out.items():
            release.leave_out(way, why)
        return [
            row("steps", each["peer"], {"load": each["load"]}, each["windows"])
            for each in found.rows
        ]

    for part in seconds:
        yield Setting("steps", f"steps: {part}", seconds[part], partial(run, part=part))


def _costs(quick: bool, loops: tuple[str, ...]) -> Iterator[Setting]:
    request = {"rounds": 2, "count": 50} if quick else {"rounds": 15, "count": 5_000}

    def run(release: Release) -> list[Row]:
        with contextlib.closing(Child("the costs", "costs", simulator=release.simulator)) as child:
            child.answer(60)
            found = child.ask(request, 120)
        return [
            row("costs", way, {"load": "no work"}, [{"cpu_us": cost} for cost in costs])
            for way, costs in found.items()
        ]

    yield Setting("costs", "costs", 5 if quick else 25, run)


PARTS: dict[str, Callable[[bool, tuple[str, ...]], Iterable[Setting]]] = {
    "waits": _waits,
    "peers": _peers,
    "streams": _streams,
    "server": _server,
    "torch": _torch,
    "launches": _launches,
    "engines": _engines,
    "steps": _steps,
    "costs": _costs,
}


# --------------------------------------------------------------------------------------- a run


class Release:
    """One run.

    Args:
        options: Those of the command line.

    Attributes:
        simulator: Whether it runs on the simulator.
        until: When nothing new begins, by the monotonic clock.

    Raises:
        ValueError: The file has the figures of another machine or version.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.until = time.monotonic() + (options.limit or 86_400)
        self._options, self._runners = options, dict[tuple[str, ...], Runner]()
        self.simulator = bool(os.environ.get("AIOSTREAM_SIMULATOR"))
        if self.simulator:  # the servers run with a stand-in for torch
            engines.prepare()
            sys.path.append(str(engines.STAND_INS))
        self._loops = (next(name for name in LOOPS if not missing(name)),)
        runner = self.runner()
        self.path: Path = options.json or FOLDER / self._name()
        earlier = results.read(self.path) if self.path.exists() else None
        asked = {"for": options.limit, "quick": options.quick, "load": os.getloadavg()}
        self._found = results.describe(runner, asked, earlier)
        self._commit: str = options.commit or _commit()
        # A part that is measured again may be of another commit, and says so.
        self._found["commit"] = earlier["commit"] if earlier and options.again else self._commit
        self._found |= {key: (earlier or NEW)[key].copy() for key in NEW}
        if earlier:
            self._require_same(earlier)

    def _name(self) -> str:
        card = str(self.runner().environment["gpu"]).removeprefix("NVIDIA ").split()[0].lower()
        return f"{card}-{datetime.date.today()}-release.json"

    def _require_same(self, earlier: Row) -> None:
        pairs = {key: [found["environment"].get(key) for found in (earlier, self._found)]
                 for key in SAME}  # fmt: skip
        pairs["commit"] = [earlier["commit"], self._found["commit"]]
        for key, (before, now) in pairs.items():
            if before != now:
                raise ValueError(f"{self.path} has another {key}: {before}, and not {now}")

    @staticmethod
    def say(text: str) -> None:
        """Prints a line."""
        print(text, flush=True)

    def runner(self, ways: tuple[str, ...] = ()) -> Runner:
        """The worker of these ways, which imports the libraries of no others."""
        if ways not in self._runners:
            self._runners[ways] = runner = Runner(self._loops, ways, say=self.say)
            runner.try_out()
        return self._runners[ways]

    def leave_out(self, what: str, why: str) -> None:
        """Notes that something was not measured."""
        self.runner().leave_out(what, "", why)

    def run(self) -> None:
        """Measures what the file has not got yet."""
        options, loops = self._options, self._loops
        settings = [each for part in options.parts for each in PARTS[part](options.quick, loops)]
        if not options.again:
            settings = [each for each in settings if each.title not in self._found["done"]]
        self.say(f"{self.path}: {len(settings)} settings are left")
        for setting in settings:
            if time.monotonic() + setting.seconds > self.until:
                self.say(f"no time is left for {setting.title}, some {setting.seconds:.0f} s")
                continue
            self.say(f"{setting.title}, some {setting.seconds:.0f} s")
            self._measure(setting)

    def _measure(self, setting: Setting) -> None:
        began, load = time.monotonic(), os.getloadavg()[0]
        try:
            rows = [{"loop": self._loops[0], **each} for each in setting.run(self)]
        except Exception as error:  # one setting that fails does not cost the others
            rows = []
            self.leave_out(setting.title, reason(error))
        seconds = time.monotonic() - began
        self.say(f"  took {seconds:.0f} s")
        if rows:
            noted = {"seconds": round(seconds, 1), "load": round(load, 2), "part": setting.part}
            self._found["done"][setting.title] = {**noted, "commit": self._commit}
            results.add(self._found, rows)
        kept = [each for each in self._found["not_run"] if each["setting"] != setting.title]
        for runner in self._runners.values():
            known = {"set": setting.part, "setting": setting.title}
            kept += [{**known, **each} for each in runner.not_run]
            runner.not_run.clear()
        self._found["not_run"] = kept
        results.write(self._found, self.path)

    def close(self) -> None:
        """Ends the workers."""
        for runner in self._runners.values():
            runner.close()


def _commit() -> str:
    root = Path(__file__).parents[1]
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(arguments: list[str]) -> int:
    """Measures, or writes the pages, and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--parts", help=f"some of: {', '.join(PARTS)} (default: all)")
    add("--for", dest="limit", type=float, metavar="SECONDS", help="end within so long")
    add("--again", action="store_true", help="measure what the file has already, too")
    add("--quick", action="store_true", help="as little as shows that it works")
    add("--commit", help="which commit this is (default: as git says)")
    add("--json", type=Path, metavar="FILE", help=f"default: {FOLDER.name}/<card>-<date>-release")
    add("--show", action="store_true", help="print the tables of the file, and measure nothing")
    add("--write", action="store_true", help="write them into the pages, and draw the pictures")
    add("--root", type=Path, default=FOLDER.parents[1], help="where the pages are")
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",") if options.parts else list(PARTS)
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"--parts: there is no {unknown.pop()!r}; choose from {', '.join(PARTS)}")
    try:
        if options.show or options.write:
            file = options.json or pages.quoted_file(options.root)
            if options.show:
                pages.show(file)
            if options.write:
                pages.write(file, options.root)
                pages.draw(file, options.root)
            return 0
        with contextlib.closing(Release(options)) as release:
            release.run()
    except (OSError, ValueError, UnavailableError) as error:
        parser.error(str(error))
    return 0
