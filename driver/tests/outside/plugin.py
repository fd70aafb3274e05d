"""A pytest plugin that runs another project's tests on the simulator, and notes how each ended.

`run.py` loads it into the processes that it starts by `python -m nogpu`. It changes three things,
because the simulator is a driver and not the runtime, and runs no machine code:

- NVRTC compiles to PTX where a test asks for a cubin. Each entry of the text is registered, with
  its body in `kernels.c` or as a kernel that does nothing.
- The driver's functions answer for `cudaDeviceSynchronize` and `cudaGetDevice`.
- The latch of cuda.core's tests, a kernel that spins until the host lets it go, is a wait for a
  value.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import nogpu as simulator

# Of each kernel its body in `kernels.c`, and the sizes of its parameters.
BODIES: dict[str, tuple[str, list[int]]] = {
    "add_one": ("add_one", [8]),
    "_Z7add_onePi": ("add_one", [8]),
    "_Z6affinePiii": ("affine", [8, 4, 4]),
    "_Z7combinePiS_S_": ("combine", [8, 8, 8]),
    "_Z6reducePiS_m": ("reduce", [8, 8, 8]),
    "nanosleep_kernel": ("sleep_a_while", []),
    "_Z8set_zeroPcm": ("zero_bytes", [8, 8]),
    "_Z7add_onePcm": ("add_one_to_bytes", [8, 8]),
    "_Z10helloworldPi": ("count_up", [8]),
}


def register_bodies() -> None:
    bodies = ctypes.CDLL(os.environ["OUTSIDE_KERNELS"])
    for kernel, (body, sizes) in BODIES.items():
        address = ctypes.cast(getattr(bodies, body), ctypes.c_void_p).value or 0
        simulator.register_kernel(kernel, address, parameters=sizes)


def compile_to_ptx() -> None:
    """Has cuda.core's `Program` compile to PTX, and registers the entries that have no body."""
    import cuda.core

    class Program(cuda.core.Program):  # type: ignore[misc]
        def compile(self, target_type: str, *args: Any, **kwargs: Any) -> Any:
            kind = "ptx" if target_type == "cubin" else target_type
            code = super().compile(kind, *args, **kwargs)
            if kind == "ptx":
                simulator.register_ptx(code.code)
            return code

    cuda.core.Program = Program


def answer_for_the_runtime() -> None:
    from cuda.bindings import driver, runtime

    def synchronize() -> Any:
        return (runtime.cudaError_t(int(driver.cuCtxSynchronize()[0])),)

    def device() -> Any:
        code, number = driver.cuCtxGetDevice()
        return runtime.cudaError_t(int(code)), int(number)

    runtime.cudaDeviceSynchronize = synchronize
    runtime.cudaGetDevice = device


def replace_the_latch() -> None:
    from cuda.bindings import driver

    folders = os.environ.get("OUTSIDE_HELPERS", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in folders if folder]
    try:
        latch: Any = importlib.import_module("helpers.latch")
    except ImportError:
        return

    class LatchKernel:
        def __init__(self, device: Any, timeout_sec: float = 60) -> None:
            from cuda.core import LegacyPinnedMemoryResource

            self.buffer = LegacyPinnedMemoryResource().allocate(4)
            self.busy_wait_flag[0] = 0

        @property
        def busy_wait_flag(self) -> Any:
            return ctypes.cast(int(self.buffer.handle), ctypes.POINTER(ctypes.c_int32))

        def launch(self, stream: Any) -> None:
            (code,) = driver.cuStreamWaitValue32(stream.handle, int(self.buffer.handle), 1, 1)
            assert int(code) == 0, code

        def release(self) -> None:
            self.busy_wait_flag[0] = 1

    latch.LatchKernel = LatchKernel


def find_helpers_of_bindings() -> None:
    """The wheel of cuda.bindings lacks the helpers of its tests. The checkout has them."""
    if folder := os.environ.get("OUTSIDE_BINDINGS"):
        import cuda.bindings

        cuda.bindings.__path__.append(folder)


def pytest_configure(config: Any) -> None:
    find_helpers_of_bindings()
    register_bodies()
    with contextlib.suppress(ImportError):
        compile_to_ptx()
        answer_for_the_runtime()
        replace_the_latch()


refused: dict[str, set[str]] = {}
"""What the simulator refused in a test, by the test's name: the function's names."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> Any:
    before = dict(simulator.unsupported_calls())
    result = yield
    now = simulator.unsupported_calls()
    refused[item.nodeid] = {name for name, count in now.items() if count != before.get(name, 0)}
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = []
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, []):
            text = getattr(report, "longrepr", None)
            crash = getattr(text, "reprcrash", None)
            message = crash.message if crash is not None else str(text or "")
            functions = ", ".join(sorted(refused.get(report.nodeid, ())))
            rows.append([report.nodeid, outcome, f"{message[:2000]}\nrefused: {functions}"])
    Path(os.environ["OUTSIDE_RESULTS"]).write_text(json.dumps(rows))
