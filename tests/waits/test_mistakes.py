"""Mistakes that are easy to make: each error says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

import aiostream
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
            for fails in (fails_itself, spin):  # the second is the library's, and has begun too
                with pytest.raises(TypeError) as found:
                    await call(fails, *([stream, "1"] if fails is spin else []))
                assert not hasattr(found.value, "__notes__")


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
