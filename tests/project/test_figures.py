"""One number for one claim: pages and pictures take their figures from a file of `release`.

`benchmarks/quoted.toml` names the file, and says which figure each page quotes, from which row.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import names, pages, pictures, release, torch_ways
from commands import ROOT
from installed import beside

# Each figure of these pages with one of these units is a quoted one.
PAGES = ["README.md", "docs/index.md", "docs/how-it-works.md", "docs/comparison.md"]
UNITS = r"[\d,.]+(?= µs| % of (?:a|one) core| ms of CPU)"


@cache
def quoted() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The claims, and the file."""
    beside("benchmarks/quoted.toml")
    path = pages.quoted_file(ROOT)
    if not path.is_file():
        pytest.skip("the results are not next to the tests")
    return pages.quoted(ROOT)["claim"], json.loads(path.read_text())


def test_pages_quote_the_results_and_no_other_figures() -> None:
    claims, found = quoted()
    known: dict[str, set[str]] = {page: set() for page in PAGES}
    for claim in claims:
        values = pages.said(claim, found, ROOT)
        for page, sentences in claim["prose"].items():
            text = (ROOT / page).read_text()
            for sentence in sentences:
                said = sentence.format(**values)
                assert said in text, f"{page} does not say: {said}"
            known.setdefault(page, set()).update(
                value.partition(" ")[0] for value in values.values()
            )
    for page in PAGES:
        text = pages.BLOCK.sub("", (ROOT / page).read_text())
        others = set(re.findall(UNITS, text)) - known[page]
        assert not others, f"{page} has figures that benchmarks/quoted.toml does not name: {others}"


def test_tables_and_pictures_are_those_of_the_file() -> None:
    _, found = quoted()
    written = set()
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in pages.BLOCK.finditer(page.read_text()):
            written.add(block[2])
            text = pages.blocks(found, ROOT)[block[2]]()
            assert block[0] == f"{block[1]}{text}\n{block[3]}", f"{page.name}: {block[2]}"
    assert written == {*pages.LAYOUTS, pages.WORSE, pages.WHERE, pages.BARS}
    for way in pages.better(found):
        assert way[1] in pages.reasons(ROOT)[way[0]], f"reasons.toml says nothing of {way}"
    for picture in (ROOT / "benchmarks" / "results").glob(f"{pages.PICTURE}-*.svg"):
        assert pictures.source(found) in picture.read_text(), picture.name


# --------------------------------------------------------------------------- a file that is made up


def rows_of(part: str, layout: pages.Layout) -> list[dict[str, Any]]:
    """Three ways in two settings, with figures that are far apart."""
    keys = [column.key for column in layout.columns]
    key = "pattern" if part in ("waits", "peers") else "load"
    if part == "waits":
        settings = ["steady 1 ms", "steady 5 ms", "log-uniform 50 us to 50 ms"]
        ways = ["pool run", "aiostream auto", "polling", "sleep 1 ms", "to_thread bindings"]
    else:
        settings = ["closed 128 x 5 ms", "another"]
        ways = [layout.ours or "pool run", "polling", "to_thread 40", "new"]
    return [
        release.row(part, way, {"loop": "uvloop", key: setting},
                    [dict.fromkeys(keys, 10.0 * (1 + at) + more) for more in (0.0, 1.0, 2.0)])
        for at, way in enumerate(ways)
        for setting in settings
    ]  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The pages, and a file of `release` that is made up."""
    quoted()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        to = tmp_path / page.relative_to(ROOT)
        to.parent.mkdir(exist_ok=True)
        shutil.copy(page, to)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for file in {claim["file"] for claim in pages.quoted(ROOT)["claim"] if "file" in claim}:
        shutil.copy(ROOT / "benchmarks" / "results" / file, tmp_path / "benchmarks" / "results")
    for name in ("quoted.toml", "reasons.toml"):
        shutil.copy(ROOT / "benchmarks" / name, tmp_path / "benchmarks" / name)
    known = dict.fromkeys(("driver", "cuda", "cores", "python"), "7")
    found = {"format": 1, "simulator": False, "date": "2026-11-28T00:00:00", "goals": []}
    found |= {"environment": {"gpu": "NVIDIA H7", "numba": "0.7", **known}, "commit": "0123456789"}
    entry = {"set": "peers", "setting": "peers", "peer": "numba", "reason": "it fails", "loop": ""}
    found |= {"done": {}, "not_run": [entry], "older": "v1"}
    found["rows"] = [row for part in pages.LAYOUTS for row in rows_of(part, pages.LAYOUTS[part])]
    (tmp_path / "h7.json").write_text(json.dumps(found))
    return tmp_path


def test_write_puts_all_rows_into_the_pages_and_their_sentences(site: Path) -> None:
    pages.write(site / "h7.json", site)
    text = (site / "docs" / "performance.md").read_text()
    assert "| `pool.run` | 11 (10 to 12) | 11 (10 to 12) | 11 (10 to 12) | 12 |" in text
    assert "resumes 21 µs after a kernel of 5 ms" in text
    assert "resumes 21 µs after kernels of 5 ms" in (site / "README.md").read_text()
    assert "One NVIDIA H7, driver 7" in text
    assert "commit 01234567" in text
    assert text.index("## Where others are better") < text.index("| **steady 5 ms** |")
    peers = (site / "docs" / "comparison.md").read_text()
    assert "Not measured: numba's `async_done`: it fails (with numba 0.7)." in peers
    for part, layout in pages.LAYOUTS.items():
        page = (site / layout.page).read_text()
        for row in rows_of(part, layout):
            assert part == "older" or f"| {pages.name(row['peer'])} |" in page
    before = {page: page.read_text() for page in (site / "docs").glob("*.md")}
    pages.write(site / "h7.json", site)  # changes nothing
    assert before == {page: page.read_text() for page in (site / "docs").glob("*.md")}


def test_a_picture_names_its_figures(site: Path) -> None:
    pytest.importorskip("matplotlib")
    assert release.main(["--write", "--json", str(site / "h7.json"), "--root", str(site)]) == 0
    for name in ("cost", "cost-dark", "server", "server-dark"):
        picture = (site / "benchmarks" / "results" / f"release-{name}.svg").read_text()
        assert pictures.source(json.loads((site / "h7.json").read_text())) in picture


def test_better_is_only_what_is_better_in_every_round() -> None:
    column = pages.Column("p50_us", "p50, µs")

    def row(*values: float) -> dict[str, Any]:
        return {"windows": [{"p50_us": value} for value in values]}

    assert pages.apart(column, row(10, 12), row(5, 8)) == pytest.approx(6.5 / 11)
    assert pages.apart(column, row(10, 12), row(5, 10)) is None
    assert pages.apart(column, row(10, 12), row(15, 18)) is None
    more = pages.Column("p50_us", "requests/s", best=1)
    assert pages.apart(more, row(10, 12), row(15, 18)) == pytest.approx(1.5)


def test_every_way_of_the_release_has_a_name() -> None:
    ways = {*release.WAITS, *release.PEERS, *release.STREAMS, *release.SERVER}
    ways |= {*release.LAUNCHES, *release.ENGINES, *torch_ways.WAYS}
    assert ways <= names.NAMES.keys()
    assert names.NAMES.keys() >= names.OURS
