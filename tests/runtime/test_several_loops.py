"""P12: several loops in one process, each in a thread of its own, with or without the GIL."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

import aiostream
from aiostream import CaptureMode, Event, ExecutableGraph, Stream, StreamPool
from support import LIMIT, PLAIN_LOOPS, USUAL, chosen_seconds, run_together, settle, spin, succeed

LOOPS = 4
ROUNDS = int(15 * chosen_seconds(1))
KINDS = [PLAIN_LOOPS[number % len(PLAIN_LOOPS)] for number in range(LOOPS)]


@pytest.mark.skipif(
    getattr(sys, "_is_gil_enabled", lambda: True)(), reason="the GIL was on before the import"
)
def test_the_import_leaves_the_gil_off(driver_kind: str) -> None:
    script = "import sys, aiostream; aiostream.Stream().close(); print(sys._is_gil_enabled())"
    assert succeed(driver_kind, script) == "False\n"


async def await_in_order(stream: Stream) -> None:
    """Futures of one stream settle in its order, and a cancelled one delays none of them."""
    settled: list[tuple[int, int]] = []
    futures: list[Any] = [stream.enqueue_async(spin, 1e-5 * place) for place in range(4)]
    for place, future in enumerate(futures):
        future.add_done_callback(
            lambda _, place=place: settled.append((place, threading.get_ident()))
        )
    futures[1].cancel()
    await stream.synchronize_async()
    await aiostream.wait(futures)
    await aiostream.ready(lambda: len(settled) == len(futures))  # callbacks come a turn later
    here = threading.get_ident()
    assert [each for each in settled if each[0] != 1] == [(place, here) for place in (0, 2, 3)]


async def use(graph: ExecutableGraph, using: threading.Lock, stream: Stream, event: Event) -> None:
    with using:  # the driver does not guard a graph
        graph.launch(stream)
    event.record(stream)
    await event


@pytest.mark.timeout(LIMIT)
def test_four_loops_share_streams_events_and_graphs() -> None:
    """Each has a pool of its own. All loops use what is shared at once, and look at each other's
    waits.
    """
    together = threading.Barrier(LOOPS)
    streams = [Stream(name="shared") for _ in range(3)]
    event = Event()
    with streams[1].capture_executable(CaptureMode.THREAD_LOCAL) as capture:
        spin(streams[1], 1e-5)
    graph, using = capture.executable, threading.Lock()

    async def work() -> None:
        pool = StreamPool(2, name="own")
        together.wait(30)
        for number in range(ROUNDS):
            stream = streams[number % len(streams)]
            await await_in_order(stream)
            assert await stream.run(str, number) == str(number)
            async with pool.stream() as taken:
                assert await taken.enqueue_async(lambda _, kept: kept, number) == number
            await use(graph, using, stream, event)
            for entry in aiostream.pending():
                assert entry["stream"].startswith(("stream 'shared'", "stream 'own[", "event 0x"))
                assert entry["seconds"] < 60
            aiostream.statistics()
        await pool.aclose()

    run_together(KINDS, work, together)
    assert settle(lambda: aiostream.statistics().points.pending == 0)
    for each in (graph, event, *streams):
        each.close()
    assert aiostream.statistics().balanced


def test_loops_that_use_a_new_stream_first_at_the_same_time() -> None:
    for _ in range(20):
        stream, together = Stream(), threading.Barrier(LOOPS)

        async def first(stream: Stream = stream, together: threading.Barrier = together) -> None:
            together.wait(30)
            await await_in_order(stream)

        run_together(["asyncio"] * LOOPS, first, together)
        stream.close()


def test_threads_of_the_library_have_an_empty_context(driver_kind: str) -> None:
    """A free-threaded Python gives a thread the context of the one that starts it."""
    script = """
    import contextvars, threading, aiostream, internals
    request = contextvars.ContextVar("request")
    request.set("the first one")
    aiostream.Stream().close()
    seen, done = [], threading.Event()
    internals.run_in_janitor(lambda: (seen.append(request.get(None)), done.set()))
    assert done.wait(10)
    print(seen)
    """
    assert succeed(driver_kind, script, forked=USUAL) == "[None]\n"
