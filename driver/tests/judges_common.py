"""What the judge programs import as `common`, for the simulator and for a GPU.

A judge program checks what it sees with `check(what, expected, seen)`. `answers.py --programs`
runs such programs. The kernels have bodies, which the simulator does not execute.
"""

# ruff: noqa: F401  (the programs use these modules)

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as d
import numpy as np

simulator: Any
if "NOGPU_DEVICES" in os.environ:  # of `python -m nogpu`
    import nogpu as simulator

    simulator.install()
else:

    class simulator:  # type: ignore[no-redef]  # noqa: N801  (a GPU has neither of them)
        @staticmethod
        def seed(value: Any) -> None:
            pass

        @staticmethod
        def pending_work() -> int:
            return 0


PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns)
{
    .reg .u64 %r<5>;
    .reg .pred %again;
    ld.param.u64 %r1, [ns];
    mov.u64 %r2, %globaltimer;
AGAIN:
    mov.u64 %r3, %globaltimer;
    sub.u64 %r4, %r3, %r2;
    setp.lt.u64 %again, %r4, %r1;
    @%again bra AGAIN;
    ret;
}
.visible .entry fill32(.param .u64 p, .param .u32 v, .param .u32 n)
{
    .reg .u64 %a;
    .reg .u32 %v, %n, %i;
    .reg .pred %more;
    ld.param.u64 %a, [p];
    ld.param.u32 %v, [v];
    ld.param.u32 %n, [n];
    mov.u32 %i, 0;
AGAIN:
    setp.lt.u32 %more, %i, %n;
    @!%more bra DONE;
    st.global.u32 [%a], %v;
    add.u64 %a, %a, 4;
    add.u32 %i, %i, 1;
    bra AGAIN;
DONE:
    ret;
}
.visible .entry empty() { ret; }
.visible .entry trap() { trap; ret; }
\0"""
NB = 1


def code(answer: Any) -> int:
    return int(answer[0])


def c(answer: Any) -> Any:
    assert code(answer) == 0, d.CUresult(code(answer)).name
    return answer[1] if len(answer) == 2 else answer[1:] if len(answer) > 2 else None


c(d.cuInit(0))
dev = c(d.cuDeviceGet(0))
ctx = c(d.cuDevicePrimaryCtxRetain(dev))
c(d.cuCtxSetCurrent(ctx))
mod = c(d.cuModuleLoadData(PTX))
SPIN, FILL, EMPTY = (c(d.cuModuleGetFunction(mod, name)) for name in (b"spin", b"fill32", b"empty"))


def launch(function: Any, s: Any, arguments: Any = ()) -> Any:
    values = tuple(value for value, _ in arguments)
    kinds = tuple(kind for _, kind in arguments)
    packed = (values, kinds) if arguments else 0
    return d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, packed, 0)


def spin(s: Any, seconds: float) -> None:
    c(launch(SPIN, s, [(int(seconds * 1e9), ctypes.c_uint64)]))


def stream(flags: int = 0) -> Any:
    return c(d.cuStreamCreate(flags))


def event(flags: int = 2) -> Any:
    return c(d.cuEventCreate(flags))


class Gate:
    """Holds a stream until it is opened."""

    def __init__(self) -> None:
        self.p = c(d.cuMemHostAlloc(64, 0))
        self.v = ctypes.cast(int(self.p), ctypes.POINTER(ctypes.c_uint32))
        self.v[0] = 0

    def close(self, s: Any) -> None:
        c(d.cuStreamWaitValue32(s, int(self.p), 1, 1))

    def open(self) -> None:
        self.v[0] = 1


def idle(s: Any) -> bool:
    return code(d.cuStreamQuery(s)) == 0


def edone(e: Any) -> bool:
    return code(d.cuEventQuery(e)) == 0


def soon(condition: Callable[[], bool], seconds: float = 2.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.002)
    return False


def never(condition: Callable[[], bool], seconds: float = 0.15) -> bool:
    return not soon(condition, seconds)


def check(what: str, expected: Any, seen: Any, note: str = "") -> None:
    right = seen in expected if isinstance(expected, set | tuple) else seen == expected
    print(f"{what}\t{'ok' if right else f'expected {expected}, got {seen}'}", flush=True)


def done() -> None:
    """The end of a program."""


# A driver loads kernels at their first launch, which waits for all work in flight.
_warm = stream(NB)
_memory = c(d.cuMemAlloc(64))
c(launch(EMPTY, _warm))
spin(_warm, 1e-6)
c(
    launch(
        FILL,
        _warm,
        [(int(_memory), ctypes.c_uint64), (0, ctypes.c_uint32), (1, ctypes.c_uint32)],
    )
)
c(d.cuStreamSynchronize(_warm))
c(d.cuStreamDestroy(_warm))
c(d.cuMemFree(_memory))
