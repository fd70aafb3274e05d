"""What a server needs in a process: wait for several futures, drain, and notice a lost context."""

from __future__ import annotations

import contextlib
import math
import signal as signals
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from aiostream import _arguments, _driver, _loops, _native, _process, _statistics, device, waiting
from aiostream._completion import SettledFuture, set_result
from aiostream.errors import ContextFailedError

__all__ = [
    "as_completed",
    "drain",
    "exit_on_context_failed",
    "health",
    "on_context_failed",
    "wait",
]

F = TypeVar("F", bound=Any)
ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]

_SHORTEST_NAP = 0.0005
_LONGEST_NAP = 0.02

# ---------------------------------------------------------------------------------- several futures


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

    seconds = _arguments.timeout(timeout)
    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        raise ValueError(
            f"return_when is ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, not {return_when!r}"
        )
    every = set(_waitable("wait", futures))
    if not every:
        raise ValueError("there is nothing to wait for")
    enough = _loops.current_bridge().new_future()
    unfinished = [future for future in every if not future.done()]
    # Counted down. Looking at all futures at each end would take the square of their number.
    left = len(unfinished)

    def ended(future: F) -> None:
        # In this loop's thread, because `_waitable` has refused futures of other loops. So neither
        # `left` nor `enough` needs a lock.
        nonlocal left
        left -= 1
        if not enough.done() and (left == 0 or _is_enough(future, return_when)):
            set_result(enough, None)

    if not unfinished or any(future.done() and _is_enough(future, return_when) for future in every):
        set_result(enough, None)
    try:
        for future in unfinished:
            future.add_done_callback(ended)
        with _time_limit(anyio.move_on_after, seconds):
            await waiting.checkpoint()
            await enough  # type: ignore[misc]  # both kinds of it can be awaited
    finally:
        # A future that goes on would keep this frame, and so all the other futures.
        for future in unfinished:
            future.remove_done_callback(ended)
    done = {future for future in every if future.done()}
    return done, every - done


def _time_limit(scope: Callable[[float], Any], seconds: float | None) -> Any:
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
        # Before any callback is added. The other loop would call it in its own thread, where it
        # may not settle a future of this loop, and this loop would sleep on. A future that is done
        # calls back to none.
        if not future.done() and _loops.is_elsewhere(future):
            _loops.current_bridge()  # raises if no loop runs here
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
    seconds = _arguments.timeout(timeout)
    return _AsCompleted(_waitable("as_completed", futures), seconds)


class _Ended(Generic[F]):
    """The futures that have ended and were not given yet.

    It is their callback. It does not refer to the pending ones, because they keep it when you leave
    the loop early.
    """

    def __init__(self) -> None:
        self.futures: deque[F] = deque()
        self.waiter: SettledFuture | None = None  # of the task that waits for the next

    def __call__(self, future: F) -> None:
        # The append first, because the task that wakes up takes what is there.
        self.futures.append(future)
        if self.waiter is not None and not self.waiter.done():
            set_result(self.waiter, None)


class _AsCompleted(_arguments.NotCopied, AsyncIterator[F]):
    # A class, because an async generator would hold a cancel scope across its yields.

    _instead = "call as_completed() again"  # a copy would take the original's callbacks away

    def __init__(self, futures: list[F], seconds: float | None) -> None:
        import anyio

        _loops.current_bridge()  # refuses where no loop runs
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

        self._ended.waiter = waiter = _loops.current_bridge().new_future()
        left = self._deadline - anyio.current_time()
        try:
            with _time_limit(anyio.fail_after, left):
                await waiter  # type: ignore[misc]  # both kinds of it can be awaited
        finally:
            # A task that left must not be woken: the next step makes a waiter of its own.
            self._ended.waiter = None


# ------------------------------------------------------------------------------ the end of a server


async def drain(timeout: float | None = None) -> bool:
    """Waits until nothing of the library is pending in this process, such as at a server's end.

    It waits until every future has settled in its loop, and until the GPU has passed every host
    function, every callback, all work of `enqueue_async`, and what cancelled waits have waited for.
    It also waits for what is left on the streams of a pool, for calls of `enqueue_in_thread` that
    have not begun, and for what other tasks and threads begin during the call. It does not wait for
    tasks that wait for a stream of a pool, for host functions in graphs, and for work that no await
    or future of the library followed, such as a kernel or `executable.launch(stream)` alone. For
    that work, synchronize the stream. Do not hold a token that such a call waits for. If
    `AIOSTREAM_TRACE` is set, `drain` then waits until the trace is written.

    Args:
        timeout: Seconds to wait at most. `None` sets no limit.

    Cancellation: raises at once.

    Threads: call it in the thread of a running loop. On trio it is always a checkpoint.

    Returns:
        Whether nothing is pending. `False` after the timeout.

    Raises:
        TypeError, ValueError: `timeout` is not a number of seconds.
        RuntimeError: No loop runs here. Or this is a forked child.

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     future = stream.completion_future()
        ...     await aiostream.drain(timeout=10)
        ...     future.done()
        True
        True
    """
    import anyio

    # It polls, because any thread may begin and end work. If each of them had to notify those that
    # drain, every completion would pay for it.
    nap = _SHORTEST_NAP
    saved: Callable[[], bool] | None = None  # once nothing is pending: a signal may come next
    seconds = _arguments.timeout(timeout)
    _driver.refuse_forked()  # the counts are the parent's there, and never change
    with _time_limit(anyio.move_on_after, seconds):
        await waiting.checkpoint()
        while anything_pending() or not (saved := saved or _process.save_soon())():
            await anyio.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
    return not anything_pending()


