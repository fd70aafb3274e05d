"""`run`, `run_in_thread` and `await stream`: one call for the common case, on streams and pools."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_type, cast

import anyio
import pytest

from aiostream import (
    Context,
    PoolFullError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    StreamPool,
    ready,
    statistics,
)
from foreign import CupyStream, current_handles, currents, install_libraries
from internals import keep_work, run_in_janitor, run_in_releaser
from interrupts import Striker, ends, run_interrupted, sample
from support import (
    ASYNCIO_LOOPS,
    PLAIN_LOOPS,
    STRATEGIES,
    USUAL,
    Gate,
    Kept,
    held_stream,
    new_uvloop,
    run_script,
    settle,
    spin,
)
from waiters import turns, until


def double(numbers: list[int], *, factor: int = 2) -> list[int]:
    return [factor * number for number in numbers]


# --------------------------------------------------------------------------------------- programs


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
async def test_program_with_a_timeout_of_asyncio(loop_kind: str) -> None:
    async with Stream() as stream:
        with Gate() as gate:
            gate.hold(stream)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.run(spin, stream, 0.001), 0.01)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream, 0.01)
        await asyncio.wait_for(stream, 10)
        nothing, tripled, doubled = await asyncio.gather(
            stream, stream.run(double, [1], factor=3), stream.run_in_thread(double, [2])
        )
        assert (nothing, tripled, doubled) == (None, [3], [4])
        assert stream.query()


# ------------------------------------------------------------------------------ what they promise


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_run_returns_the_result_when_the_gpu_has_passed(strategy: Any) -> None:
    async with Stream(wait=strategy) as stream:

        def launch(first: int, *, second: int) -> tuple[int, int]:
            assert Context.get_current() == stream.context
            spin(stream, 0.002)
            return first, second

        answer = await stream.run(launch, 1, second=2)
        assert stream.query() or strategy == "hostfunc"
        assert answer == (1, 2)
        await stream  # HOSTFUNC: the driver's thread may not have returned yet
    assert Context.get_current() is None


async def test_types_are_inferred() -> None:
    async with Stream() as stream, StreamPool(1) as pool:
        assert_type(await stream.run(double, [1]), list[int])
        assert_type(await pool.run(double, [1], factor=3), list[int])
        assert_type(await stream.run_in_thread(double, [1]), list[int])
        assert_type(await pool.run_in_thread(double, [1]), list[int])
        async with pool.acquire() as taken:
            assert_type(taken, Stream[None])
        pool.release(assert_type(await pool.acquire(), Stream[None]))
        with pytest.raises(TypeError):
            await stream.run(double, "no", faktor=2)  # type: ignore[call-arg, arg-type]


async def test_a_stream_that_the_function_returns_is_not_awaited() -> None:
    async with Stream() as stream, StreamPool(1) as pool:
        with Gate() as gate:
            held = held_stream(gate)
            assert await stream.run(lambda: held) is held
            assert await stream.enqueue_async(lambda _: held) is held
            assert await stream.run_in_thread(lambda: held) is held
            assert await pool.run(lambda: held) is held
        await held
        held.close()


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_an_interrupt_in_a_c_function_leaves_no_stream_current(
    driver_kind: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_libraries(monkeypatch)

    async def main() -> None:
        async with Stream() as stream:
            getattr(stream, library)()
            before = current_handles()
            with pytest.raises(KeyboardInterrupt):
                # The interrupt comes with the next step of Python, which is behind the function.
                await stream.run(ctypes.PyDLL(None)["raise"], int(signal.SIGINT))
            assert current_handles() == before

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(main())


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
async def test_a_library_that_fails_behind_the_function(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """As an interrupt there. What the function returned lives on, what it raised is reported."""
    install_libraries(monkeypatch)
    watched = []

    def launch() -> Kept:
        monkeypatch.setattr(CupyStream, "__exit__", fail)
        if fails:
            raise KeyError("mine")
        held = Kept()
        watched.append(weakref.ref(held))
        return held

    def fail(*_: object) -> None:
        raise OSError("theirs")

    async with Stream() as stream:
        shared = Stream.borrow(CupyStream(stream.handle))
        shared.torch()
        with Gate() as gate:
            gate.hold(stream)
            with pytest.raises(OSError, match="theirs") as caught:
                await shared.run(launch)
            assert isinstance(caught.value.__context__, KeyError) == fails
            assert current_handles()["torch"] is None
            del caught
            gc.collect()
            assert all(ref() is not None for ref in watched)
        await until(lambda: all(ref() is None for ref in watched))
        shared.close()
    currents.cupy.clear()


@pytest.mark.parametrize("fails", [False, True], ids=["cancelled", "fails"])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_what_it_uses_lives_until_the_gpu_has_passed(strategy: Any, fails: bool) -> None:
    argument, result = Kept(), Kept()
    watched = weakref.ref(argument), weakref.ref(result)
    async with Stream(wait=strategy) as stream:
        with Gate() as gate:
            gate.hold(stream)

            def launch(argument: Kept, made: list[Kept]) -> Kept:
                if fails:
                    raise ValueError
                return made.pop()

            made = [result]
            del result
            with contextlib.suppress(ValueError), anyio.move_on_after(0.01):
                await stream.run(launch, argument, made)
                raise AssertionError("it has not waited for the gate")
            made.clear()
            del argument
            gc.collect()
            assert watched[0]() is not None
            assert fails or watched[1]() is not None
        # Awaited, because the loop's turn still holds the cancellation.
        await until(lambda: watched[0]() is watched[1]() is None)


@pytest.mark.simulator_only("a GPU does not count its calls")
@pytest.mark.parametrize("strategy", ["spin", "event"])  # the wait is the task's, or the watcher's
async def test_a_cancelled_run_keeps_its_objects_by_the_event_that_it_has(strategy: Any) -> None:
    from aiostream import simulator

    def records() -> int:
        return simulator.calls("cuEventRecord") + simulator.calls("cuEventRecordWithFlags")

    async with Stream(wait=strategy) as stream:
        for number in range(20):
            with Gate() as gate:
                gate.hold(stream)
                argument = Kept()
                watched = weakref.ref(argument)
                async with anyio.create_task_group() as group:
                    group.start_soon(stream.run, id, argument)
                    del argument
                    await turns(number)
                    await until(lambda: statistics().waits.pending == 1)
                    before = records()
                    group.cancel_scope.cancel()
                assert records() == before > 0
                gc.collect()
                assert watched() is not None
            await until(lambda watched=watched: gc.collect() >= 0 and watched() is None)


async def test_what_it_uses_dies_at_its_end() -> None:
    async with Stream() as stream:
        argument = Kept()
        watched = weakref.ref(argument)
        await stream.run(id, argument)
        del argument
        assert watched() is None


async def test_close_while_it_waits_leaves_the_wait_and_its_objects() -> None:
    argument = Kept()
    watched = weakref.ref(argument)
    stream = Stream()
    with Gate() as gate:
        gate.hold(stream)
        async with anyio.create_task_group() as group:
            group.start_soon(stream.run, id, argument)
            await turns(5)
            with pytest.raises(RuntimeError, match="is in use"):
                stream.into_raw()
            stream.close()
            del argument
            group.cancel_scope.cancel()
        gc.collect()
        assert watched() is not None
    assert settle(lambda: watched() is None)


@pytest.mark.cuda_leaks(1)  # no event can be recorded during a capture
async def test_function_that_closes_or_captures_gets_an_error() -> None:
    before = statistics().points.leaked
    stream = Stream()
    with pytest.raises(StreamClosedError):
        await stream.run(stream.close)
    assert statistics().points.leaked == before
    async with Stream() as stream:
        with pytest.raises(StreamCaptureError):
            await stream.run(stream.begin_capture)
        stream.end_capture()


async def test_pool_takes_the_stream_back_after_an_error_and_a_cancellation() -> None:
    async with StreamPool(1) as pool:
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        with anyio.move_on_after(0):
            await pool.run(lambda: None)
        assert await pool.run(double, [1]) == [2]
        assert (pool.idle, pool.lent) == (1, 0)


async def test_acquire_is_awaited_or_entered() -> None:
    async with StreamPool(1, max_waiting=0) as pool:
        async with pool.acquire() as stream:
            assert pool.lent == 1
            await stream
            with pytest.raises(PoolFullError):  # a server answers with 503
                await pool.run(double, [1])
        assert pool.lent == 0
        assert await pool.run(double, [1], factor=5) == [5]
        pool.release(await pool.acquire())
        block: Any = pool.acquire()
        with pytest.raises(TypeError, match="async with"), block:
            pass
        with pytest.raises(AttributeError, match=r"await pool.acquire\(\)"):
            block.query()


# --------------------------------------------------------------------- interrupts and dead loops


class LeftRun:
    """A run behind a gate, whose task leaves it at once, and the life of what it uses."""

    def __init__(self, gate: Gate, *, fails: bool = False) -> None:
        self.stream, self.gate, self.fails = held_stream(gate), gate, fails
        self.watched: list[weakref.ref[Kept]] = []
        self.kept: list[bool] = []

    def launch(self, argument: Kept) -> Kept:
        self.watched.append(weakref.ref(argument))
        if self.fails:
            raise ValueError
        result = Kept()
        self.watched.append(weakref.ref(result))
        return result

    async def leave(self) -> None:
        with contextlib.suppress(ValueError), anyio.move_on_after(0):
            await self.stream.run(self.launch, Kept())

    async def look(self) -> None:
        gc.collect()
        self.kept.extend(each() is not None for each in self.watched)
        self.gate.open()
        await self.stream

    def is_over(self) -> bool:
        return all(each() is None for each in self.watched)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fails", [False, True], ids=["cancelled", "fails"])
@pytest.mark.parametrize("kind", PLAIN_LOOPS)
def test_interrupt_at_any_place_frees_nothing_early(kind: str, fails: bool) -> None:
    def strike(number: int) -> Striker:
        leaked = statistics().points.leaked
        with Gate() as gate:
            run = LeftRun(gate, fails=fails)
            struck = run_interrupted(kind, number, run.leave, run.look, cancels=True)
        assert all(run.kept), struck.where
        assert ends(run.is_over), struck.where
        assert statistics().points.leaked == leaked, struck.where
        run.stream.close()
        return struck

    count = strike(0).passed
    assert count > 10
    for number in sample(count, 12, f"{kind} {fails}"):
        strike(number)


def test_objects_of_an_interrupted_run_die_while_the_janitor_sleeps() -> None:
    """Without the GIL, what the janitor itself has made would wait for it."""
    released, drained = threading.Event(), threading.Event()
    run_in_releaser(released.wait)  # so that it drops nothing while the janitor is awake
    with Gate() as gate:
        run = LeftRun(gate)
        codes = {keep_work.__code__}
        run_interrupted("asyncio", 1, run.leave, run.look, cancels=True, codes=codes)
    assert settle(lambda: statistics().points.pending == 0)
    run_in_janitor(drained.set)
    assert drained.wait(10)
    janitor = next(each for each in threading.enumerate() if each.name == "aiostream-janitor")
    status = Path(f"/proc/self/task/{janitor.native_id}/stat")
    assert settle(lambda: status.read_text().split()[2] == "S")
    released.set()
    assert settle(run.is_over)
    run.stream.close()


async def first_step(coroutine: Any) -> None:
    """As that of a task. No other follows."""
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


@pytest.mark.parametrize("end", ["closed", "collected", "elsewhere"])
def test_coroutine_that_ends_without_its_loop_frees_nothing_early(end: str) -> None:
    """Also if another thread ends it, which cannot ask for the end of a per-thread stream."""
    arguments = [Kept()]
    watched = weakref.ref(arguments[0])
    stream, loop = Stream.per_thread() if end == "elsewhere" else Stream(), asyncio.new_event_loop()
    with Gate() as gate:
        gate.hold(stream)
        coroutine: Any = stream.run(id, arguments.pop())
        if end == "collected":
            task: Any = loop.create_task(coroutine)
            loop.run_until_complete(asyncio.sleep(0.01))
            task._log_destroy_pending = False
            del task
        else:
            loop.run_until_complete(first_step(coroutine))
            if end == "closed":
                coroutine.close()
            else:
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(coroutine.close).result()
        loop.close()
        del coroutine
        gc.collect()
        assert watched() is not None
    assert ends(lambda: watched() is None)
    stream.synchronize()
    stream.close()


class Request:
    """What a server passes around. It refers to its task, as aiohttp's does."""

    task: object


