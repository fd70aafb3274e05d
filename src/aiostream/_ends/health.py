"""Lost contexts and stalls: their listeners, the health check, and the end of the process.

Any thread may meet a fatal code: a call of Python's, which makes the error, or native code, for
which the janitor makes it. `_noticed` runs where the error is made, perhaps on the driver's thread,
and calls no listener itself. `process.call_in_order` has the listeners' thread call them, one after
another, so they may block, and no loop waits for them. If no thread can be started, the janitor
calls them. `health()` asks in the thread of its caller. The end of the process is native and needs
no GIL (`native/engine/failures.c`).
"""

from __future__ import annotations

import copy
import math
import signal as signals
import sys
from collections.abc import Callable
from functools import partial

from aiostream import _native, device
from aiostream._base import checks, driver
from aiostream._runtime import process, stalls, statistics
from aiostream.errors import ContextFailedError, StalledError

__all__ = ["exit_on_context_failed", "health", "on_context_failed", "on_stalled"]


# What notifies each listener, with the codes that it has heard. Each call of `on_context_failed`
# makes its own, also of one function. Any thread, single dict operations, as of the next one.
_listeners: dict[Callable[[ContextFailedError], None], dict[int, object]] = {}
_failures: dict[int, ContextFailedError] = {}  # the first error of each code


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
    checks.plain_function(listener, "on_context_failed", "have it call loop.call_soon_threadsafe")
    process.start()
    driver.report_failures()
    heard: dict[int, object] = {}

    def notify(error: ContextFailedError) -> None:
        mark = object()
        # Two threads may meet the same code at once. `setdefault` lets one of them win. A lock
        # would not do, because this may run on the driver's thread, under the locks of any caller.
        if heard.setdefault(error.code, mark) is mark:
            process.call_in_order(partial(listener, copy.copy(error)))

    # Listed before the known errors are read. If another thread notes an error in between, the
    # listener gets it in both ways, and `notify` lets one of them through. In the other order the
    # listener could miss it.
    _listeners[notify] = heard
    _native.failures_expect(1)
    for error in list(_failures.values()):
        notify(error)

    def end() -> None:
        # Only one call counts down, also if two threads come at once.
        if _listeners.pop(notify, None) is not None:
            _native.failures_expect(-1)

    return end


def _noticed(error: ContextFailedError) -> None:
    # Runs where the error is made, perhaps on the driver's thread. So it only has another thread
    # call the listeners, because they may do anything.
    # A copy has no traceback, whose frames hold the objects that were in them.
    first = copy.copy(error)
    # Several threads may meet the code at once. One of them wins, and notifies the listeners.
    if _failures.setdefault(error.code, first) is first:
        for notify in list(_listeners):
            notify(first)
        process.save_soon()
        # This runs in another thread than the listeners, because a handler of the application may
        # be slow.
        process.run_in_releaser(partial(_log_lost_context, first))


def _log_lost_context(error: ContextFailedError) -> None:
    leaked = statistics.statistics().points.leaked
    process.log("%s (%d points leaked so far)", error, leaked)


def notice_failures() -> None:
    """From now on each failure is logged, also if the application has registered no listener."""
    driver.failure_listener = _noticed


def forget_failures() -> None:
    """The simulator has healed its contexts: a later failure is reported again."""
    _failures.clear()
    for heard in list(_listeners.values()):
        heard.clear()


