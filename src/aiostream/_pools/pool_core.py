"""What a pool does: which stream a task gets, and what happens to a stream that comes back.

The states of its streams are those of `pool_places.py`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from typing import Any

from aiostream import _native
from aiostream._base import checks, driver, turns
from aiostream._handles.operand import new_wait_list, share_history
from aiostream._objects import captures
from aiostream._pools.pool_loans import Kept
from aiostream._pools.pool_places import FREE, Busy, Place
from aiostream._runtime import loops, process
from aiostream._runtime.completion import set_result
from aiostream._runtime.launches import Launches
from aiostream._runtime.observing import hook
from aiostream._waits import enqueuing, pending, strategies, waiting
from aiostream.errors import ContextFailedError, CudaError, PoolFullError, StreamClosedError
from aiostream.stream import Stream

_MOST_NAMES = 8  # of tasks that hold streams, in an error
_AGAIN = 0.005  # seconds until the loop asks again
# Bound once, because each request uses these.
_asyncio = loops.asyncio_module
_task_of = loops.asyncio_task
_reference = weakref.ref


def _nothing() -> None:
    """The loop, or the bridge, of a pool that no loop has used."""


class PoolCore:
    """The streams of a pool and their states. `StreamPool` adds the calls that tasks make.

    Threads: that of the loop that uses the pool. Others read the numbers. The end of a use may
    come in any thread, if the collector ends the block of a task that is lost.
    """

    _label: str | None  # what its user calls it

    def _fill(self, streams: list[Stream], max_waiting: int | None, each: Any) -> None:
        if max_waiting is not None:
            checks.number("max_waiting", max_waiting, 0, "no fewer than 0 tasks can wait")
        self._called = f" {self._label!r}" if self._label else ""
        places = [*map(Place, streams)]
        self._has_own = each is not None
        if self._has_own:
            give_own(places, each)
        self._closed = False
        self._max_waiting = max_waiting
        # The futures of the tasks that wait, in order, by ticket. Of these the first are awake, as
        # many as there are free streams.
        self._queue: dict[int, Any] = {}
        self._next_ticket: Callable[[], int] = count(1).__next__
        pending.queues[id(self)] = self
        # Those of the tasks that wait for their turn to launch, and need a stream after that.
        self._launching: dict[int, Any] = {}
        self._asks = False  # some busy streams may have no event that reports them
        self._due = 0.0  # until then the loop will ask again by itself
        # `driver.latest_failure` when the contexts of this pool were known to be healthy.
        self._healthy_since: object = driver.latest_failure
        # The bridge of the loop that used the pool last. Weak, because it ends with its loop.
        self._bridge: Callable[[], loops.Bridge | None] = _nothing
        # asyncio's loop, if a request of a task of it may be as short as `_at_once` says.
        self._loop: Callable[[], Any] = _nothing
        self._launches: Launches  # of that loop
        self._thread = 0  # in which the pool was used last
        for place in places:
            place[FREE] = None
        operands = [stream._operand for stream in streams]
        share_history(operands)
        # Apart from the waits of tasks, because what cancelled tasks have left takes another time.
        history = _native.History()
        self._waits = {each.handle.value: new_wait_list(each, history) for each in operands}
        self._contexts = {each.context._device_ordinal(): each.context for each in operands}
        self._taken = dict.fromkeys(self._contexts.values(), 0)  # by a later use, a larger number
        # The places that became free, the latest at the end. That one is next, because what it
        # needs still lies in the processor's caches, and because a library that keeps memory for
        # each stream, such as torch, then keeps it for few. What takes a place out of this list
        # takes its state after that.
        self._recent = places[::-1]
        self._places = places

    # ------------------------------------------------------------------------------------ the state

    # A thread that exports figures may read these while the loop's thread changes the pool. Each
    # number was true at some moment, but two numbers need not be of the same one.

    @property
    def size(self) -> int:
        """How many streams the pool has: `idle + busy + lent`.

        A stream that is closed no longer counts.
        """
        return len(self._places)

    @property
    def idle(self) -> int:
        """How many streams are free: no task has them, and their work is done."""
        return self._counts()[0]

    @property
    def busy(self) -> int:
        """How many streams the GPU still works on while no task holds them."""
        return self._counts()[1]

    @property
    def lent(self) -> int:
        """How many streams tasks hold, or are about to get."""
        return self._counts()[2]

    @property
    def waiting(self) -> int:
        """How many tasks wait for a stream."""
        return self._counts()[3]

    def _counts(self) -> tuple[int, int, int, int]:
        free = sum(FREE in place for place in self._recent.copy())
        busy = sum(min([*place] or [FREE]) < FREE for place in self._places)
        # Of the tasks that wait, as many are awake or about to wake as streams are free.
        wake = min(free, tasks := self._tasks())
        return free - wake, busy, self.size - free - busy + wake, tasks - wake

    def _tasks(self) -> int:
        return len(self._queue) + len(self._launching)

    # ------------------------------------------------------------------------------------------ use

    def _require_open(self) -> None:
        if self._closed:
            raise StreamClosedError(f"the pool{self._called} is closed")

    def _enter(self) -> loops.Bridge:
        """Prepares for a use by the running loop."""
        bridge = loops.current_bridge()
        self._require_open()
        if self._bridge() is not bridge:
            self._adopt(bridge)
        latest = driver.latest_failure  # before the health is read
        if self._healthy_since is not latest:
            # It may be another context that has failed, and contexts of the simulator can recover.
            if code := self._health():
                raise self._error(code)
            self._healthy_since = latest
        return bridge

    def _adopt(self, bridge: loops.Bridge) -> None:
        """From now on another loop uses the pool."""
        numbers = [(place, place.number) for place in self._places]
        former = self._bridge()
        if former is bridge:  # a finalizer or a signal handler has used the pool just now
            return
        if former is not None and former.is_open and not former.is_gone():
            _, _, held, waiting = self._counts()
            if held or waiting:
                raise RuntimeError(
                    f"the pool{self._called} is in use in another event loop: {held} streams are "
                    f"lent{self._holding(held)}, {waiting} tasks wait. Give them back there first, "
                    "or make a pool for each loop. A thread writes "
                    "`asyncio.run_coroutine_threadsafe(coroutine, loop).result()`"
                )
        self._queue.clear()
        self._launching.clear()
        self._due = 0.0
        for place, last in numbers:
            # A finalizer or a signal handler may use the pool meanwhile: its uses have later
            # numbers.
            for number in [*place]:  # it was lent or busy in the former loop
                if number != FREE and abs(number) <= last and place.ends(number):
                    self._ask(place, bridge)
        self._loop = getattr(bridge, "loop", _nothing) if len(self._contexts) == 1 else _nothing
        self._launches, self._thread = bridge.launches, threading.get_ident()
        self._bridge = weakref.ref(bridge)

    def _at_once(self, launches: bool = False, has_turn: bool = False) -> Place | None:
        """Gives out a stream if one is free and no task waits.

        Args:
            launches: Whether the task launches next, for which it may have to wait.
            has_turn: Whether the task has just been in `_launching`, so those there come later.
        """
        if not has_turn and len(self._recent) <= len(self._launching):
            return None
        loop, trio = self._loop(), turns.at_work
        is_usual = loop is not None and loop is _asyncio._get_running_loop() and not self._queue
        if is_usual and (trio is None or trio.name is None):
            # This is what `_enter` and `_take` do for most requests.
            if launches and self._launches.wait:
                return None
            try:
                place: Place = self._recent.pop()
            except IndexError:
                pass
            else:
                if place.pop(FREE, self) is None:
                    task = _task_of(loop)
                    number = place.number = place.number + 1
                    place[number] = task and _reference(task)
                    return place
        bridge = self._enter()
        if self._queue or (launches and bridge.launches.wait):
            return None
        return self._take(bridge)

    def _take(self, bridge: loops.Bridge) -> Place | None:
        """Gives out a free stream."""
        if len(self._contexts) > 1:
            # The device with the least in use is next, and equal ones take turns.
            taken = self._taken
            used = Counter(each.stream.context for each in self._places if FREE not in each)
            order = {each: (-used[each], -taken[each]) for each in self._contexts.values()}
            with contextlib.suppress(ValueError):  # there is none
                best = max(self._recent[::-1], key=lambda place: order[place.stream.context])
                self._recent.remove(best)
                self._recent.append(best)
        try:
            while True:
                place = self._recent.pop()
                if place.pop(FREE, self) is None:
                    self._taken[place.stream.context] = self._next_ticket()
                    place.lend(bridge.current_task())
                    return place
        except IndexError:
            return None

    async def _acquire(self, is_limited: bool = True) -> Place:
        if not is_limited:  # the await of no user
            return self._at_once() or await self._in_turn(is_limited=False)
        if hook and not hook.is_observed():
            return await hook.observed("StreamPool.acquire", PoolCore._acquire, self)
        bridge = loops.current_bridge()
        checkpoint = bridge.checkpoint
        # Without an await all other tasks of the loop would wait as long as streams are free.
        yields = checkpoint is None and not self._queue and bridge.must_yield()
        del bridge  # no frame that is suspended keeps it, because it would survive its loop
        if checkpoint is not None:
            await checkpoint()  # on trio alone; nothing is taken yet that a cancellation would lose
        elif yields:
            await loops.yield_turn()
        if self._healthy_since is not driver.latest_failure:
            self._enter()
        return self._at_once() or await self._in_turn()

    async def _in_turn(self, launches: bool = False, is_limited: bool = True) -> Place:
        """Waits until it is this task's turn.

        Args:
            launches: Whether the task launches next. The turn for that comes first. Otherwise tasks
                that wait only for that would have the streams, and nearly all others would wait
                twice.
            is_limited: Whether `max_waiting` counts for the task.
        """
        self._enter()
        self._ask_again()
        most = self._max_waiting if is_limited else None
        if most is not None and self._tasks() - len(self._recent) >= most:
            await loops.checkpoint()  # a task that tries again and again must not keep the loop
            raise PoolFullError(f"no stream is free, and no more tasks may wait: {self._reasons()}")
        turn = self._launches
        if launches and turn.wait:
            ticket = self._next_ticket()
            try:
                await waiting.launch_turn(turn, partial(self._note, ticket))
            finally:
                self._launching.pop(ticket, None)
            if place := self._at_once(has_turn=True):
                turn.turn_of = place.stream
                return place
        here = loops.task_here()
        if all((each.get(each.block) or _reference(each))() is here for each in self._places):
            process.log("a task waits for the end of its own blocks, perhaps for good: %r", self)
        ticket, kept = self._next_ticket(), loops.current_bridge().kept
        began = time.perf_counter() if is_limited else None
        try:
            while True:
                # If the stream is gone when it wakes, it waits again, in the same place. Or the
                # pool was closed since it was woken.
                self._require_open()
                future = loops.current_bridge().new_future()
                # Weak, because the future refers to its loop, which may be dropped. The bridge
                # keeps the future, and so the task, because asyncio keeps tasks only weakly.
                self._queue[ticket] = weakref.ref(future)
                kept[id(self), ticket] = future, began
                self._wake(len(self._recent))
                self._ask_again_soon(self._bridge())
                error = await future
                if error is not None:
                    raise error
                place = self._take(loops.current_bridge())
                if place is not None:
                    self._queue.pop(ticket, None)  # last, so that no other task comes in between
                    return place
        except BaseException as error:
            self._queue.pop(ticket, None)
            # The collector ends a lost task so, in any thread, and the futures are the loop's. The
            # loop asks again by itself.
            if not isinstance(error, GeneratorExit):
                self._wake(len(self._recent))
            raise
        finally:
            kept.pop((id(self), ticket), None)

    def _note(self, ticket: int, future: Any) -> None:
        self._launching[ticket] = weakref.ref(future)

    def _pending(self) -> list[tuple[str, float, str, Any, None]]:
        """Returns pool, beginning, call, future and function of each wait for a stream."""
        bridge = self._bridge()
        waits: dict[Any, Any] = {} if bridge is None else bridge.kept.copy()
        mine = [wait for (pool, _), wait in waits.items() if pool == id(self)]
        of, call = f"pool{self._called} of {self.size} streams", "StreamPool.acquire"
        return [(of, since, call, f, None) for f, since in mine if since and not f.done()]

    def _wake(self, most: int | None, answer: Callable[[], object] = _nothing) -> None:
        """Wakes the first tasks that wait for a stream, or with an answer all.

        If the answer is an error, it is raised there.
        """
        if most == 0 or not (self._queue or self._launching):
            return
        try:
            first = [*islice(self._queue.values(), most)]
        except RuntimeError:  # a finalizer or a signal handler has used the pool in between
            first = [*islice(self._queue.copy().values(), most)]
        if most is None:
            first += self._launching.copy().values()
        for reference in first:
            future = reference()
            if future is not None and not (future.done() or loops.is_dead(future)):
                set_result(future, answer())

    # ------------------------------------------------------------------------------- what came back

    def _give(self, place: Place, number: int, error: object = None) -> None:
        """Ends a use, if it has not ended. `error` is what has ended the task's block."""
        if not place.ends(number):
            return
        # The collector ends a lost task with a GeneratorExit, in any thread, perhaps in a
        # finalizer, which may not call the driver. Then the loop asks the driver.
        bridge = self._bridge()
        if isinstance(error, GeneratorExit):
            self._ask_later(place)
            if bridge is not None:
                bridge.call_soon(partial(_ask_again_for, _reference(self), _reference(bridge)))
        else:
            self._ask(place, bridge)

    def _put_back(self, place: Place) -> None:
        """The stream's work is done."""
        place.stream._operand.shared.left = None
        if self._closed:
            self._end(place)
            return
        place[FREE] = None
        self._recent.append(place)
        if self._queue:
            self._wake(len(self._recent))

    def _ask_later(self, place: Place) -> None:
        Busy(self, place, is_reported=False)
        self._asks = True  # last, because a signal handler may ask for the busy streams in between

    def _ask(self, place: Place, bridge: loops.Bridge | None) -> None:
        """Decides whether a stream that came back is free, or when the pool learns that."""
        if self._closed:
            self._put_back(place)
            return
        operand = place.stream._operand
        # What goes on without its task, and enqueues more or still reads the stream's buffers, has
        # an item of its own here until it is over: a thread of `run_in_thread`, for example.
        is_used, left, place.left = bool(operand.shared.held), place.left, None
        handle, waits = operand.handle, self._waits[operand.handle.value]
        code = driver.NOT_READY if is_used else _native.limited_query(handle, waits)
        if code <= _native.RESULT_CAPTURING:
            captures.end_left(operand)  # one that this library began
            code = _native.limited_query(handle, waits)
        if code == 0:
            self._put_back(place)
        elif code == _native.RESULT_CLOSED:  # a borrowed stream, whose owner has closed it
            self._drop(place)
        elif code > 0 and code != driver.NOT_READY and (failure := operand.context.health()):
            self._failed(failure)
            self._put_back(place)
        elif code == driver.NOT_READY and left is not None and not left.is_over:
            left.at_end = over = Busy(self, place).over
            if left.is_over:  # a thread has ended it just now
                over()
        elif is_used or code != driver.NOT_READY or not self._watch(place, waits, bridge):
            # Else it takes part in a capture of another stream, or the driver refused for once.
            self._ask_later(place)
            self._ask_again_soon(bridge)

    def _watch(self, place: Place, waits: _native.WaitList, bridge: loops.Bridge | None) -> bool:
        """Has an event behind the stream's work reported to the loop. Whether that is possible."""
        if bridge is None or not bridge.is_open:
            return False
        # The event may be complete at once. It is reported in the drain of the loop, which is not
        # before this thread is back there. The watcher polls it, because the loop may not run.
        operand = place.stream._operand
        shared = operand.shared
        waits.label(operand.name, shared.limit() if shared.left is None else shared.left)
        shared.left = None
        state = Busy(self, place)
        if _native.watch(operand.handle, waits, bridge.queue, strategies.BY_WATCHER, state):
            return True
        place.ends(-state.number)
        return False

    def _ask_again(self) -> None:
        """Asks for the busy streams whose end nothing reports."""
        if not self._asks:
            return
        self._asks = False  # first, because `_ask` may set it again
        for place in [*self._places]:
            for number, state in place.copy().items():
                if number < FREE and not state.is_reported and place.ends(number):
                    self._ask(place, self._bridge())

    def _ask_again_soon(self, bridge: loops.Bridge | None) -> None:
        """Has the loop ask again for what no event reports, while that is needed."""
        now = time.monotonic()
        if now >= self._due and bridge is not None and bridge.is_open:
            ask = partial(_ask_again_for, weakref.ref(self), weakref.ref(bridge), now)
            if bridge.call_later(_AGAIN, ask):
                self._due = now + _AGAIN

    # --------------------------------------------------------------------------------------- errors

    def _health(self) -> int:
        """0, or the code of a context of the pool that has failed."""
        return next(filter(None, (each.health() for each in self._contexts.values())), 0)

    def _failed(self, code: int) -> None:
        """A context has failed. The tasks that wait get the error at once."""
        self._healthy_since = None
        self._wake(None, lambda: self._error(code))

    def _error(self, code: int) -> CudaError:
        # A lost context no longer knows its device.
        numbers = {str(number): context for number, context in self._contexts.items()}
        where = f"{'device' if len(numbers) == 1 else 'devices'} {', '.join(numbers)}"
        lost = [number for number, context in numbers.items() if context.health()]
        if 0 < len(lost) < len(numbers):  # a reset concerns one device, and a fault concerns all
            where += f", whose device {', '.join(lost)} is lost"
        pool = f"a pool{self._called} of {self.size} streams on {where}"
        return driver.error(code, "cuStreamQuery", pool)

    def _holding(self, count: int) -> str:
        """Which tasks hold that many streams, such as ` to 'Task-3', 'Task-5' and 1 more`."""
        states = [state for each in self._places for state in each.copy().values()]
        tasks = [state() for state in states if isinstance(state, weakref.ref)]
        names = [repr(loops.task_name(task)) for task in tasks if task is not None][:_MOST_NAMES]
        if not names:
            return ""
        # A task that is about to wake has none yet.
        others = count - len(names)
        return f" to {', '.join(names)}" + (f" and {others} more" if others > 0 else "")

    def _reasons(self) -> str:
        limit = "" if self._max_waiting is None else f" of at most {self._max_waiting}"
        pool = f" of the pool{self._called}" if self._label else ""
        _, busy, held, waiting = self._counts()
        return (
            f"of {self.size} streams{pool} {held} are lent{self._holding(held)}, {busy} still work "
            f"for earlier tasks, and {waiting}{limit} tasks wait. A server answers 503 now. Make a "
            "larger pool to serve more tasks at once"
        )

    # ------------------------------------------------------------------------------------------ end

    def _refuse(self, reason: str | None = None) -> None:
        """From now on no task gets a stream, and those that come back are closed."""
        reason = reason or f"the pool{self._called} was closed"
        self._closed, self._loop = True, _nothing
        self._wake(None, lambda: StreamClosedError(reason))

    def _drop(self, place: Place) -> None:
        """The stream's owner has closed it. The pool continues without it."""
        self._end(place)
        if not self._places:
            self._refuse(f"the owners have closed all streams of the pool{self._called}")

    def _not_lent(self) -> list[Place]:
        return [place for place in self._places if max([*place] or [FREE]) <= FREE]

    def _end(self, place: Place) -> None:
        """Closes a stream that no task holds."""
        self._places = [each for each in self._places if each is not place]
        try:
            drop_own(place)
        finally:
            # `health` says it, and the end of a server or of a fixture has its own errors.
            with contextlib.suppress(ContextFailedError):
                place.stream._close()


