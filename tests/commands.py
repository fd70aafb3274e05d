"""Runs programs, such as `python -m aiostream`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STAND_INS = ROOT / "tests" / "stand_ins"


def environment(driver_kind: str, *folders: Path | str, **variables: str) -> dict[str, str]:
    """The variables of a program, with folders that come first on the path."""
    path = os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else "",
        "PYTHONUNBUFFERED": "1",
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


def torch_path(driver_kind: str) -> Sequence[Path]:
    """The folders in which there is a stand-in for torch, if torch is not there."""
    is_there = driver_kind == "gpu" and find_spec("torch") is not None
    return () if is_there else (STAND_INS, ROOT)


def command(
    driver_kind: str, *arguments: str, folder: Any = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -W error -m aiostream ...`."""
    words = ("-W", "error", "-m", "aiostream", *arguments)
    return python(driver_kind, *words, folder=folder, **variables)


def succeed(driver_kind: str, *arguments: str, **environment: str) -> str:
    """Runs a command that must end with code 0 and nothing on stderr. Returns what it printed."""
    done = command(driver_kind, *arguments, **environment)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return done.stdout
