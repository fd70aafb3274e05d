"""The native part by itself: who may know Python there, and its threads under the sanitizers
(`tests/native/*.c`).
"""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import internals
from support import FULL, LIMIT, chosen_seconds, chosen_seed

TESTS = Path(__file__).parents[1]
NATIVE = TESTS.parent / "src" / "aiostream" / "native"
# The compiled files of the library that are not Python's. module.c and its companions are the ones
# that are.
DRIVER_SIDE = sorted(path.name for path in NATIVE.glob("*.c") if not path.name.startswith("module"))
SANITIZERS = {
    "thread": (
        ["-fsanitize=thread"],
        {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66:second_deadlock_stack=1"},
    ),
    "address": (
        ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        # Queues and slots are never freed, by design; what else is left over is a leak.
        {
            "ASAN_OPTIONS": "detect_stack_use_after_return=1:detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    ),
}

# ThreadSanitizer knows one layout of memory; without this the kernel may choose another, and the
# program would not start.
FIXED_LAYOUT = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []


def run_command(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **variables},
    )


def compile_c(
    sources: list[Path | str], target: Path, flags: list[str]
) -> subprocess.CompletedProcess[str]:
    options = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-error=tsan",
        "-pthread",
        f"-I{NATIVE}",
    ]
    return run_command(["gcc", *options, *flags, *map(str, sources), "-o", str(target)])


def sanitizer_or_skip(name: str, folder: Path) -> None:
    """Skips where the sanitizer itself does not work, whatever the program."""
    nothing = folder / "nothing.c"
    nothing.write_text("int main(void) { return 0; }\n")
    try:
        compiled = compile_c([nothing], folder / "nothing", SANITIZERS[name][0])
    except FileNotFoundError:
        pytest.skip("there is no gcc here")
    if compiled.returncode != 0:
        pytest.skip(
            f"gcc has no runtime for the {name} sanitizer here: "
            f"{compiled.stderr.strip().splitlines()[-1]}"
        )
    ran = run_command([*FIXED_LAYOUT, str(folder / "nothing")])
    if ran.returncode != 0:
        pytest.skip(f"the {name} sanitizer does not run on this kernel: {ran.stderr.strip()[:200]}")


def build_and_run(
    name: str, sanitizer: str, folder: Path, *arguments: str, more_flags: Sequence[str] = ()
) -> None:
    sanitizer_or_skip(sanitizer, folder)
    flags, variables = SANITIZERS[sanitizer]
    program = folder / name
    compiled = compile_c(
        [TESTS / "native" / f"{name}.c", *(NATIVE / source for source in DRIVER_SIDE)],
        program,
        [*flags, *more_flags],
    )
    assert compiled.returncode == 0, compiled.stderr
    ran = run_command([*FIXED_LAYOUT, str(program), *arguments], **variables)
    assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.stdout}\n{ran.stderr}"
    print(ran.stdout)


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize("name", ["stress", "stress_waits"])
def test_native_threads_under_the_sanitizers(name: str, sanitizer: str, tmp_path: Path) -> None:
    """Points, queues and handles; and the staged waits."""
    build_and_run(name, sanitizer, tmp_path, str(chosen_seconds(0.5)), str(chosen_seed()))


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("name", ["stress", "stress_waits"])
def test_native_threads_that_pause_anywhere(name: str, tmp_path: Path) -> None:
    """As on a machine that is so busy that a thread stops between any two steps."""
    pauses = ("-include", str(TESTS / "native" / "pauses.h"))
    arguments = (str(chosen_seconds(1)), str(chosen_seed()))
    build_and_run(name, "thread", tmp_path, *arguments, more_flags=pauses)


def test_races_played_by_hand(tmp_path: Path) -> None:
    """Its file includes those whose statics it needs."""
    included = {"queues.c", "points.c"}
    sources: list[Path | str] = [NATIVE / name for name in DRIVER_SIDE if name not in included]
    try:
        compiled = compile_c([TESTS / "native" / "races.c", *sources], tmp_path / "races", [])
    except FileNotFoundError:
        pytest.skip("there is no gcc here")
    assert compiled.returncode == 0, compiled.stderr
    ran = run_command([str(tmp_path / "races")])
    assert (ran.returncode, ran.stderr) == (0, "")


