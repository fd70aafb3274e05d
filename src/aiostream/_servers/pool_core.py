"""What a pool does: which stream a task gets, and what happens to a stream that comes back."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from aiostream import _native
from aiostream._base import driver
from aiostream._handles.operand import share_history
from aiostream._objects import captures
from aiostream._runtime import loops, process
from aiostream._runtime.observing import observers
from aiostream._servers.pool_returns import Busy, Return
from aiostream._servers.pool_streams import Idle, IdleOnDevices, Pooled
from aiostream._servers.pool_waiters import Waiters
from aiostream.errors import CudaError, PoolFullError, StreamClosedError
from aiostream.stream import Stream

_NOT_READY = 600
_MOST_NAMES = 8  # of tasks that hold streams, in an error
_AGAIN = 0.005  # seconds until the pool looks again at streams that no event reports


class PoolCore(_native.Pool):
    """The streams of a pool and their states. `StreamPool` adds the calls that tasks make.

    A stream is *idle*, *lent*, *busy*, or on its way to a task that has waited for it. A
    KeyboardInterrupt may come between any two lines. So no step may lose a stream in a way that
    `_find_lost` does not notice.
    """

    _label: str | None  # what its user calls it
    release: Callable[..., None]
    _release: Callable[..., None]  # the pool's, also in a subclass that has another one

    def _init_fields(self, streams: list[Stream], max_waiting: int | None) -> None:
        # Only the thread of the loop that uses the pool touches these, so there is no lock.
        # Finalizers run in any thread, and only end alarms. A thread that exports metrics reads
        # lengths, which may be one step old.
        self._closed = False
        self._max_waiting = max_waiting
        self._set_pooled([Pooled(each, each.context._device_ordinal()) for each in streams])
        share_history(pooled.stream._operand for pooled in self._pooled)
        one = len(self._places) == 1
        self._idle = Idle(reversed(self._pooled)) if one else IdleOnDevices(self._pooled)
        self._busy = Busy()
        self._lent: dict[int, Pooled] = {}  # by the id of the `Stream` that the task has
        # `lent` and `alarm` of each pooled stream whose `Stream` died before it was given back. Any
        # thread appends, because an object may die in any. Only the loop's thread removes.
        self._dropped: deque[weakref.ref[Stream]] = deque()
        self._waiters = Waiters(self._dropped)
        self._at_once = 0  # how often a stream was free at once, modulo TURNS_AFTER
        self._will_look = False  # the loop will look again
        # A cancelled enqueue_in_thread has left a thread on a stream that came back.
        self._thread_left = False
        # `driver.latest_failure` at the time when this pool's contexts were known to be healthy.
        # None once the pool itself has met a failure.
        self._healthy_since: object = driver.latest_failure
        # Of the loop that used the pool last. A weak reference, because the bridge ends with its
        # loop, and a kept pool would keep it.
        self._bridge: weakref.ref[loops.Bridge] | None = None

    def _set_pooled(self, all_pooled: list[Pooled]) -> None:
        self._pooled = all_pooled
        self._size = len(all_pooled)
        # A stream of each device, by its number. The pool knows the contexts by these.
        self._places = {pooled.device: pooled.stream for pooled in all_pooled}

    # ------------------------------------------------------------------------------------------ use

    def _end_when_dropped(self, pooled: Pooled) -> None:
        """A closed pool has no next use, so there the callback of a drop ends the stream itself."""
        lent = pooled.lent() if pooled.lent is not None else None
        if lent is not None:
            pooled.lent = weakref.ref(lent, partial(_end_dropped, pooled.stream))

    async def _in_turn(self) -> Pooled:
        """Waits until it is this task's turn."""
        # This is done now, because a task that waits looks for nothing. If all streams were lost,
        # no release would come, and it would wait without end.
        self._find_lost()
        if self._max_waiting is not None and self.waiting >= self._max_waiting:
            raise PoolFullError(f"no stream is free, and no more tasks may wait: {self._reasons()}")
        bridge = loops.current_bridge()
        future: Any = bridge.new_queued_future(self._waiters.futures)
        try:
            # This is in the `try`, because after an interrupt the future must not stay: a stream
            # that is handed to it would reach no task.
            is_first = not self._waiters.futures
            self._waiters.futures[future] = None
            if is_first:
                operands = [each._operand for each in self._places.values()]
                self._waiters.arm_alarms(self, bridge, operands)
            del bridge
            # What was dropped before the alarms stood there has raised no alarm.
            self._notice_dropped()
            pooled: Pooled | BaseException = await future
            # It is still there only after a KeyboardInterrupt. No task waits for it any more.
            self._waiters.futures.pop(future, None)
            if isinstance(pooled, BaseException):
                raise pooled
            # From here on only this frame knows the pooled stream. If the task is interrupted
            # before it is lent, `_find_lost` sees that the pooled stream is in no list.
            pooled.handed_to = None
            return pooled
        except BaseException:
            # This comes first, so that the stream which comes back below does not go to this task
            # again.
            self._waiters.futures.pop(future, None)
            for handed in self._pooled:
                if handed.handed_to is future:  # it was this task's turn, but it is cancelled
                    handed.handed_to = None
                    self._put_back(handed)
            raise
        finally:
            # The last task that waited. The watcher would otherwise read the contexts' health every
            # 15 ms, as long as the pool is kept.
            if not self._waiters.futures:
                self._waiters.end_alarms()

    def _change_loop(self, bridge: loops.Bridge) -> None:
        """Another loop uses the pool. Takes back what tasks of the former loop never took."""
        # A loop that was closed never runs its tasks again. So their futures do not count.
        if self._waiters.forget_dead() and self._lent:
            # A task that waited may hold a stream too. It and its future refer to each other, so
            # only the collector ends them. This is rare, and the pool would be refused.
            gc.collect()
        if self._dropped:
            self._take_dropped()
        handed = [pooled.handed_to for pooled in self._pooled if pooled.handed_to is not None]
        alive = self._waiters.alive()
        lent = len(self._lent) + sum(not loops.is_dead(future) for future in handed)
        if lent or alive:
            raise RuntimeError(
                f"the pool{self._called} is in use in another event loop: {lent} streams are lent"
                f"{self._holders(lent)}, {len(alive)} tasks wait. Give them back there first, or "
                "make a pool for each loop"
            )
        # The alarms fire into the former loop's queue. If they were kept, no alarm of this loop
        # would be made, and a lost context would wake none of its tasks.
        self._waiters.end_alarms()
        self._waiters.futures.clear()
        self._will_look = False
        for pooled in self._pooled:
            pooled.handed_to = None
        self._busy.report_none()  # the answers of their events go to the former loop
        asks = loops.asks_asyncio(bridge)
        own = type(self).release is not type(self)._release
        self._bind((self._waiters.futures, driver, observers, *asks), bridge.queue, own)
        # This comes behind all of that, because after an interrupt the next use does it again.
        # Without the callback the watcher would read the health of the contexts as long as the pool
        # is kept. The callback must not keep the pool.
        self._bridge = weakref.ref(bridge, partial(_end_alarms_for, weakref.ref(self)))
        self._find_lost()

    def _find_lost(self) -> None:
        """Finds streams that are in none of the lists.

        A KeyboardInterrupt came between two steps, or a loop ended there.
        """
        # Each pooled stream is in at most one list, so equal numbers mean that none is lost. A
        # pooled stream on its way to a task is in none, and is looked at below.
        if len(self._idle) + len(self._busy) + len(self._lent) == self._size:
            return
        known = {*self._idle, *self._busy.all_pooled(), *self._lent.values()}
        for pooled in self._pooled:
            if pooled not in known and not pooled.is_handed_over():
                pooled.handed_to = None
                # A frame of a traceback may still hold the object. It is closed, so that it cannot
                # be used next to the one of the task that gets the stream now.
                lent = pooled.lent() if pooled.lent is not None else None
                if lent is not None:
                    lent._handle.close()
                pooled.end_loan()
                self._busy.add_unreported(pooled)

    def _take_dropped(self) -> None:
        """Takes back the streams whose `Stream` died before it was given back.

        A task dropped it, or a KeyboardInterrupt came before `release` could begin.
        """
        found = {self._pooled_of(reference): None for reference in self._dropped.copy()}
        for pooled in filter(None, found):
            # The id may be that of a stream that was lent since.
            if self._lent.get(pooled.key) is pooled:
                del self._lent[pooled.key]
            pooled.end_loan()
            self._look_at(pooled)
        # This comes last, because after a KeyboardInterrupt the next call comes here again. What
        # another thread has appended since then, the next call finds too.
        while self._dropped and self._pooled_of(self._dropped[0]) is None:
            self._dropped.popleft()

    def _notice_dropped(self) -> None:
        """The same for tasks that wait: if the streams still work, the loop looks again."""
        if self._dropped:
            self._take_dropped()
        self._look_again_soon()

    def _is_collected(self, stream: object) -> bool:
        """Whether the pool counts a stream as dropped that a task still has.

        The collector clears the weak references to what a dead task has, and then ends the task's
        blocks. What a task has given back is closed.
        """
        source = getattr(stream, "_source", None)
        return (
            source is not None
            and any(pooled.stream is source for pooled in self._pooled)
            and not cast("Stream", stream).closed
        )

    def _pooled_of(self, reference: weakref.ref[Stream]) -> Pooled | None:
        return next((s for s in self._pooled if reference is s.lent or reference is s.alarm), None)

    def _put_back(self, pooled: Pooled) -> None:
        """The stream's work is done. It goes to the task that has waited for longest."""
        if self._closed:
            pooled.stream.close()
        elif not (self._waiters.futures and self._waiters.hand(pooled)):
            self._idle.append(pooled)

    def _drop(self, pooled: Pooled) -> None:
        """The stream's owner has closed it. The pool continues without it."""
        self._set_pooled([each for each in self._pooled if each is not pooled])
        pooled.stream.close()
        if not self._pooled:
            self._refuse(f"the owners have closed all streams of the pool{self._called}")

    # -------------------------------------------------------------------------------- returned work

    def _look_at(self, pooled: Pooled) -> None:
        """Decides whether a stream that was given back is free, or when the pool learns that."""
        if pooled.stream._handle.is_used and not self._closed:
            # A thread of enqueue_in_thread uses it, and may enqueue more. An event recorded now
            # would come too early. `release` has closed the thread's `Stream`, so no new use can
            # begin, and the answer changes once.
            self._busy.add_unreported(pooled)
            self._thread_left = True
            return
        code = _native.stream_query(pooled.stream._handle)
        if code <= _native.RESULT_CAPTURING:
            captures.end_left(pooled.stream._operand)  # one that this library began
            code = _native.stream_query(pooled.stream._handle)
        if code == 0 or self._closed:
            self._put_back(pooled)
        elif code == _native.RESULT_CLOSED:  # a borrowed stream, whose owner has closed it
            self._drop(pooled)
        elif code == _NOT_READY:
            self._busy.add(pooled, self, self._open_bridge())
        elif code > 0 and (failure := pooled.stream.context.health()):
            self._fail(failure)
            self._put_back(pooled)
        else:
            # It takes part in a capture of another stream, or the driver refused for once.
            self._busy.add_unreported(pooled)

    def _look_again(self) -> None:
        """Looks at the busy streams that no event reports."""
        self._thread_left = False
        for pooled in self._busy.take_unreported():
            self._look_at(pooled)

    def _look_again_soon(self) -> None:
        """Has the loop look at unreported streams if tasks wait, or if a thread uses a stream.

        Else the next `acquire` looks. A thread ends soon, and then the pool's numbers would be
        wrong until that call.
        """
        counts = self._waiters.futures or self._thread_left
        if self._will_look or not self._busy.has_unreported or not counts:
            return
        bridge = self._open_bridge()
        if bridge is not None and self._bridge is not None:
            look = partial(_look_again_for, weakref.ref(self), self._bridge)
            self._will_look = bridge.call_later(_AGAIN, look)

    def _open_bridge(self) -> loops.Bridge | None:
        """The bridge of the loop that used the pool last, unless that loop is gone."""
        bridge = self._bridge() if self._bridge is not None else None
        return bridge if bridge is not None and bridge.is_open else None

    def _work_is_done(self, pooled: Pooled, entry: Return, code: int) -> None:
        """The event behind a busy stream's work is complete, or has failed."""
        # This runs in the loop's drain, so between two steps of its tasks, and never in one.
        if not self._busy.remove(pooled, entry):
            return
        if code == 0:
            self._put_back(pooled)
            return
        self._look_at(pooled)  # the context has failed, or the driver refused the query
        self._look_again_soon()

    # --------------------------------------------------------------------------------------- errors

    def _health(self) -> int:
        """0, or the code of a context of the pool that has failed."""
        codes = (each.context.health() for each in self._places.values())
        return next(filter(None, codes), 0)

    def _fail(self, code: int) -> None:
        """A context has failed. The tasks that wait get the error at once."""
        # This comes first, because a task that gets the error may acquire again at once.
        self._healthy_since = None
        self._waiters.fail_all(lambda: self._error(code))

    def _error(self, code: int) -> CudaError:
        # A lost context no longer knows its device.
        numbers = {str(number): each.context for number, each in self._places.items()}
        where = f"{'device' if len(numbers) == 1 else 'devices'} {', '.join(numbers)}"
        lost = [number for number, context in numbers.items() if context.health()]
        if 0 < len(lost) < len(numbers):  # a reset concerns one device, and a fault concerns all
            where += f", whose device {', '.join(lost)} is lost"
        pool = f"a pool{self._called} of {self._size} streams on {where}"
        return driver.error(code, "cuStreamQuery", pool)

    @property
    def _called(self) -> str:
        return f" {self._label!r}" if self._label else ""

    def _refuse(self, reason: str | None = None) -> None:
        """From now on no task gets a stream."""
        reason = reason or f"the pool{self._called} was closed"
        # This comes first, because the tasks that wake up find the pool closed, and streams that
        # come back meanwhile are destroyed.
        self._closed = True
        for pooled in list(self._lent.values()):
            self._end_when_dropped(pooled)
        # What was dropped before the line above has only been noted.
        self._take_dropped()
        self._waiters.end_alarms()
        self._waiters.fail_all(lambda: StreamClosedError(reason))

    def _require_open(self) -> None:
        if self._closed:
            raise StreamClosedError(f"the pool{self._called} is closed")

    # A thread that exports metrics may read all of these while the loop's thread changes the pool,
    # so each list is made in one step. Each number is true of one moment, but two of them may be of
    # two moments.

    @property
    def size(self) -> int:
        """How many streams the pool has: `idle + busy + lent`.

        A borrowed stream that its owner has closed no longer counts.
        """
        return self._size

    @property
    def idle(self) -> int:
        """How many streams are free: no task has them, and their work is done."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """How many streams the GPU still works on while no task holds them.

        A stream that a task has dropped counts as busy until the next use of the pool.
        """
        busy = len(self._busy)
        # Each refusal asks this, and must not look at all lent streams.
        if self._closed or not self._dropped:
            return busy
        # Those that were dropped count too, which the pool has yet to look at. In this order, so
        # that one that moves meanwhile is not counted twice.
        return busy + sum(pooled.is_dropped() for pooled in list(self._lent.values()))

    @property
    def lent(self) -> int:
        """How many streams tasks hold, or get in the loop's next turn."""
        if self._closed:
            return sum(pooled.is_held() for pooled in self._pooled)
        return self._size - len(self._idle) - self.busy

    @property
    def waiting(self) -> int:
        """How many tasks wait for a stream."""
        # One step, also behind thousands of tasks, because each of them asks for the limit.
        return len(self._waiters.futures)

    def _holders(self, lent: int) -> str:
        """Which tasks hold that many streams, such as ` to 'Task-3', 'Task-5' and 1 more`."""
        names: list[str] = []
        for pooled in list(self._lent.values()):
            holder = pooled.holder  # read once, because another thread may export this
            task = holder() if holder is not None and not pooled.is_dropped() else None
            if task is not None:
                names.append(repr(loops.task_name(task)))
            if len(names) == _MOST_NAMES:
                break
        if not names:
            return ""
        # Those on their way to a task count too. The pool knows its future, and not the task.
        others = lent - len(names)
        return f" to {', '.join(names)}" + (f" and {others} more" if others > 0 else "")

    def _reasons(self) -> str:
        limit = "" if self._max_waiting is None else f" of at most {self._max_waiting}"
        lent, pool = self.lent, f" of the pool{self._called}" if self._label else ""
        return (
            f"of {self._size} streams{pool} {lent} are lent{self._holders(lent)}, "
            f"{self.busy} still work for earlier tasks, and "
            f"{self.waiting}{limit} tasks wait. A server answers 503 now. Make a larger "
            "pool to serve more tasks at once"
        )

    def __del__(self) -> None:
        waiters = getattr(self, "_waiters", None)
        if waiters is not None:
            waiters.end_alarms()


