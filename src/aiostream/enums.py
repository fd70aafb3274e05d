"""The driver's flags and modes, with its own values, and its own names without their prefix."""

from __future__ import annotations

import enum
from typing import Literal

__all__ = [
    "AccessProperty",
    "CaptureMode",
    "CaptureStatus",
    "DebugDotFlags",
    "DependencyUpdate",
    "DevResourceType",
    "GraphDependencyType",
    "GraphInstantiateResult",
    "GraphNodeType",
    "GraphUpdateResult",
    "HostFunctionSync",
    "InstantiateFlags",
    "MemAttach",
    "MemSyncDomain",
    "MemoryBarrierType",
    "RecaptureStatus",
    "StreamAttribute",
    "StreamFlags",
    "SynchronizationPolicy",
    "WaitEventFlags",
    "WaitStrategy",
    "WaitValueFlags",
    "WriteValueFlags",
]


class StreamFlags(enum.IntFlag):
    """How a stream was created (`CUstream_flags`)."""

    DEFAULT = 0
    """The stream and the legacy default stream wait for each other."""
    NON_BLOCKING = 1
    """They do not. This is what `Stream()` makes."""


class WaitEventFlags(enum.IntFlag, boundary=enum.STRICT):
    """What `Stream.wait_event` does with the event during a capture (`CUevent_wait_flags`)."""

    DEFAULT = 0
    """The stream joins the capture in which the event was recorded."""
    EXTERNAL = 1
    """It makes a node that waits for the event at each launch of the graph."""


class WaitStrategy(enum.StrEnum):
    """How `synchronize_async` waits. You can also pass the string itself.

    Example:
        >>> async with aiostream.Stream(wait="spin") as stream:
        ...     print(stream.wait_strategy is aiostream.WaitStrategy.SPIN)
        True
    """

    AUTO = "auto"
    """The task polls when the work is about to finish. If earlier waits on this stream predict when
    that is, a timer of the loop wakes the task shortly before. Otherwise a background thread polls.
    This is the fastest, with any number of streams."""
    HOSTFUNC = "hostfunc"
    """Enqueues a host function on the stream itself, and the stream waits for it. While it
    is pending it holds one of the device's hardware queues. If the stream is full, enqueuing it
    blocks the thread. An `Event` needs no host function: its waits are those of `AUTO`."""
    EVENT = "event"
    """The background thread polls an event, and nothing else happens."""
    SPIN = "spin"
    """The task polls in every turn of the loop until the end. This has the lowest latency and takes
    a whole core."""


# The names as literals, because a type checker and an IDE then know them.
WaitLike = WaitStrategy | Literal["auto", "hostfunc", "event", "spin"]


class CaptureMode(enum.IntEnum):
    """What a capture, or a thread, forbids while a stream captures (`CUstreamCaptureMode`).

    A capture does not see some calls, such as allocating memory or querying a stream. They are
    potentially unsafe during one.
    """

    GLOBAL = 0
    """A capture in this mode forbids them to every thread that is in this mode too. Each thread
    starts in this mode."""
    THREAD_LOCAL = 1
    """A capture in this mode forbids them to its own thread. A thread in this mode is bound by its
    own captures only."""
    RELAXED = 2
    """Forbids nothing. You may end a capture in this mode in any thread."""


class CaptureStatus(enum.IntEnum):
    """Whether a stream captures (`CUstreamCaptureStatus`)."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2
    """An error has invalidated the capture. You still have to end it, and it gives no graph."""


class DependencyUpdate(enum.IntEnum):
    """How to change what comes next in a capture (`CUstreamUpdateCaptureDependencies_flags`)."""

    ADD = 0
    SET = 1


class RecaptureStatus(enum.IntEnum):
    """Whether a node that differs in a recapture can be updated (`CUgraphRecaptureStatus`)."""

    ELIGIBLE_FOR_UPDATE = 0
    INELIGIBLE_FOR_UPDATE = 1
    ERROR = 2


class InstantiateFlags(enum.IntFlag, boundary=enum.KEEP):
    """How a graph is made executable (`CUgraphInstantiate_flags`)."""

    DEFAULT = 0
    AUTO_FREE_ON_LAUNCH = 1
    UPLOAD = 2
    DEVICE_LAUNCH = 4
    USE_NODE_PRIORITY = 8


class GraphInstantiateResult(enum.IntEnum):
    """Why a graph could not be made executable (`CUgraphInstantiateResult`)."""

    SUCCESS = 0
    ERROR = 1
    INVALID_STRUCTURE = 2
    NODE_OPERATION_NOT_SUPPORTED = 3
    MULTIPLE_CTXS_NOT_SUPPORTED = 4
    CONDITIONAL_HANDLE_UNUSED = 5


class GraphUpdateResult(enum.IntEnum):
    """Why an executable graph could not be updated (`CUgraphExecUpdateResult`)."""

    SUCCESS = 0
    ERROR = 1
    ERROR_TOPOLOGY_CHANGED = 2
    ERROR_NODE_TYPE_CHANGED = 3
    ERROR_FUNCTION_CHANGED = 4
    ERROR_PARAMETERS_CHANGED = 5
    ERROR_NOT_SUPPORTED = 6
    ERROR_UNSUPPORTED_FUNCTION_CHANGE = 7
    ERROR_ATTRIBUTES_CHANGED = 8


class GraphNodeType(enum.IntEnum):
    """What a node of a graph does (`CUgraphNodeType`)."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3
    GRAPH = 4
    EMPTY = 5
    WAIT_EVENT = 6
    EVENT_RECORD = 7
    EXT_SEMAS_SIGNAL = 8
    EXT_SEMAS_WAIT = 9
    MEM_ALLOC = 10
    MEM_FREE = 11
    BATCH_MEM_OP = 12
    CONDITIONAL = 13


