"""What a server asks of the whole process: to wait for several completions, to drain everything, to be told of a lost context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from aiostream import _driver, _loops, _process, _statistics, waiting
from aiostream.errors import ContextFailedError
from aiostream.futures import set_result

__all__ = ["drain", "on_context_failed", "wait"]

F = TypeVar("F", bound=Any)
ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]

_SHORTEST_NAP = 0.0005
_LONGEST_NAP = 0.02


async def wait(
    futures: Iterable[F], *, timeout: float | None = None, return_when: ReturnWhen = "ALL_COMPLETED"
) -> tuple[set[F], set[F]]:
    """Waits for any or all of several futures, on trio as `asyncio.wait` does on asyncio; cancels none of them.

    Args:
        futures: Completion futures of this loop; on asyncio any futures and tasks.
        timeout: Seconds to wait at most; `None` for as long as it takes. That it has passed is no error.
        return_when: `"ALL_COMPLETED"`, `"FIRST_COMPLETED"` or `"FIRST_EXCEPTION"`, asyncio's constants.

    Cancellation: ends the waiting; the futures go on.

    Threads: in the thread of the loop to which they belong; always a checkpoint on trio.

    Returns:
        Those that are done and those that are not.

    Raises:
        ValueError: There are none, or `return_when` is something else.
        RuntimeError: No loop runs here.
    """
    import anyio  # on first use: importing aiostream does not import anyio

    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        raise ValueError(f"return_when is ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, not {return_when!r}")
    every = set(futures)
    if not every:
        raise ValueError("there is nothing to wait for")
    enough = _loops.current_bridge().new_future()

    def look(_: Any = None) -> None:
        if not enough.done() and _is_enough(every, return_when):
            set_result(enough, None)

    look()
    unfinished = [future for future in every if not future.done()]
    for future in unfinished:
        future.add_done_callback(look)
    try:
        with anyio.move_on_after(timeout):
            await waiting.checkpoint()
            await enough  # type: ignore[misc]  # SettledFuture says what Completion needs; both kinds can be awaited
    finally:
        for future in unfinished:
            future.remove_done_callback(look)
    done = {future for future in every if future.done()}
    return done, every - done


def _is_enough(futures: set[Any], return_when: ReturnWhen) -> bool:
    done = [future for future in futures if future.done()]
    if len(done) == len(futures):
        return True
    if return_when == "FIRST_EXCEPTION":
        return any(not future.cancelled() and future.exception() is not None for future in done)
    return bool(done) and return_when == "FIRST_COMPLETED"


async def drain(timeout: float | None = None) -> bool:
    """Waits until nothing of the library is pending in this process: for the end of a server.

    That is, until every completion has settled in its loop, and every host function, callback and `enqueue_async` has been passed
    by the GPU, also those that other tasks, loops and threads begin meanwhile. Host functions that graphs keep do not count, nor
    does work that nobody waits for.

    Args:
        timeout: Seconds to wait at most; `None` for as long as it takes.

    Cancellation: ends the waiting.

    Threads: in the thread of a running loop; always a checkpoint on trio.

    Returns:
        Whether nothing is pending; `False` after the timeout.
    """
    import anyio

    nap = _SHORTEST_NAP
    with anyio.move_on_after(timeout):
        await waiting.checkpoint()
        while _anything_pending():
            await anyio.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
    return not _anything_pending()


def _anything_pending() -> bool:
    now = _statistics.statistics()
    return now.points.pending > now.points.captured or now.futures.pending > 0 or now.waits.pending > 0


_listeners: list[Callable[[ContextFailedError], object]] = []  # any thread; single list operations
_failures: dict[int, ContextFailedError] = {}  # the first of each code; any thread, single dict operations


def on_context_failed(listener: Callable[[ContextFailedError], object], /) -> Callable[[], None]:
    """Has `listener(error)` called when the library first meets a sticky error, after which only a new process helps.

    That is when a pending wait fails with it (within 50 ms of the driver's reporting it), or any call of the library. While
    nothing is pending nobody looks: `Context.health()` does. It is called once for each code (709, a destroyed context, concerns
    that context alone), at once if that was before; and also where no task sees the error.

    Threads: it is called in a thread of the library, which does other things too: so set an event, send a signal, or end the
    process. Its exception goes to `sys.unraisablehook`.

    Returns:
        A function that ends this.

    Raises:
        TypeError: `listener` is not callable.
        NoDriverError: There is no CUDA driver.
    """
    if not callable(listener):
        raise TypeError(f"a listener must be callable, not {type(listener).__name__}")
    _process.start()
    _driver.notice_failures(_noticed)
    _listeners.append(listener)
    for error in list(_failures.values()):
        _notify(listener, error)

    def end() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return end


def _noticed(error: ContextFailedError) -> None:
    # Where an error is made: perhaps on the driver's thread. Nothing is called here.
    if _failures.setdefault(error.code, error) is error:
        for listener in list(_listeners):
            _notify(listener, error)


def _notify(listener: Callable[[ContextFailedError], object], error: ContextFailedError) -> None:
    own = type(error)(error.code, error.name, error.call, error.stream)
    _process.run_in_janitor(lambda: listener(own))
