"""The registry of what each ticket stands for, and how arrivals are delivered.

Native code knows a point by its ticket, a number. What the number means to Python is here and
nowhere else. A point stays registered until the driver has passed it, whatever has become of the
task, the loop or the stream, because the GPU may use what it keeps alive until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from aiostream import _native


class PendingEntry(Protocol):
    """What a ticket stands for.

    Each method can be called again, because a KeyboardInterrupt may cut it short, and the delivery
    is then repeated.
    """

    @property
    def context_id(self) -> int:
        """The context whose health says whether a firing without a status was a success."""

    def complete(self, code: int, orphaned: bool) -> None:
        """Settles with `code` and releases what was kept alive: the driver has passed the point."""

    def abandon(self, code: int, orphaned: bool) -> None:
        """Settles with `code` and keeps everything: the context has failed.

        The driver may or may not come to the point.
        """


class Watched(PendingEntry, Protocol):
    """The entry of a wait that a timer or the watcher has, and may hand back."""

    def handed_back(self, wait: _native.Wait, orphaned: bool) -> None:
        """Gives the wait to its task, which polls it from now on. Otherwise the wait is dropped."""


class Near(PendingEntry, Protocol):
    """The entry of a future that the loop polls when the end is near."""

    def come_near(self) -> None:
        """Says that the end is near. A task that awaits the future may poll in the loop's place."""


NO_CONTEXT = -1
"""The `context_id` of an alarm that belongs to no context."""


class Alarm:
    """A ticket that any thread may fire, and that its loop may arm again.

    It also fires if its context fails. While it is armed, the watcher reads that context's health
    for it. With `NO_CONTEXT` it fires only when a thread fires it, and the watcher has no work. A
    subclass says in `complete` what the loop does then.

    An alarm that is armed is kept until it fires, with its loop's queue. So its owner notes it
    before it arms it.
    """

    __slots__ = ("_queue", "_tickets", "context_id")

    def __init__(self, queue: int, context_id: int) -> None:
        self._queue, self.context_id = queue, context_id
        # The current ticket is the last. Native code appends it, because a KeyboardInterrupt
        # between the call and an assignment would lose an armed ticket. The loop's thread writes,
        # and any thread reads a copy.
        self._tickets: list[int] = []

    def arm(self) -> None:
        """Makes a new ticket, unless the current one has not arrived yet.

        Call it in the loop's thread. After a KeyboardInterrupt, call it again.
        """
        tickets = self._tickets
        if not tickets or not _native.is_live(tickets[-1]):
            _native.arm_alarm(self._queue, self.context_id, tickets)
        # The ticket may fire before this line. It is delivered later nevertheless, because only
        # this thread takes what arrives in the queue of its loop.
        registry[tickets[-1]] = self
        del tickets[:-1]

    # Bound here, because at the interpreter's end the module's names may be gone.
    def fire(self, fire_alarm: Callable[[int], None] = _native.fire_alarm) -> None:
        """Has the loop call `complete` with 0. May run in a finalizer. Nothing if it has fired."""
        for ticket in list(self._tickets):
            fire_alarm(ticket)

    def complete(self, code: int, orphaned: bool) -> None:
        """See `PendingEntry`."""
        raise NotImplementedError

    def abandon(self, code: int, orphaned: bool) -> None:
        """Is never called, because an alarm always fires."""


# Any thread that arms a point adds its entry, before the driver gets the ticket. One thread removes
# it: the one that drains the queue of that ticket. So no entry has two threads that remove it. Each
# access is one dict operation, which Python makes atomic. So there is no lock, which a signal
# handler could find taken by the thread that it interrupts.
registry: dict[int, PendingEntry] = {}


_UNKNOWN = _native.STATUS_UNKNOWN
_NEAR = _native.STATUS_NEAR


def _health_of(context_id: int, known: dict[int, int]) -> int:
    # Once for each context and batch, because each answer is a call of the driver.
    if context_id not in known:
        known[context_id] = _native.health(context_id)
    return known[context_id]


def deliver(backlog: list[int | _native.Wait], orphaned: bool = False) -> None:
    """Settles what a drain has brought, and empties `backlog`.

    An event and a stream callback bring their status. A host function brings none. By the manual it
    never runs after an error, but some drivers were reported to run it. So the health of its
    context is read once for each batch, after the firing: what settles as done has succeeded.

    Args:
        backlog: `ticket, code, ticket, code, ...`, with a `Wait` for a code if the watcher hands a
            wait back. See `_native.drain`.
        orphaned: The loop is gone, or no task waits any more. This is the janitor's thread.

    Threads: the thread that drains this queue: its loop's, or the janitor's.
    """
    delivered = 0
    health: dict[int, int] = {}
    try:
        for position in range(0, len(backlog), 2):
            ticket = cast("int", backlog[position])
            code = backlog[position + 1]
            # None: the ticket was delivered before an interrupt, or its wait has no task any more.
            point = registry.get(ticket)
            if point is not None:
                if code == _UNKNOWN:
                    # The janitor settles no future with a result, so it needs no proof of success.
                    code = 0 if orphaned else _health_of(point.context_id, health)
                # The entry is removed after it has settled. If it were removed before, an interrupt
                # in between would lose it, and its task would hang.
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
                    # The entry stays. The GPU may use what it keeps alive, and a stream callback
                    # may come and release it.
                    point.abandon(-code, orphaned)
            delivered = position + 2
    finally:
        # After an interrupt the rest stays, with the item that it struck. The next drain repeats
        # that item, and each step of a delivery can be repeated.
        del backlog[:delivered]
