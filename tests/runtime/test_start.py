"""The first use starts the native part and two threads: once, and after a failure at the
next use.
"""

from __future__ import annotations

import re

import pytest

from support import succeed

# Each try is a child of its own, forked before the first use. `attempt` is the first use, which
# fails; the second must work, and leave as many descriptors and threads behind as one that nothing
# has disturbed. Of the descriptors those count that the library opens, because a GPU's driver opens
# and closes its own in its threads, whenever they get to it.
SECOND_TRY = """
    import asyncio, os, sys, threading
    import aiostream, cuda.bindings.driver
    import internals
    from support import settle, spin

    async def use():
        stream = aiostream.Stream(wait="event")
        spin(stream, 0.001)
        await stream.synchronize_async()
        await stream.completion_future()
        await stream.aclose()
        assert await aiostream.drain(10)

    def descriptors():
        kinds = []
        for each in os.listdir("/proc/self/fd"):
            try:
                kinds.append(os.readlink("/proc/self/fd/" + each))
            except OSError:  # that of the list itself, or one that the driver has closed
                pass
        return "+".join(str(kinds.count(f"anon_inode:[{k}]")) for k in ("eventpoll", "timerfd"))

    def in_child(attempt, ended=lambda: True):
        '''Runs `attempt`, then uses the library.

        Returns how the attempt ended, and what is open afterwards.
        '''
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            raised = ""
            try:
                attempt()
            except BaseException as error:
                raised = type(error).__name__
            try:
                asyncio.run(use())
                assert settle(ended)
                names = sorted(thread.name for thread in threading.enumerate())
                said = f"{raised} {descriptors()} {','.join(names)}"
            except BaseException as error:
                said = f"{raised} then {error!r}"
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        raised, _, after = said.partition(" ")
        return raised, after

    undisturbed = in_child(lambda: None)
    assert undisturbed[1] and "then" not in undisturbed[1], undisturbed
"""


# Each step has a process of its own, which takes a second where a GPU's driver starts.
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_interrupt_at_any_step_of_the_start(driver_kind: str) -> None:
    script = (
        SECOND_TRY
        + """
    from interrupts import Striker

    def interrupted_at(number):
        def attempt():
            internals.bindings()
            with Striker(number, codes=internals.START_STEPS):
                internals.start()
        return attempt

    struck = 0
    while True:
        ended, after = in_child(interrupted_at(struck + 1))
        if not ended:
            break
        assert (ended, after) == ("KeyboardInterrupt", undisturbed[1]), (struck, ended, after,
            undisturbed)
        struck += 1
    print("struck" if struck > 15 else struck)
    """
    )
    assert succeed(driver_kind, script, timeout=300) == "struck\n"


@pytest.mark.timeout(400)
def test_a_thread_that_cannot_begin_or_is_interrupted_meanwhile(driver_kind: str) -> None:
    """`Thread.start` waits until its thread runs, and so does the library: the interrupt comes
    there, and the thread goes on.
    """
    script = (
        SECOND_TRY
        + """
    def failing(owner, name, error, number):
        def attempt():
            original, left = getattr(owner, name), number
            def fail(*args):
                nonlocal left
                left -= 1
                if left == 0:
                    raise error
                return original(*args)
            setattr(owner, name, fail)
            try:
                internals.start()
            finally:
                setattr(owner, name, original)
        return attempt

    def ended():  # a thread that has found its work taken ends by itself
        names = [thread.name for thread in threading.enumerate()]
        return len(names) == len(set(names))

    for owner, name, error, count in (
        (threading.Event, "wait", KeyboardInterrupt(), 4),
        (threading.Thread, "start", RuntimeError("can't start new thread"), 2),
    ):
        for number in range(1, count + 1):
            answer = in_child(failing(owner, name, error, number), ended)
            assert answer == (type(error).__name__, undisturbed[1]), (name, number, answer,
                undisturbed)
        answer = in_child(failing(owner, name, error, count + 1), ended)
        assert answer == undisturbed, (name, answer, undisturbed)
    print(undisturbed[1])
    """
    )
    # Nine starts of the driver, each of which takes seconds on a GPU that many workers use.
    printed = succeed(driver_kind, script, timeout=300)
    assert re.fullmatch(r"[2-9]\+[2-9] MainThread,aiostream-janitor,aiostream-releaser\n", printed)


def test_signals_go_to_the_applications_threads(driver_kind: str) -> None:
    """A signal that the application's threads block stays pending for `sigwait`.

    Else the process would die of it.
    """
    script = """
        import asyncio, os, signal, threading
        import aiostream, trio
        from support import run_on
        async def use():
            stream = aiostream.Stream(wait="event")
            await stream.completion_future()
        asyncio.run(use())
        run_on("trio", use)  # whose end the janitor serves
        # a GPU's driver has threads of its own, which take signals
        if os.environ["AIOSTREAM_SIMULATOR"]:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.sigtimedwait({signal.SIGTERM}, 20).si_signo == signal.SIGTERM
        # Those of errors in the thread's own code, and those that no thread can block.
        faults = ("SEGV", "BUS", "FPE", "ILL", "TRAP", "SYS", "ABRT", "KILL", "STOP")
        faults = {getattr(signal, f"SIG{name}") for name in faults}
        def takes_signals(thread):
            with open(f"/proc/self/task/{thread.native_id}/status") as status:
                blocked = next(line.split()[1] for line in status if line.startswith("SigBlk"))
            return [
                each for each in signal.valid_signals() - faults
                if not int(blocked, 16) >> each - 1 & 1
            ]
        ours = [each for each in threading.enumerate() if each.name.startswith("aiostream-")]
        print(len(ours), [each.name for each in ours if takes_signals(each)])
    """
    assert succeed(driver_kind, script) == "2 []\n"


