"""What Python knows of a point that a task waits for: its state, its future, and its keepalive.

This module knows no loop and no stream. It gets a future that has asyncio's methods. The loop of
that future calls it when the GPU has passed the point.
"""

from __future__ import annotations

import contextlib
import enum
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, cast

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._runtime import points, process
from aiostream._runtime.observing import future_made, future_reached, observers
from aiostream.errors import CudaError


class SettledFuture(Protocol):
    """What `Completion` needs of a loop's future."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...


class PolledFuture(SettledFuture, Protocol):
    """A loop's future whose awaiting task can poll the work itself."""

    point: EventCompletion | None  # it is cancelled with the future

    def wake(self) -> None:
        """Wakes a task that awaits the future, because it is done or its end is near.

        If the end is near, the task takes the wait (`Reserved.take`) and polls it.
        """


class OwnFuture(checks.NotCopied):
    """A future of the library, for loops that have none.

    asyncio's futures have public setters. These have private ones, because only the library may
    settle them.
    """

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
    """Cancels a future whose loop has ended, if it is one of the library's.

    asyncio's own future is left alone, because to settle it would raise: its loop is closed.

    Threads: the janitor's.
    """
    if isinstance(future, OwnFuture):
        future._drop()


class State(enum.Enum):
    """The states of a completion."""

    NEW = "new"  # not counted yet
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by its own waiter
    DROPPED = "dropped"  # its loop has ended


# NEW -> PENDING -> one of these, each once. The maker sets PENDING after it has stored the
# completion, because a KeyboardInterrupt may come right after it is counted, and a completion that
# is counted and lost would stay pending in the ledger. Each of these has its counter there.
OUTCOMES = {
    State.DONE: _native.FUTURES_DONE,
    State.FAILED: _native.FUTURES_FAILED,
    State.CANCELLED: _native.FUTURES_CANCELLED,
    State.DROPPED: _native.FUTURES_DROPPED,
}


