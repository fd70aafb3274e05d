"""The driver's flags and modes as Python enumerations, with the driver's own values and names without their prefix."""

from __future__ import annotations

import enum

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
    NON_BLOCKING = 1


class WaitEventFlags(enum.IntFlag, boundary=enum.STRICT):
    """How `Stream.wait_event` treats the event under capture (`CUevent_wait_flags`)."""

    DEFAULT = 0
    EXTERNAL = 1


class WaitStrategy(enum.StrEnum):
    """How `synchronize_async` waits. You may give the strings themselves too."""

    AUTO = "auto"
    """Polls from the task when the work is about to finish. If earlier waits on this stream predict when that is, a timer of the
    loop wakes the task shortly before. Otherwise a background thread polls. The fastest, at any number of streams."""
    HOSTFUNC = "hostfunc"
    """Enqueues a host function on the stream itself. The stream stands still for it. While it is pending it holds one of the
    device's hardware queues, and enqueuing it may block on a full stream."""
    EVENT = "event"
    """Has the background thread poll an event, and nothing else."""
    SPIN = "spin"
    """Polls from the task, in every turn of the loop, until the end: the lowest latency for the price of a core."""


class CaptureMode(enum.IntEnum):
    """What a capture, or a thread, forbids while a stream captures (`CUstreamCaptureMode`).

    Some calls (allocating memory, querying a stream) are not seen by a capture, and so are potentially unsafe beside one.
    """

    GLOBAL = 0
    """A capture in this mode forbids them to every thread that is in this mode too. It is the mode of every thread at first."""
    THREAD_LOCAL = 1
    """Forbids them to the capturing thread only; a thread in this mode heeds its own captures only."""
    RELAXED = 2
    """Forbids nothing; a capture in this mode may be ended by any thread."""


class CaptureStatus(enum.IntEnum):
    """Whether a stream captures (`CUstreamCaptureStatus`)."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2
    """An error has invalidated the capture: it must be ended, and gives no graph."""


class DependencyUpdate(enum.IntEnum):
    """What becomes of the dependencies that a capturing stream has (`CUstreamUpdateCaptureDependencies_flags`)."""

    ADD = 0
    SET = 1


class RecaptureStatus(enum.IntEnum):
    """What a mismatch found while a graph is captured again means (`CUgraphRecaptureStatus`)."""

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
    """How a node depends on another (`CUgraphDependencyType`)."""

    DEFAULT = 0
    PROGRAMMATIC = 1
    """The later kernel may begin before the earlier one has ended (programmatic dependent launch)."""


class DebugDotFlags(enum.IntFlag, boundary=enum.KEEP):
    """What `Graph.debug_dot` tells of each node (`CUgraphDebugDot_flags`)."""

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
    """How the GPU waits for a host function (`CUhostTaskSyncMode`, CUDA 13.2)."""

    BLOCKING = 0
    SPINWAIT = 1


# ------------------------------------------------------------------------------------------------ attributes and memory


class StreamAttribute(enum.IntEnum):
    """What `Stream.get_attribute` and `set_attribute` know (`CUstreamAttrID`)."""

    ACCESS_POLICY_WINDOW = 1
    """An `AccessPolicyWindow`."""
    SYNCHRONIZATION_POLICY = 3
    """A `SynchronizationPolicy`; `None` as long as it was never set, and the context's flags say it."""
    PRIORITY = 8
    """An int, clamped as the driver clamps it."""
    MEM_SYNC_DOMAIN_MAP = 9
    """A `MemSyncDomainMap`."""
    MEM_SYNC_DOMAIN = 10
    """A `MemSyncDomain`."""


class SynchronizationPolicy(enum.IntEnum):
    """What a thread does that waits in `Stream.synchronize` (`CUsynchronizationPolicy`)."""

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
    """Which of its two domains a launch belongs to (`CUlaunchMemSyncDomain`)."""

    DEFAULT = 0
    REMOTE = 1


class MemAttach(enum.IntFlag, boundary=enum.STRICT):
    """Who may touch managed memory (`CUmemAttach_flags`)."""

    GLOBAL = 1
    """Any stream, on any device."""
    HOST = 2
    """No stream of a device without concurrent managed access."""
    SINGLE = 4
    """This stream alone."""


class WaitValueFlags(enum.IntFlag, boundary=enum.KEEP):
    """What `Stream.wait_value` waits for (`CUstreamWaitValue_flags`)."""

    GEQ = 0
    """`(int)(*pointer - value) >= 0`: it has reached the value, the wrap-around counted in."""
    EQ = 1
    AND = 2
    """`*pointer & value` is not zero."""
    NOR = 3
    """`~(*pointer | value)` is not zero."""
    FLUSH = 1 << 30
    """Then make remote writes that came before visible, where the device can."""


class WriteValueFlags(enum.IntFlag, boundary=enum.STRICT):
    """How `Stream.write_value` writes (`CUstreamWriteValue_flags`)."""

    DEFAULT = 0
    NO_MEMORY_BARRIER = 1


class MemoryBarrierType(enum.IntEnum):
    """For whom a memory barrier orders (`CUstreamMemoryBarrier_flags`)."""

    SYS = 0
    GPU = 1


class DevResourceType(enum.IntEnum):
    """A kind of a device's resources (`CUdevResourceType`)."""

    SM = 1
    WORKQUEUE_CONFIG = 1000
    WORKQUEUE = 10000
