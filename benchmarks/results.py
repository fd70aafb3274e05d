"""The results as a file: where and with what was measured, the rows, and what was not run."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiostream
from benchmarks import lanes

Row = dict[str, Any]
FORMAT = 1
SIMULATED = "Measured on the simulator, which has no GPU: these figures say nothing about one."
PACKAGES = [
    "cuda-bindings",
    "anyio",
    "uvloop",
    "trio",
    "torch",
    "numpy",
    "fastapi",
    "uvicorn",
    "httptools",
    "cuda-core",
    "numba",
    "numba-cuda",
    "litserve",
    "mosec",
    "granian",
]
CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
KEYS = (
    *("set", "measure", "loop", "peer", "load", "length_ns", "streams", "pattern"),
)  # what distinguishes two rows


def describe(runner: Any, options: Row, earlier: Row | None) -> Row:
    """The results to begin with: where and with what is measured, and what an earlier run has left.

    Args:
        runner: The peers.
        options: What was asked for.
        earlier: The results to which these are added.
    """
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "format": FORMAT,
        "simulator": runner.simulator,
        **({"note": SIMULATED} if runner.simulator else {}),
        "date": date,
        "runs": [*(earlier["runs"] if earlier else ()), {"date": date, **options}],
        "environment": runner.environment,
        "peers": {name: peer.summary for name, peer in runner.peers.items()},
        "not_run": [],
        "rows": earlier["rows"] if earlier else [],
    }


def environment() -> Row:
    """The machine and the versions, in a process that uses the driver."""
    cuda = int(lanes.call("cuDriverGetVersion"))
    found = {
        "gpu": aiostream.Device(0).name,
        "driver": _driver_release(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "aiostream": aiostream.__version__,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
    }
    cupy = [name for name in CUPY if _version(name)]
    return {**found, **{name: _version(name) for name in (*PACKAGES, *cupy)}}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _driver_release() -> str | None:
    words = " ".join(_lines("/proc/driver/nvidia/version")).split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _cpu_name() -> str | None:
    lines = (line for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    return next((line.split(":", 1)[1].strip() for line in lines), None)


def add(results: Row, rows: Iterable[Row]) -> None:
    """Adds rows; one that was measured before is replaced."""
    known = {tuple(row.get(key) for key in KEYS): row for row in (*results["rows"], *rows)}
    results["rows"] = list(known.values())


def write(results: Row, path: Path) -> None:
    """Writes the file, a line for each row; whole or not at all, because the run may be killed."""
    head = json.dumps({key: results[key] for key in results if key != "rows"}, indent=1)
    lines = [head[: head.rindex("}")].rstrip()]
    rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in results["rows"])
    lines.append(f' "rows": [\n  {rows}\n ]' if rows else ' "rows": []')
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(",\n".join(lines) + "\n}\n")
    partial.replace(path)


def read(path: Path) -> Row:
    """Reads such a file.

    Raises:
        ValueError: It is none.
    """
    results = json.loads(path.read_text())
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ValueError(f"{path} is no results file of this version (format {FORMAT})")
    return results


def machine(results: Row) -> str:
    """The GPU, its driver and the host, in one line."""
    known = results["environment"]
    driver = f"driver {known['driver']}, " if known["driver"] else ""
    host = f"{known['cores']} cores, Python {known['python']}"
    return f"{known['gpu']}, {driver}CUDA {known['cuda']}, {host}"
