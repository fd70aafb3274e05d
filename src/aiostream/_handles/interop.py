"""Other libraries' streams, events and graphs: how the library finds their handles.

An object with `__cuda_stream__` names its stream itself. The streams of cuda.core, torch (2.10),
cupy (14), numba-cuda, rmm and cuda.bindings (13.1) have it. Older ones have an attribute that their
library documents.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from aiostream._base import checks
from aiostream._handles.operand import Operand, WithOperand, context_of, name_of, new_handle
from aiostream._runtime import process

# The kinds of objects with a `handle` or a `ptr`. The driver does not check the kind of a handle.
# If it got an event for a stream, it would crash.
_KINDS = ("stream", "event", "graph", "context")
_CONNECTS = {
    ("event", "stream"): ": record an event on the stream, and wait for that",
    ("stream", "event"): ": Event.record(stream) and Stream.wait_event(event) connect the two",
}


def stream_handle(stream: Any) -> int:
    """Returns the driver's handle of any library's stream, as an int.

    Raises:
        TypeError: It does not name a CUDA stream.
        ValueError: It is an int that cannot be a handle.
    """
    protocol = None if isinstance(stream, type) else getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return _from_protocol(type(stream).__name__, protocol() if callable(protocol) else protocol)
    accepted = (
        "an object with __cuda_stream__, a torch, cupy or numba stream, or a handle as an int"
    )
    return _find_handle(stream, "stream", accepted)


def _from_protocol(name: str, answer: Any) -> int:
    try:
        version, handle = answer
    except (TypeError, ValueError):
        raise TypeError(f"{name}.__cuda_stream__ gives (0, handle), not {answer!r}") from None
    if version != 0:
        raise TypeError(
            f"{name}.__cuda_stream__ is of version {version}, and aiostream supports version 0"
        )
    if type(handle).__name__ in _names_of("stream"):
        handle = int(handle)
    what = f"{name}.__cuda_stream__ gives (0, handle), and a handle"
    return checks.handle(checks.integer(what, handle), checks.STREAM)


def event_handle(event: Any) -> int:
    """Returns the driver's handle of any library's event, as an int.

    Raises:
        TypeError: It does not name a CUDA event.
        ValueError: It is an int that cannot be a handle.
    """
    return _find_handle(event, "event", "an aiostream, cuda.core, torch or cupy event, or a handle")


def _names_of(kind: str) -> tuple[str, str]:
    return f"CU{kind}", f"cuda{kind.title()}_t"  # the types of the bindings, for driver and runtime


def _find_handle(thing: Any, kind: str, accepted: str) -> int:
    what = f"a CUDA {kind}"
    if checks.is_integer(thing):
        return checks.handle(thing, what)
    _refuse_other_kind(thing, kind, what)
    # The object has the handle as one of these attributes, or is a handle of the bindings itself.
    # torch; cupy; cuda.core, numba, rmm and others
    for attribute in (f"cuda_{kind}", "ptr", "handle"):
        found = getattr(thing, attribute, None)
        if found is not None:
            break
    else:
        found = thing
    if type(found).__name__ in _names_of(kind):
        return checks.handle(int(found), what)
    if found is thing:
        raise TypeError(f"{what} is needed ({accepted}), not {type(thing).__name__}")
    number = found.value or 0 if isinstance(found, ctypes._SimpleCData) else found
    if not checks.is_integer(number):
        raise TypeError(
            f"{what} is needed, and {type(thing).__name__}.{attribute} is not the handle of one: "
            f"{found!r}"
        )
    return checks.handle(number, what)


def _refuse_other_kind(thing: Any, kind: str, what: str) -> None:
    # They are known by the names of the classes, because the libraries have no common base class.
    if isinstance(thing, type):
        raise TypeError(f"{what} is needed, not the class {thing.__name__}")
    names = [base.__name__.lower() for base in type(thing).__mro__]
    kinds = [each for each in _KINDS if any(each in name for name in names)]
    if kind == "event" and hasattr(thing, "__cuda_stream__"):
        kinds = ["stream"]
    if kinds and kind not in kinds:
        advice = _CONNECTS.get((kind, kinds[0]), "")
        raise TypeError(
            f"{what} is needed, not {type(thing).__name__}, which is of another kind{advice}"
        )


def raw_handle(handle: Any, what: str) -> int:
    """Checks a handle that the caller gives to the library.

    Raises:
        TypeError: It is not an int.
        ValueError: It cannot be a handle.
    """
    if not checks.is_integer(handle):
        raise TypeError(
            f"a raw handle is an int, not {type(handle).__name__}: use borrow() for an object"
        )
    return checks.handle(handle, what)


_GRAPH_NAMES = ("CUgraph", "graph", "raw_cuda_graph")
_EXECUTABLE_NAMES = ("CUgraphExec", "graphExec", "raw_cuda_graph_exec")


def graph_handle(graph: Any, executable: bool = False) -> int:
    """Returns the driver's handle of any library's graph, or executable graph, as an int.

    Raises:
        TypeError: It does not name such a graph.
        ValueError: It is an int that cannot be a handle, or its handle is 0.
    """
    kind = "an executable graph" if executable else "a graph"
    number = checks.handle(_graph_number(graph, kind, executable), kind)
    if number == 0:
        giver = "" if checks.is_integer(graph) else f", and {type(graph).__name__} gives it"
        raise ValueError(f"0 is not the handle of {kind}{giver}")
    return number


def _graph_number(graph: Any, kind: str, executable: bool) -> int:
    if checks.is_integer(graph):
        return int(graph)
    wanted, attribute, method = _EXECUTABLE_NAMES if executable else _GRAPH_NAMES
    raw = getattr(graph, method, None)  # torch
    if raw is not None:
        return int(raw())
    # cuda.bindings; cuda.core
    found = graph if type(graph).__name__ == wanted else getattr(graph, "handle", None)
    if type(found).__name__ == wanted:
        return int(found)  # type: ignore[arg-type]  # as its type's name says
    pointer = getattr(graph, attribute, None)  # cupy
    if isinstance(pointer, int):
        return pointer
    raise TypeError(
        f"{kind} is needed (of aiostream, cuda.core, torch or cupy, or a handle), not "
        f"{type(graph).__name__}"
    )


def operand_of(stream: Any) -> Operand:
    """Returns a `Operand` to any library's stream.

    A stream of this library gives its own, which refuses each use after the stream is closed.
    """
    if isinstance(stream, WithOperand) and not stream._operand.is_event:
        return stream._operand
    value = stream_handle(stream)
    process.start()  # here too, because the first stream may be another library's
    context = context_of(value)
    return Operand(new_handle(value, context, owned=False), context, name_of(value, context))


def note_source(operand: Operand, source: Any) -> None:
    """Notes that a stream was borrowed from `source`.

    If that is torch's or cupy's stream, it becomes their current one where ours becomes current.
    """
    libraries = {base.__module__.partition(".")[0] for base in type(source).__mro__}
    if "torch" in libraries:
        use_torch_stream(operand, sys.modules["torch"], source)
    elif "cupy" in libraries:
        use_cupy_stream(operand, source)


def use_torch_stream(operand: Operand, torch: Any, stream: Any) -> None:
    """Makes a torch stream torch's current one wherever `operand` becomes current."""
    # `torch.cuda.stream` takes 9 us for this, `accelerator` (torch 2.6 on) 1.2. torch's device is
    # that of the context, which is current then.
    library, ordinal = getattr(torch, "accelerator", torch.cuda), operand.context._device_ordinal()

    def put() -> Any:
        before = library.current_stream(ordinal)
        library.set_stream(stream)
        return before

    operand.shared.currents["torch"] = put, library.set_stream


def use_cupy_stream(operand: Operand, stream: Any) -> None:
    """Makes a cupy stream cupy's current one wherever `operand` becomes current."""
    put_back = lambda _: stream.__exit__(None, None, None)  # noqa: E731
    operand.shared.currents["cupy"] = stream.__enter__, put_back
