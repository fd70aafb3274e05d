"""The benchmark's statistics, pictures and layouts, from figures that are made up."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from benching import results_of
from benchmarks import pictures, plan, stats, tables
from benchmarks.measure import Measure


def test_statistics() -> None:
    values = [float(value) for value in range(1, 101)]
    assert stats.percentile(values, 99) == 99
    assert stats.percentile(values, 99.9) == 100
    low, high = stats.median_interval(values)
    assert (low, high) == (41, 61)
    assert stats.median_interval([3.0]) == (3.0, 3.0)


def test_percentiles_of_known_data() -> None:
    values = [1_000 * value for value in range(1_000, 0, -1)]  # ns
    expected = {"p50_us": 500, "p90_us": 900, "p99_us": 990, "p999_us": 999, "max_us": 1_000}
    assert stats.tails(values) == expected
    assert stats.tails([3_000]) == dict.fromkeys(expected, 3)


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
    assert names - {"latency"} == tables.LAYOUTS.keys()
    settings = [
        job
        for measure in (*plan.MEASURES, *plan.ON_REQUEST)
        for job in plan.jobs(measure, ("uvloop",), plan.TAIL_PEERS, plan.Cut())
    ]
    assert {job.name for job in settings} == names - {"latency"}
    assert all(job.seconds() > 0 for job in settings)


def test_a_worker_makes_the_measure_that_was_asked_for() -> None:
    for measure in plan.TAILS:
        for job in plan.jobs(measure, ("uvloop",), plan.TAIL_PEERS, plan.Cut()):
            assert Measure.of(json.loads(json.dumps(job.request()))) == job
