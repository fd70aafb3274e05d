"""Await CUDA streams from asyncio and trio.

`Stream` and `StreamPool` are what a program begins with. `Event`, `wait`, `as_completed` and
`drain` are the other things to await, and `statistics` and `health` say how the process does.
`aiostream.blocking`, `metrics`, `serving`, `simulator`, `testing` and `trace` are loaded at their
first use.

Example:
    >>> async with aiostream.Stream() as stream:
    ...     await stream.run(lambda: "launched, and done")
    'launched, and done'
"""

import importlib as _importlib
import os as _os
import typing as _typing

# Modules import downwards only, in the order that docs/design.md draws.
from aiostream._base import driver as _driver
from aiostream._base import hints as _hints
from aiostream._ends.ending import drain
from aiostream._ends.health import exit_on_context_failed, health, on_context_failed, on_stalled
from aiostream._ends.health import notice_failures as _notice_failures
from aiostream._objects.attributes import AccessPolicyWindow, MemSyncDomainMap
from aiostream._objects.memory import *
from aiostream._objects.nodes import GraphDependency, GraphEdgeData, GraphNode
from aiostream._runtime import process as _process
from aiostream._runtime.statistics import *
from aiostream._waits.pending import PendingWait, pending
from aiostream._waits.ready import ready
from aiostream._waits.several import as_completed, wait
from aiostream._waits.strategies import default_wait, set_default_wait
from aiostream.capture import CaptureInfo, CaptureScope, capture_mode, exchange_capture_mode
from aiostream.device import Context, Device
from aiostream.enums import *
from aiostream.errors import *
from aiostream.event import Event
from aiostream.futures import CompletionFuture
from aiostream.graph import ExecutableGraph, Graph
from aiostream.pool import StreamPool
from aiostream.stream import Stream

_LOADED_AT_FIRST_USE = ["blocking", "metrics", "serving", "simulator", "testing", "trace"]

if _typing.TYPE_CHECKING:
    from aiostream import blocking as blocking
    from aiostream import metrics as metrics
    from aiostream import serving as serving
    from aiostream import simulator as simulator
    from aiostream import testing as testing
    from aiostream import trace as trace
else:  # hidden from type checkers, because they would take every name for an attribute

    def __getattr__(name: str) -> object:
        if name in _LOADED_AT_FIRST_USE:
            return _importlib.import_module(f"aiostream.{name}")
        raise _hints.missing("aiostream", "module 'aiostream'", name)


def __dir__() -> list[str]:
    return [*__all__, *_LOADED_AT_FIRST_USE, "__version__"]


_driver.prepare_simulator()
_process.before_first_use.append(_notice_failures)
if _os.environ.get("AIOSTREAM_BLOCKING"):
    _importlib.import_module("aiostream.blocking").begin_from_environment()
if _os.environ.get("AIOSTREAM_TRACE"):
    _importlib.import_module("aiostream.trace").begin_from_environment()

__version__ = "0.1.0"
__all__ = [
    "AccessPolicyWindow",
    "AccessProperty",
    "CaptureInfo",
    "CaptureMode",
    "CaptureScope",
    "CaptureStatus",
    "CompletionFuture",
    "Context",
    "ContextFailedError",
    "CudaError",
    "DebugDotFlags",
    "DependencyUpdate",
    "DevResource",
    "DevResourceType",
    "Device",
    "Event",
    "ExecutableGraph",
    "FlushRemoteWrites",
    "FutureCounts",
    "Graph",
    "GraphDependency",
    "GraphDependencyType",
    "GraphEdgeData",
    "GraphInstantiateResult",
    "GraphNode",
    "GraphNodeType",
    "GraphUpdateError",
    "GraphUpdateResult",
    "HandleCounts",
    "HostFunctionSync",
    "InstantiateFlags",
    "MemAttach",
    "MemSyncDomain",
    "MemSyncDomainMap",
    "MemoryBarrier",
    "MemoryBarrierType",
    "NoDriverError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PendingWait",
    "PointCounts",
    "PoolFullError",
    "RecaptureStatus",
    "StalledError",
    "Statistics",
    "Stream",
    "StreamAttribute",
    "StreamCaptureError",
    "StreamClosedError",
    "StreamFlags",
    "StreamPool",
    "SynchronizationPolicy",
    "WaitCounts",
    "WaitEventFlags",
    "WaitStrategy",
    "WaitValue",
    "WaitValueFlags",
    "WriteValue",
    "WriteValueFlags",
    "as_completed",
    "capture_mode",
    "default_wait",
    "drain",
    "exchange_capture_mode",
    "exit_on_context_failed",
    "health",
    "on_context_failed",
    "on_stalled",
    "pending",
    "ready",
    "set_default_wait",
    "statistics",
    "wait",
]
