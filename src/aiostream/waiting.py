"""How a wait is carried out: ready at once, polled by the task, left to a timer or the watcher, or by a host function."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from aiostream import _arguments, _loops, _native, _points, hostfunc, interop
from aiostream.enums import WaitStrategy
from aiostream.futures import Completion, EventCompletion, SettledFuture, State, leak

__all__ = ["default_wait", "set_default_wait"]

# What `_native.WaitList.begin` and `Wait.poll` answer: 0, the wait is over; a small number, a
# refusal; one from here on, the ticket of a wait that was left to a timer or the watcher; a `Wait`,
# which this task polls. To await a `Wait` polls it in each turn of asyncio's loop, and says at last
# what `poll` would, or None for 0.
_TICKETS = _loops.TICKETS
_Wait = _native.Wait
_STAGE_TASK = _native.STAGE_TASK
_STAGE_WATCHER = _native.STAGE_WATCHER
BY_HOST_FUNCTION = -1
_MODES = {
    WaitStrategy.AUTO: _native.WAIT_AUTO,
    WaitStrategy.EVENT: _native.WAIT_EVENT,
    WaitStrategy.SPIN: _native.WAIT_SPIN,
    WaitStrategy.HOSTFUNC: BY_HOST_FUNCTION,
}
_VARIABLE = "AIOSTREAM_WAIT"
_default: WaitStrategy | None = None  # any thread; one assignment


def default_wait() -> WaitStrategy:
    """The strategy of streams and events that are made without one: `set_default_wait`'s, else `AIOSTREAM_WAIT`'s, else `AUTO`.

    Raises:
        ValueError: The environment variable names no strategy.
    """
    if _default is not None:
        return _default
    named = os.environ.get(_VARIABLE, "")
    return strategy(named, f"the environment variable {_VARIABLE}") if named else WaitStrategy.AUTO


def set_default_wait(wait: WaitStrategy | str | None) -> None:
    """Sets the process's default strategy, for streams and events that are made from now on.

    Args:
        wait: A strategy or its name; `None` goes back to `AIOSTREAM_WAIT` and `AUTO`.

    Raises:
        ValueError: There is no such strategy.
    """
    global _default
    _default = None if wait is None else strategy(wait)


def strategy(wait: WaitStrategy | str | None, source: str = "wait") -> WaitStrategy:
    """What was asked for, or the default."""
    return default_wait() if wait is None else _arguments.member(WaitStrategy, wait, source)


async def in_thread(blocking: Callable[[], None]) -> None:
    """Runs what may block in a worker thread of the loop's. Cancelled, it leaves the thread to finish by itself."""
    import anyio.to_thread  # on the rare path that needs it: importing aiostream does not import anyio

    await anyio.to_thread.run_sync(blocking, abandon_on_cancel=True)


checkpoint = _loops.checkpoint
_current_bridge = _loops.current_bridge
_yield_turn = _loops.yield_turn


class _Watched(Completion):
    """A wait that was left to a timer or the watcher. It ends, or it is handed back to its task shortly before its end."""

    __slots__ = ("spinning",)

    def __init__(self, future: SettledFuture, reference: interop.Reference) -> None:
        super().__init__(
            future, reference.name, "cuEventQuery", reference.context._ensure_monitored()
        )
        self.spinning: _native.Wait | None = None  # once it was handed back

    def handed_back(self, wait: _native.Wait, orphaned: bool) -> None:
        """From now on the task polls it, if it still waits."""
        if (
            self.state is State.PENDING
            and not orphaned
            and self.future is not None
            and not self.future.cancelled()
        ):
            self.spinning = wait
        self._settle(0, orphaned)

    def cancel(self) -> None:
        """The task has gone."""
        super().cancel()
        if self.spinning is not None:
            self.spinning.drop()


def mode_of(wait: WaitStrategy) -> int:
    """The number of a strategy: looking a strategy up in each wait would take longer than all else."""
    return _MODES[wait]


def mode_for(stream: Any) -> int:
    """The mode of anybody's stream: what ours was made with, the default for another library's."""
    chosen = getattr(stream, "wait_strategy", None)
    return mode_of(chosen if isinstance(chosen, WaitStrategy) else default_wait())


class Awaitable(Protocol):
    """What can be waited for: a `Stream`, an `Event`, or a `Target`."""

    @property
    def _reference(self) -> interop.Reference: ...

    @property
    def _mode(self) -> int: ...


class Target:
    """Another library's stream, as far as it is waited for."""

    def __init__(self, reference: interop.Reference, mode: int) -> None:
        self._reference = reference
        self._mode = mode


