"""The patterns and the fairness on one core, where waiting threads and the loop compete.

`python -m aiostream.bench.onecore SETTINGS` is the process of its own in which they are measured:
it binds itself to one core before it loads the driver, and prints its rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from aiostream.bench.patterns import Patterns
from aiostream.bench.runner import Job, Row, Runner
from aiostream.bench.windows import Fairness


@dataclass(frozen=True)
class OneCore:
    """Some of the measures in a process that is bound to one core.

    Attributes:
        patterns: The patterns that are measured there.
        fairness: The fairness that is measured there.
    """

    patterns: Patterns
    fairness: Fairness

    @property
    def title(self) -> str:
        """What is measured."""
        return "patterns and fairness on one core"

    def seconds(self) -> float:
        """About how long it will take."""
        return 2 + self.patterns.seconds() + self.fairness.seconds()

    def run(self, runner: Runner) -> list[Row]:
        """Measures, and notes who could not be had there."""
        variables = {**os.environ, "AIOSTREAM_SIMULATOR": "1" if runner.simulator else ""}
        command = [sys.executable, "-m", "aiostream.bench.onecore", json.dumps(asdict(self))]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=120 + 10 * self.seconds(),
            env=variables,
        )
        if done.returncode != 0:
            raise RuntimeError(
                (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            )
        found = json.loads(done.stdout.splitlines()[-1])
        for entry in found["not_run"]:
            runner.leave_out(f"{entry['peer']} on one core", entry["loop"], entry["reason"])
        return list(found["rows"])


def main() -> None:
    """Measures on the last of the cores that this process may use. The first often serves interrupts."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from aiostream import _driver, simulator

    settings = json.loads(sys.argv[1])
    jobs: list[Job] = [
        Patterns(**_tuples(settings["patterns"])),
        Fairness(**_tuples(settings["fairness"])),
    ]
    _driver.bindings()
    patterns = settings["patterns"]
    runner = Runner(
        patterns["loops"], patterns["peers"], simulator=simulator.installed(), say=lambda line: None
    )
    try:
        runner.try_out()
        rows = [row for job in jobs for row in job.run(runner)]
        print(json.dumps({"rows": rows, "not_run": runner.not_run}))
    finally:
        runner.close()


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }


if __name__ == "__main__":
    main()
