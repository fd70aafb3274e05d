"""The results as a file and as tables."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import aiostream
from aiostream import Device, _driver
from aiostream.bench.latency import LOADS, duration
from aiostream.bench.runner import Row, Runner

FORMAT = 1
SIMULATED = "Measured on the simulator, which has no GPU: these figures say nothing about one."
PACKAGES = (
    "cuda-bindings",
    "anyio",
    "uvloop",
    "trio",
    "torch",
    "numpy",
    "numba",
    "numba-cuda",
    "fastapi",
    "uvicorn",
)
TAILS = ("p50", "p90", "p99", "p99.9", "max")
KEYS = (
    "set",
    "measure",
    "loop",
    "peer",
    "load",
    "length_ns",
    "python_busy",
    "streams",
    "neighbours",
    "pending",
    "by",
    "pattern",
)


def describe(
    runner: Runner, options: dict[str, Any], earlier: dict[str, Any] | None
) -> dict[str, Any]:
    """The results to begin with: where and with what is measured, and what an earlier run has left.

    Args:
        runner: The peers.
        options: What was asked for.
        earlier: The results to which these are added.
    """
    results: dict[str, Any] = {"format": FORMAT, "simulator": runner.simulator}
    if runner.simulator:
        results["note"] = SIMULATED
    results["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    results["runs"] = [*(earlier["runs"] if earlier else ()), {"date": results["date"], **options}]
    results["environment"] = _environment()
    results["peers"] = {name: peer.summary for name, peer in runner.peers.items()}
    results["not_run"] = []
    results["goals"] = []
    results["rows"] = earlier["rows"] if earlier else []
    return results


def _environment() -> dict[str, Any]:
    cuda = _driver.driver_version()
    found: dict[str, Any] = {
        "gpu": Device(0).name,
        "driver": _driver_release(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "aiostream": aiostream.__version__,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
    }
    cupy = [name for name in ("cupy", "cupy-cuda12x", "cupy-cuda13x") if _version(name)]
    return {**found, **{name: _version(name) for name in (*PACKAGES, *cupy)}}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver_release() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    return next((word for word in text.split() if word[:1].isdigit() and "." in word), None)


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None
    )


def key_of(row: Row) -> tuple[Any, ...]:
    """What a row is of: a later one of the same key replaces it."""
    return tuple(row.get(key) for key in KEYS)


def add(results: dict[str, Any], rows: Iterable[Row]) -> None:
    """Adds rows, and replaces those of the same key."""
    known = {key_of(row): row for row in results["rows"]}
    known.update((key_of(row), row) for row in rows)
    results["rows"] = list(known.values())


def write(results: dict[str, Any], path: Path) -> None:
    """Writes the file: one line for each row, and whole or not at all, for the run may be killed at any time."""
    head = json.dumps(
        {key: value for key, value in results.items() if key not in ("rows", "goals")}, indent=1
    )
    lines = [head[: head.rindex("}")].rstrip()]
    for key in ("goals", "rows"):
        text_rows = ",\n  ".join(
            json.dumps(text_row, separators=(",", ":")) for text_row in results[key]
        )
        lines.append(f' "{key}": [\n  {text_rows}\n ]' if text_rows else f' "{key}": []')
    whole = ",\n".join(lines) + "\n}\n"
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(whole)
    partial.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Reads such a file.

    Raises:
        ValueError: It is none.
    """
    results = json.loads(path.read_text())
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ValueError(f"{path} is no results file of this version (format {FORMAT})")
    return results


# ------------------------------------------------------------------------------------------------ tables


def tables(results: dict[str, Any]) -> str:
    """Everything as text."""
    environment = results["environment"]
    parts = [
        f"{machine(environment)}, cuda-bindings {environment['cuda-bindings']}; {results['date']}"
    ]
    if results["simulator"]:
        parts.append(SIMULATED)
    for of_goals in (False, True):
        rows = [row for row in results["rows"] if (row["set"] == "goals") == of_goals]
        if rows and of_goals:
            parts.append("The settings of the goals:")
        parts += (
            _latency(rows)
            + _throughput(rows)
            + _idle(rows)
            + _lag(rows)
            + _small(rows)
            + _tails(rows)
        )
        parts += _server(rows) + _torch(rows)
    if results["goals"]:
        parts.append(_goals(results["goals"]))
    if results["not_run"]:
        lines = [
            f"  {entry['peer']}{' on ' + entry['loop'] if entry['loop'] else ''}: {entry['reason']}"
            for entry in results["not_run"]
        ]
        parts.append("\n".join(["Not run:", *lines]))
    return "\n\n".join(parts)