def in_halves(fn: Callable[[Request], object], request: Request) -> Iterator[None]:
    made = fn(request)
    yield
    del made


WAYS: dict[str, Callable[[Stream, StreamPool, Any, Request], Awaitable[object]]] = {
    "run": lambda stream, _, fn, request: stream.run(fn, request),
    "halves": lambda stream, _, fn, request: stream.run(in_halves, fn, request),
    "pool.run": lambda _, pool, fn, request: pool.run(fn, request),
    "run_in_thread": lambda stream, _, fn, request: stream.run_in_thread(fn, request),
    "enqueue_async": lambda stream, _, fn, request: stream.enqueue_async(lambda _: fn(request)),
}


@pytest.mark.parametrize("refers", ["task", "loop", "other", "result"])
@pytest.mark.parametrize("kind", ASYNCIO_LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_request_that_refers_to_its_abandoned_task(way: str, kind: str, refers: str) -> None:
    """The collector finds it when the GPU has passed, and finalizes nothing before that."""
    before, finalized = statistics().handles.open, list[bool]()
    loop = asyncio.new_event_loop() if kind == "asyncio" else new_uvloop()
    stream, watched = Stream(), list[weakref.ref[Request]]()
    pool = StreamPool.borrow([stream])

    class Finalized(Request):
        def __del__(self) -> None:
            finalized.append(True)

    async def answer() -> None:
        request, other = Finalized(), Request()
        watched.append(weakref.ref(request))
        request.task = task = asyncio.current_task()
        if refers == "loop":
            request.task = asyncio.get_running_loop()
            cast("Any", request.task).attributes = [task]
        elif refers == "other":
            request.task, other.task = other, task
        elif refers == "result":
            request.task = None
        del task

        def launch(request: Request) -> object:
            gate.hold(stream)
            held.append(True)
            made = Request()
            made.task = request if refers != "result" else asyncio.current_task()
            return made

        await WAYS[way](stream, pool, launch, request)

    held = list[bool]()
    with Gate() as gate:
        task: Any = loop.create_task(answer())
        task._log_destroy_pending = False
        loop.run_until_complete(until(lambda: bool(held)))  # a thread may take a while
        loop.run_until_complete(asyncio.sleep(0.02))
        loop.close()
        del loop, task
        for _ in range(3):
            gc.collect()
            drained = threading.Event()
            run_in_janitor(drained.set)
            assert drained.wait(10)
        assert not finalized
        assert not gc.garbage
    assert settle(lambda: gc.collect() >= 0 and watched[0]() is None)
    pool.close()
    stream.close()
    assert settle(lambda: statistics().handles.open == before)


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed"])
def test_dead_tasks_run_gives_its_stream_to_a_loop_that_comes_later(closes: bool) -> None:
    """Its pool may be closed meanwhile. Nothing is reported."""
    owner, loop = Stream(), asyncio.new_event_loop()
    pool = StreamPool.borrow([owner])
    with Gate() as gate:

        async def wrap() -> None:
            me = asyncio.current_task()  # a cycle, which the collector finds
            await pool.run(gate.hold, owner)
            del me

        task: Any = loop.create_task(wrap())
        task._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0.01))
        assert pool.lent == 1
        loop.close()
        del task
        if closes:
            pool.close()
        gc.collect()
    assert ends(lambda: statistics().waits.pending == 0)  # until then its wait keeps the task
    assert settle(lambda: gc.collect() >= 0 and pool.lent == 0)
    if not closes:
        assert asyncio.run(pool.run(int)) == 0
        pool.close()
    owner.shutdown()


