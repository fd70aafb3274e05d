"""The ways to wait for the GPU from Python that are compared, each as somebody would write it.

A peer that cannot be imported, or fails its trial, is reported with the reason and never silently left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiostream import Stream, _driver, _native
from aiostream.bench.gpu import BenchStream
from aiostream.bench.loops import LoopAdapter

Wait = Callable[[], Awaitable[Any]]
SUCCESS, NO_CONTEXT, NOT_READY = 0, 201, 600


class Peer:
    """One way to wait. Made once per run; `prepare` may raise, and says with that why it cannot be had."""

    name = ""
    summary = ""
    runtime = False  # whether it needs libcudart, which the simulator is not
    blocks = False  # whether the loop stands still meanwhile
    loops: tuple[str, ...] = ("uvloop", "asyncio", "trio")

    @property
    def kind(self) -> str:
        """Peers of the same kind can share streams."""
        return "plain"

    def prepare(self) -> None:
        """Imports what is needed."""

    def new_stream(self) -> Stream:
        """A stream to wait for."""
        return Stream()

    def selected(self) -> contextlib.AbstractContextManager[None]:
        """Holds while this peer is measured."""
        return contextlib.nullcontext()

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """What waits, when called and awaited, for all that is on the stream then."""
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------ ours


@dataclass(frozen=True)
class Variant:
    """How one of ours is selected."""

    wait: str
    predicted: bool
    summary: str


OURS = {
    "aiostream auto": Variant("auto", True, 'Stream(wait="auto").synchronize_async()'),
    "aiostream unpredicted": Variant("auto", False, "the same with prediction switched off"),
    "aiostream hostfunc": Variant(
        "hostfunc", True, 'Stream(wait="hostfunc"): one native host function on the stream'
    ),
    "aiostream event": Variant(
        "event", True, 'Stream(wait="event"): an event and the native watcher'
    ),
    "aiostream spin": Variant("spin", True, 'Stream(wait="spin"): an event, queried in the loop'),
}


class Ours(Peer):
    """aiostream itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._variant = OURS[name]
        self.summary = self._variant.summary

    @property
    def kind(self) -> str:
        """What is known of a stream's waits must not pass from one variant to another."""
        return self.name

    def new_stream(self) -> Stream:
        """A stream of this variant."""
        return Stream(wait=self._variant.wait)

    @contextlib.contextmanager
    def selected(self) -> Any:
        """Switches prediction off where that is what is measured."""
        _native.predict(self._variant.predicted)
        try:
            yield
        finally:
            _native.predict(True)

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """`synchronize_async`."""
        return bench_stream.stream.synchronize_async


class EnqueueAsync(Peer):
    """aiostream's `enqueue_async`, as the default waits."""

    name = "enqueue_async"
    summary = "enqueue_async of nothing, behind the work: the await of its future"

    @property
    def kind(self) -> str:
        """What is known of a stream's waits must not pass on from the others, which wait after the launch."""
        return self.name

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """A future for each wait. It is the same, wherever the work before it was launched."""
        enqueue_async = bench_stream.stream.enqueue_async

        async def wait() -> None:
            await enqueue_async(_nothing)

        return wait


def _nothing(stream: Stream) -> None:
    pass


# ------------------------------------------------------------------------------------------------ the driver's own means


class Blocking(Peer):
    """The floor: the loop stands still."""

    name = "blocking"
    summary = "cuStreamSynchronize in the loop's own thread: the floor, and the loop stands still"
    blocks = True

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """Blocks."""

        async def wait() -> None:
            bench_stream.synchronize()

        return wait


class Polling(Peer):
    """One core burnt for the best latency that a loop can have."""

    name = "polling"
    summary = "cuStreamQuery and sleep(0) in the loop, for ever"

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """Yields first: what was launched just now is not done yet, and the other tasks get their turn."""
        query, stream, checkpoint = (
            _driver.bindings().cuStreamQuery,
            bench_stream.cu_stream,
            adapter.checkpoint,
        )

        async def wait() -> None:
            while True:
                await checkpoint()
                (code,) = query(stream)
                if code == SUCCESS:
                    return
                if code != NOT_READY:
                    raise _driver.error(int(code), "cuStreamQuery")

        return wait


class Sleeping(Peer):
    """What people write who want their core back."""

    name = "sleep 1 ms"
    summary = "cuStreamQuery and sleep(0.001) in the loop, again and again"

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """Queries first, and sleeps only while there is work."""
        query, stream, sleep = (
            _driver.bindings().cuStreamQuery,
            bench_stream.cu_stream,
            adapter.sleep,
        )

        async def wait() -> None:
            while True:
                (code,) = query(stream)
                if code == SUCCESS:
                    return
                if code != NOT_READY:
                    raise _driver.error(int(code), "cuStreamQuery")
                await sleep(0.001)

        return wait


class ToThread(Peer):
    """What most people write today, with torch."""

    name = "to_thread"
    summary = "to_thread(torch.cuda.ExternalStream(...).synchronize)"
    runtime = True

    def prepare(self) -> None:
        """Imports torch."""
        self._torch: Any = importlib.import_module("torch")
        if not self._torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU")

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """In the loop's default threads."""
        synchronize = self._torch.cuda.ExternalStream(bench_stream.handle).synchronize
        in_thread = adapter.in_thread
        return lambda: in_thread(synchronize)


