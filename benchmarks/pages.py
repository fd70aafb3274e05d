"""Writes what a file of `release` holds into the pages, and draws its pictures.

A table stands between `<!-- figures: NAME -->` and `<!-- /figures -->`. `quoted.toml` names the
file, and the sentences that quote a figure. `reasons.toml` says why another way is better, where
one is. `tests/project/test_figures.py` compares all of it with the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pictures, results, stats
from benchmarks.measure import Row
from benchmarks.names import NAMES, OURS

HERE = Path("benchmarks")
BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
PICTURE = "release"


@dataclass(frozen=True)
class Column:
    """A figure in a table.

    Attributes:
        key: That of the rows.
        heading: What stands above it, with its unit.
        by: What it is multiplied with.
        best: 1 if more is better, -1 if less is, 0 if it is not compared.
    """

    key: str
    heading: str
    by: float = 1.0
    best: int = -1


@dataclass(frozen=True)
class Layout:
    """How the rows of a part are written.

    Attributes:
        page: Where the table stands.
        columns: Its figures.
        ours: The way that the others are compared with, where they may be better.
        without: The ways and settings that the page leaves to the file.
    """

    page: str
    columns: tuple[Column, ...]
    ours: str | None = None
    without: frozenset[str] = frozenset()


_LATE = (
    *(Column("p50_us", "p50, µs"), Column("p90_us", "p90, µs"), Column("p99_us", "p99, µs")),
    *(Column("max_us", "latest, µs", best=0), Column("cpu_percent", "CPU, %")),
)
_RATE = Column("per_second", "requests/s", best=1)
_CPU = Column("cpu_us", "CPU of a request, µs")
_REQUESTS = (
    *(_RATE, Column("p50_us", "p50, ms", 1e-3, 0), Column("p99_us", "p99, ms", 1e-3)),
    *(Column("ping_p99_us", "`/ping` p99, ms", 1e-3), _CPU),
)
_MS = (_RATE, Column("p50_ms", "p50, ms", best=0), Column("p99_ms", "p99, ms"))
_RARE = frozenset({"run", "enqueue_async", "steady 1 ms again"})
PERFORMANCE = "docs/performance.md"
LAYOUTS = {
    "waits": Layout(PERFORMANCE, _LATE, "pool run", _RARE),
    "peers": Layout("docs/comparison.md", _LATE, "pool run"),
    "streams": Layout(
        PERFORMANCE,
        (
            *(Column("p99_us", "p99, ms", 1e-3), Column("max_us", "latest, ms", 1e-3, 0)),
            *(Column("per_second", "completions/s", best=1), Column("cores", "cores")),
        ),
        "pool run",
    ),
    "server": Layout(
        PERFORMANCE,
        _REQUESTS,
        "pool run",
    ),
    "torch": Layout("docs/torch.md", _REQUESTS, "pool run"),
    "launches": Layout(
        "docs/which-wait.md",
        (*_MS, Column("late_p99_ms", "`/ping` p99, ms"), Column("process_us", "CPU, µs")),
        "run_in_thread",
    ),
    "engines": Layout("docs/batches.md", (*_MS, _CPU), "granian RSGI"),
    "steps": Layout(
        "docs/streamed-answers.md",
        (
            Column("tokens_per_second", "tokens/s", best=1),
            *(Column("first_p50_ms", "first token, ms"), Column("gap_p99_ms", "gap, p99, ms")),
            Column("cpu_percent", "CPU, %"),
        ),
        "Steps",
        frozenset({"64 readers"}),
    ),
    "costs": Layout(PERFORMANCE, (Column("cpu_us", "CPU, µs"),)),
}
WORSE, WHERE, BARS = "worse", "where", "server-picture"  # blocks of other kinds
HEADS = {
    WORSE: "## Where others are better\n\n"
    "Every round of these was better than any of aiostream's.\n",
    "peers": "Next to `pool.run`, on one stream:\n",
    "costs": "## What a call costs\n\nThe loop's thread, while there is nothing to wait for.\n",
}
TITLES = {
    "waits": "one stream",
    "peers": "other libraries",
    "streams": "many streams",
    "server": "a server",
    "torch": "a torch model",
    "launches": "long launches",
    "engines": "batches",
    "steps": "streamed answers",
}

# ------------------------------------------------------------------------------------ figures


def setting(row: Row) -> str:
    """What a row was measured at."""
    return str(row.get("pattern") or row["load"]).replace(" us", " µs")


def spread(row: Row, column: Column) -> tuple[float, float, float] | None:
    """The median of the rounds, and their range."""
    values = [each[column.key] for each in row["windows"] if each.get(column.key) is not None]
    if not values:
        return None
    found = (stats.median(values), min(values), max(values))
    return tuple(column.by * value for value in found)  # type: ignore[return-value]


def number(value: float) -> str:
    """A figure with two digits, or all of those before the point."""
    digits = 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 2
    return f"{value:,.{digits}f}"


def cell(row: Row, column: Column) -> str:
    """`39 (37 to 44)`."""
    found = spread(row, column)
    if found is None:
        return "-"
    middle, low, high = map(number, found)
    if column.key.startswith("max"):
        return high
    return middle if low == high else f"{middle} ({low} to {high})"


def apart(column: Column, ours: Row, other: Row) -> float | None:
    """The other figure divided by ours, if it is better and their ranges do not overlap."""
    one, two = spread(ours, column), spread(other, column)
    if not column.best or one is None or two is None or not one[0]:
        return None
    better = two[1] > one[2] if column.best > 0 else two[2] < one[1]
    return two[0] / one[0] if better else None


# -------------------------------------------------------------------------------------- tables


def name(peer: str) -> str:
    """How a page calls a way."""
    return NAMES.get(peer, peer)


def rows_of(found: Row, part: str) -> list[Row]:
    """The rows of a part, in the order in which the ways are recommended."""
    order = list(NAMES)
    rows = [row for row in found["rows"] if row["set"] == part]
    return sorted(rows, key=lambda row: order.index(row["peer"]) if row["peer"] in order else 99)


def line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def table(found: Row, part: str) -> str:
    """All rows of a part, a group for each setting."""
    layout, rows = LAYOUTS[part], rows_of(found, part)
    known = list(dict.fromkeys(setting(row) for row in found["rows"] if row["set"] == part))
    settings = [each for each in known if each not in layout.without]
    if not rows:
        return ""
    lines = [HEADS[part]] if part in HEADS else []
    lines += [line(["", *(column.heading for column in layout.columns)])]
    lines.append(line(["---"] * (1 + len(layout.columns))))
    for each in settings:
        if len(settings) > 1:
            lines.append(line([f"**{each}**", *[""] * len(layout.columns)]))
        for row in rows:
            if setting(row) == each and row["peer"] not in layout.without:
                lines.append(line([name(row["peer"]), *(cell(row, c) for c in layout.columns)]))
    missed = {_missed(found, each) for each in found["not_run"] if each["set"] == part}
    machine = [] if layout.page == PERFORMANCE else [where(found, part)]
    more = ["[The file](../benchmarks/results/README.md) has more ways."] if layout.without else []
    return "\n".join([*lines, "", caption(rows), *more, *machine, *sorted(missed)])


def _missed(found: Row, entry: Row) -> str:
    """What was not measured, and with which version of its library."""
    word = re.split(r"\W", entry["peer"])[0]
    known = found["environment"].items()
    versions = [f"{key} {value}" for key, value in known if value and word in key.split("-")]
    having = f" (with {', '.join(versions)})" if versions else ""
    return f"Not measured: {name(entry['peer'])}: {entry['reason']}{having}."


def caption(rows: list[Row]) -> str:
    """How often it was measured."""
    rounds = sorted({len(row["windows"]) for row in rows})
    many = " or ".join(map(str, rounds))
    return f"Medians of {many} rounds in turn, with the lowest and the highest in brackets."


def where(found: Row, part: str = "") -> str:
    """The machine and the versions in a sentence: of a part, or of those without a sentence."""
    known = found["environment"]
    names = ("torch", "uvloop", "uvicorn", "cuda-bindings")
    versions = ", ".join(f"{each} {known[each]}" for each in names if known.get(each))
    parts = [part] if part else [key for key, each in LAYOUTS.items() if each.page == PERFORMANCE]
    done = [each for each in found["done"].values() if each["part"] in parts]
    commits = sorted({each.get("commit", found["commit"])[:8] for each in done or [found]})
    commit = f", commit {' and '.join(commits)}" if commits != ["unknown"] else ""
    simulated = f"{results.SIMULATED}\n" if found["simulator"] else ""
    return f"{simulated}One {results.machine(found)}, {versions}; {found['date'][:10]}{commit}."


def better(found: Row) -> dict[tuple[str, str], str]:
    """By part and way: in what it is better, where the ranges do not overlap."""
    answers = {}
    for part, layout in LAYOUTS.items():
        rows = rows_of(found, part)
        ours = {setting(row): row for row in rows if row["peer"] == layout.ours}
        for peer in dict.fromkeys(row["peer"] for row in rows if row["peer"] not in OURS):
            said = []
            for column in layout.columns:
                ratios = {
                    setting(row): ratio
                    for row in rows
                    if row["peer"] == peer
                    and setting(row) in ours
                    and (ratio := apart(column, ours[setting(row)], row)) is not None
                }
                if ratios:
                    said.append(_ratios(column, ratios, len(ours)))
            if said:
                answers[part, peer] = "; ".join(said)
    return answers


def _ratios(column: Column, ratios: dict[str, float], count: int) -> str:
    low, high = number(min(ratios.values())), number(max(ratios.values()))
    factor = low if low == high else f"{low} to {high}"
    some = "; ".join(ratios) if len(ratios) <= 3 else f"{len(ratios)} of {count}"
    of = "" if len(ratios) == count else f" ({some})"
    return f"{column.heading.partition(',')[0]} {factor} times{of}"


def reasons(root: Path) -> dict[str, dict[str, str]]:
    """Why, by part and way."""
    return tomllib.loads((root / HERE / "reasons.toml").read_text())


def worse(found: Row, root: Path) -> str:
    """The list of what is better elsewhere, with the reasons."""
    known = reasons(root)
    lines = [HEADS[WORSE], line(["where", "what", "compared with", "better in", "why"])]
    lines.append(line(["---"] * 5))
    for (part, peer), said in better(found).items():
        why = known.get(part, {}).get(peer, "(no reason is known)")
        ours = name(str(LAYOUTS[part].ours))
        page = Path(LAYOUTS[part].page).name
        link = TITLES[part] if page == "performance.md" else f"[{TITLES[part]}]({page})"
        lines.append(line([link, name(peer), ours, said, why]))
    return "\n".join(lines)


def picture(found: Row) -> str:
    """The second picture, with its text."""
    said = []
    for load in dict.fromkeys(row["load"] for row in found["rows"] if row["set"] == "torch"):
        rows = [row for row in rows_of(found, "torch") if row["load"] == load]
        ways = (f"{pictures.plain(row['peer'])} {row['per_second']:,.0f}" for row in rows)
        said.append(f"{load}: {', '.join(ways)}")
    text = f"Requests per second and 99th percentile of one torch model. {'. '.join(said)}"
    return f"![{text}](../{HERE}/results/{PICTURE}-server.svg)"


def blocks(found: Row, root: Path) -> dict[str, Callable[[], str]]:
    """What stands between the marks, by their names."""
    tables: dict[str, Callable[[], str]] = {part: partial(table, found, part) for part in LAYOUTS}
    tables |= {WORSE: lambda: worse(found, root), WHERE: lambda: where(found)}
    return {**tables, BARS: lambda: picture(found)}


# --------------------------------------------------------------------------------------- prose


def quoted(root: Path) -> dict[str, Any]:
    """What `quoted.toml` says."""
    return tomllib.loads((root / HERE / "quoted.toml").read_text())


def quoted_file(root: Path) -> Path:
    """The file that the pages quote."""
    return root / HERE / "results" / str(quoted(root)["file"])


def said(claim: Row, found: Row, root: Path) -> dict[str, str]:
    """The figures of a claim as its sentences write them.

    Args:
        claim: One of `quoted.toml`.
        found: The file, unless the claim names another one.
        root: Where the results are.

    Raises:
        ValueError: Not one row alone is meant.
    """
    if "file" in claim:
        found = results.read(root / HERE / "results" / claim["file"])
    values = {}
    for key, each in claim.get("of", {}).items():
        where = {name: value for name, value in each.items() if name not in ("key", "form", "over")}
        value = float(_row_of(found, where)[each["key"]])
        if "over" in each:
            value /= float(_row_of(found, where | each["over"])[each["key"]])
        values[key] = each["form"].format(value)
    if "where" in claim:
        row = _row_of(found, claim["where"], next(iter(claim["values"])), claim.get("pick"))
        values |= {key: form.format(row[key]) for key, form in claim["values"].items()}
    return values


def _row_of(found: Row, where: Row, key: str = "", pick: str | None = None) -> Row:
    rows: list[Row] = [row for row in found["rows"] if where.items() <= row.items()]
    if pick:
        shown = [row for row in rows if "pattern" in row and setting(row) not in _RARE]
        rows = sorted(shown, key=lambda row: float(row[key]))
        rows = rows[:1] if pick == "min" else rows[-1:]
    if len(rows) != 1:
        raise ValueError(f"quoted.toml: {len(rows)} rows have {where}")
    return rows[0]


def sentences(claim: Row, page: str) -> Iterator[str]:
    """The sentences of a page, with the names of figures in them."""
    yield from claim["prose"][page]


def _quote(text: str, claim: Row, page: str, values: dict[str, str]) -> str:
    """The text with the claim's figures.

    Raises:
        ValueError: A sentence is not in it.
    """
    for sentence in sentences(claim, page):
        forms = {key: re.sub(r"[\d.,]+", "0", value) for key, value in values.items()}
        pattern = re.escape(sentence.format(**forms))
        for form in forms.values():
            pattern = pattern.replace(re.escape(form), re.escape(form).replace("0", r"[\d.,]+"))
        pattern = pattern.replace(r"\ ", r"\s")
        if not re.search(pattern, text):
            raise ValueError(f"{page} does not say {sentence!r}")
        text = re.sub(pattern, sentence.format(**values), text)
    return text


# ------------------------------------------------------------------------------------- command


def show(path: Path) -> None:
    """Prints all tables of a file."""
    found = results.read(path)
    print(where(found))
    for part in LAYOUTS:
        print(f"\n## {part}\n\n{table(found, part)}")
    for (part, peer), text in better(found).items():
        print(f"better: {part}, {peer}: {text}")


def write(path: Path, root: Path) -> None:
    """Writes a file's figures into all pages.

    Raises:
        ValueError: A page has no place for them.
    """
    found = results.read(path)
    places = blocks(found, root)
    written = set()
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        before = text = page.read_text()
        for _, name, _ in BLOCK.findall(text):
            written.add(name)
        text = BLOCK.sub(lambda mark: f"{mark[1]}{places[mark[2]]()}\n{mark[3]}", text)
        for claim in quoted(root)["claim"]:
            key = str(page.relative_to(root))
            if key in claim["prose"]:
                text = _quote(text, claim, key, said(claim, found, root))
        if text != before:
            page.write_text(text)
            print(f"written: {page}")
    if missing := places.keys() - written:
        raise ValueError(f"no page has a place for {', '.join(sorted(missing))}")
    for part, peer in better(found):
        if peer not in reasons(root).get(part, {}):
            print(f"reasons.toml has no reason for {part}: {peer}")


def draw(path: Path, root: Path) -> None:
    """Draws a file's pictures.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    for drawn in pictures.draw([results.read(path)], root / HERE / "results" / PICTURE):
        print(f"drawn: {drawn}")
