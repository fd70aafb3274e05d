"""The paths of `test_faults.py` that wait in a loop, each in the stages that a wait passes through:
see `fault_engine.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import anyio

import aiostream
import awaits
import waiters
from aiostream import Event, Stream, StreamPool
from aiostream.serving import Active, Batches, Steps
from fault_engine import Faults, Scenario
from fault_scenarios import a_stream, a_waiter, scenario, use_async
from support import Gate, spin

IN_LOOP: list[Scenario] = []


def in_loop(keep: Callable[[], Any] | None = None) -> Callable[..., None]:
    """Registers `async def path(faults, kept)`."""

    def register(path: Any) -> None:
        IN_LOOP.append(scenario(path, path, keep))

    return register


@contextlib.contextmanager
def a_held_stream() -> Any:
    """A gate, which each run shuts, and a stream."""
    with Gate() as gate, a_stream() as stream:
        yield gate, stream


# -------------------------------------------------------------------------------------------- waits


def _wait_in_stage(stage: str, thing: str, cancelled: bool) -> None:
    async def act(faults: Faults, kept: Any) -> None:
        waiter, gate = kept
        gate.shut()
        await waiter.hold(gate, 0.004)

        async with anyio.create_task_group() as group:
            error: list[Exception] = []
            ended = anyio.Event()

            async def wait() -> None:
                try:
                    await waiter.wait()
                except Exception as problem:
                    error.append(problem)
                finally:
                    ended.set()

            group.start_soon(wait)
            await waiter.reach()
            with faults:
                if cancelled:
                    group.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await waiters.turns(3)
                        gate.open()
                        await anyio.sleep(0.002)
                else:
                    gate.open()
                    await ended.wait()
                if error:
                    raise error[0]
        gate.open()
        await use_async(waiter.stream)
        await waiter.wait()

    name = f"{'cancelled ' if cancelled else ''}wait for a {thing}, {stage}"
    IN_LOOP.append(Scenario(name, act, a_waiter(stage, thing)))


for _stage, _thing in waiters.CASES:
    _wait_in_stage(_stage, _thing, False)
    _wait_in_stage(_stage, _thing, True)


def _whole_await(name: str) -> None:
    """From the call to its end, with work of 0.2 ms."""

    async def path(faults: Faults, _: None) -> None:
        scene, begin = awaits.scene_of(name)
        with faults:
            await begin()
        await scene.serve()
        scene.close()

    IN_LOOP.append(Scenario(name, path))


for _name in awaits.AWAITS:
    _whole_await(_name)


@in_loop(a_held_stream)
async def record_an_awaited_event_again(faults: Faults, kept: tuple[Gate, Stream]) -> None:
    gate, stream = kept
    gate.shut()
    with contextlib.closing(Event()) as event:
        gate.hold(stream)
        event.record(stream)

        async def wait() -> None:
            try:
                await event.synchronize_async()
            except aiostream.CudaError as error:
                faults.report(error)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await waiters.turns()
            with faults:
                event.record(stream)
            gate.open()
        await event.synchronize_async()
    await use_async(stream)


@in_loop(a_stream)
async def pool_of_borrowed_streams(faults: Faults, stream: Stream) -> None:
    with contextlib.closing(Stream()) as other:
        with faults:
            async with StreamPool.borrow([stream, other]) as pool, pool.stream() as taken:
                await taken.enqueue_async(int)
        await use_async(other)
    await use_async(stream)


@contextlib.contextmanager
def a_pool(size: int) -> Any:
    with contextlib.closing(StreamPool(size)) as pool, Gate() as gate:
        yield pool, gate


def _wait_for_a_pool(size: int) -> None:
    """Three tasks wait for busy streams. What one of them loses must not be lost to the others."""

    async def path(faults: Faults, kept: tuple[StreamPool, Gate]) -> None:
        pool, gate = kept
        gate.shut()
        streams = [pool.acquire_nowait() for _ in range(size)]
        for stream in streams:
            gate.hold(stream)
        failed: list[Exception] = []

        async def serve() -> None:
            try:
                async with pool.stream() as stream:
                    assert await stream.enqueue_async(lambda _: 5) == 5
            except Exception as error:
                failed.append(error)

        with faults:
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(serve)
                await waiters.turns(5)
                while streams:
                    pool.release(streams.pop())
                await anyio.lowlevel.checkpoint()
                gate.open()
            if failed:
                raise failed[0]
        for stream in streams:
            pool.release(stream)
        gate.open()
        for stream in [await pool.acquire() for _ in range(size)]:
            await use_async(stream)
            pool.release(stream)

    path.__name__ = f"tasks that wait for a pool of {size}"
    in_loop(lambda: a_pool(size))(path)


_wait_for_a_pool(1)
_wait_for_a_pool(2)


@in_loop(lambda: a_pool(2))
async def batches_of_a_pool(faults: Faults, kept: tuple[StreamPool, Gate]) -> None:
    pool, _ = kept
    failed: list[Exception] = []

    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    with faults:
        async with Batches(pool, double, most=2) as doubled:

            async def ask(number: int) -> None:
                try:
                    assert await doubled(number) == 2 * number
                except Exception as error:
                    failed.append(error)

            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(ask, number)
        if failed:
            raise failed[0]
    async with Batches(pool, double, most=2) as doubled:
        assert await doubled(3) == 6


@in_loop(a_held_stream)
async def steps_of_a_stream(faults: Faults, kept: tuple[Gate, Stream]) -> None:
    _, stream = kept
    failed: list[Exception] = []

    def step(active: Active[list[int]]) -> Generator[list[int], None, dict[int, int]]:
        for taken in active.values():
            taken.append(active.number)
        spin(stream, 0)
        yield [slot for slot, taken in active.items() if len(taken) == 3]
        return dict.fromkeys(active, active.number)

    async def read() -> None:
        taken: list[int] = []
        try:
            async with steps(taken) as results:
                assert [result async for result in results] == taken
        except Exception as error:
            failed.append(error)

    with faults:
        async with Steps(stream, step, slots=1) as steps, anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(read)
        if failed:
            raise failed[0]
    failed.clear()
    async with Steps(stream, step, slots=1) as steps:
        await read()
    assert not failed
