"""The load generator of the measure `server`: HTTP/1.1 clients in a process of their own.

    python -m benchmarks.load uvloop

`server.py` starts it. It reads a JSON request a line from standard input, each a window
of load on a server of this host, and answers each with a JSON line. Its connections are kept alive
from one window to the next.

Closed loop: each connection asks again as soon as it is answered. Open loop: requests arrive as a
Poisson process, whether or not the server keeps up. Latency then counts from the arrival that was
scheduled, so a request that waits for a free connection, or for this process, waits in it too.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns, process_time_ns
from typing import Any, cast

from benchmarks import child

PING_EVERY = 5_000_000  # ns
# Turns of the loop await an arrival as near as this, because uvloop's timers count milliseconds.
NEAR = 2_000_000  # ns
NEVER = 1 << 62  # ns
TOO_LONG = "the server did not answer everything within"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

Found = dict[str, Any]


class Connection(asyncio.Protocol):
    """One kept-alive connection with one request at a time.

    `began` and `length` are the window's: when the request began, and its kernel's length in ns.
    """

    def __init__(self) -> None:
        self.began = self.length = 0
        self.closed = False
        self._received = b""
        self._answered: Callable[[Connection, str, bytes], None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, answered: Callable[[Connection, str, bytes], None]) -> None:
        """Sends a request; calls `answered(connection, problem, body)` when the answer is whole.

        `problem` says what is wrong with the answer, or that the connection broke; it is "" after
        status 200.
        """
        self._answered = answered
        if self.closed or self._transport is None:
            self._settle("the connection broke before the request", b"")
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        received = self._received + data if self._received else data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            self._received = received
            return
        found = LENGTH.search(received, 0, end)
        whole = end + 4 + (int(found[1]) if found else 0)
        if len(received) < whole:
            self._received = received
            return
        self._received = b""
        body = received[end + 4 : whole]
        if received.startswith(b"HTTP/1.1 200 "):
            self._settle("", body)
        else:
            status = received[: received.find(b"\r\n")].decode(errors="replace")
            self._settle(f"answered with {status}: {body[:200].decode(errors='replace')}", body)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self.closed = True
        self._settle(f"the connection broke: {error or 'the server closed it'}", b"")

    def close(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _settle(self, problem: str, body: bytes) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(self, problem, body)


async def fetch(connection: Connection, path: str) -> bytes:
    """One request, awaited.

    Raises:
        RuntimeError: It was not answered with status 200.
    """
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answered(_: Connection, problem: str, body: bytes) -> None:
        if future.done():
            return
        if problem:
            future.set_exception(RuntimeError(f"{path} {problem}"))
        else:
            future.set_result(body)

    connection.ask(request_of(path), answered)
    return await future


@functools.lru_cache(4096)
def request_of(path: str) -> bytes:
    """The bytes of a request."""
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def ping_times(asked: int, done: int, begin: int, end: int) -> list[int]:
    """The latencies in ns of the pings that were due in a window, every 5 ms until one is done.

    A ping is asked only when the last one is answered. Those that were due meanwhile would have
    waited until then at least, and count as well: else a server that is blocked gets fewer requests
    often, and looks better than it is.
    """
    return [
        done - due
        for due in range(asked, max(min(done, end), asked + 1), PING_EVERY)
        if begin <= due < end
    ]


class Window:
    """One window of load.

    Args:
        connections: On which the load comes. One more asks for `/ping`, and one for `/usage`.
        settings: `path`: what is asked for; `lengths`: the kernels' lengths in ns, in turn, or none
            for a path that launches nothing; `rate`: arrivals per second, or 0 for a closed loop;
            `warm` and `window`: seconds, the first at least; `seed`: of the arrivals.
    """

    def __init__(self, connections: Sequence[Connection], settings: Found) -> None:
        self._connections, (self._pinged, self._control) = connections[:-2], connections[-2:]
        self._rate, self._warm, self._length = (
            settings["rate"],
            settings["warm"],
            round(settings["window"] * 1e9),
        )
        path, lengths = settings["path"], settings["lengths"]
        self._requests = [
            (length, request_of(f"{path}?ns={length}" if length else path))
            for length in lengths or [0]
        ]
        self._random = random.Random(settings["seed"])
        self._sent = 0
        self._begin = self._end = NEVER
        self._problem = ""
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.Future[None] = self._loop.create_future()
        self._under_way = 0
        # A closed loop is warm when each connection was answered once: before, the slow ones' queue
        # still grows.
        self._cold = set() if self._rate else set(self._connections)
        self._warmed: asyncio.Future[None] = self._loop.create_future()
        # Of the open loop:
        self._free = deque(self._connections)
        self._queue: deque[int] = deque()  # arrivals in ns that no connection was free for
        self._due = 0  # the next arrival
        # What is found, in ns:
        self.count = 0
        self.latencies: list[int] = []
        self.beyond: list[int] = []
        self.pings: list[int] = []
        self.late: list[
            int
        ] = []  # how late the open loop's requests were sent on a connection that was free

    async def run(self) -> Found:
        """Applies the load, and returns what it has found.

        Raises:
            RuntimeError: A request was not answered with status 200, or a connection broke.
        """
        tasks = [asyncio.create_task(self._ping())]
        try:
            return await self._run(tasks)
        except RuntimeError as error:
            raise RuntimeError(self._problem or str(error)) from None  # the first problem says most
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, tasks: list[asyncio.Task[Any]]) -> Found:
        self._start()
        await asyncio.sleep(self._warm)
        await self._warmed
        tasks.append(
            asyncio.create_task(fetch(self._control, "/usage"))
        )  # a loop that is blocked answers late
        cpu = process_time_ns()
        self._begin = perf_counter_ns()
        self._end = self._begin + self._length
        await asyncio.sleep(self._length / 1e9)
        # uvloop's timers may be early by a millisecond.
        while perf_counter_ns() < self._end:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # A closed loop of a server that is slower than that lasts until the first answer.
        while not (self._rate or self.count or self._problem):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        took, cpu = perf_counter_ns() - self._begin, process_time_ns() - cpu
        before = json.loads(await tasks[1])
        after = json.loads(await fetch(self._control, "/usage"))
        unserved = self._give_up()
        if self._under_way:
            await self._idle
        await tasks[0]
        if self._problem:
            raise RuntimeError(self._problem)
        usage = {key: after[key] - before[key] for key in after}
        return {
            "count": self.count,
            "wall_ns": self._end - self._begin,
            "latency_ns": self.latencies,
            "beyond_ns": self.beyond,
            "ping_ns": self.pings,
            "late_ns": self.late,
            "unserved": unserved,
            "client_cores": round(cpu / took, 4),
            "server": usage,
        }

    # ------------------------------------------------------------------------------------ the load

    def _start(self) -> None:
        if self._rate:
            self._warmed.set_result(None)
            self._due = perf_counter_ns()
            self._arrive()
            return
        # A closed loop begins with a spread of a few ms, because in step all would ask at the same
        # time.
        for number, connection in enumerate(self._connections):
            self._under_way += 1
            self._loop.call_later(0.005 * number / len(self._connections), self._send, connection)

    def _send(self, connection: Connection, began: int = 0) -> None:
        connection.length, request = self._requests[self._sent % len(self._requests)]
        self._sent += 1
        connection.began = began or perf_counter_ns()
        connection.ask(request, self._answered)

    def _answered(self, connection: Connection, problem: str, _: bytes) -> None:
        now = perf_counter_ns()
        self._problem = self._problem or problem
        if self._cold:
            self._cold.discard(connection)
            if not self._cold:
                self._warmed.set_result(None)
        if self._end <= now and not (self._rate or self.count or problem):
            self._end = now + 1
        if self._begin <= now < self._end:
            self.count += 1
        # The open loop's requests belong to the window in which they arrive: else those that come
        # late would be left out.
        if self._begin <= (connection.began if self._rate else now) < self._end:
            self._record(now - connection.began, connection.length)
        if not self._goes_on(now):
            self._under_way -= 1
            if not self._under_way and not self._idle.done():
                self._idle.set_result(None)
        elif not self._rate:
            self._send(connection, now)
        elif self._queue:
            self._send(connection, self._queue.popleft())
        else:
            self._under_way -= 1
            self._free.append(connection)

    def _goes_on(self, now: int) -> bool:
        return now < self._end and not self._problem

    def _record(self, latency: int, length: int) -> None:
        self.latencies.append(latency)
        self.beyond.append(latency - length)

    def _arrive(self) -> None:
        """Sends what has arrived, again and again until the window's end."""
        now = perf_counter_ns()
        if not self._goes_on(now):
            return
        while self._due <= now:
            if self._free and not self._queue:
                self.late.append(now - self._due)
                self._under_way += 1
                self._send(self._free.popleft(), self._due)
            else:
                self._queue.append(self._due)
            self._due += 1 + round(self._random.expovariate(self._rate) * 1e9)
        wait = self._due - now - NEAR
        if wait > 0:
            self._loop.call_later(wait / 1e9, self._arrive)
        else:
            self._loop.call_soon(self._arrive)

    def _give_up(self) -> int:
        """Gives up arrivals of the window that were never sent. They count as long as they waited.

        Returns:
            How many there were.
        """
        now, given_up = perf_counter_ns(), 0
        while self._queue:
            scheduled = self._queue.popleft()
            if self._begin <= scheduled < self._end:
                given_up += 1
                self._record(now - scheduled, 0)
        return given_up

    async def _ping(self) -> None:
        try:
            while self._goes_on(asked := perf_counter_ns()):
                await fetch(self._pinged, "/ping")
                self.pings += ping_times(asked, perf_counter_ns(), self._begin, self._end)
                await asyncio.sleep(max(0, asked + PING_EVERY - perf_counter_ns()) / 1e9)
        except RuntimeError as error:
            self._problem = self._problem or str(error)


