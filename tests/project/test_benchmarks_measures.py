"""What the benchmark measures: on every loop, and with workers that fail."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from benching import LocalRunner, new_runner, running
from benchmarks import child, loops, plan, work
from benchmarks.latency import Latency
from benchmarks.measure import Found, Measure, Turn
from benchmarks.patterns import Patterns
from benchmarks.peers import Peer, Wait
from benchmarks.windows import Fairness, Full, Mixed

# ----------------------------------------------------------------------------------- on every loop


@pytest.mark.parametrize("loop", loops.LOOPS)
def test_peers_wait_on_every_loop(loop: str) -> None:
    names = ("aiostream auto", "polling", "to_thread bindings")
    every = (*names, "run", "pool run", "run_in_thread", "ctypes")
    local = LocalRunner([loop], every, say=lambda line: None)
    latency = Latency((loop,), every, length=20_000, samples=3, rounds=1, warm=1)
    full = Full((loop,), names, streams=4, length=500_000, rounds=1, window=0.1, warm=0.0)
    with running(local) as bench_runner:
        assert bench_runner.not_run == []
        assert {row["peer"] for row in latency.run(bench_runner)} == set(every)
        assert all(row["per_second"] > 0 for row in full.run(bench_runner))


@pytest.mark.parametrize("loop", ["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def test_every_measure_runs_in_a_worker(driver_kind: str, loop: str) -> None:
    names = ("aiostream auto", "run", "enqueue_async", "sleep 1 ms", "blocking")
    on: tuple[tuple[str, ...], tuple[str, ...]] = ((loop,), names)
    # On a GPU that other tests use too, a kernel may take much longer.
    window = 0.05 if driver_kind == "simulator" else 0.5
    crowd: dict[str, Any] = {"streams": 4, "rounds": 1, "window": window, "warm": 0.0}
    jobs: list[tuple[Measure, set[str]]] = [
        (Latency(*on, length=20_000, samples=4, rounds=2), set(names)),
        (Patterns(*on, words=("alternating",), waits=2, rounds=1), set(names)),
        (Mixed(*on, **crowd), set(names)),
        (Full(*on, **crowd), {*names} - {"blocking"}),
        (Fairness(*on, **crowd), set(names)),
    ]
    with running(new_runner(driver_kind, loop, names)) as bench_runner:
        for job, expected in jobs:
            rows = job.run(bench_runner)
            assert {row["peer"] for row in rows} == expected, job.title
            assert {(row["measure"], row["loop"]) for row in rows} == {(job.name, loop)}
        assert bench_runner.not_run == []


# ---------------------------------------------------------------------------------------- failures


def test_a_peer_that_fails_is_left_out_and_named() -> None:
    said: list[str] = []
    names = ("blocking", "polling", "sleep 1 ms")
    local = LocalRunner(["asyncio"], names, say=said.append)
    known = local.local.worker.peers

    def cannot() -> Any:
        raise ImportError("No module named 'polls'")

    known["polling"].prepare = cannot
    calls = 0

    def fails_later(adapter: loops.LoopAdapter, lane: Any) -> Wait:
        async def wait() -> None:
            nonlocal calls
            calls += 1
            if calls > 4:  # two of the trial, and one round
                raise ValueError("no more")
            lane.synchronize()

        return wait

    known["sleep 1 ms"].prepare = lambda: fails_later
    job = Latency(("asyncio",), names, length=5_000, samples=4, rounds=4, warm=1)
    with running(local) as bench_runner:
        rows = {row["peer"]: row for row in job.run(bench_runner)}
    # What it measured before it failed is kept: it is as good as any.
    assert {peer: row["samples"] for peer, row in rows.items()} == {"blocking": 4, "sleep 1 ms": 1}
    assert [(entry["peer"], entry["reason"]) for entry in bench_runner.not_run] == [
        ("polling", "ImportError: No module named 'polls'"),
        ("sleep 1 ms", "ValueError: no more"),
    ]
    assert len(said) == 2


def test_a_worker_that_dies_costs_one_peer(driver_kind: str) -> None:
    names = ("polling", "blocking")
    job = Latency(("asyncio",), names, length=5_000, samples=4, rounds=2, warm=1)
    with running(new_runner(driver_kind, "asyncio", names)) as bench_runner:
        with pytest.raises(RuntimeError, match="KeyError: 'dance'"):
            bench_runner.worker.ask({"do": "dance"}, 10)
        bench_runner.worker.kill()
        rows = job.run(bench_runner)
    assert {row["peer"]: row["samples"] for row in rows} == {"blocking": 4}
    not_run = {entry["peer"]: entry["reason"] for entry in bench_runner.not_run}
    assert not_run == {"polling": "the worker's process has ended, exit code -9"}


def test_a_child_that_does_not_answer_is_killed() -> None:
    silent = child.Child("the silent", "load", "asyncio")
    try:
        assert silent.answer(60) == "ready"
        with pytest.raises(RuntimeError, match=r"the silent gave no answer within 0 s"):
            silent.answer(0.05)
        assert silent.ended
    finally:
        silent.close()


# ------------------------------------------------------------------------------------------- turns


class Taken:
    """A lane that notes what is launched on it, and a peer that waits with a function of
    its own.
    """

    def __init__(self, wait: Wait) -> None:
        self.launched: list[int] = []
        self.spin, self.wait = self.launched.append, wait


def take(job: Measure, *waits: Wait) -> tuple[Found, list[Any]]:
    """One turn of a measure on lanes of these waits."""
    lanes: list[Any] = list(map(Taken, waits))
    peer = Peer("made up", "", lambda adapter, lane: lane.wait)  # type: ignore[attr-defined]

    async def turn(adapter: loops.LoopAdapter) -> Found:
        return await job.turn(Turn(adapter, peer, 0, lanes))

    return loops.run("asyncio", turn), lanes


def test_a_window_shows_a_task_that_keeps_the_others_waiting() -> None:
    taken = 0

    async def greedy() -> None:
        nonlocal taken
        taken += 1
        time.sleep(0.0002)
        if taken % 20 == 0:
            await asyncio.sleep(0)

    async def modest() -> None:
        await asyncio.sleep(0)

    job = Fairness(("asyncio",), (), streams=3, warm=0.0, window=0.3)
    found, _ = take(job, greedy, modest, modest)
    window = job.of_window(found)
    assert window["most"] == found["counts"][0]
    assert 10 < window["ratio"] < 40
    # The greedy task's 20 turns, less the timer's own millisecond:
    assert max(found["timer_ns"]) > 2_000_000
    assert max(found["latency_ns"]) >= 200_000
    assert len(found["latency_ns"]) == sum(found["counts"])


def test_waits_are_late_by_what_is_beyond_the_kernel() -> None:
    async def late() -> None:
        time.sleep(0.003)

    job = Patterns(("asyncio",), (), words=("steady 1 ms",), waits=3, rounds=1)
    found, (lane,) = take(job, late)
    assert lane.launched == [1_000_000] * 8  # two are not timed
    for name in ("steady 1 ms", "steady 1 ms again"):
        assert len(found[name]["latency_ns"]) == 3
        assert min(found[name]["latency_ns"]) >= 2_000_000
        assert sum(found[name]["wall_ns"]) >= 9_000_000


def test_patterns_are_as_they_are_named_and_enough_for_a_percentile() -> None:
    patterns = work.patterns(3, 100)
    assert patterns == work.patterns(3, 100) != work.patterns(4, 100)
    assert all(len(lengths) >= 100 for lengths in patterns.values())
    assert len(patterns["prefill and decode"]) % 13 == 0
    drifting = patterns["drifting from 1 to 4 ms"]
    assert (drifting[0], drifting[-1]) == (1_000_000, 4_000_000)
    (job,) = plan.jobs("patterns", ("uvloop",), plan.TAIL_PEERS, plan.Cut())
    assert isinstance(job, Patterns)
    assert job.waits * job.rounds >= 1_000
    cut = plan.Cut(rounds=2, words=("bimodal", "prefill"))
    (fewer,) = plan.jobs("patterns", ("uvloop",), plan.TAIL_PEERS, cut)
    assert fewer.seconds() < job.seconds() / 10
