"""What users left to the library is dropped in a thread of its own, because a destructor may block
for seconds.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aiostream
from aiostream import CaptureMode, Stream
from support import USUAL, Gate, held_stream, run_on, settle, succeed


class Stuck:
    """Its destructor blocks until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def held(self) -> object:
        begun, go = self.begun, self.go

        class Held:
            def __call__(self, *_: object) -> None: ...

            def __del__(self) -> None:
                begun.set()
                assert go.wait(60)

        return Held()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.go.set()


def drop_with_graph(stream: Stream, held: Any) -> None:
    other = Stream()
    with other.capture_executable(CaptureMode.THREAD_LOCAL) as capture:
        other.launch_host_func(held)
    capture.executable.launch(stream)
    capture.executable.close()
    other.close()


def drop_with_loop(stream: Stream, held: Any) -> None:
    async def leave() -> None:
        stream.enqueue_async(lambda _: held)

    asyncio.run(leave())


def drop_behind_gate(drop: Callable[[Stream, Any], None], stuck: Stuck) -> Stream:
    """The GPU passes only when the thread that has made what is dropped has ended.

    Without the GIL, CPython frees an object in the thread that has made it, while that runs.
    """
    with Gate() as gate:
        stream = held_stream(gate)
        thread = threading.Thread(target=lambda: drop(stream, stuck.held()))
        thread.start()
        thread.join()
    stream.synchronize()
    return stream


DROPS: dict[str, Callable[[Stream, Any], None]] = {
    "argument": lambda stream, held: stream.launch_host_func(lambda _: None, held),
    "function": Stream.add_callback,
    "graph": drop_with_graph,
    "loop": drop_with_loop,
}


@pytest.mark.parametrize("how", DROPS)
def test_a_destructor_that_blocks_delays_nothing_else(how: str, stuck: Stuck) -> None:
    stream = drop_behind_gate(DROPS[how], stuck)
    assert stuck.begun.wait(20)
    before = aiostream.statistics().handles
    descriptors = len(os.listdir("/proc/self/fd"))

    async def leave_a_stream() -> None:
        await Stream().completion_future()

    for _ in range(20):  # loops that end, each with a queue, and streams that are dropped
        run_on("asyncio", leave_a_stream)
        assert settle(lambda: aiostream.statistics().handles.open == before.open)
    # Each of the first few may have found the one before it not yet closed.
    assert len(os.listdir("/proc/self/fd")) - descriptors < 3 * 10
    stuck.go.set()
    stream.close()


def test_a_listener_is_called_while_a_destructor_blocks(breakable: Any, stuck: Stuck) -> None:
    called = threading.Event()
    quiet = aiostream.on_context_failed(lambda _: called.set())
    stream = drop_behind_gate(DROPS["argument"], stuck)
    assert stuck.begun.wait(20)
    breakable.break_context(716)
    assert called.wait(20)
    quiet()
    stuck.go.set()
    breakable.recover()
    stream.close()


def listeners() -> list[threading.Thread]:
    """The threads that call failure listeners now."""
    return [each for each in threading.enumerate() if each.name == "aiostream-listener"]


def test_a_listener_that_blocks_delays_other_listeners_alone(breakable: Any, stuck: Stuck) -> None:
    """A dropped stream is destroyed, and what arrives for a loop that is gone is taken."""
    heard: list[int] = []

    def block(_: aiostream.ContextFailedError) -> None:
        # Signals are for the application's own threads.
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        stuck.begun.set()
        assert stuck.go.wait(60)
        heard.append(1)

    quiet = [
        aiostream.on_context_failed(block),
        aiostream.on_context_failed(lambda _: heard.append(2)),
        aiostream.on_context_failed(lambda _: heard.append(3)),
    ]
    before = aiostream.statistics().handles.open
    stream = Stream()
    breakable.break_context(716)
    assert aiostream.health() is not None
    assert stuck.begun.wait(20)
    del stream
    gc.collect()
    assert settle(lambda: aiostream.statistics().handles.open == before)
    assert not heard
    assert len(listeners()) == 1
    late = aiostream.on_context_failed(lambda _: heard.append(4))
    stuck.go.set()
    assert settle(lambda: heard == [1, 2, 3, 4]), heard
    assert len(listeners()) == 1
    for end in (*quiet, late):
        end()
    breakable.recover()


NO_THREAD = """
import threading
import aiostream
from aiostream import simulator, testing
from support import settle

begin = threading.Thread.start

def start(thread):
    if {begins}:
        begin(thread)
    raise MemoryError

heard, stream = [], aiostream.Stream()
threading.Thread.start = start
for round_ in ("first", "second"):
    quiet = aiostream.on_context_failed(lambda _, round_=round_: heard.append(round_))
    simulator.break_context(716)
    assert aiostream.health() is not None
    assert settle(lambda: heard[-1:] == [round_])
    quiet()
    testing.recover()
stream.close()
print(*heard)
"""


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
@pytest.mark.parametrize("begins", [False, True])
def test_listeners_are_called_where_no_thread_can_be_made(driver_kind: str, begins: bool) -> None:
    """Or where memory is short when it has begun. In a process of its own, because the thread goes
    on once it has begun.
    """
    out = succeed(driver_kind, NO_THREAD.format(begins=begins), forked=USUAL)
    assert out == "first second\n"


@pytest.mark.simulator_only("a GPU's context cannot be broken")
def test_a_process_that_is_forked_in_a_listener_ends(driver_kind: str) -> None:
    script = """
        import os
        import aiostream
        from aiostream import simulator
        from support import settle

        children = []

        def fork(error):
            child = os.fork()
            if child:
                children.append(child)

        stream = aiostream.Stream()
        aiostream.on_context_failed(fork)
        simulator.break_context(716)
        assert aiostream.health() is not None
        assert settle(lambda: children)
        assert settle(lambda: os.waitpid(children[0], os.WNOHANG)[0]), os.kill(children[0], 9)
    """
    succeed(driver_kind, script, forked=USUAL)
