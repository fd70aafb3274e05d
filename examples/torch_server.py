"""FastAPI and a torch model: pinned buffers, micro-batches, a CUDA graph for each batch size.

    pip install . torch fastapi uvicorn
    python examples/torch_server.py                      # needs a GPU
    curl 'http://127.0.0.1:8000/score?item=7'

    python examples/torch_server.py --check              # checks its answers, compares the ways

`/score` is the way to serve. Each of a few streams has a task. It takes all requests that wait,
up to the largest batch, launches the graph of that size, and awaits it. So a request that comes
alone is served at once, and under load the batches grow by themselves. `/eager` is for models
that cannot be captured: the forward is launched in one worker thread, because its Python would
block the loop, and it is awaited in the loop. `/to_thread` is there to compare: the whole request
in a thread, which blocks until the GPU is done.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import torch
from fastapi import FastAPI, HTTPException

import aiostream

ITEMS, FEATURES, WIDTH, BLOCKS = 1024, 256, 1024, 12
SIZES = (1, 2, 4, 8, 16, 32)  # of batches; each has a graph on each stream
STREAMS = 3  # batches on the GPU at once: one computes while the next is copied and launched
WAITING = 256  # requests that may wait for a batch; one more gets 503
TIMEOUT = 5.0  # seconds for one request
WARM = 3  # forwards before a capture, as torch's manual asks
watch_blocks = False  # --check sets it in its server
CLOSE = 0.1  # how near two scores must be: bfloat16, and kernels that depend on the batch's size


class Model:
    """Scores items: a residual perceptron with random weights, and a table of features."""

    def __init__(self) -> None:
        nn, on = torch.nn, {"device": "cuda", "dtype": torch.bfloat16}
        torch.manual_seed(0)
        self._first = nn.Linear(FEATURES, WIDTH, **on)
        self._blocks = [
            nn.Sequential(nn.LayerNorm(WIDTH, **on), nn.Linear(WIDTH, WIDTH, **on), nn.GELU())
            for _ in range(BLOCKS)
        ]
        self._last = nn.Linear(WIDTH, 1, **on)
        self.features = torch.randn((ITEMS, FEATURES)).to(torch.bfloat16)  # on the host

    def __call__(self, rows: Any) -> Any:
        """Launches the forward on torch's current stream."""
        hidden = self._first(rows)
        for block in self._blocks:
            hidden = hidden + block(hidden)
        return self._last(hidden).float()

    def gather(self, items: list[int], rows: Any) -> None:
        """Writes the features of items into pinned memory."""
        torch.index_select(self.features, 0, torch.tensor(items), out=rows)


class Buffers:
    """The pinned memory of one batch. Only with pinned memory a copy does not block."""

    def __init__(self, size: int) -> None:
        self.rows = torch.empty((size, FEATURES), dtype=torch.bfloat16, pin_memory=True)
        self.scores = torch.empty((size, 1), pin_memory=True)


class Captured(Buffers):
    """A graph for one batch size on one stream, with the memory that it works on."""

    def __init__(self, model: Model, size: int, stream: Any) -> None:
        super().__init__(size)
        self._model = model
        model.gather([0] * size, self.rows)
        self._rows_on_gpu = self.rows.to("cuda")
        torch.cuda.synchronize()
        with torch.inference_mode():
            with torch.cuda.stream(stream):
                for _ in range(WARM):
                    model(self._rows_on_gpu)
            self._graph = torch.cuda.CUDAGraph()
            # In the mode "global" a call of any other thread would end the capture.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._scores_on_gpu = model(self._rows_on_gpu)
        torch.cuda.synchronize()

    def launch(self, items: list[int]) -> None:
        """Enqueues copy, graph, copy. `run` has made the stream torch's current one."""
        with torch.inference_mode():
            self._model.gather(items, self.rows)
            self._rows_on_gpu.copy_(self.rows, non_blocking=True)
            self._graph.replay()
            self.scores.copy_(self._scores_on_gpu, non_blocking=True)


