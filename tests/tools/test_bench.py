"""`python -m aiostream bench`, the short comparison: that it runs, never how fast anything is."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import aiostream
import internals
from aiostream.__main__ import main
from commands import command
from support import succeed


@pytest.mark.parametrize(
    "loop",
    ["asyncio", *(pytest.param(each, marks=pytest.mark.slow) for each in ("uvloop", "trio"))],
)
def test_each_way_has_a_line_of_figures(driver_kind: str, loop: str) -> None:
    done = command(driver_kind, "bench", "--quick", "--loop", loop)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{aiostream.Device(0).name}, CUDA ")
    assert lines[0].endswith(f", {loop}")
    is_simulated = driver_kind == "simulator"
    assert ("On the simulator: these figures say nothing" in done.stdout) == is_simulated
    for name in internals.BENCH_WAYS:
        (line,) = (line for line in lines if line.startswith(f"{name}  "))
        cells = line.removeprefix(name).split()
        assert len(cells) == 8  # lateness and CPU, of four lengths
        assert all(re.fullmatch(r"-?[\d,]+", cell) for cell in cells[::2])
        assert all(re.fullmatch(r"\d+%", cell) for cell in cells[1::2])
    # On a busy machine a wait may be so late that its figure needs more room.
    assert max(len(line) for line in lines if not re.search(r"\d\d\d,\d", line)) <= 60
    assert "Lower is better" in done.stdout
    assert "python -m benchmarks" in done.stdout


@pytest.mark.slow
def test_figures_for_scripts(driver_kind: str) -> None:
    done = command(driver_kind, "bench", "--quick", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["loop"], found["simulator"]) == ("asyncio", driver_kind == "simulator")
    assert found["device"] == aiostream.Device(0).name
    assert tuple(found["ways"]) == internals.BENCH_WAYS
    for cells in found["ways"].values():
        assert list(cells) == ["0.3 ms", "1 ms", "5 ms", "20 ms"]
        assert all(len(pair) == 2 for pair in cells.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ModuleNotFoundError(\"No module named 'uvloop'\")", "No module named 'uvloop'"),
        ("raise AttributeError('too old')", "too old"),
    ],
    ids=["missing", "raises at import"],
)
def test_a_loop_that_cannot_be_imported_is_named(
    driver_kind: str, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "uvloop.py").write_text(text)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = command(driver_kind, "bench", "--loop", "uvloop", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m aiostream bench ")
    assert f"--loop uvloop: {said}: run `pip install -U uvloop`\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_driver_that_fails_is_said(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fails() -> int:
        raise aiostream.NoDriverError("there is no CUDA driver here")

    internals.replace_driver_version(monkeypatch, fails)
    assert main(["bench", "--quick"]) == 1
    said = capsys.readouterr().err
    assert said == "python -m aiostream bench: there is no CUDA driver here\n"


@pytest.mark.parametrize("command", ["bench", "demo"])
def test_missing_bindings_are_said_in_one_line(driver_kind: str, command: str) -> None:
    printed = succeed(
        driver_kind,
        f"""
        import contextlib, io, sys

        class WithoutBindings:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "cuda":
                    raise ModuleNotFoundError("No module named 'cuda'", name="cuda")

        sys.meta_path.insert(0, WithoutBindings())
        from aiostream.__main__ import main
        with contextlib.redirect_stderr(io.StringIO()) as said:
            print(main(["{command}"]))
        print(len(said.getvalue().splitlines()), said.getvalue())
        """,
    )
    assert "1\n1 NVIDIA's bindings are missing (No module named 'cuda')" in printed
    assert "pip install 'cuda-bindings" in printed


def test_what_it_opens_is_closed(driver_kind: str) -> None:
    """`cuda_ledger` sees what is open."""
    assert internals.run_bench("asyncio", quick=True) == 0
