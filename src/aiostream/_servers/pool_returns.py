"""Streams that came back to a pool while the GPU still works on them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from aiostream import _native
from aiostream._handles.operand import new_wait_list
from aiostream._runtime import loops
from aiostream._servers.pool_streams import Pooled
from aiostream._waits import waiting
from aiostream.errors import CudaError

if TYPE_CHECKING:
    from aiostream._servers.pool_core import PoolCore


class Busy:
    """The busy streams of a pool, and how the pool learns that they are free.

    Usually the pool records an event behind the work. The watcher polls that event, and a `Return`
    carries the answer into the loop. Where this is not possible, because the stream is capturing or
    the driver refused, the stream is *unreported*: the pool queries it again from time to time.

    Only the thread of the loop that uses the pool touches it.
    """

    def __init__(self) -> None:
        self._returns: dict[Pooled, Return | None] = {}  # `None` for an unreported stream
        self.has_unreported = False
        # How long streams stay busy. Not the history of the waits on them, because what a
        # cancelled request has left takes another time than a whole request.
        self._history = _native.History()

    def __len__(self) -> int:
        return len(self._returns)

    def all_pooled(self) -> list[Pooled]:
        """The busy streams."""
        return list(self._returns)

    def add_unreported(self, pooled: Pooled) -> None:
        """Adds a stream that no event reports."""
        # The flag comes first. After an interrupt in between, the pooled stream is in no list,
        # where it is found again.
        self.has_unreported = True
        self._returns[pooled] = None

    def add(self, pooled: Pooled, pool: PoolCore, bridge: loops.Bridge | None) -> None:
        """Adds a stream, and has an event behind its work polled for the loop of `bridge`."""
        # A KeyboardInterrupt in `_record` leaves the pooled stream in no list, where it is found
        # again. The answer of its event is then ignored, see `remove`.
        entry = self._record(pooled, pool, bridge)
        self.has_unreported |= entry is None
        self._returns[pooled] = entry

    def remove(self, pooled: Pooled, entry: Return) -> bool:
        """Removes a stream whose `Return` has come. `False` if the pool no longer waits for it."""
        if self._returns.get(pooled) is not entry:
            return False  # the pool was closed, or another loop uses it now
        del self._returns[pooled]
        return True

    def take_unreported(self) -> list[Pooled]:
        """Takes out the unreported streams. The caller looks at each of them."""
        found = [pooled for pooled, entry in self._returns.items() if entry is None]
        for pooled in found:
            del self._returns[pooled]
        self.has_unreported = False  # only now, because an interrupt may come before
        return found

    def take_all(self) -> list[Pooled]:
        """Takes out all streams."""
        found, self._returns = list(self._returns), {}
        return found

    def report_none(self) -> None:
        """Ignores all events: another loop uses the pool, or the pool closes."""
        self.has_unreported = True  # first, because an interrupt may come in between
        self._returns = dict.fromkeys(self._returns)

    def _record(self, pooled: Pooled, pool: PoolCore, bridge: loops.Bridge | None) -> Return | None:
        """Records an event behind the work. `None` if that is not possible."""
        if bridge is None:
            return None
        operand = pooled.stream._operand
        try:
            if pooled.wait_list is None:
                pooled.wait_list = new_wait_list(operand, self._history)
        except (MemoryError, CudaError):
            return None
        # The watcher may see the event complete at once. It fires into the loop's queue, so
        # `Return.complete` cannot run before this thread is back in its drain. The watcher polls,
        # because the loop may not be running.
        entry = Return(pool, pooled)
        recorded = _native.watch(
            operand.handle, pooled.wait_list, bridge.queue, waiting.BY_WATCHER, entry
        )
        return entry if recorded else None


class Return:
    """A busy stream whose end an event reports. It lives until the event is complete."""

    __slots__ = ("pool", "pooled")

    def __init__(self, pool: PoolCore, pooled: Pooled) -> None:
        self.pool = weakref.ref(pool)
        # Keeps the stream until the work is done, even if the pool is collected before.
        self.pooled = pooled

    def complete(self, code: int, orphaned: bool) -> None:
        """The work is done (`code` is 0), or has failed."""
        pool = self.pool()
        # If the loop is closed, this is the janitor's thread, and the pool's thread may be anywhere
        # in the pool. The next loop that uses the pool looks at the stream itself.
        if pool is not None and not orphaned:
            pool._work_is_done(self.pooled, self, code)
