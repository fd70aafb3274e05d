"""PyPI's other aiostream: its package has the same import name, and pip does not warn."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import aiostream
import internals
from commands import python
from support import succeed


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    metadata = tmp_path / "aiostream-0.8.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: aiostream\nVersion: 0.8.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return metadata


def test_our_own_metadata_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aiostream_cuda-0.1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    assert internals.other_distribution() is None


def test_the_import_is_refused_and_names_both_and_the_way_out(other: Path) -> None:
    source = str(Path(aiostream.__file__).parents[1])
    script = f"import sys; sys.path[:0] = [{str(other.parent)!r}, {source!r}]; import aiostream"
    done = python("none", "-c", script)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    for words in ("aiostream-cuda", str(other), "pip uninstall aiostream aiostream-cuda"):
        assert words in done.stderr


def test_with_the_other_one_on_top_each_module_says_so(other: Path, tmp_path: Path) -> None:
    """Installed last, their `__init__` replaces ours, and our modules stay where they were."""
    package = tmp_path / "aiostream"
    shutil.copytree(Path(aiostream.__file__).parent, package)
    (package / "__init__.py").write_text("__version__ = '0.8.1'\n")
    script = """
        import importlib
        for module in ("simulator", "testing", "trace", "metrics"):
            try:
                importlib.import_module(f"aiostream.{module}")
            except ImportError as error:
                print(error)
    """
    said = succeed("none", script, PYTHONPATH=str(tmp_path)).splitlines()
    assert len(said) == 4
    for each in said:
        assert each.startswith("Two distributions")
        assert str(other) in each
