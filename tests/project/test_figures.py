"""One number for one claim: prose takes its figures from rows of `benchmarks/results`.

`benchmarks/quoted.toml` says which figure each page quotes, and from which row.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from typing import Any

import pytest

from commands import ROOT
from installed import beside

RESULTS = ROOT / "benchmarks" / "results"
# Each figure of these pages with one of these units is a quoted one.
PAGES = ["README.md", "docs/index.md", "docs/how-it-works.md", "docs/comparison.md"]
UNITS = r"[\d,.]+(?= µs| % of (?:a|one) core| ms of CPU)"


@cache
def claims() -> list[dict[str, Any]]:
    quoted = beside("benchmarks/quoted.toml")
    if not list(RESULTS.glob("*.json")):
        pytest.skip("the results are not next to the tests")
    found: list[dict[str, Any]] = tomllib.loads(quoted.read_text())["claim"]
    return found


@cache
def rows_of(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / file).read_text())["rows"]
    return rows


def test_quoted_figures_are_those_of_the_results() -> None:
    for claim in claims():
        (row,) = [row for row in rows_of(claim["file"]) if claim["where"].items() <= row.items()]
        for column, said in claim["values"].items():
            number, _, unit = said.replace(",", "").partition(" ")
            measured = row[column] / (1000 if unit == "ms" and column.endswith("_us") else 1)
            digits = len(number.partition(".")[2])
            assert f"{measured:.{digits}f}" == number, (claim["where"], column)


def test_pages_quote_them_and_no_others() -> None:
    quoted: dict[str, set[str]] = {page: set() for page in PAGES}
    for claim in claims():
        for page, sentences in claim["prose"].items():
            text = (ROOT / page).read_text()
            for sentence in sentences:
                said = sentence.format(**claim["values"])
                assert said in text, f"{page} does not say: {said}"
            quoted.setdefault(page, set()).update(
                value.partition(" ")[0] for value in claim["values"].values()
            )
    for page in PAGES:
        others = set(re.findall(UNITS, (ROOT / page).read_text())) - quoted[page]
        assert not others, f"{page} has figures that benchmarks/quoted.toml does not name: {others}"