async def test_pool_that_closes_during_a_run_destroys_the_stream_afterwards() -> None:
    before = statistics().handles.open
    pool = StreamPool(1)
    stream = pool.acquire_nowait()
    same = Stream.borrow(stream.handle)
    pool.release(stream)
    async with anyio.create_task_group() as group:
        with Gate() as gate:
            group.start_soon(pool.run, gate.hold, same)
            await until(lambda: pool.lent == 1)
            pool.close()
            assert (pool.lent, statistics().handles.open) == (1, before + 1)
    assert settle(lambda: statistics().handles.open == before)


def test_a_run_that_dies_where_no_call_is_possible_is_leaked(driver_kind: str) -> None:
    """At the limit of recursion nothing in Python can keep its objects. In a process of its own,
    because it is not known before how many are leaked.
    """
    script = """
        import asyncio, sys
        from aiostream import Stream, statistics
        from aiostream.testing import Gate, settle
        sys.unraisablehook = lambda _: None
        def drop(held, left):
            if left:
                drop(held, left - 1)
            else:
                held.pop()
        async def main():
            stream, limit = Stream(), sys.getrecursionlimit()
            with Gate() as gate:
                gate.hold(stream)
                for left in range(limit - 60, limit):
                    held = [stream.run(int)]
                    held[0].send(None)
                    try:
                        drop(held, left)
                    except RecursionError:
                        pass
                    held.clear()
            assert settle(lambda: statistics().points.pending == 0)
            stream.close()
        asyncio.run(main())
        assert statistics().balanced
    """
    done = run_script(driver_kind, script, forked=USUAL)
    # Python 3.14 says on stderr that the hook met the limit too.
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------------------------- coroutines


