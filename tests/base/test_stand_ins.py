"""The distribution with the simulator and the forwarding library, as aiostream uses it: the
environment, what is said without it, and that no other module needs it.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from commands import python


def run(text: str, **environment: str) -> Any:
    """Runs Python text in a process of its own, whose environment is read at the import."""
    return python("none", "-c", textwrap.dedent(text), **environment)


def test_options_from_the_environment() -> None:
    program = """
        import aiostream
        from aiostream import simulator
        simulator.install()
        print(aiostream.Device.count())
    """
    done = run(program, AIOSTREAM_SIMULATOR_DEVICES="4", AIOSTREAM_SIMULATOR_SEED="7")
    assert done.stdout == "4\n", done.stderr


ASKED: dict[str, Any] = {"AIOSTREAM_SIMULATOR": "1", "AIOSTREAM_SIMULATOR_DEVICES": "3"}


@pytest.mark.parametrize(
    "first_use",
    [
        "import cuda.bindings.driver as cu; cu.cuInit(0); assert cu.cuDeviceGetCount()[1] == 3",
        "from cuda.core import Device; Device(2).set_current()",
    ],
    ids=["cuInit", "cuda.core"],
)
def test_the_variable_works_whichever_library_calls_first(first_use: str) -> None:
    if "cuda.core" in first_use:
        pytest.importorskip("cuda.core")
    program = f"""
        import aiostream
        {first_use}
        assert aiostream.Device.count() == 3
        from aiostream import simulator
        simulator.install(devices=3)
        try: simulator.install(devices=1)
        except RuntimeError as error: print(error)
    """
    done = run(program, **ASKED)
    assert "already installed, with other options: devices=3" in done.stdout, done.stderr


def test_a_program_may_choose_other_options_than_the_environment() -> None:
    program = """
        import aiostream
        from aiostream import simulator
        simulator.install(devices=2)
        print(aiostream.Device.count())
        try: simulator.install(devices=3)
        except RuntimeError as error: print(error)
    """
    done = run(program, **ASKED)
    assert done.stdout.startswith("2\n"), done.stderr
    assert "already installed, with other options: devices=2" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        {"AIOSTREAM_SIMULATOR": "maybe"},
        {"AIOSTREAM_SIMULATOR": "1", "AIOSTREAM_SIMULATOR_DEVICES": "two"},
        {**ASKED, "AIOSTREAM_SIMULATOR_SEED": "two"},
        {**ASKED, "AIOSTREAM_SIMULATOR_LIBRARY": "/nonexistent"},
    ],
)
def test_a_wrong_variable_is_named_at_the_first_use_and_not_at_import(wrong: Any) -> None:
    program = """
        import aiostream
        print("imported")
        for _ in range(2):
            try: aiostream.Stream()
            except (ValueError, OSError) as error: print(error)
    """
    done = run(program, **wrong)
    imported, first, second = done.stdout.splitlines()
    assert imported == "imported", done.stderr
    assert first == second
    name, said = list(wrong.items())[-1]
    assert said in first
    assert name in first or name.endswith("LIBRARY")


@pytest.mark.parametrize("wrong", ["-1", "17", "99"])
def test_a_wrong_number_of_devices_names_the_variable(wrong: str) -> None:
    program = "from aiostream import simulator; simulator.install()"
    done = run(program, AIOSTREAM_SIMULATOR_DEVICES=wrong)
    assert (
        "ValueError: the environment variable AIOSTREAM_SIMULATOR_DEVICES is a number of GPUs from "
        f"0 to 16, not {wrong}\n"
    ) in done.stderr


@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "0"}])
def test_a_simulator_without_devices(visible: dict[str, Any]) -> None:
    program = """
        import aiostream
        try: aiostream.Stream()
        except aiostream.NoDriverError as error: print(error)
    """
    asked: dict[str, Any] = {"AIOSTREAM_SIMULATOR": "1", "AIOSTREAM_SIMULATOR_DEVICES": "0"}
    done = run(program, **asked, **visible)
    assert "simulator was installed with 0 devices" in done.stdout, done.stderr
    assert "AIOSTREAM_SIMULATOR_DEVICES to 1 or more" in done.stdout
    assert "AIOSTREAM_SIMULATOR=1" not in done.stdout
    words = ("-m", "nogpu", "--devices=0", "--", "-c", textwrap.dedent(program))
    assert python("none", *words, **visible).stdout == done.stdout


# ------------------------------------------------------------------------------ without the package

HIDDEN = """
import sys
class Hides:
    def find_spec(self, name, path=None, target=None):
        if name == "nogpu":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hides())
