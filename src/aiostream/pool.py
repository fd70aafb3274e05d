"""StreamPool: a fixed number of streams for any number of tasks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, overload

from aiostream._base import checks, hints
from aiostream._handles.operand import LEGACY
from aiostream._objects.shared import Made, Own
from aiostream._pools.pool_core import PoolCore
from aiostream._pools.pool_loans import Loan
from aiostream._pools.pool_places import Place
from aiostream._runtime import loops
from aiostream._runtime.observing import hook
from aiostream._waits import waiting
from aiostream.device import Device, DeviceLike
from aiostream.enums import WaitLike
from aiostream.errors import PoolFullError, StreamClosedError
from aiostream.stream import Stream

__all__ = ["StreamPool"]

P = ParamSpec("P")
T = TypeVar("T")
# What a function in two halves returns.
Halves = Generator[None, None, T]


class StreamPool(PoolCore, checks.NotCopied, checks.AsyncBlock, waiting.AwaitedBlock, Generic[Own]):
    """A fixed number of streams for any number of tasks. One task at a time uses each stream.

    `async with pool.stream() as stream:` waits until a stream is free, and gives it back at the end
    of the block. Tasks that wait are served in order. Keep the block open for as long as you use
    the stream. In a server that streams its answer, the block is in the generator of the answer.

    A stream that you have given back is free when the GPU has done its work. The work of a request
    that has timed out continues on its stream, and other tasks get other streams meanwhile. If all
    streams have such work, the next request waits until one of them is free.

    `each` makes what belongs to each stream, such as its pinned buffers and its captured graph. It
    is `stream.own`, and `run` gives it to your function. So no two requests use it at once. The
    `Stream` that `each` gets may be kept. It is refused while the pool's stream is free, so use it
    in what you do with a stream of the pool.

    Each time you get a `Stream` object of your own, a loan, which ends when you give it back. From
    then on it is closed, also while another task has the driver's stream: what waits, enqueues,
    captures, becomes current or gives `own` raises a `StreamClosedError`. So does what was borrowed
    from it.
    What names it goes on (`handle`, `device`, `context`, `name`, `==`, `hash`), and so do the
    futures that you got from it. Loans of one stream are equal. If you drop one, its stream comes
    back, and you get a `ResourceWarning`. While you have one, its `close`, `aclose`, `shutdown` and
    `into_raw` raise a `RuntimeError`, because the pool closes the stream.

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
        each: A class or function that the pool calls once with each stream, here, with the stream
            current. What it returns is `stream.own`. The pool drops it when it is closed and the
            work of the stream is over.
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

    Threads: use the pool in tasks of one loop at a time. Another loop may use it when no task has a
    stream or waits for one, or when the former loop is closed. What tasks had there is void then.
    The pool waits for the work on those streams, and for threads that still use one.

    Raises:
        TypeError: `size` or `max_waiting` is not an int, or you gave `device` and `devices`. Or
            `each` is not callable, or has returned `None`.
        ValueError: `size` is less than 1 or than the number of devices, `max_waiting` is less than
            0, or `devices` is empty or names a device twice.
        CudaError: The driver refused.
        BaseException: What `each` has raised. The streams that the pool has made are closed.

    Example:
        >>> class Replica:
        ...     def __init__(self, stream):
        ...         self.buffer = bytearray(8)  # in place of pinned memory and a graph
        ...     def answer(self, request):
        ...         self.buffer[0] = request  # launch kernels here
        ...         return f"answer {request}"
        >>> async with aiostream.StreamPool(2, max_waiting=64, each=Replica) as pool:
        ...     await asyncio.gather(*(pool.run(Replica.answer, n) for n in range(3)))
        ['answer 0', 'answer 1', 'answer 2']
    """

    @hints.answers_keywords
    def __init__(
        self,
        size: int,
        device: DeviceLike | None = None,
        *,
        each: Callable[[Stream], Own] | None = None,
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
        places = [device] if devices is None else _distinct_devices(devices, device, size)
        make = functools.partial(
            Stream,
            priority=priority,
            non_blocking=non_blocking,
            wait=wait,
            stalled_after=stalled_after,
        )
        # No task knows these streams before the last of them is made. So an error here closes them,
        # and no work is lost.
        with contextlib.ExitStack() as made:
            streams = []
            for number in range(size):
                streams.append(make(places[number % len(places)], name=_name_in(name, number)))
                made.callback(streams[-1]._close)
            self._fill(streams, max_waiting, each)
            made.pop_all()

    @classmethod
    def borrow(
        cls,
        streams: Iterable[Any],
        *,
        each: Callable[[Stream], Made] | None = None,
        max_waiting: int | None = None,
        wait: WaitLike | None = None,
        name: str | None = None,
        stalled_after: float | None = None,
    ) -> StreamPool[Made]:
        """Makes a pool of another library's streams, such as torch's. It never destroys them.

        torch has only 32 streams per device and priority, and hands them out in turn. So of 33
        streams of torch two are the same. A pool would give that one to two tasks at once, so you
        get a `ValueError`.

        Args:
            streams: What `Stream.borrow` takes. All are different streams of one context.
            each: As `StreamPool` takes it.
            max_waiting: As `StreamPool` takes it.
            wait: As `Stream.borrow` takes it.
            name: As `StreamPool` takes it. By default each stream keeps its own name.
            stalled_after: As `Stream.borrow` takes it.

        Raises:
            TypeError: One of them is not a stream.
            ValueError: There are none, two of them are one stream, or they are of several contexts.
            CudaError: The driver does not know one of them.
            BaseException: What `each` has raised. The streams stay open.

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
        checks.several("streams", streams)
        checks.label(name)
        borrow = functools.partial(Stream.borrow, wait=wait, stalled_after=stalled_after)
        borrowed = [
            borrow(stream, name=_name_in(name, number)) for number, stream in enumerate(streams)
        ]
        _require_distinct(borrowed)
        pool: StreamPool[Any] = cls.__new__(cls)  # `__init__` would make streams
        pool._label = name
        pool._fill(borrowed, max_waiting, each)
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
        if not hasattr(self, "_places"):  # the last field
            # A debugger shows it in its constructor, and a traceback after that has failed.
            return "<aiostream.StreamPool, not made>"
        idle, busy, lent, waiting = self._counts()
        closed = ", closed" if self._closed else ""
        return (
            f"<aiostream.StreamPool{self._called} of {self.size}: {idle} idle, {busy} busy, "
            f"{lent} lent{self._holding(lent)}, {waiting} waiting{closed}>"
        )

    if not TYPE_CHECKING:

        def __getitem__(self, _: object) -> NoReturn:
            raise TypeError("a pool is no list: write `async with pool.stream() as stream:`")

    # ------------------------------------------------------------------------------------------ use

    def stream(self) -> _Acquired[Own]:
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
        return _Acquired(self)

    @overload
    async def run(
        self: Plain, fn: Callable[P, Halves[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def run(self: Plain, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def run(
        self, fn: Callable[Concatenate[Own, P], Halves[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def run(
        self, fn: Callable[Concatenate[Own, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Does `Stream.run(fn, *args, **kwargs)` on the next free stream. It is a whole request.

        If the pool has `each`, it calls `fn(own, *args, **kwargs)`, where `own` is what belongs to
        the stream. So a method works as it is: `pool.run(Replica.answer, request)`.

        If it has to wait for its turn, it takes the stream after that. The stream is current in
        `fn`, and back in the pool afterwards, also after a cancellation or an error. Cancellation,
        threads and errors are those of `acquire` and of `Stream.run`.

        Raises:
            PoolFullError: `max_waiting` tasks wait already. A server answers with 503.

        Example:
            >>> async with aiostream.StreamPool(2, max_waiting=64) as pool:
            ...     await asyncio.gather(*(pool.run(lambda n: n * n, n) for n in range(3)))
            [0, 1, 4]
        """
        if hook:
            place = await hook.observed("StreamPool.acquire", StreamPool._next, self)
        else:
            place = self._at_once(True) or await self._in_turn(True)
        number, stream = place.number, place.stream
        if self._has_own:
            args = (place.own, *args)
        try:
            result = await stream.run(fn, *args, **kwargs)
        except BaseException as error:
            self._give(place, number, error)
            raise
        if place.left is not None:
            self._give(place, number)
        elif place.pop(number, self) is not self:  # the wait of `run` has seen the stream's end
            self._put_back(place)
        return result

    async def _next(self) -> Place:
        """Does what `run` does without observers."""
        return self._at_once(True) or await self._in_turn(True)

    # A lambda has no inferred type here if the type of its first parameter is given.
    @overload
    async def run_in_thread(
        self, fn: Callable[..., Halves[T]], /, *args: Any, **kwargs: Any
    ) -> T: ...
    @overload
    async def run_in_thread(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def run_in_thread(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Does `Stream.run_in_thread` on the next free stream: `run`, with `fn` in a worker thread.

        If it is cancelled while `fn` runs, the stream comes back when `fn` has returned and its
        work is done.

        Example:
            >>> async with aiostream.StreamPool(2) as pool:
            ...     await pool.run_in_thread(lambda batch: batch * 2, 21)
            42
        """
        place = await self._acquire()
        number, stream = place.number, place.stream
        if self._has_own:
            args = (place.own, *args)
        try:
            result = await stream.run_in_thread(fn, *args, **kwargs)
        except BaseException as error:
            self._give(place, number, error)
            raise
        self._give(place, number)
        return result

    def acquire(self) -> _Acquired[Own]:
        """Waits until a stream is free, and gives it to you. Give it back with `release`.

        `stream = await pool.acquire()` is yours until you release it. A block `async with
        pool.acquire() as stream:` releases it at its end, as one of `stream()` does.

        Cancellation: raises at once. You hold no stream then.

        Threads: call it in a task of the loop that uses the pool. On trio it is always a
        checkpoint.

        Returns:
            A `Stream` on one of the pool's. As long as you have it, no other task gets that one. If
            you drop it, it comes back, with a `ResourceWarning`. `repr` of the pool, and a
            `PoolFullError`, name the tasks that hold streams, and `pending()` those that wait.

        Raises:
            RuntimeError: No loop runs here, or a task of another loop holds a stream or waits for
                one.
            PoolFullError: `max_waiting` tasks wait already.
            StreamClosedError: The pool is closed, or was closed while you waited.
            ContextFailedError: A context of the pool has failed.
        """
        return _Acquired(self)

    async def _acquire_loan(self) -> Stream[Own]:
        return Loan(await self._acquire(), self)

    def acquire_nowait(self) -> Stream[Own]:
        """Gives you a stream that is free now. Give it back with `release`.

        Threads: call it in the thread of the loop that uses the pool.

        Raises:
            PoolFullError: No stream is free, or tasks wait for one.
            RuntimeError, StreamClosedError, ContextFailedError: As for `acquire`.
        """
        self._enter()
        place = self._at_once()
        if place is None and not self._queue:
            self._ask_again()  # without an await there is no other chance
            place = self._at_once()
        if place is None:
            raise PoolFullError(f"no stream is free: {self._reasons()}")
        return Loan(place, self)

    def release(self, stream: Stream) -> None:
        """Gives a stream back that you got from `acquire` or `acquire_nowait`.

        Any task of the loop may do so, once, such as the one that sends a streamed answer. It never
        waits, and the stream's work continues. When that work is done, the stream goes to the task
        that has waited for longest.

        If this library began a capture on the stream, `release` ends it as `end_capture` does, and
        drops the graph if it is a new one. If the stream takes part in any other capture, such as
        that of another stream, the pool uses it again after that capture has ended.

        Threads: call it in the thread of the loop that uses the pool.

        Raises:
            ValueError: You did not get it from this pool, or have given it back before.
            RuntimeError: You call it in another loop.
        """
        if not isinstance(stream, Loan) or stream._pool is not self or not stream._is_lent:
            raise ValueError(f"{stream!r} was not lent by this pool, or was given back before")
        if (bridge := loops.bridge_here()) is not None and bridge is not self._bridge():
            self._adopt(bridge)  # refused, unless the loop of the loan is gone
        stream.end()

    # ------------------------------------------------------------------------------------------ end

    def close(self) -> None:
        """Destroys the streams at once. Their work continues on the GPU.

        A stream that a task holds is destroyed when the task gives it back. Tasks that wait for a
        stream get a `StreamClosedError`. You may call it again.

        Raises:
            CudaError: The driver refused. All other streams are closed, and you get the first
                error. After a lost context it raises nothing: `health` says that.
        """
        self._refuse()
        # It closes all of them, whatever one of the closes raises, and the first one last.
        with contextlib.ExitStack() as closing:
            for place in self._not_lent():
                place.clear()
                closing.callback(self._end, place)

    async def aclose(self) -> None:
        """Waits for the work of all streams that no task holds, and then does what `close` does.

        It does not wait for a thread that a cancelled `run_in_thread` has left. `drain` does.

        Cancellation: destroys the streams at once, and raises.

        Raises:
            CudaError: The work on a stream failed. All streams are closed.
        """
        self._refuse()
        try:
            await waiting.checkpoint()
            # Other tasks of the loop run in the awaits, and give streams back, or close the pool.
            for place in self._not_lent():
                if place.stream.closed:  # by `close`: a wait would be counted as one that failed
                    continue
                with contextlib.suppress(StreamClosedError):
                    await place.stream.synchronize_async()
        except BaseException:
            self._close_quietly()  # the first error says what went wrong
            raise
        self.close()


class _Acquired(checks.AsyncBlock, Coroutine[Any, Any, Stream[Own]], Generic[Own]):
    """A coroutine that returns a stream of a pool, and a block that gives it back."""

    __slots__ = ("_acquiring", "_is_limited", "_loan", "_pool")
    _block = "pool.stream()"
    _or_else = ", because it may have to wait for a stream"

    def __init__(self, pool: StreamPool[Own], is_limited: bool = True) -> None:
        self._pool, self._is_limited = pool, is_limited
        # One coroutine, so that a block which is entered twice is refused.
        self._acquiring: Coroutine[Any, Any, Any] | None = None

    def _begin(self) -> Coroutine[Any, Any, Stream[Own]]:
        self._acquiring = acquiring = self._acquiring or self._pool._acquire_loan()
        return acquiring

    def __await__(self) -> Generator[Any, Any, Stream[Own]]:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        return self._begin().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begin().throw(*error)

    def close(self) -> None:
        self._begin().close()

    async def __aenter__(self) -> Stream[Own]:
        self._acquiring = acquiring = self._acquiring or self._pool._acquire(self._is_limited)
        place = await acquiring
        self._loan = Loan(place, self._pool)
        place.block = place.number
        return self._loan

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self._loan.end(error)

    if not TYPE_CHECKING:  # type checkers say it without this

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"this is not yet a stream and has no {name}: write `async with pool.stream() as "
                "stream:` or `stream = await pool.acquire()`, and use the stream"
            )


Plain = StreamPool[None]


def uncounted(pool: StreamPool[Own]) -> _Acquired[Own]:
    """Does what `pool.stream()` does, for tasks of the library, whose users have a limit elsewhere.

    The pool's `max_waiting` does not count these tasks. Observers and `pending` do not list them.
    """
    return _Acquired(pool, is_limited=False)


def _name_in(pool: str | None, number: int) -> str | None:
    return None if pool is None else f"{pool}[{number}]"


def _distinct_devices(
    devices: Iterable[DeviceLike], device: DeviceLike | None, size: int
) -> list[Device]:
    if device is not None:
        raise TypeError("a pool takes device or devices, not both")
    found = [*map(Device, checks.several("devices", devices))]
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


def _require_distinct(streams: list[Stream]) -> None:
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
