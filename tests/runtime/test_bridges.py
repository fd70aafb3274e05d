"""Bridges and readerless loops: what they hold, what ends them, and that one loop's trouble is no
other's.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import aiostream
import internals
from aiostream import Stream, StreamPool
from support import ASYNCIO_LOOPS, Blind, Gate, Kept, held_stream, run_on, settle, spin

# ----------------------------------------------------------------------------------- what they hold


@pytest.mark.parametrize("kind", [*ASYNCIO_LOOPS, "blind"])
def test_a_loop_does_not_keep_what_a_tasks_variables_hold(kind: str) -> None:
    """asyncio copies the context of the task that adds a reader, or calls something later."""
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("request")
    requests: list[weakref.ref[Any]] = []
    stream: Any = None
    pool: Any = None

    async def serve(use: Callable[[], Any]) -> None:
        request = Kept()
        requests.append(weakref.ref(request))
        variable.set(request)
        await use()

    async def poll() -> None:
        """Has the loop poll in its next turn, and in each turn from then on."""
        stream.enqueue_async(lambda on: spin(on, 0.01))

    async def borrow() -> None:
        async with pool.stream() as borrowed:
            borrowed.enqueue_async(lambda on: spin(on, 0.01))

    async def main() -> None:
        nonlocal stream, pool
        async with Stream() as stream, StreamPool(1) as pool:
            for use in (poll, stream.synchronize_async, stream.completion_future, borrow, poll):
                await asyncio.create_task(serve(use))
            await asyncio.sleep(0)  # asyncio's own turn for the last task
            gc.collect()
            assert [request() for request in requests] == [None] * 5
            assert await aiostream.drain(10)

    run_on(kind, main)


def test_queues_are_used_again_while_a_destructor_blocks(loop_kind: str) -> None:
    """A bridge's finalizer closes its queue itself: cleaning up for others may take seconds, as
    cudaFree behind a kernel does.
    """
    blocked, go_on = threading.Event(), threading.Event()

    class Buffer:
        def __del__(self) -> None:
            blocked.set()
            assert go_on.wait(30)

    async def cancel(stream: Stream) -> None:
        stream.enqueue_async(lambda on, buffer: None, Buffer()).cancel()

    async def serve() -> None:
        async with Stream() as stream:
            await stream.completion_future()

    try:
        with Gate() as gate:
            stream = held_stream(gate)
            # In a thread that ends, because without the GIL a thread frees what it has made.
            thread = threading.Thread(target=run_on, args=(loop_kind, cancel, stream))
            thread.start()
            thread.join()
        assert blocked.wait(10)
        run_on(loop_kind, serve)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            run_on(loop_kind, serve)
            gc.collect()
        assert len(os.listdir("/proc/self/fd")) < before + 10
    finally:
        go_on.set()
    stream.close()


# ----------------------------------------------------------------------------------- what ends them


@pytest.mark.parametrize("cleared", [False, True])
def test_what_an_interrupt_left_on_a_closed_loop_is_the_orphans(
    monkeypatch: pytest.MonkeyPatch, cleared: bool
) -> None:
    """Ctrl-C strikes a delivery, and the loop is closed before it comes again.

    With `cleared` it also dies.
    """

    struck: list[None] = []

    def interrupt_once(orphaned: bool, drain: Callable[[], None]) -> None:
        if not orphaned and not struck:
            struck.append(None)
            raise KeyboardInterrupt
        return drain()

    async def main() -> None:
        with Gate() as gate:
            gate.hold(stream)
            thing = Kept()
            watched.append(weakref.ref(thing))
            kept.append(stream.enqueue_async(lambda on, thing: None, thing))
            del thing
        await kept[0]

    internals.intercept_drain(monkeypatch, interrupt_once)
    kept: list[Any] = []
    watched: list[weakref.ref[Kept]] = []
    before = aiostream.statistics().futures
    stream = Stream()
    loop = Blind()
    task = loop.create_task(main())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(task)
    assert struck
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    if cleared:
        del loop, task
        kept.clear()
        gc.collect()
    assert settle(lambda: aiostream.statistics().futures.pending == 0)
    now = aiostream.statistics().futures
    assert now.dropped + now.cancelled == before.dropped + before.cancelled + 1
    assert settle(lambda: gc.collect() >= 0 and watched[0]() is None)
    stream.close()


# --------------------------------------------------------------------------------- readerless loops


class Faulty(Blind):
    """Refuses to take arrivals, and to say whether it is closed, until it is mended."""

    error: BaseException | None = None
    torn = False
    refused = 0

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, **options: Any
    ) -> Any:
        if self.error is not None and internals.is_drain(callback):
            self.refused += 1
            raise self.error
        return super().call_soon_threadsafe(callback, *args, **options)

    def is_closed(self) -> bool:
        if self.torn and threading.current_thread().name == "aiostream-janitor":
            raise ValueError("torn")
        return super().is_closed()


async def begin_behind(gate: Gate) -> tuple[Stream, Any]:
    stream = held_stream(gate)
    return stream, stream.completion_future()


async def wait_for_a_completion() -> None:
    with Gate() as gate:
        stream, future = await begin_behind(gate)
    await asyncio.wait_for(future, 10)
    stream.close()


@pytest.mark.parametrize(
    ("error", "torn"),
    [
        (None, True),
        (ValueError("torn"), True),
        (ValueError("torn"), False),
        (RuntimeError("not running"), False),
        (SystemExit(3), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_a_loop_that_cannot_be_called_or_asked_holds_up_no_other(
    unraisable: list[Any], error: BaseException | None, torn: bool
) -> None:
    """It is tried again, and each error is reported once."""
    with asyncio.Runner(loop_factory=Faulty) as runner, Gate() as gate:
        stream, future = runner.run(begin_behind(gate))
        faulty: Any = runner.get_loop()
        faulty.torn, faulty.error = torn, error
        gate.open()
        assert settle(lambda: bool(unraisable) and (error is None or faulty.refused > 0))
        run_on("blind", wait_for_a_completion)
        assert settle(lambda: error is None or faulty.refused > 3)
        faulty.torn, faulty.error = False, None
        runner.run(asyncio.wait_for(future, 10))
    expected = error or ValueError("torn")
    assert [each[:2] for each in unraisable] == [(type(expected), str(expected))]
    stream.close()


def test_the_janitor_lets_go_of_a_descriptor_that_another_loop_has_got() -> None:
    """The janitor serves the end of each run of trio.

    Then its queue is a later loop's, which watches it itself.
    """
    import trio

    async def serve() -> int:
        async with Stream() as stream:
            await stream.completion_future()
            return int(internals.current_bridge().descriptor)

    async def serve_and_look() -> bool:
        descriptor = await serve()
        reused.append(descriptor in descriptors)
        return settle(lambda: descriptor not in internals.readerless_descriptors())

    descriptors: set[int] = set()
    reused: list[bool] = []
    for _ in range(3):
        descriptors.add(trio.run(serve))
        gc.collect()
    for _ in range(50):  # a queue comes back only when the janitor has let go of it too
        assert asyncio.run(serve_and_look())
        if any(reused):
            return
        gc.collect()
        descriptors.add(trio.run(serve))
        gc.collect()
    raise AssertionError("no loop got the queue of an earlier run of trio")
