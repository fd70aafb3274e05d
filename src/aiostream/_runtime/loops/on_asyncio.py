"""asyncio, uvloop, and other loops with asyncio's interface."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable
from typing import Any

from aiostream import _native
from aiostream._base import checks
from aiostream._runtime import completion, process
from aiostream._runtime.completion import Completion
from aiostream._runtime.loops.bridge import Bridge, TaskFunction
from aiostream._runtime.loops.readerless import read_for
from aiostream._runtime.observing import hook


class _Latest(threading.local):
    # The bridge that was used last in this thread: it saves each wait a dict lookup.
    bridge: weakref.ref[AsyncioBridge] | None = None


# Bound once, because each wait uses these.
_current_task = asyncio.current_task

# Any thread. There is no lock, because to set, to get and to copy are one operation of the dict
# inside, and nothing here iterates over it.
# The references are weak, because the loop's selector holds the bridge and drops it when the loop
# is closed. A strong one would keep the queue open until the loop object dies, and nothing would
# read what arrives until then.
_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[AsyncioBridge]]
_bridges = weakref.WeakKeyDictionary()
latest = _Latest()


async def checkpoint() -> None:
    """Gives the loop a turn, unless its turn has just begun: see `AsyncioBridge.must_yield`."""
    loop = asyncio._get_running_loop()
    # No bridge is made, because that starts the library, and `drain` may be called without a GPU.
    bridge = _known_bridge(loop) if loop is not None else None
    if bridge is None or bridge.must_yield():
        await asyncio.sleep(0)


class CancelledBy:
    """See `cancelled_by` in `__init__`. It cancels as `asyncio.timeout` does."""

    def __init__(self, function: TaskFunction) -> None:
        self._function, self._is_over = function, False

    async def __aenter__(self) -> None:
        host: Any = asyncio.current_task()
        if type(host).__module__ == "granian._futures":
            raise RuntimeError(
                "granian's tasks of Rust cannot be cancelled: start it with --task-impl asyncio"
            )
        self._host, self._requests = host, host.cancelling()
        # Not by the loop's factory: see `AsyncioBridge.spawn`.
        self._task = asyncio.Task(self._run(), loop=asyncio.get_running_loop())

    async def _run(self) -> None:
        await self._function()
        if not self._is_over:
            self._is_over = True
            self._host.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if self._is_over:
            is_ours = self._host.uncancel() <= self._requests
            return is_ours and kind is not None and issubclass(kind, asyncio.CancelledError)
        self._is_over = True
        task = self.__dict__.pop("_task")  # its error refers to frames that refer to this
        task.cancel()
        try:
            await asyncio.sleep(0)  # the task ends in this turn, unless it has more to do
        finally:
            if not task.done():
                await asyncio.wait([task])
        return False


def tasks() -> list[asyncio.Task[Any]]:
    """Returns the tasks of each loop that has a bridge. Without the GIL, of this thread's loop."""
    loops = [loop for loop, _ in _bridges_of_loops()]
    if not checks.has_gil():  # what another thread runs may not be looked at there
        loops = [loop for loop in loops if loop is asyncio._get_running_loop()]
    return [task for loop in loops for task in asyncio.all_tasks(loop)]


def _bridges_of_loops() -> list[tuple[Any, AsyncioBridge]]:
    # The references are copied in one step. An iteration could meet a loop that dies.
    loops = [loop for reference in _bridges.keyrefs() if (loop := reference()) is not None]
    found = [(loop, _known_bridge(loop)) for loop in loops]
    return [(loop, bridge) for loop, bridge in found if bridge is not None and bridge.is_open]


def left_behind() -> list[Any]:
    """Returns what the GPU has passed, and waits for a loop that does not run.

    Threads: any. Without the GIL nothing, because the loop may begin to run meanwhile.
    """
    bridges = _bridges_of_loops() if checks.has_gil() else []
    return [
        o for loop, bridge in bridges if not loop.is_running() for o in bridge.arrivals.arrived()
    ]


def runs(queue: int) -> bool:
    """Whether the loop of a queue runs now. Between two calls of `Runner.run`, one does not.

    A run of trio always runs.

    Threads: any.
    """
    with contextlib.suppress(Exception):  # an application's own class may raise anything
        return all(
            loop.is_running() for loop, bridge in _bridges_of_loops() if bridge.queue == queue
        )
    return True


def current_bridge(loop: asyncio.AbstractEventLoop | None) -> AsyncioBridge:
    """Returns the bridge of asyncio's running loop, and makes it if there is none.

    Args:
        loop: asyncio's running loop in this thread.

    Raises:
        RuntimeError: `loop` is `None`.
    """
    if loop is None:
        raise RuntimeError(
            "no running event loop: make this call in a coroutine that asyncio, uvloop or trio "
            "runs. A thread without a loop can use the blocking synchronize()"
        )
    bridge = _known_bridge(loop) or _new_bridge(loop)
    latest.bridge = weakref.ref(bridge)
    return bridge