def machine(environment: dict[str, Any]) -> str:
    """The GPU, its driver and the host, in one line."""
    driver = f"driver {environment['driver']}, " if environment["driver"] else ""
    cuda = f"{driver}CUDA {environment['cuda']}"
    return f"{environment['gpu']}, {cuda}, {environment['cores']} cores, Python {environment['python']}"


def grid(title: str, header: Sequence[str], text_rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right."""
    widths = [
        max(len(text_row[at]) for text_row in (header, *text_rows)) for at in range(len(header))
    ]

    def line(text_row: Sequence[str]) -> str:
        first, *others = (
            f"{text:<{width}}" if at == 0 else f"{text:>{width}}"
            for at, (text, width) in enumerate(zip(text_row, widths, strict=True))
        )
        return "  ".join((first, *others)).rstrip()

    return "\n".join([title, line(header), "-" * len(line(header)), *map(line, text_rows)])


def _matrix(title: str, rows: Sequence[Row], column: Any, text: Any) -> str:
    """Peers down, settings across."""
    columns = list(dict.fromkeys(column(row) for row in rows))
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    known = {(row["peer"], column(row)): text(row) for row in rows}
    text_rows = [[peer, *(known.get((peer, name), "-") for name in columns)] for peer in peers]
    return grid(title, ["", *columns], text_rows)


def _by_loop(rows: Sequence[Row], **keys: Any) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if all(row.get(key) == value for key, value in keys.items()):
            found.setdefault(row["loop"], []).append(row)
    return found


def _latency(rows: Sequence[Row]) -> list[str]:
    parts = []
    for load, busy in (*((load, False) for load in LOADS), ("steady", True)):
        for loop, some in _by_loop(rows, measure="latency", load=load, python_busy=busy).items():
            title = f"Latency over the kernel's length in us (95 % interval of the median), CPU in % of a core; {load}, {loop}"
            title += ", another Python thread computing" if busy else ""
            parts.append(_matrix(title, some, _latency_column, _latency_text))
    return parts


def _latency_column(row: Row) -> str:
    return duration(row["length_ns"]) if row["length_ns"] else "50 us to 50 ms"


def _latency_text(row: Row) -> str:
    return f"{row['median_us']:.0f} ({row['low_us']:.0f}-{row['high_us']:.0f}) {row['cpu_percent']:.3g}%"


def _throughput(rows: Sequence[Row]) -> list[str]:
    parts = []
    settings = dict.fromkeys(
        (row["length_ns"], row["neighbours"]) for row in rows if row["measure"] == "throughput"
    )
    for length, neighbours in settings:
        for loop, some in _by_loop(
            rows, measure="throughput", length_ns=length, neighbours=neighbours
        ).items():
            title = f"Completions per second, and CPU us of each; kernels of {duration(length)}, by streams; {loop}"
            title += f"; beside {neighbours} x 1.2 s" if neighbours else ""
            parts.append(_matrix(title, some, lambda row: str(row["streams"]), _throughput_text))
    return parts


def _throughput_text(row: Row) -> str:
    return f"{row['per_second']:,.0f} / {row['cpu_us']:.3g}" if row["cpu_us"] is not None else "0"


def _idle(rows: Sequence[Row]) -> list[str]:
    parts = []
    for loop, some in _by_loop(rows, measure="idle").items():
        title = (
            f"GPU idle added on the awaited stream in us (95 % interval), after a kernel of; {loop}"
        )
        parts.append(_matrix(title, some, _idle_column, _idle_text))
    return parts


def _idle_column(row: Row) -> str:
    return f"{duration(row['length_ns'])}{', Python busy' if row['python_busy'] else ''}"


def _idle_text(row: Row) -> str:
    if "added_us" not in row:
        return f"none of {row['late']} in time"
    return f"{row['added_us']:.1f} ({row['low_us']:.1f}-{row['high_us']:.1f})"


def _lag(rows: Sequence[Row]) -> list[str]:
    parts = []
    for loop, some in _by_loop(rows, measure="lag").items():
        header = ["", "p50", "p99", "p99.9", "wake-ups/s", "samples"]
        text_rows = [
            [
                row["peer"],
                *(f"{row[key]:.0f}" for key in ("p50_us", "p99_us", "p999_us")),
                f"{row['wake_ups_per_second']:,}",
                f"{row['samples']:,}",
            ]
            for row in some
        ]
        title = f"Loop lag in us beside {some[0]['streams']} streams x {duration(some[0]['length_ns'])}; {loop}"
        parts.append(grid(title, header, text_rows))
    return parts


def _tails(rows: Sequence[Row]) -> list[str]:
    """Of the measures of late ends. Those on one core have tables of their own."""
    one_core = [row for row in rows if row["set"] == "one-core"]
    others = [row for row in rows if row["set"] != "one-core"]
    return [
        *_patterns(others),
        *_mixed(others),
        *_fairness(others),
        *_patterns(one_core),
        *_fairness(one_core),
    ]


def _where(loop: str, rows: Sequence[Row]) -> str:
    return f"{loop}, all on one core" if rows[0]["set"] == "one-core" else loop


def _patterns(rows: Sequence[Row]) -> list[str]:
    parts = []
    for loop, some in _by_loop(rows, measure="patterns").items():
        title = f"Lateness in us by pattern of work (lower is better), CPU in % of a core while waiting; {_where(loop, some)}"
        header = ["", *TAILS, "CPU %", "samples"]
        parts.append(_grouped(title, header, some, lambda row: str(row["pattern"]), _patterns_text))
    return parts


def _patterns_text(row: Row) -> list[str]:
    return [*_tails_text(row), f"{row['cpu_percent']:.3g}", f"{row['samples']:,}"]


def _tails_text(row: Row) -> list[str]:
    return [f"{row[key]:,.0f}" for key in ("p50_us", "p90_us", "p99_us", "p999_us", "max_us")]


def _mixed(rows: Sequence[Row]) -> list[str]:
    parts = []
    for loop, some in _by_loop(rows, measure="mixed").items():
        title = f"Lateness in us beyond kernels of 0.2 to 20 ms (lower is better), a task for each stream; {loop}"
        header = ["", *TAILS, "per second", "95 % interval", "cores"]
        parts.append(
            _grouped(title, header, some, lambda row: f"{row['streams']} streams", _mixed_text)
        )
    return parts


def _mixed_text(row: Row) -> list[str]:
    return [*_tails_text(row), *_rate_text(row)]


def _rate_text(row: Row) -> list[str]:
    return [
        f"{row['per_second']:,.0f}",
        f"{row['low']:,.0f} to {row['high']:,.0f}",
        f"{row['cores']:.2f}",
    ]


def _fairness(rows: Sequence[Row]) -> list[str]:
    parts = []
    for loop, some in _by_loop(rows, measure="fairness").items():
        title = f"Completions of a task in a window, and lateness in us of a 1 ms timer; {some[0]['streams']} x empty kernels"
        header = [
            "",
            "fewest",
            "most",
            "ratio",
            "timer p50",
            "p99",
            "max",
            "per second",
            "95 % interval",
            "cores",
        ]
        parts.append(
            grid(f"{title}; {_where(loop, some)}", header, [_fairness_text(row) for row in some])
        )
    return parts


def _fairness_text(row: Row) -> list[str]:
    turns = [row["peer"], f"{row['fewest']:,}", f"{row['most']:,}", f"{row['ratio']:.2f}"]
    return [
        *turns,
        *(f"{row['timer'][key]:,.0f}" for key in ("p50_us", "p99_us", "max_us")),
        *_rate_text(row),
    ]


def _server(rows: Sequence[Row]) -> list[str]:
    parts = []
    header = [
        "",
        "requests/s",
        "95 % interval",
        "p50",
        "p99",
        "beyond",
        "/ping p99",
        "CPU us",
        "cores",
        "client",
        "not served",
    ]
    for some in _by_loop(rows, measure="server").values():
        title = f"A server's requests: ms, also p99 beyond the kernel, and the process's CPU us for each; {some[0]['server']}"
        parts.append(
            _grouped(title, [*header, "samples"], some, lambda row: str(row["load"]), _server_text)
        )
    return parts


def _server_text(row: Row) -> list[str]:
    times = [
        _ms(row, "p50_us"),
        _ms(row, "p99_us"),
        _ms(row["beyond"], "p99_us"),
        _ms(row["ping"], "p99_us"),
    ]
    # An open loop's client polls all the time: what says something of it is how late it sends.
    client = f"{_ms(row['client_late'], 'p99_us')} ms" if row["client_late"] else _client(row)
    return [
        *_request_rate(row),
        *times,
        *_cost(row),
        client,
        f"{row['unserved']:,}",
        f"{row['samples']:,}",
    ]


def _torch(rows: Sequence[Row]) -> list[str]:
    parts = []
    header = [
        "",
        "requests/s",
        "95 % interval",
        "p50",
        "p99",
        "/ping p99",
        "CPU us",
        "cores",
        "client",
        "samples",
    ]
    for some in _by_loop(rows, measure="torch").values():
        title = (
            f"A torch server's requests: ms, and the process's CPU us for each; {some[0]['server']}"
        )
        parts.append(_grouped(title, header, some, lambda row: str(row["load"]), _torch_text))
    return parts


def _torch_text(row: Row) -> list[str]:
    times = [_ms(row, "p50_us"), _ms(row, "p99_us"), _ms(row["ping"], "p99_us")]
    return [*_request_rate(row), *times, *_cost(row), _client(row), f"{row['samples']:,}"]


def _ms(tails: Row | None, key: str) -> str:
    return f"{tails[key] / 1e3:,.2f}" if tails else "-"


def _request_rate(row: Row) -> list[str]:
    return [f"{row['per_second']:,.0f}", f"{row['low']:,.0f} to {row['high']:,.0f}"]


def _cost(row: Row) -> list[str]:
    return [f"{row['cpu_us']:.1f}" if row["cpu_us"] is not None else "-", f"{row['cores']:.2f}"]


def _client(row: Row) -> str:
    return f"{row['client_cores']:.2f} cores"


def _grouped(title: str, header: Sequence[str], rows: Sequence[Row], group: Any, text: Any) -> str:
    """A line with each setting's name, and a line for each peer below it."""
    text_rows: list[list[str]] = []
    for name in dict.fromkeys(group(row) for row in rows):
        text_rows.append([name, *[""] * (len(header) - 1)])
        text_rows += [[f"  {row['peer']}", *text(row)] for row in rows if group(row) == name]
    return grid(title, header, text_rows)


def _small(rows: Sequence[Row]) -> list[str]:
    parts = []
    for loop, some in _by_loop(rows, measure="pending").items():
        title = f"CPU us per completion with so many pending; {loop}"
        parts.append(
            _matrix(
                title, some, lambda row: f"{row['pending']:,}", lambda row: f"{row['cpu_us']:.1f}"
            )
        )
    memory = [row for row in rows if row["measure"] == "memory"]
    if memory:
        title = f"Bytes for each of {memory[0]['pending']:,} pending waits, task and future included; asyncio"
        parts.append(
            _matrix(title, memory, lambda row: row["by"], lambda row: f"{row['bytes']:,.0f}")
        )
    imports = [row for row in rows if row["measure"] == "import"]
    if imports:
        text_rows = [[row["peer"], f"{row['median_ms']:.1f}"] for row in imports]
        parts.append(grid("Import time in ms", ["", "median"], text_rows))
    return parts


def _goals(goals: Sequence[Row]) -> str:
    header = ["Goal", "measured", "95 % interval", "goal", "", "samples"]
    text_rows: list[list[str]] = []
    for goal in goals:
        unit = goal["unit"] if goal["unit"] in ("x", "%") else f" {goal['unit']}"
        measured = "-" if goal["measured"] is None else f"{goal['measured']:.3g}{unit}"
        interval = "-" if goal["measured"] is None else f"{goal['low']:.3g} to {goal['high']:.3g}"
        bound = f"{goal['relation']} {goal['bound']:.4g}{unit}"
        verdict = (
            goal["verdict"] if goal["sure"] or goal["measured"] is None else f"{goal['verdict']}?"
        )
        text_rows.append(
            [
                f"{goal['group']}: {goal['what']}",
                measured,
                interval,
                bound,
                verdict,
                str(goal["samples"]),
            ]
        )
    counts = {
        verdict: sum(goal["verdict"] == verdict for goal in goals)
        for verdict in ("met", "missed", "not measured")
    }
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{grid('Goals', header, text_rows)}\n{summary} (with a question mark: the interval has the goal within it)"
