"""The command line, in processes of its own: `python -m aiostream demo`, and how it fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aiostream
import internals
import support
from aiostream.__main__ import main
from aiostream.trace import Await
from commands import command, environment, succeed

SOURCE = Path(aiostream.__file__).parents[1]
ANSI = re.compile(r"\x1b\[")


# --------------------------------------------------------------------------------------------- demo


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_demo_draws_each_stream_and_the_heartbeat_and_balances(
    driver_kind: str, loop: str, tmp_path: Path
) -> None:
    page = tmp_path / "demo.html"
    out = succeed(driver_kind, "demo", "--loop", loop, "--html", str(page))
    lines = out.splitlines()
    assert lines[0].startswith("On the GPU" if driver_kind == "gpu" else "On the simulator")
    assert f"in one {loop} loop" in lines[2]
    assert sum(" GPU  " in line and "█" in line for line in lines) == 6
    assert len(re.findall(r"^ +task +▲", out, re.MULTILINE)) == 6
    assert re.search(r"^heartbeat: every 5 ms, \d+ beats, worst gap \d+\.\d ms$", out, re.MULTILINE)
    assert re.search(
        r"^from the work's end to resumption: median -?\d+ us, worst -?\d+ us, \d+ of 29 awaits$",
        out,
        re.MULTILINE,
    )
    assert re.search(r"^statistics: .* 0 pending, 0 leaked; .* balanced$", out, re.MULTILINE)
    assert max(len(line) for line in lines if "/" not in line) <= 100
    assert not ANSI.search(out), "colours, although this is no terminal"
    # The same as a timeline:
    assert page.as_uri() in out
    found = re.search(r"^const data = (\{.*\});$", page.read_text(), re.MULTILINE)
    assert found is not None
    data = json.loads(found[1])
    assert len(data["awaits"]) == 29
    assert {data["names"][row[2]] for row in data["awaits"]} >= {"5 ms x 10", "bursts"}


def awaited(began: int, ended: int | None, resumed: int) -> Await:
    """An await of a load's task, as a recording has it."""
    load, done = "5 10 20 40 ms", ("done", (), None)
    return Await("Stream.enqueue_async", "", load, "", began, began, ended, ended, resumed, *done)


