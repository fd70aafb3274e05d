"""What blocks the loops of a process is found: by the command, and by `AIOSTREAM_BLOCKING`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import commands
import internals
from support import run_script, succeed

PROGRAM = """
import asyncio
import multiprocessing
import sys

import aiostream
from aiostream.testing import spin

async def handle(stream):
    spin(stream, 0.2)
    stream.synchronize()

async def main():
    async with aiostream.Stream() as stream:
        for n in range(2):
            await asyncio.create_task(handle(stream), name=f"request {n}")

def work():
    asyncio.run(main())

if __name__ == "__main__":
    work()
    print(sys.argv[1:])
    if "worker" in sys.argv:
        worker = multiprocessing.get_context("spawn").Process(target=work)
        worker.start()
        worker.join()
"""
LINE = PROGRAM[: PROGRAM.index("stream.synchronize()")].count("\n") + 1


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return path


COMMAND = ("blocking", "--threshold", "0.02", "--")  # on a busy machine, any call takes some ms


def test_the_command_names_the_lines_of_a_program_and_of_its_workers(
    driver_kind: str, app: Path
) -> None:
    done = commands.command(driver_kind, *COMMAND, str(app), "worker")
    assert (done.returncode, done.stdout) == (0, "['worker']\n"), done.stderr
    tables = done.stderr.split("\naiostream blocking, process ")[1:]
    assert len(tables) == 2
    for table in tables:
        assert f"cuStreamSynchronize {app}:{LINE}" in table
        assert "stream.synchronize()  (task 'request 1')" in table


def test_the_command_takes_the_simulator(app: Path) -> None:
    """Its program and the workers of that have no GPU either."""
    done = commands.command("none", *COMMAND[:-1], "--simulator", "--", str(app), "worker")
    assert (done.returncode, done.stdout) == (0, "['worker']\n"), done.stderr
    assert done.stderr.count(f"cuStreamSynchronize {app}:{LINE}") == 2


def test_the_command_says_what_is_missing(driver_kind: str, tmp_path: Path) -> None:
    done = commands.command(driver_kind, "blocking")
    assert done.returncode == 2
    assert "blocking -- app.py" in done.stderr
    (tmp_path / "quiet.py").write_text("import sys\nsys.exit(3)\n")
    done = commands.command(driver_kind, "blocking", "--", str(tmp_path / "quiet.py"))
    assert done.returncode == 3
    assert "Nothing has blocked a loop." in done.stderr
    (tmp_path / "module.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = commands.command(
        *(driver_kind, "blocking", "--", "-m", "module", "a"),
        PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    )
    assert done.stdout == "__main__ ['a']\n", done.stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("none.py", "there is no file 'none.py'"),
        ("", "there is no file ''"),
        ("-m none", "there is no module 'none'"),
        ("-m none.inner", "there is no module 'none.inner'"),
        ("-m .inner", "there is no module '.inner'"),
    ],
)
def test_the_command_names_a_program_that_is_not_there(
    tmp_path: Path, program: str, said: str
) -> None:
    """In one line, and also where there is no driver."""
    words = program.split() or [""]
    done = commands.command("none", "blocking", "--", *words, "arg", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"python -m aiostream blocking: {said}\n"


def test_the_command_says_why_a_program_cannot_run(driver_kind: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "raises.py").write_text("import none_of_it\n")

    def run(*words: str) -> str:
        done = commands.command(driver_kind, "blocking", *words, folder=tmp_path)
        assert done.returncode in (1, 2)
        return done.stderr

    for words in (["package"], ["-m", "package"], ["-m", "package.none"]):
        said = run("--", *words)
        assert said.startswith("python -m aiostream blocking: "), said
        assert "Traceback" not in said
    assert "ModuleNotFoundError: No module named 'none_of_it'" in run("--", "raises.py")
    assert "a number of seconds from 0 on, not nan" in run("--threshold=nan", "--", "raises.py")


@pytest.mark.parametrize(
    ("action", "is_forked"),
    [("warn:0.02", False), ("count:0", False), ("raise:0.02", False), ("count:0.02", True)],
)
def test_the_environment_variable_acts_at_the_import(
    driver_kind: str, app: Path, action: str, is_forked: bool
) -> None:
    """In a forked worker too."""
    forked = """
        import os, sys
        import app
        if os.fork() == 0:
            app.work()
            sys.exit(0)
        assert os.wait()[1] == 0
    """
    done = run_script(
        driver_kind,
        forked if is_forked else "import app; app.work()",
        warnings="default",
        AIOSTREAM_BLOCKING=action,
        PYTHONPATH=f"{Path(commands.__file__).parent}:{app.parent}",
    )
    assert ("BlockedLoopWarning: cu" in done.stderr) == (action[0] != "c"), done.stderr
    assert ("BlockedLoopError: cu" in done.stderr) == (action[0] == "r")
    assert (done.returncode != 0) == (action[0] == "r")
    # On a busy machine, the first call that raises may be the launch in the line before.
    assert (
        f"app.py:{LINE if action[0] != 'r' else ''}"
        in done.stderr.split("\naiostream blocking, process ")[1]
    )


def test_the_end_of_the_interpreter_is_not_delayed(driver_kind: str) -> None:
    script = """
        import ctypes, os, time
        from aiostream import blocking
        blocking.install("count", threshold=0.0)
        import aiostream

        class Last:
            def __init__(self):
                self.stream = aiostream.Stream()
                self.handle = ctypes.c_void_p(self.stream.into_raw())
                self.wait = ctypes.CDLL("libcuda.so.1").cuStreamSynchronize

            # Python ends, and its threads have stopped. Bound here, as globals may be gone.
            def __del__(self, now=time.monotonic, write=os.write):
                began = now()
                for _ in range(3):
                    self.wait(self.handle)
                write(1, b"slow" if now() - began > 2 else b"quick")

        last = Last()
    """
    done = run_script(driver_kind, script)
    assert done.stdout == "quick", done.stderr


def test_a_wrong_variable_is_named(driver_kind: str) -> None:
    values = ["shout", "warn:soon", "warn:"]
    script = f"""
        import os
        for os.environ["AIOSTREAM_BLOCKING"] in {values}:
            try:
                import aiostream
            except ValueError as error:
                print(error)
    """
    for value, said in zip(values, succeed(driver_kind, script).splitlines(), strict=True):
        assert "the environment variable AIOSTREAM_BLOCKING is one of warn, count, raise" in said
        assert repr(value) in said


@pytest.mark.simulator_only("the simulator's library is loaded by its path")
def test_a_driver_that_was_loaded_before_is_an_error_that_says_how_to_start() -> None:
    done = run_script(
        "",
        f"""
        import ctypes
        ctypes.CDLL({internals.simulator_path()!r})
        from aiostream import blocking
        try: blocking.install()
        except RuntimeError as error: print(error)
    """,
    )
    assert "is loaded already" in done.stdout
    assert "python -m aiostream blocking -- PROGRAM" in done.stdout