async def synchronize_async(self: Awaitable) -> None:
    """Waits, without blocking the loop, until all work that is on the stream now is done.

    Equals `synchronize()` for the task that calls it: when it returns, the work has succeeded. How it waits is the stream's
    `wait_strategy`. All strategies but `HOSTFUNC` record an event, which costs the GPU nothing and never blocks, also on a
    full stream. With `HOSTFUNC`, `query()` may say `False` for some microseconds more, until the driver's own thread is back
    from the wake-up, and the enqueue may block on a full stream.

    Cancellation: raises at once; the GPU goes on. On asyncio a wait that is over at once may return without a turn of the loop:
    it need not meet a timeout of 0.

    Threads: in the thread of a running asyncio or trio loop; always a checkpoint on trio.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream captures; it goes on doing so.
        CudaError: The work, or the context, has failed.
    """
    # The method of `Stream` itself, so that one coroutine suffices: each costs time and memory. It
    # holds the stream, because a stream that only this coroutine refers to must not be closed by
    # its finalizer.
    reference, mode = self._reference, self._mode
    if mode == BY_HOST_FUNCTION and not reference.is_event:
        await wait_for(hostfunc.arm_completion(reference.handle, reference.context, reference.name))
        return
    bridge = _current_bridge()
    take_turn = bridge.checkpoint
    answer: int | _native.Wait
    if reference.is_event:
        answer = _begin_event(reference, bridge, mode)
    else:
        wait_list = reference.wait_list or interop.wait_list_of(reference)
        answer = wait_list.begin(reference.handle, bridge.queue, mode)
    if answer == 0:
        if take_turn is not None:
            await take_turn()
        elif bridge.must_yield():
            await _yield_turn()
        return
    # Whoever keeps an exception of this coroutine, and so its frame, must not keep the bridge: it
    # dies with its loop.
    del bridge
    watched = None
    try:
        while True:
            if isinstance(answer, _Wait):
                if take_turn is not None:
                    await take_turn()
                    answer = answer.poll()
                else:
                    over = await answer
                    if over is None:
                        return
                    answer = over
            elif answer >= _TICKETS:
                # It may have fired already, but it is delivered by this very thread, and not before
                # the next await.
                watched = _points.registry[answer] = _Watched(
                    _current_bridge().new_future(), reference
                )
                _native.set_state(watched, State.PENDING, _native.FUTURES_CREATED)
                await watched.future  # type: ignore[misc]  # SettledFuture says what Completion needs; it can be awaited
                if watched.spinning is None:
                    return
                answer = (
                    watched.spinning.poll()
                )  # handed back: polled first, because its end may have come
            else:
                break
    except BaseException:
        if watched is not None:
            watched.cancel()
        if isinstance(answer, _Wait):
            answer.drop()
        raise
    if answer != 0:
        hostfunc.raise_for(
            answer, "cuEventQuery" if reference.is_event else "cuStreamQuery", reference.name
        )


def _begin_event(event: interop.Reference, bridge: _loops.Bridge, mode: int) -> int | _native.Wait:
    mode = max(mode, _native.WAIT_AUTO)  # an event is never waited for by a host function alone
    assert event.history is not None
    return _native.begin_event_wait(
        event.handle, bridge.queue, mode, event.context._ensure_monitored(), event.history
    )


def enqueue(
    reference: interop.Reference, mode: int, call: Callable[[], Any], keepalive: Any = None
) -> Completion:
    """Calls `call`, which enqueues work on a pinned stream, and gives the completion of what it enqueued.

    Everything that can be refused is reserved before `call` runs. What is kept alive lives until the GPU has passed, or is
    counted as leaked if that cannot be proved.

    Raises:
        RuntimeError: No loop runs here.
        StreamCaptureError: The stream captures, or `call` has left it capturing.
        CudaError: The driver refused, or the context has failed.
    """
    bridge = _current_bridge()
    context_id = reference.context._ensure_monitored()
    hostfunc.require_healthy(reference, recent=True)
    wait_list = reference.wait_list or interop.wait_list_of(reference)
    reserved = wait_list.reserve(bridge.queue, mode)
    if isinstance(reserved, int):
        hostfunc.raise_for(reserved, "cuEventCreate", reference.name)
        raise AssertionError("a reservation is refused with an error")
    future = bridge.new_polled_future()
    completion = EventCompletion(
        future, reference.name, context_id, wait_list, bridge.orders, reserved, keepalive
    )
    _points.registry[reserved.ticket] = completion
    refusal = 0
    results: list[Any] = []
    try:
        refusal = interop.call_with(reference, call, results)
        hostfunc.raise_for(refusal, "cuCtxPushCurrent", reference.name)
        completion.result = results[0]
        _native.set_state(completion, State.PENDING, _native.FUTURES_CREATED)
        refusal, stage = reserved.record(reference.handle)
        if stage == _STAGE_TASK:
            bridge.poll_soon()
        hostfunc.raise_for(refusal, "cuEventRecord", reference.name, hostfunc.LEFT_CAPTURING)
        completion.enter_order()
        if stage != _STAGE_WATCHER:  # which has it until the end
            future.point = completion
    except BaseException:
        # The future is given to nobody, but what `call` enqueued may be in flight. Each step may be
        # cut short by an interrupt.
        completion.result = results
        if keepalive is not None and refusal == 0 and not reserved.is_recorded:
            reserved.record(reference.handle)
        bridge.poll_soon()  # what was recorded may be the loop's to poll
        completion.cancel()
        raise
    finally:
        if not reserved.is_recorded:
            if keepalive is not None and (refusal == 0 or results):  # `call` has run
                leak((keepalive, results))
            _points.registry.pop(reserved.ticket, None)
            del completion.reserved
        # An exception keeps this frame. The bridge must die with its loop, and a reservation counts
        # as a pending wait.
        del bridge, reserved
    return completion


async def wait_for(completion: Completion) -> None:
    """Waits until the GPU has passed a point at which only this task waits.

    Cancellation: raises at once; the point stays registered until the GPU has passed it.

    Raises:
        CudaError: The context has failed.
    """
    future = completion.future
    try:
        if future is not None:
            await future  # type: ignore[misc]  # SettledFuture says what Completion needs; both kinds can be awaited
    except BaseException:
        completion.cancel()
        raise
