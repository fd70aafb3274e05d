"""`python -m aiostream doctor`: looks at an installation, measures an await, says what to do."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path
from typing import Any

import anyio

import aiostream
from aiostream import CudaError, Device, NoDriverError, Stream, _native, default_wait
from aiostream._base import checks, driver, stand_ins
from aiostream._runtime import process
from aiostream._tools import kernels, terminal

AWAITS = 20
SPIN = 0.001  # seconds
PATIENCE = 30.0  # seconds, for all awaits together
OLDEST, NEWEST = (12, 9, 8), (14,)  # cuda-bindings: from, and below
INSTALL_BINDINGS = "`pip install 'cuda-bindings>=12.9.8,<14'`"
COLUMNS = 100
INDENT = 30

# What other libraries are called where they are installed. The first that is found counts.
LIBRARIES = {
    "torch": ("torch",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "cuda.core": ("cuda-core",),
    "numba": ("numba-cuda", "numba"),
}
# What the CUDA driver and this library read.
VARIABLES = (
    "AIOSTREAM_SIMULATOR",
    "AIOSTREAM_SIMULATOR_DEVICES",
    "AIOSTREAM_SIMULATOR_LIBRARY",
    "AIOSTREAM_SIMULATOR_SEED",
    "AIOSTREAM_BLOCKING",
    "AIOSTREAM_TRACE",
    "AIOSTREAM_WAIT",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
)
COMPUTE_MODES = {
    1: "exclusive (one thread)",
    2: "prohibited: no process may use it",
    3: "exclusive: one process at a time",
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
            first, *others = textwrap.wrap(finding, COLUMNS - INDENT, **_WRAPPING) or [""]
            print(f"{mark} {what:<{INDENT - 2}}{first}")
            for other in others:
                print(f"{'':<{INDENT}}{other}")

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
                print(_item(f"{problem['what']}: {problem['remedy']}"))
        return 1 if self.problems else 0


_WRAPPING: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _item(text: str) -> str:
    """An item of a list, wrapped, except within backticks: a command can be copied whole."""
    glued = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\0"), text)
    wrapped = textwrap.fill(
        glued, COLUMNS, initial_indent="  - ", subsequent_indent="    ", **_WRAPPING
    )
    return wrapped.replace("\0", " ")


def run(*, as_json: bool = False) -> int:
    """Prints the report, as text or as one JSON object, and returns the exit code."""
    report = Report(as_text=not as_json)
    _installation(report)
    _bindings(report)
    _loops(report)
    _libraries(report)
    _environment(report)
    _hardware_queues(report)
    _strategy(report)
    report.data |= {"driver": None, "devices": [], "mps": None, "await": None}
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


# The modules that a program imports here: the first behind which the GIL is on has switched it on.
_WHO_SWITCHES_THE_GIL_ON = """
import importlib, sys
before = sys._is_gil_enabled()
for name in sys.argv[1:]:
    if not before and not sys._is_gil_enabled():
        importlib.import_module(name)
        if sys._is_gil_enabled():
            print(name)
