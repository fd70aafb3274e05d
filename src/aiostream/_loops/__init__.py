"""The package that waits in asyncio and trio: how arrivals reach the loop that waits for them.

Each running loop has one bridge, made on first use and gone with the loop. It owns a native queue, whose descriptor the
loop watches; one wake-up drains everything that has arrived. Nothing here holds a loop: the loop holds the bridge (asyncio in its
selector, trio in its run variables), so that a loop that dies takes its bridge along, and the bridge's finalizer
closes the queue. What arrives after that goes to the orphans.

Loops that cannot watch a descriptor, and trio once it has cancelled its system tasks, are told by one dispatcher thread.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiostream import _turns
from aiostream._loops import on_asyncio, on_trio
from aiostream._loops.bridge import TICKETS, Bridge

__all__ = [
    "TICKETS",
    "Bridge",
    "checkpoint",
    "current_bridge",
    "is_dead",
    "task_name",
    "yield_turn",
]

# Each wait asks these.
_modules = sys.modules
_running_loop = asyncio._get_running_loop
_in_trio = _turns.in_trio
_latest = on_asyncio.latest


def current_bridge() -> Bridge:
    """The bridge of the loop that runs in this thread.

    Raises:
        RuntimeError: No asyncio or trio loop runs here.
    """
    loop = _running_loop()
    # The first lines of `in_trio`, here too because each wait would pay for the call.
    at_work = _turns.at_work
    if at_work is None and "trio" in _modules:
        at_work = _turns.find_trio()
    if at_work is not None and at_work.name is not None and _in_trio(loop):
        return on_trio.current_bridge(_modules["trio"])
    known = (
        _latest.bridge
    )  # the lines of `on_asyncio.current_bridge`, here too because each wait would pay for a call
    if known is not None and loop is not None:
        bridge = known()
        if bridge is not None and bridge.loop() is loop:
            return bridge
    return on_asyncio.current_bridge(loop)


def is_dead(future: Any) -> bool:
    """Whether a future's loop was closed while somebody waited. Only asyncio's can be; to settle the future would raise."""
    return isinstance(future, asyncio.Future) and future.get_loop().is_closed()


def task_name(task: Any) -> str:
    """What its loop calls a task."""
    return str(task.get_name() if hasattr(task, "get_name") else task.name)


async def yield_turn() -> None:
    """Gives asyncio's loop one turn."""
    await asyncio.sleep(0)


async def checkpoint() -> None:
    """What trio asks of every await, when there is nothing to wait for; nothing on asyncio."""
    if "trio" in _modules and _in_trio(_running_loop()):
        await _modules["trio"].lowlevel.checkpoint()
