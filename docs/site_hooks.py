"""What mkdocs runs while it builds the site: see `hooks` in mkdocs.yml.

The documents link to files outside of `docs/`, as a reader of the repository needs it. Here these
files become pages of the site, or files next to its pages, and the links lead to them.
"""

from __future__ import annotations

import ast
import os.path
import posixpath
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_reference
import site_drawings
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import aiostream

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
MODULES = make_reference.submodules()  # public names here have their module in front
# Pages from outside of `docs/`: the file in the repository, and the page of the site.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "driver/README.md": "nogpu/index.md",
    "driver/FUNCTIONS.md": "nogpu/functions.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks/results/README.md": "benchmarks/results.md",
    "examples": "examples/index.md",
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in ROOT.glob("examples/*.py")},
}
# Columns that a page does without: there is nothing to list, or its tables need the room.
WITHOUT = {
    "index.md": ["navigation", "toc"],
    **{page: ["toc"] for page in ("how-it-works.md", *PAGES.values())},
    "contributing.md": [],
    "benchmarks/index.md": [],
}
# Long programs and lists with every word: search shows them after the pages that explain.
AFTER_OTHERS = (
    "examples/",
    "benchmarks/",
    "changelog.md",
    "reference.md",
    "design.md",
    "roads-not-taken.md",
    "driver.md",
)
# A fenced block, and a link's target.
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
# A name of the library between code tags, such as `Stream.query` or `aiostream.drain()`.
_NAME = re.compile(
    r"<(a|h\d)\b.*?</\1>|<code>(aiostream\.)?(\w+)(\.\w+)?(?:\(\))?</code>", re.DOTALL
)
# A picture, and the link round it if there is one.
_IMAGE = re.compile(r'(?:<a [^>]*href="([^"]+)">)?(<img [^>]*src="([^"]+)"[^>]*>)(?:</a>)?')
_CODE = re.compile(r"<code>[^<]*</code>")
_BREAK = re.compile(r"(?<=[_.(])(?=\w)|(?<=[a-z])(?=[A-Z])")
_CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links the repository, and has drawings drawn while the site is built, by no page's script."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url, config.repo_name = project["urls"]["Repository"], "Repository"
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [
        {"name": "mermaid", "class": "drawing", "format": site_drawings.fence}
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the API reference, pages from outside of `docs/`, and other files that pages link to."""
    for uri, text in make_reference.api_pages().items():
        files.append(File.generated(config, uri, content=text))
    for name, uri in PAGES.items():
        files.append(File.generated(config, uri, content=page_of(name)))
    for page in files.documentation_pages():
        for target in _LINK.finditer(_FENCE.sub("", page.content_string)):
            other = in_repository(page.src_uri, target[1])
            if other is None or other.startswith((DOCS, "..")) or other in PAGES:
                continue
            for name in (other, dark(other)):
                path = ROOT / name
                if path.is_file() and files.get_file_from_path(name) is None:
                    files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Has links lead to pages of the site."""
    page.meta["hide"] = WITHOUT.get(page.file.src_uri, [])
    if page.file.src_uri.startswith(AFTER_OTHERS):
        page.meta["search"] = {"boost": 0.2}

    def target(match: re.Match[str]) -> str:
        name = in_repository(page.file.src_uri, match[1])
        if name is None:
            return match[0]
        uri = PAGES.get(name) or name.removeprefix(DOCS)
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri)) + (match[2] or "")

    return outside_of_fences(markdown, lambda text: _LINK.sub(target, text))


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Links the library's names to their place in the API reference, if they have one."""
    names = page.file.src_uri == "reference.md"

    def link(match: re.Match[str]) -> str:
        _, package, name, member = match.groups()
        # On the page of names, a line begins with a name, also with that of a function.
        begins = names and match.string.endswith("<li>", 0, match.start())
        known = name in aiostream.__all__ and (name[0].isupper() or package or begins)
        if not known and not (name in MODULES and member):
            return match[0]
        path = f"aiostream.{name}{member or ''}"
        return f'<autoref optional identifier="{path}">{match[0]}</autoref>'

    html = _IMAGE.sub(picture, html)
    return _CELL.sub(cell, _NAME.sub(link, html))


def dark(name: str) -> str:
    """The file with the same picture for dark pages, if it has one."""
    return re.sub(r"\.(svg|png)$", r"-dark.\1", name)


def picture(match: re.Match[str]) -> str:
    """A picture: on a dark page its dark variant, and a tap opens it if it leads nowhere else."""
    link, image, source = match.groups()
    variants = [(source, "")]
    if any((ROOT / at / dark(Path(source).name)).is_file() for at in (DOCS, "benchmarks/results")):
        variants = [(source, " only-light"), (dark(source), " only-dark")]
    return "".join(
        f'<a class="picture{look}" href="{link or name}">{image.replace(source, name)}</a>'
        for name, look in variants
    )


def cell(match: re.Match[str]) -> str:
    """A table's cell: figures keep their unit, lines stay whole, and sentences get some width."""
    text = _CODE.sub(lambda code: _BREAK.sub("<wbr>", code[0]), match[1])
    if re.fullmatch(r"[\d.,/% ]+", text):
        return f"<td>{text.replace(' %', '&nbsp;%').replace(' /', '&nbsp;/')}</td>"
    plain = re.sub(r"<[^>]*>", "", text)
    if "<br" in text:
        return f'<td class="lines">{text}</td>'
    if len(plain) <= 24 or " " not in plain:
        return f"<td>{text}</td>"
    return f'<td class="{"prose" if len(plain) > 60 else "words"}">{text}</td>'


def page_of(name: str) -> str:
    """The text of a page from outside of `docs/`."""
    if name == "examples":
        lines = ["# Examples\n\nEach is a program of its own.\n"]
        lines += [
            f"- [`{path.name}`]({path.name}): {summary(path)}"
            for path in sorted(ROOT.glob("examples/*.py"))
        ]
        return "\n".join(lines) + "\n"
    text = (ROOT / name).read_text()
    return f"# {name}\n\n```python\n{text}```\n" if name.endswith(".py") else text


def summary(path: Path) -> str:
    """The first paragraph of a program's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def in_repository(uri: str, target: str) -> str | None:
    """The file of the repository to which a page of the site links; `None` if to elsewhere."""
    if ":" in target or target.startswith("/"):
        return None
    sources = {page: name for name, page in PAGES.items()}
    source = sources.get(uri, DOCS + uri)
    if source == "examples":
        source = "examples/"
    return os.path.normpath(posixpath.join(posixpath.dirname(source), target))


def outside_of_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The text with a change to all that stands outside of its fenced blocks."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])