class Completion:
    """One point of one stream for which a task waits.

    Threads: the future's loop, and the janitor once that loop has ended.
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
        # No thread but the maker's knows this object before its entry in `points.registry`. So all
        # fields are set before that, and no lock is needed here.
        self.context_id: int = context_id
        self.state: State = State.NEW
        self.future: SettledFuture | None = future
        self.stream: str = stream  # in the error
        self.call: str = call  # in the error
        self.result: Any = result  # what the future's result will be
        self.keepalive: Any = keepalive  # stays alive until the GPU has passed the point
        if observers:
            future_made(future)

    def complete(self, code: int, orphaned: bool) -> None:
        """Settles the future and releases everything, because the GPU has passed the point."""
        self._settle(code, orphaned)
        if self.keepalive is not None or orphaned:
            # A destructor may block, for example if it frees GPU memory. If the future has got its
            # result, the objects die where the user's code drops them. If not, they must not die
            # here, because they would block a loop that no longer uses them, or the janitor.
            if self.state is not State.DONE:
                process.release_in_thread(self.keepalive, self.result)
            self.keepalive = None
        self.result = None

    def abandon(self, code: int, orphaned: bool) -> None:
        """Settles the future and keeps the objects, because the context has failed.

        The GPU may still use them.
        """
        self._settle(code, orphaned)
        self.keepalive = (
            (self.keepalive, self.result)
            if self.keepalive is not None or self.result is not None
            else None
        )
        self.result = None

    def cancel(self) -> None:
        """Ends the wait, because the waiting task has gone. The GPU may still use the objects."""
        if self.state is State.PENDING:
            # Read once. If the loop is gone, the janitor may end this completion at the same time.
            future = self.future
            if future is not None:
                # A coroutine may end after its loop was closed. asyncio cancels the future then,
                # and raises because it cannot call the callbacks.
                with contextlib.suppress(RuntimeError):
                    future.cancel()
            self._end(State.CANCELLED)

    def _settle(self, code: int, orphaned: bool) -> None:
        # A KeyboardInterrupt may cut this short, and the delivery is repeated. So the state changes
        # last, and a future that is done already is left as it is.
        if self.state is not State.PENDING:
            return
        future = self.future
        if future is None or future.cancelled():
            self._end(State.CANCELLED)
        elif orphaned:
            # In the janitor's thread. The loop is gone, so no other thread uses the future, and no
            # task would ever read a result.
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
        """Makes an exception for this completion. Each waiter gets an object of its own."""
        return driver.error(code, self.call, self.stream)

    def _end(self, outcome: State) -> None:
        if observers and outcome in (State.DONE, State.FAILED):
            future_reached(self.future)
        # One native call sets the state and counts it, because an interrupt between two steps would
        # leave the ledger unbalanced. It does so only if the completion is still pending, because
        # the janitor and the thread in which a dead task is collected may both come here.
        _native.set_state(self, State.PENDING, outcome, OUTCOMES[outcome])
        self.future = None


class Orders:
    """The completions of one loop, by stream, in the order in which their points were enqueued.

    Completions hold this and not the bridge, because the bridge must die with its loop, and a
    completion may live longer.

    Threads: the loop's, and the janitor's once that loop has ended.
    """

    __slots__ = ("by_stream", "latest")

    def __init__(self) -> None:
        # Those of a stream that may be pending, oldest first. By `reference.order_key`.
        self.by_stream: dict[object, deque[OrderedCompletion]] = {}
        self.latest: object = None  # which completion was about to be enqueued last


class OrderedCompletion(Completion):
    """A completion that settles in the order of its stream, among those of its loop.

    The loop learns of an event in another way than of a host function. So it may hear of a later
    point first, and then settles the earlier ones before it.

    Threads: as `Completion`.
    """

    __slots__ = ("in_order", "order", "orders", "place")

    def __init__(
        self,
        future: SettledFuture,
        stream: str,
        call: str,
        context_id: int,
        result: Any,
        keepalive: Any,
        orders: Orders,
    ) -> None:
        super().__init__(future, stream, call, context_id, result, keepalive)
        self.orders = orders
        self.order: deque[OrderedCompletion] | None = None
        self.place: object = None
        self.in_order = False

    def begin_order(self) -> None:
        """The driver is about to get this completion's point."""
        self.orders.latest = self

    def enter_order(self, place: object) -> None:
        """Makes this completion the latest of its stream and loop. The driver has its point.

        A signal handler or a finalizer may enqueue and enter others after `begin_order`. They then
        stand in front of this one, and yet may be behind it on the stream. So this one must not
        settle them. Those that enter later are behind both, and may settle this one.
        """
        orders = self.orders
        self.place = place
        # One step. If the new deque brings a garbage collection, a finalizer may have stored one.
        self.order = order = orders.by_stream.setdefault(place, deque())
        order.append(self)
        self.in_order = orders.latest is self
        orders.latest = None  # it would keep this completion, which refers to `orders`

    def complete(self, code: int, orphaned: bool) -> None:
        """Settles the future, after those of earlier points of the stream."""
        # After a failure nothing is known of the earlier ones. The watcher fails each of them.
        if code == 0 and self.in_order and self.order is not None:
            self._complete_earlier(self.order, orphaned)
        super().complete(code, orphaned)
        self._leave_order()

    def abandon(self, code: int, orphaned: bool) -> None:
        """See `Completion`."""
        super().abandon(code, orphaned)
        self._leave_order()

    def _complete_earlier(self, order: deque[OrderedCompletion], orphaned: bool) -> None:
        # What the GPU has passed on the stream before this point is over too. The loop may hear of
        # it later, and then futures of one stream would settle out of order. Each step can be
        # repeated after a KeyboardInterrupt: an entry leaves the deque after it has settled, and
        # settling again does nothing.
        while order and (earlier := order[0]) is not self:
            Completion.complete(earlier, 0, orphaned)
            earlier.in_order = False
            order.popleft()

    def _leave_order(self) -> None:
        """Removes this completion, and others that are over, from the front of the order."""
        order = self.order
        if order is None:
            return
        while order and (first := order[0]).state is not State.PENDING:
            # First, because one that stands in no deque must settle none that do.
            first.in_order = False
            order.popleft()
        if not order and self.orders.by_stream.get(self.place) is order:
            del self.orders.by_stream[self.place]


