"""Measures how late a stall is noticed, and whether irregular work is reported as a stall.

    python tools/measure_stalls.py noticed [--runs 100] [--limit 0.5]
    python tools/measure_stalls.py irregular [--minutes 60] [--limit 0.5]

`noticed` makes four kinds of stalls, one after another: a kernel that never ends, a driver call
that hangs (in the simulator alone), a blocked loop, and a held GIL. It prints how much later than
the limit each was noticed, in ms (lower is better), and how often the wrong stream was named, or
none. For a held GIL it prints how long after its release. `irregular` runs work of 0.1 ms to 70 %
of the limit on 16 streams, next to loads of three times the limit that set a limit of their own.

With AIOSTREAM_SIMULATOR=1 both run on the simulator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable

import aiostream
from aiostream import simulator
from aiostream.testing import Gate, spin

NAME = "stream 'model' on device 0"


class Listener:
    """When the first stall after `clear` was noticed, and of what."""

    def __init__(self) -> None:
        self.error: aiostream.StalledError | None = None
        self.at = 0.0
        self.total = 0

    def __call__(self, error: aiostream.StalledError) -> None:
        """Takes note."""
        self.at, self.error, self.total = time.monotonic(), error, self.total + 1

    def wait(self, seconds: float) -> bool:
        """Blocks until it is called."""
        deadline = time.monotonic() + seconds
        while self.error is None and time.monotonic() < deadline:
            time.sleep(0.0005)
        return self.error is not None


async def endless_kernel(stream: aiostream.Stream, heard: Listener, limit: float) -> float:
    """Holds the stream. Returns when the wait began."""
    with Gate() as gate:
        gate.hold(stream)
        began = time.monotonic()
        waiting = asyncio.ensure_future(stream.synchronize_async())
        while heard.error is None and time.monotonic() < began + 3 * limit:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await waiting
    return began


async def hanging_call(stream: aiostream.Stream, heard: Listener, limit: float) -> float:
    """The record of the wait's event does not return, in a thread."""
    simulator.hang("cuEventRecord")
    thread = threading.Thread(target=stream.synchronize)
    with Gate() as gate:
        gate.hold(stream)
        began = time.monotonic()
        thread.start()
        await asyncio.to_thread(heard.wait, 3 * limit)
        simulator.clear_faults()
    await asyncio.to_thread(thread.join)
    return began


async def hanging_poll(stream: aiostream.Stream, heard: Listener, limit: float) -> float:
    """A query of the watcher does not return."""
    with Gate() as gate:
        gate.hold(stream)
        waiting = asyncio.ensure_future(stream.synchronize_async())
        await asyncio.sleep(0.02)  # the watcher has it
        before = simulator.calls("cuEventQuery")
        simulator.hang("cuEventQuery")
        while simulator.calls("cuEventQuery") == before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        began = time.monotonic()
        await asyncio.to_thread(heard.wait, 3 * limit)
        simulator.clear_faults()
    await waiting
    return began


async def wait_that_ends(stream: aiostream.Stream) -> asyncio.Future[None]:
    """Returns a wait whose work has just ended, before the loop has heard of that."""
    with Gate() as gate:
        gate.hold(stream)
        waiting = asyncio.ensure_future(stream.synchronize_async())
        await asyncio.sleep(0.02)
    return waiting


async def blocked_loop(stream: aiostream.Stream, heard: Listener, limit: float) -> float:
    """The work ends while a task blocks the loop."""
    waiting, began = await wait_that_ends(stream), time.monotonic()
    heard.wait(3 * limit)
    await waiting
    return began


async def held_gil(stream: aiostream.Stream, heard: Listener, limit: float) -> float:
    """The same while this thread keeps the GIL. The listener is called once Python runs again."""
    waiting = await wait_that_ends(stream)
    ctypes.PyDLL(None).usleep(int((limit + 0.4) * 1e6))
    released = time.monotonic()
    await asyncio.to_thread(heard.wait, 3 * limit)
    await waiting
    return released - limit


