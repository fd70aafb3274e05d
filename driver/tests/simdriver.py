"""What the simulator's tests share: the bindings made short, gates, kernels, native and Python host
functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda.bindings.driver

import nogpu

cu: Any = cuda.bindings.driver
HERE = Path(__file__).parent
ROOT = HERE.parent
HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
PTX = (
    b".version 8.0\n.target sm_90\n.address_size 64\n"
    + b"".join(
        b".visible .entry %s() { ret; }\n" % name
        for name in (
            b"spin",
            b"trap",
            b"illegal_address",
            b"saxpy",
            b"fill32",
            b"stamp",
            b"empty",
            b"mine",
            b"unknown",
        )
    )
    + b"\0"
)
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
keep: list[Any] = []  # ctypes functions live as long as the process: the driver may still call them


def ok(result: tuple[Any, ...]) -> Any:
    code, *rest = result
    assert int(code) == 0, code
    return None if not rest else rest[0] if len(rest) == 1 else tuple(rest)


def code(result: tuple[Any, ...]) -> int:
    return int(result[0])


def address(name: str, version: int, flags: int = 1) -> int:
    found = ok(cu.cuGetProcAddress(name.encode(), version, flags))
    return int(found[0] if isinstance(found, tuple) else found)


def raw(name: str, version: int, *types: Any, gil: bool = False) -> Callable[..., int]:
    make = ctypes.PYFUNCTYPE if gil else ctypes.CFUNCTYPE
    return make(ctypes.c_int, *types)(address(name, version))


def until(condition: Callable[..., Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.0005)


class Gate:
    """A word that streams wait for. Never freed: a test that fails may leave streams waiting."""

    def __init__(self) -> None:
        self.address = int(ok(cu.cuMemHostAlloc(64, 0)))
        self.word = ctypes.c_uint32.from_address(self.address)
        self.word.value = 0

    def hold(self, stream: Any) -> None:
        ok(cu.cuStreamWaitValue32(stream, self.address, 1, 0))

    def open(self) -> None:
        self.word.value = 1


class Kernels:
    """The built-in kernels, of one module of the current context."""

    def __init__(self) -> None:
        self.module = ok(cu.cuModuleLoadData(PTX))
        self.functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        if name not in self.functions:
            self.functions[name] = ok(cu.cuModuleGetFunction(self.module, name.encode()))
        return self.functions[name]

    def launch(self, name: str, stream: Any, *arguments: Any) -> tuple[Any, ...]:
        values = tuple(argument.value for argument in arguments)
        types = tuple(type(argument) for argument in arguments)
        result: tuple[Any, ...] = cu.cuLaunchKernel(
            self.function(name), 1, 1, 1, 1, 1, 1, 0, stream, (values, types), 0
        )
        return result

    def spin(self, stream: Any, seconds: float) -> None:
        ok(self.launch("spin", stream, ctypes.c_uint64(int(seconds * 1e9))))


def host(stream: Any, function: Callable[..., Any]) -> None:
    """Enqueues a Python host function by the driver's own address."""
    native = HOST(lambda _: function())
    keep.append(native)
    enqueue = raw("cuLaunchHostFunc", 10000, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    assert enqueue(int(stream), ctypes.cast(native, ctypes.c_void_p), None) == 0


def callback(stream: Any, function: Callable[[int], Any]) -> int:
    native = CALLBACK(lambda _, status, __: function(status))
    keep.append(native)
    enqueue = raw(
        "cuStreamAddCallback",
        5000,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint,
    )
    return enqueue(int(stream), ctypes.cast(native, ctypes.c_void_p), None, 0)


def in_thread(function: Callable[[], Any]) -> Any:
    """What the function returns in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(30)
    assert results, "the thread raised or hangs"
    return results[0]


def objects() -> dict[str, int]:
    """Returns how many of the driver's objects there are that a program has to destroy."""
    driver = nogpu._driver()
    driver.nogpu_objects.restype = ctypes.c_size_t
    # As in `enum object_kind`.
    kinds = {"streams": 1, "events": 2, "graphs": 6, "executables": 8, "user objects": 9}
    return {name: driver.nogpu_objects(kind) for name, kind in kinds.items()}


def chosen_seconds(default: float) -> float:
    """How long a random test lasts: `AIOSTREAM_TEST_SECONDS`, if that is set."""
    return float(os.environ.get("AIOSTREAM_TEST_SECONDS", default))


LIMIT = 110 + 10 * chosen_seconds(0)
"""Seconds after which such a test hangs. Sanitizers and busy machines are slow."""


def shared_environment() -> dict[str, str]:
    """That of a program, which can import what tests share."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}


def run_python(
    program: str, seconds: float = 30.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**shared_environment(), **environment},
        check=False,
    )


def said_before_hanging(program: str, seconds: float) -> str:
    """What a program prints that hangs: it must still run `seconds` after its first line."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    options: Any = {"stdout": subprocess.PIPE, "text": True, "env": shared_environment()}
    with subprocess.Popen(command, **options) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(30, process.kill)
        watchdog.start()
        try:
            said = process.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                ended = process.wait(seconds)
                raise AssertionError(f"it has ended with exit code {ended}, after {said!r}")
        finally:
            watchdog.cancel()
            process.kill()
        return str(said + process.stdout.read())
