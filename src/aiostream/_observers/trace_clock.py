"""When the GPU reached a point, on the host's clock: by timing events, and a mapping of clocks.

A timing event says only how many milliseconds on the GPU lie between it and another one. So each
context has a reference event, and an interval for the host's time of that reference. Each event
whose host times are known narrows the interval: the GPU did not reach it before the host recorded
it, nor after the host saw it complete. A new reference replaces the old one every second, because
the two clocks drift apart, and because the driver's milliseconds are 32-bit floats.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque

from aiostream import _native
from aiostream._base import driver
from aiostream._handles.operand import Operand
from aiostream.device import Context
from aiostream.errors import CudaError, StreamClosedError
from aiostream.event import Event
from aiostream.stream import Stream

_now = time.perf_counter_ns
_EPOCH = 1_000_000_000  # nanoseconds until the next reference
_SOON = 50_000_000  # nanoseconds until the next calibration if this one has failed
_TRIES = 4  # calibrations of a reference: the best one counts
_PATIENCE = 300_000  # nanoseconds: a calibration on a busy GPU must not hold up the loop


def _nanoseconds(reference: Event, event: Event) -> float:
    """Returns the time between two events on the GPU. Both are complete."""
    with driver.relaxed():  # it would invalidate another stream's capture by this thread
        return reference.elapsed_time(event) * 1e6


class Epoch:
    """A reference event, and when the host's clock may have shown its time at most and at least.

    Threads: any. Two threads that narrow at once may lose one narrowing, which does no harm.
    """

    __slots__ = ("high", "low", "reference")

    def __init__(self, reference: Event, low: int) -> None:
        # Never replaced. A thread that asks it after another has closed the clock gets a
        # StreamClosedError.
        self.reference = reference
        self.low = low
        self.high: int | None = None  # until the host has seen the first event complete

    def narrow(self, after: float, earliest: int, latest: int | None) -> None:
        """Takes in that the host knows an event `after` nanoseconds behind the reference."""
        self.low = max(self.low, round(earliest - after))
        if latest is not None:
            high = round(latest - after)
            self.high = high if self.high is None else min(self.high, high)

    def host_time(self, after: float) -> int:
        """Returns the host's time of what lies `after` nanoseconds behind the reference."""
        high = self.low if self.high is None else self.high
        return round((self.low + high) / 2 + after)

    @property
    def uncertainty(self) -> float:
        """By how many nanoseconds a time may be wrong."""
        return 0.0 if self.high is None else abs(self.high - self.low) / 2


class Moment:
    """A point of a stream, and when the GPU reached it, once that is known."""

    __slots__ = ("after", "epoch", "event", "recorded")

    def __init__(self, event: Event, recorded: int) -> None:
        self.event: Event | None = event  # until the time is known
        self.recorded = recorded  # by the host, not later than this
        self.epoch: Epoch | None = None
        self.after = 0.0

    @property
    def host_time(self) -> int | None:
        """When the GPU reached it; `None` while that is not known."""
        return None if self.epoch is None else self.epoch.host_time(self.after)


class GpuClock:
    """The clock of one context.

    Threads: any. No lock is held across a driver call: each change is one list operation. One
    thread may close the clock while others use it. The janitor destroys events that are dropped.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._free: deque[Event] = deque()
        self._epoch: Epoch | None = None
        self._calibrated = 0  # when that was tried last
        with driver.relaxed(), context.as_current():
            self._stream = Stream()
        self._stream._handle.hide()

    def mark(self, stream: Operand) -> Moment | None:
        """Records a timing event on a stream. `None` if that is not possible, as under capture."""
        if self._stream.closed:
            return None
        try:
            if _now() - self._calibrated > _EPOCH:
                self._calibrate()
            if _native.capture_refusal(stream.handle) != 0:
                return None
            event = self._new_event()
        except (CudaError, StreamClosedError):
            return None
        recorded = _now()
        # It is not `Event.record`, whose checks take longer than the record.
        code = _native.event_record(event._operand, stream.handle, event._flags)
        return Moment(event, recorded) if code == 0 and not event._handle.is_captured else None

    def resolve(self, moment: Moment, seen: int | None) -> bool:
        """Finds out when the GPU reached a moment. Returns `False` if it has not done so yet.

        Args:
            moment: What `mark` has returned.
            seen: When the host saw it complete, if it did.
        """
        event, epoch = moment.event, self._epoch
        if event is None or self._stream.closed:
            moment.event = None  # a time that is unknown stays so
            return True
        try:
            if epoch is None or not event.query():
                return False
            if epoch.high is None and not epoch.reference.query():  # else it was seen to be over
                return False
            after = _nanoseconds(epoch.reference, event)
        except (CudaError, StreamClosedError):
            moment.event = None  # its time stays unknown
            return True
        epoch.narrow(after, moment.recorded, seen)
        moment.after, moment.epoch, moment.event = after, epoch, None
        self._free.append(event)
        return True

    def close(self) -> None:
        """Destroys the events and the stream. Times that are known stay known."""
        self._stream._close_quietly()
        self._epoch = None
        self._free.clear()

    def _new_event(self) -> Event:
        with contextlib.suppress(IndexError):
            return self._free.pop()
        with driver.relaxed(), self._context.as_current():
            event = Event(timing=True)
        event._handle.hide()
        return event

    def _calibrate(self) -> None:
        self._calibrated = _now()  # first, so that no other thread does the same meanwhile
        reference, event = self._new_event(), self._new_event()
        started = _now()
        epoch = Epoch(reference, started)
        reference.record(self._stream)
        for _ in range(_TRIES):
            before = _now()
            event.record(self._stream)
            while not (reached := event.query()) and _now() - started < _PATIENCE:
                pass
            after = _now()
            if not reached:
                # The GPU is too busy. The ends of awaits narrow the interval, and so does the next
                # calibration, which comes soon.
                self._calibrated += _SOON - _EPOCH
                break
            epoch.narrow(_nanoseconds(reference, event), before, after)
        self._free.append(event)
        last, self._epoch = self._epoch, epoch
        # Another thread may be asking the old reference, which then raises, and that time is lost.
        if last is not None:
            last.reference.close()
