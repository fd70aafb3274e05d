"""Which loop runs here, and whether it took a turn during a block of code: then there was an await in the block."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_running_loop = asyncio._get_running_loop


def in_trio(trio: ModuleType) -> bool:
    """Whether this is a place of a trio run, and not of an asyncio loop below or beside it."""
    lowlevel: Any = getattr(trio, "lowlevel", None)
    if not hasattr(lowlevel, "current_trio_token"):
        return False  # another thread is importing trio now: no run exists yet
    if hasattr(lowlevel, "in_trio_task"):
        in_task, in_run = lowlevel.in_trio_task(), lowlevel.in_trio_run()
    else:  # trio before 0.30
        in_task, in_run = _answers(lowlevel.current_task), _answers(lowlevel.current_trio_token)
    # Being in a task is exact in guest mode too, where an asyncio loop runs below; a callback that trio runs is no task.
    return bool(in_task or (in_run and _running_loop() is None))


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
        trio = sys.modules.get("trio")
        loop = _running_loop()
        if trio is not None and (loop is None or asyncio.current_task(loop) is None) and in_trio(trio):
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
        except (RuntimeError, KeyError):  # trio's: this is another place than where the watch began, or its run is over
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
