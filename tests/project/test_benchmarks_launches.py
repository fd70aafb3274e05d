"""`python -m benchmarks launches`: that it runs. Never how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import launches, launching

QUICK = ["--ms", "0.05", "--streams", "2", "--rounds", "1", "--seconds", "0.3"]


@pytest.mark.simulator_only("torch's layers need torch")
@pytest.mark.parametrize("kind", ["tasks", "server"])
def test_each_way_is_measured(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "server":
        pytest.importorskip("uvicorn")
    monkeypatch.setenv("AIOSTREAM_SIMULATOR", "1")
    to = tmp_path / "rounds.json"
    more = ["--server", "--connections", "2"] if kind == "server" else []
    for _ in range(3):  # a busy machine may do nothing in so short a window
        assert launches.main([*QUICK, *more, "--json", str(to)]) == 0
        found = json.loads(to.read_text())
        ways = launching.SERVER_WAYS if kind == "server" else launching.WAYS
        assert [each["way"] for each in found] == list(ways)
        if all(each["rounds"][0]["per_second"] > 0 for each in found):
            break
    assert all(each["rounds"][0]["per_second"] > 0 for each in found)
    printed = capsys.readouterr().out
    assert ("/ping p99 ms" if kind == "server" else "timer p99 ms") in printed
