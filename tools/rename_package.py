"""Renames the import package in all files of the clone, for a release under another name.

    python tools/rename_package.py NEWNAME [--distribution NEWNAME-cuda]
    pip install -e ./driver -e '.[test]' --group dev
    git add -A && pre-commit run --all-files

It changes the name wherever it stands: imports, the native module, entry points, the pytest plugin
and its options, metrics, documents, and the variables `AIOSTREAM_*`, which become `NEWNAME_*`. The
package nogpu keeps its name. The hooks put imports and lines in order again, make the generated
documents, and name the lines that a longer name makes too long.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "aiostream"
DISTRIBUTION = "aiostream-cuda"


def rename(root: Path, files: Iterable[str], package: str, distribution: str) -> None:
    """Changes the files of a clone, and moves the package."""
    names = {  # the longer ones first
        DISTRIBUTION: distribution,
        DISTRIBUTION.replace("-", "_"): distribution.replace("-", "_"),
        PACKAGE: package,
        PACKAGE.upper(): package.upper(),
    }
    new = {old.encode(): name.encode() for old, name in names.items()}
    pattern = re.compile(b"|".join(new))
    for path in map(root.joinpath, files):
        before = path.read_bytes()
        if (after := pattern.sub(lambda old: new[old[0]], before)) != before:
            path.write_bytes(after)
    for name in (PACKAGE, f"{PACKAGE}_pytest.py"):
        (root / "src" / name).rename(root / "src" / name.replace(PACKAGE, package))


def main(arguments: Sequence[str] | None = None) -> int:
    """Renames the package in this clone; returns 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="of the import package, in lower case")
    parser.add_argument("--distribution", help="what pip installs; default: NAME-cuda")
    options = parser.parse_args(arguments)
    if not re.fullmatch("[a-z][a-z0-9_]*", options.name):
        parser.error(f"{options.name!r} is no name of a package in lower case")
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=ROOT, check=True, stdout=subprocess.PIPE)
    files = listed.stdout.decode().split("\0")[:-1]
    rename(ROOT, files, options.name, options.distribution or f"{options.name}-cuda")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
