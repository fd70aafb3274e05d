"""Pictures say what their pages say: the figures, the words of badges, the legends of timelines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import ROOT
from installed import beside, program

FIGURE = re.compile(r"\d[\d,.]*(?: ?%| [mµ]?s\b)")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("driver/*.md")]
TIMELINES = ("trace.png", "trace-dark.png", "blocking.png")


def pictures() -> Iterator[tuple[Path, str]]:
    """The pictures of all pages, each with the text that stands for it."""
    for page in PAGES:
        text = page.read_text()
        found = re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", text)
        found += re.findall(r'<img alt="([^"]*)" src="([^"]+)"', text)
        for alternative, source in found:
            yield (page.parent / source).resolve(), alternative


def words_of(svg: Path) -> str:
    """What a reader sees. In those of matplotlib, letters are lines, and comments have the text."""
    return " ".join(re.findall(r"(?<=>)[^<>]+(?=</text>)|(?<=<!-- ).*?(?= -->)", svg.read_text()))


def figures_not_shown(alternative: str, shown: str) -> set[str]:
    return set(FIGURE.findall(alternative)) - set(FIGURE.findall(shown))


def test_pictures_show_the_figures_of_their_texts() -> None:
    assert figures_not_shown("19 µs and 4 %, then 1.5 ms", "19 µs, 40 %") == {"4 %", "1.5 ms"}
    found = {svg: text for svg, text in pictures() if svg.suffix == ".svg"}
    assert sum(bool(FIGURE.search(text)) for text in found.values()) >= 1
    wrong = {svg.name: figures_not_shown(text, words_of(svg)) for svg, text in found.items()}
    assert not {name: figures for name, figures in wrong.items() if figures}


def test_badges_show_the_words_of_their_texts() -> None:
    found = {svg: text for svg, text in pictures() if svg.parent.name == "badges"}
    assert len(found) >= 4
    for svg, text in found.items():
        shown = re.findall(r"[\w.+-]+", words_of(svg).lower())
        assert {*re.findall(r"[\w.+-]+", text.lower())} - {"and"} <= {*shown}, svg.name
        label = re.findall(r'aria-label="([^"]*)"', svg.read_text())
        assert label == [words_of(svg).replace(" ", ": ", 1)]


@pytest.mark.parametrize("name", TIMELINES)
def test_the_legend_of_a_timeline_is_that_of_the_page(name: str) -> None:
    """`docs/make_trace.py` writes it into the file."""
    picture = beside(f"docs/{name}").read_bytes()
    legend = program("docs/make_trace.py").legend()
    assert legend.count(" | ") >= 5
    assert b"tEXtLegend\0" + legend.encode() in picture, "draw it again by docs/make_trace.py"


def test_each_picture_of_a_timeline_is_compared() -> None:
    shown = {path.name for path, text in pictures() if "timeline" in text and path.suffix == ".png"}
    assert shown <= set(TIMELINES)
