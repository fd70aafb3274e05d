"""What does not come back is noticed within its limit and 50 ms, by its name, also if Python is
blocked: work of a stream, a loop, a call of the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import pickle
import re
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import StalledError, Stream, StreamPool, simulator
from aiostream.testing import Faults
from foreign import install_libraries
from stalls import Listener, awaited_work, hang_next, says_stalled
from support import (
    BACKENDS,
    EVENT_STRATEGIES,
    USUAL,
    Gate,
    new_uvloop,
    run_on,
    run_script,
    settle,
    succeed,
)
from waiters import end_lost_task

LIMIT = 0.05
TRIES = 10  # of what other processes may keep from running for longer than the limit
NAME = "stream 'model' on device 0"
# what it says of a loop that is blocked, of work, and of a call
LOOP, WORK, CALL = "its loop has not come back", "no work that is awaited", "not returned"


on_asyncio = pytest.mark.parametrize("loop_kind", ["asyncio"])


@pytest.fixture
def faults(driver_kind: str) -> Iterator[Faults]:
    if driver_kind != "simulator":
        pytest.skip("a GPU has no such faults on command")
    with Faults() as made:
        yield made


@on_asyncio
async def test_stream_whose_work_does_not_end(listener: Listener) -> None:
    """Another stream, on which work ends all the time, is not stalled.

    Only the stalls of work count, because another process may keep the loop from running.
    """
    async with (
        Stream(name="model", stalled_after=LIMIT) as stream,
        Stream(stalled_after=1) as other,
    ):
        with Gate() as gate:
            gate.hold(stream)
            waiting = asyncio.ensure_future(stream.synchronize_async())
            future = stream.enqueue_async(lambda stream: None)
            while not listener.of(WORK):
                await other.synchronize_async()
                await asyncio.sleep(0.001)
            stalled = aiostream.health()
            assert isinstance(stalled, StalledError)
            assert stalled.stream == NAME
            assert stalled.seconds > LIMIT
            assert not waiting.done()  # it may come back yet
        await waiting
        await future
        assert not says_stalled()
    [error] = listener.of(WORK)  # once
    assert error.stream == NAME
    assert error.seconds > LIMIT
    assert NAME in str(error)


@on_asyncio
async def test_work_of_which_the_parts_end_is_not_stalled(listener: Listener) -> None:
    """A queue of short work may be longer than the limit."""
    for number in range(TRIES):
        name, longest = f"try {number}", 0.0
        async with Stream(name=name, stalled_after=LIMIT) as stream:
            gates = [Gate() for _ in range(6)]
            futures, opened = [], time.monotonic()
            for gate in gates:
                gate.hold(stream)
                futures.append(stream.enqueue_async(lambda stream: None))
            for gate, future in zip(gates, futures, strict=True):
                await asyncio.sleep(LIMIT / 3)
                before, opened = opened, time.monotonic()
                gate.open()
                await future
                longest = max(longest, time.monotonic() - before)
            assert not says_stalled()
        if longest < LIMIT:
            break
    assert not listener.of(name)


@on_asyncio
async def test_function_that_takes_long_is_not_stalled(listener: Listener) -> None:
    """Its work is not enqueued yet, and no loop is blocked."""

    def takes_long() -> float:
        time.sleep(3 * LIMIT)
        return time.monotonic()

    for number in range(TRIES):
        name = f"try {number}"
        async with Stream(name=name, stalled_after=LIMIT) as stream:
            ended = await stream.run_in_thread(takes_long)
            late = time.monotonic() - ended
            assert not says_stalled()
        if late < LIMIT:
            break
    assert not listener.of(name)


@on_asyncio
async def test_cancelled_work_that_does_not_end_is_stalled(listener: Listener) -> None:
    """A request that has timed out leaves it to its stream, also to one of a pool."""
    async with StreamPool(1, name="pool", stalled_after=LIMIT) as pool:
        with Gate() as gate:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as limit, pool.stream() as stream:

                    def hold() -> None:
                        gate.hold(stream)
                        limit.reschedule(asyncio.get_running_loop().time())

                    await stream.run(hold)
            error = await listener.hears()
            assert error.stream == "stream 'pool[0]' on device 0"


@on_asyncio
async def test_borrowed_streams_and_run_in_thread_have_a_limit(listener: Listener) -> None:
    async with (
        Stream(name="model", stalled_after=LIMIT) as stream,
        Stream() as owner,
        StreamPool.borrow([owner.handle], name="pool", stalled_after=LIMIT) as pool,
    ):
        with Gate() as gate:
            gate.hold(owner)
            waits = asyncio.gather(stream.run_in_thread(gate.hold, stream), pool.run(lambda: None))
            while {error.stream for error in listener.errors} != {
                NAME,
                "stream 'pool[0]' on device 0",
            }:
                await asyncio.sleep(0.001)
        await waits


@on_asyncio
async def test_load_sets_a_limit_of_its_own(listener: Listener) -> None:
    async with StreamPool(1, stalled_after=LIMIT) as pool:
        async with pool.stream() as stream:
            with stream.may_take(60):
                # It ends while the limit is the longer one, because it is still pending.
                async with awaited_work(stream):
                    await asyncio.sleep(3 * LIMIT)
            assert not listener.errors
        # the limit of the pool is back
        async with pool.stream() as stream, awaited_work(stream):
            await listener.hears()


@on_asyncio
async def test_loads_of_two_tasks_set_limits_that_overlap(listener: Listener) -> None:
    """The longer one counts, in whichever order they end."""
    async with Stream(name="model", stalled_after=LIMIT) as stream:
        for first, second in ((60, 61), (61, 60)):
            async with contextlib.AsyncExitStack() as later:
                with stream.may_take(first):
                    later.enter_context(stream.may_take(second))
                async with awaited_work(stream):
                    await asyncio.sleep(3 * LIMIT)
        assert not listener.errors
        async with awaited_work(stream):
            await listener.hears()


@on_asyncio
async def test_name_that_is_cut_within_a_character(listener: Listener) -> None:
    for text in ("é" * 100, "x" + "é" * 100):
        listener.errors.clear()
        async with Stream(name=text, stalled_after=LIMIT) as stream, awaited_work(stream):
            assert "ééé" in (await listener.hears(WORK)).stream
            assert "ééé" in str(aiostream.health())


@on_asyncio
async def test_end_of_a_cancelled_wait_is_no_stall(listener: Listener) -> None:
    """Nothing has come to the loop for longer than the limit. Then a wait that was cancelled ends,
    while the loop keeps the lock of Python for less than the limit.
    """
    limit = 3 * LIMIT  # the loop may lose as much to another process as it keeps the lock
    async with Stream(stalled_after=limit, wait="event") as stream:
        for _ in range(3):
            async with awaited_work(stream):
                await asyncio.sleep(limit / 3)
            await asyncio.sleep(2 * limit)
            with Gate() as gate:
                gate.hold(stream)
                waiting = asyncio.ensure_future(stream.synchronize_async())
                await asyncio.sleep(limit / 3)
                waiting.cancel()
                await asyncio.sleep(limit / 3)
            ctypes.PyDLL(None).usleep(int(limit / 2 * 1e6))
            await asyncio.sleep(limit / 3)
    assert not listener.errors


@pytest.mark.parametrize("wait", EVENT_STRATEGIES)
def test_closed_loop_is_not_stalled(listener: Listener, wait: Any) -> None:
    """Its tasks were left behind, and nothing waits for them."""
    for number in range(TRIES):
        name, loop = f"try {number}", asyncio.new_event_loop()
        with contextlib.closing(Stream(name=name, stalled_after=LIMIT, wait=wait)) as stream:
            with Gate() as gate:
                gate.hold(stream)
                task = loop.create_task(stream.synchronize_async())
                began = time.monotonic()
                loop.run_until_complete(asyncio.sleep(0.01))
                loop.close()
                took = time.monotonic() - began
            time.sleep(3 * LIMIT)
            assert not says_stalled()
        end_lost_task(task)
        if took < LIMIT:
            break
    assert not listener.of(name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wait", EVENT_STRATEGIES)
def test_loop_that_a_task_blocks(listener: Listener, backend: str, wait: Any) -> None:
    async def main() -> None:
        async with (
            Stream(name="model", stalled_after=LIMIT, wait=wait) as stream,
            anyio.create_task_group() as group,
        ):
            with Gate() as gate:
                gate.hold(stream)
                group.start_soon(stream.synchronize_async)
                await anyio.sleep(0.01)
            assert settle(lambda: bool(listener.of(LOOP)))  # without an await

    run_on(backend, main)
    assert listener.of(LOOP)[0].stream == NAME


@on_asyncio
async def test_driver_call_that_does_not_return(listener: Listener, faults: Faults) -> None:
    """In the watcher. What it would poll does not come back."""
    async with Stream(name="model", stalled_after=LIMIT, wait="event") as stream:
        with Gate() as gate:
            gate.hold(stream)
            faults.hang("cuEventQuery", nth=5)
            waiting = asyncio.ensure_future(stream.synchronize_async())
            await listener.hears(WORK)
            assert isinstance(aiostream.health(), StalledError)  # without the driver
            simulator.clear_faults()
        await waiting


@pytest.mark.parametrize("what", ["the work", "a call"])
def test_thread_that_blocks(listener: Listener, what: str, request: pytest.FixtureRequest) -> None:
    def main() -> None:
        with contextlib.closing(Stream(name="model", stalled_after=LIMIT)) as stream:
            gate.hold(stream)
            stream.synchronize()

    with Gate() as gate:
        if what == "a call":
            request.getfixturevalue("faults").hang("cuEventRecord")
        thread = threading.Thread(target=main)
        thread.start()
        assert settle(lambda: bool(listener.errors))
        if what == "a call":
            simulator.clear_faults()
    thread.join()
    assert listener.errors[0].stream == NAME


@pytest.mark.needs_gil("a call keeps it")
@pytest.mark.parametrize(("seconds", "said"), [(1, 0), (30, 1)])
def test_held_gil(driver_kind: str, seconds: int, said: int) -> None:
    """stderr says that Python does not run, once that is sure. The listener is called when Python
    runs again.
    """
    printed = succeed(
        driver_kind,
        f"""
        import asyncio, ctypes, os, select, struct, aiostream
        from support import Gate, settle

        heard = []
        aiostream.on_stalled(heard.append)
        stderr, write = os.pipe()
        os.dup2(write, 2)

        async def main():
            async with aiostream.Stream(name="model", stalled_after=0.5) as stream:
                with Gate() as gate:
                    gate.hold(stream)
                    task = asyncio.ensure_future(stream.synchronize_async())
                    await asyncio.sleep(0.01)
                asked = ctypes.create_string_buffer(struct.pack("ihh", stderr, select.POLLIN, 0))
                if ctypes.PyDLL(None).poll(asked, 1, {seconds * 1000}):  # until stderr has a line
                    print(os.read(stderr, 4096).decode(), end="")
                await task
                assert settle(lambda: heard), "the listener was not called"
            print(heard[0].stream)
            print(select.select([stderr], [], [], 0)[0])

        asyncio.run(main())
        """,
        forked=USUAL,
    )
    says = rf"aiostream: {NAME} is stalled: its loop .* [\d.]+ s. Python has not taken this for 2 s"
    assert re.fullmatch(rf"({says}.*\n){{{said}}}{NAME}\n\[\]\n", printed)


@pytest.mark.parametrize("blocked", ["the GPU", "the loop", "the lock of Python"])
def test_process_ends_if_it_was_asked_to(driver_kind: str, blocked: str) -> None:
    """Also if Python is blocked, and with an endless kernel, for which `drain` gives up. Then the
    GPU serves the next test. stderr gets the stacks, unless no Python can write them.
    """
    sleep = {
        "the GPU": "print(await aiostream.drain(0.1), flush=True)",
        "the loop": "time.sleep(10)",
        "the lock of Python": "ctypes.PyDLL(None).sleep(60)",
    }[blocked]
    ended = run_script(
        driver_kind,
        f"""
        import asyncio, ctypes, time, aiostream
        from support import spin

        async def main():
            aiostream.exit_on_context_failed(71, stalled=True)
            async with aiostream.Stream(name="model", stalled_after=0.5) as stream:
                await stream.run(spin, stream, 0.001)  # loads the kernels
                seconds = {100.0 if blocked == "the GPU" else 0.05}
                task = asyncio.ensure_future(stream.run(spin, stream, seconds))
                await asyncio.sleep(0.01)
                {sleep}
                await task

        asyncio.run(main())
        """,
        forked=USUAL,
    )
    printed = "False\n" * (blocked == "the GPU")
    assert (ended.returncode, ended.stdout) == (71, printed), ended.stderr
    assert f"aiostream: {NAME} is stalled: " in ended.stderr
    assert ("is stalled: no work" in ended.stderr) is (blocked == "the GPU")
    assert "ends now, with exit code 71 (exit_on_context_failed).\n" in ended.stderr
    assert ("\n  File " in ended.stderr) is (blocked != "the lock of Python")


@pytest.mark.parametrize("limit", [0, -1, 0.019, float("nan"), "1", True])
def test_limit_that_makes_no_sense(driver_kind: str, limit: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Stream(stalled_after=limit)
    with pytest.raises((TypeError, ValueError)):
        StreamPool(1, stalled_after=limit)


def test_threads_that_compute(driver_kind: str) -> None:
    """They keep the library's threads from Python for a while, and Python runs nevertheless."""
    printed = succeed(
        driver_kind,
        """
        import asyncio, os, threading, aiostream
        from support import Gate

        def compute():
            while True:
                sum(range(30))

        async def main():
            heard = []
            aiostream.on_stalled(heard.append)
            for _ in range(3):
                threading.Thread(target=compute, daemon=True).start()
            for n in range(5):
                async with aiostream.Stream(name=str(n), stalled_after=0.03) as stream:
                    with Gate() as gate:
                        gate.hold(stream)
                        waiting = asyncio.ensure_future(stream.synchronize_async())
                        while not any(repr(str(n)) in error.stream for error in heard):
                            await asyncio.sleep(0.01)
                    await waiting
            print("heard", flush=True)
            os._exit(0)

        asyncio.run(main())
        """,
        forked=USUAL,
    )
    assert printed == "heard\n"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_uvloop])
