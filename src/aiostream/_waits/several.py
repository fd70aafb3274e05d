"""Waits for several futures, as asyncio does, and on trio too."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from aiostream._base import checks
from aiostream._runtime import loops
from aiostream._runtime.completion import set_result
from aiostream._waits import waiting

__all__ = ["as_completed", "wait"]

F = TypeVar("F", bound=Any)
ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]


async def wait(
    futures: Iterable[F], *, timeout: float | None = None, return_when: ReturnWhen = "ALL_COMPLETED"
) -> tuple[set[F], set[F]]:
    """Waits for any or all of several futures, as `asyncio.wait` does. It works on trio, too.

    It cancels none of them. A timeout is not an error.

    Args:
        futures: Completion futures of this loop. On asyncio also other futures and tasks. Those
            that are done may be of any loop.
        timeout: Seconds to wait at most. `None` sets no limit.
        return_when: `"ALL_COMPLETED"`, `"FIRST_COMPLETED"` or `"FIRST_EXCEPTION"`, as in asyncio.

    Cancellation: raises at once. The futures stay pending.

    Threads: call it in the thread of the loop to which the futures belong. On trio it is always a
    checkpoint.

    Returns:
        The futures that are done, and those that are not.

    Raises:
        TypeError: One of them is not a future of a loop, or `timeout` is not a number.
        ValueError: There are none, or `return_when` is another value.
        RuntimeError: No loop runs here, or a pending one belongs to another loop.

    Example:
        >>> async with aiostream.Stream() as first, aiostream.Stream() as second:
        ...     futures = [first.completion_future(), second.completion_future()]
        ...     done, pending = await aiostream.wait(futures, timeout=10)
        ...     print(len(done), len(pending))
        2 0
    """
    import anyio  # on first use, because importing aiostream does not import anyio

    seconds = checks.timeout(timeout)
    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        raise ValueError(
            f"return_when is ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, not {return_when!r}"
        )
    every = set(_waitable("wait", futures))
    if not every:
        raise ValueError("there is nothing to wait for")
    enough = loops.current_bridge().new_future()
    unfinished = [future for future in every if not future.done()]
    # Counted down. Looking at all futures at each end would take the square of their number.
    left = len(unfinished)

    def ended(future: F) -> None:
        # This runs in this loop's thread, because `_waitable` has refused futures of other loops.
        # So neither `left` nor `enough` needs a lock.
        nonlocal left
        left -= 1
        if not enough.done() and (left == 0 or _is_enough(future, return_when)):
            set_result(enough, None)

    if not unfinished or any(future.done() and _is_enough(future, return_when) for future in every):
        set_result(enough, None)
    try:
        for future in unfinished:
            future.add_done_callback(ended)
        with time_limit(anyio.move_on_after, seconds):
            await waiting.checkpoint()
            await enough
    finally:
        # A future that goes on would keep this frame, and so all the other futures.
        for future in unfinished:
            future.remove_done_callback(ended)
    done = {future for future in every if future.done()}
    return done, every - done


def time_limit(scope: Callable[[float], Any], seconds: float | None) -> Any:
    # None without a limit, because anyio keeps each task that is in one. It would never free those
    # whose loop was closed while they waited, nor what they hold.
    return contextlib.nullcontext() if seconds in (None, math.inf) else scope(seconds)


def _is_enough(done: Any, return_when: ReturnWhen) -> bool:
    """Whether the end of this one future ends the wait."""
    if return_when == "FIRST_EXCEPTION":
        return not done.cancelled() and done.exception() is not None
    return return_when == "FIRST_COMPLETED"


def _waitable(name: str, futures: Iterable[F]) -> list[F]:
    """The futures in order, each once."""
    if hasattr(futures, "add_done_callback") or not isinstance(futures, Iterable):
        raise TypeError(
            f"{name} takes several futures, as in {name}([first, second]), not "
            f"{type(futures).__name__}"
        )
    every = list(dict.fromkeys(futures))
    for future in every:
        if not (hasattr(future, "add_done_callback") and hasattr(future, "remove_done_callback")):
            kind = type(future)
            raise TypeError(
                f"{name} takes futures of this loop, not {kind.__module__}.{kind.__qualname__}: "
                "make a task of a coroutine, and pass a future of concurrent.futures through "
                "asyncio.wrap_future"
            )
        # Another loop would call back in its own thread, which may not settle a future of this
        # loop, and this loop would sleep on. A future that is done calls back to none.
        if not future.done() and loops.is_elsewhere(future):
            loops.current_bridge()  # raises if no loop runs here
            raise RuntimeError(
                f"{name} takes futures of this loop, and {future!r} belongs to another loop: wait "
                "for it in the loop that made it, for example in a coroutine that you start there "
                "with asyncio.run_coroutine_threadsafe"
            )
    return every


def as_completed(futures: Iterable[F], *, timeout: float | None = None) -> AsyncIterator[F]:
    """Gives you several futures one by one, in the order in which they end.

    `async for future in as_completed(futures):` gives the same objects that you passed, as
    `asyncio.as_completed` does from Python 3.13 on. It works on trio, too. It cancels none of them,
    and you may leave the loop early. A future that failed or was cancelled is given, too.
    `future.result()` raises its error.

    Args:
        futures: Completion futures of this loop. On asyncio also other futures and tasks. There may
            be none.
        timeout: Seconds from this call until the last future must be done. `None` sets no limit.

    Cancellation: raises at once. The futures stay pending, and you may iterate further.

    Threads: call it in the thread of the loop to which the futures belong, and iterate in one task.
    On trio each step is a checkpoint.

    Raises:
        TypeError: One of them is not a future of a loop, or `timeout` is not a number.
        RuntimeError: No loop runs here, a pending one belongs to another loop, or two tasks iterate
            at once.
        TimeoutError: In the iteration: the time is over, and no other future is done.

    Example:
        >>> async with aiostream.Stream() as first, aiostream.Stream() as second:
        ...     futures = [stream.completion_future() for stream in (first, second)]
        ...     async for future in aiostream.as_completed(futures, timeout=10):
        ...         print(future.done())
        True
        True
    """
    seconds = checks.timeout(timeout)
    return _AsCompleted(_waitable("as_completed", futures), seconds)


class _Ended(Generic[F]):
    """The futures that have ended and were not given yet.

    It is their callback. It does not refer to the pending ones, because they keep it when you leave
    the loop early.
    """

    def __init__(self) -> None:
        self.futures: deque[F] = deque()
        self.waiter: Any = None  # of the task that waits for the next

    def __call__(self, future: F) -> None:
        # The append first, because the task that wakes up takes what is there.
        self.futures.append(future)
        if self.waiter is not None and not self.waiter.done():
            set_result(self.waiter, None)


class _AsCompleted(checks.NotCopied, AsyncIterator[F]):
    # A class, because an async generator would hold a cancel scope across its yields.

    _instead = "call as_completed() again"  # a copy would take the original's callbacks away

    def __init__(self, futures: list[F], seconds: float | None) -> None:
        import anyio

        loops.current_bridge()  # refuses where no loop runs
        self._deadline = math.inf if seconds is None else anyio.current_time() + seconds
        self._left = len(futures)
        self._in_use = False  # a task is in a step
        self._ended: _Ended[F] = _Ended()
        self._pending: dict[F, None] = {}  # those that call back, or are not given yet
        self._thread = threading.get_ident()
        # Only this thread settles futures of this loop. So none ends between the question and the
        # callback, and each is noted once.
        for future in futures:
            if future.done():
                self._ended.futures.append(future)
            else:
                future.add_done_callback(self._ended)
                self._pending[future] = None

    def __del__(self, this_thread: Callable[[], int] = threading.get_ident) -> None:
        # Left early: the pending futures need not call back. Only in the loop's own thread, because
        # futures are not safe for others, and a garbage collection may come anywhere.
        if getattr(self, "_thread", None) == this_thread():
            for future in list(self._pending):
                future.remove_done_callback(self._ended)

    if not TYPE_CHECKING:  # type checkers say it without this

        def __iter__(self) -> NoReturn:
            raise TypeError("as_completed() has no plain iterator: write `async for`")

    async def __anext__(self) -> F:
        # A second task would replace the waiter of the first, which would then sleep without end.
        # There is no await between the question and the mark, so one of the two is refused.
        if self._in_use:
            raise RuntimeError("another task waits for the next of these futures: use one task")
        self._in_use = True
        try:
            if self._ended.futures or not self._left:
                await waiting.checkpoint()
            else:
                await self._next_end()
        finally:
            self._in_use = False
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        future = self._ended.futures.popleft()
        self._pending.pop(future, None)
        return future

    async def _next_end(self) -> None:
        import anyio

        self._ended.waiter = waiter = loops.current_bridge().new_future()
        left = self._deadline - anyio.current_time()
        try:
            with time_limit(anyio.fail_after, left):
                await waiter
        finally:
            # A task that left must not be woken: the next step makes a waiter of its own.
            self._ended.waiter = None
