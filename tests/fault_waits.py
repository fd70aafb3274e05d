"""The paths of `test_faults.py` that wait in a loop, each in the stages that a wait passes through:
see `fault_engine.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio

import aiostream
import internals
import waiters
from aiostream import Event, ExecutableGraph, Graph, Stream, StreamPool
from fault_engine import Faults, Scenario
from fault_scenarios import a_graph, a_stream, scenario, use_async
from support import STRATEGIES, Gate, spin

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
    @contextlib.asynccontextmanager
    async def keep() -> AsyncIterator[Any]:
        waiter = waiters.Waiter(stage, thing)
        with Gate() as gate:
            yield waiter, gate
        internals.limit_timer(waiters.MOST_TIMERS)
        with contextlib.suppress(aiostream.CudaError):
            waiter.close()

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
                        for _ in range(3):
                            await anyio.lowlevel.checkpoint()
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
    IN_LOOP.append(Scenario(name, act, keep))


for _stage, _thing in waiters.CASES:
    _wait_in_stage(_stage, _thing, False)
    _wait_in_stage(_stage, _thing, True)


def _whole_wait(strategy: str, thing: str) -> None:
    """From the call to its end, with work of 0.3 ms."""

    @contextlib.contextmanager
    def keep() -> Any:
        with waiters.default_wait(strategy):
            waiter = waiters.Waiter("watched", thing)
            waiter.stream.close(), waiter.event.close()
            waiter.stream, waiter.event = Stream(), Event()
        yield waiter
        waiter.close()

    async def path(faults: Faults, waiter: Any) -> None:
        waiter.work(0.0003)
        with faults:
            await waiter.wait()
        await use_async(waiter.stream)

    path.__name__ = f"a whole wait for a {thing}, {strategy}"
    in_loop(keep)(path)


for _strategy in STRATEGIES:
    for _thing in ("stream", "event", "future"):
        _whole_wait(_strategy, _thing)


@in_loop(a_stream)
async def completion_futures(faults: Faults, stream: Stream) -> None:
    with faults, contextlib.closing(Event()) as event:
        event.record(stream)
        await stream.completion_future()
        await stream.checked_completion_future()
        await event.completion_future_on(stream)
        await event.checked_completion_future_on(stream)
    await use_async(stream)


@in_loop(a_stream)
async def enqueue_async_that_raises(faults: Faults, stream: Stream) -> None:
    def function(stream: Stream) -> None:
        raise KeyError

    with faults:
        try:
            await stream.enqueue_async(function)
        except KeyError:
            pass
        else:
            raise AssertionError("not raised")
    await use_async(stream)


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
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            with faults:
                event.record(stream)
            gate.open()
        await event.synchronize_async()
    await use_async(stream)


@in_loop(a_graph)
async def graphs(faults: Faults, kept: tuple[Stream, Graph, ExecutableGraph]) -> None:
    stream, _, executable = kept
    with faults:
        await executable.launch_async(stream)
        await executable.launch_and_wait(stream)
        await executable.upload_async(stream)
        await executable.upload_and_wait(stream)
    await use_async(stream)


@in_loop(a_stream)
async def close_when_done(faults: Faults, stream: Stream) -> None:
    mine = Stream()
    spin(mine, 0.0002)
    with faults:
        async with mine:
            pass
    assert mine.closed or faults.error is not None
    if not mine.closed:  # refused at the door
        mine.close()
    await use_async(stream)


@in_loop()
async def pool(faults: Faults, _: None) -> None:
    with faults:
        async with StreamPool(2) as pool:
            stream = await pool.acquire()
            spin_quietly(stream)
            pool.release(stream)
            async with pool.stream() as stream:
                await stream.synchronize_async()


def spin_quietly(stream: Stream) -> None:
    """Work that is not of the library's calls: a fault there would be the test's own."""
    stream.launch_host_func(int)


@in_loop(a_stream)
async def pool_of_borrowed_streams(faults: Faults, stream: Stream) -> None:
    with contextlib.closing(Stream()) as other:
        with faults:
            async with StreamPool.borrow([stream, other]) as pool, pool.stream() as lent:
                await lent.enqueue_async(int)
        await use_async(other)
    await use_async(stream)


@contextlib.contextmanager
def a_pool() -> Any:
    pool = StreamPool(2)
    with Gate() as gate:
        yield pool, gate
    pool.close()


@in_loop(a_pool)
async def pool_whose_streams_are_busy(faults: Faults, kept: tuple[StreamPool, Gate]) -> None:
    pool, gate = kept
    gate.shut()
    streams = [pool.acquire_nowait(), pool.acquire_nowait()]
    for stream in streams:
        gate.hold(stream)

    async def serve() -> None:
        async with pool.stream() as stream:
            await stream.enqueue_async(int)

    with faults:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(serve)
            await anyio.lowlevel.checkpoint()
            for stream in streams:
                pool.release(stream)
            streams.clear()
            await anyio.lowlevel.checkpoint()
            gate.open()
    for stream in streams:
        with contextlib.suppress(ValueError):  # a release that raises has given it back
            pool.release(stream)
    gate.open()
    for stream in [await pool.acquire() for _ in range(pool.size)]:
        await use_async(stream)
        pool.release(stream)


@contextlib.contextmanager
def a_pool_of_one() -> Any:
    with contextlib.closing(StreamPool(1)) as pool, Gate() as gate:
        yield pool, gate


@in_loop(a_pool_of_one)
async def tasks_that_wait_for_a_pool(faults: Faults, kept: tuple[StreamPool, Gate]) -> None:
    """What one of them loses must not be lost to the others."""
    pool, gate = kept
    gate.shut()
    stream = await pool.acquire()
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
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            pool.release(stream)
            await anyio.lowlevel.checkpoint()
            gate.open()
        if failed:
            raise failed[0]
    gate.open()
    async with pool.stream() as stream:
        await use_async(stream)


@in_loop(a_stream)
async def enqueue_in_thread(faults: Faults, stream: Stream) -> None:
    with faults:
        assert await stream.enqueue_in_thread(lambda _: 5) == 5
    assert await stream.enqueue_in_thread(lambda _: 6) == 6
    await use_async(stream)


@in_loop(a_stream)
async def drain_and_wait(faults: Faults, stream: Stream) -> None:
    with faults:
        futures = [stream.enqueue_async(lambda _: 1), stream.completion_future()]
        done, pending = await aiostream.wait(futures)
        assert not pending
        for future in done:
            future.result()
        assert await aiostream.drain()
    await use_async(stream)
