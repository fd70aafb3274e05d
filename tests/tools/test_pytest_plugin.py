"""The pytest plugin, as a user's suite meets it, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import aiostream
import aiostream_pytest
from installed import installed

EXAMPLE = Path(__file__).parents[2] / "examples" / "test_with_plugin.py"

WITHOUT_TRIO = () if installed(["trio"]) else ("-k", "not trio")
"""Leaves out the tests of the example that run on trio, if it is not installed."""

IMPATIENT = ("-o", "aiostream_patience=0.5")

WRONG = """
import asyncio

import pytest
import aiostream


def test_blocks_its_loop():
    async def main():
        async with aiostream.Stream() as stream:
            stream.synchronize()

    asyncio.run(main())


kept = []


def test_leaves_a_stream():
    kept.append(aiostream.Stream())


@pytest.mark.cuda_ledger_off("a stream for all tests")
def test_may_leave_a_stream():
    kept.append(aiostream.Stream())


def test_fault_that_does_not_happen(cuda_faults):
    cuda_faults.fail("cuMemAlloc", 2)


def test_fails_itself():
    async def main():
        async with aiostream.Stream() as stream:
            stream.synchronize()
            assert 1 == 2

    asyncio.run(main())
"""


def pytest_of(
    folder: Path, suite: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs pytest with the plugin on a suite, in a process of its own."""
    (folder / "test_suite.py").write_text(textwrap.dedent(suite))
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider"]
    plugins = ["-p", "aiostream_pytest"]
    alone = {"AIOSTREAM_SIMULATOR": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *plugins, *options],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, **alone, **environment},
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.rstrip().splitlines()[-1]