class Batches:
    """Collects requests into batches, and runs each as one graph launch."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._queue: asyncio.Queue[tuple[int, asyncio.Future[float]]] = asyncio.Queue(WAITING)

    async def score(self, item: int) -> float:
        """Waits for the score of one item.

        Raises:
            asyncio.QueueFull: Too many requests wait.
        """
        future = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        result: float = await future
        return result

    def prepare(self) -> list[Callable[[], Any]]:
        """Captures the graphs; returns what to run in a task for each stream."""
        serving: list[Callable[[], Any]] = []
        for _ in range(STREAMS):
            theirs = torch.cuda.Stream()
            graphs = {size: Captured(self._model, size, theirs) for size in SIZES}
            stream = aiostream.Stream.borrow(theirs)
            serving.append(functools.partial(self._serve, stream, graphs))
        return serving

    async def _serve(self, stream: aiostream.Stream, graphs: dict[int, Captured]) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < SIZES[-1] and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            # Requests that have timed out meanwhile need no score.
            batch = [(item, future) for item, future in batch if not future.done()]
            if not batch:
                continue
            items = [item for item, _ in batch]
            size = next(size for size in SIZES if size >= len(items))
            graph = graphs[size]
            try:
                # Awaited also if all requests give up: so the buffers are free for the next batch.
                await stream.run(graph.launch, items + [0] * (size - len(items)))
                scores: list[list[float]] = graph.scores.tolist()
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), (score,) in zip(batch, scores, strict=False):
                if not future.done():
                    future.set_result(score)


class Eager:
    """The same model without a graph, one request at a time on each stream."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._streams = [torch.cuda.Stream() for _ in range(4)]
        self._buffers = {stream.cuda_stream: Buffers(1) for stream in self._streams}
        self.pool = aiostream.StreamPool.borrow(self._streams, max_waiting=WAITING)
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        for stream in self._streams:
            self._free.put_nowait(stream)

    def _launch(self, buffers: Buffers, item: int) -> None:
        with torch.inference_mode():  # it belongs to the thread
            self._model.gather([item], buffers.rows)
            scores = self._model(buffers.rows.to("cuda", non_blocking=True))
            buffers.scores.copy_(scores, non_blocking=True)

    async def score(self, item: int) -> float:
        """Launches in the thread, and awaits in the loop."""
        async with self.pool.stream() as stream:
            buffers = self._buffers[stream.handle]
            await stream.run_in_thread(self._launch, buffers, item)
            score: float = buffers.scores.tolist()[0][0]
            return score

    async def score_in_thread(self, item: int) -> float:
        """What one writes without aiostream: a thread does everything, and blocks."""
        stream = await self._free.get()
        buffers = self._buffers[stream.cuda_stream]

        def whole() -> None:
            with torch.cuda.stream(stream):
                self._launch(buffers, item)
            stream.synchronize()

        try:
            await asyncio.to_thread(whole)
            score: float = buffers.scores.tolist()[0][0]
            return score
        finally:
            self._free.put_nowait(stream)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    stop_watching = aiostream.exit_on_context_failed()
    model = Model()
    batches, eager, threads = Batches(model), Eager(model), Eager(model)
    ways = {"score": batches.score, "eager": eager.score, "to_thread": threads.score_in_thread}
    serving = batches.prepare()
    with torch.inference_mode():
        rows = model.features.to("cuda")
        app.state.expected = [row[0] for row in model(rows).to("cpu").tolist()]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(serve()) for serve in serving]
        await eager.score(0)
        app.state.ways = ways
        # A full collection looks at each object, and torch alone has some 150,000. It stopped the
        # loop for 100 ms, several times a second under load. It does not look at frozen objects.
        gc.collect()
        gc.freeze()
        blocks = Blocks() if watch_blocks else None
        app.state.blocks = blocks.take if blocks else list
        yield
        if blocks:
            blocks.stop()
        await aiostream.drain(10)
        for task in tasks:
            task.cancel()
    # Not `aclose`, which would wait for a GPU that hangs.
    eager.pool.close()
    threads.pool.close()
    stop_watching()


app = FastAPI(lifespan=lifespan)


@app.get("/ping")
async def ping() -> str:
    return "pong"


@app.get("/usage")
async def usage() -> dict[str, float]:
    return {"cpu": time.process_time()}


@app.get("/blocks")
async def blocked() -> list[str]:
    """What has blocked the loop since the last such request, the longest block first."""
    found: list[str] = app.state.blocks()
    return found


