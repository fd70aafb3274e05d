"""What aiostream runs once per process: the native part, the janitor thread, and the ends by exit and by fork.

The janitor is the one Python thread of the library (a second one runs only for loops that cannot watch a descriptor). It
releases what dead loops, finalizers and cancelled waits have left behind, from a thread where destructors may call the driver
and may take their time.
"""

from __future__ import annotations

import atexit
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from aiostream import _driver, _native, _points

ORPHANS = 0  # the queue of that number: native code hands it what arrives on closed queues

_lock = threading.Lock()  # for start() alone; never held while the driver or a user's code runs for long
_started = False
_orphans_descriptor = -1


class _Janitor:
    """Drains the orphans' queue and runs what was handed over."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._stopping = False  # written by stop(); read by the thread after each wake-up
        self._thread = threading.Thread(target=self._run, name="aiostream-janitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        _native.queue_wake(ORPHANS)
        # A destructor that somebody left us may take for ever; the interpreter's end does not wait for it.
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        backlog: list[int | _native.Wait] = []
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while not self._stopping:
            poll.poll()
            try:
                _native.drain(ORPHANS, backlog)
                _points.deliver(backlog, orphaned=True)
                _driver.tell_failures()
                self._run_tasks()
            except BaseException as error:  # nothing ends the thread on which releases depend
                report_unraisable(error, "aiostream's janitor")

    @staticmethod
    def _run_tasks() -> None:
        while _tasks:
            task = _tasks.popleft()
            try:
                task()
            except BaseException as error:  # SystemExit too: a listener that calls sys.exit() does not end this thread
                report_unraisable(error, task)
            task = None  # type: ignore[assignment]  # what it held dies here, in this thread, before the next wait
        while _to_release:
            _to_release.popleft()


# Appended to by any thread, finalizers included (a deque's append takes no lock that a finalizer could be holding); emptied
# by the janitor.
_tasks: deque[Callable[[], Any]] = deque()
_to_release: deque[Any] = deque()


def report_unraisable(error: BaseException, where: object) -> None:
    """Reports an exception that can be raised to nobody to `sys.unraisablehook`."""
    _native.write_unraisable(error, where)


def run_in_janitor(task: Callable[[], Any]) -> None:
    """Has the janitor call `task`. May be called from a finalizer; does nothing in a forked child."""
    if _started and not _native.is_forked():
        _tasks.append(task)
        _native.queue_wake(ORPHANS)


def release_in_janitor(*objects: Any) -> None:
    """Has the janitor drop the last reference to objects whose destructors may block."""
    if _started and not _native.is_forked():
        _to_release.append(objects)
        _native.queue_wake(ORPHANS)


def start() -> None:
    """Starts the native part and the janitor, once.

    Raises:
        NoDriverError: There is no CUDA driver.
        RuntimeError: This is a forked child.
    """
    if _started and not _native.is_forked():
        return
    _start()


def _start() -> None:
    global _started
    addresses = _driver.native_addresses()
    with _lock:
        if _started:
            return
        _native.bind(addresses)
        number, descriptor = _native.queue_open()
        if number != ORPHANS:
            raise RuntimeError(f"aiostream's first queue has number {number}: was its native part used by somebody else?")
        _native.watcher_start()
        janitor = _Janitor(descriptor)
        janitor.start()
        atexit.register(_stop, janitor)
        _started = True


def _stop(janitor: _Janitor) -> None:
    """The interpreter ends: nothing of ours may ask for the GIL from now on.

    Completions that are still pending fire into native memory, which stays; Python host functions find the gate closed.
    """
    if _native.is_forked():
        return
    _native.exit_disarm()
    _native.gate_close()
    janitor.stop()
    _native.watcher_stop()
