"""The order of the house: who imports whom, what is public, what happens at import (nothing), and
how the tests are built.
"""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import get_args

import pytest

import aiostream
from aiostream import enums
from commands import python
from installed import beside, program
from support import succeed

PACKAGE = Path(__file__).parents[2] / "src" / "aiostream"
TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"

# Public modules whose names are not the package's: `from aiostream.testing import spin`.
IMPORTED_BY_NAME = {"blocking", "metrics", "serving", "simulator", "testing", "trace"}


def table(number: int) -> list[list[str]]:
    """The rows of one of the two tables in docs/design.md, "The house": the storeys, then the
    levels of the native part.
    """
    house = beside("docs/design.md").read_text().split("\n## The house\n")[1].split("\n## ")[0]
    lines = house.split("---|\n")[number].split("\n\n")[0].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def rows(number: int) -> dict[str, int]:
    """The level of each name in a table."""
    levels: dict[str, int] = {}
    for level, *_, names, _ in table(number):
        found = names.replace("`", "").split()
        assert not levels.keys() & set(found), f"there twice: {names}"
        levels.update(dict.fromkeys(found, int(level)))
    return levels


Imports = dict[str, set[str]]
# Functions that import a module by a name, which counts if it is written there.
_IMPORTERS = {f"{each}import_module" for each in ("", "importlib.", "_importlib.")} | {"__import__"}


