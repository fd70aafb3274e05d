"""`python -m aiostream examples`: lists the example programs, and copies those that you name."""

from __future__ import annotations

import sys
from pathlib import Path


def run(names: list[str]) -> int:
    """Lists the examples, or copies some of them to the current folder. Returns the exit code."""
    folder = Path(__file__).with_name("examples")
    if not folder.exists():  # in an editable installation
        folder = Path(__file__).parents[3] / "examples"
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    for name in names:
        if name not in found:
            print(f"There is no example {name}: there are {', '.join(found)}", file=sys.stderr)
            return 1
        with open(f"{name}.py", "x", encoding="utf-8") as copy:
            copy.write(found[name].read_text(encoding="utf-8"))
        print(f"{name}.py")
    for name, path in found.items() if not names else ():
        docstring = path.read_text(encoding="utf-8").split('"""')[1]
        print(f"{name}\n  {docstring.splitlines()[0]}")
    return 0
