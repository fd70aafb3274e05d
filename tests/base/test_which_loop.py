"""Which loop a call belongs to, where asyncio and trio run in one process, or one inside
the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import internals
from aiostream import Device, Event, Stream, StreamPool, drain, wait
from support import Gate, run_as_guest, run_on, spin, succeed

RUNNERS = pytest.mark.parametrize(
    "run_asyncio",
    [asyncio.run, lambda main: run_on("uvloop", lambda: main)],
    ids=["asyncio", "uvloop"],
)


async def wait_in_each_way(stream: Stream, kind: str) -> None:
    """Each kind of wait, and each of them belongs to this loop."""
    assert internals.loop_kind() == kind
    with Gate() as gate:
        gate.hold(stream)
        futures = [stream.completion_future(), stream.enqueue_async(lambda on: 7)]
        assert [isinstance(future, asyncio.Future) for future in futures] == [kind == "asyncio"] * 2
        gate.open()
        await wait(futures)
        assert await futures[1] == 7
    spin(stream, 0.001)
    await stream.synchronize_async()
    event = Event()
    event.record(stream)
    await event.synchronize_async()
    async with StreamPool(1) as pool, pool.stream():
        pass
    assert await drain(10)
    with (
        pytest.raises(RuntimeError, match="an await in a block"),
        Device(0).primary_context.as_current(),
    ):
        await stream.synchronize_async()
        await yield_turn(kind)


async def yield_turn(kind: str) -> None:
    if kind == "trio":
        import trio

        await trio.lowlevel.checkpoint()
    else:
        await asyncio.sleep(0)


@pytest.mark.filterwarnings(
    "ignore:It looks like Trio's signal handling"
)  # uvloop's has the descriptor that trio wants
@RUNNERS
@pytest.mark.parametrize("named", [True, False])
def test_trio_run_by_an_asyncio_task(run_asyncio: Callable[[Any], Any], named: bool) -> None:
    """As a cell of Jupyter does, which is run by a task.

    A release of trio that no longer says where it is at work is asked for its task.
    """
    import trio
    import trio.testing

    called: list[str] = []

    async def in_trio(stream: Stream) -> None:
        await wait_in_each_way(stream, "trio")
        future = stream.completion_future()
        future.add_done_callback(lambda _: called.append(internals.loop_kind()))
        await future
        await trio.testing.wait_all_tasks_blocked()

    async def cell() -> None:
        async with Stream() as stream:
            await wait_in_each_way(stream, "asyncio")
            trio.run(in_trio, stream)
            await wait_in_each_way(stream, "asyncio")

    with contextlib.nullcontext() if named else internals.trio_without_its_name():
        run_asyncio(cell())
    assert called == ["trio"]


@RUNNERS
def test_asyncio_run_by_a_trio_task(run_asyncio: Callable[[Any], Any]) -> None:
    import trio

    called: list[str] = []

    async def inside(stream: Stream) -> None:
        await wait_in_each_way(stream, "asyncio")
        asyncio.get_running_loop().call_soon(lambda: called.append(internals.loop_kind()))
        await asyncio.sleep(0)

    async def main() -> None:
        async with Stream() as stream:
            await wait_in_each_way(stream, "trio")
            run_asyncio(inside(stream))
            await wait_in_each_way(stream, "trio")

    trio.run(main)
    assert called == ["asyncio"]


@RUNNERS
def test_trio_as_a_guest(run_asyncio: Callable[[Any], Any]) -> None:
    """Both run in one thread, in turn; each task's wait belongs to its own."""

    async def host() -> None:
        async with Stream() as mine, Stream() as guests:
            ended = run_as_guest(wait_in_each_way, guests, "trio")
            turns = 0
            while not ended.done():
                assert internals.loop_kind() == "asyncio"
                future = mine.completion_future()
                assert isinstance(future, asyncio.Future)
                await future
                turns += 1
            assert turns > 1
            ended.result().unwrap()

    run_asyncio(host())


def test_generator_of_a_guest_run_waits_in_its_own_loop() -> None:
    """Both runs want to hear of asynchronous generators."""
    import trio

    ended: list[str] = []

    async def generator(stream: Stream, kind: str) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            assert internals.loop_kind() == kind
            with trio.CancelScope(shield=True) if kind == "trio" else contextlib.nullcontext():
                await stream.synchronize_async()
            ended.append(kind)

    async def iterate(stream: Stream, kind: str) -> None:
        iterator = generator(stream, kind)
        await anext(iterator)
        kept.append(iterator)

    async def host() -> None:
        async with Stream() as stream:
            over = run_as_guest(iterate, stream, "trio")
            await iterate(stream, "asyncio")
            (await over).unwrap()
            await asyncio.get_running_loop().shutdown_asyncgens()

    kept: list[Any] = []
    asyncio.run(host())
    assert ended == ["trio", "asyncio"]


@pytest.mark.parametrize("stop", ["trio._core", "trio.socket"])
def test_half_imported_trio_counts_as_not_running(driver_kind: str, stop: str) -> None:
    """Another thread may be in the middle of its first `import trio`: many libraries import it
    late.
    """
    succeed(driver_kind, HALF_IMPORTED, STOP=stop)


HALF_IMPORTED = """
    import asyncio, importlib.machinery, os, sys, threading
    import aiostream

    half_way, go_on = threading.Event(), threading.Event()

    class Finder:
        def find_spec(self, name, path, target=None):
            if name != os.environ["STOP"]:
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module

            def exec_module(module):
                half_way.set()
                assert go_on.wait(30)
                execute(module)

            spec.loader.exec_module = exec_module
            return spec

    async def main():
        closed = aiostream.Stream()
        await closed.aclose()
        async with aiostream.StreamPool(1) as pool:
            thread = threading.Thread(target=lambda: __import__("trio"))
            sys.meta_path.insert(0, Finder())
            thread.start()
            assert half_way.wait(30)
            assert "trio" in sys.modules
            try:
                await use(closed, pool)
            finally:
                go_on.set()
                thread.join()
            await use(closed, pool)

    async def use(closed, pool):
        await closed.aclose()
        async with pool.stream() as stream:
            await stream.synchronize_async()
            with aiostream.Device(0).primary_context.as_current():
                pass
            loop = asyncio.get_running_loop()
            called = loop.create_future()
            loop.call_soon(lambda: called.set_result(stream.completion_future()))  # in no task
            await asyncio.wait_for(await asyncio.wait_for(called, 30), 30)
        assert await aiostream.drain(10)

    async def on_trio():
        async with aiostream.Stream() as stream:
            assert not isinstance(stream.completion_future(), asyncio.Future)
            await stream.synchronize_async()

    asyncio.run(main())
    import trio
    trio.run(on_trio)
"""


def test_what_replaces_the_running_loop_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """trio-asyncio replaces asyncio's function, perhaps after aiostream was imported."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Stream() as stream:
            await stream
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "_get_running_loop", lambda: loop)
                asyncio._set_running_loop(None)
                try:
                    future = stream.completion_future()
                finally:
                    asyncio._set_running_loop(loop)
            await future

    asyncio.run(main())
