"""The streams of a pool: who holds each of them, and which free one is used next.

`Pooled.holder` is a weak reference to the task that has the stream. Only the thread of the loop
that uses the pool writes it, in the native steps (`set_loan` in `native/module_pool.c`) and in
`StreamPool._lend` and `Pooled.end_loan`. Other threads read it. It is another thing than the holder
of a wait (`native/wait_inside.h`).
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from aiostream import _native
from aiostream._handles.operand import LEGACY
from aiostream._runtime import loops
from aiostream.stream import Stream


class Pooled(_native.Pooled):
    """One stream of a pool. Only the thread of the loop that uses the pool touches it.

    Attributes:
        stream: The pool's own `Stream`. A task gets one that is borrowed from it.
        freed: A number that grows from one stream that becomes free to the next.
        lent: A weak reference to what a task holds, so that the pool notices if the task loses it.
        alarm: Another one. Its callback wakes the loop if the object dies while tasks wait.
        holder: A weak reference to the task, for error messages.
        handed_to: The future of a task that gets the stream next, until that task runs. Meanwhile
            the pooled stream is in no list, and this is how `_find_lost` knows that it is on its
            way.
        wait_list: Where the pool waits for the work that tasks have left on the stream.
        record: What the pool needs of the object that was lent last: see `module_pool.c`.
        spares: Objects that tasks have given back, with their records. One that no task has kept is
            lent again.
    """

    __slots__ = ("device", "freed", "handed_to", "wait_list")

    def __init__(self, stream: Stream, device: int) -> None:
        self.stream, self.handle, self.device = stream, stream._handle, device
        self.spares = []
        self.freed = 0
        self.handed_to: Any = None
        self.wait_list: _native.WaitList | None = None

    def lend(self, on_drop: Callable[[Any], None], on_alarm: Callable[[Any], None]) -> Stream:
        """Returns the object that a task gets. The callbacks get the weak reference to it.

        Raises:
            StreamClosedError: It is a borrowed stream, whose owner has closed it.
        """
        lent: Stream | None = self.lend_again()
        if lent is None:
            lent = self.stream._borrowed_as(type(self.stream))
            references = weakref.ref(lent, on_drop), weakref.ref(lent, on_alarm)
            self.record = (lent._handle, *references, id(lent))
        return lent

    @property
    def key(self) -> int:
        """The id of the object that was lent last."""
        return self.record[3]

    def end_loan(self) -> None:
        """From now on no task holds the stream."""
        self.alarm = self.lent = self.holder = None

    def is_dropped(self) -> bool:
        """Whether a task had the stream, and has dropped it. Any thread may ask."""
        lent = self.lent  # read once, because another thread may end the loan meanwhile
        return lent is not None and lent() is None

    def is_held(self) -> bool:
        """Whether a task has the stream, or gets it in its next turn."""
        return (self.lent is not None and not self.is_dropped()) or self.is_handed_over()

    def is_handed_over(self) -> bool:
        """Whether a task will find the pooled stream in its future.

        A KeyboardInterrupt may have come after `handed_to` was set and before the future was. A
        loop that was closed never runs its tasks again.
        """
        future = self.handed_to
        return (
            future is not None
            and not loops.is_dead(future)
            and future.done()
            and not future.cancelled()
            and future.result() is self
        )


class Idle(list[Pooled]):
    """The free streams of a pool on one device, the one that was used last at the end.

    That one is taken, because what it needs still lies in the processor's caches, and because a
    library that keeps memory for each stream, such as torch, then keeps it for few.
    """

    __slots__ = ()
    take = list.pop


class IdleOnDevices:
    """The free streams of a pool on several devices. Its cost grows with the devices alone."""

    def __init__(self, all_pooled: list[Pooled]) -> None:
        self._sizes = Counter(pooled.device for pooled in all_pooled)
        self._free: dict[int, deque[Pooled]] = {device: deque() for device in self._sizes}
        self._order = itertools.count()
        for pooled in all_pooled:  # the first of each device at the end
            pooled.freed = next(self._order)
            self._free[pooled.device].appendleft(pooled)

    def append(self, pooled: Pooled) -> None:
        """Adds a stream that became free now."""
        pooled.freed = next(self._order)
        self._free[pooled.device].append(pooled)

    def take(self) -> Pooled:
        """Takes a stream of the device with the fewest in use. Equal devices take turns."""
        # Only the loop's thread comes here, so what `min` has read still holds at the `pop`.
        return min(self._free.values(), key=self._load).pop()

    def _load(self, free: deque[Pooled]) -> tuple[float, int]:
        if not free:
            return math.inf, 0
        return self._sizes[free[0].device] - len(free), free[-1].freed

    def clear(self) -> None:
        """Takes all."""
        for free in self._free.values():
            free.clear()

    def __len__(self) -> int:
        return sum(map(len, self._free.values()))

    def __iter__(self) -> Iterator[Pooled]:
        return itertools.chain.from_iterable(self._free.values())


def require_distinct(streams: list[Stream]) -> None:
    """Refuses streams that cannot form a pool.

    Raises:
        ValueError: There are none, two of them are one stream, or they are of several contexts.
    """
    if not streams:
        raise ValueError("a pool has at least one stream")
    known: dict[int, int] = {}
    for number, stream in enumerate(streams):
        # 0 and LEGACY are two handles of the legacy stream.
        first = known.setdefault(max(stream._handle.value, LEGACY), number)
        if first != number:
            raise ValueError(
                f"streams {first} and {number} are one (handle {stream._handle.value:#x}), and two "
                "tasks would use it at once. torch hands out 32 streams per device and priority in "
                "turn, so ask torch for fewer"
            )
        if stream.context != streams[0].context:
            raise ValueError(
                f"streams 0 and {number} live in different contexts. Make a pool for each context"
            )
