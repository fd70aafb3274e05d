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
from aiostream import Event, Stream, StreamPool, statistics
from support import Gate, held_stream, run_on, settle, succeed
from waiters import until

KINDS = ["asyncio", "uvloop", "trio"]

# ------------------------------------------------------------------------------------------ signals


async def wait_for_event(stream: Stream) -> None:
    event = Event()
    event.record(stream)
    await event.synchronize_async()


async def wait_for_pool(stream: Stream) -> None:
    pool = StreamPool(1)
    pool.acquire_nowait()
    await pool.acquire()


async def wait_for_any(stream: Stream) -> None:
    await aiostream.wait([stream.completion_future()])


async def drain(stream: Stream) -> None:
    stream.completion_future()
    await aiostream.drain()


async def use_in_block(stream: Stream) -> None:
    async with stream:
        pass


async def await_future(future: Any) -> None:
    await future


AWAITS: dict[str, Callable[[Stream], Any]] = {
    "synchronize_async": Stream.synchronize_async,
    "event": wait_for_event,
    "completion_future": lambda stream: await_future(stream.completion_future()),
    "checked_completion_future": lambda stream: await_future(stream.checked_completion_future()),
    "enqueue_async": lambda stream: await_future(stream.enqueue_async(lambda given: given)),
    "enqueue_in_thread": lambda stream: stream.enqueue_in_thread(lambda given: None),
    "aclose": Stream.aclose,
    "async with": use_in_block,
    "pool": wait_for_pool,
    "wait": wait_for_any,
    "drain": drain,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AWAITS)
def test_sigint_ends_an_await_at_once(name: str, kind: str) -> None:
    """The GPU stands still all the time: the task does not wait for it."""
    gate = Gate()
    stream = held_stream(gate)
    idle = statistics()

    def is_pending() -> bool:
        now = statistics()
        return (
            name == "pool"
            or now.waits.pending > idle.waits.pending
            or now.points.pending > idle.points.pending
        )

    async def main() -> None:
        async def interrupt() -> None:
            await until(is_pending)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            os.kill(os.getpid(), signal.SIGINT)

        async with anyio.create_task_group() as group:
            group.start_soon(interrupt)
            await AWAITS[name](stream)

    former = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in a shell's background ignores it
    try:
        with pytest.raises(BaseException) as raised:
            run_on(kind, main)
    finally:
        signal.signal(signal.SIGINT, former)
    error = raised.value
    if isinstance(error, BaseExceptionGroup):
        assert error.split(KeyboardInterrupt)[1] is None, error
    else:
        assert isinstance(error, KeyboardInterrupt), error
    gate.open()
    stream.close()
    assert settle(lambda: statistics().points.pending == statistics().waits.pending == 0)


@pytest.mark.parametrize("kind", KINDS)
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
    """One that the application has set is told of its signals, and of nothing else."""
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
    assert (
        succeed(driver_kind, SUBINTERPRETER.format(options=options, before=before))
        == "True\nNone 5\n"
    )


# --------------------------------------------------------------------------------- worker processes

WORKERS = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    import process_jobs

    if __name__ == "__main__":
        assert process_jobs.wait_for(1) == 1
        context = multiprocessing.get_context({method!r})
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            print(sum(executor.map(process_jobs.wait_for, range(6))))
        worker = context.Process(target=process_jobs.wait_for, args=(2,))
        worker.start()
        worker.join()
        print(worker.exitcode, process_jobs.wait_for(3))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes_that_are_spawned_use_cuda(driver_kind: str, method: str) -> None:
    assert succeed(driver_kind, WORKERS.format(method=method)) == "15\n0 3\n"


def test_worker_processes_that_are_forked_later_are_refused(driver_kind: str) -> None:
    """Each job raises the error that says what to do, and the executor ends. The parent goes on."""
    script = """
        import multiprocessing, warnings
        from concurrent.futures import ProcessPoolExecutor
        import process_jobs
        # Python 3.12's own, about threads and fork
        warnings.simplefilter("ignore", DeprecationWarning)
        # the child's, about the coroutine that was refused
        warnings.simplefilter("ignore", RuntimeWarning)
        assert process_jobs.wait_for(1) == 1
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
            error = executor.submit(process_jobs.wait_for, 2).exception(timeout=30)
        print(type(error).__name__, "fork" in str(error), "spawn" in str(error),
            process_jobs.wait_for(3))
    """
    assert succeed(driver_kind, script) == "RuntimeError True True 3\n"


def test_drain_in_a_forked_child_is_refused(driver_kind: str) -> None:
    """What was pending in the parent never ends in the child."""
    script = """
        import asyncio, os, warnings
        import aiostream
        from support import Gate
        # Python 3.12's own, about threads and fork
        warnings.simplefilter("ignore", DeprecationWarning)
        gate, stream = Gate(), aiostream.Stream()
        gate.hold(stream)

        async def main():
            future = stream.completion_future()
            pid = os.fork()
            if pid == 0:
                try:
                    await aiostream.drain()
                except RuntimeError as error:
                    os._exit(7 if "fork" in str(error) else 8)
                os._exit(9)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            gate.open()
            await future
            print(await aiostream.drain(10))

        asyncio.run(main())
        stream.close()
    """
    assert succeed(driver_kind, script) == "7\nTrue\n"


def test_worker_processes_that_are_forked_before_the_first_use_work(driver_kind: str) -> None:
    script = """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        import process_jobs
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
            print(sum(executor.map(process_jobs.wait_for, range(6))))
        print(process_jobs.wait_for(3))
    """
    assert succeed(driver_kind, script) == "15\n3\n"


@pytest.mark.parametrize("call", ["enqueue_async", "enqueue_in_thread"])
def test_fork_within_the_function_that_enqueues(driver_kind: str, call: str) -> None:
    """In the child the stream is refused. In the parent the future ends, as if nothing had been."""
    script = f"""
        import asyncio, os, warnings
        from aiostream import Stream, statistics
        # Python 3.12's own, about threads and fork
        warnings.simplefilter("ignore", DeprecationWarning)

        def fork(stream):
            pid = os.fork()
            if pid == 0:
                try:
                    stream.query()
                except RuntimeError as error:
                    os._exit(7 if "fork" in str(error) else 8)
                os._exit(9)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        async def main():
            async with Stream() as stream:
                print(await stream.{call}(fork))
                await stream.synchronize_async()

        asyncio.run(main())
        print(statistics().balanced)
    """
    assert succeed(driver_kind, script) == "7\nTrue\n"


@pytest.mark.parametrize("loop", ["running", "between"])
def test_a_forked_child_of_a_process_that_records_says_nothing(driver_kind: str, loop: str) -> None:
    """The recording is the parent's, and the error of each call is enough."""
    script = f"""
        import asyncio, os, warnings
        from aiostream import Stream, trace

        # Python 3.12's own, about threads and fork
        warnings.filterwarnings("ignore", category=DeprecationWarning)

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
    assert succeed(driver_kind, script) == f"{'refused ' * count}{known}\n"
