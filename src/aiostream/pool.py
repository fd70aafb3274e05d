"""StreamPool: a fixed number of streams for any number of tasks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._runtime import loops
from aiostream._runtime.observing import is_observed, observed, observers
from aiostream._servers.pool_core import PoolCore
from aiostream._servers.pool_streams import Pooled, require_distinct
from aiostream._waits import waiting
from aiostream.device import Device, DeviceLike
from aiostream.enums import WaitLike
from aiostream.errors import PoolFullError, StreamClosedError
from aiostream.stream import Stream

__all__ = ["StreamPool"]

P = ParamSpec("P")
T = TypeVar("T")

_new_lease = _native.new_lease  # bound once, because each loan uses it


class StreamPool(PoolCore, checks.NotCopied, checks.AsyncBlock, waiting.AwaitedBlock):
    """A fixed number of streams for any number of tasks. One task at a time uses each stream.

    `async with pool.stream() as stream:` waits until a stream is free, and gives it back at the end
    of the block. Tasks that wait are served in order.

    A stream that you have given back is free when the GPU has done its work. The work of a request
    that has timed out continues on its stream, and other tasks get other streams meanwhile. If all
    streams have such work, the next request waits until one of them is free.

    A task never gets a `Stream` object that another task has kept, or has set an attribute of. To
    keep something for each stream, such as a buffer, use `stream.handle` as the key.

    The pool creates all its streams here, because creating a stream while the GPU is busy may
    block. A task gets the free stream that was used last, so a pool that is larger than it needs to
    be keeps little memory of torch's, which belongs to the stream that has used it. With `devices`,
    a task gets a stream of the device on which the fewest streams are in use, and `stream.device`
    says which device that is. You are expected to run the same kinds of work on all streams, so
    their waits learn from each other how long the work takes.

    `async with StreamPool(8) as pool:` awaits the work of all streams at its end, and then destroys
    them.

    Args:
        size: How many streams. With `devices`, this is the number for all devices together.
        device: Where to create them, as `Stream` takes it.
        devices: Several devices, among which the streams are spread evenly. Do not use it together
            with `device`.
        max_waiting: How many tasks may wait for a stream. If you set it, one more task gets a
            `PoolFullError` at once. `None` sets no limit.
        priority: As `Stream` takes it.
        non_blocking: As `Stream` takes it.
        wait: How tasks wait on these streams, as `Stream` takes it.
        name: What errors, traces and `repr` call it. Of `model` the streams are `model[0]`,
            `model[1]` and so on.
        stalled_after: As `Stream` takes it, for each of them.

    Threads: use the pool in tasks of one loop at a time. Tasks of another loop may use it when no
    stream is lent and no task waits.

    Raises:
        TypeError: `size` or `max_waiting` is not an int, or you gave `device` and `devices`.
        ValueError: `size` is less than 1 or than the number of devices, `max_waiting` is less than
            0, or `devices` is empty or names a device twice.
        CudaError: The driver refused.

    Example:
        >>> async def serve(pool, request):
        ...     async with pool.stream() as stream:
        ...         return await stream.run(lambda: f"answer {request}")
        >>> async with aiostream.StreamPool(2, max_waiting=64) as pool:
        ...     await asyncio.gather(*(serve(pool, request) for request in range(3)))
        ['answer 0', 'answer 1', 'answer 2']
    """

    def __init__(
        self,
        size: int,
        device: DeviceLike | None = None,
        *,
        devices: Iterable[DeviceLike] | None = None,
        max_waiting: int | None = None,
        priority: int | None = None,
        non_blocking: bool = True,
        wait: WaitLike | None = None,
        name: str | None = None,
        stalled_after: float | None = None,
    ) -> None:
        self._label = checks.label(name)
        size = checks.number("size", size, 1, "a pool has at least one stream")
        _require_limit(max_waiting)
        places = [device] if devices is None else _distinct_devices(devices, device, size)
        make = partial(
            Stream,
            priority=priority,
            non_blocking=non_blocking,
            wait=wait,
            stalled_after=stalled_after,
        )
        # No task knows these streams before the last of them is made. So an error or an interrupt
        # here closes them, and no work is lost.
        with contextlib.ExitStack() as made:
            streams = []
            for number in range(size):
                place = places[number % len(places)]
                streams.append(make(place, name=_name_in(name, number)))
                made.callback(streams[-1].close)
            made.pop_all()
        self._init_fields(streams, max_waiting)

    @classmethod
    def borrow(
        cls,
        streams: Iterable[Any],
        *,
        max_waiting: int | None = None,
        wait: WaitLike | None = None,
        name: str | None = None,
        stalled_after: float | None = None,
    ) -> StreamPool:
        """Makes a pool of another library's streams, such as torch's. It never destroys them.

        torch has only 32 streams per device and priority, and hands them out in turn. So of 33
        streams of torch two are the same. A pool would give that one to two tasks at once, so you
        get a `ValueError`.

        Args:
            streams: What `Stream.borrow` takes. All are different streams of one context.
            max_waiting: As `StreamPool` takes it.
            wait: As `Stream.borrow` takes it.
            name: As `StreamPool` takes it. By default each stream keeps its own name.
            stalled_after: As `Stream.borrow` takes it.

        Raises:
            TypeError: One of them is not a stream.
            ValueError: There are none, two of them are one stream, or they are of several contexts.
            CudaError: The driver does not know one of them.

        Example:
            With torch, pass `(torch.cuda.Stream() for _ in range(16))`. Here they are ours:

            >>> async with aiostream.Stream() as first, aiostream.Stream() as second:
            ...     async with aiostream.StreamPool.borrow([first, second]) as pool:
            ...         async with pool.stream() as stream:
            ...             print(stream.handle == first.handle)
            ...     print(first.closed)
            True
            False
        """
        _require_limit(max_waiting)
        _require_several("streams", streams)
        checks.label(name)
        borrow = partial(Stream.borrow, wait=wait, stalled_after=stalled_after)
        borrowed = [
            borrow(stream, name=_name_in(name, number)) for number, stream in enumerate(streams)
        ]
        require_distinct(borrowed)
        # `__init__` would make streams. No other thread has the pool before it is returned, so the
        # order in which the fields are set does not matter.
        pool = cls.__new__(cls)
        pool._label = name
        pool._init_fields(borrowed, max_waiting)
        return pool

    # ---------------------------------------------------------------------------------------- state

    @property
    def name(self) -> str | None:
        """The name that you gave it."""
        return self._label

    @property
    def closed(self) -> bool:
        """Whether the pool was closed."""
        return self._closed

    def __repr__(self) -> str:
        if not hasattr(self, "_bridge"):  # the last field
            # A debugger shows it in its constructor, and a traceback after that has failed.
            return "<aiostream.StreamPool, not made>"
        lent = self.lent
        held = f"{lent} lent{self._holders(lent)}"
        counts = f"{self.idle} idle, {self.busy} busy, {held}, {self.waiting} waiting"
        closed = ", closed" if self._closed else ""
        return f"<aiostream.StreamPool{self._called} of {self._size}: {counts}{closed}>"

    # ------------------------------------------------------------------------------------------ use

    def stream(self) -> _Lending:
        """Gives you a stream for an `async with` block. `acquire` is another name of it.

        The end of the block does not wait for the stream's work. Await what must be done inside the
        block. Cancellation, threads and errors are those of `acquire`.

        Example:
            >>> async with aiostream.StreamPool(2) as pool:
            ...     async with pool.stream() as stream:
            ...         await stream.synchronize_async()
            ...         print(pool.lent, pool.idle)
            1 1
        """
        return _new_lease(self, _Lending)

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Does `Stream.run(fn, *args, **kwargs)` on the next free stream. It is a whole request.

        The stream is current in `fn`, and back in the pool afterwards, also after a cancellation or
        an error. Cancellation, threads and errors are those of `acquire` and of `Stream.run`.

        Raises:
            PoolFullError: `max_waiting` tasks wait already. A server answers with 503.

        Example:
            >>> async with aiostream.StreamPool(2, max_waiting=64) as pool:
            ...     await asyncio.gather(*(pool.run(lambda n: n * n, n) for n in range(3)))
            [0, 1, 4]
        """
        lease = self.stream()
        async with lease as stream:
            result = await stream.run(fn, *args, **kwargs)
            lease.is_done = True  # so the driver need not be asked
        return result

    async def run_in_thread(
        self, fn: Callable[..., T], /, *args: Any, limiter: Any = None, **kwargs: Any
    ) -> T:
        """Does `Stream.run_in_thread` on the next free stream: `run`, with `fn` in a worker thread.

        If it is cancelled while `fn` runs, the stream comes back when its work is done.

        Example:
            >>> async with aiostream.StreamPool(2) as pool:
            ...     await pool.run_in_thread(lambda batch: batch * 2, 21)
            42
        """
        async with self.stream() as stream:
            return await stream.run_in_thread(fn, *args, limiter=limiter, **kwargs)

    def acquire(self) -> _Lending:
        """Waits until a stream is free, and gives it to you. Give it back with `release`.

        `stream = await pool.acquire()` is yours until you release it. A block `async with
        pool.acquire() as stream:` releases it at its end, as one of `stream()` does.

        Cancellation: raises at once. You hold no stream then.

        Threads: call it in a task of the loop that uses the pool. On trio it is always a
        checkpoint.

        Returns:
            A borrowed `Stream` with the pool's options. `release` closes it. If you close it
            yourself, this does not affect the pool. If you drop it, the pool takes the stream back:
            at once if tasks wait, and otherwise at its next use. A pool that is closed destroys it.

        Raises:
            RuntimeError: No loop runs here, or a task of another loop holds a stream or waits for
                one.
            PoolFullError: `max_waiting` tasks wait already.
            StreamClosedError: The pool is closed, or was closed while you waited.
            ContextFailedError: A context of the pool has failed.
        """
        return _new_lease(self, _Lending)

    async def _acquire(self) -> Stream:
        # A `Lease` comes here only if it cannot take a stream in one step (module_pool.c).
        if observers and not is_observed():
            return await observed("StreamPool.acquire", StreamPool._acquire, self)
        bridge = self._enter()
        take_turn = bridge.checkpoint
        if take_turn is not None:
            # This is on trio alone. It comes first, because it may raise a cancellation, and
            # nothing is taken yet. Other tasks run meanwhile, and may close the pool or lose its
            # context, so it is entered again.
            await take_turn()
            self._enter()
        elif self._idle and not self._waiters.futures:
            self._at_once = (self._at_once + 1) % _native.TURNS_AFTER
            # Without an await all other tasks of the loop would wait as long as streams are free.
            if self._at_once == 0 and bridge.must_yield():
                # The next task asks at once. Otherwise each task would take so many streams before
                # it yields too, and many tasks would keep the loop for that many times longer.
                self._at_once = -1
                await loops.yield_turn()
                self._enter()
        # Asked again, because there may have been an await. From here to the end there is none on
        # this way, so no other task can take the stream in between. A task that comes while others
        # wait must not overtake them.
        if self._idle and not self._waiters.futures:
            pooled = self._idle.take()
            lent = self._lend(pooled, bridge)
        else:
            # A task that waits must not hold the bridge, because the bridge would survive its loop.
            del bridge
            # Another task or the loop's drain hands the pooled stream over. Both run in this
            # thread, and behind this line there is no await, so nothing changes before this task
            # has it.
            pooled = await self._in_turn()
            lent = self._lend(pooled, loops.current_bridge())
        self._lent[pooled.key] = pooled  # and no call after it: see `_lend`
        return lent

    def _enter(self) -> loops.Bridge:
        """Prepares for a use by the running loop."""
        bridge = loops.current_bridge()
        if self._closed:
            self._require_open()
        # The bridges are compared, and not the loops. A bridge that died with its loop gives None,
        # so a new loop at the old one's address is not taken for it.
        if self._bridge is None or self._bridge() is not bridge:
            self._change_loop(bridge)
        latest = driver.latest_failure  # before the health is read
        if self._healthy_since is not latest:
            # It may be another context that has failed, and contexts of the simulator can recover.
            code = self._health()
            if code:
                raise self._error(code)
            self._healthy_since = latest
        # This comes before the caller counts the idle streams, because both may make some idle. The
        # flags are plain, and another thread may just be setting one: the next use sees it.
        if self._dropped:
            self._take_dropped()
        if self._busy.has_unreported:
            self._look_again()
            self._look_again_soon()
        return bridge

    def _lend(self, pooled: Pooled, bridge: loops.Bridge) -> Stream:
        """Makes the object that a task gets. Its caller then notes it in `_lent`, and returns it.

        No call may lie between that note and the caller's return. A KeyboardInterrupt comes after
        a call, and then the stream would count as lent, but to no task. Before the note, the stream
        is in no list, and `_find_lost` takes it back.
        """
        try:
            # The callback may run in any thread, and between any two lines of this module. So it is
            # the deque's own method: it takes no lock, and touches nothing else of the pool.
            lent = pooled.lend(self._dropped.append, self._waiters.raise_alarm)
        except StreamClosedError:  # a borrowed stream, whose owner has closed it
            self._drop(pooled)
            raise
        except BaseException:
            # There was no memory, for example. Only this call knows the pooled stream, so that it
            # would be lost, and tasks may wait for it.
            self._put_back(pooled)
            raise
        task = bridge.current_task()
        # Weakly, because a pool must not keep a task, and what its frames hold, past its end.
        pooled.holder = weakref.ref(task) if task is not None else None
        _, pooled.lent, pooled.alarm, *_ = pooled.record
        if self._closed:
            self._end_when_dropped(pooled)
        return lent

    def acquire_nowait(self) -> Stream:
        """Gives you a stream that is free now. Give it back with `release`.

        Threads: call it in the thread of the loop that uses the pool.

        Raises:
            PoolFullError: No stream is free, or tasks wait for one.
            RuntimeError, StreamClosedError, ContextFailedError: As for `acquire`.
        """
        bridge = self._enter()
        # Without an await there is no other chance to notice a stream that was lost, or whose work
        # has ended while the loop did not run.
        if not self._idle:
            self._find_lost()
            if self._busy.has_unreported:
                self._look_again()
        if not self._idle or self._waiters.futures:
            raise PoolFullError(f"no stream is free: {self._reasons()}")
        pooled = self._idle.take()
        lent = self._lend(pooled, bridge)
        self._lent[pooled.key] = pooled  # and no call after it: see `_lend`
        return lent

    def release(self, stream: Stream) -> None:
        """Gives a stream back that you got from `acquire` or `acquire_nowait`.

        It never waits. The `Stream` object is closed, and its work continues. When that work is
        done, the stream goes to the task that has waited for longest.

        If this library began a capture on the stream, `release` ends it as `end_capture` does, and
        drops the graph if it is a new one. If the stream takes part in any other capture, such as
        that of another stream, the pool uses it again after that capture has ended.

        Threads: call it in the thread of the loop that uses the pool.

        Raises:
            ValueError: You did not get it from this pool, or have given it back before.
        """
        if self._give(stream):
            return
        self._take_back(stream)

    _release = release

    def _take_back(self, stream: Stream) -> None:
        """Does what `release` does, if one native step is not enough."""
        # The id alone would not do. It may have been that of an object that has died, and is now
        # that of any other object.
        pooled = self._lent.get(id(stream))
        if pooled is None or pooled.lent is None or pooled.lent() is not stream:
            if self._is_collected(stream):
                # It is in a block of a dead task, where nothing may be raised. Perhaps this is not
                # the loop's thread. The pool takes the stream back as one that was dropped.
                stream._handle.close()
                return
            raise ValueError(f"{stream!r} was not lent by this pool, or was given back before")
        # The handle is borrowed, so this destroys nothing. It comes before the pool looks at the
        # stream, because a worker thread could otherwise begin a use that the pool has not seen.
        handle = stream._handle
        handle.close()
        # Unless a thread of enqueue_in_thread is under way, which holds `stream`. A pool of
        # borrowed streams may end before it, and their sources would destroy what the thread uses.
        if not handle.is_used:
            stream._source = None
        # From here on the stream is in no list, until it is put into one. If a KeyboardInterrupt
        # comes in between, the next `acquire` finds it.
        del self._lent[pooled.key]
        pooled.end_loan()
        pooled.keep(stream)
        self._look_at(pooled)
        # No event will say when the work of this one, or of another one, is over. If tasks wait,
        # none of them calls the pool, so the loop has to.
        if self._busy.has_unreported:
            self._look_again_soon()

    # ------------------------------------------------------------------------------------------ end

    def close(self) -> None:
        """Destroys the streams at once. Their work continues on the GPU.

        A stream that a task holds is destroyed when the task gives it back, or drops it. Tasks that
        wait for a stream get a `StreamClosedError`. You may call it again.

        Raises:
            CudaError: The driver refused. All other streams are closed, and you get the first
                error.
        """
        # This comes before the pool is closed, because no task will give these back.
        self._take_dropped()
        self._find_lost()
        # Tasks that hold a stream go on. `release` finds the pool closed, and destroys it then.
        self._refuse()
        # It closes all of them, whatever one of the closes raises, and the first one last. What an
        # interrupt keeps from it is in no list, and the next call finds it (`_find_lost`).
        with contextlib.ExitStack() as closing:
            for pooled in (*self._idle, *self._busy.take_all()):
                closing.callback(pooled.stream.close)
            self._idle.clear()

    async def aclose(self) -> None:
        """Waits for the work of all streams that no task holds, and then does what `close` does.

        It does not wait for a thread that a cancelled `run_in_thread` has left. `drain` does.

        Cancellation: destroys the streams at once, and raises.

        Raises:
            CudaError: The work on a stream failed. All streams are closed.
        """
        # This comes before the pool is closed, so that their work is awaited too.
        self._take_dropped()
        self._find_lost()
        self._refuse()
        self._busy.report_none()  # this task waits for them from now on
        try:
            await waiting.checkpoint()
            # This is a copy, because other tasks of the loop run in the awaits, and give streams
            # back.
            for pooled in (*self._idle, *self._busy.all_pooled()):
                # Another task may call close() meanwhile.
                with contextlib.suppress(StreamClosedError):
                    await pooled.stream.synchronize_async()
        except BaseException:
            self._close_quietly()  # the first error says what went wrong
            raise
        self.close()


