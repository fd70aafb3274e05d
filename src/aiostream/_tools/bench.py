"""`python -m aiostream bench`: four ways to wait for the GPU side by side, in some 20 seconds.

The benchmark proper, with more ways, many streams and servers, is `python -m benchmarks` in a clone
of the repository.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any

import anyio

from aiostream._base import driver, stand_ins
from aiostream._tools import kernels
from aiostream._tools.demo import run_on
from aiostream.device import Device
from aiostream.stream import Stream

LENGTHS = (0.0003, 0.001, 0.005, 0.02)  # seconds of a kernel
WAITS = 60  # for each length
_WARM_UP = 3  # waits

Cells = dict[str, tuple[float, float]]  # by length: the seconds late, and the cores of CPU


def _spelled(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms"


HEAD = f"""sleep: until stream.query(); to_thread: stream.synchronize
late: us from a kernel's end until the task goes on, median
CPU: of the whole process while it waits, % of a core

{"":12}{"".join(f"{_spelled(length):>12}" for length in LENGTHS)}
{"":12}{f"{'late':>7}{'CPU':>5}" * len(LENGTHS)}"""


async def _poll(pause: float, stream: Stream) -> None:
    while not stream.query():  # noqa: ASYNC110, as many programs do
        await anyio.sleep(pause)


# Each waits for a stream. On asyncio, anyio's sleep and threads cost what asyncio's do.
WAYS: dict[str, Callable[[Stream], Awaitable[Any]]] = {
    "sleep(0)": partial(_poll, 0),
    "sleep(0.001)": partial(_poll, 0.001),
    "to_thread": lambda stream: anyio.to_thread.run_sync(stream.synchronize),
    "aiostream": Stream.synchronize_async,
}


def run(loop: str, *, quick: bool, as_json: bool = False) -> int:
    """Compares the ways, and returns the exit code."""
    device, cuda = Device(0).name, driver.spelled(driver.driver_version())
    simulated = stand_ins.is_simulated()
    where = {"device": device, "cuda": cuda, "loop": loop, "simulator": simulated}
    ways: dict[str, Cells] = {}
    if not as_json:
        print(f"{device}, CUDA {cuda}, {loop}")
        print("On the simulator: these figures say nothing about a GPU.\n" * simulated)
        print(HEAD, flush=True)
    for name, way in WAYS.items():
        ways[name] = cells = run_on(loop, _measure, way, 4 if quick else WAITS)
        if not as_json:
            row = (f" {late * 1e6:>6,.0f}{100 * cores:>4.0f}%" for late, cores in cells.values())
            print(f"{name:12}" + "".join(row), flush=True)
    tail = "\nLower is better.\nMore: `python -m benchmarks` in a clone of the project."
    print(json.dumps({**where, "ways": ways}) if as_json else tail)
    return 0


async def _measure(way: Callable[[Stream], Awaitable[Any]], count: int) -> Cells:
    cells: Cells = {}
    async with Stream() as stream:
        for length in LENGTHS:
            late, cores = await lateness(stream, way, length, count)
            cells[_spelled(length)] = statistics.median(late), cores
    return cells


async def lateness(
    stream: Stream, wait: Callable[[Stream], Awaitable[Any]], length: float, count: int
) -> tuple[list[float], float]:
    """Seconds from each kernel's end until its task went on, and the cores of CPU meanwhile.

    A kernel begins at about the end of its launch, so that is where the host's clock starts.
    """
    waits = []
    for _ in range(_WARM_UP + count):
        await anyio.sleep(0.0002)
        kernels.spin(stream, length)
        cpu, began = process_time(), perf_counter()
        await wait(stream)
        waits.append((perf_counter() - began, process_time() - cpu))
    took, used = zip(*waits[_WARM_UP:], strict=True)
    return [each - length for each in took], sum(used) / sum(took)
