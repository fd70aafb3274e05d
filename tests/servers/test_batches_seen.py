"""`serving.Batches`: what is seen of it from outside, in threads, and all of it at random."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Generator
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import PoolFullError, Stream, StreamPool, metrics, serving, trace
from aiostream.serving import Batches
from batching import double, held
from support import FULL, USUAL, cases_on_loops, run_on, spin, succeed
from waiters import turns, until

# ------------------------------------------------------------------------------ seen from outside


async def test_an_item_that_waits_is_listed_with_its_task() -> None:
    async with held() as (made, group):
        group.start_soon(made.ask, 0, name="first")
        await until(lambda: made.seen == [[0]])
        group.start_soon(made.ask, 1, name="second")
        await turns()
        found = [each for each in aiostream.pending() if each["call"] == "Batches.__call__"]
        entries = sorted(found, key=lambda each: str(each["task"]))
        assert [each["task"] for each in entries] == ["first", "second"]
        for each in entries:
            assert each["function"] == "Held.fn"
            assert each["seconds"] > 0
            assert "in Held.ask" in str(each["where"])
        runs = [each for each in aiostream.pending() if each["call"] == "Stream.run"]
        assert [each["task"] for each in runs] == ["Batches of Held.fn"]
        assert [each["stream"] for each in entries] == ["pool 'held' of 1 streams"] * 2
    assert aiostream.pending() == []


async def test_each_item_is_a_wait_of_metrics_and_traces() -> None:
    seen: list[tuple[str, str, str | None]] = []
    end = metrics.on_wait(lambda wait: seen.append((wait.call, wait.outcome, wait.name)))
    try:
        with trace.record() as recording:
            async with held(max_waiting=1) as (made, group):
                await made.begin(group, 0)
                await until(lambda: made.seen == [[0]])
                await made.begin(group, 1, 2)
    finally:
        end()
    mine = [each for each in seen if each[0] == "Batches.__call__"]
    assert sorted(mine) == [
        ("Batches.__call__", "done", "held"),
        ("Batches.__call__", "done", "held"),
        ("Batches.__call__", "refused", "held"),
    ]
    found = [each for each in recording.awaits if each.call == "Batches.__call__"]
    assert {each.stream for each in found} == {"Batches of Held.fn"}


async def test_a_scrape_reads_what_waits_and_the_sizes() -> None:
    pytest.importorskip("prometheus_client")
    async with held() as (made, group):
        collector = metrics.Collector(batches={"score": made.batches})
        try:
            await made.begin(group, 0)
            await until(lambda: made.seen == [[0]])
            await made.begin(group, 1, 2)
            samples = {
                (each.name, *each.labels.values()): each.value
                for family in collector.collect()
                for each in family.samples
                if "batch" in each.name
            }
            assert samples["aiostream_batches_waiting_items", "score"] == 2
            assert samples["aiostream_batches_total", "score", "1"] == 1
        finally:
            collector.close()
        wrong: Any
        for wrong in ([], {"score": None}, {1: made.batches}):
            with pytest.raises(TypeError):
                metrics.Collector(batches=wrong)


# ------------------------------------------------------------------------------ in a thread


@pytest.mark.all_loops
async def test_in_a_thread_each_gets_its_own_result() -> None:
    async with StreamPool(2) as pool:
        async with Batches(pool, double, most=4, in_thread=True) as doubled:
            found: dict[int, int] = {}

            async def ask(number: int) -> None:
                found[number] = await doubled(number)

            async with anyio.create_task_group() as group:
                for number in range(9):
                    group.start_soon(ask, number)
        assert found == {number: 2 * number for number in range(9)}
        assert doubled.sizes == Counter({4: 2, 1: 1})


# ------------------------------------------------------------------------------ in two halves


class Replica:
    """What belongs to one stream: memory that the next batch overwrites."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.memory = stream, [0] * 4

    def double(self, numbers: list[int]) -> Generator[None, None, list[int]]:
        self.memory[: len(numbers)] = [2 * number for number in numbers]
        spin(self.stream, 0.0005)
        yield
        return self.memory[: len(numbers)]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.all_loops
