"""The pytest plugin of aiostream: `pytest --aiostream=simulator` or `--aiostream=gpu`.

It lies outside the package, because pytest imports the plugins of all installed distributions at
each start. It imports aiostream only when an option or a fixture asks for it. `docs/testing.md` is
its page.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aiostream.blocking import BlockingCall
    from aiostream.testing import Faults, Gate

# Seconds after which a gate that a test has not opened opens by itself. The test fails then.
GATE_OPENS_AFTER = 30.0
# Seconds from which on a call that need not wait, such as a launch, fails a test. On a busy machine
# any call may take some milliseconds.
BLOCKS_FROM = 0.02

_ONCE = ("begins", "loads")  # whichever test comes first starts a context and loads kernels

_GATE_WAS_FORGOTTEN = (
    "cuda_gate was not opened in time, so it opened by itself. The end of `async with Stream()` "
    "waits for the gate, also after a failed assertion: write `with cuda_gate:` inside the "
    "stream's block, and its end opens the gate"
)


# The descriptor that `exit_on_context_failed` writes to. What pytest captures is lost when the
# process ends, and it has not begun to capture when it imports this.
STDERR = 2
with contextlib.suppress(OSError):  # it is closed
    STDERR = os.dup(2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("aiostream", "tests of programs that use aiostream")
    group.addoption(
        "--aiostream",
        choices=["simulator", "gpu"],
        help="run on aiostream's simulator or on a GPU. Each test then fails if it leaves streams "
        "open, or futures or waits that do not end, or if a call that waits for the GPU blocks its "
        "loop",
    )
    group.addoption(
        "--aiostream-devices",
        type=int,
        metavar="N",
        help="how many GPUs the simulator has (default: 1)",
    )
    parser.addini(
        "aiostream_patience",
        "seconds after a test in which what it has left may still end (default: 5)",
        default="5",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Has the driver's calls watched, before a conftest can load the driver."""
    if getattr(early_config.known_args_namespace, "aiostream", None) == "gpu":
        from aiostream import blocking

        with contextlib.suppress(RuntimeError, OSError):  # `pytest_configure` says what is wrong
            blocking.install("count")()


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the driver, and switches the checks on, if the option asks for that."""
    for marker in (
        "cuda_leaks(n): the test leaves n points leaked, as by losing a context",
        "cuda_ledger_off(reason): what the test leaves behind is not checked",
        "cuda_blocking(reason): the test may block its loop with driver calls",
    ):
        config.addinivalue_line("markers", marker)
    driver = config.getoption("--aiostream")
    devices = config.getoption("--aiostream-devices")
    if devices is not None and driver != "simulator":
        raise pytest.UsageError("--aiostream-devices needs --aiostream=simulator")
    if driver is None:
        return
    try:
        _use_simulator(devices) if driver == "simulator" else _use_gpu()
    except (RuntimeError, ValueError, ModuleNotFoundError) as problem:
        raise pytest.UsageError(f"--aiostream={driver}: {problem}") from problem
    config.pluginmanager.register(_checks(), "aiostream-checks")


def _use_simulator(devices: int | None) -> None:
    from aiostream import simulator

    # What hides this machine's GPUs would hide the simulated ones.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    simulator.install(devices=devices)


def _use_gpu() -> None:
    from aiostream import Device, NoDriverError, blocking
    from aiostream._base import stand_ins

    try:
        blocking.install("count")()
        Device.count()  # loads the driver: the first one that is loaded is the process's for good
    except NoDriverError as problem:
        raise RuntimeError(
            f"{problem}\nWithout a GPU, use --aiostream=simulator in place of this option"
        ) from problem
    if stand_ins.is_simulated():
        raise RuntimeError(
            "the simulator is this process's driver already: unset AIOSTREAM_SIMULATOR and do not "
            "call simulator.install(), or use --aiostream=simulator"
        )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which driver the tests run on."""
    if config.getoption("--aiostream") is None:
        return None
    from aiostream import Device, __version__
    from aiostream._base import driver, stand_ins

    which = "simulator" if stand_ins.is_simulated() else Device(0).name
    cuda = driver.spelled(driver.driver_version())
    gpus = f"{(count := Device.count())} GPU{'s' * (count > 1)}"
    return f"aiostream {__version__}: {which}, CUDA {cuda}, {gpus}; checks: leaks, blocking calls"


# Not `wrapper`, which an old pluggy does not know.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, Any, None]:
    """Notes for the ledger how a test has ended. Other plugins make the report."""
    yield
    # Afterwards, because pytest enters the errors of unittest's tests in that report only.
    if call.when != "teardown" and call.excinfo is not None:
        skipped = call.excinfo.errisinstance(pytest.skip.Exception)
        setattr(item, _SKIPPED if skipped else _FAILED, True)


