"""`serving.Steps`: what is seen of it from outside, and all of it at random."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import threading
import weakref
from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import PoolFullError, Stream, StreamClosedError, metrics, trace
from aiostream.serving import Active, End, Results, Steps
from stepping import stepping
from support import FULL, LIMIT, cases_on_loops, run_on, settle, spin
from waiters import turns, until

# ------------------------------------------------------------------------------ seen from outside


async def test_who_waits_is_listed_with_the_task_and_the_step_that_is_in_flight() -> None:
    async with stepping(slots=1, ahead=0) as (made, group):
        group.start_soon(made.read, "a", name="first")
        await until(lambda: len(made.seen) == 1)
        group.start_soon(made.read, "b", name="second")
        await turns()
        found = {each["call"]: each for each in aiostream.pending()}
        assert {name: each["task"] for name, each in found.items()} == {
            "Steps.step": None,
            "Steps.next_result": "first",
            "Steps.slot": "second",
        }
        for each in found.values():
            assert each["function"] == "Stepper.step"
            assert each["stream"] == "stream 'decode' on device 0"
        assert "in Stepper.read" in str(found["Steps.slot"]["where"])
        made.steps.close()


async def test_each_wait_and_each_step_is_reported_to_hooks_and_traces() -> None:
    seen: Counter[tuple[str, str, str | None]] = Counter()
    longest: dict[str, float] = {}

    def note(wait: metrics.Wait) -> None:
        seen[wait.call, wait.outcome, wait.name] += 1
        longest[wait.call] = max(longest.get(wait.call, 0), wait.seconds)

    end = metrics.on_wait(note)
    try:
        with trace.record() as recording:
            async with stepping(slots=1, ahead=0) as (made, _):
                made.release()
                place = made.steps("a")
                await anyio.sleep(0.02)  # it has waited for about so long before its block
                async with place as results:
                    for _ in range(3):
                        await anext(results)
                await until(lambda: made.steps.launched == len(made.landed))
    finally:
        end()
    steps = made.steps.launched
    mine = {each: count for each, count in seen.items() if each[0].startswith("Steps.")}
    assert mine == {
        ("Steps.slot", "done", "decode"): 1,
        ("Steps.first_result", "done", "decode"): 1,
        ("Steps.next_result", "done", "decode"): 2,
        ("Steps.step", "done", "decode"): steps,
    }
    assert longest["Steps.first_result"] >= longest["Steps.slot"] >= 0.01
    rows = [each for each in recording.awaits if each.call == "Steps.step"]
    assert len(rows) == steps
    for each in rows:
        assert each.stream == "stream 'decode' on device 0"
        assert each.task == "Steps of Stepper.step"
        assert each.gpu_began is not None
        assert each.gpu_ended is not None
        assert each.launched <= each.gpu_began <= each.gpu_ended
    named = {each.stream for each in recording.awaits if each.call == "Steps.next_result"}
    assert named == {"Steps of Stepper.step"}


async def test_a_scrape_reads_the_requests_the_steps_and_the_idle_time() -> None:
    pytest.importorskip("prometheus_client")
    async with stepping(slots=1) as (made, group):
        collector = metrics.Collector(steps={"decode": made.steps})
        try:
            await made.begin(group, "a", "b")
            await until(lambda: len(made.seen) == 2)
            samples = {
                (each.name, *each.labels.values()): each.value
                for family in collector.collect()
                for each in family.samples
                if "steps" in each.name
            }
            assert samples["aiostream_steps_requests", "decode", "running"] == 1
            assert samples["aiostream_steps_requests", "decode", "waiting"] == 1
            assert samples["aiostream_steps_launched_total", "decode"] == 2
            assert samples["aiostream_steps_idle_seconds_total", "decode"] > 0
        finally:
            collector.close()
            made.steps.close()
    wrong: Any
    for wrong in ([], {"decode": None}, {1: made.steps}):
        with pytest.raises(TypeError):
            metrics.Collector(steps=wrong)


async def test_the_gpu_is_idle_while_it_has_no_step_and_a_request_is_ready() -> None:
    """Not while there is no request, and not while one is in flight."""
    async with stepping(slots=1, ahead=0) as (made, group):
        await anyio.sleep(0.03)
        await made.begin(group, "a", most=2)
        await until(lambda: len(made.seen) == 1)
        before = made.steps.idle_seconds
        assert before < 0.03
        await anyio.sleep(0.03)  # the step is held
        assert made.steps.idle_seconds == before

        def answer(active: Active[Any]) -> dict[int, int]:
            threading.Event().wait(0.03)
            return {0: 1}

        made.answer = answer
        await made.pass_one()
        await until(lambda: len(made.seen) == 2)
        assert made.steps.idle_seconds >= before + 0.03
        made.release()
        await until(lambda: "a" in made.ended)
    before = made.steps.idle_seconds
    await anyio.sleep(0.05)  # between two blocks
    async with made.steps, Stream() as made.stream:
        await made.read("b", 1)
    assert made.steps.idle_seconds < before + 0.05


# ------------------------------------------------------------------------------ at random


class StepError(Exception):
    """What a random step raises, with its number."""


class OwnError(Exception):
    """What a random step returns as a result."""


class Item:
    """A request at random: how it ends, and what became of it."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.number, self.want = number, chance.randint(1, 12)
        self.how = chance.choice(["leave", "leave", "end", "empty", "last", "own", "late", "slow"])
        self.ready, self.left = True, False
        self.steps: list[int] = []  # of first halves
        self.given: list[tuple[int, Any]] = []  # results, with their steps
        self.patience = chance.random() * 0.03 if self.how == "late" else 100.0