async def test_a_method_in_two_halves_reads_the_memory_of_its_own_stream(in_thread: bool) -> None:
    async with (
        StreamPool(2, each=Replica) as pool,
        Batches(pool, Replica.double, most=4, in_thread=in_thread) as twice,
    ):
        found: dict[int, int] = {}

        async def ask(number: int) -> None:
            found[number] = await twice(number)

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(ask, number)
        assert found == {number: 2 * number for number in range(40)}
        assert twice.sizes == Counter({4: 10})


# ------------------------------------------------------------------------------ at random


class UnluckyError(Exception):
    """What a random batch raises."""


@cases_on_loops("in_thread", [(False,), (False,), (True,)])
def test_no_item_is_lost_doubled_or_given_to_another(in_thread: bool, loop_kind: str) -> None:
    """With random cancellations, timeouts and errors."""
    count = 20_000 if FULL else 600
    run_on(loop_kind, functools.partial(serve_at_random, random.Random(1), count, in_thread))


async def serve_at_random(chance: random.Random, count: int, in_thread: bool) -> Counter[str]:
    """Asks for `count` items. Each must have an outcome, and its own one."""
    seen: Counter[int] = Counter()
    ended: Counter[str] = Counter()
    numbers = iter(range(count))
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(Stream()) for _ in range(3)]
        pool = await stack.enter_async_context(StreamPool.borrow(streams))

        def fn(items: list[int]) -> list[Any]:
            seen.update(items)
            spin(chance.choice(streams), chance.random() * 0.0005)
            if chance.random() < 0.05:
                raise UnluckyError(items)
            return [ValueError(n) if n % 31 == 0 else ("result", n) for n in items]

        options: Any = {"most": 7, "max_waiting": 40, "in_thread": in_thread}
        async with Batches(pool, fn, **options) as batches, anyio.create_task_group() as group:

            async def client() -> None:
                for number in numbers:
                    await ask(number)

            async def ask(number: int) -> None:
                patience = chance.choice([None, None, None, 0, chance.random() * 0.002])
                outcome = "timeout"
                with anyio.move_on_after(patience):
                    try:
                        assert await batches(number) == ("result", number)
                        assert number % 31
                        outcome = "done"
                    except ValueError as error:
                        outcome = "own error" if error.args == (number,) else "wrong"
                        assert number % 31 == 0
                    except UnluckyError as error:
                        outcome = "error" if number in error.args[0] else "wrong"
                    except PoolFullError:
                        outcome = "refused"
                        await anyio.sleep(0.001)
                ended[outcome] += 1
                assert seen[number] <= 1
                assert seen[number] == 1 or outcome in ("timeout", "refused")

            for _ in range(48):
                group.start_soon(client)
        assert batches.waiting == 0
        assert "0 are in batches" in repr(batches)
        assert sum(size * n for size, n in batches.sizes.items()) == len(seen)
    assert sum(ended.values()) == count
    assert not ended["wrong"]
    assert ended["done"] > count / 10
    return ended


def test_two_ctrl_cs_end_a_program(driver_kind: str) -> None:
    """The first cancels the program's task, which waits in the end of the block for the GPU."""
    printed = succeed(
        driver_kind,
        """
        import asyncio, os, signal
        import aiostream
        from aiostream.serving import Batches
        from support import Gate

        gate = Gate()

        async def main():
            stream = aiostream.Stream()
            pool = aiostream.StreamPool.borrow([stream])

            def fn(items):
                gate.hold(stream)
                os.kill(os.getpid(), signal.SIGINT)
                return items

            async with Batches(pool, fn, most=1) as same:
                try:
                    await asyncio.gather(same(1), same(2))
                finally:
                    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        gate.open()
        os._exit(0)
        """,
        forked=USUAL,
    )
    assert printed == "interrupted\n"


def test_serving_is_imported_by_its_name() -> None:
    assert aiostream.serving is serving
