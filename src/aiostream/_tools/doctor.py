"""`python -m aiostream doctor`: looks at an installation, measures an await, says what to do."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import statistics
import sysconfig
from time import perf_counter
from typing import Any

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
LIBRARIES = ("torch", "cupy", "cuda.core", "numba")
# What they are called where they are installed. The first that is found counts.
PACKAGES = {
    "cuda.bindings": ("cuda-bindings",),
    **{name: (name,) for name in (*LOOPS, "torch")},
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "cuda.core": ("cuda-core",),
    "numba": ("numba-cuda", "numba"),
}


class Report:
    """What was found: as lines of text, as data for `--json`, and the problems among it."""

    def __init__(self, *, as_text: bool) -> None:
        self._as_text = as_text
        self.data: dict[str, Any] = {}
        self.problems: list[dict[str, str]] = []

    def line(self, what: str, finding: str, mark: str = "✓") -> None:
        """Prints a finding, on several lines if it is long."""
        if self._as_text:
            plain, code = {"✓": ("+", "32"), "!": ("!", "33"), "✗": ("x", "31")}[mark]
            mark = terminal.colour(code, mark if terminal.can_print(mark) else plain)
            indent = " " * min(INDENT, terminal.columns() // 2)
            print(mark + terminal.wrapped(finding, f"{plain} {what:<{INDENT - 2}}", indent)[1:])

    def problem(self, what: str, finding: str, remedy: str) -> None:
        """Prints a finding that needs something done."""
        self.line(what, f"PROBLEM: {finding}", "✗")
        self.problems.append({"what": what, "finding": finding, "remedy": remedy})

    def end(self) -> int:
        """Prints the rest, and returns the exit code."""
        if not self._as_text:
            print(json.dumps({**self.data, "problems": self.problems}, indent=2))
        elif not self.problems:
            print("\nNo problems.")
        else:
            print("\nWhat to do:")
            for problem in self.problems:
                print(terminal.wrapped(f"{problem['what']}: {problem['remedy']}", "  - ", "    "))
        return 1 if self.problems else 0


def run(*, as_json: bool = False) -> int:
    """Prints the report, as text or as one JSON object, and returns the exit code."""
    report = Report(as_text=not as_json)
    _installation(report)
    _packages(report)
    _environment(report)
    _hardware_queues(report)
    _strategy(report)
    report.data |= {"driver": None, "devices": [], "await": None}
    if _driver_and_devices(report):
        _sharing(report)
        _measure(report)
    return report.end()


# -------------------------------------------------------------------------------- what is installed


def _installation(report: Report) -> None:
    version, folder = aiostream.__version__, os.path.dirname(aiostream.__file__)
    native = str(_native.__file__)
    report.line("aiostream-cuda", f"{version}, at {folder}")
    report.line("native part", native)
    report.data["aiostream"] = {"version": version, "path": folder, "native_part": native}
    version, system, machine = platform.python_version(), platform.system(), platform.machine()
    report.line("Python", f"{version} on {system} {machine}")
    report.data["python"] = {"version": version, "system": system, "machine": machine}
    _gil(report)


def _gil(report: Report) -> None:
    is_free, is_on = bool(sysconfig.get_config_var("Py_GIL_DISABLED")), checks.has_gil()
    report.data["gil"] = {"free_threaded": is_free, "on": is_on}
    if not is_free:
        report.line("GIL", "on: this is no free-threaded Python")
    elif is_on:
        report.line("GIL", "on, as PYTHON_GIL, -X gil or a module that needs it asks", "!")
    else:
        report.line("GIL", "off: several loops may run in one process")


def _packages(report: Report) -> None:
    """What is installed. It is not imported, because that takes seconds for some libraries."""
    found = {name: next(filter(None, map(_version, each)), None) for name, each in PACKAGES.items()}
    report.data["packages"] = found
    bindings = found["cuda.bindings"] or "not installed"
    numbers = tuple(int(part) for part in bindings.split(".")[:3] if part.isdecimal())
    if OLDEST <= numbers < NEWEST:
        report.line("cuda-bindings", bindings)
    else:
        known = f"{bindings}, and aiostream needs 12.9.8 to 13.x"
        report.problem("cuda-bindings", known, "`pip install 'cuda-bindings>=12.9.8,<14'`")
    loops = [f"{name} {found[name] or 'is not installed'}" for name in LOOPS]
    report.line("event loops", ", ".join(["asyncio", *loops]))
    others = [f"{name} {found[name]}" for name in LIBRARIES if found[name]]
    report.line("other libraries", ", ".join(others) or f"none of {', '.join(LIBRARIES)}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------------------------- the environment


def _environment(report: Report) -> None:
    report.data["environment"] = {
        name: value for name, value in os.environ.items() if name.startswith(("AIOSTREAM_", "CUDA"))
    }
    name = "CUDA_VISIBLE_DEVICES"
    value = os.environ.get(name)
    if value is None:
        report.line(name, "not set: CUDA sees all GPUs of this machine")
    elif (value.strip() or "-").startswith("-"):
        report.line(name, f"{value!r} hides all GPUs", "!")
    else:
        report.line(name, f"{value!r}: CUDA sees these GPUs, counted from 0")
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        report.problem(
            "CUDA_LAUNCH_BLOCKING",
            "each launch waits for the end of its kernel, and blocks the event loop",
            "unset CUDA_LAUNCH_BLOCKING, unless you look for a kernel that crashes",
        )


def _hardware_queues(report: Report) -> None:
    """The hardware queues of a device, which pending host functions hold."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = os.environ.get(name, "8")
    is_valid = value.isdecimal() and 1 <= int(value) <= 32
    report.data["hardware_queues"] = int(value) if is_valid else None
    if not is_valid:
        remedy = f"unset {name}, or set it before the process starts"
        report.problem(name, f"{value!r} is not a number from 1 to 32", remedy)
        return
    queues = f"{value} hardware queues{'' if name in os.environ else ' (the default)'}"
    report.line(name, f"{queues}. Each stream with a pending host function holds one.")


