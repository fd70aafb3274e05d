"""Clients that load a server, in processes of their own, so that they do not share a core.

A window of load begins and ends at the same time in all of them. `step_load.py` and
`engine_load.py` are what these processes run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any, TypeVar

from benchmarks import child, loops
from benchmarks.measure import Row

PROCESSES = max(1, min(4, len(os.sched_getaffinity(0)) // 4))
LIMIT = 60.0  # seconds in which a process must answer, besides the time of what it measures
Seen = TypeVar("Seen")


class Clients:
    """The processes.

    Args:
        module: What they run.
        processes: How many. A window has no more of them than clients.
    """

    def __init__(self, module: str, processes: int) -> None:
        loop = "asyncio" if loops.missing("uvloop") else "uvloop"
        self._children = [child.Child("a load", module, loop) for _ in range(processes)]
        for each in self._children:
            each.answer(LIMIT)

    async def window(
        self, request: Row, clients: int, warm: float, seconds: float, look: Callable[[], Seen]
    ) -> tuple[list[Row], Seen, Seen]:
        """Loads a server.

        Args:
            request: What else each process needs.
            clients: How many of all processes ask.
            warm: Seconds of load before the window.
            seconds: Of the window.
            look: Called when the window begins, and when it ends.

        Returns:
            What each process has found, and what `look` returned.

        Raises:
            RuntimeError: An answer was wrong, or there was none.
        """
        begin = perf_counter_ns() + int(1e9 * warm)
        end = begin + int(1e9 * seconds)
        limit = warm + seconds + LIMIT
        used = self._children[:clients]
        known = {**request, "begin": begin, "end": end, "limit": limit, "apart": len(used)}
        asks = []
        for number, each in enumerate(used):
            share = len(range(number, clients, len(used)))
            one = {**known, "clients": share, "first": number}
            asks.append(asyncio.create_task(asyncio.to_thread(each.ask, one, limit + 5)))
        try:
            before, after = await _at(begin, look), await _at(end, look)
        finally:
            found: list[Any] = await asyncio.gather(*asks, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return found, before, after

    def close(self) -> None:
        """Ends the processes."""
        for each in self._children:
            each.close()


def post(**fields: int) -> bytes:
    """The bytes of a request with such a JSON body."""
    body = json.dumps(fields).encode()
    head = "POST /predict HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _at(when: int, look: Callable[[], Seen]) -> Seen:
    await asyncio.sleep(max(0, when - perf_counter_ns()) / 1e9)
    return look()


def serve(load: Callable[[Row], Awaitable[Row]]) -> None:
    """In a process: answers with what each window finds, until standard input ends."""
    factory: Any = None
    if sys.argv[1:] == ["uvloop"]:
        import uvloop

        factory = uvloop.new_event_loop
    gc.disable()
    with asyncio.Runner(loop_factory=factory) as runner:

        async def loaded(request: Row) -> Row:
            return await load(request)

        def answer(request: Row) -> Row:
            gc.collect()  # off while something is timed
            return runner.run(loaded(request))

        child.serve(lambda: ("ready", answer))
