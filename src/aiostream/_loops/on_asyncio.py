"""asyncio, uvloop, and whatever else keeps to asyncio's loop interface."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

from aiostream import _native, _process
from aiostream._loops.bridge import TICKETS, Bridge
from aiostream._loops.dispatcher import dispatcher
from aiostream.futures import EventCompletion, PolledFuture, SettledFuture


class _Latest(threading.local):
    """The bridge that was used last in this thread: a look-up less for each wait."""

    bridge: weakref.ref[AsyncioBridge] | None = None


# Each wait asks these.
_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task

_lock = (
    threading.RLock()
)  # guards the creation of bridges; a signal handler may interrupt its holder
_reader_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[AsyncioBridge]]
_reader_bridges = weakref.WeakKeyDictionary()  # the loop's selector holds the bridge
_dispatched_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncioBridge]
_dispatched_bridges = weakref.WeakKeyDictionary()  # nobody else would hold these
latest = _Latest()


class AsyncioBridge(Bridge):
    """asyncio, uvloop and whatever else keeps to asyncio's loop interface."""

    current_task = staticmethod(_current_task)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = weakref.ref(loop)

    def must_yield(self) -> bool:
        """Whether a task whose wait was over at once has to give the loop a turn.

        asyncio runs a task until it yields. Without this, a task whose waits are always ready would starve the others, and the
        loop's timers: all tasks together may keep the loop for about 1 ms.
        """
        flags = _native.spend_turn(self.queue, _current_task())
        if flags & _native.TURN_BEGAN:
            loop = self.loop()
            if loop is not None:
                loop.call_soon(_native.new_turn, self.queue)
        return bool(flags & _native.TURN_YIELD)

    def new_future(self) -> SettledFuture:
        """`loop.create_future()`."""
        loop = self.loop()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        return loop.create_future()

    def new_polled_future(self) -> PolledFuture:
        """An `AsyncioFuture`."""
        loop = self.loop()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        future = AsyncioFuture(loop=loop)
        future.point = future.polled = future.waiter = None
        return future

    def _call_next_turn(self, function: Callable[[], None]) -> None:
        loop = self.loop()
        if loop is not None:
            loop.call_soon(function, context=contextvars.Context())

    def call_later(self, seconds: float, function: Callable[[], None]) -> bool:
        """`loop.call_later`."""
        loop = self.loop()
        if loop is None or loop.is_closed():
            return False
        loop.call_later(seconds, function, context=contextvars.Context())
        return True

    def schedule_drain(self) -> bool:
        """By `call_soon_threadsafe`, for loops without `add_reader`."""
        loop = self.loop()
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(self.drain)
        except RuntimeError:
            if loop.is_closed():
                return False
            raise
        return True


class AsyncioFuture(asyncio.Future[Any]):
    """asyncio's future, but a task that awaits it polls the work itself when its end is near.

    That task goes on in the turn of the loop in which it sees the end. A callback that polled could only have it called in the
    next turn. For whoever does not await it (`asyncio.wait`, `gather`, a callback) it is a plain future, which the loop polls.
    """

    # Set by whoever makes it: a constructor of ours would take longer than all of asyncio's.
    __slots__ = ("point", "polled", "waiter")

    point: EventCompletion | None
    polled: _native.Wait | None  # while an awaiting task polls it
    waiter: asyncio.Future[None] | None  # where the one awaiting task that may poll waits meanwhile

    def __await__(self) -> Generator[Any, Any, Any]:
        point = self.point
        if point is None or self.done() or _running_loop() is not self.get_loop():
            return (yield from super().__await__())
        polled = None
        woken = False
        try:
            while not self.done():
                polled = self.polled = point.reserved.take(woken)
                if polled is not None:
                    refusal = yield from polled.__await__()
                    polled = self.polled = None
                    if refusal is None or refusal < TICKETS:
                        current_bridge(_running_loop()).settle_polled(self, point, refusal)
                elif self.waiter is None:
                    self.waiter = self.get_loop().create_future()
                    try:
                        yield from self.waiter
                    finally:
                        self.waiter = None
                    woken = True
                else:
                    return (yield from super().__await__())
        except asyncio.CancelledError:
            self.cancel()  # as asyncio's own does
            raise
        except GeneratorExit:
            raise
        except BaseException:  # an interrupt, perhaps after the last poll, whose ticket arrives without waking the loop
            _native.queue_wake(current_bridge(_running_loop()).queue)
            raise
        finally:
            if polled is not None:
                self.polled = None
                polled.drop()
        return self.result()

    __iter__ = __await__

    def set_result(self, result: Any) -> None:
        """As asyncio's."""
        self._leave()  # first: what an interrupt cuts short is repeated, but not for a future that is done
        super().set_result(result)

    def set_exception(self, exception: type | BaseException) -> None:
        """As asyncio's."""
        self._leave()
        super().set_exception(exception)

    def cancel(self, msg: Any = None) -> bool:
        """As asyncio's."""
        self._leave()
        return super().cancel(msg)

    def _leave(self) -> None:
        """It is about to be done: its task polls no more, and goes on in its next turn."""
        polled = getattr(self, "polled", None)
        if polled is not None:
            polled.drop()
        self.wake()

    def wake(self) -> None:
        """See `PolledFuture`."""
        waiter = getattr(self, "waiter", None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def current_bridge(loop: asyncio.AbstractEventLoop | None) -> AsyncioBridge:
    """The bridge of asyncio's loop that runs in this thread, and was asked for already.

    Raises:
        RuntimeError: There is none.
    """
    known = latest.bridge
    if known is not None and loop is not None:
        bridge = known()
        if bridge is not None and bridge.loop() is loop:
            return bridge
    if loop is None:
        raise RuntimeError(
            "no running event loop: this call belongs into a coroutine that asyncio, uvloop or trio runs (a thread without a "
            "loop can block in synchronize() instead)"
        )
    reference = _reader_bridges.get(loop)
    bridge = (
        reference() if reference is not None else _dispatched_bridges.get(loop)
    ) or _new_bridge(loop)
    latest.bridge = weakref.ref(bridge)
    return bridge


def _new_bridge(loop: asyncio.AbstractEventLoop) -> AsyncioBridge:
    _process.start()
    bridge = AsyncioBridge(loop)
    try:
        # In an empty context: the loop would keep the first task's, and all that its variables
        # hold, for as long as it lives.
        contextvars.Context().run(loop.add_reader, bridge.descriptor, bridge.drain)
    except NotImplementedError:
        dispatcher().add(
            bridge
        )  # before anybody finds the bridge: one that is not watched would never be drained
        with _lock:
            _dispatched_bridges[loop] = bridge
    else:
        with _lock:
            _reader_bridges[loop] = weakref.ref(bridge)
    return bridge
