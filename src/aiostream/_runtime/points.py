"""What a point stands for, if it is no completion.

The slot of a point holds its owner. A drain calls the owner's methods when the point arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiostream import _native


class Owner(Protocol):
    """What a point stands for.

    Each method can be called again, because a KeyboardInterrupt may cut it short, and the point
    then arrives once more.
    """

    def complete(self, code: int, orphaned: bool) -> None:
        """Releases what was kept alive: the driver has passed the point.

        Args:
            code: 0, or the error of the driver.
            orphaned: The loop is gone, or the point belongs to none. This is the janitor's thread.
        """

    def abandon(self, code: int, orphaned: bool) -> None:
        """Keeps everything: the context has failed.

        The driver may or may not come to the point.
        """


NO_CONTEXT = -1
"""The `context_id` of an alarm that belongs to no context."""


class Alarm:
    """A ticket that any thread may fire, and that its loop may arm again.

    It also fires if its context fails. While it is armed, the watcher reads that context's health
    for it. With `NO_CONTEXT` it fires only when a thread fires it, and the watcher has no work. A
    subclass says in `complete` what the loop does then.

    An alarm that is armed is kept until it fires, with its loop's queue. So its maker notes it
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
        """Makes a new ticket, unless the current one has yet to fire.

        Call it in the loop's thread. After a KeyboardInterrupt, call it again.
        """
        tickets = self._tickets
        if not tickets or not _native.awaits_firing(tickets[-1]):
            _native.arm_alarm(self._queue, self.context_id, self, tickets)
        del tickets[:-1]

    # Bound here, because at the interpreter's end the module's names may be gone.
    def fire(self, fire_alarm: Callable[[int], None] = _native.fire_alarm) -> None:
        """Has the loop call `complete` with 0. May run in a finalizer. Nothing if it has fired."""
        for ticket in list(self._tickets):
            fire_alarm(ticket)

    def complete(self, code: int, orphaned: bool) -> None:
        """See `Owner`."""
        raise NotImplementedError

    def abandon(self, code: int, orphaned: bool) -> None:
        """Is never called, because an alarm always fires."""
