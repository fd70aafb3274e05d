"""StreamPool: what a task gets is its own until it gives it back, and refused afterwards."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import (
    CaptureStatus,
    Event,
    Graph,
    Stream,
    StreamClosedError,
    StreamPool,
    drain,
    pending,
    serving,
    statistics,
)
from foreign import current_handles, install_libraries
from support import Gate, new_uvloop, settle, spin
from waiters import end_lost_task, until, use_once


class Replica:
    """What belongs to a stream: it keeps the stream, and notes who has used it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.used_by = list[str]()

    def step(self, who: str) -> str:
        """Works on the stream that `each` got."""
        spin(self.stream, 0)
        self.used_by.append(who)
        return who


# -------------------------------------------------------------------------- after the end of a loan

CALLS: dict[str, Callable[[Any], Any]] = {
    "run": lambda stream: stream.run(int),
    "run_in_thread": lambda stream: stream.run_in_thread(int),
    "enqueue_in_thread": lambda stream: stream.enqueue_in_thread(repr),
    "synchronize_async": lambda stream: stream.synchronize_async(),
    "await": lambda stream: stream,
    "async with": lambda stream: stream.__aenter__(),
}
PLAIN: dict[str, Callable[[Any], object]] = {
    "synchronize": lambda stream: stream.synchronize(),
    "query": lambda stream: stream.query(),
    "completion_future": lambda stream: stream.completion_future(),
    "checked_completion_future": lambda stream: stream.checked_completion_future(),
    "enqueue_async": lambda stream: stream.enqueue_async(repr),
    "launch_host_func": lambda stream: stream.launch_host_func(int),
    "add_callback": lambda stream: stream.add_callback(int),
    "spin": lambda stream: spin(stream, 0),
    "begin_capture": lambda stream: stream.begin_capture(),
    "capture": lambda stream: stream.capture().__enter__(),
    "capture_status": lambda stream: stream.capture_status(),
    "as_current": lambda stream: stream.as_current().__enter__(),
    "Stream.borrow": lambda stream: Stream.borrow(stream),
    "to_borrowed": lambda stream: stream.to_borrowed(),
    "StreamPool.borrow": lambda stream: StreamPool.borrow([stream]),
    "set_attribute": lambda stream: stream.copy_attributes(stream),
    "own": lambda stream: stream.own,
}


async def refuses(stream: Stream, but: str = "") -> None:
    """All that uses a stream is refused, also if another task has that stream now."""
    with Event() as event, Graph() as graph, graph.instantiate() as executable:
        with_others: dict[str, Callable[[Any], object]] = {
            "record": lambda stream: event.record(stream),
            "wait_event": lambda stream: stream.wait_event(event),
            "completion_future_on": lambda stream: event.completion_future_on(stream),
            "launch": lambda stream: executable.launch(stream),
            "upload": lambda stream: executable.upload(stream),
        }
        for name, call in (PLAIN | with_others).items():
            if name != but:
                with pytest.raises(StreamClosedError, match="is closed: its block has ended"):
                    pytest.fail(f"{name} gave {call(stream)!r}")
        for wait in (*CALLS.values(), executable.launch_async, executable.launch_and_wait):
            with pytest.raises(StreamClosedError):
                await wait(stream)
    assert stream.closed


@pytest.mark.parametrize("end", ["block", "release"])
async def test_a_loan_that_has_ended_is_refused_whoever_has_the_stream(end: str) -> None:
    async with StreamPool(1, each=Replica) as pool:
        if end == "block":
            async with pool.stream() as stream:
                assert not stream.closed
        else:
            pool.release(stream := await pool.acquire())
        await refuses(stream)
        async with pool.stream() as other:
            other.own.used_by.append("other")
            await refuses(stream)
            assert other.query()
        await refuses(stream)
        assert (pool.idle, pool.lent) == (1, 0)
        assert statistics().points.pending == 0