"""


def _gil(report: Report) -> None:
    is_free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    culprit = None
    if is_free:
        names = [name for name in ("uvloop", "trio", "numpy") if _version(name)]
        names += ["cuda.bindings.driver"] * (_version("cuda-bindings") is not None)
        culprit = switches_the_gil_on(["aiostream._native", *names])
    if not is_free:
        report.line("GIL", "on: this is no free-threaded Python")
    elif culprit is not None:
        advice = "set PYTHON_GIL=0 to keep it off, or install a newer version"
        report.line("GIL", f"on after `import {culprit}`, which needs it: {advice}", "!")
    elif checks.has_gil():
        report.line("GIL", "on, as PYTHON_GIL or -X gil asks", "!")
    else:
        report.line("GIL", "off: several loops may run in one process")
    is_on = checks.has_gil() or culprit is not None
    report.data["gil"] = {"free_threaded": is_free, "on": is_on, "switched_on_by": culprit}


def switches_the_gil_on(names: list[str]) -> str | None:
    """Returns the first of these modules whose import switches the GIL on."""
    child = [sys.executable, "-W", "ignore", "-c", _WHO_SWITCHES_THE_GIL_ON, *names]
    done = subprocess.run(child, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stdout.strip() or None


def _bindings(report: Report) -> None:
    version = _version("cuda-bindings")
    report.data["packages"] = {"cuda.bindings": version}
    if version is None:
        report.problem("cuda-bindings", "not installed", INSTALL_BINDINGS)
        return
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if OLDEST <= numbers < NEWEST:
        report.line("cuda-bindings", version)
    else:
        report.problem(
            "cuda-bindings", f"{version}, and aiostream knows 12.9.8 to 13.x", INSTALL_BINDINGS
        )


def _loops(report: Report) -> None:
    versions = {name: _version(name) for name in ("uvloop", "trio", "anyio")}
    report.data["packages"] |= versions
    found = [f"{name} {version or 'is not installed'}" for name, version in versions.items()]
    report.line("event loops", ", ".join(["asyncio", *found]))


def _libraries(report: Report) -> None:
    """Other libraries whose streams can be awaited. They are not imported, which takes seconds."""
    versions = {
        name: next((version for each in names if (version := _version(each))), None)
        for name, names in LIBRARIES.items()
    }
    report.data["packages"] |= versions
    found = [f"{name} {version}" for name, version in versions.items() if version]
    report.line("other libraries", ", ".join(found) or f"none of {', '.join(LIBRARIES)}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------------------------- the environment


def _environment(report: Report) -> None:
    report.data["environment"] = {name: os.environ.get(name) for name in VARIABLES}
    name = "CUDA_VISIBLE_DEVICES"
    value = os.environ.get(name)
    if value is None:
        report.line(name, "not set: CUDA sees all GPUs of this machine")
    elif value.strip() == "" or value.strip().startswith("-"):
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
    report.data["hardware_queues"] = count = int(value) if is_valid else None
    if not is_valid:
        remedy = f"unset {name}, or set it before the process starts"
        report.problem(name, f"{value!r} is not a number from 1 to 32", remedy)
        return
    finding = f"{value} hardware queues for each device"
    if name not in os.environ:
        finding = "not set: each device has the default of 8 hardware queues"
    report.line(
        name,
        f"{finding}. A stream with a pending completion_future() or host function holds one. If "
        f"more than {count} streams have one, the others wait. You can set up to 32, before the "
        "process starts. synchronize_async() holds none.",
    )


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
    for device in devices:
        report.line(
            "" if device["ordinal"] else "devices", f"{device['ordinal']}: {device['name']}"
        )
    return True


def _device(number: int) -> dict[str, Any]:
    name = Device(number).name
    return {
        "ordinal": number,
        "name": name,
        "mig": is_mig(name),
        "mps": _attribute("CU_DEVICE_ATTRIBUTE_MPS_ENABLED", number),
        "compute_mode": _attribute("CU_DEVICE_ATTRIBUTE_COMPUTE_MODE", number),
    }


def is_mig(name: str) -> bool:
    """Whether a device is a part of a GPU. Its name is such as `NVIDIA H100 80GB MIG 1g.10gb`."""
    return re.search(r"\bMIG \d+\w?\.", name) is not None


def _attribute(name: str, device: int) -> int | None:
    """An attribute of a device. `None` if the driver or the bindings do not know it."""
    attribute = getattr(driver.bindings().CUdevice_attribute, name, None)
    if attribute is None:
        return None
    try:
        return int(driver.call("cuDeviceGetAttribute", attribute, device))
    except CudaError:
        return None


def _sharing(report: Report) -> None:
    """Whether other processes use the same GPUs, where it can be seen."""
    devices = report.data["devices"]
    parts = [str(device["ordinal"]) for device in devices if device["mig"]]
    if parts:
        report.line("MIG", f"device {', '.join(parts)}: a part of a GPU, which has its own queues")
    else:
        report.line("MIG", "not in use: each device is a whole GPU")
    _mps(report, [str(device["ordinal"]) for device in devices if device["mps"]])
    for device in devices:
        mode = COMPUTE_MODES.get(device["compute_mode"])
        if mode is not None:
            report.line("compute mode", f"device {device['ordinal']}: {mode}")


def _mps(report: Report, shared: list[str]) -> None:
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    has_daemon = (pipes / "control").exists()
    report.data["mps"] = {"control_daemon": str(pipes) if has_daemon else None}
    if shared:
        report.line("MPS", f"in use: other processes run on device {', '.join(shared)}, too")
    elif has_daemon:
        report.line("MPS", f"a control daemon uses {pipes}, but no device here is shared")
    else:
        report.line("MPS", f"not in use: there is no control daemon in {pipes}")


# ---------------------------------------------------------------------------------------- one await


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
        median, worst = round(statistics.median(latencies), 1), round(max(latencies), 1)
        report.data["await"] = {"awaits": AWAITS, "median_us": median, "worst_us": worst}
        report.line(
            "measured await",
            f"{median:.0f} us from the end of a 1 ms kernel to resumption (median of {AWAITS}, "
            f"worst {worst:.0f}, lower is better). Measured on asyncio, as host time from launch "
            "to resumption less the kernel's own 1 ms.",
        )


async def _awaits() -> list[float]:
    """How many microseconds after the end of its kernel each await was over."""
    latencies = []
    with anyio.fail_after(PATIENCE):
        async with Stream(wait="auto") as stream:
            kernels.spin(stream, SPIN)  # the first one loads the kernel
            await stream.synchronize_async()
            for _ in range(AWAITS):
                began = time.perf_counter()
                kernels.spin(stream, SPIN)
                await stream.synchronize_async()
                latencies.append(1e6 * (time.perf_counter() - began - SPIN))
    return latencies
