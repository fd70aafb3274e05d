"""`python -m aiostream bench`: four ways to wait for the GPU side by side, in less than a minute.

The benchmark proper, with more ways, servers and this project's goals, is `python -m benchmarks` in
a clone of the repository.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import perf_counter, process_time
from typing import Any, NamedTuple

import anyio

from aiostream._base import driver, stand_ins
from aiostream._tools import kernels
from aiostream.device import Device
from aiostream.errors import CudaError, NoDriverError
from aiostream.event import Event
from aiostream.stream import Stream

LENGTHS = (0.0003, 0.001, 0.005, 0.02)  # seconds of a kernel
WAITS, STREAMS, WINDOW = 60, 64, 1.0  # for each kernel length; of 5 ms; seconds

Wait = Callable[[], Awaitable[Any]]
Cell = tuple[float, float]  # the lateness in seconds, or completions per second; cores of CPU
Cells = dict[str, Cell]


class _Lane:
    """A stream with its launch prepared: some 3 us, where `kernels.spin` takes 20."""

    def __init__(self) -> None:
        self.stream = Stream()
        cuda = driver.bindings()
        self._length = ctypes.c_uint64()
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self._length))
        handle = cuda.CUstream(self.stream._handle.value)
        function = kernels.load(self.stream.context)["spin"]
        shape = (1, 1, 1, 1, 1, 1, 0)
        self._call = (function, *shape, handle, ctypes.addressof(self._arguments), 0)
        self._launch = cuda.cuLaunchKernel

    def spin(self, seconds: float) -> None:
        """Keeps the stream busy."""
        self._length.value = round(seconds * 1e9)
        (code,) = self._launch(*self._call)
        if code:
            raise driver.error(int(code), "cuLaunchKernel")


def _polling(pause: float) -> Callable[[Stream, Any], Wait]:
    def way(stream: Stream, loop: Any) -> Wait:
        event = Event()

        async def wait() -> None:
            event.record(stream)
            while not event.query():
                await loop.sleep(pause)

        return wait

    return way


def _in_thread(stream: Stream, loop: Any) -> Wait:
    return partial(getattr(loop.to_thread, "run_sync", loop.to_thread), stream.synchronize)


# Each makes the wait for a stream. `loop` is the module `asyncio` or `trio`.
WAYS: dict[str, Callable[[Stream, Any], Wait]] = {
    "sleep(0)": _polling(0),
    "sleep(0.001)": _polling(0.001),
    "to_thread": _in_thread,
    "aiostream": lambda stream, _: stream.synchronize_async,
}


class _Size(NamedTuple):
    """How much is measured."""

    waits: int
    streams: int
    window: float


def run(loop: str, *, quick: bool, as_json: bool = False) -> int:
    """Compares the ways, and returns the exit code."""
    from aiostream._tools.demo import run_on

    size = _Size(4, 4, 0.05) if quick else _Size(WAITS, STREAMS, WINDOW)
    module = importlib.import_module("trio" if loop == "trio" else "asyncio")
    show: Callable[..., None] = (lambda *_, **__: None) if as_json else partial(print, flush=True)
    ways: dict[str, Cells] = {}
    try:
        context = Device(0).primary_context  # current, because the launches do not make it so
        device, cuda = Device(0).name, driver.spelled(driver.driver_version())
        where = {
            "device": device,
            "cuda": cuda,
            "loop": loop,
            "simulator": stand_ins.is_simulated(),
        }
        show(f"{device}, CUDA {cuda}, {loop}")
        if stand_ins.is_simulated():
            show("On the simulator: these figures say nothing about a GPU.")
        _show_head(size, show)
        with context.as_current():
            for name, way in WAYS.items():
                show(f"{name:14}", end="")
                ways[name] = run_on(loop, _measure, lambda it, w=way: w(it, module), size, show)
    except (CudaError, NoDriverError, ValueError) as error:  # the last of the environment
        print(f"The benchmark did not get through: {error}", file=sys.stderr)
        return 1
    compared = "sleep(0)", "to_thread", "aiostream"
    verdict = _verdict(*(ways[name][_column(LENGTHS[-1])] for name in compared))
    show(f"\n{verdict}\nLower is better for late and CPU, higher for streams.")
    show("More ways, servers and tails: `python -m benchmarks` in a clone of the project.")
    if as_json:
        print(json.dumps({**where, "ways": ways, "verdict": verdict}))
    return 0


def _column(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms"


def _verdict(polling: Cell, in_thread: Cell, ours: Cell) -> str:
    late, late_in_thread = round(ours[0] * 1e6), round(in_thread[0] * 1e6)
    share = ours[1] / max(polling[1], 1e-9)
    return (
        f"At {_column(LENGTHS[-1])} aiostream is {late} us late, and to_thread {late_in_thread} us."
        f"\nIt uses {share:.0%} of the CPU of sleep(0)."
    )


def _show_head(size: _Size, show: Callable[..., None]) -> None:
    show(
        "sleep: until event.query() says that it is over; to_thread: stream.synchronize"
        "\nlate: us from a kernel's end until the task goes on, median, with the launch"
        "\nCPU: of the whole process while it waits, % of a core"
        f"\n{size.streams} streams: completions per second of 5 ms kernels, a task for each\n"
    )
    columns = [*map(_column, LENGTHS), f"{size.streams} streams"]
    show(f"{'':14}" + "".join(f"{text:>13}" for text in columns))
    show(f"{'':14}" + f"{'late':>7}{'CPU':>6}" * len(LENGTHS) + f"{'per s':>7}{'CPU':>6}")


async def _measure(way: Callable[[Stream], Wait], size: _Size, show: Callable[..., None]) -> Cells:
    """Measures one way, and shows its line cell by cell."""
    cells: Cells = {}
    async with contextlib.AsyncExitStack() as stack:
        lanes = [_Lane() for _ in range(size.streams)]
        for lane in lanes:
            await stack.enter_async_context(lane.stream)
        for seconds in LENGTHS:
            late, cpu = await _late(lanes[0], way(lanes[0].stream), seconds, size.waits)
            cells[_column(seconds)] = late, cpu
            show(f"{late * 1e6:>7,.0f}{100 * cpu:>5.0f}%", end="")
        rate, cpu = cells[f"{size.streams} streams"] = await _rate(lanes, way, size.window)
        show(f"{rate:>7,.0f}{100 * cpu:>5.0f}%")
    return cells


async def _late(lane: _Lane, wait: Wait, seconds: float, count: int) -> Cell:
    """The median lateness in seconds, and the share of a core."""
    late: list[float] = []
    used = waited = 0.0
    with _quiet():
        for number in range(count + 3):
            await anyio.sleep(0.0002)
            cpu, began = process_time(), perf_counter()
            lane.spin(seconds)
            await wait()
            took = perf_counter() - began
            if number < 3:
                continue  # these warm up
            used, waited = used + process_time() - cpu, waited + took
            late.append(took - seconds)
    return statistics.median(late), used / waited


async def _rate(lanes: list[_Lane], way: Callable[[Stream], Wait], window: float) -> Cell:
    """Completions per second of all lanes, and cores."""
    count, stop, warm = 0, False, anyio.Event()

    async def busy(lane: _Lane) -> None:
        nonlocal count
        wait = way(lane.stream)
        while not stop:
            lane.spin(0.005)
            await wait()
            count += 1
            if count == len(lanes):  # threads have started, and lengths are learnt
                warm.set()

    with _quiet():
        async with anyio.create_task_group() as group:
            for lane in lanes:
                group.start_soon(busy, lane)
            await warm.wait()
            before, cpu, began = count, process_time(), perf_counter()
            await anyio.sleep(window)
            took, cpu, done = perf_counter() - began, process_time() - cpu, count - before
            stop = True
    return done / took, cpu / took


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection, because it would strike one way and spare the next."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
