"""`python -m benchmarks proof --peers`: batches of this library and of serving engines.

    python -m benchmarks proof --peers --json engines.json

Each server runs in a process of its own, with the same torch model behind it (see
`engine_servers.py`). They take turns in several rounds. In its turn a server is asked by 1, 32 and
256 clients in a closed loop, each of which asks again when it is answered. Each answer is checked.
A server whose package is not installed, or that does not start, is named and left out. The file is
written after each round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import aiostream
from benchmarks import loops, pages, results, stats
from benchmarks.clients import PROCESSES, Clients
from benchmarks.engine_fronts import BY_PARTS, CONSTANT, FRONTS, WITHOUT
from benchmarks.engine_load import connect, request_of
from benchmarks.engine_servers import ITEMS, WAYS
from benchmarks.measure import Row
from benchmarks.runner import in_turn

MEASURED = WAYS | FRONTS
KNOWN = MEASURED | BY_PARTS
# What `--ways` knows by one name.
SETS = {
    "fronts": ["aiostream graphs", *FRONTS, "mosec graphs", "LitServe graphs", "BentoML graphs"],
    "parts": list(BY_PARTS),
}
ROOT = Path(__file__).parents[1]
STAND_INS = ROOT / "tests" / "stand_ins"
CLIENTS = (1, 32, 256)
STARTS = 90  # seconds in which a server must answer
WARM = 0.5  # seconds of load before what is measured
STOPS = 10

Keep = Callable[[list[Row]], None]
Windows = dict[tuple[str, int], list[Row]]  # by way and clients: the figures of each round
Some = TypeVar("Some", bound="Server")


class WrongError(Exception):
    """An answer was wrong, or there was none."""


def cpu_of(process: int) -> float:
    """The CPU seconds so far of a process and of those that it has started."""
    parents: dict[int, list[tuple[int, float]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            parents.setdefault(int(fields[1]), []).append((int(path.parent.name), used))
            if int(path.parent.name) == process:
                parents.setdefault(-1, []).append((process, used))
    total, look = 0.0, parents.get(-1, [])
    while look:
        child, used = look.pop()
        total += used
        look += parents.get(child, [])
    return total


class Server:
    """One of the ways, in a process of its own."""

    module = "engine_servers"

    def __init__(self, way: str, *more: str) -> None:
        with socket.socket() as finder:
            finder.bind(("127.0.0.1", 0))
            self.port = int(finder.getsockname()[1])
        self.way = way
        module = "engine_fronts" if way in FRONTS | BY_PARTS else self.module
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, `stop` closes it
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", way, str(self.port), *more],
            stdout=self._said,
            stderr=self._said,
            cwd=ROOT,
            start_new_session=True,  # so that its own processes end with it
        )

    async def ready(self) -> None:
        """Waits until it answers.

        Raises:
            WrongError: It does not.
        """
        until = time.monotonic() + STARTS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise WrongError(f"it ended: {self.last_words()}")
            with contextlib.suppress(OSError, WrongError):
                if await self.answers():
                    return
            await asyncio.sleep(0.1)
        raise WrongError(f"it does not answer: {self.last_words()}")

    async def answers(self) -> bool:
        """Whether it answers a first request."""
        connection = await connect(self.port)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(_: object, problem: str, body: bytes) -> None:
            if not answer.done():
                answer.set_result(not problem)

        try:
            connection.ask(request_of(0), answered)
            async with asyncio.timeout(5):
                return await answer
        except TimeoutError:
            return False
        finally:
            connection.close()

    def last_words(self) -> str:
        """The end of what it has printed."""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        return " / ".join([line.strip() for line in lines if line.strip()][-3:])

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to it and its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Its turn. Outside of it, it is stopped, because some use a core while they are idle."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def stop(self) -> None:
        """Ends it and its processes, by SIGTERM first."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(STOPS)
        except subprocess.TimeoutExpired:
            pass
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._said.close()


