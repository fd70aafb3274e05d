"""Ctrl-C while an observer of each step, as a trace is, drives an await."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import pytest

import aiostream
import internals
from aiostream import Stream, statistics, trace
from aiostream.testing import Gate
from interrupts import Striker, ends, is_interrupt
from support import PLAIN_LOOPS, Kept, run_on
from waiters import until


@pytest.mark.parametrize("kind", PLAIN_LOOPS)
@pytest.mark.parametrize("moment", ["enters", "leaves"])
def test_ctrl_c_in_a_step_ends_the_wait(kind: str, moment: str) -> None:
    """The watcher may hold the wait until its work ends, and no longer."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def wait() -> None:
        before = statistics().waits.pending
        async with Stream() as stream:
            with Gate() as gate:
                gate.hold(stream)
                with (
                    internals.observer_that_acts(moment, 1, interrupt),
                    pytest.raises(KeyboardInterrupt) as interrupted,
                ):
                    await stream.synchronize_async()
            # While the traceback keeps the frames of the wait.
            assert interrupted.tb is not None
            assert await aiostream.drain(timeout=20)
            await until(lambda: statistics().waits.pending == before)
            await stream.synchronize_async()

    run_on(kind, wait)


@pytest.mark.parametrize(("moment", "number"), [("enters", 1), ("leaves", 1), ("leaves", 2)])
def test_ctrl_c_in_a_step_of_a_call_in_a_thread_reaches_the_main_task(
    moment: str, number: int
) -> None:
    """Trio's wait for the thread is not cut off: its end would wake a task that is over."""
    trio = pytest.importorskip("trio")
    interrupted, release = threading.Event(), threading.Event()

    def interrupt() -> None:
        interrupted.set()
        signal.raise_signal(signal.SIGINT)

    async def call(stream: Stream) -> None:
        with internals.observer_that_acts(moment, number, interrupt):
            await stream.enqueue_in_thread(lambda given: release.wait(20))

    async def release_later() -> None:
        with trio.CancelScope(shield=True):
            await until(interrupted.is_set)
            for _ in range(20):  # a call that was cut off has ended by then
                await trio.lowlevel.checkpoint()
            release.set()
            await trio.to_thread.run_sync(int)

    async def main() -> None:
        async with Stream() as stream, trio.open_nursery() as tasks:
            tasks.start_soon(release_later)
            tasks.start_soon(call, stream)

    with pytest.raises(BaseException) as raised:
        trio.run(main)
    assert is_interrupt(raised.value), raised.value
    trio.run(aiostream.drain, 20)


def test_ctrl_c_behind_the_function_of_a_traced_run_frees_nothing() -> None:
    watched: list[weakref.ref[Kept]] = []
    striker = Striker(1)

    def launch() -> Kept:
        result = Kept()
        watched.append(weakref.ref(result))
        striker.__enter__()  # it strikes in the trace, which marks the end of the work
        return result

    async def run() -> None:
        with trace.record(), Gate() as gate:
            gate.hold(stream)
            with pytest.raises(KeyboardInterrupt):
                await stream.run(launch)
            striker.end()
            gc.collect()
            assert watched[0]() is not None, striker.where

    stream = Stream()
    try:
        run_on("asyncio", run)
    finally:
        striker.end()
    assert "trace" in striker.where
    stream.synchronize()
    assert ends(lambda: watched[0]() is None)
    stream.close()
