"""StreamPool: a fixed number of streams for any number of tasks."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

from aiostream import (
    _arguments,
    _completion,
    _driver,
    _loops,
    _native,
    _points,
    capture,
    waiting,
)
from aiostream._reference import LEGACY, Reference, pinned, share_history
from aiostream.device import DeviceLike
from aiostream.enums import WaitStrategy
from aiostream.errors import CudaError, PoolFullError, StreamClosedError
from aiostream.stream import Stream

__all__ = ["StreamPool"]

_NOT_READY = 600
_MOST_NAMES = 8  # of those who hold streams, in an error
_TURNS_AFTER = 16  # so many lendings at once it is asked whether the loop needs a turn: the question costs a tenth of one
_LOOK_AGAIN = 0.005  # seconds


class StreamPool(_arguments.NotCopied, _arguments.AsyncBlock):
    """A fixed number of streams, lent to one task at a time each.

    `async with pool.stream() as stream:` waits until a stream is free, and gives it back at the end of the block.
    A stream that was given back is free again when its work is done. So a request that gives up, as by a timeout, leaves no
    work in the way of the next request: that work goes on, and the pool lends other streams meanwhile.

    Streams are lent in turn: the one that has been free for longest comes next. Tasks that wait are served in order. All streams
    are made here, because making one later may block while the GPU is busy. Their waits learn from each other, since they are
    expected to run the same kinds of work. `async with StreamPool(8) as pool:` awaits their work at its end, and destroys them.

    Example:
        ```python
        async with StreamPool(8, max_waiting=64) as pool:
            async with pool.stream() as stream:
                result = await stream.enqueue_async(launch, buffers)
        ```

    Args:
        size: How many streams.
        device: Where to create them; as `Stream` takes it.
        max_waiting: How many tasks may wait for a stream. One more gets a `PoolFullError` at once. `None` sets no limit.
        priority: As `Stream` takes it.
        non_blocking: As `Stream` takes it.
        wait: How their waits are carried out; as `Stream` takes it.

    Threads: tasks of one loop at a time. Tasks of another loop may use the pool once no stream is lent and nobody waits.

    Raises:
        TypeError: `size` or `max_waiting` is not an int.
        ValueError: `size` is less than 1, or `max_waiting` less than 0.
        CudaError: The driver refused.
    """

    def __init__(
        self,
        size: int,
        device: DeviceLike | None = None,
        *,
        max_waiting: int | None = None,
        priority: int | None = None,
        non_blocking: bool = True,
        wait: WaitStrategy | str | None = None,
    ) -> None:
        size = _arguments.number("size", size, 1, "a pool has at least one stream")
        _require_limit(max_waiting)
        with contextlib.ExitStack() as made:
            streams = []
            for _ in range(size):
                streams.append(
                    Stream(device, priority=priority, non_blocking=non_blocking, wait=wait)
                )
                made.callback(streams[-1].close)
            made.pop_all()
        self._init_fields(streams, max_waiting)

    @classmethod
    def borrow(
        cls,
        streams: Iterable[Any],
        *,
        max_waiting: int | None = None,
        wait: WaitStrategy | str | None = None,
    ) -> StreamPool:
        """Makes a pool of streams that belong to another library, such as torch. The pool never destroys them.

        torch hands out a limited number of streams (32 for a device and priority) in turn, so that of 33 two are one. Such a pool
        would lend one stream to two tasks, and is refused.

        Args:
            streams: What `Stream.borrow` takes, each another stream, all of one context.
            max_waiting: As `StreamPool` takes it.
            wait: As `Stream.borrow` takes it.

        Raises:
            TypeError: One of these names no stream.
            ValueError: There are none, two of them are one, or they live in different contexts.
            CudaError: The driver does not know one of them.

        Example:
            ::

                pool = StreamPool.borrow(torch.cuda.Stream() for _ in range(16))
        """
        _require_limit(max_waiting)
        if not isinstance(streams, Iterable):
            raise TypeError(
                f"streams are in a list or another iterable, not one {type(streams).__name__}"
            )
        borrowed = [Stream.borrow(stream, wait=wait) for stream in streams]
        _require_distinct(borrowed)
        pool = cls.__new__(cls)
        pool._init_fields(borrowed, max_waiting)
        return pool

    def _init_fields(self, streams: list[Stream], max_waiting: int | None) -> None:
        self._closed = False
        self._size = len(streams)
        self._max_waiting = max_waiting
        # All of these are used by the loop's thread alone.
        self._slots = [_Slot(stream) for stream in streams]
        share_history(slot.stream._reference for slot in self._slots)
        self._idle = deque(self._slots)
        self._busy: dict[
            _Slot, _Return | None
        ] = {}  # given back; who will tell that the work is done, if anybody
        self._look_again_due = False  # of some of these nobody will tell
        self._looking = False  # the loop will look again by itself
        self._at_once = 0  # how often a stream was lent without a turn of the loop
        self._lent: dict[int, _Slot] = {}  # by the id of what was lent
        self._waiting: dict[Any, None] = {}  # futures of the loop, in order
        self._bridge: weakref.ref[_loops.Bridge] | None = (
            None  # of the loop that used the pool last
        )
        self._watch: _Watch | None = None  # of the context, while somebody waits
        self._failure = 0  # the driver's code, once the context was seen to have failed
        self._returns = (
            _native.History()
        )  # how long streams stay busy: not what their own waits are to learn from

    # -------------------------------------------------------------------------------------------- what it is

    @property
    def size(self) -> int:
        """How many streams it has: `idle + busy + lent`. A borrowed stream that its owner has closed is no longer one of them."""
        return self._size

    @property
    def idle(self) -> int:
        """How many streams are free: given back, and their work is done."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """How many streams were given back while the GPU still works on them."""
        return len(self._busy)

    @property
    def lent(self) -> int:
        """How many streams tasks hold now."""
        return len(self._lent) if self._closed else self._size - len(self._idle) - len(self._busy)

    @property
    def waiting(self) -> int:
        """How many tasks wait for a stream."""
        return sum(
            not future.done() for future in self._waiting
        )  # one that was cancelled stays until its task runs

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def __repr__(self) -> str:
        counts = f"{self.idle} idle, {self.busy} busy, {self.lent} lent{self._holders()}, {self.waiting} waiting"
        return (
            f"<aiostream.StreamPool of {self._size}: {counts}{', closed' if self._closed else ''}>"
        )

    # -------------------------------------------------------------------------------------------- lending

    def stream(self) -> _Lending:
        """Lends a stream for an `async with` block; equals `acquire` and `release`.

        The block's end does not wait for the stream's work: await what must be done. Everything else is as `acquire` says.

        Example:
            ```python
            async with pool.stream() as stream:
                await stream.enqueue_async(launch)
            ```
        """
        return _Lending(self)

    async def acquire(self) -> Stream:
        """Waits until a stream is free, and lends it. `release` gives it back.

        Cancellation: raises at once; nothing is lent.

        Threads: in a task of the loop that uses the pool. Always a checkpoint on trio.

        Returns:
            A borrowed `Stream` with the pool's options. Closing it harms nobody, and it is closed when it is given back.

        Raises:
            RuntimeError: No loop runs here, or a task of another loop still holds a stream or waits for one.
            PoolFullError: As many tasks wait already as may.
            StreamClosedError: The pool is closed, or was while this waited.
            ContextFailedError: The context has failed while this waited, or before, if the pool has seen it.
        """
        bridge = self._enter()
        take_turn = bridge.checkpoint
        if take_turn is not None:  # on trio, before anything is taken
            await take_turn()
            self._enter()
        elif self._idle and not self._waiting:
            self._at_once += 1
            if self._at_once % _TURNS_AFTER == 0 and bridge.must_yield():
                await _loops.yield_turn()
                self._enter()
        if self._idle and not self._waiting:
            return self._lend(self._idle.popleft(), bridge)
        del bridge  # a task that held it while it waits would keep it when its loop is gone
        slot = await self._in_turn()
        return self._lend(slot, _loops.current_bridge())

    def acquire_nowait(self) -> Stream:
        """Lends a stream that is free now. `release` gives it back.

        Threads: in the thread of the running loop that uses the pool.

        Raises:
            PoolFullError: No stream is free, or tasks wait for one.
            RuntimeError, StreamClosedError, ContextFailedError: As `acquire`.
        """
        bridge = self._enter()
        if not self._idle:
            self._find_lost()
            if self._look_again_due:
                self._look_again()
        if not self._idle or self._waiting:
            raise PoolFullError(f"no stream is free: {self._reasons()}")
        return self._lend(self._idle.popleft(), bridge)

    def release(self, stream: Stream) -> None:
        """Gives back a stream that `acquire` or `acquire_nowait` has lent. It is closed then, and its work goes on.

        Never waits. Once its work is done, the stream goes to the task that has waited for longest. A capture that this library
        began on it is ended, as by `end_capture`, and a new graph is dropped. If it is in any other capture, as one of another
        stream or of another library, it is lent again when that has ended.

        Threads: in the thread of the loop that uses the pool.

        Raises:
            ValueError: It was not lent by this pool, or was given back before.
        """
        slot = self._lent.get(id(stream))
        if slot is None or slot.lent is not stream:
            raise ValueError(f"{stream!r} was not lent by this pool, or was given back before")
        del self._lent[id(stream)]
        stream._handle.close()  # borrowed: nothing is destroyed
        slot.lent = slot.holder = stream._source = None
        self._look_at(slot)
        if self._look_again_due:
            self._look_again_soon()

    # -------------------------------------------------------------------------------------------- its end

    def close(self) -> None:
        """Destroys the streams at once, those that are lent when they come back; their work goes on. May be called again.

        Whoever waits for one gets a `StreamClosedError`.

        Raises:
            CudaError: The driver refused; all the others are closed all the same, and only the first error is raised.
        """
        self._refuse()
        kept = [*self._idle, *self._busy]
        self._idle.clear()
        self._busy.clear()
        first: CudaError | None = None
        for slot in kept:
            try:
                slot.stream.close()
            except CudaError as error:
                first = first or error
        if first is not None:
            raise first

    async def aclose(self) -> None:
        """Waits for the work of all streams that are not lent, then destroys them; the rest is as `close` says.

        It does not wait for a thread that a cancelled `enqueue_in_thread` has left behind: `drain` does.

        Cancellation: destroys at once, and raises.

        Raises:
            CudaError: The work of one failed; all are closed all the same.
        """
        self._refuse()
        self._busy = dict.fromkeys(self._busy)  # this task sees to them now
        try:
            await waiting.checkpoint()
            for slot in (*self._idle, *self._busy):
                with contextlib.suppress(
                    StreamClosedError
                ):  # another task has closed the pool meanwhile
                    await slot.stream.synchronize_async()
        except BaseException:
            with contextlib.suppress(CudaError):  # the first error says what went wrong
                self.close()
            raise
        self.close()

    async def __aenter__(self) -> StreamPool:
        self._require_open()
        await waiting.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except (CudaError, StreamClosedError):
            if error is None:
                raise
            # The body's own error says what went wrong first.

    def __del__(
        self, end_health: Callable[[int], None] = _native.end_health
    ) -> None:  # bound: see Stream
        watch = getattr(self, "_watch", None)
        if watch is not None:
            end_health(watch.ticket)

    # -------------------------------------------------------------------------------------------- inside: lending

    def _enter(self) -> _loops.Bridge:
        """Prepares for a use by this loop."""
        bridge = _loops.current_bridge()
        if self._closed:
            self._require_open()
        if self._bridge is None or self._bridge() is not bridge:
            self._change_loop(bridge)
        if self._failure:
            self._failure = self._slots[0].stream.context.health()  # the simulator's can recover
            if self._failure:
                raise self._error(self._failure)
        if self._look_again_due:
            self._look_again()
        return bridge

    def _lend(self, slot: _Slot, bridge: _loops.Bridge) -> Stream:
        try:
            lent = slot.stream.to_borrowed()
        except StreamClosedError:  # one that was borrowed
            self._drop(slot)
            raise
        except (
            BaseException
        ):  # no memory, say: nobody but this call knows the slot, and tasks may wait for it
            self._put_back(slot)
            raise
        task = bridge.current_task()
        slot.holder = weakref.ref(task) if task is not None else None
        slot.lent = lent
        self._lent[id(lent)] = slot
        return lent

    async def _in_turn(self) -> _Slot:
        self._find_lost()
        if self._max_waiting is not None and self.waiting >= self._max_waiting:
            raise PoolFullError(f"no stream is free, and no more tasks may wait: {self._reasons()}")
        bridge = _loops.current_bridge()
        future: Any = bridge.new_future()
        try:
            self._waiting[future] = None
            if self._watch is None:
                self._watch = _Watch(self, bridge, self._slots[0].stream._reference)
            del bridge
            if self._look_again_due:
                self._look_again_soon()
            slot: _Slot = await future
            slot.handed_to = None
            return slot
        except BaseException:
            self._waiting.pop(future, None)
            for handed in self._slots:
                if handed.handed_to is future:  # it was our turn, but we are cancelled
                    handed.handed_to = None
                    self._put_back(handed)
            if future.done() and not future.cancelled():
                future.exception()  # seen, so that no loop reports it
            raise
        finally:
            if not self._waiting:
                self._end_watch()

    def _change_loop(self, bridge: _loops.Bridge) -> None:
        """Another loop uses the pool. What the former loop's tasks were handed and never took is taken back."""
        handed = [slot.handed_to for slot in self._slots if slot.handed_to is not None]
        alive = [future for future in (*self._waiting, *handed) if not _loops.is_dead(future)]
        if self._lent or alive:
            raise RuntimeError(
                f"the pool is in use in another event loop: {len(self._lent)} streams are lent{self._holders()}, "
                f"{len(alive)} tasks wait. Give them back there first, or make a pool for each loop"
            )
        self._end_watch()
        self._waiting.clear()
        self._bridge = weakref.ref(bridge, partial(_end_watch_for, weakref.ref(self)))
        self._looking = False
        for slot in self._slots:
            slot.handed_to = None
        self._busy = dict.fromkeys(self._busy)  # nobody tells this loop
        self._look_again_due = bool(self._busy)
        self._find_lost()

    def _find_lost(self) -> None:
        """Finds streams that nobody has: a KeyboardInterrupt, or the end of a loop, came between two steps."""
        if len(self._idle) + len(self._busy) + len(self._lent) == self._size:
            return
        known = {*self._idle, *self._busy, *self._lent.values()}
        for slot in self._slots:
            if slot not in known and not _is_handed_over(slot):
                slot.handed_to = None
                if slot.lent is not None:
                    slot.lent._handle.close()
                    slot.lent = None
                self._busy[slot] = None
                self._look_again_due = True

    def _put_back(self, slot: _Slot) -> None:
        """Its work is done: it goes to whoever waits for longest."""
        if self._closed:
            slot.stream.close()
            return
        while self._waiting:
            future = next(iter(self._waiting))
            if not future.done() and not _loops.is_dead(future):
                slot.handed_to = future
                _completion.set_result(future, slot)
                self._waiting.pop(
                    future, None
                )  # last: after a KeyboardInterrupt before it, the next finds the future done
                return
            self._waiting.pop(future, None)
        self._idle.append(slot)

    def _drop(self, slot: _Slot) -> None:
        """Its owner has closed it: the pool goes on without it."""
        self._slots = [each for each in self._slots if each is not slot]
        self._size = len(self._slots)
        slot.stream.close()
        if not self._slots:
            self._refuse("the owners have closed all streams of the pool")

    def _take_waiting(self) -> list[Any]:
        """The futures of those who wait, and can still be told something."""
        taken = [
            future for future in self._waiting if not future.done() and not _loops.is_dead(future)
        ]
        self._waiting.clear()
        return taken

    # -------------------------------------------------------------------------------------------- inside: work in flight

    def _look_at(self, slot: _Slot) -> None:
        """A stream was given back: it is free now, or will be."""
        if (
            slot.stream._handle.is_used and not self._closed
        ):  # by a thread of enqueue_in_thread, which may enqueue more
            self._busy[slot] = None
            self._look_again_due = True
            return
        code = _native.stream_query(slot.stream._handle)
        if code <= _native.RESULT_CAPTURING:
            capture.end_left(slot.stream._reference)
            code = _native.stream_query(slot.stream._handle)
        if code == 0 or self._closed:
            self._put_back(slot)
        elif code == _native.RESULT_CLOSED:  # a borrowed one, by its owner
            self._drop(slot)
        elif code == _NOT_READY:
            self._busy[slot] = told = self._await_work(slot)
            self._look_again_due |= told is None
        elif code > 0 and (failure := slot.stream.context.health()):
            self._fail(failure)
            self._put_back(slot)
        else:  # it has joined a capture of another stream, or the driver would not say: it will be asked again
            self._busy[slot] = None
            self._look_again_due = True

    def _look_again(self) -> None:
        """At the streams of which nobody will tell that their work is done."""
        self._look_again_due = False
        for slot in [slot for slot, told in self._busy.items() if told is None]:
            del self._busy[slot]
            self._look_at(slot)

    def _look_again_soon(self) -> None:
        """Has the loop look again, as long as somebody waits."""
        bridge = self._open_bridge()
        if self._waiting and not self._looking and bridge is not None and self._bridge is not None:
            self._looking = bridge.call_later(
                _LOOK_AGAIN, partial(_look_again_for, weakref.ref(self), self._bridge)
            )

    def _open_bridge(self) -> _loops.Bridge | None:
        """Of the loop that used the pool last, if that can still be told something."""
        bridge = self._bridge() if self._bridge is not None else None
        return bridge if bridge is not None and bridge.is_open else None

    def _await_work(self, slot: _Slot) -> _Return | None:
        """Has the pool's loop be told when the work of a stream is done; `None`: somebody has to look again."""
        bridge = self._open_bridge()
        if bridge is None:
            return None
        reference = slot.stream._reference
        context_id = reference.context._ensure_monitored()
        try:
            if slot.list is None:
                slot.list = _native.WaitList(context_id, self._returns)
            # By the watcher, which needs no loop that runs: the loop is told when it runs again.
            reserved = slot.list.reserve(bridge.queue, _native.WAIT_EVENT)
        except MemoryError:
            return None
        if isinstance(reserved, int):
            return None
        told = _points.registry[reserved.ticket] = _Return(self, slot, context_id)
        with pinned(reference):
            reserved.record(reference.handle)
        if reserved.is_recorded:
            return told
        _points.registry.pop(reserved.ticket, None)
        return None

    def _work_is_done(self, slot: _Slot, told: _Return, code: int) -> None:
        if self._busy.get(slot) is not told:
            return  # closed, or another loop's since
        del self._busy[slot]
        if code == 0:
            self._put_back(slot)
            return
        self._look_at(slot)  # the context has failed, or the driver would not say
        if self._look_again_due:
            self._look_again_soon()

    def _forget(self, slot: _Slot, told: _Return) -> None:
        """The loop that was to be told is gone."""
        busy = self._busy  # once: another loop may replace it meanwhile
        if busy.get(slot) is told:
            busy[slot] = None
            self._look_again_due = True

    # -------------------------------------------------------------------------------------------- inside: failures and names

    def _fail(self, code: int) -> None:
        """The context has failed: nobody needs to wait any longer."""
        self._failure = code
        for future in self._take_waiting():
            _completion.set_exception(future, self._error(code))

    def _error(self, code: int) -> CudaError:
        return _driver.error(
            code,
            "cuStreamQuery",
            f"a pool of {self._size} streams of {self._slots[0].stream.context!r}",
        )

    def _refuse(self, reason: str = "the pool was closed") -> None:
        """Nobody is served from now on."""
        self._closed = True
        self._end_watch()
        for future in self._take_waiting():
            _completion.set_exception(future, StreamClosedError(reason))

    def _end_watch(self) -> None:
        if self._watch is not None:
            _native.end_health(self._watch.ticket)  # may be done twice
            self._watch = None

    def _require_open(self) -> None:
        if self._closed:
            raise StreamClosedError("the pool is closed")

    def _holders(self) -> str:
        """Who holds streams, such as ` to 'Task-3', 'Task-5'`."""
        tasks = [slot.holder() for slot in self._lent.values() if slot.holder is not None]
        names = [repr(_loops.task_name(task)) for task in tasks[:_MOST_NAMES] if task is not None]
        more = (
            f" and {len(self._lent) - len(names)} more"
            if names and len(self._lent) > len(names)
            else ""
        )
        return f" to {', '.join(names)}{more}" if names else ""

    def _reasons(self) -> str:
        limit = "" if self._max_waiting is None else f" of at most {self._max_waiting}"
        return (
            f"of {self._size} streams {len(self._lent)} are lent{self._holders()}, {self.busy} still work on what former users "
            f"have left, and {self.waiting}{limit} tasks wait. A server answers 503 now; a larger pool serves more at once"
        )


