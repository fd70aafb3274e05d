"""Waits across the end of the interpreter, and forks."""

from __future__ import annotations

import time

import pytest

from support import run_script, succeed

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


def test_forked_child_leaves_the_parents_waits_alone(driver_kind: str) -> None:
    """In the child every wait is refused and coroutines end quietly.

    The parent's watcher and loop notice nothing.
    """
    script = """
        import asyncio, gc, os, sys, warnings
        from aiostream import statistics
        from support import Gate
        from waiters import Waiter
        # Python 3.12's own, about threads and fork
        warnings.simplefilter("ignore", DeprecationWarning)

        def child(coroutines, waiter):
            try:
                waiter.wait().send(None)
            except RuntimeError as error:  # asyncio knows that its loop does not run here
                print("refused")
            for coroutine in coroutines:
                coroutine.close()
            del coroutines, waiter
            gc.collect()
            sys.stdout.flush()
            os._exit(0)

        async def main():
            gate = Gate()
            waiters = [Waiter("spinning"), Waiter("watched"), Waiter("by timer")]
            for waiter in waiters:
                await waiter.prepare()
                gate.hold(waiter.stream)
            before = statistics().waits.polls
            coroutines = [waiter.wait() for waiter in waiters]
            tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
            while statistics().waits.pending < 3 or statistics().waits.polls < before + 20:
                await asyncio.sleep(0)
            if os.fork() == 0:
                child(coroutines, waiters[1])
            os.wait()
            gate.open()
            await asyncio.gather(*tasks)
            print("all ended", statistics().balanced)
            for waiter in waiters:
                waiter.close()

        asyncio.run(main())
    """
    assert succeed(driver_kind, script) == "refused\nall ended True\n"
