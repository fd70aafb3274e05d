"""The measure `launches`: what launches of some milliseconds do to a loop, by the way to launch.

    python -m benchmarks launches --rounds 5 --older ../older/src

Tasks launch, each on a stream of its own, next to a timer of 1 ms. With `--server`, a server on
uvicorn with uvloop launches for 32 connections on 16 streams. A client in another process asks it,
and every 5 ms it asks `/ping`, which waits for no GPU. On the simulator a launch computes in
Python, and on a GPU it is a torch model in eager mode. The ways and the versions take turns in
several rounds, and the medians are printed. Without a GPU, set AIOSTREAM_SIMULATOR=1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.child import Child
from benchmarks.launching import SERVER_WAYS, WAYS

SECONDS = 60.0  # in which a process must answer, besides the time of its measure
COLUMNS = {
    "per_second": "per s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "late_p50_ms": "{} p50 ms",
    "late_p99_ms": "{} p99 ms",
    "loop_us": "loop us",
    "process_us": "CPU us",
    "unfair": "most/fewest",
}
Found = dict[tuple[str, str], list[dict[str, float]]]  # by way and version: the rounds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks launches", description=__doc__)
    add = parser.add_argument
    add("--ms", default="0.05,0.3,4", help="how long a launch takes about (default: 0.05,0.3,4)")
    add("--streams", default="16,64", help="default: 16,64; a server has the first")
    add("--ways", help="only the ways whose names have one of these words, separated by |")
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=2.0, help="of each measure (default: 2)")
    add("--server", action="store_true", help="measure a server in place of tasks")
    add("--connections", type=int, default=32)
    add("--older", type=Path, help="a folder with another version of the package, built: its src")
    add("--json", type=Path, help="write all rounds there")
    return parser


def _versions(older: Path | None) -> dict[str, str | None]:
    return {"now": None} if older is None else {"now": None, "older": str(older.resolve())}


def _print(title: str, found: Found, what: str) -> None:
    print(f"\n{title}")
    keys = [key for key in COLUMNS if any(key in each[0] for each in found.values())]
    print(f"{'':42} {'':6}" + "".join(f"{COLUMNS[key].format(what):>14}" for key in keys))
    for (way, version), rounds in found.items():
        values = [statistics.median(each[key] for each in rounds) for key in keys]
        print(f"{way:42} {version:6}" + "".join(f"{value:14.4g}" for value in values), flush=True)


def _in_turn(
    settings: list[tuple[str, str, Child, dict[str, Any]]], rounds: int, seconds: float
) -> Found:
    """The ways and versions in turn."""
    found: Found = {}
    for number in range(rounds):
        for way, version, process, request in settings[:: -1 if number % 2 else 1]:
            answer = process.ask(request, SECONDS + 3 * seconds)
            found.setdefault((way, version), []).append(answer)
    return {(way, version): found[way, version] for way, version, *_ in settings}


def measured(ms: float, count: int, ways: list[str], options: argparse.Namespace) -> Found:
    """Measures one length of launches on so many streams.

    Args:
        ms: How long a launch takes about.
        count: How many streams.
        ways: Those of `WAYS`, or for a server of `SERVER_WAYS`, that are to be measured.
        options: `rounds`, `seconds`, `server`, `connections` and `older`, as of the command line.

    Raises:
        RuntimeError: A process does not start, or fails.
    """
    on_gpu = not os.environ.get("AIOSTREAM_SIMULATOR")
    processes: list[Child] = []
    try:
        settings = []
        for version, path in _versions(options.older).items():
            request: dict[str, Any] = {"seconds": options.seconds}
            if options.server:
                argument = json.dumps([ms, count, on_gpu])
                server = Child(f"the server {version}", "launching", argument, path=path)
                processes.append(server)
                request["port"] = server.answer(2 * SECONDS)
                request["connections"] = options.connections
                process = Child("the client", "launching", "client")
            else:
                request |= {"ms": ms, "streams": count, "gpu": on_gpu}
                process = Child(f"the tasks {version}", "launching", "tasks", path=path)
            processes.append(process)
            process.answer(SECONDS)
            settings += [(way, version, process, {**request, "way": way}) for way in ways]
        settings.sort(key=lambda each: ways.index(each[0]))
        return _in_turn(settings, options.rounds, options.seconds)
    finally:
        for each in processes[::-1]:
            each.close()


def main(arguments: list[str]) -> int:
    """Measures, and prints a table for each length of launches and number of streams."""
    options = _parser().parse_args(arguments)
    words = options.ways.split("|") if options.ways else [""]
    known = SERVER_WAYS if options.server else WAYS
    ways = [way for way in known if any(word in way for word in words)]
    streams = [int(each) for each in options.streams.split(",")]
    every: list[Any] = []
    what = "the simulator" if os.environ.get("AIOSTREAM_SIMULATOR") else "torch on a GPU"
    print(f"{what}; Python {sys.version.split()[0]}; {os.cpu_count()} cores")
    print(f"medians of {options.rounds} rounds of {options.seconds:g} s, in turn")
    for ms in [float(each) for each in options.ms.split(",")]:
        for count in streams[:1] if options.server else streams:
            found = measured(ms, count, ways, options)
            title = f"launches of {ms:g} ms, {count} streams"
            if options.server:
                title += f", a server with {options.connections} connections"
            _print(title, found, "/ping" if options.server else "timer")
            every += [{"title": title, "way": w, "version": v, "rounds": rounds}
                      for (w, v), rounds in found.items()]  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(every, indent=1) + "\n")
    return 0
