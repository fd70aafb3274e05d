"""Devices and contexts: where streams live, and whose health is watched."""

from __future__ import annotations

import contextlib
import operator
import re
import threading
from collections.abc import Iterator
from typing import Any

from aiostream import _native
from aiostream._base import checks, driver, hints, turns
from aiostream._runtime import process
from aiostream.errors import ContextFailedError, CudaError

__all__ = ["Context", "Device"]

_CONTEXT_IS_DESTROYED = 709
# What the driver answers for a context's private stream after the context was destroyed.
_DESTROYED = (201, 400, _CONTEXT_IS_DESTROYED)
_MAX_WAIT_LISTS = 1024  # how many streams per context keep a wait history
# Any thread, single dict operations. There is no lock, because a signal handler that runs in the
# thread that holds it would wait for it without end.
_primary: dict[int, int] = {}  # device ordinal -> primary context, retained once per process
# Context id -> Context. The driver never uses an id again, as it does with handles.
_contexts: dict[int, Context] = {}


_AWAITED = (
    "there was an await in a block of as_current(): the other tasks of this thread ran with its "
    "context and current stream. Await after the block"
)
_TWO_THREADS = (
    "a block of as_current() was left in another thread than it was entered in. Enter and leave it "
    "in one thread"
)


class _Blocks(threading.local):
    """The blocks of `as_current()` that this thread has entered, by their checks.

    Their contexts are still on its stack, the uppermost last.
    """

    def __init__(self) -> None:
        self.entered: list[turns.SuspensionCheck] = []


_blocks = _Blocks()

DeviceLike = Any  # see `Device`: other libraries' types cannot be named here


def _ordinal_of(device: DeviceLike) -> int:
    if isinstance(device, str):
        return _ordinal_of_name(device, None)
    kind = getattr(device, "type", None)
    if isinstance(kind, str) and hasattr(device, "index"):  # torch's
        return _ordinal_of_name(kind, device.index)
    library = type(device).__module__.partition(".")[0]
    attribute = {"cuda": "device_id", "cupy": "id", "numba": "id"}.get(library, "")
    number: Any = getattr(device, attribute, device)
    if not isinstance(number, bool) and hasattr(number, "__index__"):
        return operator.index(number)
    raise TypeError(
        'a device is an int, "cuda:0", a torch.device, or a device of aiostream, cuda.core, cupy '
        f"or numba, not {type(device).__name__}"
    )


def _ordinal_of_name(name: str, index: int | None) -> int:
    found = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", name)
    if found is None:
        raise ValueError(f'a CUDA device is called "cuda" or "cuda:0", not {name!r}')
    if index is not None:
        return operator.index(index)
    if found[1] is not None:
        return int(found[1])
    current = Context.get_current()
    return current._device_ordinal() if current is not None else 0


class Device(hints.Hinted):
    """A CUDA device, known by its ordinal. Devices compare equal by ordinal.

    Wherever you can pass a device, you can also pass what `ordinal` takes.

    Args:
        ordinal: The device's number, as CUDA counts (`CUDA_VISIBLE_DEVICES` applies). Or what other
            libraries call a device: `"cuda:0"`, a `torch.device`, a device of cuda.core, cupy or
            numba, or a numpy integer. `"cuda"` without a number is the device of the thread's
            current context, or else device 0, as in torch.

    Threads: any.

    Raises:
        NoDriverError: There is no CUDA driver.
        TypeError: This is not a device.
        ValueError: There is no device with this number.

    Example:
        >>> device = aiostream.Device("cuda:0")
        >>> device == aiostream.Device(0)
        True
        >>> int(device)
        0
    """

    def __init__(self, ordinal: DeviceLike = 0) -> None:
        number = _ordinal_of(ordinal)
        count = Device.count()
        if not 0 <= number < count:
            seen = "1 device, number 0" if count == 1 else f"{count} devices, from number 0 on"
            raise ValueError(f"there is no device {number}: CUDA sees {seen}")
        self._ordinal = number

    @staticmethod
    def count() -> int:
        """How many devices CUDA sees (`cuDeviceGetCount`)."""
        return int(driver.call("cuDeviceGetCount"))

    @property
    def name(self) -> str:
        """The device's name, such as `NVIDIA H200` (`cuDeviceGetName`)."""
        raw: bytes = driver.call("cuDeviceGetName", 256, driver.call("cuDeviceGet", self._ordinal))
        return raw.split(b"\0", 1)[0].decode()

    @property
    def primary_context(self) -> Context:
        """The device's primary context, which the CUDA runtime, torch and cupy use, too.

        The library retains it at the first use, until the process ends
        (`cuDevicePrimaryCtxRetain`).
        """
        handle = _primary.get(self._ordinal)
        if handle is not None:
            try:
                return Context.from_handle(handle)
            except ContextFailedError as error:
                if error.code != _CONTEXT_IS_DESTROYED:
                    raise
        # This is the first use, or the first after another library has called
        # cuDevicePrimaryCtxReset. That keeps the handle and changes the id.
        retained = int(
            driver.call("cuDevicePrimaryCtxRetain", driver.call("cuDeviceGet", self._ordinal))
        )
        # Two threads may both retain it, and get the same handle. The library never releases it, so
        # the second reference does no harm.
        _primary[self._ordinal] = retained
        return Context.from_handle(retained)

    @property
    def stream_priority_range(self) -> tuple[int, int]:
        """The least and the greatest priority of a stream (`cuCtxGetStreamPriorityRange`).

        A stream with a lower number goes first, so the greatest priority is the lower number.
        """
        with self.primary_context._pushed():
            least, greatest = driver.call("cuCtxGetStreamPriorityRange")
        return int(least), int(greatest)

    def __index__(self) -> int:
        return self._ordinal

    def __eq__(self, other: object) -> bool:
        return self._ordinal == other._ordinal if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        return hash(("aiostream.Device", self._ordinal))

    def __repr__(self) -> str:
        try:
            return f"<aiostream.Device {self._ordinal}: {self.name}>"
        except RuntimeError:  # this is a forked child
            return f"<aiostream.Device {self._ordinal}>"


