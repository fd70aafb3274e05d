"""What a waiting task holds: the state of one completion, and what is kept alive for it.

This module knows no loop and no stream. It is given a future that has asyncio's methods, and it is told, in that future's
loop, when the GPU has passed the point.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from aiostream import _arguments, _driver, _native, _points, _process
from aiostream.errors import CudaError

__all__ = ["CompletionFuture"]

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class CompletionFuture(Protocol[T_co]):
    """A future that settles, in the loop that asked for it, when the GPU has passed a point of a stream.

    On asyncio and uvloop it is an `asyncio.Future` of that loop, so that `asyncio.wait`, `gather` and `shield` work on it. On
    trio it is an awaitable with the same methods. It can be awaited any number of times and by several tasks.

    Cancellation: cancelling it (on asyncio, also by cancelling the task that awaits it) stops the waiting and not the GPU;
    what was given to `enqueue_async` stays alive until the GPU has passed the point.

    Threads: like asyncio's futures it belongs to its loop's thread.
    """

    def __await__(self) -> Generator[Any, Any, T_co]:
        """Waits; returns the result or raises what went wrong."""
        ...

    def done(self) -> bool:
        """Whether it has a result, an exception, or was cancelled."""
        ...

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        ...

    def cancel(self, msg: Any = None) -> bool:
        """Stops waiting; `False` if it was done already. `msg` becomes the argument of the `CancelledError`."""
        ...

    def result(self) -> T_co:
        """The result; raises what went wrong, or an invalid-state error while pending."""
        ...

    def exception(self) -> BaseException | None:
        """What went wrong, or `None`; raises an invalid-state error while pending."""
        ...

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Calls `callback(future)` in the loop, soon after the future is done, also if it is done already.

        The callback sees the context variables as they are now, or those of `context`, on every loop.
        """
        ...

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> int:
        """Forgets a callback, before the future is done; how often it was there."""
        ...


class SettledFuture(Protocol):
    """What `Completion` needs of a loop's future."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...


class PolledFuture(SettledFuture, Protocol):
    """A loop's future whose awaiting task can poll the work itself."""

    point: EventCompletion | None  # None: whoever awaits it leaves the polling to others

    def wake(self) -> None:
        """The future is done, or its end is near: then a task that awaits it takes the wait (`Reserved.take`) and polls it."""


class OwnFuture(_arguments.NotCopied):
    """A future of the library's own, for loops that bring none. asyncio's futures have public setters; these do not."""

    def _set_result(self, result: Any) -> None:
        raise NotImplementedError

    def _set_exception(self, exception: BaseException) -> None:
        raise NotImplementedError

    def _drop(self) -> None:
        raise NotImplementedError


def set_result(future: Any, result: Any) -> None:
    """Settles a loop's future with a result."""
    if isinstance(future, OwnFuture):
        future._set_result(result)
    else:
        future.set_result(result)


def set_exception(future: Any, exception: BaseException) -> None:
    """Settles a loop's future with an exception."""
    if isinstance(future, OwnFuture):
        future._set_exception(exception)
    else:
        future.set_exception(exception)


def drop(future: Any) -> None:
    """The future's loop has ended, and can tell nobody: cancels one of the library's own. Called by the janitor."""
    if isinstance(future, OwnFuture):
        future._drop()


class State(enum.Enum):
    """Where a completion stands."""

    NEW = "new"  # not counted yet
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by its own waiter
    DROPPED = "dropped"  # its loop has died


# Each completion is turned from NEW to PENDING by whoever has made it, once it is in that one's
# hands: an interrupt may come as soon as it is counted. It leaves PENDING once, for one of these;
# nothing leaves any of these. Each has its line in the ledger.
OUTCOMES = {
    State.DONE: _native.FUTURES_DONE,
    State.FAILED: _native.FUTURES_FAILED,
    State.CANCELLED: _native.FUTURES_CANCELLED,
    State.DROPPED: _native.FUTURES_DROPPED,
}


