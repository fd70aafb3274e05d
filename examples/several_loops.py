"""Several loops in one process: a server in each of some threads, on one port, with one model.

    pip install . ./driver starlette uvicorn
    python3.14t examples/several_loops.py                # on a GPU; --simulator without one
    curl 'http://127.0.0.1:8000/infer?a=2&milliseconds=5'

On a free-threaded Python each loop has a core of its own, and all share one CUDA context and one
copy of the weights. With the GIL it works too, but the loops take turns, so one loop is faster.

Each thread has its own loop, server and pool, because a `StreamPool` serves one loop at a time.
Each server listens on a socket of its own, and the kernel spreads new connections over them
(`SO_REUSEPORT`). SIGTERM lets all of them finish their requests. If one server ends, all do.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator

import uvicorn
from cuda.bindings import driver as cuda
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import aiostream
from aiostream.testing import check, launch, load_kernels, spin

SIZE = 4  # numbers in the model, and in an answer
BYTES = 4 * SIZE


class Model:
    """Computes a * weights. They are in memory once, for all loops, until the process ends."""

    def __init__(self, answers: int) -> None:
        context = aiostream.Device(0).primary_context
        load_kernels(context)
        with context.as_current():  # portable and mapped: host and GPU see it at one address
            self._memory = int(check(cuda.cuMemHostAlloc((1 + answers) * BYTES, 3)))
        (ctypes.c_float * SIZE).from_address(self._memory)[:] = [1.0, 2.0, 3.0, 4.0]

    def enqueue(
        self, stream: aiostream.Stream, place: int, a: float, milliseconds: float
    ) -> ctypes.Array[ctypes.c_float]:
        """Puts one request's kernels on the stream, and returns what will be the answer."""
        address = self._memory + (1 + place) * BYTES
        answer = (ctypes.c_float * SIZE).from_address(address)
        answer[:] = [0.0] * SIZE
        spin(stream, milliseconds / 1000)
        pointers = (ctypes.c_uint64(self._memory), ctypes.c_uint64(address))
        launch(stream, "saxpy", ctypes.c_float(a), *pointers, ctypes.c_uint32(SIZE), threads=SIZE)
        return answer


async def infer(request: Request) -> JSONResponse:
    """Computes on the GPU, and says in which loop it was."""
    state, query = request.app.state, request.query_params
    a, milliseconds = float(query.get("a", 1)), min(float(query.get("milliseconds", 1)), 1000.0)
    try:
        async with state.pool.stream() as stream:
            # Its own place in memory is free again when the pool gives the stream out again.
            answer = await stream.run(state.model.enqueue, stream, stream.own, a, milliseconds)
            return JSONResponse({"y": list(answer), "loop": state.loop})
    except aiostream.PoolFullError:
        return JSONResponse({"error": "too many requests wait"}, status_code=503)


async def ping(request: Request) -> JSONResponse:
    """Says how many requests one loop has. Each connection may meet another loop."""
    pool = request.app.state.pool
    return JSONResponse({"loop": request.app.state.loop, "requests": pool.lent + pool.waiting})


def application(model: Model, loop: int, streams: int) -> Starlette:
    """The ASGI application of one loop: its pool begins and ends there."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        places = itertools.count(loop * streams)
        async with aiostream.StreamPool(
            streams, 0, each=lambda _: next(places), max_waiting=64, name=f"loop {loop}"
        ) as pool:
            app.state.model, app.state.loop, app.state.pool = model, loop, pool
            yield
            await aiostream.drain(10)  # what cancelled requests have left, of all loops
            pool.close()  # it does not wait, because the GPU may hang

    return Starlette(routes=[Route("/infer", infer), Route("/ping", ping)], lifespan=lifespan)


def listen(port: int) -> socket.socket:
    """A socket on a port that others of this process listen on too."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def serve(loops: int, streams: int, port: int) -> bool:
    """Serves until a signal comes or a server ends; returns whether all had begun."""
    model = Model(answers=loops * streams)
    servers = [
        uvicorn.Server(uvicorn.Config(application(model, n, streams), log_level="warning"))
        for n in range(loops)
    ]

    def end(number: int, _: object) -> None:
        for server in servers:
            server.handle_exit(number, None)  # a second SIGINT does not wait for the requests

    def run(server: uvicorn.Server, listener: socket.socket) -> None:
        try:
            server.run(sockets=[listener])
        finally:
            for each in servers:  # also if this one could not begin
                each.should_exit = True

    # Only the main thread gets signals, so uvicorn's own handlers are not set in these threads.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    listeners = [listen(port) for _ in servers]
    threads = [
        threading.Thread(target=run, args=each) for each in zip(servers, listeners, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return all(server.started for server in servers)


def main() -> None:
    parser = argparse.ArgumentParser(description="Several loops behind one port.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--loops", type=int, default=2, help="how many threads (default: 2)")
    parser.add_argument("--streams", type=int, default=8, help="of each loop (default: 8)")
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    if options.simulator:
        from aiostream import simulator

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPU too
        simulator.install()
    stop_watching = aiostream.exit_on_context_failed()  # it is lost for all loops
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"driver: {aiostream.Device(0).name}; {options.loops} loops, the GIL is "
        f"{'on' if gil else 'off'}; http://127.0.0.1:{options.port}",
        flush=True,
    )
    if not serve(options.loops, options.streams, options.port):
        raise SystemExit("a server could not begin")
    stop_watching()


if __name__ == "__main__":
    main()