@app.get("/expected")
async def expected() -> list[float]:
    scores: list[float] = app.state.expected
    return scores


@app.get("/{way}")
async def score(way: str, item: int) -> dict[str, float]:
    """Scores one item, in one of the three ways."""
    if way not in app.state.ways or not 0 <= item < ITEMS:
        raise HTTPException(404)
    try:
        async with asyncio.timeout(TIMEOUT):
            return {"score": await app.state.ways[way](item)}
    except (asyncio.QueueFull, aiostream.PoolFullError):
        raise HTTPException(503) from None
    except TimeoutError:
        raise HTTPException(504) from None


# ------------------------------------------------------------------------------ --check


class Blocks:
    """Notes when the loop was blocked for long, and by which line. Make it in the loop's thread."""

    EVERY = 0.005  # seconds between two beats of the loop, and between two looks of the thread
    LONG = 0.02

    def __init__(self) -> None:
        self._loop, self._its_thread = asyncio.get_running_loop(), threading.get_ident()
        self._due = time.perf_counter() + self.EVERY  # the loop writes, the thread reads
        self._seen: list[str] = []  # the thread appends, the loop takes
        self._collecting = self._collected = 0.0
        self._found: list[tuple[float, str]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="blocks", daemon=True)
        gc.callbacks.append(self._on_collection)
        self._timer = self._loop.call_later(self.EVERY, self._beat)
        self._thread.start()

    def take(self) -> list[str]:
        """Returns the three longest blocks since the last call."""
        found, self._found = sorted(self._found, reverse=True), []
        return [f"{1e3 * late:.0f} ms: {what}" for late, what in found[:3]]

    def stop(self) -> None:
        """Ends the thread."""
        gc.callbacks.remove(self._on_collection)
        self._timer.cancel()
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        late = time.perf_counter() - self._due
        seen, self._seen = self._seen, []
        collected, self._collected = self._collected, 0.0
        if late > self.LONG:
            places = [
                f"{count} of {len(seen)} looks at {line}"
                for line, count in Counter(seen).most_common(2)
            ]
            if collected > late / 2:
                places.insert(0, f"garbage collections: {1e3 * collected:.0f} ms")
            self._found.append((late, "; ".join(places) or "the thread did not see by what"))
        self._due = time.perf_counter() + self.EVERY
        self._timer = self._loop.call_later(self.EVERY, self._beat)

    def _look(self) -> None:
        while not self._stopped.wait(self.EVERY):
            if time.perf_counter() - self._due > self.LONG:
                stack = traceback.extract_stack(sys._current_frames()[self._its_thread])
                self._seen.append(
                    " < ".join(
                        f"{'/'.join(each.filename.split('/')[-2:])}:{each.lineno} {each.name}"
                        for each in stack[:-5:-1]
                    )
                )

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        # Any thread's collection holds the GIL, and so stops the loop too.
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            self._collected += time.perf_counter() - self._collecting


