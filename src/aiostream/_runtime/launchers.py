"""The threads that launch: they call the functions of `run_in_thread`, first come, first served.

With the GIL two of them have a place, because more would take it from each other and from the loop.
The others stand by. While calls wait, one that stands by takes the place of a thread that has been
in one call for a second. So a call that compiles, loads or hangs stops no other one, and a function
may wait for another call.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._runtime import process

# Without the GIL, launches of one process still meet in locks of the driver.
_HAS_GIL = checks.has_gil()
_PLACES = 2 if _HAS_GIL else 4
_MOST = 40  # threads
_PATIENCE = 1.0  # seconds that a thread may be in a call and keep its place
_EXIT_PATIENCE = 2.0
# After a call of over _LONG seconds of CPU, while others wait, a thread gives up the GIL twice, for
# _PAUSE each. Otherwise two threads that only compute take it from each other, and the loop
# waits for up to 50 ms. At the first time the other thread gets it, and at the second the loop.
_PAUSE = 1e-4
_LONG = 1e-3

# SimpleQueues, because signal handlers may put, and their `put` takes no lock of Python's.
_calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
# What wakes a thread that stands by, and whether one is awake or about to be. Any thread.
_requests: queue.SimpleQueue[None] = queue.SimpleQueue()
_is_asked = False
# The threads that have a place, by number: since when each has been in its call, or infinity. At
# the end of its call a thread pops its entry. If another was first, that has the place. One pop
# succeeds.
_since = dict.fromkeys(range(_PLACES), math.inf)
_calling: set[int] = set()  # only the thread itself enters itself and leaves
# Threads that were made. It is written under _lock, which is reentrant, because a signal handler
# may come here.
_made = 0
_lock = threading.RLock()


def call(function: Callable[[], object]) -> None:
    """Has a launching thread call a function.

    Threads: any.

    Raises:
        RuntimeError: Python has no thread left. Or this is a forked child.
    """
    driver.refuse_forked()
    if _made <= _PLACES:  # and one that stands by
        with _lock:
            atexit.unregister(_end)  # of a start that was cut short
            atexit.register(_end)
            while _made <= _PLACES:
                _add_thread()
    _calls.put(function)
    _ask_for_thread()


def copied_context() -> contextvars.Context:
    """Returns a copy of the present context, for a thread without a loop."""
    context = contextvars.copy_context()
    # By which anyio knows whether a loop runs. Not there while another thread imports sniffio.
    variable: Any = getattr(sys.modules.get("sniffio"), "current_async_library_cvar", None)
    if variable is not None:
        context.run(variable.set, None)
    return context


def _add_thread() -> None:
    global _made
    process.start_serving(f"launch-{_made + 1}", partial(_serve, _made))
    _made += 1


def _serve(me: int) -> None:
    """Makes one call, as soon as this thread has a place."""
    while me not in _since:
        _take_place(me)
    function = _calls.get()
    _calling.add(me)
    _since[me] = time.monotonic()
    began = time.thread_time()
    try:
        _ask_for_thread()
        function()
    finally:
        # A reference to it would keep what the user has given until the next call.
        del function
        _calling.discard(me)
        if _since.pop(me, None) is not None:
            _since[me] = math.inf
    if _HAS_GIL and not _calls.empty() and time.thread_time() - began > _LONG:
        time.sleep(_PAUSE)
        time.sleep(_PAUSE)


def _ask_for_thread() -> None:
    # Calls wait, and no thread is free. Either the last call that was put or the last thread that
    # has taken one sees that.
    global _is_asked
    if not _is_asked and math.inf not in list(_since.values()) and not _calls.empty():
        _is_asked = True
        _requests.put(None)


def _take_place(me: int) -> None:
    """Stands by until calls wait, and a thread has been in its call for too long."""
    global _is_asked
    _requests.get()
    try:
        while me not in _since and not _calls.empty():
            now = time.monotonic()
            since, slow = min(((since, n) for n, since in list(_since.items())), default=(now, me))
            time.sleep(min(max(since + _PATIENCE - now, 0.01), _PATIENCE))
            if _since.get(slow) != since or time.monotonic() - since < _PATIENCE:
                continue
            # Another one has to stand by from then on. If there is none, and the process may have
            # no thread left, the slow one keeps its place. Two threads may come here at once.
            with _lock:
                if _made <= len({*_since, *_calling, me}) and _made < _MOST:
                    _add_thread()
            if _since.pop(slow, None) is not None:
                _since[me] = math.inf
    finally:
        _is_asked = False
        _ask_for_thread()  # again, because a call may have come before the flag was cleared


def _end() -> None:
    """Python ends: what has not begun is dropped, and what has begun has two seconds."""
    with contextlib.suppress(queue.Empty):
        while not _native.is_forked():
            _calls.get_nowait()
    deadline = time.monotonic() + _EXIT_PATIENCE
    while _calling and time.monotonic() < deadline and not _native.is_forked():
        time.sleep(0.005)
