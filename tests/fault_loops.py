"""The loops of `test_faults.py`: the first use of the library in a loop and in a process, and
loops that are closed while a task waits, in each stage.

See `fault_engine.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

import aiostream
import waiters
from aiostream import Event, Stream, StreamPool
from fault_engine import Faults, Scenario
from fault_scenarios import WITHOUT_LOOP, a_stream, a_waiter, use, use_async, without_loop
from installed import installed
from support import PLAIN_LOOPS, run_on

for _name in installed(["trio", "uvloop"]):
    import_module(_name)  # once, and not in each child

# -------------------------------------------------------------------------------------- whole loops


def _runs() -> dict[str, Callable[[Callable[[], Any]], None]]:
    kinds = installed([*PLAIN_LOOPS, "blind"])
    return {kind: functools.partial(run_on, kind) for kind in kinds}


def _first_use(name: str, run: Callable[[Callable[[], Any]], None], awaited: str) -> None:
    def path(faults: Faults, stream: Stream) -> None:
        async def main() -> None:
            with faults:
                if awaited == "future":
                    await stream.completion_future()
                else:
                    stream.completion_future()  # its loop ends before
            await use_async(stream)

        run(main)
        use(stream)

    path.__name__ = f"first use in {name}, {awaited}"
    # A refusal of what trio's own start asks for ends trio. See `test_trio_whose_epoll_is_full` for
    # what the library asks for.
    without_loop(a_stream, exempt={"epoll_ctl"} if name == "trio" else set())(path)


for _name, _run in _runs().items():
    _first_use(_name, _run, "future")
    _first_use(_name, _run, "nothing")


# --------------------------------------------------------------------------------- loops that close


def _close_a_loop_in_stage(stage: str, thing: str) -> None:
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

    name = f"a loop closed under a wait for a {thing}, {stage}"
    WITHOUT_LOOP.append(Scenario(name, act, a_waiter(stage, thing)))


for _stage, _thing in waiters.CASES:
    _close_a_loop_in_stage(_stage, _thing)


# ----------------------------------------------------------------------- the first use in a process


async def _first_waits(strategy: Any) -> None:
    stream = Stream(wait=strategy)
    try:
        with contextlib.closing(Event()) as event:
            await stream.enqueue_async(Stream.launch_host_func, int)
            event.record(stream)
            await event.synchronize_async()
            await stream.synchronize_async()
            await stream.checked_completion_future()
    finally:
        stream.close()


def _first_without_loop(faults: Faults) -> None:
    with (
        faults,
        contextlib.closing(StreamPool(1)),
        contextlib.closing(Stream()) as stream,
        contextlib.closing(Event()) as event,
    ):
        event.record(stream)
        stream.launch_host_func(int)
        stream.synchronize()
        assert event.query()
        assert aiostream.health() is None


def _first_uses() -> dict[str, Callable[[Faults], None]]:
    uses: dict[str, Callable[[Faults], None]] = {"without a loop": _first_without_loop}

    def use_in(run: Callable[[Callable[[], Any]], None], strategy: str) -> Callable[[Faults], None]:
        async def main(faults: Faults) -> None:
            with faults:
                await _first_waits(strategy)

        return lambda faults: run(lambda: main(faults))

    for name, run in _runs().items():
        uses[name] = use_in(run, "auto")
    uses["asyncio, host functions"] = use_in(_runs()["asyncio"], "hostfunc")
    return uses


FIRST_USES = _first_uses()
