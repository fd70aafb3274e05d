"""`python -m benchmarks proof --steps`: answers that stream, by `serving.Steps` and by other ways.

    python -m benchmarks proof --steps --for 570 --json steps.json

A decoder makes a token for each request in each step (see `step_model.py`). First tasks of one
process read the tokens, without a server. Then servers send them as events, each server in a
process of its own (see `step_servers.py`), and 1, 64 and 256 clients ask again and again. All
tokens are compared with those that are right. The ways take turns in several rounds, and the file
is written after each round. A server whose package is not installed, or that answers wrongly, is
named and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import datetime
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiostream
from benchmarks import engines, loops, results, stats
from benchmarks.child import Child
from benchmarks.clients import LIMIT, PROCESSES, Clients
from benchmarks.measure import Row
from benchmarks.runner import in_turn
from benchmarks.step_load import request_of
from benchmarks.step_model import SIZES, SLOTS, Settings, shared, spins
from benchmarks.step_servers import WAYS, arguments
from benchmarks.step_ways import WAYS as LOOP_WAYS

PARTS = ("loops", "servers")
FRESH = 20.0  # seconds until the time of a step alone is measured again
NONE_CAME = "no tokens came"
FORMS = {  # of the columns: what stands above a figure, and how many digits it has
    "tokens_per_second": ("tokens/s", 0),
    "step_ms": ("step, ms", 2),
    "idle_ms": ("GPU idle, ms", 3),
    "first_p50_ms": ("first, ms", 1),
    "gap_p50_ms": ("gap, ms", 2),
    "gap_p99_ms": ("p99, ms", 2),
    "cpu_percent": ("CPU, %", 0),
}
SPREAD = ("tokens_per_second", "idle_ms")  # whose least and most are printed


@dataclasses.dataclass(frozen=True)
class Amount:
    """How much is measured.

    Attributes:
        rounds: Of all ways, if there is time.
        seconds: Of a window of a server.
        warm: Seconds of load before it.
        clients: Of the servers.
        tokens: Of an answer.
        readers: Without a server: how many tasks read.
        steps: Without a server: how many steps a round has.
    """

    rounds: int = 5
    seconds: float = 1.5
    warm: float = 0.7
    clients: tuple[int, ...] = (1, 64, 256)
    tokens: int = 128
    readers: int = 64
    steps: int = 200


QUICK = Amount(1, 0.4, 0.3, (1, 8), 16, 8, 20)


class Server(engines.Server):
    """One of the ways, in a process of its own.

    Attributes:
        counts: How many steps of each size it has launched.
    """

    module = "step_servers"

    def __init__(self, way: str, settings: Settings, folder: Path) -> None:
        path = folder / way
        path.write_bytes(bytes(8 * len(SIZES)))
        self.counts = shared(path)
        super().__init__(way, *arguments(settings, path))

    async def answers(self) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request_of(0, 2))
            async with asyncio.timeout(5):
                return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        except TimeoutError:
            return False
        finally:
            writer.close()


async def window(
    load: Clients, server: Server, clients: int, amount: Amount
) -> tuple[Row, list[int]]:
    """Returns the figures of a window, and how many steps of each size it had.

    Raises:
        RuntimeError: A token was wrong or is missing, or an answer does not end.
    """

    def look() -> tuple[float, Any, float]:
        return engines.cpu_of(server.process.pid), server.counts.copy(), time.perf_counter()

    request: Row = {"port": server.port, "tokens": amount.tokens}
    found, *seen = await load.window(request, clients, amount.warm, amount.seconds, look)
    cpu, counts, took = (now - then for then, now in zip(*seen, strict=True))
    if not counts.sum():
        raise RuntimeError(NONE_CAME)
    figures = _figures(found, amount.seconds) | {"cpu_percent": 100 * cpu / took}
    figures["step_ms"] = 1e3 * took / int(counts.sum())
    return figures, counts.tolist()


def _figures(found: Sequence[Row], seconds: float) -> Row:
    """The figures of a window, of what all processes have found."""
    firsts, gaps = ([ns for each in found for ns in each[key]] for key in ("first_ns", "gap_ns"))
    if not gaps:
        raise RuntimeError(NONE_CAME)
    return {
        "tokens_per_second": sum(each["count"] for each in found) / seconds,
        "first_p50_ms": float(stats.percentile(firsts, 50)) / 1e6,
        "gap_p50_ms": float(stats.percentile(gaps, 50)) / 1e6,
        "gap_p99_ms": float(stats.percentile(gaps, 99)) / 1e6,
        "checked": sum(each["checked"] for each in found),
        "client_percent": max(each["client_percent"] for each in found),
    }


class Alone:
    """The model in a process of its own, which knows how long a step takes alone.

    Attributes:
        settings: With the matrix products counted.
        loop: Of the tasks that read without a server.
    """

    def __init__(self, settings: Settings) -> None:
        given = json.dumps(dataclasses.asdict(settings))
        self._child = Child("the steps", "step_loops", given)
        hello = self._child.answer(2 * LIMIT)
        self.settings, self.loop = Settings(**hello["settings"]), str(hello["loop"])
        self._ms, self._until = dict[str, float](), 0.0

    def measure(self) -> None:
        """Measures how long the GPU needs for a step."""
        self._ms, self._until = self._child.ask({}, LIMIT), time.monotonic() + FRESH

    def ms(self) -> list[float]:
        """How long the GPU needs for a step of each of `SIZES`, as of late."""
        if time.monotonic() > self._until:
            self.measure()
        return [self._ms[str(size)] for size in SIZES]

    def round(self, way: str, amount: Amount, python_ms: float) -> Row:
        """A round of a way without a server."""
        request = {"way": way, "readers": amount.readers, "steps": amount.steps}
        ms = self.ms()[0 if amount.readers <= SIZES[0] else 1]
        found: Row = self._child.ask({**request, "python_ms": python_ms}, LIMIT)
        return {**found, "idle_ms": found["step_ms"] - ms, "alone_ms": ms}

    def close(self) -> None:
        """Ends the process."""
        self._child.close()


class Run:
    """What is measured, and kept.

    Attributes:
        rows: So far.
        left_out: What was not measured, with the reason.
    """

    def __init__(self, options: argparse.Namespace, alone: Alone, found: Row) -> None:
        self.rows: list[Row] = []
        self.left_out: dict[str, str] = {}
        self._options, self._alone, self._found = options, alone, found
        self._amount: Amount = options.amount

    def loops(self) -> None:
        """Without a server."""
        windows: dict[str, list[Row]] = {way: [] for way in LOOP_WAYS}
        longest = 0.0
        for number in range(self._amount.rounds):
            began = time.monotonic()
            if began + longest > self._options.until:
                return
            print(f"round {number + 1} of {self._amount.rounds}: without a server", flush=True)
            self._alone.measure()
            for way in in_turn(list(windows), number):
                try:
                    found = self._alone.round(way, self._amount, self._options.loop_python)
                    windows[way].append(found)
                except RuntimeError as error:
                    self.left_out[f"{way}, without a server"] = str(error)
                    windows.pop(way)
            longest = max(longest, time.monotonic() - began)
            load = f"{self._amount.readers} readers"
            keys = {"measure": "loops", "loop": self._alone.loop, "load": load}
            self._keep([row(way, keys, each) for way, each in windows.items() if each])

    async def servers(self) -> None:
        """The servers."""
        options, amount = self._options, self._amount
        turns = argparse.Namespace(
            rounds=amount.rounds, clients=amount.clients, until=options.until
        )
        packages = {way: WAYS[way][0] for way in options.ways}
        ways = [way for way, name in packages.items() if engines.find(way, name, self.left_out)]

        async def measure_one(server: Server, clients: int) -> Row:
            alone = await asyncio.to_thread(self._alone.ms)
            figures, counts = await window(load, server, clients, amount)
            needed = sum(count * ms for count, ms in zip(counts, alone, strict=True))
            alone_ms = needed / sum(counts)
            return {
                **figures,
                "idle_ms": figures["step_ms"] - alone_ms,
                "alone_ms": alone_ms,
                "counts": counts,
            }

        def keep(windows: engines.Windows) -> None:
            of_each = sorted(windows.items(), key=lambda item: item[0][1])  # clients
            self._keep(
                [
                    row(way, {"measure": "servers", "loop": "server", **_load(clients)}, found)
                    for (way, clients), found in of_each
                ]
            )

        with (
            contextlib.closing(Clients("step_load", options.processes)) as load,
            tempfile.TemporaryDirectory() as folder,
        ):
            started = {way: Server(way, self._alone.settings, Path(folder)) for way in ways}
            await engines.take_turns(started, turns, self.left_out, measure_one, keep)

    def _keep(self, rows: list[Row]) -> None:
        results.add(self._found, rows)
        self.rows = self._found["rows"]
        self._found["left_out"] = self.left_out
        if self._options.json:
            results.write(self._found, self._options.json)


def _load(clients: int) -> Row:
    return {"clients": clients, "load": f"{clients} stream{'s' if clients > 1 else ''}"}


def row(way: str, keys: Row, windows: list[Row]) -> Row:
    """A row: the median of each figure, and the rounds."""
    figures = {key: [each[key] for each in windows] for key in windows[0] if key != "counts"}
    medians = {key: round(stats.median(found), 4) for key, found in figures.items()}
    return {"set": "steps", "peer": way, **keys, **medians, "windows": windows}


# ------------------------------------------------------------------------------ the table


def cell(row: Row, key: str) -> str:
    """A figure, and its least and most where they are printed."""
    if key not in row:
        return ""
    digits = FORMS[key][1]
    if key not in SPREAD or len(row["windows"]) == 1:
        return f"{row[key]:,.{digits}f}"
    found = [each[key] for each in row["windows"]]
    return f"{row[key]:,.{digits}f} ({min(found):,.{digits}f} to {max(found):,.{digits}f})"


def table(rows: Sequence[Row], left_out: dict[str, str]) -> str:
    """The figures, a line for each way, load by load."""
    lines: list[str] = []
    for load in dict.fromkeys(row["load"] for row in rows):
        some = [row for row in rows if row["load"] == load]
        keys = [key for key in FORMS if any(key in row for row in some)]
        cells = [[load, *(FORMS[key][0] for key in keys)]]
        cells += [[row["peer"], *(cell(row, key) for key in keys)] for row in some]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["", *map("  ".join, _aligned(cells, widths))]
        alone = stats.median([row["alone_ms"] for row in some])
        busiest = max(each.get("client_percent", 0) for row in some for each in row["windows"])
        clients = f"; no process of clients used more than {busiest:.0f} % of a core"
        lines.append(f"(a step takes the GPU {alone:.3f} ms alone{clients if busiest else ''})")
    checked = sum(each.get("checked", 0) for row in rows for each in row["windows"])
    lines += ["", f"{checked:,} tokens of clients checked, all right"] if checked else []
    lines += [f"left out: {way}: {why}" for way, why in left_out.items()]
    return "\n".join(lines)


def _aligned(cells: list[list[str]], widths: list[int]) -> Iterator[list[str]]:
    for first, *others in cells:
        yield [
            first.ljust(widths[0]),
            *(each.rjust(width) for each, width in zip(others, widths[1:], strict=True)),
        ]


# ------------------------------------------------------------------------------ the command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks proof --steps", description=__doc__)
    add, usual = parser.add_argument, Amount()
    add("--for", dest="limit", type=float, default=570, metavar="SECONDS",
        help="no round begins that would end later (default: 570)")  # fmt: skip
    add("--rounds", type=int, help=f"of all ways, if there is time (default: {usual.rounds})")
    add("--seconds", type=float, help=f"of each load (default: {usual.seconds:g})")
    add("--tokens", type=int, help=f"of an answer (default: {usual.tokens})")
    add("--clients", type=lambda text: tuple(int(each) for each in text.split(",")),
        help=f"default: 1,64,256; at most {SLOTS}")  # fmt: skip
    add("--parts", default=",".join(PARTS), help=f"some of: {', '.join(PARTS)} (default: all)")
    add("--ways", help="of the servers, separated by |; some of: " + " | ".join(WAYS))
    add("--ms", type=float, default=1.9, help="a step of 64 rows takes about that (default: 1.9)")
    add("--python", type=float, default=0, help="ms of Python for each step of a server")
    add("--loop-python", type=float, default=1, help="the same without a server (default: 1)")
    add("--processes", type=int, default=PROCESSES, help="of the clients")
    add("--spin", action="store_true", help="a kernel that spins, also where torch is installed")
    add("--quick", action="store_true", help="as little as shows that it works")
    add("--json", type=Path, metavar="FILE", help="where the results go")
    return parser


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line."""
    parser = _parser()
    options = parser.parse_args(arguments)
    options.until = time.monotonic() + options.limit
    options.ways = [*WAYS] if options.ways is None else options.ways.split("|")
    options.parts = options.parts.split(",")
    for given, known in ((options.ways, WAYS), (options.parts, PARTS)):
        if unknown := [each for each in given if each not in known]:
            parser.error(f"{unknown[0]!r} is none of {', '.join(known)}")
    given = {key: getattr(options, key) for key in ("rounds", "seconds", "tokens", "clients")}
    given = {key: value for key, value in given.items() if value is not None}
    options.amount = dataclasses.replace(QUICK if options.quick else Amount(), **given)
    if not all(1 <= clients <= SLOTS for clients in options.amount.clients):
        parser.error(f"--clients: from 1 to {SLOTS}")
    return options


def measure(options: argparse.Namespace) -> Run:
    """Measures, and keeps what is found in the file.

    Args:
        options: What `parsed` returns.

    Returns:
        What was measured.
    """
    simulated = engines.prepare()
    settings = Settings(options.ms, options.python, spins=spins(options.spin))
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found: Row = {"format": results.FORMAT, "simulator": simulated, "date": date, "rows": []}
    found |= {"environment": results.environment()}
    with contextlib.closing(Alone(settings)) as alone:
        found["model"] = dataclasses.asdict(alone.settings)
        print(f"{aiostream.Device(0).name}: {alone.settings.called}")
        if simulated:
            print(results.SIMULATED)
        run = Run(options, alone, found)
        if "loops" in options.parts:
            run.loops()
        if "servers" in options.parts:
            loop = "asyncio" if loops.missing("uvloop") else "uvloop"
            loops.run(loop, lambda _: run.servers())
    return run


def main(arguments: list[str]) -> int:
    """Measures, and leaves a table and a results file."""
    run = measure(parsed(arguments))
    print(table(run.rows, run.left_out))
    return 0 if run.rows else 1
