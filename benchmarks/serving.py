"""The server of the measure `server`: a small ASGI application on uvicorn. `server.py` starts it.

`torch_serving.py` is the same process with another `Site`.

    python -m benchmarks.serving '{"ways": ["pool"], "streams": 128, ...}'

`/wait/<way>?ns=<length>` launches one kernel on a stream, awaits it in that way, and answers with
nothing. `/ping` answers at once. `/usage` answers the process's CPU time, the clock and how many
requests of both kinds were served. The process prints a JSON line when it listens. It ends when a
line comes on its standard input, or that ends, and prints a last line: whether its statistics
balance.

Of aiostream it uses the public interface only, because it runs with an older version too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import heapq
import importlib.util
import itertools
import json
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic_ns, perf_counter_ns, process_time_ns
from typing import Any

from benchmarks import child, lanes, worker
from benchmarks.lanes import Lane
from benchmarks.loops import Timer

Wait = Callable[[int], Awaitable[Any]]
Scope = MutableMapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
KNOWN = "known length"
NOT_READY = 600
END = 5.0  # seconds in which what is pending at the end must be done


class Kit:
    """What the ways to wait are made of.

    Args:
        library: The module `aiostream`, of any version.
        streams: How many streams each way has.
    """

    def __init__(self, library: Any, streams: int) -> None:
        self.streams, self._library = streams, library
        self._kernels = lanes.load()
        self._opened: list[Any] = []

    def lane(self, stream: Any) -> Lane:
        """Launches on a stream."""
        return Lane(stream, self._kernels)

    def free_list(self, **options: Any) -> deque[Any]:
        """Raw streams, to be taken from the right and put back there, as the pool does."""
        streams = [self._library.Stream(**options) for _ in range(self.streams)]
        self._opened += streams
        return deque(self.lane(stream) for stream in streams)

    @functools.cached_property
    def plain(self) -> deque[Any]:
        """Raw streams of all ways that learn nothing from waits. One way at a time uses them."""
        return self.free_list()

    def pool(self, **options: Any) -> Any:
        """A `StreamPool`."""
        pool = self._library.StreamPool(self.streams, **options)
        self._opened.append(pool)
        return pool

    def close(self) -> None:
        """Destroys every stream and pool."""
        while self._opened:
            self._opened.pop().close()


# -------------------------------------------------------------------------------- the ways to wait


def _on(free: deque[Lane], wait: Callable[[Lane], Awaitable[Any]]) -> Wait:
    """Launches on a raw stream, and waits for it."""

    async def way(length: int) -> None:
        lane = free.pop()
        try:
            lane.spin(length)
            await wait(lane)
        finally:
            free.append(lane)

    return way


def _ours(wait: str) -> Callable[[Kit], Wait]:
    return lambda kit: _on(kit.free_list(wait=wait), lambda lane: lane.stream.synchronize_async())


def _on_a_lane(call: Callable[[Lane, int], Awaitable[Any]]) -> Callable[[Kit], Wait]:
    """The call launches and waits in one."""

    def new_way(kit: Kit) -> Wait:
        free = kit.free_list()

        async def way(length: int) -> None:
            lane = free.pop()
            try:
                await call(lane, length)
            finally:
                free.append(lane)

        return way

    return new_way


def _pool(kit: Kit) -> Wait:
    pool, known = kit.pool(), dict[int, Lane]()

    async def way(length: int) -> None:
        async with pool.stream() as stream:
            handle = stream.handle
            lane = known.get(handle) or known.setdefault(handle, kit.lane(stream))
            lane.spin(length)
            await stream.synchronize_async()

    return way


def _pool_enqueue_async(kit: Kit) -> Wait:
    pool, known = kit.pool(), dict[int, Lane]()

    def launch(stream: Any, length: int) -> None:
        handle = stream.handle
        lane = known.get(handle) or known.setdefault(handle, kit.lane(stream))
        lane.spin(length)

    async def way(length: int) -> None:
        async with pool.stream() as stream:
            await stream.enqueue_async(launch, length)

    return way


def _pool_run(kit: Kit) -> Wait:
    pool = kit.pool(each=kit.lane)

    async def way(length: int) -> None:
        await pool.run(Lane.spin, length)

    return way


def _polling(pause: float) -> Callable[[Kit], Wait]:
    def new_way(kit: Kit) -> Wait:
        query = lanes.bindings().cuStreamQuery

        async def wait(lane: Lane) -> None:
            await asyncio.sleep(pause)
            while (code := query(lane.cu_stream)[0]) == NOT_READY:  # noqa: ASYNC110  # measured
                await asyncio.sleep(pause)
            lanes.check(code, "cuStreamQuery")

        return _on(kit.plain, wait)

    return new_way


class _Alarms:
    """Wakes tasks at given times, to the microsecond."""

    def __init__(self) -> None:
        self._timer = Timer()
        self._pending: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()
        self._watched = False

    def at(self, time_ns: int) -> asyncio.Future[None]:
        """What is done at that time of the monotonic clock."""
        loop = asyncio.get_running_loop()
        if not self._watched:
            loop.add_reader(self._timer.descriptor, self._ring)
            self._watched = True
        future = loop.create_future()
        heapq.heappush(self._pending, (time_ns, next(self._number), future))
        if self._pending[0][2] is future:
            self._timer.set(time_ns)
        return future

    def _ring(self) -> None:
        self._timer.take()
        now = monotonic_ns()
        while self._pending and self._pending[0][0] <= now:
            future = heapq.heappop(self._pending)[2]
            if not future.done():
                future.set_result(None)
        if self._pending:
            self._timer.set(self._pending[0][0])


def _known_length(kit: Kit) -> Wait:
    """The floor of every wait whose loop sleeps: no library can know the length better."""
    query, alarms = lanes.bindings().cuStreamQuery, _Alarms()

    async def wait(lane: Lane) -> None:
        await alarms.at(monotonic_ns() + round(lane.length * 1e9))
        while (code := query(lane.cu_stream)[0]) == NOT_READY:  # noqa: ASYNC110  # measured
            await asyncio.sleep(0)
        lanes.check(code, "cuStreamQuery")

    return _on(kit.plain, wait)


def _to_thread(kit: Kit) -> Wait:
    return _on(kit.plain, lambda lane: asyncio.to_thread(lane.synchronize))


def _to_threads(threads: int) -> Callable[[Kit], Wait]:
    """`to_thread` of a loop with so many threads; by default asyncio has at most 32."""

    def new_way(kit: Kit) -> Wait:
        executor = ThreadPoolExecutor(threads)

        def wait(lane: Lane) -> Awaitable[Any]:
            return asyncio.get_running_loop().run_in_executor(executor, lane.synchronize)

        return _on(kit.plain, wait)

    return new_way


def _blocking(kit: Kit) -> Wait:
    async def wait(lane: Lane) -> None:
        lane.synchronize()

    return _on(kit.plain, wait)


WAYS: dict[str, tuple[str, Callable[[Kit], Wait]]] = {
    "aiostream auto": ("synchronize_async of raw streams", _ours("auto")),
    "run": (
        "run of raw streams",
        _on_a_lane(lambda lane, length: lane.stream.run(lane.spin, length)),
    ),
    "run_in_thread": (
        "run_in_thread of raw streams",
        _on_a_lane(lambda lane, length: lane.stream.run_in_thread(lane.spin, length)),
    ),
    "enqueue_async": (
        "enqueue_async of raw streams",
        _on_a_lane(lambda lane, length: lane.stream.enqueue_async(lambda _: lane.spin(length))),
    ),
    "pool": ("StreamPool and synchronize_async", _pool),
    "pool enqueue_async": ("StreamPool and enqueue_async", _pool_enqueue_async),
    "pool run": ("StreamPool(each=...) and its run", _pool_run),
    "aiostream event": ('Stream(wait="event")', _ours("event")),
    "aiostream hostfunc": ('Stream(wait="hostfunc")', _ours("hostfunc")),
    "polling": ("cuStreamQuery and sleep(0)", _polling(0)),
    "sleep 1 ms": ("cuStreamQuery and sleep(0.001)", _polling(0.001)),
    KNOWN: ("a timer set to the kernel's end, then cuStreamQuery and sleep(0)", _known_length),
    "to_thread bindings": ("to_thread(cuStreamSynchronize)", _to_thread),
    "to_thread 40": ("the same with 40 threads", _to_threads(40)),
    "to_thread 256": ("the same with 256 threads", _to_threads(256)),
    "blocking": ("cuStreamSynchronize in the loop's thread", _blocking),
}


def path_of(way: str) -> str:
    """The path on which a way is served."""
    return f"/wait/{way.replace(' ', '-')}"


# --------------------------------------------------------------------------------- the application


class Application:
    """The ASGI application. An error in a request is answered with status 500 and the error's text.

    Args:
        ways: What waits, by its path.
    """

    def __init__(self, ways: dict[str, Wait]) -> None:
        self._ways = ways
        self._served = self._pings = 0

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answers one request."""
        path = scope["path"]
        way = self._ways.get(path)
        if way is not None:
            try:
                await way(int(scope["query_string"][3:]))
            except Exception as error:
                await _answer(send, f"{type(error).__name__}: {error}".encode(), 500)
                return
            self._served += 1
            await _answer(send)
        elif path == "/ping":
            self._pings += 1
            await _answer(send)
        elif path == "/usage":
            usage = {"cpu_ns": process_time_ns(), "wall_ns": perf_counter_ns()}
            await _answer(
                send, json.dumps({**usage, "served": self._served, "pings": self._pings}).encode()
            )
        else:
            await _answer(send, f"there is no {path}".encode(), 404)


