"""The ways to wait for the GPU from Python that are compared, each as one would write it.

A peer that cannot be imported, or fails its trial, is reported with the reason and never left out
silently.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiostream import Stream, StreamPool, WaitStrategy
from benchmarks import lanes
from benchmarks.lanes import Lane, check
from benchmarks.loops import LoopAdapter

Wait = Callable[[], Awaitable[Any]]
Waiter = Callable[[LoopAdapter, Lane], Wait]
NOT_READY = 600

AUTO, HOSTFUNC = "aiostream auto", "aiostream hostfunc"
ENQUEUE = "enqueue_async"
THREADS = ("to_thread", "to_thread bindings")  # the second stands in where there is no torch
SLEEPING = "sleep 1 ms"
RUN, POOL_RUN, IN_THREAD = "run", "pool run", "run_in_thread"
NO_WAIT = "no wait"


@dataclass
class Peer:
    """One way to wait.

    Attributes:
        name: As in the tables.
        summary: How it waits.
        waiter: Makes what waits, when called and awaited, for all that is on a lane's stream then.
        prepare: Imports what is needed, and returns the waiter. It may raise, and says with that
            why the peer cannot be had.
        wait: The `wait=` of its streams.
        learns: Whether a stream learns from its waits. Then this peer alone uses its streams.
        launches: Whether the waiter launches the kernel too.
        runtime: Whether it needs libcudart, which the simulator is not.
        blocks: Whether the loop is blocked meanwhile.
    """

    name: str
    summary: str
    waiter: Waiter | None = None
    prepare: Callable[[], Waiter] | None = None
    wait: Any = "auto"
    learns: bool = False
    launches: bool = False
    runtime: bool = False
    blocks: bool = False

    @property
    def kind(self) -> str:
        """Peers of the same kind can share streams."""
        return self.name if self.learns else "plain"

    def new_stream(self) -> Stream:
        """A stream to wait for."""
        return Stream(wait=self.wait)

    def on(self, adapter: LoopAdapter, lane: Lane) -> Wait:
        """What waits for a lane on a loop."""
        assert self.waiter is not None, f"{self.name} was not prepared"
        return self.waiter(adapter, lane)


# -- ours


def _synchronize_async(adapter: LoopAdapter, lane: Lane) -> Wait:
    wait: Wait = lane.stream.synchronize_async
    return wait


def _enqueue_async(adapter: LoopAdapter, lane: Lane) -> Wait:
    enqueue_async = lane.stream.enqueue_async

    async def wait() -> None:
        await enqueue_async(_nothing)  # the same future, wherever the work was launched

    return wait


def _nothing(stream: Stream) -> None:
    pass


def _run(adapter: LoopAdapter, lane: Lane) -> Wait:
    run, launch = lane.stream.run, lane.launch
    return lambda: run(launch)


def _pool_run(adapter: LoopAdapter, lane: Lane) -> Wait:
    run, launch = StreamPool.borrow([lane.stream]).run, lane.launch
    return lambda: run(launch)


def _run_in_thread(adapter: LoopAdapter, lane: Lane) -> Wait:
    run, launch = lane.stream.run_in_thread, lane.launch
    return lambda: run(launch)


# -- the driver's own means


def _blocking(adapter: LoopAdapter, lane: Lane) -> Wait:
    async def wait() -> None:
        lane.synchronize()

    return wait


def _polling(adapter: LoopAdapter, lane: Lane) -> Wait:
    """Yields first: what was launched just now is not done yet, and other tasks get their turn."""
    query, stream, checkpoint = lanes.bindings().cuStreamQuery, lane.cu_stream, adapter.checkpoint

    async def wait() -> None:
        code = NOT_READY
        while code == NOT_READY:
            await checkpoint()
            (code,) = query(stream)
        check(code, "cuStreamQuery")

    return wait


def _sleeping(adapter: LoopAdapter, lane: Lane) -> Wait:
    """Queries first, and sleeps only while there is work."""
    query, stream, sleep = lanes.bindings().cuStreamQuery, lane.cu_stream, adapter.sleep

    async def wait() -> None:
        while (code := query(stream)[0]) == NOT_READY:
            await sleep(0.001)
        check(code, "cuStreamQuery")

    return wait


def _no_wait(adapter: LoopAdapter, lane: Lane) -> Wait:
    """Does not ask the GPU: what remains is the cost of the launch and of the loop."""

    async def wait() -> None:
        await adapter.sleep(lane.length)

    return wait


def _in_thread(adapter: LoopAdapter, lane: Lane) -> Wait:
    """In the loop's default threads."""
    in_thread, synchronize = adapter.in_thread, lane.synchronize
    return lambda: in_thread(synchronize)


# -- other libraries


def _prepare_torch() -> Waiter:
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")

    def waiter(adapter: LoopAdapter, lane: Lane) -> Wait:
        in_thread, synchronize = (
            adapter.in_thread,
            torch.cuda.ExternalStream(lane.handle).synchronize,
        )
        return lambda: in_thread(synchronize)

    return waiter


