"""Draws results files: the cost of waits, late ends by pattern, and servers."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiostream import WaitStrategy
from benchmarks.measure import Row
from benchmarks.results import machine
from benchmarks.server import BUSY, OPEN, PING

NAMES = {
    **{f"aiostream {wait}": f'aiostream, wait="{wait}"' for wait in sorted(WaitStrategy)},
    "aiostream auto": "aiostream",
    "aiostream unpredicted": "aiostream without prediction",
    "enqueue_async": "aiostream, enqueue_async",
    "pool": "aiostream, StreamPool",
    "pool enqueue_async": "aiostream, StreamPool and enqueue_async",
    "pool run": "aiostream, StreamPool and run",
    "polling": "query() and sleep(0)",
    "sleep 1 ms": "query() and sleep(0.001)",
    "no wait": "launch, and no wait for the GPU",
    "to_thread": "to_thread(synchronize), torch",
    "to_thread bindings": "to_thread(synchronize)",
    "blocking": "synchronize() in the loop",
    "cupy": "cupy's launch_host_func",
}
# Okabe and Ito's colours, which the colour-blind can distinguish, and a mark for each besides.
OURS, OTHERS = (
    "#D55E00",
    ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#777777", "#000000", "#E69F00"),
)
MARKS = "o^sDvPX<>hp*8d"


class UnavailableError(Exception):
    """matplotlib is not installed, or there is nothing to draw."""


def draw(files: Sequence[Row], path: Path) -> list[Path]:
    """Draws what there is, as SVG. The first file with rows for a picture has it.

    Args:
        files: What results files hold.
        path: The pictures have its name, with one of their own at the end.

    Returns:
        The pictures' paths.

    Raises:
        UnavailableError: matplotlib is not installed, or there is nothing to draw.
    """
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        reason = "matplotlib is not installed: pip install --group bench"
        raise UnavailableError(reason) from error
    pictures: list[Path] = []
    # Text becomes outlines, and the marks are named by a constant: the same results give the same
    # file everywhere.
    style = {"font.size": 10, "svg.hashsalt": "aiostream", "axes.titlelocation": "left"}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    with matplotlib.rc_context(style):
        for name, (choose, fill, size) in PICTURES.items():
            known = ((results, choose(results["rows"])) for results in files)
            results, rows = next((found for found in known if found[1]), (None, []))
            if results is None:
                continue
            rows = [row for row in rows if row["loop"] == rows[0]["loop"]]
            figure = figures.Figure(figsize=size, layout="constrained")
            fill(figure, rows)
            figure.supxlabel(_where(results, rows[0]), fontsize=7.5, color="#555555")
            pictures.append(path.with_name(f"{path.name}-{name}.svg"))
            figure.savefig(pictures[-1], metadata={"Date": None})
    if not pictures:
        raise UnavailableError("there are no rows in it of which there is a picture")
    return pictures


def _where(results: Row, row: Row) -> str:
    where = f"{machine(results)}, {row.get('server') or row['loop']}; {results['date'][:10]}"
    if results["simulator"]:
        return f"ON THE SIMULATOR: these figures say nothing about a GPU. {where}"
    return where


def _name(row: Row) -> str:
    return NAMES.get(row["peer"]) or str(row["peer"])


def _styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A colour and a mark for each peer. Ours is orange."""
    others = (peer for peer in NAMES if peer != "aiostream auto")
    marks, colours = itertools.cycle(MARKS[1:]), itertools.cycle(OTHERS)
    known = {"aiostream auto": {"color": OURS, "marker": "o", "zorder": 5}}
    known |= {
        peer: {"color": next(colours), "marker": next(marks)} for peer in others if _has(rows, peer)
    }
    return {row["peer"]: known[row["peer"]] for row in rows if row["peer"] in known}


def _has(rows: Sequence[Row], peer: str) -> bool:
    return any(row["peer"] == peer for row in rows)


def _logarithmic(axis: Any) -> None:
    ticker = importlib.import_module("matplotlib.ticker")
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_data_interval()
    subs = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axis.set_minor_locator(ticker.NullLocator())
    axis.grid(visible=True, color="#dddddd", linewidth=0.7)


# -- the pictures


def _cost_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in _tail_rows(rows) if row["pattern"] == "steady 5 ms"]


