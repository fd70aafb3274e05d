"""The tasks that wait for a stream of a pool, in order."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiostream import _native
from aiostream._handles.operand import Operand
from aiostream._runtime import loops
from aiostream._runtime.completion import set_result
from aiostream._servers.pool_streams import Pooled

if TYPE_CHECKING:
    from aiostream._servers.pool_core import PoolCore


class Waiters:
    """The futures of the waiting tasks, and the alarms of the pool's contexts meanwhile.

    Only the thread of the loop that uses the pool touches them, except `end_alarms` and
    `raise_alarm`. A thread that exports metrics asks how many futures there are.
    """

    def __init__(self, dropped: deque[weakref.ref[Any]]) -> None:
        self._dropped = dropped  # the pool's
        # They stand in order. A future leaves when it is done, also when it is cancelled, so the
        # length is how many tasks wait. After a KeyboardInterrupt one that is done may stay until
        # its task runs.
        self.futures: dict[Any, None] = {}
        # One for each context of the pool. A finalizer may take from it in any thread, so each
        # change is one operation of the list.
        self.alarms: list[FailureAlarm] = []

    def forget_dead(self) -> int:
        """Drops the futures of loops that are gone, whose tasks never wake. Returns how many."""
        dead = [future for future in list(self.futures) if loops.is_dead(future)]
        for future in dead:
            self.futures.pop(future, None)
        return len(dead)

    def alive(self) -> list[Any]:
        """The futures of the tasks that still can be woken, because their loop is open."""
        # This is a copy. While this asks the loops, the collector may end a dead task, whose future
        # leaves.
        return [future for future in list(self.futures) if not loops.is_dead(future)]

    def hand(self, pooled: Pooled) -> bool:
        """Gives a stream to the task that has waited for longest. `False` if no task waits."""
        while self.futures:
            future = next(iter(self.futures))
            if not future.done() and not loops.is_dead(future):
                # This comes first, because a KeyboardInterrupt may come before the result is set. A
                # pooled stream that is in no list and whose future is not done counts as lost, and
                # is found again.
                pooled.handed_to = future
                set_result(future, pooled)
                # This comes last, because a KeyboardInterrupt may come before it. The next call
                # then finds the future done, and goes on to the next task.
                self.futures.pop(future, None)
                return True
            self.futures.pop(future, None)
        return False

    def fail_all(self, error: Callable[[], BaseException]) -> None:
        """Raises an error in each waiting task, a new one for each."""
        waiting = [future for future in self.alive() if not future.done()]
        # This comes before the errors, because a task that wakes up may wait for a stream again,
        # and its new future must not be cleared with the old ones.
        self.futures.clear()
        for future in waiting:
            set_result(future, error())  # `_in_turn` raises it

    # -------------------------------------------------------------------------------------- alarms

    def arm_alarms(self, pool: PoolCore, bridge: loops.Bridge, operands: list[Operand]) -> None:
        """Has the watcher read the health of the contexts, until `end_alarms`."""
        if len(self.alarms) != len(operands):  # an interrupt has left some of them
            self.end_alarms()
            self.alarms.extend([FailureAlarm(pool, bridge, operand) for operand in operands])
        # When they stand in the list, where `end_alarms` finds them after an interrupt.
        for alarm in self.alarms:
            alarm.arm()

    def raise_alarm(self, reference: weakref.ref[Any]) -> None:
        """Has the loop notice that a stream was dropped. May run in a finalizer: takes no lock."""
        # This comes first, because the loop may look before the callback of `Pooled.lent` has noted
        # it. Python may call either callback first.
        self._dropped.append(reference)
        # The alarms stay, and `FailureAlarm.complete` arms them again.
        for alarm in list(self.alarms):
            alarm.fire()

    def end_alarms(self) -> None:
        """Ends all alarms. May run in a finalizer: it takes no lock. May run twice."""
        while self.alarms:
            try:
                alarm = self.alarms[-1]
                # This comes before it leaves the list, because after an interrupt only the list
                # knows it. To fire it twice does nothing.
                alarm.fire()
                self.alarms.remove(alarm)
            except (IndexError, ValueError):  # a finalizer has interrupted this, and ended it
                pass


class FailureAlarm:
    """Notifies a pool if a context fails, or a stream is dropped, while tasks wait for a stream.

    Without it they could wait forever, because the tasks that hold the streams may themselves be
    waiting for something else, or may be gone.

    It is a ticket that any thread may fire, and that its loop may arm again. While it is armed, the
    watcher reads the context's health for it, and it is kept, with its loop's queue. So its maker
    notes it before it arms it.
    """

    __slots__ = ("_context_id", "_pool", "_queue", "_tickets")

    def __init__(self, pool: PoolCore, bridge: loops.Bridge, operand: Operand) -> None:
        self._pool = weakref.ref(pool)
        self._queue, self._context_id = bridge.queue, operand.context._ensure_monitored()
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
            _native.arm_alarm(self._queue, self._context_id, self, tickets)
        del tickets[:-1]

    # Bound here, because at the interpreter's end the module's names may be gone.
    def fire(self, fire_alarm: Callable[[int], None] = _native.fire_alarm) -> None:
        """Has the loop call `complete` with 0. May run in a finalizer. Nothing if it has fired."""
        for ticket in list(self._tickets):
            fire_alarm(ticket)

    def complete(self, code: int, orphaned: bool) -> None:
        """The context has failed. Or `code` is 0: a stream was dropped, or this alarm has ended."""
        pool = self._pool()
        # Orphaned: the loop is gone. This is the janitor's thread, which must not touch the pool.
        if pool is None or orphaned or self not in pool._waiters.alarms:
            return
        if code:
            pool._fail(code)
        elif pool._waiters.futures:
            # Armed before the pool looks, so that what is dropped from here on fires the new
            # ticket.
            self.arm()
            pool._notice_dropped()
        else:  # an interrupt has kept the last task that waited from it
            pool._waiters.end_alarms()
