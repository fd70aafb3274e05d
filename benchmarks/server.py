"""Requests per second, latency and CPU of a small ASGI server, by its way to wait for the GPU.

Three processes take part, so that none shares the GIL with another: the server (`serving.py`),
with each way to wait on a path of its own; the load generator (`load.py`); and this one, which
sleeps meanwhile. The ways take turns, window by window.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks import load, serving, stats, work
from benchmarks.child import NO_ANSWER, Child
from benchmarks.measure import Found, Measure, Row, merged

if TYPE_CHECKING:
    from benchmarks.runner import Runner

STREAMS = 128  # of each way to wait: no load has more connections
START, STOP = 120.0, 30.0  # seconds in which a server must listen, and must have ended
SLOW = 15.0  # seconds that a window may take beyond its own length
MORE = ("aiostream event", "run_in_thread", "to_thread 40", "to_thread 256")  # if asked for
PEERS = tuple(name for name in serving.WAYS if name not in MORE)
PING = "/ping alone"  # without a GPU: the limit of uvicorn and the load generator


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
        loop = f"open {self.rate}/s" if self.rate else f"closed {self.connections}"
        return f"{loop} x {f'{self.length / 1e6:g} ms' if self.length else 'log-normal'}"


BUSY, OPEN = Load(128, length=5 * work.MS), Load(STREAMS, rate=2_000)
USUAL = (BUSY, OPEN, Load(16, length=5 * work.MS), Load(128))  # unless others are chosen
_MORE = (Load(16), Load(STREAMS, rate=2_000, length=5 * work.MS))
LOADS = {each.name: each for each in (*USUAL, *_MORE)}


def missing() -> str | None:
    """Why there can be no server here, or `None`."""
    if importlib.util.find_spec("uvicorn") is None:
        return "uvicorn is not installed: pip install --group bench"
    return None


@dataclass(frozen=True, kw_only=True)
class Server(Measure):
    """One load on every way to wait.

    Attributes:
        load: What the clients ask for.
        streams: How many each way has.
        window: Seconds.
        warm: Seconds before the window.
        trial: Seconds of load on each way before the first round; what fails there is left out.
    """

    load: Load
    rounds: int = 10
    streams: int = STREAMS
    window: float = 0.5
    warm: float = 0.1
    trial: float = 0.2

    name = "server"
    noun: ClassVar[str] = "server"  # what a peer is called that is left out
    module: ClassVar[str] = "serving"  # what the server's process runs
    QUICK: ClassVar[dict[str, Any]] = {"rounds": 1, "window": 0.06, "warm": 0.02, "trial": 0.0}

    @property
    def title(self) -> str:
        return f"{self.name}, {self.load.name}"

    def turn_seconds(self) -> float:
        return self.warm + self.window + 0.06

    def seconds(self) -> float:
        slow = 1.5 * self.rounds if "blocking" in self.peers and self.load.connections > 16 else 0
        return super().seconds() + len(self.loops) * (6 + len(self.peers) * self.trial + slow)

    def missing(self) -> str | None:
        return missing()

    def settings(self) -> dict[str, Any]:
        """What the server's process is asked for in addition to its ways."""
        return {}

    def run(self, runner: Runner) -> list[Row]:
        """Measures.

        Raises:
            RuntimeError: Something that it needs is not installed, or the load generator does not
                start.
        """
        if reason := self.missing():
            raise RuntimeError(reason)
        rows: list[Row] = []
        for loop in self.loops:
            if loop == "trio":
                runner.leave_out(self.title, loop, "uvicorn serves on asyncio and uvloop only")
                continue
            with _Machinery(self, loop, runner) as machinery:
                rows += self._measure(machinery, loop)
        return rows

    def _measure(self, machinery: _Machinery, loop: str) -> list[Row]:
        found: dict[str, list[Found]] = {}
        if not self.load.rate:
            ping = {**self.load_of(0, self.window), "path": "/ping", "lengths": []}
            found[PING] = [{**window, "round": 0} for window in machinery.ping(ping)]
        if self.trial:
            list(machinery.take_turns(0, self.load_of(0, self.trial)))
        for number in range(self.rounds):
            for peer, window in machinery.take_turns(number, self.load_of(number, self.window)):
                found.setdefault(peer, []).append({**window, "round": number})
        rows = []
        for peer, windows in found.items():
            head = {"measure": self.name, "loop": loop, "peer": peer}
            if any(window["latency_ns"] for window in windows):
                rows.append({**head, "server": machinery.description, **self.row(windows)})
            elif windows:
                machinery.leave_out(peer, "no request was answered within its windows")
        return rows

    def load_of(self, number: int, window: float) -> dict[str, Any]:
        """What the load generator is asked for in a round."""
        length = self.load.length
        return {
            "connections": self.load.connections,
            "rate": self.load.rate,
            "lengths": [length] if length else work.log_normal(f"{number} server"),
            "warm": self.warm,
            "window": window,
            "seed": number,
            "limit": SLOW + self.warm + window,
        }

    def row(self, turns: list[Found]) -> Row:
        """The rates, the tails of all requests together, and what a request costs."""
        each = [_of_window(turn) for turn in turns]
        rates = [window["per_second"] for window in each]
        low, high = stats.median_interval(rates)
        latency, beyond, late, pings = (
            merged(turns, f"{key}_ns") for key in ("latency", "beyond", "late", "ping")
        )
        costs = [window["cpu_us"] for window in each if window["cpu_us"] is not None]
        return {
            "load": self.load.name,
            "connections": self.load.connections,
            "rate": self.load.rate,
            "length_ns": self.load.length,
            "samples": len(latency),
            "per_second": stats.median(rates),
            "low": low,
            "high": high,
            **stats.tails(latency),
            "beyond": stats.tails(beyond),
            "ping": {**stats.tails(pings), "samples": len(pings)} if pings else None,
            "cpu_us": stats.median(costs) if costs else None,
            "cores": stats.median([window["cores"] for window in each]),
            "unserved": sum(turn["unserved"] for turn in turns),
            "client_cores": stats.median([turn["client_cores"] for turn in turns]),
            "client_late": stats.tails(late) if late else None,
            "windows": each,
        }


