"""What mkdocs runs while it builds the site: see `hooks` in mkdocs.yml.

The documents link to files outside of `docs/`, as a reader of the repository needs it. Here these
files become pages of the site, or files next to its pages, and the links lead to them.
"""

from __future__ import annotations

import ast
import functools
import os.path
import posixpath
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import site_drawings
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
# Modules with a page in the API reference, in addition to the package itself.
MODULES = [
    path.stem
    for path in sorted(ROOT.glob("docs/api/*.md"))
    if path.read_text().startswith(f"# `aiostream.{path.stem}`\n")
]
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
# A whole module in the API reference: its docstring only, because its names have their own lines.
_MODULE = re.compile(rf"^::: aiostream\.(?:{'|'.join(MODULES)})$", re.MULTILINE)
_ITSELF = "\n    options: {members: false, show_root_heading: false, show_root_toc_entry: false}"
# A name under a heading of its use, on a page whose headings have names below them.
_NAMED = re.compile(r"^::: [\w.]+$(?!\n    options)", re.MULTILINE)
# A member that a page of the API reference shows by itself, under a heading of its use.
_GROUPED = re.compile(r"^::: (aiostream\.[A-Z]\w+)\.\w+$", re.MULTILINE)
_MEMBER = re.compile(r"(<tr>\s*<td>)(<code>(\w+)</code>)")
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
    """Adds the pages from outside of `docs/`, and the other files that pages link to."""
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
    markdown = _MODULE.sub(r"\g<0>" + _ITSELF, markdown)
    for name in set(_GROUPED.findall(markdown)):
        markdown = markdown.replace(
            f"::: {name}\n", f"::: {name}\n    options: {{members: false}}\n"
        )
    markdown = _GROUPED.sub(r"\g<0>\n    options: {heading_level: 4}", markdown)
    if page.file.src_uri.startswith("api/") and "\n## " in markdown:
        markdown = _NAMED.sub(r"\g<0>\n    options: {heading_level: 3}", markdown)

    def target(match: re.Match[str]) -> str:
        name = in_repository(page.file.src_uri, match[1])
        if name is None:
            return match[0]
        uri = PAGES.get(name) or name.removeprefix(DOCS)
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri)) + (match[2] or "")

    return outside_of_fences(markdown, lambda text: _LINK.sub(target, text))


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Links the library's names to their place in the API reference, if they have one."""
    if page.file.src_uri == "reference.md":
        # Its tables stand under the name of a class, and begin with the names of methods.
        parts = re.split(r"(<h3 [^>]*><code>[\w.]+</code>)", html)
        for index in range(1, len(parts), 2):
            path = "aiostream." + re.sub("<[^>]*>", "", parts[index])
            linked = rf'\1<autoref optional identifier="{path}.\3">\2</autoref>'
            parts[index + 1] = _MEMBER.sub(linked, parts[index + 1])
        html = "".join(parts)

    def link(match: re.Match[str]) -> str:
        _, package, name, member = match.groups()
        known = name in public and (name[0].isupper() or package)
        if not known and not (name in MODULES and member):
            return match[0]
        path = f"aiostream.{name}{member or ''}"
        return f'<autoref optional identifier="{path}">{match[0]}</autoref>'

    public = public_names()
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


@functools.cache
def public_names() -> set[str]:
    """`__all__` of the package, which is not imported: the site needs no compiled part."""
    lines = ast.parse((ROOT / "src/aiostream/__init__.py").read_text()).body
    assigned = {
        ast.unparse(line.targets[0]): line for line in lines if isinstance(line, ast.Assign)
    }
    return set(ast.literal_eval(assigned["__all__"].value))


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
