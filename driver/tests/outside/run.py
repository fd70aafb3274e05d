"""Runs other projects' tests on the simulator: `python run.py [CHECKOUT]`.

CHECKOUT is a working tree of https://github.com/NVIDIA/cuda-python, for the tests of cuda.core and
of cuda.bindings. The tests of numba-cuda are in its wheel, so they run where it is installed. Run
this with a Python that has nogpu, pytest, pytest-timeout, and what those tests need (see
README.md). Each test file runs in a process of its own, so that a crash is seen and costs one file
only.

Every failure must be one that `expected.toml` gives a reason for. The exit code is 1 if any other
test failed, or if a file crashed or did not end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
IN_CHECKOUT = {
    "core": ("cuda_core/tests", "**/test_*.py"),
    "bindings": ("cuda_bindings/tests", "test_cuda.py"),
}
"""Where the tests of a suite are in the checkout."""

IN_NUMBA = "numba.cuda.tests.cudadrv"
NOT_FOR_A_DRIVER = {
    "core": {
        "cython": "compiles a module",
        "example_tests": "runs programs that need the CUDA runtime",
        "system": "asks NVML, which is another library",
        "test_build_hooks.py": "builds cuda.core",
        "test_program_cache.py": "compiles and stores, without a driver",
        "test_program_cache_multiprocess.py": "compiles and stores, without a driver",
        "test_program_compile_cache.py": "compiles and stores, without a driver",
    },
    "bindings": {},
    "numba": {
        "test_is_fp16.py": "asks numba's types",
        "test_linkable_code.py": "describes code to link",
        "test_linker.py": "links, and asks for the machine code's registers and memory",
        "test_nvjitlink.py": "links, without a driver",
        "test_nvrtc.py": "compiles, without a driver",
        "test_nvvm_driver.py": "compiles, without a driver",
    },
}
"""Files and folders of each suite that have nothing to do with a driver, and why."""


@dataclass
class Outcome:
    """How the tests of one file ended."""

    counts: Counter[str] = field(default_factory=Counter)
    expected: list[tuple[str, str]] = field(default_factory=list)
    """The tests that failed for a known reason, and the reason."""

    unexpected: list[str] = field(default_factory=list)
    ended: str = ""
    """What is wrong with the process, if anything is."""


class Expected:
    """The reasons for which a test may fail: patterns of its name, or of its error's text."""

    def __init__(self, path: Path) -> None:
        table = tomllib.loads(path.read_text())
        self.reasons = [
            (
                reason,
                [re.compile(text) for text in entry.get("tests", [])],
                [re.compile(text, re.DOTALL) for text in entry.get("errors", [])],
            )
            for reason, entry in table.items()
        ]

    def reason(self, test: str, error: str) -> str | None:
        for reason, tests, errors in self.reasons:
            if any(pattern.search(test) for pattern in tests):
                return reason
            if any(pattern.search(error) for pattern in errors):
                return reason
        return None


