"""The benchmark's torch server: every way is served and checked. There may be a stand-in."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from benching import command
from benchmarks import goals, plan, runner, server, serving, torch_server, torch_ways
from benchmarks import results as files

STAND_INS = Path(__file__).parents[1] / "stand_ins"

# ------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def torch_run(
    driver_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    there = driver_kind == "gpu" and importlib.util.find_spec("torch") is not None
    path = tmp_path_factory.mktemp("torch") / "results.json"
    arguments = ("--quick", "torch", "--json", str(path))
    done = command(driver_kind, *arguments, path=None if there else STAND_INS)
    assert done.returncode == 0, done.stderr
    return done.stdout, files.read(path)


@pytest.mark.slow
def test_each_way_is_served(torch_run: tuple[str, dict[str, Any]]) -> None:
    rows = torch_run[1]["rows"]
    assert torch_run[1]["not_run"] == []
    assert {row["peer"] for row in rows} == {*torch_server.PEERS, server.PING}
    for row in rows:
        assert (row["set"], row["measure"], row["load"]) == (
            "torch",
            "torch",
            torch_server.MAIN.name,
        )
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] < 10e6
        assert row["beyond"]["p99_us"] == row["p99_us"]
        assert row["samples"] > 0
        for name in ("uvicorn ", "FastAPI ", "torch "):
            assert name in row["server"]


@pytest.mark.slow
def test_a_torch_server_is_printed_and_judged(torch_run: tuple[str, dict[str, Any]]) -> None:
    out, results = torch_run
    for words in (
        "A torch server's requests",
        "\n  launch + to_thread  ",
        "  aiostream graph  ",
    ):
        assert words in out
    assert re.search("^closed 16 x model *$", out, re.MULTILINE)
    assert len(results["goals"]) == 3
    assert all(goal["verdict"] in ("met", "missed") for goal in results["goals"])


# ---------------------------------------------------------------------------------------- failures


def served(
    driver_kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> tuple[set[str], dict[str, str]]:
    """The peers that had a window with a stand-in with more lines; why others were not run."""
    pytest.importorskip("fastapi")
    (folder / "torch.py").write_text(f"{(STAND_INS / 'torch.py').read_text()}\n{more}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    )
    simulator = driver_kind == "simulator"
    bench_runner = runner.Runner(["asyncio"], [], simulator=simulator, say=lambda line: None)
    try:
        peers = (torch_ways.LAUNCH, "launch + query")
        job = torch_server.TorchServer(
            ("asyncio",), peers, load=torch_server.MAIN, rounds=1, window=0.3, warm=0.0, trial=0.0
        )
        rows = job.run(bench_runner)
    finally:
        bench_runner.close()
    return {row["peer"] for row in rows}, {
        entry["peer"]: entry["reason"] for entry in bench_runner.not_run
    }


@pytest.mark.slow
def test_a_way_that_answers_too_early_is_left_out(
    driver_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, not_run = served(
        driver_kind, tmp_path, monkeypatch, "KERNEL = 500_000\nEvent.query = lambda self: True"
    )
    assert peers == {server.PING, torch_ways.LAUNCH}, not_run
    assert not_run.keys() == {"launch + query as a torch server"}
    assert "are wrong: read too early" in not_run["launch + query as a torch server"]


@pytest.mark.slow
def test_a_torch_that_sees_no_gpu_is_named(
    driver_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, not_run = served(driver_kind, tmp_path, monkeypatch, "cuda.is_available = lambda: False")
    assert peers == set()
    assert {"RuntimeError: torch sees no GPU"} == set(not_run.values())


def test_what_is_not_installed_is_named(driver_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_server, "NEEDED", ("uvicorn", "no_such_library"))
    simulator = driver_kind == "simulator"
    bench_runner = runner.Runner(["asyncio"], [], simulator=simulator, say=lambda line: None)
    job = torch_server.TorchServer(("asyncio",), torch_server.PEERS, load=torch_server.MAIN)
    try:
        with pytest.raises(
            RuntimeError, match=r"^no_such_library is not installed: pip install torch"
        ):
            job.run(bench_runner)
    finally:
        bench_runner.close()


# ------------------------------------------------------------------------------------- plan, goals


def test_the_torch_server_takes_three_minutes_and_only_on_request() -> None:
    assert "torch" not in plan.MEASURES
    jobs = plan.jobs("torch", ("uvloop",), torch_server.PEERS, plan.Cut())
    assert [job.title for job in jobs] == ["torch, closed 16 x model", "torch, closed 64 x model"]
    assert 150 < sum(job.seconds() for job in jobs) < 210
    (one,) = plan.jobs(
        "torch", ("uvloop",), torch_server.PEERS, plan.Cut(rounds=2, loads=("closed 64",))
    )
    assert one.seconds() < jobs[1].seconds() / 2
    (quick,) = plan.jobs("torch", ("uvloop",), torch_server.PEERS, plan.Cut(quick=True))
    assert quick.title == jobs[0].title
    assert len({serving.path_of(name) for name in torch_server.PEERS}) == len(torch_server.PEERS)


def test_the_torch_server_is_judged_at_16_connections() -> None:
    def row(
        peer: str, rate: float, p99: float, ping: float, load: str = torch_server.MAIN.name
    ) -> dict[str, Any]:
        figures = {"per_second": rate, "p99_us": p99, "ping_p99_us": ping}
        each = [
            {"round": k, **{name: figure * (1 + k / 10) for name, figure in figures.items()}}
            for k in range(10)
        ]
        known = {"set": "torch", "measure": "torch", "loop": "uvloop", "peer": peer, "load": load}
        return {**known, "windows": each, "ping": {"p99_us": ping, "samples": 1_000}}

    rows = [
        row(torch_ways.LAUNCH, 900, 20_000, 9_000),
        row(torch_ways.TO_THREAD, 400, 50_000, 4_000),
        row(torch_ways.GRAPH, 3_000, 6_000, 2_500),
    ]
    rate, tail, ping = goals.judge(json.loads(json.dumps(rows)))
    assert (rate["measured"], rate["verdict"]) == (pytest.approx(2.25), "met")
    assert (tail["measured"], tail["verdict"]) == (pytest.approx(0.4), "met")
    assert (ping["measured"], ping["unit"], ping["verdict"], ping["samples"]) == (
        2.5,
        "ms",
        "missed",
        1_000,
    )
    assert [goal["verdict"] for goal in goals.judge(rows[:1])] == ["not measured"] * 3
    assert goals.judge([row(torch_ways.LAUNCH, 900, 20_000, 9_000, "closed 64 x model")]) == []
