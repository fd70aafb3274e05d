"""`python -m aiostream bench`: four ways to wait for the GPU side by side, in less than a minute.

The benchmark proper, with more ways, servers and this project's goals, is `python -m benchmarks` in
a clone of the repository.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import importlib
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter, process_time
from typing import Any, NamedTuple

from aiostream._base import driver
from aiostream._tools import kernels
from aiostream.device import Device
from aiostream.errors import CudaError, NoDriverError
from aiostream.event import Event
from aiostream.stream import Stream

DESCRIPTION = (
    "Compares four ways to await CUDA work from asyncio: how late the task goes on, what CPU the "
    "process uses meanwhile, and how much many streams complete. It takes some 20 seconds. "
    "With AIOSTREAM_SIMULATOR=1 it runs on the simulator, and its figures say nothing about a GPU."
)
LENGTHS = (0.0003, 0.001, 0.005, 0.02)  # seconds of a kernel
WAITS, STREAMS, WINDOW = 60, 64, 1.0  # for each kernel length; of 5 ms; seconds

Wait = Callable[[], Awaitable[Any]]


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


def _polling(pause: float) -> Callable[[Stream], Wait]:
    def way(stream: Stream) -> Wait:
        event = Event()

        async def wait() -> None:
            event.record(stream)
            while not event.query():  # noqa: ASYNC110  # this is what is measured
                await asyncio.sleep(pause)

        return wait

    return way


def _in_thread(stream: Stream) -> Wait:
    return lambda: asyncio.to_thread(stream.synchronize)


WAYS: dict[str, Callable[[Stream], Wait]] = {
    "event.query(), sleep(0)": _polling(0),
    "event.query(), sleep(0.001)": _polling(0.001),
    "to_thread(synchronize)": _in_thread,
    "aiostream": lambda stream: stream.synchronize_async,
}


class _Size(NamedTuple):
    """How much is measured."""

    waits: int
    streams: int
    window: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="the event loop (default: asyncio)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="as little as shows that it works: a second"
    )


def run(loop: str, *, quick: bool) -> int:
    """Compares the ways, and returns the exit code."""
    factory = importlib.import_module("uvloop").new_event_loop if loop == "uvloop" else None
    size = _Size(4, 4, 0.05) if quick else _Size(WAITS, STREAMS, WINDOW)
    try:
        _print_head(loop, size)
        context = Device(0).primary_context  # current, because the launches do not make it so
        with context.as_current(), asyncio.Runner(loop_factory=factory) as runner:
            for name, way in WAYS.items():
                runner.run(_print_way(name, way, size))
    except (CudaError, NoDriverError, ValueError) as error:  # the last of the environment
        print(f"The benchmark did not get through: {error}", file=sys.stderr)
        return 1
    print(
        "\nLower is better for late and CPU, higher for streams."
        "\nMore ways, servers and tails: `python -m benchmarks` in a clone of the repository."
    )
    return 0


def _print_head(loop: str, size: _Size) -> None:
    print(f"{Device(0).name}, CUDA {driver.spelled(driver.driver_version())}, {loop}")
    from aiostream import simulator

    if simulator.installed():
        print("On the simulator: these figures say nothing about a GPU.")
    print(
        "late: us from a kernel's end until the task goes on, median, launch included;"
        " CPU: of the whole process while it waits, % of a core;"
        f"\n{size.streams} streams: completions per second of 5 ms kernels, a task for each; CPU\n"
    )
    columns = [f"{seconds * 1e3:g} ms: late  CPU" for seconds in LENGTHS]
    columns.append(f"{size.streams} streams  CPU")
    print(f"{'':28}" + "".join(f"{text:>20}" for text in columns))


async def _print_way(name: str, way: Callable[[Stream], Wait], size: _Size) -> None:
    """Measures one way, and prints its line cell by cell."""
    print(f"{name:28}", end="", flush=True)
    async with contextlib.AsyncExitStack() as stack:
        lanes = [_Lane() for _ in range(size.streams)]
        for lane in lanes:
            await stack.enter_async_context(lane.stream)
        for seconds in LENGTHS:
            late, cpu = await _late(lanes[0], way(lanes[0].stream), seconds, size.waits)
            print(f"{late * 1e6:>14,.0f}{100 * cpu:>5.0f}%", end="", flush=True)
        rate, cpu = await _rate(lanes, way, size.window)
        print(f"{rate:>14,.0f}{100 * cpu:>5.0f}%", flush=True)


async def _late(lane: _Lane, wait: Wait, seconds: float, count: int) -> tuple[float, float]:
    """The median lateness in seconds, and the share of a core."""
    late: list[float] = []
    used = waited = 0.0
    with _quiet():
        for number in range(count + 3):
            await asyncio.sleep(0.0002)
            cpu, began = process_time(), perf_counter()
            lane.spin(seconds)
            await wait()
            took = perf_counter() - began
            if number < 3:
                continue  # these warm up
            used, waited = used + process_time() - cpu, waited + took
            late.append(took - seconds)
    return statistics.median(late), used / waited


async def _rate(
    lanes: list[_Lane], way: Callable[[Stream], Wait], window: float
) -> tuple[float, float]:
    """Completions per second of all lanes, and cores."""
    count, stop = 0, False

    async def busy(lane: _Lane) -> None:
        nonlocal count
        wait = way(lane.stream)
        while not stop:
            lane.spin(0.005)
            await wait()
            count += 1

    with _quiet():
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(busy(lane))
            await asyncio.sleep(0.2 * window)
            before, cpu, began = count, process_time(), perf_counter()
            await asyncio.sleep(window)
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