_FAILED, _SKIPPED = "_aiostream_failed", "_aiostream_skipped"


def _checks() -> object:
    """What `--aiostream` adds to each test."""
    # Made only when the option asks for it. An old pluggy does not know `wrapper`, and pytest
    # imports this module also in suites that do not use aiostream.

    class Checks:
        @pytest.fixture(autouse=True)
        def _cuda_ledger_of_each_test(self, request: pytest.FixtureRequest) -> Iterator[None]:
            if request.node.get_closest_marker("cuda_ledger_off") is None:
                yield from _ledger(request)
            else:
                yield

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
            """Fails a test that has blocked its loop. The code of its fixtures does not count."""
            if item.get_closest_marker("cuda_blocking") is not None:
                return (yield)
            with _loop_is_not_blocked():
                return (yield)

    return Checks()


@contextlib.contextmanager
def _loop_is_not_blocked() -> Iterator[None]:
    """Fails the test if a driver call has blocked the thread of a running loop."""
    from aiostream import blocking

    with blocking.watch() as found:
        yield
    lines = [
        f"{call}\n{call.where}"
        for call in found
        if call.kind in ("waits", "copies")
        or (call.seconds >= BLOCKS_FROM and call.kind not in _ONCE and not _loads(call, found))
    ]
    if lines:
        advice = "If a line may block, write `# allow_blocking` behind it."
        pytest.fail("\n".join([*lines, advice]), pytrace=False)


def _loads(launch: BlockingCall, found: list[BlockingCall]) -> bool:
    """Whether a launch has taken long because it was the first."""
    end = launch.began + launch.seconds * 1e9
    inner = (each for each in found if each.kind in _ONCE)
    return launch.kind == "launches" and any(launch.began <= each.began < end for each in inner)


def _ledger(request: pytest.FixtureRequest) -> Iterator[None]:
    from aiostream import testing

    if getattr(request.session, _FAILED, False):
        setattr(request.session, _FAILED, False)
        # pytest keeps the traceback of a failure here until it calls the next test. That is after
        # this ledger has begun to count, and the failed test's streams would die in its middle.
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        testing.forget_failed_test()
    setattr(request.node, _FAILED, False)  # an earlier attempt, before a rerun
    marker = request.node.get_closest_marker("cuda_leaks")
    leaks = cuda_leaks(*marker.args, **marker.kwargs) if marker is not None else 0
    with _said_alone(testing.LedgerError), contextlib.ExitStack() as stack:
        patience = float(request.config.getini("aiostream_patience"))
        stack.enter_context(testing.ledger(leaks=leaks, seconds=patience))
        yield
        if getattr(request.node, _FAILED, False):
            # Its error says what went wrong, and its traceback keeps its streams open.
            stack.pop_all()
            setattr(request.session, _FAILED, True)
        elif leaks and getattr(request.node, _SKIPPED, False):
            stack.pop_all()  # what was to leak has not run, on a GPU for example


@contextlib.contextmanager
def _said_alone(kind: type[Exception]) -> Iterator[None]:
    """Has pytest show the text of an error, without the way through this plugin."""
    try:
        yield
    except kind as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def cuda_leaks(n: int) -> int:
    """The arguments of the marker `cuda_leaks`."""
    return n


# ------------------------------------------------------------------------------ fixtures


@pytest.fixture
def cuda_ledger(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test fails if a stream, event, graph, future or wait that it began does not end."""
    yield from _ledger(request)


@pytest.fixture
def cuda_blocking_calls() -> Iterator[None]:
    """The test fails if a driver call blocks the thread of a running loop."""
    with _loop_is_not_blocked():
        yield


@pytest.fixture
def cuda_simulator() -> Any:
    """The module `aiostream.simulator`, installed. On a GPU the test is skipped."""
    from aiostream import simulator

    try:
        simulator.install()
    except RuntimeError as problem:
        if not simulator.installed():
            pytest.skip(f"needs the simulator: {problem}")
    yield simulator
    simulator.seed(None)


@pytest.fixture
def cuda_faults(cuda_simulator: Any) -> Iterator[Faults]:
    """Makes driver calls fail, or loses the context, until the test ends (`testing.Faults`)."""
    from aiostream import testing

    with _said_alone(AssertionError), testing.Faults() as faults:
        yield faults


@pytest.fixture
def cuda_gate() -> Iterator[Gate]:
    """Holds streams until it is opened (`aiostream.testing.Gate`). Opened after the test."""
    from aiostream import NoDriverError, testing

    with _said_alone(NoDriverError):
        gate = testing.GateOfTest(GATE_OPENS_AFTER)
    with gate:
        yield gate
    if gate.has_given_up:
        pytest.fail(_GATE_WAS_FORGOTTEN, pytrace=False)
