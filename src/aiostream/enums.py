"""The driver's flags and modes as Python enumerations, with the driver's own values and names without their prefix."""

from __future__ import annotations

import enum

__all__ = ["StreamFlags", "WaitEventFlags"]


class StreamFlags(enum.IntFlag):
    """How a stream was created (`CUstream_flags`)."""

    DEFAULT = 0
    NON_BLOCKING = 1


class WaitEventFlags(enum.IntFlag, boundary=enum.STRICT):
    """How `Stream.wait_event` treats the event under capture (`CUevent_wait_flags`)."""

    DEFAULT = 0
    EXTERNAL = 1
