"""Requests per second, latency and CPU of a small ASGI server, by its way to wait for the GPU.

Three processes take part, so that none shares the GIL with another: the server (`serving.py`), one
for each version of the library, with each way to wait on a path of its own; the load generator
(`load.py`); and this one, which sleeps meanwhile. The ways take turns, window by window.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import aiostream
from aiostream.bench import load, serving, stats, turns
from aiostream.bench.child import NO_ANSWER, Child
from aiostream.bench.companion import WAITS
from aiostream.bench.runner import Row, Runner

STREAMS = 128  # of each way to wait: no load has more connections
START, STOP = 120.0, 30.0  # seconds in which a server must listen, and must have ended
SLOW = 15.0  # seconds that a window may take beyond its own length
PEERS = tuple(
    name for name in serving.WAYS if name not in ("aiostream event", *WAITS)
)  # unless others are chosen
PING = "/ping alone"  # what is served, and asked for, without a GPU: the limit of uvicorn and the load generator


@dataclass(frozen=True)
class Load:
    """What the clients ask for.

    Attributes:
        connections: How many.
        rate: Arrivals per second of an open loop; 0 for a closed one.
        length: The kernels' length in ns; 0 for log-normal ones, as in `mixed`.
    """

    connections: int
    rate: int = 0
    length: int = 0

    @property
    def name(self) -> str:
        """The load in a few words."""
        loop = f"open {self.rate}/s" if self.rate else f"closed {self.connections}"
        return f"{loop} x {f'{self.length / 1e6:g} ms' if self.length else 'log-normal'}"


BUSY, OPEN = Load(128, length=5_000_000), Load(STREAMS, rate=2_000)  # those that have goals
USUAL = (BUSY, OPEN, Load(16, length=5_000_000), Load(128))  # unless others are chosen
LOADS = {
    each.name: each for each in (*USUAL, Load(16), Load(STREAMS, rate=2_000, length=5_000_000))
}


def missing() -> str | None:
    """Why there can be no server here, or `None`."""
    if importlib.util.find_spec("uvicorn") is None:
        return "uvicorn is not installed: pip install 'aiostream-cuda[bench]'"
    return None


@dataclass(frozen=True)
class Server:
    """One load on every way to wait.

    Attributes:
        loops: Where; uvicorn knows asyncio and uvloop.
        peers: Which ways to wait.
        load: What the clients ask for.
        rounds: How many windows for each, in turn.
        window: Seconds.
        warm: Seconds before the window.
        trial: Seconds of load on each way before the first round; what fails there is left out.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    load: Load
    rounds: int = 10
    window: float = 0.5
    warm: float = 0.1
    trial: float = 0.2

    measure: ClassVar[str] = "server"
    noun: ClassVar[str] = "server"  # what a peer is called that is left out
    script: ClassVar[str] = serving.__file__  # what the server's process runs
    streams: ClassVar[int] = STREAMS

    @property
    def title(self) -> str:
        """What is measured."""
        return f"{self.measure}, {self.load.name}"

    def seconds(self) -> float:
        """About how long it will take."""
        turn = self.warm + self.window + 0.06
        each = len(self.peers) * (self.rounds * turn + self.trial)
        slow = 1.5 * self.rounds if "blocking" in self.peers and self.load.connections > 16 else 0
        return len(self.loops) * (6 + each + slow)

    def run(self, runner: Runner) -> list[Row]:
        """Measures.

        Raises:
            RuntimeError: Something that it needs is not installed, or the load generator does not start.
        """
        if reason := self._missing():
            raise RuntimeError(reason)
        rows: list[Row] = []
        for loop in self.loops:
            if loop == "trio":
                runner.leave_out(self.title, loop, "uvicorn serves on asyncio and uvloop only")
                continue
            with _Machinery(self, self.peers, loop, runner) as machinery:
                rows += self._measure(machinery, loop)
        return rows

    def _missing(self) -> str | None:
        return missing()

    def _measure(self, machinery: _Machinery, loop: str) -> list[Row]:
        found: dict[str, list[dict[str, Any]]] = {}
        if not self.load.rate:
            ping = {**self._request(0, self.window), "path": "/ping", "lengths": []}
            found[PING] = [{**window, "round": 0} for window in machinery.ping(ping)]
        if self.trial:
            list(machinery.take_turns(0, self._request(0, self.trial)))
        for number in range(self.rounds):
            for peer, window in machinery.take_turns(number, self._request(number, self.window)):
                found.setdefault(peer, []).append({**window, "round": number})
        rows = []
        for peer, windows in found.items():
            if any(window["latency_ns"] for window in windows):
                rows.append(self._row(loop, peer, windows, machinery.description))
            elif windows:
                machinery.leave_out(peer, "no request was answered within its windows")
        return rows

    def _request(self, number: int, window: float) -> dict[str, Any]:
        return {
            "connections": self.load.connections,
            "rate": self.load.rate,
            "lengths": [self.load.length]
            if self.load.length
            else turns.log_normal(f"{number} server"),
            "warm": self.warm,
            "window": window,
            "seed": number,
            "limit": SLOW + self.warm + window,
        }

    def _row(self, loop: str, peer: str, windows: list[dict[str, Any]], description: str) -> Row:
        each = [_of_window(window) for window in windows]
        rates = [window["per_second"] for window in each]
        low, high = stats.median_interval(rates)
        whole = {
            key: [value for window in windows for value in window[key]]
            for key in ("latency_ns", "beyond_ns", "late_ns")
        }
        pings = [value for window in windows for value in window["ping_ns"]]
        costs = [window["cpu_us"] for window in each if window["cpu_us"] is not None]
        return {
            "measure": self.measure,
            "loop": loop,
            "peer": peer,
            "load": self.load.name,
            "server": description,
            "connections": self.load.connections,
            "rate": self.load.rate,
            "length_ns": self.load.length,
            "samples": len(whole["latency_ns"]),
            "per_second": statistics.median(rates),
            "low": low,
            "high": high,
            **stats.tails(whole["latency_ns"]),
            "beyond": stats.tails(whole["beyond_ns"]),
            "ping": {**stats.tails(pings), "samples": len(pings)} if pings else None,
            "cpu_us": statistics.median(costs) if costs else None,
            "cores": statistics.median(window["cores"] for window in each),
            "unserved": sum(window["unserved"] for window in windows),
            "client_cores": statistics.median(window["client_cores"] for window in each),
            "client_late": stats.tails(whole["late_ns"]) if whole["late_ns"] else None,
            "windows": each,
        }


