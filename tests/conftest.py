"""One suite, on {simulator, GPU} x {asyncio, uvloop, trio}, checked by `cuda_ledger` after each.

An `async def` test runs on every loop; a plain one runs once. Those marked `all_loops`, and all
with `--run-slow`, run on asyncio in debug mode and with eager tasks too. `--driver` chooses; by
default the GPU where there is one.
"""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import internals
from aiostream import CaptureStatus, Event, Stream, on_stalled
from commands import python
from installed import GIVES_WRONG_EDGE_DATA, MISSING, missing_of
from stalls import Listener
from support import FULL, LOOPS, PLAIN_LOOPS, recover, run_on, settle, spin

if TYPE_CHECKING:
    from aiostream.metrics import Wait

pytest_plugins = ["running", "aiostream_pytest"]  # the latter also if it is not installed

PROBE = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def pytest_addoption(parser: pytest.Parser) -> None:
    drivers = ["auto", "simulator", "gpu"]
    parser.addoption("--driver", choices=drivers, default="auto", help="which CUDA driver to use")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts its background jobs so, and their children inherit it.
        # Some tests interrupt themselves or a program.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", "simulator_only(reason): needs what a GPU cannot do on command"
    )
    config.addinivalue_line("markers", "gpu_only(reason): needs what the simulator refuses")
    config.addinivalue_line("markers", "needs_gil(reason): cannot be so on a free-threaded Python")
    config.addinivalue_line("markers", "needs_edge_data: some cuda-bindings give wrong edge data")
    config.addinivalue_line(
        "markers", "all_loops: runs on asyncio in debug mode and with eager tasks by default too"
    )
    driver = config.getoption("--driver")
    if driver == "auto":
        driver = "gpu" if python("none", "-c", PROBE).returncode == 0 else "simulator"
    config.stash[DRIVER] = driver
    from aiostream import simulator

    if driver == "simulator":
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it may name none of the simulated devices
        simulator.install(devices=2)
    else:
        # Now, before any test can install the simulator: the first driver that is loaded is the
        # process's for good. Before it, what the tests of `aiostream.blocking` need.
        internals.load_forwarding()
        internals.bindings()
        assert not simulator.installed()


DRIVER = pytest.StashKey[str]()


def pytest_report_header(config: pytest.Config) -> str:
    from aiostream import Device

    names = ", ".join(Device(n).name for n in range(Device.count()))
    return f"driver: {config.stash[DRIVER]} (CUDA {internals.driver_version()}; {names})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    driver = config.stash[DRIVER]
    for item in items:
        other = item.get_closest_marker("simulator_only" if driver == "gpu" else "gpu_only")
        if other is not None:
            item.add_marker(pytest.mark.skip(reason=other.args[0]))
        elif driver == "gpu" and "breakable" in getattr(item, "fixturenames", ()):
            # Before its fixtures are made, because `cuda_ledger` would miss what it was to leak.
            item.add_marker(
                pytest.mark.skip(reason="a GPU's context cannot be broken and recovered")
            )
        if (needs := item.get_closest_marker("needs_gil")) and not internals.has_gil():
            item.add_marker(pytest.mark.skip(reason=f"needs the GIL: {needs.args[0]}"))
        if GIVES_WRONG_EDGE_DATA and item.get_closest_marker("needs_edge_data"):
            item.add_marker(pytest.mark.skip(reason="this cuda-bindings gives wrong edge data"))
        # Here too: `cuda_ledger` would miss what a test has opened before it needs its loop.
        callspec = getattr(item, "callspec", None)
        for name in missing_of(callspec.id) if callspec else ():
            item.add_marker(pytest.mark.skip(reason=f"{name} is not installed"))


# -------------------------------------------------------------------------------------------- loops


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = any(
        "loop_kind" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")
    )
    if "loop_kind" in metafunc.fixturenames and not chosen:
        on_all = metafunc.definition.get_closest_marker("all_loops") is not None
        slow = [] if on_all else [pytest.mark.slow]
        kinds = [pytest.param(kind, marks=[] if kind in PLAIN_LOOPS else slow) for kind in LOOPS]
        metafunc.parametrize("loop_kind", kinds)


