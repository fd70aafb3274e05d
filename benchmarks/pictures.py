"""Draws results files: the cost of waits, and a server by its way to wait."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from benchmarks.names import NAMES, OURS
from benchmarks.results import machine
from benchmarks.server import PING

# What each of the two pictures of a kind is drawn with. The library is green.
LIGHT: dict[str, Any] = {
    **{"ours": "#1a7f37", "grey": "#6e7781", "text": "#1f2328", "grid": "#dde1e6"},
    "background": "white",
}
DARK: dict[str, Any] = {
    **{"ours": "#3fb950", "grey": "#8b949e", "text": "#e6edf3", "grid": "#3d444d"},
    "background": "none",
}


class UnavailableError(Exception):
    """matplotlib is not installed, or there is nothing to draw."""


def draw(files: Sequence[Row], path: Path) -> list[Path]:
    """Draws what there is, as SVG, for a light and for a dark page.

    The first file with rows for a picture has it.

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
    for name, (choose, fill, size) in PICTURES.items():
        known = ((results, choose(results["rows"])) for results in files)
        results, rows = next((found for found in known if found[1]), (None, []))
        if results is None:
            continue
        rows = [row for row in rows if row["loop"] == rows[0]["loop"]]
        for ending, look in (("", LIGHT), ("-dark", DARK)):
            with matplotlib.rc_context(_style(look)):
                figure = figures.Figure(figsize=size, layout="constrained")
                fill(figure, rows, look)
                figure.supxlabel(_where(results, rows[0]), fontsize=8, color=look["grey"])
                pictures.append(path.with_name(f"{path.name}-{name}{ending}.svg"))
                figure.savefig(pictures[-1], metadata={"Date": None, "Source": source(results)})
    if not pictures:
        raise UnavailableError("there are no rows in it of which there is a picture")
    return pictures


def source(results: Row) -> str:
    """Where a picture's figures come from, as it stands in its file."""
    return f"{machine(results)}; {results['date']}"


def _style(look: Row) -> dict[str, Any]:
    """Settings of matplotlib."""
    # Text becomes outlines, and the marks are named by a constant: the same results give the same
    # file everywhere.
    style = {"font.size": 12, "svg.hashsalt": "aiostream", "axes.titlelocation": "left"}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    style |= {"axes.titleweight": "bold", "axes.titlesize": 15, "axes.titlepad": 14}
    style |= dict.fromkeys(("figure.facecolor", "axes.facecolor"), look["background"])
    style |= dict.fromkeys(("axes.edgecolor", "grid.color"), look["grid"])
    texts = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    return style | dict.fromkeys(texts, look["text"])


def _where(results: Row, row: Row) -> str:
    where = f"{machine(results)}, {row.get('server') or row['loop']}; {results['date'][:10]}"
    if results["simulator"]:
        return f"ON THE SIMULATOR: these figures say nothing about a GPU. {where}"
    return where


def plain(peer: str) -> str:
    """What a picture calls a way."""
    return NAMES.get(peer, peer).replace("`", "")


def _logarithmic(axis: Any) -> None:
    ticker = importlib.import_module("matplotlib.ticker")
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_data_interval()
    subs = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axis.set_minor_locator(ticker.NullLocator())
    axis.grid(visible=True, linewidth=0.8)


# -- the pictures


# Where the name of a way stands, seen from its point, and what it is called here.
_PLACES = {
    "aiostream auto": ("left", "aiostream"),
    "polling": ("right", "busy polling\nquery(); sleep(0)"),
    "to_thread bindings": ("right", "asyncio.to_thread(\nstream.synchronize)"),
    "to_thread": ("right", "asyncio.to_thread(\nstream.synchronize)"),
    "sleep 1 ms": ("left", "polling every ms\nquery(); sleep(0.001)"),
}


def _cost_rows(rows: Sequence[Row]) -> list[Row]:
    sets = ("patterns", "waits")
    steady = [row for row in rows if row["set"] in sets and row["pattern"] == "steady 5 ms"]
    return [row for row in steady if row["peer"] in _PLACES]


