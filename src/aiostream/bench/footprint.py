"""Memory for each pending wait, and import time: each in a process of its own.

`python -m aiostream.bench.footprint plain|wait COUNT rss|traced PATIENCE` is such a process: it prints the bytes for each of
COUNT tasks on 16 streams, on asyncio. `plain` tasks launch the same kernels and wait for a plain future of the loop.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from typing import Any

from aiostream.bench.runner import Row, Runner

COUNT = 10_000
STREAMS = 16
MODULES = ("aiostream", "cuda.bindings.driver", "anyio", "trio", "cupy", "numba.cuda", "torch")
IMPORT = "import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"


@dataclass(frozen=True)
class Memory:
    """Bytes for each pending wait, beyond a task with a plain future, by Python's allocators and by what is resident.

    Attributes:
        count: How many waits are pending.
        rounds: How many processes of each kind.
    """

    count: int = COUNT
    rounds: int = 3

    @property
    def title(self) -> str:
        """What is measured."""
        return f"memory of {self.count:,} pending waits"

    def seconds(self) -> float:
        """About how long it will take."""
        return self.rounds * 4 * (0.6 + self.count * 2.5e-4)

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(self.rounds):
            for by in ("traced", "rss"):
                for what in ("plain", "wait"):
                    found.setdefault((what, by), []).append(self._child(what, by))
        return [
            {
                "measure": "memory",
                "loop": "asyncio",
                "peer": "aiostream auto" if what == "wait" else "plain futures",
                "by": by,
                "pending": self.count,
                "samples": len(values),
                "bytes": round(statistics.median(values), 1),
                "values": values,
            }
            for (what, by), values in found.items()
        ]

    def _child(self, what: str, by: str) -> float:
        for patience in (
            1,
            2,
            4,
            8,
        ):  # a process of its own for each attempt too: freed memory would be taken again
            command = [
                sys.executable,
                "-m",
                "aiostream.bench.footprint",
                what,
                str(self.count),
                by,
                str(patience),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode != 0:
                raise RuntimeError(
                    (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                )
            found = json.loads(done.stdout)
            if found is not None:
                return float(found)
        raise RuntimeError("some waits ended before the memory was read")


@dataclass(frozen=True)
class ImportTime:
    """Milliseconds to import, each time in a new process.

    Attributes:
        modules: What is imported.
        rounds: How often.
    """

    modules: tuple[str, ...] = MODULES
    rounds: int = 3

    @property
    def title(self) -> str:
        """What is measured."""
        return "import time"

    def seconds(self) -> float:
        """About how long it will take."""
        return self.rounds * (0.5 * len(self.modules) + (5 if "torch" in self.modules else 0))

    def run(self, runner: Runner) -> list[Row]:
        """Measures; what is not installed is listed as such."""
        found: dict[str, list[float]] = {}
        reasons: dict[str, str] = {}
        for _ in range(self.rounds):
            for module in self.modules:
                if module in reasons:
                    continue
                command = [sys.executable, "-c", IMPORT.format(module=module)]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=300
                )
                if done.returncode:
                    reasons[module] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
                else:
                    found.setdefault(module, []).append(1e3 * float(done.stdout))
        for module, reason in reasons.items():
            runner.not_run.append({"peer": f"import {module}", "loop": "", "reason": reason})
        return [
            {
                "measure": "import",
                "loop": "",
                "peer": module,
                "samples": len(values),
                "median_ms": round(statistics.median(values), 2),
                "values_ms": [round(value, 2) for value in values],
            }
            for module, values in found.items()
        ]


# ------------------------------------------------------------------------------------------------ the child process


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _child(what: str, count: int, by: str, patience: int) -> float | None:
    """Bytes for each; `None` when some waits had ended before the memory was read."""
    from aiostream.bench import gpu
    from aiostream.bench.peers import Ours

    gpu.make_current()
    peer = Ours("aiostream auto")
    bench_streams = [gpu.BenchStream(peer.new_stream()) for _ in range(STREAMS)]
    loop = asyncio.get_running_loop()
    plain: dict[int, Any] = {}

    async def one(at: int) -> None:
        if what == "wait":  # nothing is launched in between: see pending.py
            await bench_streams[at % STREAMS].stream.synchronize_async()
        else:
            plain[at] = loop.create_future()
            await plain[at]

    async def batch(size: int, hold: int) -> float | None:
        for bench_stream in bench_streams:
            bench_stream.spin(hold)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0] if by == "traced" else _resident()
        tasks = [loop.create_task(one(at)) for at in range(size)]
        await asyncio.sleep(0.01)  # all have begun, and the first ones have given up spinning
        gc.collect()
        after = tracemalloc.get_traced_memory()[0] if by == "traced" else _resident()
        pending = not any(task.done() for task in tasks)
        for future in plain.values():
            future.set_result(None)
        plain.clear()
        await asyncio.gather(*tasks)
        for bench_stream in bench_streams:
            bench_stream.synchronize()
        return (after - before) / size if pending else None

    def hold(size: int) -> int:
        """Long enough, in ns, to begin so many; what is traced takes longer."""
        return 30_000_000 + size * (300_000 if by == "traced" else 150_000)

    await batch(100, hold(100))  # loads what is loaded once
    if by == "traced":
        tracemalloc.start()
    result = await batch(count, patience * hold(count))
    tracemalloc.stop()
    for bench_stream in bench_streams:
        bench_stream.stream.close()
    return result


if __name__ == "__main__":
    print(
        json.dumps(
            asyncio.run(_child(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
        )
    )
