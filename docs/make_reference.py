"""Writes `docs/reference.md` from the library's docstrings.

    python docs/make_reference.py            # writes the page
    python docs/make_reference.py --check    # fails if the page is out of date

It lists every public name, and then every function of the CUDA driver's chapter on streams and
every method of the Rust crate's `Stream`, with their names here if these differ. What a name does,
and which driver it needs, is read from the library. `tests/project/test_reference.py` fails if a
name is missing, does not exist or has no docstring, or if no test uses a name that stands for such
a function. `site_hooks.py` takes the pages of the API reference from `api_pages`.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiostream
from aiostream._base import driver

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference.md"


class Row(NamedTuple):
    """A function or method of another library, and what it is called here."""

    theirs: str
    ours: list[str]


def row(theirs: str, ours: str) -> Row:
    """A row from text: names are separated by commas."""
    return Row(theirs, [name.strip() for name in ours.split(",")])


# The chapter "Stream Management" of the driver's manual, from CUDA 7 to 13, and what newer headers
# add to it.
DRIVER = [
    row("cuStreamCreate", "Stream"),
    row("cuStreamCreateWithPriority", "Stream"),
    row("cuStreamDestroy", "Stream.close, Stream.shutdown, Stream.aclose"),
    row("cuStreamSynchronize", "Stream.synchronize, Stream.synchronize_async"),
    row("cuStreamQuery", "Stream.query"),
    row("cuStreamWaitEvent", "Stream.wait_event"),
    row("cuStreamAddCallback", "Stream.add_callback"),
    row("cuLaunchHostFunc", "Stream.launch_host_func"),
    row("cuLaunchHostFunc_v2", "Stream.launch_host_func, HostFunctionSync"),
    row("cuStreamGetFlags", "Stream.flags"),
    row("cuStreamGetPriority", "Stream.priority"),
    row("cuStreamGetId", "Stream.id"),
    row("cuStreamGetDevice", "Stream.device"),
    row("cuStreamGetCtx", "Stream.context"),
    row("cuStreamGetCtx_v2", "Stream.green_context"),
    row("cuStreamGetAttribute", "Stream.get_attribute, StreamAttribute"),
    row(
        "cuStreamSetAttribute",
        "Stream.set_attribute, AccessPolicyWindow, SynchronizationPolicy, MemSyncDomainMap",
    ),
    row("cuStreamCopyAttributes", "Stream.copy_attributes"),
    row("cuStreamAttachMemAsync", "Stream.attach_mem_async, MemAttach"),
    row("cuStreamBeginCapture", "Stream.begin_capture, CaptureMode"),
    row("cuStreamBeginCaptureToGraph", "Stream.begin_capture_to_graph"),
    row("cuStreamEndCapture", "Stream.end_capture"),
    row("cuStreamIsCapturing", "Stream.capture_status, CaptureStatus"),
    row("cuStreamGetCaptureInfo", "Stream.capture_info, CaptureInfo"),
    row("cuStreamGetCaptureInfo_v2", "Stream.capture_info"),
    row("cuStreamGetCaptureInfo_v3", "Stream.capture_info"),
    row(
        "cuStreamUpdateCaptureDependencies", "Stream.update_capture_dependencies, DependencyUpdate"
    ),
    row("cuStreamUpdateCaptureDependencies_v2", "Stream.update_capture_dependencies"),
    row("cuThreadExchangeStreamCaptureMode", "capture_mode, exchange_capture_mode"),
    row("cudaThreadExchangeStreamCaptureMode", "capture_mode, exchange_capture_mode"),
    row("cuCtxGetStreamPriorityRange", "Device.stream_priority_range"),
    row("cuStreamGetDevResource", "Stream.dev_resource, DevResourceType"),
    row("cuStreamBeginRecaptureToGraph", "Stream.begin_recapture_to_graph"),
    row("cuStreamWaitValue32", "Stream.wait_value, WaitValueFlags"),
    row("cuStreamWaitValue64", "Stream.wait_value"),
    row("cuStreamWriteValue32", "Stream.write_value, WriteValueFlags"),
    row("cuStreamWriteValue64", "Stream.write_value"),
    row(
        "cuStreamBatchMemOp",
        "Stream.batch_mem_op, WaitValue, WriteValue, FlushRemoteWrites, MemoryBarrier",
    ),
]

# The methods of the Rust `Stream`, and of the types that it gives.
RUST = [
    row("completion_future", "Stream.completion_future"),
    row("checked_completion_future", "Stream.checked_completion_future"),
    row("synchronize_async", "Stream.synchronize_async"),
    row("enqueue_async", "Stream.enqueue_async"),
    row("from_raw", "Stream.from_raw"),
    row("into_raw", "Stream.into_raw"),
    row("as_raw", "Stream.handle"),
    row("to_borrowed, BorrowedStream", "Stream.to_borrowed"),
    row("BorrowedStream of other libraries", "Stream.borrow, Stream.core"),
    row("sync_scope", "Stream.sync_scope"),
    row("synchronize", "Stream.synchronize"),
    row("query", "Stream.query"),
    row("shutdown", "Stream.shutdown"),
    row("wait_event", "Stream.wait_event"),
    row("wait_event_with_flags", "Stream.wait_event, WaitEventFlags"),
    row("begin_capture", "Stream.begin_capture"),
    row("end_capture", "Stream.end_capture"),
    row("capture_status", "Stream.capture_status"),
    row("capture_info, StreamCaptureInfo", "Stream.capture_info, CaptureInfo"),
    row("begin_capture_to_graph", "Stream.begin_capture_to_graph"),
    row(
        "begin_capture_to_graph_with_data, _with_dependencies",
        "Stream.begin_capture_to_graph, GraphDependency",
    ),
    row(
        "update_capture_dependencies, _with_mode",
        "Stream.update_capture_dependencies, DependencyUpdate",
    ),
    row(
        "update_capture_dependencies_with_data, _with_dependencies",
        "Stream.update_capture_dependencies, GraphDependency",
    ),
    row("capture", "Stream.capture, CaptureScope.graph"),
    row(
        "capture_executable, _with_flags",
        "Stream.capture_executable, CaptureScope.executable, InstantiateFlags",
    ),
    row("add_callback", "Stream.add_callback"),
    row("launch_host_func", "Stream.launch_host_func"),
    row("flags, StreamFlags", "Stream.flags, StreamFlags"),
    row("priority", "Stream.priority"),
    row("id", "Stream.id"),
    row("device", "Stream.device"),
    row("context", "Stream.context"),
    row("Context::create_stream_with_flags, _with_priority", "Stream"),
    row("Device::stream_priority_range", "Device.stream_priority_range"),
    row("Event::record", "Event.record"),
    row("Event::query, synchronize", "Event.query, Event.synchronize"),
    row("Event::synchronize_async_on", "Event.synchronize_async"),
    row("Event::elapsed_time", "Event.elapsed_time"),
    row(
        "Event::completion_future_on, checked_completion_future_on",
        "Event.completion_future_on, Event.checked_completion_future_on",
    ),
    row("Graph", "Graph, Graph.nodes, Graph.clone"),
    row("Graph::debug_dot", "Graph.debug_dot, DebugDotFlags"),
    row("Graph::instantiate, GraphInstantiateFlags", "Graph.instantiate, InstantiateFlags"),
    row("ExecutableGraph::launch", "ExecutableGraph.launch"),
    row("ExecutableGraph::launch_async", "ExecutableGraph.launch_async"),
    row("ExecutableGraph::launch_and_wait", "ExecutableGraph.launch_and_wait"),
    row("ExecutableGraph::upload", "ExecutableGraph.upload"),
    row(
        "ExecutableGraph::upload_async, upload_and_wait",
        "ExecutableGraph.upload_async, ExecutableGraph.upload_and_wait",
    ),
    row("ExecutableGraph::update", "ExecutableGraph.update, GraphUpdateError, GraphUpdateResult"),
    row("GraphNode", "GraphNode.type, GraphNode.dependencies, GraphNode.dependents, GraphNodeType"),
    row("GraphEdgeData", "GraphEdgeData, GraphDependencyType"),
    row("GraphDependency", "GraphDependency"),
    row("StreamCaptureMode", "CaptureMode"),
    row("StreamCaptureStatus", "CaptureStatus"),
    row("StreamCaptureDependencyUpdate", "DependencyUpdate"),
    row("Status", "CudaError"),
]

# The headings of `reference.md`, which are pages of the site's API reference too, and the names
# under each.
GROUPS = {
    "Streams": "Stream StreamPool StreamFlags HostFunctionSync",
    "Waiting": "CompletionFuture WaitStrategy default_wait set_default_wait wait as_completed"
    " ready drain",
    "Events": "Event WaitEventFlags",
    "Devices and contexts": "Device Context DevResource DevResourceType",
    "Capture": "CaptureScope CaptureInfo CaptureMode CaptureStatus DependencyUpdate RecaptureStatus"
    " capture_mode exchange_capture_mode",
    "Graphs": "Graph ExecutableGraph GraphNode GraphNodeType GraphDependency GraphEdgeData"
    " GraphDependencyType InstantiateFlags GraphInstantiateResult GraphUpdateResult"
    " DebugDotFlags",
    "Attributes": "StreamAttribute AccessPolicyWindow AccessProperty SynchronizationPolicy"
    " MemSyncDomain MemSyncDomainMap",
    "Memory operations": "WaitValue WriteValue MemoryBarrier FlushRemoteWrites WaitValueFlags"
    " WriteValueFlags MemoryBarrierType MemAttach",
    "Errors": "CudaError StreamCaptureError ContextFailedError OutOfMemoryError NotSupportedError"
    " GraphUpdateError StreamClosedError StalledError PoolFullError NoDriverError"
    " health on_context_failed on_stalled exit_on_context_failed",
    "Statistics": "statistics Statistics PointCounts FutureCounts WaitCounts HandleCounts"
    " pending PendingWait",
}

# The page has a sentence for each method of these. Other classes have a list of names.
SENTENCES = {"Stream", "StreamPool", "Event"}

_REFERENCE_HEAD = """# Names

