"""Stalls where there is more than one owner, loop or process: what counts, and who hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import StalledError, Stream, StreamPool
from stalls import Listener, awaited_work, says_stalled
from support import EVENT_STRATEGIES, USUAL, Gate, run_script, succeed
from waiters import end_lost_task

LIMIT = 0.05
NAME = "stream 'model' on device 0"
on_asyncio = pytest.mark.parametrize("loop_kind", ["asyncio"])


@pytest.mark.parametrize(
    ("seconds", "hears"), [(0.6, True), (2.8, False)], ids=["listener", "exit"]
)
def test_process_that_was_stopped_has_no_stall(
    driver_kind: str, seconds: float, hears: bool
) -> None:
    """Its loop could not run, and does not come back to its waits at once."""
    printed = succeed(
        driver_kind,
        """
            import asyncio, os, signal, subprocess, time, aiostream, internals
            from support import EVENT_STRATEGIES

            seconds, hears, heard = os.environ["SECONDS"], os.environ["HEARS"] == "True", []
            if hears:
                aiostream.on_stalled(heard.append)
            else:
                aiostream.exit_on_context_failed(71, stalled=True)

            def burn(seconds):
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    pass

            # Again and again until it is killed, because the stop may come late.
            resume = f"kill -CONT {os.getpid()}"
            continues = ["sh", "-c", f"read _; while sleep {seconds}; do {resume}; done"]

            async def main():
                for wait in EVENT_STRATEGIES:
                    async with aiostream.Stream(wait=wait, stalled_after=0.5) as stream:
                        await stream.run(internals.spin, stream, 0)  # loads the kernels
                        waiting = asyncio.ensure_future(stream.run(internals.spin, stream, 0.01))
                        await asyncio.sleep(0.005)
                        while not stream.query():
                            time.sleep(0.001)
                        time.sleep(0.15)
                        # Again and again, because the process may not have stopped yet.
                        kill = f"kill -CONT {os.getpid()}"
                        again = f"sleep {seconds}; while {kill}; do sleep 0.1; done"
                        with subprocess.Popen(["sh", "-c", again]) as continuing:
                            os.kill(os.getpid(), signal.SIGSTOP)
                            burn(0.06)
                            continuing.kill()
                        await waiting
                    if not hears:
                        break  # three seconds are enough
            asyncio.run(main())
            print(heard)
        """,
        forked=USUAL,
        SECONDS=str(seconds),
        HEARS=str(hears),
    )
    assert printed == "[]\n"


@pytest.mark.parametrize(
    ("what", "times", "seconds"),
    [("the work", 8, 0.07), ("the watcher", 3, 0.4), ("a call", 3, 0.4), ("the loop", 3, 0.4)],
)
def test_process_that_is_stopped_again_and_again_has_no_stall(
    driver_kind: str, what: str, times: int, seconds: float
) -> None:
    """Whatever it does when it is stopped. The stops are longer than the limit, in all."""
    if what == "the watcher" and driver_kind != "simulator":
        pytest.skip("a GPU does not hang on command")
    printed = succeed(
        driver_kind,
        """
        import asyncio, os, subprocess, aiostream
        from support import Gate

        aiostream.exit_on_context_failed(71, stalled=True)
        what, pid = os.environ["WHAT"], os.getpid()
        stop = f"kill -STOP {pid}; sleep {os.environ['SECONDS']}; kill -CONT {pid}; sleep 0.01"
        stops = ["sh", "-c", f"for _ in $(seq {os.environ['TIMES']}); do {stop}; done"]

        async def main():
            async with aiostream.Stream(stalled_after=0.3, wait="event") as stream:
                with Gate() as gate:
                    gate.hold(stream)
                    waiting = asyncio.ensure_future(stream.synchronize_async())
                    await asyncio.sleep(0.02)
                    if what == "the watcher":
                        aiostream.simulator.hang("cuEventQuery")
                        await asyncio.sleep(0.02)
                    if what == "a call":
                        stream.enqueue_async(lambda _: subprocess.run(stops))
                    elif what == "the loop":
                        gate.open()
                        subprocess.run(stops)
                    else:
                        await (await asyncio.create_subprocess_exec(*stops)).wait()
                    if what == "the watcher":
                        aiostream.simulator.clear_faults()
                await waiting
        asyncio.run(main())
        print("alive")
        """,
        forked=USUAL,
        WHAT=what,
        TIMES=str(times),
        SECONDS=str(seconds),
    )
    assert printed == "alive\n"


def test_wait_of_a_closed_loop_does_not_count_for_the_next_loop(listener: Listener) -> None:
    """The next loop gets what the closed one used. The task was left with a wait that it polls."""
    made = Stream(stalled_after=2 * LIMIT, wait="spin")
    with contextlib.closing(made) as stream, Gate() as gate:
        gate.hold(stream)
        loop = asyncio.new_event_loop()
        task = loop.create_task(stream.synchronize_async())
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        gate.open()

        async def main() -> None:
            await stream.run(lambda: None)
            for _ in range(10):
                await asyncio.sleep(LIMIT)

        asyncio.run(main())
        assert not says_stalled()
        end_lost_task(task)
    assert not listener.errors


@on_asyncio
async def test_a_listener_hears_of_a_stall_that_was_said_before(listener: Listener) -> None:
    heard: list[StalledError] = []
    async with Stream(name="model", stalled_after=LIMIT) as stream, awaited_work(stream):
        while not listener.errors:
            await anyio.sleep(0.01)
        end = aiostream.on_stalled(heard.append)
        while not heard:
            await anyio.sleep(0.01)
        end()
    assert heard[0].stream == NAME


@on_asyncio
async def test_a_listener_that_comes_with_a_stall_hears_it_once(driver_kind: str) -> None:
    heard: list[StalledError] = []
    async with Stream(name="model", stalled_after=LIMIT) as stream, awaited_work(stream):
        while aiostream.health() is None:
            await anyio.sleep(0)
        end = aiostream.on_stalled(heard.append)
        await anyio.sleep(4 * LIMIT)
        end()
    assert [error.stream for error in heard if "no work" in str(error)] == [NAME]


@pytest.mark.parametrize("reported", ["before", "after"])
async def test_one_hang_is_reported_once(listener: Listener, reported: str) -> None:
    """Also if the request times out, and its stream is on the way back to the pool."""
    async with StreamPool(1, name="pool", stalled_after=2 * LIMIT) as pool:
        with Gate() as gate:
            with anyio.move_on_after(LIMIT if reported == "after" else 6 * LIMIT):
                async with pool.stream() as stream:
                    gate.hold(stream)
                    await stream
            await anyio.sleep(6 * LIMIT)
    assert len(listener.of("no work")) == 1


async def test_one_hang_is_reported_once_for_all_that_waits_there(listener: Listener) -> None:
    """Also for what begins later. The next hang is reported too."""
    async with Stream(name="model", stalled_after=LIMIT) as stream:
        for number in (1, 2):
            async with anyio.create_task_group() as group:
                with Gate() as gate:
                    gate.hold(stream)
                    group.start_soon(stream.synchronize_async)
                    while len(listener.of("no work")) < number:
                        await anyio.sleep(0.01)
                    group.start_soon(stream.run, str)
                    group.start_soon(stream.run_in_thread, str)
                    await anyio.sleep(4 * LIMIT)
            assert len(listener.of("no work")) == number


def test_process_that_asks_for_its_end_while_it_is_stalled(driver_kind: str) -> None:
    ended = run_script(
        driver_kind,
        """
        import asyncio, aiostream
        from support import Gate

        async def main():
            stream = aiostream.Stream(stalled_after=0.05)
            with Gate() as gate:
                gate.hold(stream)
                task = asyncio.ensure_future(stream.synchronize_async())
                while aiostream.health() is None:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.1)  # it was said
                aiostream.exit_on_context_failed(71, stalled=True)

        asyncio.run(main())
        """,
        forked=USUAL,
    )
    assert ended.returncode == 71, ended.stderr


@pytest.mark.parametrize("wait", EVENT_STRATEGIES)
async def test_limit_of_one_owner_behind_the_work_of_another(listener: Listener, wait: Any) -> None:
    """They use one stream of the driver, and the other one has no limit."""
    async with Stream() as stream, anyio.create_task_group() as group:
        other = Stream.borrow(stream.handle, wait=wait)
        mine = Stream.borrow(stream.handle, name="model", stalled_after=LIMIT, wait=wait)
        with Gate() as gate:
            gate.hold(stream)
            group.start_soon(other.synchronize_async)
            await anyio.sleep(0.01)
            group.start_soon(mine.run, str)
            while not listener.errors:
                await anyio.sleep(0.01)


async def test_load_that_timed_out_keeps_its_limit_in_a_pool(listener: Listener) -> None:
    async with StreamPool(1, stalled_after=2 * LIMIT) as pool:
        with anyio.move_on_after(0.02):
            async with pool.stream() as stream:
                with stream.may_take(30):
                    await stream.run(internals.spin, stream, 10 * LIMIT)
        await pool.run(str)
    assert not listener.errors


async def test_limit_of_a_load_does_not_outlive_it(listener: Listener) -> None:
    """What the next request leaves has the pool's limit."""
    async with StreamPool(1, stalled_after=LIMIT) as pool:
        with pytest.raises(ValueError, match="load"):
            async with pool.stream() as stream:
                with stream.may_take(600):
                    raise ValueError("load")
        with Gate() as gate:
            with pytest.raises(ValueError, match="request"):
                async with pool.stream() as stream:
                    gate.hold(stream)
                    raise ValueError("request")
            while not listener.errors:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("broken", [False, True])
def test_end_with_a_path_that_is_not_unicode(driver_kind: str, broken: bool) -> None:
    """stderr gets the bytes of the path as escapes. If the stacks cannot be read, the process ends
    without them.
    """
    ended = run_script(
        driver_kind,
        f"""
        import asyncio, threading, traceback, aiostream
        from support import Gate

        if {broken}:
            traceback.format_stack = None
        waits = compile("threading.Event().wait()", "caf\\udce9.py", "exec")
        threading.Thread(target=exec, args=(waits, globals()), daemon=True).start()

        async def main():
            aiostream.exit_on_context_failed(71, stalled=True)
            async with aiostream.Stream(name="model", stalled_after=0.05) as stream:
                with Gate() as gate:
                    gate.hold(stream)
                    await stream.synchronize_async()

        asyncio.run(main())
        """,
        forked=USUAL,
    )
    assert ended.returncode == 71
    assert "stream 'model' on device 0 is stalled" in ended.stderr
    assert ("caf\\udce9.py" in ended.stderr) is not broken
    assert "Error" not in ended.stderr
    assert "Python has not taken" not in ended.stderr
