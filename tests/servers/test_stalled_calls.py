"""Driver calls of the library that do not return are noticed, wherever the library makes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator

import pytest

import aiostream
from aiostream import StalledError, Stream, StreamPool, simulator
from aiostream.testing import Faults
from support import Gate, settle

LIMIT = 0.05

on_asyncio = pytest.mark.parametrize("loop_kind", ["asyncio"])


@pytest.fixture
def heard(driver_kind: str) -> Iterator[list[StalledError]]:
    """The calls that have not returned, as a listener hears of them."""
    if driver_kind != "simulator":
        pytest.skip("a GPU does not hang on command")
    made: list[StalledError] = []

    def hear(error: StalledError) -> None:
        if "has not returned" in str(error):  # else it is the late news of an earlier test
            made.append(error)

    stop = aiostream.on_stalled(hear)
    with Faults():
        yield made
    stop()


@pytest.fixture
def hang(heard: list[StalledError]) -> Iterator[Callable[[str], None]]:
    """Has a call of the driver hang until a stall is heard, or the test has failed."""
    threads: list[threading.Thread] = []

    def end() -> None:
        settle(lambda: bool(heard))
        simulator.clear_faults()

    def begin(call: str) -> None:
        simulator.hang(call)
        threads.append(threading.Thread(target=end))
        threads[0].start()

    yield begin
    threads[0].join()
    assert heard


@on_asyncio
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("way", ["run that raises", "run_in_thread"])
async def test_event_behind_work(hang: Callable[[str], None], way: str, halves: bool) -> None:
    """It is that of a `run` whose function raised, or it is recorded in another thread."""

    def fn() -> None:
        stream.launch_host_func(str)
        hang("cuEventRecordWithFlags")
        if way != "run_in_thread":
            raise ZeroDivisionError

    def in_halves() -> Generator[None, None, None]:
        stream.launch_host_func(str)
        yield
        fn()

    async with Stream(stalled_after=LIMIT) as stream:
        if way == "run_in_thread":
            await stream.run_in_thread(in_halves if halves else fn)
        else:
            with pytest.raises(ZeroDivisionError):
                await stream.run(in_halves if halves else fn)


@on_asyncio
async def test_event_behind_the_close_of_a_generator(hang: Callable[[str], None]) -> None:
    """Its task has gone, and what the close enqueues has no task either."""
    closes: list[bool] = []

    def halves() -> Generator[None, None, None]:
        gate.hold(stream)
        try:
            yield
        finally:
            closes.append(True)
            more.hold(stream)
            hang("cuEventRecordWithFlags")

    async with Stream(stalled_after=LIMIT) as stream:
        with Gate() as more:
            with Gate() as gate:
                task = asyncio.ensure_future(stream.run(halves))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            while not closes:
                await asyncio.sleep(0.001)


@on_asyncio
@pytest.mark.parametrize("call", ["cuStreamQuery", "cuEventRecordWithFlags"])
async def test_pool_that_takes_a_stream_back(hang: Callable[[str], None], call: str) -> None:
    async with StreamPool(1, stalled_after=LIMIT) as pool:
        with Gate() as gate:
            async with pool.stream() as stream:
                gate.hold(stream)
                hang(call)
