"""How a point is armed, and how objects are kept alive until the GPU has passed it.

To arm a point is to register what it stands for and then to enqueue its ticket on the stream. The
driver's thread later pushes the ticket on a queue, and the queue's loop, or the janitor, settles
what it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiostream import _native
from aiostream._base import driver
from aiostream._handles.reference import LEGACY, Reference, call_with, order_key, wait_list_of
from aiostream._runtime import loops, points, process
from aiostream._runtime.completion import Completion, KeepAlive, OrderedCompletion, State, leak

_BY_WATCHER = _native.WAIT_STRATEGIES.index("event")
CALLS = {
    _native.KIND_HOST_FUNCTION: "cuLaunchHostFunc",
    _native.KIND_CALLBACK: "cuStreamAddCallback",
    _native.KIND_PYTHON_HOST: "cuLaunchHostFunc",
    _native.KIND_PYTHON_CALLBACK: "cuStreamAddCallback",
    _native.KIND_FOREIGN: "cuLaunchHostFunc",
}
LEFT_CAPTURING = (
    "The function has left the stream capturing, so its work cannot be awaited. End the capture "
    "in the function"
)


def arm(
    handle: _native.Handle, ticket: int, point: points.PendingEntry, pinned: bool = False
) -> int:
    """Registers a point and enqueues its ticket. `driver.raise_for` takes the answer.

    Afterwards the point is registered if and only if the driver has the ticket. This holds also if
    a KeyboardInterrupt has come in between.
    """
    # Before the call, because the ticket may fire before the call has returned: the driver's thread
    # pushes it, and the loop or the janitor looks it up here. A ticket that is not registered then
    # would be ignored, and its task would hang.
    points.registry[ticket] = point
    result = -1  # as if refused, for an interrupt that comes before the assignment
    try:
        result = _native.arm(handle, ticket, pinned)
    finally:
        # After an interrupt the answer is lost, so native code is asked whether the driver has the
        # ticket. If it has, the entry must stay, because the GPU may use what it keeps alive.
        if result != 0:
            # A reservation that was armed is not touched by this. One that was not would keep the
            # loop's queue from being used again.
            _native.unreserve(ticket)
            if not _native.is_live(ticket):
                points.registry.pop(ticket, None)
    return result


def require_ready(reference: Reference) -> None:
    """Raises, before work is enqueued, what would refuse the completion behind that work.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream is capturing.
        ContextFailedError: The context has failed.
    """
    loops.current_bridge()
    require_healthy(reference)


def require_healthy(reference: Reference, recent: bool = False) -> None:
    """Raises what `require_ready` does, for a caller that has a loop.

    Args:
        reference: The stream.
        recent: Use the answer of the last millisecond, which costs no driver call.

    Raises:
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream is capturing.
        ContextFailedError: The context has failed.
    """
    driver.raise_for(
        _native.health(reference.context._ensure_monitored(), recent),
        "cuStreamQuery",
        reference.name,
    )
    driver.raise_for(
        _native.capture_refusal(reference.handle), "cuStreamIsCapturing", reference.name
    )


def arm_completion(
    reference: Reference,
    kind: int = _native.KIND_HOST_FUNCTION,
    *,
    result: Any = None,
    keepalive: Any = None,
    pinned: bool = False,
    answered_for: list[bool] | None = None,
    capturing: str | None = None,
) -> Completion:
    """Arms a point at the stream's current end, for the loop that runs in this thread.

    Args:
        reference: The stream. If its context fails, the completion fails.
        kind: By host function, or by stream callback, which brings a status.
        result: What the future will return.
        keepalive: Stays alive until the GPU has passed the point, or for the life of the process
            if that cannot be proved.
        pinned: The caller has pinned the handle, so it may be used even if it was closed meanwhile.
        answered_for: Gets an item as soon as this function takes care of `keepalive`, also if it
            fails later.
        capturing: The hint of the error if the stream is capturing.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream is capturing.
        CudaError: The driver refused.
    """
    bridge = loops.current_bridge()
    handle, stream = reference.handle, reference.name
    context_id = reference.context._ensure_monitored()
    # The future is made in this thread, and settled in this thread. All that other threads touch is
    # the ticket: the driver's thread fires it, and the watcher fails it.
    completion = OrderedCompletion(
        bridge.new_future(), stream, CALLS[kind], context_id, result, keepalive, bridge.orders
    )
    ticket = 0
    try:
        # From here on the `except` below answers for `keepalive`. An interrupt before this line
        # leaves it to the caller, so that exactly one of the two keeps it.
        if answered_for is not None:
            answered_for.append(True)
        # Before the ticket exists, because the drain moves the state on, and only from PENDING.
        _native.set_state(completion, State.NEW, State.PENDING, _native.FUTURES_CREATED)
        reserved = _native.reserve(bridge.queue, context_id, kind)
        ticket = reserved.number
        completion.begin_order()
        driver.raise_for(arm(handle, ticket, completion, pinned), CALLS[kind], stream, capturing)
        # The ticket may have fired already, but this thread delivers it, and not here.
        completion.enter_order(order_key(reference))
    except BaseException as problem:
        # No caller gets the future, but the work before the point may be in flight. If the ticket
        # is not registered, nothing else keeps the objects of that work alive, and the GPU would
        # write into memory that is free.
        completion.cancel()
        if keepalive is not None and ticket not in points.registry:
            if isinstance(problem, Exception):  # the driver refused, and would refuse again
                leak((keepalive, result))
            else:
                keep_until_passed(reference, (keepalive, result))
        raise
    return completion


def enqueue(reference: Reference, call: Callable[[], Any], keepalive: Any = None) -> Completion:
    """Calls `call`, which enqueues work on a pinned stream, and arms a host function behind it.

    Raises:
        RuntimeError: No loop runs here.
        StreamCaptureError: `call` has left the stream capturing.
        CudaError: The driver refused.
    """
    # Lists, because native code appends to them in the step that makes their content true. An
    # assignment would be a step of its own, and an interrupt may come before it.
    results: list[Any] = []
    answered_for: list[bool] = []
    refusal = 0
    try:
        refusal = call_with(reference, call, results)
        driver.raise_for(refusal, "cuCtxPushCurrent", reference.name)
        return arm_completion(
            reference,
            result=results[0],
            keepalive=keepalive,
            pinned=True,
            answered_for=answered_for,
            capturing=LEFT_CAPTURING,
        )
    except BaseException:
        # An error of `call`, or an interrupt. What `call` has enqueued may be in flight, so the
        # objects must live until the GPU has passed it.
        if refusal == 0 and not answered_for:
            keep_until_passed(reference, (keepalive, results))
        raise


def keep_until_passed(reference: Reference, keepalive: Any) -> None:
    """Keeps objects alive until the GPU has passed the current end of a pinned stream.

    No task waits for that. If the driver refuses, the objects live as long as the process, and are
    counted as leaked.

    Threads: any, but for the per-thread stream the one that has used it.
    """
    handle = reference.handle
    # An event, because its record never blocks, not even on a full stream. Only on the legacy
    # stream a record may harm a capture, so there the reservation looks for one.
    looked_at = (handle,) if handle.value <= LEGACY else ()
    # On the janitor's queue, because this loop may end before the GPU has passed.
    reserved = wait_list_of(reference).reserve(process.ORPHANS, _BY_WATCHER, *looked_at)
    if isinstance(reserved, int):
        leak(keepalive)
        return
    points.registry[reserved.ticket] = KeepAlive(keepalive, reference.context._ensure_monitored())
    try:
        reserved.record(handle)
    finally:
        if not reserved.is_recorded:
            points.registry.pop(reserved.ticket, None)
            leak(keepalive)
