"""Streams and events of other libraries: how their handles are found.

Whatever has `__cuda_stream__` (cuda.core, torch from 2.10, cupy from 14, numba-cuda, rmm, cuda.bindings from 13.1) names its
stream itself; older objects are known by the attribute that their library documents.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from aiostream import _arguments, _driver, _native, _process, errors
from aiostream.device import Context, Device, DeviceLike

LEGACY = 1
PER_THREAD = 2
_HANDLE_STREAM = _native.HANDLE_STREAM
CurrentStream = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(slots=True, eq=False)
class Common:
    """What a stream and all that are borrowed from it share."""

    # By the name of a library with a current stream: what makes this stream that for a block. Any
    # thread, single dict operations.
    currents: dict[str, CurrentStream] = field(default_factory=dict)
    # Of what worker threads have left behind: its lengths are not those of other waits. Any thread
    # may make it; one assignment.
    thread_waits: _native.WaitList | None = None
    # An item for each use that only the thread which asks can end: a block of `as_current`, a call
    # of `enqueue_in_thread`. Any thread, single list operations.
    held: list[object] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Reference:
    """What is needed to use a stream, or to wait for an event, whoever owns it."""

    handle: _native.Handle
    context: Context
    name: str
    wait_list: _native.WaitList | None = (
        None  # of a stream; any thread may find it, and all find the same
    )
    history: _native.History | None = None  # of an event
    is_event: bool = False
    common: Common = field(default_factory=Common)


@runtime_checkable
class HasReference(Protocol):
    """Our own `Stream`, which stands above this module."""

    _reference: Reference  # the stream's handle and context


_STREAM_NAMES = frozenset(("CUstream", "cudaStream_t"))
_EVENT_NAMES = frozenset(("CUevent", "cudaEvent_t"))
_KINDS = (
    "stream",
    "event",
    "graph",
    "context",
)  # what else has a `handle` or a `ptr`: the driver would take it for the other


def stream_handle(stream: Any) -> int:
    """The driver's handle of anybody's stream, as an int.

    Raises:
        TypeError: It is nothing that names a CUDA stream.
        ValueError: It is an int that is no handle.
    """
    what = "a CUDA stream"
    if _arguments.is_integer(stream):
        return _arguments.handle(stream, what)
    protocol = None if isinstance(stream, type) else getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return _from_protocol(type(stream).__name__, protocol() if callable(protocol) else protocol)
    _refuse_other_kind(stream, "stream", what)
    handle = _find_handle(
        stream, ("cuda_stream", "ptr", "handle"), _STREAM_NAMES, what
    )  # torch; cupy; numba, rmm and others
    if handle is None:
        raise TypeError(
            "a CUDA stream is needed (an object with __cuda_stream__, a torch, cupy or numba stream, or a handle as an int), not "
            f"{type(stream).__name__}"
        )
    return handle


def _from_protocol(name: str, answer: Any) -> int:
    try:
        version, handle = answer
    except (TypeError, ValueError):
        raise TypeError(f"{name}.__cuda_stream__ gives (0, handle), not {answer!r}") from None
    if version != 0:
        raise TypeError(
            f"{name}.__cuda_stream__ is of version {version}; aiostream knows version 0"
        )
    if type(handle).__name__ in _STREAM_NAMES:
        return int(handle)
    if not _arguments.is_integer(handle):
        raise TypeError(
            f"{name}.__cuda_stream__ gives (0, handle), and a handle is an int, not {type(handle).__name__}"
        )
    return _arguments.handle(handle, "a CUDA stream")


def event_handle(event: Any) -> int:
    """The driver's handle of anybody's event, as an int.

    Raises:
        TypeError: It is nothing that names a CUDA event.
        ValueError: It is an int that is no handle.
    """
    what = "a CUDA event"
    if _arguments.is_integer(event):
        return _arguments.handle(event, what)
    _refuse_other_kind(event, "event", what)
    handle = _find_handle(
        event, ("cuda_event", "ptr", "handle"), _EVENT_NAMES, what
    )  # torch; cupy; cuda.core and numba
    if handle is None:
        raise TypeError(
            f"a CUDA event is needed (an aiostream, cuda.core, torch or cupy event, or a handle), not {type(event).__name__}"
        )
    return handle


def is_unmade(event: Any) -> bool:
    """Whether it is an event of torch that was never recorded: torch makes the driver's event at the first record."""
    return getattr(event, "cuda_event", None) == 0


