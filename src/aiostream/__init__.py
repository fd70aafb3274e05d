"""Await CUDA streams from asyncio and trio, woken by the GPU itself."""

from aiostream import _clash as _clash

if (_found := _clash.other_distribution()) is not None:
    raise ImportError(_clash.MESSAGE.format(path=_found))

# Modules import downwards only; `tests/test_house.py` holds the order:
#   stream > event > waiting > hostfunc > interop, _ledger, _loops > futures > device > _process > _points > _driver
#   > errors, enums, _native, _clash
from aiostream._ledger import FutureCounts, HandleCounts, PointCounts, Statistics, WaitCounts, statistics
from aiostream.device import Context, Device
from aiostream.enums import StreamFlags, WaitEventFlags, WaitStrategy
from aiostream.errors import (
    ContextFailedError,
    CudaError,
    NoDriverError,
    NotSupportedError,
    OutOfMemoryError,
    StreamCaptureError,
    StreamClosedError,
)
from aiostream.event import Event
from aiostream.futures import CompletionFuture
from aiostream.stream import Stream
from aiostream.waiting import default_wait, set_default_wait

__version__ = "0.1.0"
__all__ = [
    "CompletionFuture",
    "Context",
    "ContextFailedError",
    "CudaError",
    "Device",
    "Event",
    "FutureCounts",
    "HandleCounts",
    "NoDriverError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PointCounts",
    "Statistics",
    "Stream",
    "StreamCaptureError",
    "StreamClosedError",
    "StreamFlags",
    "WaitCounts",
    "WaitEventFlags",
    "WaitStrategy",
    "default_wait",
    "set_default_wait",
    "statistics",
]
