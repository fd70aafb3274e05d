"""Signals, subinterpreters, and worker processes: what works does so from the outside, and what
cannot work is refused.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Stream, statistics
from interrupts import is_interrupt
from support import PLAIN_LOOPS, USUAL, Gate, cases_on_loops, held_stream, run_on, settle, succeed
from waiters import turns, until

# ------------------------------------------------------------------------------------------ signals


AWAITS: dict[str, Callable[[Stream], Any]] = {
    "synchronize_async": Stream.synchronize_async,
    "completion_future": lambda stream: aiostream.wait([stream.completion_future()]),
    "enqueue_in_thread": lambda stream: stream.enqueue_in_thread(lambda given: None),
    "run": lambda stream: stream.run(print),
    "aclose": Stream.aclose,
}


@cases_on_loops("name", [(name,) for name in AWAITS])
def test_sigint_ends_an_await_at_once(name: str, loop_kind: str) -> None:
    """The GPU is idle all the time: the task does not wait for it."""
    gate = Gate()
    stream = held_stream(gate)
    idle = statistics()

    def is_pending() -> bool:
        now = statistics()
        return now.waits.pending > idle.waits.pending or now.points.pending > idle.points.pending

    async def main() -> None:
        async def interrupt() -> None:
            await until(is_pending)
            await turns()
            os.kill(os.getpid(), signal.SIGINT)

        async with anyio.create_task_group() as group:
            group.start_soon(interrupt)
            await AWAITS[name](stream)

    with pytest.raises(BaseException) as raised:
        run_on(loop_kind, main)
    assert is_interrupt(raised.value), raised.value
    gate.open()
    stream.close()
    assert settle(lambda: statistics().points.pending == statistics().waits.pending == 0)


@pytest.mark.parametrize("kind", PLAIN_LOOPS)
def test_waits_and_a_loops_signals_do_not_disturb_each_other(kind: str) -> None:
    """asyncio, uvloop and trio learn of signals through `signal.set_wakeup_fd`, in the same poll as
    of the ends of waits.
    """
    seen = 0

    async def main() -> None:
        nonlocal seen

        async def receive(signals: Any) -> None:
            nonlocal seen
            async for _ in signals:
                seen += 1

        async with Stream() as stream, anyio.create_task_group() as group:
            with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
                group.start_soon(receive, signals)
                for number in range(100):
                    os.kill(os.getpid(), signal.SIGUSR1)
                    assert await stream.enqueue_async(lambda _, value: value, number) == number
                    await stream.synchronize_async()
                    await stream.completion_future()
                    await until(lambda number=number: seen > number)
                group.cancel_scope.cancel()

    run_on(kind, main)
    assert seen == 100


def test_wakeup_descriptor_of_the_application_is_left_alone() -> None:
    """One that the application has set gets its signals, and nothing else."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    former = signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(writing)
    loop = asyncio.new_event_loop()
    stream = Stream()
    try:
        loop.run_until_complete(stream.synchronize_async())
        loop.run_until_complete(stream.enqueue_in_thread(lambda _: None))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert os.read(reading, 100) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(-1) == writing
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, former)
        loop.close()
        stream.close()
        os.close(reading)
        os.close(writing)


# ---------------------------------------------------------------------------------- subinterpreters

SUBINTERPRETER = r"""
    import process_jobs
    if {before}:
        process_jobs.wait_for(1)
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    made = interpreters.create({options})
    code = (
        "try:\n import aiostream\n"
        "except ImportError as error:\n print('subinterpreter' in str(error), flush=True)"
    )
    run = getattr(interpreters, "exec", None) or interpreters.run_string
    refused = run(made, code)
    interpreters.destroy(made)
    print(refused, process_jobs.wait_for(5))
"""


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("isolated", [True, False])
def test_subinterpreters_are_refused(driver_kind: str, isolated: bool, before: bool) -> None:
    options = "" if isolated else "'legacy'" if sys.version_info >= (3, 13) else "isolated=False"
    script = SUBINTERPRETER.format(options=options, before=before)
    assert succeed(driver_kind, script) == "True\nNone 5\n"


# --------------------------------------------------------------------------------- worker processes


@pytest.mark.parametrize(
    ("method", "before"),
    [("spawn", True), ("forkserver", True), ("fork", False), ("fork", True)],
)
def test_worker_processes(driver_kind: str, method: str, before: bool) -> None:
    """One that is forked after the first use is refused: its job raises the error that says what to
    do, and the executor ends. The parent goes on.
    """
    script = f"""
        import multiprocessing, warnings
        from concurrent.futures import ProcessPoolExecutor
        import process_jobs

        if __name__ == "__main__":
            # the child's, about the coroutine that was refused
            warnings.simplefilter("ignore", RuntimeWarning)
            if {before}:
                assert process_jobs.wait_for(1) == 1
            context = multiprocessing.get_context({method!r})
            with ProcessPoolExecutor(2, mp_context=context) as executor:
                jobs = [executor.submit(process_jobs.wait_for, number) for number in range(6)]
                for error in {{job.exception(timeout=30) for job in jobs}} - {{None}}:
                    assert type(error) is RuntimeError, error
                    assert "fork" in str(error) and "spawn" in str(error), error
            print(sum(job.exception() is None and job.result() for job in jobs))
            print(process_jobs.wait_for(3))
    """
    result = 0 if (method, before) == ("fork", True) else 15
    assert succeed(driver_kind, script, forked=USUAL) == f"{result}\n3\n"


def test_fork_within_the_function_that_enqueues(driver_kind: str) -> None:
    """In the child the stream is refused. In the parent the future ends, as if nothing had been."""
    script = """
        import asyncio
        from aiostream import Stream, statistics
        from support import code_of_fork

        async def main():
            async with Stream() as stream:
                print(await stream.enqueue_in_thread(lambda given: code_of_fork(given.query)))
                await stream.synchronize_async()

        asyncio.run(main())
        print(statistics().balanced)
    """
    assert succeed(driver_kind, script, forked=USUAL) == "7\nTrue\n"


@pytest.mark.parametrize("loop", ["running", "between"])
def test_a_forked_child_of_a_process_that_records_says_nothing(driver_kind: str, loop: str) -> None:
    """The recording is the parent's, and the error of each call is enough."""
    script = f"""
        import asyncio, os
        from aiostream import Stream, trace

        async def refused(call, *args):
            try:
                await call(*args)
            except RuntimeError as error:
                os.write(1, b"refused " if "fork" in str(error) else str(error).encode())

        def fork(stream):
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0

        async def inside(parent):
            await refused(stream.enqueue_async, fork)
            if os.getpid() != parent:
                os._exit(0)

        async def main():
            for call in (stream.synchronize_async, stream.completion_future):
                await refused(call)
            await refused(stream.enqueue_async, str)

        with trace.record() as recording:
            stream = Stream()
            asyncio.run(stream.synchronize_async())
            if {loop!r} == "running":
                asyncio.run(inside(os.getpid()))
            else:
                child = os.fork()
                if child == 0:
                    asyncio.run(main())
                    with trace.record() as own:
                        asyncio.run(main())
                    assert [each.outcome for each in own.awaits] == ["failed"] * 3
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            stream.shutdown()
        print(len(recording.awaits))
        """
    count, known = (1, 2) if loop == "running" else (6, 1)
    assert succeed(driver_kind, script, forked=USUAL) == f"{'refused ' * count}{known}\n"
