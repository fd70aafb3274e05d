"""`python -m aiostream demo`: awaits six streams at once, and draws what happened as a timeline.

A heartbeat task runs meanwhile, and shows that the loop is free. The GPU itself says when work ran:
a kernel before the work and one after it write the GPU's clock into pinned memory. More such
stamps, before and after the timeline, map that clock to the host's.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio

import aiostream
from aiostream import CudaError, Device, NoDriverError, Stream, _driver, _kernels, trace

HEARTBEAT = 0.005  # seconds

# For each stream, the steps of its task. In a step it launches these kernels (lengths in ms) at
# once, and awaits the stream.
LOADS: dict[str, tuple[tuple[int, ...], ...]] = {
    "5 ms x 10": ((5,),) * 10,
    "10 ms x 6": ((10,),) * 6,
    "20 ms x 4": ((20,),) * 4,
    "40 ms x 2": ((40,),) * 2,
    "5 10 20 40 ms": ((5,), (10,), (20,), (40,)),
    "bursts": ((5, 5, 5, 5), (10, 10), (5, 10, 20)),
}
PROBE = """
import aiostream
try:
    aiostream.Device(0)
except aiostream.NoDriverError:
    raise SystemExit(3)
"""


@dataclass
class Step:
    """One await of one stream. All times are nanoseconds of the host's `perf_counter_ns`."""

    began: float
    ended: float
    resumed: float


@dataclass
class Record:
    """What happened."""

    started: int = 0
    ended: int = 0
    beats: list[int] = field(default_factory=list)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    uncertainty: float = 0.0


def run(loop: str, html: str | None = None) -> int:
    """Runs the demo on `loop`, writes the timeline to `html` too, and returns the exit code."""
    try:
        where = _choose_driver()
        version = _driver.driver_version()
        print(f"{where}.\n{Device(0).name}, CUDA {version // 1000}.{version % 1000 // 10}.")
        print(f"{len(LOADS)} streams, each with its task, in one {loop} loop with a heartbeat.\n")
        options = {"use_uvloop": True} if loop == "uvloop" else {}
        record = anyio.run(
            _everything,
            html,
            backend="trio" if loop == "trio" else "asyncio",
            backend_options=options,
        )
    except (CudaError, NoDriverError) as error:
        print(f"The demo has failed: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The timeline cannot be written: {error}", file=sys.stderr)
        return 1
    print("\n".join(_drawing(record)))
    if html is not None:
        print(f"The same as a timeline for the browser: {html}")
    return 0 if _print_ledger() else 1


def _choose_driver() -> str:
    """Chooses the GPU if there is one, and otherwise the simulator. Returns its choice, in words.

    Another process looks for the GPU, because a process keeps the first driver that it loads.
    """
    if _driver.simulator_is_wanted():
        return "On the simulator, as AIOSTREAM_SIMULATOR asks; its times say nothing about a GPU"
    context_id = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False
    )
    if context_id.returncode == 0:
        return "On the GPU"
    if context_id.returncode != 3:
        raise SystemExit(context_id.stderr)
    from aiostream import simulator

    # A variable that hides this machine's GPUs would also hide the simulated one.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    simulator.install()
    return "No GPU here, so this runs on the simulator, and its times say nothing about a GPU"


# ---------------------------------------------------------------------------------- what is awaited


async def _everything(html: str | None) -> Record:
    record = Record()
    count = sum(len(steps) for steps in LOADS.values())
    with _pinned(2 * count + 1) as words:
        async with contextlib.AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(Stream()) for _ in LOADS]
            # What happens only once, such as loading the kernels, must not show in the timeline.
            for stream in streams:
                _kernels.spin(stream, 0.0)
                await stream.synchronize_async()
            clock = GpuClock(streams[0], words, 2 * count)
            clock.calibrate()
            with contextlib.nullcontext() if html is None else trace.record(html):
                await _timeline(record, streams, words)
            clock.calibrate()
        record.uncertainty = clock.uncertainty
        at = 0
        for steps in record.steps.values():
            for step in steps:
                step.began, step.ended = clock.to_host(words[at]), clock.to_host(words[at + 1])
                at += 2
    return record


async def _timeline(record: Record, streams: list[Stream], words: Any) -> None:
    record.started = time.perf_counter_ns()
    async with anyio.create_task_group() as outer:
        outer.start_soon(_heartbeat, record.beats)
        async with anyio.create_task_group() as inner:
            at = 0
            for stream, (name, load) in zip(streams, LOADS.items(), strict=True):
                steps = record.steps[name] = []
                inner.start_soon(_one_stream, stream, load, steps, words, at, name=name)
                at += 2 * len(load)
        record.ended = time.perf_counter_ns()
        outer.cancel_scope.cancel()


async def _one_stream(
    stream: Stream, load: tuple[tuple[int, ...], ...], steps: list[Step], words: Any, at: int
) -> None:
    for kernels in load:
        _kernels.stamp(stream, ctypes.addressof(words) + 8 * at)
        for milliseconds in kernels:
            _kernels.spin(stream, milliseconds / 1000)
        _kernels.stamp(stream, ctypes.addressof(words) + 8 * (at + 1))
        await stream.synchronize_async()
        steps.append(Step(0, 0, time.perf_counter_ns()))
        at += 2


async def _heartbeat(beats: list[int]) -> None:
    while True:
        beats.append(time.perf_counter_ns())
        await anyio.sleep(HEARTBEAT)


# ---------------------------------------------------------------------------------- the GPU's clock


