"""The pytest plugin, as a user's suite meets it, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import aiostream
from commands import forked_module
from installed import installed

EXAMPLE = Path(__file__).parents[2] / "examples" / "test_with_plugin.py"

WITHOUT_TRIO = () if installed(["trio"]) else ("-k", "not trio")
"""Leaves out the tests of the example that run on trio, if it is not installed."""

IMPATIENT = ("-o", "aiostream_patience=0.5")


def pytest_of(
    folder: Path, suite: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs pytest with the plugin on a suite, in a process of its own."""
    (folder / "test_suite.py").write_text(textwrap.dedent(suite))
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n"
    )
    if not (folder / "conftest.py").exists():
        # On a busy machine any call may take some tens of milliseconds.
        (folder / "conftest.py").write_text(
            "import aiostream_pytest\naiostream_pytest.BLOCKS_FROM = 2.0\n"
        )
    words = ("-q", "-ra", "-p", "no:cacheprovider", "-p", "aiostream_pytest", *options)
    settings: dict[str, Any] = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    return forked_module("none", "pytest", *words, modules=("pytest",), folder=folder, **settings)


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What the summary says of each test that did not simply pass."""
    _, _, summary = done.stdout.partition("short test summary")
    said = defaultdict[str, str](str)
    for found in re.finditer(r"^(\w+) test_suite\.py::(?:\w+::)?(\w+)(.*)$", summary, re.M):
        said[found[2]] += found[1] + found[3]
    return said


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.rstrip().splitlines()[-1]


# Each test, what the summary says of it, and what stands in the whole report.
WRONG = """
import asyncio
import ctypes
import unittest

import pytest
import aiostream
import aiostream_pytest
from aiostream.testing import Gate, spin
from cuda.bindings.driver import cuCtxSynchronize

aiostream_pytest.GATE_OPENS_AFTER = 0.2
gate, kept = Gate(), []


def leave(fn, *args):
    async def main():
        stream = aiostream.Stream()
        kept.append(stream.enqueue_async(fn, *args))  # allow_blocking: on a busy machine
        stream.close()

    asyncio.run(main())


def test_leaves_work_that_ends():
    leave(spin, 0.05)


def test_leaves_a_future():
    leave(gate.hold)


@pytest.mark.cuda_ledger_off("ends what the last test has left")
def test_opens():
    gate.open()


def test_forgets_the_gate(cuda_gate):
    async def wait_behind():
        async with aiostream.Stream() as stream:
            cuda_gate.hold(stream)
            assert 5 == 6

    asyncio.run(wait_behind())


async def use(synchronize):
    async with aiostream.Stream() as stream:
        with stream.context.as_current():
            synchronize()


def test_blocks_its_loop():
    async def main():
        async with aiostream.Stream() as stream:
            stream.synchronize()

    asyncio.run(main())


def test_blocks_by_name():
    asyncio.run(use(cuCtxSynchronize))


def test_blocks_by_native_code():
    asyncio.run(use(ctypes.CDLL("libcuda.so.1").cuCtxSynchronize))


def test_may_block():
    asyncio.run(use(lambda: cuCtxSynchronize()))  # allow_blocking: it only shows how
    asyncio.run(use(lambda: cuCtxSynchronize()  # allow_blocking: so does this
    ))


def test_leaves_a_stream():
    kept.append(aiostream.Stream())


@pytest.mark.cuda_ledger_off("a stream for all tests")
def test_may_leave_a_stream():
    kept.append(aiostream.Stream())


def test_leaves_a_name():
    kept.extend([aiostream.Stream(name="decode"), aiostream.Event()])


def test_fault_that_does_not_happen(cuda_faults):
    cuda_faults.fail("cuMemAlloc", 2)


def test_misspells_a_function(cuda_faults):
    cuda_faults.fail("cuMemAlooc", 2)


def test_fails_itself():
    async def main():
        async with aiostream.Stream() as stream:
            stream.synchronize()
            assert 1 == 2

    asyncio.run(main())


def test_fails_with_streams():
    first, second = aiostream.Stream(), aiostream.Stream()
    cycle = [first, second]
    cycle.append(cycle)
    assert 3 == 4


def test_leaks_behind_it():
    # pytest keeps the traceback of a failure until the next test is called. Its frames, and so its
    # streams, die in the middle of that test.
    kept.append(aiostream.Stream())


def test_is_skipped_with_a_stream():
    kept.append(aiostream.Stream())
    pytest.skip("why")


@pytest.mark.cuda_leaks(n=0)
def test_leaks_by_name():
    pass


@pytest.mark.cuda_leaks
def test_leaks_without_a_number():
    pass


@pytest.mark.cuda_leaks(3)
def test_is_skipped_before_it_leaks():
    pytest.skip("why")


class TestIt(unittest.TestCase):
    def test_fails_in_unittest(self):
        self.stream = aiostream.Stream()
        self.fail("its own error")

    def test_skipped_in_unittest(self):
        self.skipTest("its own reason")
