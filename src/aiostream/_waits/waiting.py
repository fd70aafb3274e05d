"""How a wait is carried out: over at once, polled by the task, or left to a timer or the watcher.

`_native.WaitList.begin`, `_native.begin_event_wait`, `_native.Wait.poll` and `await` of a `Wait`
all answer in one form:

- `None`: the wait is over, and the work has succeeded.
- A `Wait`: it is not over, and this task polls it (not an answer of `await`).
- A number from `_native.FIRST_TICKET` on: the ticket of a wait that a timer or the watcher has now.
- Any other number: an error or a refusal, for `driver.raise_for`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from aiostream import _native
from aiostream._base import checks, driver, hints
from aiostream._handles.reference import Reference, call_with, order_key, wait_list_of
from aiostream._runtime import loops, points
from aiostream._runtime.completion import Completion, EventCompletion, SettledFuture, State, leak
from aiostream._runtime.observing import future_handed_back, is_observed, observed, observers
from aiostream._waits import arming
from aiostream.enums import WaitLike, WaitStrategy
from aiostream.errors import CudaError, StreamClosedError

__all__ = ["default_wait", "set_default_wait"]

_FIRST_TICKET = _native.FIRST_TICKET
_Wait = _native.Wait
_STAGE_TASK = _native.STAGE_TASK
# The number of each strategy in native code. In a wait, numbers are compared faster than members.
_MODES = {WaitStrategy(name): number for number, name in enumerate(_native.WAIT_STRATEGIES)}
BY_HOST_FUNCTION = _MODES[WaitStrategy.HOSTFUNC]
# For what no loop's thread may poll.
BY_WATCHER = _MODES[WaitStrategy.EVENT]
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


class _Watched(Completion):
    """A wait that a timer or the watcher has. It ends, or its task gets it back shortly before.

    Threads: the loop's thread, in the task and in the drain.
    """

    __slots__ = ("spinning",)

    def __init__(self, future: SettledFuture, reference: Reference) -> None:
        super().__init__(
            future, reference.name, "cuEventQuery", reference.context._ensure_monitored()
        )
        self.spinning: _native.Wait | None = None  # once it was handed back

    def handed_back(self, wait: _native.Wait, orphaned: bool) -> None:
        """Gives the wait to its task, which polls it from now on, if it still waits.

        If it does not, `wait` dies here, and its record is dropped.
        """
        # In the drain of the loop's thread, or in the janitor's (`orphaned`) once the loop is gone.
        # There no task can take the wait.
        future = self.future
        if (
            self.state is State.PENDING
            and not orphaned
            and future is not None
            and not future.cancelled()
        ):
            self.spinning = wait
            if observers:
                future_handed_back(future)
        self._settle(0, orphaned)

    def cancel(self) -> None:
        """Ends the wait, because its task has gone."""
        super().cancel()
        if self.spinning is not None:
            self.spinning.drop()


def mode_of(wait: WaitStrategy) -> int:
    """Returns native code's number of a strategy.

    Streams look it up once, because a lookup in each wait would take longer than all else.
    """
    return _MODES[wait]


def mode_for(stream: Any) -> int:
    """Returns the mode of any stream. Another library's stream has the default one."""
    # cuda.core's streams may have an attribute of that name one day, hence the check of its type.
    chosen = getattr(stream, "wait_strategy", None)
    return mode_of(chosen if isinstance(chosen, WaitStrategy) else default_wait())


class Awaitable(Protocol):
    """What can be waited for: a `Stream`, an `Event`, or a `Target`."""

    @property
    def _reference(self) -> Reference: ...

    @property
    def _mode(self) -> int: ...


class Target:
    """What a wait needs of a stream. No observer sees a wait for it."""

    __slots__ = ("_mode", "_reference")

    def __init__(self, reference: Reference, mode: int) -> None:
        self._reference = reference
        self._mode = mode


async def synchronize_async(self: Awaitable) -> None:
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
    # `Stream` has this function as its method, because each coroutine in between would cost time
    # and memory. The argument keeps the stream alive, because a stream that only this coroutine
    # refers to must not be closed by its finalizer.
    reference, mode = self._reference, self._mode
    if observers and not isinstance(self, Target) and not is_observed():
        kind = "Event" if reference.is_event else "Stream"
        await observed(f"{kind}.synchronize_async", synchronize_async, self)
        return
    if mode == BY_HOST_FUNCTION and not reference.is_event:
        await wait_for(arming.arm_completion(reference))
        return
    bridge = _current_bridge()
    answer: int | _native.Wait | None
    if reference.is_event:
        answer = _begin_event(reference, bridge, mode)
    else:
        wait_list = reference.wait_list or wait_list_of(reference)
        answer = wait_list.begin(reference.handle, bridge.queue, mode)
    if answer is None:
        if bridge.checkpoint is not None:
            await bridge.checkpoint()
        elif bridge.must_yield():
            await _yield_turn()
        return
    until_over = bridge.until_over
    # An exception keeps this frame. If the frame kept the bridge, the bridge would outlive its
    # loop, and its queue would stay open.
    del bridge
    # Exactly one of task, timer and watcher holds the wait (`wait_record.h`). Here it is the task
    # while `answer` is a Wait, and another one while it is a ticket.
    watched = None
    try:
        while True:
            if isinstance(answer, _Wait):
                answer = await until_over(answer)
                if answer is None:
                    return
            elif answer >= _FIRST_TICKET:
                # The ticket may have fired already. It is not lost, because this thread delivers it
                # and does so in the next await at the earliest.
                watched = points.registry[answer] = _Watched(
                    _current_bridge().new_future(), reference
                )
                _native.set_state(watched, State.NEW, State.PENDING, _native.FUTURES_CREATED)
                await watched.future  # type: ignore[misc]
                if watched.spinning is None:
                    return
                # Handed back. The task polls before the next turn, because the end may have come.
                answer = watched.spinning.poll()
                if answer is None:
                    return
            else:
                break
    except BaseException:
        # A cancellation or an interrupt. A stream's record goes to the watcher, which recycles it
        # when its event is complete. Until then the GPU has not passed it, and no other wait may
        # record it.
        if watched is not None:
            watched.cancel()
        if isinstance(answer, _Wait):
            answer.drop()
        elif answer is not None:
            _native.orphan(answer)
        raise
    driver.raise_for(
        answer, "cuEventQuery" if reference.is_event else "cuStreamQuery", reference.name
    )


