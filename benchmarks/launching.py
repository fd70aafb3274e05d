"""The processes of the measure `launches`: tasks that launch, a server, and its client.

`launches.py` starts them, with this version of the package or with an older one. So they use only
what both have.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import aiostream
from benchmarks import child
from benchmarks.stats import percentile

PING_EVERY = 0.005
KERNEL = 0.001  # seconds of work on the simulator, behind each launch
# On a GPU: how many layers, and of which size, by the milliseconds that their launch takes about.
LAYERS = {0.05: (1, 256), 0.3: (6, 4096), 4.0: (150, 256)}
ROWS = 16

Launch = Callable[[Any], None]  # gets a stream of aiostream, or `None` from `pool.run`
Way = Callable[[Any, Launch], Awaitable[None]]


def burning(milliseconds: float) -> Launch:
    """A launch on the simulator: it computes in Python, and launches a kernel."""
    from aiostream.testing import spin

    def launch(stream: Any) -> None:
        end = time.perf_counter() + milliseconds / 1e3
        while time.perf_counter() < end:
            pass
        if stream is not None:
            spin(stream, KERNEL)

    return launch


def layers(milliseconds: float) -> Launch:
    """A launch on a GPU: torch's layers in eager mode, without a copy back."""
    torch: Any = importlib.import_module("torch")
    count, size = LAYERS[milliseconds]
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    modules = [torch.nn.Linear(size, size, **kind) for _ in range(count)]
    rows = torch.randn(ROWS, size, **kind)
    torch.cuda.synchronize()

    def launch(stream: Any) -> None:
        with torch.inference_mode():
            values = rows
            for module in modules:
                values = torch.relu(module(values))

    return launch


def current(stream: Any, launch: Launch) -> None:
    """The launch, where no method of aiostream makes the stream the current one."""
    with stream.as_current():
        launch(stream)


# ------------------------------------------------------------------------------------- the ways


def _ways() -> dict[str, Way]:
    """Each way to launch and to wait. Executors and locks belong to one loop."""
    one, two = (ThreadPoolExecutor(n) for n in (1, 2))
    lock = asyncio.Lock()

    async def run(stream: Any, launch: Launch) -> None:
        await stream.run(launch, stream)

    async def in_thread(stream: Any, launch: Launch) -> None:
        await stream.run_in_thread(launch, stream)

    async def to_thread(stream: Any, launch: Launch) -> None:
        def whole() -> None:
            current(stream, launch)
            stream.synchronize()

        await asyncio.to_thread(whole)

    async def by_executor(stream: Any, launch: Launch, executor: Any) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(executor, current, stream, launch)
        await stream.synchronize_async()

    async def one_each_turn(stream: Any, launch: Launch) -> None:
        async with lock:
            current(stream, launch)
            await asyncio.sleep(0)
        await stream.synchronize_async()

    return {
        "run": run,
        "run, one each turn (a lock)": one_each_turn,
        "run_in_thread": in_thread,
        "ThreadPoolExecutor(1), then await stream": partial(by_executor, executor=one),
        "ThreadPoolExecutor(2), then await stream": partial(by_executor, executor=two),
        "to_thread, blocking": to_thread,
    }


WAYS = (
    "run",
    "run, one each turn (a lock)",
    "run_in_thread",
    "ThreadPoolExecutor(1), then await stream",
    "ThreadPoolExecutor(2), then await stream",
    "to_thread, blocking",
)
# The others take a stream of the pool first.
SERVER_WAYS = ("pool run", *WAYS)


class Kit:
    """The launch, the ways and the streams of one process."""

    def __init__(self, milliseconds: float, streams: int, on_gpu: bool) -> None:
        self.launch = (layers if on_gpu else burning)(milliseconds)
        self.ways = _ways()
        if on_gpu:
            torch: Any = importlib.import_module("torch")
            self._torch = [torch.cuda.Stream() for _ in range(streams)]
            self.streams = [aiostream.Stream.borrow(each) for each in self._torch]
            for stream in self.streams:  # each pair of thread and stream gets memory of cuBLAS
                current(stream, self.launch)
            torch.cuda.synchronize()
        else:
            self.streams = [aiostream.Stream() for _ in range(streams)]

    def close(self) -> None:
        """Destroys the streams, which are idle."""
        for stream in self.streams:
            stream.close()


# -------------------------------------------------------------------------- tasks in one process


async def _measure(kit: Kit, way: Way, seconds: float) -> dict[str, float]:
    late: list[float] = []
    took: list[float] = []
    counts = [0] * len(kit.streams)
    end = time.perf_counter() + seconds

    async def timer() -> None:
        while (asked := time.perf_counter()) < end:
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - asked - 0.001)

    async def task(number: int, stream: Any) -> None:
        while (began := time.perf_counter()) < end:
            await way(stream, kit.launch)
            took.append(time.perf_counter() - began)
            counts[number] += 1

    process, thread = time.process_time(), time.thread_time()
    began = time.perf_counter()
    await asyncio.gather(timer(), *(task(n, each) for n, each in enumerate(kit.streams)))
    elapsed = time.perf_counter() - began
    done = max(len(took), 1)
    return {
        "per_second": len(took) / elapsed,
        "p50_ms": 1e3 * percentile(took, 50),
        "p99_ms": 1e3 * percentile(took, 99),
        "late_p50_ms": 1e3 * percentile(late, 50),
        "late_p99_ms": 1e3 * percentile(late, 99),
        "loop_us": 1e6 * (time.thread_time() - thread) / done,
        "process_us": 1e6 * (time.process_time() - process) / done,
        "unfair": max(counts) / max(min(counts), 1),
    }


