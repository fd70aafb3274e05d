"""What waits for the GPU now, and the task that waits: for operators, when something hangs."""

from __future__ import annotations

import contextlib
import gc
import inspect
import re
import sys
import time
import weakref
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, TypedDict

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._runtime import completion, loops, process
from aiostream._runtime.completion import Completion
from aiostream._waits import waiting

if sys.version_info < (3, 12):  # there pydantic takes no other
    with contextlib.suppress(ImportError):  # anyio 4.4 does without it
        from typing_extensions import TypedDict

__all__ = ["PendingWait", "pending"]

# Each pool, `Batches` and `Steps` that was ever open, by id. What waits for them may have no stream
# yet. Any thread, single dict operations.
queues: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

QUEUES = -2  # in place of a queue's number

# Frames of these are not the user's own code.
_LIBRARIES = {"aiostream", "anyio", "asyncio", "contextlib", "trio"}
_MAY_SUSPEND = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class PendingWait(TypedDict):
    """One wait of `pending()`: a dict that JSON can carry.

    Attributes:
        stream: What errors call the stream or event, such as `stream 'model[3]' on device 0`.
        call: The method that waits, such as `Stream.run`.
        seconds: Since the wait began.
        expected: The longest that waits on that stream were expected to take, in seconds. `None` if
            nothing regular was learnt.
        function: The name of the function whose work is awaited, if the call had one.
        task: The name of the task that waits, or that has left a `run` or `run_in_thread`, after a
            timeout for example. `None` if no task waits, or if it was not found.
        where: The line of your program at which that task waits, or has left.
    """

    stream: str
    call: str
    seconds: float
    expected: float | None
    function: str | None
    task: str | None
    where: str | None


def pending() -> list[PendingWait]:
    """Lists what waits for the GPU in this process, the oldest first.

    Use it to see what hangs, in a debug route of a server for example. Each entry is a dict that
    JSON can carry. It lists the waits of tasks, the futures that are pending, and what cancelled
    waits and streams that were given back to a pool have left behind: what `drain` waits for,
    except for host functions that no future stands for. It also lists each task that waits for a
    stream of a pool, each item that waits for `serving.Batches` or is in one of their batches, and
    each request of `serving.Steps` that waits for a slot (`Steps.slot`), for a result, or because
    `ready` has said no (`Steps.ready`).

    A wait pays nothing for this. The tasks are found when you ask, so this takes some microseconds
    for each task of the process. It finds the tasks of every asyncio loop. Of trio's tasks it finds
    those that sleep, and in the run that calls it those that poll. On a free-threaded Python it
    finds the tasks of the loop that calls it, because another thread may be running the others.

    Threads: any. It never calls the driver and never blocks.

    Raises:
        RuntimeError: This is a forked child.

    Example:
        >>> from aiostream.testing import Gate
        >>> async with aiostream.Stream(name="model") as stream:
        ...     with Gate() as gate:
        ...         gate.hold(stream)  # in place of a kernel that hangs
        ...         future = stream.completion_future()
        ...         [waiting] = aiostream.pending()
        ...     await future
        >>> waiting["stream"], waiting["call"], waiting["task"]
        ("stream 'model' on device 0", 'Stream.completion_future', None)
    """
    driver.refuse_forked()
    tasks = _find_tasks()
    waits: list[Any] = _native.waiting()
    # One that came back to its pool while its request waited is listed with that request alone.
    left = {
        of
        for of, *_, owner in waits
        if not (
            hasattr(owner, "pool") or (isinstance(owner, Completion) and not owner.is_cancelled)
        )
    }
    rows = [row for row in waits if row[0] not in left or not hasattr(row[5], "pool")]
    rows += [  # those that end by a host function, or have no point yet
        (point.stream, seconds, 0.0, process.ORPHANS, 0, point)
        for point in completion.pending_points()
        if (seconds := point.seconds) is not None
    ]
    now = time.perf_counter()
    for reference in queues.valuerefs():
        if (each := reference()) is not None:
            rows += [
                (of, now - since, 0.0, QUEUES, 0, wait) for of, since, *wait in each._pending()
            ]
    return sorted((_entry(tasks, row) for row in rows), key=lambda entry: -entry["seconds"])


Left = tuple[str | None, str | None, str | None]
"""What a task that leaves a wait says of it: function, task and line, as `PendingWait` has them."""


def left_here(fn: Any) -> Left:
    """Says so of the task that runs here."""
    frame: FrameType | None = sys._getframe(1)
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        # Behind the coroutines of the task come the frames of its loop, and of what runs that.
        frame = frame.f_back if frame.f_code.co_flags & _MAY_SUSPEND else None
    task = loops.task_here()
    name = completion.name_of(getattr(fn, "func", fn))  # of a partial, what it calls
    return name, task and loops.task_name(task), frame and _place(frame)


