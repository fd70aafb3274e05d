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

# A module imports only modules of lower numbers.
LEVELS = {
    "_native": -1,
    "errors": 0,
    "enums": 0,
    "_arguments": 0,
    "_clash": 0,
    "_turns": 0,
    "_driver": 1,
    "_points": 1,
    "_process": 2,
    "device": 3,
    "futures": 3,
    "interop": 4,
    "_statistics": 4,
    "_loops": 4,
    "_kernels": 5,
    "attributes": 5,
    "hostfunc": 5,
    "memory": 5,
    "shared": 5,
    "waiting": 6,
    "threads": 7,
    "event": 7,
    "graph": 7,
    "service": 7,
    "capture": 8,
    "stream": 9,
    "pool": 10,
    "__init__": 11,
    "_bench": 12,
    "_demo": 12,
    "_doctor": 12,
    "__main__": 13,
}
# What one level of the package holds in files of its own: `_loops` is a folder. It imports of
# itself only what is lower.
LOOPS_LEVELS = {"bridge": 0, "dispatcher": 1, "on_asyncio": 2, "on_trio": 2, "__init__": 3}
# The benchmark has a package of its own beside the library, of which nothing imports it.
BENCHMARK_LEVELS = {
    "child": 0,
    "lanes": 0,
    "load": 1,
    "loops": 0,
    "stats": 0,
    "work": 0,
    "full_stream": 0,
    "results": 1,
    "peers": 1,
    "measure": 2,
    "runner": 3,
    "idle": 3,
    "imports": 3,
    "lag": 3,
    "latency": 3,
    "patterns": 3,
    "windows": 3,
    "pending": 4,
    "worker": 5,
    "serving": 6,
    "torch_ways": 6,
    "torch_serving": 7,
    "server": 7,
    "torch_server": 8,
    "plan": 9,
    "goals": 10,
    "tables": 10,
    "pictures": 10,
    "command": 11,
    "__init__": 12,
    "__main__": 12,
}


# The native part: a file includes only headers of lower floors, and its own.
NATIVE_FLOORS = {
    "base": 0,
    "waker": 1,
    "timer": 1,
    "policy": 1,
    "failures": 1,
    "handles": 2,
    "contexts": 2,
    "queues": 2,
    "helper_streams": 3,
    "points": 3,
    "waits": 4,
    "snapshots": 6,
    "wait_record": 5,
    "wait_records": 6,
    "future_waits": 6,
    "task_waits": 6,
    "watched_waits": 6,
    "watcher": 7,
    "module": 8,
    "module_process": 9,
    "module_graphs": 9,
    "module_failures": 9,
    "module_waits": 9,
}


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
    modules = [(path.stem, path) for path in PACKAGE.glob("*.py")]
    assert {name for name, _ in modules} <= LEVELS.keys(), "a new module needs its level"
    modules += [("_loops", path) for path in (PACKAGE / "_loops").glob("*.py")]
    wrong = []
    for name, path in modules:
        for imported in runtime_imports(path):
            if imported == name == "_loops":
                continue  # see the next test
            if imported == "simulator":
                assert name in {"_bench", "_demo", "_doctor"}, f"{name} imports the simulator"
                continue
            if name in {"_demo", "_doctor", "__main__"} and imported in aiostream.__all__:
                continue
            if LEVELS.get(imported, 99) >= LEVELS[name]:
                wrong.append(f"{name} imports {imported}")
    assert not wrong


@pytest.mark.parametrize(
    ("folder", "package", "levels"),
    [
        (TESTS.parent / "benchmarks", "benchmarks", BENCHMARK_LEVELS),
        (PACKAGE / "_loops", f"{PACKAGE.name}._loops", LOOPS_LEVELS),
    ],
    ids=["benchmarks", "_loops"],
)
def test_folders_import_downwards_only(folder: Path, package: str, levels: dict[str, int]) -> None:
    modules = {path.stem: path for path in folder.glob("*.py")}
    assert modules.keys() == levels.keys(), "a new module needs its level"
    wrong = []
    for name, path in modules.items():
        for imported in folder_imports(path, package):
            if levels[imported] >= levels[name]:
                wrong.append(f"{package}.{name} imports {imported}")
    assert not wrong


def folder_imports(path: Path, package: str) -> list[str]:
    """The modules of a folder that one of them imports when it runs."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            inner = (node.module or "").removeprefix(package).removeprefix(".")
            found.extend([inner] if inner else [alias.name for alias in node.names])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def test_native_files_include_downwards_only() -> None:
    sources = list((TESTS.parent / "src" / "aiostream" / "native").glob("*.[ch]"))
    if not sources:
        pytest.skip("the sources are not here: the tests run on an installed package alone")
    assert {path.stem for path in sources} == NATIVE_FLOORS.keys(), (
        "a new native file needs its floor"
    )
    wrong = []
    for path in sources:
        for included in re.findall(r'#include "(\w+)\.h"', path.read_text()):
            if included != path.stem and NATIVE_FLOORS[included] >= NATIVE_FLOORS[path.stem]:
                wrong.append(f"{path.name} includes {included}.h")
    assert not wrong


def test_only_the_seams_know_what_lies_behind_them() -> None:
    for path in [*PACKAGE.glob("*.py"), *(PACKAGE / "_loops").glob("*.py")]:
        text = path.read_text()
        if path.stem != "_driver":
            assert 'import_module("cuda' not in text, path.name
            assert "from cuda" not in text, path.name
            assert "import cuda" not in text, path.name
        if path.parent.name != "_loops" and path.stem not in {
            "_turns",
            "_bench",
            "_demo",
            "_doctor",
        }:
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
    exported = {name for path in PACKAGE.glob("*.py") for name in module_exports(path)}
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
        for folder in (PACKAGE, TESTS, TESTS.parent / "benchmarks")
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
