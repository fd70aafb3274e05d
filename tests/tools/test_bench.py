"""`python -m aiostream bench`, the short comparison: that it runs, never how fast anything is."""

from __future__ import annotations

import importlib.util
import json
import re
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
        assert len(cells) == 10  # lateness or a rate, and CPU, of four lengths and of many streams
        assert all(re.fullmatch(r"-?[\d,]+", cell) for cell in cells[::2])
        assert all(re.fullmatch(r"\d+%", cell) for cell in cells[1::2])
        assert int(cells[8].replace(",", "")) > 0
    assert re.search(r"^At 20 ms aiostream is -?\d+ us late, and to_thread ", done.stdout, re.M)
    assert re.search(r"^It uses \d+% of the CPU of sleep\(0\).$", done.stdout, re.M)
    assert max(map(len, lines)) <= 80
    assert "Lower is better for late and CPU" in done.stdout
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
        assert list(cells) == ["0.3 ms", "1 ms", "5 ms", "20 ms", "4 streams"]
        assert all(len(pair) == 2 for pair in cells.values())
        assert cells["4 streams"][0] > 0
    assert found["verdict"].startswith("At 20 ms aiostream is ")


def test_a_loop_that_is_not_installed_is_named(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["bench", "--loop", "uvloop"])
    assert "uvloop: it is not installed; `pip install uvloop`" in capsys.readouterr().err


def test_a_driver_that_fails_is_said(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fails() -> int:
        raise aiostream.NoDriverError("there is no CUDA driver here")

    internals.replace_driver_version(monkeypatch, fails)
    assert internals.run_bench("asyncio", quick=True) == 1
    assert "did not get through: there is no CUDA driver here" in capsys.readouterr().err


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
    """The ledger's fixture looks."""
    assert internals.run_bench("asyncio", quick=True) == 0