async def measure(
    ways: list[str], options: argparse.Namespace, left_out: dict[str, str], keep: Keep
) -> None:
    """Measures all servers in turn, in several rounds.

    Args:
        ways: Those of `KNOWN` that are to be measured.
        options: `rounds`, `seconds` of each load, `clients`, `processes` of these, and `until`,
            when no round begins.
        left_out: Gets those that do not start, or do not answer rightly, with the reason.
        keep: Called with all rows after each round.
    """
    packages = {way: KNOWN[way][0] for way in ways}
    servers = {way: Server(way) for way in ways if find(way, packages[way], left_out)}

    def keep_windows(windows: Windows) -> None:
        keep([_row(way, clients, found) for (way, clients), found in windows.items()])

    with contextlib.closing(Clients("engine_load", options.processes)) as load:

        async def measure_one(server: Server, clients: int) -> Row:
            return await window(load, server, clients, options.seconds)

        await take_turns(servers, options, left_out, measure_one, keep_windows)


async def take_turns(
    servers: dict[str, Some],
    options: argparse.Namespace,
    left_out: dict[str, str],
    measure_one: Callable[[Some, int], Awaitable[Row]],
    keep: Callable[[Windows], None],
) -> None:
    """Has servers take turns, in several rounds, and ends them.

    Args:
        servers: They have been started.
        options: `rounds`, `clients`, and `until`, when no round begins.
        left_out: Gets those that do not start, or do not answer rightly, with the reason.
        measure_one: Measures one, with so many clients.
        keep: Called with all windows after each round.
    """
    windows: Windows = {}
    longest = 0.0

    def leave_out(way: str, error: Exception) -> None:
        left_out[way] = str(error)
        servers.pop(way).stop()

    try:
        for way in list(servers):
            try:
                await servers[way].ready()
                servers[way].signal(signal.SIGSTOP)
            except WrongError as error:
                leave_out(way, error)
        for number in range(options.rounds):
            began = time.monotonic()
            if began + longest > options.until:
                if not number:
                    left_out |= dict.fromkeys(servers, "no time was left")
                return
            for way in in_turn(list(servers), number):
                print(f"round {number + 1} of {options.rounds}: {way}", flush=True)
                try:
                    with servers[way].awake():
                        for clients in options.clients:
                            found = await measure_one(servers[way], clients)
                            windows.setdefault((way, clients), []).append(found)
                except (WrongError, RuntimeError, OSError) as error:
                    leave_out(way, error)
            longest = max(longest, time.monotonic() - began)
            keep(windows)
    finally:
        for server in servers.values():
            server.stop()


def find(way: str, package: str, left_out: dict[str, str]) -> bool:
    """Whether the package of a way is installed. If not, it is left out."""
    if importlib.util.find_spec(package) is None:
        left_out[way] = f"{package} is not installed"
    return way not in left_out


