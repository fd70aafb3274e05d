"""`python -m aiostream blocking -- app.py`: runs a program, and says what has blocked its loops."""

from __future__ import annotations

import os
import runpy
import sys

from aiostream import blocking


def run(program: list[str], action: str, threshold: float) -> None:
    """Runs a program as Python would, with what blocks its loops watched.

    Args:
        program: A file, or `-m` and a module, with its arguments.
        action: As for `blocking.install`. Worker processes that import aiostream get it too.
        threshold: In seconds.
    """
    os.environ[blocking.VARIABLE] = f"{action}:{threshold}"
    try:
        blocking.begin_from_environment(always_says=True)
    except (RuntimeError, ValueError) as problem:
        raise SystemExit(f"python -m aiostream blocking: {problem}") from None
    if program[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
