"""The benchmark: that it runs, names who did not, and judges and prints what it found. Never how fast anything is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

import aiostream
import internals
from aiostream import bench
from aiostream.bench import goals, loops, peers, plan, plot, report, runner, stats, turns
from aiostream.bench.companion import Companion
from aiostream.bench.latency import Latency
from aiostream.bench.patterns import Patterns
from aiostream.bench.throughput import Throughput
from aiostream.bench.windows import Fairness, Mixed
from benching import OLDER, command, pack_wheel

# ------------------------------------------------------------------------------------------------ a run


@pytest.fixture(scope="module")
def quick_run(driver_kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("bench") / "results.json"
    measures = "goals,latency,idle,lag,pending,import"
    chosen = "aiostream auto,blocking,polling,to_thread bindings,ctypes,cupy"
    done = command(
        driver_kind, "--quick", "--measures", measures, "--peers", chosen, "--output", str(path)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, path


def test_a_quick_run_writes_cells_of_every_measure(
    quick_run: tuple[str, Path], driver_kind: str
) -> None:
    results = report.read(quick_run[1])
    assert results["simulator"] == (driver_kind == "simulator")
    assert results["environment"]["gpu"] == aiostream.Device(0).name
    assert {"driver", "cuda", "python", "cuda-bindings", "cores"} <= results["environment"].keys()
    assert results["date"].startswith("20")
    measured = {row["set"] for row in results["rows"]}
    assert measured == {"goals", "latency", "idle", "lag", "pending", "import"}
    assert all({"measure", "loop", "peer", "samples"} <= row.keys() for row in results["rows"])


def test_the_figures_of_a_quick_run_are_sane(quick_run: tuple[str, Path]) -> None:
    results = report.read(quick_run[1])
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


def test_a_peer_that_is_not_run_is_named(quick_run: tuple[str, Path], driver_kind: str) -> None:
    out, path = quick_run
    ran = {row["peer"] for row in report.read(path)["rows"] if row["measure"] == "latency"}
    not_run = {entry["peer"]: entry["reason"] for entry in report.read(path)["not_run"]}
    for name in ("aiostream auto", "blocking", "polling", "to_thread bindings", "ctypes", "cupy"):
        assert name in ran or not_run[name]
    if driver_kind == "simulator":
        assert "runtime library" in not_run["cupy"]
        assert "not run: cupy on every loop" in out
        assert report.SIMULATED in out


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


def test_a_run_is_added_to_a_file_and_shown(
    quick_run: tuple[str, Path], driver_kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "more.json"
    path.write_bytes(quick_run[1].read_bytes())
    before = report.read(path)["rows"]
    arguments = (
        "--quick",
        "--measures",
        "import",
        "--output",
        str(path),
        "--append",
        "--loops",
        "asyncio",
    )
    assert command(driver_kind, *arguments, "--peers", "blocking").returncode == 0
    after = report.read(path)["rows"]
    assert len(after) == len(before)  # replaced, not doubled
    shown = command("none", "--show", str(path))
    assert "Import time in ms" in shown.stdout
    assert "\nGoals\n" in shown.stdout


def test_time_that_is_up_is_said_and_what_was_not_measured_is_named(
    driver_kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "none.json"
    done = command(
        driver_kind,
        "--quick",
        "--measures",
        "latency",
        "--loops",
        "asyncio",
        "--for",
        "0",
        "--output",
        str(path),
    )
    assert done.returncode == 0, done.stderr
    assert report.read(path)["rows"] == []
    assert "latency, 5 us steady: --for 0 was over" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--measures", "speed"],
        ["--loops", "curio"],
        ["--show", "/nonexistent.json"],
        ["--patterns", "alternating,sawtooth"],
        ["--loads", "closed,half-open"],
        ["--rounds", "0"],
        ["--older", "/nonexistent.whl"],
        ["--older", __file__],
    ],
)
def test_what_cannot_be_is_refused(driver_kind: str, arguments: list[str]) -> None:
    done = command(driver_kind, *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_list_needs_no_driver() -> None:
    program = (
        "import sys; from aiostream import bench; bench.main(['--list', '--older', 'any.whl'])"
    )
    program += "; assert 'cuda.bindings.driver' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for measure in (*plan.MEASURES, *plan.ON_REQUEST):
        assert f"\n{measure:12}about " in done.stdout
    assert "\nsleep 1 ms  " in done.stdout


def test_without_uvloop_asyncio_is_measured(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(
        loops, "missing", lambda loop: f"{loop} is not installed" if loop == "uvloop" else None
    )
    path = tmp_path / "results.json"
    options = [
        "--quick",
        "--measures",
        "patterns",
        "--patterns",
        "steady 1",
        "--peers",
        "polling",
        "--output",
        str(path),
    ]
    assert bench.main(options) == 0
    assert {row["loop"] for row in report.read(path)["rows"]} == {"asyncio"}
    assert (
        "uvloop is not installed. asyncio's own loop is measured instead."
        in capsys.readouterr().out
    )


# ------------------------------------------------------------------------------------------------ late ends, starved loops


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def tail_run(
    driver_kind: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("tails") / "results.json"
    arguments = (
        "--quick",
        "--measures",
        ",".join(plan.TAILS),
        "--older",
        str(wheel),
        "--output",
        str(path),
    )
    done = command(driver_kind, *arguments, "--loops", "asyncio")
    assert done.returncode == 0, done.stderr
    return done.stdout, report.read(path)


@pytest.mark.parametrize("measure", plan.TAILS)
def test_each_measure_of_late_ends_has_rows_of_its_peers(
    tail_run: tuple[str, dict[str, Any]], measure: str
) -> None:
    rows = [row for row in tail_run[1]["rows"] if row["set"] == measure]
    assert {row["peer"] for row in rows} == {
        *plan.TAIL_PEERS,
        *(OLDER if measure != "one-core" else ()),
    }
    of_patterns = [row for row in rows if row["measure"] == "patterns"]
    if measure in ("patterns", "one-core"):
        assert {row["pattern"] for row in of_patterns} == turns.patterns(0, 1).keys()
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


def test_late_ends_are_printed_and_judged(tail_run: tuple[str, dict[str, Any]]) -> None:
    out, results = tail_run
    assert results["runs"][0]["older"].endswith(".whl")
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


def test_all_that_is_late_is_measured_on_trio(driver_kind: str) -> None:
    names = ("aiostream auto", "sleep 1 ms", "blocking")
    bench_runner = runner.Runner(
        ["trio"], names, simulator=driver_kind == "simulator", say=lambda line: None
    )
    try:
        bench_runner.try_out()
        jobs: list[Any] = [
            Patterns(("trio",), names, ("alternating",), waits=2, rounds=1),
            Mixed(("trio",), names, 4, rounds=1, window=0.05, warm=0.0),
            Fairness(("trio",), names, 4, rounds=1, window=0.05, warm=0.0),
        ]
        for job in jobs:
            assert [row["peer"] for row in job.run(bench_runner)] == list(names)
        assert bench_runner.not_run == []
    finally:
        bench_runner.close()


def test_an_older_library_that_cannot_be_used_is_named(driver_kind: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("aiostream/__init__.py", "raise ImportError('of another Python')")
    with pytest.raises(RuntimeError, match="the older library: ImportError: of another Python"):
        Companion(path, simulator=driver_kind == "simulator")


def test_an_older_library_that_fails_is_left_out(driver_kind: str, wheel: Path) -> None:
    said: list[str] = []
    bench_runner = runner.Runner(
        ["asyncio"], ["polling"], simulator=driver_kind == "simulator", say=said.append
    )
    companion = Companion(wheel, simulator=driver_kind == "simulator")
    bench_runner.add(companion)
    try:
        bench_runner.try_out()
        assert said == []
        with pytest.raises(RuntimeError, match="KeyError: 'dance'"):
            companion.ask(
                {"turn": "dance", "pool": "", "wait": "auto", "streams": 1, "loop": "asyncio"}, 10
            )
        companion.kill()
        rows = Patterns(
            ("asyncio",), ("polling", *sorted(OLDER)), ("steady",), waits=2, rounds=2
        ).run(bench_runner)
    finally:
        bench_runner.close()
    assert {row["peer"] for row in rows} == {"polling"}
    assert {entry["peer"] for entry in bench_runner.not_run} == OLDER
    assert "process has ended, exit code -9" in said[0]


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

    lanes: list[turns.Lane] = [(lambda length: None, wait) for wait in (greedy, modest, modest)]
    settings = {
        "turn": "window",
        "warm": 0.0,
        "window": 0.3,
        "seed": 0,
        "log_normal": False,
        "timer": True,
    }
    found = loops.run("asyncio", turns.take, lanes, settings)
    window = internals.fairness_of(found)
    assert window["most"] == found["counts"][0]
    assert 10 < window["ratio"] < 40
    assert (
        max(found["timer_ns"]) > 2_000_000
    )  # the greedy task's 20 turns, less the timer's own millisecond
    assert max(found["latency_ns"]) >= 200_000
    assert len(found["latency_ns"]) == sum(found["counts"])


def test_waits_are_late_by_what_is_beyond_the_kernel() -> None:
    launched: list[int] = []

    async def late() -> None:
        time.sleep(0.003)

    settings = {
        "turn": "waits",
        "warm": [5],
        "seed": 0,
        "lengths": [["a", [1_000_000] * 3], ["b", [2_000_000]]],
    }
    found = loops.run("asyncio", turns.take, [(launched.append, late)], settings)
    assert launched == [5, *[1_000_000] * 3, 2_000_000]
    assert len(found["a"]["latency_ns"]) == 3
    assert min(found["a"]["latency_ns"]) >= 2_000_000
    assert found["b"]["latency_ns"][0] >= 1_000_000
    assert found["a"]["wall_ns"] >= 9_000_000


def test_patterns_are_as_they_are_named_and_enough_for_a_percentile() -> None:
    patterns = turns.patterns(3, 100)
    assert patterns == turns.patterns(3, 100) != turns.patterns(4, 100)
    assert all(len(lengths) >= 100 for lengths in patterns.values())
    assert len(patterns["prefill and decode"]) % 13 == 0
    assert (patterns["drifting from 1 to 4 ms"][0], patterns["drifting from 1 to 4 ms"][-1]) == (
        1_000_000,
        4_000_000,
    )
    (job,) = plan.jobs("patterns", ("uvloop",), plan.TAIL_PEERS, quick=False)
    assert isinstance(job, Patterns)
    assert job.rounds >= 10
    assert job.waits * job.rounds >= 1_000
    (fewer,) = plan.jobs(
        "patterns",
        ("uvloop",),
        plan.TAIL_PEERS,
        quick=False,
        rounds=2,
        words=("bimodal", "prefill"),
    )
    assert fewer.seconds() < job.seconds() / 10
    for measure in plan.TAILS:
        assert (
            sum(
                one.seconds()
                for one in plan.jobs(measure, ("uvloop",), (*plan.TAIL_PEERS, *OLDER), quick=False)
            )
            < 300
        )


# ------------------------------------------------------------------------------------------------ on every loop


@pytest.mark.parametrize("loop", loops.LOOPS)
def test_peers_wait_on_every_loop(driver_kind: str, loop: str) -> None:
    names = ["aiostream auto", "polling", "to_thread bindings", "blocking event", "ctypes"]
    bench_runner = runner.Runner(
        [loop], names, simulator=driver_kind == "simulator", say=lambda line: None
    )
    try:
        bench_runner.try_out()
        assert bench_runner.not_run == []
        latency = Latency(
            (loop,), tuple(names), 0, "unpredictable", samples=3, rounds=1, warm=1
        ).run(bench_runner)
        assert {row["peer"] for row in latency} == set(names)
        throughput = Throughput(
            (loop,), tuple(names), 4, 500_000, rounds=1, window=0.02, warm=0.0
        ).run(bench_runner)
        assert all(row["per_second"] > 0 for row in throughput)
    finally:
        bench_runner.close()


def test_a_peer_that_fails_is_left_out_and_named(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    bench_runner = runner.Runner(
        ["asyncio"],
        ["blocking", "polling", "ctypes"],
        simulator=driver_kind == "simulator",
        say=said.append,
    )

    def cannot() -> None:
        raise ImportError("No module named 'polls'")

    monkeypatch.setattr(bench_runner.peers["polling"], "prepare", cannot)
    bench_runner.try_out()
    calls = 0

    def fails_later(adapter: loops.LoopAdapter, bench_stream: Any) -> peers.Wait:
        async def wait() -> None:
            nonlocal calls
            calls += 1
            if calls > 2:
                raise ValueError("no more")
            bench_stream.synchronize()

        return wait

    monkeypatch.setattr(bench_runner.peers["ctypes"], "waiter", fails_later)
    rows = Latency(
        ("asyncio",), ("blocking", "polling", "ctypes"), 5_000, samples=4, rounds=2, warm=1
    ).run(bench_runner)
    bench_runner.close()
    # What it measured before it failed is kept: it is as good as any.
    assert {row["peer"]: row["samples"] for row in rows}["blocking"] == 4
    assert [(entry["peer"], entry["reason"]) for entry in bench_runner.not_run] == [
        ("polling", "ImportError: No module named 'polls'"),
        ("ctypes", "ValueError: no more"),
    ]
    assert len(said) == 2


# ------------------------------------------------------------------------------------------------ goals, figures, plot


def canned() -> list[dict[str, Any]]:
    """Cells of two goals: a latency that meets its goal and one that does not."""
    us = 1_000

    def latency(peer: str, median: int, cpu: int) -> dict[str, Any]:
        row = {
            "set": "goals",
            "measure": "latency",
            "loop": "uvloop",
            "peer": peer,
            "load": "steady",
            "length_ns": 100 * us,
        }
        figures = {"latency_ns": [median - 1, median, median + 1] * 10, "cpu_ns": [cpu] * 30}
        return {**row, **figures, "samples": 30, "wall_ns": 30 * (100 * us + median)}

    windows = [
        {"per_second": rate, "cpu_us": 40.0, "cores": 1.2}
        for rate in (24_000.0, 24_500.0, 25_000.0)
    ]
    slow = [{"per_second": 1_600.0, "cpu_us": 90.0, "cores": 0.2}] * 3
    busy = {
        "set": "goals",
        "measure": "throughput",
        "loop": "uvloop",
        "streams": 128,
        "length_ns": 5_000_000,
        "neighbours": 0,
    }
    return [
        latency("aiostream auto", 22 * us, 60 * us),
        latency("to_thread", 44 * us, 144 * us),
        {**busy, "peer": "aiostream auto", "windows": windows},
        {**busy, "peer": "aiostream hostfunc", "windows": slow},
        {
            "set": "latency",
            "measure": "latency",
            "loop": "uvloop",
            "peer": "cupy",
            "length_ns": 20 * us,
            "load": "steady",
        },
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
    assert cpu["measured"] == pytest.approx(
        60 / 122 / (144 / 144), abs=1e-3
    )  # shares of a core, and not of each other's time
    assert cpu["verdict"] == "met"
    rate = judged["128 streams x 5 ms", "completions per second / aiostream hostfunc"]
    assert (rate["measured"], rate["verdict"]) == (pytest.approx(15.3125), "met")
    assert judged["128 streams x 5 ms", "cores busy"]["verdict"] == "missed"
    assert (
        judged["20 us kernel", "latency / cupy"]["verdict"] == "not measured"
    )  # a table's row is none of the goals'
    assert {row["verdict"] for row in judged.values()} == {"met", "missed", "not measured"}


def test_every_goal_has_a_setting_that_measures_it() -> None:
    names = list(peers.all_peers())
    rows = []
    for job in plan.jobs("goals", loops.LOOPS, names, quick=False):
        settings = {
            key: value
            for key, value in vars(job).items()
            if key in ("length", "load", "streams", "neighbours", "busy")
        }
        for loop in getattr(job, "loops", ("asyncio",)):
            for peer in getattr(job, "peers", ("aiostream auto",)):
                rows.append((type(job).__name__, loop, peer, settings))
    assert len(goals.judge([])) == len(goals.judge(canned())) == 67
    assert (
        "Latency",
        "uvloop",
        "to_thread",
        {"length": 100_000_000, "load": "varying", "busy": False},
    ) in rows
    assert (
        "Throughput",
        "trio",
        "aiostream auto",
        {"length": 5_000_000, "streams": 256, "neighbours": 0},
    ) in rows
    assert (
        sum(job.seconds() for job in plan.jobs("goals", loops.LOOPS, names, quick=False)) < 8 * 60
    )


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
        return {
            "set": measure,
            "measure": measure,
            "loop": "uvloop",
            "peer": peer,
            "samples": 100,
            **figures,
        }

    def pattern(peer: str, tail: int, share: float) -> dict[str, Any]:
        latency = [50_000] * 85 + [tail] * 15
        name = {"pattern": "alternating 9 and 0.4 ms", "mean_ns": 5 * ms}
        return row("patterns", peer, **name, latency_ns=latency, cpu_shares=[share] * 10)

    def mixed(peer: str, rate: float, p99: float) -> dict[str, Any]:
        tails = {"p99_us": p99, "p999_us": 2 * p99}
        windows = [{"per_second": rate + number, **tails} for number in range(10)]
        return row("mixed", peer, streams=16, windows=windows, **tails)

    def fairness(peer: str, ratio: float, late: int) -> dict[str, Any]:
        windows = [{"ratio": ratio}] * 10
        return row(
            "fairness", peer, windows=windows, timer={"p99_us": late / 1e3}, timer_ns=[late] * 100
        )

    return [
        pattern("aiostream auto", 4 * ms, 0.05),
        pattern("to_thread bindings", 200_000, 0.5),
        pattern("enqueue_async", 4 * ms, 0.05),
        mixed("aiostream auto", 3_900.0, 900.0),
        mixed("polling", 4_000.0, 100.0),
        mixed("older event", 3_900.0, 800.0),
        fairness("aiostream auto", 60.0, 83 * ms),
        fairness("polling", 1.8, 2 * ms),
    ]


def test_late_ends_are_judged_against_the_peers() -> None:
    judged = {(row["group"], row["what"]): row for row in goals.judge(canned_tails())}
    assert len(judged) == 11  # none of the other goals, because nothing was measured for them
    pattern = "alternating 9 and 0.4 ms"
    tail = judged["patterns", f"p99, {pattern}, bound by to_thread bindings"]
    assert (tail["measured"], tail["bound"], tail["verdict"]) == (4.0, 0.3, "missed")
    assert judged["patterns", f"CPU, {pattern} / to_thread bindings"]["measured"] == pytest.approx(
        0.1
    )
    assert judged["patterns", f"median, {pattern} / to_thread bindings"]["verdict"] == "missed"
    enqueued = judged["patterns", f"median of enqueue_async, {pattern} / synchronize_async"]
    assert (enqueued["measured"], enqueued["bound"], enqueued["verdict"]) == (1.0, 1.3, "met")
    assert judged["mixed, 16 streams", "p99"]["verdict"] == "met"
    older = judged["mixed, 16 streams", "p99, bound by older event"]
    assert (older["measured"], older["bound"], older["verdict"]) == (0.9, 0.88, "missed")
    assert judged["mixed, 16 streams", "p99.9"]["verdict"] == "met"
    assert (
        judged["mixed, 16 streams", "completions per second / polling, upper end"]["verdict"]
        == "met"
    )
    assert judged["fairness", "most / fewest completions of a task"]["verdict"] == "missed"
    timer = judged["fairness", "p99 of a 1 ms timer, bound by polling"]
    assert (timer["measured"], timer["bound"], timer["verdict"]) == (83.0, 2.4, "missed")
    assert len(goals.judge([*canned(), *canned_tails()])) == 67 + 11


def test_a_results_file_is_drawn_where_there_is_matplotlib(tmp_path: Path) -> None:
    latency = [
        {
            "set": "latency",
            "measure": "latency",
            "loop": "uvloop",
            "peer": peer,
            "length_ns": length,
            "python_busy": False,
        }
        | {"median_us": 20.0, "low_us": 19.0, "high_us": 21.0, "cpu_percent": 50.0}
        for peer in ("aiostream auto", "to_thread")
        for length in plan.LENGTHS
    ]
    results: dict[str, Any] = {
        "environment": dict.fromkeys(("gpu", "driver", "cuda", "cores", "python")),
        "date": "2026-11-21T00:00:00+00:00",
    }
    results |= {"simulator": False, "rows": latency}
    if subprocess.run(
        [sys.executable, "-c", "import matplotlib"], capture_output=True, check=False
    ).returncode:
        with pytest.raises(plot.UnavailableError, match="matplotlib is not installed"):
            plot.draw(results, tmp_path / "results.json")
        return
    pictures = plot.draw(results, tmp_path / "results.json")
    assert [picture.name for picture in pictures] == ["results.png", "results.svg"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in pictures[1].read_bytes()
    with pytest.raises(plot.UnavailableError, match="no rows"):
        plot.draw({**results, "rows": []}, tmp_path / "results.json")


def test_the_command_line_knows_every_measure_and_loop() -> None:
    assert tuple(bench.MEASURES) == plan.MEASURES
    assert (bench.ON_REQUEST, bench.SERVERS) == (plan.ON_REQUEST, plan.SERVERS)
    assert bench.LOOPS == loops.LOOPS


def test_a_setting_that_fails_costs_no_other(
    driver_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Latency, on: runner.Runner) -> list[runner.Row]:
        if self.length == 20_000:
            raise RuntimeError("a clock stands still")
        return original(self, on)

    original = Latency.run
    monkeypatch.setattr(Latency, "run", fails)
    path = tmp_path / "results.json"
    options = [
        "--quick",
        "--measures",
        "latency",
        "--loops",
        "asyncio",
        "--peers",
        "blocking",
        "--output",
        str(path),
    ]
    assert bench.main(options) == 0
    results = report.read(path)
    assert {row["length_ns"] for row in results["rows"]} == {5_000, 100_000, 300_000, 1_000_000}
    assert [entry["reason"] for entry in results["not_run"]] == [
        "RuntimeError: a clock stands still"
    ]
