"""Compiles C for the tests, with the files of the library's engine, and runs what comes of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support import LIMIT

PROGRAMS = Path(__file__).parent / "native"
FAULTY_LIBC = Path(__file__).parents[1] / "driver" / "tests" / "faulty_libc.c"
ENGINE = PROGRAMS.parents[1] / "src" / "aiostream" / "native" / "engine"


def run_command(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, with more variables in its environment."""
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **variables},
    )


def gcc(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Compiles or links, and skips the test where there is no gcc.

    Args:
        arguments: Flags and files. The headers of the engine are found in any case.
        check: Whether it must succeed.
    """
    # Some systems' gcc fortifies by itself. glibc then ends a program that jumps between stacks,
    # as explore.h does from thread to thread.
    options = ["-std=gnu11", "-pthread", "-U_FORTIFY_SOURCE"]
    try:
        done = run_command("gcc", *options, *arguments, f"-I{ENGINE}")
    except FileNotFoundError:
        pytest.skip("there is no gcc here")
    assert done.returncode == 0 or not check, done.stderr
    return done


def faulty_libc(folder: Path) -> Path:
    """Compiles what makes allocations, descriptors and threads fail. It is to be preloaded."""
    library = folder / "faulty_libc.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    gcc(*flags, FAULTY_LIBC, "-o", library, "-ldl")
    return library
