"""How a wait is carried out: over at once, polled by the task, or left to a timer or the watcher.

`_native.WaitList.begin`, `_native.Wait.poll` and `await` of a `Wait` all answer in one form:

- `None`: the wait is over, and the work has succeeded.
- The `Wait`: it is not over. If it has a ticket, a timer or the watcher has it now, and the future
  that was given to `Wait.leave_to` gets its answer. If not, this task polls it.
- A number: an error or a refusal, for `driver.raise_for`.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aiostream import _native
from aiostream._base import driver, hints
from aiostream._handles.operand import Operand, wait_list_of
from aiostream._runtime import loops
from aiostream._runtime.launches import Launches
from aiostream._runtime.observing import hook
from aiostream._waits import enqueuing
from aiostream._waits.strategies import BY_HOST_FUNCTION
from aiostream.errors import CudaError, StreamClosedError

_Wait = _native.Wait
now = time.perf_counter_ns
checkpoint: Callable[[], Coroutine[Any, Any, None]] = loops.checkpoint
_current_bridge = loops.current_bridge
_yield_turn = loops.yield_turn


class Unobserved:
    """What a wait needs of a stream. No observer sees a wait for it."""

    __slots__ = ("_mode", "_operand")

    def __init__(self, operand: Operand, mode: int) -> None:
        self._operand = operand
        self._mode = mode


async def synchronize_async(self: Any) -> None:
    """Waits, without blocking the loop, until all work that is on the stream now is done.

    For the task that calls it, this equals `synchronize()`: when it returns, the work has
    succeeded. The stream's `wait_strategy` says how it waits. All strategies but `HOSTFUNC` record
    an event. That costs the GPU nothing and never blocks, also on a full stream. With `HOSTFUNC`,
    the call may block while the stream is full, and `query()` may return `False` for some
    microseconds after the wait, until the driver's thread has returned.

    The futures of earlier work may settle a little later than this returns. Await them too before
    you ask for their results.

    Cancellation: raises at once. The GPU continues with the work. On asyncio, a wait that is over
    at once may return without a turn of the loop, so a timeout of 0 need not end it.

    Threads: call it in a task of a running asyncio or trio loop. On trio it is always a checkpoint.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: You have closed the stream.
        StreamCaptureError: The stream is capturing. The capture goes on.
        CudaError: The work or the context has failed.

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     # enqueue work here, with any library
        ...     await stream.synchronize_async()
        ...     stream.query()
        True
    """
    # What can be waited for has an `_operand` and a `_mode`: a `Stream`, an `Event`, a `Work`, an
    # `Unobserved`. `Stream` has this function as its method, because each coroutine in between
    # would cost time and memory. The argument keeps the stream alive, because a stream that only
    # this coroutine refers to must not be closed by its finalizer.
    operand, mode = self._operand, self._mode
    if hook and not isinstance(self, Unobserved | _native.Work) and not hook.is_observed():
        kind = "Event" if operand.is_event else "Stream"
        await hook.observed(f"{kind}.synchronize_async", synchronize_async, self)
        return
    if mode == BY_HOST_FUNCTION and not operand.is_event:
        point = enqueuing.complete(operand)
        try:
            await point.future
        except BaseException:
            point.cancel()
            raise
        return
    bridge = _current_bridge()
    wait_list = operand.wait_list or wait_list_of(operand)
    answer: Any = wait_list.begin(operand.handle, bridge.queue, mode)
    checkpoint, until_over = bridge.checkpoint, bridge.until_over
    yields = answer is None and checkpoint is None and bridge.must_yield()
    # An exception or a suspended task keeps this frame. If the frame kept the bridge, the bridge
    # would outlive its loop, and its queue would stay open.
    del bridge
    if answer is None:
        if checkpoint is not None:
            await checkpoint()
        elif yields:
            await _yield_turn()
        return
    if not isinstance(answer, _Wait):
        asked = "cuEventQuery" if operand.is_event else "cuStreamQuery"
        driver.raise_for(answer, asked, operand.name)
    # Exactly one of task, timer and watcher holds the wait (`wait_inside.h`). It is not this task
    # while `wait` has a ticket.
    wait, future = answer, None
    try:
        while answer is wait:
            if not wait.ticket:
                answer = await until_over(wait)
                continue
            # The ticket may have fired already. It is not lost, because this thread delivers it
            # and does so in the next await at the earliest.
            future = _current_bridge().new_future()
            answer = await wait.leave_to(future)
            # Handed back. The task polls before the next turn, because the end may have come.
            if answer is wait:
                answer = wait.poll()
    except BaseException as problem:
        # A cancellation or an interrupt. A stream's wait goes to the watcher, which recycles it
        # when its event is complete. Until then the GPU has not passed the event, and no other wait
        # may record it. The event may own a `Work`. A coroutine may be closed in any thread.
        wait.drop(self, not isinstance(problem, GeneratorExit))
        wait = answer = future = None  # they refer to the loop, and the exception to this frame
        raise
    if answer is not None:
        driver.raise_for(answer, "cuEventQuery", operand.name)


def synchronize(awaited: Any, limit: float | None) -> None:
    """Blocks the thread, for some seconds at most, as `synchronize_async` waits.

    Raises:
        TimeoutError: It is not over by then.
        StreamClosedError: It is closed.
        StreamCaptureError: The stream is capturing.
        CudaError: The work or the context has failed.
    """
    operand, mode = awaited._operand, awaited._mode
    seconds = math.inf if limit is None else limit
    is_main = threading.get_ident() == threading.main_thread().ident
    answer = wait_list_of(operand).block(operand.handle, mode, seconds, is_main)
    if answer is None:
        raise TimeoutError(f"{operand.name} was not done after {limit:g} s, and goes on")
    driver.raise_for(answer, "cuEventQuery", operand.name)


async def launch_turn(launches: Launches, waits_for: Callable[[Any], object] | None = None) -> None:
    """Waits until this loop has time for another launch: see `_runtime/launches.py`.

    Call it if `launches.wait` is not 0, and ask afterwards what may have changed meanwhile.

    Cancellation: raises at once.

    Args:
        launches: Those of the loop.
        waits_for: It is called with each future that the task awaits. If that gets an error for a
            result, the error is raised.
    """
    ticket, woken = launches.next_ticket(), False
    try:
        # Others may have used up the turn in which a task was woken. Then it waits for the next.
        while launches.is_over if woken else launches.wait:
            launches.waiting[ticket] = future = _current_bridge().new_future()
            if waits_for is not None:
                waits_for(future)
            if error := await future:
                raise error
            woken = True
            if launches.owes_one:
                launches.owes_one = False
                break
    finally:
        launches.waiting.pop(ticket, None)
        future = error = None  # an error that refers to this frame would keep itself alive


@types.coroutine
def within(context: contextvars.Context, awaited: Any) -> Generator[Any, Any, Any]:
    """Awaits a coroutine, and runs each of its steps in a context of variables."""
    step, value = awaited.send, None
    while True:
        try:
            yielded = context.run(step, value)
        except StopIteration as stop:
            return stop.value
        finally:
            value = None  # an error that refers to this frame would keep itself alive
        try:
            step, value = awaited.send, (yield yielded)
        except BaseException as error:
            step, value = awaited.throw, error


class AwaitedBlock(hints.Hinted):
    """An object whose `async with` block ends with its `aclose`."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _require_open(self) -> None: ...

        def close(self) -> None: ...

        async def aclose(self) -> None: ...

    # Of a stream or an event. A pool has no `synchronize_async`, so it is not declared above.
    async def _close_when_done(self: Any) -> None:
        """Waits for its work, and closes. It is closed also if the wait raises."""
        if self.closed:
            await checkpoint()
            return
        try:
            await self.synchronize_async()
        except StreamClosedError:  # another thread has closed it just now
            return
        except BaseException as error:
            self._close_after(error)
            raise
        self.close()

    def _close_after(self, error: BaseException) -> None:
        """Closes because a wait has raised."""
        self._close_quietly()

    def _close_quietly(self) -> None:
        """Closes when another error is on its way already."""
        with contextlib.suppress(CudaError):
            self.close()

    async def __aenter__(self) -> Self:
        self._require_open()
        try:
            await checkpoint()
        except BaseException:
            # Python does not call `__aexit__` then, and the object would stay open.
            self._close_quietly()
            raise
        self._require_open()  # again, because another task may have closed it meanwhile
        return self

    # The types are those that a user's override has. It may not take less than this.
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except (CudaError, StreamClosedError):
            if error is None:
                raise
            # The body's own error says what went wrong first.