@contextlib.contextmanager
def _pinned(count: int) -> Iterator[Any]:
    """Memory of 64-bit words, which the host and each device see at the same address."""
    with Device(0).primary_context.as_current():
        pointer = int(_driver.call("cuMemHostAlloc", 8 * count, 3))  # portable, mapped
    try:
        yield (ctypes.c_uint64 * count).from_address(pointer)
    finally:
        with Device(0).primary_context.as_current():
            _driver.call("cuMemFreeHost", pointer)


class GpuClock:
    """Maps times of the GPU's clock to the host's.

    The host sees a stamp after the GPU took it. So the smallest distance of many is the best. The
    class assumes that the distance changes evenly between two calibrations.
    """

    def __init__(self, stream: Stream, words: Any, at: int) -> None:
        self._stream = stream
        self._words = words
        self._at = at
        self._marks: list[tuple[int, int]] = []  # (the GPU's time, the host's less the GPU's)
        # Nanoseconds: the GPU took a stamp at most so long before the host saw it.
        self.uncertainty = 0.0

    def calibrate(self, tries: int = 50) -> None:
        """Takes stamps on the idle stream, and waits for each. Blocks for about a millisecond."""
        seen = [self._one() for _ in range(tries)]
        self._marks.append(min((mark for mark, _ in seen), key=lambda mark: mark[1]))
        self.uncertainty = max(self.uncertainty, min(span for _, span in seen))

    def _one(self) -> tuple[tuple[int, int], int]:
        words, at = self._words, self._at
        words[at] = 0
        before = time.perf_counter_ns()
        _kernels.stamp(self._stream, ctypes.addressof(words) + 8 * at)
        while not words[at]:
            if time.perf_counter_ns() > before + 5_000_000_000:
                raise SystemExit(
                    "The GPU took no stamp in 5 seconds: is it busy with another program's work?"
                )
        after = time.perf_counter_ns()
        return (words[at], after - words[at]), after - before

    def to_host(self, gpu: int) -> float:
        """The host's time of a stamp."""
        (first, offset), (last, offset_then) = self._marks[0], self._marks[-1]
        drift = (offset_then - offset) * (gpu - first) / max(1, last - first)
        return gpu + offset + drift


# ------------------------------------------------------------------------------------ what is drawn


def _drawing(record: Record) -> list[str]:
    bars, arrow, beat = ("█▒", "▲", "•") if _can_print("█▒▲•") else ("#=", "^", "'")
    label = max(len(name) for name in LOADS) + 1
    width = max(60, min(100, shutil.get_terminal_size((100, 24)).columns)) - label - 6
    length = (
        max([record.ended, *(step.ended for steps in record.steps.values() for step in steps)])
        - record.started
    )

    def column(when: float) -> int:
        return min(width - 1, max(0, int((when - record.started) / length * width)))

    lines = [f"{'':{label + 5}}{_axis(length / 1e6, width)}".rstrip()]
    for name, steps in record.steps.items():
        gpu, task = [" "] * width, [" "] * width
        for number, step in enumerate(steps):
            first, last = column(step.began), column(step.ended)
            gpu[first : last + 1] = bars[number % 2] * (last + 1 - first)
            task[column(step.resumed)] = arrow
        lines.append(f"{name:{label}}{'GPU':5}{_colour('36', ''.join(gpu).rstrip())}")
        lines.append(f"{'':{label}}{'task':5}{_colour('32', ''.join(task).rstrip())}")
    row = [" "] * width
    for when in record.beats:
        row[column(when)] = beat
    lines.append(f"{'heartbeat':{label + 5}}{_colour('35', ''.join(row).rstrip())}")
    return [*lines, "", *_summary(record, bars, arrow)]


def _axis(milliseconds: float, width: int) -> str:
    """Figures every 20 ms, each at its place."""
    row = [" "] * width
    for tick in range(0, int(milliseconds) + 1, 20):
        at, figure = int(tick / milliseconds * width), str(tick)
        if at + len(figure) <= width - 3:
            row[at : at + len(figure)] = figure
    return "".join(row).rstrip() + " ms"


def _summary(record: Record, bars: str, arrow: str) -> list[str]:
    latencies = sorted(
        (step.resumed - step.ended) / 1000 for steps in record.steps.values() for step in steps
    )
    times = [*record.beats, record.ended]
    gap = max(later - earlier for earlier, later in itertools.pairwise(times)) / 1e6
    return [
        f"{bars[0]} {bars[1]} the stream's work on the GPU, await by await; {arrow} its task "
        "continues",
        f"heartbeat: every {HEARTBEAT * 1000:.0f} ms, {len(record.beats)} beats, "
        f"worst gap {gap:.1f} ms",
        f"from the work's end to resumption: median {statistics.median(latencies):.0f} us, "
        f"worst {latencies[-1]:.0f} us, {len(latencies)} awaits",
        f"(the GPU's clock is mapped to the host's to within {record.uncertainty / 1000:.0f} us)",
    ]


def _print_ledger() -> bool:
    """Prints the ledger. Returns whether everything that the demo began has ended."""
    deadline = time.monotonic() + 5
    while True:
        now = aiostream.statistics()
        points, futures, handles = now.points, now.futures, now.handles
        ended = (
            now.balanced
            and not points.pending
            and not futures.pending
            and not handles.open
            and not points.leaked
        )
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    print(
        f"ledger: {points.armed} points, {points.fired} fired, {points.pending} pending, "
        f"{points.leaked} leaked; {futures.created} futures, {futures.done} done; "
        f"{handles.created} streams, {handles.destroyed} closed: "
        f"{'balanced' if ended else 'NOT BALANCED'}"
    )
    return ended


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _colour(code: str, text: str) -> str:
    plain = bool(
        not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    )
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
