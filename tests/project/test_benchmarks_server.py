"""The benchmark's server: its loads and figures, its load generator, and its failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benching import new_runner, pack_wheel, quick_run
from benchmarks import load, plan, runner, server, serving

MS = 1_000_000  # ns
KNOWN = ("polling", "aiostream auto")

# ------------------------------------------------------------------------------------------- a run


@pytest.mark.slow
def test_each_load_is_run_with_every_peer_and_printed(driver_kind: str, tmp_path: Path) -> None:
    printed, results = quick_run(driver_kind, tmp_path, "server")
    assert results["not_run"] == []
    for usual in server.USUAL[:3]:
        closed = usual.name.startswith("closed")
        rows = [row for row in results["rows"] if row["load"] == usual.name]
        assert {row["peer"] for row in rows} == {*server.PEERS, *([server.PING] if closed else [])}
        for row in rows:
            shortest = row["length_ns"] / 1e3 if row["peer"] != server.PING else 0
            assert shortest < row["p50_us"] <= row["p99_us"] <= row["max_us"] < 10e6
            assert -100 < row["beyond"]["p50_us"] <= row["beyond"]["p99_us"]
            assert row["samples"] > 0
            # 0, if the machine is busy: a window of --quick may be too short then.
            assert 0 <= row["low"] <= row["per_second"] <= row["high"]
            assert row["cpu_us"] is None or row["cpu_us"] > 0
            assert row["peer"] == "blocking" or row["ping"]["samples"] > 0
            assert (row["client_late"] is None) == closed
            assert row["server"].startswith("uvicorn ")
    for words in ("A server's requests", "  pool enqueue_async"):
        assert words in printed
    for load_name in ("closed 128 x 5 ms", "open 2000/s x log-normal"):
        assert re.search(f"^{load_name} *$", printed, re.MULTILINE)


# ------------------------------------------------------------------------------ the load generator


class Slow:
    """A server that answers `/wait` after 20 ms, one request after the other on each connection."""

    def __init__(self) -> None:
        self.served = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                if path.startswith("/gone"):
                    break
                status, body = await self.answer(path)
                head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        writer.close()

    async def answer(self, path: str) -> tuple[str, bytes]:
        if path.startswith("/bad"):
            return "500 Internal Server Error", b"ValueError: no more"
        if path == "/usage":
            times = {"cpu_ns": time.process_time_ns(), "wall_ns": time.perf_counter_ns()}
            usage = {**times, "served": self.served, "pings": 0}
            return "200 OK", json.dumps(usage).encode()
        if path.startswith("/wait"):
            await asyncio.sleep(0.02)
            self.served += 1
        return "200 OK", b""


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    slow = Slow()
    listener = await asyncio.start_server(slow.serve, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        if slow.tasks:  # they end by themselves, because the clients are closed
            await asyncio.wait(slow.tasks, timeout=5)


def window(
    path: str = "/wait", *, connections: int = 1, rate: int = 0, limit: float = 10
) -> dict[str, Any]:
    known = {"lengths": [5 * MS], "seed": 1, "warm": 0.0, "window": 0.4}
    settings = {**known, "path": path, "connections": connections, "rate": rate, "limit": limit}

    async def run() -> dict[str, Any]:
        async with listening() as port:
            client = load.Client()
            try:
                return await client.window({**settings, "port": port})
            finally:
                client.close()

    return asyncio.run(run())


def window_of(is_usual: Callable[[dict[str, Any]], bool], **settings: Any) -> dict[str, Any]:
    """The first of a few windows that is usual: a busy machine makes some of them short of time."""
    for _ in range(8):
        found = window(**settings)
        if is_usual(found):
            break
    return found


def median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def test_a_closed_loop_asks_again_when_it_is_answered() -> None:
    found = window_of(lambda found: found["count"] > 10, connections=4)
    assert 10 < found["count"] <= 4 * 400 // 20
    assert len(found["latency_ns"]) == found["count"]
    assert min(found["latency_ns"]) >= 19 * MS
    assert found["beyond_ns"][0] == found["latency_ns"][0] - 5 * MS
    assert found["unserved"] == 0
    assert found["late_ns"] == []
    assert 30 < len(found["ping_ns"]) <= 81
    assert found["server"]["served"] >= found["count"] - 4


def test_an_open_loop_counts_from_the_scheduled_arrival() -> None:
    """100 arrivals per second, of which one connection serves 50: the k-th waits for all
    before it.
    """
    found = window(rate=100)
    assert 0 < found["count"] <= 20
    # Half of the time that has passed, and not 20 ms.
    assert max(found["latency_ns"][: found["count"]]) > 100 * MS
    assert found["unserved"] > 5
    # `count` has the window's answers, also to what arrived before it, so the two do not add up.
    assert len(found["latency_ns"]) == len(found["beyond_ns"]) > found["unserved"]


def test_an_open_loop_with_free_connections_is_not_late() -> None:
    found = window_of(
        lambda found: median(found["latency_ns"]) < 100 * MS, connections=32, rate=200
    )
    assert 40 < len(found["latency_ns"]) < 120
    assert found["unserved"] == 0
    assert median(found["latency_ns"]) < 100 * MS
    assert min(found["late_ns"]) >= 0


@pytest.mark.parametrize(
    ("path", "limit", "reason"),
    [
        ("/bad", 10, "answered with HTTP/1.1 500 Internal Server Error: ValueError: no more"),
        ("/gone", 10, "the connection broke"),
        ("/wait", 0.2, load.TOO_LONG),
    ],
)
def test_a_window_ends_with_a_failure_or_late(path: str, limit: float, reason: str) -> None:
    for rate in (0, 200):
        with pytest.raises(RuntimeError, match=reason):
            window(path, connections=3, rate=rate, limit=limit)


def test_pings_that_were_due_meanwhile_count() -> None:
    # Asked at 10 ms and answered 17 ms later: those of 15, 20 and 25 ms would have waited too.
    assert load.ping_times(10 * MS, 27 * MS, 0, 100 * MS) == [17 * MS, 12 * MS, 7 * MS, 2 * MS]
    # Those that were due in the window only.
    assert load.ping_times(10 * MS, 27 * MS, 12 * MS, 22 * MS) == [12 * MS, 7 * MS]
    assert load.ping_times(10 * MS, 11 * MS, 0, 100 * MS) == [1 * MS]
    assert load.ping_times(10 * MS, 11 * MS, 11 * MS, 100 * MS) == []


# ---------------------------------------------------------------------------------------- failures


def measured(driver_kind: str, folder: Path, lines: str) -> tuple[list[Any], dict[str, str]]:
    """The rows of two rounds of a library with more lines; why some were not run."""
    short: dict[str, Any] = {"rounds": 2, "window": 0.05, "warm": 0.0, "trial": 0.05}
    job = server.Server(("asyncio",), KNOWN, load=server.Load(4, length=MS), **short)
    with (
        runner.unpacked(pack_wheel(folder, lines)) as older,
        closing(new_runner(driver_kind, "asyncio", older=older)) as bench_runner,
    ):
        rows = job.run(bench_runner)
    return rows, {entry["peer"]: entry["reason"] for entry in bench_runner.not_run}


BROKEN = """
async def broken(self):
    {line}

