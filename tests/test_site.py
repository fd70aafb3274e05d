"""The documentation site: its menu and its API reference name what there is.

These tests need no mkdocs. `mkdocs build --strict` finds the rest, such as links that lead nowhere.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

import aiostream

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MENU = ROOT / "mkdocs.yml"
# Pages that docs/site_hooks.py makes of files outside of docs/.
ELSEWHERE = {
    "benchmarks/index.md": "benchmarks/README.md",
    "benchmarks/results.md": "benchmarks/results/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples/index.md": "examples",
}


@pytest.fixture(scope="module", autouse=True)
def _only_beside_the_documents() -> None:
    if not MENU.exists():
        pytest.skip("the documents are not beside the tests")


def menu() -> list[str]:
    """The pages that the menu names, in its order."""
    nav = MENU.read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    lines = [line for line in nav.splitlines() if not line.lstrip().startswith("#")]
    return re.findall(r"([\w/-]+\.md)$", "\n".join(lines), re.MULTILINE)


def test_the_menu_names_each_page_once() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    pages |= {f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    assert Counter(menu()) == Counter(pages | ELSEWHERE.keys())


def test_files_outside_of_the_documents_are_there() -> None:
    hooks = (DOCS / "site_hooks.py").read_text()
    for page, source in ELSEWHERE.items():
        assert (ROOT / source).exists()
        assert f'"{source}": "{page}"' in hooks


def test_the_api_reference_has_every_public_name_once() -> None:
    shown = re.findall(
        r"^::: aiostream\.([\w.]+)$",
        "\n".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md"))),
        re.MULTILINE,
    )
    public = [*aiostream.__all__]
    for module in modules_with_names_of_their_own():
        names = importlib.import_module(f"aiostream.{module}").__all__
        public += [module]
        public += [f"{module}.{name}" for name in names if name not in aiostream.__all__]
    assert Counter(shown) == Counter(public)


def modules_with_names_of_their_own() -> list[str]:
    """Public modules whose names the package does not have, such as `simulator`."""
    found = []
    for module in pkgutil.iter_modules(aiostream.__path__):
        if not module.name.startswith("_") and module.name != "bench":
            names = getattr(importlib.import_module(f"aiostream.{module.name}"), "__all__", [])
            if set(names) - set(aiostream.__all__):
                found.append(module.name)
    return found


def test_the_site_names_no_other_host() -> None:
    """No address is invented, and no font or script comes from elsewhere."""
    for path in (MENU, *DOCS.glob("site*")):
        assert "://" not in path.read_text(), path.name
    assert re.search(r"^  font: false\b", MENU.read_text(), re.MULTILINE)