class Traffic:
    """The steps of random requests, each of which checks what it sees."""

    def __init__(self, stream: Stream, chance: random.Random) -> None:
        self.stream, self.chance, self.number = stream, chance, -1
        self.ahead = chance.choice([0, 1, 1, 2])
        self.fails, self.asks = chance.random() < 0.6, chance.random() < 0.5
        self.flying: dict[int, dict[int, int]] = {}  # numbers of requests, by step and slot
        self.rows: dict[int, int] = {}  # what memory by slot would hold: the request's number
        self.inside = False
        options: Any = {
            "slots": chance.randint(1, 6),
            "max_waiting": chance.choice([None, 3, 30]),
            "max_unread": chance.choice([None, 1, 3]),
            "ready": (lambda item: item.ready) if self.asks else None,
        }
        self.steps: Steps[Item, Any] = Steps(stream, self.step, ahead=self.ahead, **options)
        self.is_closed = False
        self.ended: Counter[str] = Counter()

    @contextlib.contextmanager
    def half(self) -> Generator[None]:
        """No two run at once."""
        assert not self.inside
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def step(self, active: Active[Item]) -> Generator[Iterable[int] | None, None, Any]:
        with self.half():
            self.begin(active)
            kind = self.chance.random() if self.fails else 1.0
            spin(self.stream, self.chance.random() * 0.001)
            if kind < 0.01:
                self.end(active)
                raise StepError(active.number)
            last = {s for s, i in active.items() if i.how == "last" and len(i.steps) == i.want}
        try:
            yield self.chance.choice([last, iter(last), list(last)]) if last else None
            with self.half():
                if 0.01 <= kind < 0.02:
                    raise StepError(active.number)
                return [None, {99: 1}][active.number % 2] if kind < 0.025 else self.found(active)
        finally:
            self.end(active)

    def begin(self, active: Active[Item]) -> None:
        self.number += 1
        assert active.number == self.number
        assert len(self.flying) <= self.ahead
        assert list(active) == sorted(active) != []
        for slot in active.left:
            del self.rows[slot]
        for slot in active.new:
            assert slot not in self.rows
            self.rows[slot] = active[slot].number
        self.flying[active.number] = {slot: item.number for slot, item in active.items()}
        for slot, item in active.items():
            assert self.rows[slot] == item.number
            assert not item.left
            assert item.ready or not self.asks
            assert {each.get(slot, item.number) for each in self.flying.values()} == {item.number}
            item.steps.append(active.number)
            assert item.how != "last" or len(item.steps) <= item.want

    def end(self, active: Active[Item]) -> None:
        self.flying.pop(active.number, None)

    def found(self, active: Active[Item]) -> dict[int, Any]:
        results: dict[int, Any] = {}
        for slot, item in active.items():
            if self.chance.random() < 0.1:
                continue
            results[slot] = result = (item.number, len(item.given))
            if len(item.given) + 1 >= item.want and item.how in ("end", "empty", "own"):
                ends = {"end": End(result), "empty": End(), "own": OwnError(item.number)}
                results[slot] = ends[item.how]
            item.given.append((active.number, result))
        return results

    async def ask(self, number: int, watched: list[weakref.ref[Item]]) -> None:
        item, got, chance = Item(number, self.chance), list[Any](), self.chance
        watched.append(weakref.ref(item))
        await anyio.sleep(chance.random() * 0.05)
        error: Any = None
        try:
            place = self.steps(item)
            if chance.random() < 0.05:
                return  # it never enters
            with anyio.move_on_after(item.patience) as scope:
                async with place as results:
                    await self.read(item, results, got)
            error = "late" if scope.cancelled_caught else None
        except PoolFullError:
            self.ended["refused"] += 1
            return
        except (StepError, OwnError, TypeError, StreamClosedError, RuntimeError) as problem:
            error = problem
        finally:
            item.left = True
        self.check(item, got, error)

    async def read(self, item: Item, results: Results[Any], got: list[Any]) -> None:
        async for result in results:
            got.append(result)
            if item.how == "slow":
                await anyio.sleep(self.chance.random() * 0.004)
            if self.chance.random() < 0.1 and item.how != "last":
                item.ready = False
                await anyio.sleep(self.chance.random() * 0.002)
                item.ready = True
                results.wake()
            if item.how in ("leave", "late", "slow") and len(got) >= item.want:
                break

    def check(self, item: Item, got: list[Any], error: Any) -> None:
        """Nothing of another, no hole, no double, and all that came before an error."""
        assert got == [(item.number, n) for n in range(len(got))]
        before = item.given
        if isinstance(error, StepError):
            assert error.args[0] in item.steps
            before = [each for each in before if each[0] < error.args[0]]
        if isinstance(error, (RuntimeError, StreamClosedError)):
            assert self.is_closed
        elif isinstance(error, OwnError):
            assert error.args == (item.number,)
            assert len(got) == item.want - 1
        elif item.how in ("end", "empty") and error is None:
            # A step that was in flight may have had it once more.
            assert len(got) == item.want - (item.how == "empty")
        elif (item.how == "last" and error is None) or isinstance(error, StepError):
            assert len(got) == len(before)
        self.ended[error if isinstance(error, str) else type(error).__name__] += 1


