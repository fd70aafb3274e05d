"""Finds threads of the library that do not come back from a call, so that the log can say so.

A user's own code runs in some of these threads and may block there: a host function on the driver's
thread, a listener of `on_context_failed` in the listeners', an application's own loop class in the
janitor's. A call of the driver may hold the watcher. What waits for such a thread then waits
without an end, and nothing else would say why. The releaser looks, because it may block itself: a
handler of logging may be slow.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback

from aiostream import _native

PATIENCE = 10.0  # seconds that a call may take

_CONSEQUENCES = {
    "host function": "these wait: the work behind it on its stream, and the other host functions "
    "of its context",
    "janitor": "no failure listener is called, loops that cannot watch a descriptor get no "
    "completions, and objects that you have dropped are not destroyed",
    "listener": "other failure listeners are not called",
    "watcher": "waits end late, and a lost context is not noticed",
}

# Thread -> since when it has been in the call, and which kind of thread it is. Each thread writes
# its own entry, and the releaser reads all of them. No entry refers to the user's objects, because
# the releaser could then drop the last reference to one that belongs to another thread.
_busy: dict[int, tuple[float, str]] = {}
# What was reported: the beginning of the call, by thread. The watcher is thread 0. The releaser's.
_reported: dict[int, float] = {}


def begin(kind: str) -> None:
    """Notes that this thread begins a call that may block.

    Threads: any.
    """
    _busy[threading.get_ident()] = (time.monotonic(), kind)


def end() -> None:
    """Notes that the call has returned.

    Threads: that of `begin`.
    """
    _busy.pop(threading.get_ident(), None)


def look() -> list[str]:
    """Returns a message for each call that has taken too long, once for each call.

    Threads: the releaser's.
    """
    now = time.monotonic()
    # A copy, because other threads change it meanwhile.
    calls = [(thread, since, kind) for thread, (since, kind) in list(_busy.items())]
    if held := _native.watcher_held():
        calls.append((0, now - held, "watcher"))
    found = []
    for thread, since, kind in calls:
        # The beginning of the watcher's call is computed, so it differs a little each time.
        if now - since >= PATIENCE and since - _reported.get(thread, -math.inf) > PATIENCE / 2:
            _reported[thread] = since
            found.append(_message(kind, now - since, thread))
    return found


def _message(kind: str, seconds: float, thread: int) -> str:
    subject = {
        "host function": "a host function has blocked the driver's thread",
        "watcher": "a call of the CUDA driver has blocked the watcher thread",
    }.get(kind, f"a call has blocked the {kind} thread")
    text = f"{subject} for {seconds:.0f} s. Until it returns, {_CONSEQUENCES[kind]}."
    frame = sys._current_frames().get(thread)
    return text + (" It is here:\n" + "".join(traceback.format_stack(frame)) if frame else "")
