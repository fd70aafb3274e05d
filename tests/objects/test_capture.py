"""Captures: refused calls leave them alone, and no call of the library invalidates one."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

import aiostream
from aiostream import CaptureMode, Event, Stream, StreamCaptureError, statistics
from captures import CAPTURES, GLOBAL, MODES, begin, end
from internals import native_call_replaced
from support import BACKENDS, FULL, STRATEGIES, USUAL, Gate, cases_on_loops, settle, spin, succeed
from waiters import CASES, Waiter, counts, since, turns, until

in_each_mode = cases_on_loops("mode", [(mode,) for mode in MODES])


@pytest.fixture(params=CAPTURES)
def capture(request: pytest.FixtureRequest) -> Callable[[Stream, int], Any]:
    return CAPTURES[request.param]


def never(*_: Any) -> None:
    raise AssertionError("it was called, though the call that was given it was refused")


REFUSED: list[Callable[[Stream], Any]] = [
    lambda stream: stream.completion_future(),
    lambda stream: stream.checked_completion_future(),
    lambda stream: stream.synchronize_async(),
    lambda stream: stream.enqueue_async(never),
    lambda stream: stream.query(),
    lambda stream: stream.synchronize(),
    lambda stream: stream.add_callback(never),
    lambda stream: stream.to_borrowed().completion_future(),
    lambda stream: Stream.borrow(stream.handle).query(),
]


async def require_refusals(
    thing: Stream | Event, code: int, calls: Iterable[Callable[..., Any]]
) -> None:
    for call in calls:
        with pytest.raises(StreamCaptureError) as caught:
            awaitable = call(thing)
            if awaitable is not None:
                await awaitable
        assert caught.value.code == code
        assert caught.value.stream is not None
        assert caught.value.call.startswith("cu")


@in_each_mode
async def test_refused_calls_leave_the_capture_alone(
    stream: Stream, capture: Any, mode: int
) -> None:
    before = statistics().points
    capturing = capture(stream, mode)
    await require_refusals(stream, 900, REFUSED)
    spin(stream, 0)  # the one node
    await require_refusals(stream, 900, REFUSED)
    assert capturing.end() == 1
    after = statistics().points
    assert (after.armed, after.quarantined) == (before.armed, before.quarantined)
    assert stream.query() in (True, False)  # and the stream serves as before
    await stream.synchronize_async()
    stream.synchronize()  # the point's own host function may not have returned yet
    assert stream.query()


@in_each_mode
async def test_legacy_stream_is_refused_while_a_blocking_stream_captures(
    event: Event, capture: Any, mode: int
) -> None:
    stream, legacy = Stream(non_blocking=False), Stream.legacy()
    spin(stream, 0)
    await legacy.synchronize_async()
    capturing = capture(stream, mode)
    spin(stream, 0)
    enqueues = [lambda stream: stream.launch_host_func(never), event.record]
    await require_refusals(legacy, 906, [*REFUSED[:7], *enqueues])
    await require_refusals(legacy, 906, [Stream.capture_status, Stream.capture_info])
    assert capturing.end() == 1
    await legacy.synchronize_async()
    stream.close()


async def test_capture_of_a_non_blocking_stream_leaves_the_legacy_stream_alone(
    stream: Stream,
) -> None:
    legacy = Stream.legacy()
    begin(stream, GLOBAL)
    await legacy.completion_future()
    await legacy.synchronize_async()
    legacy.synchronize()
    assert legacy.query()
    spin(stream, 0)
    assert end(stream) == 1


async def test_what_is_pending_when_a_capture_begins_ends(stream: Stream, capture: Any) -> None:
    for mode in MODES:
        with Gate() as gate:
            gate.hold(stream)
            futures = [stream.completion_future(), stream.checked_completion_future()]
            async with anyio.create_task_group() as group:
                group.start_soon(stream.synchronize_async)
                await until(lambda: counts().pending == 1)
                capturing = capture(stream, mode)
                gate.open()
                for future in futures:
                    await future
            spin(stream, 0)
            assert capturing.end() == 1


@in_each_mode
async def test_other_streams_and_events_work_during_a_capture(
    stream: Stream, other: Stream, event: Event, capture: Any, mode: int
) -> None:
    """Everything that asks the driver something, also in the thread that captures, for which GLOBAL
    forbids it.
    """
    unrecorded = Event()
    await event.synchronize_async()
    capturing = capture(stream, mode)
    spin(stream, 0)
    for _ in range(3):
        spin(other, 0.0002)
        event.record(other)
        other.query()
        event.query()
        await event.synchronize_async()
        await other.synchronize_async()
        assert await other.enqueue_async(lambda stream: 5) == 5
        await other.completion_future()
        await other.checked_completion_future()
        other.synchronize()
        event.synchronize()
        assert other.query()
        assert event.query()
        assert unrecorded.query()
        assert other.context.health() == 0
        ran = threading.Event()
        other.launch_host_func(ran.set)
        await other.completion_future()
        assert ran.is_set()
    assert capturing.end() == 1
    unrecorded.close()


async def test_dropping_and_closing_streams_and_events_does_not_end_a_capture(
    stream: Stream, other: Stream, capture: Any
) -> None:
    await other.synchronize_async()
    victims: list[Any] = [maker() for maker in (Stream, Event) for _ in range(4)]
    capturing = capture(stream, GLOBAL)
    spin(stream, 0)
    open_handles = statistics().handles.open
    victims.pop(0).close()  # a stream, in the loop's thread
    victims.pop().close()  # an event
    expected = open_handles - 2 - len(victims)
    victims.clear()  # the rest by the janitor
    while statistics().handles.open > expected:
        await other.synchronize_async()
    assert capturing.end() == 1


# -------------------------------------------------------------------------- captures in the traffic


class Traffic:
    """Tasks that work and wait on their own streams, in one loop, until they are stopped."""

    arrivals = 0
    stopping = False

    async def waits(self, stream: Stream) -> None:
        event = Event()
        while not self.stopping:
            spin(stream, 0.0001)
            event.record(stream)
            await event.synchronize_async()
            stream.query()
            await stream.synchronize_async()
            self.arrivals += 1
        event.close()

    async def completions(self, stream: Stream) -> None:
        while not self.stopping:
            spin(stream, 0.0001)
            futures = [stream.completion_future() for _ in range(9)]
            for future in (*futures, stream.checked_completion_future()):
                await future
            self.arrivals += 1


@cases_on_loops("where", [("here",), ("elsewhere",)])
async def test_many_captures_during_other_work(stream: Stream, where: str) -> None:
    """None is invalidated and nothing is lost, while the janitor destroys graphs in the
    background. Each capture lasts for some arrivals in the loop.
    """
    traffic, calls = Traffic(), list[int]()
    streams = [Stream() for _ in range(3)]
    captures = 200 if FULL else 60

    def capture_often() -> Iterator[Callable[..., bool]]:
        """Yields within each capture until when it lasts."""
        for number in range(captures):
            with stream.capture(list(CaptureMode)[number % 3]) as capture:
                spin(stream, 0)
                stream.launch_host_func(calls.append, number)
                # The watcher polls at least once in every tenth capture.
                passes = statistics().watcher_passes + (2 if number % 10 == 0 else 0)
                yield (
                    lambda wanted=traffic.arrivals + 3, passes=passes: (
                        traffic.arrivals >= wanted and statistics().watcher_passes >= passes
                    )
                )
            assert len(capture.graph.nodes) == 2
            # Both are dropped here: the janitor destroys them during the next captures.
            capture.graph.instantiate().launch(stream)

    def capture_elsewhere() -> None:
        with stream.context.as_current():
            for is_over in capture_often():
                assert settle(is_over), "nothing arrives during the capture"

    with Gate() as gate:
        gate.hold(streams[0])
        pending = streams[0].completion_future()  # keeps the watcher looking
        async with anyio.create_task_group() as group:
            group.start_soon(traffic.waits, streams[1])
            group.start_soon(traffic.completions, streams[2])
            if where == "here":
                for is_over in capture_often():
                    await until(is_over)
            else:
                await anyio.to_thread.run_sync(capture_elsewhere)
            traffic.stopping = True
        assert not pending.done()
    await pending
    await stream.synchronize_async()
    assert calls == list(range(captures))
    for each in streams:
        each.close()


def test_first_use_of_the_library_during_a_capture(driver_kind: str) -> None:
    """The library starts, and makes its private streams, while this thread captures GLOBAL."""
    script = """
        import asyncio
        import captures
        from aiostream import Event, Stream, StreamCaptureError
        from support import spin
        captured, other, event = Stream(), Stream(), Event()
        spin(captured, 0)
        async def main():
            captures.begin(captured, captures.GLOBAL)
            event.record(other)
            await other.completion_future()
            await other.synchronize_async()
            await event.synchronize_async()
            try:
                captured.completion_future()
            except StreamCaptureError as error:
                print("refused", error.code)
            print("nodes", captures.end(captured))
        asyncio.run(main())
    """
    assert succeed(driver_kind, script, forked=USUAL) == "refused 900\nnodes 0\n"


# ----------------------------------------------------------------- a capture that begins in between


@contextlib.contextmanager
def capture_begins_after_check(stream: Stream, mode: int, *, check: int = 1) -> Iterator[None]:
    """A driver under which a capture begins right after the n-th check of the stream."""
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    handle, checks = stream.handle, 0

    def replace(original: Callable[..., int]) -> Callable[..., int]:
        def check_and_begin(asked: int, status: Any) -> int:
            nonlocal checks
            code = original(asked, status)
            if asked == handle:
                checks += 1
                if checks == check:
                    begin(stream, mode)
            return code

        return check_and_begin

    with native_call_replaced("cuStreamIsCapturing", signature, replace):
        yield
    assert checks >= check, "the stream was never checked"


def quarantined_by(call: Callable[[], Any], stream: Stream, mode: int, check: int = 1) -> int:
    before = statistics()
    with (
        capture_begins_after_check(stream, mode, check=check),
        pytest.raises(StreamCaptureError) as caught,
    ):
        call()
    assert caught.value.code == 900
    end(stream)  # what we enqueued may be a node of it, but it was not invalidated
    after = statistics()
    assert after.balanced, after
    assert after.futures.pending == before.futures.pending
    created = after.futures.created - before.futures.created
    assert created == after.futures.cancelled - before.futures.cancelled
    return after.points.quarantined - before.points.quarantined


@pytest.mark.cuda_leaks(3)
@pytest.mark.parametrize("loop_kind", BACKENDS)
async def test_a_capture_that_begins_between_check_and_enqueue_quarantines_a_completion(
    stream: Stream,
) -> None:
    for mode in MODES:
        assert quarantined_by(stream.completion_future, stream, mode) == 1
        await stream.completion_future()  # the stream, and the bridge, serve as before


@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", BACKENDS)
async def test_the_first_completion_of_a_stream_ends_no_capture_that_begins_meanwhile() -> None:
    stream = Stream()  # of which nothing is known yet
    assert quarantined_by(stream.completion_future, stream, GLOBAL) == 1
    stream.close()


@pytest.mark.cuda_leaks(1)
def test_a_capture_that_begins_between_check_and_enqueue_quarantines_a_host_function(
    stream: Stream,
) -> None:
    ran: list[int] = []
    assert quarantined_by(lambda: stream.launch_host_func(ran.append, 1), stream, GLOBAL) == 1
    stream.launch_host_func(ran.append, 2)
    stream.synchronize()
    assert ran == [2]


@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", BACKENDS)
async def test_capture_that_begins_after_fn_is_counted_once() -> None:
    stream = Stream(wait="hostfunc")
    # The first check is enqueue_async's own, the second arms the completion of what fn enqueued.
    count = quarantined_by(lambda: stream.enqueue_async(lambda _: None), stream, GLOBAL, check=2)
    assert count == 1
    stream.close()


@pytest.mark.needs_gil("a capture must not begin and end within one step of the library")
def test_captures_that_begin_at_any_moment(driver_kind: str) -> None:
    """A thread captures the stream again and again while a loop asks for completions of it.

    It runs in its own process, because it is not known before how many are quarantined, and leaked.
    """
    if driver_kind == "gpu":
        pytest.skip("libcuda crashes in such a race, also without this library (docs/driver.md)")
    script = """
        import asyncio, threading
        import captures
        from aiostream import Stream, StreamCaptureError, statistics
        stream = Stream()
        stopping, died = False, []
        def capture():
            with stream.context.as_current():
                while not stopping:
                    captures.begin(stream, captures.RELAXED)
                    try:
                        captures.end(stream)
                    except BaseException as error:
                        died.append(error)
                        return
        async def main():
            global stopping
            thread = threading.Thread(target=capture)
            thread.start()
            refused = arrived = 0
            while refused + arrived < 3000 and not died:
                try:
                    await stream.completion_future()
                    arrived += 1
                except StreamCaptureError:
                    refused += 1
            stopping = True
            thread.join()
            await stream.completion_future()
            count = statistics()
            assert not died, died
            assert count.balanced, count
            assert count.points.pending == count.futures.pending == 0, count
            assert count.points.leaked == count.points.quarantined, count
            print(f"arrived {arrived}, refused {refused}, "
                  f"of them quarantined {count.points.quarantined}")
        asyncio.run(main())
    """
    print(succeed(driver_kind, script, forked=USUAL))


# ------------------------------------------------------------------------------------------- events


@in_each_mode
async def test_an_event_recorded_on_a_capturing_stream_has_no_time(
    stream: Stream, other: Stream, event: Event, capture: Any, mode: int
) -> None:
    event.record(stream)
    assert event.query() in (True, False)
    capturing = capture(stream, mode)
    event.record(stream)
    await require_refusals(event, 907, [Event.query, Event.synchronize, Event.synchronize_async])
    capturing.end()
    with pytest.raises(StreamCaptureError):  # nor afterwards: it belongs to the graph
        event.query()
    event.record(other)
    await event.synchronize_async()
    assert event.query()


# -------------------------------------------------------------------------------------------- waits


@pytest.mark.usefixtures("default_prediction")
@cases_on_loops("strategy, mode", zip(STRATEGIES, itertools.cycle(MODES)))
async def test_capturing_stream_refuses_its_waits_untouched(
    strategy: Any, mode: int, driver_kind: str
) -> None:
    """Also if the stream was so busy that no wait queries it first. The capture is then noticed
    after the record, which takes the library's event into the capture. That harms neither.
    """
    stream, event = Stream(wait=strategy), Event()
    spin(stream, 0)
    for busy in (0, 40, 20):
        for _ in range(busy):
            spin(stream, 0.0002)
            await stream.synchronize_async()
        stream.synchronize()
        before, armed = counts(), statistics().points.armed
        with stream.capture(aiostream.CaptureMode(mode)) as capture:
            spin(stream, 0)
            await require_refusals(stream, 900, [Stream.synchronize_async] * 20)
            event.record(stream)
            await require_refusals(event, 907, [Event.synchronize_async])
            spin(stream, 0)
            assert stream.capture_status() is aiostream.CaptureStatus.ACTIVE
        assert len(capture.graph.nodes) == 2
        capture.graph.close()
        now = since(before)
        assert (now.ready, now.spun, now.watched, now.pending) == (0, 0, 0, 0)
        assert statistics().points.armed == armed
    stream.close()
    event.close()


@pytest.mark.usefixtures("default_prediction")
@cases_on_loops("where, mode", itertools.product(CAPTURES, MODES))
async def test_waits_in_all_stages_invalidate_no_capture(where: str, mode: int) -> None:
    """P6, also by the library's threads that poll."""
    waiters = [Waiter(stage, thing) for stage, thing in CASES]
    captured = Stream()
    spin(captured, 0)
    for waiter in waiters:
        waiter.work(0)
        await waiter.wait()
        await waiter.prepare()
    groups = -(-len(waiters) // 3)
    before = counts()
    async with anyio.create_task_group() as tasks:
        # Three held streams at a time, because each holds a hardware queue. In different stages:
        # the watcher polls one of them.
        for number in range(groups):
            gate = Gate()
            for waiter in waiters[number::groups]:
                gate.hold(waiter.stream)
                waiter.event.record(waiter.stream)
            capture = CAPTURES[where](captured, mode)
            for waiter in waiters[number::groups]:
                tasks.start_soon(waiter.wait)
            spin(captured, 0)
            polls = counts().polls
            passes = statistics().watcher_passes
            while counts().polls < polls + 8 or statistics().watcher_passes < passes + 2:
                await anyio.lowlevel.checkpoint()
            gate.open()
            await turns()
            assert capture.end() == 1
    assert since(before).watched > 0
    for waiter in waiters:
        waiter.close()
    captured.close()
