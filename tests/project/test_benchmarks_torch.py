"""The benchmark's torch server: every way is served and checked. There may be a stand-in."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from benching import new_runner, quick_run
from benchmarks import plan, server, serving, torch_server
from commands import STAND_INS, environment, torch_path

# ------------------------------------------------------------------------------------------- a run


@pytest.mark.slow
def test_each_way_is_served_printed_and_judged(driver_kind: str, tmp_path: Path) -> None:
    printed, results = quick_run(driver_kind, tmp_path, "torch", path=torch_path(driver_kind))
    assert results["not_run"] == []
    assert {row["peer"] for row in results["rows"]} == {*torch_server.PEERS, server.PING}
    for row in results["rows"]:
        kind = (row["set"], row["measure"], row["load"])
        assert kind == ("torch", "torch", torch_server.EAGER.name)
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] < 10e6
        assert row["beyond"]["p99_us"] == row["p99_us"]
        assert row["samples"] > 0
        for name in ("uvicorn ", "FastAPI ", "torch "):
            assert name in row["server"]
    for words in ("A torch server's requests", "\n  batches in threads  ", "  to_thread 256  "):
        assert words in printed
    assert re.search("^eager, 32 clients *$", printed, re.MULTILINE)


# ---------------------------------------------------------------------------------------- failures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "peers", "reasons"),
    [
        (
            "KERNEL = 500_000\nEvent.query = lambda self: True",
            {server.PING, "run"},
            {"sleep 1 ms as a torch server": "is wrong: read too early"},
        ),
        (
            "cuda.is_available = lambda: False",
            set(),
            dict.fromkeys(
                ["sleep 1 ms as a torch server", "run as a torch server"],
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
    ways, load = ("run", "sleep 1 ms"), torch_server.EAGER
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
    job = torch_server.TorchServer(("asyncio",), torch_server.PEERS, load=torch_server.EAGER)
    with (
        closing(new_runner(driver_kind, "asyncio")) as bench_runner,
        pytest.raises(RuntimeError, match=r"^no_such_library is not installed: pip install torch"),
    ):
        job.run(bench_runner)


# -------------------------------------------------------------------------------------------- plan


def test_the_torch_server_takes_minutes_and_only_on_request() -> None:
    assert "torch" not in plan.MEASURES
    jobs = plan.jobs("torch", ("uvloop",), torch_server.PEERS, plan.Cut())
    assert [job.title for job in jobs] == [
        "torch, eager, 32 clients",
        "torch, captured, 32 clients",
    ]
    assert 150 < sum(job.seconds() for job in jobs) < 250
    (quick,) = plan.jobs("torch", ("uvloop",), torch_server.PEERS, plan.Cut(quick=True))
    assert quick.title == jobs[0].title
    assert len({serving.path_of(name) for name in torch_server.PEERS}) == len(torch_server.PEERS)
