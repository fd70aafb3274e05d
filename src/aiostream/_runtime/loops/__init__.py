"""The event loops: how what the GPU has reached gets to the loop that waits for it.

Each running loop has one bridge.
The library makes it at the loop's first wait, and the bridge dies with its loop.
A bridge owns a native queue, and the loop has a reader on the queue's descriptor.
One wake-up delivers everything that has arrived.

Nothing here holds a loop.
The loop holds its bridge: asyncio in its selector, trio in its run variables.
So a loop that dies takes its bridge along, and the native queue closes when it dies with that.
What arrives on a closed queue goes to the janitor, as an orphan.

The loop's thread alone uses its bridge.
But the janitor asks loops without readers for a drain, and closes the bridges of loops that ended.

Each kind of loop is one file: a subclass of `Bridge`, and the functions that this one chooses from.

asyncio's file has a part in C: `_native.Wait` is an awaitable of asyncio (`native/python/waits.c`).
Its iterator yields `None` for each turn of the loop, as a bare `yield` does in `asyncio.sleep(0)`.
Only `on_asyncio` awaits it, because trio expects other values from a task.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Generator
from typing import Any

from aiostream._base import turns
from aiostream._runtime.loops import on_asyncio, on_trio
from aiostream._runtime.loops.bridge import Bridge as Bridge
from aiostream._runtime.loops.bridge import TaskFunction

# Bound once, because each wait uses these, and an attribute of a module takes a lookup more. Not
# `asyncio._get_running_loop`, because trio-asyncio and its like replace that, perhaps later.
_modules = sys.modules
asyncio_module = asyncio
_latest = on_asyncio.latest
# Takes a loop of asyncio, and returns the task that runs there. Until Python 3.12 asyncio's own is
# written in Python, and reads this dict.
asyncio_task: Callable[[Any], Any] = asyncio.current_task
if sys.version_info < (3, 12):
    asyncio_task = vars(asyncio.tasks)["_current_tasks"].get


def current_bridge() -> Bridge:
    """Returns the bridge of the loop that runs in this thread.

    Raises:
        RuntimeError: No loop runs here.
    """
    loop = asyncio._get_running_loop()
    # These lines repeat `turns.in_trio` and `on_asyncio.current_bridge`, because each wait on
    # asyncio would pay for two calls. They answer only if trio is not at work in this thread.
    at_work = turns.at_work
    if at_work is None and "trio" in _modules:
        at_work = turns.find_trio()
    if at_work is None or at_work.name is None:
        known = _latest.bridge
        if known is not None and loop is not None:
            bridge = known()
            if bridge is not None and bridge.loop() is loop:
                return bridge
    return on_trio.current_bridge() if turns.in_trio(loop) else on_asyncio.current_bridge(loop)


def is_dead(future: Any) -> bool:
    """Whether a future's loop was closed while a task waited.

    Only asyncio's loops can be closed so, and to settle such a future would raise an error.
    """
    return isinstance(future, asyncio.Future) and future.get_loop().is_closed()


def is_awaited(future: Any) -> bool:
    """Whether a task waits for a future, of which one task has begun to wait at once.

    asyncio cancels the future with its task. trio takes the task from it.
    """
    return not future.done() and bool(getattr(future, "_waiting", True))


def is_elsewhere(future: Any) -> bool:
    """Whether a future belongs to another loop than the one that runs here.

    Only that loop's thread may touch it: neither asyncio's nor trio's futures are safe for others.
    """
    belongs_here = getattr(future, "belongs_here", None)  # an `_native.OwnFuture` has it
    if belongs_here is not None:
        return not belongs_here()
    get_loop = getattr(future, "get_loop", None)  # asyncio's futures, tasks, and their like
    return get_loop is not None and get_loop() is not asyncio._get_running_loop()


def tasks() -> list[Any]:
    """Returns the tasks of asyncio's loops that the library serves, and of the run of trio here.

    Threads: any. Other threads may begin and end tasks meanwhile.
    """
    return [*on_trio.tasks(), *on_asyncio.tasks()]


runs = on_asyncio.runs
left_behind = on_asyncio.left_behind


def task_name(task: Any) -> str:
    """Returns what its loop calls a task."""
    return str(task.get_name() if hasattr(task, "get_name") else task.name)


def bridge_here() -> Bridge | None:
    """Returns the bridge of the loop that runs in this thread, or `None`."""
    try:
        return current_bridge()
    except RuntimeError:
        return None


def task_here() -> Any:
    """Returns the task that runs here, or `None` in a callback, or where no loop runs."""
    bridge = bridge_here()
    return bridge and bridge.current_task()


@types.coroutine
def yield_turn() -> Generator[None, None, None]:
    """Gives asyncio's loop one turn."""
    yield  # as `asyncio.sleep(0)` does


def cancelled_by(function: TaskFunction) -> Any:
    """A block that is cancelled when a function returns, which runs in a task meanwhile.

    The block's end cancels that task and waits for it. Its function raises nothing but this
    cancellation. What `__aexit__` returns says whether the function has cancelled the block.
    """
    is_trio = turns.in_trio(asyncio._get_running_loop())
    return on_trio.cancelled_by(function) if is_trio else on_asyncio.CancelledBy(function)


async def checkpoint() -> None:
    """Does what the running loop asks of an await that has nothing to wait for.

    On trio this is a checkpoint. On asyncio it gives the loop a turn from time to time.
    """
    is_trio = turns.in_trio(asyncio._get_running_loop())
    await (on_trio.checkpoint() if is_trio else on_asyncio.checkpoint())
