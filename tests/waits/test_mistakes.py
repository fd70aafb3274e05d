"""Mistakes that are easy to make: each error says what to write instead."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import aiostream
from aiostream import serving, trace
from aiostream.testing import spin


def fails_itself(*_: Any) -> None:
    raise TypeError("its own")


async def test_a_function_that_takes_no_stream_or_wants_one() -> None:
    call: Any
    async with aiostream.Stream() as stream:
        for call, wrong, says in (
            (stream.enqueue_async, lambda: None, "calls fn("),
            (stream.enqueue_in_thread, lambda: None, "calls fn("),
            (stream.run, lambda stream: None, "without the stream"),
            (stream.run_in_thread, lambda stream: None, "without the stream"),
        ):
            with pytest.raises(TypeError) as found:
                await call(wrong)
            assert says in found.value.__notes__[0]
            first = [] if "enqueue" in call.__name__ else [stream]
            for fails, args in ((fails_itself, []), (spin, [*first, "1"])):  # of the library too
                with pytest.raises(TypeError) as found:
                    await call(fails, *args)
                assert not hasattr(found.value, "__notes__")


class Replica:
    def __init__(self, stream: aiostream.Stream) -> None:
        pass

    def score(self, items: list[int]) -> list[int]:
        return items


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("traced", [False, True])
async def test_a_bound_method_of_what_belongs_to_a_stream(
    in_thread: bool, traced: bool, tmp_path: Path
) -> None:
    """Each way into a pool with `each` says that the method comes without its object."""
    call: Any
    async with aiostream.StreamPool(1, each=Replica) as pool, pool.stream() as stream:
        bound: Any = stream.own.score
        pool.release(stream)
        async with serving.Batches(pool, bound, most=2, in_thread=in_thread) as scored:
            record = trace.record(tmp_path / "trace.json") if traced else contextlib.nullcontext()
            with record:
                for call in (pool.run_in_thread if in_thread else pool.run, scored):
                    with pytest.raises(TypeError) as found:
                        await call(*([] if call is scored else [bound]), [1])
                    assert found.value.__notes__[0].startswith("A pool with `each` calls fn(own")
                    # A trace calls the method by a function of its own.
                    assert traced or "`Replica.score` alone" in found.value.__notes__[0]
        stream = await pool.acquire()
        with pytest.raises(TypeError) as found:
            await (stream.run_in_thread if in_thread else stream.run)(bound)
        assert "without the stream" in found.value.__notes__[0]
        pool.release(stream)


async def test_a_block_of_a_pool_is_no_stream() -> None:
    async with aiostream.StreamPool(1) as pool:
        block: Any = pool.stream()
        with pytest.raises(AttributeError, match=r"async with pool.stream\(\) as stream:"):
            block.enqueue_async(spin, 0.001)
        assert not hasattr(block, "__len__")


async def test_as_completed_without_async() -> None:
    async with aiostream.Stream() as stream:
        futures: Any = aiostream.as_completed([stream.completion_future()])
        with pytest.raises(TypeError, match="async for"):
            for _ in futures:
                pass
        assert [future.done() async for future in futures] == [True]


async def test_an_await_in_a_capture() -> None:
    async with aiostream.Stream() as stream:
        with (
            stream.capture() as capture,
            pytest.raises(aiostream.StreamCaptureError, match="Call it after the `with` block of"),
        ):
            await stream.synchronize_async()
        with pytest.raises(RuntimeError, match=r"graph.instantiate\(\).*capture_executable\(\)"):
            _ = capture.executable
        capture.graph.close()


def test_a_spin_of_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="-1"):
        spin(1, -1)
