"""Which loop runs here, and whether it took a turn during a block of code.

If it did, there was an `await` in the block.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any


class _Asked:
    """Takes the place of `sniffio.thread_local` if a release of trio no longer sets that.

    It takes longer, because it asks trio.
    """

    def __init__(self, trio: ModuleType) -> None:
        self._lowlevel = trio.lowlevel

    @property
    def name(self) -> str | None:
        # A callback of trio's has no task, so trio is asked for its token. But if trio runs as a
        # guest, the host's callbacks and tasks have that token too, and they belong to asyncio.
        is_trio = _answer_of(self._lowlevel.current_task) or (
            asyncio._get_running_loop() is None and _answer_of(self._lowlevel.current_trio_token)
        )
        return "trio" if is_trio else None


# Its `name` is "trio" in each thread in which a run of trio is at work. If trio runs as a guest, it
# is so while the guest has its turn. None until trio is imported, then never changed. Any thread
# may write it, by one assignment, because all threads find the same object.
at_work: Any = None


def find_trio() -> Any:
    """Sets `at_work` and returns it.

    It stays `None` while another thread imports trio. No run can have begun then.
    """
    global at_work
    trio = sys.modules["trio"]
    if at_work is None and hasattr(trio, "lowlevel"):
        # trio writes its name into sniffio's variable. To read it takes a tenth of the time that
        # trio takes to answer that there is no task.
        at_work = getattr(sys.modules.get("trio._core._run"), "sniffio_library", None) or _Asked(
            trio
        )
    return at_work


def in_trio(loop: object) -> bool:
    """Whether this place belongs to a run of trio, and not to an asyncio loop around or under it.

    Args:
        loop: asyncio's running loop in this thread, or `None`.
    """
    place = at_work
    if place is None and "trio" in sys.modules:
        place = find_trio()
    if place is None or place.name != "trio":
        return False
    # Both are at work if a task of one has run the other. Each of them sets these hooks when it
    # begins and restores them at its end, so the hooks belong to the inner one.
    return loop is None or getattr(sys.get_asyncgen_hooks().firstiter, "__self__", None) is not loop


def warns_here() -> bool:
    """Whether a loop runs in this thread, in its debug mode or Python's development mode."""
    loop = asyncio._get_running_loop()
    if sys.flags.dev_mode:
        return loop is not None or in_trio(None)
    return loop is not None and loop.get_debug()


def _answer_of(ask: Callable[[], Any]) -> Any:
    """What trio answers in this thread, or `None`: it does not run here, or this is a callback."""
    try:
        return ask()
    except RuntimeError:
        return None


class SuspensionCheck:
    """Notices whether the task that makes it is suspended before `end()`.

    It notices that also if no other task runs meanwhile.
    """

    def __init__(self) -> None:
        self._suspended = False
        self.is_left = False  # whether its block was left, perhaps in another thread, before `end`
        self._end: Callable[[], object] = _do_nothing
        loop = asyncio._get_running_loop()
        if in_trio(loop):
            lowlevel = sys.modules["trio"].lowlevel
            if task := _answer_of(lowlevel.current_task):
                self._task = task
                lowlevel.add_instrument(self)
                self._end = partial(lowlevel.remove_instrument, self)
        elif loop is not None:
            # asyncio runs callbacks in order. So a task that is suspended continues after this one.
            self._end = loop.call_soon(self._note).cancel

    def end(self) -> bool:
        """Ends the check. Returns whether the task was suspended."""
        try:
            self._end()
        except (RuntimeError, KeyError):
            # trio raises these if the check ends in another place than where it began, or after its
            # run. Then there was an await in between.
            self._suspended = True
        self._end = _do_nothing
        return self._suspended

    def _note(self) -> None:
        self._suspended = True

    def after_task_step(self, task: Any) -> None:
        """Notes the end of a step of the checked task: trio calls it after each step of each."""
        if task is self._task:
            self._note()


def _do_nothing() -> None:
    pass