def health() -> ContextFailedError | StalledError | None:
    """Returns the error of a lost context or of a stall, or `None` if all is well.

    Use it in a server's health check. It reads the health of every context in which the library has
    made a stream. It launches nothing, so it takes microseconds even if the GPU is busy. A fault
    shows in all contexts of the process, so you also see faults of torch and cupy. You see a kernel
    that never ends only if it reaches a limit that you have set, as `on_stalled` says.

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
    driver.refuse_forked()
    # Before the driver is asked, because that may be what does not come back.
    if (stall := _native.stall()) is not None:
        return StalledError(*stall)
    lost = device.lost_context()
    if lost is None:
        return None
    context, code = lost
    error = driver.error(code, "cuStreamQuery", f"a context of {context._place()}")
    assert isinstance(error, ContextFailedError)
    return error


def on_stalled(listener: Callable[[StalledError], object], /) -> Callable[[], None]:
    """Calls `listener(error)` when something does not come back within the limit that you have set.

    You set a limit with `StreamPool(stalled_after=)` or `Stream(stalled_after=)`. The library then
    notices within about 50 ms, not counting the time in which the process is stopped:

    - A stream on which a wait or a future is older than the limit, and no work that was awaited
      there has ended since then. A kernel in an endless loop is not different from one that takes
      long, so choose a limit that your work does not reach.
    - A loop that has not come back for the limit to a wait that is over. A task blocks it, or
      another thread keeps the GIL. A loop that does not run now is not blocked.
    - A call of `run`, `enqueue_async` or an `await` that has not returned for the limit.

    The library says so once for each time that something stalls, and logs it as an error. If a
    thread keeps the GIL, the listener is called when Python runs again, and after two seconds
    stderr gets a line. `pending()` says in the listener what waits. Host functions are not watched:
    completion futures, and streams with `wait="hostfunc"`.

    Threads: those of `on_context_failed`, also for exceptions.

    Returns:
        A function that ends this registration. You may call it again.

    Raises:
        TypeError: `listener` is not callable, or is a coroutine function or generator function.
        NoDriverError: There is no CUDA driver.

    Example:
        >>> from aiostream.testing import Gate
        >>> loop, stalled = asyncio.get_running_loop(), asyncio.Event()
        >>> stop = aiostream.on_stalled(lambda error: loop.call_soon_threadsafe(stalled.set))
        >>> async with aiostream.Stream(name="model", stalled_after=0.05) as stream:
        ...     with Gate() as gate:
        ...         gate.hold(stream)  # in place of a kernel that never ends
        ...         waiting = asyncio.ensure_future(stream.synchronize_async())
        ...         await stalled.wait()
        ...         aiostream.health().stream
        ...     await waiting
        True
        "stream 'model' on device 0"
        >>> stop()
    """
    checks.plain_function(listener, "on_stalled", "have it call loop.call_soon_threadsafe")
    process.start()
    return stalls.listen(listener)


_MOST_GRACE = 1e9  # seconds


def exit_on_context_failed(
    code: int = 70, *, grace: float = 0, signal: int | None = None, stalled: bool = False
) -> Callable[[], None]:
    """Ends the process when the library first meets a sticky error.

    After a sticky error every CUDA call of the process fails. The supervisor (uvicorn, gunicorn,
    systemd, Kubernetes, Ray) then starts a new process, which serves again. Without this call the
    process lives on, and answers errors.

    Native code ends the process, wherever the library meets the error (see `on_context_failed`). It
    does so before any task or listener gets the error, and also if Python is blocked. It writes one
    line to stderr, also if pytest captures that. Like `os._exit`, it flushes nothing and runs no
    `atexit` handlers.

    With `grace`, the process first gets the signal, and tasks and listeners get the error. If the
    process has not ended after these seconds, native code ends it with `code`. Once the grace has
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
        stalled: Whether the process ends also when something has stalled, as `on_stalled` says.
            stderr then gets the stacks of all threads. If a thread keeps the GIL, Python cannot
            write them, and the process ends without them two seconds later.

    Returns:
        A function that ends this. You may call it again. Call it when your application ends, if the
        process goes on, as in a test.

    Raises:
        TypeError, ValueError: An argument is not of these, or you gave a signal without a grace.
        NoDriverError: There is no CUDA driver.

    Example:
        >>> import signal
        >>> stop = aiostream.exit_on_context_failed(grace=10, signal=signal.SIGTERM)
        >>> stop()  # in a test, say
    """
    code = checks.byte("an exit code", code)
    grace = checks.real(grace, "grace is a number of seconds")
    if not 0 <= grace <= _MOST_GRACE:
        raise ValueError(f"grace is a number of seconds from 0 to {_MOST_GRACE:.0f}, not {grace}")
    if signal is not None and grace == 0:
        raise ValueError("a signal needs a grace: seconds in which the process can react to it")
    if signal is not None and checks.integer("signal", signal) not in signals.valid_signals():
        raise ValueError(f"{signal!r} is not a valid signal")
    checks.flag("stalled", stalled)
    process.start()
    if process.savers:  # a file of this process is to be written first, which needs Python
        grace = max(grace, 1)
    # What pytest has captured is lost when the process ends.
    stderr = getattr(sys.modules.get("aiostream_pytest"), "STDERR", 2)
    number = _native.exit_arm(code, math.ceil(grace * 1e9), signal or 0, stalled, stderr)
    if stalled:  # it may have been said before
        stalls.end_if_stalled()
    return partial(_native.exit_disarm, number)
