"""What the tests of `serving.Steps` share: steps that the GPU ends when their gates are opened."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import Any

import anyio

from aiostream import Stream
from aiostream.serving import Active, Results, Steps
from support import Gate
from waiters import turns, until


def numbered(active: Active[Any]) -> dict[int, Any]:
    """Each result says whose it is, and of which step."""
    return {slot: (request, active.number) for slot, request in active.items()}


class Stepper:
    """Steps on a stream, what they have seen, and what their requests have got."""

    def __init__(self, stream: Stream, *, slots: int = 2, **options: Any) -> None:
        self.stream, self.gates = stream, list[Gate]()
        self.seen: list[Active[Any]] = []  # of first halves
        self.landed: list[int] = []  # the numbers of second halves
        self.answer: Callable[[Active[Any]], Any] = numbered
        self.last: Callable[[Active[Any]], Iterable[int] | None] = lambda active: None
        self.before: Callable[[Active[Any]], object] = lambda active: None
        self.is_held = True
        self.steps: Steps[Any, Any] = Steps(stream, self.step, slots=slots, **options)
        self.results: dict[Any, Results[Any]] = {}
        self.got: dict[Any, list[Any]] = {}
        self.ended: dict[Any, Any] = {}  # by request: None, or its error

    def step(self, active: Active[Any]) -> Generator[Iterable[int] | None, None, Any]:
        self.seen.append(active)
        self.before(active)
        if self.is_held:
            self.gates.append(Gate())
            self.gates[-1].hold(self.stream)
        yield self.last(active)
        self.landed.append(active.number)
        return self.answer(active)

    def release(self) -> None:
        """From now on the GPU holds no step."""
        self.is_held = False
        for gate in self.gates:
            gate.open()

    async def pass_one(self) -> None:
        """Lets the GPU pass the oldest step that is held, and waits for its second half."""
        landed = len(self.landed)
        self.gates.pop(0).open()
        await until(lambda: len(self.landed) > landed)
        await turns()

    async def read(self, request: Any, most: int = 10_000) -> None:
        """Reads some results of a request, and notes how that has ended."""
        got = self.got[request] = []
        try:
            async with self.steps(request) as self.results[request]:
                async for result in self.results[request]:
                    got.append(result)
                    if len(got) == most:
                        break
        except Exception as error:
            self.ended[request] = error
        else:
            self.ended[request] = None

    async def begin(self, group: Any, *requests: Any, most: int = 10_000) -> None:
        """Begins to read requests one after the other, so that their order is known on trio too."""
        for request in requests:
            group.start_soon(self.read, request, most)
            await turns()

    def steps_of(self, request: Any) -> list[int]:
        """The numbers of the steps that had a request."""
        return [active.number for active in self.seen if request in active.values()]


@contextlib.asynccontextmanager
async def stepping(**options: Any) -> AsyncIterator[tuple[Stepper, Any]]:
    """A task group in an open block, whose steps the GPU passes at the end."""
    async with Stream(name="decode") as stream:
        made = Stepper(stream, **options)
        async with made.steps, anyio.create_task_group() as group:
            try:
                yield made, group
            finally:
                made.release()
