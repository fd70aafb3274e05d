"""StreamPool: what belongs to each stream."""

from __future__ import annotations

import gc
import weakref
from typing import Any, assert_type, get_type_hints

import anyio
import pytest

from aiostream import Stream, StreamPool, drain, metrics, statistics
from foreign import TorchStream, current_handles, install_libraries
from support import Gate, settle, spin
from waiters import until


class Replica:
    """A buffer of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.seen = list[int]()

    def score(self, number: int, factor: int = 2) -> int:
        """Works on its own stream."""
        spin(self.stream, 0)
        self.seen.append(number)
        return number * factor


async def test_each_stream_has_its_own() -> None:
    async with StreamPool(2, each=Replica) as pool:
        assert_type(pool, StreamPool[Replica])
        async with pool.stream() as first, pool.stream() as second:
            assert (first.own.stream, second.own.stream) == (first, second)
        assert_type(await pool.run(Replica.score, 3), int)
        assert await pool.run(Replica.score, 3, factor=5) == 15
        assert await pool.run_in_thread(Replica.score, 7, factor=3) == 21
        assert await pool.run(lambda own, number: (type(own), number), 1) == (Replica, 1)
        async with pool.stream() as stream:
            assert sorted(stream.own.seen) == [3, 3, 7]


async def test_types_of_what_belongs_to_a_stream() -> None:
    async def typed(stream: Stream[Replica]) -> list[int]:
        return stream.own.seen

    async def untyped(stream: Stream) -> Any:
        return stream.own.seen

    async with StreamPool(1, each=Replica) as pool, StreamPool(1) as plain:
        async with pool.stream() as stream:
            assert_type(stream.own, Replica)
            assert await typed(stream) == await untyped(stream) == []
        async with pool.acquire() as stream:
            assert_type(stream.own.stream, Stream)
        taken = await pool.acquire()
        assert_type(taken.own, Replica)
        pool.release(taken)
        taken = pool.acquire_nowait()
        assert_type(taken.own.score(1), int)
        pool.release(taken)
        assert get_type_hints(typed)["stream"] == Stream[Replica]
        async with plain.stream() as bare:
            several: list[Stream] = [bare, Stream.borrow(bare)]
            assert several[0] == several[1]


async def test_no_two_requests_have_the_same_thing_at_once() -> None:
    used = set[int]()

    async def request() -> None:
        async with pool.stream() as stream:
            own = id(stream.own)
            assert own not in used
            used.add(own)
            spin(stream, 0.001)
            await stream.synchronize_async()
            used.discard(own)

    async with StreamPool(3, each=Replica) as pool, anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(request)


async def test_each_is_called_with_the_stream_current(
    monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    install_libraries(monkeypatch)
    theirs = TorchStream(stream.handle)
    async with (
        StreamPool.borrow([theirs], each=lambda _: current_handles()) as pool,
        pool.stream() as taken,
    ):
        assert taken.own["torch"] == stream.handle


class WrongError(Exception):
    """What a constructor raises."""


@pytest.mark.parametrize("makes", ["error", "None"])
def test_a_pool_is_not_made_if_each_fails(makes: str, stream: Stream) -> None:
    before, made = statistics().handles.open, list[Any]()

    def each(stream: Stream) -> Any:
        if len(made) == 1:
            if makes == "None":
                return None
            raise WrongError
        made.append(weakref.ref(replica := Replica(stream)))
        return replica

    kind = WrongError if makes == "error" else TypeError
    with pytest.raises(kind):
        StreamPool(3, each=each)
    gc.collect()
    assert statistics().handles.open == before
    assert made.pop()() is None
    other = Stream()
    with pytest.raises(kind):
        StreamPool.borrow([stream, other], each=each)
    assert not stream.closed
    assert not other.closed
    other.close()


def test_what_each_may_be(stream: Stream) -> None:
    async def coroutine(stream: Stream) -> int:
        return 1

    wrong: Any
    for wrong in (3, coroutine):
        with pytest.raises(TypeError, match="each takes a"):
            StreamPool(1, each=wrong)
    with pytest.raises(AttributeError, match=r"nothing belongs to .*StreamPool\(4, each=Replica\)"):
        _ = stream.own


async def test_a_stream_of_a_pool_without_each_has_nothing_of_its_own() -> None:
    async with StreamPool(1) as pool, pool.stream() as stream:
        with pytest.raises(AttributeError, match="each=Replica"):
            _ = stream.own
        assert not hasattr(stream, "own")


async def test_method_of_one_object_gets_a_hint(stream: Stream) -> None:
    replica = Replica(stream)
    async with StreamPool(1, each=Replica) as pool:
        wrong: Any = replica.score
        with pytest.raises(TypeError) as caught:
            await pool.run(wrong, 1, 2, 3)
        assert "write `Replica.score` alone" in caught.value.__notes__[0]
        wrong = lambda: 3  # noqa: E731
        with pytest.raises(TypeError) as caught:
            await pool.run(wrong)
        assert "calls fn(own, *args)" in caught.value.__notes__[0]
        await until(lambda: pool.idle == 1)


@pytest.mark.parametrize("end", ["close", "aclose", "late"])
async def test_own_things_live_until_the_pool_is_closed_and_the_work_is_over(end: str) -> None:
    with Gate() as gate:
        pool = StreamPool(1, each=Replica)
        async with pool.stream() as stream:
            own = weakref.ref(stream.own)
            if end != "aclose":
                gate.hold(stream)
            if end == "late":
                pool.close()
                assert own() is not None
        del stream
        if end == "close":
            pool.close()
        if end == "aclose":
            await pool.aclose()
        gc.collect()
        assert (own() is None) == (end == "aclose")
        gate.open()
        assert await drain(20)
        assert settle(lambda: gc.collect() >= 0 and own() is None)


async def test_own_things_of_a_pool_that_is_dropped_are_collected() -> None:
    before = statistics().handles.open
    pool = StreamPool(2, each=Replica)
    await pool.run(Replica.score, 1)
    del pool
    assert settle(lambda: gc.collect() >= 0 and statistics().handles.open == before)


async def test_an_observed_request_gets_its_own_too() -> None:
    calls = list[str]()
    end = metrics.on_wait(lambda wait: calls.append(wait.call))
    async with StreamPool(1, each=Replica) as pool:
        assert await pool.run(Replica.score, 2) == 4
    end()
    assert calls[:2] == ["StreamPool.acquire", "Stream.run"]