def test_a_child_that_is_forked_during_the_start_is_refused(driver_kind: str) -> None:
    """It has half of a driver. The parent goes on."""
    script = """
        import cuda.bindings.driver as driver
        from aiostream import Stream
        from support import code_of_fork

        real = driver.cuInit
        def fork(flags):
            driver.cuInit = real
            print(code_of_fork(Stream))
            return real(flags)

        driver.cuInit = fork
        stream = Stream()
        print(stream.query())
        stream.close()
    """
    assert succeed(driver_kind, script) == "7\nTrue\n"


FAILING = """
        import asyncio, sys, threading
        from interrupts import PACKAGE

        def fail_in(thread):
            # From here on each line of the library in that thread counts, and the n-th fails.
            def trace(frame, event, argument):
                name = threading.current_thread().name
                if name != thread or not frame.f_code.co_filename.startswith(PACKAGE):
                    return None
                if event == "line" and left:
                    left[0] -= 1
                    if left[0] == 0:
                        left.clear()
                        struck.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                        raise MemoryError
                return trace

            def reported(report):
                assert isinstance(report.exc_value, MemoryError), report
                sys.settrace(trace)  # Python ends the tracing of a thread in which it has raised

            threading.settrace(trace)
            sys.unraisablehook = reported

        left, struck = [], []
        from aiostream import Event, Stream, statistics
        from support import Gate, run_on, settle
"""


@pytest.mark.slow
def test_an_error_in_any_line_of_the_janitor_loses_nothing(driver_kind: str) -> None:
    """Such as a MemoryError. The thread reports it, and goes on with what it was about to do."""
    script = (
        FAILING
        + """
        fail_in("aiostream-janitor")
        stream = Stream()
        stream.synchronize()
        for number in range(1, 50):
            left[:] = [number]
            Event()  # dropped, so the janitor destroys it
            assert settle(lambda: statistics().handles.open == 1, 10), struck[-1]
            left.clear()
        print(len(struck) > 20)
        struck.clear()

        # A loop without `add_reader`, which the janitor asks for its drains.
        async def main():
            for number in range(1, 50):
                with Gate() as gate:
                    gate.hold(stream)
                    future = stream.checked_completion_future()
                    left[:] = [number]
                    gate.open()
                    await asyncio.wait_for(future, 10)
                left.clear()

        run_on("blind", main)
        stream.close()
        print(len(struck) > 10)
    """
    )
    assert succeed(driver_kind, script) == "True\nTrue\n"


# What gevent's patches put in place of Python's own: of threads, of queues, and of epoll, which it
# removes.
@pytest.mark.parametrize(
    "patch",
    [
        "_thread.start_new_thread = threading._start_new_thread = green",
        "queue.SimpleQueue = Green",
        "del select.epoll",
    ],
)
@pytest.mark.parametrize("first", [False, True], ids=["patched first", "imported first"])
def test_green_threads_are_refused_at_the_first_use(
    driver_kind: str, patch: str, first: bool
) -> None:
    imports = "import aiostream, cuda.bindings.driver\n"
    lines = succeed(
        driver_kind,
        f"""
        import _thread, queue, select, threading
        def green(*_): raise AssertionError("it would run in this thread")
        class Green(queue.SimpleQueue): pass
        green.__module__ = Green.__module__ = "gevent.thread"
        {imports if first else ""}
        {patch}
        import aiostream
        uses = (
            aiostream.Stream, lambda: aiostream.StreamPool(1),
            lambda: aiostream.on_stalled(print), lambda: aiostream.blocking.install("count"),
        )
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                print("gevent" in str(error))
    """,
    )
    assert lines.split() == ["True"] * 4


def test_a_debugger_may_replace_how_threads_start(driver_kind: str) -> None:
    """As pydevd does, for threads of the system."""
    lines = succeed(
        driver_kind,
        """
        import _thread, asyncio, threading
        start = _thread.start_new_thread
        def of_a_debugger(function, args, kwargs={}): return start(function, args, kwargs)
        _thread.start_new_thread = threading._start_new_thread = of_a_debugger
        import aiostream
        from aiostream.testing import spin
        async def main():
            async with aiostream.Stream() as stream:
                await stream.run(spin, stream, 0.001)
                print(await stream.run_in_thread(lambda: 5))
        asyncio.run(main())
    """,
    )
    assert lines == "5\n"


@pytest.mark.simulator_only("a GPU does not lose a context on command")
def test_green_threads_after_the_first_use_start_none(driver_kind: str) -> None:
    """A thread that is to begin later would be a green one. A listener is called without it."""
    lines = succeed(
        driver_kind,
        """
        import _thread, asyncio, threading
        import aiostream, aiostream.simulator
        from support import settle
        stream, seen = aiostream.Stream(), []
        aiostream.on_context_failed(lambda error: seen.append(threading.current_thread().name))
        def green(*_): exit()
        green.__module__ = "gevent.thread"
        _thread.start_new_thread = threading._start_new_thread = green
        async def main():
            print(await stream.run(lambda: 7))
            try:
                await stream.run_in_thread(print, "called")
            except RuntimeError as error:
                print("gevent" in str(error))
            aiostream.simulator.break_context(700)
            aiostream.health()
            print(settle(lambda: seen), *seen)
        asyncio.run(main())
    """,
    )
    assert lines.split() == ["7", "True", "True", "aiostream-janitor"]
