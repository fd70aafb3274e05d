"""What a server asks of the whole process: to wait for several things, to drain everything, to notice a lost context."""

from __future__ import annotations

import math
import signal as signals
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from aiostream import _arguments, _driver, _loops, _native, _process, _statistics, device, waiting
from aiostream._completion import set_result
from aiostream.errors import ContextFailedError

__all__ = ["drain", "exit_on_context_failed", "health", "on_context_failed", "wait"]

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
        TypeError: One of these is no future of a loop, or `timeout` is no number.
        ValueError: There are none, or `return_when` is something else.
        RuntimeError: No loop runs here.
    """
    import anyio  # on first use: importing aiostream does not import anyio

    seconds = _arguments.timeout(timeout)
    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        raise ValueError(
            f"return_when is ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, not {return_when!r}"
        )
    every = _waitable(futures)
    enough = _loops.current_bridge().new_future()
    unfinished = [future for future in every if not future.done()]
    left = len(
        unfinished
    )  # counted down, because to look at all of them at each end would take the square of their number

    def ended(future: F) -> None:
        nonlocal left
        left -= 1
        if not enough.done() and (left == 0 or _is_enough(future, return_when)):
            set_result(enough, None)

    if not unfinished or any(future.done() and _is_enough(future, return_when) for future in every):
        set_result(enough, None)
    try:
        for future in unfinished:
            future.add_done_callback(ended)
        with anyio.move_on_after(seconds):
            await waiting.checkpoint()
            await enough  # type: ignore[misc]  # SettledFuture says what Completion needs; both kinds can be awaited
    finally:
        for future in unfinished:
            future.remove_done_callback(ended)
    done = {future for future in every if future.done()}
    return done, every - done


def _is_enough(done: Any, return_when: ReturnWhen) -> bool:
    """Whether the end of this one future ends the wait."""
    if return_when == "FIRST_EXCEPTION":
        return not done.cancelled() and done.exception() is not None
    return return_when == "FIRST_COMPLETED"


def _waitable(futures: Iterable[F]) -> set[F]:
    if hasattr(futures, "add_done_callback") or not isinstance(futures, Iterable):
        raise TypeError(
            f"wait takes several futures, as in wait([first, second]), not {type(futures).__name__}"
        )
    every = set(futures)
    if not every:
        raise ValueError("there is nothing to wait for")
    for future in every:
        if not (hasattr(future, "add_done_callback") and hasattr(future, "remove_done_callback")):
            advice = "a coroutine is given to a task, and asyncio.wrap_future takes a future of concurrent.futures"
            kind = type(future)
            raise TypeError(
                f"wait takes futures of this loop, not {kind.__module__}.{kind.__qualname__}: {advice}"
            )
    return every


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

    Raises:
        TypeError, ValueError: `timeout` is no number of seconds.
        RuntimeError: No loop runs here.
    """
    import anyio

    nap = _SHORTEST_NAP
    seconds = _arguments.timeout(timeout)
    with anyio.move_on_after(seconds):
        await waiting.checkpoint()
        while _anything_pending():
            await anyio.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
    return not _anything_pending()


def _anything_pending() -> bool:
    now = _statistics.statistics()
    return (
        now.points.pending > now.points.captured or now.futures.pending > 0 or now.waits.pending > 0
    )


class _Listener:
    """One registration. Each has its own, also of the same function."""

    def __init__(self, function: Callable[[ContextFailedError], object]) -> None:
        self._function = function
        self._told: dict[int, object] = {}  # by code; any thread, single dict operations

    def tell(self, error: ContextFailedError) -> None:
        """Has the janitor call it, once for each code."""
        mark = object()
        if self._told.setdefault(error.code, mark) is mark:
            own = _copy_of(error)
            _process.run_in_janitor(lambda: self._function(own))


_listeners: list[_Listener] = []  # any thread; single list operations
_failures: dict[
    int, ContextFailedError
] = {}  # the first of each code; any thread, single dict operations


def _copy_of(error: ContextFailedError) -> ContextFailedError:
    """Without the traceback, whose frames hold what was on them."""
    return type(error)(error.code, error.name, error.call, error.stream, error.hint, error.meaning)


def on_context_failed(listener: Callable[[ContextFailedError], object], /) -> Callable[[], None]:
    """Has `listener(error)` called when the library first meets a sticky error, after which only a new process helps.

    That is when a pending wait fails with it (within 50 ms of the driver's reporting it), when any call of the library meets it,
    or when the library looks: once a second while nothing is pending, at each context in which it has made a stream. So you are
    also told of a fault in the work of another library, for which nobody waits. The listener is called once for each code (709,
    a destroyed context, concerns that context alone), at once if that was before; and also where no task sees the error.

    Threads: it is called in a thread of the library, which does other things too: so set an event, or send a signal. Its
    exception goes to `sys.unraisablehook`, `SystemExit` too: `sys.exit()` in a listener does not end the process. Use
    `exit_on_context_failed` for that, or `os._exit` or `os.kill` in the listener.

    Returns:
        A function that ends this registration, and no other one of the same listener. It may be called again.

    Raises:
        TypeError: `listener` is not callable, or is a coroutine or generator function.
        NoDriverError: There is no CUDA driver.
    """
    _arguments.plain_function(
        listener, "on_context_failed", "have it call loop.call_soon_threadsafe"
    )
    _process.start()
    _driver.set_failure_listener(_noticed)
    _driver.report_failures()
    registered = _Listener(listener)
    _listeners.append(registered)
    _native.failures_watch(1)
    for error in list(_failures.values()):
        registered.tell(error)

    def end() -> None:
        try:
            _listeners.remove(registered)
        except ValueError:
            return
        _native.failures_watch(-1)

    return end


