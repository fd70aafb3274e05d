"""The tables of names: complete, true, and shown by tests."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aiostream
import internals
import shown_by

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS.parent / "docs" / "make_reference.py"

# The functions of the chapter, as the manuals of CUDA 7, 11 and 13 list them; later versions of one
# function are one.
_CHAPTER = """
cuStreamAddCallback cuStreamAttachMemAsync cuStreamBeginCapture cuStreamBeginCaptureToGraph
cuStreamCopyAttributes cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy
cuStreamEndCapture cuStreamGetAttribute cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v2
cuStreamGetCaptureInfo_v3 cuStreamGetCtx cuStreamGetCtx_v2 cuStreamGetDevice cuStreamGetFlags
cuStreamGetId cuStreamGetPriority cuStreamIsCapturing cuStreamQuery cuStreamSetAttribute
cuStreamSynchronize cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_v2
cuStreamWaitEvent cuThreadExchangeStreamCaptureMode cuLaunchHostFunc cuStreamGetDevResource
cuStreamBeginRecaptureToGraph cuStreamWaitValue32 cuStreamWaitValue64 cuStreamWriteValue32
cuStreamWriteValue64 cuStreamBatchMemOp
"""


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip("the documents are not beside the tests")
    return load_script()


def rows(reference: ModuleType) -> list[Any]:
    return [*reference.DRIVER, *reference.RUST, *reference.BEYOND]


def test_every_function_of_the_chapter_has_a_row(reference: ModuleType) -> None:
    assert {row.theirs for row in reference.DRIVER} >= set(_CHAPTER.split())


def test_every_stream_function_of_the_bindings_has_a_row(reference: ModuleType) -> None:
    """What newer bindings bring must be taken in, or left out on purpose."""
    left_out = {
        "cuStreamBeginCaptureToCig",  # for CUDA in Graphics
        "cuStreamEndCaptureToCig",
        "cuStreamGetGreenCtx",  # cuStreamGetCtx_v2 tells it too
    }
    known = {row.theirs for row in reference.DRIVER} | left_out
    there = {name for name in dir(internals.bindings()) if name.startswith("cuStream")}
    assert not there - known


def test_every_name_exists_and_is_documented(reference: ModuleType) -> None:
    for row in rows(reference):
        for name in row.ours:
            assert inspect.getdoc(reference.find(name)), name
        assert reference.summary(row.ours[0]), row.theirs
        assert 12000 <= reference.needed_driver(row) < 20000


def sources_of(test: str) -> str:
    """The text of a test, by the name that the table gives it; fails if there is no such test."""
    file, _, function = test.partition(": ")
    text = functions_of(file).get(f"test_{function}")
    assert text is not None, f"there is no test {test}"
    return text


@functools.cache
def functions_of(file: str) -> dict[str, str]:
    """The text of each function of a file of tests, with its decorators."""
    (path,) = TESTS.glob(f"*/test_{file}.py")
    text = path.read_text()
    lines = text.splitlines()
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min(part.lineno for part in [*node.decorator_list, node])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def rows_with_tests(reference: ModuleType) -> list[tuple[Any, list[str]]]:
    """Each row with its tests."""
    tables = [
        (reference.DRIVER, shown_by.DRIVER),
        (reference.RUST, shown_by.RUST),
        (reference.BEYOND, shown_by.BEYOND),
    ]
    for rows, shown in tables:
        assert {row.theirs or ", ".join(row.ours) for row in rows} == shown.keys()
    return [
        (row, shown[row.theirs or ", ".join(row.ours)]) for rows, shown in tables for row in rows
    ]


def test_every_row_has_tests_that_use_its_names(reference: ModuleType) -> None:
    missing = []
    for row, tests in rows_with_tests(reference):
        text = "\n".join(sources_of(test) for test in tests)
        for name in row.ours:
            if name.rpartition(".")[2] not in text:
                missing.append(f"{name} in {tests}")
    assert not missing


def test_every_public_name_is_on_the_page_of_names(reference: ModuleType) -> None:
    page = reference.REFERENCE.read_text()
    names = set(re.findall(r"^### `([\w.]+)`$", page, re.MULTILINE))
    assert "simulator" in reference.submodules()
    wanted = set(aiostream.__all__)
    for module in reference.submodules():
        public = importlib.import_module(f"aiostream.{module}").__all__
        wanted |= {f"{module}.{name}" for name in public if name not in aiostream.__all__}
    assert names == wanted
    for member in ("synchronize_async", "begin_capture", "wait_value", "torch", "handle"):
        assert f"| `{member}` |" in page, "members of Stream's base classes count too"


def test_groups_name_what_there_is(reference: ModuleType) -> None:
    grouped = [name for names in reference.GROUPS.values() for name in names.split()]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= set(aiostream.__all__)


def test_the_pages_are_not_stale(reference: ModuleType) -> None:
    for path, text in reference.pages().items():
        assert path.read_text() == text, "run python docs/make_reference.py"


def test_the_pages_name_no_tests(reference: ModuleType) -> None:
    for path in reference.pages():
        assert not re.search(r"\btest_\w|`\w+: \w+`", path.read_text())


def test_constants_are_described_by_their_own_words() -> None:
    """And not by the docstring of their type."""
    page = Path(__file__).parents[2] / "docs" / "reference.md"
    if not page.is_file():
        pytest.skip("the documents are not beside the tests")
    text = page.read_text()
    assert "Upper bounds, in seconds" in text
    assert "Built-in" not in text
