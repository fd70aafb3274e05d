"""Small questions to a CUDA driver, whose answers do not depend on time or chance.

`answers.py` asks them, on the simulator or on a GPU. A probe is a name and a function without
arguments. Probes do not depend on each other, because one that ends the process is left out and
the next one goes on in a new process. None takes more than a few MiB, and none fills memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

if "NOGPU_DEVICES" in os.environ:  # of `python -m nogpu`
    import nogpu as simulator

    simulator.install()
    simulator.register_ptx(
        ".version 7.8\n.target sm_90\n.visible .entry number(.param .u64 v) { ret; }"
    )

import cuda.bindings.driver as cu

Probes = Iterator[tuple[str, Callable[[], Any]]]
GROUPS: dict[str, Callable[[], Probes]] = {}

PTX = b"""
.version 7.8
.target sm_90
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .global .align 8 .b8 table[40];
.const .align 4 .u32 constant = 5;
.visible .entry empty() { ret; }
.visible .entry number(.param .u64 value) { ret; }
\0"""
ONE_ENTRY = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry e() { ret; }\n\0"
NULL, NONBLOCKING, LEGACY, PER_THREAD, MIB = None, 1, 1, 2, 1 << 20
RELAXED = 2
DEVICE_PLACE, HOST_PLACE = 1, 2


class Place(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


def group(probes: Callable[[], Probes]) -> Callable[[], Probes]:
    GROUPS[probes.__name__.replace("_", " ")] = probes
    return probes


def ok(answer: Any) -> Any:
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


def code(answer: Any) -> int:
    return int(answer[0])


def raw(name: str, *arguments: Any, version: int = 12000) -> int:
    """Calls a function of the driver by its address, so that the bindings check nothing.

    An int is passed as 64 bits. An argument that the driver reads as 32 bits reads the lower half.
    """
    address = int(ok(cu.cuGetProcAddress(name.encode(), version, 0))[0])
    call = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    passed = [ctypes.c_int64(one) if isinstance(one, int) else one for one in arguments]
    return int(call(*[ctypes.c_void_p(None) if one is None else one for one in passed]))


def begin() -> Any:
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(0))
    ok(cu.cuCtxSetCurrent(context))
    return context


def stream(flags: int = NONBLOCKING) -> int:
    return int(ok(cu.cuStreamCreate(flags)))


def event(flags: int = 2) -> int:
    return int(ok(cu.cuEventCreate(flags)))


def kernel(name: bytes = b"empty") -> Any:
    return ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PTX)), name))


def place() -> Any:
    """Eight bytes for an answer."""
    return ctypes.byref(ctypes.c_uint64(0))


def answered(name: str, kind: Any, *arguments: Any, version: int = 12000) -> Any:
    """The code, and the value of the answer, which the function's first argument receives."""
    out = kind(-77)
    result = raw(name, ctypes.byref(out), *arguments, version=version)
    return (result, out.value) if result == 0 else result


def pool_properties(**fields: Any) -> Any:
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    for name, value in fields.items():
        setattr(properties, name, value)
    return properties
