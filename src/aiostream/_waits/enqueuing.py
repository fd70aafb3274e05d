"""Work that is enqueued with a point behind it: for a future, or to keep objects alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from aiostream import _native
from aiostream._base import driver
from aiostream._handles.operand import Operand, in_libraries, order_of, refuse_capture, wait_list_of
from aiostream._runtime import loops, process
from aiostream._runtime.completion import Completion
from aiostream._waits.strategies import BY_HOST_FUNCTION, BY_WATCHER

_AT_ONCE, _AFTERWARDS = _native.RESULT_AT_ONCE, _native.RESULT_AFTERWARDS
_HOST_FUNCTION = _native.KIND_HOST_FUNCTION
UNKNOWN_ERROR = 999  # of the driver
now = time.perf_counter_ns
_current_bridge = loops.current_bridge


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
    refuse_capture(operand, "cuStreamIsCapturing")


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


def keep_until_passed(operand: Operand, keepalive: Any, pinned: bool = False) -> None:
    """Keeps objects alive until the GPU has passed the current end of a stream.

    No task waits for that. If the driver refuses, the objects live as long as the process, and are
    counted as leaked. A stream that the caller has pinned may be closed.
    """
    # The event is on the janitor's queue, because this loop may end before the GPU has passed.
    kept = Completion(None, operand.name, keepalive)
    waits = wait_list_of(operand)
    if not _native.watch(operand.handle, waits, process.ORPHANS, BY_WATCHER, kept, pinned):
        _native.leak(keepalive)