@pytest.mark.slow
def test_a_suite_with_the_plugin_only(tmp_path: Path) -> None:
    done = pytest_of(
        tmp_path,
        EXAMPLE.read_text(),
        "--aiostream=simulator",
        "--aiostream-devices=2",
        *WITHOUT_TRIO,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert last_line(done).startswith("10 passed" if WITHOUT_TRIO else "11 passed"), done.stdout


def test_the_example_runs_with_the_command_of_its_page(tmp_path: Path) -> None:
    """One GPU is simulated, so the test of two is skipped, and says what it needs."""
    page = (EXAMPLE.parents[1] / "docs" / "testing.md").read_text()
    assert "\npytest --aiostream=simulator\n" in page
    done = pytest_of(tmp_path, EXAMPLE.read_text(), "--aiostream=simulator", *WITHOUT_TRIO)
    passed = 9 if WITHOUT_TRIO else 10
    assert last_line(done).startswith(f"{passed} passed, 1 skipped"), done.stdout
    assert "--aiostream-devices=2" in done.stdout


@pytest.mark.slow
def test_what_a_test_leaves_has_some_seconds_to_end(tmp_path: Path) -> None:
    suite = """
    import asyncio
    import aiostream
    import pytest
    from aiostream.testing import Gate, spin

    gate, kept = Gate(), []

    def leave(fn, *args):
        async def main():
            stream = aiostream.Stream()
            kept.append(stream.enqueue_async(fn, *args))
            stream.close()

        asyncio.run(main())

    def test_leaves_work_that_ends():
        leave(spin, 0.05)

    def test_leaves_a_future_that_does_not_end():
        leave(gate.hold)

    @pytest.mark.cuda_ledger_off("ends what the last test has left")
    def test_opens():
        gate.open()
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator", "-o", "aiostream_patience=1")
    errors = [line for line in done.stdout.splitlines() if line.startswith(("ERROR", "FAILED"))]
    assert len(errors) == 1, done.stdout
    assert "test_leaves_a_future_that_does_not_end" in errors[0]
    assert "3 passed, 1 error" in last_line(done), done.stdout
    page = (EXAMPLE.parents[1] / "docs" / "testing.md").read_text()
    assert "up to 5 seconds" in page
    assert "aiostream_patience = " in page


def test_calls_that_no_module_shows_are_seen_and_a_line_may_block(tmp_path: Path) -> None:
    suite = """
    import asyncio
    import ctypes
    import aiostream
    from cuda.bindings.driver import cuCtxSynchronize

    async def use(synchronize):
        async with aiostream.Stream() as stream:
            with stream.context.as_current():
                synchronize()

    def test_by_name():
        asyncio.run(use(cuCtxSynchronize))

    def test_native():
        asyncio.run(use(ctypes.CDLL("libcuda.so.1").cuCtxSynchronize))

    def test_that_may():
        asyncio.run(use(lambda: cuCtxSynchronize()))  # allow_blocking: it only shows how
        asyncio.run(use(lambda: cuCtxSynchronize()  # allow_blocking: so does this
        ))
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator")
    assert "FAILED test_suite.py::test_by_name" in done.stdout, done.stdout
    assert "FAILED test_suite.py::test_native" in done.stdout, done.stdout
    assert "2 failed, 1 passed" in last_line(done), done.stdout
    assert "# allow_blocking" in (EXAMPLE.parents[1] / "docs" / "testing.md").read_text()


@pytest.mark.parametrize(("plugin", "mark"), [("anyio", "anyio"), ("asyncio", "asyncio")])
def test_async_tests_of_other_plugins_are_checked(tmp_path: Path, plugin: str, mark: str) -> None:
    suite = f"""
    import aiostream
    import pytest
    from aiostream.testing import spin

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    @pytest.mark.{mark}
    async def test_awaits():
        async with aiostream.Stream() as stream:
            await stream.enqueue_async(spin, 0.001)

    @pytest.mark.{mark}
    async def test_blocks():
        async with aiostream.Stream() as stream:
            stream.synchronize()

    @pytest.mark.{mark}
    async def test_leaves_a_stream():
        test_leaves_a_stream.kept = aiostream.Stream()
    """
    scope = ("-o", "asyncio_default_fixture_loop_scope=function") if plugin == "asyncio" else ()
    done = pytest_of(tmp_path, suite, "-p", plugin, *scope, "--aiostream=simulator", *IMPATIENT)
    assert "FAILED test_suite.py::test_blocks" in done.stdout, done.stdout + done.stderr
    assert "ERROR test_suite.py::test_leaves_a_stream" in done.stdout, done.stdout
    assert "1 failed, 2 passed, 1 error" in last_line(done), done.stdout


@pytest.mark.slow
def test_a_loop_that_outlives_a_test_has_no_turn_at_its_end(tmp_path: Path) -> None:
    suite = """
    import asyncio
    import aiostream
    import pytest
    from aiostream.testing import spin

    pytestmark = pytest.mark.asyncio(loop_scope="session")
    stream = []

    @pytest.mark.cuda_ledger_off("makes the stream of all tests")
    async def test_lengths_are_learnt():
        stream.append(aiostream.Stream())
        for _ in range(8):
            await stream[0].enqueue_async(spin, 0.01)

    async def test_request_that_is_cancelled():
        assert stream[0].enqueue_async(spin, 0.01).cancel()

    async def test_request_that_times_out():
        spin(stream[0], 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await stream[0].synchronize_async()

    async def test_end():
        stream.pop().close()
    """
    scope = ("-o", "asyncio_default_fixture_loop_scope=session")
    done = pytest_of(tmp_path, suite, "-p", "asyncio", *scope, "--aiostream=simulator")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in last_line(done), done.stdout


def test_simulator_is_used_where_gpus_are_hidden(tmp_path: Path) -> None:
    suite = "import aiostream\n\ndef test_it():\n    assert aiostream.Device.count() == 1\n"
    done = pytest_of(tmp_path, suite, "--aiostream=simulator", CUDA_VISIBLE_DEVICES="")
    assert last_line(done).startswith("1 passed"), done.stdout


def test_what_is_wrong_fails(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, WRONG, "--aiostream=simulator", *IMPATIENT)
    summary = done.stdout[done.stdout.index("short test summary") :]
    lines = {
        line.split("::")[1].split(" - ")[0]: line for line in summary.splitlines() if "::" in line
    }
    assert lines.keys() == {
        "test_blocks_its_loop",
        "test_leaves_a_stream",
        "test_fault_that_does_not_happen",
        "test_fails_itself",
    }, done.stdout
    assert lines["test_blocks_its_loop"].startswith("FAILED")
    assert "cuStreamSynchronize on stream 0x" in done.stdout
    line = WRONG[: WRONG.index("kept.append")].count("\n") + 1
    leak = done.stdout[done.stdout.index("at teardown of test_leaves_a_stream") :].split("\n_")[0]
    said = leak.strip().splitlines()[1:]
    assert said[0] == "1 more streams, events or graphs are open"
    assert re.match(r"  <aiostream.Stream 0x\w+ on device 0>, made at .*test_suite.py:\d+", said[1])
    assert f"test_suite.py:{line}: close it" in said[1]
    assert len(said) == 2, "nothing of pytest's or the plugin's own"
    missed = "1 of the arranged faults did not happen: cuMemAlloc (nth=1, called 0 times)"
    assert missed in done.stdout
    assert "__exit__" not in done.stdout
    assert "assert 1 == 2" in lines["test_fails_itself"]  # its own failure, and not that it blocks
    assert "1 failed" not in last_line(done)
    assert "2 failed, 3 passed, 2 errors" in last_line(done), done.stdout


@pytest.mark.slow
def test_what_nothing_pending_can_close_is_reported_at_once(tmp_path: Path) -> None:
    suite = """
    import aiostream

    def test_leaves_a_stream():
        test_leaves_a_stream.kept = aiostream.Stream(name="decode"), aiostream.Event()
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator", "-o", "aiostream_patience=1000")
    assert "2 more streams, events or graphs are open" in done.stdout, done.stdout
    assert "<aiostream.Stream 'decode' 0x" in done.stdout
    assert "<aiostream.Event 0x" in done.stdout


def test_a_misspelt_driver_function_is_reported_with_a_near_name(tmp_path: Path) -> None:
    suite = """
    def test_misspelt(cuda_faults):
        cuda_faults.fail("cuMemAlooc", 2)
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator")
    assert "There is no driver function cuMemAlooc: do you mean cuMemAlloc?" in done.stdout
    assert "aiostream/testing.py" not in done.stdout, done.stdout
    assert "aiostream/simulator" not in done.stdout, done.stdout


def test_a_gate_without_a_driver_names_the_option(tmp_path: Path) -> None:
    suite = "def test_it(cuda_gate):\n    pass\n"
    done = pytest_of(tmp_path, suite, CUDA_VISIBLE_DEVICES="-1")
    assert "`pytest --aiostream=simulator`" in done.stdout, done.stdout
    assert "aiostream/" not in done.stdout, "a traceback"


def test_the_header_says_on_what_the_tests_run(tmp_path: Path) -> None:
    suite = "def test_it():\n    pass\n"
    done = pytest_of(tmp_path, suite, "--aiostream=simulator", "--aiostream-devices=2", "-v")
    header = (
        rf"^aiostream {aiostream.__version__}: simulator, CUDA \d+\.\d+, 2 GPUs; checks: leaks, "
    )
    assert re.search(header, done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_a_gate_that_is_not_opened_opens_by_itself(tmp_path: Path) -> None:
    suite = """
    import asyncio
    import aiostream
    import aiostream_pytest

    aiostream_pytest.GATE_OPENS_AFTER = 0.2

    async def wait_behind(gate, answer):
        async with aiostream.Stream() as stream:
            gate.hold(stream)
            assert answer == 42
            gate.open()

    def test_forgets_the_gate(cuda_gate):
        asyncio.run(wait_behind(cuda_gate, 41))

    def test_opens_the_gate(cuda_gate):
        asyncio.run(wait_behind(cuda_gate, 42))
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator")
    assert "assert 41 == 42" in done.stdout, done.stdout
    assert "write `with cuda_gate:` inside the stream's block" in done.stdout
    assert "1 failed, 1 passed, 1 error" in last_line(done), done.stdout


def test_a_test_that_failed_is_not_said_to_leave_something_behind(tmp_path: Path) -> None:
    suite = """
    import aiostream
    import pytest

    def test_is_skipped_with_a_stream():
        test_is_skipped_with_a_stream.kept = aiostream.Stream()
        pytest.skip("why")

    def test_fails_with_a_stream():
        stream = aiostream.Stream()
        assert stream is None
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator", *IMPATIENT)
    assert "ERROR test_suite.py::test_is_skipped_with_a_stream" in done.stdout, done.stdout
    assert "1 failed, 1 skipped, 1 error" in last_line(done), done.stdout


@pytest.mark.slow
def test_a_failed_test_of_unittest_is_not_said_to_leave_something_behind(tmp_path: Path) -> None:
    suite = """
        import unittest
        import aiostream

        class TestIt(unittest.TestCase):
            def test_that_fails(self):
                self.stream = aiostream.Stream()
                self.fail("its own error")

            def test_that_is_skipped(self):
                self.skipTest("its own reason")
    """
    result = pytest_of(tmp_path, suite, "--aiostream=simulator")
    assert "its own error" in result.stdout
    assert "1 failed, 1 skipped in" in result.stdout  # and no error of the ledger


def test_leaks_are_allowed_also_by_name(tmp_path: Path) -> None:
    suite = """
    import pytest

    @pytest.mark.cuda_leaks(n=0)
    def test_by_name():
        pass

    @pytest.mark.cuda_leaks(3)
    def test_skipped():
        pytest.skip("why")

    @pytest.mark.cuda_leaks
    def test_without_a_number():
        pass
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator")
    assert "cuda_leaks() missing 1 required positional argument: 'n'" in done.stdout, done.stdout
    assert "1 passed, 1 skipped, 1 error" in last_line(done), done.stdout


@pytest.mark.slow
def test_an_old_pytest_is_left_alone_until_it_is_asked(tmp_path: Path) -> None:
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
    done = pytest_of(tmp_path, suite, "--aiostream=simulator", **old)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--aiostream=simulator needs pytest 8 with pluggy 1.2 or newer" in done.stderr


def test_without_the_option_nothing_is_checked_and_nothing_imported(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_gpu_asked_for_is_not_replaced_by_the_simulator(tmp_path: Path, driver_kind: str) -> None:
    suite = "def test_it():\n    pass\n"
    done = pytest_of(tmp_path, suite, "--aiostream=gpu", AIOSTREAM_SIMULATOR="1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "AIOSTREAM_SIMULATOR" in done.stderr
    done = pytest_of(tmp_path, suite, "--aiostream=gpu")
    if driver_kind == "gpu":
        assert last_line(done).startswith("1 passed"), done.stdout
    else:
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert "--aiostream=gpu: No CUDA driver was found" in done.stderr


def test_options_are_refused_that_mean_nothing(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, "", "--aiostream-devices=2")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--aiostream-devices needs --aiostream=simulator" in done.stderr


def test_tests_that_need_the_simulator_are_skipped_on_a_gpu(
    tmp_path: Path, driver_kind: str
) -> None:
    if driver_kind != "gpu":
        pytest.skip("needs a GPU")
    done = pytest_of(tmp_path, EXAMPLE.read_text(), "--aiostream=gpu")
    assert "8 passed, 3 skipped" in last_line(done), done.stdout


def test_the_plugin_is_not_part_of_the_package() -> None:
    """Else each pytest of the environment would import aiostream."""
    assert Path(aiostream_pytest.__file__).parent == Path(aiostream.__file__).parents[1]


def test_what_a_failed_test_held_does_not_hide_the_next_ones_leak(tmp_path: Path) -> None:
    """pytest keeps the traceback of a failure until the next test is called. Its frames, and so
    its streams, die in the middle of that test.
    """
    suite = """
    import aiostream

    kept = []

    def test_fails():
        first, second = aiostream.Stream(), aiostream.Stream()
        cycle = [first, second]
        cycle.append(cycle)
        assert 1 == 2

    def test_leaks():
        kept.append(aiostream.Stream())

    def test_leaks_again():
        kept.append(aiostream.Stream())
    """
    done = pytest_of(tmp_path, suite, "--aiostream=simulator", *IMPATIENT)
    summary = done.stdout[done.stdout.index("short test summary") :]
    assert "FAILED test_suite.py::test_fails" in summary, done.stdout
    for name in ("test_leaks", "test_leaks_again"):
        assert f"ERROR test_suite.py::{name} - " in summary, done.stdout
    assert last_line(done).startswith("1 failed, 2 passed, 2 errors"), done.stdout


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