def lost_context() -> tuple[Context, int] | None:
    """A lost context that the library uses, with the driver's code. `None` if all are healthy.

    A context that was only destroyed (709) counts if the library uses no other context of that
    device, and none has failed otherwise.
    """
    used = [context for context in list(_contexts.values()) if context._context_id is not None]
    codes = [(context, context.health()) for context in used]
    well = {context._ordinal for context, code in codes if code == 0}
    for context, code in codes:
        if code in _native.FATAL_CODES and code not in _DESTROYED:
            return context, code
    for context, code in codes:
        if code in _DESTROYED and context._ordinal not in well:
            return context, _CONTEXT_IS_DESTROYED
    return None


def _leave(check: turns.SuspensionCheck, entered: list[turns.SuspensionCheck]) -> str | None:
    """Ends a block. Returns what was wrong with it, or `None`.

    If blocks of other tasks lie above it on the stack, its context is popped after theirs.

    Args:
        check: The check of the block.
        entered: The list of the thread that has entered it. Not the thread's number, which a later
            thread may get.
    """
    check.is_left = True
    here = _blocks.entered
    # Only the top of the stack can be popped. A block of another task may lie above this one.
    while here and here[-1].is_left:
        here.pop()
        with contextlib.suppress(CudaError):  # other code has popped it
            driver.call("cuCtxPopCurrent")
    if entered is not here:
        # The thread that entered it pops the context at the end of a later block.
        return _TWO_THREADS
    return _AWAITED if check.end() else None