def _noticed(error: ContextFailedError) -> None:
    # Where an error is made: perhaps on the driver's thread. Nothing is called here.
    first = _copy_of(error)
    if _failures.setdefault(error.code, first) is first:
        for listener in list(_listeners):
            listener.tell(first)


def health() -> ContextFailedError | None:
    """Returns the error of a lost context, or `None` if every context in which the library has made a stream is well.

    This is what a server's health check asks. It launches nothing, so it takes microseconds also on a busy GPU. A fault shows
    in every context of the process, so this notices also what torch or cupy has run. It does not notice a kernel that never
    ends. A context that was only destroyed (709) counts as lost unless the library uses another one of that device.

    Threads: any.

    Returns:
        A new error for each call, which you may raise. `None` if the library has made no stream yet.

    Raises:
        RuntimeError: This is a forked child.

    Example:
        ::

            async def livez(request):
                return PlainTextResponse("lost", 503) if aiostream.health() else PlainTextResponse("ok")
    """
    lost = device.lost_context()
    if lost is None:
        return None
    context, code = lost
    error = _driver.error(code, "cuStreamQuery", f"a context of {context._place()}")
    assert isinstance(error, ContextFailedError)
    return error


_MOST_GRACE = 1e9  # seconds
_exit_lock = (
    threading.RLock()
)  # guards the next; a signal handler may interrupt its holder, and come here too
_exit_requests: list[
    object
] = []  # the latest call of exit_on_context_failed, unless that was ended


def exit_on_context_failed(
    code: int = 70, *, grace: float = 0, signal: int | None = None
) -> Callable[[], None]:
    """Ends the process when a sticky error first appears, because every CUDA call would fail from then on.

    The supervisor (uvicorn, gunicorn, systemd, Kubernetes, Ray) then starts a new process, which serves again. Without this, the
    process lives on and answers errors.

    Native code ends the process wherever the library first meets the error: in a wait, an enqueue, a health check, or when the
    library looks by itself (see `on_context_failed`). That is before any task or listener is told, and also if Python is blocked.
    One line on stderr says why. Nothing is flushed and no `atexit` handler runs, as with `os._exit`.

    With `grace` the process first gets the signal, and tasks and listeners are told. If the process has not ended by itself after
    so many seconds, native code ends it with `code`. Once the grace has begun, nothing changes or ends it any more.

    A context that was only destroyed (709) does not end the process. Nor does anything in a forked child, or once aiostream's own
    `atexit` handler has run. A second call replaces the settings of the first.

    Threads: any.

    Args:
        code: The exit code, 0 to 255. The default 70 is `EX_SOFTWARE`. Supervisors take 0 for a wanted end.
        grace: Seconds; 0 ends the process at once.
        signal: What the process is sent at the beginning of the grace, such as `signal.SIGTERM`; `None` sends nothing.

    Returns:
        A function that ends this.

    Raises:
        TypeError, ValueError: An argument is not of these; or a signal is given without a grace.
        NoDriverError: There is no CUDA driver.

    Example:
        ::

            aiostream.exit_on_context_failed(grace=10, signal=signal.SIGTERM)
    """
    if isinstance(code, bool) or not isinstance(code, int):
        raise TypeError(f"an exit code is an int, not {type(code).__name__}")
    if not 0 <= code <= 255:
        raise ValueError(f"an exit code is 0 to 255, not {code}")
    if isinstance(grace, bool) or not isinstance(grace, (int, float)):
        raise TypeError(f"grace is a number of seconds, not {type(grace).__name__}")
    if not 0 <= grace <= _MOST_GRACE or math.isnan(grace):
        raise ValueError(f"grace is a number of seconds from 0 to {_MOST_GRACE:.0f}, not {grace}")
    if signal is not None and grace == 0:
        raise ValueError("a signal needs a grace: seconds in which the process can react to it")
    if signal is not None and signal not in signals.valid_signals():
        raise ValueError(f"{signal!r} is not a valid signal")
    number = 0 if signal is None else int(signal)
    _process.start()
    request = object()
    with _exit_lock:
        if not _exit_requests:
            _native.failures_watch(1)
        _exit_requests[:] = [request]
        _native.exit_arm(code, math.ceil(grace * 1e9), number)

    def end() -> None:
        with _exit_lock:
            if _exit_requests == [request]:
                _exit_requests.clear()
                _native.failures_watch(-1)
                _native.exit_disarm()

    return end
