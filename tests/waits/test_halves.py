"""Functions in two halves: generators that `run` drives, at whose `yield` the GPU does the work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, assert_type

import anyio
import pytest

import aiostream
from aiostream import (
    Context,
    ContextFailedError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    StreamPool,
    trace,
)
from foreign import current_handles, install_libraries, settings
from internals import is_held, run_in_releaser
from support import (
    ASYNCIO_LOOPS,
    STRATEGIES,
    Gate,
    Kept,
    new_uvloop,
    recover,
    settle,
    spin,
)
from waiters import turns, until

Halves = Generator[None, None, Any]
each_way = pytest.mark.parametrize("way", ["run", "run_in_thread"])


class Mine(BaseException):
    """An error that no `except Exception` catches, such as that of `pytest.fail`."""


class Call:
    """A generator of several halves, behind gates, that notes what becomes of it."""

    def __init__(self, halves: int = 3) -> None:
        self.stream, self.halves = Stream(), halves
        self.block = contextlib.ExitStack()
        self.gates = [self.block.enter_context(Gate()) for _ in range(halves)]
        self.begun: list[int] = []
        self.ended: list[tuple[str, Any]] = []
        self.watched: list[weakref.ref[Kept]] = []
        self.in_half: Callable[[int], object] = lambda _: None

    def __call__(self, answer: object = "answer") -> Halves:
        """Each half holds the stream with a gate, and what it launched in a variable."""
        try:
            for half in range(self.halves):
                assert Context.get_current() == self.stream.context
                assert half == 0 or self.stream.query()
                self.begun.append(half)
                kept = Kept()
                self.watched.append(weakref.ref(kept))
                self.gates[half].hold(self.stream)
                self.in_half(half)
                yield
            del kept
            return answer
        finally:
            self.ended.append((threading.current_thread().name, Context.get_current()))

    def lives(self) -> bool:
        """Whether what the latest half uses is there."""
        gc.collect()
        return self.watched[-1]() is not None

    async def at(self, half: int) -> None:
        """Until the GPU is in that half."""
        for gate in self.gates[:half]:
            gate.open()
        await until(lambda: len(self.begun) == half + 1)

    def close(self) -> None:
        """Lets everything through."""
        self.block.close()
        self.stream.close()


@pytest.fixture
def call() -> Iterator[Call]:
    made = Call()
    yield made
    made.close()


# ------------------------------------------------------------------------------------ what it does


@each_way
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_gpu_does_the_work_at_each_yield(strategy: Any, way: str) -> None:
    async with Stream(wait=strategy) as stream:

        def launch(halves: int) -> Generator[None, None, list[bool]]:
            done = []
            for _ in range(halves):
                spin(stream, 0.002)
                assert Context.get_current() == stream.context
                yield
                done.append(stream.query())
            return done

        for halves in range(3):
            answer = await getattr(stream, way)(launch, halves)
            assert answer == [True] * halves or strategy == "hostfunc"
            assert len(answer) == halves
        assert Context.get_current() is None


async def test_types_are_inferred(stream: Stream) -> None:
    def launch() -> Generator[None, None, int]:
        yield
        return 1

    assert_type(await stream.run(launch), int)
    assert_type(await stream.run_in_thread(launch), int)


async def test_any_call_that_returns_a_generator(stream: Stream) -> None:
    def add(first: int, second: int = 0) -> Generator[None, None, int]:
        yield
        return first + second

    @functools.wraps(add)
    def decorated(*args: Any) -> Any:
        return add(*args)

    class Replica:
        def score(self, number: int) -> Generator[None, None, int]:
            yield from (yield_ for yield_ in (None, None))
            return (yield from add(number, 1))

        __call__ = score

    async with StreamPool(1) as pool:
        runs: list[Any] = [stream.run, pool.run, stream.run_in_thread, pool.run_in_thread]
        for run in runs:
            assert await run(functools.partial(add, 1), 2) == 3
            assert await run(lambda: add(1, second=2)) == 3
            assert await run(decorated, 2) == 2
            assert await run(Replica().score, 2) == 3
            assert await run(Replica(), 2) == 3


async def test_what_cannot_be_driven_is_refused(stream: Stream) -> None:
    async def asynchronous() -> Any:
        yield

    with pytest.raises(TypeError, match="not an async generator function"):
        await stream.run(asynchronous)


async def test_it_is_one_await_for_those_who_watch(call: Call, waits: list[Any]) -> None:
    async with anyio.create_task_group() as group:
        with trace.record() as recording:
            group.start_soon(call.stream.run, call)
            for half in range(call.halves):
                await call.at(half)
                assert len(aiostream.pending()) == 1
                await until(lambda: aiostream.pending()[0]["call"] == "Stream.run")
            call.gates[-1].open()
            await until(lambda: [each.outcome for each in recording.awaits] == ["done"])
    [seen] = recording.awaits
    assert seen.call == "Stream.run"
    assert [each.call for each in waits] == ["Stream.run"]


@pytest.mark.simulator_only("a GPU does not count its calls")
async def test_the_last_half_is_not_awaited_for_nothing(stream: Stream) -> None:
    """Also on a stream that has been busy at each wait. Its record would be one more short wait, by
    which the stream would learn wrong lengths.
    """
    from aiostream import simulator

    def halves() -> Halves:
        spin(stream, 0.001)
        yield

    for _ in range(9):
        await stream.run(spin, stream, 0.001)
    recorded = simulator.calls("cuEventRecord") + simulator.calls("cuEventRecordWithFlags")
    for _ in range(4):
        await stream.run(halves)
    recorded -= simulator.calls("cuEventRecord") + simulator.calls("cuEventRecordWithFlags")
    assert -recorded <= 4


async def test_what_is_left_is_pending_until_it_is_closed(call: Call) -> None:
    with anyio.move_on_after(0.01):
        await call.stream.run(call)
    assert "Stream.run" in [each["call"] for each in aiostream.pending()]
    assert not await aiostream.drain(0.01)
    call.gates[0].open()
    assert await aiostream.drain(10)
    assert call.ended


# ------------------------------------------------------------------------------------- cancellation


@each_way
@pytest.mark.parametrize("half", range(3))
async def test_cancelled_at_each_yield(call: Call, half: int, way: str) -> None:
    """It is closed once, in the loop's thread, when the GPU has passed."""
    async with anyio.create_task_group() as group:
        group.start_soon(getattr(call.stream, way), call)
        await call.at(half)
        group.cancel_scope.cancel()
    await turns()
    assert (call.ended, call.lives()) == ([], True)
    with pytest.raises(RuntimeError, match="is in use"):
        call.stream.into_raw()
    call.gates[half].open()
    await until(lambda: bool(call.ended))
    name = threading.current_thread().name if way == "run" else "aiostream-launch"
    assert call.ended[0][0].startswith(name)
    assert call.ended[0][1] == call.stream.context
    assert call.begun == list(range(half + 1))
    assert settle(lambda: not call.lives())
    await call.stream

    def given_away() -> bool:
        """A launching thread has a few steps to go after the end of the generator."""
        try:
            Stream.from_raw(call.stream.into_raw()).close()
        except RuntimeError:
            return False
        return True

    assert settle(given_away)


