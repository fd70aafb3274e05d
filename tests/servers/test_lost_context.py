"""A lost context (P19): who is called, what `health` says, and a process that ends itself.

Each in a process of its own.
"""

from __future__ import annotations

import re
import textwrap

import pytest

import aiostream
from support import USUAL, run_script, succeed

BEGIN = """
    import asyncio, os, signal, sys, threading, time
    import aiostream
    from aiostream import Stream
    import internals
    from support import settle
    def fault(stream):
        internals.launch_kernel(stream, "trap")
    def say(*words):
        print(*words, flush=True)
"""


def script(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in (BEGIN, *parts))


def said_by(driver_kind: str, program: str) -> str:
    """What a program says. It ends at once then, whatever its context is like."""
    return succeed(driver_kind, script(program, "os._exit(0)"), forked=USUAL)


# --------------------------------------------------------------------------------------- listeners


@pytest.mark.parametrize("order", ["listener first", "stream first", "parked first"])
def test_fault_that_no_task_awaits_is_reported_within_a_second(
    driver_kind: str, order: str
) -> None:
    """The work of another library, say. Nothing is pending, so no wait fails with it."""
    early = "aiostream.on_context_failed(note)" if order == "listener first" else ""
    late = "aiostream.on_context_failed(note)" if not early else ""
    pause = "time.sleep(0.5)" if order == "parked first" else ""
    lines = said_by(
        driver_kind,
        f"""
            errors = []
            def note(error):
                errors.append((error.code, time.monotonic()))
            {early}
            stream = Stream()
            stream.synchronize()
            {pause}
            {late}
            time.sleep(0.3)
            assert not errors
            fault(stream)
            began = time.monotonic()
            while internals.stream_status(stream) in (0, 600):  # until the driver itself reports it
                time.sleep(0.0005)
            shown = time.monotonic()
            assert settle(lambda: errors, seconds=5), "no listener was called"
            say(errors[0][0], errors[0][1] - shown < {1.2 if driver_kind == "gpu" else 3})
        """,
    )
    assert lines.split() == ["719", "True"]


def test_listeners_are_called_once(driver_kind: str) -> None:
    """In a thread of the library, each with its own copy of the error, also if another listener
    raises. A registration is ended by its own function alone, which may be called twice.
    """
    lines = said_by(
        driver_kind,
        """
            hooked, errors, late = [], [], []
            sys.unraisablehook = lambda args: hooked.append(type(args.exc_value).__name__)
            aiostream.on_context_failed(lambda error: sys.exit(3))
            aiostream.on_context_failed(lambda error: 1 / 0)
            def note(error):
                errors.append((type(error).__name__, error.code, threading.current_thread().name))
            first, second = aiostream.on_context_failed(note), aiostream.on_context_failed(note)
            first()
            first()
            stream = Stream()
            async def main():
                await stream.completion_future()
                assert not errors
                fault(stream)
                try:
                    await stream.completion_future()  # refused if the fault has shown already
                except aiostream.ContextFailedError as error:
                    say("failed", error.code)
            asyncio.run(main())
            assert settle(lambda: errors, seconds=5)
            for _ in range(3):
                try:
                    stream.synchronize()
                except aiostream.ContextFailedError:
                    pass
            aiostream.on_context_failed(late.append)
            assert settle(lambda: late)
            threads = {thread.name for thread in threading.enumerate()}
            say(*errors[0], len(errors), late[0].code, *sorted(hooked))
            say("aiostream-janitor" in threads)
            assert late[0].__traceback__ is None
            assert late[0].meaning and "new process" in late[0].hint
        """,
    )
    assert lines.splitlines() == [
        "failed 719",
        "ContextFailedError 719 aiostream-listener 1 719 SystemExit ZeroDivisionError",
        "True",
    ]


def test_health_is_none_or_the_error(driver_kind: str) -> None:
    lines = said_by(
        driver_kind,
        """
            assert aiostream.health() is None, "no driver is needed before the first stream"
            stream = Stream()
            assert aiostream.health() is None
            fault(stream)
            assert settle(lambda: aiostream.health() is not None, seconds=5)
            first, second = aiostream.health(), aiostream.health()
            assert first is not second
            say(type(first).__name__, first.code, "a context of device 0" in str(first))
        """,
    )
    assert lines == "ContextFailedError 719 True\n"


