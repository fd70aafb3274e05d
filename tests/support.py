"""What most tests share: loops, gates that hold streams, and scripts in processes of their own."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from aiostream import Device, Stream, interop
from internals import (
    bindings,
    driver_call,
    is_drain,
    load_kernels,
    spin,
    start_watcher,
    stop_watcher,
)

__all__ = [
    "ASYNCIO_LOOPS",
    "BACKENDS",
    "LIMIT",
    "LOOPS",
    "PLAIN_LOOPS",
    "Blind",
    "Gate",
    "chosen_seconds",
    "chosen_seed",
    "held_stream",
    "recover",
    "run_on",
    "run_script",
    "run_together",
    "settle",
    "spin",
    "succeed",
]


def chosen_seconds(default: float) -> float:
    """How long a random test lasts: `AIOSTREAM_TEST_SECONDS`, if that is set."""
    return float(os.environ.get("AIOSTREAM_TEST_SECONDS", default))


def chosen_seed() -> int:
    """Where a random test begins: `AIOSTREAM_TEST_SEED`, else 1."""
    return int(os.environ.get("AIOSTREAM_TEST_SEED", "1"))


LIMIT = 110 + 10 * chosen_seconds(0)
"""Seconds after which a random test that runs for `chosen_seconds` hangs.

Sanitizers and busy machines are slow.
"""

LOOPS = ["asyncio", "asyncio-debug", "uvloop", "asyncio-eager", "trio"]
"""The kinds of loops on which each `async def` test runs. A new kind has its line here and in `run_on`."""

PLAIN_LOOPS = ["asyncio", "uvloop", "trio"]
"""Each loop as it comes, for tests that take long."""

ASYNCIO_LOOPS = ["asyncio", "uvloop"]
"""The loops with asyncio's interface, for tests of asyncio's futures."""

BACKENDS = ["asyncio", "trio"]
"""One loop for each file of `_loops`, for tests that take very long."""


class Blind(asyncio.SelectorEventLoop):
    """A loop that cannot watch descriptors for others, as asyncio's proactor loop cannot."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        if is_drain(callback):
            raise NotImplementedError
        super().add_reader(fd, callback, *args)


def run_on(loop_kind: str, function: Callable[..., Any], *args: Any) -> Any:
    """Runs a coroutine function to its end on one kind of loop."""
    if loop_kind == "trio":
        import trio

        return trio.run(function, *args)
    if loop_kind == "asyncio-eager":
        eager: Any = getattr(asyncio, "eager_task_factory", None)
        if eager is None:
            pytest.skip("eager tasks came with Python 3.12")

        async def eagerly() -> Any:
            asyncio.get_running_loop().set_task_factory(eager)
            return await function(*args)

        with asyncio.Runner() as runner:
            return runner.run(eagerly())
    if loop_kind == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    else:
        factory = None
    with asyncio.Runner(debug=loop_kind == "asyncio-debug", loop_factory=factory) as runner:
        return runner.run(function(*args))


def run_together(
    kinds: list[str], function: Callable[..., Any], together: threading.Barrier
) -> None:
    """Runs a coroutine function on loops of these kinds, each in a thread of its own; one that
    fails breaks the barrier.
    """
    errors: list[tuple[str, BaseException]] = []

    def run(kind: str) -> None:
        try:
            run_on(kind, function)
        except BaseException as error:
            errors.append((kind, error))
            together.abort()

    threads = [
        threading.Thread(target=run, args=(kind,), name=f"aiostream-test-{kind}") for kind in kinds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a loop hangs"
    assert not errors, errors


def settle(condition: Callable[..., bool], seconds: float = 10.0) -> bool:
    """Waits until other threads have done what they are about to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def recover(simulator: Any) -> None:
    """Makes the simulator's failed contexts healthy again.

    The library does not expect that. So the watcher is stopped meanwhile: a pass that saw the
    failure must be over.
    """
    stop_watcher()
    simulator.recover()
    start_watcher()


class Gate:
    """Holds streams on the GPU until it is opened: work in place of a sleep (`cuStreamWaitValue32`
    on pinned memory).

    A held stream keeps one of the device's hardware queues (8 by default), so hold few. Leaving the
    `with` block opens it.
    """

    def __init__(self) -> None:
        load_kernels(Device(0).primary_context)  # with a gate shut, the driver would load nothing
        with Device(0).primary_context.as_current():
            self._pointer = int(driver_call("cuMemHostAlloc", 64, 3))  # portable, mapped
        self._word = ctypes.c_uint32.from_address(self._pointer)
        self._word.value = 0

    def hold(self, stream: Any) -> None:
        """Later work of the stream waits for `open()`."""
        reference = interop.reference_to(stream)
        driver = bindings()
        with reference.context.as_current():
            flags = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value
            handle = driver.CUstream(reference.handle.value)
            driver_call("cuStreamWaitValue32", handle, driver.CUdeviceptr(self._pointer), 1, flags)

    def open(self) -> None:
        """Lets everything through, also what is held later, until it is shut."""
        self._word.value = 1

    def shut(self) -> None:
        """Holds what comes from now on; everything that was held before must be through."""
        self._word.value = 0

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.open()


def held_stream(gate: Gate, **options: Any) -> Stream:
    """A new stream on which nothing gets through before the gate is opened."""
    stream = Stream(**options)
    gate.hold(stream)
    return stream


def run_script(
    driver_kind: str,
    script: str,
    *,
    timeout: float = 60.0,
    warnings: str = "error",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python text in a process of its own, on the driver that is under test.

    Failed contexts, exits and forks cannot be tested in the process that tests. The modules of
    `tests/` can be imported there.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": os.path.dirname(__file__),
        "PYTHONFAULTHANDLER": "1",
        **environment,
    }
    variables["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    variables["AIOSTREAM_SIMULATOR"] = "1" if driver_kind == "simulator" else ""
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=variables,
        check=False,
    )


def succeed(driver_kind: str, script: str, **options: Any) -> str:
    """Runs a script that must end with code 0 and nothing on stderr; returns what it printed."""
    done = run_script(driver_kind, script, **options)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout
