"""`python -m benchmarks proof --peers`: that it runs, checks answers, and names what it left out.
Never how fast anything is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benching import command
from benchmarks import engine_fronts, engine_load, engines, names, results
from commands import torch_path


def test_answers_are_compared() -> None:
    assert engine_load.is_right(b'{"score": 0.5}', 0.55)
    assert engine_load.is_right(b'{"score": 100}', 105)
    for body in (b'{"score": 0.5}', b"{}", b"x", b"[]", b'{"score": null}'):
        assert not engine_load.is_right(body, 0.7)


def test_the_table_has_a_line_for_each_server() -> None:
    row = {"peer": "one", "clients": 1, "per_second": 1234.5, "p50_ms": 1.5, "p99_ms": 2.25}
    rows = [{**row, "cpu_percent": 90.0}, {**row, "clients": 32, "cpu_percent": 99.6}]
    rows += [{**rows[0], "peer": "two"}]
    lines = engines.table(rows, {"three": "it is not installed"}).splitlines()
    figures = "1,234 1.50 2.25 {} | 1,234 1.50 2.25 {}"
    assert " ".join(lines[2].split()) == "one " + figures.format(90, 100)
    assert lines[3].split()[:5] == ["two", "1,234", "1.50", "2.25", "90"]
    assert lines[4] == "left out: three: it is not installed"


@pytest.mark.slow
def test_servers_are_measured_and_checked(driver_kind: str, tmp_path: Path) -> None:
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name)
    path = tmp_path / "engines.json"
    ways = "aiostream graphs,aiostream eager in threads,sketch graphs,to_thread graphs"
    options = ["--rounds", "1", "--seconds", "1", "--clients", "1,4", "--ways", ways]
    options += ["--json", str(path)]
    done = command(driver_kind, "proof", "--peers", *options, path=torch_path(driver_kind))
    assert done.returncode == 0, done.stdout + done.stderr
    found = results.read(path)
    assert found["left_out"] == {}
    assert [(row["peer"], row["clients"]) for row in found["rows"]] == [
        (way, clients) for way in ways.split(",") for clients in (1, 4)
    ]
    assert all(row["per_second"] > 0 for row in found["rows"])


@pytest.mark.slow
def test_fronts_and_their_parts_are_measured(driver_kind: str, tmp_path: Path) -> None:
    for name in ("granian", "starlette", "uvicorn"):
        pytest.importorskip(name)
    path = tmp_path / "fronts.json"
    ways = [*engine_fronts.FRONTS, "ASGI: answer", "RSGI: JSON", "RSGI: timeout"]
    options = ["--rounds", "1", "--seconds", "1", "--clients", "4", "--ways", ",".join(ways)]
    options += ["--json", str(path), "--markdown"]
    done = command(driver_kind, "proof", "--peers", *options, path=torch_path(driver_kind))
    assert done.returncode == 0, done.stdout + done.stderr
    found = results.read(path)
    assert found["left_out"] == {}
    assert [row["peer"] for row in found["rows"]] == ways
    assert "| `Batches` on granian, RSGI, two workers | " in done.stdout


@pytest.mark.slow
def test_an_engine_is_measured_and_checked_alone(driver_kind: str) -> None:
    pytest.importorskip("mosec")
    options = ["--rounds", "1", "--seconds", "1", "--clients", "4", "--ways", "mosec graphs"]
    done = command(driver_kind, "proof", "--peers", *options, path=torch_path(driver_kind))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out" not in done.stdout


def test_the_sets_of_ways_are_known_and_named() -> None:
    assert {*engines.SETS["fronts"], *engines.SETS["parts"]} <= engines.KNOWN.keys()
    assert {*engines.SETS["fronts"]} <= names.NAMES.keys()
    parts = len(engine_fronts.PARTS)
    assert len(engine_fronts.BY_PARTS) == 2 * parts
    assert len(engine_fronts.CONSTANT) == 2 * engine_fronts.MODEL


def test_what_cannot_be_measured_is_named(driver_kind: str) -> None:
    done = command(driver_kind, "proof", "--peers", "--ways", "nonsense")
    assert done.returncode == 2
    assert "'nonsense' is none of fronts, parts, aiostream graphs, " in done.stderr
    done = command(driver_kind, "proof", "--peers", "--ways", "mosec graphs", "--minutes", "0")
    assert done.returncode == 1
    assert "left out: mosec graphs: " in done.stdout
