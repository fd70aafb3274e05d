"""Which loop runs here, and whether it took a turn during a block of code: then there was an await in the block."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_running_loop = asyncio._get_running_loop


class _Asked:
    """Stands for `sniffio.thread_local`, should a release of trio no longer set that. It takes longer."""

    def __init__(self, trio: ModuleType) -> None:
        self._lowlevel = trio.lowlevel

    @property
    def name(self) -> str | None:
        if _answers(self._lowlevel.current_task):
            return "trio"
        # A callback that trio runs is no task. As a guest, a run is also known to its host's
        # callbacks and tasks.
        return (
            "trio"
            if _running_loop() is None and _answers(self._lowlevel.current_trio_token)
            else None
        )


# Its `name` is "trio" in each thread while a run of trio is at work there; of a guest, while it has
# its turn. `None` until trio is imported, then for good; one assignment.
at_work: Any = None


def find_trio() -> Any:
    """`at_work`, which it sets; still `None` while another thread imports trio: then no run can have begun."""
    global at_work
    trio = sys.modules["trio"]
    if at_work is None and hasattr(trio, "lowlevel"):
        # trio leaves its name in sniffio's variable, which takes a tenth of the time that asking
        # for the task takes in vain.
        at_work = getattr(sys.modules.get("trio._core._run"), "sniffio_library", None) or _Asked(
            trio
        )
    return at_work


def in_trio(loop: object) -> bool:
    """Whether this is a place of a trio run, and not of an asyncio loop below or beside it.

    Args:
        loop: asyncio's running loop in this thread, or `None`.
    """
    place = at_work
    if place is None and "trio" in sys.modules:
        place = find_trio()
    if place is None or place.name != "trio":
        return False
    # Both are at work if a task of one has run the other. A run sets these hooks when it begins,
    # and puts them back at its end.
    return loop is None or getattr(sys.get_asyncgen_hooks().firstiter, "__self__", None) is not loop


def runs_loop() -> bool:
    """Whether a loop of asyncio or trio runs in this thread."""
    loop = _running_loop()
    return loop is not None or in_trio(None)


def _answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except RuntimeError:
        return False
    return True


class TurnWatch:
    """Notices whether the task that makes it is suspended before `end()`, also if no other task runs meanwhile."""

    def __init__(self) -> None:
        self._suspended = False
        self._end: Callable[[], object] = _do_nothing
        loop = _running_loop()
        if in_trio(loop):
            trio = sys.modules["trio"]
            if lowlevel_task := _trio_task(trio):
                instrument = _Instrument(lowlevel_task, self._note)
                trio.lowlevel.add_instrument(instrument)
                self._end = lambda: trio.lowlevel.remove_instrument(instrument)
        elif loop is not None:
            # A task that was suspended goes on behind what the loop had been given before.
            self._end = loop.call_soon(self._note).cancel

    def end(self) -> bool:
        """Whether the task was suspended."""
        try:
            self._end()
        except (
            RuntimeError,
            KeyError,
        ):  # trio's: this is another place than where the watch began, or its run is over
            self._suspended = True
        self._end = _do_nothing
        return self._suspended

    def _note(self) -> None:
        self._suspended = True


def _do_nothing() -> None:
    pass


def _trio_task(trio: ModuleType) -> Any:
    try:
        return trio.lowlevel.current_task()
    except RuntimeError:  # in a callback
        return None


class _Instrument:
    """Is told by trio of each step that ends. trio looks for the method by its name."""

    def __init__(self, task: Any, note: Callable[[], None]) -> None:
        self._task = task
        self._note = note

    def after_task_step(self, task: Any) -> None:
        """Trio's hook."""
        if task is self._task:
            self._note()