def _find_handle(
    thing: Any, attributes: tuple[str, ...], types: frozenset[str], what: str
) -> int | None:
    """The handle of an object that has it as one of these attributes, or is one of the bindings' handles itself."""
    for attribute in attributes:
        found = getattr(thing, attribute, None)
        if found is not None:
            break
    else:
        found = thing
    if type(found).__name__ in types:
        return int(found)
    if found is thing:
        return None
    number = found.value or 0 if isinstance(found, ctypes._SimpleCData) else found
    if not _arguments.is_integer(number):
        raise TypeError(
            f"{what} is needed, and {type(thing).__name__}.{attribute} is no handle of one: {found!r}"
        )
    return _arguments.handle(number, what)


def _refuse_other_kind(thing: Any, kind: str, what: str) -> None:
    """Refuses, by the names of its classes, what has a handle of another kind: the driver would use it as one of this kind."""
    if isinstance(thing, type):
        raise TypeError(f"{what} is needed, not the class {thing.__name__}")
    advice = ""
    if kind == "event" and hasattr(thing, "__cuda_stream__"):
        found = "stream"
    else:
        names = [base.__name__.lower() for base in type(thing).__mro__]
        if any(kind in name for name in names):
            return
        found = next((other for other in _KINDS for name in names if other in name), "")
    if kind == "event" and found == "stream":
        advice = ": record an event on the stream, and wait for that"
    elif kind == "stream" and found == "event":
        advice = ": Event.record(stream) and Stream.wait_event(event) connect the two"
    if found:
        raise TypeError(
            f"{what} is needed, not {type(thing).__name__}, which is of another kind{advice}"
        )


def raw_handle(handle: Any, what: str) -> int:
    """A handle that is taken over.

    Raises:
        TypeError: It is no int.
        ValueError: No handle has that number.
    """
    if not _arguments.is_integer(handle):
        raise TypeError(
            f"a raw handle is an int, not {type(handle).__name__}; borrow() takes objects"
        )
    return _arguments.handle(handle, what)


def graph_handle(graph: Any, executable: bool = False) -> int:
    """The driver's handle of anybody's graph, or executable graph, as an int.

    Raises:
        TypeError: It is nothing that names such a graph.
        ValueError: It is an int that is no handle.
    """
    kind = "an executable graph" if executable else "a graph"
    if _arguments.is_integer(graph):
        return _arguments.handle(graph, kind)
    wanted, attribute, method = (
        ("CUgraphExec", "graphExec", "raw_cuda_graph_exec") if executable else _GRAPH_NAMES
    )
    raw = getattr(graph, method, None)  # torch
    if raw is not None:
        return int(raw())
    found = (
        graph if type(graph).__name__ == wanted else getattr(graph, "handle", None)
    )  # cuda.bindings; cuda.core
    if type(found).__name__ == wanted:
        return int(found)  # type: ignore[arg-type]  # as its type's name says
    pointer = getattr(graph, attribute, None)  # cupy
    if isinstance(pointer, int):
        return pointer
    raise TypeError(
        f"{kind} is needed (of aiostream, cuda.core, torch or cupy, or a handle), not {type(graph).__name__}"
    )


_GRAPH_NAMES = ("CUgraph", "graph", "raw_cuda_graph")


def context_of(handle: int) -> Context:
    """The context in which a stream lives; for the legacy and per-thread streams, the current one or device 0's."""
    if handle <= PER_THREAD:
        return current_or_default_context()
    return Context.from_handle(
        int(_driver.call("cuStreamGetCtx", _driver.bindings().CUstream(handle)))
    )


def current_or_default_context(device: DeviceLike | None = None) -> Context:
    """The context for something new: of `device`, else the thread's current one, else device 0's primary."""
    if device is not None:
        return (device if isinstance(device, Device) else Device(device)).primary_context
    return Context.get_current() or Device(0).primary_context


def name_of(handle: int, context: Context) -> str:
    """What a stream is called in errors."""
    special = {
        0: "the legacy stream",
        LEGACY: "the legacy stream",
        PER_THREAD: "the per-thread stream",
    }.get(handle)
    return f"{special or f'stream {handle:#x}'} on {context._place()}"


def new_handle(
    value: int, context: Context, owned: bool, parent: _native.Handle | None = None
) -> _native.Handle:
    """A native handle of a stream; the special streams belong to the context that is current, so they need theirs."""
    return _native.Handle(
        _HANDLE_STREAM, value, context._handle, owned, value <= PER_THREAD, parent
    )


class _PerThread(threading.local):
    """The per-thread stream is another stream in each thread, so each thread has wait lists of its own for it."""

    def __init__(self) -> None:
        self.wait_lists: dict[int, _native.WaitList] = {}  # by the context's id


_per_thread = _PerThread()


