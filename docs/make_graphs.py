"""Draws which native file includes which into `docs/design.md`, from the code.

    python docs/make_graphs.py

`tests/project/test_house.py` fails if the drawing is stale.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent / "design.md"
NATIVE = Path(__file__).parents[1] / "src/aiostream/native"
Graph = dict[str, set[str]]
_KEYWORDS = {"graph", "end", "default", "style", "class", "click"}  # of mermaid


def native_includes() -> Graph:
    """By native file, a header and its C file being one, the files whose headers it includes.

    A file of the floor `python/` has the floor in its name.
    """

    def name_of(path: Path) -> str:
        relative = path.resolve().relative_to(NATIVE.resolve())
        return str(relative.with_suffix("")).removeprefix("engine/")

    graph: Graph = {}
    for path in NATIVE.glob("*/*.[ch]"):
        found = re.findall(r'#include "([\w./]+\.h)"', path.read_text())
        included = {name_of(path.parent / each) for each in found}
        graph.setdefault(name_of(path), set()).update(included - {name_of(path)})
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
        is_plain = name.isidentifier() and name not in _KEYWORDS
        return name if is_plain else f'{name.replace("/", "_")}_["{name}"]'

    arrows = [
        f"    {node(name)} --> {' & '.join(map(node, sorted(others)))}"
        for name, others in sorted(reduced(graph).items())
        if others
    ]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def page() -> str:
    """The page with a fresh drawing between its marks."""
    begin, end = "<!-- includes: python docs/make_graphs.py -->\n", "<!-- end of includes -->"
    head, rest = PAGE.read_text().split(begin)
    return f"{head}{begin}{drawing(native_includes())}\n{end}{rest.split(end)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