# The defaults bind what is called, because at the interpreter's end the module's names may be gone.
def _end_dropped(
    stream: Stream,
    _: object,
    run_in_janitor: Callable[[Callable[[], Any]], None] = process.run_in_janitor,
    is_forked: Callable[[], bool] = _native.is_forked,
) -> None:
    """A task has dropped a stream of a closed pool. This is a finalizer: it takes no lock."""
    # The janitor destroys it, because a finalizer may run where no driver call is allowed. To close
    # a borrowed stream calls no driver.
    if stream._owned:
        run_in_janitor(stream._finalizer(stream._handle))
    elif not is_forked():
        stream.close()


def _end_alarms_for(reference: weakref.ref[PoolCore], bridge: weakref.ref[loops.Bridge]) -> None:
    """The loop is gone, and so are the tasks that waited. This is a finalizer: it takes no lock."""
    pool = reference()
    if pool is not None and pool._bridge is bridge:
        pool._waiters.end_alarms()


def _look_again_for(reference: weakref.ref[PoolCore], bridge: weakref.ref[loops.Bridge]) -> None:
    pool = reference()
    # Otherwise another loop uses the pool now, perhaps in another thread.
    if pool is not None and pool._bridge is bridge:
        pool._will_look = False
        if not pool._closed:
            pool._look_again()
            pool._look_again_soon()
