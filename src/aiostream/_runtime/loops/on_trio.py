"""trio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, cast

from aiostream import _native
from aiostream._base import checks, turns
from aiostream._runtime import completion, process
from aiostream._runtime.completion import Completion
from aiostream._runtime.loops.bridge import Bridge, TaskFunction
from aiostream._runtime.loops.readerless import read_for
from aiostream._runtime.observing import hook

# Has one item, a `trio.lowlevel.RunVar` by its name. It is made at the first use, because importing
# aiostream must not import trio. Any thread, single dict operations.
_variables: dict[str, Any] = {}
_NAME = "aiostream_bridge"


async def checkpoint() -> None:
    """Lets trio run other tasks and deliver a cancellation, as each await on trio must."""
    await sys.modules["trio"].lowlevel.checkpoint()


@contextlib.asynccontextmanager
async def cancelled_by(function: TaskFunction) -> AsyncIterator[None]:
    """See `cancelled_by` in `__init__`. A nursery would put the block's error into a group."""
    trio = sys.modules["trio"]
    running, ended, is_over = trio.CancelScope(), trio.Event(), False

    async def run() -> None:
        with running:
            await function()
            if not is_over:
                block.cancel()
        ended.set()

    with trio.CancelScope() as block:
        trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
        try:
            yield
        finally:
            is_over = True
            running.cancel()
            with trio.CancelScope(shield=True):
                await ended.wait()


def tasks() -> list[Any]:
    """Returns the tasks of the run that is at work in this thread."""
    if not turns.in_trio(asyncio._get_running_loop()):
        return []
    found = [*filter(None, [sys.modules["trio"].lowlevel.current_root_task()])]
    for task in found:  # which grows meanwhile
        found += [child for each in task.child_nurseries for child in each.child_tasks]
    return found


def current_bridge() -> TrioBridge:
    """Returns the bridge of the run that is at work in this thread, and makes it if needed."""
    trio = sys.modules["trio"]
    variable = _variables.get(_NAME)
    if variable is None:  # of two threads that make one, both use the first
        variable = _variables.setdefault(_NAME, trio.lowlevel.RunVar(_NAME))
    try:
        return cast("TrioBridge", variable.get())
    except LookupError:
        process.start()
        bridge = TrioBridge(trio)
        variable.set(bridge)
        return bridge


async def _until_over(
    checkpoint: Callable[[], Awaitable[None]], wait: _native.Wait
) -> int | _native.Wait | None:
    answer: int | _native.Wait | None = wait
    while answer is wait and not wait.ticket:
        await checkpoint()
        answer = wait.poll()
    return answer


