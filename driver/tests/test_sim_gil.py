"""The GIL and the bindings' own host functions: one call, three ways, one of them safe
(docs/driver.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from simdriver import HAS_GIL, run_python, said_before_hanging

PROGRAM = """
    import nogpu as simulator
    simulator.install()
    from simdriver import *
    ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
    stream, kernels = ok(cu.cuStreamCreate(1)), Kernels()
    synchronize = raw("cuCtxSynchronize", 2000, gil={gil})
    free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value
    kernels.spin(stream, {spin})
    {enqueue}
    print("calling", flush=True)
    assert synchronize() == 0
    print("returned", flush=True)
"""
RAW = "raw('cuLaunchHostFunc', 10000, *[ctypes.c_void_p] * 3)(int(stream), free, None)"
BINDINGS = "ok(cu.cuLaunchHostFunc(stream, cu.CUhostFn(free), 0))"
CALLBACK = (
    "native = CALLBACK(lambda *_: None); "
    "ok(cu.cuStreamAddCallback(stream, "
    "cu.CUstreamCallback(ctypes.cast(native, ctypes.c_void_p).value), 0, 0))"
)
PYTHON = "host(stream, lambda: None)"


@pytest.mark.parametrize("enqueue", [RAW, BINDINGS, CALLBACK, PYTHON])
def test_all_return_when_the_gil_is_released(enqueue: Any) -> None:
    done = run_python(PROGRAM.format(gil=False, enqueue=enqueue, spin=0.1))
    assert done.stdout == "calling\nreturned\n", done.stderr


def test_a_native_function_by_its_address_returns_with_the_gil_kept() -> None:
    done = run_python(PROGRAM.format(gil=True, enqueue=RAW, spin=0.1))
    assert done.stdout == "calling\nreturned\n", done.stderr


@pytest.mark.skipif(not HAS_GIL, reason="a thread that keeps the GIL hinders no other one")
@pytest.mark.parametrize("enqueue", [CALLBACK, PYTHON])
def test_a_function_that_wants_the_gil_hangs_with_the_gil_kept(enqueue: Any) -> None:
    def hangs(spin: float) -> bool:
        program = PROGRAM.format(gil=True, enqueue=enqueue, spin=spin)
        try:
            return said_before_hanging(program, seconds=3 * spin) == "calling\n"
        except AssertionError:
            return False

    # The call must begin before the spin is over. On a busy machine it may come too late.
    assert any(map(hangs, (0.3, 0.3, 3)))
