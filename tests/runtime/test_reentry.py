"""A signal handler, or a finalizer that the collector runs, comes at any step of the library and
may use it itself.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aiostream
from support import FULL, succeed

# At one step of the first use, `handler` is called as Python calls a signal's handler: in this
# thread, in the middle. A lock that the thread holds there, and that the handler needs too, would
# never be had. Each step has a process of its own.
AT_ONE_STEP = """
    import asyncio, importlib, os, signal, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: fork with threads about
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
    assert succeed(driver_kind, script, timeout=110) == "0 steps\n"


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