class Context(checks.NotCopied):
    """A CUDA context.

    You get one from `Device.primary_context`, `Stream.context`, `Context.from_handle` and
    `Context.get_current`. Contexts compare equal by the driver's id, which it never uses again. The
    library owns no context, so there is nothing to close.

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     stream.context == aiostream.Device(0).primary_context
        True
    """

    def __init__(self, handle: int, identity: int) -> None:
        self._handle = handle
        self._identity = identity
        # The watcher's id of the context. Any thread. All threads get the same number.
        self._context_id: int | None = None
        self._ordinal = -1  # of the device, once a call has needed it; any thread, one assignment
        # The wait lists of streams, by the driver's id of the stream, because the driver uses
        # handles again. Any thread, single dict operations. The oldest are dropped when there are
        # too many.
        self._wait_lists: dict[int, _native.WaitList] = {}
        self._of_thread = threading.local()  # the wait list of its per-thread stream
        # The retired streams that a new `Stream` may use again, by flags and priority. Any thread,
        # single operations of the dict and the lists.
        self._retired: dict[tuple[int, int], list[_native.Handle]] = {}
        # The handles of shared streams that `into_raw` gave away. `from_raw` shares them again, so
        # that they are not destroyed. Any thread, single operations.
        self._given_away: set[int] = set()

    @classmethod
    def from_handle(cls, handle: int) -> Context:
        """Returns the `Context` of a driver's handle (`CUcontext`). It owns and retains nothing.

        Args:
            handle: An int.

        Raises:
            TypeError, ValueError: This is not a handle. 0 is not one either, although the driver
                takes it as the current context.
            CudaError: The driver does not know it (`cuCtxGetId`).
        """
        handle = checks.handle(handle, "a CUDA context")
        if handle == 0:
            raise ValueError(
                "0 is no handle of a CUDA context: Context.get_current() gives the current one"
            )
        identity = int(driver.call("cuCtxGetId", driver.bindings().CUcontext(handle)))
        known = _contexts.get(identity)
        # If two threads make it at once, both get the one that was stored first. Two objects would
        # have two private streams, and two sets of wait lists.
        return known if known is not None else _contexts.setdefault(identity, cls(handle, identity))

    @classmethod
    def get_current(cls) -> Context | None:
        """Returns the calling thread's current context, or `None` (`cuCtxGetCurrent`)."""
        handle = int(driver.call("cuCtxGetCurrent"))
        return cls.from_handle(handle) if handle else None

    @property
    def handle(self) -> int:
        """The driver's `CUcontext`, as an int."""
        return self._handle

    @property
    def device(self) -> Device:
        """The context's device."""
        return Device(self._device_ordinal())

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Makes the context current in this thread for a `with` block (`cuCtxPushCurrent`).

        At the end of the block the previous context is current again. Do not await in the block,
        because the other tasks of the thread would use the context, too.

        Threads: enter and leave the block in one thread.

        Raises:
            CudaError: The driver refused.
            RuntimeError: At the end of the block: there was an await in it. If the block raised an
                error, you get that one, with a note.

        Example:
            >>> context = aiostream.Device(0).primary_context
            >>> with context.as_current():
            ...     aiostream.Context.get_current() == context
            True
        """
        self._push()
        entered, check = _blocks.entered, turns.SuspensionCheck()
        entered.append(check)
        try:
            yield
        except BaseException as error:
            if fault := _leave(check, entered):
                error.add_note(fault)
            raise
        if fault := _leave(check, entered):
            raise RuntimeError(fault)

    def _push(self) -> None:
        # Pushing a context that was destroyed would crash the process.
        if _native.context_is_gone(self._handle, self._identity):
            raise driver.error(
                _CONTEXT_IS_DESTROYED, "cuCtxPushCurrent", f"a context of {self._place()}"
            )
        driver.call("cuCtxPushCurrent", driver.bindings().CUcontext(self._handle))

    @contextlib.contextmanager
    def _pushed(self) -> Iterator[None]:
        """`as_current` for the library's own calls, which never await in it."""
        self._push()
        try:
            yield
        finally:
            driver.call("cuCtxPopCurrent")

    def _ensure_monitored(self) -> int:
        """Returns the id of this context in the watcher.

        The first call makes a private stream, which stays idle. The watcher queries that stream,
        because users may capture or destroy their own. Making a stream may block, so the first call
        must come from a place that makes a stream anyway, and never from a loop's path.
        """
        if self._context_id is None:
            process.start()
            self._device_ordinal()  # now, because a lost context no longer knows it
            with driver.relaxed(), self._pushed():
                flags = driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING.value
                made = [driver.call("cuStreamCreate", flags)]
                try:  # it empties the list if the stream is the watcher's from now on
                    self._context_id = _native.context_register(
                        self._handle, self._identity, int(made[0]), made
                    )
                finally:  # another thread was first, or there are too many contexts
                    for idle in made:
                        driver.call("cuStreamDestroy", idle)
        return self._context_id

    def _device_ordinal(self) -> int:
        """The number of its device. The driver is called once."""
        if self._ordinal < 0:
            with self._pushed():
                self._ordinal = int(driver.call("cuCtxGetDevice"))
        return self._ordinal

    def _place(self) -> str:
        """The name of the context in errors, such as `device 0`."""
        try:
            return f"device {self._device_ordinal()}"
        except CudaError:  # it is lost, or destroyed
            return repr(self)

    def health(self) -> int:
        """Returns 0, or the driver's code if the context has failed. It never blocks on GPU work.

        If the context has failed, the listeners of `on_context_failed` are called. The process
        ends if you have called `exit_on_context_failed`.

        Threads: any.

        Raises:
            CudaError: At the first use of the context: the driver refused to make a stream.

        Example:
            >>> aiostream.Device(0).primary_context.health()
            0
        """
        return _native.health(self._ensure_monitored())

    def _wait_list(self, stream: int, history: _native.History | None = None) -> _native.WaitList:
        """The wait list of the stream with this id. If you pass a history, it replaces the old."""
        known = self._wait_lists.get(stream) if history is None else None
        if known is None:
            # Copied in one step. An iterator would raise when another thread changes the dict.
            streams = list(self._wait_lists)
            for oldest in streams[: max(0, len(streams) - _MAX_WAIT_LISTS + 1)]:
                self._wait_lists.pop(oldest, None)
            made = _native.WaitList(self._ensure_monitored(), history or _native.History())
            if history is not None:
                self._wait_lists[stream] = made
            # If another thread was first, its list is used. A stream with two lists would lose the
            # order of its waits.
            known = self._wait_lists.setdefault(stream, made)
        return known

    def __eq__(self, other: object) -> bool:
        return self._identity == other._identity if isinstance(other, Context) else NotImplemented

    def __hash__(self) -> int:
        return hash(("aiostream.Context", self._identity))

    def __repr__(self) -> str:
        try:
            place = f" on device {self._device_ordinal()}"
        except RuntimeError:  # it is lost or destroyed, or this is a forked child
            place = ""
        return f"<aiostream.Context {self._handle:#x}{place}>"