KINDS: dict[str, Callable[[aiostream.Stream, Listener, float], object]] = {
    "endless kernel": endless_kernel,
    "driver call hangs": hanging_call,
    "driver call of the watcher hangs": hanging_poll,
    "blocked loop": blocked_loop,
    "held GIL": held_gil,
}


async def make(kind: str, runs: int, limit: float) -> list[tuple[float, float, str]]:
    """Returns of each run when it began, when it was noticed (0: never), and what was named."""
    heard = Listener()
    stop = aiostream.on_stalled(heard)
    found = []
    async with aiostream.Stream(name="model", stalled_after=limit) as stream:
        for _ in range(runs):
            heard.error = None
            began = await KINDS[kind](stream, heard, limit)  # type: ignore[misc]
            named = heard.error.stream if heard.error else ""
            found.append((began, heard.at if heard.error else 0.0, named))
    stop()
    return found


def noticed(runs: int, limit: float) -> None:
    """Prints a line for each kind."""
    for kind in KINDS:
        if kind.startswith("driver") and not simulator.installed():
            print(f"{kind}: on the simulator alone")
            continue
        found = asyncio.run(make(kind, runs, limit))
        late = sorted((at - began - limit) * 1e3 for began, at, _ in found if at) or [math.nan]
        wrong = sum(named != NAME for _, at, named in found if at)
        noted = sum(at > 0 for _, at, _ in found)
        print(
            f"{kind}: {noted} of {runs} noticed, {wrong} by a wrong name; later than the limit "
            f"by {late[len(late) // 2]:.1f} ms at the median, {late[-1]:.1f} ms at most",
            flush=True,
        )


# ----------------------------------------------------------------------------- irregular work


async def irregular(minutes: float, limit: float) -> None:
    """Prints how often it was reported as a stall."""
    heard, end = Listener(), time.monotonic() + minutes * 60
    stop = aiostream.on_stalled(heard)
    done = {"requests": 0, "cancelled": 0, "in threads": 0, "loads": 0}
    most_seconds = 0.7 * limit

    def length() -> float:
        return min(random.lognormvariate(-6, 2), most_seconds)

    async def client(pool: aiostream.StreamPool) -> None:
        while time.monotonic() < end:
            try:
                async with asyncio.timeout(random.choice([most_seconds / 4, 60])):
                    if random.random() < 0.1:  # long on the host, which is no stall
                        await pool.run_in_thread(time.sleep, random.random() * 3 * limit)
                        done["in threads"] += 1
                    else:
                        async with pool.stream() as stream:
                            await stream.run(spin, stream, length())
                        done["requests"] += 1
            except TimeoutError:
                done["cancelled"] += 1
            await asyncio.sleep(random.expovariate(20))

    async def loads(pool: aiostream.StreamPool, own: aiostream.Stream) -> None:
        while time.monotonic() < end:
            await own.run(spin, own, 3 * limit)
            async with pool.stream() as stream:
                with stream.may_take(10 * limit):
                    await stream.run(spin, stream, 3 * limit)
            done["loads"] += 2
            await asyncio.sleep(limit)

    pauses = []

    async def tick() -> None:
        last = time.monotonic()
        while last < end:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            if now - last > limit / 2:
                pauses.append(round(now - last, 3))
            last = now

    async with (
        aiostream.StreamPool(16, stalled_after=limit) as pool,
        aiostream.Stream(stalled_after=10 * limit) as own,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(24):
            group.create_task(client(pool))
        group.create_task(loads(pool, own))
        group.create_task(tick())
    stop()
    print(f"{minutes:g} minutes, limit {limit:g} s: {heard.total} reports; {done}")
    if heard.error:
        print("the last:", heard.error)
    print(
        f"times in s for which the loop itself did not run, of more than {limit / 2:g} s: {pauses}"
    )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["noticed", "irregular"])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--limit", type=float, default=0.5)
    args = parser.parse_args()
    if args.what == "irregular":
        asyncio.run(irregular(args.minutes, args.limit))
    else:
        noticed(args.runs, args.limit)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
    sys.stdout.flush()
    os._exit(0)  # also if something hangs