class _Lending(_native.Lease, checks.AsyncBlock, Coroutine[Any, Any, Stream]):
    """A coroutine that returns a stream of a pool, and a block that gives it back."""

    __slots__ = ()
    _block = "pool.stream()"
    _or_else = ", because it may have to wait for a stream"

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, Any, Stream]: ...
        async def __aenter__(self) -> Stream: ...
    else:  # type checkers say it without this

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"this is not yet a stream and has no {name}: write `async with pool.stream() as "
                "stream:` or `stream = await pool.acquire()`, and use the stream"
            )

    def _begin(self) -> Coroutine[Any, Any, Stream]:
        # Once, so that a block which is entered twice is refused.
        acquiring: Coroutine[Any, Any, Stream]
        self._acquiring = acquiring = self._acquiring or self._pool._acquire()
        return acquiring

    # The base class calls these three if it cannot take or give back a stream in one step.

    def _await(self) -> Generator[Any, Any, Stream]:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        return self._begin().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begin().throw(*error)

    def close(self) -> None:
        self._begin().close()

    async def _enter(self) -> Stream:
        # If an interrupt comes before the assignment, the `Stream` dies with this frame. The pool
        # notices that, because it refers to the `Stream` weakly.
        self._lent = lent = await self._begin()
        return lent

    async def _leave(self, kind: object) -> None:
        # This comes before the release, so that a block that is left twice gives nothing back
        # twice.
        pool, lent, self._lent = self._pool, self._lent, None
        release = type(pool).release
        try:
            # The native step has been tried, unless a subclass has a `release` of its own.
            (StreamPool._take_back if release is StreamPool.release else release)(pool, lent)
        except ValueError:
            # The collector ends the block of a dead task so, and nothing may be raised there. The
            # pool has noticed before that the stream is gone.
            if kind is not GeneratorExit:
                raise


def _name_in(pool: str | None, number: int) -> str | None:
    return None if pool is None else f"{pool}[{number}]"


def _require_limit(max_waiting: int | None) -> None:
    if max_waiting is not None:
        checks.number("max_waiting", max_waiting, 0, "no fewer than 0 tasks can wait")


def _require_several(name: str, values: object) -> None:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name} are in a list or another iterable, not one {type(values).__name__}"
        )


def _distinct_devices(
    devices: Iterable[DeviceLike], device: DeviceLike | None, size: int
) -> list[Device]:
    if device is not None:
        raise TypeError("a pool takes device or devices, not both")
    _require_several("devices", devices)
    found = [each if isinstance(each, Device) else Device(each) for each in devices]
    if not found:
        raise ValueError("a pool has at least one device")
    if len(set(found)) < len(found):
        raise ValueError(f"devices names a device twice: {found}")
    if size < len(found):
        raise ValueError(
            f"a pool has at least one stream on each of its devices: {size} streams are fewer than "
            f"{len(found)} devices"
        )
    return found
