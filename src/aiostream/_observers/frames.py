"""Which loop and task run in a thread, perhaps another one, by the frames of the thread."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import sys
import threading
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any

# A thread's code with its lines, from the innermost one. The frames only while it blocks.
Frames = list[tuple[CodeType, int, FrameType | None]]

# All are native. asyncio's own, because trio-asyncio puts a function of Python in its place.
_running_loop = vars(asyncio.events).get("_c__get_running_loop", asyncio._get_running_loop)
_task_of = (
    getattr(asyncio.tasks, "_c_current_task", None) or vars(asyncio.tasks)["_current_tasks"].get
)
# What a thread can say of itself: its name, its loop's class, and its tasks' names. Each is a chain
# of functions without bytecode, as `_native.set_questions` takes them.
QUESTIONS: tuple[tuple[Callable[..., Any], ...], ...] = (
    (threading.get_ident, vars(threading)["_active"].get, attrgetter("_name")),
    (_running_loop, type),
    (_running_loop, _task_of, asyncio.Task.get_name),
    (partial(sys.modules.get, "trio._core._run"), attrgetter("GLOBAL_RUN_CONTEXT.task.name")),
)


def loop_in(frames: Frames, here: list[Any]) -> tuple[int, str, str | None] | None:
    """Finds the loop that runs in a thread, by the thread's frames.

    Args:
        frames: The thread may be another one. If they have frames, it blocks.
        here: What the thread has answered to `QUESTIONS`, if they have none.

    Returns:
        The place in `frames` of what runs the loop, the loop's kind, and the name of the task that
        is at work. The kind is the package of the loop's class, or `native` if a native loop is in
        no variable. The name is `None` in a callback, or if it is not known.
        `None`: no loop runs there.
    """
    kind, task, trio_task = here[1:] or (None, None, None)
    for place, (code, line, frame) in enumerate(frames):
        name, file = code.co_name, code.co_filename
        if name == "unrolled_run" and file.endswith("trio/_core/_run.py"):
            if frame is not None:
                trio_task = getattr(frame.f_locals.get("task"), "name", None)
            # trio runs callbacks in a task of its own.
            inner = frames[place - 1][0].co_filename
            return place, "trio", None if inner.endswith("_core/_entry_queue.py") else trio_task
        # Other loops, such as uvloop's, are native and have no frame. What runs one has a frame.
        is_asyncio = name == "run_forever" and file.endswith("asyncio/base_events.py")
        if not is_asyncio and not _runs_a_loop(code, line):
            continue
        if frame is not None:
            kind, task = _at_work(frame, [each[2] for each in frames[:place]], is_asyncio)
        if kind is not None:
            return place, kind.__module__.partition(".")[0], task
        if any(each[0].co_flags & inspect.CO_COROUTINE for each in frames[:place]):
            return place, "native", None
    return None


_RUNNERS = {"run_until_complete", "run_forever"}


def _runs_a_loop(code: CodeType, line: int) -> bool:
    if _RUNNERS.isdisjoint(code.co_names):
        return False
    text = linecache.getline(code.co_filename, line)
    return not text or any(name in text for name in _RUNNERS)


def _at_work(
    frame: FrameType, inside: list[FrameType | None], is_asyncio: bool
) -> tuple[type | None, str | None]:
    """The class of the loop that a frame runs, and the name of the task that is at work in it.

    A native loop is in a variable of the frame, or in an attribute of one, or before Python 3.14
    among those that have a task at work. Loops of other threads may be there too. So such a loop's
    task counts only if its coroutine is among the frames.
    """
    variables = list(frame.f_locals.values())
    inner = [value for each in variables for value in getattr(each, "__dict__", {}).values()]
    busy = getattr(asyncio.tasks, "_current_tasks", ())
    anything = [*variables, *inner, *frame.f_globals.values(), *busy]
    found: type | None = None
    for each in [frame.f_locals["self"]] if is_asyncio else anything:
        # `isinstance` would not do, because it asks a proxy for its class.
        if issubclass(type(each), asyncio.AbstractEventLoop) and each.is_running():
            task = asyncio.current_task(each)
            if task is None:
                found = type(each)
            elif is_asyncio or getattr(task.get_coro(), "cr_frame", None) in inside:
                return type(each), task.get_name()
    return found, None
