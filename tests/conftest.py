"""One suite, on {simulator, GPU} x {asyncio, asyncio debug, uvloop, eager tasks, trio}, with a ledger check after each test.

An `async def` test runs on every loop; a plain one runs once. `--driver` chooses; by default the GPU where there is one.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PROBE = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
LOOPS = ["asyncio", "asyncio-debug", "uvloop", "asyncio-eager", "trio"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--driver", choices=["auto", "simulator", "gpu"], default="auto", help="which CUDA driver to test on")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simulator_only(reason): needs what a GPU cannot do on command")
    config.addinivalue_line("markers", "gpu_only(reason): needs what the simulator refuses")
    config.addinivalue_line("markers", "leaks(n): leaves n points leaked, as the driver made it")
    driver = config.getoption("--driver")
    if driver == "auto":
        there = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode == 0
        driver = "gpu" if there else "simulator"
    config.stash[DRIVER] = driver
    if driver == "simulator":
        from aiostream import simulator

        simulator.install(devices=2)


DRIVER = pytest.StashKey[str]()


def pytest_report_header(config: pytest.Config) -> str:
    from aiostream import Device, _driver

    names = ", ".join(Device(n).name for n in range(Device.count()))
    return f"driver: {config.stash[DRIVER]} (CUDA {_driver.driver_version()}; {names})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    driver = config.stash[DRIVER]
    for item in items:
        other = item.get_closest_marker("simulator_only" if driver == "gpu" else "gpu_only")
        if other is not None:
            item.add_marker(pytest.mark.skip(reason=other.args[0]))


# ------------------------------------------------------------------------------------------------ loops


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "loop_kind" in metafunc.fixturenames:
        metafunc.parametrize("loop_kind", LOOPS)


def run_on(loop_kind: str, function: Callable[..., Any], *args: Any) -> Any:
    """Runs a coroutine function to its end on one kind of loop."""
    if loop_kind == "trio":
        import trio

        return trio.run(function, *args)
    if loop_kind == "asyncio-eager":
        if sys.version_info < (3, 12):
            pytest.skip("eager tasks came with Python 3.12")

        async def eagerly() -> Any:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            return await function(*args)

        with asyncio.Runner() as runner:
            return runner.run(eagerly())
    if loop_kind == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    else:
        factory = None
    with asyncio.Runner(debug=loop_kind == "asyncio-debug", loop_factory=factory) as runner:
        return runner.run(function(*args))


@pytest.fixture
def run(loop_kind: str) -> Callable[..., Any]:
    """Runs a coroutine function on this test's loop, for tests that look at what comes after the loop."""
    return lambda function, *args: run_on(loop_kind, function, *args)


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> None:
    if inspect.iscoroutinefunction(obj) and name.startswith("test") and not _is_pytest_asyncio(obj):
        pytest.mark.usefixtures("loop_kind")(obj)


def _is_pytest_asyncio(obj: Any) -> bool:
    return any(mark.name == "asyncio" for mark in getattr(obj, "pytestmark", []))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function) or _is_pytest_asyncio(function):
        return None
    wanted = inspect.signature(function).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}

    async def call() -> None:
        await function(**arguments)

    run_on(pyfuncitem.funcargs["loop_kind"], call)
    return True


# ------------------------------------------------------------------------------------------------ the ledger


@pytest.fixture(scope="session")
def driver_kind(pytestconfig: pytest.Config) -> str:
    return pytestconfig.stash[DRIVER]


def settle(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Waits until other threads have done what they are about to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


@pytest.fixture(autouse=True)
def ledger(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test began must have ended when it is over: points, futures, handles, threads."""
    import aiostream

    before = aiostream.statistics()
    threads = {thread.name for thread in threading.enumerate()}
    yield
    gc.collect()
    marker = request.node.get_closest_marker("leaks")
    leaked = before.points.leaked + (marker.args[0] if marker else 0)

    def ended() -> bool:
        now = aiostream.statistics()
        return (
            now.balanced
            and now.points.pending == 0
            and now.futures.pending == 0
            and now.handles.open == before.handles.open
            and now.points.leaked == leaked
        )

    assert settle(ended), f"the ledger does not balance: {before} -> {aiostream.statistics()}"
    left = {thread.name for thread in threading.enumerate()} - threads
    assert not {name for name in left if not name.startswith("aiostream-")}, f"threads left behind: {left}"
