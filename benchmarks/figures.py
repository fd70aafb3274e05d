"""Where each figure of the pages is from: `figures.toml` says it, and this reads it.

    python -m benchmarks.figures  # prints the figures that it lacks, as TOML

A figure is a number with a unit of time, rate, share or size, or any number in a table. Those in
code blocks, link targets, dates and the tables that `pages.py` writes do not count.
`tests/project/test_figures.py` compares the file with the pages.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from benchmarks import pages, results

# The lists of a page in figures.toml. Its other keys are files in results/.
SETTINGS = "settings"  # settings, limits, constants, examples, and what NVIDIA documents
MEASURED = "measured"  # in no file
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_UNITS = (
    r"(?:[A-Za-z]+ )?[A-Za-z]+(?:/s| (?:a|each|per) second)|/s|%|of a core|cores?"
    r"|(?:milli|micro|nano)?seconds?|[nµum]?s|minutes?|hours?|days?|bytes|[kKMGT]i?B"
)
_FIGURE = re.compile(
    rf"(?<![\w.,/-])({_NUMBER}(?:(?:,|,? to|,? and|,? or|-) ?{_NUMBER})*)[\s-]?({_UNITS})(?!\w)"
)
# How the keys of such figures end in JSON.
_KEYS = {"ms": "_ms", "µs": "_us", "%": "percent", "cores": "cores", "of a core": "cores"}
_ALONE = re.compile(rf"(?<![\w.,]){_NUMBER}")
_IN_TABLE = re.compile(rf"(?<![\w.,/-]){_NUMBER}(?![\w.,]*\w)")
_NO_TEXT = re.compile(
    r"^ *```.*?^ *```$|<!--.*?-->|(?<=\]\()[^)]*|</?[a-z][^>]*>|\bhttps?://\S+|\d{4}-\d\d-\d\d",
    re.MULTILINE | re.DOTALL,
)


def page_files(root: Path) -> list[str]:
    """The pages, by their paths in the repository."""
    found = sorted((root / "docs").rglob("*.md"))
    return ["README.md", *(str(path.relative_to(root)) for path in found)]


def figures(text: str) -> list[str]:
    """The figures of a page, each once: `12 to 20 ms` is `12 ms` and `20 ms`."""
    found = []
    for line in _NO_TEXT.sub("", pages.BLOCK.sub("", text)).splitlines():
        for match in _FIGURE.finditer(line):
            found += [f"{number} {match[2]}" for number in re.findall(_NUMBER, match[1])]
        if line.lstrip().startswith("|"):
            found += _IN_TABLE.findall(re.sub(r"`[^`]*`", "", _FIGURE.sub("", line)))
    return list(dict.fromkeys(found))


def sources(root: Path) -> dict[str, dict[str, list[str]]]:
    """What `figures.toml` says: for each page, the figures by where they are from."""
    return tomllib.loads((root / pages.HERE / "figures.toml").read_text())


def claimed(root: Path, page: str) -> set[str]:
    """The numbers that `quoted.toml` writes into a page."""
    found = results.read(pages.quoted_file(root))
    claims = [claim for claim in pages.quoted(root)["claim"] if page in claim["prose"]]
    values = " ".join(" ".join(pages.said(claim, found, root).values()) for claim in claims)
    return set(re.findall(_NUMBER, values))


def missing(root: Path, page: str) -> list[str]:
    """The figures of a page that have no source."""
    known = {each for listed in sources(root).get(page, {}).values() for each in listed}
    numbers = claimed(root, page)
    found = figures((root / page).read_text())
    return [each for each in found if each not in known and each.partition(" ")[0] not in numbers]


@cache
def numbers_of(path: Path) -> list[tuple[str, str]]:
    """The numbers in a file of results, each with its key in JSON."""
    if path.suffix == ".json":
        return re.findall(r'"(\w+)": ?(-?\d[\d.e+-]*)', path.read_text())
    return [("", each.replace(",", "")) for each in _ALONE.findall(path.read_text())]


def is_in(figure: str, path: Path) -> bool:
    """Whether a text has that number, or JSON one with that unit that rounds to it."""
    number, _, unit = figure.replace(",", "").partition(" ")
    if path.suffix != ".json":
        return ("", number) in numbers_of(path)
    digits = len(number.partition(".")[2])
    found = [float(value) for key, value in numbers_of(path) if key.endswith(_KEYS.get(unit, ""))]
    if unit in {"ms", ""}:
        found += [float(value) / 1e3 for key, value in numbers_of(path) if key.endswith("_us")]
    return any(f"{each:.{digits}f}" == number for each in found)


def main() -> None:
    """Prints the figures that `figures.toml` lacks."""
    root = Path(__file__).parents[1]
    for page in page_files(root):
        if lacking := missing(root, page):
            listed = ", ".join(f'"{each}"' for each in lacking)
            print(f'["{page}"]\n{SETTINGS} = [{listed}]\n')


if __name__ == "__main__":
    main()
