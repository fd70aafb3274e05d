"""`python -m aiostream examples`: lists the example programs, and copies those that you name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from aiostream._tools import terminal


def run(names: list[str]) -> int:
    """Lists the examples, or copies some of them to the current folder. Returns the exit code."""
    folder = Path(__file__).with_name("examples")
    if not folder.exists():  # in an editable installation
        folder = Path(__file__).parents[3] / "examples"
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    names = list(dict.fromkeys(name.removesuffix(".py") for name in names))
    for name in names:  # before the first one is copied
        if name not in found:
            print(f"There is no example {name!r}: there are {', '.join(found)}", file=sys.stderr)
            return 1
        if os.path.lexists(f"{name}.py"):
            print(f"{name}.py is there already. Nothing was copied.", file=sys.stderr)
            return 1
    for name in names:
        with open(f"{name}.py", "x", encoding="utf-8") as copy:
            copy.write(found[name].read_text(encoding="utf-8"))
        print(f"{name}.py")
    for name, path in found.items() if not names else ():
        docstring = path.read_text(encoding="utf-8").split('"""')[1]
        print(name, terminal.wrapped(docstring.splitlines()[0], "  ", "  "), sep="\n")
    return 0
