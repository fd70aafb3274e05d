"""What the tests of `serving.Batches` share: batches that end when a gate is opened."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio

from aiostream import Stream, StreamPool
from aiostream.serving import Batches
from support import Gate
from waiters import turns


def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


class Held:
    """A pool of one stream, and batches that end when a gate is opened."""

    def __init__(self, stream: Stream, **options: Any) -> None:
        self.gate, self.stream = Gate(), stream
        self.pool = StreamPool.borrow([stream], max_waiting=0, name="held")
        self.seen: list[list[Any]] = []
        self.batches: Batches[Any, Any] = Batches(self.pool, self.fn, **{"most": 4, **options})
        self.outcomes: dict[Any, Any] = {}
        self.answer: Callable[[list[Any]], Any] = double

    def fn(self, items: list[Any]) -> Any:
        self.seen.append(items)
        self.gate.hold(self.stream)
        return self.answer(items)

    async def ask(self, item: Any) -> None:
        try:
            self.outcomes[item] = await self.batches(item)
        except Exception as error:
            self.outcomes[item] = error

    async def begin(self, group: Any, *items: Any) -> None:
        """Asks for items one after the other, so that their order is known on trio too."""
        for item in items:
            group.start_soon(self.ask, item)
            await turns()

    async def begin_together(self, group: Any, *items: Any) -> None:
        """Asks for items in one turn of the loop."""
        for item in items:
            group.start_soon(self.ask, item)
        await turns()


@contextlib.asynccontextmanager
async def held(**options: Any) -> AsyncIterator[tuple[Held, Any]]:
    """A task group in an open block, whose batches end when the gate is opened."""
    async with Stream() as stream:
        made = Held(stream, **options)
        async with made.pool, made.batches, anyio.create_task_group() as group:
            try:
                yield made, group
            finally:
                made.gate.open()