def _prepare_torch_events() -> Waiter:
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")

    def waiter(adapter: LoopAdapter, lane: Lane) -> Wait:
        record, sleep = torch.cuda.ExternalStream(lane.handle).record_event, adapter.sleep

        async def wait() -> None:
            event = record()
            while not event.query():
                await sleep(0.001)

        return wait

    return waiter


def _prepare_numba() -> Waiter:
    cuda: Any = importlib.import_module("numba.cuda")
    cuda.current_context()

    def waiter(adapter: LoopAdapter, lane: Lane) -> Wait:
        wait: Wait = cuda.external_stream(lane.handle).async_done
        return wait

    return waiter


def _prepare_core(polled: bool) -> Waiter:
    core: Any = importlib.import_module("cuda.core")
    core.Device(0).set_current()

    def waiter(adapter: LoopAdapter, lane: Lane) -> Wait:
        record = core.Stream.from_handle(lane.handle).record
        in_thread, sleep = adapter.in_thread, adapter.sleep

        async def in_a_thread() -> None:
            await in_thread(record().sync)

        async def polling() -> None:
            event = record()
            while not event.is_done:
                await sleep(0.001)

        return polling if polled else in_a_thread

    return waiter


def _prepare_ctypes() -> Waiter:
    """A host function in Python, and nothing between it and the driver."""
    address = lanes.call("cuGetProcAddress", b"cuLaunchHostFunc", 12000, 0)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, callback, ctypes.c_void_p)(address)

    def waiter(adapter: LoopAdapter, lane: Lane) -> Wait:
        wakes: list[Callable[[], Any]] = []
        function = callback(lambda _: wakes.pop()())

        async def wait() -> None:
            done, wake = adapter.signal()
            wakes.append(wake)
            check(launch(lane.handle, function, None), "cuLaunchHostFunc")
            await done

        return wait

    return waiter


def _prepare_cupy() -> Waiter:
    cupy: Any = importlib.import_module("cupy")
    cupy.cuda.runtime.getDeviceCount()

    def waiter(adapter: LoopAdapter, lane: Lane) -> Wait:
        launch = cupy.cuda.ExternalStream(lane.handle).launch_host_func
        signal = adapter.signal

        async def wait() -> None:
            done, wake = signal()
            launch(_wake, wake)
            await done

        return wait

    return waiter


def _wake(wake: Callable[[], Any]) -> None:
    wake()


_STRATEGY = 'Stream(wait="{}").synchronize_async()'
_BLOCKING = "cuStreamSynchronize in the loop's thread: the floor, and the loop is blocked"
_ENQUEUE = "enqueue_async of nothing, behind the work: the await of its future"
_TORCH = "to_thread(torch.cuda.ExternalStream(...).synchronize)"
_CTYPES = "cuLaunchHostFunc through ctypes and call_soon_threadsafe"
_NUMBA = "numba.cuda.external_stream(...).async_done()"
_EVENTS = "torch.cuda.ExternalStream(...).record_event(), its query and sleep(0.001)"
_CUPY = "cupy.cuda.ExternalStream(...).launch_host_func and call_soon_threadsafe"


def all_peers() -> dict[str, Peer]:
    """Every peer by its name, in the order of the tables."""
    ours = [_ours(f"aiostream {wait}", _STRATEGY.format(wait), wait) for wait in WaitStrategy]
    others = (
        Peer(POOL_RUN, "StreamPool.borrow([stream]).run", _pool_run, learns=True, launches=True),
        Peer(RUN, "stream.run", _run, learns=True, launches=True),
        Peer(IN_THREAD, "stream.run_in_thread", _run_in_thread, learns=True, launches=True),
        Peer(ENQUEUE, _ENQUEUE, _enqueue_async, learns=True),
        Peer("blocking", _BLOCKING, _blocking, blocks=True),
        Peer("polling", "cuStreamQuery and sleep(0) in the loop, again and again", _polling),
        Peer(SLEEPING, "cuStreamQuery and sleep(0.001) in the loop, again and again", _sleeping),
        Peer(NO_WAIT, "sleep for the kernel's length, for the floor of `full`", _no_wait),
        Peer(THREADS[0], _TORCH, prepare=_prepare_torch, runtime=True),
        Peer(THREADS[1], "to_thread(cuStreamSynchronize) through cuda-bindings", _in_thread),
        Peer("cupy", _CUPY, prepare=_prepare_cupy, runtime=True),
        Peer("ctypes", _CTYPES, prepare=_prepare_ctypes),
        Peer("numba", _NUMBA, prepare=_prepare_numba, runtime=True),
        Peer("torch events", _EVENTS, prepare=_prepare_torch_events, runtime=True),
        Peer(
            "cuda.core in a thread", "to_thread(event.sync)", prepare=partial(_prepare_core, False)
        ),
        Peer("cuda.core", "event.is_done and sleep(0.001)", prepare=partial(_prepare_core, True)),
    )
    return {peer.name: peer for peer in (*ours, *others)}


def _ours(name: str, summary: str, wait: str) -> Peer:
    return Peer(name, summary, _synchronize_async, wait=wait, learns=True)
