"""The benchmark of several GPUs: each way completes work, in one round."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiostream import Device
from benchmarks.devices import counts_of, measure, table

ROOT = Path(__file__).parents[1]


def test_the_counts_are_the_powers_of_two_and_all() -> None:
    assert [counts_of(gpus) for gpus in (1, 2, 3, 4, 8)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4],
        [1, 2, 4, 8],
    ]


class SlowChild:
    """Stands for a process in which work ends only in windows of a second and more."""

    def ask(self, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
        return {"beyond": [0.5] if asked["window"] >= 1 else [], "cpu": 0.0}


def test_a_window_in_which_nothing_ended_is_repeated() -> None:
    """And its rate is that of the longer one."""
    child: Any = SlowChild()
    assert measure([child], [{"window": 0.25}])["rate"] == 1.0
    child.ask = lambda asked, seconds: {"beyond": [], "cpu": 0.0}
    with pytest.raises(SystemExit, match="in other use"):
        measure([child], [{"window": 0.25}])


def measured(driver_kind: str, folder: Path, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    """What it printed, and its rows."""
    for name in ("uvloop", "uvicorn", "starlette"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    found = folder / "rows.json"
    variables = {**os.environ, "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else ""}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.devices", "--quick", "--json", found, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(found.read_text())
    assert all(row["rate"] > 0 and row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in rows)
    assert table(rows) in done.stdout
    return done.stdout, rows


@pytest.mark.slow
def test_several_processes_share_a_gpu(driver_kind: str, tmp_path: Path) -> None:
    _, rows = measured(driver_kind, tmp_path, "--share", "2")
    assert [row["way"] for row in rows] == ["1 on this GPU", "2 on this GPU"] * 2


@pytest.mark.slow
def test_each_way_completes_work_on_each_gpu(driver_kind: str, tmp_path: Path) -> None:
    gpus = min(2, Device.count())
    out, rows = measured(driver_kind, tmp_path, "--gpus", str(gpus))
    assert {(row["gpus"], row["way"]) for row in rows} == {
        (1, "one loop"),
        *((gpus, way) for way in ("one loop", "a process each") if gpus > 1),
    }
    assert len({row["load"] for row in rows}) == 3
    assert out.startswith(f"{gpus} of ")
    of_requests = [row for row in rows if row["workers"]]
    assert {row["load"] for row in of_requests} == {rows[-1]["load"]}
    for row in of_requests:
        assert len(row["workers"]) <= (row["gpus"] if row["way"] == "a process each" else 1)
        assert row["cores"] is None


@pytest.mark.parametrize(
    "arguments",
    ["--share 1", "--share 100", "--share 2 --only requests", "--gpus -1", "--rounds 0"],
)
def test_bad_options_are_refused(arguments: str) -> None:
    command = [sys.executable, "-m", "benchmarks.devices", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "error: --" in done.stderr