def _ask_again_for(
    reference: weakref.ref[PoolCore], bridge: Callable[[], loops.Bridge | None], asked: float = 0.0
) -> None:
    pool = reference()
    # Another loop may use the pool by now. What a close meets is not raised in the loop.
    if pool is None or pool._closed or pool._bridge is not bridge:
        return
    # A late timer finds that a request has armed another one. If both went on, each turn of a busy
    # loop would add one.
    if pool._due == asked + _AGAIN:
        pool._due = 0.0
        if pool._queue or pool._asks:
            pool._ask_again_soon(bridge())
    pool._ask_again()
    if pool._queue and (code := pool._health()):
        pool._failed(code)
    pool._wake(len(pool._recent))


def give_own(places: list[Place], make: Callable[[Stream], Any]) -> None:
    """Makes what belongs to each stream, with the stream current.

    Raises:
        TypeError: `make` returned `None`.
        BaseException: What `make` raised. Nothing belongs to any of the streams then.
    """
    try:
        checks.plain_function(make, "each")
        for place in places:
            with place.stream.as_current():
                own = _native.plain_result(make(Kept(place)))
            if own is None:
                raise TypeError(
                    "each(stream) returned None, but what it returns is what belongs to the stream"
                )
            place.own = own
    except BaseException:
        for place in places:
            drop_own(place)
        raise


def drop_own(place: Place) -> None:
    """Lets go of what belongs to a stream, when the GPU has passed the stream's end."""
    own = getattr(place, "own", None)
    if own is not None:
        del place.own
    if own is not None and _native.stream_query(place.stream._operand.handle) != 0:
        enqueuing.keep_until_passed(place.stream._operand, own)
