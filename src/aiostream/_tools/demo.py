"""`python -m aiostream demo`: awaits six streams at once, and draws what happened as a timeline.

A heartbeat task runs meanwhile, and shows that the loop is free. `trace.record` says when the GPU
ran the work, and when its task went on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import anyio

import aiostream
from aiostream import Device, Stream
from aiostream._base import driver, stand_ins
from aiostream._tools import kernels as _kernels
from aiostream._tools import terminal

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
BARS = "█▒"
PROBE = "import aiostream; aiostream.Device(0)"


def run(loop: str, html: str | None = None) -> int:
    """Runs the demo on `loop`, writes the timeline to `html` too, and returns the exit code."""
    recording = aiostream.trace.record(html)
    chosen = _choose_driver()
    backend = "trio" if loop == "trio" else "asyncio"
    options = {"use_uvloop": True} if loop == "uvloop" else {}
    beats = anyio.run(_timeline, recording, backend=backend, backend_options=options)
    print(terminal.wrapped(f"{chosen}."))
    print(f"{Device(0).name}, CUDA {driver.spelled(driver.driver_version())}.")
    tasks = f"{len(LOADS)} streams, each with its task, in one {loop} loop with a heartbeat."
    print(terminal.wrapped(tasks), end="\n\n")
    print("\n".join(_drawing(recording, beats)))
    if html is not None:
        page = Path(html).resolve().as_uri()
        print(terminal.wrapped(f"The same as a timeline, to open in a browser: {page}"))
    now = aiostream.statistics()
    points, handles = now.points, now.handles
    text = (
        f"statistics: {points.armed} points, {points.fired} fired, {points.pending} pending, "
        f"{points.leaked} leaked; {handles.created} streams, {handles.destroyed} closed: "
        f"{'balanced' if now.balanced else 'NOT BALANCED'}"
    )
    print(terminal.wrapped(text, others="  "))
    return 0 if now.balanced else 1


def _choose_driver() -> str:
    """Chooses the GPU if there is one, and otherwise the simulator. Returns its choice, in words.

    Another process looks for the GPU, because a process keeps the first driver that it loads.
    """
    if stand_ins.simulator_is_wanted():
        return "On the simulator, as you asked; its times say nothing about a GPU"
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    if done.returncode == 0:
        return "On the GPU"
    if "NoDriverError" not in done.stderr:
        raise SystemExit(done.stderr)
    # A variable that hides this machine's GPUs would also hide the simulated one.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    stand_ins.install_simulator("there is no GPU here, and the demo without one")
    return "No GPU here, so this runs on the simulator, and its times say nothing about a GPU"


# ---------------------------------------------------------------------------------- what is awaited


async def _timeline(recording: aiostream.trace.Recording) -> list[int]:
    """Awaits all loads at once, and returns when the heart has beaten meanwhile."""
    beats: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(Stream()) for _ in LOADS]
        # What happens only once, such as loading the kernels, must not show in the timeline.
        for stream in streams:
            _kernels.spin(stream, 0.0)
            await stream.synchronize_async()
        stack.enter_context(recording)
        async with anyio.create_task_group() as outer:
            outer.start_soon(_heartbeat, beats)
            async with anyio.create_task_group() as inner:
                for stream, (name, load) in zip(streams, LOADS.items(), strict=True):
                    inner.start_soon(_one_stream, stream, load, name=name)
            outer.cancel_scope.cancel()
    await aiostream.drain(5)
    return beats


async def _one_stream(stream: Stream, load: tuple[tuple[int, ...], ...]) -> None:
    for kernels in load:
        await stream.run(_launch, stream, kernels)


def _launch(stream: Stream, kernels: tuple[int, ...]) -> None:
    for milliseconds in kernels:
        _kernels.spin(stream, milliseconds / 1000)


async def _heartbeat(beats: list[int]) -> None:
    while True:
        beats.append(time.perf_counter_ns())
        await anyio.sleep(HEARTBEAT)


# ------------------------------------------------------------------------------------ what is drawn


def _drawing(recording: aiostream.trace.Recording, beats: list[int]) -> list[str]:
    label = max(len(name) for name in LOADS) + 1
    width = terminal.columns() - label - 6
    started, ended = beats[0], max(each.resumed or 0 for each in recording.awaits)
    length = ended - started

    def column(when: float) -> int:
        return min(width - 1, max(0, int((when - started) / length * width)))

    lines = [f"{'':{label + 5}}{_axis(length / 1e6, width)}".rstrip()]
    for name in LOADS:
        gpu, task = [" "] * width, [" "] * width
        for number, (began, ended, resumed) in enumerate(_times(recording, name)):
            first, last = column(began), column(ended)
            gpu[first : last + 1] = BARS[number % 2] * (last + 1 - first)
            task[column(resumed)] = "▲"
        lines.append(f"{name:{label}}{'GPU':5}{terminal.colour('36', ''.join(gpu).rstrip())}")
        lines.append(f"{'':{label}}{'task':5}{terminal.colour('32', ''.join(task).rstrip())}")
    row = [" "] * width
    for when in beats:
        row[column(when)] = "•"
    lines.append(f"{'heartbeat':{label + 5}}{terminal.colour('35', ''.join(row).rstrip())}")
    latencies = sorted(
        (resumed - end) / 1000 for name in LOADS for _, end, resumed in _times(recording, name)
    )
    gap = max(later - earlier for earlier, later in itertools.pairwise([*beats, ended])) / 1e6
    summary = (
        f"{BARS[0]} {BARS[1]} the stream's work on the GPU, await by await; ▲ its task continues",
        f"heartbeat: every {HEARTBEAT * 1000:.0f} ms, {len(beats)} beats, worst gap {gap:.1f} ms",
        f"from the work's end to resumption: median {statistics.median(latencies):.0f} us, "
        f"worst {latencies[-1]:.0f} us, {len(latencies)} of {len(recording.awaits)} awaits",
        "(the GPU's clock is mapped to the host's to within "
        f"{recording.gpu_uncertainty / 1000:.0f} us)",
    )
    return [*lines, "", *map(terminal.wrapped, summary)]


def _times(recording: aiostream.trace.Recording, name: str) -> list[tuple[int, int, int]]:
    """When the GPU began and ended each piece of a load, and when its task went on."""
    # A recording knows no time on the GPU of an await that a busy machine has kept from its marks.
    return [
        (each.gpu_began, each.gpu_ended, each.resumed)
        for each in recording.awaits
        if each.task == name and each.gpu_began and each.gpu_ended and each.resumed
    ]


def _axis(milliseconds: float, width: int) -> str:
    """Figures every 20 ms, each at its place."""
    row = [" "] * width
    for tick in range(0, int(milliseconds) + 1, 20):
        at, figure = int(tick / milliseconds * width), str(tick)
        if at + len(figure) <= width - 3:
            row[at : at + len(figure)] = figure
    return "".join(row).rstrip() + " ms"