def test_destroyed_context_is_not_the_end(driver_kind: str) -> None:
    """The process goes on, and is well while the library uses another context of that device."""
    lines = said_by(
        driver_kind,
        """
            aiostream.exit_on_context_failed()
            first = Stream()
            handle = internals.create_context()
            with aiostream.Context.from_handle(int(handle)).as_current():
                second = Stream()
            assert second.context != first.context
            assert aiostream.health() is None
            internals.driver_call("cuDevicePrimaryCtxReset",
                internals.driver_call("cuDeviceGet", 0))
            say(aiostream.health())
            async def main():
                await second.synchronize_async()
            asyncio.run(main())
            internals.driver_call("cuCtxDestroy", handle)
            error = aiostream.health()
            say(type(error).__name__, error.code)
        """,
    )
    assert lines.split() == ["None", "ContextFailedError", "709"]


def test_finalizers_do_not_touch_what_lived_in_a_destroyed_context(driver_kind: str) -> None:
    """On a GPU, to destroy a stream after its context crashes the process."""
    pytest.importorskip("cuda.core")
    lines = said_by(
        driver_kind,
        """
            import gc
            handles = [internals.create_context() for _ in range(3)]
            made = []
            for handle in handles:
                with aiostream.Context.from_handle(int(handle)).as_current():
                    made += [Stream(), aiostream.Event(), Stream()]
                    made[-1].core()
                    internals.spin(made[-1], 0)
                    made[-1].synchronize()
            for handle in handles:
                internals.driver_call("cuCtxDestroy", handle)
            made.clear()
            gc.collect()
            assert settle(lambda: aiostream.statistics().handles.open == 0)
            assert aiostream.statistics().balanced
            say(type(aiostream.health()).__name__)
        """,
    )
    assert lines.split() == ["ContextFailedError"]


# --------------------------------------------------------------------------- the end of the process

PLACES = {
    "a task that polls": """
        stream = Stream(wait="spin")
        fault(stream)
        await stream.synchronize_async()
    """,
    "the watcher": """
        stream = Stream(wait="event")
        fault(stream)
        await stream.synchronize_async()
    """,
    "a host function's wait": """
        future = stream.completion_future()
        fault(stream)
        await stream.completion_future()
    """,
    "a future": "await stream.enqueue_async(fault)",
    "no wait": "fault(stream); time.sleep(20)",
    "health": """
        fault(stream)
        while aiostream.health() is None:
            time.sleep(0.001)
    """,
    "any call": "fault(stream); stream.synchronize()",
    "a callback": """
        fault(stream)
        stream.add_callback(lambda error: say("called"))
        time.sleep(20)
    """,
    "a process whose Python is blocked": """
        import ctypes
        future = stream.completion_future()
        fault(stream)
        ctypes.PyDLL(None).sleep(20)
    """,
    "the call itself": """
        end()
        fault(stream)
        while aiostream.health() is None:
            time.sleep(0.001)
        aiostream.exit_on_context_failed(71)
    """,
}

EXITING = """
    aiostream.on_context_failed(lambda error: say("called"))
    end = aiostream.exit_on_context_failed(71)
    async def main():
        stream = Stream()
        say("ready")
        await act(stream)
    try:
        asyncio.run(main())
    finally:
        say("called")
"""


def exiting(place: str) -> str:
    act = textwrap.indent(textwrap.dedent(PLACES[place]), "    ")
    return script(f"async def act(stream):\n{act}", EXITING)


@pytest.mark.parametrize("place", PLACES)
def test_process_ends_wherever_the_error_first_appears(driver_kind: str, place: str) -> None:
    """Before any task or listener is called, with one line on stderr."""
    done = run_script(driver_kind, exiting(place), forked=USUAL)
    # That call comes too late for the listener.
    called = done.stdout.count("called") if place == "the call itself" else 0
    assert (done.returncode, done.stdout.split()) == (71, ["ready"] + ["called"] * called), (
        done.stderr
    )
    line = r"aiostream: cu\w+ reported CUDA_ERROR_LAUNCH_FAILED \(719\): "
    line += r"the CUDA context is lost\. Process \d+ ends now, "
    line += r"with exit code 71 \(exit_on_context_failed\)\.\n"
    assert re.fullmatch(line, done.stderr), done.stderr


