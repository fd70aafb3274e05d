"""trio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from types import ModuleType, TracebackType
from typing import Any, cast

from aiostream import _native, _process, _turns
from aiostream._loops.bridge import TICKETS, Bridge
from aiostream._loops.dispatcher import dispatcher
from aiostream.errors import CudaError, StreamClosedError
from aiostream.futures import EventCompletion, OwnFuture, PolledFuture, SettledFuture

_running_loop = asyncio._get_running_loop
_lock = (
    threading.RLock()
)  # guards the making of the run variable; a signal handler may interrupt its holder
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
        dispatcher()  # the run's end needs it, where a failure to make it could be raised to nobody
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
        except (
            self._trio.RunFinishedError,
            OSError,
        ):  # OSError: the run has crashed, and its own descriptor is closed
            return False
        return True


async def _serve_trio(trio: ModuleType, reference: weakref.ref[TrioBridge]) -> None:
    bridge = reference()
    if bridge is None:
        return
    try:
        while True:
            try:
                await trio.lowlevel.wait_readable(bridge.descriptor)
            except OSError:  # the system has no more of what trio's epoll needs; out of here it would end the whole run
                return
            bridge.drain()
    finally:
        # The dispatcher has it drained from now on. trio cancels system tasks before it runs the
        # finalizers of asynchronous generators, which may still wait.
        dispatcher().add(bridge)
        _native.queue_wake(bridge.queue)


class TrioFuture(OwnFuture):
    """asyncio's future for trio: settled once, awaited any number of times, in one run of trio.

    Cancellation: a cancelled `await` ends that wait; the future goes on for the others. `cancel()` ends the future, and every
    `await` of it raises `concurrent.futures.CancelledError` (trio's own `Cancelled` belongs to its cancel scopes). If the run
    ends first, the library cancels the future once the GPU has passed.

    Threads: only in the run's thread.
    """

    point: EventCompletion | None = None  # see `PolledFuture`
    _retrieved = True  # False while an exception has been seen by nobody

    def __init__(self, trio: ModuleType, token: Any) -> None:
        self._trio = trio
        self._token = token
        self._state = "pending"  # "pending" -> "finished" or "cancelled", once
        self._result: Any = None
        self._exception: BaseException | None = None
        self._traceback: TracebackType | None = None  # of the exception, when it was set
        self._raised = False  # whether the exception itself has been raised
        self._message: Any = None  # of the cancellation
        self._waiting: dict[Any, None] = {}  # trio tasks, in the order in which they came
        self.polled: _native.Wait | None = None  # while one of them polls it
        self._callbacks: list[tuple[Callable[[Any], object], contextvars.Context]] = []

    def __repr__(self) -> str:
        told = ""
        if self._state == "finished":
            told = (
                f" result={self._result!r}"
                if self._exception is None
                else f" exception={self._exception!r}"
            )
        return f"<{type(self).__name__} {self._state}{told}>"

    def done(self) -> bool:
        """Whether it has a result, an exception, or was cancelled."""
        return self._state != "pending"

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state == "cancelled"

    def cancel(self, msg: Any = None) -> bool:
        """Ends the future; `False` if it was done already. `msg` becomes the argument of the `CancelledError`."""
        if self.done():
            return False
        if self.polled is not None:
            self.polled.drop()
        self._message = msg
        self._settle("cancelled")
        return True

    def _set_result(self, result: Any) -> None:
        self._require_pending()
        self._result = result
        self._settle("finished")

    def _set_exception(self, exception: BaseException) -> None:
        self._require_pending()
        self._exception = exception
        self._traceback = exception.__traceback__
        self._retrieved = False
        self._settle("finished")

    def _require_pending(self) -> None:
        if self.done():
            raise concurrent.futures.InvalidStateError(f"the future is {self._state} already")

    def _drop(self) -> None:
        # The run has ended, and all its tasks with it: nobody waits, and there is nobody to call
        # the callbacks.
        if not self.done():
            self._message = "the run of trio to which the future belonged has ended"
            self._state = "cancelled"

    def result(self) -> Any:
        """The result; raises what went wrong, to each caller an exception of the library's as an object of its own.

        Raises:
            concurrent.futures.InvalidStateError: It is still pending.
            concurrent.futures.CancelledError: It was cancelled.
        """
        exception = self.exception()
        if exception is not None:
            try:
                raise self._own(exception)
            finally:
                del exception  # or the traceback's frame and the exception hold each other
        return self._result

    def _own(self, exception: BaseException) -> BaseException:
        """Two tasks that raise one object would add their frames to each other's traceback."""
        if self._raised and isinstance(exception, (CudaError, StreamClosedError)):
            return copy.copy(exception).with_traceback(self._traceback)
        self._raised = True
        return exception.with_traceback(
            self._traceback
        )  # of another kind, which may not be copied: at least it does not grow

    def exception(self) -> BaseException | None:
        """What went wrong, or `None`; raises as `result()` does while pending or cancelled."""
        if self._state == "pending":
            raise concurrent.futures.InvalidStateError("the future is still pending")
        if self._state == "cancelled":
            raise concurrent.futures.CancelledError(
                *([] if self._message is None else [self._message])
            )
        self._retrieved = True
        return self._exception

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Has trio call `callback(future)` soon after the future is done, also if it is done already.

        The callback sees the context variables as they are now, or those of `context`, as on asyncio.

        Raises:
            trio.RunFinishedError: The future is done, and the run has ended.
        """
        if context is None:
            context = contextvars.copy_context()
        if self.done():
            self._token.run_sync_soon(_run_callback, callback, self, context)
        else:
            self._callbacks.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> int:
        """Forgets a callback; how often it was there. One that is already on its way is called all the same."""
        before = len(self._callbacks)
        self._callbacks = [each for each in self._callbacks if each[0] != callback]
        return before - len(self._callbacks)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        lowlevel = self._trio.lowlevel
        here = lowlevel.current_trio_token() if _turns.in_trio(_running_loop()) else None
        if self.done():
            if here is not None:
                await (
                    lowlevel.checkpoint()
                )  # every await is one, also when there is nothing to wait for
            return self.result()
        if here is not self._token:
            # trio would wake this task in the other run, which fails; and a run that has ended
            # wakes nobody.
            raise RuntimeError(
                "the future belongs to another run of trio: await it in the run in which it was made"
            )
        point = self.point
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
            self.polled = None
            if answer < TICKETS:
                current_bridge(self._trio).settle_polled(self, point, answer)
        except (self._trio.Cancelled, GeneratorExit):
            raise
        except BaseException:  # an interrupt, perhaps after the last poll, whose ticket arrives without waking the loop
            _native.queue_wake(current_bridge(self._trio).queue)
            raise
        finally:
            polled.drop()
            self.polled = None

    def wake(self) -> None:
        """See `PolledFuture`. One task suffices to poll."""
        for task in self._waiting:
            del self._waiting[task]
            self._trio.lowlevel.reschedule(task)
            return

    def _settle(self, state: str) -> None:
        self._state = state
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            self._trio.lowlevel.reschedule(task)
        callbacks, self._callbacks = self._callbacks, []
        with contextlib.suppress(
            self._trio.RunFinishedError
        ):  # it was cancelled later than its run: nobody calls them
            for callback, context in callbacks:
                self._token.run_sync_soon(_run_callback, callback, self, context)

    # Bound here, because at the interpreter's end the module's names may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._retrieved and not is_finalizing():
            logging.getLogger("aiostream").error(
                "CompletionFuture exception was never retrieved", exc_info=self._exception
            )


def _run_callback(
    callback: Callable[[Any], object], future: TrioFuture, context: contextvars.Context
) -> None:
    try:
        context.run(callback, future)
    except BaseException as error:  # SystemExit too: out of a callback it would end the whole run with an internal error
        _process.report_unraisable(error, callback)
