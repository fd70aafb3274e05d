"""The futures that trio is given: they keep to asyncio's rules, and to the run that made them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import threading
import traceback
from typing import Any

import pytest

import aiostream
import internals
from aiostream import CompletionFuture, CudaError, Stream
from support import Gate, held_stream, run_as_guest, settle
from waiters import until

trio = pytest.importorskip("trio")
pytest.importorskip("trio.testing")

ANOTHER_RUN = "belongs to another run of trio"
on_trio = pytest.mark.parametrize("loop_kind", ["trio"])


async def held_future(stream: Stream, gate: Gate) -> CompletionFuture[None]:
    gate.hold(stream)
    return stream.completion_future()


# ---------------------------------------------------------------------------------- asyncio's rules


async def test_a_callback_runs_in_its_loop_with_the_variables_of_its_registration() -> None:
    """On each loop: asyncio's futures do so."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    seen: list[tuple[str, int]] = []

    def note(future: Any) -> None:
        seen.append((variable.get(), threading.get_ident()))
        assert future.result() is None

    with Gate() as gate:
        async with held_stream(gate) as stream:
            future = stream.completion_future()
            variable.set("registered")
            future.add_done_callback(note)
            variable.set("given")
            future.add_done_callback(note, context=contextvars.copy_context())
            variable.set("later")
            gate.open()
            await future
            future.add_done_callback(note)  # it is done
            variable.set("at last")
            await stream.completion_future()
            await aiostream.drain(10)
    await until(lambda: len(seen) == 3)
    assert seen == [(each, threading.get_ident()) for each in ("registered", "given", "later")]


async def test_a_cancelled_future_says_what_it_was_given(loop_kind: str, cuda_gate: Gate) -> None:
    errors = concurrent.futures if loop_kind == "trio" else asyncio
    async with held_stream(cuda_gate) as stream:
        future = stream.completion_future()
        assert future.cancel(msg="no longer needed")
        assert future.cancelled()
        assert not future.cancel("again")
        cuda_gate.open()
        with pytest.raises(errors.CancelledError) as caught:
            await future
        assert caught.value.args == ("no longer needed",)


@on_trio
async def test_a_future_says_how_it_is(cuda_gate: Gate) -> None:
    async with held_stream(cuda_gate) as stream:
        future = stream.enqueue_async(lambda on: 7)
        assert repr(future).startswith("<TrioFuture pending, test_a_future_says_how_it_is.")
        for read in (future.result, future.exception):
            with pytest.raises(concurrent.futures.InvalidStateError):
                read()
        cuda_gate.open()
        await future
        assert repr(future) == "<TrioFuture finished result=7>"
        assert (future.result(), future.exception()) == (7, None)
        given_up = stream.completion_future()
        given_up.cancel()
        assert repr(given_up) == "<TrioFuture cancelled>"
        assert repr(stream.completion_future()) == "<TrioFuture pending>"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("wrong")])
def test_what_a_callback_raises_does_not_end_the_run(
    unraisable: list[Any], error: BaseException
) -> None:
    def fail(_: Any) -> None:
        raise error

    async def main() -> None:
        async with Stream() as stream:
            future = stream.completion_future()
            called = trio.Event()
            future.add_done_callback(fail)
            future.add_done_callback(lambda _: called.set())
            await future
            await called.wait()

    trio.run(main)
    assert [each[:2] for each in unraisable] == [(type(error), str(error))]


# ----------------------------------------------------------------------------------------- failures


@on_trio
@pytest.mark.parametrize(
    "error", [internals.driver_error(700, "cuEventQuery", "a stream"), ValueError("wrong")]
)
async def test_tasks_that_await_one_future_share_no_traceback(
    error: Exception, cuda_gate: Gate
) -> None:
    caught: list[Exception] = []

    async def wait_for(future: Any) -> None:
        try:
            await future
        except Exception as problem:
            caught.append(problem)

    async with held_stream(cuda_gate) as stream:
        future = stream.completion_future()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait_for, future)
            await trio.testing.wait_all_tasks_blocked()
            internals.fail_future(future, error)
        assert future.exception() is error
        cuda_gate.open()
    assert [(type(problem), str(problem)) for problem in caught] == [(type(error), str(error))] * 3
    lengths = {len(traceback.extract_tb(problem.__traceback__)) for problem in caught}
    assert len(lengths) == 1
    if isinstance(error, CudaError):
        assert len(set(map(id, caught))) == 3
        assert {problem.code for problem in caught if isinstance(problem, CudaError)} == {700}


# -------------------------------------------------------------------------------------- another run


def test_a_future_of_another_run_is_refused_and_its_run_goes_on() -> None:
    """It was waited for there: then its own run failed with an internal error of trio's, and the
    stranger hung.
    """
    made, refused = threading.Event(), threading.Event()
    futures: list[Any] = []

    async def own(stream: Stream, gate: Gate) -> None:
        futures.append(await held_future(stream, gate))
        made.set()
        assert await trio.to_thread.run_sync(refused.wait, 10)
        gate.open()
        await futures[0]

    async def be_a_stranger() -> None:
        with pytest.raises(RuntimeError, match=ANOTHER_RUN):
            await futures[0]

    with Gate() as gate:
        stream = Stream()
        owner = threading.Thread(target=trio.run, args=(own, stream, gate))
        owner.start()
        try:
            assert made.wait(10)
            trio.run(be_a_stranger)
            asyncio.run(be_a_stranger())
        finally:
            refused.set()
            owner.join(30)
        assert not owner.is_alive()
        assert futures[0].result() is None
        # As asyncio's: a future that is done can be awaited anywhere.
        trio.run(await_done, futures[0])
        asyncio.run(await_done(futures[0]))
        stream.close()


async def await_done(future: Any) -> None:
    assert await future is None


def test_the_host_of_a_guest_run_does_not_await_its_futures() -> None:
    futures: list[Any] = []

    async def guest(stream: Stream, gate: Gate) -> None:
        futures.append(await held_future(stream, gate))
        await futures[0]

    async def host() -> None:
        with Gate() as gate:
            async with Stream() as stream:
                ended = run_as_guest(guest, stream, gate)
                while not futures:
                    await asyncio.sleep(0)
                with pytest.raises(RuntimeError, match=ANOTHER_RUN):
                    await futures[0]
                gate.open()
                (await ended).unwrap()

    asyncio.run(host())


async def begin_held(stream: Stream, kind: str, called: list[Any]) -> Any:
    future = getattr(stream, kind)(*[lambda on: None][: kind == "enqueue_async"])
    future.add_done_callback(called.append)
    return future


@pytest.mark.parametrize(
    "kind", ["completion_future", "checked_completion_future", "enqueue_async"]
)
def test_a_future_whose_run_has_ended_is_cancelled(kind: str) -> None:
    called: list[Any] = []

    async def second(future: Any, expected: type[Exception], match: str) -> None:
        with pytest.raises(expected, match=match):
            await future

    with Gate() as gate:
        stream = held_stream(gate)
        future, given_up = (trio.run(begin_held, stream, kind, called) for _ in range(2))
        # In place of a wait that nothing would end.
        trio.run(second, future, RuntimeError, ANOTHER_RUN)
        assert not future.done()
        assert given_up.cancel()
        assert given_up.cancelled()
        gate.open()
        gc.collect()
        assert settle(future.done)
        trio.run(
            second,
            future,
            concurrent.futures.CancelledError,
            "the run of trio to which the future belonged has ended",
        )
        asyncio.run(second(future, concurrent.futures.CancelledError, "has ended"))
        assert future.cancelled()
        stream.close()
    assert called == []