def imports_of(folder: Path, package: str, *, all_of_them: bool) -> Imports:
    """By module of a package, by its path from there, the modules of it that it imports.

    Args:
        folder: Where the package lies.
        package: Its name.
        all_of_them: Also those that are for type checkers alone, and those within functions.
    """
    files = {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
        for path in folder.rglob("*.py")
    }
    found: Imports = {name: set() for name in files}

    def add(name: str, base: str, imported: list[str]) -> None:
        inner = base.removeprefix(package).removeprefix(".")
        for each in imported:
            inside = f"{inner}.{each}".removeprefix(".")
            # A module, or a name of one: of the package itself, if it is neither.
            found[name].add(
                inside if inside in files or inside == "_native" else inner or "__init__"
            )

    def visit(name: str, node: ast.AST) -> None:
        later = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if (later or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))) and not all_of_them:
            return
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            add(name, node.module or "", [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(f"{package}."):
                    add(name, package, [alias.name.removeprefix(f"{package}.")])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in _IMPORTERS:
            named = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            if str(named).startswith(f"{package}."):
                add(name, package, [str(named).removeprefix(f"{package}.")])
        for child in ast.iter_child_nodes(node):
            visit(name, child)

    for name, path in files.items():
        visit(name, ast.parse(path.read_text()))
    return found


def test_storeys_import_downwards_only() -> None:
    levels = rows(1)
    assert len(set(levels.values())) <= 9
    imports = imports_of(PACKAGE, "aiostream", all_of_them=True)
    top = {name.split(".")[0] for name in imports} | {"_native"}
    assert top == levels.keys(), "a new module needs its place in docs/design.md"
    wrong = []
    for name, imported in imports.items():
        storey = levels.get(name.split(".")[0], 0)
        for other in imported:
            if levels[other.split(".")[0]] > storey:
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_the_rest_works_without_the_observers(tmp_path: Path, driver_kind: str) -> None:
    """Their storey is deleted: the tests of waits pass, and all other modules can be imported. No
    module below names one of them, also in a string.
    """
    names = next(names for _, folder, names, _ in table(1) if folder == "observers").split("` `")
    known = re.compile(rf"aiostream\.({'|'.join(names)})(\..*)?|AIOSTREAM_(BLOCKING|TRACE)")
    levels = rows(1)
    for path in PACKAGE.rglob("*.py"):
        if levels[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] < levels[names[0]]:
            nodes = ast.walk(ast.parse(path.read_text()))
            texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
            assert not any(map(known.fullmatch, texts)), path
    gone = shutil.ignore_patterns("native", *names, *(f"{name}.py" for name in names))
    shutil.copytree(Path(aiostream.__file__).parent, tmp_path / "aiostream", ignore=gone)
    script = """
        import importlib, pkgutil, sys, pytest
        code = pytest.main(["-q", "-n0", "-pno:cacheprovider", *sys.argv[1:3]])
        import aiostream
        for each in pkgutil.walk_packages(aiostream.__path__, "aiostream."):
            if not each.name.endswith("__main__"):
                importlib.import_module(each.name)
        assert not {*map("aiostream.{}".format, sys.argv[3:])} & sys.modules.keys()
        raise SystemExit(code)
    """
    tests = str(TESTS / "waits/test_waits.py")
    words = "-c", textwrap.dedent(script), f"--driver={driver_kind}", tests, *names
    done = python(driver_kind, *words, path=[tmp_path], folder=TESTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_native_code_imports_nothing_of_the_library() -> None:
    """It lies below all of it, and gets at the start what it calls: `_native.set_callbacks`."""
    names = {
        f"{path.name} imports {name}"
        for path in PACKAGE.glob("native/*/*.[ch]")
        for name in re.findall(r"\bPyImport_\w+\s*\(\s*([^),]+)", path.read_text())
    }
    assert names == {'work.c imports "types"'}


@pytest.mark.parametrize("package", ["aiostream", "benchmarks"])
def test_no_imports_run_in_a_circle(package: str) -> None:
    folder = PACKAGE if package == "aiostream" else TESTS.parent / package
    imports = imports_of(folder, package, all_of_them=False)
    graphlib.TopologicalSorter({name: found - {name} for name, found in imports.items()}).prepare()


def test_tests_lie_in_the_folders_of_the_storeys() -> None:
    names = [folder for _, folder, *_ in table(1)]
    folders = {path.parent.name for path in TESTS.rglob("test_*.py")}
    assert folders == {*names, "project"}


def test_native_files_include_downwards_only() -> None:
    """Of the engine none includes a file of the other floor, or Python's headers."""
    graph, levels = program("docs/make_graphs.py").native_includes(), rows(2)
    assert graph.keys() == levels.keys(), "a new native file needs its level in docs/design.md"
    wrong = [
        f"{name} includes {other}"
        for name, others in graph.items()
        for other in others
        if levels[other] >= levels[name]
    ]
    wrong += [
        f"{path.name} is of the engine, and has {line}"
        for path in PACKAGE.glob("native/engine/*.[ch]")
        for line in re.findall(r"#include .*(?:Python|python/|structmember).*", path.read_text())
    ]
    assert not wrong


def test_drawing_of_the_native_part_is_current() -> None:
    made = program("docs/make_graphs.py")
    assert made.PAGE.read_text() == made.page(), "run python docs/make_graphs.py"


def test_the_picture_of_batches_is_current() -> None:
    made = program("docs/make_batches.py")
    for name, look in made.COLOURS.items():
        assert beside(f"docs/{name}").read_text() == made.picture(look), "run docs/make_batches.py"


def test_c_is_formatted() -> None:
    """By `.clang-format`. Another major version breaks some lines elsewhere, so only one counts."""
    folders = (PACKAGE / "native", TESTS.parent / "driver/src", TESTS / "native")
    files = [path for folder in folders for path in folder.rglob("*.[ch]")]
    beside(".clang-format")
    formatter = shutil.which("clang-format")
    if formatter is None:
        pytest.skip("there is no clang-format here: install the group `dev`")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([formatter, *options], capture_output=True, text=True, check=False)

    version = run("--version").stdout
    if "version 23." not in version:
        pytest.skip(f"clang-format 23 is needed: this is {version.strip()}")
    checked = run("--dry-run", "-Werror", *map(str, files))
    assert checked.returncode == 0, checked.stderr


def test_only_the_seams_know_what_lies_behind_them() -> None:
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text().splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith(">>>"))
        if path.stem not in {"stand_ins", "simulator"}:
            assert not re.search(r"(import|from) nogpu|(import_module|__import__)\(.nogpu", text)
        if path.stem != "driver":
            assert 'import_module("cuda' not in text, path.name
            assert not re.search(r"(from|import) cuda\b", text), path.name
        if path.parent.name not in {"loops", "_tools"} and path.stem not in {"turns", "frames"}:
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
        for path in PACKAGE.rglob("*.py")
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
        import aiostream, aiostream.metrics
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        assert not new & {"cuda", "trio", "anyio", "uvloop", "prometheus_client"}, new
        assert threading.active_count() == 1
        with open("/proc/self/maps") as file:
            maps = file.read()
        assert "libcuda" not in maps and "_forward" not in maps
        assert aiostream.statistics().points.armed == 0
    """
    succeed("none", script)


def test_only_three_files_list_the_wait_strategies() -> None:
    """All other lists derive from these, so a new strategy is known everywhere at once."""
    root, names = TESTS.parent, list(aiostream.WaitStrategy)
    assert set(get_args(get_args(enums.WaitLike)[1])) == set(names)
    page = beside("docs/which-wait.md")
    name = f"[\"'`](?:{'|'.join(names)})[\"'`]|WaitStrategy.(?:{'|'.join(names).upper()})\\b"
    # All of them close together, but perhaps one: those that record an event are a list too.
    listing = re.compile(rf"(?:(?:{name})[^`]{{1,12}}){{{len(names) - 2},}}(?:{name})")
    folders = ("benchmarks", "docs", "examples", "src", "tests", "tools")
    patterns = ["*.md", *(f"{folder}/**/*.{kind}" for folder in folders for kind in ("md", "py"))]
    patterns += ["src/aiostream/*.pyi", "src/aiostream/native/*/*.[ch]"]
    lists = {
        f"{path.relative_to(root)}: {found[0]}"
        for pattern in patterns
        for path in root.glob(pattern)
        if path != PACKAGE / "enums.py"
        for found in listing.finditer(path.read_text())
    }
    assert not lists, "derive it from WaitStrategy, or from the lists in tests/support.py"
    table = page.read_text().split("\n## Strategies\n")[1]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(names), "each strategy has its row in docs/which-wait.md"


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


# ---------------------------------------------------------------------------------------- the tests


def test_no_module_assigns_a_name_twice() -> None:
    """Ruff sees a function that is defined twice, but not a constant: a merge can leave two."""
    twice = []
    for path in [*PACKAGE.rglob("*.py"), *TESTS.rglob("*.py"), *EXAMPLES.glob("*.py")]:
        names = [
            target.id
            for statement in ast.parse(path.read_text()).body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        ]
        twice += [(path.name, name) for name in set(names) if names.count(name) > 1]
    assert not twice


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
    """`tests/internals.py` gives them plain names, so that a rename in the library changes one file
    of the tests.
    """
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
    """Private attributes that code uses of other objects than `self`; a few of the standard
    library's are allowed.
    """
    allowed = {"os._exit", "asyncio._set_running_loop", "task._log_destroy_pending"}
    allowed |= {"sys._getframe"}
    return [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr)
        if (name := ast.unparse(node)) not in allowed and not name.startswith("self.")
    ]


# How often a room of the library uses a private name that another room, or another library, has
# made. A room is a folder, or a module at the top. A change may only lower it.
MOST_OF_OTHERS = 96


def test_few_private_names_are_used_outside_of_their_room() -> None:
    rooms: dict[str, list[ast.AST]] = {}
    for path in PACKAGE.rglob("*.py"):
        trees = rooms.setdefault(path.relative_to(PACKAGE).parts[0], [])
        trees.append(ast.parse(path.read_text()))
    found = [f"{room}: {name}" for room, trees in rooms.items() for name in names_of_others(trees)]
    assert len(found) == MOST_OF_OTHERS, "\n".join(["lower the number, or:", *sorted(found)])


def names_of_others(trees: list[ast.AST]) -> list[str]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
    own = {getattr(node, "id", getattr(node, "attr", "")) for node in names if is_made(node)}
    own |= {getattr(node, "name", "") for node in nodes}  # of functions and classes
    return [
        ast.unparse(node)
        for node in names
        if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr)
        if node.attr not in own and ast.unparse(node.value) not in ("self", "cls")
    ]


def is_made(node: ast.Name | ast.Attribute) -> bool:
    """Whether a name is assigned here, to a variable or to an attribute of the object itself."""
    owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else "self"
    return isinstance(node.ctx, ast.Store) and owner in ("self", "cls")
