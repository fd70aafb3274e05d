"""`python -m nogpu -- PROGRAM`: each test runs it in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nogpu
from simdriver import shared_environment

COUNT = """
import ctypes, sys
cuda, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert cuda.cuInit(0) == 0
cuda.cuDeviceGetCount(ctypes.byref(number))
print(number.value, *sys.argv[1:])
"""
FOLDER = nogpu.LIBRARY.parent


def command(
    *arguments: str, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nogpu", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**shared_environment(), **environment},
        cwd=folder,
        check=False,
    )


def said(*arguments: str, folder: Path | None = None, **environment: str) -> str:
    done = command(*arguments, folder=folder, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [("-c", COUNT), ("counting.py",), ("-m", "counting"), (sys.executable, "counting.py")],
    ids=["text", "script", "module", "program"],
)
def test_python(tmp_path: Path, program: tuple[str, ...]) -> None:
    (tmp_path / "counting.py").write_text(COUNT)
    for options, devices in (((), 1), (("--devices", "3"), 3)):
        words = (*options, "--", *program, "-x", "--", "y")
        assert said(*words, folder=tmp_path) == f"{devices} -x -- y\n"


def test_a_program_that_is_not_python(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to make a program with")
    source, program = tmp_path / "counting.c", tmp_path / "counting"
    source.write_text("""
        #include <dlfcn.h>
        #include <stdio.h>
        int main(void) {
            void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
            if (cuda == NULL) return puts(dlerror());
            int (*init)(unsigned) = dlsym(cuda, "cuInit"), devices;
            int (*count)(int *) = dlsym(cuda, "cuDeviceGetCount");
            if (init(0) != 0 || count(&devices) != 0) return 1;
            printf("%d\\n", devices);
            return 0;
        }
    """)
    subprocess.run(["gcc", source, "-o", program, "-ldl"], check=True)
    assert said("--devices=2", "--", str(program)) == "2\n"


def test_children_of_children() -> None:
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}], check=True)"
    program = start.format(start.format(COUNT))
    assert said("--devices=2", "--", "-c", program) == "2\n"


def test_the_programs_exit_code_is_the_commands() -> None:
    done = command("--", "-c", "raise SystemExit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_the_version_and_the_seed() -> None:
    program = """
        import ctypes
        from simdriver import *
        ok(cu.cuInit(0))
        print(ok(cu.cuDriverGetVersion()))
        ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        gate, order = Gate(), []
        streams = [ok(cu.cuStreamCreate(1)) for _ in range(6)]
        for number, stream in enumerate(streams):
            gate.hold(stream)
            host(stream, lambda number=number: order.append(number))
        gate.open()
        ok(cu.cuCtxSynchronize())
        print(order)
    """
    words = ("--driver-version=12040", "--", "-c", textwrap.dedent(program))
    in_order = f"12040\n{list(range(6))}\n"
    assert said(*words) == in_order
    shuffled = said("--seed=5", *words)
    assert shuffled == said("--seed=5", *words) != in_order


def test_the_module_in_such_a_process() -> None:
    program = """
        import nogpu
        assert nogpu.installed()  # although nothing has loaded a driver
        from simdriver import *
        assert nogpu.calls("cuInit") == 0
        nogpu.fail("cuInit", 2)
        print(code(cu.cuInit(0)), code(cu.cuInit(0)), nogpu.calls("cuInit"))
        nogpu.install()
        try: nogpu.install(devices=5)
        except RuntimeError as error: print(error)
    """
    first, other = said("--", "-c", textwrap.dedent(program)).splitlines()
    assert first == "2 0 2"
    assert "already installed, with other options: devices=1" in other


def test_it_comes_before_other_folders() -> None:
    program = ("--", "-c", "import os; print(os.environ['LD_LIBRARY_PATH'])")
    assert said(*program, LD_LIBRARY_PATH="/one:/two") == f"{FOLDER}:/one:/two\n"
    # An empty name would be the folder in which the program runs.
    assert said(*program, LD_LIBRARY_PATH="") == f"{FOLDER}\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "the following arguments are required: program"),
        (("--", "no-such-program"), "there is no program no-such-program"),
        (("--devices=99", "--", "-c", ""), "--devices is 0 to 16, not 99"),
        (("--devices=-1", "--", "-c", ""), "--devices is 0 to 16, not -1"),
        (("--driver-version=130", "--", "-c", ""), "--driver-version is 11000 or more"),
        (("--seed=x", "--", "-c", ""), "argument --seed: invalid int value: 'x'"),
        (("-c", ""), "unrecognized arguments: -c"),
    ],
)
def test_a_mistake_is_one_line_after_the_usage(arguments: tuple[str, ...], error: str) -> None:
    done = command(*arguments)
    usage, line = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert usage.startswith("usage: python -m nogpu [OPTIONS] -- ")
    assert line == f"python -m nogpu: error: {error}"
