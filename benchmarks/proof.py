"""The proof: `examples/embedding_server.py` in its four ways, under an independent load tool.

    python -m benchmarks proof --json here.json --figure here

All four servers run, and each in turn is under load, in several rounds. The load comes from wrk
(https://github.com/wg/wrk, a package of most systems), and then, for as long, from a program of
this project, which checks each answer. Meanwhile `/health` is asked every 5 ms. Without a GPU the
servers run on the simulator, with kernels of its own, and the output says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import aiostream
from benchmarks import loops, pictures, results, stats
from benchmarks.load import PING_EVERY, Connection, fetch, ping_times, request_of
from benchmarks.measure import Row

PROGRAM = Path(__file__).parents[1] / "examples" / "embedding_server.py"
WAYS = ("blocking", "to_thread", "polling", "aiostream")
CLOSE = 0.1  # how near two numbers of an embedding must be: bfloat16
AGREE = 0.05  # so far apart the two load programs may be
STARTS = 120  # seconds in which a server must answer
TEXTS = "request = function() return wrk.format('GET', '/embed?text=' .. math.random(0, 255)) end\n"
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}  # ms
NO_WRK = "wrk is not installed: apt-get install wrk, or build https://github.com/wg/wrk"


def parsed(printed: str) -> Row:
    """What `wrk --latency` has found.

    Raises:
        RuntimeError: Some requests were not answered with 200.
    """
    wrong = re.search(r"(Non-2xx or 3xx responses: .*|Socket errors: .*)", printed)
    rate = re.search(r"Requests/sec: +([0-9.]+)", printed)
    slow = re.search(r"^ +99% +([0-9.]+)(us|ms|s|m) *$", printed, re.MULTILINE)
    if wrong or not rate or not slow:
        raise RuntimeError(wrong[1] if wrong else f"wrk has printed no figures: {printed!r}")
    return {"per_second": float(rate[1]), "p99_ms": float(slow[1]) * UNITS[slow[2]]}


async def _wrk(port: int, connections: int, seconds: float) -> Row:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(TEXTS)
        script.flush()
        tool = await asyncio.create_subprocess_exec(
            *(
                "wrk",
                "-t1",
                f"-c{connections}",
                f"-d{seconds:.0f}s",
                "--latency",
                "--timeout",
                "20s",
            ),
            *("-s", script.name, f"http://127.0.0.1:{port}"),
            stdout=subprocess.PIPE,
        )
        printed, _ = await tool.communicate()
    return parsed(printed.decode())


async def _connect(port: int) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    return connection


async def _own_load(
    port: int, connections: int, seconds: float, expected: list[list[float]]
) -> Row:
    """A closed loop as wrk's. Each answer is checked.

    Raises:
        RuntimeError: An answer was wrong, or there was none.
    """
    loop = asyncio.get_running_loop()
    latencies: list[int] = []
    over: asyncio.Future[None] = loop.create_future()
    asked, left = 0, connections
    # The answer to each text that was checked. To parse each anew takes longer than some requests,
    # and this program would then ask later than wrk does.
    right: dict[int, bytes] = {}
    opened = [await _connect(port) for _ in range(connections)]
    cpu, until = time.process_time(), perf_counter_ns() + int(seconds * 1e9)

    def ask(connection: Connection) -> None:
        nonlocal asked
        asked += 1
        text, at = 37 * asked % len(expected), perf_counter_ns()

        def answered(connection: Connection, problem: str, body: bytes) -> None:
            nonlocal left
            now = perf_counter_ns()
            if now < until:  # as wrk, which counts what is answered in its time
                latencies.append(now - at)
            if not problem and body != right.get(text):
                right[text] = body
                if not is_right(json.loads(body), text, expected[text]):
                    problem = f"text {text} was answered with {body!r}"
            if problem and not over.done():
                over.set_exception(RuntimeError(problem))
            if now < until and not over.done():
                ask(connection)
                return
            left -= 1
            if not left and not over.done():
                over.set_result(None)

        connection.ask(request_of(f"/embed?text={text}"), answered)

    for each in opened:
        ask(each)
    await over
    for each in opened:
        each.close()
    if not latencies:
        raise RuntimeError(f"nothing was answered in {seconds:g} s")
    return {
        "own_per_second": len(latencies) / seconds,
        "own_p99_ms": float(stats.percentile(latencies, 99)) / 1e6,
        "own_cpu_percent": 100 * (time.process_time() - cpu) / seconds,
        "checked": asked,
    }


def is_right(answer: Any, text: int, expected: list[float]) -> bool:
    """Whether an answer of `/embed` is that of a text."""
    found = answer["embedding"]
    return (
        answer["text"] == text
        and len(found) == len(expected)
        and all(abs(a - b) <= CLOSE for a, b in zip(found, expected, strict=True))
    )


async def _pings(port: int, times: list[int]) -> None:
    """Asks `/health` every 5 ms, until it is cancelled."""
    connection = await _connect(port)
    try:
        while True:
            asked = perf_counter_ns()
            await fetch(connection, "/health")
            done = perf_counter_ns()
            times += ping_times(asked, done, asked, done)
            await asyncio.sleep(max(0, asked + PING_EVERY - done) / 1e9)
    finally:
        connection.close()


def _cpu(process: int) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Server:
    """The example in one way, in a process of its own."""

    def __init__(self, way: str, options: list[str]) -> None:
        with socket.socket() as finder:
            finder.bind(("127.0.0.1", 0))
            self.port = int(finder.getsockname()[1])
        command = [sys.executable, str(PROGRAM), "--way", way, "--port", str(self.port), *options]
        self.way, self.process = way, subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.expected: list[list[float]] = []

    async def ready(self) -> None:
        """Waits until it answers.

        Raises:
            RuntimeError: It has ended.
        """
        until = time.monotonic() + STARTS
        while not self.expected:
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server of the way {self.way} does not answer")
            with contextlib.suppress(OSError):
                connection = await _connect(self.port)
                self.expected = json.loads(await fetch(connection, "/expected"))
                connection.close()
            await asyncio.sleep(0.1)

    async def round(self, connections: int, seconds: float) -> Row:
        """One window of each load program."""
        times: list[int] = []
        await _own_load(self.port, connections, min(0.5, seconds), self.expected)  # warms up
        pings = asyncio.create_task(_pings(self.port, times))
        cpu, began = _cpu(self.process.pid), time.monotonic()
        found = await _wrk(self.port, connections, seconds)
        cpu, took = _cpu(self.process.pid) - cpu, time.monotonic() - began
        found["health_p99_ms"] = float(stats.percentile(times, 99)) / 1e6
        found |= {"cpu_percent": 100 * cpu / took}
        found["cpu_ms"] = 1e3 * cpu / (found["per_second"] * took)
        found |= await _own_load(self.port, connections, seconds, self.expected)
        pings.cancel()
        await asyncio.wait([pings])
        return found

    def stop(self) -> None:
        """Ends it, by SIGTERM first."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextlib.contextmanager
