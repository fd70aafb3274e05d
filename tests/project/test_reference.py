"""The tables of names: complete, true, and shown by tests."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aiostream
import internals
from installed import program

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return program("docs/make_reference.py")


def rows(reference: ModuleType) -> list[Any]:
    return [*reference.DRIVER, *reference.RUST]


def test_every_stream_function_of_the_bindings_has_a_row(reference: ModuleType) -> None:
    """What newer bindings bring must be taken in, or left out on purpose."""
    left_out = {
        "cuStreamBeginCaptureToCig",  # for CUDA in Graphics
        "cuStreamEndCaptureToCig",
        "cuStreamGetGreenCtx",  # cuStreamGetCtx_v2 gives it too
    }
    known = {row.theirs for row in reference.DRIVER} | left_out
    there = {name for name in dir(internals.bindings()) if name.startswith("cuStream")}
    # These two are in the manual's chapter about streams, or belong to it.
    assert not {*there, "cuThreadExchangeStreamCaptureMode", "cuLaunchHostFunc"} - known


def test_every_name_exists_and_is_documented(reference: ModuleType) -> None:
    for row in rows(reference):
        for name in row.ours:
            assert inspect.getdoc(reference.find(name)), name
        assert reference.summary(row.ours[0]), row.theirs


def used_names() -> set[str]:
    """What the library's tests call, read of something, or quote because it is a parameter."""
    files = [path for path in TESTS.glob("*/test_*.py") if path.parent != Path(__file__).parent]
    found = [re.findall(r'[."]\w+|\w+(?=[.(])', path.read_text()) for path in files]
    return {name.strip('."(') for names in found for name in names}


def test_every_row_has_names_that_tests_use(reference: ModuleType) -> None:
    names = {name for row in rows(reference) for name in row.ours}
    assert {name.rpartition(".")[2] for name in names} <= used_names()


def test_every_public_name_is_on_the_page_of_names(reference: ModuleType) -> None:
    page = reference.REFERENCE.read_text()
    listed = re.findall(
        r"^- `([\w.]+)`(?: \(`CU\w+`\))?: ", page.partition("## Functions")[0], re.MULTILINE
    )
    assert len(listed) == len(set(listed))
    assert "simulator" in reference.submodules()
    wanted = set(aiostream.__all__)
    for module in reference.submodules():
        public = importlib.import_module(f"aiostream.{module}").__all__
        wanted |= {f"{module}.{name}" for name in public if name not in aiostream.__all__}
    members = {name for name in listed if name.rpartition(".")[0] in aiostream.__all__}
    assert set(listed) - members == wanted
    methods = ("synchronize_async", "begin_capture", "wait_value", "torch", "into_raw")
    assert {f"Stream.{name}" for name in methods} <= members, "those of base classes too"


def test_groups_name_each_public_name_once(reference: ModuleType) -> None:
    grouped = [name for names in reference.GROUPS.values() for name in names.split()]
    assert sorted(grouped) == sorted(aiostream.__all__)


def test_the_pages_are_not_stale(reference: ModuleType) -> None:
    for path, text in reference.pages().items():
        assert path.read_text() == text, "run python docs/make_reference.py"
        assert not re.search(r"\btest_\w|`\w+: \w+`", text), "the pages name no tests"


def test_constants_are_described_by_their_own_words(reference: ModuleType) -> None:
    """And not by the docstring of their type."""
    text = reference.REFERENCE.read_text()
    assert "Upper bounds, in seconds" in text
    assert "Built-in" not in text