def _begin_event(event: Reference, bridge: loops.Bridge, mode: int) -> int | _native.Wait | None:
    assert event.history is not None
    return _native.begin_event_wait(
        event.handle, bridge.queue, mode, event.context._ensure_monitored(), event.history
    )


def enqueue(
    reference: Reference, mode: int, call: Callable[[], Any], keepalive: Any = None
) -> Completion:
    """Calls `call`, which enqueues work on a pinned stream, and returns the work's completion.

    Everything that can be refused is reserved before `call` runs. `keepalive` lives until the GPU
    has passed the work, or is counted as leaked if that cannot be proved.

    Raises:
        RuntimeError: No loop runs here.
        StreamCaptureError: The stream is capturing, or `call` has left it capturing.
        CudaError: The driver refused, or the context has failed.
    """
    bridge = _current_bridge()
    context_id = reference.context._ensure_monitored()
    wait_list = reference.wait_list
    if wait_list is None:
        # First, because to find the list would ask a capturing stream for its id.
        arming.require_healthy(reference, recent=True)
        wait_list = wait_list_of(reference)
    reserved = wait_list.reserve(bridge.queue, mode, reference.handle)
    if isinstance(reserved, int):
        captures = reserved <= _native.RESULT_CAPTURING
        refused = "cuStreamIsCapturing" if captures else "cuEventCreate"
        driver.raise_for(reserved, refused, reference.name)
        raise AssertionError("a reservation is refused with an error")
    future = bridge.new_polled_future()
    future.point = completion = EventCompletion(
        future, reference.name, context_id, bridge.orders, reserved, keepalive
    )
    # Before `call`, because the ticket may fire as soon as the event is recorded, and a ticket that
    # is not registered then would be ignored.
    points.registry[reserved.ticket] = completion
    refusal = 0
    results: list[Any] = []
    try:
        refusal = call_with(reference, call, results)
        driver.raise_for(refusal, "cuCtxPushCurrent", reference.name)
        # Before the record, because the ticket may fire at once, and the drain gives the result.
        completion.result = results[0]
        _native.set_state(completion, State.NEW, State.PENDING, _native.FUTURES_CREATED)
        # From here on the watcher or the loop's timer may have the wait. They touch the record and
        # the ticket, and nothing of Python's.
        completion.begin_order()
        refusal, stage = reserved.record(reference.handle)
        if stage == _STAGE_TASK:
            bridge.poll_soon()
        driver.raise_for(refusal, "cuEventRecord", reference.name, arming.LEFT_CAPTURING)
        completion.enter_order(order_key(reference))
    except BaseException:
        # No caller gets the future, but what `call` has enqueued may be in flight. An interrupt may
        # cut each of these steps short. None of them may release what the GPU still uses.
        completion.result = results
        # No other call before the record, because an interrupt right after it would leave the work
        # without its event, and what it uses would count as leaked.
        if keepalive is not None and refusal == 0 and not reserved.is_recorded:
            reserved.record(reference.handle)
        # What was recorded may be the loop's to poll. Without this drain it would never end.
        bridge.poll_soon()
        completion.cancel()
        raise
    finally:
        if not reserved.is_recorded:
            if keepalive is not None and (refusal == 0 or results):  # `call` has run
                leak((keepalive, results))
            points.registry.pop(reserved.ticket, None)
            del completion.reserved
        # An exception keeps this frame. If the frame kept the bridge, the bridge would outlive its
        # loop. If it kept the reservation, that would count as a pending wait.
        del bridge, reserved
    return completion


async def wait_for(completion: Completion) -> None:
    """Waits until the GPU has passed a point for which only this task waits.

    Cancellation: raises at once. The point stays registered until the GPU has passed it.

    Raises:
        CudaError: The context has failed.
    """
    future = completion.future
    try:
        if future is not None:
            await future  # type: ignore[misc]
    except BaseException:
        completion.cancel()
        raise


class AwaitedBlock(hints.Hinted):
    """An object whose `async with` block ends with its `aclose`."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _require_open(self) -> None: ...

        def _close_quietly(self) -> None: ...

        async def aclose(self) -> None: ...

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