def anything_pending() -> bool:
    """Whether `drain` would wait."""
    now = _statistics.statistics()
    # The host functions in graphs are armed as long as their graph is there, so they do not count.
    return (
        now.points.pending > now.points.captured or now.futures.pending > 0 or now.waits.pending > 0
    )


# ------------------------------------------------------------------------------------ lost contexts


class _Listener:
    """One registration. Each call of `on_context_failed` makes its own, also of one function."""

    def __init__(self, function: Callable[[ContextFailedError], object]) -> None:
        self._function = function
        self._notified: dict[int, object] = {}  # by code; any thread, single dict operations

    def notify(self, error: ContextFailedError) -> None:
        """Has the function called, once for each code. Any thread."""
        mark = object()
        # Two threads may meet the same code at once. `setdefault` lets one of them win. A lock
        # would not do, because this may run on the driver's thread, under the locks of any caller.
        if self._notified.setdefault(error.code, mark) is mark:
            own = _copy_of(error)
            _process.call_in_order(lambda: self._function(own))

    def forget(self) -> None:
        """Makes the next failure notify the listener again."""
        self._notified.clear()


_listeners: list[_Listener] = []  # any thread, single list operations
# The first error of each code. Any thread, single dict operations.
_failures: dict[int, ContextFailedError] = {}


def _copy_of(error: ContextFailedError) -> ContextFailedError:
    """A copy without the traceback, because its frames hold the objects that were in them."""
    return type(error)(error.code, error.name, error.call, error.stream, error.hint, error.meaning)


def on_context_failed(listener: Callable[[ContextFailedError], object], /) -> Callable[[], None]:
    """Calls `listener(error)` when the library first meets a sticky error.

    After a sticky error every CUDA call of the process fails, and only a new process helps. The
    library meets the error in one of these ways:

    - A pending wait fails with it, at most 50 ms after the driver reports it.
    - Any call of the library fails with it.
    - The library reads the health of each context in which it has made a stream. It does this once
      a second while nothing is pending. So you also learn of a fault in another library's work.

    The library calls the listener once for each code, even if no task gets the error. If it has met
    the error before, it calls the listener at once. Code 709, a destroyed context, concerns that
    context alone.

    Threads: call it in any thread. The library calls the listeners one after another, in a thread
    that it starts for them. So a listener that blocks delays the others. An exception of the
    listener goes to `sys.unraisablehook`. That includes `SystemExit`, so `sys.exit()` in a listener
    does not end the process. Use `exit_on_context_failed` for that.

    Returns:
        A function that ends this registration. You may call it again.

    Raises:
        TypeError: `listener` is not callable, or is a coroutine function or generator function.
        NoDriverError: There is no CUDA driver.

    Example:
        >>> from aiostream import simulator
        >>> loop, failed = asyncio.get_running_loop(), asyncio.Event()
        >>> stop = aiostream.on_context_failed(
        ...     lambda error: loop.call_soon_threadsafe(failed.set)
        ... )
        >>> stream = aiostream.Stream()
        >>> simulator.break_context(700)  # as a kernel does with an illegal address
        >>> aiostream.health().name
        'CUDA_ERROR_ILLEGAL_ADDRESS'
        >>> await failed.wait()
        True
        >>> stop()
        >>> simulator.recover()  # no GPU can do this
        >>> stream.close()
    """
    _arguments.plain_function(
        listener, "on_context_failed", "have it call loop.call_soon_threadsafe"
    )
    _process.start()
    _driver.report_failures()
    registered = _Listener(listener)
    # Listed before the known errors are read. If another thread notes an error in between, the
    # listener gets it in both ways, and `notify` lets one of them through. In the other order the
    # listener could miss it.
    _listeners.append(registered)
    _native.failures_watch(1)
    for error in list(_failures.values()):
        registered.notify(error)

    def end() -> None:
        try:
            _listeners.remove(registered)
        except ValueError:
            return  # ended before; only one call counts down, also if two threads come at once
        _native.failures_watch(-1)

    return end


def _noticed(error: ContextFailedError) -> None:
    # Runs where the error is made, perhaps on the driver's thread. So it only has another thread
    # call the listeners, because they may do anything.
    first = _copy_of(error)
    # Several threads may meet the code at once. One of them wins, and notifies the listeners.
    if _failures.setdefault(error.code, first) is first:
        for listener in list(_listeners):
            listener.notify(first)
        _process.save_soon()
        # In another thread than the listeners, because a handler of the application may be slow.
        _process.run_in_releaser(lambda: _log_lost_context(first))