def _of_window(window: dict[str, Any]) -> dict[str, Any]:
    used = window["server"]
    requests = used["served"] or used["pings"]  # the few pings of a window are the same for all
    beyond, ping = window["beyond_ns"], window["ping_ns"]
    return {
        "round": window["round"],
        "per_second": round(window["count"] * 1e9 / window["wall_ns"], 1),
        "cpu_us": round(used["cpu_ns"] / 1e3 / requests, 3) if requests else None,
        "cores": round(used["cpu_ns"] / used["wall_ns"], 4),
        "p99_us": round(stats.percentile(window["latency_ns"], 99) / 1e3, 1)
        if window["latency_ns"]
        else None,
        "beyond_p99_us": round(stats.percentile(beyond, 99) / 1e3, 1) if beyond else None,
        "ping_p99_us": round(stats.percentile(ping, 99) / 1e3, 1) if ping else None,
        "client_cores": window["client_cores"],
        "unserved": window["unserved"],
    }


# ------------------------------------------------------------------------------------------------ the processes


class _Machinery:
    """The servers and the load generator of one setting. A way that fails is left out, and so is one whose server has ended."""

    def __init__(self, job: Server, peers: Sequence[str], loop: str, runner: Runner) -> None:
        self._job, self._runner, self._loop = job, runner, loop
        self._peers = list(peers)
        self._servers: dict[str, Child] = {}  # by the folder of its aiostream
        self._ports: dict[str, int] = {}
        self._client: Child | None = None
        self.description = ""

    def __enter__(self) -> _Machinery:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for folder, server in self._servers.items():
            if folder in self._ports:
                self._end(server)
            server.close()
        if self._client is not None:
            self._client.close()

    def _start(self) -> None:
        for folder in dict.fromkeys(map(self._folder, self._peers)):
            ways = [peer for peer in self._peers if self._folder(peer) == folder]
            settings = {"ways": ways, "streams": self._job.streams, "loop": self._loop}
            settings |= {"folder": folder, "simulator": self._runner.simulator}
            arguments = [self._job.script, json.dumps(settings)]
            older = folder if ways[0] in WAITS else None  # ours is found as it was found here
            self._servers[folder] = Child(
                "the server", arguments, path=older, simulator=self._runner.simulator
            )
        self._new_client()
        for folder, server in self._servers.items():
            try:
                found = server.answer(START)
            except RuntimeError as error:
                for peer in [peer for peer in self._peers if self._folder(peer) == folder]:
                    self._drop(peer, str(error))
            else:
                self._ports[folder] = found["port"]
                self.description = self.description or found["server"]

    def _new_client(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = Child("the load generator", [load.__file__, self._loop])
        self._client.answer(START)

    def _folder(self, peer: str) -> str:
        """Where the aiostream of a peer lies."""
        if peer in WAITS:
            return self._runner.older_folder
        return str(Path(str(aiostream.__file__)).parents[1])

    def _end(self, server: Child) -> None:
        """Ends a server, and says so if it has not ended well."""
        try:
            ended = server.ask({"turn": "end"}, STOP)
            if not ended["balanced"]:
                self._runner.leave_out("a server's balanced ledger", self._loop, ended["ledger"])
        except RuntimeError as error:
            self._runner.leave_out("a server's orderly end", self._loop, error)

    def _drop(self, peer: str, reason: str) -> None:
        self._peers.remove(peer)
        self.leave_out(peer, reason)

    def leave_out(self, peer: str, reason: str) -> None:
        """Notes why a peer has no row, or one of fewer windows."""
        self._runner.leave_out(f"{peer} as a {self._job.noun}", self._loop, reason)

    # -------------------------------------------------------------------------------------------- the load

    def ping(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A window of a path that does nothing, on the first server that there is; none if that fails."""
        for folder in list(self._ports)[:1]:
            try:
                yield self._ask(folder, request)
            except RuntimeError as error:
                self._runner.leave_out(PING, self._loop, error)

    def take_turns(
        self, number: int, request: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """A window for each way to wait, in each round beginning with another."""
        start = number % max(1, len(self._peers))
        for peer in (*self._peers[start:], *self._peers[:start]):
            try:
                yield (
                    peer,
                    self._ask(self._folder(peer), {**request, "path": serving.path_of(peer)}),
                )
            except RuntimeError as error:
                self._drop(peer, str(error))

    def _ask(self, folder: str, request: dict[str, Any]) -> dict[str, Any]:
        assert self._client is not None
        server = self._servers[folder]
        if server.ended:
            raise RuntimeError("the server's process has ended")
        try:
            return dict(
                self._client.ask({**request, "port": self._ports[folder]}, request["limit"] + SLOW)
            )
        except RuntimeError as error:
            if any(words in str(error) for words in (load.TOO_LONG, NO_ANSWER)):
                server.kill()  # it does not answer, nor would it in the next turns
            if self._client.ended:
                with contextlib.suppress(RuntimeError):
                    self._new_client()
            raise
