"""Compares the branch coverage of each module with its floor, in pyproject.toml.

    python tools/check_coverage.py coverage.json [--write]

`nox -s coverage` runs it. A module that is not named there has the default floor. Coverage proves
nothing about a test. A fall of it says that code has lost its tests, or came without any.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def modules(report: Mapping[str, object]) -> dict[str, float]:
    """The coverage of each module, in percent of its lines and branches."""
    files = report["files"]
    assert isinstance(files, dict)
    found = {}
    for name, file in files.items():
        parts = Path(name).with_suffix("").parts
        inside = parts[len(parts) - parts[::-1].index("aiostream") :]
        found[".".join(inside)] = float(file["summary"]["percent_covered"])
    return found


def complaints(covered: Mapping[str, float], floors: Mapping[str, float]) -> list[str]:
    """What is below its floor, and the floors of modules that are gone."""
    default = floors["default"]
    wrong = [
        f"{name}: {percent:.1f} % is less than its floor of {floor} %"
        for name, percent in sorted(covered.items())
        if percent < (floor := floors.get(name, default))
    ]
    gone = sorted(floors.keys() - covered.keys() - {"default"})
    return wrong + [f"{name}: it has a floor, but there is no such module" for name in gone]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if a module is below its floor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="what `coverage json` wrote")
    parser.add_argument(
        "--write", action="store_true", help="print floors a little below these figures instead"
    )
    options = parser.parse_args(arguments)
    covered = modules(json.loads(options.report.read_text()))
    floors = tomllib.loads(PROJECT.read_text())["tool"]["aiostream"]["coverage-floors"]
    if options.write:
        for name, percent in sorted(covered.items()):
            print(f'"{name}" = {max(0, math.floor(percent) - 2)}')
        return 0
    for name, percent in sorted(covered.items()):
        print(f"{name:24} {percent:5.1f} %   floor {floors.get(name, floors['default'])} %")
    wrong = complaints(covered, floors)
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