async def _answer(send: Send, body: bytes = b"", status: int = 200) -> None:
    # Without a body uvicorn writes once to the socket, else twice.
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# ------------------------------------------------------------------------------------- the process


@contextlib.asynccontextmanager
async def _served(
    application: Application, parser: str, listener: socket.socket
) -> AsyncIterator[None]:
    """Serves until the body's end, and then answers what is under way."""
    import uvicorn

    config = uvicorn.Config(
        application,
        http=parser,
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_keep_alive=3600,
        timeout_graceful_shutdown=int(END),
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class Site:
    """What the process serves.

    Args:
        settings: Those of the process: `ways`, `streams`, `loop`, `folder`, `simulator`.
        library: The module `aiostream`, of any version.
    """

    libraries = ""  # what the tables name in addition to uvicorn, with a comma before it

    def __init__(self, settings: dict[str, Any], library: Any) -> None:
        self._ways = settings["ways"]
        self._kit: Any = Kit(library, settings["streams"])

    async def application(self) -> Any:
        """The ASGI application. It is called in the loop that serves it."""
        return Application({path_of(name): WAYS[name][1](self._kit) for name in self._ways})

    def close(self) -> None:
        """Destroys every stream, when nothing is pending."""
        self._kit.close()


async def _serve(
    settings: dict[str, Any], site: Site, library: Any, say: child.Say
) -> dict[str, Any]:
    """Listens, serves until a line comes on standard input, and returns what the statistics say."""
    import uvicorn

    application = await site.application()
    parser = "httptools" if importlib.util.find_spec("httptools") else "h11"
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    # Accepted sockets inherit it. asyncio does not set it on sockets that it has not made, and an
    # answer with a body is written in two parts, of which the second would wait 40 ms for the
    # client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    enough = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, enough.set)
    gc.collect()
    gc.freeze()  # what lives by now; what the requests leave is collected as in any server
    async with _served(application, parser, listener):
        where = {"port": listener.getsockname()[1], "library": worker.imported(library)}
        what = f"uvicorn {uvicorn.__version__}, {parser}, {settings['loop']}{site.libraries}"
        say({"found": {**where, "server": what}})
        await enough.wait()
        asyncio.get_running_loop().remove_reader(0)
    done = await library.drain(END)
    site.close()
    counts = library.statistics()
    balanced = (
        done
        and counts.balanced
        and not (counts.points.pending or counts.futures.pending or counts.handles.open)
    )
    return {"balanced": balanced, "statistics": str(counts)}


def main(new_site: Callable[[dict[str, Any], Any], Site] = Site) -> None:
    """Serves until it gets the word to end.

    Args:
        new_site: What makes a `Site`, with the device's primary context current.
    """
    say = child.speaker()
    try:
        settings = json.loads(sys.argv[1])
        factory: Any = None
        if settings["loop"] == "uvloop":
            import uvloop

            factory = uvloop.new_event_loop
        library = worker.library(settings)
        with lanes.current(library), asyncio.Runner(loop_factory=factory) as runner:
            site = new_site(settings, library)
            say({"found": runner.run(_serve(settings, site, library, say))})
    except Exception as error:
        say({"error": child.reason(error)})
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