def wait_list_of(reference: Reference) -> _native.WaitList:
    """The wait list of a stream, shared by all who refer to it. Call it in the thread that waits."""
    if reference.wait_list is not None:
        return reference.wait_list
    if reference.handle.value == PER_THREAD:
        context_id = reference.context._ensure_monitored()
        known = _per_thread.wait_lists.get(context_id)
        if known is None:
            known = _per_thread.wait_lists[context_id] = _native.WaitList(
                context_id, _native.History()
            )
        return known
    reference.wait_list = _find_wait_list(reference, None)
    return reference.wait_list


def share_history(references: Iterable[Reference]) -> None:
    """Lets the waits on several streams learn from each other: they run the same kinds of work."""
    history = _native.History()
    for reference in references:
        reference.wait_list = _find_wait_list(reference, history)


def _find_wait_list(reference: Reference, history: _native.History | None) -> _native.WaitList:
    handle, context = reference.handle, reference.context
    if handle.value <= LEGACY:
        return context._wait_list(LEGACY, history)
    # cuStreamGetId would end a capture of the stream. While there is one every wait is refused
    # anyway.
    held: list[bool] = []
    try:
        if _native.capture_refusal(handle) != 0 or not handle.pin(held):
            return _native.WaitList(context._ensure_monitored(), history or _native.History())
        identity = int(
            _driver.call(
                "cuStreamGetId", _driver.bindings().CUstream(handle.value), stream=reference.name
            )
        )
    finally:
        if held:
            handle.unpin()
    return context._wait_list(identity, history)


def reference_to(stream: Any) -> Reference:
    """A `Reference` to anybody's stream; one of ours is shared, and so refuses when it is closed."""
    if isinstance(stream, HasReference) and not stream._reference.is_event:
        return stream._reference
    value = stream_handle(stream)
    _process.start()  # also if the first stream that the library sees is another library's
    context = context_of(value)
    return Reference(new_handle(value, context, owned=False), context, name_of(value, context))


def note_source(reference: Reference, source: Any) -> None:
    """A stream was borrowed from `source`: if that is torch's or cupy's, it becomes their current one where ours does."""
    libraries = {base.__module__.partition(".")[0] for base in type(source).__mro__}
    if "torch" in libraries:
        use_torch_stream(reference, sys.modules["torch"], source)
    elif "cupy" in libraries:
        use_cupy_stream(reference, source)


def use_torch_stream(reference: Reference, torch: Any, stream: Any) -> None:
    """From now on a torch stream is torch's current one wherever `reference` is current."""
    reference.common.currents["torch"] = partial(torch.cuda.stream, stream)


def use_cupy_stream(reference: Reference, stream: Any) -> None:
    """From now on a cupy stream, which is its own context manager, is cupy's current one wherever `reference` is current."""
    reference.common.currents["cupy"] = lambda: stream


@contextlib.contextmanager
def current_in_libraries(reference: Reference) -> Iterator[None]:
    """Makes a stream that torch or cupy know their current one for a block. Its context is current already."""
    with contextlib.ExitStack() as stack:
        for make_current in list(reference.common.currents.values()):
            stack.enter_context(make_current())
        yield


def call_with(reference: Reference, call: Callable[[], Any], results: list[Any]) -> int:
    """Calls `call` with a pinned stream and its context current, and appends its result to `results`: the driver's code."""
    if not reference.common.currents:
        return _native.call_in_context(reference.handle, call, results)
    with reference.context._pushed(), current_in_libraries(reference):
        # The innermost is the native call: no interrupt can come between the end of `call` and the
        # append.
        return _native.call_in_context(reference.handle, call, results)


@contextlib.contextmanager
def pinned(reference: Reference) -> Iterator[int]:
    """Keeps a stream's handle valid for a `with` block.

    Raises:
        StreamClosedError: The stream is closed.
    """
    held: list[bool] = []
    try:
        if not reference.handle.pin(held):
            raise errors.closed(reference.name)
        yield reference.handle.value
    finally:
        if held:
            reference.handle.unpin()


def call_on(reference: Reference, name: str, *args: Any) -> Any:
    """Calls the driver through the bindings on a stream, pinned, in its context if it is a special one."""
    with pinned(reference) as value:
        scope = reference.context._pushed() if value <= PER_THREAD else contextlib.nullcontext()
        with scope:
            return _driver.call(
                name, _driver.bindings().CUstream(value), *args, stream=reference.name
            )


def refuse_capture(reference: Reference, name: str) -> None:
    """Refuses, before the stream is touched, a question that might end its capture.

    Raises:
        StreamCaptureError: It captures; the capture goes on.
    """
    with pinned(reference):
        code = _native.capture_refusal(reference.handle)
    if code < 0:
        raise _driver.error(
            -code,
            name,
            reference.name,
            "The stream is capturing; the call was refused and the capture goes on",
        )
    if code > 0:
        raise _driver.error(code, "cuStreamIsCapturing", reference.name)
