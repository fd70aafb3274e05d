"""Writes the table of functions in `FUNCTIONS.md`, from the simulator's own.

That is `functions.h` and `lacking.h`.

    python make_functions.py

`tests/test_sim_control.py` fails if the page is not what it writes.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent / "FUNCTIONS.md"
FOLDER = Path(__file__).parent / "src/nogpu/simulator"
HEAD = "| functions | simulated | answer 801 |\n|---|---|---|\n"


def functions() -> dict[str, tuple[list[str], list[str]]]:
    """The names of simulated functions and of lacking ones, by the first word of the name."""
    groups: dict[str, tuple[list[str], list[str]]] = {}
    table = "".join((FOLDER / name).read_text() for name in ("functions.h", "lacking.h"))
    rows = re.findall(r"^(CALL|LACK)\((\w+),", table, re.MULTILINE)
    for kind, name in sorted(rows, key=lambda row: row[1]):
        word = re.match(r"cu(?:[A-Z]+(?![a-z])|[A-Z][a-z]*)", name)
        assert word is not None
        simulated, lacking = groups.setdefault(word[0], ([], []))
        (simulated if kind == "CALL" else lacking).append(name)
    return groups


def page() -> str:
    """The page with a fresh table: what follows the table's head to the end."""
    text = PAGE.read_text()
    rows = [
        f"| `{word}*` | {', '.join(simulated) or '-'} | {', '.join(lacking) or '-'} |"
        for word, (simulated, lacking) in sorted(functions().items())
    ]
    return text[: text.index(HEAD) + len(HEAD)] + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
