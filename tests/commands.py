"""Runs programs, such as `python -m aiostream`, each in a process of its own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forks import Forks

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
STAND_INS = TESTS / "stand_ins"
OF_A_SCRIPT = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": ""}
"""The variables of scripts and of what is forked."""

READ_AT_THE_START = ("PYTHON", "LD_", "AIOSTREAM_TRACE", "AIOSTREAM_BLOCKING")
"""How the names of variables begin that only a new process reads."""

FIRST_IMPORTS = ("asyncio", "anyio", "aiostream", "cuda.bindings.driver")
"""What a command or a first program imports."""


def environment(driver_kind: str, *folders: Path | str, **variables: str) -> dict[str, str]:
    """The variables of a program, with folders that come first on the path."""
    path = os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else "",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "100",  # pytest-xdist sets 80
        **({"PYTHONPATH": path} if path else {}),
        **variables,
    }


def python(
    driver_kind: str,
    *arguments: str,
    folder: Any = None,
    path: Any = (),
    timeout: Any = 110,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs `python ...` on the driver under test.

    Args:
        driver_kind: With "none", the program chooses the driver.
        folder: Where it runs.
        path: Folders that come first on its path.
        timeout: Seconds.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(driver_kind, *path, **variables),
        cwd=folder,
        check=False,
    )


@functools.cache
def _forks(driver_kind: str, modules: tuple[str, ...]) -> Forks:
    return Forks(modules, environment(driver_kind, TESTS, **OF_A_SCRIPT))


def forked(
    driver_kind: str,
    text: str,
    modules: tuple[str, ...],
    *,
    folder: Any = None,
    timeout: Any = 110,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python text in a fork of a process that has imported these modules: see `forks.py`."""
    unread = [name for name in variables if name.startswith(READ_AT_THE_START)]
    assert not unread, f"a fork begins after {unread} were read"
    variables = environment(driver_kind, TESTS, **OF_A_SCRIPT, **variables)
    try:
        return _forks(driver_kind, modules).run(text, folder or Path.cwd(), variables, timeout)
    except BaseException:
        _forks.cache_clear()
        raise


def forked_module(
    driver_kind: str,
    name: str,
    *arguments: str,
    modules: tuple[str, ...],
    folder: Any = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m name ...` in such a fork."""
    text = f"import runpy, sys; sys.argv = {['', *arguments]}\n"
    text += f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    return forked(driver_kind, text, modules, folder=folder, **variables)


def torch_path(driver_kind: str) -> Sequence[Path]:
    """The folders in which there is a stand-in for torch, if torch is not there."""
    is_there = driver_kind == "gpu" and find_spec("torch") is not None
    return () if is_there else (STAND_INS, ROOT)


def command(
    driver_kind: str, *arguments: str, folder: Any = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -W error -m aiostream ...`, in a fork unless a variable is read at the start."""
    if any(name.startswith(("PYTHON", "AIOSTREAM")) for name in variables):
        words = ("-W", "error", "-m", "aiostream", *arguments)
        return python(driver_kind, *words, folder=folder, **variables)
    options: dict[str, Any] = {"modules": FIRST_IMPORTS, "folder": folder, **variables}
    return forked_module(driver_kind, "aiostream", *arguments, **options)


def succeed(driver_kind: str, *arguments: str, **environment: str) -> str:
    """Runs a command that must end with code 0 and nothing on stderr. Returns what it printed."""
    done = command(driver_kind, *arguments, **environment)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return done.stdout
