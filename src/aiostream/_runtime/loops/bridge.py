"""What all loops have in common: the bridge by which arrivals reach a loop."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiostream import _native
from aiostream._runtime.launches import Launches

TaskFunction = Callable[[], Coroutine[Any, Any, None]]


class Bridge:
    """The way from the driver's threads into one loop.

    A subclass says how its kind of loop reads the descriptor, makes futures and calls functions.

    Threads: the loop's thread, unless a method says otherwise.
    """

    # On trio: gives the loop a turn, as trio asks of each await, and may raise trio's cancellation.
    # None on asyncio, where a wait that is over at once need not yield (see `must_yield`).
    checkpoint: Callable[[], Awaitable[None]] | None = None
    cancelled: type[BaseException]  # what the loop raises in a task that is cancelled
    # Polls a wait once in each turn of the loop and returns its answer (see `waiting`). It must not
    # refer to the bridge, because the frame of a waiting task holds it, and would keep the bridge
    # alive when the loop is gone.
    until_over: Callable[[_native.Wait], Awaitable[int | _native.Wait | None]]
    # Returns the task that runs now, or None in a callback of the loop.
    current_task: Callable[[], Any]
    # Makes a future of the loop: asyncio's, or an `_native.OwnFuture` with a method `belongs_here`
    # (see `TrioFuture`).
    new_future: Callable[[], Any]
    # Makes a future whose `cancel` reaches its point, which native code sets.
    new_polled_future: Callable[[], Any]
    # Begins a task that no other task owns or cancels, by a function, its name and its context. It
    # starts in a later turn of the loop. Returns the task. On asyncio the caller keeps it, because
    # the loop does not.
    spawn: Callable[[TaskFunction, str, contextvars.Context], object]
    # Has the loop call a function after some seconds. Returns `False` if the loop no longer can.
    call_later: Callable[[float, Callable[[], None]], bool]
    # Has the loop call a function soon. Returns `False` if the loop is gone. In any thread, also in
    # a finalizer.
    call_soon: Callable[[Callable[[], None]], bool]
    # Whether the loop is closed, so that it will not do what it was asked for. The janitor asks.
    is_gone: Callable[[], bool]

    def __init__(self) -> None:
        # When it dies with this bridge, it is closed. The loop has a reader on its descriptor.
        self.arrivals = _native.Queue()
        self.descriptor = self.arrivals.descriptor
        self.launches = Launches()
        self.queue = self.launches.queue = self.arrivals.number
        # The janitor has asked the loop for a drain, which has not begun. The janitor sets
        # it, and the loop's thread clears it.
        self.asked = False
        # Whether a future may be done when it is made. Not from when these have used up their share
        # of a turn until the next drain, because a task that awaits a done future does not yield.
        self.at_once = True
        # The waits of `aiostream.ready`, if there was one: see `_waits/ready.py`.
        self.questions: Any = None
        # Futures of tasks that wait for a pool's stream. Nothing else need keep such a task.
        self.kept: dict[object, Any] = {}

    @property
    def is_open(self) -> bool:
        """Whether what arrives is still delivered to the loop."""
        return self.arrivals.is_open

    def drain(self) -> None:
        """Settles everything that has arrived. The loop calls it."""
        try:
            # Cleared before the queue is read, because what arrives later brings its own request.
            self.asked, self.at_once = False, True
            _native.drain(self.queue)
            if self.launches.count or self.launches.wait:
                self.launches.drained()
            if self.questions is not None:
                self.questions.ask()
        except BaseException:
            # An interrupt may have kept this from asking for the next drain.
            _native.queue_wake(self.queue)
            raise

    def close(self) -> None:
        """Closes the queue, because the loop is gone. What still arrives goes to the janitor.

        Threads: any, any number of times.
        """
        # They refer to tasks, which may refer to the loop.
        self.questions, self.launches.waiting = None, {}
        self.kept.clear()  # in place, because the frames of the tasks refer to it
        self.arrivals.close()

    def must_yield(self) -> bool:
        """Whether a task whose wait was over at once has to give the loop a turn.

        Not used on trio, where each wait is a checkpoint.
        """
        return False
