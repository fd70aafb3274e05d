"""The results as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.measure import Row
from benchmarks.results import SIMULATED, machine

Cell = str | Callable[[Row], str]  # a format of the row's keys, or what makes the text


def text(cell: Cell, row: Row) -> str:
    """A cell's text."""
    return cell.format_map(row) if isinstance(cell, str) else cell(row)


# ------------------------------------------------------------------------------ what the cells say

TAILS: dict[str, Cell] = {
    "p50": "{p50_us:,.0f}",
    "p90": "{p90_us:,.0f}",
    "p99": "{p99_us:,.0f}",
    "p99.9": "{p999_us:,.0f}",
    "max": "{max_us:,.0f}",
}
RATE: dict[str, Cell] = {
    "per second": "{per_second:,.0f}",
    "95 % interval": "{low:,.0f} to {high:,.0f}",
    "cores": "{cores:.2f}",
}


def _ms(key: str, part: str = "") -> Callable[[Row], str]:
    """A figure of a row, or of a part of it that may be missing, in ms."""

    def cell(row: Row) -> str:
        figures = row[part] if part else row
        return f"{figures[key] / 1e3:,.2f}" if figures else "-"

    return cell


def _known(key: str, form: str) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else form.format_map(row)


def _client(row: Row) -> str:
    """An open loop's client polls all the time: what says something of it is how late it sends."""
    late = row.get("client_late")
    return f"{late['p99_us'] / 1e3:,.2f} ms" if late else f"{row['client_cores']:.2f} cores"


REQUESTS: dict[str, Cell] = {
    "requests/s": RATE["per second"],
    "95 % interval": RATE["95 % interval"],
    "p50": _ms("p50_us"),
    "p99": _ms("p99_us"),
    "beyond": _ms("p99_us", "beyond"),
    "/ping p99": _ms("p99_us", "ping"),
    "CPU us": _known("cpu_us", "{cpu_us:.1f}"),
    "cores": "{cores:.2f}",
    "client": _client,
    "not served": "{unserved:,}",
    "samples": "{samples:,}",
}


def _fairness_title(row: Row) -> str:
    what = "Completions of a task in a window, and lateness in us of a 1 ms timer"
    return f"{what}; {row['streams']} x empty kernels; {row['loop']}"


# -------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class Layout:
    """How the rows of a measure are printed.

    Attributes:
        title: Rows of one title are one table.
        columns: The cells of a row's line by their headings.
        group: The setting of a row, if each setting has its own lines.
    """

    title: Cell
    columns: dict[str, Cell]
    group: Cell | None = None


LAYOUTS = {
    "patterns": Layout(
        "Lateness in us by pattern of work (lower is better), "
        "CPU in % of a core while waiting; {loop}",
        {**TAILS, "CPU %": "{cpu_percent:.3g}", "samples": "{samples:,}"},
        group="{pattern}",
    ),
    "mixed": Layout(
        "Lateness in us beyond kernels of 0.2 to 20 ms (lower is better), "
        "a task for each stream; {loop}",
        {**TAILS, **RATE},
        group="{streams} streams",
    ),
    "full": Layout(
        "A full loop: CPU us of each completion (loop's thread, process), lateness in us beyond "
        "the kernel and of a 1 ms timer (lower is better); {loop}",
        {
            "per second": RATE["per second"],
            "thread": "{thread_us:.1f}",
            "process": "{cpu_us:.1f}",
            **{key: TAILS[key] for key in ("p50", "p99", "max")},
            "timer p99": "{timer[p99_us]:,.0f}",
            "cores": "{cores:.2f}",
        },
        group="{load}",
    ),
    "fairness": Layout(
        _fairness_title,
        {
            "fewest": "{fewest:,}",
            "most": "{most:,}",
            "ratio": "{ratio:.2f}",
            "timer p50": "{timer[p50_us]:,.0f}",
            "p99": "{timer[p99_us]:,.0f}",
            "max": "{timer[max_us]:,.0f}",
            **RATE,
        },
    ),
    "server": Layout(
        "A server's requests: ms, also p99 beyond the kernel, "
        "and the process's CPU us for each; {server}",
        REQUESTS,
        group="{load}",
    ),
    "torch": Layout(
        "A torch server's requests: ms, and the process's CPU us for each; {server}",
        {key: cell for key, cell in REQUESTS.items() if key not in ("beyond", "not served")},
        group="{load}",
    ),
}


def table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """A table: the first column to the left, the others to the right. Nothing is cut."""
    look: dict[str, Any] = {"box": None, "pad_edge": False, "padding": (0, 2, 0, 0)}
    found = Table(title=Text(title), title_justify="left", header_style="dim", **look)
    for number, heading in enumerate(headings):
        found.add_column(Text(heading), justify="right" if number else "left", no_wrap=True)
    for line in lines:
        found.add_row(*map(Text, line))
    return found


def _of_layout(layout: Layout, rows: Sequence[Row]) -> Iterator[Table]:
    for title in dict.fromkeys(text(layout.title, row) for row in rows):
        some = [row for row in rows if text(layout.title, row) == title]
        yield table(title, ["", *layout.columns], list(_lines(layout, some)))


def _lines(layout: Layout, rows: Sequence[Row]) -> Iterator[list[str]]:
    """With a group, a line with each setting's name, and a line for each peer below it."""
    groups = [text(layout.group or "", row) for row in rows]
    for group in dict.fromkeys(groups):
        if layout.group:
            yield [group]
        for own, row in zip(groups, rows, strict=True):
            if own == group:
                cells = (text(cell, row) for cell in layout.columns.values())
                yield [f"  {row['peer']}" if layout.group else row["peer"], *cells]


def tables(results: Row) -> RenderableType:
    """Everything that a results file holds, for a console."""
    versions = f"cuda-bindings {results['environment']['cuda-bindings']}; {results['date']}"
    parts: list[RenderableType] = [Text(f"{machine(results)}, {versions}")]
    if results["simulator"]:
        parts.append(Text(SIMULATED))
    for measure, layout in LAYOUTS.items():
        parts += _of_layout(layout, [row for row in results["rows"] if row["measure"] == measure])
    if results["not_run"]:
        lines = [
            f"  {entry['peer']}{' on ' + entry['loop'] if entry['loop'] else ''}: {entry['reason']}"
            for entry in results["not_run"]
        ]
        parts.append(Text("\n".join(["Not run:", *lines])))
    return Group(*(each for part in parts for each in (part, Text())))