@cases_on_loops("seed", [(1,), (2,), (3,)])
@pytest.mark.timeout(LIMIT if not FULL else 3000)
def test_no_request_gets_anothers_result_a_hole_a_double_or_silence(
    seed: int, loop_kind: str, driver_kind: str
) -> None:
    chance = random.Random(seed)
    count, ended = 35_000 if FULL else 500, Counter[str]()
    simulator: Any = aiostream.simulator if driver_kind == "simulator" else None
    while ended.total() < count:
        if simulator and chance.random() < 0.3:
            simulator.adversary(blocking_enqueue=0.0003, shuffle_callbacks=True)
        try:
            ended += run_on(loop_kind, functools.partial(serve_at_random, chance))
        finally:
            if simulator:
                simulator.adversary()
    assert ended["NoneType"] > count / 10
    kinds = {"StepError", "OwnError", "late", *(["TypeError", "StreamClosedError"] if FULL else ())}
    assert kinds <= ended.keys()


async def serve_at_random(chance: random.Random) -> Counter[str]:
    """Serves some requests, and closes in between or waits for all."""
    watched: list[weakref.ref[Item]] = []
    async with Stream() as stream:
        traffic = Traffic(stream, chance)
        closes = chance.random() < 0.3
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                async with traffic.steps as steps:
                    for number in range(chance.randint(1, 80)):
                        group.start_soon(traffic.ask, number, watched)
                    await anyio.sleep(chance.random() * 0.08)
                    traffic.is_closed = closes
                    if closes and chance.random() < 0.5:
                        thread = threading.Thread(target=steps.close)
                        thread.start()
                        thread.join()
                    elif closes:
                        steps.close()
                    else:
                        await anyio.sleep(0.06)
                traffic.is_closed = True  # for those who come after the end
                flying = traffic.flying
        await until(lambda: not flying)
        assert traffic.steps.running == traffic.steps.waiting == 0
    ended = traffic.ended
    del traffic, steps
    assert settle(lambda: gc.collect() >= 0 and all(each() is None for each in watched))
    return ended