class Completion:
    """One point of one stream that somebody waits for.

    Its fields are touched by the future's loop alone, and by the janitor once that loop is dead.
    """

    __slots__ = ("call", "context_id", "future", "keepalive", "result", "state", "stream")

    def __init__(
        self,
        future: SettledFuture,
        stream: str,
        call: str,
        context_id: int,
        result: Any = None,
        keepalive: Any = None,
    ) -> None:
        self.context_id = context_id
        self.state = State.NEW
        self.future: SettledFuture | None = future
        self.stream = stream  # for the error's text
        self.call = call  # likewise
        self.result = result  # what the future's result will be
        self.keepalive = keepalive  # stays alive until the GPU has passed the point

    def complete(self, code: int, orphaned: bool) -> None:
        """The GPU has passed the point: settles, and lets go of everything."""
        self._settle(code, orphaned)
        if self.keepalive is not None or orphaned:
            # A destructor may synchronize the device (freeing memory does): never on a loop that no
            # longer wants it.
            if self.state is not State.DONE:
                _process.release_in_thread(self.keepalive, self.result)
            self.keepalive = None
        self.result = None

    def abandon(self, code: int, orphaned: bool) -> None:
        """The context has failed: settles, and keeps what the GPU might still touch."""
        self._settle(code, orphaned)
        self.keepalive = (
            (self.keepalive, self.result)
            if self.keepalive is not None or self.result is not None
            else None
        )
        self.result = None

    def cancel(self) -> None:
        """The one waiter has gone: stops waiting, and keeps what the GPU may still touch."""
        if self.state is State.PENDING:
            if self.future is not None:
                # A coroutine that ends later than its loop: the future is cancelled, but the loop
                # can tell nobody.
                with contextlib.suppress(RuntimeError):
                    self.future.cancel()
            self._end(State.CANCELLED)

    def _settle(self, code: int, orphaned: bool) -> None:
        if self.state is not State.PENDING:
            return
        future = self.future
        if future is None or future.cancelled():
            self._end(State.CANCELLED)
        elif orphaned:
            drop(future)
            self._end(State.DROPPED)
        elif code == 0:
            if not future.done():
                set_result(future, self.result)
            self._end(State.DONE)
        else:
            if not future.done():
                set_exception(future, self.error(code))
            self._end(State.FAILED)

    def error(self, code: int) -> CudaError:
        """A new exception for this completion: each waiter gets an instance of its own."""
        return _driver.error(code, self.call, self.stream)

    def _end(self, outcome: State) -> None:
        _native.set_state(self, outcome, OUTCOMES[outcome])
        self.future = None


Orders = dict[_native.WaitList, "deque[EventCompletion]"]


class EventCompletion(Completion):
    """A completion that ends by an event behind the work, and in the order of its stream."""

    __slots__ = ("in_order", "orders", "reserved", "wait_list")

    def __init__(
        self,
        future: PolledFuture,
        stream: str,
        context_id: int,
        wait_list: _native.WaitList,
        orders: Orders,
        reserved: _native.Reserved,
        keepalive: Any = None,
    ) -> None:
        # As `Completion` does it, without the call: one of these is made for each request of a
        # server.
        self.context_id = context_id
        self.state = State.NEW
        self.future = future
        self.stream = stream
        self.call = "cuEventQuery"
        self.result = None
        self.keepalive = keepalive
        self.wait_list = wait_list
        self.orders = orders
        self.reserved = reserved
        self.in_order = False

    def enter_order(self) -> None:
        """The event was recorded: this completion is the latest of its stream and loop."""
        # In this order: what says that it is in the deque and is not would settle all that comes
        # behind it.
        order = self.orders.get(self.wait_list)
        if order is None:
            self.orders[self.wait_list] = deque((self,))
        else:
            order.append(self)
        self.in_order = True

    def come_near(self) -> None:
        """The loop polls it from now on; a task that awaits the future may take it."""
        future = self.future
        if future is not None:
            cast("PolledFuture", future).wake()

    def is_first(self) -> bool:
        """Whether its loop waits for nothing earlier on its stream."""
        order = self.orders.get(self.wait_list)
        return order is not None and order[0] is self

    def complete(self, code: int, orphaned: bool) -> None:
        """The event is complete, or its context has failed. Then nothing proves that the GPU has passed."""
        if code == 0:
            self._complete_earlier(orphaned)
            super().complete(code, orphaned)
            return
        self._settle(code, orphaned)
        if self.keepalive is not None:
            leak((self.keepalive, self.result))
        self.keepalive = self.result = None

    def _complete_earlier(self, orphaned: bool) -> None:
        """Settles what lies before it in its stream, because that is over too. The watcher or a timer may find it out later."""
        order = self.orders.get(self.wait_list)
        if order is not None and len(order) == 1:  # most often it is alone, and settles itself next
            if order[0] is self:
                self.in_order = False
                del self.orders[self.wait_list]
            return
        while order and self.in_order:  # each step may be repeated after a KeyboardInterrupt
            earlier = order[0]
            Completion.complete(earlier, 0, orphaned)
            earlier.in_order = False
            order.popleft()
        if not order:
            self.orders.pop(self.wait_list, None)


_leaked: list[
    Any
] = []  # appended to by any thread, never emptied: the driver can no longer prove that it is done with these


def leak(keepalive: Any) -> None:
    """Keeps objects for the life of the process, and counts them: the driver cannot prove that the GPU has passed."""
    _leaked.append(keepalive)
    _native.count(_native.POINTS_ARMED, 1)
    _native.count(_native.POINTS_LEAKED, 1)


class KeepAlive:
    """A point at which nobody waits: it keeps objects alive until the GPU has passed."""

    __slots__ = ("context_id", "keepalive")

    def __init__(self, keepalive: Any, context_id: int) -> None:
        self.keepalive = keepalive
        self.context_id = context_id

    def complete(self, code: int, orphaned: bool) -> None:
        """Lets go."""
        _process.release_in_thread(self.keepalive)
        self.keepalive = None

    def abandon(self, code: int, orphaned: bool) -> None:
        """Nobody waits, and nothing may be released."""


def pending_futures() -> int:
    """How many futures wait for their point, counted one by one."""
    return sum(
        1
        for point in list(_points.registry.values())
        if isinstance(point, Completion) and point.state is State.PENDING
    )