def _log_lost_context(error: ContextFailedError) -> None:
    leaked = _statistics.statistics().points.leaked
    _process.log_error("%s (%d points leaked so far)", error, leaked)


def notice_failures() -> None:
    """From now on each failure is logged, also if the application has registered no listener."""
    _driver.set_failure_listener(_noticed)


def forget_failures() -> None:
    """The simulator has healed its contexts: a later failure is reported again."""
    _failures.clear()
    for listener in list(_listeners):
        listener.forget()


def health() -> ContextFailedError | None:
    """Returns the error of a lost context, or `None` if all contexts are healthy.

    Use it in a server's health check. It reads the health of every context in which the library has
    made a stream. It launches nothing, so it takes microseconds even if the GPU is busy. A fault
    shows in all contexts of the process, so you also see faults of torch and cupy. You do not see a
    kernel that never ends.

    A context that was only destroyed (709) counts as lost, unless the library uses another context
    of that device.

    Threads: any.

    Returns:
        A new error for each call, which you may raise. `None` if the library has made no stream.

    Raises:
        RuntimeError: This is a forked child.

    Example:
        >>> def livez():
        ...     return 503 if aiostream.health() else 200
        >>> livez()
        200
    """
    lost = device.lost_context()
    if lost is None:
        return None
    context, code = lost
    error = _driver.error(code, "cuStreamQuery", f"a context of {context._place()}")
    assert isinstance(error, ContextFailedError)
    return error


_MOST_GRACE = 1e9  # seconds
# Guards the next. Reentrant, because a signal handler may interrupt the thread that holds it, and
# call exit_on_context_failed or its `end` in that thread.
_exit_lock = threading.RLock()
_exit_requests: list[object] = []  # the latest call of exit_on_context_failed, unless it was ended


def exit_on_context_failed(
    code: int = 70, *, grace: float = 0, signal: int | None = None
) -> Callable[[], None]:
    """Ends the process when the library first meets a sticky error.

    After a sticky error every CUDA call of the process fails. The supervisor (uvicorn, gunicorn,
    systemd, Kubernetes, Ray) then starts a new process, which serves again. Without this call the
    process lives on, and answers errors.

    Native code ends the process, wherever the library meets the error (see `on_context_failed`). It
    does so before any task or listener gets the error, and also if Python is blocked. It writes one
    line to stderr. Like `os._exit`, it flushes nothing and runs no `atexit` handlers.

    With `grace`, the process first gets the signal, and tasks and listeners get the error. If the
    process has not ended after so many seconds, native code ends it with `code`. Once the grace has
    begun, you cannot change or end it.

    If `AIOSTREAM_TRACE` is set, the grace is at least 1 s, because Python has to write the trace.

    A destroyed context (709) does not end the process. Nothing ends a forked child, or a process in
    which the `atexit` handler of aiostream has run. A second call replaces the settings of the
    first.

    Threads: any.

    Args:
        code: The exit code, 0 to 255. The default 70 is `EX_SOFTWARE`. Supervisors take 0 for an
            intended exit.
        grace: Seconds. 0 ends the process at once.
        signal: The signal that the process gets when the grace begins, such as `signal.SIGTERM`.
            `None` sends none.

    Returns:
        A function that ends this. You may call it again.

    Raises:
        TypeError, ValueError: An argument is not of these, or you gave a signal without a grace.
        NoDriverError: There is no CUDA driver.

    Example:
        >>> import signal
        >>> stop = aiostream.exit_on_context_failed(grace=10, signal=signal.SIGTERM)
        >>> stop()  # in a test, say
    """
    code = _arguments.byte("an exit code", code)
    grace = _arguments.real(grace, "grace is a number of seconds")
    if not 0 <= grace <= _MOST_GRACE:
        raise ValueError(f"grace is a number of seconds from 0 to {_MOST_GRACE:.0f}, not {grace}")
    if signal is not None and grace == 0:
        raise ValueError("a signal needs a grace: seconds in which the process can react to it")
    if signal is not None and _arguments.integer("signal", signal) not in signals.valid_signals():
        raise ValueError(f"{signal!r} is not a valid signal")
    number = 0 if signal is None else int(signal)
    _process.start()
    if _process.savers:  # a trace of this process is to be written first, which needs Python
        grace = max(grace, 1)
    request = object()
    with _exit_lock:
        # Once, however many calls there are, because `end` counts down once. Before the exit is
        # armed, so that the watcher already reads the health of idle contexts by then.
        if not _exit_requests:
            _native.failures_watch(1)
        _exit_requests[:] = [request]
        _native.exit_arm(code, math.ceil(grace * 1e9), number)

    def end() -> None:
        with _exit_lock:
            # A later call of exit_on_context_failed has its own request, which this must not end.
            if _exit_requests == [request]:
                _exit_requests.clear()
                _native.failures_watch(-1)
                _native.exit_disarm()

    return end
