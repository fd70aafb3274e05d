"""How long each public call holds the loop's thread on a stream that is full.

A stream runs a kernel of one second, with 1,021 launches queued behind it: the depth at which an
H200's driver blocks the next. Each call is then made on a stream of its own in that state, so a
call that blocks shows as the better part of a second. Run it as `python benchmarks/full_stream.py`;
AIOSTREAM_SIMULATOR=1 uses the simulator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiostream import Device, Event, Stream, statistics
from aiostream._base import driver
from aiostream._tools import kernels

DEPTH = 1021  # and the long kernel: the 1,022 launches that fit
HELD = 1.0  # seconds


async def held_for(call: Callable[[Stream, Event], Any]) -> float:
    """Milliseconds that the loop's thread spends in a call, or in a coroutine until it suspends."""
    stream, event = Stream(), Event()
    filling = time.perf_counter()
    kernels.spin(stream, HELD)
    event.record(stream)
    for _ in range(DEPTH):
        kernels.spin(stream, 0)
    if time.perf_counter() - filling > HELD / 2:
        raise RuntimeError(f"{DEPTH} launches do not fit: the last ones have blocked")
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
    if not stream.closed:
        await stream.aclose()
    event.close()
    return held * 1e3


def borrow(stream: Stream, event: Event) -> None:
    """A second reference to the stream."""
    stream.to_borrowed().close()


def constants(stream: Stream, event: Event) -> None:
    """The properties that the driver is asked for."""
    _ = stream.flags, stream.priority, stream.id


def counters(stream: Stream, event: Event) -> None:
    """The library's own counters."""
    statistics()


CALLS: dict[str, Callable[[Stream, Event], Any]] = {
    "synchronize_async()": lambda stream, event: stream.synchronize_async(),
    "completion_future()": lambda stream, event: stream.completion_future(),
    "checked_completion_future()": lambda stream, event: stream.checked_completion_future(),
    "enqueue_async(f)": lambda stream, event: stream.enqueue_async(lambda on: None),
    "launch_host_func(f)": lambda stream, event: stream.launch_host_func(lambda: None),
    "add_callback(f)": lambda stream, event: stream.add_callback(lambda error: None),
    "wait_event(e)": lambda stream, event: stream.wait_event(event),
    "query()": lambda stream, event: stream.query(),
    "flags, priority, id": constants,
    "to_borrowed()": borrow,
    "Event.record(s)": lambda stream, event: event.record(stream),
    "Event.query()": lambda stream, event: event.query(),
    "Event.synchronize_async()": lambda stream, event: event.synchronize_async(),
    "statistics()": counters,
    "aclose()": lambda stream, event: stream.aclose(),
    "close()": lambda stream, event: stream.close(),
}


async def main() -> None:
    """Prints the table."""
    queued = f"{DEPTH} launches queued, behind a kernel of {HELD * 1e3:.0f} ms"
    print(f"{Device(0).name}, CUDA {driver.driver_version()}; {queued}")
    async with Stream() as stream:
        kernels.spin(stream, 0)  # the kernels' module is loaded before anything is timed
        await stream.synchronize_async()
    for name, call in CALLS.items():
        print(f"{name:28} {await held_for(call):10.3f} ms", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
