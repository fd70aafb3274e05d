"""How the suite runs: the limits that hold, the tests that run alone, the slow ones, and parts."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import running
from commands import forked, forked_module


def run(folder: Path, text: str, *arguments: str) -> tuple[int, dict[str, int], str]:
    """Runs pytest on a module with this text.

    Returns:
        The exit code, the counts of the closing line, and all that was printed.
    """
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(text)
    # Without the other plugins of this environment, which take a second to import.
    plugins = [f"-p{name}" for name in ("running", "xdist.plugin", "pytest_timeout")]
    options = [*plugins, "-p", "no:cacheprovider", "-ra", *arguments]
    variables: dict[str, Any] = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    variables |= {"modules": ("pytest",), "folder": folder}
    done = forked_module("none", "pytest", *options, **variables)
    counts = re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])
    return done.returncode, {what: int(n) for n, what in counts}, done.stdout + done.stderr


HANGS = """
import time
import pytest
import running

running.GRACE = 1.0

@pytest.mark.timeout(0.3)
def test_that_no_exception_ends():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@pytest.mark.timeout(0.2)
def test_late():
    try:
        time.sleep(60)
    except BaseException:
        pass

def test_behind_it():
    pass
"""


def test_workers_go_on_without_the_process_of_a_test_that_goes_on(tmp_path: Path) -> None:
    """It shows where it was. A late test fails also if its exception was lost."""
    code, counts, text = run(tmp_path, HANGS, "-n", "1")
    assert code == 1
    assert (counts["failed"], counts["passed"]) == (2, 1), text
    assert "line 12 in test_that_no_exception_ends" in text
    assert "crashed while running 'test_it.py::test_that_no_exception_ends'" in text
    assert "and may take 0.2 s" in text


@pytest.mark.slow
def test_tests_that_run_alone_see_no_other_one(tmp_path: Path) -> None:
    text = """
import time
from pathlib import Path
import pytest

@pytest.fixture
def others(request):
    mine = Path(f"running-{request.node.name}")
    mine.touch()
    yield [path for path in Path().glob("running-*") if path != mine]
    mine.unlink()

@pytest.mark.parametrize("n", range(40))
def test_any(n, others):
    time.sleep(0.005)

@pytest.mark.alone
@pytest.mark.parametrize("n", range(15))
def test_alone(n, others):
    assert not others
    time.sleep(0.005)
    assert not [path for path in Path().glob("running-*") if "alone" not in path.name]
"""
    code, counts, printed = run(tmp_path, text, "-n", "3")
    assert code == 0, printed
    assert counts["passed"] == 55


SLOW = """
import pytest

@pytest.mark.parametrize("n", range(10))
def test_quick(n):
    pass

@pytest.mark.slow
def test_slow():
    pass
"""


def test_slow_tests_run_if_asked_for_and_parts_have_each_test_once(tmp_path: Path) -> None:
    assert run(tmp_path, SLOW, "-n", "0")[:2] == (0, {"passed": 10, "deselected": 1})
    found: list[str] = []
    for part in (1, 2):
        arguments = ("-n", "0", "--run-slow", f"--part={part}/2", "--collect-only", "-q")
        found += re.findall(r"^test_it\.py::.*", run(tmp_path, SLOW, *arguments)[2], re.MULTILINE)
    assert len(found) == 11
    assert len(set(found)) == 11


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "x/2"])
def test_parts_that_do_not_exist_are_refused(part: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 1/4"):
        running.part_of(part)


@pytest.mark.parametrize("seconds", [0.001, 1])
def test_a_fork_that_hangs_is_ended_and_the_next_one_runs(seconds: float) -> None:
    """Also if the time is up before the process has imported what it needs."""
    with pytest.raises(subprocess.TimeoutExpired):
        forked("none", "import time; time.sleep(60)", ("json",), timeout=seconds)
    assert forked("none", "print(5)", ("json",)).stdout == "5\n"
