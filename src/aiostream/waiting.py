"""How a wait is carried out: ready at once, looked at by the task itself, given to the watcher, or to a host function."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from aiostream import _loops, _native, _points, _process, hostfunc, interop
from aiostream.device import Context
from aiostream.enums import WaitStrategy
from aiostream.futures import Completion, SettledFuture, State

__all__ = ["default_wait", "set_default_wait"]

# What `_native.Line.begin` and `wait_poll` answer: 0, nothing to wait for; a small number, a refusal; one from here on, the
# ticket of a wait that the watcher has; one below the negative, a wait that this task looks at itself.
_TICKETS = 1 << 24
_SPINNING = -_TICKETS
_BY_HOST_FUNCTION = -1
_MODES = {
    WaitStrategy.AUTO: _native.WAIT_AUTO,
    WaitStrategy.EVENT: _native.WAIT_EVENT,
    WaitStrategy.SPIN: _native.WAIT_SPIN,
    WaitStrategy.HOSTFUNC: _BY_HOST_FUNCTION,
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
    if wait is None:
        return default_wait()
    try:
        return WaitStrategy(wait)
    except ValueError:
        names = ", ".join(repr(str(each)) for each in WaitStrategy)
        raise ValueError(f"{source} is one of {names}, not {wait!r}") from None


async def in_thread(blocking: Callable[[], None]) -> None:
    """Runs what may block in a worker thread of the loop's. Cancelled, it leaves the thread to finish by itself."""
    import anyio.to_thread  # on the rare path that needs it: importing aiostream does not import anyio

    await anyio.to_thread.run_sync(blocking, abandon_on_cancel=True)


checkpoint = _loops.checkpoint


class _Watched(Completion):
    """A wait that the watcher has. It ends, or it is given back to its task shortly before its end."""

    __slots__ = ("spinning",)

    def __init__(self, future: SettledFuture, stream: str, probe: int) -> None:
        super().__init__(future, stream, "cuEventQuery", probe)
        self.spinning: int | None = 0  # the wait that was given back; None once it was dropped

    def passed(self, code: int, orphaned: bool) -> None:
        """It is over, or (a large code) the task had better look itself from now on."""
        if code < _TICKETS:
            super().passed(code, orphaned)
            return
        if self.spinning == 0:
            self.spinning = -code
        if self.state is State.PENDING:
            taken = not orphaned and self.future is not None and not self.future.cancelled()
        else:
            taken = self.state is State.DONE  # by this very call, before a KeyboardInterrupt had it made again
        if not taken:
            _native.wait_release(self)
        self._settle(0, orphaned)


def mode_of(wait: WaitStrategy) -> int:
    """What `synchronize` and `synchronize_event` take: looking a strategy up in each wait would take longer than all else."""
    return _MODES[wait]


def mode_for(stream: Any) -> int:
    """The mode of anybody's stream: what ours was made with, the default for another library's."""
    wait = getattr(stream, "wait", None)  # cuda.core's have a method of that name
    return mode_of(wait if isinstance(wait, WaitStrategy) else default_wait())


async def synchronize(reference: interop.StreamReference, mode: int) -> None:
    """Waits, without blocking the loop, until all work that is on the stream now is done; see `Stream.synchronize_async`."""
    if mode == _BY_HOST_FUNCTION:
        await wait_for(hostfunc.arm_completion(reference.handle, reference.context, reference.name))
        return
    line = reference.line or interop.line_of(reference)
    bridge = _loops.current_bridge()
    answer = line.begin(reference.handle, bridge.queue, mode)
    if answer == 0:
        if bridge.must_checkpoint:
            await bridge.pause()
        return
    # The first looks stand here and not in `_go_on` because most short waits end with them, and each coroutine costs.
    while answer < _SPINNING:
        try:
            await bridge.pause()
        except BaseException:
            _native.wait_drop(answer)
            raise
        answer = _native.wait_poll(answer, bridge.queue)
    if answer >= _TICKETS:
        answer = await _go_on(answer, bridge, reference.context, reference.name)
    if answer != 0:
        hostfunc.raise_for(answer, "cuStreamQuery", reference.name)


async def synchronize_event(event: _native.Handle, context: Context, line: _native.Line, name: str, mode: int) -> None:
    """Waits until the GPU has passed what the event has recorded now; see `Event.synchronize_async`."""
    bridge = _loops.current_bridge()
    mode = max(mode, _native.WAIT_AUTO)  # an event is never waited for by a host function alone
    answer = line.begin_event(event, bridge.queue, mode)
    while answer == _native.RESULT_NO_HELPER:
        await in_thread(context.add_helper)
        answer = line.begin_event(event, bridge.queue, mode)
    if answer == 0 and bridge.must_checkpoint:
        await bridge.pause()
    if not _SPINNING <= answer < _TICKETS:
        if _native.idle_helpers(context.probe()) == 0:
            _process.hand_over(context.spare_helper)  # before the next wait needs it: making a stream may block
        answer = await _go_on(answer, bridge, context, name)
    if answer != 0:
        hostfunc.raise_for(answer, "cuEventQuery", name)


async def _go_on(answer: int, bridge: _loops.Bridge, context: Context, name: str) -> int:
    """Leaves a wait to the watcher, or looks at it, by turns, as the answers say; returns 0 or the code of what went wrong."""
    queue = bridge.queue
    while not _SPINNING <= answer < _TICKETS:
        if answer >= _TICKETS:
            # It may have fired already, but it is delivered by this very thread, and not before the next await.
            watched = _points.registry[answer] = _Watched(bridge.new_future(), name, context.probe())
            try:
                await wait_for(watched)
            except BaseException:
                _native.wait_release(watched)
                raise
            answer = watched.spinning or 0
        while answer < _SPINNING:
            # A wait that was given back is looked at before anything else: its end may have come.
            answer = _native.wait_poll(answer, queue)
            if answer < _SPINNING:
                try:
                    await bridge.pause()
                except BaseException:
                    _native.wait_drop(answer)
                    raise
    return answer


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
