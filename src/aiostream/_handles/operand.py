"""How the library uses a stream or an event, its own or another library's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiostream import _native, errors
from aiostream._base import driver
from aiostream._handles.owned import Owned
from aiostream._runtime import stalls
from aiostream.device import Context, Device, DeviceLike

LEGACY = 1
PER_THREAD = 2
_NAMES = {0: "the legacy stream", LEGACY: "the legacy stream", PER_THREAD: "the per-thread stream"}
# Makes a stream a library's current one and returns what was; takes that back.
Current = tuple[Callable[[], Any], Callable[[Any], object]]


@dataclass(slots=True, eq=False)
class SharedByBorrowers:
    """What a stream and all streams that are borrowed from it share.

    Threads: any. Each change is one dict or list operation, or one assignment, so it needs no lock.
    """

    # By the name of a library with a current stream.
    currents: dict[str, Current] = field(default_factory=dict)
    # The waits that worker threads leave behind (`enqueue_in_thread`). They are apart from the
    # stream's own list, because their lengths would spoil the prediction of its other waits.
    thread_waits: _native.WaitList | None = None
    chosen: dict[str, Any] = field(default_factory=dict)  # see `order_of` and `wait_list_of`
    # What the driver has answered that never changes, by its function.
    constants: dict[str, int] = field(default_factory=dict)
    stalled_after: float = 0  # seconds; 0: no limit
    longer: list[float] = field(default_factory=list)  # the same in each open `may_take`
    left: float | None = None  # the same of a `may_take` that has left work on a stream of a pool
    # The flags and priority by which a later `Stream` finds this one once it was retired. Empty if
    # the library has not made the stream, or its attributes were changed, or it waits in that list.
    make: list[tuple[int, int]] = field(default_factory=list)
    # One item for each use of which the driver does not know, and that may go on without its task:
    # a block of `as_current`, a call of `run_in_thread`, a generator that is to be closed. While
    # there is one, `into_raw` refuses, and a pool does not use the stream.
    held: list[object] = field(default_factory=list)

    def limit(self) -> float:
        """Returns the limit that counts now. 0 is none."""
        return max(self.longer or [self.stalled_after], key=lambda seconds: seconds or math.inf)


@dataclass(slots=True, eq=False)
class Operand:
    """What the library needs to use a stream, or to wait for an event."""

    handle: _native.Handle  # of an event, `Event.record` may put another one here, in any thread
    context: Context
    name: str  # in errors
    # Any thread may look up a stream's and assign it, because all threads find the same one.
    wait_list: _native.WaitList | None = None
    is_event: bool = False
    shared: SharedByBorrowers = field(default_factory=SharedByBorrowers)

    def limit_waits(self, own: float | None = None) -> None:
        """Sets after which time without an end the stream is stalled, outside `may_take`."""
        if own is not None:
            self.shared.stalled_after = own
        seconds = self.shared.limit()
        if seconds:
            stalls.watch()
        for waits in (wait_list_of(self), self.shared.thread_waits):
            if waits is not None:
                waits.label(self.name, seconds)
        if self.shared.limit() != seconds:  # another thread has changed it meanwhile
            self.limit_waits()


class WithOperand(Owned):
    """A stream or an event, of which the operand says all that the library needs.

    A constructor stores `_operand` last, because `_handle` is there from then on.
    """

    _operand: Operand
    _mode: int  # the number of its wait strategy
    _handle = property(lambda self: self._operand.handle)
    _name = property(lambda self: self._operand.name)

    # Constant, so any thread may read them, also while another one closes the object.

    @property
    def context(self) -> Context:
        """The context in which it lives."""
        return self._operand.context

    @property
    def device(self) -> Device:
        """The device on which it lives.

        It is read from the context, because `cuStreamGetDevice` would end a capture.
        """
        return self._operand.context.device


def context_of(handle: int) -> Context:
    """Returns the context in which a stream lives (`cuStreamGetCtx`).

    The legacy and per-thread streams belong to the current context, or to device 0's if none is.
    """
    if handle <= PER_THREAD:
        return current_or_default_context()
    return Context.from_handle(
        int(driver.call("cuStreamGetCtx", driver.bindings().CUstream(handle)))
    )


def current_or_default_context(device: DeviceLike | None = None) -> Context:
    """Returns the context for a new object.

    It is the primary one of `device`, else the thread's current one, else device 0's primary one.
    """
    if device is not None:
        return (device if isinstance(device, Device) else Device(device)).primary_context
    return Context.get_current() or Device(0).primary_context


def name_of(handle: int, context: Context, label: str | None = None) -> str:
    """Returns what errors call a stream. `label` is the name that the user gave it."""
    called = f"stream {label!r}" if label else _NAMES.get(handle, f"stream {handle:#x}")
    return f"{called} on {context._place()}"


def of_stream(handle: _native.Handle, context: Context, label: str | None = None) -> Operand:
    """Returns the operand of a new `Stream`."""
    # Here and not in the first wait, because it may take as long as making a stream. Before the
    # name, which says the device.
    context._ensure_monitored()
    return Operand(handle, context, name_of(handle.value, context, label))


def new_handle(value: int, context: Context, owned: bool) -> _native.Handle:
    """Makes the native handle of a stream that the library has not made."""
    return _native.Handle(_native.HANDLE_STREAM, value, context._handle, owned)


def keep_retired(operand: Operand) -> None:
    """Lets a later `Stream` use a stream that is closed, if it was retired."""
    if operand.handle.is_shared and not operand.handle.is_open:
        with contextlib.suppress(IndexError):
            make = operand.shared.make.pop()  # of two threads that close the stream, one gets it
            operand.context._retired.setdefault(make, []).append(operand.handle)


def reuse_retired(context: Context, make: tuple[int, int]) -> _native.Handle | None:
    """Returns a new handle of a retired stream that was made like this, or `None`.

    The stream is idle, so that the new work does not wait for the old. One that captures or has
    failed is not. It stays shared, because the other library still has it.
    """
    retired = context._retired.get(make, [])
    with contextlib.suppress(IndexError):  # another thread has taken the last one
        for _ in range(len(retired)):
            closed, handle = retired.pop(0), None
            try:
                borrowed = new_handle(closed.value, context, owned=False)
                # A call in another thread may still use what was closed.
                if not closed.is_used and _native.stream_query(borrowed) == 0:
                    handle = new_handle(closed.value, context, owned=True)
                    handle.share()
                    return handle
            finally:
                if handle is None:  # also if there was no memory
                    retired.append(closed)
    return None


def _list_of_thread(context: Context) -> _native.WaitList:
    # The per-thread stream is another stream in each thread. In a common list, a wait would hide
    # the end of another thread's wait, because only the oldest of a list is polled.
    mine = context._of_thread
    if not hasattr(mine, "waits"):
        mine.waits = _native.WaitList(context._ensure_monitored(), _native.History())
    made: _native.WaitList = mine.waits
    return made


def wait_list_of(operand: Operand) -> _native.WaitList:
    """Returns the wait list of a stream, with the name and the limit of this owner.

    All operands of the driver's stream have the same waits. Those of a `Stream` and of what is
    borrowed from it have one label too.

    Threads: the thread that waits.
    """
    if operand.wait_list is not None:
        return operand.wait_list
    if operand.handle.value == PER_THREAD:
        return _labelled(_list_of_thread(operand.context), operand)
    # Two threads may come here at once, and one of them wins.
    chosen: dict[str, _native.WaitList] = operand.shared.chosen
    operand.wait_list = chosen.get("waits")
    if operand.wait_list is None:
        made = _labelled(_find_wait_list(operand, None), operand)
        operand.wait_list = chosen.setdefault("waits", made)
    return operand.wait_list


def _labelled(waits: _native.WaitList, operand: Operand) -> _native.WaitList:
    """Returns the same waits as this owner of the stream sees them."""
    own = waits.shared(order_of(operand, waits.order))
    own.label(operand.name, operand.shared.limit())
    return own


def new_wait_list(operand: Operand, history: _native.History | None = None) -> _native.WaitList:
    """Returns a wait list for some of a stream's waits, apart from the stream's own."""
    context_id = operand.context._ensure_monitored()
    made = _native.WaitList(context_id, history or _native.History(), wait_list_of(operand))
    made.label(operand.name, operand.shared.limit())
    return made


def order_of(operand: Operand, first: _native.Order | None = None) -> _native.Order:
    """Returns the order in which the futures of a stream settle.

    It is one for a stream and all that are borrowed from it. It asks the driver nothing, because
    a question could end a capture that another thread begins.

    Args:
        operand: The stream.
        first: That of its wait list, which is also that of other objects on the same stream.
    """
    if operand.handle.value == PER_THREAD:  # another stream in each thread
        return _list_of_thread(operand.context).order
    # It is chosen once, by `setdefault`, because with two there would be two orders.
    made: _native.Order = operand.shared.chosen.setdefault("order", first or _native.Order())
    return made


def share_history(operands: Iterable[Operand]) -> None:
    """Lets the waits on several streams learn from each other, because they run the same work."""
    history = _native.History()
    for operand in operands:
        # The per-thread stream keeps the lists of its threads, because only the oldest wait of a
        # list is polled.
        if operand.handle.value != PER_THREAD:
            waits = _labelled(_find_wait_list(operand, history), operand)
            operand.wait_list = operand.shared.chosen["waits"] = waits


def _find_wait_list(operand: Operand, history: _native.History | None) -> _native.WaitList:
    handle, context = operand.handle, operand.context
    if handle.value <= LEGACY:
        return context._wait_list(LEGACY, history)
    # cuStreamGetId would invalidate a capture of the stream. A new list does meanwhile, because
    # every wait is refused during a capture, and on a closed stream.
    if _native.capture_refusal(handle) == 0:
        with contextlib.suppress(errors.StreamClosedError):
            return context._wait_list(int(call_on(operand, "cuStreamGetId")), history)
    return _native.WaitList(context._ensure_monitored(), history or _native.History())


@contextlib.contextmanager
def current_in_libraries(operand: Operand) -> Iterator[None]:
    """Makes the stream torch's or cupy's current one for a block, if they know it.

    The stream's context is current already.
    """
    with contextlib.ExitStack() as stack:
        # This is a copy, because another thread may borrow the stream for a further library
        # meanwhile, and Python refuses to iterate over a dict that grows.
        for put, put_back in list(operand.shared.currents.values()):
            stack.callback(put_back, put())
        yield


def in_libraries(operand: Operand, call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns what calls `call` with the stream current in torch or cupy, if they know it."""
    currents = operand.shared.currents
    return partial(_native.call_with, list(currents.values()), call, []) if currents else call


