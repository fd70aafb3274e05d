"""The context variables of functions in two halves, which their callers see nothing of."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator
from typing import Any

import anyio
import pytest

from aiostream import Stream, StreamPool, serving
from support import Gate
from waiters import until

Halves = Generator[None, None, Any]


def batched(pool: StreamPool) -> Callable[..., Any]:
    async def call(function: Callable[[], Any]) -> Any:
        def each(_: list[int]) -> Halves:
            result = yield from function()
            return [result]

        async with serving.Batches(pool, each, most=1) as score:
            return await score(0)

    return call


WAYS: dict[str, Callable[[StreamPool, Stream], Callable[..., Any]]] = {
    "run": lambda _, stream: stream.run,
    "run of what returns a generator": lambda _, stream: lambda fn: stream.run(lambda: fn()),
    "run_in_thread": lambda _, stream: stream.run_in_thread,
    "pool.run": lambda pool, _: pool.run,
    "pool.run_in_thread": lambda pool, _: pool.run_in_thread,
    "Batches": lambda pool, _: batched(pool),
}


@pytest.mark.parametrize("end", ["returns", "raises", "left"])
@pytest.mark.parametrize("way", WAYS)
async def test_its_context_variables_are_its_own(way: str, end: str) -> None:
    """All halves and the close have one copy of the caller's, and the caller sees nothing of it."""
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    begun: list[bool] = []
    ended: list[int] = []

    def launch() -> Halves:
        assert variable.get() == 1
        token = variable.set(2)
        try:
            gate.hold(stream)
            begun.append(True)
            yield
            assert variable.get() == 2
            variable.set(3)
            yield
            if end == "raises":
                raise KeyError("mine")
            return variable.get()
        finally:
            ended.append(variable.get())
            variable.reset(token)  # which is refused in another context

    async with Stream() as stream, StreamPool.borrow([stream]) as pool:
        with Gate() as gate:
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as scope:
                    group.start_soon(run_then, begun, scope.cancel if end == "left" else gate.open)
                    fails = pytest.raises(KeyError) if end == "raises" else contextlib.nullcontext()
                    with fails:
                        result = await WAYS[way](pool, stream)(launch)
                assert variable.get() == 1
                gate.open()
        await until(lambda: bool(ended))
        assert variable.get() == 1
    # A batch may go on without its task.
    assert ended == [3] or (end == "left" and ended == [2])
    assert end != "returns" or result == 3


async def run_then(begun: list[bool], then: Callable[[], object]) -> None:
    await until(lambda: bool(begun))
    then()


async def test_a_half_may_begin_another_call(stream: Stream) -> None:
    """The context of the first one is entered then, and the other has a copy of it."""
    variable = contextvars.ContextVar("variable", default=0)
    results: list[int] = []

    async def inner() -> None:
        results.append(await stream.run(launch))

    def launch() -> Halves:
        variable.set(variable.get() + 1)
        yield
        if variable.get() == 1:
            group.start_soon(inner)
        yield
        return variable.get()

    async with anyio.create_task_group() as group:
        assert await stream.run(launch) == 1
    assert (results, variable.get()) == ([2], 0)