@pytest.mark.parametrize("over", ["before", "after"])
def test_loop_that_does_not_run_is_not_stalled(
    listener: Listener, new_loop: Any, over: str
) -> None:
    """As between two calls of `Runner.run`, also if it is asked about again and again. When it runs
    again, it is found if it is blocked.
    """

    async def begin() -> Any:
        gate.hold(stream)
        future = stream.enqueue_async(lambda stream: None)
        await asyncio.sleep(0.01)
        if over == "before":  # the loop stops
            gate.open()
        return future

    async def end(future: Any) -> None:
        await future
        async with awaited_work(stream):
            await asyncio.sleep(0.01)
            early.extend(listener.of(name))
            ran.append(time.monotonic())
            assert settle(lambda: bool(listener.of(name)))  # without an await

    for number in range(TRIES):
        name, early, stalled = f"try {number}", list[StalledError](), False
        with (
            Gate() as gate,
            contextlib.closing(Stream(name=name, stalled_after=LIMIT)) as stream,
            asyncio.Runner(loop_factory=new_loop) as runner,
        ):
            ran = [time.monotonic()]
            future = runner.run(begin())
            gate.open()
            ran.append(time.monotonic())
            for _ in range(20):
                time.sleep(LIMIT / 5)
                stalled = stalled or says_stalled()
            ran.append(time.monotonic())
            runner.run(end(future))
        if max(ran[1] - ran[0], ran[3] - ran[2]) < LIMIT:
            break
    assert not early
    assert not stalled