def _of_window(window: Found) -> Row:
    used = window["server"]
    requests = used["served"] or used["pings"]  # the few pings of a window are the same for all
    tails = {
        f"{name}_us": stats.micro(stats.percentile(values, percent)) if values else None
        for name, percent, values in (
            ("p50", 50, window["latency_ns"]),
            ("p99", 99, window["latency_ns"]),
            ("beyond_p99", 99, window["beyond_ns"]),
            ("ping_p99", 99, window["ping_ns"]),
        )
    }
    return {
        "round": window["round"],
        "per_second": round(window["count"] * 1e9 / window["wall_ns"], 1),
        "cpu_us": round(used["cpu_ns"] / 1e3 / requests, 3) if requests else None,
        "cores": round(used["cpu_ns"] / used["wall_ns"], 4),
        **tails,
        "client_cores": window["client_cores"],
        "unserved": window["unserved"],
    }


# ----------------------------------------------------------------------------------- the processes


class _Machinery:
    """The server and the load generator of one setting. A way that fails is left out."""

    def __init__(self, job: Server, loop: str, runner: Runner) -> None:
        self._job, self._loop, self._runner = job, loop, runner
        self._peers = list(job.peers)
        self._port = 0  # until the server listens
        self._client: Child | None = None
        self.description = ""
        settings = {"ways": self._peers, "streams": job.streams, "loop": loop, **job.settings()}
        self._server = runner.child("the server", job.module, settings)

    def __enter__(self) -> _Machinery:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._port:
            self._end()
        self._server.close()
        if self._client is not None:
            self._client.close()

    def _start(self) -> None:
        self._new_client()
        try:
            found = self._server.answer(START)
        except RuntimeError as error:
            for peer in list(self._peers):
                self._drop(peer, str(error))
        else:
            self._port, self.description = found["port"], found["server"]
            self._runner.library = found["library"]

    def _new_client(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = Child("the load generator", "load", self._loop)
        self._client.answer(START)

    def _end(self) -> None:
        """Ends the server, and says so if it has not ended well."""
        try:
            ended = self._server.ask({"do": "end"}, STOP)
            if not ended["balanced"]:
                self._runner.leave_out(
                    "a server's balanced statistics", self._loop, ended["statistics"]
                )
        except RuntimeError as error:
            self._runner.leave_out("a server's orderly end", self._loop, str(error))

    def _drop(self, peer: str, reason: str) -> None:
        self._peers.remove(peer)
        self.leave_out(peer, reason)

    def leave_out(self, peer: str, reason: str) -> None:
        """Notes why a peer has no row, or one of fewer windows."""
        self._runner.leave_out(f"{peer} as a {self._job.noun}", self._loop, reason)

    # ------------------------------------------------------------------------------------ the load

    def ping(self, request: dict[str, Any]) -> Iterator[Found]:
        """A window of a path that does nothing; none if that fails."""
        if not self._port:
            return
        try:
            yield self._ask(request)
        except RuntimeError as error:
            self._runner.leave_out(PING, self._loop, str(error))

    def take_turns(self, number: int, request: dict[str, Any]) -> Iterator[tuple[str, Found]]:
        """A window for each way to wait, in each round beginning with another."""
        start = number % max(1, len(self._peers))
        for peer in (*self._peers[start:], *self._peers[:start]):
            try:
                path = {"path": serving.path_of(peer)}
                yield peer, self._ask({**request, **path})
            except RuntimeError as error:
                self._drop(peer, str(error))

    def _ask(self, request: dict[str, Any]) -> Found:
        assert self._client is not None
        if self._server.ended:
            raise RuntimeError("the server's process has ended")
        try:
            port, limit = {"port": self._port}, request["limit"] + SLOW
            return dict(self._client.ask({**request, **port}, limit))
        except RuntimeError as error:
            if any(words in str(error) for words in (load.TOO_LONG, NO_ANSWER)):
                self._server.kill()  # it does not answer, nor would it in the next turns
            if self._client.ended:
                with contextlib.suppress(RuntimeError):
                    self._new_client()
            raise
