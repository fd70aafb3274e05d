"""The simulator when the system has no memory left: calls answer 2 or succeed. Nothing is lost.

`allocations.py` has the programs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simdriver import HERE, LIMIT


@pytest.fixture(scope="module")
def faulty_libc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes allocations fail. It is to be preloaded."""
    library = tmp_path_factory.mktemp("faults") / "faulty_libc.so"
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread"]
    try:
        subprocess.run(["gcc", *flags, HERE / "faulty_libc.c", "-o", library, "-ldl"], check=True)
    except FileNotFoundError:
        pytest.skip("there is no gcc here")
    return library


def run(*arguments: str, preload: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = {"LD_PRELOAD": str(preload)} if preload else {}
    return subprocess.run(
        [sys.executable, str(HERE / "allocations.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **variables},
    )


def test_each_allocation_fails_once(faulty_libc: Path) -> None:
    """A call succeeds by the reserve, or refuses and changes nothing. No object is left behind."""
    done = run("once", preload=faulty_libc)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.fullmatch(
        r"(\d+) of \d+ allocations failed: (\d+) refused, (\d+) overcome\n", done.stdout
    )
    assert found, done.stdout
    failed, refused, overcome = map(int, found.groups())
    assert failed > 350
    assert min(refused, overcome) > 0


@pytest.mark.parametrize("nth", [1, 20, 150])
def test_process_without_any_memory_ends_with_a_message(faulty_libc: Path, nth: int) -> None:
    """If the reserve is not there either, there is nothing that a call could do."""
    done = run("for-good", str(nth), preload=faulty_libc)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "")
    assert done.stderr == ("nogpu: no memory is left in the middle of a driver call\n")


def test_process_at_its_limit_goes_on(driver: None) -> None:
    """At RLIMIT_AS an enqueue answers 2. Queries and ends do not, and free memory is used again."""
    done = run("limit")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
