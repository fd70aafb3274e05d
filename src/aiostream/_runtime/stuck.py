"""Finds threads of the library that do not come back from a call, so that the log can say so.

A user's own code runs in some of these threads and may block there: a host function on the driver's
thread, a listener of `on_context_failed` in the listeners', an application's own loop class in the
janitor's. A call of the driver may hold the watcher. What waits for such a thread then waits
without an end, and nothing else would say why. The releaser checks that, because it may block
itself: a handler of logging may be slow. It also says which waits are slow.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import traceback

from aiostream import _native
from aiostream._base import hints

PATIENCE = 10.0  # seconds that a call may take

# Thread -> since when it has been in the call, and which kind of thread it is. Each thread writes
# its own entry, and the releaser reads all of them. No entry refers to the user's objects, because
# the releaser could then drop the last reference to one that belongs to another thread.
_busy: dict[int, tuple[float, str]] = {}
# What was reported: the beginning of the call or wait, by thread or native wait. The watcher is
# thread 0. The releaser's.
_reported: dict[int, float] = {}


def begin(kind: str) -> None:
    """Notes that this thread begins a call that may block.

    Threads: any.
    """
    _busy[threading.get_ident()] = (time.monotonic(), kind)
    if kind == "janitor":
        _native.janitor_busy(True)


def end() -> None:
    """Notes that the call has returned.

    Threads: that of `begin`.
    """
    if _busy.pop(threading.get_ident(), (0, ""))[1] == "janitor":
        _native.janitor_busy(False)


def check() -> list[str]:
    """Returns a message for each call that has taken too long and each wait that is slow, once.

    Threads: the releaser's.
    """
    now = time.monotonic()
    # This is a copy, because other threads change it meanwhile.
    calls = [(thread, since, kind) for thread, (since, kind) in list(_busy.items())]
    if held := _native.watcher_held():
        calls.append((0, now - held, "watcher"))
    found = []
    for thread, since, kind in calls:
        if now - since >= PATIENCE and _is_first(thread, since):
            found.append(_message(kind, now - since, thread))
    for of, seconds, usual, _, address, _ in _native.waiting(True):
        if _is_first(address, now - seconds):
            found.append(
                f"{of} is slow: work has taken {seconds:.3g} s, expected were {usual:.3g} s"
            )
    return found


def _is_first(of: int, since: float) -> bool:
    # The beginnings of waits and of the watcher's calls are computed, and differ a little.
    first = since - _reported.get(of, -math.inf) > 0.02
    _reported[of] = since
    return first


def _message(kind: str, seconds: float, thread: int) -> str:
    text = hints.ADVICE["stuck"][kind.replace(" ", "-")].format(f"{seconds:.0f}")
    frame = sys._current_frames().get(thread)
    return text + (" It is here:\n" + "".join(traceback.format_stack(frame)) if frame else "")


def stacks() -> bytes:
    """Returns the stacks of all threads, as a traceback shows them, up to one that raises.

    The process ends without them too, and a path need not be Unicode.

    Threads: any. Only a thread that runs Python may read them, because the others run meanwhile.
    """
    text = ""
    with contextlib.suppress(Exception):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            text += f"Thread {names.get(ident, ident)!r}:\n"
            text += "".join(traceback.format_stack(frame))
    return text.replace("\0", "").encode(errors="backslashreplace")