@functools.cache
def expected_scores() -> list[float]:
    """The right scores of all items, from a process that ends: no server is asked for them."""
    command = [sys.executable, "-m", "benchmarks.engine_servers", "expected"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


async def window(load: Clients, server: Server, clients: int, seconds: float) -> Row:
    """The figures of a window.

    Raises:
        RuntimeError: An answer was wrong.
        WrongError: There was none.
    """
    right = [WITHOUT] * ITEMS if server.way in CONSTANT else expected_scores()
    request = {"port": server.port, "scores": right}
    found, before, after = await load.window(
        request, clients, WARM, seconds, lambda: cpu_of(server.process.pid)
    )
    took = [ns for each in found for ns in each["took_ns"]]
    if not took:
        raise WrongError(f"{clients} clients: nothing was answered")
    return {
        "per_second": len(took) / seconds,
        "p50_ms": float(stats.percentile(took, 50)) / 1e6,
        "p99_ms": float(stats.percentile(took, 99)) / 1e6,
        "cpu_percent": 100 * (after - before) / seconds,
        "cpu_us": 1e6 * (after - before) / len(took),
        "client_percent": max(each["client_percent"] for each in found),
    }


def _row(way: str, clients: int, windows: list[Row]) -> Row:
    medians = {key: stats.median([each[key] for each in windows]) for key in windows[0]}
    known = {"set": "engines", "measure": "engines", "loop": "uvicorn", "peer": way}
    load = {"clients": clients, "load": f"{clients} client{'s' if clients > 1 else ''}"}
    return {**known, **load, **medians, "windows": windows}


def table(rows: list[Row], left_out: dict[str, str]) -> str:
    """The figures, a line for each server."""
    clients = sorted({row["clients"] for row in rows})
    cell = "{:>7} {:>7} {:>7} {:>5}"
    heads = [f"{count} client{'s' if count > 1 else ''}".center(29) for count in clients]
    columns = [cell.format("req/s", "p50 ms", "p99 ms", "CPU %")] * len(clients)
    lines = [" " * 28 + " |".join(heads), " " * 28 + " |".join(columns)]
    known = {(row["peer"], row["clients"]): row for row in rows}
    form = "{per_second:7,.0f} {p50_ms:7.2f} {p99_ms:7.2f} {cpu_percent:5.0f}"
    for way in dict.fromkeys(row["peer"] for row in rows):
        some = (known.get((way, count)) for count in clients)
        cells = [form.format_map(row) if row else cell.format(*[""] * 4) for row in some]
        lines.append(f"{way:28}" + " |".join(cells))
    lines += [f"left out: {way}: {why}" for way, why in left_out.items()]
    return "\n".join(lines)


def run(ways: list[str], options: argparse.Namespace, left_out: dict[str, str], keep: Keep) -> None:
    """Runs `measure` on the loop with the least CPU."""
    loop = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
    loops.run(loop, lambda _: measure(ways, options, left_out, keep))


def main(arguments: list[str]) -> int:
    """Measures, and leaves a table and a results file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks proof --peers", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=6, help="no round begins later (default: 6)")
    add("--seconds", type=float, default=1.5, help="of each load (default: 1.5)")
    add("--rounds", type=int, default=3, help="of all servers, if there is time (default: 3)")
    add("--clients", type=lambda text: [int(each) for each in text.split(",")], default=CLIENTS)
    add("--processes", type=int, default=PROCESSES, help="of the clients")
    add("--ways", help="some of: " + ", ".join([*SETS, *KNOWN]))
    add("--json", type=Path, metavar="FILE", help="where the results go")
    add("--markdown", action="store_true", help="print the table of the pages too")
    options = parser.parse_args(arguments)
    options.until = time.monotonic() + 60 * options.minutes
    ways = list(MEASURED) if options.ways is None else options.ways.split(",")
    ways = [way for each in ways for way in SETS.get(each, [each])]
    if unknown := [way for way in ways if way not in KNOWN]:
        parser.error(f"{unknown[0]!r} is none of {', '.join([*SETS, *KNOWN])}")
    simulated = prepare()
    if simulated:
        print("No GPU: on the simulator, with a stand-in for torch. " + results.SIMULATED)
    left_out: dict[str, str] = {}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found: Row = {"format": results.FORMAT, "simulator": simulated, "date": date, "rows": []}
    found |= {"environment": results.environment(), "left_out": left_out}

    def keep(rows: list[Row]) -> None:
        found["rows"] = rows
        if options.json:
            results.write(found, options.json)

    run(ways, options, left_out, keep)
    print(table(found["rows"], left_out))
    if options.markdown:
        print(pages.table({**found, "not_run": [], "done": {}, "commit": "unknown"}, "engines"))
    return 0 if found["rows"] else 1


def prepare() -> bool:
    """Has the servers use the simulator and a stand-in for torch, where there is no GPU."""
    try:
        if aiostream.Device(0).name != "nogpu simulator":
            return False
    except aiostream.NoDriverError:
        from aiostream import simulator

        simulator.install()  # for `results.environment`
    paths = [str(STAND_INS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"AIOSTREAM_SIMULATOR": "1", "PYTHONPATH": os.pathsep.join(paths)}
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPU too
    return True
