"""The counters: what the library began, and what became of it.

Native code counts where a thing happens, in any thread, by one atomic step. `statistics()` reads
the counters in the thread of its caller, one after another, and counts what is pending now one by
one, so that each checks the other. Other threads go on meanwhile. So it reads in the order of a
completion's life, and again if the numbers do not add up. It takes no lock and calls no driver.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from aiostream import _native
from aiostream._base import hints
from aiostream._runtime import completion

__all__ = ["FutureCounts", "HandleCounts", "PointCounts", "Statistics", "WaitCounts", "statistics"]


@dataclass(frozen=True, slots=True)
class PointCounts:
    """Points at which the library enqueued something: `armed == fired + pending + leaked`.

    Attributes:
        pending: Armed now. Counted one by one, not computed from the other numbers.
        host_functions: Of the pending ones, the host functions and callbacks in streams.
        captured: Of the pending ones, the host functions in graphs. They are pending until no graph
            can call them any more.
        leaked: The driver can no longer prove that the GPU has passed them. What the library keeps
            alive for them lives until the process ends.
        quarantined: Of the leaked ones, those that a capture took in, because it began during the
            call.
        stale: Firings of points that were no longer armed. The library ignored them.
    """

    armed: int
    fired: int
    pending: int
    host_functions: int
    captured: int
    leaked: int
    quarantined: int
    stale: int


@dataclass(frozen=True, slots=True)
class FutureCounts:
    """Futures of completions: `created == done + failed + cancelled + dropped + pending`.

    A wait has none, except with `wait="hostfunc"`.

    Attributes:
        cancelled: Cancelled by their own task, or the call that made them was refused. If you
            cancel the asyncio future itself, it counts when the GPU has passed its point.
        dropped: Their loop was closed before they settled.
        pending: Counted one by one.
    """

    created: int
    done: int
    failed: int
    cancelled: int
    dropped: int
    pending: int


@dataclass(frozen=True, slots=True)
class HandleCounts:
    """Streams, events and graphs that the library owned.

    `created == destroyed + released + retired + leaked + open`.

    Attributes:
        destroyed: Destroyed by the library, or, for graphs, by a capture into them that failed.
        released: You took them with `into_raw`.
        retired: Streams that were closed and not destroyed, because another library may know them
            (`Stream.torch` and its like, `Stream.handle`). If a later `Stream` uses such a stream
            again, it is counted as created again.
        leaked: Closed, but the driver refused to destroy them.
    """

    created: int
    destroyed: int
    released: int
    retired: int
    leaked: int
    open: int


@dataclass(frozen=True, slots=True)
class WaitCounts:
    """What the stages of `synchronize_async` did.

    A wait may pass through several stages, and through one of them repeatedly.

    Attributes:
        ready: Waits that had nothing to wait for.
        spun: Waits that ended while their task polled.
        by_timer: How often a timer of the loop took a wait, to wake the task shortly before the
            end.
        watched: How often the watcher took a wait.
        handed_back: How often the watcher handed a wait back to its task, because the end was near.
        pending: Waits that are not over, including those that their tasks poll.
        oldest: The age of the oldest wait or future that is pending, in seconds, or 0. `pending()`
            lists them.
        polls: How often the watcher polled an event, or a loop in the place of its tasks.
        passes: How often they went through their waits. They may poll several in one pass.
    """

    ready: int
    spun: int
    by_timer: int
    watched: int
    handed_back: int
    pending: int
    oldest: float
    polls: int
    passes: int


@dataclass(frozen=True, slots=True, repr=False)
class Statistics(hints.Hinted):
    """A snapshot of the library's counters in this process. `statistics()` makes it.

    Attributes:
        late_host_functions: Python host functions that were not run, because the interpreter had
            begun to end.
        watcher_passes: How often the watcher read the health of the contexts.
    """

    points: PointCounts
    futures: FutureCounts
    handles: HandleCounts
    waits: WaitCounts
    late_host_functions: int
    watcher_passes: int

    @property
    def balanced(self) -> bool:
        """Whether the equations of points, futures and handles hold."""
        points, futures, handles = self.points, self.futures, self.handles
        settled = futures.done + futures.failed + futures.cancelled + futures.dropped
        gone = handles.destroyed + handles.released + handles.retired + handles.leaked
        return (
            points.armed == points.fired + points.pending + points.leaked
            and futures.created == settled + futures.pending
            and handles.created == gone + handles.open
        )

    def __repr__(self) -> str:
        lines = [f"<aiostream.Statistics, {'' if self.balanced else 'not '}balanced"]
        for each in fields(self):
            line = getattr(self, each.name)
            counts = [] if isinstance(line, int) else fields(line)
            numbers = [f"{round(getattr(line, count.name), 3)} {count.name}" for count in counts]
            lines.append(f"  {each.name:20}{', '.join(numbers) or line}")
        return "\n".join(lines) + ">"


_Line = TypeVar("_Line", PointCounts, FutureCounts, HandleCounts, WaitCounts)


def statistics() -> Statistics:
    """Returns a snapshot of what the library did in this process.

    It reads the counters one by one. If other threads change them meanwhile, so that they
    do not add up, it reads them again a few times. If nothing changes, you get the counters of
    one moment.

    Use it to check that your program leaves nothing pending or open, or to export metrics.

    Threads: any. It never calls the driver and never blocks.

    Example:
        >>> before = aiostream.statistics().handles.created
        >>> async with aiostream.Stream() as stream:
        ...     await stream.synchronize_async()
        >>> after = aiostream.statistics()
        >>> after.handles.created - before, after.balanced
        (1, True)
    """
    for _ in range(100):
        snapshot = _snapshot()
        if snapshot.balanced:
            break
    return snapshot


def _snapshot() -> Statistics:
    # What moves on while this reads is counted twice, and `drain` waits once more. In the other
    # order it could be missed.
    pending_waits, oldest = _native.pending_waits()
    points = dict(zip(("pending", "captured", "host_functions"), _native.pending(), strict=True))
    futures = completion.pending_points()
    oldest = max([oldest, *(point.seconds or 0.0 for point in futures)])
    count = dict(zip(_native.COUNTERS, _native.counters(), strict=True))
    waits = {"pending": pending_waits, "polls": count["EVENT_POLLS"]}
    return Statistics(
        points=_line(PointCounts, "POINTS", count, **points),
        futures=_line(FutureCounts, "FUTURES", count, pending=len(futures)),
        handles=_line(HandleCounts, "HANDLES", count),
        waits=_line(
            WaitCounts, "WAITS", count, **waits, passes=count["EVENT_PASSES"], oldest=oldest
        ),
        late_host_functions=count["HOST_FUNCTIONS_LATE"],
        watcher_passes=count["WATCHER_PASSES"],
    )


def _line(kind: type[_Line], prefix: str, count: dict[str, int], **others: Any) -> _Line:
    """A line: each field is the counter of the same name, or one of the others."""
    names = {field.name for field in fields(kind)} - others.keys()
    return kind(**others, **{name: count[f"{prefix}_{name.upper()}"] for name in names})
