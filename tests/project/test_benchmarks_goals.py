"""The benchmark's statistics, its goals and its pictures, from figures that are made up."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from benching import results_of
from benchmarks import goals, loops, peers, pictures, plan, stats, tables
from benchmarks.measure import Measure


def canned() -> list[dict[str, Any]]:
    """Cells of two goals: a latency that meets its goal and one that does not."""
    us = 1_000

    def latency(peer: str, median: int, cpu: int) -> dict[str, Any]:
        row: dict[str, Any] = {"set": "goals", "measure": "latency", "loop": "uvloop", "peer": peer}
        row |= {"load": "steady", "length_ns": 100 * us}
        figures = {"latency_ns": [median - 1, median, median + 1] * 10, "cpu_ns": [cpu] * 30}
        return {**row, **figures, "samples": 30, "wall_ns": 30 * (100 * us + median)}

    windows = [
        {"per_second": rate, "cpu_us": 40.0, "cores": 1.2}
        for rate in (24_000.0, 24_500.0, 25_000.0)
    ]
    slow = [{"per_second": 1_600.0, "cpu_us": 90.0, "cores": 0.2}] * 3
    busy: dict[str, Any] = {"set": "goals", "measure": "throughput", "loop": "uvloop"}
    busy |= {"streams": 128, "length_ns": 5_000_000, "neighbours": 0}
    return [
        latency("aiostream auto", 22 * us, 60 * us),
        latency("to_thread", 44 * us, 144 * us),
        {**busy, "peer": "aiostream auto", "windows": windows},
        {**busy, "peer": "aiostream hostfunc", "windows": slow},
        {**latency("cupy", 0, 0), "set": "latency", "length_ns": 20 * us},
    ]


def test_goals_are_judged_from_cells() -> None:
    judged = {
        (row["group"], row["what"]): row for row in goals.judge(json.loads(json.dumps(canned())))
    }
    latency = judged["steady work", "latency, 100 us / to_thread"]
    assert (latency["measured"], latency["bound"], latency["verdict"]) == (0.5, 0.55, "met")
    assert latency["low"] <= 0.5 <= latency["high"]
    assert latency["sure"]
    assert latency["samples"] == 30
    cpu = judged["steady work", "CPU, 100 us / to_thread"]
    # Shares of a core, and not of each other's time.
    assert cpu["measured"] == pytest.approx(60 / 122 / (144 / 144), abs=1e-3)
    assert cpu["verdict"] == "met"
    rate = judged["128 streams x 5 ms", "completions per second / aiostream hostfunc"]
    assert (rate["measured"], rate["verdict"]) == (pytest.approx(15.3125), "met")
    assert judged["128 streams x 5 ms", "cores busy"]["verdict"] == "missed"
    # A table's row is none of the goals'.
    assert judged["20 us kernel", "latency / cupy"]["verdict"] == "not measured"
    assert {row["verdict"] for row in judged.values()} == {"met", "missed", "not measured"}


def test_every_goal_has_a_setting_that_measures_it() -> None:
    jobs = plan.jobs("goals", loops.LOOPS, list(peers.all_peers()), plan.Cut())
    assert len(goals.judge([])) == len(goals.judge(canned())) == 67
    for loop, peer, settings in (
        ("uvloop", "to_thread", {"streams": 1, "length": 100_000_000, "load": "varying"}),
        ("trio", "aiostream auto", {"length": 5_000_000, "streams": 256, "neighbours": 0}),
    ):
        fitting = [vars(job) for job in jobs if settings.items() <= vars(job).items()]
        assert any(loop in job["loops"] and peer in job["peers"] for job in fitting)
    assert sum(job.seconds() for job in jobs) < 8 * 60


def test_statistics() -> None:
    values = [float(value) for value in range(1, 101)]
    assert stats.percentile(values, 99) == 99
    assert stats.percentile(values, 99.9) == 100
    low, high = stats.median_interval(values)
    assert (low, high) == (41, 61)
    assert stats.median_interval([3.0]) == (3.0, 3.0)
    low, high = stats.bootstrap(stats.ratio_of_medians, values, [2 * value for value in values])
    assert 0.3 < low < 0.5 < high < 0.7


def test_percentiles_of_known_data() -> None:
    values = [1_000 * value for value in range(1_000, 0, -1)]  # ns
    expected = {"p50_us": 500, "p90_us": 900, "p99_us": 990, "p999_us": 999, "max_us": 1_000}
    assert stats.tails(values) == expected
    assert stats.tails([3_000]) == dict.fromkeys(expected, 3)
    low, high = stats.percentile_interval([value / 1_000 for value in values], 99)
    assert (low, high) == (983, 998)  # ranks 990 -+ 6.2, rounded outwards
    assert stats.percentile_interval([7.0, 8.0], 99) == (7.0, 8.0)


def canned_tails() -> list[dict[str, Any]]:
    """Late ends of one pattern, of one crowd and of starved tasks."""
    ms = 1_000_000

    def row(measure: str, peer: str, **figures: Any) -> dict[str, Any]:
        known = {"set": measure, "measure": measure, "loop": "uvloop", "peer": peer}
        return {**known, "samples": 100, **figures}

    def pattern(peer: str, tail: int, share: float) -> dict[str, Any]:
        latency = [50_000] * 85 + [tail] * 15
        name = {"pattern": "alternating 9 and 0.4 ms", "mean_ns": 5 * ms}
        return row("patterns", peer, **name, latency_ns=latency, cpu_shares=[share] * 10)

    def mixed(peer: str, rate: float, p99: float) -> dict[str, Any]:
        tails = {"p99_us": p99, "p999_us": 2 * p99}
        windows = [{"per_second": rate + number, **tails} for number in range(10)]
        return row("mixed", peer, streams=16, windows=windows, **tails)

    def fairness(peer: str, ratio: float, late: int) -> dict[str, Any]:
        timer = {"timer": {"p99_us": late / 1e3}, "timer_ns": [late] * 100}
        return row("fairness", peer, windows=[{"ratio": ratio}] * 10, **timer)

    return [
        pattern("aiostream auto", 4 * ms, 0.05),
        pattern("to_thread bindings", 200_000, 0.5),
        pattern("enqueue_async", 4 * ms, 0.05),
        mixed("aiostream auto", 3_900.0, 900.0),
        mixed("polling", 4_000.0, 100.0),
        fairness("aiostream auto", 60.0, 83 * ms),
        fairness("polling", 1.8, 2 * ms),
    ]


def test_late_ends_are_judged_against_the_peers() -> None:
    judged = {(row["group"], row["what"]): row for row in goals.judge(canned_tails())}
    assert len(judged) == 10  # none of the other goals, because nothing was measured for them
    pattern = "alternating 9 and 0.4 ms"
    tail = judged["patterns", f"p99, {pattern}, bound by to_thread bindings"]
    assert (tail["measured"], tail["bound"], tail["verdict"]) == (4.0, 0.3, "missed")
    cpu = judged["patterns", f"CPU, {pattern} / to_thread bindings"]
    assert cpu["measured"] == pytest.approx(0.1)
    enqueued = judged["patterns", f"median of enqueue_async, {pattern} / synchronize_async"]
    assert (enqueued["measured"], enqueued["bound"], enqueued["verdict"]) == (1.0, 1.3, "met")
    for group, what, verdict in (
        ("patterns", f"median, {pattern} / to_thread bindings", "missed"),
        ("mixed, 16 streams", "p99", "met"),
        ("mixed, 16 streams", "p99.9", "met"),
        ("mixed, 16 streams", "completions per second / polling, upper end", "met"),
        ("fairness", "most / fewest completions of a task", "missed"),
    ):
        assert judged[group, what]["verdict"] == verdict
    timer = judged["fairness", "p99 of a 1 ms timer, bound by polling"]
    assert (timer["measured"], timer["bound"], timer["verdict"]) == (83.0, 2.4, "missed")
    assert len(goals.judge([*canned(), *canned_tails()])) == 67 + 10


def drawable() -> list[dict[str, Any]]:
    """Rows of the pictures of `release`."""
    late = {"set": "waits", "p50_us": 20.0, "cpu_percent": 7.0, "pattern": "steady 5 ms"}
    served = {"set": "torch", "load": "eager, 32 clients", "per_second": 100.0, "p99_us": 900.0}
    served["windows"] = [{"per_second": 90.0, "p99_us": 950.0}, dict(served)]
    ways = ("aiostream auto", "to_thread", "polling")
    return [{"loop": "uvloop", "peer": way, **row} for row in (late, served) for way in ways]


def test_a_results_file_is_drawn_where_there_is_matplotlib(tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(pictures.UnavailableError, match="matplotlib is not installed"):
            pictures.draw([results_of(drawable())], tmp_path / "here")
        return
    drawn, again = (
        pictures.draw([results_of([]), results_of(drawable())], tmp_path / name)
        for name in ("here", "there")
    )
    kinds = ("cost", "cost-dark", "server", "server-dark")
    assert [path.name for path in drawn] == [f"here-{kind}.svg" for kind in kinds]
    assert all(b"<svg" in path.read_bytes() for path in drawn)
    assert [one.read_bytes() for one in drawn] == [two.read_bytes() for two in again]
    with pytest.raises(pictures.UnavailableError, match="no rows"):
        pictures.draw([results_of([])], tmp_path / "results")


def test_every_measure_has_a_layout() -> None:
    names = {measure.name for measure in Measure.known.values() if hasattr(measure, "name")}
    assert names - {"one-core"} == tables.LAYOUTS.keys()
    settings = [
        job
        for measure in (*plan.MEASURES, *plan.ON_REQUEST)
        for job in plan.jobs(measure, ("uvloop",), plan.TAIL_PEERS, plan.Cut())
    ]
    assert {job.name for job in settings} == names
    assert all(job.seconds() > 0 for job in settings)


def test_a_worker_makes_the_measure_that_was_asked_for() -> None:
    for measure in ("goals", *plan.TAILS):
        for job in plan.jobs(measure, ("uvloop",), plan.TAIL_PEERS, plan.Cut()):
            if measure != "one-core":
                assert Measure.of(json.loads(json.dumps(job.request()))) == job
