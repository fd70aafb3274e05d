"""Waits across the end of the interpreter."""

from __future__ import annotations

import time

import pytest

from support import run_script

pytestmark = pytest.mark.usefixtures("default_prediction")


PENDING = """
    import asyncio, atexit, os, sys, time
    import anyio
    from aiostream import statistics
    from support import Gate
    from waiters import CASES, Waiter

    gate = Gate()
    waiters = [Waiter(*case) for case in CASES]

    async def prepare():
        for waiter in waiters:
            waiter.work(0)
            await waiter.wait()
            await waiter.prepare()
        for waiter in waiters:
            gate.hold(waiter.stream)
            waiter.event.record(waiter.stream)

    async def until_all_are_pending():
        polls = statistics().waits.polls
        with_event = sum(stage != "host function" for stage, _ in CASES)
        while statistics().waits.pending < with_event or statistics().waits.polls < polls + 40:
            await anyio.lowlevel.checkpoint()

    # runs before the library's exit handler, whose threads then meet the completions
    atexit.register(gate.open)
"""
CANCELLED = (
    PENDING
    + """
    async def main():
        await prepare()
        async with anyio.create_task_group() as tasks:
            for waiter in waiters:
                tasks.start_soon(waiter.wait)
            await until_all_are_pending()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend={backend!r})
    sys.exit(5)
"""
)
NEVER_CLOSED = (
    PENDING
    + """
    loop = asyncio.new_event_loop()
    loop.run_until_complete(prepare())
    tasks = [loop.create_task(waiter.wait()) for waiter in waiters]
    for task in tasks:
        task._log_destroy_pending = False
    loop.run_until_complete(until_all_are_pending())
    import warnings
    warnings.simplefilter("ignore", ResourceWarning)  # asyncio's own, about the loop
    sys.exit(5)
"""
)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(CANCELLED.format(backend="asyncio"), id="asyncio"),
        pytest.param(CANCELLED.format(backend="trio"), id="trio"),
        pytest.param(NEVER_CLOSED, id="never closed"),
    ],
)
def test_interpreter_exits_with_waits_in_every_stage(driver_kind: str, script: str) -> None:
    began = time.monotonic()
    done = run_script(driver_kind, script)
    assert (done.returncode, done.stderr) == (5, ""), done.stderr
    assert time.monotonic() - began < 20
