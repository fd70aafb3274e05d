"""What the measures need of an event loop, natively on each: asyncio (and uvloop) and trio.

Peers are measured with the loop's own means, as a program for that loop would use them; a
portable layer between would be measured too.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

LOOPS = ("uvloop", "asyncio", "trio")


class AsyncioAdapter:
    """asyncio and uvloop. `TrioAdapter` has the same, and says what each is in a word.

    Attributes:
        checkpoint: Lets the other tasks run once: `sleep(0)`.
        sleep: The loop's own sleep.
        in_thread: `to_thread`, with the loop's default number of threads.
    """

    checkpoint = staticmethod(partial(asyncio.sleep, 0))
    sleep = staticmethod(asyncio.sleep)

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread

    def signal(self) -> tuple[Awaitable[Any], Callable[[], Any]]:
        """What a task waits for, and what wakes it from any thread."""
        future = self.loop.create_future()
        return future, partial(self.loop.call_soon_threadsafe, future.set_result, None)

    async def together(self, functions: Sequence[Callable[[], Awaitable[Any]]]) -> None:
        """Runs each in a task of its own, until all have ended."""
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(_call(function))

    async def within(self, seconds: float, function: Callable[[], Awaitable[Any]]) -> None:
        """Runs it, and raises TimeoutError if it takes longer."""
        async with asyncio.timeout(seconds):
            await function()


class TrioAdapter:
    """trio."""

    def __init__(self) -> None:
        import trio

        self.name = "trio"
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self.checkpoint = trio.lowlevel.checkpoint
        self.sleep = trio.sleep
        self.in_thread = trio.to_thread.run_sync

    def signal(self) -> tuple[Awaitable[Any], Callable[[], Any]]:
        """An event, set with `run_sync_soon`."""
        event = self._trio.Event()
        return event.wait(), partial(self._token.run_sync_soon, event.set)

    async def together(self, functions: Sequence[Callable[[], Awaitable[Any]]]) -> None:
        """A nursery."""
        async with self._trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)

    async def within(self, seconds: float, function: Callable[[], Awaitable[Any]]) -> None:
        """`trio.move_on_after`."""
        with self._trio.move_on_after(seconds) as scope:
            await function()
        if scope.cancelled_caught:
            raise TimeoutError


LoopAdapter = AsyncioAdapter | TrioAdapter


async def _call(function: Callable[[], Awaitable[Any]]) -> Any:
    """A coroutine of whatever can be awaited, for tasks are made of coroutines."""
    return await function()


def missing(loop: str) -> str | None:
    """Why this loop cannot be used here, or `None`."""
    if loop != "asyncio" and importlib.util.find_spec(loop) is None:
        return f"{loop} is not installed: pip install {loop}"
    return None


def run(loop: str, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Runs `function(adapter, *args)` to its end on one kind of loop, a new one each time."""
    if loop == "trio":
        import trio

        async def on_trio() -> Any:
            return await function(TrioAdapter(), *args)

        return trio.run(on_trio)

    async def on_asyncio() -> Any:
        return await function(AsyncioAdapter(loop), *args)

    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(on_asyncio())


class Timer:
    """Linux's timer descriptor, exact where a loop's own timers count ms. Python 3.13 has it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self.descriptor: int = self._libc.timerfd_create(1, flags)  # CLOCK_MONOTONIC
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, when: int, interval: int = 0) -> None:
        """Fires at an instant of the monotonic clock, and then in intervals."""
        times = (*divmod(interval, 1_000_000_000), *divmod(when, 1_000_000_000))
        setting = struct.pack("4q", *times)
        if self._libc.timerfd_settime(self.descriptor, 1, setting, None) != 0:  # TFD_TIMER_ABSTIME
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def take(self) -> int:
        """How often it has fired since the last time."""
        try:
            return int(struct.unpack("Q", os.read(self.descriptor, 8))[0])
        except BlockingIOError:
            return 0

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.descriptor)
