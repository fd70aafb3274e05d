"""trio."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import weakref
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, cast

from aiostream import _native, _process
from aiostream._loops.bridge import TICKETS, Bridge
from aiostream._loops.dispatcher import dispatcher
from aiostream.futures import EventCompletion, OwnFuture, PolledFuture, SettledFuture

_lock = threading.Lock()  # guards the making of the run variable
_trio_bridge: Any = None  # a trio.lowlevel.RunVar, made once trio is known to run


def current_bridge(trio: ModuleType) -> TrioBridge:
    """The bridge of the run that is at work in this thread."""
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
            dispatcher().add(self)

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

    def schedule_drain(self) -> bool:
        """By `run_sync_soon`, which trio serves until its very end."""
        try:
            self._token.run_sync_soon(self.drain)
        except self._trio.RunFinishedError:
            return False
        return True


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
        dispatcher().add(bridge)
        _native.queue_wake(bridge.queue)


class TrioFuture(OwnFuture):
    """asyncio's future for trio: settled once, awaited any number of times, in one run of trio.

    Cancellation: a cancelled `await` ends that wait; the future goes on for the others. `cancel()` ends the future, and every
    `await` of it raises `concurrent.futures.CancelledError` (trio's own `Cancelled` belongs to its cancel scopes).

    Threads: only in the run's thread.
    """

    point: EventCompletion | None = None  # see `PolledFuture`

    def __init__(self, trio: ModuleType, token: Any) -> None:
        self._trio = trio
        self._token = token
        self._state = "pending"  # "pending" -> "finished" or "cancelled", once
        self._result: Any = None
        self._exception: BaseException | None = None
        self._retrieved = True  # False while an exception has been seen by nobody
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
        self._waiting[task] = None

        def abort(_: Any) -> Any:
            self._waiting.pop(task, None)
            return lowlevel.Abort.SUCCEEDED

        await lowlevel.wait_task_rescheduled(abort)

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
            current_bridge(self._trio).settle_polled(self, point, answer)

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