# ------------------------------------------------------------------------------------- the process


class Client:
    """The connections, by the port on which their server listens."""

    def __init__(self) -> None:
        self._by_port: dict[int, list[Connection]] = {}

    async def window(self, settings: Found) -> Found:
        """Opens what is missing, and runs a window. If that fails or takes too long, it closes all.

        Raises:
            RuntimeError: As `Window.run`; or the time is over.
        """
        port = settings["port"]
        try:
            async with asyncio.timeout(settings["limit"]):
                connections = await self._connections(port, settings["connections"] + 2)
                return await Window(connections, settings).run()
        except TimeoutError as error:
            self._close(port)
            raise RuntimeError(f"{TOO_LONG} {settings['limit']:.0f} s") from error
        except BaseException:
            self._close(port)
            raise

    async def _connections(self, port: int, count: int) -> list[Connection]:
        known = self._by_port.setdefault(port, [])
        loop = asyncio.get_running_loop()
        while len(known) < count:
            known.append((await loop.create_connection(Connection, "127.0.0.1", port))[1])
        return known[:count]

    def close(self) -> None:
        """Closes every connection."""
        for port in list(self._by_port):
            self._close(port)

    def _close(self, port: int) -> None:
        for connection in self._by_port.pop(port, ()):
            connection.close()


def main() -> None:
    """Answers until standard input ends."""
    factory: Any = None
    if sys.argv[1:] == ["uvloop"]:
        import uvloop

        factory = uvloop.new_event_loop
    client = Client()
    gc.disable()
    with asyncio.Runner(loop_factory=factory) as runner:

        def answer(settings: Found) -> Found:
            gc.collect()  # off while something is timed
            return runner.run(client.window(settings))

        child.serve(lambda: ("ready", answer))


if __name__ == "__main__":
    main()
