"""The threads that launch: they call the functions of `run_in_thread`, first come, first served.

With the GIL there are two of them, because more would take it from each other and from the loop. A
thread that has been in one call for a second no longer counts, and a new one takes its place. So a
call that compiles, loads or hangs stops no other one, and a function may wait for another call. The
overseer sees to that while calls wait. It is a thread too, which sleeps otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import itertools
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
_COUNT = 2 if checks.has_gil() else 4
_MOST = 40
_PATIENCE = 1.0  # seconds that a thread may be in a call and count
_EXIT_PATIENCE = 2.0

# A SimpleQueue, because signal handlers may put, and its `put` takes no lock of Python's.
_calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
# What wakes the overseer, and whether it looks at the threads already. Any thread.
_requests: queue.SimpleQueue[None] = queue.SimpleQueue()
_oversees = False
# The threads: whether each is in a call. Each writes its own entry.
_threads: dict[int, bool] = {}
# Those that count. A thread enters itself, and the overseer takes it out.
_counting: set[int] = set()
# Since when a thread that counts has been in its call. When the call has returned, the thread pops
# its entry. If the overseer was first, the thread has lost its place. One pop succeeds.
_since: dict[int, float] = {}
# It is held while threads are made, and reentrant, because a signal handler may come here.
_lock = threading.RLock()
_numbers = itertools.count(1)
_ends_by_us: list[None] = []  # has an item once `_end` is registered


def call(function: Callable[[], object]) -> None:
    """Has a launching thread call a function, which must not raise.

    Threads: any.

    Raises:
        RuntimeError: Python has no thread left. Or this is a forked child.
    """
    driver.refuse_forked()
    if len(_counting) < _COUNT:
        _make_threads()
    _calls.put(function)
    _look()


def in_context(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Returns a call of `fn` in a copy of the present context, for a thread without a loop."""
    context = contextvars.copy_context()
    sniffio: Any = sys.modules.get("sniffio")
    if sniffio is not None:  # by which anyio knows whether a loop runs
        context.run(sniffio.current_async_library_cvar.set, None)
    return partial(context.run, fn, *args, **kwargs)


def _make_threads() -> None:
    with _lock:
        if not _ends_by_us:
            atexit.register(_end)
            _ends_by_us.append(None)
            process.start_serving("launch-overseer", _oversee)
        while len(_counting) < _COUNT and len(_threads) < _MOST:
            has_begun = threading.Event()
            name = f"aiostream-launch-{next(_numbers)}"
            made = threading.Thread(target=_serve, args=(has_begun,), name=name, daemon=True)
            try:
                process.start_in_empty_context(made)
            except RuntimeError:
                if not _threads:
                    raise
                return  # the others do it
            has_begun.wait()


def _serve(has_begun: threading.Event) -> None:
    me = threading.get_ident()
    try:
        process.block_signals()
        _threads[me] = False
        _counting.add(me)
    finally:
        has_begun.set()
    try:
        while me in _counting and not _native.is_forked():  # a function may fork
            _call_next(me)
    finally:
        _counting.discard(me)
        del _threads[me]


def _call_next(me: int) -> None:
    function = _calls.get()
    _since[me] = time.monotonic()
    _threads[me] = True
    try:
        _look()
        function()
    except BaseException as error:  # there is no memory, for example
        process.survive(error, threading.current_thread().name)
    finally:
        # A stray reference to it would keep what the user has given until the next call.
        del function
        _threads[me] = False
        if _since.pop(me, None) is None:
            _counting.discard(me)


# ------------------------------------------------------------------------ the overseer


def _look() -> None:
    # Calls wait, and no thread is free. Either the last call that was put or the last thread that
    # has taken one sees that.
    global _oversees
    if not _oversees and not _calls.empty() and len(_since) >= len(_counting):
        _oversees = True
        _requests.put(None)


def _oversee() -> None:
    global _oversees
    _requests.get()
    while True:
        if _calls.empty():
            _oversees = False
            if _calls.empty():  # again, because a call may have come before the flag was cleared
                return
            _oversees = True
        oldest = min(list(_since.values()), default=time.monotonic())
        time.sleep(min(max(oldest + _PATIENCE - time.monotonic(), 0.01), _PATIENCE))
        for thread, since in list(_since.items()):
            is_slow = time.monotonic() - since >= _PATIENCE
            if is_slow and len(_threads) < _MOST and _since.pop(thread, None) is not None:
                _counting.discard(thread)
        _make_threads()


def _end() -> None:
    """Python ends: what has not begun is dropped, and what has begun has two seconds."""
    with contextlib.suppress(queue.Empty):
        while not _native.is_forked():
            _calls.get_nowait()
    deadline = time.monotonic() + _EXIT_PATIENCE
    while any(list(_threads.values())) and time.monotonic() < deadline and not _native.is_forked():
        time.sleep(0.005)