def _servers(options: list[str]) -> Iterator[list[_Server]]:
    servers: list[_Server] = []
    try:
        servers += [_Server(way, options) for way in WAYS]
        yield servers
    finally:
        for server in servers:
            server.stop()


async def _measure(servers: list[_Server], options: argparse.Namespace) -> list[Row]:
    for server in servers:
        await server.ready()
    rounds: dict[str, list[Row]] = {server.way: [] for server in servers}
    for number in range(options.rounds):
        for server in servers:
            print(f"round {number + 1} of {options.rounds}: {server.way}", flush=True)
            try:
                found = await server.round(options.connections, options.seconds)
            except RuntimeError as error:
                raise RuntimeError(f"{server.way}: {error}") from None
            rounds[server.way].append(found)
    load = f"{options.connections} connections"
    return [
        {"set": "proof", "loop": "uvicorn", "peer": way, "load": load, "rounds": found}
        | {key: statistics.median(row[key] for row in found) for key in found[0]}
        for way, found in rounds.items()
    ]


def _print(rows: list[Row]) -> None:
    print(
        f"\n{'way':10} {'requests/s':>11} {'p99':>10} {'/health p99':>13} {'CPU':>7}  own program"
    )
    for row in rows:
        apart = row["own_per_second"] / row["per_second"] - 1
        print(
            f"{row['peer']:10} {row['per_second']:11,.0f} {row['p99_ms']:7.1f} ms "
            f"{row['health_p99_ms']:10.1f} ms {row['cpu_percent']:5.0f} %  "
            f"{row['own_per_second']:,.0f}/s ({apart:+.1%}), p99 {row['own_p99_ms']:.1f} ms, "
            f"CPU {row['own_cpu_percent']:.0f} %"
            + ("" if abs(apart) <= AGREE else "  THEY DO NOT AGREE")
        )
    checked = sum(row["checked"] for each in rows for row in each["rounds"])
    print(f"{checked:,} answers checked, all right")


def main(arguments: list[str] | None = None) -> int:
    """Measures, and leaves a table, a results file and a picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks proof", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="medians of so many (default: 3)")
    add("--seconds", type=float, default=5, help="of each load (default: 5, at least 1)")
    add("--connections", type=int, default=32, help="default: 32")
    add("--json", type=Path, metavar="FILE", help="where the results go")
    add("--figure", type=Path, metavar="FILE", help="draw it, with the file's name before its own")
    options = parser.parse_args(arguments)
    if shutil.which("wrk") is None:
        parser.error(NO_WRK)
    try:
        simulated = aiostream.Device(0).name == "nogpu simulator"
    except aiostream.NoDriverError:
        from aiostream import simulator

        simulator.install()
        simulated = True
    if simulated:
        print("No GPU: on the simulator, with its own kernels. " + results.SIMULATED)
    more = ["--simulator"] if simulated else []
    try:
        # On asyncio's own loop this program may be slower than the servers.
        loop = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
        with _servers(more) as servers:
            rows = loops.run(loop, lambda _: _measure(servers, options))
    except RuntimeError as error:
        print(f"The proof did not get through: {error}", file=sys.stderr)
        return 1
    _print(rows)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found = {"format": results.FORMAT, "simulator": simulated, "date": date, "rows": rows}
    found |= {"environment": results.environment()}
    if options.json:
        results.write(found, options.json)
    if options.figure:
        try:
            for picture in pictures.draw([found], options.figure):
                print(f"Figure: {picture}")
        except pictures.UnavailableError as error:
            parser.error(str(error))
    return 0
