"""StreamPool.borrow: a pool of different streams of another library."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import Stream, StreamClosedError, StreamPool, WaitStrategy, statistics
from foreign import TorchStream, current_handles, install_libraries
from support import Gate, spin
from waiters import until


@pytest.fixture
def owners() -> Any:
    streams = [Stream() for _ in range(3)]
    yield streams
    for stream in streams:
        stream.close()


async def test_streams_of_torch_are_given_and_never_destroyed(
    monkeypatch: pytest.MonkeyPatch, owners: list[Stream]
) -> None:
    install_libraries(monkeypatch)
    theirs = [TorchStream(owner.handle) for owner in owners]
    destroyed = statistics().handles.destroyed
    async with StreamPool.borrow(theirs, wait="event") as pool:
        assert (pool.size, pool.idle) == (3, 3)
        seen = []
        async with contextlib.AsyncExitStack() as taken:
            for _ in range(3):
                stream = await taken.enter_async_context(pool.stream())
                assert stream.wait_strategy is WaitStrategy.EVENT
                seen.append(await stream.enqueue_async(lambda _: current_handles()["torch"]))
        assert seen == [stream.handle for stream in theirs]
    assert statistics().handles.destroyed == destroyed
    for owner in owners:
        spin(owner, 0)
        await owner.synchronize_async()


def test_equal_streams_and_none_at_all_are_refused(owners: list[Stream]) -> None:
    says = r"streams 0 and 2 are one \(handle 0x[0-9a-f]+\), .* torch hands out 32"
    with pytest.raises(ValueError, match=says):
        StreamPool.borrow([owners[0], owners[1], owners[0].handle])
    with pytest.raises(ValueError, match="are one"):
        StreamPool.borrow([0, Stream.legacy()])  # which has two handles
    with pytest.raises(ValueError, match="at least one"):
        StreamPool.borrow([])
    with pytest.raises(TypeError, match="a CUDA stream is needed"):
        StreamPool.borrow([owners[0], "stream"])
    with pytest.raises(ValueError, match="wait is one of"):
        StreamPool.borrow(owners, wait="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no fewer than 0"):
        StreamPool.borrow(owners, max_waiting=-1)


def test_streams_of_two_contexts_are_refused(stream: Stream) -> None:
    handle = internals.create_context()
    with aiostream.Context.from_handle(int(handle)).as_current():
        there = Stream()
    assert there.device == stream.device == aiostream.Device(0)
    with pytest.raises(ValueError, match="streams 0 and 1 live in different contexts"):
        StreamPool.borrow([stream, there])
    there.close()
    internals.driver_call("cuCtxDestroy", handle)


def test_borrowed_stream_has_the_wait_strategy_of_its_call(owners: list[Stream]) -> None:
    assert Stream.borrow(owners[0], wait="spin").wait_strategy is WaitStrategy.SPIN
    hostfunc = WaitStrategy.HOSTFUNC
    assert Stream.borrow(owners[0].handle, wait=hostfunc).wait_strategy is hostfunc
    assert Stream.borrow(Stream.borrow(owners[0], wait="spin")).wait_strategy is WaitStrategy.SPIN


async def test_pool_goes_on_without_a_stream_that_its_owner_has_closed() -> None:
    owners = [Stream() for _ in range(3)]
    with Gate() as gate:
        async with StreamPool.borrow(owners) as pool:
            async with pool.stream() as stream:
                gate.hold(stream)
                owners[0].close()
            assert (pool.size, pool.lent, pool.idle) == (2, 0, 2)
            owners[1].close()
            with pytest.raises(StreamClosedError):
                await pool.run(int)
            await pool.run(int)
            assert (pool.size, pool.lent, pool.idle) == (1, 0, 1)
            owners[2].close()
            with pytest.raises(StreamClosedError):
                async with pool.stream() as stream:
                    await stream.synchronize_async()
            assert pool.closed
            with pytest.raises(StreamClosedError):
                await pool.acquire()
            gate.open()


async def test_owner_that_closes_a_stream_while_it_comes_back(owners: list[Stream]) -> None:
    """Between the pool's question, whether its work is done, and the event behind that work."""
    owner, handle = owners[0], owners[0].handle
    refused: list[str] = []

    def replace(original: Callable[..., int]) -> Callable[..., int]:
        def query_and_close(asked: int) -> int:
            code = original(asked)
            if asked == handle and code == 600:
                owner.close()
            return code

        return query_and_close

    async def wait_for_a_stream() -> None:
        with pytest.raises(StreamClosedError) as raised:
            await pool.acquire()
        refused.append(str(raised.value))

    pool = StreamPool.borrow([owner])
    with Gate() as gate:
        stream = await pool.acquire()
        gate.hold(stream)
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_a_stream)
            await until(lambda: pool.waiting == 1)
            signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
            with internals.native_call_replaced("cuStreamQuery", signature, replace):
                pool.release(stream)
        assert owner.closed
        gate.open()
    assert refused == ["the owners have closed all streams of the pool"]
    assert (pool.lent, pool.idle, pool.busy, pool.waiting) == (0, 0, 0, 0)
    pool.close()


async def test_owner_that_closes_a_capturing_stream_while_it_comes_back(
    owners: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the pool asks for the capture, which it is about to end."""
    owner, driver = owners[0], internals.bindings()

    def closed_first(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            owner.close()
            return original(*args)

        return ask

    async with StreamPool.borrow([owner]) as pool:
        stream = await pool.acquire()
        stream.begin_capture(aiostream.CaptureMode.RELAXED)
        with monkeypatch.context() as patch:
            for name in dir(driver):
                if name.startswith("cuStreamGetCaptureInfo"):
                    patch.setattr(driver, name, closed_first(getattr(driver, name)))
            pool.release(stream)
        assert owner.closed
        with pytest.raises(StreamClosedError):
            await pool.acquire()
