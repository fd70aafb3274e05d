"""Mistakes that are easy to make: each error says what to write instead."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import aiostream
import internals
from aiostream import serving, trace
from aiostream.testing import check, spin


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


@pytest.mark.parametrize(
    ("keyword", "write"),
    [
        ("timeout", r"asyncio\.timeout\(1\).*anyio\.fail_after\(1\)"),
        ("limiter", r"StreamPool\(2\)"),
        ("priority", r"StreamPool\(4, priority=-1\)"),
    ],
)
async def test_a_keyword_that_the_function_gets(keyword: str, write: str) -> None:
    call: Any

    def needs(*, timeout: int, limiter: int, priority: int) -> None:
        raise AssertionError

    async with aiostream.StreamPool(1) as pool, aiostream.Stream() as stream:
        for call in (stream.run, pool.run, stream.run_in_thread, stream.enqueue_async):
            with pytest.raises(TypeError, match="unexpected keyword") as found:
                await call(lambda *_: None, **{keyword: 3})
            said = f"{call.__name__} passes keywords to fn. In place of {keyword}=, write "
            assert found.match(said + f".*{write}")
            with pytest.raises(TypeError) as found:
                await call(needs)
            assert "keywords" not in str(getattr(found.value, "__notes__", ""))


def decorated(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


@decorated
def score(items: list[int]) -> list[int]:
    if not items:
        fails_itself()
    return items


async def test_a_decorated_function_without_what_belongs_to_the_stream() -> None:
    """Such as torch's `inference_mode()`, whose frame is between."""
    call: Any
    async with aiostream.StreamPool(1, each=Replica) as pool:
        for call in (pool.run, pool.run_in_thread):
            with pytest.raises(TypeError, match=r"A pool with `each` calls fn\(own, \*args\)"):
                await call(score, [1])
            with pytest.raises(TypeError) as found:
                await call(decorated(fails_itself))
            assert not hasattr(found.value, "__notes__")
    async with aiostream.Stream() as stream:
        with pytest.raises(TypeError) as found:
            await stream.run(score, [])
        assert not hasattr(found.value, "__notes__")


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_value_at_the_yield(in_thread: bool) -> None:
    def halves() -> Iterator[int]:
        yield 3

    call: Any
    async with aiostream.Stream() as stream:
        call = stream.run_in_thread if in_thread else stream.run
        with pytest.raises(TypeError, match="write `yield`, and `return` the result behind it"):
            await call(halves)


def test_a_thread_with_a_loop_of_its_own() -> None:
    async def main() -> None:
        async with aiostream.StreamPool(1) as pool, pool.stream():
            with pytest.raises(RuntimeError, match=r"run_coroutine_threadsafe\(coroutine, loop\)"):
                await asyncio.to_thread(lambda: asyncio.run(pool.run(int)))

    asyncio.run(main())


def test_what_check_unpacks() -> None:
    cuda = internals.bindings()
    with ThreadPoolExecutor(1) as fresh:  # a thread without a current context
        refused = fresh.submit(cuda.cuMemAlloc, 1024).result()
    advice = r"INVALID_CONTEXT.*`with stream\.context\.as_current\(\):`"
    with pytest.raises(aiostream.CudaError, match=advice):
        check(refused)
    answer: Any = 0
    with pytest.raises(TypeError, match=r"the tuple that a function of cuda\.bindings"):
        check(answer)


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
