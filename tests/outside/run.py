"""Runs the tests of cuda.core and of cuda.bindings on the simulator: `python run.py CHECKOUT`.

CHECKOUT is a working tree of https://github.com/NVIDIA/cuda-python. Run this with a Python that has
this library, pytest, pytest-timeout, and what those tests need (see README.md). Each test file runs
in a process of its own, so that a crash is seen and costs one file only.

Every failure must be one that `expected.toml` gives a reason for. The exit code is 1 if any other
test failed, or if a file crashed or did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SUITES = {
    "core": ("cuda_core/tests", "**/test_*.py"),
    "bindings": ("cuda_bindings/tests", "test_cuda.py"),
}
NOT_FOR_A_DRIVER = {
    "cython": "compiles a module",
    "example_tests": "runs programs that need the CUDA runtime",
    "system": "asks NVML, which is another library",
    "test_build_hooks.py": "builds cuda.core",
    "test_program_cache.py": "compiles and stores, without a driver",
    "test_program_cache_multiprocess.py": "compiles and stores, without a driver",
    "test_program_compile_cache.py": "compiles and stores, without a driver",
}
"""Files and folders that have nothing to do with a driver, and why."""


@dataclass
class Outcome:
    """How the tests of one file ended."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
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


def run_file(
    path: Path, checkout: Path, kernels: Path, limit: float, expected: Expected
) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        helpers = [checkout / "cuda_core" / "tests", checkout / "cuda_python_test_helpers"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "OUTSIDE_RESULTS": str(results),
            "OUTSIDE_KERNELS": str(kernels),
            "OUTSIDE_BINDINGS": str(checkout / "cuda_bindings" / "cuda" / "bindings"),
            "OUTSIDE_HELPERS": os.pathsep.join(map(str, helpers)),
        }
        command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "plugin", "-q"]
        command += ["-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=60", "-W", "ignore"]
        outcome = Outcome()
        try:
            done = subprocess.run(
                [*command, str(path)],
                cwd=path.parent,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            outcome.ended = f"did not end within {limit:.0f} s"
            return outcome
        if not results.exists():
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            outcome.ended = f"ended with {done.returncode}: {' '.join(last)}"
            return outcome
        for test, kind, error in json.loads(results.read_text()):
            outcome.counts[kind] += 1
            if kind not in ("failed", "error"):
                continue
            reason = expected.reason(test, error)
            if reason is None:
                lines = [line.strip()[:160] for line in error.splitlines() if line.strip()]
                outcome.unexpected.append(f"{test}\n    {lines[0]} [{lines[-1]}]")
            else:
                outcome.reasons[reason] += 1
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--suite", choices=sorted(SUITES), action="append")
    parser.add_argument("--file", help="only files whose path holds this")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one file")
    options = parser.parse_args()
    expected = Expected(HERE / "expected.toml")
    checkout = options.checkout.resolve()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels.so"
        source = str(HERE / "kernels.c")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", source, "-o", str(kernels)], check=True)
        for suite in options.suite or SUITES:
            root, pattern = SUITES[suite]
            for path in sorted((checkout / root).glob(pattern)):
                name = f"{suite}/{path.relative_to(checkout / root)}"
                if not NOT_FOR_A_DRIVER.keys().isdisjoint(path.relative_to(checkout / root).parts):
                    continue
                if options.file and options.file not in name:
                    continue
                outcome = run_file(path, checkout, kernels, options.limit, expected)
                numbers = ", ".join(f"{count} {kind}" for kind, count in outcome.counts.items())
                print(f"{name}: {outcome.ended or numbers}", flush=True)
                for failure in outcome.unexpected:
                    print(f"  UNEXPECTED {failure}")
                if outcome.ended:
                    wrong.append(name)
                wrong += outcome.unexpected
                counts += outcome.counts
                reasons += outcome.reasons
    print("\n" + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    for reason, count in reasons.most_common():
        print(f"{count:5} expected to fail: {reason}")
    print(f"{len(wrong)} unexpected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
