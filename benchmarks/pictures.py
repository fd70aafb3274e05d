"""Draws results files: the cost of waits, late ends by pattern, and servers."""

from __future__ import annotations

import importlib
import itertools
import textwrap
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
    "run": "aiostream, Stream.run",
    "pool run": "aiostream, StreamPool.run",
    "polling": "query() and sleep(0)",
    "sleep 1 ms": "query() and sleep(0.001)",
    "no wait": "launch, and no wait for the GPU",
    "known length": "a timer set to the kernel's end",
    "to_thread": "to_thread(synchronize), torch",
    "to_thread bindings": "to_thread(synchronize)",
    "blocking": "synchronize() in the loop",
    "cupy": "cupy's launch_host_func",
}
# What each of the two pictures of a kind is drawn with. The library is green. The colour-blind can
# distinguish the other colours, which have a mark each besides.
LIGHT: dict[str, Any] = {
    **{"ours": "#1a7f37", "grey": "#6e7781", "text": "#1f2328", "grid": "#dde1e6"},
    **{"background": "white", "others": ("#0072B2", "#D55E00", "#CC79A7", "#56B4E9", "#E69F00")},
}
DARK: dict[str, Any] = {
    **{"ours": "#3fb950", "grey": "#8b949e", "text": "#e6edf3", "grid": "#3d444d"},
    **{"background": "none", "others": ("#58a6ff", "#f0883e", "#e29fc4", "#a5d6ff", "#e3b341")},
}
MARKS = "o^sDvPX<>hp*8d"


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
                figure.savefig(pictures[-1], metadata={"Date": None})
    if not pictures:
        raise UnavailableError("there are no rows in it of which there is a picture")
    return pictures


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


def _name(row: Row) -> str:
    return NAMES.get(row["peer"]) or str(row["peer"])


def _styles(rows: Sequence[Row], look: Row) -> dict[str, dict[str, Any]]:
    """A colour and a mark for each peer."""
    others = (peer for peer in NAMES if peer != "aiostream auto")
    marks, colours = itertools.cycle(MARKS[1:]), itertools.cycle(look["others"])
    known = {"aiostream auto": {"color": look["ours"], "marker": "o", "zorder": 5}}
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
    steady = [row for row in _tail_rows(rows) if row["pattern"] == "steady 5 ms"]
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


def _tail_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["set"] == "patterns"]


def _tails(figure: Any, rows: Sequence[Row], look: Row) -> None:
    panel, styles = figure.subplots(), _styles(rows, look)
    names = list(dict.fromkeys(row["pattern"] for row in rows))
    for number, (peer, style) in enumerate(styles.items()):
        for row in (row for row in rows if row["peer"] == peer):
            place = names.index(row["pattern"]) + 0.72 * ((number + 0.5) / len(styles) - 0.5)
            ends = [max(row[key], 1) / 1e3 for key in ("p50_us", "p99_us")]
            panel.plot(ends, [place] * 2, color=style["color"], linewidth=1.6, zorder=3)
            label = _name(row) if row["pattern"] == names[0] else None
            panel.plot(ends[1:], [place], linestyle="none", markersize=5, label=label, **style)
    lines = (textwrap.fill(name.replace(" us", " µs"), 14) for name in names)
    panel.set_yticks(range(len(names)), lines)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.tick_params(length=0)
    panel.hlines(
        [at + 0.5 for at in range(len(names) - 1)],
        0,
        1,
        look["grid"],
        transform=panel.get_yaxis_transform(),
    )
    _logarithmic(panel.xaxis)
    panel.set_xlabel(
        "from the kernel's end until the task goes on, ms (left is better):\n"
        "a line begins at the median, and its mark is the 99th percentile"
    )
    figure.legend(
        title="From the median to the slowest 1 %, by pattern",
        title_fontproperties={"size": 15, "weight": "bold"},
        **{"alignment": "left", "fontsize": 11, "frameon": False},
        **{"loc": "outside upper left", "ncols": 2},
    )


