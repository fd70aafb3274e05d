"""The benchmark's command line: that it runs, and names who did not. Never how fast anything is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aiostream
from benching import command
from benchmarks import __main__ as program
from benchmarks import command as benchmark
from benchmarks import plan, ready, work
from benchmarks import results as files
from benchmarks.measure import Row
from benchmarks.patterns import Patterns
from benchmarks.runner import Runner

# ------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def quick_run(driver_kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("bench") / "results.json"
    done = command(driver_kind, "--quick", "goals", "fairness", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, path


@pytest.mark.slow
def test_a_quick_run_writes_cells_of_every_measure(
    quick_run: tuple[str, Path], driver_kind: str
) -> None:
    results = files.read(quick_run[1])
    assert results["simulator"] == (driver_kind == "simulator")
    assert results["environment"]["gpu"] == aiostream.Device(0).name
    assert {"driver", "cuda", "python", "cuda-bindings", "cores"} <= results["environment"].keys()
    assert results["date"].startswith("20")
    measured = {row["set"] for row in results["rows"]}
    assert measured == {"goals", "fairness"}
    assert all({"measure", "loop", "peer", "samples"} <= row.keys() for row in results["rows"])


@pytest.mark.slow
def test_the_figures_of_a_quick_run_are_sane(quick_run: tuple[str, Path]) -> None:
    results = files.read(quick_run[1])
    by_set: dict[str, list[Any]] = {}
    for row in results["rows"]:
        by_set.setdefault(row["measure"], []).append(row)
    for row in by_set["latency"]:
        assert len(row["latency_ns"]) == len(row["cpu_ns"]) == row["samples"]
        # A wait that resumes before the kernel's end waits for nothing; the clocks of GPU and host
        # may differ by a microsecond.
        assert min(row["latency_ns"]) > -2_000
        assert row["low_us"] <= row["median_us"] <= row["high_us"] < 1e6
    for row in by_set["throughput"]:
        assert all(window["count"] > 0 for window in row["windows"])
    for row in by_set["lag"]:
        assert min(row["lag_ns"]) > 0
    for row in by_set["pending"]:
        assert row["cpu_us"] > 0
    for row in by_set["memory"]:
        assert row["by"] != "traced" or row["bytes"] > 500


@pytest.mark.slow
def test_a_peer_that_is_not_run_is_named(quick_run: tuple[str, Path], driver_kind: str) -> None:
    out, path = quick_run
    not_run = {entry["peer"]: entry["reason"] for entry in files.read(path)["not_run"]}
    if driver_kind == "simulator":
        assert "runtime library" in not_run["cupy"]
        assert "not run: cupy on every loop" in out
        assert files.SIMULATED in out


@pytest.mark.slow
def test_a_quick_run_prints_progress_tables_and_goals(quick_run: tuple[str, Path]) -> None:
    out, path = quick_run
    for words in (
        "about 0:",
        "left] goals: latency, 20 us steady",
        "Latency over the kernel's length",
        "Loop lag in us",
        "Goals",
    ):
        assert words in out
    assert "not measured" in out
    assert f"Results: {path}" in out


@pytest.mark.slow
def test_a_run_is_added_to_a_file_and_shown(
    quick_run: tuple[str, Path], driver_kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "more.json"
    path.write_bytes(quick_run[1].read_bytes())
    before = files.read(path)["rows"]
    arguments = (
        "--quick",
        "fairness",
        "--json",
        str(path),
        "--append",
    )
    assert command(driver_kind, *arguments, "--peers", "polling").returncode == 0
    after = files.read(path)["rows"]
    assert len(after) == len(before)  # replaced, not doubled
    shown = command("none", "--show", str(path))
    assert "Completions of a task in a window" in shown.stdout
    assert "\nGoals\n" in shown.stdout


def test_time_that_is_up_is_said_and_what_was_not_measured_is_named(
    driver_kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "none.json"
    done = command(
        driver_kind,
        "--quick",
        "fairness",
        "--loops",
        "asyncio",
        "--for",
        "0",
        "--json",
        str(path),
    )
    assert done.returncode == 0, done.stderr
    assert files.read(path)["rows"] == []
    assert "fairness, 8 x empty kernels beside a timer: --for 0 was over" in done.stdout


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
    assert "no_such_library is not installed: pip install --group bench" in (
        capsys.readouterr().err
    )


def test_without_uvloop_asyncio_is_measured(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    known = lambda loop: f"{loop} is not installed" if loop == "uvloop" else None  # noqa: E731
    monkeypatch.setattr(benchmark, "missing", known)
    monkeypatch.setenv("AIOSTREAM_SIMULATOR", "1" if driver_kind == "simulator" else "")
    path = tmp_path / "results.json"
    options = [
        "--quick",
        "patterns",
        "--patterns",
        "steady 1",
        "--peers",
        "polling",
        "--json",
        str(path),
    ]
    assert benchmark.main(options) == 0
    assert {row["loop"] for row in files.read(path)["rows"]} == {"asyncio"}
    assert (
        "uvloop is not installed. asyncio's own loop is measured instead."
        in capsys.readouterr().out
    )


@pytest.fixture(scope="module")
def tail_run(
    driver_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("tails") / "results.json"
    arguments = (
        "--quick",
        *plan.TAILS,
        "--json",
        str(path),
    )
    done = command(driver_kind, *arguments, "--loops", "asyncio")
    assert done.returncode == 0, done.stderr
    return done.stdout, files.read(path)


@pytest.mark.slow
@pytest.mark.parametrize("measure", plan.TAILS)
def test_each_measure_of_late_ends_has_rows_of_its_peers(
    tail_run: tuple[str, dict[str, Any]], measure: str
) -> None:
    rows = [row for row in tail_run[1]["rows"] if row["set"] == measure]
    assert {row["peer"] for row in rows} == set(plan.TAIL_PEERS)
    of_patterns = [row for row in rows if row["measure"] == "patterns"]
    if measure in ("patterns", "one-core"):
        assert {row["pattern"] for row in of_patterns} == work.patterns(0, 1).keys()
    for row in rows:
        assert row["samples"] > 0
        if row["measure"] == "fairness":
            assert 0 <= row["fewest"] <= row["most"]
            assert row["ratio"] >= 1
            assert row["timer"]["p50_us"] <= row["timer"]["p99_us"] <= row["timer"]["max_us"]
        else:
            assert (
                -2
                < row["p50_us"]
                <= row["p90_us"]
                <= row["p99_us"]
                <= row["p999_us"]
                <= row["max_us"]
                < 5e6
            )
        if row["measure"] == "patterns":
            assert len(row["latency_ns"]) == row["samples"]
            assert row["cpu_percent"] >= 0
        else:
            assert row["low"] <= row["per_second"] <= row["high"]
            assert row["cores"] >= 0


@pytest.mark.slow
def test_late_ends_are_printed_and_judged(tail_run: tuple[str, dict[str, Any]]) -> None:
    out, results = tail_run
    for words in (
        "Lateness in us by pattern of work",
        "8 streams",
        "Completions of a task in a window",
        "all on one core",
    ):
        assert words in out
    assert {goal["group"] for goal in results["goals"]} == {
        "patterns",
        "fairness",
        "one core",
    }  # --quick has no 16 streams
    assert all(goal["verdict"] in ("met", "missed") for goal in results["goals"])


def test_a_setting_that_fails_costs_no_other(
    driver_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Patterns, on: Runner) -> list[Row]:
        raise RuntimeError("a clock stands still")

    monkeypatch.setenv("AIOSTREAM_SIMULATOR", "1" if driver_kind == "simulator" else "")
    monkeypatch.setattr(Patterns, "run", fails)
    path = tmp_path / "results.json"
    options = [
        "--quick",
        "patterns",
        "fairness",
        "--loops",
        "asyncio",
        "--peers",
        "polling",
        "--json",
        str(path),
    ]
    assert benchmark.main(options) == 0
    results = files.read(path)
    assert {row["set"] for row in results["rows"]} == {"fairness"}
    assert [entry["reason"] for entry in results["not_run"]] == [
        "RuntimeError: a clock stands still"
    ]


def test_ready_is_compared_with_a_loop_of_sleeps(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--rounds", "1", "--seconds", "0.03", "--queries", "2", "--work", "steady 5 ms")
    assert ready.main(list(options)) == 0
    title, row = capsys.readouterr().out.splitlines()
    assert "sleep(0.001)" in title
    work, figures = row[:24].strip(), [float(each) for each in row[24:].split()]
    assert work == "steady 5 ms"
    assert figures[0] == 2
    assert len(figures) == 9
    assert all(each > 0 for each in figures)


@pytest.mark.slow
@pytest.mark.alone
def test_idioms_that_block_are_found_and_no_others(driver_kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.blocking_idioms"],
        capture_output=True,
        text=True,
        env={**os.environ, "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else ""},
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 rows are wrong" in done.stdout
    assert len(re.findall("^bindings ", done.stdout, re.MULTILINE)) == 13
