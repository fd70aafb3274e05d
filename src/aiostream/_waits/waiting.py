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
import os
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from aiostream import _native
from aiostream._base import checks, driver, hints
from aiostream._handles.operand import Operand, in_libraries, order_of, wait_list_of
from aiostream._runtime import loops, process
from aiostream._runtime.completion import Completion
from aiostream._runtime.launches import Launches
from aiostream._runtime.observing import hook
from aiostream.enums import WaitLike, WaitStrategy
from aiostream.errors import CudaError, StreamClosedError

__all__ = ["default_wait", "set_default_wait"]

_Wait = _native.Wait
_AT_ONCE, _AFTERWARDS = _native.RESULT_AT_ONCE, _native.RESULT_AFTERWARDS
now = time.perf_counter_ns
# The number of each strategy in native code. Streams look it up once, because a lookup in each wait
# would take longer than all else.
MODES = {WaitStrategy(name): number for number, name in enumerate(_native.WAIT_STRATEGIES)}
BY_HOST_FUNCTION = MODES[WaitStrategy.HOSTFUNC]
_HOST_FUNCTION = _native.KIND_HOST_FUNCTION
# For what no loop's thread may poll.
BY_WATCHER = MODES[WaitStrategy.EVENT]
_VARIABLE = "AIOSTREAM_WAIT"
_default: WaitStrategy | None = None  # any thread; one assignment


def default_wait() -> WaitStrategy:
    """Returns the strategy of streams and events that you make without one.

    It is the strategy that you gave to `set_default_wait`. If you gave none, it is the one in the
    environment variable `AIOSTREAM_WAIT`, and otherwise `AUTO`.

    Raises:
        ValueError: The environment variable names no strategy.

    Example:
        >>> aiostream.set_default_wait("event")
        >>> aiostream.default_wait()
        <WaitStrategy.EVENT: 'event'>
        >>> aiostream.set_default_wait(None)
    """
    if _default is not None:
        return _default
    named = os.environ.get(_VARIABLE, "")
    return strategy(named, f"the environment variable {_VARIABLE}") if named else WaitStrategy.AUTO


def set_default_wait(wait: WaitLike | None) -> None:
    """Sets this process's default strategy, for streams and events that you make later.

    Args:
        wait: A strategy or its name. `None` goes back to `AIOSTREAM_WAIT` and `AUTO`.

    Raises:
        ValueError: There is no such strategy.

    Example:
        >>> aiostream.set_default_wait("event")
        >>> async with aiostream.Stream() as stream:
        ...     stream.wait_strategy
        <WaitStrategy.EVENT: 'event'>
        >>> aiostream.set_default_wait(None)
    """
    global _default
    _default = None if wait is None else strategy(wait)


def strategy(wait: str | None, source: str = "wait") -> WaitStrategy:
    """Returns the strategy that the caller has named, or the default."""
    return default_wait() if wait is None else checks.member(WaitStrategy, wait, source)


checkpoint: Callable[[], Coroutine[Any, Any, None]] = loops.checkpoint
_current_bridge = loops.current_bridge
_yield_turn = loops.yield_turn


def mode_for(stream: Any) -> int:
    """Returns the mode of any stream. Another library's stream has the default one."""
    # cuda.core's streams may have an attribute of that name one day, hence the check of its type.
    chosen = getattr(stream, "wait_strategy", None)
    return MODES[chosen if isinstance(chosen, WaitStrategy) else default_wait()]


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
        point = complete(operand)
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

    Call it if `launches.wait` is true, and ask afterwards what may have changed meanwhile.

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


def require_ready(operand: Operand, recent: bool = False) -> None:
    """Raises, before work is enqueued, what would refuse a wait behind that work.

    Args:
        operand: The stream.
        recent: Use the health of the last millisecond, which costs no driver call.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream is capturing.
        ContextFailedError: The context has failed.
    """
    _current_bridge()
    health = _native.health(operand.context._ensure_monitored(), recent)
    driver.raise_for(health, "cuStreamQuery", operand.name)
    captured = _native.capture_refusal(operand.handle)
    driver.raise_for(captured, "cuStreamIsCapturing", operand.name)