@pytest.mark.parametrize("half", range(3))
async def test_cancelled_in_each_half_and_behind_the_work(call: Call, half: int) -> None:
    """The task gets its cancellation at the next `yield`, or the generator has ended."""
    with anyio.CancelScope() as scope:
        call.in_half = lambda number: scope.cancel() if number == half else None
        for gate in call.gates:
            gate.open()
        await call.stream.run(call)
    await until(lambda: bool(call.ended))
    assert len(call.ended) == 1
    assert call.begun[half] == half  # on asyncio, what is over at once need not be awaited
    await until(lambda: not is_held(call.stream))


@each_way
@pytest.mark.parametrize("moment", range(12))
async def test_cancelled_at_any_moment(moment: int, way: str) -> None:
    async with Stream() as stream:
        ends: list[int] = []

        def launch() -> Halves:
            try:
                for _ in range(3):
                    spin(stream, 0.0002)
                    yield
            finally:
                ends.append(threading.get_ident())

        async with anyio.create_task_group() as group:
            group.start_soon(getattr(stream, way), launch)
            await turns(moment + 1)
            group.cancel_scope.cancel()
        await until(lambda: not is_held(stream))
        assert ends in ([], [threading.get_ident()]) or (way != "run" and len(ends) == 1)
        assert await getattr(stream, way)(int) == 0