Stream.synchronize_async = broken
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "peers", "reason", "end"),
    [
        (
            BROKEN.format(line="raise ValueError('no more')"),
            {server.PING, "polling"},
            "500 Internal Server Error: ValueError: no more",
            None,
        ),
        (
            BROKEN.format(line="__import__('os')._exit(3)"),
            {server.PING},
            "the connection broke",
            "exit code 3",
        ),
        (
            BROKEN.format(line="__import__('time').sleep(600)"),
            {server.PING},
            load.TOO_LONG,
            "exit code -9",
        ),
        # It may end before it can say why.
        (
            "if 'benchmarks.serving' in __import__('sys').orig_argv: raise OSError('no')",
            set(),
            "OSError: no|exit code 1",
            None,
        ),
    ],
    ids=["answers 500", "dies", "hangs", "cannot serve"],
)
def test_peers_of_a_server_that_fails_are_left_out_with_the_reason(
    driver_kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    peers: set[str],
    reason: str,
    end: str | None,
) -> None:
    monkeypatch.setattr(server, "SLOW", 1.5)
    rows, not_run = measured(driver_kind, tmp_path, lines)
    assert {row["peer"] for row in rows} == peers
    assert re.search(reason, not_run["aiostream auto as a server"])
    assert ("polling as a server" in not_run) is ("polling" not in peers)
    assert end is None or end in not_run["a server's orderly end"]


def test_there_is_no_server_on_trio(driver_kind: str) -> None:
    job = server.Server(("trio",), KNOWN, load=server.BUSY)
    with closing(new_runner(driver_kind, "trio")) as bench_runner:
        assert job.run(bench_runner) == []
    (entry,) = bench_runner.not_run
    assert entry["reason"] == "uvicorn serves on asyncio and uvloop only"


# ----------------------------------------------------------------------------- plan, goals, figure


def test_the_loads_can_be_chosen_and_take_minutes() -> None:
    assert set(server.PEERS) <= serving.WAYS.keys()
    jobs = plan.jobs("server", ("uvloop",), server.PEERS, plan.Cut())
    assert [job.title for job in jobs] == [f"server, {each.name}" for each in server.USUAL]
    assert sum(job.seconds() for job in jobs) < 400
    cut = plan.Cut(rounds=2, loads=("128 x 5",))
    (one,) = plan.jobs("server", ("uvloop",), server.PEERS, cut)
    assert one.seconds() < jobs[0].seconds() / 3
