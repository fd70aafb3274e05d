"""What is current for a block: a context, and the stream of another library; and that a block with
an await is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint as one_turn

import internals
from aiostream import (
    Context,
    ContextFailedError,
    Device,
    Stream,
    StreamClosedError,
    StreamPool,
    WaitStrategy,
    statistics,
)
from foreign import (
    CupyStream,
    TheirStream,
    TorchStream,
    current_handles,
    currents,
    install_libraries,
)
from support import LOOPS, run_on, spin


@pytest.fixture
def context(driver_kind: str) -> Context:
    return Device(0).primary_context


@pytest.mark.parametrize("inner", [False, True], ids=["alone", "round others"])
async def test_await_in_a_block_is_noticed(context: Context, inner: bool) -> None:
    """Also when no other task ran meanwhile. Blocks without an await are fine."""
    before = Context.get_current()
    with pytest.raises(RuntimeError, match="await in a block of as_current"), context.as_current():
        with context.as_current() if inner else contextlib.nullcontext():
            pass
        await one_turn()
        with context.as_current() if inner else contextlib.nullcontext():
            pass
    assert Context.get_current() == before


async def test_error_of_the_block_goes_first(context: Context) -> None:
    before = Context.get_current()
    with pytest.raises(KeyError, match="mine") as caught, context.as_current():
        await one_turn()
        raise KeyError("mine")
    assert "await in a block" in caught.value.__notes__[0]
    with pytest.raises(KeyError) as caught, context.as_current():
        raise KeyError("mine")
    assert not hasattr(caught.value, "__notes__")
    assert Context.get_current() == before


@pytest.mark.parametrize("ends", [(1, 2, 4), (4, 2, 1)], ids=str)
async def test_blocks_of_tasks_that_await_leave_nothing_behind(
    driver_kind: str, ends: tuple[int, ...]
) -> None:
    """Each ends while the others' contexts lie above or below its own."""
    before = Context.get_current()
    noticed = []

    async def block(number: int, turns: int) -> None:
        try:
            with Device(number % Device.count()).primary_context.as_current():
                for _ in range(turns):
                    await one_turn()
        except RuntimeError:
            noticed.append(turns)

    async with anyio.create_task_group() as group:
        for number, turns in enumerate(ends):
            group.start_soon(block, number, turns)
    assert sorted(noticed) == [1, 2, 4]
    assert Context.get_current() == before


# ----------------------------------------------------------------------- streams of other libraries


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    install_libraries(monkeypatch)


NOTHING = {"torch": None, "cupy": None}


def raise_key_error(_: Stream) -> None:
    assert current_handles() != NOTHING
    raise KeyError("mine")


@pytest.mark.parametrize("strategy", list(WaitStrategy))
@pytest.mark.parametrize("library", ["torch", "cupy"])
async def test_shared_stream_is_current_in_fn(
    libraries: None, library: str, strategy: WaitStrategy
) -> None:
    stream = Stream(wait=strategy)
    assert await stream.enqueue_async(lambda _: current_handles()) == NOTHING
    getattr(stream, library)()
    for call in (
        *(stream.enqueue_async, stream.enqueue_in_thread),
        *(lambda fn: stream.run(fn, stream), lambda fn: stream.run_in_thread(fn, stream)),
    ):
        handles = await call(lambda _: current_handles())
        assert handles == {**NOTHING, library: stream.handle}
        assert current_handles() == NOTHING
        with pytest.raises(KeyError, match="mine"):
            await call(raise_key_error)
        assert current_handles() == NOTHING
    await stream.aclose()


@pytest.mark.parametrize("has_new", [False, True], ids=["before 14", "cupy 14"])
async def test_cupy_makes_the_stream_that_it_recommends(
    libraries: None, monkeypatch: pytest.MonkeyPatch, has_new: bool
) -> None:
    if not has_new:  # and `ExternalStream` does not warn
        monkeypatch.setattr(sys.modules["cupy"].cuda, "ExternalStream", CupyStream)
        monkeypatch.delattr(CupyStream, "from_external")
    async with Stream() as stream:
        made = stream.cupy()
        assert (made.ptr, made.where) == (stream.handle, (0,))
        assert await stream.run(current_handles) == {**NOTHING, "cupy": stream.handle}


@pytest.mark.parametrize("kind", [TorchStream, CupyStream])
async def test_borrowed_stream_is_current_in_fn(
    stream: Stream, libraries: None, kind: type[TheirStream]
) -> None:
    borrowed = Stream.borrow(kind(stream.handle))
    handles = await borrowed.enqueue_async(lambda _: current_handles())
    assert handles == {**NOTHING, kind.__module__.partition(".")[0]: stream.handle}
    borrowed.close()


async def test_stream_of_a_pool_is_shared_once_for_all(libraries: None) -> None:
    """It is current in both libraries."""
    async with StreamPool(1) as pool:
        async with pool.stream() as taken:
            taken.torch()
            taken.cupy()
        async with pool.stream() as taken:
            handles = await taken.enqueue_async(lambda _: current_handles())
            assert handles == dict.fromkeys(NOTHING, taken.handle)


