"""`python -m benchmarks compare`: an older library next to this one, and what is marked."""

from __future__ import annotations

import itertools
import math
import random
import re
import time
import zipfile
from pathlib import Path

import pytest

import aiostream
from benching import pack_wheel
from benchmarks import compare, runner
from benchmarks.compare import NEW, OLD, Comparison
from support import FULL

SPEEDS: dict[compare.Cell, compare.Values] = {
    ("latency", "1 ms", "median, us"): {OLD: [20.0] * 8, NEW: [30.0] * 8},
    ("mixed", "16 streams", "per second"): {OLD: [100.0] * 8, NEW: [1_000.0] * 8},
    ("mixed", "16 streams", "cores"): {OLD: [0.0, 1.0] * 4, NEW: [1.0, 0.0] * 4},
    ("mixed", "16 streams", "p99, us"): {OLD: [], NEW: [1.0] * 8},
}


@pytest.fixture
def older(tmp_path: Path, driver_kind: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIOSTREAM_SIMULATOR", "1" if driver_kind == "simulator" else "")
    if not FULL:
        monkeypatch.setattr(compare, "LENGTHS", compare.LENGTHS[-3:-1])
    return pack_wheel(tmp_path)


BROKEN = "async def broken(self): raise ValueError('no')\nStream.synchronize_async = broken"


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", BROKEN], ids=["works", "fails later"])
def test_both_libraries_are_measured_in_two_rounds(
    more: str, older: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one goes on if the other fails."""
    with runner.unpacked(pack_wheel(tmp_path, more)) as folder:
        compare.compared(folder, older.name, ["latency"], time.monotonic())
    lines = capsys.readouterr().out.splitlines()
    version = f"{aiostream.__version__} from"
    assert lines[0] == f"older: {version} {folder}/aiostream/__init__.py, of {older.name}"
    assert lines[1] == f"new: {version} {aiostream.__file__}"
    table = [line for line in lines if line.startswith("latency, ")]
    assert len(table) == len(compare.LENGTHS)
    not_run = [line for line in lines if line.startswith("not run")]
    if more:
        assert not_run == ["not run: older library, latency: aiostream auto: ValueError: no"]
        assert all(re.match(r"latency, \d+ ms: median, us +- +[\d,.]+ \(", line) for line in table)
        return
    assert all(line.count(" to ") == 2 and "%" in line for line in table)
    assert any("of 2 rounds" in line for line in lines)
    assert "These are too few rounds for an interval, so nothing can be marked." in lines
    assert not not_run


@pytest.mark.slow
def test_the_table_of_all_measures_has_at_most_60_lines(older: Path) -> None:
    with runner.unpacked(older) as folder:
        comparison = Comparison(folder, list(compare.MEASURES), "asyncio", lambda line: None)
        comparison.run(time.monotonic(), least=1)
    assert comparison.not_run == {}
    assert {measure for measure, _, _ in comparison.cells} == compare.MEASURES.keys()
    assert all(values[OLD] and values[NEW] for values in comparison.cells.values())
    assert 40 < len(compare.lines(comparison.cells)) <= 58  # and two of headings


def test_a_library_that_cannot_be_used_is_named(tmp_path: Path, older: Path) -> None:
    path = tmp_path / "broken.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("aiostream/__init__.py", "raise ImportError('of another Python')")
        archive.writestr("aiostream/_native.so", "")
    with (
        runner.unpacked(path) as folder,
        pytest.raises(RuntimeError, match="the worker's process has ended, exit code 1"),
    ):
        Comparison(folder, ["latency"], "asyncio")


def test_another_library_than_the_wheels_is_refused(tmp_path: Path, older: Path) -> None:
    with pytest.raises(RuntimeError, match=r"was imported, and not the aiostream in"):
        Comparison(str(tmp_path), ["latency"], "asyncio")


def test_a_wheel_of_another_project_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "aiostream-0.7.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("aiostream/__init__.py", "")
    with pytest.raises(ValueError, match="no aiostream-cuda"), runner.unpacked(path):
        pass


def test_cells_outside_of_their_spread_are_marked() -> None:
    slower, faster, same, lacking = compare.lines(SPEEDS)
    assert slower[1:] == ["20 (20 to 20)", "30 (30 to 30)", "+50.0%", "+50.0% to +50.0%", "WORSE"]
    assert faster[-1] == "BETTER"
    assert same[-1] == ""
    assert lacking[1:] == ["-", "1 (1 to 1)", "", "", ""]


def test_the_rank_is_that_of_mann_and_whitney() -> None:
    """Each order of the values is as likely as any other, so counting them all is the proof."""
    for ours, theirs, chance in ((4, 4, 0.06), (5, 3, 0.1), (4, 6, 0.01), (2, 2, 0.05)):
        orders = list(itertools.combinations(range(ours + theirs), ours))
        below = [sum(at - k for k, at in enumerate(places)) for places in orders]
        allowed = chance / 2 * len(orders)
        expected = max(
            (u + 1 for u in range(ours * theirs) if sum(b <= u for b in below) <= allowed),
            default=0,
        )
        assert compare.rank(ours, theirs, chance) == expected
    assert math.comb(14, 7) * compare.FALSE_ALARMS / 55 / 2 > 1  # 7 rounds can mark
    assert compare.rank(7, 7, compare.FALSE_ALARMS / 55) == 1
    assert compare.rank(6, 6, compare.FALSE_ALARMS / 55) == 0


def test_a_version_next_to_itself_is_seldom_marked() -> None:
    generator = random.Random(1)
    marked = 0
    for _ in range(100):
        drift = [generator.lognormvariate(0, 1) for _ in range(10)]
        cells: dict[compare.Cell, compare.Values] = {
            ("latency", str(number), "median, us"): {
                which: [each * generator.lognormvariate(0, 0.3) for each in drift]
                for which in (OLD, NEW)
            }
            for number in range(20)
        }
        marked += any(line[-1] for line in compare.lines(cells))
    assert marked <= 100 * compare.FALSE_ALARMS
