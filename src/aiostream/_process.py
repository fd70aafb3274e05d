"""What aiostream runs once per process: the native part, two threads, and the ends by exit and by fork.

The janitor serves what dead loops, finalizers and cancelled waits have left behind, from a thread where the driver may be
called. The releaser drops the users' objects, whose destructors may take their time. (A third thread, the dispatcher, runs only
for loops that cannot watch a descriptor.) All three go on until the process ends, because an `atexit` handler that the
application registered before it used the library runs after `_stop`, and may await.
"""

from __future__ import annotations

import atexit
import logging
import queue
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from aiostream import _driver, _native, _points

ORPHANS = 0  # the queue of that number: native code hands it what arrives on closed queues

# For start() alone. A signal handler, or a finalizer that the collector runs, may come to start()
# in the thread that holds it, and does all of it then: each step of _start() can be repeated.
_lock = threading.RLock()
_started = False  # written under _lock, when everything runs
# What `__init__` has to have done before the library is used first. Each may be called again.
before_first_use: list[Callable[[], None]] = []
_EXIT_PATIENCE = 1.0  # seconds: a destructor that blocks holds up the interpreter's end no longer

# The threads that serve, by their names; each thread enters itself, by `dict.setdefault`. So a
# start that a KeyboardInterrupt has cut short can be repeated, whether its thread had begun or not.
_serving: dict[str, object] = {}


def block_signals() -> None:
    """Makes this thread take no signals of the process, which are for the application's own threads; call it first in a thread.

    Else this thread would take what another thread waits for by `sigwait`. Those that a fault in this thread raises stay.
    """
    faults = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGABRT"}
    wanted = {each for each in signal.valid_signals() if getattr(each, "name", None) not in faults}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)


def _start_serving(name: str, serve: Callable[[], None]) -> None:
    """Runs `serve` in a thread, unless one runs it already; returns when the thread has begun."""
    if name in _serving:
        return
    has_begun = threading.Event()

    def run() -> None:
        block_signals()
        first = _serving.setdefault(name, has_begun) is has_begun
        has_begun.set()
        if first:
            serve()

    threading.Thread(target=run, name=f"aiostream-{name}", daemon=True).start()
    has_begun.wait()


# ------------------------------------------------------------------------------------------------ the janitor

# Appended to by any thread, finalizers included (a deque's append takes no lock that a finalizer
# could be holding); emptied by the janitor.
_tasks: deque[Callable[[], Any]] = deque()
_backlog: list[int | _native.Wait] = []  # by the janitor alone
# Descriptor -> what to do when it is readable: the janitor's own, and those of `watch_in_janitor`,
# by any thread, single dict operations.
_watched: dict[int, Callable[[], None]] = {}


def _clean() -> None:
    poll = select.poll()
    known: set[int] = set()
    while True:
        for descriptor in list(_watched):
            if descriptor not in known:
                poll.register(descriptor, select.POLLIN)
                known.add(descriptor)
        for descriptor, _ in poll.poll():
            _report_from("aiostream's janitor", _watched[descriptor])


def _serve_orphans() -> None:
    _native.drain(ORPHANS, _backlog)
    _points.deliver(_backlog, orphaned=True)
    _driver.tell_failures()
    while (refusal := _native.refusal_take()) is not None:
        call, code = refusal
        error = _driver.error(code, call)
        log_error("a handle leaked, because the driver did not destroy it: %s", error)
        report_unraisable(
            error,
            "the last user of a closed handle, which the driver did not destroy",
        )
    while _tasks:
        task = _tasks.popleft()
        _report_from(task, task)
        task = None  # type: ignore[assignment]  # what it held dies here, in this thread, before the next wait


def _report_from(where: object, function: Callable[[], Any]) -> None:
    """Calls a function. What it raises ends nothing, SystemExit neither: releases depend on this thread."""
    try:
        function()
    except BaseException as error:
        report_unraisable(error, where)


def report_unraisable(error: BaseException, where: object) -> None:
    """Reports an exception that can be raised to nobody to `sys.unraisablehook`."""
    _native.write_unraisable(error, where)


def log_error(message: str, *values: object) -> None:
    """Logs what an operator must know, if the application has configured logging.

    Without a handler, Python would print it to stderr, where the program's own output may be.
    """
    logger = logging.getLogger("aiostream")
    if logger.hasHandlers():
        logger.error(message, *values)


def run_in_janitor(task: Callable[[], Any]) -> None:
    """Has the janitor call `task`. May be called from a finalizer; does nothing in a forked child."""
    if _started and not _native.is_forked():
        _tasks.append(task)
        _native.queue_wake(ORPHANS)


def watch_in_janitor(descriptor: int, function: Callable[[], None]) -> None:
    """Has the janitor call `function`, which does not block, whenever a descriptor is readable."""
    _watched[descriptor] = function
    _native.queue_wake(ORPHANS)


# ------------------------------------------------------------------------------------------------ the releaser

# SimpleQueue.put may be called from finalizers and signal handlers.
_to_release: queue.SimpleQueue[Any] = queue.SimpleQueue()


def _release() -> None:
    while True:
        held = _to_release.get()
        if isinstance(held, threading.Event):
            held.set()
        del held  # here its destructor runs, in this thread


def release_in_thread(*objects: Any) -> None:
    """Drops the last reference to users' objects in a thread where their destructors may block.

    Not in the janitor's: queues, streams and the listeners of `on_context_failed` would wait for them.
    """
    if _started and not _native.is_forked():
        _to_release.put(objects)


# ------------------------------------------------------------------------------------------------ start and end


def start() -> None:
    """Starts the native part and the threads, once. If it fails, the next call tries again.

    Raises:
        NoDriverError: There is no CUDA driver.
        OSError: There are no descriptors, or no thread, left.
        RuntimeError: This is a forked child, or Python has no thread left.
        ValueError: An environment variable of the library makes no sense.
    """
    if _started and not _native.is_forked():
        return
    _start()


def _start() -> None:
    global _started
    for prepare in before_first_use:
        prepare()
    addresses = _driver.native_addresses()
    with _lock:
        if _started:
            return
        _native.bind(addresses)
        _watched[_native.open_orphans()] = _serve_orphans
        _native.watcher_start()
        _start_serving("janitor", _clean)
        _start_serving("releaser", _release)
        atexit.unregister(_stop)
        atexit.register(_stop)
        _started = True


def _stop() -> None:
    """The interpreter ends: the driver's threads may not ask for the GIL from now on.

    What `atexit` handlers await later is still served. The watcher is stopped when Python is no more.
    """
    if _native.is_forked():
        return
    _native.exit_disarm()
    try:
        _native.gate_close()
    finally:
        _settle()


def _settle() -> None:
    """Lets the threads do what was left to them, for a second at most."""
    cleaned, released = threading.Event(), threading.Event()
    run_in_janitor(cleaned.set)
    deadline = time.monotonic() + _EXIT_PATIENCE
    if cleaned.wait(_EXIT_PATIENCE):
        _to_release.put(released)  # behind what the janitor has left to it
        released.wait(deadline - time.monotonic())
