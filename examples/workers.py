"""Several GPUs behind one port: a worker process for each, or all of them in one process.

    pip install . ./driver starlette uvicorn
    python examples/workers.py                           # as many workers as there are GPUs
    python examples/workers.py --one-process             # all GPUs in one process
    python examples/workers.py --simulator --gpus 2      # without a GPU
    curl 'http://127.0.0.1:8000/infer?milliseconds=5'

uvicorn starts the workers and gives them no number. So each worker takes the first GPU whose lock
file no other process holds. The kernel unlocks the file when the process ends, however it ends. So
the worker that uvicorn starts in place of a dead one takes the GPU that became free.

Prefer a process for each GPU: a lost context ends one worker, and the others go on. In one
process it ends the work of all GPUs. One process is for requests that need several GPUs at once.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

import aiostream
from aiostream.testing import load_kernels, spin

_GPUS, _ONE, _LOCKS = (
    "WORKERS_GPUS",
    "WORKERS_ONE_PROCESS",
    "WORKERS_LOCKS",
)  # for the worker processes


@contextlib.contextmanager
def claimed_gpu(count: int) -> Iterator[str]:
    """Takes one GPU of `count`, until the block ends or the process does.

    Call it before anything touches CUDA: it sets `CUDA_VISIBLE_DEVICES`, so that the GPU is
    device 0 for all libraries of this process. Containers that share a host must share the folder
    of the locks too.

    Raises:
        RuntimeError: Other processes hold all of them.
    """
    folder = Path(os.environ.get(_LOCKS, tempfile.gettempdir()))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    for name in names[:count]:
        # "a": the file of another worker must not be emptied.
        with (folder / f"aiostream-gpu-{name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.environ["CUDA_VISIBLE_DEVICES"] = name
            yield name
            return
    raise RuntimeError(f"other processes hold all {count} GPUs")


class Devices:
    """A pool of streams on each GPU of this process. Work goes to the GPU with the least of it."""

    def __init__(self, ordinals: list[int], streams: int) -> None:
        self._pools = {n: aiostream.StreamPool(streams, n, max_waiting=64) for n in ordinals}
        for ordinal in ordinals:
            load_kernels(aiostream.Device(ordinal).primary_context)

    def least_loaded(self) -> tuple[int, aiostream.StreamPool]:
        """The ordinal and the pool of the GPU for the next request."""

        def load(ordinal: int) -> int:
            pool = self._pools[ordinal]
            return pool.lent + pool.busy + pool.waiting

        ordinal = min(self._pools, key=load)
        return ordinal, self._pools[ordinal]

    def close(self) -> None:
        """Destroys the streams. It does not wait, because a GPU may hang."""
        for pool in self._pools.values():
            pool.close()


async def infer(request: Request) -> JSONResponse:
    """Works for some milliseconds on a GPU, and says on which."""
    state = request.app.state
    milliseconds = min(float(request.query_params.get("milliseconds", 5)), 1000.0)
    ordinal, pool = state.devices.least_loaded()
    try:
        async with pool.stream() as stream:
            await stream.run(spin, stream, milliseconds / 1000)
    except aiostream.PoolFullError:
        return JSONResponse({"error": "too many requests wait"}, status_code=503)
    return JSONResponse({"pid": os.getpid(), "gpu": state.gpu or str(ordinal)})


async def ping(_: Request) -> PlainTextResponse:
    return PlainTextResponse("pong")


def application() -> Starlette:
    """The ASGI application. uvicorn calls this in each worker."""
    count = int(os.environ.get(_GPUS, "1"))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with contextlib.ExitStack() as claim:
            one_process = os.environ.get(_ONE) == "1"
            app.state.gpu = None if one_process else claim.enter_context(claimed_gpu(count))
            # Now CUDA starts, and sees one GPU or all.
            claim.callback(aiostream.exit_on_context_failed())
            app.state.devices = Devices(list(range(aiostream.Device.count())), streams=8)
            yield
            await aiostream.drain(10)
            app.state.devices.close()

    return Starlette(routes=[Route("/infer", infer), Route("/ping", ping)], lifespan=lifespan)


def gpu_count() -> int:
    """How many GPUs there are. CUDA is not asked, because it would be the parent's then."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Several GPUs behind one port.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--gpus", type=int, default=0, help="how many (default: all)")
    parser.add_argument("--one-process", action="store_true", help="all GPUs in one process")
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    gpus = options.gpus or gpu_count()
    if options.simulator:
        gpus = gpus or 2
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPUs too
        os.environ.update(AIOSTREAM_SIMULATOR="1", AIOSTREAM_SIMULATOR_DEVICES=str(gpus))
    if not gpus:
        raise SystemExit("no GPU was found: use --simulator, or say how many with --gpus")
    os.environ.update({_GPUS: str(gpus), _ONE: "1" if options.one_process else "0"})
    import uvicorn

    workers = 1 if options.one_process else gpus
    print(f"{gpus} GPUs, {workers} processes, http://127.0.0.1:{options.port}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(
        "workers:application",
        factory=True,
        app_dir=str(Path(__file__).parent),
        workers=workers,
        host="127.0.0.1",
        port=options.port,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
