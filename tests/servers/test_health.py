"""What one query of a context's health by the watcher says of the waits in it."""

from __future__ import annotations

from typing import Any

import pytest

from aiostream import CudaError, Stream, statistics
from support import USUAL, Gate, settle, succeed

pytestmark = pytest.mark.simulator_only("a GPU refuses nothing on command")


# 900 and 906 are codes of a capture, and 600 is not-ready.
@pytest.mark.parametrize("code", [2, 304, 600, 900, 906, 999])
async def test_one_failed_look_of_the_watcher_fails_no_wait(
    stream: Stream, breakable: Any, code: int
) -> None:
    """An error that is gone at the next query says nothing about the context."""
    with Gate() as gate:
        gate.hold(stream)
        waits = [stream.completion_future(), stream.enqueue_async(lambda _: None)]
        breakable.fail("cuStreamQuery", code)
        before = statistics()
        assert settle(lambda: statistics().watcher_passes > before.watcher_passes + 1)
        assert breakable.clear_faults() == 0, "the watcher did not meet the error"
        assert [wait.done() for wait in waits] == [False, False]
        gate.open()
        for wait in waits:
            await wait
    assert statistics().points.leaked == before.points.leaked


async def test_an_error_that_stays_fails_the_waits(stream: Stream, breakable: Any) -> None:
    """Also one that the library does not know as fatal."""
    with Gate() as gate:
        gate.hold(stream)
        future = stream.completion_future()
        for nth in range(1, 9):
            breakable.fail("cuStreamQuery", 999, nth=nth)
        with pytest.raises(CudaError) as caught:
            await future
        assert caught.value.code == 999
        breakable.clear_faults()
        gate.open()
        stream.synchronize()


def test_a_fault_counts_before_a_context_that_was_destroyed(driver_kind: str) -> None:
    """In a process of its own, where no other context came first."""
    script = """
        import aiostream
        from aiostream import Context, Stream, simulator
        from internals import create_context, driver_call

        handle = create_context()
        with Context.from_handle(int(handle)).as_current():
            Stream().close()
        driver_call("cuCtxDestroy", handle)
        stream = Stream()
        simulator.break_context(716)
        print(aiostream.health().code)
    """
    assert succeed(driver_kind, script, forked=USUAL) == "716\n"
