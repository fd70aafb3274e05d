"""`serving.Steps`: errors, and the ends of requests, blocks, loops and contexts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections import UserDict
from collections.abc import Callable, Generator
from typing import Any

import anyio
import pytest

from aiostream import Context, ContextFailedError, CudaError, Stream, StreamClosedError
from aiostream.serving import Active, End, Steps
from interrupts import at_line, sample
from stepping import Stepper, numbered, stepping
from support import ASYNCIO_LOOPS, Gate, Kept, new_uvloop, run_on, settle, spin
from waiters import turns, until


class WeirdError(Exception):
    """An error that cannot be copied."""

    def __init__(self) -> None:
        super().__init__("weird", object())


class Mine(BaseException):
    """An error that no `except Exception` catches."""


def raising(at: int, make: Callable[[], BaseException]) -> Callable[[Active[Any]], Any]:
    """Raises in the step of that number, and answers else."""

    def answer(active: Active[Any]) -> Any:
        if active.number == at:
            raise make()
        return numbered(active)

    return answer


# ------------------------------------------------------------------------------ errors of a step


@pytest.mark.parametrize("half", ["answer", "before"])
@pytest.mark.parametrize("make", [KeyError, WeirdError])
@pytest.mark.all_loops
async def test_an_error_comes_after_earlier_results_and_before_later_ones(
    half: str, make: type[Exception]
) -> None:
    async with stepping(slots=3) as (made, group):
        setattr(made, half, raising(2, make))
        for request in "ab":
            group.start_soon(made.read, request)
        await until(lambda: len(made.seen) == 2)
        made.release()
        await until(lambda: len(made.ended) == 2)
        await made.begin(group, "c", most=2)  # the loop goes on
    for request in "ab":
        assert made.got[request] == [(request, 0), (request, 1)]
        assert isinstance(made.ended[request], make)
        # Step 3 was launched before the second half of step 2 has failed.
        assert len(made.steps_of(request)) == (4 if half == "answer" else 3)
    assert (made.ended["a"] is made.ended["b"]) == (make is WeirdError)
    assert len(made.got["c"]) == 2


async def test_who_is_new_in_a_step_behind_the_failed_one_goes_on() -> None:
    def ready(request: str) -> bool:
        return request == "a" or len(made.seen) > 0

    async with stepping(slots=2, ready=ready) as (made, group):
        made.answer = raising(0, KeyError)
        group.start_soon(made.read, "a")
        group.start_soon(made.read, "b", 3)
        await until(lambda: len(made.seen) == 2)
        assert {*made.seen[1].values()} == {"a", "b"}
        made.release()
    assert isinstance(made.ended["a"], KeyError)
    assert made.got["a"] == []
    assert made.got["b"] == [("b", 1), ("b", 2), ("b", 3)]


async def test_reading_on_after_an_error_raises_it_again() -> None:
    async with stepping(slots=1) as (made, _):
        made.release()
        made.answer = raising(1, KeyError)
        async with made.steps("a") as results:
            assert await anext(results) == ("a", 0)
            for _ in range(3):
                with pytest.raises(KeyError):
                    await anext(results)


async def test_a_failed_launch_counts_as_no_step(breakable: Any) -> None:
    """The stream refuses before the step is called, and both halves of others go on."""
    async with stepping(slots=2) as (made, group):
        await made.begin(group, "a", most=1)
        await until(lambda: len(made.seen) == 2)
        await made.pass_one()
        await made.pass_one()
        assert made.steps.launched == 2
        breakable.fail("cuCtxPushCurrent", 2)
        await made.begin(group, "b")
        await until(lambda: "b" in made.ended)
        assert isinstance(made.ended["b"], CudaError)
        assert made.steps.launched == 2
        await made.begin(group, "c", most=1)
        await until(lambda: len(made.seen) > 2)
        assert made.seen[2].number == 2
        assert made.seen[2].new == made.seen[2].left == {0}
        made.release()


async def test_a_failed_launch_is_raised_behind_the_results_of_earlier_steps(
    breakable: Any,
) -> None:
    asked: list[str] = []

    def ready(request: str) -> bool:
        asked.append(request)
        return len(asked) != 2

    async with stepping(slots=1, ready=ready) as (made, group):
        await made.begin(group, "a")
        await until(lambda: len(made.seen) == 1)
        await turns()
        breakable.fail("cuCtxPushCurrent", 2)
        made.results["a"].wake()
        await turns()
        assert made.ended == {}
        made.release()
        await until(lambda: "a" in made.ended)
    assert made.got["a"] == [("a", 0)]
    assert isinstance(made.ended["a"], CudaError)
    assert made.steps.launched == 1


@pytest.mark.cuda_leaks(2)
async def test_a_wait_that_fails_is_raised_at_the_yield(breakable: Any) -> None:
    caught: list[BaseException] = []

    def step(active: Active[str]) -> Generator[None, None, dict[int, str]]:
        spin(stream, 0.02)
        breakable.fail("cuEventQuery", 2)
        try:
            yield
        except CudaError as error:
            caught.append(error)
            if len(caught) == 2:
                raise
        return dict.fromkeys(active, "done")

    async with Stream() as stream, Steps(stream, step, slots=1, ahead=0) as steps:
        async with steps("a") as results:
            assert await anext(results) == "done"
            with pytest.raises(CudaError):
                await anext(results)
        breakable.clear_faults()
    assert len(caught) == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda active: None, "returned None"),
        (lambda active: [1], r"returned \[1\]"),
        (lambda active: {7: 1}, r"returned \{7: 1\}"),
        (lambda active: {"a": 1}, "returned"),
        (lambda active: 5, "returned 5"),
    ],
)
async def test_a_wrong_answer_is_a_type_error_that_says_what_is_right(
    answer: Any, says: str
) -> None:
    async with stepping(slots=1) as (made, group):
        made.release()
        made.answer = lambda active: (numbered if active.number != 1 else answer)(active)
        await made.begin(group, "a")
        await until(lambda: "a" in made.ended)
        await made.begin(group, "b", most=1)
    with pytest.raises(TypeError, match=rf"(?s)Stepper.step has {says}.*slots of this step are"):
        raise made.ended["a"]
    assert made.got["a"] == [("a", 0)]


@pytest.mark.parametrize("yielded", [5, 0, [7], "ab", [[]], True])
async def test_a_wrong_yield_is_a_type_error(yielded: Any) -> None:
    async with stepping(slots=1) as (made, group):
        made.release()
        made.last = lambda active: yielded if active.number == 1 else None
        await made.begin(group, "a")
        await until(lambda: "a" in made.ended)
        await made.begin(group, "b", most=1)
    assert isinstance(made.ended["a"], TypeError)
    assert "has yielded" in str(made.ended["a"])
    assert made.got["a"] == [("a", 0)]


@pytest.mark.parametrize("how", ["plain", "none", "twice", "stubborn"])
async def test_one_yield_no_more_and_no_less(how: str) -> None:
    closed: list[bool] = []

    def none(active: Active[str]) -> Generator[None, None, dict[int, str]]:
        if how == "none":
            return dict.fromkeys(active, "x")
        yield
        try:
            yield
        except TypeError:
            if how == "twice":
                raise
        finally:
            closed.append(True)
        yield
        return {}

    step: Any = (lambda active: dict.fromkeys(active, "x")) if how == "plain" else none
    async with Stream() as stream, Steps(stream, step, slots=1) as steps:
        async with steps("a") as results:
            with pytest.raises(TypeError, match=r"has yielded twice|has not yielded"):
                await anext(results)
        assert not closed or how in ("twice", "stubborn")


async def test_a_cancellation_error_of_a_step_is_no_cancellation(loop_kind: str) -> None:
    kind: Any = asyncio.CancelledError
    if loop_kind == "trio":
        kind = GeneratorExit
    for make in (kind, StopAsyncIteration):
        async with stepping(slots=1) as (made, group):
            made.release()
            made.answer = raising(1, make)
            await made.begin(group, "a")
        assert isinstance(made.ended["a"], RuntimeError)
        assert isinstance(made.ended["a"].__cause__, make)
        assert made.got["a"] == [("a", 0)]


async def test_an_error_that_is_no_exception_is_raised_in_the_requests() -> None:
    async with stepping(slots=1) as (made, _):
        made.release()
        made.answer = raising(1, Mine)
        async with made.steps("a") as results:
            assert await anext(results) == ("a", 0)
            with pytest.raises(Mine):
                await anext(results)


async def test_or_it_is_reported_if_all_have_left(unraisable: list[Any]) -> None:
    async with stepping(slots=1) as (made, _):
        made.answer = raising(0, lambda: Mine("lost"))
        async with made.steps("a"):
            await until(lambda: len(made.seen) == 2)
        made.release()
        await until(lambda: len(made.landed) == 2)
    assert [(kind, text) for kind, text, _ in unraisable] == [(Mine, "lost")]


async def test_a_mapping_that_raises_is_an_error_of_its_step_alone() -> None:
    class Lazy(UserDict[int, str]):
        def __getitem__(self, slot: int) -> str:
            raise UnicodeError("no such token")

    async with stepping(slots=1) as (made, group):
        made.release()
        made.answer = lambda active: Lazy({0: ""}) if active.number == 1 else numbered(active)
        await made.begin(group, "a")
        await until(lambda: "a" in made.ended)
        await made.begin(group, "b", most=1)
    assert isinstance(made.ended["a"], UnicodeError)
    assert made.ended["b"] is None


async def test_an_error_whose_truth_value_is_false_is_an_error() -> None:
    class EmptyError(Exception):
        def __len__(self) -> int:
            return 0

    for half in ("before", "answer"):
        async with stepping(slots=1) as (made, group):
            made.release()
            setattr(made, half, raising(1, EmptyError))
            await made.begin(group, "a")
        assert isinstance(made.ended["a"], EmptyError)


@pytest.mark.parametrize("half", ["before", "answer"])
async def test_a_failed_step_keeps_nothing_until_the_collector_runs(half: str) -> None:
    watched: list[weakref.ref[Kept]] = []

    def fail(active: Active[Any]) -> Any:
        tensor = Kept()
        watched.append(weakref.ref(tensor))
        raise KeyError

    gc.collect()
    gc.disable()
    try:
        async with stepping(slots=1) as (made, group):
            made.release()
            setattr(made, half, fail)
            await made.begin(group, "a")
            await until(lambda: "a" in made.ended)
            made.ended.clear()
            made.results.clear()
            await until(lambda: watched[0]() is None)
    finally:
        gc.enable()


# ------------------------------------------------------------------------------ fatal errors


@pytest.mark.cuda_leaks(2)
async def test_a_lost_context_ends_everybody_and_those_who_come_later(breakable: Any) -> None:
    stream = Stream()
    made = Stepper(stream, slots=1)
    async with made.steps, anyio.create_task_group() as group:
        await made.begin(group, "a", "b")
        place = made.steps("c")
        await until(lambda: len(made.seen) == 2)
        breakable.break_context()
        await until(lambda: len(made.ended) == 2)
        for error in made.ended.values():
            assert isinstance(error, ContextFailedError)
        with pytest.raises(ContextFailedError):
            made.steps("d")
        with pytest.raises(ContextFailedError):
            await place.__aenter__()
        assert made.steps.running == made.steps.waiting == 0
    made.release()
    with contextlib.suppress(ContextFailedError):
        stream.close()


async def test_a_closed_stream_ends_everybody() -> None:
    stream = Stream()
    made = Stepper(stream, slots=1)
    async with made.steps, anyio.create_task_group() as group:
        await made.begin(group, "a", "b")
        await until(lambda: len(made.seen) == 2)
        stream.close()
        made.release()
        await until(lambda: len(made.ended) == 2)
        with pytest.raises(StreamClosedError):
            made.steps("c")
    for error in made.ended.values():
        assert isinstance(error, StreamClosedError)


@pytest.mark.parametrize("how", ["context", "stream"])
async def test_also_those_who_sit_out_and_those_behind_them(how: str, breakable: Any) -> None:
    stream = Stream()
    made = Stepper(stream, slots=1, ready=lambda _: False)
    async with made.steps, anyio.create_task_group() as group:
        await made.begin(group, "a", "b")
        if how == "context":
            breakable.break_context()
        else:
            stream.close()
        await until(lambda: len(made.ended) == 2)
        kind = ContextFailedError if how == "context" else StreamClosedError
        assert all(isinstance(error, kind) for error in made.ended.values())
    with contextlib.suppress(ContextFailedError):
        stream.close()


async def test_a_stream_that_is_closed_while_no_request_is_there_refuses_the_next() -> None:
    stream = Stream()
    made = Stepper(stream)
    async with made.steps:
        await turns()
        stream.close()
        with pytest.raises(StreamClosedError):
            made.steps("a")


# ------------------------------------------------------------------------------ close


@pytest.mark.parametrize("where", ["loop", "thread", "step"])
@pytest.mark.all_loops
async def test_close_ends_everybody_at_once_while_the_gpu_hangs(where: str) -> None:
    closed: list[str] = []

    def step(active: Active[str]) -> Generator[None, None, dict[int, int]]:
        number = active.number
        if number == 2:
            gate.hold(stream)
        if number == 3 and where == "step":
            steps.close()
        try:
            yield
            return dict.fromkeys(active, number)
        finally:
            closed.append(f"{number} {stream.query()}")

    got: dict[str, list[Any]] = {"a": [], "b": []}

    async def read(name: str) -> None:
        with pytest.raises(StreamClosedError, match="closed"):
            async with steps(name) as results:
                await until(lambda: steps.launched == 4)
                if where == "step":
                    await until(lambda: steps.running == 0)
                async for result in results:
                    got[name].append(result)

    async with Stream() as stream:
        steps: Steps[str, int] = Steps(stream, step, slots=1)
        with Gate() as gate:
            async with anyio.create_task_group() as group, steps:
                for name in got:
                    group.start_soon(read, name)
                await until(lambda: steps.launched == 4)
                if where == "thread":
                    thread = threading.Thread(target=steps.close)
                    thread.start()
                    thread.join()
                elif where == "loop":
                    steps.close()
                    steps.close()
            assert sorted(got.values()) == [[], [0, 1]]  # what was there
            with pytest.raises(StreamClosedError):
                steps("c")
            with pytest.raises(StreamClosedError):
                await steps.__aenter__()
            assert "closed" in repr(steps)
            assert len(closed) == 2
        await until(lambda: len(closed) == 4)  # also those that had been launched


async def test_steps_that_were_closed_before_their_block_refuse_it() -> None:
    async with Stream() as stream:
        made = Stepper(stream)
        made.steps.close()
        with pytest.raises(StreamClosedError):
            async with made.steps:
                pass


# ------------------------------------------------------------------------------ the block's end


@pytest.mark.all_loops
async def test_the_end_waits_for_those_who_have_entered_and_refuses_others() -> None:
    async with Stream() as stream:
        made = Stepper(stream, slots=1)
        with pytest.raises(RuntimeError, match="within their `async with` block"):
            made.steps("early")
        async with anyio.create_task_group() as group:
            async with made.steps:
                with pytest.raises(RuntimeError, match="has begun before"):
                    await made.steps.__aenter__()
                await made.begin(group, "a", "b", most=2)
                place = made.steps("c")

                async def late() -> None:
                    await until(lambda: "closed" in repr(made.steps))
                    with pytest.raises(RuntimeError, match="has ended"):
                        made.steps("d")
                    with pytest.raises(RuntimeError, match="has ended"):
                        await place.__aenter__()
                    made.release()

                group.start_soon(late)
            assert made.ended == {"a": None, "b": None}
            async with made.steps:  # once more, when it is over
                await made.begin(group, "e", most=1)
        assert made.got["e"][0][0] == "e"


@pytest.mark.parametrize("how", ["error", "cancelled", "end cancelled"])
async def test_a_block_that_ends_by_an_error_or_a_cancellation_closes(how: str) -> None:
    async with Stream() as stream:
        made = Stepper(stream, slots=1)
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                try:
                    async with made.steps:
                        await made.begin(group, "a", "b")
                        await until(lambda: len(made.seen) == 2)
                        if how == "error":
                            raise KeyError
                        if how == "end cancelled":
                            group.start_soon(anyio.lowlevel.checkpoint)

                            async def cancel() -> None:
                                await until(lambda: "closed" in repr(made.steps))
                                scope.cancel()

                            group.start_soon(cancel)
                        else:
                            scope.cancel()
                            await anyio.lowlevel.checkpoint()
                except KeyError:
                    assert how == "error"
            await until(lambda: len(made.ended) == 2)
            for error in made.ended.values():
                assert isinstance(error, StreamClosedError)
            made.release()
        assert made.steps.running == made.steps.waiting == 0


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
@pytest.mark.parametrize("began", [False, True])
def test_when_the_task_of_the_steps_is_cancelled_everybody_hears_of_it(
    loop_kind: str, began: bool
) -> None:
    async def main() -> None:
        async with Stream() as stream:
            made = Stepper(stream, slots=1)
            async with anyio.create_task_group() as group:
                async with made.steps:
                    tasks = asyncio.all_tasks()
                    [task] = [each for each in tasks if each.get_name() == "Steps of Stepper.step"]
                    if began:
                        await made.begin(group, "a", "b")
                        await until(lambda: len(made.seen) == 2)
                    task.cancel()
                    if not began:
                        await made.begin(group, "a", "b")
                    await until(lambda: len(made.ended) == 2)
                for error in made.ended.values():
                    assert "was cancelled" in str(error)
                    assert isinstance(error, StreamClosedError)
                made.release()

    run_on(loop_kind, main)


async def test_another_loop_is_refused() -> None:
    async with stepping(slots=1) as (made, group):
        await made.begin(group, "a", most=1)
        results = made.results["a"]

        async def other() -> None:
            with pytest.raises(RuntimeError, match="in tasks of its"):
                made.steps("b")
            with pytest.raises(RuntimeError):
                await results.__aenter__()

        thread = threading.Thread(target=run_on, args=("asyncio", other))
        thread.start()
        thread.join()
        made.release()
    assert made.got["a"] == [("a", 0)]


@pytest.mark.parametrize("kind", ASYNCIO_LOOPS)
def test_steps_in_flight_are_closed_on_a_safe_thread_if_the_loop_is_closed(kind: str) -> None:
    closed: list[tuple[str, bool]] = []
    watched: list[weakref.ref[Kept]] = []
    entered: list[Any] = []

    def step(active: Active[Any]) -> Generator[None, None, dict[int, int]]:
        gate.hold(stream)
        try:
            yield
        finally:
            is_current = Context.get_current() == stream.context
            closed.append((threading.current_thread().name, is_current))
        return {}

    async def begin() -> None:
        steps: Steps[Kept, int] = Steps(stream, step, slots=1)
        request = Kept()
        watched.append(weakref.ref(request))
        await steps.__aenter__()
        entered.extend([steps, steps(request)])
        await entered[1].__aenter__()
        await until(lambda: steps.launched == 2)
        for task in asyncio.all_tasks():  # else asyncio reports the one of the steps
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    with Gate() as gate, contextlib.closing(Stream()) as stream:
        loop = asyncio.new_event_loop() if kind == "asyncio" else new_uvloop()
        loop.run_until_complete(begin())
        loop.close()
        del loop
        entered.clear()
        gc.collect()
        assert watched[0]() is not None
        gate.open()
        assert settle(lambda: len(closed) == 2)
        assert closed == [("aiostream-releaser", True)] * 2
        assert settle(lambda: gc.collect() >= 0 and watched[0]() is None)


@pytest.mark.parametrize("kind", ASYNCIO_LOOPS)
def test_steps_whose_loop_was_closed_serve_in_another_one(kind: str) -> None:
    with contextlib.closing(Stream()) as stream:
        made, kept = Stepper(stream, slots=1), list[Any]()

        async def leave() -> None:
            await made.steps.__aenter__()
            kept.append(asyncio.ensure_future(made.read("a")))
            await until(lambda: len(made.seen) == 2)
            for task in asyncio.all_tasks():  # else asyncio reports them
                task._log_destroy_pending = False  # type: ignore[attr-defined]

        async def use() -> None:
            made.release()
            async with made.steps:
                await made.read("b", 2)

        loop = asyncio.new_event_loop() if kind == "asyncio" else new_uvloop()
        loop.run_until_complete(leave())
        loop.close()
        run_on(kind, use)
        assert len(made.got["b"]) == 2
        made.results.clear()
        kept.clear()
        del loop
        assert settle(lambda: gc.collect() >= 0 and stream.query())


async def test_what_a_step_holds_lives_until_the_gpu_has_passed_it() -> None:
    watched: list[weakref.ref[Kept]] = []

    def step(active: Active[str]) -> Generator[None, None, dict[int, Any]]:
        buffer = Kept()
        watched.append(weakref.ref(buffer))
        gate.hold(stream)
        yield
        return dict.fromkeys(active, End(buffer is not None))

    with Gate() as gate:
        async with Stream() as stream:
            steps: Steps[str, Any] = Steps(stream, step, slots=1)
            with pytest.raises(KeyError):
                async with steps, steps("a"):
                    await until(lambda: steps.launched == 2)
                    raise KeyError
            await turns()
            gc.collect()
            assert all(each() is not None for each in watched)
            gate.open()

            def is_gone() -> bool:
                gc.collect()
                return all(each() is None for each in watched)

            await until(is_gone)


# -------------------------------------------------------------------------------- interrupts


# Of a step whose requests have all left.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_line_leaves_no_reader_without_an_answer() -> None:
    """At the latest when the steps are closed. A slot may be lost until then."""

    def strike() -> None:
        raise KeyboardInterrupt

    def step(active: Active[int]) -> Generator[None, None, dict[int, Any]]:
        yield
        return {slot: End(5) if active.number > 6 else active.number for slot in active}

    async def read(steps: Steps[int, int], request: int) -> None:
        async with steps(request) as results:
            async for _ in results:
                pass

    def serve(number: int) -> int:
        loop, stream = asyncio.new_event_loop(), Stream()
        loop.set_exception_handler(lambda *_: None)  # the task of the steps may have got it
        steps = Steps(stream, step, slots=2)
        loop.run_until_complete(steps.__aenter__())
        tasks = [loop.create_task(read(steps, request)) for request in range(3)]
        files = "steps.py", "results.py"
        # The interrupt comes out of the loop, and it may stop the loop the next time too.
        interrupted = contextlib.suppress(KeyboardInterrupt, RuntimeError)
        with interrupted, at_line(number, strike, *files) as lines:
            loop.run_until_complete(asyncio.wait(tasks))
        for _ in range(2):
            with interrupted:
                loop.run_until_complete(asyncio.wait(tasks, timeout=0.1))
        steps.close()
        tasks.append(loop.create_task(steps.__aexit__(None, None, None)))
        loop.run_until_complete(asyncio.wait(tasks, timeout=20))
        assert all(task.done() for task in tasks), lines[number - 1]
        for task in tasks:
            task.exception()  # which is retrieved
        stream.close()
        loop.close()
        return len(lines)

    for number in sample(serve(0), 60, "steps"):
        serve(number)
