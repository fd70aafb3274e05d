"""The native part by itself: who may know Python there, and its threads under the sanitizers
(`tests/native/*.c`).
"""

from __future__ import annotations

import ast
import graphlib
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import internals
from compiling import ENGINE, PROGRAMS, gcc, run_command
from support import FULL, LIMIT, chosen_seconds, chosen_seed

ENGINE_FILES = sorted(ENGINE.glob("*.c"))
SIMULATOR = PROGRAMS.parents[1] / "driver" / "src" / "nogpu" / "simulator"
SANITIZERS = {
    "thread": (
        ["-fsanitize=thread"],
        {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66:second_deadlock_stack=1"},
    ),
    "address": (
        ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        # Queues and points are never freed, by design; what else is left over is a leak.
        {
            "ASAN_OPTIONS": "detect_stack_use_after_return=1:detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    ),
}

# ThreadSanitizer knows one layout of memory; without this the kernel may choose another, and the
# program would not start.
FIXED_LAYOUT = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []


FLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-error=tsan"]


def compile_all(folder: Path, sources: Sequence[Path] = ENGINE_FILES) -> None:
    for source in sources:
        gcc(*FLAGS, "-fPIC", "-c", source, "-o", folder / f"{source.stem}.o")


@pytest.fixture
def objects(made_once: Callable[..., Path]) -> list[Path]:
    return sorted(made_once("native", compile_all).iterdir())


def build_and_run(
    name: str,
    folder: Path,
    files: Sequence[Path],
    *arguments: float,
    flags: Sequence[str] = (),
    before: Sequence[str] = (),
    **variables: str,
) -> None:
    """Runs a program of `tests/native` with these native files."""
    program = folder / name
    gcc(*FLAGS, *flags, PROGRAMS / f"{name}.c", *files, "-lm", "-o", program)
    ran = run_command(*before, program, *arguments, **variables)
    # On a busy machine a thread of stress_waits.c may take a stall too late.
    said = [line for line in ran.stderr.splitlines() if "Python has not taken" not in line]
    assert (ran.returncode, said) == (0, []), f"{ran.stdout}\n{ran.stderr}"
    print(ran.stdout)


def run_under(sanitizer: str, name: str, folder: Path, *more_flags: str) -> None:
    """Skips where the sanitizer itself does not work, whatever the program."""
    flags, variables = SANITIZERS[sanitizer]
    nothing = folder / "nothing.c"
    nothing.write_text("int main(void) { return 0; }\n")
    compiled = gcc(*flags, nothing, "-o", folder / "nothing", check=False)
    if compiled.returncode != 0:
        last = compiled.stderr.strip().splitlines()[-1]
        pytest.skip(f"gcc has no runtime for the {sanitizer} sanitizer here: {last}")
    ran = run_command(*FIXED_LAYOUT, folder / "nothing")
    if ran.returncode != 0:
        pytest.skip(f"the {sanitizer} sanitizer does not run here: {ran.stderr.strip()[:200]}")
    build_and_run(
        name,
        folder,
        ENGINE_FILES,
        chosen_seconds(1 if more_flags else 0.5),
        chosen_seed(),
        flags=[*flags, *more_flags],
        before=FIXED_LAYOUT,
        **variables,
    )


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize("name", ["stress", "stress_waits"])
def test_native_threads_under_the_sanitizers(name: str, sanitizer: str, tmp_path: Path) -> None:
    """Points, queues and handles; and the staged waits."""
    run_under(sanitizer, name, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("name", ["stress", "stress_waits"])
def test_native_threads_that_pause_anywhere(name: str, tmp_path: Path) -> None:
    """As on a machine that is so busy that a thread stops between any two steps."""
    run_under("thread", name, tmp_path, "-include", str(PROGRAMS / "pauses.h"))


def test_races_played_by_hand(objects: list[Path], tmp_path: Path) -> None:
    """Its file includes those whose statics it needs."""
    others = [path for path in objects if path.stem not in ("queues", "points")]
    build_and_run("races", tmp_path, others)


def test_policy_in_virtual_time(objects: list[Path], tmp_path: Path) -> None:
    """By the policy alone: how late a task runs again, against the bound, and at which cost, for
    patterns of work.
    """
    build_and_run("policy", tmp_path, objects, 2000 if FULL else 500)


# The model of one list has functions of its own in place of these.
VIRTUAL = ["now_ns", "waker_wake_before", "waker_oversleep", "read", "write", "timerfd_settime"]


@pytest.mark.timeout(2 * LIMIT)
def test_model_of_one_list_in_virtual_time(objects: list[Path], tmp_path: Path) -> None:
    """Promise 16 for each of several waits on a stream, after each step of random schedules."""
    wraps = [f"-Wl,--wrap={name}" for name in VIRTUAL]
    build_and_run("one_list", tmp_path, objects, chosen_seconds(0.25), chosen_seed(), flags=wraps)


def test_engine_needs_no_symbol_of_python_or_the_driver(
    objects: list[Path], tmp_path: Path
) -> None:
    """It is all that the driver's threads run."""
    library = tmp_path / "n.so"
    gcc("-shared", *objects, "-o", library)
    undefined = subprocess.check_output(["nm", "-D", "--undefined-only", library], text=True)
    names = {line.split()[-1].split("@")[0] for line in undefined.splitlines()}
    assert not {name for name in names if re.match(r"_?Py|cu[A-Z]", name)}


def test_no_symbols_of_the_engine_run_in_a_circle(objects: list[Path]) -> None:
    """Its files use each other in one direction, also where one header has what two of them do."""
    sort_by_symbols(objects)


@pytest.mark.slow
def test_no_symbols_of_the_simulator_run_in_a_circle(tmp_path: Path) -> None:
    compile_all(tmp_path, sorted(SIMULATOR.glob("*/*.c")))
    sort_by_symbols(sorted(tmp_path.iterdir()))


def sort_by_symbols(objects: list[Path]) -> None:
    known: dict[str, set[str]] = {}
    for kind in ("defined", "undefined"):
        for path in objects:
            printed = subprocess.check_output(["nm", "-g", f"--{kind}-only", path], text=True)
            known[kind + path.stem] = {line.split()[-1] for line in printed.splitlines()}
    names = [path.stem for path in objects]
    graphlib.TopologicalSorter(
        {
            name: {
                other
                for other in names
                if other != name and known["undefined" + name] & known["defined" + other]
            }
            for name in names
        }
    ).prepare()


# --------------------------------------------------------------------------------------- its tables


def test_the_stub_names_what_the_module_has() -> None:
    """Both ways."""
    stub = Path(str(internals.native_names()["__file__"])).with_name("_native.pyi")
    named = {
        ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else node.name
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, (ast.AnnAssign, ast.FunctionDef, ast.ClassDef))
    }
    assert named == {name for name in internals.native_names() if not name.startswith("__")}


def test_each_counter_has_its_name() -> None:
    counters = internals.native_names()["COUNTERS"]
    assert isinstance(counters, tuple)
    assert len(internals.native_counters()) == len(set(counters))


def test_calls_that_older_drivers_lack_have_one_version() -> None:
    """`driver_calls.h` says when native code asks for them, `MINIMUM` what the error says."""
    rows = internals.native_names()["DRIVER_CALLS"]
    assert isinstance(rows, tuple)
    newer = {name: version for name, version in rows if version > 12000}
    assert newer
    assert newer.items() <= internals.minimum_versions().items()
