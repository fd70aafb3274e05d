"""Loans: a stream of a pool as one task has it, from the moment it gets the stream to its return.

A loan is a `Stream` on the pool's own one. As long as the stream's state is this loan's number, it
has the operand of the pool's own one, and afterwards one whose handle is closed. So each call of
this library refuses it then as it refuses a closed stream, and what the loan has begun goes on.
What the pool itself does on its streams needs no loan.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import Any

from aiostream._pools.pool_places import FREE, Place
from aiostream.stream import Stream


class Loan(Stream):
    """A `Stream` on one of a pool's, until it is given back. The pool closes its own one.

    Threads: any may use it.
    """

    _owned = False
    _parent: Any = None  # the native handle of which borrowed ones are made, and which ends here
    _operand: Any = property(
        lambda self: self._at.stream._operand if self._is_lent else self._at.ended
    )
    _is_lent: Any = property(lambda self: self._number in self._at)

    def __init__(self, place: Place, pool: Any = None) -> None:
        stream = place.stream
        self._label, self._mode = stream._label, stream._mode
        # Last, because from now on the finalizer gives it back. Its place keeps the stream.
        self._place = weakref.ref(place)
        self._at, self._number, self._pool = place, place.number, pool

    def end(self, error: object = None) -> None:
        """Gives the stream back, once. `error` is what has ended the block."""
        if (pool := self._pool) is not None:
            if self._parent is not None:
                self._parent.close()
            pool._give(self._at, self._number, error)
            self._pool = None  # last, because after an interrupt this is called again

    # The defaults bind what is called, because the interpreter's end empties modules.
    def __del__(self, is_end: Any = sys.is_finalizing, warn: Any = warnings.warn, *_: Any) -> None:
        if getattr(self, "_pool", None) is not None and self._is_lent and not is_end():
            try:
                # Else its task is garbage too, and its block was to end.
                if self._at.block != self._number:
                    warn(f"{self!r} was dropped and not given back", ResourceWarning, 2, self)
            finally:  # also if a filter turns the warning into an error
                self.end(GeneratorExit())

    @property
    def own(self) -> Any:
        """What `StreamPool(each=)` has made for this stream."""
        self._require_open()
        return self._at.stream.own

    @property
    def handle(self) -> int:
        """As `Stream.handle`, also after the end, because memory may be freed by it."""
        return self._at.stream.handle

    def __eq__(self, other: object) -> bool:
        return self._at.stream == (other._at.stream if isinstance(other, Loan) else other)

    __hash__ = Stream.__hash__

    def to_borrowed(self) -> Any:
        """As `Stream.to_borrowed`, until the end of the loan."""
        return self._borrowed_as(Stream)

    def _new_borrowed(self) -> Any:
        self._parent = self._parent or self._handle.borrow()
        return self._parent.borrow()

    def _traits(self) -> list[str]:
        return self._at.stream._traits() + ["given back"] * (not self._is_lent)


class Kept(Loan):
    """The `Stream` that `each` got. It is refused while the pool's stream is free."""

    _is_lent = property(lambda self: FREE not in self._at)


# In errors and lists they are streams.
Loan.__name__ = Loan.__qualname__ = Kept.__name__ = Kept.__qualname__ = Stream.__name__