# ------------------------------------------------------------------------ one entry


# A task, by the id of the future or the address of the native wait for which it waits. The two
# never meet, because both are addresses of what lives now.
_Tasks = dict[int, Any]


def _entry(tasks: _Tasks, row: tuple[str, float, float, int, int, Any]) -> PendingWait:
    """Describes a wait.

    Args:
        tasks: What `_find_tasks` has returned.
        row: As in `_native.waiting`.
    """
    of, seconds, expected, queue, address, owner = row
    future, function, where, seen = owner, None, None, False
    if isinstance(owner, _native.Wait):
        future = owner.future
    if isinstance(owner, Completion):
        future, function = owner.future, completion.function_name(owner)
        by_event = owner.seconds is None
        call = "Stream.enqueue_async" if by_event or function else "Stream.completion_future"
        call = getattr(future, "call_name", call)
        if hasattr(owner, "halves"):
            call = "Stream.run_in_thread"
    elif queue == QUEUES:
        call, future, function = owner
    elif hasattr(owner, "pool"):
        call = "StreamPool.release"
    elif isinstance(owner, _native.Work):
        call = "Stream.run"
    else:
        blocks = queue == process.ORPHANS and owner is None
        call = f"{of.partition(' ')[0].title()}.synchronize{'' if blocks else '_async'}"
    # A future of trio knows its tasks, and any thread may ask, except for frames without the GIL.
    of_trio = [*getattr(future, "_waiting", ()), None]
    task = tasks.get(address) or tasks.get(id(future)) or of_trio[0]
    may_look = checks.has_gil() or not loops.is_elsewhere(future)
    for frame in _frames_of(task) if may_look else []:
        code = frame.f_code
        if _module(frame) not in _LIBRARIES:
            where, seen = _place(frame), False
        elif _module(frame) == "aiostream" and not (
            seen or re.match("_[a-z]|__aenter__|within", code.co_name)
        ):
            # The first after the user's own line is what the user has called.
            values, seen = frame.f_locals, True
            if "self" in values and not call.startswith("Steps."):
                call = f"{type(values['self']).__name__}.{code.co_name}"
            fn = values.get("fn", getattr(values.get("self"), "_fn", None))
            function = completion.name_of(fn) if fn is not None else function
    name = task and loops.task_name(task)
    if task is None and (left_by := getattr(owner, "left_by", None)):
        function, name, where = left_by
    return {
        "stream": of,
        "call": call,
        "seconds": seconds,
        "expected": expected or None,
        "function": function,
        "task": name,
        "where": where,
    }


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_qualname}"


# ------------------------------------------------------------------------ the tasks


def _find_tasks() -> _Tasks:
    found: _Tasks = {}
    for task in loops.tasks():
        found[id(getattr(task, "_fut_waiter", None))] = task  # asyncio's
        for frame in _frames_of(task):
            if frame.f_code is not waiting.synchronize_async.__code__:
                continue
            # Polled, or handed back to a task that its loop has yet to resume.
            if (wait := frame.f_locals.get("wait")) is not None:
                found[wait.address] = task
    found.pop(id(None), None)
    found.pop(0, None)
    return found


# What each shows as what it awaits. The name of its frame begins in the same way.
_LINKS = {CoroutineType: "cr_await", GeneratorType: "gi_yieldfrom", AsyncGeneratorType: "ag_await"}


def _frames_of(task: Any) -> list[FrameType]:
    """Returns the frames in which a task is suspended, the outermost first."""
    outer: Any = task.get_coro() if hasattr(task, "get_coro") else getattr(task, "coro", None)
    frames: list[FrameType | None] = []
    awaited = outer if isinstance(outer, CoroutineType) else None
    # What `__await__` and `__anext__` return shows its coroutine to the collector alone.
    while within := [x for x in (awaited, *gc.get_referents(awaited)) if type(x) in _LINKS]:
        link = _LINKS[type(within[0])]
        frame = getattr(within[0], f"{link[:2]}_frame")
        frames.append(frame)
        # Python 3.11 crashes if it is asked what a coroutine awaits that runs in another thread.
        # No call comes between the two questions, so no other thread runs there.
        awaited = None if outer.cr_running else getattr(within[0], link)
        if not outer.cr_running and frame and frame.f_code is waiting.within.__code__:
            awaited = frame.f_locals["awaited"]
    return [frame for frame in frames if frame is not None]
