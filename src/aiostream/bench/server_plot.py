"""Draws the measure `server`: what a busy server serves, and how late one is that requests reach by chance."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from aiostream.bench.report import machine
from aiostream.bench.runner import Row
from aiostream.bench.server import BUSY, OPEN, PING

OURS, OLDER, OTHERS = (
    "#D55E00",
    "#E69F00",
    "#0072B2",
)  # Okabe and Ito's colours, which the colour-blind can tell apart


def rows_of(results: dict[str, Any]) -> list[Row]:
    """The rows of the two loads that are drawn, on the first loop that was measured."""
    rows = [
        row
        for row in results["rows"]
        if row["set"] == "server" and row["load"] in (BUSY.name, OPEN.name)
    ]
    return [row for row in rows if row["loop"] == rows[0]["loop"] and row["peer"] != PING]


def fill(figure: Any, rows: Sequence[Row], results: dict[str, Any]) -> None:
    """Draws into an empty figure.

    Args:
        figure: matplotlib's.
        rows: What `rows_of` has returned.
        results: What the file holds.
    """
    where = f"{machine(results['environment'])}, {rows[0]['server']}; {results['date'][:10]}"
    if results["simulator"]:
        where = f"ON THE SIMULATOR: these figures say nothing about a GPU. {where}"
    figure.suptitle(f"A server that waits for the GPU\n{where}", fontsize=11)
    rate, late, cost = figure.subplots(1, 3, width_ratios=(4, 3, 4))
    busy = [row for row in rows if row["load"] == BUSY.name]
    _rates(rate, busy)
    _tails(late, busy)
    _costs(cost, [row for row in rows if row["load"] == OPEN.name and row["cpu_us"]])


def _color(peer: str) -> str:
    if peer.startswith("older"):
        return OLDER
    return OURS if peer.startswith(("aiostream", "enqueue", "pool")) else OTHERS


def _rates(panel: Any, rows: Sequence[Row]) -> None:
    """A bar for each peer, the first at the top, with its 95 % interval."""
    places, rates = range(len(rows)), [row["per_second"] for row in rows]
    ends = [
        [row["per_second"] - row["low"] for row in rows],
        [row["high"] - row["per_second"] for row in rows],
    ]
    panel.barh(
        places, rates, xerr=ends, color=[_color(row["peer"]) for row in rows], height=0.7, capsize=3
    )
    for place, row in zip(places, rows, strict=True):
        panel.annotate(
            f"{row['per_second']:,.0f}",
            (row["high"], place),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    panel.margins(x=0.12)
    _peers(panel, rows)
    panel.set_xlabel(f"requests per second and 95 % interval, more is better\n{BUSY.name}")


def _tails(panel: Any, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        p99 = row["p99_us"] / 1e3
        panel.plot([p99], [place], marker="o", color=_color(row["peer"]), linestyle="none")
        panel.annotate(
            f"{p99:,.1f}",
            (p99, place),
            xytext=(6, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    _logarithmic(panel, "x")
    panel.margins(x=0.15)
    _peers(panel, rows)
    panel.set_yticklabels([])
    panel.set_xlabel(f"p99 of a request in ms, less is better\n{BUSY.name}")


def _costs(panel: Any, rows: Sequence[Row]) -> None:
    """Lateness against CPU: the nearer to the lower left corner, the better."""
    for row, marker in zip(rows, itertools.cycle("osD^vPX<>hp*"), strict=False):
        late = max(row["beyond"]["p99_us"], 1.0) / 1e3
        style = {
            "color": _color(row["peer"]),
            "marker": marker,
            "linestyle": "none",
            "markersize": 7,
        }
        panel.plot([row["cpu_us"]], [late], label=row["peer"], alpha=0.8, **style)
    _logarithmic(panel, "x")
    _logarithmic(panel, "y")
    panel.margins(0.15)
    panel.set_xlabel(
        f"CPU us of the server's process for each request, less is better\n{OPEN.name}"
    )
    panel.set_ylabel("p99 of a request beyond its kernel in ms, less is better")
    if rows:
        panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _peers(panel: Any, rows: Sequence[Row]) -> None:
    panel.set_yticks(range(len(rows)), [row["peer"] for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.grid(axis="x", color="#dddddd", linewidth=0.7)
    panel.set_axisbelow(True)


def _logarithmic(panel: Any, which: str) -> None:
    ticker = importlib.import_module("matplotlib.ticker")
    panel.set(**{f"{which}scale": "log"})
    axis = panel.xaxis if which == "x" else panel.yaxis
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axis.set_minor_locator(ticker.NullLocator())
    panel.grid(axis=which, color="#dddddd", linewidth=0.7)
    panel.set_axisbelow(True)