class ToThreadBindings(Peer):
    """The same without torch, which shows what torch adds, and runs on the simulator."""

    name = "to_thread bindings"
    summary = "to_thread(cuStreamSynchronize) through cuda-bindings"

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """In the loop's default threads."""
        in_thread, synchronize = adapter.in_thread, bench_stream.synchronize
        return lambda: in_thread(synchronize)


class BlockingEvent(Peer):
    """A thread that sleeps and does not spin."""

    name = "blocking event"
    summary = "to_thread(cuEventSynchronize) of an event made with BLOCKING_SYNC"

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """The event is recorded in the loop, and waited for in a thread."""
        driver = _driver.bindings()
        flags = driver.CUevent_flags
        handle = _driver.call(
            "cuEventCreate",
            flags.CU_EVENT_BLOCKING_SYNC.value | flags.CU_EVENT_DISABLE_TIMING.value,
        )
        event = _OwnedEvent(handle, bench_stream.stream.context.handle)
        in_thread, record, stream = adapter.in_thread, driver.cuEventRecord, bench_stream.cu_stream

        async def wait() -> None:
            (code,) = record(event.handle, stream)
            if code:
                raise _driver.error(int(code), "cuEventRecord")
            await in_thread(event.synchronize)

        return wait


class _OwnedEvent:
    def __init__(self, handle: Any, context: int) -> None:
        self.handle = handle
        self._context = context
        self._synchronize = _driver.bindings().cuEventSynchronize
        self._destroy = _driver.bindings().cuEventDestroy

    def synchronize(self) -> None:
        """Blocks."""
        (code,) = self._synchronize(self.handle)
        if code == NO_CONTEXT:  # the first time in this thread
            _driver.call("cuCtxSetCurrent", _driver.bindings().CUcontext(self._context))
            (code,) = self._synchronize(self.handle)
        if code:
            raise _driver.error(int(code), "cuEventSynchronize")

    def __del__(self) -> None:
        self._destroy(self.handle)


class Ctypes(Peer):
    """The plain design: a Python host function."""

    name = "ctypes"
    summary = "a ctypes Python function, given raw to cuLaunchHostFunc, and call_soon_threadsafe"

    def prepare(self) -> None:
        """One C function for all waits, each told apart by a number."""
        address = _driver.native_addresses()["cuLaunchHostFunc"]
        self._launch = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        )(address)
        self._waiting: dict[int, Callable[[], Any]] = {}
        self._numbers = itertools.count(1)
        self._fired = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._on_fired)
        self._fired_address = ctypes.cast(self._fired, ctypes.c_void_p)

    def _on_fired(self, number: int) -> None:
        """Called by the driver, on its thread, with the GIL."""
        self._waiting.pop(number)()

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """A host function for each wait."""
        launch, fired, waiting_for, numbers, signal = (
            self._launch,
            self._fired_address,
            self._waiting,
            self._numbers,
            adapter.signal,
        )
        stream = bench_stream.handle

        async def wait() -> None:
            done, wake = signal()
            number = next(numbers)
            waiting_for[number] = wake
            code = launch(stream, fired, number)
            if code:
                raise _driver.error(code, "cuLaunchHostFunc")
            await done

        return wait


# ------------------------------------------------------------------------------------------------ other libraries


class Cupy(Peer):
    """cupy's host function."""

    name = "cupy"
    summary = "cupy.cuda.ExternalStream(...).launch_host_func and call_soon_threadsafe"
    runtime = True

    def prepare(self) -> None:
        """Imports cupy."""
        self._cupy: Any = importlib.import_module("cupy")
        self._cupy.cuda.runtime.getDeviceCount()

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """A host function for each wait."""
        launch = self._cupy.cuda.ExternalStream(bench_stream.handle).launch_host_func
        signal = adapter.signal

        async def wait() -> None:
            done, wake = signal()
            launch(_wake, wake)
            await done

        return wait


def _wake(wake: Callable[[], Any]) -> None:
    wake()


class Numba(Peer):
    """numba's own awaitable."""

    name = "numba"
    summary = "numba.cuda.external_stream(...).async_done()"
    runtime = True
    loops = ("uvloop", "asyncio")

    def prepare(self) -> None:
        """Imports numba's CUDA part."""
        self._cuda: Any = importlib.import_module("numba.cuda")

    def waiter(self, adapter: LoopAdapter, bench_stream: BenchStream) -> Wait:
        """A future of asyncio's for each wait."""
        done: Wait = self._cuda.external_stream(bench_stream.handle).async_done
        return done


def all_peers() -> dict[str, Peer]:
    """Every peer by its name, in the order of the tables."""
    ours = (*(Ours(name) for name in OURS), EnqueueAsync())
    others = (
        Blocking(),
        Polling(),
        Sleeping(),
        ToThread(),
        ToThreadBindings(),
        BlockingEvent(),
        Cupy(),
        Ctypes(),
        Numba(),
    )
    return {peer.name: peer for peer in (*ours, *others)}
