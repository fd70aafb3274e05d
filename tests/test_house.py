"""The order of the house: who imports whom, what is public, what happens at import (nothing), and how the tests are built."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aiostream

PACKAGE = Path(aiostream.__file__).parent
TESTS = Path(__file__).parent

# Within `_loops`. Each other file there is one kind of loop: it stands above these two, and below
# `__init__`.
LOOPS_LEVELS = {"bridge": 0, "dispatcher": 1, "__init__": 3}
A_LOOP = 2
# Public modules whose names are not the package's: `from aiostream.testing import spin`.
IMPORTED_BY_NAME = {"metrics", "testing", "trace"}
# The benchmark's own: it stands above everything but `__main__`, which alone imports it.
BENCH_LEVELS = {
    "stats": 0,
    "loops": 0,
    "gpu": 0,
    "child": 0,
    "spinning": 0,
    "turns": 1,
    "serving": 1,  # scripts, as `older`
    "load": 1,
    "torch_ways": 1,
    "torch_serving": 2,  # a script
    "older": 1,  # a script, which imports nothing of the benchmark: the older library has one of its own
    "peers": 1,
    "companion": 2,
    "runner": 3,
    "latency": 4,
    "footprint": 4,
    "throughput": 5,
    "idle": 5,
    "lag": 5,
    "pending": 5,
    "patterns": 5,
    "windows": 5,
    "server": 6,
    "torch_server": 7,
    "onecore": 6,
    "plan": 8,
    "report": 7,
    "server_plot": 8,
    "plot": 9,
    "goals": 9,
    "__init__": 10,
}


def drawn_order(chapter: int) -> dict[str, int]:
    """The level of each module in one of the two drawings in docs/design.md, "The house": Python's, then the native part's.

    A module imports only modules of lower levels, and a native file includes only headers of lower ones.
    """
    design = TESTS.parent / "docs" / "design.md"
    if not design.exists():
        pytest.skip("the documents are not here: the tests run on an installed package alone")
    house = design.read_text().split("\n## The house\n")[1].split("\n## ")[0]
    drawing = house.split("```text\n")[chapter + 1].split("```")[0]
    levels: dict[str, int] = {}
    for line in drawing.splitlines():
        row = re.fullmatch(r" ?(-?\d+)  (\w+(?: \w+)*)  +\S.*", line)
        assert row, f"neither a level nor modules in {line!r}"
        names = row[2].split()
        assert not levels.keys() & names, f"drawn twice: {names}"
        levels.update(dict.fromkeys(names, int(row[1])))
    return levels


def runtime_imports(path: Path) -> set[str]:
    """The package's modules that a module imports when it runs; what stands under TYPE_CHECKING does not count."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if (
            isinstance(node, ast.ImportFrom)
            and node.module is not None
            and node.module.split(".")[0] == "aiostream"
        ):
            parts = node.module.split(".")
            found.update([parts[1]] if len(parts) > 1 else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            found.update(
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("aiostream.")
            )
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def test_modules_import_downwards_only() -> None:
    levels = drawn_order(0)
    modules = [(path.stem, path) for path in PACKAGE.glob("*.py")]
    drawn = {"_native", "_loops"} | {name for name, _ in modules}
    assert drawn == levels.keys(), "a new module needs its level in docs/design.md"
    modules += [("_loops", path) for path in (PACKAGE / "_loops").glob("*.py")]
    wrong = []
    for name, path in modules:
        for imported in runtime_imports(path):
            if imported == name == "_loops":
                continue  # see the next test
            if imported == "simulator":
                assert name in {"_demo", "_doctor", "testing"}, f"{name} imports the simulator"
                continue
            if imported == "bench":
                assert name == "__main__", f"{name} imports the benchmark"
                continue
            if name in {"_demo", "_doctor", "__main__"} and imported in aiostream.__all__:
                continue
            if levels.get(imported, 99) >= levels[name]:
                wrong.append(f"{name} imports {imported}")
    assert not wrong


@pytest.mark.parametrize(("folder", "levels"), [("bench", BENCH_LEVELS), ("_loops", LOOPS_LEVELS)])
def test_folders_import_downwards_only(folder: str, levels: dict[str, int]) -> None:
    modules = {path.stem: path for path in (PACKAGE / folder).glob("*.py")}
    if folder == "_loops":
        levels = {name: levels.get(name, A_LOOP) for name in modules}
    assert modules.keys() == levels.keys(), "a new module needs its level"
    wrong = []
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                f"aiostream.{folder}"
            ):
                continue
            parts = (node.module or "").split(".")
            for imported in parts[2:] or [alias.name for alias in node.names]:
                if levels[imported] >= levels[name]:
                    wrong.append(f"{folder}.{name} imports {folder}.{imported}")
    assert not wrong


