"""Import time, each time in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks import stats
from benchmarks.measure import Measure, Row

if TYPE_CHECKING:
    from benchmarks.runner import Runner

MODULES = ("aiostream", "cuda.bindings.driver", "anyio", "trio", "cupy", "numba.cuda", "torch")
PROGRAM = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


@dataclass(frozen=True, kw_only=True)
class ImportTime(Measure):
    """Milliseconds to import.

    Attributes:
        modules: What is imported.
        rounds: How often.
    """

    modules: tuple[str, ...] = MODULES
    rounds: int = 3

    name = "import"
    QUICK: ClassVar[dict[str, Any]] = {"modules": ("aiostream",), "rounds": 1}

    @property
    def title(self) -> str:
        return "import time"

    def seconds(self) -> float:
        return self.rounds * (0.5 * len(self.modules) + (5 if "torch" in self.modules else 0))

    def run(self, runner: Runner) -> list[Row]:
        """Measures; what is not installed is listed as such."""
        found: dict[str, list[float]] = {}
        failed: set[str] = set()
        for _ in range(self.rounds):
            for module in self.modules:
                if module in failed:
                    continue
                command = [sys.executable, "-c", PROGRAM.format(module)]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=300
                )
                if done.returncode:
                    failed.add(module)
                    reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
                    runner.leave_out(f"import {module}", "", reason)
                else:
                    found.setdefault(module, []).append(1e3 * float(done.stdout))
        return [
            {
                "measure": self.name,
                "loop": "",
                "peer": module,
                "samples": len(values),
                "median_ms": round(stats.median(values), 2),
                "values_ms": [round(value, 2) for value in values],
            }
            for module, values in found.items()
        ]