@dataclass
class Runner:
    """Runs test files, each in a process of its own."""

    checkout: Path | None
    kernels: Path
    """The bodies of kernels, compiled."""

    limit: float
    expected: Expected

    def environment(self, results: Path) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH", "")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), inherited]),
            "OUTSIDE_RESULTS": str(results),
            "OUTSIDE_KERNELS": str(self.kernels),
        }
        if self.checkout is not None:
            tests = [self.checkout / "cuda_core/tests", self.checkout / "cuda_python_test_helpers"]
            environment["OUTSIDE_HELPERS"] = os.pathsep.join(map(str, tests))
            bindings = self.checkout / "cuda_bindings" / "cuda" / "bindings"
            environment["OUTSIDE_BINDINGS"] = str(bindings)
        return environment

    def run(self, path: Path, plugins: list[str]) -> Outcome:
        command = [sys.executable, "-m", "nogpu", "--devices=2"]
        command += [f"--driver-version={newest_version()}", "--"]
        command += ["-X", "faulthandler", "-m", "pytest", "-q"]
        for plugin in [*plugins, "no:randomly", "no:cacheprovider"]:
            command += ["-p", plugin]
        outcome = Outcome()
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.json"
            try:
                done = subprocess.run(
                    [*command, "--timeout=60", "-W", "ignore", str(path)],
                    cwd=path.parent,
                    env=self.environment(results),
                    capture_output=True,
                    text=True,
                    timeout=self.limit,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                outcome.ended = f"did not end within {self.limit:.0f} s"
                return outcome
            if not results.exists():
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                outcome.ended = f"ended with {done.returncode}: {' '.join(last)}"
                return outcome
            self.read(json.loads(results.read_text()), outcome)
        return outcome

    def read(self, rows: list[list[str]], outcome: Outcome) -> None:
        for test, kind, error in rows:
            outcome.counts[kind] += 1
            if kind not in ("failed", "error"):
                continue
            reason = self.expected.reason(test, error)
            if reason is None:
                lines = [line.strip()[:160] for line in error.splitlines() if line.strip()]
                outcome.unexpected.append(f"{test}\n    {lines[0]} [{lines[-1]}]")
            else:
                outcome.expected.append((test, reason))


def newest_version() -> int:
    """A driver as new as NVRTC, because an older one refuses NVRTC's PTX."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        major, minor, *_ = importlib.metadata.version("nvidia-cuda-nvrtc").split(".")
        return int(major) * 1000 + int(minor) * 10
    return 13000


def files_below(root: Path, pattern: str, suite: str) -> Iterator[Path]:
    for path in sorted(root.glob(pattern)):
        if NOT_FOR_A_DRIVER[suite].keys().isdisjoint(path.relative_to(root).parts):
            yield path


def files_of_checkout(checkout: Path) -> Iterator[tuple[str, Path]]:
    for suite, (folder, pattern) in IN_CHECKOUT.items():
        root = checkout / folder
        for path in files_below(root, pattern, suite):
            yield f"{suite}/{path.relative_to(root)}", path


def files_of_numba(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files in `folder` that import numba-cuda's tests, which pytest cannot import by their path.

    numba-cuda's package is `numba_cuda.numba.cuda` on disk, and is imported as `numba.cuda`.
    """
    found = importlib.util.find_spec("numba_cuda")
    if found is None or found.origin is None:
        return
    root = Path(found.origin).parent / "numba" / "cuda" / "tests" / "cudadrv"
    for path in files_below(root, "test_*.py", "numba"):
        own = folder / path.name
        own.write_text(f"from {IN_NUMBA}.{path.stem} import *\n")
        yield f"numba/{path.name}", own


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--file", default="", help="only files whose suite and path hold this")
    parser.add_argument("--show", action="store_true", help="name the tests that failed")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one file")
    options = parser.parse_args()
    checkout = options.checkout.resolve() if options.checkout else None
    total = Outcome()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels.so"
        source = str(HERE / "kernels.c")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", source, "-o", str(kernels)], check=True)
        runner = Runner(checkout, kernels, options.limit, Expected(HERE / "expected.toml"))
        files = [*files_of_checkout(checkout)] if checkout else []
        for name, path in [*files, *files_of_numba(Path(folder))]:
            if options.file not in name:
                continue
            plugins = ["plugin", "numba_plugin"] if name.startswith("numba/") else ["plugin"]
            outcome = runner.run(path, plugins)
            numbers = ", ".join(f"{count} {kind}" for kind, count in outcome.counts.items())
            print(f"{name}: {outcome.ended or numbers}", flush=True)
            for test, reason in outcome.expected if options.show else []:
                print(f"  {test}: {reason}")
            for failure in outcome.unexpected:
                print(f"  UNEXPECTED {failure}")
            if outcome.ended:
                wrong.append(name)
            wrong += outcome.unexpected
            total.counts += outcome.counts
            total.expected += outcome.expected
    if not total.counts:
        print("There are no tests: give a checkout, or install numba-cuda")
        return 1
    print("\n" + ", ".join(f"{count} {kind}" for kind, count in total.counts.items()))
    for reason, count in Counter(reason for _, reason in total.expected).most_common():
        print(f"{count:5} expected to fail: {reason}")
    print(f"{len(wrong)} unexpected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