def test_the_drawing_puts_each_thing_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = 1_000_000
    monkeypatch.setenv("COLUMNS", "100")
    awaits = [
        awaited(5 * ms, 25 * ms, 25 * ms + ms // 4),
        awaited(25 * ms, 45 * ms, 46 * ms + ms // 2),
        awaited(45 * ms, None, 85 * ms),
    ]
    recording = SimpleNamespace(awaits=awaits, gpu_uncertainty=2_000)
    drawn = internals.demo_drawing(recording, [5 * ms, 25 * ms, 75 * ms])
    axis, gpu, task, heartbeat, beats, latency, clocks = (
        *(drawn[n] for n in (0, 9, 10)),
        *(line for line in drawn if line.startswith(("heartbeat", "from", "("))),
    )
    start, width = 19, 80  # a column for each millisecond
    assert axis == f"{'':{start}}0{'':19}20{'':18}40{'':18}60 ms"
    assert gpu == f"{'5 10 20 40 ms GPU':{start}}{'█' * 20}{'▒' * 21}"
    assert task == f"{'':14}task {'':20}▲{'':20}▲"
    assert heartbeat == f"{'heartbeat':{start}}•{'':19}•{'':49}•"
    assert max(map(len, (axis, gpu, task, heartbeat))) <= start + width
    assert beats == "heartbeat: every 5 ms, 3 beats, worst gap 50.0 ms"
    assert (
        latency == "from the work's end to resumption: median 875 us, worst 1500 us, 2 of 3 awaits"
    )
    assert clocks == "(the GPU's clock is mapped to the host's to within 2 us)"


def test_demo_needs_no_unicode_and_no_wide_terminal(driver_kind: str) -> None:
    out = succeed(driver_kind, "demo", PYTHONIOENCODING="ascii", COLUMNS="70")
    assert out.isascii()
    assert len(re.findall(r" GPU +\?", out)) == 6


@pytest.mark.slow
def test_demo_colours_a_terminal_unless_asked_not_to(driver_kind: str) -> None:
    assert ANSI.search(on_a_terminal(driver_kind, TERM="xterm"))
    assert not ANSI.search(on_a_terminal(driver_kind, TERM="xterm", NO_COLOR="1"))
    assert not ANSI.search(on_a_terminal(driver_kind, TERM="dumb"))
    assert ANSI.search(succeed(driver_kind, "demo", TERM="xterm", FORCE_COLOR="1"))


def on_a_terminal(driver_kind: str, **environment: str) -> str:
    """What the demo writes when its standard output is a terminal."""
    script = """
        import os, pty, sys
        os.environ.pop("NO_COLOR", "")
        os.environ.update({environment})
        ended = pty.spawn([sys.executable, "-m", "aiostream", "demo"])
        raise SystemExit(os.waitstatus_to_exitcode(ended))
        """
    return support.succeed(driver_kind, script.format(environment=environment))


def test_demo_names_a_timeline_that_it_cannot_write(driver_kind: str, tmp_path: Path) -> None:
    assert command(driver_kind, "demo", "--html", "demo.txt").returncode == 1
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").touch()
    for name, said in {
        "none/demo.html": "[Errno 2] No such file or directory",
        "folder.html": "[Errno 21] Is a directory",
        "file/demo.html": "[Errno 20] Not a directory",
    }.items():
        wrong = command(driver_kind, "demo", "--html", name, folder=tmp_path)
        assert (wrong.returncode, wrong.stdout) == (1, "")  # before the work
        assert wrong.stderr == f"python -m aiostream demo: {said}: {name!r}\n"


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("demo", "AIOSTREAM_SIMULATOR", "maybe"),
        ("doctor", "AIOSTREAM_SIMULATOR", "maybe"),
        ("demo", "AIOSTREAM_TRACE", "trace.txt"),
        ("demo", "AIOSTREAM_TRACE", "/nowhere/trace.json"),
    ],
)
def test_a_wrong_variable_is_said_without_a_traceback(
    driver_kind: str, name: str, variable: str, value: str
) -> None:
    done = command(driver_kind, name, **{variable: value})
    assert done.returncode == 1
    said = " ".join((done.stdout if name == "doctor" else done.stderr).split())
    assert f"the environment variable {variable} " in said.replace("that the", "the")
    assert "Traceback" not in done.stderr


def test_a_missing_library_of_the_simulator_is_said_without_a_traceback() -> None:
    done = command("simulator", "demo", AIOSTREAM_SIMULATOR_LIBRARY="/nowhere.so")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("python -m aiostream demo: /nowhere.so: ")


@pytest.mark.parametrize(("full", "said"), [(True, "No space left on device"), (False, "")])
def test_a_stdout_that_takes_no_more_ends_a_command(
    driver_kind: str, full: bool, said: str
) -> None:
    """A full disk is said. The end of a pipe, as in `demo | head -1`, is not."""
    if full:
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, out = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "aiostream", "doctor"],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=environment(driver_kind, PYTHONUNBUFFERED=""),
            check=False,
        )
    finally:
        os.close(out)
    assert done.returncode == 1
    assert done.stderr.count("\n") == bool(said)
    assert said in done.stderr


