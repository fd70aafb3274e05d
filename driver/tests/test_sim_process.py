"""Installing, ending, forking; the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simdriver import run_python

SECONDS = float(os.environ.get("AIOSTREAM_TEST_SECONDS", "1"))
LIMIT = 110 + 10 * SECONDS
"""Seconds after which a test under a sanitizer, which runs for `SECONDS`, hangs."""

SETUP = """
    import nogpu as simulator
    simulator.install()
    from simdriver import *
    ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
    stream, gate, kernels = ok(cu.cuStreamCreate(1)), Gate(), Kernels()
"""


def test_installing_twice() -> None:
    program = """
        import nogpu as simulator
        assert not simulator.installed()
        try: simulator.calls("cuInit")
        except RuntimeError as error: print(error)
        simulator.install(devices=3)
        simulator.install(); simulator.install(devices=3)
        try: simulator.install(devices=1)
        except RuntimeError as error: print(error)
        assert simulator.installed()
    """
    done = run_python(program, LD_LIBRARY_PATH="")  # also if `python -m nogpu` runs these tests
    assert "not installed" in done.stdout, done.stderr
    assert "already installed, with other options: devices=3" in done.stdout


def test_a_driver_that_is_already_there(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make another libcuda.so.1 with")
    other = tmp_path / "libcuda.so.1"
    (tmp_path / "other.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", other, tmp_path / "other.c"], check=True)
    program = f"""
        import ctypes
        ctypes.CDLL({str(other)!r})
        import nogpu as simulator
        try: simulator.install()
        except RuntimeError as error: print(error)
    """
    done = run_python(program)
    assert f"another CUDA driver, {other}" in done.stdout, done.stderr


def test_before_cuinit() -> None:
    program = """
        import nogpu as simulator
        simulator.install()
        from simdriver import *
        print(code(cu.cuDeviceGetCount()), code(cu.cuStreamCreate(0)),
            code(cu.cuDriverGetVersion()))
    """
    assert run_python(program).stdout == "3 3 0\n"


# Late host functions and callbacks are C. A thread that calls a Python function through `ctypes`
# while Python ends may crash, without a driver too: so did 64 of 300 processes on Python 3.14.8,
# 2 on 3.13.0 and 1 on 3.11.7.
NATIVE = """usleep, getpid = (ctypes.cast(each, ctypes.c_void_p)
        for each in (ctypes.CDLL(None).usleep, ctypes.CDLL(None).getpid))
    enqueue = raw("cuLaunchHostFunc", 10000, *[ctypes.c_void_p] * 3)
    add = raw("cuStreamAddCallback", 5000, *[ctypes.c_void_p] * 3, ctypes.c_uint)
    """


@pytest.mark.parametrize(
    "pending",
    [
        "kernels.spin(stream, 30)",
        "gate.hold(stream); host(stream, print); callback(stream, print)",
        "kernels.spin(stream, 0.002); assert enqueue(int(stream), usleep, 1) == 0",
        "assert enqueue(int(stream), usleep, 50000) == 0",
        "[enqueue(int(stream), usleep, 20000) for _ in range(50)]",
        "ok(kernels.launch('trap', stream)); add(int(stream), getpid, None, 0)",
    ],
)
def test_the_process_ends_with_work_pending(pending: Any) -> None:
    done = run_python(SETUP + f"    {NATIVE}{pending}\n    print('end', flush=True)\n", seconds=10)
    assert done.stdout.startswith("end")
    assert done.returncode == 0, done.stderr


def test_a_forked_child_does_not_hang() -> None:
    program = (
        SETUP
        + """
    import os, warnings
    warnings.simplefilter("ignore")
    event = ok(cu.cuEventCreate(0))
    kernels.spin(stream, 0.2); host(stream, lambda: None); ok(cu.cuEventRecord(event, stream))
    child = os.fork()
    if child == 0:
        asked = [cu.cuStreamQuery(stream), cu.cuStreamSynchronize(stream), cu.cuEventQuery(event),
            cu.cuDriverGetVersion(),
                 cu.cuGetErrorName(cu.CUresult(1)),
                 cu.cuInit(0), cu.cuDeviceGetCount(), cu.cuMemAlloc(64), cu.cuCtxGetCurrent(),
                 cu.cuStreamCreate(1),
                 cu.cuCtxSynchronize(), cu.cuDevicePrimaryCtxRetain(0)]
        simulator.pending_work()
        os._exit(0 if [code(each) for each in asked] == [0] * 5 + [3] * 7 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    ok(cu.cuStreamSynchronize(stream))
    """
    )
    done = run_python(program, seconds=10)
    assert done.stdout == "0\n", done.stderr


VISIBLE: list[tuple[str | None, str]] = [
    (None, "0 [0, 1, 2]"),
    ("1", "0 [1]"),
    ("2,0", "0 [2, 0]"),
    (" 1 , 0 ", "0 [1, 0]"),
    ("0,5,1", "0 [0]"),
    ("0,-1,1", "0 [0]"),
    ("0,,1", "0 [0]"),
    (",0", "100 []"),
    ("0abc", "0 [0]"),
    ("1.5", "0 [1]"),
    ("0x1", "0 [0]"),
    ("1,0,1", "101 []"),
    (
        "GPU-6e6f6770-7520-7369-6d75-6c61746f7201,GPU-6e6f6770-7520-7369-6d75-6c61746f7201",
        "101 []",
    ),
    ("1,GPU-6e6f6770-7520-7369-6d75-6c61746f7201,2", "0 [1]"),
    ("GPU-6e6f6770-7520-7369-6d75-6c61746f7202,0", "0 [2, 0]"),
    ("GPU-6e6f6770-7520-7369-6d75-6c61746f7201", "0 [1]"),
    ("GPU-6e6f6770,0", "100 []"),  # fits all of them
    ("GPU-00000000", "100 []"),
    ("", "100 []"),
    ("-1", "100 []"),
    ("none", "100 []"),
]


def test_visible_devices() -> None:
    """CUDA_VISIBLE_DEVICES is read at cuInit, hides devices and gives them another order.

    Each value has a process of its own, forked before the first call of the driver.
    """
    program = f"""
        import os, sys, traceback
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        import nogpu as simulator
        simulator.install(devices=3)
        from simdriver import *

        def look(visible):
            if visible is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = visible
            answer, found = code(cu.cuInit(0)), []
            assert code(cu.cuInit(0)) == answer
            assert answer == 0 or (code(cu.cuDeviceGetCount()), code(cu.cuDeviceGet(0))) == (3, 3)
            for device in range(ok(cu.cuDeviceGetCount()) if answer == 0 else 0):
                number = ok(cu.cuDeviceGetUuid(device)).bytes[15]
                bus = ok(cu.cuDeviceGetPCIBusId(13, device))
                assert bus.startswith(b"0000:%02x" % (number + 1)), bus
                assert int(ok(cu.cuDeviceGetByPCIBusId(bus))) == device
                found.append(number)
            assert code(cu.cuDevicePrimaryCtxRetain(len(found))) == (101 if found else 3)
            print((visible, f"{{answer}} {{found}}"), flush=True)

        for visible, _ in {VISIBLE!r}:
            child = os.fork()
            if child == 0:
                try:
                    look(visible)
                    os._exit(0)
                finally:
                    traceback.print_exc()
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0, visible
    """
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(pair) for pair in VISIBLE]


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_under_a_sanitizer(sanitizer: str) -> None:
    """Builds the library with it and lets many threads loose; skipped only where the sanitizer's
    runtime is missing.
    """
    script = Path(__file__).with_name("sanitize.sh")

    command = ["sh", str(script), sanitizer, sys.executable, str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode == 77:
        pytest.skip(
            f"gcc, or its {sanitizer} sanitizer's runtime, is not installed here: "
            f"{done.stdout.strip()}"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stress:" in done.stdout