"""
WITHOUT = "needs the package nogpu: pip install 'aiostream-cuda"


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("from aiostream import simulator", f"aiostream.simulator {WITHOUT}[simulator]'"),
        ("import aiostream.simulator", f"aiostream.simulator {WITHOUT}[simulator]'"),
        ("aiostream.blocking.install()", f"aiostream.blocking {WITHOUT}[blocking]'"),
        ("aiostream.Device.count()", f"AIOSTREAM_SIMULATOR=1 {WITHOUT}[simulator]'"),
        ("main(['demo'])", f"AIOSTREAM_SIMULATOR=1 {WITHOUT}[simulator]'"),
        ("main(['doctor'])", f"AIOSTREAM_SIMULATOR=1 {WITHOUT}[simulator]'"),
        ("main(['blocking', '--', '-m', 'this'])", f"aiostream.blocking {WITHOUT}[blocking]'"),
        (
            "import pytest; pytest.main(['-p', 'aiostream_pytest', '--aiostream=simulator'])",
            f"--aiostream=simulator: aiostream.simulator {WITHOUT}[simulator]'",
        ),
    ],
)
def test_what_needs_the_package_says_what_to_install(use: str, says: str, tmp_path: Path) -> None:
    text = f"{HIDDEN}import aiostream\nfrom aiostream.__main__ import main\n{use}"
    done = python("simulator", "-c", text, folder=tmp_path)
    assert says in " ".join((done.stdout + done.stderr).split())


def test_the_demo_says_that_there_is_no_gpu() -> None:
    text = f"{HIDDEN}from aiostream.__main__ import main\nraise SystemExit(main(['demo']))"
    done = python("none", "-c", text, CUDA_VISIBLE_DEVICES="")
    assert f"there is no GPU here, and the demo without one {WITHOUT}[simulator]'" in done.stderr


def test_the_rest_works_without_the_package() -> None:
    text = """
        import aiostream, aiostream.metrics, aiostream.serving, aiostream.testing, aiostream.trace
        from aiostream.__main__ import main
        try: aiostream.Stream()
        except aiostream.NoDriverError: pass
        main(["doctor"])
    """
    done = python("none", "-c", HIDDEN + textwrap.dedent(text), CUDA_VISIBLE_DEVICES="")
    assert done.stderr == ""
    assert "nogpu" not in done.stdout


# ------------------------------------------------------------------------------- what is said of it

USE = "import aiostream; aiostream.Device.count()"
SAID = "aiostream: AIOSTREAM_SIMULATOR is set, so no GPU is used\n"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (("-c", USE), SAID),
        (("-c", f"{USE}; {USE}"), SAID),  # once in each process
        (("-c", "import pytest, aiostream; aiostream.Device.count()"), ""),
        (("-m", "unittest", "program"), None),
        (("-m", "aiostream", "doctor"), ""),
        (("-m", "aiostream", "doctor", "--simulator"), ""),
    ],
)
def test_a_program_that_runs_on_the_simulator_says_so(
    program: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    """A variable that was left over must not serve from a GPU that is not there."""
    (tmp_path / "program.py").write_text(USE)
    done = python("simulator", *program, folder=tmp_path, PYTEST_VERSION="")
    assert done.returncode in (0, 5)
    assert SAID not in done.stderr if said is None else done.stderr == said


def test_a_program_under_the_command_runs_on_it() -> None:
    """`python -m nogpu` needs nothing of aiostream, and aiostream finds the driver as any."""
    text = """
        import asyncio, aiostream, nogpu
        from aiostream.testing import spin
        async def main():
            async with aiostream.Stream(device=1) as stream:
                await stream.run(spin, stream, 0.001)
                nogpu.break_context()
                try: await stream.synchronize_async()
                except aiostream.ContextFailedError: print("lost")
                nogpu.recover()
                await stream.run(spin, stream, 0.001)
        asyncio.run(main())
    """
    done = python("none", "-m", "nogpu", "--devices=2", "--", "-c", textwrap.dedent(text))
    assert (done.stdout, done.stderr) == ("lost\n", "")