@pytest.fixture
def run(loop_kind: str) -> Callable[..., Any]:
    """Runs a coroutine function on this test's loop, for tests that look at what comes after the
    loop.
    """
    return lambda function, *args: run_on(loop_kind, function, *args)


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> None:
    if inspect.iscoroutinefunction(obj) and name.startswith("test"):
        pytest.mark.usefixtures("loop_kind")(obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    wanted = inspect.signature(function).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}

    async def call() -> None:
        await function(**arguments)

    run_on(str(pyfuncitem.funcargs["loop_kind"]), call)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skips a test that imports trio or uvloop itself where it is not installed. The library's
    imports do not count: it must do without.
    """
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if error.name not in MISSING:
            raise
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not Path(frame.f_code.co_filename).is_relative_to(Path(__file__).parent):
            raise
        pytest.skip(f"{error.name} is not installed")


# ------------------------------------------------------------------------------------ after a test


@pytest.fixture(scope="session")
def driver_kind(pytestconfig: pytest.Config) -> str:
    return pytestconfig.stash[DRIVER]


def pytest_collection_finish() -> None:
    """Leaves what the imports have made out of the collections after each test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Shows them again: hypothesis, which may be imported only now, asks who refers to what."""
    gc.unfreeze()


def timer_limit() -> int:
    """Returns how many waits of one loop its timer takes."""
    most = internals.limit_timer(0)
    internals.limit_timer(most)
    return most


@pytest.fixture(autouse=True)
def ledger(cuda_ledger: None) -> Iterator[None]:
    """Whatever a test began must have ended when it is over: points, futures, handles, threads."""
    # pytest's reports grow with each test, and each collection of a later test would go through
    # them: in a long run they made most of its time. Now, and not after a test: `cuda_ledger` has
    # just collected what a failed test has left, which would otherwise count in all later ones.
    gc.freeze()
    threads = {thread.name for thread in threading.enumerate()}
    most_timers = timer_limit()
    yield
    if FULL:
        gc.collect()  # some errors show only there, such as those of a finalizer
    internals.forget_retired()  # of torch's stand-ins; other tests destroy their streams
    now = internals.limit_timer(most_timers)
    assert now == most_timers, "the test needs the fixture default_prediction"
    # Ours stay for the process, and the loops' own end when they idle.
    cached = ("aiostream-", "Trio thread", "AnyIO worker")

    def left() -> set[str]:
        names = {thread.name for thread in threading.enumerate()} - threads
        return {name for name in names if not name.startswith(cached)}

    # A timer that was cancelled ends a moment later.
    assert settle(lambda: not left()), f"threads left behind: {left()}"


# ------------------------------------------------------------------------------ what a test changes


@pytest.fixture
def stream() -> Iterator[Stream]:
    """A stream that has run a kernel: to load its module would end a capture."""
    stream = Stream()
    spin(stream, 0)
    stream.synchronize()
    yield stream
    assert stream.closed or stream.capture_status() is CaptureStatus.NONE
    stream.close()


@pytest.fixture
def other() -> Iterator[Stream]:
    """A second stream."""
    stream = Stream()
    yield stream
    stream.close()


@pytest.fixture
def event() -> Iterator[Event]:
    event = Event()
    yield event
    event.close()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What went to `sys.unraisablehook`, as (exception's type, its text, object)."""
    seen: list[Any] = []

    def note(args: Any) -> None:
        seen.append((args.exc_type, str(args.exc_value), args.object))

    monkeypatch.setattr(sys, "unraisablehook", note)
    return seen


@pytest.fixture
def waits() -> Iterator[list[Wait]]:
    """What `metrics.on_wait` reports."""
    from aiostream import metrics

    seen: list[Wait] = []
    end = metrics.on_wait(seen.append)
    yield seen
    end()


@pytest.fixture
def breakable(driver_kind: str) -> Any:
    """The simulator, for a test that breaks its contexts; afterwards they are healthy."""
    if driver_kind != "simulator":
        pytest.skip("a GPU's context cannot be broken and recovered")
    from aiostream import simulator

    # A listener is called at once for failures that are known. An earlier test may have left one,
    # such as that of a context that it has destroyed.
    recover()
    yield simulator
    simulator.adversary()
    recover()
    simulator.clear_faults()


@pytest.fixture
def default_prediction() -> Iterator[None]:
    """Restores prediction and the limit of timers after a test that changes them, as a `Waiter`
    does.
    """
    most = timer_limit()
    yield
    internals.set_prediction(True)
    internals.limit_timer(most)


@pytest.fixture
def listener(driver_kind: str) -> Iterator[Listener]:
    made = Listener()
    stop = on_stalled(made)
    yield made
    stop()
