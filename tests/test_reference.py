"""The table of names: complete, true, and shown by tests."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import internals

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "docs" / "make_reference.py"

# The functions of the chapter, as the manuals of CUDA 7, 11 and 13 list them; later versions of one
# function are one.
_CHAPTER = """
cuStreamAddCallback cuStreamAttachMemAsync cuStreamBeginCapture cuStreamBeginCaptureToGraph cuStreamCopyAttributes
cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy cuStreamEndCapture cuStreamGetAttribute cuStreamGetCaptureInfo
cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v3 cuStreamGetCtx cuStreamGetCtx_v2 cuStreamGetDevice cuStreamGetFlags
cuStreamGetId cuStreamGetPriority cuStreamIsCapturing cuStreamQuery cuStreamSetAttribute cuStreamSynchronize
cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_v2 cuStreamWaitEvent cuThreadExchangeStreamCaptureMode
cuLaunchHostFunc cuStreamGetDevResource cuStreamBeginRecaptureToGraph cuStreamWaitValue32 cuStreamWaitValue64
cuStreamWriteValue32 cuStreamWriteValue64 cuStreamBatchMemOp
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
    text = (TESTS / f"test_{file}.py").read_text()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.name == f"test_{function}"
        ):
            parts = [*node.decorator_list, node]
            return "\n".join(ast.get_source_segment(text, part) or "" for part in parts)
    raise AssertionError(f"there is no test {test}")


def test_every_row_has_tests_that_use_its_names(reference: ModuleType) -> None:
    missing = []
    for row in rows(reference):
        text = "\n".join(sources_of(test) for test in row.tests)
        for name in row.ours:
            if name.rpartition(".")[2] not in text:
                missing.append(f"{name} in {row.tests}")
    assert not missing


def test_the_page_is_not_stale(reference: ModuleType) -> None:
    assert reference.PAGE.read_text() == reference.page(), "run python docs/make_reference.py"
