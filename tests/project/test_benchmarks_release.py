"""`python -m benchmarks release`: its parts, and what it does not measure again.

Never how fast anything is. `test_figures.py` tests the pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benching import command
from benchmarks import pages, release, results, torch_ways
from commands import torch_path

Measured = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def measured(driver_kind: str, tmp_path: Path) -> Measured:
    """Runs it, and returns what it has printed and the file."""
    file = tmp_path / "release.json"

    def run(*options: str) -> tuple[str, dict[str, Any]]:
        known = ("release", "--quick", "--json", str(file))
        done = command(driver_kind, *known, *options, path=torch_path(driver_kind))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, results.read(file) if file.exists() else {}

    return run


def test_a_run_goes_on_where_another_has_ended(measured: Measured, tmp_path: Path) -> None:
    printed, found = measured("--parts", "costs", "--commit", "0123456789")
    assert "1 settings are left" in printed
    assert {row["set"] for row in found["rows"]} == {"costs"}
    assert all(len(row["windows"]) == 2 and row["cpu_us"] > 0 for row in found["rows"])
    assert (found["commit"], list(found["done"])) == ("0123456789", ["costs"])
    printed, again = measured("--parts", "costs,streams", "--commit", "0123456789", "--for", "1")
    assert "1 settings are left" in printed
    assert "no time is left for streams" in printed
    assert again["rows"] == found["rows"]
    file = tmp_path / "release.json"
    file.write_text(file.read_text().replace("0123456789", "9876543210"))
    with pytest.raises(AssertionError, match="has another commit: 9876543210, and not 0123456789"):
        measured("--parts", "costs", "--commit", "0123456789")
    _, later = measured("--parts", "costs", "--commit", "0123456789", "--again")
    assert (later["commit"], later["done"]["costs"]["commit"]) == ("9876543210", "0123456789")
    assert "commit 01234567." in pages.where(later, "costs")
    assert "commit 01234567." in pages.where(later)


def test_what_fails_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver_kind: str
) -> None:
    def fails(_: release.Release) -> list[dict[str, Any]]:
        raise RuntimeError("a clock has stopped")

    def parts(*_: Any) -> list[release.Setting]:
        return [release.Setting("costs", "costs", 1, fails)]

    monkeypatch.setenv("AIOSTREAM_SIMULATOR", "1" if driver_kind == "simulator" else "")
    monkeypatch.setitem(release.PARTS, "costs", parts)
    file = tmp_path / "release.json"
    assert release.main(["--parts", "costs", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["done"] == {}
    (entry,) = found["not_run"]
    assert (entry["set"], entry["reason"]) == ("costs", "RuntimeError: a clock has stopped")


def test_all_of_it_takes_15_minutes() -> None:
    settings = [each for part in release.PARTS.values() for each in part(False, ("uvloop",))]
    assert 14 * 60 < sum(each.seconds for each in settings) < 16 * 60
    assert max(each.seconds for each in settings) < 300
    assert len({each.title for each in settings}) == len(settings)


@pytest.mark.slow
def test_each_part_has_rows_for_each_way(measured: Measured, tmp_path: Path) -> None:
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name)
    _, found = measured()
    ways = {
        part: {row["peer"] for row in found["rows"] if row["set"] == part} for part in release.PARTS
    }
    assert ways["waits"] == set(release.WAITS)
    assert {"pool run", "ctypes", "cuda.core"} <= ways["peers"]
    assert ways["server"] >= set(release.SERVER)
    assert ways["torch"] >= set(torch_ways.WAYS)
    assert ways["launches"] == set(release.LAUNCHES)
    assert "Steps, ahead=1" in ways["steps"]
    assert ways["engines"] == set(release.ENGINES[2:4])
    shown = command("none", "release", "--show", "--json", str(tmp_path / "release.json"))
    assert "| **captured, 32 clients** |" in shown.stdout, shown.stderr
