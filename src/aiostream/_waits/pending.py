"""What waits for the GPU now, and the task that waits: for operators, when something hangs."""

from __future__ import annotations

import gc
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, TypedDict

from aiostream import _native
from aiostream._base import driver
from aiostream._runtime import completion, loops, process
from aiostream._runtime.completion import Completion
from aiostream._waits import waiting

__all__ = ["PendingWait", "pending"]

# The names by which what is suspended shows its frame, and what it awaits.
_LINKS = {
    CoroutineType: ("cr_frame", "cr_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
    type(None): ("", ""),
}
_WAITS = waiting.synchronize_async.__code__
# Frames of these are not the user's own code.
_LIBRARIES = {"aiostream", "anyio", "asyncio", "contextlib", "trio"}


class PendingWait(TypedDict):
    """One wait of `pending()`: a dict that JSON can carry."""

    stream: str
    """What errors call the stream or event, such as `stream 'model[3]' on device 0`."""
    call: str
    """The method that waits, such as `Stream.run`."""
    seconds: float
    """Since the wait began."""
    expected: float | None
    """The longest that waits on that stream were expected to take, in seconds. `None` if nothing
    regular was learnt."""
    function: str | None
    """The name of the function whose work is awaited, if the call had one."""
    task: str | None
    """The name of the task that waits. `None` if none does any more, or if it was not found."""
    where: str | None
    """The line of your program at which that task waits."""


def pending() -> list[PendingWait]:
    """Lists what waits for the GPU in this process, the oldest first.

    Use it to see what hangs, in a debug route of a server for example. Each entry is a dict that
    JSON can carry. It lists the waits of tasks, the futures that are pending, and what cancelled
    waits and streams that were given back to a pool have left behind: what `drain` waits for,
    except for host functions that no future stands for.

    A wait pays nothing for this. The tasks are found when you ask, so this takes some microseconds
    for each task of the process. It finds the tasks of every asyncio loop. Of trio's tasks it finds
    those that sleep, and in the run that calls it those that poll.

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
    entries = [_entry(tasks, *row) for row in _native.waiting(False)]
    entries += [  # those that end by a host function, or have no point yet
        _entry(tasks, point.stream, seconds, owner=point)
        for point in completion.pending_points()
        if (seconds := point.seconds) is not None
    ]
    return sorted(entries, key=lambda entry: -entry["seconds"])


# ------------------------------------------------------------------------ one entry


_Found = tuple[Any, list[FrameType]]  # a task, and the frames in which it is suspended
_Tasks = dict[int, _Found]


def _entry(
    tasks: _Tasks,
    of: str,
    seconds: float,
    expected: float = 0,
    queue: int = -1,
    record: int = 0,
    owner: Any = None,
) -> PendingWait:
    """Describes a wait: what `_find_tasks` has returned, and a row of `_native.waiting`."""
    call, function, future = f"{of.partition(' ')[0].title()}.synchronize", None, owner
    if isinstance(owner, Completion):
        future, function = owner.future, completion.function_name(owner)
        by_event = owner.seconds is None
        call = "Stream.enqueue_async" if by_event or function else "Stream.completion_future"
    elif hasattr(owner, "pool"):
        call = "StreamPool.release"
    elif queue != process.ORPHANS or owner is not None:  # else it blocks a thread
        call += "_async"
    task, frames = tasks.get(record) or tasks.get(id(future)) or _of_trio(future)
    where, seen = None, False
    for frame in frames:
        module, code = str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code
        if module not in _LIBRARIES:
            where, seen = f"{code.co_filename}:{frame.f_lineno}, in {code.co_qualname}", False
        elif module == "aiostream" and not seen:
            # The first after the user's own line is what the user has called.
            values, seen = frame.f_locals, True
            if "self" in values:
                call = f"{type(values['self']).__name__}.{code.co_name}"
            function = completion.name_of(values["fn"]) if "fn" in values else function
    return {
        "stream": of,
        "call": call,
        "seconds": seconds,
        "expected": expected or None,
        "function": function,
        "task": None if task is None else loops.task_name(task),
        "where": where,
    }


# ------------------------------------------------------------------------ the tasks


def _find_tasks() -> _Tasks:
    """Returns the tasks, by the id of the future or the record of the wait for which each waits.

    The two never meet, because both are addresses of what lives now.
    """
    found: _Tasks = {}
    for task in loops.tasks():
        frames = _frames_of(task)
        found[id(getattr(task, "_fut_waiter", found))] = task, frames  # asyncio's
        for frame in frames:
            if frame.f_code is not _WAITS:
                continue
            answer, slept = map(frame.f_locals.get, ("answer", "future"))
            # Handed back to a task that its loop has yet to resume, perhaps because it is blocked.
            if slept is not None and slept.done() and not slept.cancelled():
                answer = slept.result()
            if isinstance(answer, _native.Wait):
                found[answer.record] = task, frames
    found.pop(id(None), None)
    return found


def _of_trio(future: object) -> _Found:
    # A future of trio knows its tasks, and any thread may ask.
    for task in list(getattr(future, "_waiting", ())):
        return task, _frames_of(task)
    return None, []


def _frames_of(task: Any) -> list[FrameType]:
    """Returns the frames in which a task is suspended, the outermost first."""
    outer = awaited = task.get_coro() if hasattr(task, "get_coro") else task.coro
    frames: list[FrameType | None] = []
    while isinstance(outer, CoroutineType) and awaited is not None:
        # What `__await__` and `__anext__` return shows its coroutine to the collector alone.
        within = [awaited, *gc.get_referents(awaited)]
        awaited = next((each for each in within if type(each) in _LINKS), None)
        frame, link = _LINKS[type(awaited)]
        frames.append(getattr(awaited, frame, None))
        # Python 3.11 crashes if it is asked what a coroutine awaits that runs in another thread.
        # No call comes between the two questions, so no other thread runs there.
        awaited = None if outer.cr_running else getattr(awaited, link, None)
    return [frame for frame in frames if frame is not None]
