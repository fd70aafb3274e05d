"""`synchronize`: the wait of a thread without a loop."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import aiostream
from aiostream import ContextFailedError, Event, Stream, StreamCaptureError, StreamClosedError
from support import STRATEGIES, USUAL, Gate, held_stream, recover, run_script, settle, spin

THINGS = ["stream", "event"]


class Held:
    """A stream that is held, and what is waited for: the stream, or an event on it."""

    def __init__(self, gate: Gate, thing: str, **options: Any) -> None:
        self.stream = held_stream(gate, **options)
        self.event = Event()
        self.event.record(self.stream)
        self.synchronize = (self.stream if thing == "stream" else self.event).synchronize

    def close(self) -> None:
        self.stream.close()
        self.event.close()


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("wait", STRATEGIES)
def test_raises_in_time_and_the_work_goes_on(wait: Any, thing: str, cuda_gate: Gate) -> None:
    held = Held(cuda_gate, thing, wait=wait)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"on device 0 was not done after 0\.05 s"):
        held.synchronize(timeout=0.05)
    assert 0.05 <= time.monotonic() - began < 5
    with pytest.raises(TimeoutError):
        held.synchronize(timeout=0)
    with pytest.raises(TimeoutError):
        held.synchronize(timeout=-1)
    assert not held.stream.query()
    cuda_gate.open()
    held.synchronize(timeout=20)
    held.synchronize(timeout=0)  # it is over
    assert held.event.query()
    held.close()


@pytest.mark.parametrize("thing", THINGS)
def test_is_pending_until_the_work_is_done(thing: str, cuda_gate: Gate) -> None:
    held = Held(cuda_gate, thing)
    thread = threading.Thread(target=held.synchronize, args=(float("inf"),))
    thread.start()
    settle(lambda: len(aiostream.pending()) == 1)
    [entry] = aiostream.pending()
    assert entry["call"] == f"{thing.capitalize()}.synchronize"
    assert aiostream.statistics().waits.pending == 1
    cuda_gate.open()
    thread.join(20)
    assert not thread.is_alive()
    assert held.event.query()
    assert aiostream.pending() == []
    held.close()


@pytest.mark.parametrize("timeout", ["1", True, float("nan")])
def test_refuses_what_is_no_number_of_seconds(timeout: Any) -> None:
    with Stream().sync_scope() as stream, Event() as event:
        for each in stream.synchronize, event.synchronize, stream.shutdown:
            with pytest.raises((TypeError, ValueError)):
                each(timeout)
    stream.close()


def test_refuses_a_capture_which_goes_on() -> None:
    stream = Stream()
    stream.begin_capture()
    with pytest.raises(StreamCaptureError):
        stream.synchronize(timeout=1)
    stream.end_capture().close()
    stream.close()
    with pytest.raises(StreamClosedError):
        stream.synchronize(timeout=1)


def test_shutdown_and_scope_are_bounded(cuda_gate: Gate) -> None:
    first, second = held_stream(cuda_gate), held_stream(cuda_gate)
    with pytest.raises(TimeoutError), first.sync_scope(timeout=0.02):
        pass
    with pytest.raises(LookupError), first.sync_scope(timeout=0.02):
        raise LookupError
    with pytest.raises(TimeoutError):
        second.shutdown(timeout=0.02)
    assert second.closed
    cuda_gate.open()
    first.shutdown(timeout=20)


def test_context_that_fails_ends_it(breakable: Any) -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        breaker = threading.Timer(0.05, breakable.break_context, [719])
        breaker.start()
        with pytest.raises(ContextFailedError) as caught:
            stream.synchronize(timeout=20)
        assert caught.value.code == 719
        breaker.join()
    recover()
    stream.close()


@pytest.mark.parametrize(
    "call",
    [
        "stream.synchronize(timeout=30)",
        "stream.synchronize()",
        "event.synchronize()",
        "stream.to_borrowed().shutdown()",
        "with stream.sync_scope(): pass",
    ],
)
def test_signal_handlers_reach_it(driver_kind: str, call: str) -> None:
    """One that returns, and one that raises: Ctrl-C. Then the process can end."""
    script = f"""
        import os, signal, threading, time
        import aiostream
        from aiostream.testing import Gate

        gate, stream, event = Gate(), aiostream.Stream(), aiostream.Event()
        gate.hold(stream)
        event.record(stream)
        handled = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: (print("handled"), handled.set()))

        def interrupt():  # while the main thread waits
            while not aiostream.pending():
                time.sleep(0.001)
            for number in signal.SIGTERM, signal.SIGINT:
                time.sleep(0.05)
                os.kill(os.getpid(), number)
                handled.wait(20)

        threading.Thread(target=interrupt).start()
        threading.Timer(20, gate.open).start()
        began = time.monotonic()
        try:
            {call}
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - began < 10)
        gate.open()
        stream.shutdown(timeout=20)
        print(aiostream.pending(), aiostream.statistics().balanced, flush=True)
        os._exit(0)
    """
    done = run_script(driver_kind, script, forked=USUAL)
    expected = ["handled", "interrupted True", "[] True"]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.alone
def test_is_on_time_without_a_busy_core() -> None:
    most = 0.25e-3 + 0.01 / 8  # P16, which needs a free core
    with contextlib.closing(Stream()) as stream:
        for _ in range(5):  # other processes may take the core from some of them
            late, cpu = [], []
            for _ in range(20):
                before = time_without_a_core()
                spin(stream, 0.01)
                began, used = time.perf_counter(), time.thread_time()
                stream.synchronize(timeout=20)
                took = time.perf_counter() - began
                cpu.append(time.thread_time() - used)
                late.append(took - 0.01 - (time_without_a_core() - before))
            if statistics.median(late) < most:
                break
        assert statistics.median(late) < most
        assert statistics.median(cpu) < 0.005


def time_without_a_core() -> float:
    """How many seconds the threads of this process could have run, and others did. On a free
    machine that is nothing. The simulator's thread is one of them.

    Of a kernel that does not count them, 0.
    """
    waited = 0
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            waited += int((thread / "schedstat").read_text().split()[1])
    return waited / 1e9
