"""All interleavings of a few native threads: `tests/native/interleavings.c` runs the library's own
C files, and says how.

The number for each scenario is printed (`pytest -rP tests/runtime/test_interleavings.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compiling import ENGINE, PROGRAMS, gcc, run_command
from support import LIMIT

INTERLEAVED = ["base", "points", "failures", "timer", "waker", "handles", "policy", "interleaved"]
# Calls of the native files that the program answers itself.
WRAPPED = "read write eventfd ppoll clock_gettime queue_push queue_open"
WRAPPED += " pthread_mutex_lock pthread_mutex_unlock pthread_cond_timedwait pthread_cond_broadcast"


def compile_native(name: str, folder: Path, *include_first: Path) -> Path:
    """With calls at each access to memory.

    ThreadSanitizer's runtime is not linked: explore.h has these functions.
    """
    places = [directory / f"{name}.c" for directory in (*include_first, ENGINE, PROGRAMS)]
    source = next(path for path in places if path.exists())
    target = folder / f"{name}.o"
    first = [f"-I{directory}" for directory in include_first]
    gcc("-g", "-O1", "-fsanitize=thread", *first, "-c", source, "-o", target)
    return target


def link(objects: list[Path], target: Path) -> None:
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED.split()]
    gcc("-no-pie", *objects, "-o", target, *wraps)


def compile_all(folder: Path) -> None:
    for name in INTERLEAVED:
        compile_native(name, folder)
    flags = ["-g", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-no-pie"]
    gcc(*flags, "-c", PROGRAMS / "interleavings.c", "-o", folder / "interleavings.o")


@pytest.fixture
def objects(made_once: Callable[..., Path]) -> dict[str, Path]:
    return {path.stem: path for path in made_once("interleavings", compile_all).iterdir()}


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize(
    "scenarios",
    [
        pytest.param("two firings", id="some"),
        pytest.param("refused", id="refused"),
        pytest.param("", id="every", marks=pytest.mark.slow),
    ],
)
def test_all_interleavings(scenarios: str, objects: dict[str, Path], tmp_path: Path) -> None:
    """Each completion arrives once and where it belongs, no wake-up is lost, and nothing ends
    before its last use.
    """
    program = tmp_path / "interleavings"
    link(list(objects.values()), program)
    ran = run_command(program, scenarios)
    assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.stdout}\n{ran.stderr}"
    print(ran.stdout)


def changed(text: str, old: str, new: str) -> str:
    if old == OWN_REFERENCE:
        # `points_fail` pushes, and the point's own reference to its queue may be gone before it has
        # pushed.
        function = re.search(r"^void points_fail\(.*?^}", text, re.DOTALL | re.MULTILINE)
        assert function
        body, changes = re.subn(OWN_REFERENCE, "", function[0])
        assert changes == 2, "points_fail takes no reference of its own while it pushes"
        return text.replace(function[0], body)
    assert text.count(old) == 1, f"the code has changed: {old!r} occurs {text.count(old)} times"
    return text.replace(old, new)


OWN_REFERENCE = r"queue_(?:un)?ref\([^;]*\);"
TAKE = "    struct queue_entry *entry = reversed(atomic_exchange(&queue->head, NULL));\n"
# The file, its text and what it becomes, the scenario that must find it, and the complaint.
MISTAKES = {
    "no own reference": (
        *("points", OWN_REFERENCE, ""),
        *("fired and failed, the loop closes", "a queue was recycled while a thread pushes to it"),
    ),
    "the eventfd is read after the take": (
        *("queues", TAKE, f"{TAKE}    descriptor_read(queue->eventfd);\n"),
        *("two firings, drained", "a wake-up was lost"),
    ),
    "a pusher does not read `closed`": (
        "queues",
        *("if (atomic_load(&queue->closed)) push_to_orphans(queue);\n    else if", "if"),
        *("two firings, the loop closes", "was never delivered"),
    ),
    "a queue comes back without the lock": (
        *("queues", "!= 1) return;\n    pthread_mutex_lock(&table_lock);", "!= 1) return;"),
        *("two firings, the loop closes", "a data race"),
    ),
    "a point keeps its generation": (
        *("points", "(atomic_load(&point->word) >> 8) + 1", "atomic_load(&point->word) >> 8"),
        *("one ticket", "after its end"),
    ),
    "the consumer owes nothing": (
        *("points", "word & QUEUED ? OWED : QUEUED", "word & QUEUED ? 0 : QUEUED"),
        *("fired and failed", "did not come back"),
    ),
    "a handle is given away in use": (
        *("handles", "NOT_OPEN : NOT_OPEN | USES, RELEASED", "NOT_OPEN : NOT_OPEN, RELEASED"),
        *("given away", "given away under a user"),
    ),
    "arming wakes no thread": (
        *("waker", "if (atomic_load(&parked)) waker_wake();", "(void)parked;"),
        *("the watcher parks", "nothing wakes them"),
    ),
}


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(mistake, marks=[] if number < 3 else pytest.mark.slow)
        for number, mistake in enumerate(MISTAKES)
    ],
)
def test_mistakes_are_found(mistake: str, objects: dict[str, Path], tmp_path: Path) -> None:
    """The check itself is checked: with these mistakes in the library's code it must complain."""
    file, old, new, scenario, complaint = MISTAKES[mistake]
    (tmp_path / f"{file}.c").write_text(changed((ENGINE / f"{file}.c").read_text(), old, new))
    name = file if file in objects else "interleaved"
    link(
        [*{**objects, name: compile_native(name, tmp_path, tmp_path)}.values()],
        tmp_path / "interleavings",
    )
    ran = run_command(tmp_path / "interleavings", scenario)
    assert ran.returncode == 1, ran.stdout
    assert complaint in ran.stderr
