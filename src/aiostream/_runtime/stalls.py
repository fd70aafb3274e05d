"""Stalls: what has not come back within its limit, and who hears of that.

Native code counts, and has one piece of news at a time (`native/engine/stalls.c`). A thread of
Python's takes it, because only Python knows whether a loop runs, and only Python can read the
stacks of threads that run. It calls no driver and no function of the user's, so nothing holds it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial

from aiostream import _native
from aiostream._runtime import loops, process
from aiostream.errors import StalledError

# By registration, because a function may be registered twice. Under _lock, so that a listener hears
# of a stall either as news or when it comes.
_listeners: dict[object, Callable[[StalledError], object]] = {}
# Reentrant, because a signal handler or a finalizer may come here in the thread that holds it.
_lock = threading.RLock()
_news = -1  # an eventfd; written once, under _lock
_serves = False  # written once, when all of it runs


def watch() -> None:
    """Starts what notices stalls, once: a limit was set.

    Threads: any.

    Raises:
        OSError, RuntimeError: The process has no descriptor or thread left.
    """
    global _news, _serves
    if _serves:
        return
    with _lock:
        _news = os.eventfd(0) if _news < 0 else _news
        _native.stalls_start(_news)
    process.start_serving("stalls", _serve)
    _serves = True


def listen(listener: Callable[[StalledError], object]) -> Callable[[], None]:
    """Has the listeners' thread call `listener` at each stall, and now if something is stalled.

    Threads: any.

    Returns:
        A function that ends this. You may call it again.
    """
    own = object()
    with _lock:
        _listeners[own] = listener
        stall = _native.stall()
    if stall is not None:
        process.call_listener(partial(listener, StalledError(*stall)))

    def end() -> None:
        _listeners.pop(own, None)  # perhaps ended before

    return end


def end_if_stalled() -> None:
    """Ends the process if something is stalled, because it was asked to just now."""
    if (stall := _native.stall()) is not None:
        _native.stall_end(stall[0], _stacks())


def _serve() -> None:
    while True:
        with _lock:
            stall, loop = _native.stall_take()
            listeners = list(_listeners.values())
        if stall is None:
            os.eventfd_read(_news)
            continue
        if loop and not _native.stall_is_sure(loop, loops.runs(loop)):
            continue
        _native.stall_end(stall[0], _stacks())
        process.run_in_releaser(partial(process.log, "%s", stall[0]))
        for listener in listeners:
            process.call_listener(partial(listener, StalledError(*stall)))


def _stacks() -> bytes:
    # Up to one that raises, because the process ends without them too. A path need not be Unicode.
    text = ""
    with contextlib.suppress(Exception):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            text += f"Thread {names.get(ident, ident)!r}:\n"
            text += "".join(traceback.format_stack(frame))
    return text.replace("\0", "").encode(errors="backslashreplace")
