"""The documentation site: its menu and its API reference name what there is.

The last tests build it, if the group `docs` is installed. The others need no mkdocs.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiostream
from commands import ROOT, python
from installed import beside, program

DOCS = ROOT / "docs"
MENU = ROOT / "mkdocs.yml"
# Pages that docs/site_hooks.py makes of files outside of docs/.
ELSEWHERE = {
    "benchmarks/index.md": "benchmarks/README.md",
    "benchmarks/results.md": "benchmarks/results/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples/index.md": "examples",
    "nogpu/functions.md": "driver/FUNCTIONS.md",
    "nogpu/index.md": "driver/README.md",
}


@pytest.fixture(scope="module", autouse=True)
def _only_beside_the_documents() -> None:
    beside("mkdocs.yml")


def menu() -> list[str]:
    """The pages that the menu names, in its order."""
    nav = MENU.read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    lines = [line for line in nav.splitlines() if not line.lstrip().startswith("#")]
    return re.findall(r"([\w/-]+\.md)$", "\n".join(lines), re.MULTILINE)


def test_the_menu_names_each_page_once() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    pages |= {f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    pages |= program("docs/make_reference.py").api_pages().keys()
    assert Counter(menu()) == Counter(pages | ELSEWHERE.keys())


def test_files_outside_of_the_documents_are_there() -> None:
    hooks = (DOCS / "site_hooks.py").read_text()
    for page, source in ELSEWHERE.items():
        assert (ROOT / source).exists()
        assert f'"{source}": "{page}"' in hooks


def test_the_site_names_no_other_host() -> None:
    """No address is invented, and no font or script comes from elsewhere."""
    for path in (MENU, *DOCS.glob("site*")):
        assert "://" not in path.read_text(), path.name
    assert re.search(r"^  font: false\b", MENU.read_text(), re.MULTILINE)


# ----------------------------------------------------------------------------------- the built site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built without a warning."""
    for name in ("mkdocs", "material", "mkdocstrings", "grandalf"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: the group docs brings it")
    site = tmp_path_factory.mktemp("site")
    command = ("-m", "mkdocs", "build", "--strict", "--site-dir", str(site))
    done = python("none", *command, folder=ROOT, NO_MKDOCS_2_WARNING="1")
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def test_each_name_and_member_has_its_place(built: Path) -> None:
    pages = "".join(path.read_text() for path in (built / "api").rglob("*.html"))
    there = set(re.findall(r' id="aiostream\.([\w.]+)"', pages))
    wanted = {*aiostream.__all__}
    for name in aiostream.__all__:
        wanted |= {f"{name}.{member}" for member in members(getattr(aiostream, name))}
    wanted |= {
        name for names in program("docs/make_reference.py").groups().values() for name in names
    }
    assert not wanted - there


def test_the_page_of_names_leads_to_the_api_reference(built: Path) -> None:
    page = (built / "reference/index.html").read_text()
    for link in (
        "api/streams/#aiostream.Stream.run",
        "api/waiting/#aiostream.wait",
        "api/trace/#aiostream.trace.record",
    ):
        assert f'href="../{link}"' in page


def members(public: object) -> Iterator[str]:
    """The public methods, properties and enumeration members that the library itself defines."""
    for base in public.__mro__ if isinstance(public, type) else ():
        if base.__module__.startswith("aiostream"):
            yield from (name for name in vars(base) if not name.startswith("_"))


def test_docstrings_are_read_as_they_are_meant(built: Path) -> None:
    pages = {path: path.read_text() for path in (built / "api").rglob("*.html")}
    assert any('<span class="gp">&gt;&gt;&gt; </span>' in page for page in pages.values())
    wrong = re.compile(r"<blockquote>|<p>::</p>|<details")  # a quote, an RST block, a note
    assert not [path for path, page in pages.items() if wrong.search(page)]


def test_drawings_are_pictures(built: Path) -> None:
    drawn = sum(path.read_text().count("```mermaid") for path in DOCS.rglob("*.md"))
    pages = [path.read_text() for path in built.rglob("*.html")]
    assert sum(page.count('<div class="drawing"><svg ') for page in pages) == drawn
    assert not [page for page in pages if 'class="mermaid"' in page]


def test_search_finds_what_servers_are_asked_for(built: Path) -> None:
    index = json.loads((built / "search/search_index.json").read_text())["docs"]
    for word in ("fastapi", "batching", "backpressure", "websocket"):
        found = {
            place["location"].partition("/")[0]: place.get("boost", 1)
            for place in index
            if word in (place["title"] + place["text"]).lower()
        }
        # The site's search weighs titles and these factors: long programs come last.
        assert 1 in (found.get("servers"), found.get("batches"), found.get("streamed-answers"))
        assert all(found[page] < 1 for page in found.keys() & {"examples", "benchmarks"})


def test_pages_load_nothing_from_another_host(built: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe|source|object|embed)\b[^>]*://[^>]*>")
    for path in built.rglob("*.html"):
        assert not loaded.findall(path.read_text()), path
    for path in built.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", path.read_text()), path