class EventCompletion(OrderedCompletion):
    """A completion that ends by an event behind the work.

    Threads: as `Completion`, and the janitor's once it is cancelled.
    """

    __slots__ = ("reserved",)

    def __init__(
        self,
        future: PolledFuture,
        stream: str,
        context_id: int,
        orders: Orders,
        reserved: _native.Reserved,
        keepalive: Any = None,
    ) -> None:
        # This repeats what the base classes do, without the calls, because a server makes one of
        # these for each request.
        self.context_id = context_id
        self.state = State.NEW
        self.future = future
        self.stream = stream
        self.call = "cuEventQuery"
        self.result = None
        self.keepalive = keepalive
        self.orders = orders
        self.order = None
        self.place = None
        self.reserved = reserved
        self.in_order = False

    def cancel(self) -> None:
        """Also leaves the rest to the watcher and the janitor, because its loop may not run soon.

        Threads: the loop's.
        """
        super().cancel()
        # First, because from the last step on the janitor may complete this. It must not settle
        # what other tasks of this loop await.
        self._leave_order()
        self.order, self.in_order = None, False
        self.reserved.take(True)  # from the loop; what it answers is dropped at once
        _native.orphan(self.reserved.ticket)

    def come_near(self) -> None:
        """Wakes a task that awaits the future, so that it polls in place of the loop."""
        future = self.future
        if future is not None:
            cast("PolledFuture", future).wake()

    def is_first(self) -> bool:
        """Whether its loop waits for nothing earlier on its stream."""
        return self.in_order and bool(self.order) and self.order[0] is self  # type: ignore[index]

    def complete(self, code: int, orphaned: bool) -> None:
        """Settles the future, because the event is complete or its context has failed.

        After a failure nothing proves that the GPU has passed, so the objects are leaked.
        """
        if code == 0:
            super().complete(code, orphaned)
            return
        self._settle(code, orphaned)
        if self.keepalive is not None:
            leak((self.keepalive, self.result))
        self.keepalive = self.result = None
        self._leave_order()


def described(point: EventCompletion | None) -> str:
    """What the `repr` of a future says of its work, such as `, forward() on stream 'a' on ...`."""
    if point is None:
        return ""
    fn, *_ = point.keepalive or [None]  # the launch of a graph has none
    work = f"{getattr(fn, '__qualname__', type(fn).__name__)}() on " if fn is not None else ""
    return f", {work}{point.stream}"


# Objects that the driver can no longer prove it is done with. To release them could free memory
# that the GPU still writes to. Any thread appends, and the list is never emptied.
_leaked: list[Any] = []


def leak(keepalive: Any) -> None:
    """Keeps objects for the life of the process, and counts them as leaked.

    Threads: any.
    """
    _leaked.append(keepalive)
    _native.count(_native.POINTS_ARMED, 1)
    _native.count(_native.POINTS_LEAKED, 1)


class KeepAlive:
    """A point for which no task waits. It keeps objects alive until the GPU has passed it.

    Threads: the janitor's.
    """

    __slots__ = ("context_id", "keepalive")

    def __init__(self, keepalive: Any, context_id: int) -> None:
        self.keepalive = keepalive
        self.context_id = context_id

    def complete(self, code: int, orphaned: bool) -> None:
        """Releases the objects, in the releaser's thread."""
        process.release_in_thread(self.keepalive)
        self.keepalive = None

    def abandon(self, code: int, orphaned: bool) -> None:
        """Keeps the objects, because the context has failed and the GPU may still use them."""


# Calls of enqueue_in_thread that have no ticket yet, by id. Weak, so that the collector can end a
# task whose loop was closed while it waited for a token. Any thread, single dict operations.
expected: dict[int, weakref.ref[Completion]] = {}


def pending_futures() -> int:
    """Counts the futures that wait for their point, one by one."""
    return sum(1 for _ in _pending())


def settled_futures() -> int:
    """Counts those of them that are done for their task, and wait for a turn of their loop.

    A task that has polled its work goes on before its loop gets the ticket.
    """
    futures = [point.future for point in _pending()]
    return sum(future is not None and future.done() for future in futures)


def _pending() -> Iterator[Completion]:
    # A copy in one step, because other threads add and remove entries all the time. A point of it
    # may end while the caller counts, so the numbers are of about this moment.
    # Those without a ticket first: one that gets its ticket meanwhile is counted twice, and never
    # missed.
    for reference in list(expected.values()):
        call = reference()
        if call is not None and call.state is State.PENDING:
            yield call
    for point in list(points.registry.values()):
        if isinstance(point, Completion) and point.state is State.PENDING:
            yield point