def test_policy_in_virtual_time(tmp_path: Path) -> None:
    """By the policy alone: how late a task runs again, against the bound, and at which cost, for
    patterns of work.
    """
    folder = TESTS / "native"
    program = tmp_path / "policy"
    try:
        compiled = compile_c([folder / "policy.c", NATIVE / "policy.c", "-lm"], program, [])
    except FileNotFoundError:
        pytest.skip("there is no gcc here")
    assert compiled.returncode == 0, compiled.stderr
    ran = run_command([str(program), "2000" if FULL else "500"])
    assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.stdout}\n{ran.stderr}"


# The model of one list has functions of its own in place of these.
VIRTUAL = ["now_ns", "waker_wake_before", "waker_oversleep", "read", "write", "timerfd_settime"]


@pytest.mark.timeout(2 * LIMIT)
def test_model_of_one_list_in_virtual_time(tmp_path: Path) -> None:
    """Promise 16 for each of several waits on a stream, after each step of random schedules."""
    program = tmp_path / "one_list"
    wraps = [f"-Wl,--wrap={name}" for name in VIRTUAL]
    sources: list[Path | str] = [NATIVE / name for name in DRIVER_SIDE]
    try:
        compiled = compile_c([TESTS / "native" / "one_list.c", *sources, "-lm"], program, wraps)
    except FileNotFoundError:
        pytest.skip("there is no gcc here")
    assert compiled.returncode == 0, compiled.stderr
    ran = run_command([str(program), str(chosen_seconds(0.25)), str(chosen_seed())])
    assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.stdout}\n{ran.stderr}"
    print(ran.stdout)


def test_only_the_module_knows_python() -> None:
    sources = sorted(NATIVE.glob("*.[ch]"))
    assert {path.name for path in sources} >= {*DRIVER_SIDE, "module.c", "module_waits.c", "base.h"}
    knowing = [
        path.name
        for path in sources
        if re.search(r'#\s*include\s*[<"](Python|structmember)\.h', path.read_text())
    ]
    assert knowing == ["module.h"], "module.c and its companions include that"
    assert not [name for name in DRIVER_SIDE if "module.h" in (NATIVE / name).read_text()]


def test_nothing_that_the_driver_calls_needs_python(tmp_path: Path) -> None:
    """Stronger than the includes: without module.c, the native files need no symbol of Python's and
    nothing of libcuda's.
    """
    try:
        sources = [str(NATIVE / name) for name in DRIVER_SIDE]
        compiled = run_command(
            ["gcc", "-std=gnu11", "-O1", "-shared", "-fPIC", *sources, "-o", str(tmp_path / "n.so")]
        )
        undefined = run_command(["nm", "-D", "--undefined-only", str(tmp_path / "n.so")])
    except FileNotFoundError as missing:
        pytest.skip(f"no {missing.filename} here")
    assert compiled.returncode == 0, compiled.stderr
    names = {line.split()[-1].split("@")[0] for line in undefined.stdout.splitlines()}
    assert not {name for name in names if re.match(r"_?Py|cu[A-Z]", name)}


# --------------------------------------------------------------------------------------- its tables


def stub_names() -> set[str]:
    stub = Path(str(internals.native_names()["__file__"])).with_name("_native.pyi")
    names = set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def test_the_stub_names_what_the_module_has() -> None:
    """Both ways."""
    public = {name for name in internals.native_names() if not name.startswith("__")}
    stub = stub_names()
    assert stub <= public, "the stub names what the module lacks"
    assert public <= stub, "a new name needs its line in _native.pyi"


def test_each_counter_has_its_name() -> None:
    counters = internals.native_names()["COUNTERS"]
    assert isinstance(counters, tuple)
    assert len(internals.native_counters()) == len(set(counters))


def test_calls_that_older_drivers_lack_have_one_version() -> None:
    """`driver_calls.h` says when native code asks for them, `MINIMUM` what the error says."""
    rows = internals.native_names()["DRIVER_CALLS"]
    assert isinstance(rows, tuple)
    newer = {name: version for name, _, version, is_newer in rows if is_newer}
    assert newer
    assert newer.items() <= internals.minimum_versions().items()