class TrioBridge(Bridge):
    """The bridge of one run of trio, which holds it in a run variable."""

    def __init__(self, trio: ModuleType) -> None:
        self._lock = threading.RLock()  # guards the next two; reentrant, for signal handlers
        self._drains = 0  # under way; written by the run's thread
        self._closes = False  # written once, by the janitor
        super().__init__()
        self.checkpoint = trio.lowlevel.checkpoint
        self.cancelled = trio.Cancelled
        self.until_over = partial(_until_over, trio.lowlevel.checkpoint)
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        # The system task refers to the bridge weakly until it runs, because the frame of a task
        # that never starts must not keep the bridge alive.
        try:
            trio.lowlevel.spawn_system_task(_serve_trio, trio, weakref.ref(self), name="aiostream")
        except RuntimeError:  # the run is ending and takes no more system tasks
            read_for(self)

    def current_task(self) -> Any:
        """Returns the task that runs now, or `None` in a callback."""
        try:
            task = self._trio.lowlevel.current_task()
        except RuntimeError:
            return None
        # trio calls callbacks in a task of its own.
        return None if task.name == "<TrioToken.run_sync_soon task>" else task

    def drain(self) -> None:
        """See `Bridge`. If the bridge was closed meanwhile, this closes its queue at the end."""
        with self._lock:
            self._drains += 1
        try:
            if not self._closes:
                super().drain()
        finally:
            with self._lock:
                self._drains -= 1
            if self._closes:
                super().close()

    def close(self) -> None:
        """See `Bridge`. A drain that is under way ends first.

        A run that is ending refuses new requests before it has done the last ones. The janitor
        takes the refusal for its end. If it closed the queue then, the last drain might read the
        queue's next owner's.
        """
        with self._lock:
            self._closes = True
            drains = self._drains
        if not drains:
            super().close()

    def new_future(self) -> TrioFuture:
        """Makes a `TrioFuture`."""
        return TrioFuture(self._trio, self._token)

    new_polled_future = new_future

    def spawn(self, function: TaskFunction, name: str, context: contextvars.Context) -> object:
        """Spawns a system task. It raises a `RuntimeError` if the run is ending."""
        return self._trio.lowlevel.spawn_system_task(function, name=name, context=context)

    def call_later(self, seconds: float, function: Callable[[], None]) -> bool:
        """Calls a function later from a system task. Returns `False` if the run is ending."""

        async def call() -> None:
            await self._trio.sleep(seconds)
            function()

        try:
            self._trio.lowlevel.spawn_system_task(call, name="aiostream, later")
        except RuntimeError:  # the run is ending, or this is another thread
            return False
        return True

    def is_gone(self) -> bool:
        """Asks for something else. A run does all that it has accepted, unless it crashes."""
        return not self.call_soon(_nothing)

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Calls `run_sync_soon`, which trio serves until its very end."""
        try:
            self._token.run_sync_soon(function, idempotent=True)  # at most once at a time
        except (self._trio.RunFinishedError, OSError):
            # OSError: the run has crashed, and its own descriptor is closed.
            return False
        return True


def _nothing() -> None:
    """What a run is asked for, to learn whether it still takes requests."""


async def _serve_trio(trio: ModuleType, reference: weakref.ref[TrioBridge]) -> None:
    bridge = reference()
    if bridge is None:
        return
    try:
        while True:
            try:
                await trio.lowlevel.wait_readable(bridge.descriptor)
            except OSError:
                # The system has no memory or descriptors left for trio's epoll. The janitor
                # takes over. If the error left a system task, it would end the whole run.
                return
            bridge.drain()
    finally:
        # The janitor serves the bridge from now on, because trio cancels system tasks before it
        # runs the finalizers of asynchronous generators, and those may still wait.
        read_for(bridge)
        # What arrived between the last drain and `read_for` has written the descriptor already. The
        # janitor's epoll is edge-triggered and would not see it without this.
        _native.queue_wake(bridge.queue)


class TrioFuture(_native.OwnFuture, checks.NotCopied):
    """asyncio's future for trio. It settles once, and any task of its run can await it.

    Cancellation: if an `await` is cancelled, only that await ends. The future goes on for the other
    tasks. `cancel()` ends the future, and every `await` of it raises
    `concurrent.futures.CancelledError`, because trio's own `Cancelled` belongs to cancel scopes. If
    the run ends first, the library cancels the future once the GPU has passed the point.

    Threads: the run's thread only.
    """

    point: Completion | None = None  # native code sets it; it is cancelled with the future
    _retrieved = True  # False: it has an exception that no code has asked for

    def __init__(self, trio: ModuleType, token: Any) -> None:
        self._trio = trio
        self._token = token
        self._state = "pending"  # "pending" -> "finished" or "cancelled", once
        self._result: Any = None
        self._exception: BaseException | None = None
        self._traceback: TracebackType | None = None  # the exception's, when it was set
        self._message: tuple[Any, ...] = ()  # of the cancellation; none or one
        self._waiting: dict[Any, None] = {}  # trio's tasks, in the order in which they came
        self._callbacks: list[tuple[Callable[[Any], object], contextvars.Context]] = []
        if hook:
            hook.made(self)

    def __repr__(self) -> str:
        more = "" if self.done() else completion.described(self.point)
        if self._state == "finished":
            more = (
                f" result={self._result!r}"
                if self._exception is None
                else f" exception={self._exception!r}"
            )
        return f"<{type(self).__name__} {self._state}{more}>"

    def done(self) -> bool:
        """Whether it has a result, has an exception, or was cancelled."""
        return self._state != "pending"

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state == "cancelled"

    def cancel(self, msg: Any = None) -> bool:
        """Cancels the future. Returns `False` if it was done already.

        `msg` becomes the argument of the `CancelledError`.
        """
        if self.done():
            return False
        self._message = () if msg is None else (msg,)
        self._settle("cancelled")
        if self.point is not None:
            self.point.cancel()
        return True

    def _set_result(self, result: Any) -> None:
        self._result = result
        self._settle("finished")

    def _set_exception(self, exception: BaseException) -> None:
        self._exception = exception
        self._traceback = exception.__traceback__
        self._retrieved = False
        self._settle("finished")

    def _drop(self) -> None:
        # The janitor calls this. The run has ended, and its tasks with it. So no task waits, and
        # callbacks are not called, because only the run's thread may call them.
        if not self.done():
            self._message = ("the run of trio to which the future belonged has ended",)
            self._state = "cancelled"

    def result(self) -> Any:
        """Returns the result, or raises the exception.

        Each caller gets a copy of the exception, if it can be copied.

        Raises:
            concurrent.futures.InvalidStateError: The future is pending.
            concurrent.futures.CancelledError: The future was cancelled.
        """
        exception = self.exception()
        if exception is not None:
            try:
                # An exception that cannot be copied does not grow, at least.
                raise completion.copy_of(exception).with_traceback(self._traceback)
            finally:
                # The traceback refers to this frame. If the frame referred to the exception or the
                # future too, they would keep each other alive.
                del exception, self
        return self._result

    def exception(self) -> BaseException | None:
        """Returns the exception, or `None` if the future has a result.

        Raises:
            concurrent.futures.InvalidStateError: The future is pending.
            concurrent.futures.CancelledError: The future was cancelled.
        """
        if self._state == "pending":
            raise concurrent.futures.InvalidStateError("the future is still pending")
        if self._state == "cancelled":
            raise concurrent.futures.CancelledError(*self._message)
        self._retrieved = True
        return self._exception

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Has trio call `callback(future)` soon after the future is done, also if it is done now.

        The callback sees the context variables as they are now, or those of `context`.

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
        """Removes a callback, and returns how often it was there.

        If trio was already asked to call it, trio calls it.
        """
        before = len(self._callbacks)
        self._callbacks = [each for each in self._callbacks if each[0] != callback]
        return before - len(self._callbacks)

    def __await__(self) -> Generator[Any, Any, Any]:
        waits = self._wait().__await__()
        return hook.awaited(self, waits) if hook and not self.done() else waits

    def belongs_here(self) -> bool:
        """Whether the run that made it is the one that is at work in this thread."""
        return self._here() is self._token

    def _here(self) -> Any:
        at_work = turns.in_trio(asyncio._get_running_loop())
        return self._trio.lowlevel.current_trio_token() if at_work else None

    async def _wait(self) -> Any:
        try:
            lowlevel = self._trio.lowlevel
            here = self._here()
            if self.done():
                if here is not None:
                    # trio asks each await to be a checkpoint, also one that has nothing to wait
                    # for.
                    await lowlevel.checkpoint()
                return self.result()
            if here is not self._token:
                # trio would wake this task in the other run, which fails. And if that run has
                # ended, it wakes no task, and this one would hang.
                raise RuntimeError(
                    "the future belongs to another run of trio: await it in the run that made it"
                )
            while not self.done():
                await self._suspend()
            return self.result()
        finally:
            del self  # see `result`

    async def _suspend(self) -> None:
        lowlevel = self._trio.lowlevel
        task = lowlevel.current_task()

        def abort(_: Any) -> Any:
            self._waiting.pop(task, None)
            return lowlevel.Abort.SUCCEEDED

        try:
            self._waiting[task] = None
            await lowlevel.wait_task_rescheduled(abort)
        finally:
            # A KeyboardInterrupt may come before trio has suspended the task. To reschedule a task
            # that is not suspended would end the whole run.
            self._waiting.pop(task, None)

    def _settle(self, state: str) -> None:
        self._state = state
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            self._trio.lowlevel.reschedule(task)
        callbacks, self._callbacks = self._callbacks, []
        # If it is cancelled after its run has ended, the callbacks are not called.
        with contextlib.suppress(self._trio.RunFinishedError):
            for callback, context in callbacks:
                self._token.run_sync_soon(_run_callback, callback, self, context)
        if hook:
            hook.settled(self, self._result)

    # The default argument binds the name here, because at the interpreter's end the names of the
    # module may be gone, and the finalizer would raise a NameError.
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
    except BaseException as error:
        # SystemExit too. If it left a callback, trio would end the run with an internal error.
        _native.write_unraisable(error, callback)
