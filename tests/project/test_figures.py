"""One number for one claim: pages and pictures take their figures from a file of `release`.

`benchmarks/quoted.toml` names the file, and says which figure each page quotes, from which row.
`benchmarks/figures.toml` says for every other figure of every page where it is from.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures, names, pages, pictures, release, torch_ways
from commands import ROOT
from installed import beside

# Each figure of these pages with one of these units is a quoted one.
PAGES = ["README.md", "docs/index.md", "docs/how-it-works.md", "docs/comparison.md"]
# How many figures of figures.toml were measured and are in no file: it may only fall.
WITHOUT_FILE = 33
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


# ------------------------------------------------------------------------------ every other figure


def test_every_page_is_read() -> None:
    beside("benchmarks/figures.toml")
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("**/*.md")}
    assert set(figures.page_files(ROOT)) == there | {"README.md"}
    assert figures.sources(ROOT).keys() <= set(figures.page_files(ROOT))


def test_every_figure_has_a_source() -> None:
    quoted()
    missing = {page: figures.missing(ROOT, page) for page in figures.page_files(ROOT)}
    found = {page: each for page, each in missing.items() if each}
    assert not found, "see benchmarks/figures.toml, and python -m benchmarks.figures"


def test_sources_have_the_figures_and_so_do_the_pages() -> None:
    quoted()
    without_file = 0
    for page, sources in figures.sources(ROOT).items():
        listed = [each for one in sources.values() for each in one]
        gone = set(listed) - set(figures.figures((ROOT / page).read_text()))
        assert not gone, f"{page} has no such figures, but benchmarks/figures.toml has"
        assert len(listed) == len(set(listed)), page
        for name in sources.keys() - {figures.SETTINGS, figures.MEASURED}:
            path = ROOT / "benchmarks" / "results" / name
            wrong = [each for each in sources[name] if not figures.is_in(each, path)]
            assert not wrong, f"{page}: they are not in {name}"
        without_file += len(sources.get(figures.MEASURED, []))
    assert without_file <= WITHOUT_FILE, "put what a new figure was measured by into results/"


def test_what_a_figure_is() -> None:
    text = """
        1 to 2.5 ms, 3, 4 and 5 µs, 6-8 %, 1,024 requests/s and 9 requests a second; 0.6 of a core.
        ```
        10 ms
        ```
        [11 ms](page.md#12-ms) <!-- 13 ms --> CUDA 14.0, 15 things, `16 MiB`.
        | 17 ms | 18 (19 to 20) | `21` | p99 | 22.5x |
        """
    found = figures.figures(textwrap.dedent(text))
    assert found[:8] == ["1 ms", "2.5 ms", "3 µs", "4 µs", "5 µs", "6 %", "8 %", "1,024 requests/s"]
    assert found[8:] == [
        "9 requests a second",
        "0.6 of a core",
        "11 ms",
        "16 MiB",
        "17 ms",
        "18",
        "19",
        "20",
    ]


def test_a_file_has_a_figure_as_it_is_rounded(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("p99 1,234 of 5.50")
    (tmp_path / "two.json").write_text('{"rows": [{"p50_us": 1234.56, "more": true}]}')
    assert [figures.is_in(each, tmp_path / "one.txt") for each in ("1234 ms", "5.5 s", "234")] == [
        *(True, False, False)
    ]
    wanted = {"1,235 µs": True, "1.23 ms": True, "1.2": True, "1 µs": False, "1,235 ms": False}
    assert {each: figures.is_in(each, tmp_path / "two.json") for each in wanted} == wanted


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


def quoted_rows() -> list[dict[str, Any]]:
    """The rows of claims with figures of several rows."""
    rows: dict[Any, dict[str, Any]] = {}
    for claim in pages.quoted(ROOT)["claim"]:
        for each in claim.get("of", {}).values():
            for one in (each, each | each.get("over", {})):
                known = rows.setdefault((one["peer"], one["load"]), {"set": ""})
                known |= {"peer": one["peer"], "load": one["load"], each["key"]: 6.0}
    return list(rows.values())


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
    found |= {"done": {}, "not_run": [entry]}
    made_up = [row for part in pages.LAYOUTS for row in rows_of(part, pages.LAYOUTS[part])]
    found["rows"] = [*made_up, *quoted_rows()]
    (tmp_path / "h7.json").write_text(json.dumps(found))
    return tmp_path


def test_write_puts_all_rows_into_the_pages_and_their_sentences(site: Path) -> None:
    pages.write(site / "h7.json", site)
    text = (site / "docs" / "performance.md").read_text()
    assert "| `pool.run` | 11 (10 to 12) | 11 (10 to 12) | 11 (10 to 12) | 12 |" in text
    assert "answered one client 1.0 times as often as mosec" in (site / "README.md").read_text()
    assert "resumes 21 µs after a kernel of 5 ms" in text
    assert "aiostream 21 µs and 21.0 % of a core" in (site / "README.md").read_text()
    assert "One NVIDIA H7, driver 7" in text
    assert "commit 01234567" in text
    assert text.index("## Where others are better") < text.index("| **steady 5 ms** |")
    peers = (site / "docs" / "comparison.md").read_text()
    assert "Not measured: numba's `async_done`: it fails (with numba 0.7)." in peers
    for part, layout in pages.LAYOUTS.items():
        page = (site / layout.page).read_text()
        for row in rows_of(part, layout):
            assert f"| {pages.name(row['peer'])} |" in page
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
    ways |= {*release.LAUNCHES, *release.ENGINES, *release.STEPS, *torch_ways.WAYS}
    assert ways <= names.NAMES.keys()
    assert names.NAMES.keys() >= names.OURS