"""


def test_what_is_wrong_fails(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, WRONG, "--aiostream=simulator", *IMPATIENT)
    said = outcomes(done)
    blocks = {f"test_blocks_{how}" for how in ("its_loop", "by_name", "by_native_code")}
    fail = {"test_fails_itself", "test_fails_with_streams", "test_fails_in_unittest"}
    errors = {
        *("test_leaves_a_stream", "test_leaves_a_name", "test_leaks_behind_it"),
        *("test_fault_that_does_not_happen", "test_is_skipped_with_a_stream"),
        *("test_leaks_without_a_number", "test_leaves_a_future"),
    }
    assert said.pop("test_misspells_a_function").startswith("FAILED - ValueError: ")
    forgets = said.pop("test_forgets_the_gate")
    assert forgets.startswith("ERROR - ")
    assert forgets.endswith("FAILED - assert 5 == 6")
    assert "write `with cuda_gate:` inside the stream's block" in done.stdout
    assert said.keys() == blocks | fail | errors, done.stdout
    assert {name for name in said if said[name].startswith("ERROR")} == errors
    # A test that failed fails by itself, and not because it blocks or leaves something.
    assert "assert 1 == 2" in said["test_fails_itself"]
    assert "assert 3 == 4" in said["test_fails_with_streams"]
    assert "AssertionError: its ow" in said["test_fails_in_unittest"]

    report = done.stdout
    assert "cuStreamSynchronize on stream 0x" in report
    line = WRONG[: WRONG.index("kept.append(aiostream")].count("\n") + 1
    leak = report[report.index("at teardown of test_leaves_a_stream") :].split("\n_")[0]
    first, at, *more = leak.strip().splitlines()[1:]
    assert first == "1 more streams, events or graphs are open"
    assert re.match(r"  <aiostream.Stream 0x\w+ on device 0>, made at .*test_suite.py:\d+", at)
    assert f"test_suite.py:{line}: close it" in at
    assert not more, "nothing of pytest's or the plugin's own"
    assert "2 more streams, events or graphs are open" in report
    assert "<aiostream.Stream 'decode' 0x" in report
    assert "<aiostream.Event 0x" in report
    assert "1 of the arranged faults did not happen: cuMemAlloc (nth=1, called 0 times)" in report
    assert "There is no driver function cuMemAlooc: do you mean cuMemAlloc?" in report
    assert "cuda_leaks() missing 1 required positional argument: 'n'" in report
    for module in ("__exit__", "aiostream/testing.py", "aiostream/simulator"):
        assert module not in report, "a traceback of the library"
    page = (EXAMPLE.parents[1] / "docs" / "testing.md").read_text()
    for words in ("# allow_blocking", "up to 5 seconds", "aiostream_patience = "):
        assert words in page


@pytest.mark.parametrize(
    "devices", [pytest.param("--aiostream-devices=2", marks=pytest.mark.slow), "-v"]
)
def test_the_example_runs_with_the_command_of_its_page(tmp_path: Path, devices: str) -> None:
    """One GPU is simulated, so the test of two is skipped, and says what it needs."""
    page = (EXAMPLE.parents[1] / "docs" / "testing.md").read_text()
    assert "\npytest --aiostream=simulator\n" in page
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    options = ("--aiostream=simulator", devices, "-v", *WITHOUT_TRIO)
    done = pytest_of(tmp_path, EXAMPLE.read_text(), *options, **hidden)
    passed, gpus = 9 if WITHOUT_TRIO else 10, 1 if devices == "-v" else 2
    expected = f"{passed} passed, 1 skipped" if gpus == 1 else f"{passed + 1} passed"
    assert last_line(done).strip("= ").startswith(expected), done.stdout
    assert ("--aiostream-devices=2" in done.stdout) is (gpus == 1)
    version = re.escape(aiostream.__version__)
    header = rf"^aiostream {version}: simulator, CUDA \d+\.\d+, {gpus} GPUs?; checks: leaks, "
    assert re.search(header, done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("plugin", ["anyio", "asyncio"])
def test_async_tests_of_other_plugins_are_checked(tmp_path: Path, plugin: str) -> None:
    fixture = "pytest.fixture" if plugin == "anyio" else "pytest_asyncio.fixture"
    suite = f"""
    import aiostream
    import pytest, pytest_asyncio
    from aiostream.testing import spin

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    @{fixture}
    async def stream(request):
        async with aiostream.Stream() as made:
            yield made

    @pytest.mark.{plugin}
    async def test_awaits(stream):
        await stream.enqueue_async(spin, 0.001)
        await stream.synchronize_async()

    @pytest.mark.{plugin}
    async def test_blocks():
        async with aiostream.Stream() as stream:
            stream.synchronize()

    @pytest.mark.{plugin}
    async def test_leaves_a_stream():
        test_leaves_a_stream.kept = aiostream.Stream()
    """
    scope = ("-o", "asyncio_default_fixture_loop_scope=function") if plugin == "asyncio" else ()
    done = pytest_of(tmp_path, suite, "-p", plugin, *scope, "--aiostream=simulator", *IMPATIENT)
    assert "FAILED test_suite.py::test_blocks" in done.stdout, done.stdout + done.stderr
    assert "ERROR test_suite.py::test_leaves_a_stream" in done.stdout, done.stdout
    assert "1 failed, 2 passed, 1 error" in last_line(done), done.stdout


def test_a_gate_without_a_driver_names_the_option(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, "def test_it(cuda_gate): pass", CUDA_VISIBLE_DEVICES="-1")
    assert "`pytest --aiostream=simulator`" in done.stdout, done.stdout
    assert "aiostream/" not in done.stdout, "a traceback"


@pytest.mark.slow
def test_an_old_pytest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old_pluggy.py").write_text(
        textwrap.dedent("""
        import pytest

        def hookimpl(function=None, hookwrapper=False, optionalhook=False, tryfirst=False,
                     trylast=False, specname=None, new=pytest.hookimpl):
            return new(function, hookwrapper, optionalhook, tryfirst, trylast, specname)

        pytest.hookimpl = hookimpl
        """)
    )
    suite = "def test_it():\n    pass\n"
    old = {"PYTEST_ADDOPTS": "-p old_pluggy"}
    done = pytest_of(tmp_path, suite, **old)
    assert last_line(done).startswith("1 passed"), done.stdout + done.stderr


def test_without_the_option_nothing_is_checked_and_nothing_imported(tmp_path: Path) -> None:
    """For this the plugin is not a part of the package."""
    suite = """
    import sys

    def test_nothing_is_imported():
        # `cuda` itself is there before all else if a `.pth` file makes that namespace.
        wrong = ("aiostream.", "cuda.")
        assert "aiostream" not in sys.modules
        assert not [name for name in sys.modules if name.startswith(wrong)]
    """
    done = pytest_of(tmp_path, suite)
    assert last_line(done).startswith("1 passed"), done.stdout


def test_fixtures_work_without_the_option(tmp_path: Path) -> None:
    suite = """
    import asyncio
    import aiostream

    kept = []

    def test_leaves_a_stream_unnoticed(cuda_simulator):
        kept.append(aiostream.Stream())

    def test_leaves_another(cuda_simulator, cuda_ledger):
        kept.append(aiostream.Stream())

    def test_blocks(cuda_simulator, cuda_blocking_calls):
        async def main():
            kept[0].synchronize()

        asyncio.run(main())
    """
    done = pytest_of(tmp_path, suite, *IMPATIENT)
    assert "ERROR test_suite.py::test_leaves_another" in done.stdout, done.stdout
    assert "ERROR test_suite.py::test_blocks" in done.stdout, done.stdout
    assert "3 passed, 2 errors" in last_line(done), done.stdout


@pytest.mark.parametrize(
    ("option", "environment", "words"),
    [
        ("--aiostream-devices=2", {}, "--aiostream-devices needs --aiostream=simulator"),
        ("--aiostream=gpu", {"AIOSTREAM_SIMULATOR": "1"}, "AIOSTREAM_SIMULATOR"),
        ("--aiostream=gpu", {"CUDA_VISIBLE_DEVICES": "-1"}, "use --aiostream=simulator in place"),
    ],
)
def test_options_are_refused_that_mean_nothing(
    tmp_path: Path, option: str, environment: dict[str, str], words: str
) -> None:
    """A GPU that is asked for is not replaced by the simulator."""
    done = pytest_of(tmp_path, "", option, **environment)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in done.stderr


@pytest.mark.gpu_only("the simulator skips none of them")
def test_tests_that_need_the_simulator_are_skipped_on_a_gpu(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, EXAMPLE.read_text(), "--aiostream=gpu")
    assert "8 passed, 3 skipped" in last_line(done), done.stdout


@pytest.mark.slow
def test_a_rerun_is_checked(tmp_path: Path) -> None:
    """What pytest-rerunfailures does, without its reports."""
    (tmp_path / "conftest.py").write_text(
        textwrap.dedent("""
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, nextitem=None, log=False)
            item._initrequest()
            runtestprotocol(item, nextitem=nextitem)
            return True
        """)
    )
    suite = """
        import aiostream

        attempts, kept = [], []

        def test_flaky():
            attempts.append(1)
            assert len(attempts) > 1
            kept.append(aiostream.Stream())
    """
    out = pytest_of(tmp_path, suite, "--aiostream=simulator", *IMPATIENT).stdout
    assert "Failed: 1 more streams, events or graphs ar" in out
    assert "1 passed, 1 error" in out


@pytest.mark.parametrize("option", [(), ("--aiostream=simulator",)])
def test_an_application_that_is_not_ended_says_why_pytest_ends(
    tmp_path: Path, option: tuple[str, ...]
) -> None:
    """pytest captures stderr, and what it has captured is lost with the process."""
    suite = """
    import time
    import aiostream
    from aiostream import simulator

    def test_uses_an_application():
        simulator.install()
        aiostream.exit_on_context_failed()

    def test_loses_a_context():
        stream = aiostream.Stream()
        simulator.break_context(700)
        while True:
            time.sleep(0.01)
    """
    done = pytest_of(tmp_path, suite, *option)
    assert done.returncode == 70, done.stdout
    assert "the CUDA context is lost" in done.stderr
    assert "(exit_on_context_failed)" in done.stderr
