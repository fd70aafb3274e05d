"""`python -m aiostream doctor`: what is installed and in use, one measured await, and what to do about each problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time

import anyio

import aiostream
from aiostream import (
    CudaError,
    Device,
    NoDriverError,
    Stream,
    _clash,
    _driver,
    _kernels,
    _native,
    default_wait,
)

AWAITS = 20
SPIN = 0.001  # seconds
PATIENCE = 30.0  # seconds, for all awaits together
OLDEST, NEWEST = (12, 9), (14, 0)  # cuda-bindings: from, and below


class Report:
    """Prints findings as they come, and remembers the problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def line(self, what: str, finding: str) -> None:
        """Prints one finding."""
        print(f"{what:<28}{finding}")

    def problem(self, what: str, finding: str, remedy: str) -> None:
        """Prints one that needs something done."""
        self.line(what, f"PROBLEM: {finding}")
        self.problems.append(f"{what}: {remedy}")


def run() -> int:
    """Prints the report and returns the exit code."""
    report = Report()
    report.line(
        "aiostream-cuda", f"{aiostream.__version__}, at {os.path.dirname(aiostream.__file__)}"
    )
    report.line(
        "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    _clashes(report)
    _bindings(report)
    report.line("native part", str(_native.__file__))
    _loops(report)
    _connections(report)
    _strategy(report)
    if _driver_and_devices(report):
        _measure(report)
    if not report.problems:
        print("\nNo problems.")
        return 0
    print("\nWhat to do:")
    for problem in report.problems:
        print(f"  - {problem}")
    return 1


def _clashes(report: Report) -> None:
    found = _clash.other_distribution()
    if found is None:
        report.line("name clash", "none: PyPI's other `aiostream` is not installed here")
    else:
        report.problem(
            "name clash",
            f"PyPI's other `aiostream` is at {found}",
            _clash.MESSAGE.format(path=found),
        )


def _bindings(report: Report) -> None:
    version = _version("cuda-bindings")
    if version is None:
        report.problem("cuda-bindings", "not installed", "pip install 'cuda-bindings>=12.9,<14'")
        return
    parts = version.split(".")
    numbers = tuple(int(part) for part in parts[:2] if part.isdecimal())
    if OLDEST <= numbers < NEWEST:
        report.line("cuda-bindings", version)
    else:
        report.problem(
            "cuda-bindings",
            f"{version}; aiostream knows 12.9 to 13.x",
            "pip install 'cuda-bindings>=12.9,<14'",
        )


def _loops(report: Report) -> None:
    found = ["asyncio"]
    for name in ("uvloop", "trio"):
        version = _version(name)
        found.append(f"{name} {version}" if version else f"{name}: not installed (optional)")
    report.line("event loops", ", ".join(found))
    report.line("anyio", _version("anyio") or "not installed")


def _connections(report: Report) -> None:
    """The hardware queues, which pending host functions occupy."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = os.environ.get(name)
    if value is None:
        report.line(name, "not set: the default of 8 hardware queues for each device")
        count = 8
    elif value.isdecimal() and 1 <= int(value) <= 32:
        report.line(name, f"{value} hardware queues for each device")
        count = int(value)
    else:
        report.problem(
            name,
            f"{value!r} is no number from 1 to 32",
            f"unset {name}, or set it before the process starts",
        )
        return
    report.line(
        "",
        f"Each stream with a pending completion future holds one: more than {count} at a time wait behind one",
    )
    report.line(
        "",
        "another. 32 is the most that can be set, before the process starts. synchronize_async holds none, but",
    )
    report.line("", "for the few waits that grow old.")


def _strategy(report: Report) -> None:
    try:
        report.line("waiting", f"{default_wait()}, unless a stream is made with another `wait`")
    except ValueError as error:
        report.problem("waiting", str(error), "unset AIOSTREAM_WAIT, or set it to one of these")


def _driver_and_devices(report: Report) -> bool:
    try:
        version = _driver.driver_version()
        names = [Device(number).name for number in range(Device.count())]
    except NoDriverError as error:
        report.problem("CUDA driver", "none", str(error))
        return False
    except ValueError as error:  # of an environment variable
        report.problem("CUDA driver", str(error), "unset the variable, or set it to one of these")
        return False
    except (CudaError, ImportError) as error:
        report.problem(
            "CUDA driver",
            str(error),
            "see that `nvidia-smi` works; reinstall the driver if it does not",
        )
        return False
    from aiostream import simulator

    which = (
        "the simulator, as AIOSTREAM_SIMULATOR asks: no GPU is used"
        if simulator.installed()
        else "the GPU's"
    )
    report.line("CUDA driver", f"{version // 1000}.{version % 1000 // 10} ({which})")
    for number, name in enumerate(names):
        report.line("devices" if number == 0 else "", f"{number}: {name}")
    if version < 12_000:
        report.problem(
            "CUDA driver",
            "too old: aiostream needs CUDA 12 or newer",
            "install a newer NVIDIA driver",
        )
        return False
    return True


def _measure(report: Report) -> None:
    try:
        latencies = anyio.run(_awaits)
    except TimeoutError:
        report.problem(
            "measured await",
            f"{AWAITS} awaits of 1 ms did not end within {PATIENCE:.0f} s",
            "see that no other process keeps the GPU busy (`nvidia-smi`), then run this again",
        )
    except (CudaError, RuntimeError) as error:
        report.problem(
            "measured await",
            str(error),
            "see that `nvidia-smi` works and that the GPU is not in exclusive use",
        )
    else:
        microseconds = [1e6 * latency for latency in latencies]
        report.line(
            "measured await",
            f"{statistics.median(microseconds):.0f} us from the end of a 1 ms kernel to resumption",
        )
        report.line(
            "",
            f"(median of {AWAITS}, worst {max(microseconds):.0f}; asyncio; host time from launch to resumption,",
        )
        report.line("", "less the kernel's own 1 ms)")


async def _awaits() -> list[float]:
    latencies = []
    with anyio.fail_after(PATIENCE):
        async with Stream(wait="auto") as stream:
            _kernels.spin(stream, SPIN)  # the first one loads the kernel
            await stream.synchronize_async()
            for _ in range(AWAITS):
                began = time.perf_counter()
                _kernels.spin(stream, SPIN)
                await stream.synchronize_async()
                latencies.append(time.perf_counter() - began - SPIN)
    return latencies


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