def _strategy(report: Report) -> None:
    report.data["wait"] = None
    try:
        strategy = default_wait()
    except ValueError as error:
        report.problem("waiting", str(error), "unset AIOSTREAM_WAIT, or set it to one of these")
    else:
        report.data["wait"] = strategy.value
        report.line("waiting", f"{strategy}, unless you make a stream with another `wait`")


# ----------------------------------------------------------------------- the driver and its devices


def _driver_and_devices(report: Report) -> bool:
    """Whether there is a driver with which an await can be measured."""
    try:
        process.start()
        number = driver.spelled(driver.driver_version())
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
    is_simulated = stand_ins.is_simulated()
    which = "the simulator, as you asked: no GPU is used" if is_simulated else "the GPU's"
    report.line("CUDA driver", f"{number} ({which})")
    report.data["driver"] = {"version": number, "simulator": is_simulated}
    report.data["devices"] = devices
    for n, device in enumerate(devices):
        report.line("" if n else "devices", f"{n}: {device['name']}")
    return True


def _device(number: int) -> dict[str, Any]:
    name, mps = Device(number).name, None
    attribute = driver.bindings().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
    with contextlib.suppress(CudaError):  # the driver is older than it
        mps = driver.call("cuDeviceGetAttribute", attribute, number)
    return {"ordinal": number, "name": name, "mig": is_mig(name), "mps": mps}


def is_mig(name: str) -> bool:
    """Whether a device is a part of a GPU. Its name is such as `NVIDIA H100 80GB MIG 1g.10gb`."""
    return re.search(r"\bMIG \d+\w?\.", name) is not None


def _sharing(report: Report) -> None:
    """Whether other processes use the same GPUs, where it can be seen."""
    parts, shared = (
        ", ".join(str(device["ordinal"]) for device in report.data["devices"] if device[what])
        for what in ("mig", "mps")
    )
    mig = f"device {parts}: a part of a GPU, with its own queues"
    report.line("MIG", mig if parts else "not in use: each device is a whole GPU")
    mps = f"in use: other processes run on device {shared}, too"
    report.line("MPS", mps if shared else "not in use")


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
        median, worst = round(1e6 * statistics.median(late), 1), round(1e6 * max(late), 1)
        report.data["await"] = {"awaits": AWAITS, "median_us": median, "worst_us": worst}
        report.line(
            "measured await",
            f"{median:.0f} us from the end of a 1 ms kernel to resumption, on asyncio (median of "
            f"{AWAITS}, worst {worst:.0f}, lower is better)",
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
