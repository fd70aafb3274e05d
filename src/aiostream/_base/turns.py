"""Which loop runs here, and whether it took a turn during a block of code.

If it did, there was an `await` in the block.
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import sys
import threading
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


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


def without_interrupts(function: F) -> F:
    """Returns the function so that trio raises no KeyboardInterrupt in it or in what it calls.

    Trio raises it in the run's main task instead, where that waits. In asyncio and without a loop,
    the function stays as it is.
    """
    if in_trio(asyncio._get_running_loop()):
        function = sys.modules["trio"].lowlevel.enable_ki_protection(function)
    return function


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


# ------------------------------------------------------------------------ other threads


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
