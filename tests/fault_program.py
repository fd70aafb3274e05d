"""Runs scenarios with faults: `python fault_program.py KIND MOST SEED [SCENARIO]`.

See `fault_engine.py`.

KIND is `none` (paths that need no loop), a kind of loop, or `start` (the first use in a process).
"""

from __future__ import annotations

import asyncio
import gc
import sys

from aiostream import simulator

simulator.install(devices=2)

import fault_engine  # noqa: E402  (the simulator comes first)
import fault_loops  # noqa: E402
import fault_scenarios  # noqa: E402
import fault_waits  # noqa: E402
from aiostream import Stream  # noqa: E402
from support import run_on  # noqa: E402


def explore(kind: str, most: int, seed: int, wanted: str) -> fault_engine.Findings:
    """All scenarios of a kind, in this process."""
    for device in range(2):
        Stream(device=device).close()
    pause = fault_engine.sleepless if kind == "none" else fault_engine.turn
    explorer = fault_engine.Explorer(pause, most, seed)
    sys.unraisablehook = lambda report: explorer.faults.report(report.exc_value)
    scenarios = fault_scenarios.WITHOUT_LOOP if kind == "none" else fault_waits.IN_LOOP

    async def main() -> None:
        if kind not in ("none", "trio"):
            asyncio.get_running_loop().set_exception_handler(
                lambda loop, what: explorer.faults.report(what.get("exception"))
            )
        for scenario in scenarios:
            if wanted in scenario.name:
                await explorer.explore(scenario)

    if kind == "none":
        fault_engine.run_without_loop(main())
    else:
        run_on(kind, main)
    return explorer.findings


def main(kind: str, most: str, seed: str, wanted: str = "") -> int:
    fault_engine.watch_allocations()
    gc.collect()
    gc.freeze()  # what the imports have made: the collections after each fault need not see it
    if kind == "start":
        findings = fault_engine.explore_starts(
            {name: use for name, use in fault_loops.FIRST_USES.items() if wanted in name},
            int(most),
            int(seed),
            4 * int(most),
        )
    else:
        findings = explore(kind, int(most), int(seed), wanted)
    fault_engine.show(findings)
    return bool(findings.violations)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
