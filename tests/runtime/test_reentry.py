"""A signal handler, or a finalizer that the collector runs, comes at any step of the library and
may use it itself.
"""

from __future__ import annotations

import ast
import gc
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Event, Stream, statistics
from support import FULL, USUAL, Gate, held_stream, settle, spin, succeed

# At one step of the first use, `handler` is called as Python calls a signal's handler: in this
# thread, in the middle. A lock that the thread holds there, and that the handler needs too, would
# never be had. Each step has a process of its own.
AT_ONE_STEP = """
    import asyncio, importlib, os, signal, sys
    # once, and not in each child
    import cuda.bindings.driver
    import aiostream, internals
    from aiostream import Context, Device, Event, Stream, StreamPool
    from installed import installed
    from support import run_on, spin

    kinds = installed(["asyncio", "trio"])
    for kind in kinds:
        importlib.import_module(f"anyio._backends._{kind}")

    kept = []

    def handler():
        Device(0).primary_context.health()
        stream = Stream(device=0)
        Stream.legacy(0), Stream.borrow(stream.handle), Event(), StreamPool(1)
        stream.launch_host_func(int)
        if asyncio._get_running_loop() is not None:
            kept.append(stream.completion_future())

    async def use():
        stream = Stream(wait="event")
        spin(stream, 0.001)
        await stream.synchronize_async()
        await stream.enqueue_in_thread(lambda _: 1)
        for future in kept:
            await future
        await stream.aclose()

    def in_child(number):
        left = number
        def trace(frame, event, argument):
            nonlocal left
            if frame.f_code not in internals.STEPS_WITH_LOCKS:
                return None
            left -= event == "line"
            if left == 0:
                left = -1
                handler()
            return trace
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # which ends the process
            sys.settrace(trace)
            for kind in kinds:
                run_on(kind, use)
            sys.settrace(None)
            os._exit(9 if left < 0 else 0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    steps = 0
    while (code := in_child(steps + 1)) == 9:
        steps += STRIDE
    print(code, steps if steps < 20 else "steps")
"""


@pytest.mark.slow
def test_use_in_a_handler_at_each_step_of_the_first_use(driver_kind: str) -> None:
    # A GPU's driver takes a quarter of a second to begin.
    stride = 1 if FULL else 12 if driver_kind == "gpu" else 5
    script = AT_ONE_STEP.replace("STRIDE", str(stride))
    assert succeed(driver_kind, script, timeout=110, forked=USUAL) == "0 steps\n"


def test_no_lock_that_a_handler_could_not_take_again() -> None:
    """A plain Lock that a signal's handler meets in the thread that holds it is never released.

    An RLock lets it through.
    """
    package = Path(aiostream.__file__).parent
    plain = {
        path.relative_to(package).name
        for path in package.rglob("*.py")
        if path.parent.name != "simulator"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"Lock", "allocate_lock"}
    }
    assert plain == set()


def test_finalizers_that_run_inside_a_host_function() -> None:
    """The collector may strike on the driver's thread, where no CUDA call is allowed: the janitor
    destroys.
    """
    before, stream = statistics().handles.open, Stream()
    collected = threading.Event()

    def collect() -> None:
        gc.collect()
        collected.set()

    gc.disable()
    try:
        for _ in range(300):
            knot: list[Any] = [Stream(), Event()]
            knot.append(knot)  # only the cycle collector finds it
        del knot
        stream.launch_host_func(collect)
        assert collected.wait(30)
    finally:
        gc.enable()
    stream.close()
    assert settle(lambda: statistics().handles.open == before)


async def test_streams_dropped_in_flight_finish_their_work() -> None:
    """The janitor destroys them at once, and does not wait for the work."""
    before = statistics().handles.open
    with Gate() as gate:
        futures = []
        for _ in range(4):
            stream = held_stream(gate)
            spin(stream, 0.0002)
            futures.append(stream.completion_future())
            del stream
        gc.collect()
        while statistics().handles.open > before:
            await anyio.lowlevel.checkpoint()
        assert not any(future.done() for future in futures)
        gate.open()
        for future in futures:
            await future