async def answer() -> int:
    return 7


def half_and_answer() -> Any:
    yield
    return answer()


CALLS: dict[str, Callable[[Stream, StreamPool, Any], Awaitable[Any]]] = {
    "run": lambda stream, _, fn: stream.run(fn),
    "run_in_thread": lambda stream, _, fn: stream.run_in_thread(fn),
    "enqueue_async": lambda stream, _, fn: stream.enqueue_async(lambda _: fn()),
    "pool.run": lambda _, pool, fn: pool.run(fn),
    "pool.run_in_thread": lambda _, pool, fn: pool.run_in_thread(fn),
    "ready": lambda _0, _1, fn: ready(fn),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("make", [answer, half_and_answer])
async def test_a_coroutine_for_a_result_is_refused_and_closed(call: str, make: Any) -> None:
    """It would never run. If it were not closed, Python would warn, which fails this test."""
    if make is half_and_answer and "run" not in call:
        return
    async with Stream() as stream, StreamPool(1) as pool:
        for _ in range(3):  # the thread may be first, or the loop
            with pytest.raises(TypeError, match="would never run") as caught:
                await CALLS[call](stream, pool, lambda: make())
            assert not hasattr(caught.value, "__notes__")
        assert await pool.run(lambda: 5) == 5
    gc.collect()


@pytest.mark.parametrize("call", ["enqueue_async", "ready"])
async def test_a_generator_for_a_result_is_refused_where_none_is_run(call: str) -> None:
    """A decorator or a lambda hides that the function is a generator function."""
    ended: list[str] = []

    def halves() -> Any:
        ended.append("begun")
        yield

    async with Stream() as stream, StreamPool(1) as pool:
        with pytest.raises(TypeError, match="would never run"):
            await CALLS[call](stream, pool, lambda: halves())
        assert ended == []
        assert await pool.run_in_thread(lambda: halves()) is None
    assert ended == ["begun"]


async def test_a_coroutine_of_what_belongs_to_a_stream_is_refused() -> None:
    with pytest.raises(TypeError, match="would never run"):
        StreamPool(1, each=lambda _: answer())


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="from 3.12 on, asyncio keeps it so: by the frames' callers"
)
@pytest.mark.parametrize("make", [Stream.synchronize_async, lambda stream: stream.run(int)])
def test_an_exception_of_a_wait_does_not_keep_its_loop(make: Any, cuda_gate: Gate) -> None:
    """A program may keep the error of a request that was cancelled, as a log does."""
    kept: list[BaseException] = []

    async def main() -> weakref.ref[Any]:
        async with Stream() as stream:
            cuda_gate.hold(stream)
            task = asyncio.ensure_future(make(stream))
            await turns(3)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError as error:
                kept.append(error)
            del task  # the error refers to this frame
            cuda_gate.open()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None
    assert kept