def test_demo_takes_the_simulator_by_itself_where_there_is_no_gpu() -> None:
    # Hidden from CUDA: as good as none.
    out = succeed("none", "demo", CUDA_VISIBLE_DEVICES="-1")
    assert out.splitlines()[0].startswith("No GPU here, so this runs on the simulator")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ModuleNotFoundError(\"No module named 'uvloop'\")", "No module named 'uvloop'"),
        ("raise AttributeError('too old')", "too old"),
    ],
    ids=["missing", "raises at import"],
)
def test_a_loop_that_cannot_be_imported_is_named(
    driver_kind: str, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "uvloop.py").write_text(text)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = command(driver_kind, "demo", "--loop", "uvloop", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m aiostream demo ")
    assert f"--loop uvloop: {said}: run `pip install -U uvloop`\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_driver_that_fails_is_said(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fails() -> int:
        raise aiostream.NoDriverError("there is no CUDA driver here")

    internals.replace_driver_version(monkeypatch, fails)
    assert main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said == "python -m aiostream demo: there is no CUDA driver here\n"


def test_missing_bindings_are_said_in_one_line(driver_kind: str) -> None:
    printed = support.succeed(
        driver_kind,
        """
        import contextlib, io, sys

        class WithoutBindings:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "cuda":
                    raise ModuleNotFoundError("No module named 'cuda'", name="cuda")

        sys.meta_path.insert(0, WithoutBindings())
        from aiostream.__main__ import main
        with contextlib.redirect_stderr(io.StringIO()) as said:
            print(main(["demo"]))
        print(len(said.getvalue().splitlines()), said.getvalue())
        """,
    )
    assert "1\n1 NVIDIA's bindings are missing (No module named 'cuda')" in printed
    assert "pip install 'cuda-bindings" in printed


# ----------------------------------------------------------------------------------------- the rest


def test_version_and_usage(driver_kind: str) -> None:
    assert succeed(driver_kind, "--version") == f"aiostream-cuda {aiostream.__version__}\n"
    assert succeed(driver_kind).startswith("usage: python -m aiostream ")
    assert command(driver_kind, "demo", "--loop", "curio").returncode == 2


@pytest.mark.parametrize("name", ["demo", "doctor"])
def test_each_command_takes_the_simulator(name: str) -> None:
    # No GPU is asked for, so only the option chooses.
    assert "simulator" in succeed("none", name, "--simulator")


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("arguments", ["demo", "doctor"])
def test_lines_fit_into_the_terminal(driver_kind: str, arguments: str, columns: int) -> None:
    out = succeed(driver_kind, arguments, COLUMNS=str(columns))
    assert max(len(line) for line in out.splitlines() if "/" not in line) <= columns


@pytest.mark.parametrize("name", ["demo", "doctor", "blocking"])
def test_a_wrong_option_shows_the_usage_of_its_command(driver_kind: str, name: str) -> None:
    done = command(driver_kind, name, "--bogus")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: python -m aiostream {name} ")
    assert f"python -m aiostream {name}: error: unrecognized arguments: --bogus" in done.stderr


@pytest.mark.parametrize("arguments", ["demo --help", "doctor --help"])
def test_a_full_or_closed_stdout_is_no_traceback(driver_kind: str, arguments: str) -> None:
    for target, code, said in (("/dev/full", 1, "No space left on device"), ("&-", 0, "")):
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m aiostream {arguments} >{target}"],
            capture_output=True,
            text=True,
            env=environment(driver_kind, PYTHONUNBUFFERED=""),
            check=False,
        )
        assert (done.returncode, done.stderr.count("\n")) == (code, bool(said)), done.stderr
        assert said in done.stderr


def test_with_the_other_aiostream_on_top_the_command_still_says_so(tmp_path: Path) -> None:
    """The other package, if it is installed last, replaces our `__init__` and no other module."""
    (tmp_path / "aiostream-0.8.1.dist-info").mkdir()
    package = tmp_path / "aiostream"
    (package / "_base").mkdir(parents=True)
    for name in ("__main__.py", "_base/__init__.py", "_base/clash.py"):
        (package / name).write_bytes((SOURCE / "aiostream" / name).read_bytes())
    (package / "__init__.py").write_text("__version__ = '0.8.1'\n")
    done = command("none", "doctor", PYTHONPATH=os.pathsep.join([str(tmp_path), str(SOURCE)]))
    assert done.returncode == 1
    assert "pip uninstall aiostream aiostream-cuda" in done.stderr
    assert "Traceback" not in done.stderr