@on_asyncio
async def test_stream_that_is_used_again_has_no_former_owner(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has neither the limit, nor the name, nor what was learnt of the former one's work."""
    install_libraries(monkeypatch)
    async with Stream(name="probe", stalled_after=10 * LIMIT) as former:
        handle = former.handle
        for _ in range(20):
            await former.run(internals.spin, former, 0.002)
    async with Stream() as stream:
        assert stream.handle == handle
        async with awaited_work(stream):
            await asyncio.sleep(11 * LIMIT)
            [waiting] = aiostream.pending()
            assert not says_stalled()
    assert "probe" not in waiting["stream"]
    assert waiting["expected"] is None
    assert not listener.errors


@on_asyncio
@pytest.mark.parametrize("kind", ["borrow", "legacy", "per_thread", "pool"])
async def test_limit_is_that_of_one_owner(listener: Listener, kind: str) -> None:
    """Another owner of the same stream of the driver has none, also while the first one lives."""
    async with Stream() as driver_stream:
        handle = driver_stream.handle

        def owner(limit: float | None) -> Stream:
            if kind in ("legacy", "per_thread"):
                return Stream.borrow(getattr(Stream, kind)(), stalled_after=limit)
            if kind == "pool" and limit:
                pools.append(StreamPool.borrow([handle], stalled_after=limit))
                return pools[0].acquire_nowait()
            return Stream.borrow(handle, stalled_after=limit)

        pools = list[StreamPool]()
        first, second = owner(LIMIT), owner(None)
        await first.synchronize_async()
        async with awaited_work(second):
            await asyncio.sleep(3 * LIMIT)
            assert not says_stalled()
            assert not listener.errors
        async with awaited_work(first):
            await listener.hears()
        for pool in pools:
            pool.release(first)


@on_asyncio
@pytest.mark.parametrize("call", ["cuStreamQuery", "cuLaunchHostFunc"])
@pytest.mark.parametrize("way", ["run", "enqueue_async", "await"])
async def test_call_of_the_only_request_does_not_return(
    listener: Listener, faults: Faults, call: str, way: str
) -> None:
    """The library's own, or one in the function. It blocks the loop, and nothing else waits."""

    def launch(*_: object) -> None:
        stream.launch_host_func(str)

    async with Stream(name="model", stalled_after=LIMIT) as stream:
        await stream.run(launch)
        if way == "await":
            if call != "cuStreamQuery":
                return
            launch()
        hang_next(faults, call)
        ends = threading.Thread(
            target=lambda: (settle(lambda: bool(listener.of(CALL))), simulator.clear_faults())
        )
        ends.start()
        await {
            "run": lambda: stream.run(launch),
            "enqueue_async": lambda: stream.enqueue_async(launch),
            "await": stream.synchronize_async,
        }[way]()
        ends.join()
        assert listener.of(CALL)[0].stream == NAME


@on_asyncio
async def test_call_behind_the_last_half_does_not_return(
    listener: Listener, faults: Faults
) -> None:
    """The library asks whether that half has enqueued something."""

    def ends() -> None:
        settle(lambda: bool(listener.of(CALL)))
        simulator.clear_faults()

    def halves() -> Generator[None, None, None]:
        stream.launch_host_func(str)
        yield
        hang_next(faults, "cuStreamQuery")
        threads.append(threading.Thread(target=ends))
        threads[0].start()

    threads: list[threading.Thread] = []
    async with Stream(name="model", stalled_after=LIMIT) as stream:
        await stream.run(halves)
        threads[0].join()
        assert listener.of(CALL)[0].stream == NAME


@on_asyncio
async def test_stall_that_was_not_taken_yet_is_not_lost(listener: Listener) -> None:
    """Another follows, while the threads that take them are blocked."""
    async with (
        Stream(name="model", stalled_after=LIMIT) as stream,
        Stream(name="other", stalled_after=2 * LIMIT) as other,
    ):
        async with awaited_work(stream), awaited_work(other):
            with internals.blocked_janitor():
                await asyncio.sleep(6 * LIMIT)
        for name in ("'model'", "'other'"):
            await listener.hears(name)


def test_listener_that_has_ended_hears_nothing(driver_kind: str) -> None:
    heard, stop = Listener(), aiostream.on_stalled(ended := Listener())
    stop()
    stop()  # again
    stop = aiostream.on_stalled(heard)
    with contextlib.closing(Stream(stalled_after=LIMIT)) as stream, Gate() as gate:
        gate.hold(stream)
        with pytest.raises(TimeoutError):
            stream.synchronize(timeout=3 * LIMIT)
        assert settle(lambda: bool(heard.errors))
        gate.open()
        stream.synchronize()
    stop()
    assert not ended.errors


def test_error_can_leave_the_process(driver_kind: str) -> None:
    error = pickle.loads(pickle.dumps(StalledError("a text", "a stream", 2.0)))
    assert (str(error), error.stream, error.seconds) == ("a text", "a stream", 2.0)
