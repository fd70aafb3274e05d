"""What the library's futures promise, on every loop."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from asyncio import Future as _Base  # because `asyncio.wait` takes futures by their class
else:
    _Base = Protocol

__all__ = ["CompletionFuture"]

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class CompletionFuture(_Base[T_co]):  # type: ignore[misc, type-var]
    """A future that settles when the GPU has passed a point of a stream.

    You get one from `Stream.completion_future()`, `Stream.enqueue_async()` and their like. Any
    number of tasks of your loop can await it, any number of times. On asyncio and uvloop it is an
    `asyncio.Future`, so `asyncio.wait`, `gather` and `shield` work on it. On trio it is an
    awaitable with the methods below. Type checkers take it for an `asyncio.Future` on every loop.

    Cancellation: if you cancel the future, you stop the waiting and not the GPU. On asyncio, a
    cancelled task that awaits it cancels it too. What you gave to `enqueue_async` stays alive until
    the GPU has passed the point.

    Threads: use it in the thread of the loop that made it, as you do with asyncio's futures.

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     # enqueue work here, with any library
        ...     future = stream.completion_future()
        ...     await future  # the work is done, and it has succeeded
        ...     future.done()
        True
    """

    def __await__(self) -> Generator[Any, Any, T_co]:
        """Waits until the future is done. Returns the result or raises the exception."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether it has a result, has an exception, or was cancelled."""
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        raise NotImplementedError

    def cancel(self, msg: Any = None) -> bool:
        """Cancels the future. Returns `False` if it was done already.

        `msg` becomes the argument of the `CancelledError`.
        """
        raise NotImplementedError

    def result(self) -> T_co:
        """Returns the result, or raises the exception.

        While the future is pending, it raises an invalid-state error.
        """
        raise NotImplementedError

    def exception(self) -> BaseException | None:
        """Returns the exception, or `None` if the future has a result.

        While the future is pending, it raises an invalid-state error.
        """
        raise NotImplementedError

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Has the loop call `callback(future)` soon after the future is done.

        It calls it also if the future is done already. On every loop, the callback sees the
        context variables as they are now, or those of `context`.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     future = stream.completion_future()
            ...     future.add_done_callback(lambda future: print("the GPU is here"))
            ...     await future
            ...     await asyncio.sleep(0)  # callbacks run in the loop's next turn
            the GPU is here
        """
        raise NotImplementedError

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> int:
        """Removes a callback of a future that is not done, and returns how often it was there."""
        raise NotImplementedError
