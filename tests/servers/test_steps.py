"""`serving.Steps`: who is in which step, and who gets which result."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Generator
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import PoolFullError, Stream, StreamPool
from aiostream.serving import Active, End, Steps
from stepping import numbered, stepping
from support import Kept, spin
from waiters import turns, until

# ------------------------------------------------------------------------------ one step ahead


@pytest.mark.all_loops
async def test_each_request_gets_its_own_results_in_order() -> None:
    async with stepping(slots=3) as (made, group):
        made.release()
        await made.begin(group, "a", "b", "c", most=5)
    for request, got in made.got.items():
        assert [who for who, _ in got] == [request] * 5
        steps = [number for _, number in got]
        assert steps == [*range(steps[0], steps[0] + 5)]
    assert made.ended == dict.fromkeys("abc")


@pytest.mark.parametrize("ahead", [0, 1, 2])
async def test_so_many_steps_are_launched_before_the_results_of_the_first(ahead: int) -> None:
    async with stepping(slots=1, ahead=ahead) as (made, group):
        await made.begin(group, "a", most=4)
        for number in range(3):
            await until(lambda: len(made.seen) == len(made.landed) + ahead + 1)
            await turns()
            assert len(made.seen) == number + ahead + 1
            assert made.landed == [*range(number)]
            await made.pass_one()
        assert made.got["a"] == [("a", 0), ("a", 1), ("a", 2)]
        made.release()
    assert made.steps.launched == len(made.seen)


async def test_the_next_step_is_launched_before_what_the_last_one_found_is_read() -> None:
    order = []

    def step(active: Active[str]) -> Generator[None, None, dict[int, int]]:
        order.append(f"first {active.number}")
        spin(stream, 0.001)
        yield
        order.append(f"second {active.number}")
        return dict.fromkeys(active, 0)

    async with Stream() as stream, Steps(stream, step, slots=1) as steps, steps("a") as results:
        for _ in range(3):
            await anext(results)
    at = order.index
    assert at("first 1") < at("second 0") < at("first 2") < at("second 1") < at("first 3")


@pytest.mark.parametrize("readers", [1, 16])
async def test_readers_of_steps_that_the_gpu_has_done_at_once_can_be_cancelled(
    readers: int,
) -> None:
    """anyio cancels no task whose future is done, and tries again in the next turn."""
    late = Counter[int]()

    def step(active: Active[int]) -> Generator[None, None, dict[int, int]]:
        yield
        return dict.fromkeys(active, 0)

    async def read(reader: int) -> None:
        async with steps(reader) as results:
            async for _ in results:
                late[reader] += group.cancel_scope.cancel_called

    async with Stream() as stream, Steps(stream, step, slots=readers) as steps:
        for _ in range(10):
            async with anyio.create_task_group() as group:
                for reader in range(readers):
                    group.start_soon(read, reader)
                await anyio.sleep(0.01)
                group.cancel_scope.cancel()
            assert max(late.values(), default=0) <= 20
            late.clear()


async def test_requests_of_one_turn_share_their_first_step() -> None:
    async with stepping(slots=4) as (made, group):
        for request in "abcd":
            group.start_soon(made.read, request, 1)
        await until(lambda: bool(made.seen))
        assert len(made.seen[0]) == 4
        made.release()


async def test_without_requests_nothing_is_launched() -> None:
    async with stepping() as (made, group):
        made.release()
        await made.begin(group, "a", most=2)
        await until(lambda: "a" in made.ended)
        await until(lambda: len(made.landed) == len(made.seen))
        launched = made.steps.launched
        await turns(50)
        assert made.steps.launched == launched
        await made.begin(group, "b", most=1)
    assert made.got["b"] == [("b", launched)]


async def test_what_a_step_has_found_is_read_before_a_later_step_may_overwrite_it() -> None:
    """The loop is kept for so long that the GPU is through with all that was launched."""
    for ahead in (1, 2):
        buffers = [[0] for _ in range(ahead + 1)]

        def step(
            active: Active[str], buffers: list[list[int]] = buffers, ahead: int = ahead
        ) -> Generator[None, None, dict[int, int]]:
            buffer = buffers[active.number % (ahead + 1)]
            buffer[0] = active.number  # what the GPU writes
            spin(stream, 0.0002)
            yield
            return dict.fromkeys(active, buffer[0])

        got: list[int] = []
        async with (
            Stream() as stream,
            Steps(stream, step, slots=1, ahead=ahead) as steps,
            steps("a") as results,
        ):
            while len(got) < 8:
                got.append(await anext(results))
                stream.synchronize()
        assert got == [*range(8)]


# ------------------------------------------------------------------------------ slots


async def test_the_lowest_free_slot_goes_to_the_first_who_waits() -> None:
    async with stepping(slots=2) as (made, group):
        await made.begin(group, "a", "b", most=1)
        await made.begin(group, "c", "d")
        assert made.steps.running == 2
        assert made.steps.waiting == 2
        assert "2 requests run, 2 wait" in repr(made.steps)
        assert "Steps of Stepper.step" in repr(made.steps)
        made.release()
        await until(lambda: made.results.keys() >= {*"abcd"})
        slots = {request: made.results[request].slot for request in "abcd"}
        assert slots == {"a": 0, "b": 1, "c": 0, "d": 1}
        made.steps.close()


async def test_among_those_that_have_entered_the_first_called_is_the_first() -> None:
    async with stepping(slots=1) as (made, group):
        await made.begin(group, "a")
        entered: list[str] = []
        places = {name: made.steps(name) for name in "bc"}

        async def enter(name: str) -> None:
            async with places[name]:
                entered.append(name)

        for name in "cb":
            group.start_soon(enter, name)
            await turns()
        assert made.steps.waiting == 2
        made.answer = lambda active: dict.fromkeys(active, End())
        made.release()
        await until(lambda: len(entered) == 2)
        assert entered == ["b", "c"]


@pytest.mark.all_loops
async def test_a_slot_is_used_again_when_no_launched_step_has_it() -> None:
    """The request of step 0 and 1 leaves while both are in flight, and another one waits."""
    async with stepping(slots=1) as (made, group):
        await made.begin(group, "a", most=1)
        await until(lambda: len(made.seen) == 2)
        group.start_soon(made.read, "b", 2)
        await made.pass_one()
        assert made.ended == {"a": None}
        await turns()
        assert made.steps.waiting == 1  # step 1 has a's row
        assert made.steps.running == 0
        await made.pass_one()
        await until(lambda: len(made.seen) > 2)
        assert [*made.seen[2].items()] == [(0, "b")]
        assert made.seen[2].new == made.seen[2].left == {0}
        made.release()
    assert made.got == {"a": [("a", 0)], "b": [("b", 2), ("b", 3)]}
    assert made.steps_of("a") == [0, 1]


async def test_a_step_says_who_is_new_and_which_slots_were_given_back() -> None:
    async with stepping(slots=3, ahead=0) as (made, group):
        await made.begin(group, "a")
        await made.begin(group, "b", "c", most=1)
        await made.pass_one()  # 0: a
        await made.pass_one()  # 1: a, b, c
        await until(lambda: len(made.seen) == 3)
        await made.begin(group, "d")
        await made.pass_one()  # 2: a
        await until(lambda: len(made.seen) == 4)
        said: Any = [(dict(each), each.new, each.left) for each in made.seen]
        assert said == [
            ({0: "a"}, {0}, set()),
            ({0: "a", 1: "b", 2: "c"}, {1, 2}, set()),
            ({0: "a"}, set(), {1, 2}),
            ({0: "a", 1: "d"}, {1}, set()),
        ]
        assert [each.number for each in made.seen] == [0, 1, 2, 3]
        made.steps.close()


async def test_what_a_step_gets_is_a_mapping_that_never_changes() -> None:
    async with stepping(slots=2) as (made, group):
        await made.begin(group, "a", "b", most=3)
        made.release()
        await until(lambda: made.ended == {"a": None, "b": None})
        active = made.seen[2]
    assert [*active.items()] == [(0, "a"), (1, "b")]
    assert [*active.keys()] == [0, 1]
    assert [*active.values()] == ["a", "b"]
    assert len(active) == 2
    assert active[1] == "b"
    assert active.get(2) is None
    assert "step 2" in repr(active)
    with pytest.raises(TypeError):
        active[0] = "c"  # type: ignore[index]


# ------------------------------------------------------------------------------ who may wait


async def test_more_than_may_wait_are_refused_at_once() -> None:
    async with stepping(slots=2, max_waiting=1) as (made, group):
        places = [made.steps(name) for name in "abc"]
        with pytest.raises(PoolFullError, match=r"1 requests wait for a slot.*503"):
            made.steps("d")
        assert made.steps.waiting == 3
        del places
        gc.collect()
        assert made.steps.waiting == 0  # what is never entered counts no more
        await made.begin(group, "e", "f", "g", most=1)
        with pytest.raises(PoolFullError):
            made.steps("h")
        made.release()
    assert len(made.got) == 3


async def test_clients_that_left_while_they_waited_count_no_more() -> None:
    async with stepping(slots=1, max_waiting=1) as (made, group):
        await made.begin(group, "a")
        for name in "bcd":
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as others:
                    await made.begin(others, name)
                    assert made.steps.waiting == 1
                    scope.cancel()
        assert made.steps.waiting == 0
        made.steps.close()
    assert {*made.got} == {*"abcd"}
    assert all("b" not in each.values() for each in made.seen)


# ------------------------------------------------------------------------------ results


async def test_a_slot_without_a_result_waits_for_the_next_step() -> None:
    async with stepping() as (made, group):
        made.answer = lambda active: numbered(active) if active.number % 2 else {}
        made.release()
        await made.begin(group, "a", most=2)
    assert made.got["a"] == [("a", 1), ("a", 3)]


@pytest.mark.parametrize(("end", "got"), [(End("x"), [0, 1, "x"]), (End(), [0, 1])])
async def test_an_end_is_the_last_result(end: Any, got: list[Any]) -> None:
    async with stepping(slots=1) as (made, _):
        made.release()
        made.answer = lambda active: {0: end if active.number == 2 else active.number}
        async with made.steps("a") as results:
            assert [result async for result in results] == got
            assert [result async for result in results] == []  # it has ended
            assert made.steps.running == 0


@pytest.mark.parametrize("how", [list, set, iter, tuple])
async def test_what_a_step_yields_is_in_no_later_one(how: Any) -> None:
    """A diffusion of 5 steps, of which two are launched ahead."""
    async with stepping(slots=2, ahead=2) as (made, group):
        made.release()
        made.last = lambda active: how(
            [slot for slot, request in active.items() if len(made.steps_of(request)) == 5]
        )
        await made.begin(group, "a", "b")
    assert made.ended == {"a": None, "b": None}
    for request in "ab":
        assert len(made.steps_of(request)) == len(made.got[request]) == 5


async def test_an_exception_as_a_result_ends_its_request_alone() -> None:
    async with stepping() as (made, group):
        made.release()
        made.answer = lambda active: {
            **numbered(active),
            **({0: KeyError("a"), 1: End(KeyError)} if active.number == 2 else {}),
        }
        async with made.steps("a") as first, made.steps("b") as second:
            for results, kind in ((first, KeyError), (second, TypeError)):
                got: list[Any] = []
                for _ in range(2):  # reading on raises it again
                    with pytest.raises(kind):
                        got.extend([each async for each in results])
            await made.begin(group, "c", most=1)
    assert made.got["c"][0][0] == "c"


async def test_results_of_a_request_that_has_ended_stay_readable() -> None:
    async with stepping(slots=1) as (made, _), made.steps("a") as results:
        made.answer = lambda active: {0: End(5) if active.number == 4 else active.number}
        made.release()
        await until(lambda: made.steps.running == 0)
        chunks = results.chunks()
        assert await anext(chunks) == [0, 1, 2, 3, 5]
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)


# ------------------------------------------------------------------------------ readers


async def test_one_block_and_one_reader_for_each_request() -> None:
    async with stepping(slots=1) as (made, group):
        place = made.steps("a")
        with pytest.raises(RuntimeError, match="within the block"):
            await anext(place)
        with pytest.raises(TypeError, match="async with"), place:
            pass
        async with place as results:
            assert results.slot == 0
            with pytest.raises(RuntimeError, match="begins once"):
                await place.__aenter__()
            got = list[Any]()

            async def read() -> None:
                got.append(await anext(results))

            group.start_soon(read)
            await turns()
            with pytest.raises(RuntimeError, match="one task at a time"):
                await anext(results)
            made.release()
            await until(lambda: bool(got))


async def test_no_task_reads_before_the_request_has_its_slot() -> None:
    async with stepping(slots=1) as (made, group):
        await made.begin(group, "a", most=1)
        place, got = made.steps("b"), list[Any]()

        async def own() -> None:
            async with place as results:
                got.append(await anext(results))

        group.start_soon(own)
        await turns()
        with pytest.raises(RuntimeError, match="within the block"):
            await anext(place)
        made.release()
    assert [who for who, _ in got] == ["b"]


async def test_entered_read_and_left_in_different_tasks() -> None:
    async with stepping(slots=1) as (made, _):
        made.release()
        place, got = made.steps("a"), list[Any]()

        async def read() -> None:
            got.append(await anext(place))

        for call in (place.__aenter__, read, read, lambda: place.__aexit__(None, None, None)):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
        assert got == [("a", 0), ("a", 1)]
        assert made.steps.running == 0


@pytest.mark.all_loops
async def test_a_cancelled_read_loses_nothing() -> None:
    async with stepping(slots=1) as (made, _), made.steps("a") as results:
        for _ in range(3):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(results.__anext__)
                    await turns()
                    scope.cancel()
            assert scope.cancelled_caught
        made.release()
        assert await anext(results) == ("a", 0)
        assert await anext(results) == ("a", 1)


async def test_a_reader_whose_block_has_ended_before_the_results_gets_an_error() -> None:
    """Otherwise a `StreamingResponse` that is returned within the block is an empty answer."""
    async with stepping(slots=1) as (made, group):
        place, errors = made.steps("a"), list[str]()

        async def read() -> None:
            with pytest.raises(RuntimeError, match="ended before its results") as caught:
                await anext(place)
            errors.append(str(caught.value))

        async with place:
            group.start_soon(read)
            await until(lambda: len(made.seen) == 2)
            await turns()
        await until(lambda: bool(errors))
        assert "in the generator of the answer" in errors[0]
        place = made.steps("b")
        made.release()
        async with place:
            await until(lambda: len(made.landed) > 3)
        await read()  # not even what was there


async def test_a_reader_that_has_all_results_ends_after_the_block_too(stream: Stream) -> None:
    def step(active: Active[int]) -> Generator[None, None, dict[int, Any]]:
        yield
        return {slot: End(request) for slot, request in active.items()}

    async with Steps(stream, step, slots=1) as steps:
        async with steps(5) as results:
            assert [each async for each in results] == [5]
            assert [each async for each in results] == []
        assert [each async for each in results] == []


@pytest.mark.all_loops
async def test_a_block_that_is_ended_in_another_thread_gives_its_slot_on() -> None:
    """So ends the collector the block of a task that is lost."""
    async with stepping(slots=1) as (made, group):
        made.release()
        place = made.steps("a")
        await place.__aenter__()
        await made.begin(group, "b", most=2)
        ended: list[str] = []

        async def read() -> None:
            with pytest.raises(RuntimeError, match="ended before its results"):
                async for _ in place:
                    pass
            ended.append("reader")

        def end() -> None:
            with pytest.raises(StopIteration):
                place.__aexit__(GeneratorExit, GeneratorExit(), None).send(None)
            ended.append("block")

        group.start_soon(read)
        await turns()
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        launched = made.steps.launched
        await until(lambda: "b" in made.ended)
        assert sorted(ended) == ["block", "reader"]
        assert max(made.steps_of("a")) < launched
    assert len(made.got["b"]) == 2


async def test_a_slow_reader_sits_out_and_holds_up_no_other() -> None:
    async with stepping(max_unread=2) as (made, group):
        made.release()
        async with made.steps("slow") as slow:
            await made.begin(group, "quick", most=12)
            await until(lambda: "quick" in made.ended)
            steps = made.steps_of("slow")
            assert 2 <= len(steps) <= 3  # one more was in flight
            got = await anext(slow.chunks())
            assert [number for _, number in got] == steps
            await until(lambda: len(made.steps_of("slow")) > len(steps))
            assert await anext(slow) == ("slow", made.steps_of("slow")[len(steps)])


# ------------------------------------------------------------------------------ ready


@pytest.mark.all_loops
async def test_a_request_that_is_not_ready_sits_out_until_it_is_woken() -> None:
    ready: set[str] = set()
    async with stepping(ready=ready.__contains__) as (made, group):
        made.release()
        await made.begin(group, "a", most=2)
        await turns(50)
        assert not made.seen
        [entry] = aiostream.pending()
        assert (entry["call"], entry["function"]) == ("Steps.ready", "Stepper.step")
        assert entry["stream"].startswith("stream 'decode'")
        assert "in Stepper.read" in str(entry["where"])
        ready.add("a")
        thread = threading.Thread(target=made.results["a"].wake)
        thread.start()
        await until(lambda: "a" in made.ended)
        thread.join()
        ready.add("b")
        await made.begin(group, "b", most=1)
    assert made.got == {"a": [("a", 0), ("a", 1)], "b": made.got["b"]}


async def test_what_ready_raises_is_raised_in_that_request_alone() -> None:
    def ready(request: str) -> bool:
        if request == "bad":
            raise KeyError(request)
        return True

    async with stepping(ready=ready) as (made, group):
        made.release()
        await made.begin(group, "bad", "good", most=3)
    assert isinstance(made.ended["bad"], KeyError)
    assert made.got["bad"] == []
    assert len(made.got["good"]) == 3


# ------------------------------------------------------------------------------ the call


async def test_steps_have_the_variables_of_the_block_and_not_those_of_requests() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("block")
    seen = []
    async with stepping(slots=1) as (made, _):
        made.release()

        def note(active: Active[Any]) -> None:
            seen.append(variable.get())
            variable.set("step")

        made.before = note
        variable.set("request")
        async with made.steps("a") as results:
            for _ in range(3):
                await anext(results)
            assert variable.get() == "request"
    assert {*seen} == {"block"}


async def test_a_request_lives_until_its_slot_is_given_on() -> None:
    async with stepping(slots=1) as (made, _):
        request = Kept()
        watched = weakref.ref(request)
        async with made.steps(request):
            del request
            await until(lambda: len(made.seen) == 2)
            made.seen.clear()
            gc.collect()
            assert watched() is not None
        gc.collect()
        assert watched() is not None  # two steps in flight have its row
        await made.pass_one()
        await made.pass_one()
        gc.collect()
        assert watched() is None


async def test_close_within_ready_is_the_end() -> None:
    def ready(_: str) -> bool:
        if len(made.seen) == 2:
            made.steps.close()
        return True

    async with stepping(slots=1, ready=ready) as (made, group):
        made.release()
        await made.begin(group, "a")
    assert isinstance(made.ended["a"], aiostream.StreamClosedError)
    assert made.steps.launched == 2


def test_wrong_arguments_are_refused(stream: Stream) -> None:
    def step(active: Active[Any]) -> Any:
        yield

    async def coroutine(active: Active[Any]) -> None: ...

    wrong: Any
    for wrong in ("stream", None, 3, stream.handle):
        with pytest.raises(TypeError, match="Steps takes a Stream, not"):
            Steps(wrong, step, slots=1)
    pool: Any = StreamPool.borrow([stream])
    with pytest.raises(TypeError, match="not StreamPool"):
        Steps(pool, step, slots=1)
    pool.close()
    for wrong in (None, 3, coroutine):
        with pytest.raises(TypeError):
            Steps(stream, wrong, slots=1)
    numbers: dict[str, tuple[int, ...]] = {
        "slots": (0, -1),
        "ahead": (-1,),
        "max_waiting": (-1,),
        "max_unread": (0, -1),
    }
    for name, few in numbers.items():
        for wrong in few:
            with pytest.raises(ValueError, match=str(wrong)):
                Steps(stream, step, **{"slots": 1, name: wrong})
        for wrong in ("1", 1.5, True):
            with pytest.raises(TypeError, match=name):
                Steps(stream, step, **{"slots": 1, name: wrong})
    with pytest.raises(TypeError):
        Steps(stream, step, slots=1, ready=coroutine)
    with pytest.raises(TypeError, match="slots"):
        Steps(stream, step)  # type: ignore[call-arg]


def test_where_people_look_for_it() -> None:
    for name in ("Steps", "ContinuousBatching"):
        with pytest.raises(AttributeError, match=r"aiostream\.serving\.Steps"):
            getattr(aiostream, name)
