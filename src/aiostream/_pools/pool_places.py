"""The places of a pool: each is one of its streams, and the state that the stream is in.

- `FREE`: no task has it, and it lies in `_recent` of the pool. A task ends this by taking it.
- *lent*: the item is a weak reference to the task, or `None` in a callback of the loop. The task
  ends it by giving the stream back.
- `Busy`: something that a task has left on it goes on: the GPU, a thread, a function at its
  `yield`. What goes on ends it.
- *closed*: the place is empty, as it also is during a change.

The state is the one item of the place, a dict. Its key is `FREE`, or the number of a use, or below
0 while the stream is busy. To change the state is to pop the item and then
to put another one. A pop is one step: of two that want the same item one gets it, also if the other
is in a finalizer or a signal handler, and that one alone puts the next item. So no two tasks have
one stream, and the end of a use whose number is gone does nothing.

An interrupt between the two steps leaves the place empty. Such a stream counts as held until the
pool is closed. One that comes between the state and `_recent` has the same effect: no task gets the
stream any more.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from aiostream._handles.operand import Operand
from aiostream.stream import Stream

if TYPE_CHECKING:
    from aiostream._pools.pool_core import PoolCore

FREE = 0


class Place(dict[int, Any]):
    """One stream of a pool, its state, and what belongs to it."""

    own: Any  # what `each` has made, if there is one
    __slots__ = ("__weakref__", "block", "ended", "left", "number", "own", "stream")
    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]

    def __init__(self, stream: Stream) -> None:
        closed = stream._operand.handle.borrow()
        closed.close()
        self.stream = stream
        stream._place = weakref.ref(self)
        # The operand of its loans that have ended.
        self.ended = Operand(closed, stream.context, f"the loan of {stream._operand.name}")
        # Of the latest state, and of the latest whose block gives the stream back.
        self.number = self.block = 0
        # What a task has left on the stream, if that reports its end: see `Busy`.
        self.left: Any = None

    def lend(self, task: Any) -> None:
        """Notes who has the stream. The caller has taken the former state out."""
        number = self.number = self.number + 1
        # Weakly, because a pool must not keep a task, and what its frames hold, past its end.
        self[number] = task and weakref.ref(task)

    def ends(self, number: int) -> bool:
        """Ends the state that has this number. If it was the state, the caller puts the next."""
        return self.pop(number, self) is not self


class Busy:
    """The state of a stream that came back while its work, or something else, goes on.

    If an event behind the work, a call of `run` or a thread owns the end, that calls `over`. If
    nothing does (`is_reported` is false), the pool asks the driver from time to time.
    """

    __slots__ = ("is_reported", "number", "place", "pool")

    def __init__(self, pool: PoolCore, place: Place, is_reported: bool = True) -> None:
        self.pool, self.place, self.is_reported = weakref.ref(pool), place, is_reported
        self.number = place.number = place.number + 1
        place[-self.number] = self  # it keeps the stream until its work is done

    def complete(self, code: int, orphaned: bool) -> None:
        """The GPU has passed the event (`code` is 0), or has failed. Native code calls this."""
        self.over()

    def over(self) -> None:
        """What was left on the stream has ended. Any thread."""
        if (pool := self.pool()) is None:
            self.place.pop(-self.number, None)
        # If the loop is gone, the next one that uses the pool asks for the stream itself.
        elif (bridge := pool._bridge()) is None:
            return
        elif threading.get_ident() != pool._thread:
            bridge.call_soon(self.over)
        # A pool that is being closed waits for its streams itself, and raises what it meets.
        elif not pool._closed and self.place.ends(-self.number):
            pool._ask(self.place, bridge)
