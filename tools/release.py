"""Checks that a version can be published.

    python tools/release.py [v0.1.0] [--dist dist]

`nox -s release -- v0.1.0` installs twine and runs it. Without a tag it is a dry run, in which only
twine can fail: what would stop a release is printed as a warning.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "github.example"
CPUS = ("x86_64", "aarch64")
# The abi3 wheels, and those of the free-threaded Python, for each processor.
WHEELS = [
    f"{python}-manylinux*_{cpu}.whl" for python in ("cp311-abi3", "cp314-cp314t") for cpu in CPUS
]
# Those of driver/ serve every Python.
NOGPU_WHEELS = [f"py3-none-manylinux*_{cpu}.whl" for cpu in CPUS]


def complaints(root: Path, dist: Path, tag: str | None) -> list[str]:
    """Returns what stands in the way of a release, one line for each thing."""
    found = []
    source = (root / "src/aiostream/__init__.py").read_text()
    version = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)[0]
    if tag not in (None, f"v{version}"):
        found.append(f"the tag is {tag}, and the version in src/aiostream/__init__.py is {version}")
    found += [
        f"[project.urls] of {name} has the placeholder {PLACEHOLDER}"
        for name in ("pyproject.toml", "driver/pyproject.toml")
        if PLACEHOLDER in (root / name).read_text()
    ]
    fragments = {path.name for path in (root / "newsfragments").iterdir()} - {"README.md"}
    if fragments:
        found.append(f"newsfragments/ has {', '.join(sorted(fragments))}: run towncrier build")
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading `## {version} (DATE)`")
    nogpu = tomllib.loads((root / "driver/pyproject.toml").read_text())["project"]["version"]
    needed = {
        f"{start}{end}"
        for start, wheels in (
            (f"aiostream_cuda-{version}", WHEELS),
            (f"nogpu-{nogpu}", NOGPU_WHEELS),
        )
        for end in (".tar.gz", *(f"-{name}" for name in wheels))
    }
    found += [f"{dist}/ has no {name}" for name in sorted(needed) if not list(dist.glob(name))]
    unknown = set(dist.glob("*")) - {path for name in needed for path in dist.glob(name)}
    found += [f"{path} is no file of this version" for path in sorted(unknown)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is in the way; returns 1 if there is a tag and something is in its way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tag", nargs="?", help="the tag to publish; without it, a dry run")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="default: dist/")
    options = parser.parse_args(arguments)
    found = complaints(ROOT, options.dist, options.tag)
    for line in found:
        print(f"{'error' if options.tag else 'warning'}: {line}", file=sys.stderr)
    if options.tag and found:
        return 1
    twine = [sys.executable, "-m", "twine", "check", "--strict"]
    return subprocess.run([*twine, *sorted(options.dist.glob("*"))], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
