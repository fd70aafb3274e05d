"""What each ticket stands for: the registry of points that the driver may still come to, and how arrivals are delivered.

Native code knows a point by its ticket, a number; what the number means to Python stands here and nowhere else. A point stays
registered until the driver has passed it, whatever became of the task, the loop or the stream, because what it keeps alive
may be in use by the GPU until then.
"""

from __future__ import annotations

from typing import Protocol, cast

from aiostream import _native


class PendingEntry(Protocol):
    """A place in a stream that somebody registered. Each method may be called again if a KeyboardInterrupt cut it short."""

    @property
    def context_id(self) -> int:
        """The context whose health decides whether a firing without a status was a success."""

    def complete(self, code: int, orphaned: bool) -> None:
        """The driver has passed the point: settle with `code`, and let go of what was kept alive."""

    def abandon(self, code: int, orphaned: bool) -> None:
        """The context has failed, and the driver may or may not come to the point: settle, and keep everything."""


class Watched(PendingEntry, Protocol):
    """One that was left to a timer or the watcher, and may be handed back."""

    def handed_back(self, wait: _native.Wait, orphaned: bool) -> None:
        """Hands the wait back: from now on the task polls it. If no task takes it, it is dropped."""


class Near(PendingEntry, Protocol):
    """One of a future, which the loop polls when its end is near."""

    def come_near(self) -> None:
        """The loop polls it from now on. A task that awaits the future may do so in its place."""


# Written by whoever arms a point, in any thread; an entry is removed by the one consumer of that
# ticket's queue. Single dict operations, which need no lock.
registry: dict[int, PendingEntry] = {}


_UNKNOWN = _native.STATUS_UNKNOWN
_NEAR = _native.STATUS_NEAR


def _health_of(context_id: int, known: dict[int, int]) -> int:
    if context_id not in known:
        known[context_id] = _native.health(context_id)
    return known[context_id]


def deliver(backlog: list[int | _native.Wait], orphaned: bool = False) -> None:
    """Settles what a queue's drain has brought, and empties `backlog`.

    An event of ours that the watcher has seen complete, and a stream callback, bring their status. A host function carries no
    status, and by the manual it never runs after an error; some drivers were reported to run it all
    the same. So the health of each context is read once per batch, after the firing: what settles as done has succeeded.

    A KeyboardInterrupt between any two steps leaves the rest, and the item it struck, on the backlog; every step can be
    repeated.

    Args:
        backlog: ticket, code, ticket, code, ..., or a `Wait` for a code; see `_native.drain`. Emptied of what was delivered.
        orphaned: Nobody's loop is listening any more: this is the janitor's thread.
    """
    delivered = 0
    health: dict[int, int] = {}
    try:
        for position in range(0, len(backlog), 2):
            ticket = cast("int", backlog[position])
            code = backlog[position + 1]
            point = registry.get(ticket)
            if point is not None:
                if code == _UNKNOWN:
                    code = 0 if orphaned else _health_of(point.context_id, health)
                if not isinstance(code, int):
                    cast("Watched", point).handed_back(code, orphaned)
                    registry.pop(ticket, None)
                elif code == _NEAR:
                    if not orphaned:
                        cast("Near", point).come_near()
                elif code >= 0:
                    point.complete(code, orphaned)
                    registry.pop(ticket, None)
                else:
                    point.abandon(-code, orphaned)
            delivered = position + 2
    finally:
        del backlog[:delivered]
