"""The ledger: what was begun, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from aiostream import _completion, _native

__all__ = ["FutureCounts", "HandleCounts", "PointCounts", "Statistics", "WaitCounts", "statistics"]


@dataclass(frozen=True, slots=True)
class PointCounts:
    """Points of streams at which something of ours was enqueued: `armed == fired + pending + leaked`."""

    armed: int
    fired: int
    pending: int
    """Armed now; counted one by one, and not from the other numbers."""
    captured: int
    """Of the pending ones, the host functions that live in graphs: pending until no graph can call them any more."""
    leaked: int
    """The driver can no longer prove that the GPU has passed: what was kept alive for them is kept for ever."""
    quarantined: int
    """Of the leaked ones, those that a capture has swallowed because it began during the call."""
    stale: int
    """Firings that came for a point that was no longer armed, and were ignored."""


@dataclass(frozen=True, slots=True)
class FutureCounts:
    """Futures of completions: `created == done + failed + cancelled + dropped + pending`."""

    created: int
    done: int
    failed: int
    cancelled: int
    """By their own waiter, or because the call that made them was refused. One whose asyncio future was cancelled directly
    is counted when its point is passed."""
    dropped: int
    """Their loop was closed before they settled."""
    pending: int
    """Counted one by one."""


@dataclass(frozen=True, slots=True)
class HandleCounts:
    """Streams, events and graphs that the library owned: `created == destroyed + released + retired + leaked + open`."""

    created: int
    destroyed: int
    """By us; or graphs that a failed capture took with it."""
    released: int
    """Given away by `into_raw`."""
    retired: int
    """Streams that were closed and not destroyed, because another library has them too (`Stream.torch` and its like)."""
    leaked: int
    """Closed, but the driver has refused to destroy them."""
    open: int


@dataclass(frozen=True, slots=True)
class WaitCounts:
    """What the stages of `synchronize_async` have done. One wait may pass through several stages, and through one repeatedly."""

    ready: int
    """Waits that had nothing to wait for."""
    spun: int
    """Waits that ended while their task polled."""
    by_timer: int
    """How often a wait was left to a timer of its loop, which wakes the task shortly before the expected end."""
    watched: int
    """How often a wait was left to the watcher."""
    handed_back: int
    """How often the watcher handed a wait back to its task, because the expected end was near."""
    pending: int
    """Waits that a task is in now, also those that the task polls."""
    polls: int
    """How often the watcher has polled an event."""
    passes: int
    """How often the watcher thread went through the waits that it has. It polls several in one pass."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """An immutable snapshot of the library's counters, for this process."""

    points: PointCounts
    futures: FutureCounts
    handles: HandleCounts
    waits: WaitCounts
    late_host_functions: int
    """Python host functions that came after the interpreter had begun to end, and were not run."""
    watcher_passes: int
    """How often the watcher has read the health of the contexts."""

    @property
    def balanced(self) -> bool:
        """Whether every line of the ledger adds up."""
        points, futures_, handles = self.points, self.futures, self.handles
        return (
            points.armed == points.fired + points.pending + points.leaked
            and futures_.created
            == futures_.done
            + futures_.failed
            + futures_.cancelled
            + futures_.dropped
            + futures_.pending
            and handles.created
            == handles.destroyed
            + handles.released
            + handles.retired
            + handles.leaked
            + handles.open
        )


def statistics() -> Statistics:
    """A snapshot of what the library has done in this process.

    Equals the counters at one moment when nothing moves. While other threads are at work their counters are read one after
    the other; it then tries again a few times for a moment at which the ledger balances.

    Threads: from any thread; never calls the driver, and never blocks.
    """
    snapshot = _snapshot()
    for _ in range(100):
        if snapshot.balanced:
            break
        snapshot = _snapshot()
    return snapshot


def _snapshot() -> Statistics:
    captured = _native.captured()
    pending_points = _native.pending()
    pending_futures = _completion.pending_futures()
    count = _native.counters()
    return Statistics(
        points=PointCounts(
            armed=count[_native.POINTS_ARMED],
            fired=count[_native.POINTS_FIRED],
            pending=pending_points,
            captured=captured,
            leaked=count[_native.POINTS_LEAKED],
            quarantined=count[_native.POINTS_QUARANTINED],
            stale=count[_native.POINTS_STALE],
        ),
        futures=FutureCounts(
            created=count[_native.FUTURES_CREATED],
            done=count[_native.FUTURES_DONE],
            failed=count[_native.FUTURES_FAILED],
            cancelled=count[_native.FUTURES_CANCELLED],
            dropped=count[_native.FUTURES_DROPPED],
            pending=pending_futures,
        ),
        handles=HandleCounts(
            created=count[_native.HANDLES_CREATED],
            destroyed=count[_native.HANDLES_DESTROYED],
            released=count[_native.HANDLES_RELEASED],
            retired=count[_native.HANDLES_RETIRED],
            leaked=count[_native.HANDLES_LEAKED],
            open=count[_native.HANDLES_OPEN],
        ),
        waits=WaitCounts(
            ready=count[_native.WAITS_READY],
            spun=count[_native.WAITS_SPUN],
            watched=count[_native.WAITS_WATCHED],
            by_timer=count[_native.WAITS_BY_TIMER],
            handed_back=count[_native.WAITS_HANDED_BACK],
            pending=_native.pending_waits(),
            polls=count[_native.EVENT_POLLS],
            passes=count[_native.EVENT_PASSES],
        ),
        late_host_functions=count[_native.HOST_FUNCTIONS_LATE],
        watcher_passes=count[_native.WATCHER_PASSES],
    )
