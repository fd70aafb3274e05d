"""What all loops have in common: the way by which arrivals reach a loop."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiostream import _native, _points, _process
from aiostream.futures import EventCompletion, Orders, PolledFuture, SettledFuture, set_result

# What `_native.Wait` answers is a refusal, or from here on a ticket: of a wait that was left to a
# timer or the watcher.
TICKETS = 1 << 24


class Bridge:
    """The way from the driver's threads into one loop."""

    # On trio alone: lets the loop take a turn, as an await that has nothing to wait for must; may
    # raise its cancellation.
    checkpoint: Callable[[], Awaitable[None]] | None = None
    # The task that runs now, or `None` in a callback of the loop.
    current_task: Callable[[], Any]

    def __init__(self) -> None:
        # Filled and emptied by the loop's thread alone; it survives a KeyboardInterrupt in the
        # middle.
        self._backlog: list[int | _native.Wait] = []
        # Popped by whoever closes the queue, the dispatcher or the finalizer: a second close would
        # be of its next owner's.
        self._unclosed: list[int] = []
        self._descriptor = _native.queue_open(self._unclosed)
        self.queue = self._unclosed[0]
        self._polling: object = (
            None  # stands for the drain that is on its way in the next turn; by the loop's thread
        )
        # For each stream, this loop's completions that an event ends, oldest first. Completions
        # hold this dict, not the bridge.
        self.orders: Orders = {}

    @property
    def descriptor(self) -> int:
        """What the loop watches: readable when something has arrived, or when a timer of a wait is due."""
        return self._descriptor

    @property
    def is_open(self) -> bool:
        """Whether what arrives is still delivered to the loop."""
        return bool(self._unclosed)

    def drain(self) -> None:
        """Settles everything that has arrived. Called by the loop, in its thread."""
        if _native.is_forked():
            return  # its descriptors are the parent's too: reading it here would take a wake-up away
        self._polling = None  # the drain on its way, if any, gives way to this one: a KeyboardInterrupt may have taken it
        try:
            again = _native.drain(self.queue, self._backlog)
            _points.deliver(self._backlog)
            if again:
                self.poll_soon()
        except BaseException:
            _native.queue_wake(self.queue)  # come again for what is left
            raise

    def poll_soon(self) -> None:
        """Drains again in the loop's next turn: futures whose end is near are polled there. Call it in the loop's thread."""
        if self._polling is None:
            token = object()
            self._call_next_turn(partial(self._poll, token))
            self._polling = token

    def _poll(self, token: object) -> None:
        if token is self._polling:
            self.drain()

    def _call_next_turn(self, function: Callable[[], None]) -> None:
        raise NotImplementedError

    def settle_polled(
        self, future: PolledFuture, point: EventCompletion, refusal: int | None
    ) -> None:
        """The task that polled has seen the end, and its ticket has arrived in the queue.

        A success is told at once, and the rest is done in the next turn, because the code that it takes lies cold after a sleep.
        """
        if not refusal and point.is_first() and not future.done():
            self.poll_soon()
            set_result(future, point.result)
        else:
            self.drain()

    def close(self) -> None:
        """The loop is gone: what still arrives is the orphans'. Any thread, any number of times; also from a finalizer.

        A finalizer may run wherever Python does, so nothing here takes a lock of Python's. What `queue_close` takes are mutexes
        of native code, under which no Python runs and no driver is called.
        """
        try:
            queue = self._unclosed.pop()
        except IndexError:
            return
        _native.queue_close(queue)
        if self._backlog:  # a KeyboardInterrupt came, and the loop did not come again
            _process.run_in_janitor(partial(_points.deliver, self._backlog, orphaned=True))

    def must_yield(self) -> bool:
        """Whether a task whose wait was over at once has to give the loop a turn. Never on trio, where every wait does."""
        return False

    def new_future(self) -> SettledFuture:
        """A future of this bridge's loop."""
        raise NotImplementedError

    def new_polled_future(self) -> PolledFuture:
        """A future whose awaiting task polls the work itself when its end is near."""
        raise NotImplementedError

    def call_later(self, seconds: float, function: Callable[[], None]) -> bool:
        """Has the loop call a function; `False` if it no longer can. Call it in the loop's thread."""
        raise NotImplementedError

    def schedule_drain(self) -> bool:
        """Has the loop call `drain` soon; `False` if the loop is gone. Called by the dispatcher's thread."""
        raise NotImplementedError

    # Bound here, because at the interpreter's end the module's names may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_unclosed") and not _native.is_forked():
            self.close()