@pytest.mark.parametrize("kind", ASYNCIO_LOOPS)
@pytest.mark.parametrize("end", ["abandoned", "cancelled"])
def test_closed_on_a_safe_thread_if_the_loop_is_closed(kind: str, end: str) -> None:
    call = Call()
    loop = asyncio.new_event_loop() if kind == "asyncio" else new_uvloop()
    task: Any = loop.create_task(call.stream.run(call))
    task._log_destroy_pending = False
    loop.run_until_complete(call.at(1))
    if end == "cancelled":
        task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    del task
    assert (call.ended, call.lives()) == ([], True)
    call.gates[1].open()
    assert settle(lambda: gc.collect() >= 0 and bool(call.ended))
    assert call.ended == [("aiostream-releaser", call.stream.context)]
    assert settle(lambda: not call.lives())
    call.close()


async def test_what_the_close_enqueues_lives_too(stream: Stream) -> None:
    watched: list[weakref.ref[Kept]] = []
    with Gate() as first, Gate() as second:

        def launch() -> Halves:
            argument = Kept()
            watched.append(weakref.ref(argument))
            try:
                first.hold(stream)
                yield
            finally:
                second.hold(stream)

        with anyio.move_on_after(0.01):
            await stream.run(launch)
        first.open()
        await until(lambda: not is_held(stream))
        assert not stream.query()
    await stream


@each_way
async def test_arguments_live_until_the_gpu_has_passed_what_the_close_enqueues(
    stream: Stream, way: str
) -> None:
    argument, steps, released = Kept(), list[str](), threading.Event()
    watched = weakref.ref(argument)
    with Gate() as first, Gate() as second:

        def launch(_: Kept) -> Halves:
            first.hold(stream)
            try:
                steps.append("begun")
                yield
            finally:
                second.hold(stream)

        async with anyio.create_task_group() as group:
            group.start_soon(getattr(stream, way), launch, argument)
            del argument
            await until(lambda: bool(steps))
            group.cancel_scope.cancel()
        first.open()
        await until(lambda: not is_held(stream))
        run_in_releaser(released.set)  # after what it may have got to drop
        await until(released.is_set)
        assert watched() is not None
    await until(lambda: gc.collect() >= 0 and watched() is None)


async def test_a_stream_may_be_closed_during_the_close_in_a_thread() -> None:
    stream, argument, steps, closed = Stream(), Kept(), list[str](), threading.Event()
    watched = weakref.ref(argument)
    with Gate() as first, Gate() as second:

        def launch(_: Kept) -> Halves:
            first.hold(stream)
            steps.append("begun")
            try:
                yield
            finally:
                second.hold(stream)
                steps.append("closing")
                assert closed.wait(5)

        async with anyio.create_task_group() as group:
            group.start_soon(stream.run_in_thread, launch, argument)
            del argument
            await until(lambda: bool(steps))
            group.cancel_scope.cancel()
        first.open()
        await until(lambda: len(steps) == 2)
        stream.close()
        closed.set()
        await until(lambda: not is_held(stream))
        assert watched() is not None
    await until(lambda: gc.collect() >= 0 and watched() is None)


@each_way
@pytest.mark.parametrize("end", [KeyError, StreamClosedError, Mine, None])
async def test_errors_of_the_close_are_reported(
    stream: Stream, unraisable: list[Any], end: type[BaseException] | None, way: str
) -> None:
    """Whatever they are, the stream is free afterwards."""
    with Gate() as gate:

        def launch() -> Halves:
            try:
                gate.hold(stream)
                begun.append(True)
                yield
            finally:
                if end is not None:
                    raise end("mine")
                yield

        begun: list[bool] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(getattr(stream, way), launch)
            await until(lambda: bool(begun))
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        gate.open()
        await until(lambda: bool(unraisable) and not is_held(stream))
    assert [each[0] for each in unraisable] == [end or RuntimeError]
    await stream


