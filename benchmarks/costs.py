"""The process of the measure `costs`: what a call costs the loop's thread while the GPU is idle.

`release.py` starts it. Each round measures each call in turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from time import thread_time_ns
from typing import Any

import aiostream
from aiostream import serving
from benchmarks import child, lanes, loops
from benchmarks.runner import in_turn

Call = Callable[[], Awaitable[Any]]


def _nothing(*_: Any) -> None:
    pass


def _halves() -> Generator[None, None, None]:
    yield


def _answers(numbers: list[int]) -> list[int]:
    return numbers


@asynccontextmanager
async def _calls() -> AsyncIterator[dict[str, Call]]:
    with aiostream.Event() as event:
        async with aiostream.Stream() as stream, aiostream.StreamPool(4) as pool:
            event.record(stream)
            stream.synchronize()
            async with serving.Batches(pool, _answers, most=32) as scored:
                yield {
                    "await event": lambda: event.synchronize_async(),
                    "await stream": lambda: stream.synchronize_async(),
                    "run": lambda: stream.run(_nothing),
                    "run, halves": lambda: stream.run(_halves),
                    "pool run": lambda: pool.run(_nothing),
                    "enqueue_async": lambda: stream.enqueue_async(_nothing),
                    "run_in_thread": lambda: stream.run_in_thread(_nothing),
                    "batches": lambda: scored(1),
                }


async def _measure(rounds: int, count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    async with _calls() as calls:
        for number in range(-1, rounds):  # the first round warms up
            for name in in_turn(list(calls), max(0, number)):
                call, began = calls[name], thread_time_ns()
                for _ in range(count):
                    await call()
                used = (thread_time_ns() - began) / count / 1e3
                if number >= 0:
                    found.setdefault(name, []).append(round(used, 3))
    return found


def _begin() -> tuple[str, Callable[[dict[str, int]], Any]]:
    loop = next(name for name in loops.LOOPS if not loops.missing(name))

    def answer(request: dict[str, int]) -> Any:
        with lanes.quiet():
            return loops.run(loop, lambda _: _measure(request["rounds"], request["count"]))

    return loop, answer


if __name__ == "__main__":
    child.serve(_begin)
