"""The module that waits in asyncio and trio: how arrivals reach the loop that waits for them.

Each running loop has one bridge, made on first use and gone with the loop. It owns a native queue, whose descriptor the
loop watches; one wake-up drains everything that has arrived. Nothing here holds a loop: the loop holds the bridge (asyncio in its
selector, trio in its run variables), so that a loop that dies takes its bridge along, and the bridge's finalizer has the
janitor close the queue. What arrives after that goes to the orphans.

Loops that cannot watch a descriptor, and trio once it has cancelled its system tasks, are told by one dispatcher thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import select
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import ModuleType
from typing import Any, cast

from aiostream import _native, _points, _process, _turns
from aiostream.futures import EventCompletion, Orders, OwnFuture, PolledFuture, SettledFuture, set_result


class _Latest(threading.local):
    """The asyncio bridge that was used last in this thread: a look-up less for each wait."""

    bridge: weakref.ref[AsyncioBridge] | None = None


# Each wait asks these.
_modules = sys.modules
_running_loop = asyncio._get_running_loop
# What `_native.Wait` answers is a refusal, or from here on a ticket: of a wait that was left to a timer or the watcher.
TICKETS = 1 << 24
_current_task = asyncio.current_task

_lock = threading.RLock()  # guards the creation of bridges and of the dispatcher; a signal handler may interrupt its holder
_reader_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[AsyncioBridge]]
_reader_bridges = weakref.WeakKeyDictionary()  # the loop's selector holds the bridge
_dispatched_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncioBridge]
_dispatched_bridges = weakref.WeakKeyDictionary()  # nobody else would hold these
_latest = _Latest()
_trio_bridge: Any = None  # a trio.lowlevel.RunVar, made once trio is known to run


class Bridge:
    """The way from the driver's threads into one loop."""

    # On trio alone: lets the loop take a turn, as an await that has nothing to wait for must; may raise its cancellation.
    checkpoint: Callable[[], Awaitable[None]] | None = None
    # The task that runs now, or `None` in a callback of the loop.
    current_task: Callable[[], Any]

    def __init__(self) -> None:
        # Filled and emptied by the loop's thread alone; it survives a KeyboardInterrupt in the middle.
        self._backlog: list[int | _native.Wait] = []
        # Popped by whoever closes the queue, the dispatcher or the janitor: a second close would be of its next owner's.
        self._unclosed: list[int] = []
        self._descriptor = _native.queue_open(self._unclosed)
        self.queue = self._unclosed[0]
        self._polling: object = None  # stands for the drain that is on its way in the next turn; by the loop's thread
        # For each stream, this loop's completions that an event ends, oldest first. Completions hold this dict, not the bridge.
        self.orders: Orders = {}

    @property
    def descriptor(self) -> int:
        """What the loop watches: readable when something has arrived, or when a timer of a wait is due."""
        return self._descriptor

    @property
    def is_open(self) -> bool:
        """Whether what arrives is still delivered to the loop."""
        return bool(self._unclosed)

    def drain(self) -> None:
        """Settles everything that has arrived. Called by the loop, in its thread."""
        if _native.is_forked():
            return  # its descriptors are the parent's too: reading it here would take a wake-up away
        self._polling = None  # the drain on its way, if any, gives way to this one: a KeyboardInterrupt may have taken it
        try:
            again = _native.drain(self.queue, self._backlog)
            _points.deliver(self._backlog)
            if again:
                self.poll_soon()
        except BaseException:
            _native.queue_wake(self.queue)  # come again for what is left
            raise

    def poll_soon(self) -> None:
        """Drains again in the loop's next turn: futures whose end is near are polled there. Call it in the loop's thread."""
        if self._polling is None:
            token = object()
            self._call_next_turn(partial(self._poll, token))
            self._polling = token

    def _poll(self, token: object) -> None:
        if token is self._polling:
            self.drain()

    def _call_next_turn(self, function: Callable[[], None]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """The loop is gone: what still arrives is the orphans'. Any thread, any number of times."""
        _close_queue(self._unclosed, [])

    def must_yield(self) -> bool:
        """Whether a task whose wait was over at once has to give the loop a turn. Never on trio, where every wait does."""
        return False

    def new_future(self) -> SettledFuture:
        """A future of this bridge's loop."""
        raise NotImplementedError

    def new_polled_future(self) -> PolledFuture:
        """A future whose awaiting task polls the work itself when its end is near."""
        raise NotImplementedError

    def call_later(self, seconds: float, function: Callable[[], None]) -> bool:
        """Has the loop call a function; `False` if it no longer can. Call it in the loop's thread."""
        raise NotImplementedError

    def schedule_drain(self) -> None:
        """Has the loop call `drain` soon; called by the dispatcher's thread.

        Raises:
            RuntimeError: The loop is closed.
        """
        raise NotImplementedError

    def __del__(self) -> None:
        # A finalizer: no lock, no driver. Tickets on the backlog (after a KeyboardInterrupt) are the orphans' too.
        unclosed = getattr(self, "_unclosed", None)
        if unclosed:
            _process.run_in_janitor(partial(_close_queue, unclosed, self._backlog))


def _close_queue(unclosed: list[int], backlog: list[int | _native.Wait]) -> None:
    try:
        _points.deliver(backlog, orphaned=True)
    finally:
        with contextlib.suppress(IndexError):  # somebody else has closed it
            _native.queue_close(unclosed.pop())


def current_bridge() -> Bridge:
    """The bridge of the loop that runs in this thread.

    Raises:
        RuntimeError: No asyncio or trio loop runs here.
    """
    trio = _modules.get("trio")
    loop = _running_loop()
    # A task of asyncio's own is no place of trio's, and asking for one is quicker than asking trio.
    if trio is not None and (loop is None or _current_task(loop) is None) and _turns.in_trio(trio):
        return _current_trio_bridge(trio)
    latest = _latest.bridge
    if latest is not None and loop is not None:
        known = latest()
        if known is not None and known.loop() is loop:
            return known
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no running event loop: this call belongs into a coroutine that asyncio, uvloop or trio runs (a thread without a "
            "loop can block in synchronize() instead)"
        ) from None
    reference = _reader_bridges.get(loop)
    bridge = reference() if reference is not None else _dispatched_bridges.get(loop)
    if bridge is None:
        bridge = _new_asyncio_bridge(loop)
    _latest.bridge = weakref.ref(bridge)
    return bridge


def is_dead(future: Any) -> bool:
    """Whether a future's loop was closed while somebody waited. Only asyncio's can be; to settle the future would raise."""
    return isinstance(future, asyncio.Future) and future.get_loop().is_closed()


def task_name(task: Any) -> str:
    """What its loop calls a task."""
    return str(task.get_name() if hasattr(task, "get_name") else task.name)


async def yield_turn() -> None:
    """Gives asyncio's loop one turn."""
    await asyncio.sleep(0)


async def checkpoint() -> None:
    """What trio asks of every await, when there is nothing to wait for; nothing on asyncio."""
    trio = sys.modules.get("trio")
    if trio is not None and _turns.in_trio(trio):
        await trio.lowlevel.checkpoint()


# ------------------------------------------------------------------------------------------------ asyncio


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
            loop.call_soon(function)

    def call_later(self, seconds: float, function: Callable[[], None]) -> bool:
        """`loop.call_later`."""
        loop = self.loop()
        if loop is None or loop.is_closed():
            return False
        loop.call_later(seconds, function)
        return True

    def schedule_drain(self) -> None:
        """By `call_soon_threadsafe`, for loops without `add_reader`."""
        loop = self.loop()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        loop.call_soon_threadsafe(self.drain)


def _end_polled(future: PolledFuture, point: EventCompletion, refusal: int | None) -> None:
    """The task that polled has seen the end, and its ticket has arrived in the queue.

    A success is told at once, and the rest is done in the next turn, because the code that it takes lies cold after a sleep.
    """
    if not refusal and point.is_first() and not future.done():
        current_bridge().poll_soon()
        set_result(future, point.result)
    else:
        current_bridge().drain()


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
                        _end_polled(self, point, refusal)
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


def _new_asyncio_bridge(loop: asyncio.AbstractEventLoop) -> AsyncioBridge:
    _process.start()
    bridge = AsyncioBridge(loop)
    try:
        loop.add_reader(bridge.descriptor, bridge.drain)
    except NotImplementedError:
        with _lock:
            _dispatched_bridges[loop] = bridge
        _dispatcher().add(bridge)
    else:
        with _lock:
            _reader_bridges[loop] = weakref.ref(bridge)
    return bridge


# ------------------------------------------------------------------------------------------------ trio


def _current_trio_bridge(trio: ModuleType) -> TrioBridge:
    global _trio_bridge
    if _trio_bridge is None:
        with _lock:
            if _trio_bridge is None:
                _trio_bridge = trio.lowlevel.RunVar("aiostream_bridge")
    try:
        return cast("TrioBridge", _trio_bridge.get())
    except LookupError:
        _process.start()
        bridge = TrioBridge(trio)
        _trio_bridge.set(bridge)
        return bridge


class TrioBridge(Bridge):
    """One run of trio."""

    def __init__(self, trio: ModuleType) -> None:
        super().__init__()
        self.checkpoint = trio.lowlevel.checkpoint
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        try:
            trio.lowlevel.spawn_system_task(_serve_trio, trio, weakref.ref(self), name="aiostream")
        except RuntimeError:  # the run is ending: system tasks are no longer taken in
            _dispatcher().add(self)

    def current_task(self) -> Any:
        """The task that runs now."""
        try:
            return self._trio.lowlevel.current_task()
        except RuntimeError:  # in a callback
            return None

    def new_future(self) -> SettledFuture:
        """A `TrioFuture`."""
        return TrioFuture(self._trio, self._token)

    def new_polled_future(self) -> PolledFuture:
        """A `TrioFuture`."""
        return TrioFuture(self._trio, self._token)

    def _call_next_turn(self, function: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(function)
        except self._trio.RunFinishedError:
            pass  # the run ends: what is still polled goes to the watcher when the bridge closes its queue

    def call_later(self, seconds: float, function: Callable[[], None]) -> bool:
        """By a system task."""

        async def call() -> None:
            await self._trio.sleep(seconds)
            function()

        try:
            self._trio.lowlevel.spawn_system_task(call, name="aiostream, later")
        except RuntimeError:  # the run is ending, or this is not its thread
            return False
        return True

    def schedule_drain(self) -> None:
        """By `run_sync_soon`, which trio serves until its very end."""
        self._token.run_sync_soon(self.drain)


async def _serve_trio(trio: ModuleType, reference: weakref.ref[TrioBridge]) -> None:
    bridge = reference()
    if bridge is None:
        return
    try:
        while True:
            await trio.lowlevel.wait_readable(bridge.descriptor)
            bridge.drain()
    finally:
        # trio cancels system tasks before it runs the finalizers of asynchronous generators, which may still wait.
        _dispatcher().add(bridge)
        _native.queue_wake(bridge.queue)


class TrioFuture(OwnFuture):
    """asyncio's future for trio: settled once, awaited any number of times, in one run of trio.

    Cancellation: a cancelled `await` ends that wait; the future goes on for the others. `cancel()` ends the future, and every
    `await` of it raises `concurrent.futures.CancelledError` (trio's own `Cancelled` belongs to its cancel scopes).

    Threads: only in the run's thread.
    """

    point: EventCompletion | None = None  # see `PolledFuture`
    _retrieved = True  # False while an exception has been seen by nobody; here, because an interrupt may cut `__init__` short

    def __init__(self, trio: ModuleType, token: Any) -> None:
        self._trio = trio
        self._token = token
        self._state = "pending"  # "pending" -> "finished" or "cancelled", once
        self._result: Any = None
        self._exception: BaseException | None = None
        self._waiting: dict[Any, None] = {}  # trio tasks, in the order in which they came
        self.polled: _native.Wait | None = None  # while one of them polls it
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        """Whether it has a result, an exception, or was cancelled."""
        return self._state != "pending"

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state == "cancelled"

    def cancel(self) -> bool:
        """Ends the future; `False` if it was done already."""
        if self.polled is not None:
            self.polled.drop()
        return self._settle("cancelled")

    def _set_result(self, result: Any) -> None:
        self._result = result
        self._settle("finished")

    def _set_exception(self, exception: BaseException) -> None:
        self._exception = exception
        self._retrieved = False
        self._settle("finished")

    def result(self) -> Any:
        """The result; raises what went wrong.

        Raises:
            concurrent.futures.InvalidStateError: It is still pending.
            concurrent.futures.CancelledError: It was cancelled.
        """
        exception = self.exception()
        if exception is not None:
            try:
                raise exception
            finally:
                del exception  # or the traceback's frame and the exception hold each other
        return self._result

    def exception(self) -> BaseException | None:
        """What went wrong, or `None`; raises as `result()` does while pending or cancelled."""
        if self._state == "pending":
            raise concurrent.futures.InvalidStateError("the future is still pending")
        if self._state == "cancelled":
            raise concurrent.futures.CancelledError
        self._retrieved = True
        return self._exception

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Has trio call `callback(future)` soon after the future is done, also if it is done already."""
        if self.done():
            self._token.run_sync_soon(_run_callback, callback, self)
        else:
            self._callbacks.append(callback)

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> int:
        """Forgets a callback; how often it was there. One that is already on its way is called all the same."""
        before = len(self._callbacks)
        self._callbacks = [each for each in self._callbacks if each != callback]
        return before - len(self._callbacks)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        lowlevel = self._trio.lowlevel
        if self.done():
            await lowlevel.checkpoint()  # every await is one, also when there is nothing to wait for
            return self.result()
        point = self.point
        if point is not None and lowlevel.current_trio_token() is not self._token:
            point = None
        while not self.done():
            polled = point.reserved.take(True) if point is not None else None
            if polled is not None:
                assert point is not None
                await self._poll(point, polled)
            else:
                await self._suspend()
        return self.result()

    async def _suspend(self) -> None:
        """Until `wake`."""
        lowlevel = self._trio.lowlevel
        task = lowlevel.current_task()

        def abort(_: Any) -> Any:
            self._waiting.pop(task, None)
            return lowlevel.Abort.SUCCEEDED

        try:
            self._waiting[task] = None
            await lowlevel.wait_task_rescheduled(abort)
        finally:  # an interrupt may come before trio has the task: to reschedule a task that is gone would end the run
            self._waiting.pop(task, None)

    async def _poll(self, point: EventCompletion, polled: _native.Wait) -> None:
        """Polls it in each turn of the run, until it is over, or left to a timer or the watcher, or the future is cancelled."""
        self.polled = polled
        try:
            while True:
                await self._trio.lowlevel.checkpoint()
                if self.done():
                    return
                answer = polled.poll()
                if isinstance(answer, int):
                    break
        finally:
            polled.drop()
            self.polled = None
        if answer < TICKETS:
            _end_polled(self, point, answer)

    def wake(self) -> None:
        """See `PolledFuture`. One task suffices to poll."""
        for task in self._waiting:
            del self._waiting[task]
            self._trio.lowlevel.reschedule(task)
            return

    def _settle(self, state: str) -> bool:
        if self._state != "pending":
            return False
        self._state = state
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            self._trio.lowlevel.reschedule(task)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._token.run_sync_soon(_run_callback, callback, self)
        return True

    def __del__(self) -> None:
        if not self._retrieved:
            logging.getLogger("aiostream").error("CompletionFuture exception was never retrieved", exc_info=self._exception)


def _run_callback(callback: Callable[[Any], object], future: TrioFuture) -> None:
    try:
        callback(future)
    except Exception as error:  # out of a callback it would end the whole trio run
        _process.report_unraisable(error, callback)


# ------------------------------------------------------------------------------------------------ the dispatcher


class _Dispatcher:
    """Watches the queues of the loops that cannot do so themselves."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # Descriptor -> bridge; written by add() in any thread, read and pruned by the dispatcher's. Single dict operations.
        self._bridges: dict[int, weakref.ref[Bridge]] = {}
        try:
            threading.Thread(target=self._run, name="aiostream-dispatcher", daemon=True).start()
        except RuntimeError:  # in an atexit handler, from Python 3.12 on
            _process.watch_in_janitor(self._epoll.fileno(), lambda: self._tell(self._epoll.poll(0)))

    def add(self, bridge: Bridge) -> None:
        """From now on, tells `bridge` whenever its queue was empty and something arrives."""
        self._bridges[bridge.descriptor] = weakref.ref(bridge)
        # Edge-triggered: native code writes to the descriptor once per batch, and only the loop reads it.
        try:
            self._epoll.register(bridge.descriptor, select.EPOLLIN | select.EPOLLET)
        except FileExistsError:  # a descriptor that is used again: queues are recycled, never closed
            self._epoll.modify(bridge.descriptor, select.EPOLLIN | select.EPOLLET)

    def _run(self) -> None:
        _process.block_signals()
        while True:
            self._tell(self._epoll.poll())

    def _tell(self, readable: list[tuple[int, int]]) -> None:
        for descriptor, _ in readable:
            reference = self._bridges.get(descriptor)
            bridge = reference() if reference is not None else None
            if bridge is None:
                continue  # the queue may be another bridge's by now, whose loop watches it itself
            try:
                bridge.schedule_drain()
            except RuntimeError:  # the loop is closed; trio's RunFinishedError is one too
                self._bridges.pop(descriptor, None)
                bridge.close()
            del bridge


_the_dispatcher: _Dispatcher | None = None  # made once under _lock


def _dispatcher() -> _Dispatcher:
    global _the_dispatcher
    with _lock:
        if _the_dispatcher is None:
            _the_dispatcher = _Dispatcher()
        return _the_dispatcher