def _end_watch_for(reference: weakref.ref[StreamPool], bridge: weakref.ref[_loops.Bridge]) -> None:
    """The loop is gone, and with it all who waited. A finalizer: it takes no lock."""
    pool = reference()
    if pool is not None and pool._bridge is bridge:
        pool._end_watch()


def _look_again_for(reference: weakref.ref[StreamPool], bridge: weakref.ref[_loops.Bridge]) -> None:
    pool = reference()
    if (
        pool is not None and pool._bridge is bridge
    ):  # else another loop has it now, perhaps in another thread
        pool._looking = False
        if not pool._closed:
            pool._look_again()
            if pool._look_again_due:
                pool._look_again_soon()


class _Slot:
    """One stream of a pool, and who has it."""

    __slots__ = ("handed_to", "holder", "lent", "list", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.lent: Stream | None = None  # what a task has
        self.handed_to: Any = None  # the future of a task whose turn it is, until that task runs
        self.holder: weakref.ref[Any] | None = None  # that task
        self.list: _native.WaitList | None = None  # of the waits for its work, once there was one


def _is_handed_over(slot: _Slot) -> bool:
    """Whether a task will find it in its future. An interrupt may have come before it was put there."""
    future = slot.handed_to
    return (
        future is not None
        and future.done()
        and not future.cancelled()
        and not future.exception()
        and future.result() is slot
    )


class _Lending(_arguments.AsyncBlock):
    """What `async with pool.stream()` enters."""

    __slots__ = ("_lent", "_pool")

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self._lent: Stream | None = None

    async def __aenter__(self) -> Stream:
        if self._lent is not None:
            raise RuntimeError(
                "this block has its stream already: call pool.stream() for each block"
            )
        self._lent = lent = await self._pool.acquire()
        return lent

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            self._pool.release(lent)


class _Return:
    """A stream that was given back, whose work is not done. An event behind that work says when it is."""

    __slots__ = ("context_id", "pool", "slot")

    def __init__(self, pool: StreamPool, slot: _Slot, context_id: int) -> None:
        self.pool = weakref.ref(pool)
        self.slot = slot  # keeps the stream until then, also without the pool
        self.context_id = context_id

    def complete(self, code: int, orphaned: bool) -> None:
        """The work is done, or has failed."""
        pool = self.pool()
        if pool is None:
            return
        if orphaned:  # in the janitor's thread
            pool._forget(self.slot, self)
        else:
            pool._work_is_done(self.slot, self, code)

    def abandon(self, code: int, orphaned: bool) -> None:
        """The context has failed."""
        self.complete(code, orphaned)


class _Watch:
    """Tells a pool that its context has failed, while tasks wait for a stream that nobody may ever give back."""

    __slots__ = ("context_id", "pool", "ticket")

    def __init__(self, pool: StreamPool, bridge: _loops.Bridge, reference: Reference) -> None:
        self.pool = weakref.ref(pool)
        self.context_id = reference.context._ensure_monitored()
        self.ticket = _native.watch_health(bridge.queue, self.context_id)
        _points.registry[self.ticket] = self

    def complete(self, code: int, orphaned: bool) -> None:
        """The context has failed, or the pool has ended this."""
        pool = self.pool()
        if pool is not None and code != 0 and not orphaned and pool._watch is self:
            pool._watch = None
            pool._fail(code)

    def abandon(self, code: int, orphaned: bool) -> None:
        """Never: it fires."""


def _require_distinct(streams: list[Stream]) -> None:
    """Refuses what is no pool: each stream is lent to one task at a time, and all are of one context."""
    if not streams:
        raise ValueError("a pool has at least one stream")
    known: dict[int, int] = {}
    for number, stream in enumerate(streams):
        first = known.setdefault(max(stream.handle, LEGACY), number)  # 0 is the legacy stream, too
        if first != number:
            raise ValueError(
                f"streams {first} and {number} are one (handle {stream.handle:#x}): a pool would lend it to two tasks at once. "
                "torch hands out 32 streams of a device and priority in turn, so ask it for fewer"
            )
        if stream.context != streams[0].context:
            raise ValueError(
                f"streams 0 and {number} live in different contexts; make a pool for each"
            )


def _require_limit(max_waiting: int | None) -> None:
    if max_waiting is not None:
        _arguments.number("max_waiting", max_waiting, 0, "no fewer than 0 tasks can wait")