class GraphDependencyType(enum.IntEnum):
    """How one node depends on another (`CUgraphDependencyType`)."""

    DEFAULT = 0
    PROGRAMMATIC = 1
    """The later kernel may begin before the earlier one has ended (programmatic dependent
    launch)."""


class DebugDotFlags(enum.IntFlag, boundary=enum.KEEP):
    """What `Graph.debug_dot` says of each node (`CUgraphDebugDot_flags`)."""

    DEFAULT = 0
    VERBOSE = 1
    RUNTIME_TYPES = 2
    KERNEL_NODE_PARAMS = 4
    MEMCPY_NODE_PARAMS = 8
    MEMSET_NODE_PARAMS = 16
    HOST_NODE_PARAMS = 32
    EVENT_NODE_PARAMS = 64
    EXT_SEMAS_SIGNAL_NODE_PARAMS = 128
    EXT_SEMAS_WAIT_NODE_PARAMS = 256
    KERNEL_NODE_ATTRIBUTES = 512
    HANDLES = 1024
    MEM_ALLOC_NODE_PARAMS = 2048
    MEM_FREE_NODE_PARAMS = 4096
    BATCH_MEM_OP_NODE_PARAMS = 8192
    EXTRA_TOPO_INFO = 16384
    CONDITIONAL_NODE_PARAMS = 32768


class HostFunctionSync(enum.IntEnum):
    """How the driver's thread waits for host functions to run (`CUhostTaskSyncMode`, CUDA 13.2)."""

    BLOCKING = 0
    SPINWAIT = 1


# ---------------------------------------------------------------------------- attributes and memory


class StreamAttribute(enum.IntEnum):
    """The attributes of `Stream.get_attribute` and `set_attribute` (`CUstreamAttrID`)."""

    ACCESS_POLICY_WINDOW = 1
    """An `AccessPolicyWindow`."""
    SYNCHRONIZATION_POLICY = 3
    """A `SynchronizationPolicy`. It is `None` until you set it. Until then the context's flags
    decide."""
    PRIORITY = 8
    """An int, which the driver clamps."""
    MEM_SYNC_DOMAIN_MAP = 9
    """A `MemSyncDomainMap`."""
    MEM_SYNC_DOMAIN = 10
    """A `MemSyncDomain`."""


class SynchronizationPolicy(enum.IntEnum):
    """What a thread does while it waits in `Stream.synchronize` (`CUsynchronizationPolicy`)."""

    AUTO = 1
    SPIN = 2
    YIELD = 3
    BLOCKING_SYNC = 4


class AccessProperty(enum.IntEnum):
    """How accesses to a window of memory use the L2 cache (`CUaccessProperty`)."""

    NORMAL = 0
    STREAMING = 1
    PERSISTING = 2


class MemSyncDomain(enum.IntEnum):
    """The memory synchronization domain of a launch (`CUlaunchMemSyncDomain`)."""

    DEFAULT = 0
    REMOTE = 1


class MemAttach(enum.IntFlag, boundary=enum.STRICT):
    """Which streams may access managed memory (`CUmemAttach_flags`)."""

    GLOBAL = 1
    """Any stream, on any device."""
    HOST = 2
    """No stream of a device without concurrent managed access."""
    SINGLE = 4
    """This stream alone."""


class WaitValueFlags(enum.IntFlag, boundary=enum.KEEP):
    """What `Stream.wait_value` waits for (`CUstreamWaitValue_flags`)."""

    GEQ = 0
    """`(int)(*pointer - value) >= 0`: the number has reached the value, also across a
    wrap-around."""
    EQ = 1
    """`*pointer == value`."""
    AND = 2
    """`*pointer & value` is not zero."""
    NOR = 3
    """`~(*pointer | value)` is not zero."""
    FLUSH = 1 << 30
    """After the wait, make earlier remote writes visible, if the device can do that."""


class WriteValueFlags(enum.IntFlag, boundary=enum.STRICT):
    """How `Stream.write_value` writes (`CUstreamWriteValue_flags`)."""

    DEFAULT = 0
    """Earlier writes of the stream are visible before this one."""
    NO_MEMORY_BARRIER = 1
    """They may not be."""


class MemoryBarrierType(enum.IntEnum):
    """For which readers a memory barrier orders (`CUstreamMemoryBarrier_flags`)."""

    SYS = 0
    """For the whole system, the CPU too."""
    GPU = 1
    """For the GPU only."""


class DevResourceType(enum.IntEnum):
    """A kind of resource of a device (`CUdevResourceType`)."""

    SM = 1
    WORKQUEUE_CONFIG = 1000
    WORKQUEUE = 10000