async def test_what_names_a_loan_goes_on_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As objects need it that free their memory in the order of the stream."""
    async with StreamPool(2, name="model") as pool:
        async with pool.stream() as first, pool.stream() as second:
            names = first.handle, first.device, first.context, first.name, hash(first)
            text = repr(first)
            assert first != second
        # torch may use the handle, so it shares the stream.
        install_libraries(monkeypatch)
        assert (first.handle, first.device, first.context, first.name, hash(first)) == names
        assert (int(first), first.__cuda_stream__()) == (names[0], (0, names[0]))
        assert repr(first) == text.replace(">", ", given back>")
        async with pool.stream() as again:
            assert isinstance(again, Stream)
            assert type(again).__name__ == "Stream"
            assert (again == first, first == again, hash(again) == hash(first)) == (True,) * 3
            assert {first: "a"}[again] == "a"
            assert (second == again, second == 3) == (False, False)
        first.close()  # as of any stream that is closed
        assert pool.idle == 2
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.copy(first)
    with pytest.raises(StreamClosedError):
        _ = first.handle


@pytest.mark.all_loops
async def test_what_a_loan_has_begun_goes_on_after_its_end() -> None:
    async with StreamPool(1) as pool:
        with Gate() as gate:
            async with pool.stream() as stream:
                gate.hold(stream)
                futures = [stream.completion_future(), stream.enqueue_async(lambda _: 3)]
                with stream.may_take(60):
                    pool.release(stream)
            gate.open()
            assert [await future for future in futures] == [None, 3]
        async with pool.stream() as stream:
            with stream.capture_executable() as capture:
                spin(stream, 0)
            scope = stream.capture()
            scope.__enter__()
        async with pool.stream() as other:  # the release has ended that capture
            assert other.capture_status() is CaptureStatus.NONE
            with pytest.raises(StreamClosedError):
                scope.__exit__(None, None, None)
            with capture.executable as executable:
                await executable.launch_and_wait(other)


async def test_what_is_borrowed_from_a_loan_ends_with_it() -> None:
    async with StreamPool(1) as pool:
        async with pool.stream() as stream:
            borrowed = [stream.to_borrowed(), Stream.borrow(stream, name="mine")]
            borrowed.append(borrowed[1].to_borrowed())
            assert {type(each) for each in borrowed} == {Stream}
            for each in borrowed:
                await each.run(int)
            assert all(each == stream for each in borrowed)
        for each in borrowed:
            await refuses(each, but="own")
        await use_once(pool)


async def test_attributes_of_a_loan_are_of_that_request_alone() -> None:
    async with StreamPool(1) as pool:
        async with pool.stream() as stream:
            stream.of_mine = True  # type: ignore[attr-defined]
        async with pool.stream() as again:
            assert not hasattr(again, "of_mine")


async def test_a_loan_of_a_closed_pool_lasts_until_its_end() -> None:
    pool = StreamPool(1, each=Replica)
    async with pool.stream() as stream:
        pool.close()
        assert await stream.run(stream.own.step, "late") == "late"
    await refuses(stream)
    with pytest.raises(StreamClosedError):
        _ = stream.handle  # the stream is destroyed


def test_loans_of_a_former_loop_end_when_another_one_takes_the_pool() -> None:
    pool = StreamPool(1)
    kept = asyncio.run(until_closed(pool))
    assert kept.query()  # the pool does not know yet that the loop is gone

    async def use() -> None:
        async with pool.stream() as stream:
            await refuses(kept, but="own")
            with pytest.raises(ValueError, match="given back before"):
                pool.release(kept)
            assert stream.query()

    asyncio.run(use())
    pool.close()


async def until_closed(pool: StreamPool[Any]) -> Stream:
    """A task that ends with a stream."""
    return await pool.acquire()


async def test_a_library_has_its_current_stream_in_a_loan_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_libraries(monkeypatch)
    async with StreamPool(1) as pool:
        async with pool.stream() as stream:
            theirs: Any = stream.torch()
            assert (await stream.run(current_handles))["torch"] == theirs.cuda_stream
        for make in (stream.torch, stream.cupy, stream.numba):
            with pytest.raises(StreamClosedError):
                make()
        assert (await pool.run(current_handles))["torch"] == theirs.cuda_stream


# -------------------------------------------------------------------------------- what `each` keeps


async def test_what_each_keeps_is_refused_while_no_task_has_the_stream() -> None:
    async with StreamPool(1, each=Replica) as pool:
        async with pool.stream() as stream:
            own = stream.own
            assert own.stream == stream
            assert own.stream.own is own
            assert await own.stream.run(own.step, "block") == "block"
        await refuses(own.stream)
        assert own.stream.handle == stream.handle
        assert await pool.run(Replica.step, "run") == "run"
        await refuses(own.stream)
        assert await pool.run_in_thread(Replica.step, "thread") == "thread"
        async with serving.Batches(pool, batch_of, most=2) as batches:
            assert await batches("batch") == "batch"
        await refuses(own.stream)
        assert own.used_by == ["block", "run", "thread", "batch"]


def batch_of(own: Replica, items: list[str]) -> list[str]:
    """What `Batches` runs."""
    return [own.step(item) for item in items]


async def test_a_thread_that_goes_on_without_its_task_may_use_what_each_keeps() -> None:
    """The stream is not free before it returns. But the loan of the task has ended."""
    began, may_end, seen = threading.Event(), threading.Event(), list[object]()

    def work(own: Replica, loan: Stream) -> None:
        began.set()
        may_end.wait(30)
        seen.append(own.step("late"))
        seen.append(loan.closed)

    async def call() -> None:
        async with pool.stream() as stream:
            await stream.run_in_thread(work, stream.own, stream)

    async with StreamPool(1, each=Replica) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(began.is_set)
            tasks.cancel_scope.cancel()
        assert (pool.idle, pool.busy) == (0, 1)
        may_end.set()
        await until(lambda: pool.idle == 1)
        assert seen == ["late", True]


@pytest.mark.parametrize("end", ["close", "aclose"])
async def test_destructors_of_what_each_made_may_use_its_stream(end: str) -> None:
    done = list[bool]()

    class Owner(Replica):
        def __del__(self) -> None:
            done.append(self.stream.query())

    pool = StreamPool(2, each=Owner)
    await pool.run(Owner.step, "a")
    pool.close() if end == "close" else await pool.aclose()
    gc.collect()
    assert done == [True, True]


# -------------------------------------------------------------------------- who gives a stream back


@pytest.mark.all_loops
async def test_any_task_of_the_loop_gives_a_stream_back_once() -> None:
    """As the task that sends a streamed answer, while the task that took the stream waits."""

    async def tokens(stream: Stream) -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield await stream.run(int, number)
        finally:
            pool.release(stream)

    async def send(stream: Stream) -> None:
        async for token in tokens(stream):
            sent.append(token)

    async with StreamPool(1) as pool, StreamPool(1) as another:
        for take in (pool.acquire, nowait_of(pool)):
            sent = list[int]()
            stream = await take()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, stream)
            assert (sent, pool.idle) == ([0, 1, 2], 1)
            with pytest.raises(ValueError, match="given back before"):
                pool.release(stream)
        mine, theirs = await pool.acquire(), await another.acquire()
        with pytest.raises(ValueError, match="was not lent by this pool"):
            pool.release(theirs)
        another.release(theirs)
        with pytest.raises(ValueError, match="was not lent by this pool"):
            pool.release(mine.to_borrowed())
        pool.release(mine)
        assert (pool.idle, another.idle) == (1, 1)


def nowait_of(pool: StreamPool[Any]) -> Any:
    async def take() -> Stream:
        return pool.acquire_nowait()

    return take


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_uvloop])
def test_another_loop_does_not_give_a_stream_back(new_loop: Any) -> None:
    pool, loop = StreamPool(1), asyncio.new_event_loop()
    stream = loop.run_until_complete(pool.acquire())

    async def release() -> None:
        with pytest.raises(RuntimeError, match="in use in another event loop"):
            pool.release(stream)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(release())
    assert pool.lent == 1
    assert stream.query()
    loop.call_soon(pool.release, stream)  # in a callback, which is no task
    loop.run_until_complete(asyncio.sleep(0))
    assert pool.idle == 1
    loop.close()
    pool.close()


# --------------------------------------------------------------------------------------- lost loans


@pytest.mark.all_loops
@pytest.mark.parametrize("where", ["here", "in a cycle", "in a thread"])
async def test_a_loan_that_is_dropped_comes_back_with_a_warning(where: str) -> None:
    """With its work, and to the task that waits for it."""
    with Gate() as gate:
        async with StreamPool(1, name="model") as pool:
            kept: list[Any] = [await pool.acquire()]
            gate.hold(kept[0])
            kept += [kept] * (where == "in a cycle")

            def drop() -> None:
                nonlocal kept
                kept = []
                gc.collect()

            def drop_elsewhere() -> None:
                thread = threading.Thread(target=drop)
                thread.start()
                thread.join()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use_once, pool)
                await until(lambda: pool.waiting == 1)
                with pytest.warns(ResourceWarning, match=r"'model\[0\]' .* and not given back"):
                    (drop_elsewhere if where == "in a thread" else drop)()
                assert (pool.lent, pool.busy) == (0, 1)
                await anyio.lowlevel.checkpoint()
                gate.open()
            assert pool.idle == 1


@pytest.mark.filterwarnings("ignore:.* was dropped and not given back:ResourceWarning")
async def test_a_pool_whose_streams_were_lost_is_collected_with_its_tasks() -> None:
    """Otherwise the tasks that wait would keep it until their loop ends."""

    async def lose() -> weakref.ref[StreamPool[Any]]:
        pool = StreamPool(1)
        await pool.acquire()
        held = await pool.acquire()
        tasks.start_soon(pool.run, int)
        await until(lambda: pool.waiting == 1)
        del held
        return weakref.ref(pool)

    before = statistics().handles.open
    async with anyio.create_task_group() as tasks:
        dropped = await lose()
    assert settle(lambda: gc.collect() >= 0 and dropped() is None)
    assert settle(lambda: statistics().handles.open == before)


def test_a_block_of_a_lost_task_gives_its_stream_back_without_a_warning() -> None:
    """Its end is on its way, whatever the collector finalizes first."""
    pool, loop = StreamPool(1), asyncio.new_event_loop()

    async def hold() -> None:
        async with pool.stream() as stream:
            cycle: list[Any] = [stream]
            cycle.append(cycle)
            await asyncio.get_running_loop().create_future()

    task = loop.create_task(hold())
    loop.run_until_complete(asyncio.sleep(0))
    assert pool.lent == 1
    loop.close()
    end_lost_task(task)
    del task
    gc.collect()
    asyncio.run(use_once(pool))
    pool.close()


# ------------------------------------------------------------------------------- tasks that wait


@pytest.mark.all_loops
async def test_pending_lists_tasks_that_wait_for_a_stream() -> None:
    def work() -> None:
        """Nothing."""

    async with StreamPool(1, name="model") as pool, anyio.create_task_group() as tasks:
        held = await pool.acquire()
        tasks.start_soon(use_once, pool, name="in a block")
        tasks.start_soon(pool.run, work, name="in run")
        await until(lambda: pool.waiting == 2)
        rows = {row["task"]: row for row in pending() if row["call"].startswith("StreamPool")}
        first, second = rows["in a block"], rows["in run"]
        assert first["stream"] == second["stream"] == "pool 'model' of 1 streams"
        assert first["call"] == "StreamPool.acquire"
        assert first["where"] is not None
        assert first["where"].endswith("in use_once")
        assert second["call"] == "StreamPool.run"
        assert second["function"] == work.__qualname__
        assert min(first["seconds"], second["seconds"]) > 0
        pool.release(held)
    assert not [row for row in pending() if row["call"].startswith("StreamPool")]


async def test_a_task_that_waits_for_its_own_blocks_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with StreamPool(2, name="model") as pool:
        async with pool.stream(), pool.stream():
            with anyio.move_on_after(0.01):
                async with pool.stream():
                    pytest.fail("it has a third stream of two")
        [record] = caplog.records
        assert record.name == "aiostream"
        assert "waits for the end of its own blocks" in record.message
        assert "'model' of 2: 0 idle, 0 busy, 2 lent to '" in record.message
        # Another task may give these back.
        taken = await pool.acquire()
        async with pool.stream():
            with anyio.move_on_after(0.01):
                await pool.acquire()
        pool.release(taken)
    assert len(caplog.records) == 1


def test_a_pool_is_no_list_of_its_streams() -> None:
    pool: Any = StreamPool(2)
    for use in (lambda: pool[0], lambda: list(pool), lambda: None in pool):
        with pytest.raises(TypeError, match=r"write `async with pool\.stream\(\) as stream:`"):
            use()
    with pytest.raises(AttributeError, match=r"write `async with pool\.stream\(\) as stream:`"):
        _ = pool.streams
    pool.close()


# ------------------------------------------------------------------------------ streamed answers


async def answered(app: Any, path: str) -> tuple[int, bytes]:
    """The answer of an ASGI application, as a server gets it."""
    sent = list[Any]()
    left = anyio.Event()

    async def receive() -> Any:
        await left.wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_streamed_answers_get_their_own_tokens_or_an_error() -> None:
    """Three clients and one stream. The first form is what one writes first."""
    pytest.importorskip("starlette")
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def tokens(stream: Stream, who: str) -> AsyncIterator[str]:
        for _ in range(3):
            yield await stream.run(stream.own.step, who)

    async def too_early(request: Any) -> Any:
        async with pool.stream() as stream:
            return StreamingResponse(tokens(stream, request.path_params["who"]))

    async def inside(request: Any) -> Any:
        async def answer() -> AsyncIterator[str]:
            async with pool.stream() as stream:
                async for token in tokens(stream, request.path_params["who"]):
                    yield token

        return StreamingResponse(answer())

    async def before(request: Any) -> Any:
        stream = await pool.acquire()

        async def answer() -> AsyncIterator[str]:
            try:
                async for token in tokens(stream, request.path_params["who"]):
                    yield token
            finally:
                pool.release(stream)

        return StreamingResponse(answer())

    routes = [Route(f"/{f.__name__}/{{who}}", f) for f in (too_early, inside, before)]
    app = Starlette(routes=routes)
    async with StreamPool(1, each=Replica) as pool:
        for form in ("inside", "before"):
            answers = await asyncio.gather(*(answered(app, f"/{form}/{who}") for who in "abc"))
            assert answers == [(200, b"aaa"), (200, b"bbb"), (200, b"ccc")]
        ends = await asyncio.gather(
            *(answered(app, f"/too_early/{who}") for who in "abc"), return_exceptions=True
        )
        for end in ends:
            inner = end.exceptions[0] if isinstance(end, BaseExceptionGroup) else end
            assert isinstance(inner, StreamClosedError)
        await until(lambda: pool.idle == 1)
        assert await drain(10)
    assert aiostream.health() is None