def test_stderr_that_no_process_reads_does_not_keep_the_process(driver_kind: str) -> None:
    full = """
        import fcntl
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
        try:
            while True:
                os.write(writing, bytes(4096))
        except BlockingIOError:
            fcntl.fcntl(writing, fcntl.F_SETFL, 0)
        os.dup2(writing, 2)
    """
    done = run_script(driver_kind, script(full) + exiting("any call"), forked=USUAL, timeout=30)
    assert (done.returncode, done.stdout.split()) == (71, ["ready"])


GRACE = """
    listened = threading.Event()
    aiostream.on_context_failed(lambda error: listened.set())
    def stop(number, frame):
        say("signal", number)
    signal.signal(signal.SIGUSR1, stop)
    aiostream.exit_on_context_failed(72, grace={grace}, signal=signal.SIGUSR1)
    async def main():
        stream = Stream()
        try:
            await stream.enqueue_async(fault)
        except aiostream.ContextFailedError as error:
            say("failed", error.code)
    asyncio.run(main())
    assert listened.wait(5)
    say("listened")
    {then}
"""


@pytest.mark.parametrize(
    ("grace", "then", "code"),
    [(30, "os._exit(3)", 3), (1.5, "import ctypes; ctypes.PyDLL(None).sleep(20)", 72)],
)
def test_grace_lets_the_process_end_by_itself(
    driver_kind: str, grace: float, then: str, code: int
) -> None:
    """And ends it at last, whatever happens."""
    done = run_script(driver_kind, script(GRACE.format(grace=grace, then=then)), forked=USUAL)
    said = sorted(done.stdout.splitlines())
    assert (done.returncode, said) == (code, ["failed 719", "listened", "signal 10"]), done.stderr
    assert f"ends in {grace} s at the latest, with exit code 72" in done.stderr


def test_end_and_a_second_call(driver_kind: str) -> None:
    """The later call's settings hold, and the earlier one's end does not end them."""
    replaced = """
        first = aiostream.exit_on_context_failed(1)
        second = aiostream.exit_on_context_failed(73)
        first()
        stream = Stream()
        fault(stream)
        while True:
            aiostream.health()
            time.sleep(0.001)
    """
    assert run_script(driver_kind, script(replaced), forked=USUAL).returncode == 73
    ended = """
        aiostream.exit_on_context_failed(1)
        aiostream.exit_on_context_failed(73)()
        stream = Stream()
        fault(stream)
        assert settle(lambda: aiostream.health() is not None, seconds=5)
        say("lives")
    """
    assert said_by(driver_kind, ended) == "lives\n"


def test_ordinary_end_and_forked_child_are_left_alone(driver_kind: str) -> None:
    ordinary = """
        aiostream.exit_on_context_failed()
        stream = Stream()
        stream.synchronize()
        child = os.fork()
        if child == 0:
            try:
                aiostream.health()
            except RuntimeError as error:
                say("forked child" in str(error))
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        stream.close()
    """
    assert succeed(driver_kind, script(ordinary), forked=USUAL) == "True\n"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"code": -1}, ValueError, "0 to 255"),
        ({"code": 256}, ValueError, "0 to 255"),
        ({"code": "1"}, TypeError, "an int, not str"),
        ({"code": True}, TypeError, "an int, not bool"),
        ({"grace": -1}, ValueError, "from 0 to"),
        ({"grace": float("nan")}, ValueError, "not nan"),
        ({"grace": float("inf")}, ValueError, "from 0 to"),
        ({"grace": "1"}, TypeError, "a number of seconds, not str"),
        ({"signal": 15}, ValueError, "needs a grace"),
        ({"grace": 1, "signal": 1000}, ValueError, "1000 is not a valid signal"),
        ({"grace": 1, "signal": True}, TypeError, "signal is an int, not bool"),
        ({"grace": 1, "signal": 15.0}, TypeError, "signal is an int, not float"),
        ({"stalled": "yes"}, TypeError, "stalled"),
    ],
)
def test_arguments_that_are_refused(
    arguments: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        aiostream.exit_on_context_failed(**arguments)  # type: ignore[arg-type]