This page is for those who look a name up: every public name, by subject.
`help(aiostream.Stream.capture)` says more, and so does the API reference of the site.
At the end are the [functions of the driver](#functions-of-the-driver) and the \
[methods of the Rust crate](#methods-of-the-rust-stream), with their names here.
"""

_DRIVER_HEAD = """## Functions of the driver

Every function of the manual's chapter "Stream Management" from CUDA 7 to 13 is here.
Most have the name that you expect: `cuStreamGetPriority` is `Stream.priority`.
The others are listed.
The library needs a driver of CUDA 12.0, and here these functions need a newer one: {}.
"""

_CRATE = "https://docs.rs/singe-cuda/latest/singe_cuda/stream/struct.Stream.html"
_RUST_HEAD = f"""## Methods of the Rust Stream

aiostream follows the names of [singe-cuda]({_CRATE}), except for these.
"""

_DOCSTRING_ONLY = "{members: false, show_root_heading: false, show_root_toc_entry: false}"

_END = """Next: [which call](which-wait.md) to use, and the [errors](errors.md) that you may meet.
"""


def find(name: str) -> Any:
    """What a name stands for; raises `AttributeError` if there is no such thing."""
    found: Any = aiostream
    for part in name.split("."):
        found = getattr(found, part)
    return found


def text_of(thing: Any) -> str:
    """Its docstring, or nothing."""
    return inspect.getdoc(thing) or ""


def text_of_constant(name: str) -> str:
    """The string that follows a constant's assignment in its module. Python does not keep it."""
    module_name, _, constant = name.rpartition(".")
    source = inspect.getsource(importlib.import_module(f"aiostream.{module_name}"))
    lines = ast.parse(source).body
    for line, following in itertools.pairwise(lines):
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == constant:
            return str(ast.literal_eval(ast.unparse(following)))
    raise LookupError(f"{name} has no description")


def first_sentence(thing: Any) -> str:
    """The first sentence of its docstring."""
    text = re.sub(r"\s+", " ", text_of(thing).split("\n\n")[0]).strip()
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0]


def summary(name: str) -> str:
    """The first sentence of a name's docstring."""
    return first_sentence(find(name))


# ------------------------------------------------------------------------------------ all names


def submodules() -> list[str]:
    """The modules of the package that have public names of their own, such as `simulator`."""
    found = []
    for module in pkgutil.iter_modules(aiostream.__path__):
        if module.name.startswith("_"):
            continue
        names = getattr(importlib.import_module(f"aiostream.{module.name}"), "__all__", [])
        if set(names) - set(aiostream.__all__):
            found.append(module.name)
    return found


def members(public: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that the library itself defines."""
    seen: dict[str, Any] = {}
    for base in public.__mro__:
        if base.__module__.startswith("aiostream"):
            for name, value in vars(base).items():
                plain = getattr(value, "__func__", value)
                if not name.startswith("_") and (callable(plain) or isinstance(value, property)):
                    seen.setdefault(name, value)
    yield from seen.items()


def groups() -> dict[str, list[str]]:
    """The public names under each heading: those of the package, and then those of its modules."""
    found = {title: names.split() for title, names in GROUPS.items()}
    for module in submodules():
        names = importlib.import_module(f"aiostream.{module}").__all__
        own = [f"{module}.{name}" for name in names if name not in aiostream.__all__]
        found[f"`aiostream.{module}`"] = own
    return found


def api_pages() -> dict[str, str]:
    """The pages of the site's API reference, by their addresses."""
    found = {}
    for title, names in groups().items():
        module = title.startswith("`")
        page = title.strip("`").removeprefix("aiostream.").split()[0].lower()
        parts = [f"# {title}", *(f"::: aiostream.{name}" for name in names)]
        if module:  # its docstring only, because its names have their own lines
            parts.insert(1, f"::: aiostream.{page}\n    options: {_DOCSTRING_ONLY}")
        found[f"api/{page}.md"] = "\n\n".join(parts) + "\n"
    return found


def entry(name: str) -> list[str]:
    """The lines of the page for one public name."""
    thing = find(name)
    about = text_of_constant(name) if isinstance(thing, tuple) else first_sentence(thing)
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        theirs = re.search(r" \(`CU\w+`", about)
        return [f"- `{name}`{theirs[0] + ')' if theirs else ''}: {code(thing.__members__)}."]
    rows = list(members(thing)) if isinstance(thing, type) else []
    said = [key for key, value in rows if name in SENTENCES and not isinstance(value, property)]
    rest = [key for key, _ in rows if key not in said]
    also = f" {'Also' if said else 'Members'}: {code(rest)}." if rest else ""
    lines = [f"- `{name}.{key}`: {first_sentence(value)}" for key, value in rows if key in said]
    return [f"- `{name}`: {about}{also}", *lines]


def reference_page() -> str:
    """`reference.md`."""
    parts = [_REFERENCE_HEAD]
    for title, names in groups().items():
        about = first_sentence(find(title[11:-1])) + "\n" if title.startswith("`") else ""
        parts += [f"## {title}\n", *([about] if about else [])]
        parts += [*itertools.chain.from_iterable(map(entry, names)), ""]
    parts += [*driver_list(), _RUST_HEAD, *other_names(RUST), _END]
    return "\n".join(parts).rstrip() + "\n"


# ------------------------------------------------------------------------------- names of others


def code(names: Iterable[str]) -> str:
    """Names, as code."""
    return ", ".join(f"`{name}`" for name in names)


def driver_list() -> list[str]:
    """The names here of the driver's functions, and the versions that these need."""
    needed = {row.theirs: driver.MINIMUM.get(row.theirs, 0) for row in DRIVER}
    newer = [f"`{name}` {at // 1000}.{at % 1000 // 10}" for name, at in needed.items() if at]
    return [_DRIVER_HEAD.format(", ".join(newer)), *other_names(DRIVER)]


def other_names(rows: list[Row]) -> list[str]:
    """The names here of those of another library that are not the same."""
    others = [row for row in rows if plain(row.theirs.split(",")[0]) != plain(row.ours[0])]
    return [*(f"- `{each.theirs}`: {code(each.ours)}" for each in others), ""]


def plain(name: str) -> str:
    """A name's letters, without what its spelling in another library adds."""
    return re.sub(r"^(cu)?(Stream)?|(32|64|_v\d)$|get_|Get|[\W_]", "", name).lower()


def pages() -> dict[Path, str]:
    """What the page should be."""
    return {REFERENCE: reference_page()}


def main() -> None:
    """Writes the page, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page is out of date"
    )
    check = parser.parse_args().check
    for path, text in pages().items():
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path} is out of date: run python docs/make_reference.py")


if __name__ == "__main__":
    main()