def _server_rows(rows: Sequence[Row]) -> list[Row]:
    loads = (BUSY.name, OPEN.name)
    return [
        row
        for row in rows
        if row["set"] == "server" and row["load"] in loads and row["peer"] != PING
    ]


def _server(figure: Any, rows: Sequence[Row], look: Row) -> None:
    rate, late = figure.subplots(2, 1, height_ratios=(5, 4))
    busy = [row for row in rows if row["load"] == BUSY.name]
    places = range(len(busy))
    bars = rate.barh(
        places,
        [row["per_second"] for row in busy],
        xerr=[
            [row["per_second"] - row["low"] for row in busy],
            [row["high"] - row["per_second"] for row in busy],
        ],
        **{"color": [_colour(row, look) for row in busy], "height": 0.36},
        **{"capsize": 3, "ecolor": look["text"]},
    )
    figures = [f"{row['per_second']:,.0f}" for row in busy]
    rate.bar_label(bars, figures, padding=5, fontsize=11, color=look["text"])
    for place, row in zip(
        places, busy, strict=True
    ):  # above its bar, where a phone has room for it
        rate.text(0, place - 0.24, _name(row), va="bottom")
    rate.set_yticks(())
    rate.set_ylim(len(busy) - 0.6, -0.8)
    rate.margins(x=0.15)
    rate.grid(axis="x", linewidth=0.8)
    rate.xaxis.set_major_formatter("{x:,.0f}")
    rate.set_title("128 clients that ask again at once, kernels of 5 ms", fontsize=14)
    rate.set_xlabel("requests per second and 95 % interval (right is better)")
    # A way that cannot keep up has a queue that grows, and so any latency.
    some = [row for row in rows if row["load"] == OPEN.name]
    kept = [row for row in some if row["per_second"] > 0.9 * max(x["per_second"] for x in some)]
    ours = [row for row in kept if _is_ours(row)]
    for row in kept:
        at = row["cpu_us"] / 1e3, max(row["beyond"]["p99_us"], 1) / 1e3
        late.plot(*([x] for x in at), "o", markersize=11, color=_colour(row, look), zorder=3)
        if row in ours:
            continue  # they are close together, and the bars name them
        side = "right" if at[0] > 1 else "left"
        offset = (10 if side == "left" else -10, 0)
        late.annotate(_name(row), at, offset, textcoords="offset points", ha=side, va="center")
    if ours:
        highest = max(ours, key=lambda row: float(row["beyond"]["p99_us"]))
        late.annotate(
            f"aiostream, {len(ours)} ways" if len(ours) > 1 else _name(highest),
            (highest["cpu_us"] / 1e3, max(highest["beyond"]["p99_us"], 1) / 1e3),
            (0, 10),
            textcoords="offset points",
            ha="center",
            fontweight="bold",
            color=look["ours"],
        )
    late.set_title("2,000 random requests/s, kernels of 0.2 to 20 ms", fontsize=14)
    late.margins(0.15)
    _logarithmic(late.xaxis)
    _logarithmic(late.yaxis)
    late.set_xlabel("CPU time of a request, ms (bottom left is better)")
    late.set_ylabel("99th percentile of a request\nbeyond its kernel, ms")


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


def _is_ours(row: Row) -> bool:
    """Whether a task waits as the library does by itself. A host function is a choice of yours."""
    return _name(row).startswith("aiostream") and not row["peer"].endswith("hostfunc")


def _colour(row: Row, look: Row) -> str:
    return str(look["ours" if _is_ours(row) else "grey"])


PICTURES: dict[
    str, tuple[Callable[[Sequence[Row]], list[Row]], Callable[..., None], tuple[float, float]]
] = {
    "cost": (_cost_rows, _cost, (8, 4.4)),
    "tails": (_tail_rows, _tails, (7, 7.6)),
    "server": (_server_rows, _server, (7, 10)),
    "proof": (_proof_rows, _proof, (11, 6)),
}
