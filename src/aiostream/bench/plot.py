"""Draws a results file: latency and CPU by the kernel's length, completions per second by the number of streams."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiostream.bench import server_plot
from aiostream.bench.latency import duration
from aiostream.bench.report import machine
from aiostream.bench.runner import Row

# Okabe and Ito's colours, which the colour-blind can tell apart, and a mark for each besides.
STYLES: dict[str, dict[str, Any]] = {
    "aiostream auto": {"color": "#D55E00", "marker": "o", "linewidth": 2.8, "zorder": 5},
    "aiostream hostfunc": {"color": "#E69F00", "marker": "s"},
    "to_thread": {"color": "#0072B2", "marker": "^"},
    "to_thread bindings": {"color": "#0072B2", "marker": "^", "linestyle": "--"},
    "blocking event": {"color": "#56B4E9", "marker": "v"},
    "cupy": {"color": "#CC79A7", "marker": "D"},
    "ctypes": {"color": "#777777", "marker": "P"},
    "polling": {"color": "#009E73", "marker": "X"},
    "blocking": {"color": "#000000", "marker": ".", "linestyle": ":"},
}
BUSIEST = 5_000_000  # ns: the kernels of the panel of streams, or the longest that were measured
LOOPS = ("uvloop", "asyncio", "trio")  # the first that was measured is drawn


class UnavailableError(Exception):
    """matplotlib is not installed, or there is nothing to draw."""


def draw(results: dict[str, Any], path: Path) -> list[Path]:
    """Draws a figure of the ways to wait, and one of the server, as PNG and as SVG; those of which there are rows.

    Args:
        results: What the file holds.
        path: The file; the pictures have its name with endings of their own, the server's with `-server` before them.

    Returns:
        The pictures' paths.

    Raises:
        UnavailableError: matplotlib is not installed, or there is nothing to draw.
    """
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise UnavailableError(
            "matplotlib is not installed: pip install 'aiostream-cuda[bench]', then bench --plot"
        ) from error
    rows, served = _rows(results), server_plot.rows_of(results)
    loop = next((loop for loop in LOOPS if any(row["loop"] == loop for row in rows)), None)
    if loop is None and not served:
        raise UnavailableError(
            "there are no rows of the measures latency, throughput and server in it"
        )
    pictures = []
    # The figure's text becomes outlines, and its marks are named by a constant: the same results
    # give the same file everywhere.
    with matplotlib.rc_context(
        {
            "font.size": 10,
            "svg.hashsalt": "aiostream",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        if loop is not None:
            figure = figures.Figure(figsize=(14, 5.6), layout="constrained")
            _fill(figure, [row for row in rows if row["loop"] == loop], results, loop)
            pictures += _save(figure, path)
        if served:
            figure = figures.Figure(figsize=(16, 5.6), layout="constrained")
            server_plot.fill(figure, served, results)
            pictures += _save(figure, path.with_stem(f"{path.stem}-server"))
    return pictures


def _save(figure: Any, path: Path) -> list[Path]:
    pictures = [path.with_suffix(".png"), path.with_suffix(".svg")]
    figure.savefig(pictures[0], dpi=150)
    figure.savefig(pictures[1], metadata={"Date": None})
    return pictures


def _rows(results: dict[str, Any]) -> list[Row]:
    """The tables' rows; where only the goals were measured, theirs of steady work."""
    known = [row for row in results["rows"] if row["peer"] in STYLES]
    tables = [row for row in known if row["set"] in ("latency", "throughput")]
    return tables or [
        row
        for row in known
        if (row["measure"] == "latency" and row["load"] == "steady")
        or (row["measure"] == "throughput" and not row["neighbours"])
    ]


def _fill(figure: Any, rows: Sequence[Row], results: dict[str, Any], loop: str) -> None:
    where = f"{machine(results['environment'])}, {loop}; {results['date'][:10]}"
    if results["simulator"]:
        where = f"ON THE SIMULATOR: these figures say nothing about a GPU. {where}"
    figure.suptitle(f"Waiting for the GPU from Python\n{where}", fontsize=11)
    latency, cpu, rate = figure.subplots(1, 3)
    waits = [row for row in rows if row["measure"] == "latency" and not row["python_busy"]]
    _lines(
        latency, waits, "length_ns", lambda row: (row["median_us"], row["low_us"], row["high_us"])
    )
    _axes(
        latency,
        waits,
        "length_ns",
        duration,
        "kernel",
        "us from the kernel's end to resumption (median)",
    )
    _lines(cpu, waits, "length_ns", lambda row: (max(row["cpu_percent"], 0.01),) * 3)
    _axes(cpu, waits, "length_ns", duration, "kernel", "process's CPU while waiting, % of one core")
    lengths = {row["length_ns"] for row in rows if row["measure"] == "throughput"}
    length = BUSIEST if BUSIEST in lengths else max(lengths, default=0)
    busy = [row for row in rows if row["measure"] == "throughput" and row["length_ns"] == length]
    _lines(rate, busy, "streams", lambda row: (row["per_second"], row["low"], row["high"]))
    _axes(
        rate,
        busy,
        "streams",
        str,
        f"streams, each with kernels of {duration(length)}",
        "completions per second (median)",
    )
    handles = {line.get_label(): line for panel in (latency, rate) for line in panel.get_lines()}
    names = [name for name in STYLES if name in handles]
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside lower center",
        ncols=len(names),
        frameon=False,
    )


def _lines(
    panel: Any, rows: Sequence[Row], key: str, figures: Callable[[Row], tuple[float, float, float]]
) -> None:
    """A line for each peer, with the 95 % interval of each median behind it."""
    for name, style in STYLES.items():
        some = sorted((row for row in rows if row["peer"] == name), key=lambda row: float(row[key]))
        if not some:
            continue
        across = [row[key] for row in some]
        middle, low, high = zip(*map(figures, some), strict=True)
        panel.plot(across, middle, label=name, markersize=5, **{"linewidth": 1.5, **style})
        panel.fill_between(across, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _axes(
    panel: Any, rows: Sequence[Row], key: str, text: Callable[[int], str], across: str, up: str
) -> None:
    """Both logarithmic; every setting that was measured has its mark."""
    settings = sorted({row[key] for row in rows})
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(
        settings,
        [text(setting) for setting in settings],
        fontsize=9,
        rotation=45 if key == "length_ns" else 0,
    )
    panel.minorticks_off()
    panel.yaxis.set_major_locator(
        importlib.import_module("matplotlib.ticker").LogLocator(subs=(1.0, 2.0, 5.0))
    )
    panel.yaxis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"
    )
    panel.grid(axis="y", color="#dddddd", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
