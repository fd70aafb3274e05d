"""The benchmark's torch server: every way is served and checked. There may be a stand-in."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benching import new_runner, quick_run
from benchmarks import goals, plan, server, serving, torch_server, torch_ways
from commands import STAND_INS, environment, torch_path

# ------------------------------------------------------------------------------------------- a run


@pytest.mark.slow
def test_each_way_is_served_printed_and_judged(driver_kind: str, tmp_path: Path) -> None:
    printed, results = quick_run(driver_kind, tmp_path, "torch", path=torch_path(driver_kind))
    assert results["not_run"] == []
    assert {row["peer"] for row in results["rows"]} == {*torch_server.PEERS, server.PING}
    for row in results["rows"]:
        kind = (row["set"], row["measure"], row["load"])
        assert kind == ("torch", "torch", torch_server.MAIN.name)
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] < 10e6
        assert row["beyond"]["p99_us"] == row["p99_us"]
        assert row["samples"] > 0
        for name in ("uvicorn ", "FastAPI ", "torch "):
            assert name in row["server"]
    for words in ("A torch server's requests", "\n  launch + to_thread  ", "  aiostream graph  "):
        assert words in printed
    assert re.search("^closed 16 x model *$", printed, re.MULTILINE)
    assert len(results["goals"]) == 3
    assert all(goal["verdict"] in ("met", "missed") for goal in results["goals"])


# ---------------------------------------------------------------------------------------- failures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "peers", "reasons"),
    [
        (
            "KERNEL = 500_000\nEvent.query = lambda self: True",
            {server.PING, torch_ways.LAUNCH},
            {"launch + query as a torch server": "are wrong: read too early"},
        ),
        (
            "cuda.is_available = lambda: False",
            set(),
            dict.fromkeys(
                ["launch + query as a torch server", f"{torch_ways.LAUNCH} as a torch server"],
                "RuntimeError: torch sees no GPU",
            ),
        ),
    ],
    ids=["answers too early", "sees no GPU"],
)
def test_a_way_that_fails_is_left_out_with_the_reason(
    driver_kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: str,
    peers: set[str],
    reasons: dict[str, str],
) -> None:
    """With a stand-in with more lines."""
    pytest.importorskip("fastapi")
    (tmp_path / "torch.py").write_text(f"{(STAND_INS / 'torch.py').read_text()}\n{more}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment(driver_kind, tmp_path)["PYTHONPATH"])
    ways, load = (torch_ways.LAUNCH, "launch + query"), torch_server.MAIN
    job = torch_server.TorchServer(
        ("asyncio",), ways, load=load, rounds=1, window=0.3, warm=0.0, trial=0.0
    )
    with closing(new_runner(driver_kind, "asyncio")) as bench_runner:
        rows = job.run(bench_runner)
    not_run = {entry["peer"]: entry["reason"] for entry in bench_runner.not_run}
    assert {row["peer"] for row in rows} == peers, not_run
    assert not_run.keys() == reasons.keys()
    assert all(reason in not_run[peer] for peer, reason in reasons.items())


def test_what_is_not_installed_is_named(driver_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_server, "NEEDED", ("uvicorn", "no_such_library"))
    job = torch_server.TorchServer(("asyncio",), torch_server.PEERS, load=torch_server.MAIN)
    with (
        closing(new_runner(driver_kind, "asyncio")) as bench_runner,
        pytest.raises(RuntimeError, match=r"^no_such_library is not installed: pip install torch"),
    ):
        job.run(bench_runner)


# ------------------------------------------------------------------------------------- plan, goals


def test_the_torch_server_takes_three_minutes_and_only_on_request() -> None:
    assert "torch" not in plan.MEASURES
    jobs = plan.jobs("torch", ("uvloop",), torch_server.PEERS, plan.Cut())
    assert [job.title for job in jobs] == ["torch, closed 16 x model", "torch, closed 64 x model"]
    assert 150 < sum(job.seconds() for job in jobs) < 210
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
    found = (ping["measured"], ping["unit"], ping["verdict"], ping["samples"])
    assert found == (2.5, "ms", "missed", 1_000)
    assert [goal["verdict"] for goal in goals.judge(rows[:1])] == ["not measured"] * 3
    assert goals.judge([row(torch_ways.LAUNCH, 900, 20_000, 9_000, "closed 64 x model")]) == []
