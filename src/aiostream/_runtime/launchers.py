"""The threads that launch: they call the functions of `run_in_thread`, first come, first served.

With the GIL two of them have a place, because more would take it from each other and from the loop.
A thread that has been in one call for a second loses its place to another one. So a call that
compiles, loads or hangs stops no other one, and a function may wait for another call. The overseer
sees to that while calls wait. It is a thread too, which sleeps otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._runtime import process

# Without the GIL, launches of one process still meet in locks of the driver.
_PLACES = 2 if checks.has_gil() else 4
_MOST = 40  # threads
_PATIENCE = 1.0  # seconds that a thread may be in a call and keep its place
_EXIT_PATIENCE = 2.0

# SimpleQueues, because signal handlers may put, and their `put` takes no lock of Python's.
_calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
_places: queue.SimpleQueue[None] = queue.SimpleQueue()  # those for threads that have lost theirs
# What wakes the overseer, and whether it looks at the threads already. Any thread.
_requests: queue.SimpleQueue[None] = queue.SimpleQueue()
_oversees = False
# Threads that wait for a place, that wait for a call, and that are in one. Only the thread itself
# enters itself and leaves.
_waiting: set[int] = set()
_free: set[int] = set()
_calling: set[int] = set()
# Since when a thread has been in its call. The thread pops its entry at the end. If the overseer
# was first, the thread has lost its place. One pop succeeds.
_since: dict[int, float] = {}
# Threads that were made. The first calls write it, under _lock, and then the overseer. The lock is
# reentrant, because a signal handler may come here.
_made = 0
_lock = threading.RLock()


def call(function: Callable[[], object]) -> None:
    """Has a launching thread call a function.

    Threads: any.

    Raises:
        RuntimeError: Python has no thread left. Or this is a forked child.
    """
    driver.refuse_forked()
    if _made < _PLACES:
        with _lock:
            atexit.unregister(_end)  # of a start that was cut short
            atexit.register(_end)
            process.start_serving("launch-overseer", _oversee)
            while _made < _PLACES:
                _add_thread()
    _calls.put(function)
    _look()


def copied_context(without_loop: bool) -> contextvars.Context:
    """Returns a copy of the present context, perhaps for a thread without a loop."""
    context = contextvars.copy_context()
    sniffio: Any = sys.modules.get("sniffio")
    if without_loop and sniffio is not None:  # by which anyio knows whether a loop runs
        context.run(sniffio.current_async_library_cvar.set, None)
    return context


def _add_thread() -> None:
    global _made
    process.start_serving(f"launch-{_made + 1}", _serve)
    _made += 1


def _serve() -> None:
    """Makes one call."""
    me = threading.get_ident()
    _free.add(me)
    function = _calls.get()
    _free.discard(me)
    _calling.add(me)
    _since[me] = time.monotonic()
    try:
        _look()
        function()
    finally:
        # A reference to it would keep what the user has given until the next call.
        del function
        _calling.discard(me)
        if _since.pop(me, None) is None:
            _waiting.add(me)
            _places.get()
            _waiting.discard(me)


# ------------------------------------------------------------------------ the overseer


def _look() -> None:
    # Calls wait, and no thread is free. Either the last call that was put or the last thread that
    # has taken one sees that.
    global _oversees
    if not _oversees and not _free and not _calls.empty():
        _oversees = True
        _requests.put(None)


def _oversee() -> None:
    global _oversees
    _requests.get()
    try:
        while not _calls.empty():
            now = time.monotonic()
            oldest = min(list(_since.values()), default=now)
            time.sleep(min(max(oldest + _PATIENCE - now, 0.01), _PATIENCE))
            for thread, since in list(_since.items()):
                waits = len(_waiting) > _places.qsize()  # a thread for which there is no place yet
                is_slow = time.monotonic() - since >= _PATIENCE
                if is_slow and (waits or _made < _MOST) and _since.pop(thread, None) is not None:
                    _give_place(waits)
    finally:
        _oversees = False
        _look()  # again, because a call may have come before the flag was cleared


def _give_place(waits: bool) -> None:
    made = False
    try:
        if not waits:
            _add_thread()  # which has a place
            made = True
    finally:
        if not made:  # the process may have no thread left, and then the slow one has it again
            _places.put(None)


def _end() -> None:
    """Python ends: what has not begun is dropped, and what has begun has two seconds."""
    with contextlib.suppress(queue.Empty):
        while not _native.is_forked():
            _calls.get_nowait()
    deadline = time.monotonic() + _EXIT_PATIENCE
    while _calling and time.monotonic() < deadline and not _native.is_forked():
        time.sleep(0.005)