def _cost(figure: Any, rows: Sequence[Row]) -> None:
    panel = figure.subplots()
    for peer, style in _styles(rows).items():
        row = next(row for row in rows if row["peer"] == peer)
        at = max(row["cpu_percent"], 0.01), row["p50_us"]
        panel.plot(*([value] for value in at), linestyle="none", markersize=9, **style)
        right = at[0] > 40
        panel.annotate(
            _name(row),
            at,
            xytext=(-9 if right else 9, 4),
            textcoords="offset points",
            ha="right" if right else "left",
            color=style["color"],
        )
    panel.set_title("A task that awaits a kernel of 5 ms pays in CPU and in lateness")
    _logarithmic(panel.xaxis)
    _logarithmic(panel.yaxis)
    panel.margins(0.2)
    panel.set_xlabel("CPU of the process while it waits, % of one core (lower is better)")
    panel.set_ylabel(
        "from the kernel's end until the task goes on,\nmedian in us (lower is better)"
    )
    panel.text(
        0.01,
        0.01,
        "bottom left is good",
        transform=panel.transAxes,
        color="#555555",
        style="italic",
    )


def _tail_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["set"] == "patterns"]


def _tails(figure: Any, rows: Sequence[Row]) -> None:
    panel, styles = figure.subplots(), _styles(rows)
    names = list(dict.fromkeys(row["pattern"] for row in rows))
    for number, (peer, style) in enumerate(styles.items()):
        for row in (row for row in rows if row["peer"] == peer):
            place = names.index(row["pattern"]) + 0.72 * ((number + 0.5) / len(styles) - 0.5)
            ends = [max(row[key], 1) / 1e3 for key in ("p50_us", "p99_us")]
            panel.plot(ends, [place] * 2, color=style["color"], linewidth=1.6, zorder=3)
            label = _name(row) if row["pattern"] == names[0] else None
            panel.plot(ends[1:], [place], linestyle="none", markersize=5, label=label, **style)
    panel.set_title("Most waits end soon after their kernel, and the slowest 1 % later")
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.hlines(
        [at + 0.5 for at in range(len(names) - 1)],
        0,
        1,
        "#eeeeee",
        transform=panel.get_yaxis_transform(),
    )
    _logarithmic(panel.xaxis)
    panel.set_xlabel(
        "from the kernel's end until the task goes on, in ms, "
        "from the median to the 99th percentile\n(lower is better)"
    )
    figure.legend(loc="outside upper right", ncols=len(styles), frameon=False, fontsize=8.5)


def _server_rows(rows: Sequence[Row]) -> list[Row]:
    loads = (BUSY.name, OPEN.name)
    return [
        row
        for row in rows
        if row["set"] == "server" and row["load"] in loads and row["peer"] != PING
    ]


def _server(figure: Any, rows: Sequence[Row]) -> None:
    rate, late = figure.subplots(1, 2, sharey=True)
    figure.suptitle("A web server awaits a kernel in each request", x=0.01, ha="left")
    busy = [row for row in rows if row["load"] == BUSY.name]
    some = [row for row in rows if row["load"] == OPEN.name]
    peers = list(dict.fromkeys(row["peer"] for row in (*busy, *some)))
    ends = [
        [row["per_second"] - row["low"] for row in busy],
        [row["high"] - row["per_second"] for row in busy],
    ]
    figures = [row["per_second"] for row in busy]
    _bars(rate, peers, busy, figures, "{:,.0f}", xerr=ends, capsize=3)
    rate.set_title("128 clients ask again at once, kernels of 5 ms", fontsize=9.5)
    rate.set_xlabel("requests per second and 95 % interval\n(higher is better)")
    beyond = [max(row["beyond"]["p99_us"], 1) / 1e3 for row in some]
    _bars(late, peers, some, beyond, "{:,.2f}")
    late.set_title("2,000 requests per second at random, kernels of 0.2 to 20 ms", fontsize=9.5)
    late.set_xlabel("99th percentile of a request beyond its kernel, ms\n(lower is better)")
    _logarithmic(late.xaxis)


def _bars(
    panel: Any,
    peers: list[str],
    rows: Sequence[Row],
    figures: list[float],
    form: str,
    **options: Any,
) -> None:
    """A bar for each peer, the first at the top."""
    colours = [OURS if _name(row).startswith("aiostream") else OTHERS[0] for row in rows]
    places = [peers.index(row["peer"]) for row in rows]
    bars = panel.barh(places, figures, color=colours, height=0.7, **options)
    panel.bar_label(bars, [form.format(figure) for figure in figures], padding=4, fontsize=8)
    panel.set_yticks(range(len(peers)), [NAMES.get(peer, peer) for peer in peers])
    panel.set_ylim(len(peers) - 0.4, -0.6)
    panel.margins(x=0.2)
    panel.grid(axis="x", color="#dddddd", linewidth=0.7)


PICTURES: dict[
    str, tuple[Callable[[Sequence[Row]], list[Row]], Callable[..., None], tuple[float, float]]
] = {
    "cost": (_cost_rows, _cost, (8, 5)),
    "tails": (_tail_rows, _tails, (9, 6.5)),
    "server": (_server_rows, _server, (13, 4.6)),
}