def pinned(operand: Operand, call: str = "cuCtxGetId") -> contextlib.AbstractContextManager[int]:
    """Keeps the handle of a stream or event valid for a `with` block, and gives its value.

    Args:
        operand: The stream or event.
        call: The driver function of the block. The error names it.

    Raises:
        StreamClosedError: It is closed.
        ContextFailedError: Its context was destroyed or reset by other code (709).
    """
    return pin(operand.handle, operand.name, call)


@contextlib.contextmanager
def pin(handle: _native.Handle, name: str, call: str | None = None) -> Iterator[int]:
    """Does what `pinned` does for the handle of anything. Without a call, the context may be gone.

    If another thread closes it during the block, the end of the block destroys it.
    """
    # The native call appends to the list as it pins.
    held: list[bool] = []
    try:
        if not handle.pin(held):
            raise errors.closed(name)
        # A pin keeps the handle from this library's own `close` only. Other code may end the whole
        # context, and the driver would crash, or take a new stream at that address for the old one.
        if call is not None:
            driver.raise_for(_native.gone_refusal(handle), call, name)
        yield handle.value
    finally:
        handle.unpin(held)


def call_on(operand: Operand, name: str, *args: Any) -> Any:
    """Calls a function of the driver on a stream, which is pinned meanwhile.

    For a special stream the context is current meanwhile.
    """
    with pinned(operand, name) as value:
        scope = operand.context._pushed() if value <= PER_THREAD else contextlib.nullcontext()
        with scope:
            return driver.call(name, driver.bindings().CUstream(value), *args, stream=operand.name)


def refuse_capture(operand: Operand, name: str) -> None:
    """Refuses a call that might invalidate a capture, before the stream is touched.

    Raises:
        StreamClosedError: The stream is closed.
        StreamCaptureError: The stream is capturing. The capture goes on.
    """
    driver.raise_for(_native.capture_refusal(operand.handle), name, operand.name)
