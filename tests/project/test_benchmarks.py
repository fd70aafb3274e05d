"""The benchmark's command line: that it runs, and names who did not. Never how fast anything is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiostream
from benching import RESULTS, command, quick_run
from benchmarks import __main__ as program
from benchmarks import command as benchmark
from benchmarks import plan, ready, server, work
from benchmarks import results as files
from benchmarks.patterns import Patterns
from commands import ROOT, python

# ------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def fairness(driver_kind: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """What a quick run prints, and its results."""
    return quick_run(driver_kind, folder, "fairness", "--peers", "polling,sleep 1 ms,cupy")


@pytest.mark.slow
def test_a_quick_run_prints_progress_tables_and_what_was_not_run(
    fairness: tuple[str, dict[str, Any]], driver_kind: str, folder: Path
) -> None:
    out, results = fairness
    assert results["simulator"] == (driver_kind == "simulator")
    assert results["environment"]["gpu"] == aiostream.Device(0).name
    assert {"driver", "cuda", "python", "cuda-bindings", "cores"} <= results["environment"].keys()
    assert results["date"].startswith("20")
    for words in (
        *("about 0:", "left] fairness: fairness, 8 x", f"Results: {folder / RESULTS}"),
        *(["not run: cupy on every loop", files.SIMULATED] if driver_kind == "simulator" else []),
    ):
        assert words in out
    if driver_kind == "simulator":
        not_run = {entry["peer"]: entry["reason"] for entry in results["not_run"]}
        assert "runtime library" in not_run["cupy"]


@pytest.mark.slow
def test_a_run_is_added_to_a_file_and_shown(
    fairness: tuple[str, dict[str, Any]], driver_kind: str, folder: Path
) -> None:
    options = ("fairness", "--append", "--peers", "polling")
    _, results = quick_run(driver_kind, folder, *options)
    assert len(results["rows"]) == len(fairness[1]["rows"])  # replaced, not doubled
    shown = command("none", "--show", str(folder / RESULTS))
    assert "Completions of a task in a window" in shown.stdout


@pytest.mark.slow
def test_each_measure_of_late_ends_is_run_and_printed(driver_kind: str, tmp_path: Path) -> None:
    printed, results = quick_run(driver_kind, tmp_path, *plan.TAILS, "--loops", "asyncio")
    for measure in plan.TAILS:
        rows = [row for row in results["rows"] if row["set"] == measure]
        peers = plan.FULL_PEERS if measure == "full" else plan.TAIL_PEERS
        assert {row["peer"] for row in rows} == set(peers)
        if measure == "patterns":
            patterns = {row["pattern"] for row in rows if row["measure"] == "patterns"}
            assert patterns == work.patterns(0, 1).keys()
    for row in results["rows"]:
        assert row["samples"] > 0
        tails = row["timer"] if row["measure"] == "fairness" else row
        found = [tails[f"{name}_us"] for name in ("p50", "p99", "max")]
        assert found == sorted(found)
        assert -2 < found[0] <= found[-1] < 5e6
    for words in (
        *("Lateness in us by pattern of work", "8 streams"),
        "Completions of a task in a window",
    ):
        assert words in printed


# ----------------------------------------------------------------------------- what cannot be run


@pytest.fixture
def measured(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Runs the benchmark in this process, with one peer; what it writes."""
    monkeypatch.setenv("AIOSTREAM_SIMULATOR", "1" if driver_kind == "simulator" else "")
    path = tmp_path / "results.json"

    def run(*options: str) -> dict[str, Any]:
        known = ["--quick", "--peers", "polling", "--json", str(path)]
        assert benchmark.main([*known, *options]) == 0
        return files.read(path)

    return run


def test_what_fails_or_is_not_installed_costs_nothing_else(
    measured: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("a clock has stopped")

    monkeypatch.setattr(Patterns, "run", fails)
    monkeypatch.setattr(server, "missing", lambda: "uvicorn is not installed")
    results = measured("patterns", "server", "fairness", "--loops", "asyncio")
    assert {row["set"] for row in results["rows"]} == {"fairness"}
    assert {entry["reason"] for entry in results["not_run"]} == {
        "RuntimeError: a clock has stopped",
        "RuntimeError: uvicorn is not installed",
    }


def test_time_that_is_up_and_a_loop_that_is_not_installed_are_named(
    measured: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = lambda loop: f"{loop} is not installed" if loop == "uvloop" else None  # noqa: E731
    monkeypatch.setattr(benchmark, "missing", known)
    assert measured("fairness", "--for", "0")["rows"] == []
    out = capsys.readouterr().out
    assert "uvloop is not installed. asyncio's own loop is measured instead." in out
    assert "fairness, 8 x empty kernels beside a timer: --for 0 was over" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["speed"],
        ["--loops", "curio"],
        ["--show", "/nonexistent.json"],
        ["--patterns", "alternating,sawtooth"],
        ["--loads", "closed,half-open"],
        ["--rounds", "0"],
        ["compare", "--older", "/nonexistent.whl"],
        ["compare", "--older", __file__],
        ["compare", "--older", __file__, "--minutes", "1"],
        ["compare", "--older", __file__, "speed"],
        ["compare"],
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["python -m benchmarks", *arguments])
    with pytest.raises(SystemExit) as refusal:
        raise SystemExit(program.main())
    assert refusal.value.code == 2
    assert capsys.readouterr().err.startswith(("usage: ", "python -m benchmarks"))


def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "NEEDED", ("rich", "no_such_library"))
    assert program.main() == 2
    said = capsys.readouterr().err
    assert "no_such_library is not installed: pip install --group bench" in said


# ---------------------------------------------------------------------------------- other programs


def test_ready_is_compared_with_a_loop_of_sleeps(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--rounds", "1", "--seconds", "0.03", "--queries", "2", "--work", "steady 5 ms")
    assert ready.main(list(options)) == 0
    title, row = capsys.readouterr().out.splitlines()
    assert "sleep(0.001)" in title
    work, figures = row[:24].strip(), [float(each) for each in row[24:].split()]
    assert (work, figures[0], len(figures)) == ("steady 5 ms", 2, 9)
    assert all(each > 0 for each in figures[:-2])
    assert all(each >= 0 for each in figures[-2:])  # two ratios of few waits


@pytest.mark.slow
@pytest.mark.alone
def test_idioms_that_block_are_found_and_no_others(driver_kind: str) -> None:
    done = python(driver_kind, "-m", "benchmarks.blocking_idioms", folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 rows are wrong" in done.stdout
    assert len(re.findall("^bindings ", done.stdout, re.MULTILINE)) == 13
