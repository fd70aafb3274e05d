"""The watcher when the driver refuses or blocks, and what another thread's capture, a fork or an
interrupt does in the middle.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import internals
from aiostream import CaptureMode, Stream, StreamCaptureError, statistics
from interrupts import Striker
from support import BACKENDS, EVENT_STRATEGIES, USUAL, Gate, held_stream, run_on, settle, succeed

RECORD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))


def in_a_short_capture(stream: Stream) -> Callable[[Any], Callable[..., int]]:
    """Another thread's capture of the stream begins before the record of a wait, and ends
    after it.
    """

    def replace(original: Any) -> Callable[..., int]:
        def record(event: int, handle: int, flags: int) -> int:
            driver = internals.bindings()
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            internals.driver_call("cuStreamBeginCapture", driver.CUstream(stream.handle), mode)
            code = int(original(event, handle, flags))
            internals.driver_call("cuStreamEndCapture", driver.CUstream(stream.handle))
            return code

        return record

    return replace


async def call(stream: Stream) -> None:
    await stream.enqueue_async(lambda _: None)


@pytest.mark.parametrize("loop_kind", BACKENDS)
@pytest.mark.parametrize(
    ("wait", "make"),
    [
        *((wait, Stream.synchronize_async) for wait in EVENT_STRATEGIES),
        # Nothing proves that the GPU has passed what the function enqueued.
        pytest.param("event", call, marks=pytest.mark.cuda_leaks(1)),
    ],
)
async def test_a_capture_that_takes_the_record_of_a_wait_and_ends(
    wait: Any, make: Callable[[Stream], Any], loop_kind: str
) -> None:
    """The stream no longer captures when the library asks, and the event is a captured one
    nevertheless.
    """
    with Gate() as gate:
        stream = held_stream(gate, wait=wait)
        replaced = internals.native_call_replaced(
            "cuEventRecordWithFlags", RECORD, in_a_short_capture(stream)
        )
        with replaced, pytest.raises(StreamCaptureError, match="took in"):
            await make(stream)
        gate.open()
        await make(stream)  # the wait's event serves again
        stream.close()


@pytest.fixture
def restarted_watcher() -> Any:
    yield
    internals.stop_watcher()
    internals.start_watcher()


def test_a_watcher_that_could_not_become_relaxed(restarted_watcher: None) -> None:
    """It tries again. Else its polls would end another thread's captures."""
    refused, relaxed = list[int](), list[int]()
    others = {thread.native_id for thread in threading.enumerate()}

    def refuse_once(original: Any) -> Callable[..., int]:
        def exchange(mode: Any) -> int:
            # The janitor calls it too, and without the GIL perhaps at the same time.
            is_other = threading.get_native_id() in others
            if not (refused or is_other):
                refused.append(mode[0])
                return 999
            code = int(original(mode))
            if not is_other:
                relaxed.append(code)
            return code

        return exchange

    async def wait() -> None:
        with Gate() as gate:
            stream = held_stream(gate, wait="event")
            task = asyncio.ensure_future(stream.synchronize_async())
            before = internals.native_counters()[internals.EVENT_POLLS]
            await asyncio.sleep(0)
            other = Stream()
            with other.capture(CaptureMode.GLOBAL) as capture:
                assert settle(
                    lambda: internals.native_counters()[internals.EVENT_POLLS] > before + 3
                )
            capture.graph.close()
            gate.open()
            await task
            stream.close()
            other.close()

    Stream().close()
    internals.stop_watcher()
    with internals.native_call_replaced("cuThreadExchangeStreamCaptureMode", EXCHANGE, refuse_once):
        internals.start_watcher()
        # The pass that was refused still polls, and must be over before there is a capture.
        assert settle(lambda: len(relaxed) > 0)
        asyncio.run(wait())


def test_a_child_that_is_forked_in_a_use(driver_kind: str) -> None:
    """It ends the use, as the last user of a closed handle in the child's memory, and destroys
    nothing.
    """
    script = """
        import os
        import aiostream, internals
        from aiostream import Graph, Stream
        stream, graph = Stream(), Graph()
        with internals.pinned(stream), internals.pinned(graph):
            stream.close()
            graph.close()
            pid = os.fork()
        if pid == 0:
            os._exit(aiostream.statistics().handles.destroyed)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
            aiostream.statistics().handles.destroyed)
    """
    assert succeed(driver_kind, script, forked=USUAL) == "0 2\n"


@pytest.mark.parametrize("loop_kind", BACKENDS)
def test_an_interrupt_while_a_queue_is_used_leaves_none(loop_kind: str) -> None:
    """A queue without an owner, or with a point that stays reserved, would keep three descriptors
    for good.
    """
    stream = Stream()

    async def use() -> None:
        await stream.completion_future()

    run_on(loop_kind, use)
    before = len(os.listdir("/proc/self/fd"))
    for number in itertools.count(1):
        with suppress(KeyboardInterrupt), Striker(number, codes=internals.QUEUE_STEPS) as striker:
            run_on(loop_kind, use)
        if not striker.has_struck:
            break
        # Each loop that is alive, or whose host function has yet to run, has a queue of its own.
        # Queues are kept for reuse.
        assert settle(lambda: statistics().points.pending == 0)
        gc.collect()
        assert settle(internals.janitor_is_idle)
    assert number > 8
    run_on(loop_kind, use)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) - before <= 3 * 3
    stream.close()
