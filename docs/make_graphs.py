"""Draws who imports whom and who includes whom into `docs/design.md`, from the code.

    python docs/make_graphs.py

`tests/test_house.py` fails if a drawing is stale.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "design.md"
PACKAGE = Path(__file__).parents[1] / "src/aiostream"
NATIVE = PACKAGE / "native"
Graph = dict[str, set[str]]
_KEYWORDS = {"graph", "end", "default", "style", "class", "click"}  # of mermaid


def python_imports() -> Graph:
    """By module, the modules that it imports when it runs. A folder is one module."""
    modules = {path.stem: [path] for path in PACKAGE.glob("*.py")}
    for folder in PACKAGE.iterdir():
        if (folder / "__init__.py").exists():
            modules[folder.name] = list(folder.glob("*.py"))
    modules["_native"] = []
    graph: Graph = {}
    for name, paths in modules.items():
        imported = {found for path in paths for found in _imported(ast.parse(path.read_text()))}
        graph[name] = {found if found in modules else "__init__" for found in imported} - {name}
    return graph


def _imported(node: ast.AST) -> Iterator[str]:
    """The modules that code imports. What stands under TYPE_CHECKING does not count."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aiostream":
        parts = (node.module or "").split(".")
        yield from parts[1:2] or [alias.name for alias in node.names]
    elif isinstance(node, ast.Import):
        names = [alias.name.split(".") for alias in node.names]
        yield from ([*parts, "__init__"][1] for parts in names if parts[0] == "aiostream")
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)


def native_includes() -> Graph:
    """By native file, a header and its C file being one, the files whose headers it includes."""
    graph: Graph = {}
    for path in NATIVE.glob("*.[ch]"):
        included = set(re.findall(r'#include "(\w+)\.h"', path.read_text()))
        graph.setdefault(path.stem, set()).update(included - {path.stem})
    return graph


def reduced(graph: Graph) -> Graph:
    """The graph without the arrows that follow from others."""

    def reached(name: str, seen: set[str]) -> set[str]:
        for other in graph.get(name, set()) - seen:
            seen.add(other)
            reached(other, seen)
        return seen

    return {
        name: {
            other
            for other in others
            if not any(other in reached(between, set()) for between in others - {other})
        }
        for name, others in graph.items()
    }


def drawing(graph: Graph) -> str:
    """The graph in mermaid's language. Each arrow goes from a module to one that it uses."""

    def node(name: str) -> str:
        return f'{name}_["{name}"]' if name in _KEYWORDS else name

    arrows = [
        f"    {node(name)} --> {' & '.join(map(node, sorted(others)))}"
        for name, others in sorted(reduced(graph).items())
        if others
    ]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def page() -> str:
    """The page with fresh drawings between their marks."""
    text = PAGE.read_text()
    for mark, graph in (("imports", python_imports()), ("includes", native_includes())):
        begin, end = f"<!-- {mark}: python docs/make_graphs.py -->\n", f"<!-- end of {mark} -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}{drawing(graph)}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