# ----------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("half", range(3))
async def test_failure_in_each_half(call: Call, half: int) -> None:
    """It is raised at once, as that of a function. The arguments are kept."""
    argument = Kept()
    watched = weakref.ref(argument)

    def fail(number: int) -> None:
        if number == half:
            raise KeyError("mine")

    call.in_half = fail
    for gate in call.gates[:half]:
        gate.open()
    with pytest.raises(KeyError, match="mine"):
        await call.stream.run(call, argument)
    del argument
    gc.collect()
    assert watched() is not None
    assert len(call.ended) == 1
    call.gates[half].open()
    await until(lambda: gc.collect() >= 0 and watched() is None)


async def test_refusals_are_thrown_in_at_the_yield() -> None:
    refused: list[BaseException] = []
    stream = Stream()

    def launch(spoil: Callable[[], object], mend: Callable[[], object]) -> Halves:
        spoil()
        try:
            yield
        except (StreamCaptureError, StreamClosedError) as error:
            refused.append(error)
        mend()
        return "answer"

    assert await stream.run(launch, stream.begin_capture, lambda: stream.end_capture().close()) == (
        "answer"
    )
    assert await stream.run(launch, stream.close, int) == "answer"
    assert [type(each) for each in refused] == [StreamCaptureError, StreamClosedError]


@each_way
async def test_stream_that_is_closed_while_it_waits(call: Call, way: str) -> None:
    """The next half is refused, and its objects live until the GPU has passed."""
    async with anyio.create_task_group() as group:
        caught: list[BaseException] = []

        async def run() -> None:
            try:
                await getattr(call.stream, way)(call)
            except StreamClosedError as error:
                caught.append(error)

        group.start_soon(run)
        await call.at(1)
        call.stream.close()
        call.gates[1].open()
    assert len(caught) == 1
    assert call.begun == [0, 1]
    assert len(call.ended) == 1


@each_way
@pytest.mark.simulator_only("a GPU's context is not recovered")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("catches", [True, False])
@pytest.mark.parametrize("decorated", [True, False])
async def test_failure_of_the_gpu_at_a_yield(
    breakable: Any, catches: bool, decorated: bool, way: str
) -> None:
    watched: list[weakref.ref[Kept]] = []

    def launch() -> Halves:
        buffer = Kept()
        gate.hold(stream)
        watched.append(weakref.ref(buffer))
        try:
            yield
        except ContextFailedError:
            if not catches:
                raise
            return "answer"

    def wrapped() -> Halves:
        generator = launch()  # as torch's decorators hold it
        generator.send(None)
        while True:
            try:
                yield
            except BaseException as error:
                try:
                    generator.throw(error)
                except StopIteration as end:
                    return end.value

    stream = Stream()
    with Gate() as gate:
        async with anyio.create_task_group() as group:
            answers: list[object] = []

            async def run() -> None:
                with contextlib.suppress(ContextFailedError):
                    answers.append(await getattr(stream, way)(wrapped if decorated else launch))

            group.start_soon(run)
            await until(lambda: bool(watched))
            await turns()
            breakable.break_context(700)
        assert answers == ["answer"] * catches
        gc.collect()
        assert watched[0]() is not None
    recover()
    stream.close()


# ------------------------------------------------------------------------------------------- misuse


@each_way
async def test_something_is_yielded(stream: Stream, way: str) -> None:
    ended: list[str] = []

    def wrong(then: str) -> Generator[Any, None, Any]:
        try:
            yield 5
        except TypeError as error:
            if then == "raises":
                raise
            if then == "yields":
                yield
            return str(error)
        finally:
            ended.append(then)

    with pytest.raises(TypeError, match=r"wrong yields nothing, not int") as caught:
        await getattr(stream, way)(wrong, "raises")
    assert caught.traceback[-1].name == "wrong"
    assert "yields nothing" in await getattr(stream, way)(wrong, "returns")
    with pytest.raises(TypeError, match="yields nothing"):
        await getattr(stream, way)(wrong, "yields")
    await until(lambda: ended == ["raises", "returns", "yields"])
    assert await getattr(stream, way)(int) == 0


