"""How long each public call holds the loop's thread on a stream that is full.

A stream is held by a gate and filled with 1,022 kernel launches, the depth at which an H200's driver blocks the next launch.
Each call is then made in a fresh process state: its own stream, its own gate, which a thread opens half a second later, so
that a call that blocks shows as some 500 ms. Run it as `python benchmarks/full_stream.py`; AIOSTREAM_SIMULATOR=1 uses the
simulator.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiostream import Device, Event, Stream, _driver, _kernels, statistics

DEPTH = 1022
HELD = 0.5  # seconds


class Gate:
    """A word of pinned memory that streams wait for."""

    def __init__(self) -> None:
        with Device(0).primary_context.current():
            self.pointer = int(_driver.call("cuMemHostAlloc", 64, 3))
        self.word = ctypes.c_uint32.from_address(self.pointer)
        self.word.value = 0

    def hold(self, stream: Stream) -> None:
        driver = _driver.bindings()
        geq = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value
        with stream.context.current():
            _driver.call("cuStreamWaitValue32", driver.CUstream(stream.handle), driver.CUdeviceptr(self.pointer), 1, geq)

    def open(self) -> None:
        self.word.value = 1


async def nothing() -> None:
    """For the calls that are no coroutines."""


async def held_for(call: Callable[[Stream, Event], Any]) -> float:
    """Milliseconds that the loop's thread spends in one call, or in a coroutine up to its first suspension."""
    stream, gate, event = Stream(), Gate(), Event()
    gate.hold(stream)
    event.record(stream)
    for _ in range(DEPTH):
        _kernels.spin(stream, 0)
    opener = threading.Timer(HELD, gate.open)
    opener.start()
    start = time.perf_counter()
    answer = call(stream, event)
    if asyncio.iscoroutine(answer):
        task = asyncio.get_running_loop().create_task(answer)
        await asyncio.sleep(0)
        held = time.perf_counter() - start
        await task
    else:
        held = time.perf_counter() - start
        if isinstance(answer, Awaitable):
            await answer
    opener.join()
    if not stream.closed:
        await stream.aclose()
    event.close()
    return held * 1e3


def borrow(stream: Stream, event: Event) -> None:
    """A second reference to the stream."""
    stream.to_borrowed().close()


CALLS: dict[str, Callable[[Stream, Event], Any]] = {
    "synchronize_async()": lambda stream, event: stream.synchronize_async(),
    "completion_future()": lambda stream, event: stream.completion_future(),
    "checked_completion_future()": lambda stream, event: stream.checked_completion_future(),
    "enqueue_async(f)": lambda stream, event: stream.enqueue_async(lambda on: None),
    "launch_host_func(f)": lambda stream, event: stream.launch_host_func(lambda: None),
    "add_callback(f)": lambda stream, event: stream.add_callback(lambda error: None),
    "wait_event(e)": lambda stream, event: stream.wait_event(event),
    "query()": lambda stream, event: stream.query(),
    "flags, priority, id": lambda stream, event: (stream.flags, stream.priority, stream.id) and None,
    "to_borrowed()": borrow,
    "Event.record(s)": lambda stream, event: event.record(stream),
    "Event.query()": lambda stream, event: event.query(),
    "Event.synchronize_async()": lambda stream, event: event.synchronize_async(),
    "statistics()": lambda stream, event: statistics() and None,
    "aclose()": lambda stream, event: stream.aclose(),
    "close()": lambda stream, event: stream.close(),
}


async def main() -> None:
    """Prints the table."""
    print(f"{Device(0).name}, CUDA {_driver.driver_version()}; {DEPTH} launches queued, held for {HELD * 1e3:.0f} ms")
    async with Stream() as stream:
        _kernels.spin(stream, 0)  # the kernels' module is loaded before anything is timed
        await stream.synchronize_async()
    for name, call in CALLS.items():
        print(f"{name:28} {await held_for(call):10.3f} ms", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
