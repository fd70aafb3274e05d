"""Await CUDA streams from asyncio and trio.

Example:
    >>> async with aiostream.Stream() as stream:
    ...     await stream.run(lambda: "launched, and done")
    'launched, and done'
"""

import os

# Modules import downwards only, in the order that docs/design.md draws.
from aiostream._base import driver as _driver
from aiostream._objects.attributes import AccessPolicyWindow, MemSyncDomainMap
from aiostream._objects.memory import (
    DevResource,
    FlushRemoteWrites,
    MemoryBarrier,
    WaitValue,
    WriteValue,
)
from aiostream._objects.nodes import GraphDependency, GraphEdgeData, GraphNode
from aiostream._runtime import process as _process
from aiostream._runtime.statistics import (
    FutureCounts,
    HandleCounts,
    PointCounts,
    Statistics,
    WaitCounts,
    statistics,
)
from aiostream._servers.ending import drain
from aiostream._servers.health import exit_on_context_failed, health, on_context_failed
from aiostream._servers.health import notice_failures as _notice_failures
from aiostream._waits.several import as_completed, wait
from aiostream._waits.waiting import default_wait, set_default_wait
from aiostream.capture import CaptureInfo, CaptureScope, capture_mode, exchange_capture_mode
from aiostream.device import Context, Device
from aiostream.enums import (
    AccessProperty,
    CaptureMode,
    CaptureStatus,
    DebugDotFlags,
    DependencyUpdate,
    DevResourceType,
    GraphDependencyType,
    GraphInstantiateResult,
    GraphNodeType,
    GraphUpdateResult,
    HostFunctionSync,
    InstantiateFlags,
    MemAttach,
    MemoryBarrierType,
    MemSyncDomain,
    RecaptureStatus,
    StreamAttribute,
    StreamFlags,
    SynchronizationPolicy,
    WaitEventFlags,
    WaitStrategy,
    WaitValueFlags,
    WriteValueFlags,
)
from aiostream.errors import (
    ContextFailedError,
    CudaError,
    GraphUpdateError,
    NoDriverError,
    NotSupportedError,
    OutOfMemoryError,
    PoolFullError,
    StreamCaptureError,
    StreamClosedError,
)
from aiostream.event import Event
from aiostream.futures import CompletionFuture
from aiostream.graph import ExecutableGraph, Graph
from aiostream.pool import StreamPool
from aiostream.stream import Stream


def _trace_if_asked() -> None:
    if os.environ.get("AIOSTREAM_TRACE"):
        from aiostream import trace

        trace.begin_from_environment()


_driver.prepare_simulator()
_process.before_first_use += [_notice_failures, _trace_if_asked]

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
    "PointCounts",
    "PoolFullError",
    "RecaptureStatus",
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
    "set_default_wait",
    "statistics",
    "wait",
]