SETTINGS: dict[str, Callable[[Any, Stream], Any]] = {
    "inference mode": lambda torch, _: torch.inference_mode(),
    "grad mode": lambda torch, _: torch.no_grad(),
    "autocast": lambda torch, _: torch.autocast("cuda"),
    "current stream": lambda torch, stream: torch.cuda.stream(stream.torch()),
    "current context": lambda _, stream: stream.as_current(),
}


@pytest.mark.parametrize("name", SETTINGS)
async def test_what_belongs_to_the_thread_is_open_over_a_yield(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install_libraries(monkeypatch)
    torch: Any = importlib.import_module("torch")

    watched: list[weakref.ref[Kept]] = []

    def launch() -> Halves:
        buffer = Kept()
        watched.append(weakref.ref(buffer))
        gate.hold(stream)
        with SETTINGS[name](torch, other):
            yield

    before = settings.all(), current_handles()
    async with Stream() as stream, Stream() as other:
        with Gate() as gate:
            with pytest.raises(RuntimeError, match=f"changed the .*{name}.*decorate"):
                await stream.run(launch)
            assert (settings.all(), current_handles()) == before
            assert Context.get_current() is None
            assert len(watched) == 1
            gc.collect()
            assert watched[0]() is not None  # the GPU is not done
        await until(lambda: watched[0]() is None)


async def test_a_decorator_begins_anew_for_each_half(monkeypatch: pytest.MonkeyPatch) -> None:
    install_libraries(monkeypatch)
    torch: Any = importlib.import_module("torch")
    seen: list[bool] = []

    def launch() -> Halves:
        for _ in range(2):
            seen.append(torch.is_inference_mode_enabled())
            yield
        return "answer"

    async with Stream() as stream:
        assert await stream.run(torch.inference_mode()(launch)) == "answer"
    assert seen == [True, True]
    assert not torch.is_inference_mode_enabled()


# ------------------------------------------------------------------------------------- in a thread


@pytest.mark.parametrize("half", range(3))
async def test_failure_in_each_half_in_a_thread(call: Call, half: int) -> None:
    def fail(number: int) -> None:
        if number == half:
            raise KeyError("mine")

    call.in_half = fail
    for gate in call.gates:
        gate.open()
    with pytest.raises(KeyError, match="mine"):
        await call.stream.run_in_thread(call)
    assert len(call.ended) == 1
    await until(lambda: not is_held(call.stream))


async def test_refusal_is_thrown_in_at_the_yield_in_a_thread() -> None:
    stream = Stream()

    def launch() -> Halves:
        yield
        stream.close()
        try:
            yield
        except StreamClosedError:
            return "answer"

    assert await stream.run_in_thread(launch) == "answer"


@pytest.mark.parametrize("name", [*SETTINGS][:4])
async def test_what_is_open_over_a_yield_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install_libraries(monkeypatch)
    torch: Any = importlib.import_module("torch")

    def launch() -> Halves:
        with SETTINGS[name](torch, other):
            yield

    async with Stream() as stream, Stream() as other:
        before = await stream.run_in_thread(settings.all)
        with pytest.raises(RuntimeError, match=f"changed the .*{name}.*decorate"):
            await stream.run_in_thread(launch)
        assert await stream.run_in_thread(settings.all) == before


@pytest.mark.parametrize("loop_kind", ["trio"])
async def test_a_function_that_ends_before_its_yield_is_a_checkpoint_on_trio() -> None:
    import trio
    import trio.testing

    def ends_early(number: int) -> Halves:
        if number:
            return number
        yield

    def makes_it(number: int) -> Halves:
        return ends_early(number)

    async with Stream() as stream:
        for function in ends_early, makes_it:
            with trio.testing.assert_checkpoints():
                assert await stream.run(function, 1) == 1
            with trio.CancelScope() as scope:
                scope.cancel()
                await stream.run(function, 1)
            assert scope.cancelled_caught