def _cost(figure: Any, rows: Sequence[Row], look: Row) -> None:
    panel = figure.subplots()
    found = {row["peer"]: row for row in rows}
    for peer, row in found.items():
        ours = peer == "aiostream auto"
        colour, side = look["ours" if ours else "grey"], _PLACES[peer][0]
        at = row["cpu_percent"], row["p50_us"]
        panel.plot(*([x] for x in at), "o", markersize=17 if ours else 11, color=colour, zorder=3)
        panel.annotate(
            f"{_PLACES[peer][1]}{': ' if ours else chr(10)}{at[1]:.0f} µs, {_percent(at[0])}",
            at,
            xytext=(14 if side == "left" else -12, 0),
            textcoords="offset points",
            ha=side,
            va="center",
            multialignment=side,
            fontsize=17 if ours else 12,
            fontweight="bold" if ours else "normal",
            color=colour if ours else look["text"],
        )
    if {"aiostream auto", "polling"} <= found.keys():
        ours, busy = found["aiostream auto"], found["polling"]
        later = f"{ours['p50_us'] - busy['p50_us']:.0f} µs later than busy polling"
        panel.set_title(f"{later}, for {_percent(ours['cpu_percent'])} of a core", fontsize=16)
    panel.set_xlim(0, 108)
    panel.set_xticks((0, 25, 50, 75, 100), ("0", "25 %", "50 %", "75 %", "a whole core"))
    panel.set_yscale("log")
    low, high = (edge([row["p50_us"] for row in rows]) for edge in (min, max))
    panel.set_ylim(min(10, low / 2), max(1000, high * 1.5))
    panel.set_yticks((10, 100, 1000), ("10 µs", "100 µs", "1 ms"))
    panel.yaxis.set_minor_locator(importlib.import_module("matplotlib.ticker").NullLocator())
    panel.grid(visible=True, linewidth=0.8)
    panel.tick_params(length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    panel.set_xlabel("CPU while waiting for kernels of 5 ms")
    panel.set_ylabel("the task resumes after\nthe kernel's end (median)")
    arrow = {"arrowstyle": "->", "linewidth": 1.8, "color": look["text"]}
    panel.annotate("better", (2, 11.5), (15, 20), arrowprops=arrow, ha="left", va="center")


def _percent(figure: float) -> str:
    return f"{figure:.1f} %" if figure < 10 else f"{figure:.0f} %"


def _server_rows(rows: Sequence[Row]) -> list[Row]:
    order = list(NAMES)
    known = [row for row in rows if row["set"] == "torch" and row["peer"] in order]
    known.sort(key=lambda row: order.index(row["peer"]))
    return [row for row in known if row["peer"] != PING]


def _server(figure: Any, rows: Sequence[Row], look: Row) -> None:
    """For each load a line of two panels, with a bar for each way."""
    loads = list(dict.fromkeys(sorted(row["load"] for row in rows)))[::-1]
    panels = figure.subplots(len(loads), 2, squeeze=False)
    for line, load in zip(panels, loads, strict=True):
        some = [row for row in rows if row["load"] == load]
        for panel, (key, title, by) in zip(line, _SERVED, strict=True):
            _bars(panel, some, key, by, look)
            panel.set_title(title, fontsize=11, fontweight="normal")
            if key == "p99_us":
                panel.set_yticks(())
        line[0].set_ylabel(load, fontsize=14, fontweight="bold")
    title = "One torch model behind one server, by the way to wait"
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold")


_SERVED = [
    ("per_second", "requests/s, higher is better", 1.0),
    ("p99_us", "99th percentile of a request, ms, lower is better", 1e-3),
]


def _bars(panel: Any, rows: Sequence[Row], key: str, by: float, look: Row) -> None:
    each = [[by * window[key] for window in row["windows"] if window[key]] for row in rows]
    values = [by * row[key] for row in rows]
    ends = [[v - min(e) for v, e in zip(values, each, strict=True)],
            [max(e) - v for v, e in zip(values, each, strict=True)]]  # fmt: skip
    colours = [look["ours" if row["peer"] in OURS else "grey"] for row in rows]
    options = {"height": 0.66, "capsize": 3, "ecolor": look["text"]}
    bars = panel.barh(range(len(rows)), values, xerr=ends, color=colours, **options)
    figures = [f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in values]
    panel.bar_label(bars, figures, padding=5, fontsize=10, color=look["text"])
    panel.set_yticks(range(len(rows)), [plain(row["peer"]) for row in rows], fontsize=10)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.margins(x=0.2)
    panel.grid(axis="x", linewidth=0.8)
    panel.tick_params(length=0)


def _proof_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["set"] == "proof"]


# Of each panel: the figure, what it is, and whether it is drawn on a logarithmic axis.
_PROVED = [
    ("per_second", "requests/s, higher is better", False),
    ("p99_ms", "99th percentile of a request, ms, lower is better", True),
    ("health_p99_ms", "99th percentile of /health, ms, lower is better", True),
    ("cpu_ms", "CPU of the server for a request, ms, lower is better", False),
]
_WAYS = {
    "blocking": "blocking\nsynchronize() in the loop",
    "to_thread": "asyncio.to_thread(\nstream.synchronize)",
    "polling": "polling\nquery(); sleep(0.001)",
    "aiostream": "aiostream\nawait stream.run(...)",
}


def _proof(figure: Any, rows: Sequence[Row], look: Row) -> None:
    places = range(len(rows))
    colours = [look["ours" if row["peer"] == "aiostream" else "grey"] for row in rows]
    for panel, (key, title, logarithmic) in zip(figure.subplots(2, 2).flat, _PROVED, strict=True):
        values = [row[key] for row in rows]
        bars = panel.barh(places, values, color=colours, height=0.72)
        panel.set_title(title, fontsize=9.5, fontweight="normal")
        panel.set_yticks(places, [_WAYS[row["peer"]] for row in rows], fontsize=9)
        panel.set_ylim(len(rows) - 0.4, -0.6)
        if logarithmic:
            _logarithmic(panel.xaxis)
            panel.set_xlim(min(values) / 2, max(values) * 4)
        panel.margins(x=0.25)
        figures = [f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in values]
        panel.bar_label(bars, figures, padding=4, fontsize=10, color=look["text"])
        panel.grid(axis="x", linewidth=0.8)
    title = f"One model, one server, four ways to wait: {rows[0]['load']}, load by wrk"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")


PICTURES: dict[
    str, tuple[Callable[[Sequence[Row]], list[Row]], Callable[..., None], tuple[float, float]]
] = {
    "cost": (_cost_rows, _cost, (8, 4.4)),
    "server": (_server_rows, _server, (11, 8.4)),
    "proof": (_proof_rows, _proof, (11, 6)),
}