async def test_stream_is_current_for_a_block(
    stream: Stream, other: Stream, libraries: None
) -> None:
    before = Context.get_current()
    with stream.as_current() as same:
        assert same is stream
        assert Context.get_current() == stream.context
        assert current_handles() == NOTHING
    stream.torch()
    other.torch()
    with stream.as_current():
        with other.as_current():
            assert current_handles()["torch"] == other.handle
        assert current_handles()["torch"] == stream.handle
    with pytest.raises(KeyError, match="mine"), stream.as_current():
        raise KeyError("mine")
    with pytest.raises(RuntimeError, match="await in a block of as_current"), stream.as_current():
        await one_turn()
    assert current_handles() == NOTHING
    assert Context.get_current() == before
    stream.close()
    with pytest.raises(StreamClosedError), stream.as_current():
        pass


async def test_stream_that_is_closed_within_the_block_lives_to_its_end(libraries: None) -> None:
    stream = Stream()
    with stream.as_current():
        handle = stream.handle
        stream.close()
        spin(Stream.borrow(handle), 0)
    assert statistics().handles.open == 0
    assert Context.get_current() is None


async def test_what_a_library_cannot_make_current_is_reported_before_fn_runs(
    libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: CupyStream) -> CupyStream:
        raise OSError("cupy does not want to")

    monkeypatch.setattr(CupyStream, "__enter__", refuse)
    stream = Stream()
    stream.torch()
    stream.cupy()
    called: list[Any] = []
    with pytest.raises(OSError, match="does not want to"):
        await stream.enqueue_async(called.append)
    assert not called
    assert current_handles() == NOTHING
    assert Context.get_current() is None
    await stream.aclose()


async def test_errors_of_fn_and_of_a_library_are_reported_as_of_a_with_block(
    libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, again = KeyError("mine"), False

    def fn(_: Stream) -> None:
        raise mine

    def refuse(*_: object) -> None:
        if again:
            raise mine
        try:
            raise ValueError("inside")
        except ValueError:
            raise OSError("theirs")  # noqa: B904

    monkeypatch.setattr(CupyStream, "__exit__", refuse)
    async with Stream() as stream:
        stream.cupy()
        with pytest.raises(OSError, match="theirs") as caught:
            await stream.enqueue_async(fn)
        inside = caught.value.__context__
        assert isinstance(inside, ValueError)
        assert inside.__context__ is mine
        assert mine.__traceback__ is not None
        again = True
        with pytest.raises(KeyError, match="mine"):
            await stream.enqueue_async(fn)
        assert mine.__context__ is None
        try:
            raise LookupError("the caller handles it")
        except LookupError:
            handled = sys.exc_info()
            with pytest.raises(KeyError, match="mine"):
                await stream.enqueue_async(fn)
            is_same = sys.exc_info() == handled
        assert is_same
    currents.cupy.clear()


# ------------------------------------------------------------------------------ what a review found


@pytest.mark.skipif("asyncio-eager" not in LOOPS, reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("loop_kind", ["asyncio-eager"])
async def test_eager_child_that_awaits_in_a_block_leaves_nothing(
    loop_kind: str, context: Context
) -> None:
    """Its block begins within the parent's block, and ends after it."""
    before = Context.get_current()
    other = Device(Device.count() - 1).primary_context
    noticed = []

    async def child() -> None:
        with pytest.raises(RuntimeError, match="await in a block"), other.as_current():
            await one_turn()
        noticed.append(True)

    with context.as_current():
        task = asyncio.ensure_future(child())
    await task
    with context.as_current():
        pass
    assert noticed == [True]
    assert Context.get_current() == before


def test_block_that_is_left_in_another_thread_is_noticed(context: Context) -> None:
    """As web frameworks run a generator dependency in a pool of threads."""
    block = context.as_current()

    def enter() -> None:
        block.__enter__()
        with context.as_current():
            pass

    def leave() -> None:
        with context.as_current():
            with pytest.raises(RuntimeError, match="in another thread than it was entered in"):
                block.__exit__(None, None, None)
            assert Context.get_current() == context
        assert Context.get_current() is None

    for step in (enter, leave):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(step).result()


@pytest.mark.parametrize("error", [None, KeyError("mine")], ids=["no error", "an error"])
def test_block_that_is_left_outside_its_trio_run(context: Context, error: KeyError | None) -> None:
    block = context.as_current()

    async def main() -> None:
        block.__enter__()

    run_on("trio", main)
    if error is None:
        with pytest.raises(RuntimeError, match="await in a block"):
            block.__exit__(None, None, None)
    else:
        with contextlib.suppress(KeyError):
            block.__exit__(KeyError, error, None)
        assert "await in a block" in error.__notes__[0]
    assert Context.get_current() is None


def test_destroyed_context_is_not_made_current() -> None:
    """On a GPU that crashes the process."""
    handle = internals.create_context()
    context = Context.from_handle(int(handle))
    with context.as_current():
        stream = Stream()
    internals.driver_call("cuCtxDestroy", handle)
    with pytest.raises(ContextFailedError, match="709"), context.as_current():
        pass
    with pytest.raises(ContextFailedError, match="709"), stream.as_current():
        pass
    assert Context.get_current() is None
    stream.close()