async def _tasks(request: dict[str, Any], kits: dict[str, Kit]) -> dict[str, float]:
    key = f"{request['ms']} {request['streams']}"
    if key not in kits:
        kits[key] = Kit(request["ms"], request["streams"], request["gpu"])
    kit = kits[key]
    # Locks belong to the loop that first uses them, and each request has a loop.
    way = _ways()[request["way"]]
    await _measure(kit, way, request["seconds"] / 10)  # its threads, its memory, what it learns
    return await _measure(kit, way, request["seconds"])


def _begin_tasks() -> tuple[str, Callable[[Any], Any]]:
    kits: dict[str, Kit] = {}
    return "ready", lambda request: _run(_tasks(request, kits))


def _run(main: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


# ---------------------------------------------------------------------------------- the server


def _application(kit: Kit) -> Any:
    """An ASGI application: `/<number of a way>`, `/ping`, which waits for no GPU, and `/usage`."""
    # Not an `asyncio.Queue`, at which a new request may come before those that wait.
    pool = aiostream.StreamPool.borrow(kit.streams)
    loop_thread = threading.get_ident()

    async def answer(path: str) -> bytes:
        if path == "/ping":
            return b"pong"
        if path == "/usage":
            assert threading.get_ident() == loop_thread
            return json.dumps([time.process_time(), time.thread_time()]).encode()
        name = SERVER_WAYS[int(path[1:])]
        if name == "pool run":
            await pool.run(kit.launch, None)
        else:
            async with pool.stream() as stream:
                await kit.ways[name](stream, kit.launch)
        return b"done"

    async def application(scope: dict[str, Any], _: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await answer(scope["path"])
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    return application


async def _serve(milliseconds: float, streams: int, on_gpu: bool, say: child.Say) -> None:
    import uvicorn

    kit = Kit(milliseconds, streams, on_gpu)
    options: dict[str, Any] = {"lifespan": "off", "access_log": False}
    config = uvicorn.Config(_application(kit), log_level="warning", **options)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        say({"found": listener.getsockname()[1]})
        await server.serve([listener])


# ---------------------------------------------------------------------------------- the client


@contextlib.asynccontextmanager
async def _connected(port: int) -> AsyncIterator[Callable[[str], Awaitable[bytes]]]:
    """A kept connection. A client library would take more CPU than the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def get(path: str) -> bytes:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"{path} was answered with {head!r}")
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        return await reader.readexactly(length)

    try:
        yield get
    finally:
        writer.close()


async def _load(port: int, way: str, seconds: float, connections: int) -> dict[str, float]:
    took: list[float] = []
    pings: list[float] = []
    path = f"/{SERVER_WAYS.index(way)}"
    begins = time.perf_counter() + seconds / 5  # what comes before warms up
    until = begins + seconds

    in_time = 0

    async def ask(path: str, times: list[float], pause: float = 0) -> None:
        nonlocal in_time
        async with _connected(port) as get:
            while (asked := time.perf_counter()) < until:
                await get(path)
                # A server that is busy for the whole window answers only after it.
                if (answered := time.perf_counter()) >= begins:
                    times.append(answered - asked)
                    in_time += times is took and answered < until
                if pause:
                    await asyncio.sleep(max(0, asked + pause - time.perf_counter()))

    async def used(get: Callable[[str], Awaitable[bytes]]) -> list[float]:
        found: list[float] = json.loads(await get("/usage"))
        return found

    async with _connected(port) as get:
        tasks = [asyncio.ensure_future(ask(path, took)) for _ in range(connections)]
        tasks.append(asyncio.ensure_future(ask("/ping", pings, PING_EVERY)))
        await asyncio.sleep(seconds / 5)
        before = await used(get)
        await asyncio.gather(*tasks)
        after = await used(get)
    done = max(len(took), 1)
    return {
        "per_second": in_time / seconds,
        "p50_ms": 1e3 * percentile(took, 50),
        "p99_ms": 1e3 * percentile(took, 99),
        "late_p50_ms": 1e3 * percentile(pings, 50),
        "late_p99_ms": 1e3 * percentile(pings, 99),
        "loop_us": 1e6 * (after[1] - before[1]) / done,
        "process_us": 1e6 * (after[0] - before[0]) / done,
    }


def main() -> None:
    """Does what the argument says: `tasks`, `client`, or a server's settings as JSON."""
    what = sys.argv[1]
    if what == "tasks":
        child.serve(_begin_tasks)
    elif what == "client":
        child.serve(lambda: ("ready", lambda request: _run(_load(**request))))
    else:
        say = child.speaker()
        # The parent closes the input to end this process.
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        milliseconds, streams, on_gpu = json.loads(what)
        _run(_serve(milliseconds, streams, on_gpu, say))


if __name__ == "__main__":
    main()
