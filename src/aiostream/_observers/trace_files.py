"""Writes a trace as JSON for Perfetto, and as one HTML file with a timeline.

This module knows no stream and no loop. It gets the awaits as `trace.Await` has them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiostream.trace import Await

# What both files have of an await: its names, and its times.
_NAMES = ("call", "stream", "task", "loop", "outcome")
_TIMES = ("launched", "gpu_began", "gpu_ended", "noticed", "resumed")
_GPU_PROCESS = 1  # Perfetto's process of all streams; the loops have the numbers from 2 on
_DATA = '"the data of the trace"'  # in the template


@dataclass(frozen=True)
class Trace:
    """What is written."""

    awaits: Sequence[Await]
    dropped: int
    uncertainty: float  # of times on the GPU, in nanoseconds
    began: int  # by `time.perf_counter_ns()`
    began_at: float  # by `time.time()`
    ended: int


@contextlib.contextmanager
def errors_name(path: str | os.PathLike[str], text: str = "{}") -> Iterator[None]:
    """Has an `OSError` name the file that the user knows, and not a temporary one.

    Args:
        path: The file.
        text: What it says, with a place for the reason.
    """
    try:
        yield
    except OSError as error:  # the new one is of the same class, which Python finds by the number
        raise OSError(error.errno, text.format(error.strerror), os.fspath(path)) from None


def require_writable(path: Path) -> None:
    """Refuses a path that cannot be written now, and not after an hour.

    Raises:
        OSError: The file cannot be written.
    """
    with errors_name(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        tempfile.TemporaryFile(dir=path.parent).close()


def pack(spans: Iterable[tuple[Hashable, int, int]]) -> list[int]:
    """Gives each span a lane of its group, so that no two spans of a lane overlap.

    Args:
        spans: Group, beginning and end, by their beginnings.

    Returns:
        The number of the lane of each span, within its group.
    """
    lanes: dict[Hashable, list[int]] = {}  # by group, the end of each lane
    chosen = []
    for group, began, ended in spans:
        ends = lanes.setdefault(group, [])
        lane = next((n for n, end in enumerate(ends) if end <= began), len(ends))
        ends[lane : lane + 1] = [ended]
        chosen.append(lane)
    return chosen


# ------------------------------------------------------------------------ Perfetto


def perfetto(trace: Trace) -> str:
    """Returns Chrome's trace format ("JSON object format"), which ui.perfetto.dev reads.

    Each loop is a process, whose threads are lanes of awaits that do not overlap. One more process
    has a thread for each stream, with its work on the GPU. An arrow leads from the work to the
    await that it ended.
    """
    events = [*_host_events(trace), *_gpu_events(trace)]
    # Metadata first, then by time. Of what begins together the longer comes first, because
    # Perfetto nests what comes later. An arrow's end comes last, because Perfetto drops an end
    # without a beginning.
    events.sort(key=lambda e: (e["ph"] != "M", e.get("ts", 0), -e.get("dur", 0), e["ph"] == "f"))
    facts = {
        "awaits": len(trace.awaits),
        "dropped": trace.dropped,
        "gpu_uncertainty_us": round(trace.uncertainty / 1000, 1),
        "began_at": trace.began_at,
        "process": os.getpid(),
    }
    # One by one, because the encoder keeps the GIL: 50,000 awaits at once held it for a second.
    encode = json.JSONEncoder(separators=(",", ":")).encode
    text = ",".join(map(encode, events))
    return f'{{"displayTimeUnit":"ns","otherData":{encode(facts)},"traceEvents":[{text}]}}'


def _host_events(trace: Trace) -> Iterable[dict[str, Any]]:
    # A nanosecond longer, so that what happens at an await's very end is still inside of it.
    ends = [(trace.ended if each.resumed is None else each.resumed) + 1 for each in trace.awaits]
    lanes = pack(
        (each.loop, each.launched, end) for each, end in zip(trace.awaits, ends, strict=True)
    )
    loops = {name: n for n, name in enumerate(dict.fromkeys(e.loop for e in trace.awaits), 2)}
    for name, number in loops.items():
        yield _name("process_name", number, 0, f"loop in {name}")
    for name, lane in sorted({(e.loop, lane) for e, lane in zip(trace.awaits, lanes, strict=True)}):
        yield _name("thread_name", loops[name], _thread(loops[name], lane), f"awaits {lane + 1}")
    for number, (each, lane, end) in enumerate(zip(trace.awaits, lanes, ends, strict=True)):
        place = {"pid": loops[each.loop], "tid": _thread(loops[each.loop], lane)}
        named = {"cat": "await", "name": f"{each.call} ({each.task})"}
        span = _span(trace, each.launched, end)
        color = {"cname": "terrible"} if each.outcome == "blocked" else {}
        yield {**span, **named, **color, **place, "args": _arguments(trace, each)}
        stages = _stages(each)
        if each.noticed is not None:
            stages.append(("resumes", each.noticed))
        for (stage, began), (_, stage_end) in itertools.pairwise([*stages, ("", end)]):
            yield {**_span(trace, began, stage_end), "cat": "stage", "name": stage, **place}
        if _has_arrow(each):
            yield {"ph": "f", "bp": "e", **_arrow(trace, number, stages[-1][1]), **place}


def _stages(each: Await) -> list[tuple[str, int]]:
    # A task that finds the wait over may give the loop a turn, as each await on trio must. That
    # turn is no stage of the wait, and spans of a lane must nest.
    end = each.noticed
    return [(stage, began) for stage, began in each.stages if end is None or began < end]


def _gpu_events(trace: Trace) -> Iterable[dict[str, Any]]:
    known = [(n, each) for n, each in enumerate(trace.awaits) if each.gpu_ended is not None]
    # Marks of one stream are in its order. Those of two awaits at the same place may cross by the
    # rounding, so they get lanes too.
    known.sort(key=lambda item: item[1].gpu_began or item[1].gpu_ended or 0)
    lanes = pack((e.stream, e.gpu_began or e.gpu_ended or 0, e.gpu_ended or 0) for _, e in known)
    numbers: dict[tuple[str, int], int] = {}
    if known:
        yield _name("process_name", _GPU_PROCESS, 0, "streams on the GPU")
    for (number, each), lane in zip(known, lanes, strict=True):
        thread = numbers.get((each.stream, lane))
        if thread is None:
            thread = _thread(_GPU_PROCESS, len(numbers))
            numbers[each.stream, lane] = thread
            yield _name("thread_name", _GPU_PROCESS, thread, each.stream)
        place = {"pid": _GPU_PROCESS, "tid": thread}
        assert each.gpu_ended is not None
        began = each.gpu_ended if each.gpu_began is None else each.gpu_began
        if each.gpu_began is None:
            shape: dict[str, Any] = {"ph": "i", "s": "t", "ts": _micro(trace, began)}
        else:
            shape = _span(trace, began, each.gpu_ended)
        yield {**shape, "cat": "gpu", "name": f"{each.call} ({each.task})", **place}
        if _has_arrow(each):
            # A nanosecond before the end: at the end the span is over, and a reader would take the
            # next one, such as the work that follows at once.
            time = max(began, each.gpu_ended - 1)
            yield {"ph": "s", **_arrow(trace, number, time), **place}


def _has_arrow(each: Await) -> bool:
    """Whether the loop noticed the end of the work. A cancelled or failed await may not."""
    if each.gpu_ended is None or each.noticed is None:
        return False
    return each.gpu_ended <= each.noticed


def _arrow(trace: Trace, number: int, time: int) -> dict[str, Any]:
    """One end of an arrow, which leads from the work on the GPU to the await that `resumes`.

    Perfetto draws an arrow from the span that began first. So it must not lead to the await itself,
    which usually began before the work.
    """
    return {"cat": "completion", "name": "complete", "id": number, "ts": _micro(trace, time)}


def _thread(process: int, lane: int) -> int:
    """Its number, which no process has: Perfetto calls such a thread the main thread."""
    return 10_000 * process + lane + 1


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _arguments(trace: Trace, each: Await) -> dict[str, Any]:
    times = {
        f"{name}_us": _micro(trace, value)
        for name in _TIMES
        if (value := getattr(each, name)) is not None
    }
    more = {} if each.error is None else {"error": each.error}
    return {"stream": each.stream, "task": each.task, "outcome": each.outcome, **times, **more}


def _micro(trace: Trace, time: int) -> float:
    return (time - trace.began) / 1000


def _span(trace: Trace, began: int, ended: int) -> dict[str, Any]:
    time = _micro(trace, began)
    # The difference of two rounded times, so that what is nested ends where its parent ends.
    return {"ph": "X", "ts": time, "dur": max(0.0, round(_micro(trace, ended) - time, 3))}


# ------------------------------------------------------------------------ HTML


def html(trace: Trace) -> str:
    """Returns a page that needs no network, with the data and the script that draws it."""
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    def micro(time: int | None) -> float | None:
        return None if time is None else round((time - trace.began) / 1000, 1)

    rows = [
        [
            *(number(getattr(each, name)) for name in _NAMES),
            *(micro(getattr(each, name)) for name in _TIMES),
            [[stage == "polls", micro(began)] for stage, began in _stages(each)],
            *([] if each.error is None else [each.error]),
        ]
        for each in trace.awaits
    ]
    data = {
        "names": list(names),
        "awaits": rows,
        "dropped": trace.dropped,
        "uncertainty": round(trace.uncertainty / 1000, 1),
        "began": trace.began_at,
        "length": micro(trace.ended),
    }
    # A "</script>" in the name of a task would end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files(__package__).joinpath("timeline.html").read_text(encoding="utf-8")
    return template.replace(_DATA, text, 1)
