"""`python -m benchmarks proof`: that it runs, checks answers, and reads what wrk prints. Never how
fast anything is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benching import command
from benchmarks import proof

PRINTED = """Running 2s test @ http://127.0.0.1:8123
  1 threads and 32 connections
  Latency Distribution
     50%   18.01ms
     75%   19.20ms
     90%   21.00ms
     99%    {slow}
  3490 requests in 2.00s, 0.70MB read
{more}Requests/sec:   1745.21
"""


@pytest.mark.parametrize(
    ("slow", "ms"), [("24.55ms", 24.55), ("1.02s ", 1020), ("833.00us", 0.833)]
)
def test_figures_of_wrk_are_read(slow: str, ms: float) -> None:
    found = proof.parsed(PRINTED.format(slow=slow, more=""))
    assert found == {"per_second": 1745.21, "p99_ms": pytest.approx(ms)}


@pytest.mark.parametrize(
    "more",
    ["  Non-2xx or 3xx responses: 3\n", "  Socket errors: connect 0, read 2, write 0, timeout 0\n"],
)
def test_errors_that_wrk_reports_are_errors(more: str) -> None:
    with pytest.raises(RuntimeError, match=more.strip()):
        proof.parsed(PRINTED.format(slow="1.00ms", more=more))


def test_answers_are_compared() -> None:
    right = {"text": 3, "embedding": [1.0, 2.0]}
    assert proof.is_right(right, 3, [1.0, 2.05])
    for text, expected in ((4, [1.0, 2.0]), (3, [1.0, 2.2]), (3, [1.0]), (3, [1.0, 2.0, 3.0])):
        assert not proof.is_right(right, text, expected)


@pytest.mark.slow
def test_the_proof_measures_and_draws_all_four_ways(driver_kind: str, tmp_path: Path) -> None:
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    pytest.importorskip("matplotlib")
    path = tmp_path / "proof.json"
    options = ("--rounds", "1", "--seconds", "1", "--connections", "4")
    figure = ("--figure", str(tmp_path / "here"))
    done = command(driver_kind, "proof", *options, "--json", str(path), *figure)
    assert done.returncode == 0, done.stderr
    assert "answers checked, all right" in done.stdout
    found = json.loads(path.read_text())
    assert found["simulator"] == (driver_kind == "simulator")
    assert [row["peer"] for row in found["rows"]] == list(proof.WAYS)
    for row in found["rows"]:
        assert min(row["per_second"], row["own_per_second"], row["checked"]) > 0
        assert min(row["p99_ms"], row["health_p99_ms"], row["cpu_ms"]) > 0
    drawn = {each.name for each in tmp_path.glob("*.svg")}
    assert drawn == {"here-proof.svg", "here-proof-dark.svg"}
