"""`python -m aiostream blocking -- app.py`: runs a program, and says what has blocked its loops."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from importlib.util import find_spec

from aiostream import blocking


def run(program: list[str], action: str, threshold: float) -> None:
    """Runs a program as Python would, with what blocks its loops watched.

    Args:
        program: A file, or `-m` and a module, with its arguments.
        action: As for `blocking.install`. Worker processes that import aiostream get it too.
        threshold: In seconds.
    """
    kind = "module" if program[0] == "-m" else "file"
    sys.argv = program[kind == "module" :]
    name = sys.argv[0]
    if kind == "module":
        sys.path.insert(0, os.getcwd())
        package = name.partition(".")[0]  # to find what is in it would import it
        is_there = package != "" and find_spec(package) is not None
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(name))
        is_there = os.path.exists(name)
    if not is_there:
        _refuse(f"there is no {kind} {name!r}", 2)
    os.environ[blocking.VARIABLE] = f"{action}:{threshold}"
    try:
        blocking.begin_from_environment(always_says=True)
    except RuntimeError as problem:
        _refuse(problem, 1)
    except ValueError:
        _refuse(f"the threshold is a number of seconds from 0 on, not {threshold}", 2)
    try:
        if kind == "module":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except (ImportError, OSError) as problem:
        *_, (last, _) = traceback.walk_tb(problem.__traceback__)
        if last.f_globals.get("__name__") != "runpy":
            raise  # the program's own
        _refuse(problem, 2)  # such as a folder without a `__main__.py`


def _refuse(problem: object, code: int) -> None:
    print(f"python -m aiostream blocking: {problem}", file=sys.stderr)
    raise SystemExit(code) from None
