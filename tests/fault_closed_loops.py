"""The paths of `test_faults.py` on which a loop is closed while a task waits, in each stage.

See `fault_engine.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import aiostream
import waiters
from fault_engine import Faults, Scenario
from fault_scenarios import WITHOUT_LOOP, use_async
from internals import limit_timer
from support import Gate


def _close_a_loop_in_stage(stage: str, thing: str) -> None:
    @contextlib.asynccontextmanager
    async def keep() -> AsyncIterator[Any]:
        waiter = waiters.Waiter(stage, thing)
        with Gate() as gate:
            yield waiter, gate
        limit_timer(waiters.MOST_TIMERS)
        with contextlib.suppress(aiostream.CudaError):
            waiter.close()

    async def act(faults: Faults, kept: Any) -> None:
        waiter, gate = kept
        gate.shut()
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, what: faults.report(what.get("exception")))

        async def begin() -> asyncio.Task[None]:
            await waiter.hold(gate, 0.004)
            task = asyncio.create_task(waiter.wait())
            await waiter.reach()
            return task

        task = loop.run_until_complete(begin())
        with faults:
            loop.close()
            del task
            gc.collect()
            gate.open()
        gate.open()

        async def go_on() -> None:
            await use_async(waiter.stream)
            await waiter.wait()

        asyncio.run(go_on())

    WITHOUT_LOOP.append(Scenario(f"a loop closed under a wait for a {thing}, {stage}", act, keep))


for _stage, _thing in waiters.CASES:
    _close_a_loop_in_stage(_stage, _thing)