class Connection:
    """A kept-alive HTTP connection. A client library would take more CPU than the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connects."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def get(self, path: str) -> Any:
        """One request.

        Raises:
            RuntimeError: It was not answered with 200.
        """
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: check\r\n\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        body = await self._reader.readexactly(length)
        if " 200 " not in head.partition("\r\n")[0]:
            raise RuntimeError(f"{path}: {head.partition(chr(13))[0]} {body.decode()}")
        return json.loads(body)


async def ask_once(port: int, path: str) -> Any:
    """One request on a connection of its own."""
    connection = await Connection.open(port)
    try:
        return await connection.get(path)
    finally:
        connection.writer.close()


def percentile(values: list[float], share: float) -> float:
    return (
        sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("nan")
    )


class Load:
    """Requests of one way for some seconds, in a closed loop or, with a rate, in an open one."""

    def __init__(self, port: int, way: str, expected: list[float]) -> None:
        self._port, self._way, self._expected = port, way, expected
        self._latencies: list[float] = []
        self._pings: list[float] = []

    async def ask(self, connection: Connection, since: float) -> None:
        """One request, and a look at its answer.

        Raises:
            RuntimeError: The score is wrong.
        """
        item = random.randrange(ITEMS)
        answer = await connection.get(f"/{self._way}?item={item}")
        self._latencies.append(time.perf_counter() - since)
        if abs(answer["score"] - self._expected[item]) > CLOSE * max(1, abs(self._expected[item])):
            raise RuntimeError(f"{self._way}: item {item} has {answer}, not {self._expected[item]}")

    async def _closed(self, connection: Connection, until: float) -> None:
        while (now := time.perf_counter()) < until:
            await self.ask(connection, now)

    async def _open(self, idle: list[Connection], rate: float, until: float) -> None:
        async def one(due: float) -> None:
            # The one that was idle longest, because servers close those that are idle for long.
            connection = idle.pop(0) if idle else await Connection.open(self._port)
            await self.ask(connection, due)  # from when it was due: a late server is not spared
            idle.append(connection)

        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while (due := due + random.expovariate(rate)) < until:
                await asyncio.sleep(max(0, due - time.perf_counter()))
                group.create_task(one(due))

    async def _ping(self, connection: Connection, until: float) -> None:
        while (began := time.perf_counter()) < until:
            await connection.get("/ping")
            self._pings.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)

    async def run(self, seconds: float, connections: int, rate: float = 0.0) -> float:
        """Prints a line; returns the requests per second."""
        ping, *idle = [await Connection.open(self._port) for _ in range(connections + 1)]
        await ask_once(self._port, "/blocks")  # forgets those of what came before
        before = (await ask_once(self._port, "/usage"))["cpu"]
        began = time.perf_counter()
        until = began + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ping(ping, until))
            if rate:
                group.create_task(self._open(idle, rate, until))
            else:
                for connection in idle:
                    group.create_task(self._closed(connection, until))
        took = time.perf_counter() - began
        cpu = (await ask_once(self._port, "/usage"))["cpu"] - before
        blocks = await ask_once(self._port, "/blocks")
        for connection in (ping, *idle):  # the open loop may have opened more
            connection.writer.close()
        count = len(self._latencies)
        p50, p99 = (1e3 * percentile(self._latencies, share) for share in (0.5, 0.99))
        kind = f"open {rate:.0f}/s" if rate else f"closed {connections}"
        print(
            f"{self._way:10} {kind:14} {count / took:9.0f} {p50:9.2f} {p99:9.2f} "
            f"{1e3 * percentile(self._pings, 0.99):12.2f} {1e3 * cpu / max(count, 1):12.2f}",
            flush=True,
        )
        for block in blocks:
            print(f"    the loop was blocked for {block}")
        return count / took


async def compare(port: int, seconds: float, connections: int) -> None:
    """Checks the answers of the three ways, and prints what each costs."""
    gc.collect()
    gc.freeze()  # else the pauses of this process would be taken for the server's
    expected = await ask_once(port, "/expected")
    ways = ("score", "eager", "to_thread")
    connection = await Connection.open(port)
    for way in ways:
        for _ in range(20):
            await Load(port, way, expected).ask(connection, time.perf_counter())
    connection.writer.close()
    print(
        f"{'way':10} {'load':14} {'requests/s':>9} {'p50, ms':>9} {'p99, ms':>9} "
        f"{'/ping p99, ms':>12} {'CPU ms/req':>12}"
    )
    closed = {way: await Load(port, way, expected).run(seconds, connections) for way in ways}
    rate = 0.6 * min(closed.values())  # the same for all, and all can serve it
    for way in ways:
        await Load(port, way, expected).run(seconds, connections, rate)
    print("all answers right")


def check(seconds: float, connections: int) -> int:
    """Starts the server in a process of its own, and talks to it."""
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    options = ("--port", str(port), "--watch-blocks")
    server = subprocess.Popen([sys.executable, os.path.abspath(__file__), *options])
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None:
                return 1
            time.sleep(0.1)
        asyncio.run(compare(port, seconds, connections))
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    return code


def main() -> None:
    global watch_blocks
    parser = argparse.ArgumentParser(description="FastAPI and a torch model on CUDA streams.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--check", action="store_true", help="check the answers, compare the ways")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default: 5)")
    parser.add_argument("--connections", type=int, default=64, help="default: 64")
    parser.add_argument("--watch-blocks", action="store_true", help="note what blocks the loop")
    options = parser.parse_args()
    watch_blocks = options.watch_blocks
    if options.check:
        sys.exit(check(options.seconds, options.connections))
    import uvicorn

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
