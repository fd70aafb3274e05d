"""The driver's flags and modes as Python enumerations, with the driver's own values and names without their prefix."""

from __future__ import annotations

import enum

__all__ = ["StreamFlags", "WaitEventFlags", "WaitStrategy"]


class StreamFlags(enum.IntFlag):
    """How a stream was created (`CUstream_flags`)."""

    DEFAULT = 0
    NON_BLOCKING = 1


class WaitEventFlags(enum.IntFlag, boundary=enum.STRICT):
    """How `Stream.wait_event` treats the event under capture (`CUevent_wait_flags`)."""

    DEFAULT = 0
    EXTERNAL = 1


class WaitStrategy(enum.StrEnum):
    """How `synchronize_async` waits; the strings themselves may be given too."""

    AUTO = "auto"
    """Looks itself while the end is near, then has the watcher look, closely when the end is expected; an old wait whose end
    nobody expects sleeps on a host function beside the stream. The fastest, at any number of streams."""
    HOSTFUNC = "hostfunc"
    """One host function on the stream itself: no watching, but the stream stands still for it, it holds one of the device's
    hardware queues while it is pending, and enqueuing it may block on a full stream."""
    EVENT = "event"
    """Has the watcher look at an event, and nothing else."""
    SPIN = "spin"
    """Looks itself, in every turn of the loop, until the end: the lowest latency for the price of a loop that never sleeps."""
