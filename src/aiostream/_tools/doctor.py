"""`python -m aiostream doctor`: looks at an installation, measures an await, says what to do."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import statistics
import sysconfig
from time import perf_counter

import anyio

import aiostream
from aiostream import CudaError, Device, NoDriverError, Stream, _native, default_wait
from aiostream._base import checks, driver, stand_ins
from aiostream._runtime import process
from aiostream._tools import kernels, terminal

AWAITS = 20
WARM_UP = 3  # awaits
SPIN = 0.001  # seconds
PATIENCE = 30.0  # seconds, for all awaits together
OLDEST, NEWEST = (12, 9, 8), (14,)  # cuda-bindings: from, and below
INDENT = 30

LOOPS = ("uvloop", "trio", "anyio")
# What they are called where they are installed. The first that is found counts.
LIBRARIES = {
    "torch": ("torch",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "cuda.core": ("cuda-core",),
    "numba": ("numba-cuda", "numba"),
}


class Report:
    """Prints what is found, and keeps the problems among it."""

    def __init__(self) -> None:
        self._remedies: list[str] = []

    def line(self, what: str, finding: str, mark: str = "✓") -> None:
        """Prints a finding, on several lines if it is long."""
        mark = terminal.colour("32" if mark == "✓" else "31", mark)
        indent = " " * min(INDENT, terminal.columns() // 2)
        print(mark + terminal.wrapped(finding, f"  {what:<{INDENT - 2}}", indent)[1:])

    def problem(self, what: str, finding: str, remedy: str) -> None:
        """Prints a finding that needs something done."""
        self.line(what, f"PROBLEM: {finding}", "✗")
        self._remedies.append(terminal.wrapped(f"{what}: {remedy}", "  - ", "    "))

    def end(self) -> int:
        """Prints what to do, and returns the exit code."""
        print("\nWhat to do:" if self._remedies else "\nNo problems.", *self._remedies, sep="\n")
        return 1 if self._remedies else 0


def run() -> int:
    """Prints the report, and returns the exit code."""
    report = Report()
    _installation(report)
    _packages(report)
    _environment(report)
    if _driver_and_devices(report):
        _measure(report)
    return report.end()


# -------------------------------------------------------------------------------- what is installed


def _installation(report: Report) -> None:
    folder = os.path.dirname(aiostream.__file__)
    report.line("aiostream-cuda", f"{aiostream.__version__}, at {folder}")
    report.line("native part", str(_native.__file__))
    system = f"{platform.system()} {platform.machine()}"
    report.line("Python", f"{platform.python_version()} on {system}")
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        report.line("GIL", "on: this is no free-threaded Python")
    elif checks.has_gil():
        report.line("GIL", "on, as PYTHON_GIL, -X gil or a module that needs it asks")
    else:
        report.line("GIL", "off: several loops may run in one process")


def _packages(report: Report) -> None:
    """What is installed. It is not imported, because that takes seconds for some libraries."""
    bindings = _version("cuda-bindings") or "not installed"
    numbers = tuple(int(part) for part in bindings.split(".")[:3] if part.isdecimal())
    if OLDEST <= numbers < NEWEST:
        report.line("cuda-bindings", bindings)
    else:
        known = f"{bindings}, and aiostream needs 12.9.8 to 13.x"
        report.problem("cuda-bindings", known, "`pip install 'cuda-bindings>=12.9.8,<14'`")
    loops = [f"{name} {_version(name) or 'is not installed'}" for name in LOOPS]
    report.line("event loops", ", ".join(["asyncio", *loops]))
    others = [
        f"{name} {version}" for name, names in LIBRARIES.items() if (version := _version(*names))
    ]
    report.line("other libraries", ", ".join(others) or f"none of {', '.join(LIBRARIES)}")


def _version(*names: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


# ---------------------------------------------------------------------------------- the environment


def _environment(report: Report) -> None:
    name = "CUDA_VISIBLE_DEVICES"
    value = os.environ.get(name)
    if value is None:
        report.line(name, "not set: CUDA sees all GPUs of this machine")
    else:
        report.line(name, f"{value!r}: CUDA sees these GPUs alone, counted from 0")
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        report.problem(
            "CUDA_LAUNCH_BLOCKING",
            "each launch waits for the end of its kernel, and blocks the event loop",
            "unset CUDA_LAUNCH_BLOCKING, unless you look for a kernel that crashes",
        )
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = os.environ.get(name, "8")
    if value.isdecimal() and 1 <= int(value) <= 32:
        queues = f"{value} hardware queues{'' if name in os.environ else ' (the default)'}"
        report.line(name, f"{queues}. Each stream with a pending host function holds one.")
    else:
        remedy = f"unset {name}, or set it before the process starts"
        report.problem(name, f"{value!r} is not a number from 1 to 32", remedy)


# ----------------------------------------------------------------------- the driver and its devices


def _driver_and_devices(report: Report) -> bool:
    """Whether there is a driver with which an await can be measured."""
    try:
        waiting = default_wait()
        process.start()
        version = driver.spelled(driver.driver_version())
        devices = [_device(number) for number in range(Device.count())]
    except NoDriverError as error:
        report.problem("CUDA driver", "no driver, or no GPU that it may use", str(error))
        return False
    except (OSError, ValueError) as error:
        report.problem("environment", str(error), "unset the variable, or set it to one of these")
        return False
    except (CudaError, ImportError) as error:
        advice = "see that `nvidia-smi` works, and install a driver of CUDA 12 or newer"
        if getattr(error, "name", "") == "nogpu":
            advice = "install it, or unset AIOSTREAM_SIMULATOR"
        report.problem("CUDA driver", str(error), advice)
        return False
    simulated = stand_ins.is_simulated()
    which = "the simulator, as you asked: no GPU is used" if simulated else "the GPU's"
    report.line("CUDA driver", f"{version} ({which})")
    report.line("waiting", f"{waiting}, unless you make a stream with another `wait`")
    for device, found in enumerate(devices):
        report.line(f"device {device}", found)
    return True


def _device(number: int) -> str:
    mps = False
    attribute = driver.bindings().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
    with contextlib.suppress(CudaError):  # the driver is older than it
        mps = bool(driver.call("cuDeviceGetAttribute", attribute, number))
    return shared(Device(number).name, mps)


def shared(name: str, mps: bool) -> str:
    """A device, and how other processes use the same GPU, where it can be seen."""
    # The name of a part of a GPU is such as `NVIDIA H100 80GB MIG 1g.10gb`.
    mig = re.search(r"\bMIG \d+\w?\.", name)
    parts = "on, so this is a part of a GPU, with its own queues" if mig else "off"
    return f"{name}; MIG {parts}; MPS {'on: other processes run here, too' if mps else 'off'}"


# ---------------------------------------------------------------------------------------- one await


def _measure(report: Report) -> None:
    try:
        late = anyio.run(_awaits)
    except TimeoutError:
        finding = f"{AWAITS} awaits of 1 ms did not end within {PATIENCE:.0f} s"
        remedy = "see that no other process keeps the GPU busy (`nvidia-smi`), then run this again"
        report.problem("measured await", finding, remedy)
    except (CudaError, RuntimeError) as error:
        remedy = "see that `nvidia-smi` works and that the GPU is not in exclusive use"
        report.problem("measured await", str(error), remedy)
    else:
        report.line(
            "measured await",
            f"{1e6 * statistics.median(late):.0f} us from the end of a 1 ms kernel to resumption, "
            f"on asyncio (median of {AWAITS}, worst {1e6 * max(late):.0f}, lower is better)",
        )


async def _awaits() -> list[float]:
    """How many seconds after the end of its kernel each await was over.

    A kernel begins at about the end of its launch, so that is where the host's clock starts.
    """
    late = []
    with anyio.fail_after(PATIENCE):
        async with Stream(wait="auto") as stream:
            for _ in range(WARM_UP + AWAITS):
                await anyio.sleep(0.0002)
                kernels.spin(stream, SPIN)
                began = perf_counter()
                await stream.synchronize_async()
                late.append(perf_counter() - began - SPIN)
    return late[WARM_UP:]