def enqueue(
    operand: Operand,
    mode: int,
    call: Callable[[], Any],
    keepalive: Any = None,
    future: Any = None,
) -> Any:
    """Calls `call`, which enqueues work on a stream, and returns a future of its result.

    The future is the loop's, or the `_native.OwnFuture` that is given. Everything that can be
    refused is reserved before `call` runs. `keepalive` lives until the GPU has passed the work, or
    is counted as leaked if that cannot be proved. All of it is one native step, so that no
    KeyboardInterrupt comes between the work and the event behind it.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream is capturing, or `call` has left it capturing.
        CudaError: The driver refused, or the context has failed.
    """
    if mode == BY_HOST_FUNCTION:
        return complete(operand, _HOST_FUNCTION, call, keepalive, future).future
    bridge = _current_bridge()
    try:
        wait_list = operand.wait_list
        if wait_list is None:
            # A capturing stream is refused before it is asked for its id, which finds the list.
            require_ready(operand, recent=True)
            wait_list = wait_list_of(operand)
        if future is None:
            future = bridge.new_polled_future()
        began = now()
        try:
            answer = wait_list.enqueue(
                operand.handle,
                bridge.queue,
                mode,
                future,
                in_libraries(operand, call) if operand.shared.currents else call,
                keepalive,
                operand.name,
                bridge.at_once,
            )
        finally:
            bridge.launches.note(now() - began, keepalive and keepalive[0])
        if answer == _AT_ONCE:
            bridge.at_once = not bridge.must_yield()
        elif answer:
            refuse(answer, operand, "cuEventCreate", "cuEventRecord")
        return future
    finally:
        # An exception keeps this frame. If the frame kept the bridge, the bridge would outlive its
        # loop.
        del bridge


def complete(
    operand: Operand,
    kind: int = _HOST_FUNCTION,
    call: Callable[[], Any] | None = None,
    keepalive: Any = None,
    future: Any = None,
) -> Completion:
    """Enqueues a host function at the stream's end, or a callback, which brings a status.

    Args:
        operand: The stream.
        kind: The native number of one of the two.
        call: As for `enqueue`, if there is work to enqueue before.
        keepalive: As for `enqueue`.
        future: As for `enqueue`.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream is capturing, or `call` has left it capturing.
        CudaError: The driver refused.
    """
    bridge = _current_bridge()
    try:
        if future is None:
            future = bridge.new_future()
        point = Completion(future, operand.name, keepalive)
        answer = point.enqueue(
            operand.handle,
            operand.context._ensure_monitored(),
            bridge.queue,
            kind,
            in_libraries(operand, call) if call is not None else None,
            order_of(operand),
        )
    finally:
        del bridge  # as in `enqueue`
    if answer:
        name = "cuLaunchHostFunc" if kind == _HOST_FUNCTION else "cuStreamAddCallback"
        refuse(answer, operand, name, name, call is not None)
    return point


def refusal_afterwards(answer: int) -> int:
    """Returns why there is no completion behind the work, or 0 if the work was refused before."""
    return answer - _AFTERWARDS if answer > _AFTERWARDS // 2 else 0


def refuse(
    answer: int, operand: Operand, before: str, after: str = "", has_call: bool = True
) -> NoReturn:
    """Raises why work was not enqueued, or its completion."""
    if late := refusal_afterwards(answer):
        driver.raise_for(late, after, operand.name, "left-capturing" if has_call else "capturing")
    else:
        captures = answer <= _native.RESULT_CAPTURING
        driver.raise_for(answer, "cuStreamIsCapturing" if captures else before, operand.name)
    raise AssertionError("a completion is refused with an error")


UNKNOWN_ERROR = 999


def keep_until_passed(operand: Operand, keepalive: Any) -> None:
    """Keeps objects alive until the GPU has passed the current end of a stream.

    No task waits for that. If the driver refuses, the objects live as long as the process, and are
    counted as leaked.
    """
    # The event is on the janitor's queue, because this loop may end before the GPU has passed.
    kept = Completion(None, operand.name, keepalive)
    waits = wait_list_of(operand)
    if not _native.watch(operand.handle, waits, process.ORPHANS, BY_WATCHER, kept):
        _native.leak(keepalive)


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
