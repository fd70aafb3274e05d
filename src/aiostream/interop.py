"""Streams and events of other libraries: how their handles are found.

Whatever has `__cuda_stream__` (cuda.core, torch from 2.10, cupy from 14, numba-cuda, rmm, cuda.bindings from 13.1) names its
stream itself; older objects are known by the attribute that their library documents.
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from typing import Any

from aiostream import _arguments, _process
from aiostream._reference import HasReference, Reference, context_of, name_of, new_handle

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