def test_native_files_include_downwards_only() -> None:
    sources = list((TESTS.parent / "src" / "aiostream" / "native").glob("*.[ch]"))
    if not sources:
        pytest.skip("the sources are not here: the tests run on an installed package alone")
    floors = drawn_order(1)
    drawn = {path.stem for path in sources}
    assert drawn == floors.keys(), "a new native file needs its floor in docs/design.md"
    wrong = []
    for path in sources:
        for included in re.findall(r'#include "(\w+)\.h"', path.read_text()):
            if included != path.stem and floors[included] >= floors[path.stem]:
                wrong.append(f"{path.name} includes {included}.h")
    assert not wrong


def test_only_the_seams_know_what_lies_behind_them() -> None:
    for path in [*PACKAGE.glob("*.py"), *(PACKAGE / "_loops").glob("*.py")]:
        lines = path.read_text().splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith(">>>"))
        if path.stem != "_driver":
            assert 'import_module("cuda' not in text, path.name
            assert "from cuda" not in text, path.name
            assert "import cuda" not in text, path.name
        if path.parent.name != "_loops" and path.stem not in {"_turns", "_demo", "_doctor"}:
            assert "import asyncio" not in text, path.name
            assert "import trio" not in text, path.name


def test_every_public_name_is_exported_and_documented() -> None:
    assert aiostream.__all__ == sorted(aiostream.__all__)
    for name in aiostream.__all__:
        public = getattr(aiostream, name)
        assert public.__doc__, f"{name} has no docstring"
        for member, value in vars(public).items() if isinstance(public, type) else ():
            if not member.startswith("_") and (
                callable(value) or isinstance(value, (property, classmethod, staticmethod))
            ):
                assert value.__doc__, f"{name}.{member} has no docstring"
    exported = {
        name
        for path in PACKAGE.glob("*.py")
        if path.stem not in IMPORTED_BY_NAME
        for name in module_exports(path)
    }
    assert exported == set(aiostream.__all__)


def module_exports(path: Path) -> list[str]:
    if path.stem == "__init__":
        return []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def test_nothing_happens_at_import() -> None:
    script = """
import sys, threading
before = set(sys.modules)
import aiostream
new = {name.split(".")[0] for name in set(sys.modules) - before}
assert not new & {"cuda", "trio", "anyio", "uvloop"}, new
assert threading.active_count() == 1
assert "libcuda" not in open("/proc/self/maps").read()
assert aiostream.statistics().points.armed == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_modules_stay_small() -> None:
    files = [
        path
        for folder in (PACKAGE, TESTS)
        for path in folder.rglob("*")
        if path.suffix in {".py", ".c", ".h"}
    ]
    long = {
        path.name: lines for path in files if (lines := len(path.read_text().splitlines())) > 700
    }
    assert not long


# ------------------------------------------------------------------------------------------------ the tests


def test_no_test_imports_a_test_module() -> None:
    """What tests share lies in modules of its own. Scripts in strings count too."""
    importing = re.compile(r"^\s*(?:from|import) (?:\w+, )*(?:test_\w+|conftest)\b", re.MULTILINE)
    wrong = [
        (path.name, line.strip())
        for path in TESTS.rglob("*.py")
        for line in importing.findall(path.read_text())
    ]
    assert not wrong


def test_only_one_test_module_knows_private_names() -> None:
    """`tests/internals.py` gives them plain names, so that a rename in the library changes one file of the tests."""
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        if path.name != "internals.py":
            text = path.read_text()
            wrong += [f"{path.name} names {name}" for name in private_modules(text)]
            wrong += [f"{path.name} uses {name}" for name in private_attributes(ast.parse(text))]
    assert not wrong


def private_modules(text: str) -> list[str]:
    """Private modules of the library that a text names, also in scripts in strings."""
    found = re.findall(r"\baiostream(?:\.\w+)*?\._[a-z]\w*", text)
    for names in re.findall(
        r"^\s*from aiostream(?:\.\w+)* import (\([^)]*\)|.*)", text, re.MULTILINE
    ):
        found += re.findall(r"\b_[a-z]\w*", re.sub(r" as \w+", "", names))
    return found


def private_attributes(tree: ast.AST) -> list[str]:
    """Private attributes that code uses of other objects than `self`; a few of the standard library's are allowed."""
    allowed = {"os._exit", "asyncio._set_running_loop", "task._log_destroy_pending"}
    used = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr)
    ]
    return [
        name
        for node in used
        if (name := ast.unparse(node)) not in allowed and not name.startswith("self.")
    ]