def _known_bridge(loop: asyncio.AbstractEventLoop) -> AsyncioBridge | None:
    return _bridges.get(loop, lambda: None)()


def _new_bridge(loop: asyncio.AbstractEventLoop) -> AsyncioBridge:
    process.start()
    # A reader reads the bridge before it is in the dict. After an interrupt, waits would hang on a
    # bridge there that no thread reads.
    bridge = AsyncioBridge(loop)
    try:
        # It runs in an empty context, because the loop would keep the context of the first task.
        # What that task's variables hold would then live as long as the loop.
        contextvars.Context().run(loop.add_reader, bridge.descriptor, bridge.drain)
    except NotImplementedError:
        read_for(bridge)
        # No reader holds the bridge, so the loop does. A strong reference in `_bridges` would keep
        # the loop, because the futures that the bridge keeps refer to it.
        loop._aiostream = bridge  # type: ignore[attr-defined]
    _bridges[loop] = weakref.ref(bridge)
    return bridge


class AsyncioBridge(Bridge):
    """The bridge of one asyncio loop. Its finalizer runs when the loop has died."""

    current_task = staticmethod(_current_task)
    cancelled = asyncio.CancelledError

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        # Weak, because the loop's selector holds the bridge. A strong reference would be a cycle,
        # and a loop that is dropped would live until the garbage collector runs. While the loop
        # runs it is never None.
        self.loop: Callable[[], Any] = weakref.ref(loop)

    @staticmethod
    def until_over(wait: _native.Wait) -> _native.Wait:
        """Returns the wait itself, because asyncio can await it: see the package's docstring."""
        return wait

    def must_yield(self) -> bool:
        """Whether a task whose wait was over at once has to give the loop a turn.

        asyncio runs a task until it yields. So a task whose waits are always over at once would
        starve the other tasks and the loop's timers. All tasks together may keep the loop for
        about 1 ms.
        """
        flags = _native.spend_turn(self.queue, _current_task())
        if flags & _native.TURN_BEGAN:
            self.loop().call_soon(_native.new_turn, self.queue)
        return bool(flags & _native.TURN_YIELD)

    def new_future(self) -> Any:
        """Makes a future with `loop.create_future()`."""
        loop = self.loop()
        return ObservedFuture(loop=loop) if hook.of_futures else loop.create_future()

    def new_polled_future(self) -> asyncio.Future[Any]:
        """Makes an `AsyncioFuture`."""
        return (ObservedFuture if hook else AsyncioFuture)(loop=self.loop())

    def spawn(self, function: TaskFunction, name: str, context: contextvars.Context) -> object:
        """Makes an `asyncio.Task`."""
        # Not by the loop's factory, because a task of an eager one would run here and now.
        return asyncio.Task(function(), loop=self.loop(), name=name, context=context)

    def call_later(self, seconds: float, function: Callable[[], None]) -> bool:
        """Calls `loop.call_later`. Returns `False` if the loop is gone or closed."""
        if self.is_gone():
            return False
        # It runs in an empty context, because the timer would keep what the task's variables hold.
        self.loop().call_later(seconds, function, context=contextvars.Context())
        return True

    def is_gone(self) -> bool:
        """A loop that is closed has forgotten what `call_soon_threadsafe` has asked for."""
        loop = self.loop()
        return loop is None or loop.is_closed()

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Calls `call_soon_threadsafe`."""
        loop = self.loop()
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            # asyncio raises it if the loop is closed. A loop of another kind may raise it for
            # another reason, and then the janitor asks again later.
            if loop.is_closed():
                return False
            raise
        return True


class AsyncioFuture(asyncio.Future[Any]):
    """asyncio's future, but a `cancel` of it reaches its point.

    Threads: the loop's thread only.
    """

    __slots__ = ("point",)  # native code sets it, when the driver has the point

    point: Completion

    def __repr__(self) -> str:
        # An interrupt may have come before the maker has set the point.
        point = None if self.done() else getattr(self, "point", None)
        return f"{super().__repr__()[:-1]}{completion.described(point)}>"

    def cancel(self, msg: Any = None) -> bool:
        """See `asyncio.Future`."""
        cancelled = super().cancel(msg)
        if cancelled and (point := getattr(self, "point", None)) is not None:
            point.cancel()
        return cancelled


class ObservedFuture(AsyncioFuture):
    """It reports what becomes of it. Without observers no such future is made."""

    __slots__ = ("seen_by",)  # the observers' own

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        hook.made(self)

    def set_result(self, result: Any) -> None:
        """See `asyncio.Future`."""
        super().set_result(result)
        hook.settled(self, result)

    def set_exception(self, exception: Any) -> None:
        """See `asyncio.Future`."""
        super().set_exception(exception)
        hook.settled(self, None)

    def __await__(self) -> Any:
        return hook.awaited(self, super().__await__())

    __iter__ = __await__
