"""Traces: what is recorded of each await, the two formats, and that nothing remains of it."""

from __future__ import annotations

import asyncio
import html
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import Event, Stream, StreamPool, metrics, statistics, trace
from aiostream.testing import Gate, spin
from aiostream.trace import Await, Recording
from installed import installed
from interrupts import at_line, sample
from support import cases_on_loops, run_on, run_together
from waiters import until, wait_for_work, waiter_in


def ordered(each: Await) -> bool:
    """Whether the times that are known follow each other."""
    times = [each.launched, each.gpu_began, each.gpu_ended, each.noticed, each.resumed]
    known = [time for time in times if time is not None]
    starts = [each.launched, *(began for _, began in each.stages), each.resumed or math.inf]
    return known == sorted(known) and starts == sorted(starts)


async def program() -> None:
    """Each kind of await once, in three tasks."""
    async with StreamPool(1) as pool, pool.stream() as stream:

        async def futures() -> None:
            await stream.enqueue_async(spin, 0.005)
            await stream.completion_future()
            await stream.checked_completion_future()

        async def graphs() -> None:
            with stream.capture_executable() as capture:
                spin(stream, 0.002)
            await capture.executable.launch_async(stream)
            await capture.executable.upload_async(stream)
            await capture.executable.launch_and_wait(stream)
            await capture.executable.upload_and_wait(stream)
            capture.executable.close()

        async with anyio.create_task_group() as group:
            group.start_soon(futures, name="the futures")
        async with anyio.create_task_group() as group:
            group.start_soon(graphs, name="the graphs")
        await stream.enqueue_in_thread(spin, 0.002)
        await stream.run(spin, stream, 0.002)
        with Event() as event:
            event.record(stream)
            await event.synchronize_async()
        spin(stream, 0.005)
        await stream.synchronize_async()


EXPECTED = Counter(
    {
        "StreamPool.acquire": 1,
        "Stream.enqueue_async": 1,
        "Stream.completion_future": 1,
        "Stream.checked_completion_future": 1,
        "ExecutableGraph.launch_async": 1,
        "ExecutableGraph.upload_async": 1,
        "ExecutableGraph.launch_and_wait": 1,
        "ExecutableGraph.upload_and_wait": 1,
        "Stream.run": 1,
        "Stream.run_in_thread": 1,
        "Event.synchronize_async": 1,
        "Stream.synchronize_async": 2,  # and the pool's own, at its end
    }
)


def outcomes(waits: Sequence[metrics.Wait | Await]) -> list[tuple[str, str]]:
    return sorted((each.call, each.outcome) for each in waits)


async def test_each_await_appears_once_with_its_times_task_and_stream(
    tmp_path: Path, waits: list[metrics.Wait]
) -> None:
    path = tmp_path / "trace.json"
    with trace.record(path) as recording:
        await program()
        await until(lambda: len(waits) >= EXPECTED.total())
    found = recording.awaits
    assert Counter(each.call for each in found) == EXPECTED
    assert outcomes(waits) == outcomes(found)
    assert {outcome for _, outcome in outcomes(found)} == {"done"}
    assert all(each.error is None for each in found)
    assert all(each.error is None for each in waits)
    assert all(0.004 < each.seconds < 5 for each in waits if each.call == "Stream.enqueue_async")
    assert all(ordered(each) for each in found), found
    assert all(each.noticed is not None and each.resumed is not None for each in found)
    assert found == sorted(found, key=lambda each: each.launched)
    by_call = {each.call: each for each in reversed(found)}
    assert by_call["Stream.completion_future"].task.endswith("the futures")
    assert by_call["ExecutableGraph.launch_async"].task.endswith("the graphs")
    assert by_call["StreamPool.acquire"].stream == "pool of 1 streams"
    assert by_call["Event.synchronize_async"].stream.startswith("event 0x")
    (stream,) = {
        each.stream for each in found if each.call.startswith(("Stream.", "ExecutableGraph."))
    }
    assert re.fullmatch(r"stream 0x[0-9a-f]+ on device 0", stream or "")
    assert {each.loop for each in found} == {threading.current_thread().name}
    # The file is valid, well ordered and complete.
    content = json.loads(path.read_text())
    check_the_format(content)
    assert content["otherData"]["dropped"] == 0
    events = content["traceEvents"]
    awaits = [event for event in events if event.get("cat") == "await" and event["ph"] == "X"]
    assert Counter(event["name"].split(" (")[0] for event in awaits) == EXPECTED
    # Of some, a busy machine may give up the times on the GPU.
    timed = sum({"gpu_ended_us", "noticed_us"} <= event["args"].keys() for event in awaits)
    assert len({event["id"] for event in events if event["ph"] == "s"}) == timed > 4
    for args in (event["args"] for event in awaits):
        assert args["launched_us"] <= args["noticed_us"] <= args["resumed_us"]


@pytest.mark.usefixtures("default_prediction")
async def test_wait_that_is_handed_back_ends_when_its_task_goes_on() -> None:
    with trace.record() as recording:
        async with waiter_in("handed back") as (waiter, gate), anyio.create_task_group() as group:
            group.start_soon(waiter.wait)
            await waiter.reach()
            gate.open()
    assert all(ordered(each) for each in recording.awaits)


@pytest.mark.alone
@cases_on_loops("runs", [(False,), (True,)])
async def test_times_on_the_gpu_are_those_of_the_work(driver_kind: str, runs: bool) -> None:
    # The simulator's threads share their cores with other programs, a GPU does not.
    most = 5e6 if driver_kind == "gpu" else 50e6
    for _ in range(8):  # on a busy machine some are not known, or not well enough
        with trace.record() as recording:
            async with Stream() as stream:
                if runs:
                    await stream.run(spin, stream, 0.02)
                else:
                    await stream.enqueue_async(spin, 0.02)
                await wait_for_work(stream, 0.02)
        enqueued, waited = recording.awaits[:2]
        if None not in (enqueued.gpu_ended, waited.gpu_ended) and recording.gpu_uncertainty < most:
            break
    assert enqueued.gpu_began is not None
    assert enqueued.gpu_ended is not None
    assert 0.019e9 < enqueued.gpu_ended - enqueued.gpu_began < 2e9
    assert waited.gpu_began is None, "work that others enqueued may have begun at any time"
    assert waited.gpu_ended is not None
    # Not from its launch, because this thread may have had no core in between.
    assert waited.gpu_ended - enqueued.gpu_ended > 0.019e9
    assert recording.gpu_uncertainty < most


@cases_on_loops("call", [("run",), ("run_in_thread",)])
async def test_a_function_in_halves_has_the_times_of_all_its_work(call: str) -> None:
    caught: list[str] = []

    def halves() -> Generator[None, None, str]:
        for _ in range(2):
            spin(stream, 0.01)
            yield
        return "found"

    def spoilt() -> Generator[object, None, None]:
        try:
            yield "a value"
        except TypeError as error:
            caught.append(str(error))
            raise

    async with Stream() as stream:
        for _ in range(8):  # on a busy machine they may not be known
            with trace.record() as recording:
                assert await getattr(stream, call)(halves) == "found"
            found = recording.awaits[0]
            if None not in (found.gpu_began, found.gpu_ended):
                break
        with pytest.raises(TypeError, match="spoilt yields nothing"), trace.record():
            await getattr(stream, call)(spoilt)
    assert ordered(found)
    assert found.gpu_began is not None
    assert found.gpu_ended is not None
    assert found.gpu_ended - found.gpu_began > 0.019e9
    assert len(caught) == 1


async def test_without_the_gpus_times_nothing_is_recorded_on_streams() -> None:
    async with Stream() as stream:
        before = statistics().handles.created
        with trace.record(gpu=False) as recording:
            await stream.enqueue_async(spin, 0.001)
        assert aiostream.statistics().handles.created == before
    assert recording.awaits[0].gpu_ended is None
    assert recording.awaits[0].outcome == "done"


async def test_stages_say_how_the_task_waited() -> None:
    async with Stream(wait="spin") as polled, Stream(wait="event") as watched:
        with trace.record(gpu=False) as recording:
            for stream in (polled, watched):
                with Gate() as gate:
                    gate.hold(stream)
                    async with anyio.create_task_group() as group:
                        group.start_soon(stream.synchronize_async)
                        await until(lambda: aiostream.statistics().waits.pending > 0)
                        gate.open()
    stages = [[stage for stage, _ in each.stages] for each in recording.awaits]
    assert stages == [["polls"], ["suspended"]]


async def test_a_capture_is_left_alone() -> None:
    """Also by what other streams do meanwhile."""
    async with Stream() as stream, Stream() as other:
        spin(stream, 0)  # loads the kernel, which a capture refuses
        with trace.record() as recording:
            with stream.capture_executable(aiostream.CaptureMode.GLOBAL) as capture:
                spin(stream, 0.001)
                with pytest.raises(aiostream.StreamCaptureError):
                    await stream.synchronize_async()
                with pytest.raises(aiostream.StreamCaptureError):
                    stream.enqueue_async(spin, 0.001)
                await other.enqueue_async(lambda stream: None)
                await other.completion_future()
            await capture.executable.launch_and_wait(stream)
        capture.executable.close()
    assert [each.outcome for each in recording.awaits] == ["failed"] * 2 + ["done"] * 3
    assert all("StreamCaptureError" in (each.error or "") for each in recording.awaits[:2])
    is_timed = [each.gpu_ended is not None for each in recording.awaits]
    assert is_timed == [False] * 2 + [True] * 3


async def test_a_wrong_function_is_refused_as_ever() -> None:
    async def coroutine(stream: Stream) -> None: ...

    async with Stream() as stream:
        with trace.record():
            for wrong in (None, coroutine):
                with pytest.raises(TypeError, match="enqueue_async"):
                    stream.enqueue_async(wrong)  # type: ignore[arg-type]
            with pytest.raises(ZeroDivisionError):
                stream.enqueue_async(lambda stream: 1 / 0)


def test_cancelled_and_unfinished_awaits_are_shown_as_such(waits: list[metrics.Wait]) -> None:
    async def main() -> Recording:
        async with Stream() as stream:
            with Gate() as gate, trace.record() as recording:
                gate.hold(stream)
                for call in (stream.synchronize_async, lambda: stream.enqueue_async(spin, 0)):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.001):
                            await call()
                unfinished = stream.completion_future()
                await asyncio.sleep(0)
                cancelled[:] = outcomes(waits)
            await unfinished
        return recording

    cancelled: list[tuple[str, str]] = []
    found = asyncio.run(main()).awaits
    assert [each.outcome for each in found] == ["cancelled", "cancelled", "pending"]
    assert [each.noticed for each in found] == [None, None, None]
    assert [each.resumed is not None for each in found] == [True, True, False]
    assert [each.gpu_ended for each in found] == [None, None, None], "the gate was closed"
    assert cancelled == outcomes(found[:2])


@pytest.mark.cuda_leaks(1)
def test_failed_awaits_have_their_error(breakable: Any, waits: list[metrics.Wait]) -> None:
    async def main() -> Recording:
        stream = Stream()
        with trace.record() as recording, Gate() as gate:
            gate.hold(stream)
            waiting = asyncio.create_task(stream.synchronize_async())
            future = stream.completion_future()
            await asyncio.sleep(0)
            breakable.break_context(700)
            for each in (waiting, future):
                with pytest.raises(aiostream.ContextFailedError):
                    await each
            await until(lambda: len(waits) == 2)  # the futures' callbacks run in a later turn
        with pytest.raises(aiostream.CudaError):
            stream.shutdown()
        return recording

    found = run_on("asyncio", main).awaits
    assert outcomes(waits) == outcomes(found)
    assert [each.outcome for each in found] == ["failed", "failed"]
    assert all("ContextFailedError" in (each.error or "") for each in found)
    assert all(isinstance(wait.error, aiostream.ContextFailedError) for wait in waits)
    assert all(each.gpu_ended is None for each in found)
    waits.clear()


def test_loops_in_several_threads_are_recorded_at_once() -> None:
    kinds = installed(["asyncio", "uvloop", "trio"])
    together = threading.Barrier(len(kinds))

    async def main() -> None:
        await anyio.to_thread.run_sync(together.wait)
        async with Stream() as stream:
            for _ in range(20):
                await stream.enqueue_async(spin, 0.0002)

    with trace.record() as recording:
        run_together(kinds, main, together)
    found = [each for each in recording.awaits if each.call == "Stream.enqueue_async"]
    assert Counter(each.loop for each in found) == {f"aiostream-test-{kind}": 20 for kind in kinds}
    assert all(ordered(each) for each in recording.awaits)


@pytest.mark.parametrize("loop_kind", ["asyncio", "trio"])
async def test_a_recording_may_end_between_any_two_steps_of_an_await(unraisable: list[Any]) -> None:
    """In another thread, whose block ends while this loop goes on."""
    handles, recordings, counts = statistics().handles, [], list[int]()

    async def ends_at(number: int) -> None:
        recording = trace.record()
        recordings.append(recording)
        ending = threading.Thread(target=recording.__exit__, name="aiostream-test-ending")

        def end() -> None:
            ending.start()
            # It ends here, or behind the lock that this thread has at this place.
            ending.join(0.1)

        async with Stream() as stream:
            recording.__enter__()
            with at_line(number, end, "trace.py", "trace_clock.py") as lines:
                await stream.enqueue_async(spin, 0)
            if len(lines) < number:
                ending.start()
            ending.join()
        assert not unraisable, (number, unraisable)
        counts.append(len(lines))

    await ends_at(1 << 62)
    assert counts[0] > 50
    for number in sample(counts[0], 40, "recordings"):
        await ends_at(number)
    # None of them has to die for this.
    await until(lambda: statistics().handles.open == handles.open)
    assert len(recordings) == len(counts)


async def test_the_latest_awaits_are_kept_and_the_others_counted() -> None:
    async with Stream() as stream:
        with trace.record(limit=3, gpu=False) as recording:
            for number in range(5):
                await stream.enqueue_async(lambda stream, number: number, number)
                after = recording.awaits[-1].launched
    assert len(recording.awaits) == 3
    assert recording.awaits[-1].launched == after
    assert recording.dropped == 2


async def test_awaits_that_are_over_at_once_have_times_on_the_gpu() -> None:
    """The task never leaves, so it notices the end behind the call, and not when the call began."""

    def work(stream: Stream) -> int:
        spin(stream, 0)
        stream.synchronize()
        return time.perf_counter_ns()

    async with Stream() as stream:
        with stream.capture_executable() as capture:
            pass
        with trace.record() as recording:
            for _ in range(10):
                await capture.executable.launch_and_wait(stream)
            over = await stream.run(work, stream)
        capture.executable.close()
    for each in recording.awaits:
        assert each.gpu_ended is not None
        assert each.noticed is not None
        assert each.launched <= each.gpu_ended <= each.noticed
    noticed = recording.awaits[-1].noticed  # of `run`
    assert noticed is not None
    assert noticed >= over


# ------------------------------------------------------------------------ off


def test_nothing_observes_without_a_recording(tmp_path: Path) -> None:
    first = trace.record()
    with first:
        with trace.record(tmp_path / "inner.json"):
            assert len(internals.observers()) == 2
        assert len(internals.observers()) == 1
        with pytest.raises(RuntimeError, match="begun before"):
            first.__enter__()
    assert not internals.observers()
    with pytest.raises(RuntimeError, match="begun before"):
        first.__enter__()


async def test_the_recordings_own_events_are_not_the_applications() -> None:
    """Or a test would seem to leave streams and events open, and so would an application."""
    before = statistics().handles
    with trace.record():
        async with Stream() as stream:
            await stream.enqueue_async(spin, 0.001)
            now = statistics()
            assert (now.handles.open, now.handles.created) == (before.open + 1, before.created + 1)
            assert now.balanced
    assert statistics().handles.open == before.open
    assert statistics().balanced


@pytest.mark.parametrize("trace_ends_first", [True, False])
async def test_metrics_and_traces_do_not_disturb_each_other(trace_ends_first: bool) -> None:
    waits: list[metrics.Wait] = []
    async with Stream() as stream:
        recording = trace.record()
        recording.__enter__()
        end = metrics.on_wait(waits.append)
        await stream.enqueue_async(spin, 0.001)
        for each in (recording.__exit__, end) if trace_ends_first else (end, recording.__exit__):
            each()
            await stream.synchronize_async()
        assert not internals.observers()
    assert len(recording.awaits) == (1 if trace_ends_first else 2)
    assert len(waits) == (2 if trace_ends_first else 1)


# ------------------------------------------------------------------------ the formats


FIELDS: dict[str, set[str]] = {  # of each phase, as Chrome's "Trace Event Format" names them
    "M": {"args"},
    "X": {"cat", "ts", "dur"},
    "i": {"cat", "ts", "s"},
    "s": {"cat", "ts", "id"},
    "f": {"cat", "ts", "id", "bp"},
}


def check_the_format(content: dict[str, Any]) -> None:
    """Each field, that spans contain each other or do not overlap, and that each arrow leads from
    the work to its await, and to no neighbour.

    Readers go through the events in order. An arrow begins and ends at the span that is open there,
    a span that ends at that very time is over, and an end without a beginning is dropped.
    """
    events = content["traceEvents"]
    assert content["displayTimeUnit"] in ("ms", "ns")
    assert (times := [event["ts"] for event in events if event["ph"] != "M"]) == sorted(times)
    open_spans: dict[tuple[int, int], list[tuple[float, str]]] = {}
    arrows: dict[int, str] = {}
    named = set()
    for event in events:
        kind, thread = event["ph"], (event["pid"], event["tid"])
        fields = {"ph", "name", "pid", "tid", *FIELDS[kind]}
        assert fields <= event.keys() <= fields | {"args"}, event
        assert list(map(type, thread)) == [int, int]
        assert event["tid"] != event["pid"], "Perfetto would call it the main thread"
        if kind == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"].keys() == {"name"}
            named.add(thread)
            continue
        assert event["ts"] >= 0
        stack = open_spans.setdefault(thread, [])
        while stack and stack[-1][0] <= event["ts"] + 0.0004:  # times are multiples of 0.001
            stack.pop()
        if kind in "Xi":
            length = event.get("dur", 0)
            assert length >= 0
            assert not stack or event["ts"] + length <= stack[-1][0] + 0.0015, "they overlap"
            # Without a length it is open until time goes on.
            stack.append((event["ts"] + max(length, 0.0005), event["name"]))
        else:
            assert stack, f"no span is open at {event}"
            if kind == "s":
                arrows[event["id"]] = stack[-1][1]
            else:
                assert [name for _, name in stack] == [arrows.pop(event["id"]), "resumes"]
    assert not arrows
    assert open_spans.keys() <= named


def await_of(number: int, **times: Any) -> Await:
    """An await of 10 us that the GPU worked on, with other times."""
    usual: dict[str, Any] = {
        "call": "Stream.enqueue_async",
        "stream": "stream",
        "task": f"task {number}",
        "loop": "loop",
        "launched": 10_000 * number,
        "gpu_began": 10_000 * number,
        "gpu_ended": 10_000 * number + 5_000,
        "noticed": 10_000 * number + 5_000,
        "resumed": 10_000 * number + 10_000,
        "outcome": "done",
        "stages": (("suspended", 10_000 * number),),
        "error": None,
    }
    return Await(**{**usual, **times})


@pytest.mark.parametrize(
    "awaits",
    [
        [await_of(0, gpu_ended=10_000, noticed=10_000, resumed=12_000), await_of(1)],
        [await_of(0, resumed=5_000, stages=(("polls", 3_000),))],
        [await_of(0, outcome="cancelled", noticed=None, resumed=2_000)],
        [await_of(0, gpu_began=None), await_of(1, gpu_began=None, gpu_ended=15_000)],
        [await_of(0, gpu_began=None, launched=5_000, noticed=5_000, resumed=5_000, stages=())],
        [await_of(0, outcome="pending", noticed=None, resumed=None)],
        [await_of(0, outcome="failed", noticed=4_000)],
        [await_of(0, stages=(("suspended", 0), ("polls", 6_000)))],
    ],
    ids=["in a row", "at once", "cancelled", "no begin", "no length", "pending", "failed", "late"],
)
def test_arrows_lead_to_their_own_await(awaits: list[Await]) -> None:
    content = json.loads(internals.perfetto(awaits))
    check_the_format(content)
    arrows = [event for event in content["traceEvents"] if event["ph"] == "s"]
    assert len(arrows) == sum((each.noticed or 0) >= (each.gpu_ended or 0) for each in awaits)


# ------------------------------------------------------------------------ NVTX


async def two_awaits() -> None:
    async with Stream() as stream:
        await stream.enqueue_async(spin, 0)


def test_each_await_gets_an_nvtx_range(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str] = []
    ended: list[int] = []

    def start_range(message: str, domain: str) -> int:
        assert domain == "aiostream"
        ranges.append(message)
        return len(ranges) - 1

    nvtx = types.SimpleNamespace(start_range=start_range, end_range=ended.append)
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    with trace.record(nvtx=True):
        run_on("asyncio", two_awaits)
    assert sorted(ended) == list(range(len(ranges)))
    calls = [text.split(" · ")[0] for text in ranges]
    assert calls == ["Stream.enqueue_async", "Stream.synchronize_async"]


def test_nvtx_itself_takes_the_ranges() -> None:
    pytest.importorskip("nvtx", reason="pip install nvtx")
    with trace.record(nvtx=True) as recording:
        run_on("asyncio", two_awaits)
    assert len(recording.awaits) == 2


def test_nvtx_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(ImportError, match="pip install nvtx"):
        trace.record(nvtx=True)


# ---------------------------------------------------------------------------------------- the files


async def test_html_is_one_file_that_holds_the_data(tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    with trace.record(path) as recording:
        async with Stream() as stream, anyio.create_task_group() as group:
            group.start_soon(stream.synchronize_async, name="</script><b>")
    page = path.read_text()
    assert not re.search(r"https?:|//\w+\.|src=|@import|<link|fetch\(", page), "it asks a network"
    found = re.search(r"^const data = (\{.*\});$", page, re.MULTILINE)
    assert found is not None
    assert "</script><b>" not in page
    data = json.loads(found[1])
    calls = [data["names"][row[0]] for row in data["awaits"]]
    assert calls == [each.call for each in recording.awaits]
    assert any("</script><b>" in name for name in data["names"])
    assert page.count("</script>") == 1


PROBE = """<script>{
drawNow();
const [left, right, top] = hits.find((hit) => hit[3].call === "Stream.enqueue_async");
const box = canvas.getBoundingClientRect();
const at = { clientX: box.left + (left + right) / 2, clientY: box.top + top + 2 };
canvas.dispatchEvent(new PointerEvent("pointermove", at));
const whole = to - from;
canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, cancelable: true }));
const wheeled = to - from;
$("closer").click();
$("tasks").click();
const facts = { tip: $("tip").textContent, zoom: whole / wheeled, button: wheeled / (to - from),
  rows: rows.length, timeline: 1 - LABEL / width,
  overflow: document.body.scrollWidth - innerWidth };
document.body.dataset.probe = JSON.stringify(facts);
}</script>"""


async def write_page(path: Path) -> None:
    with trace.record(path):
        async with StreamPool(2) as pool, pool.stream() as stream:
            await stream.enqueue_async(spin, 0.005)


@pytest.mark.parametrize("width", [1400, 500])
def test_the_page_draws_zooms_and_shows_times_in_a_browser(tmp_path: Path, width: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium is installed")
    page = tmp_path / "trace.html"
    run_on("asyncio", write_page, page)
    page.write_text(page.read_text().replace("</html>", PROBE + "</html>"))
    switches = (
        "headless no-sandbox no-first-run disable-gpu disable-quic disable-sync dump-dom "
        "disable-background-networking disable-component-update "
        f"window-size={width},800 user-data-dir={tmp_path / 'profile'}"
    )
    command = [browser, *(f"--{each}" for each in switches.split(" ")), page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    found = re.search(r'data-probe="([^"]*)"', shown)
    assert found is not None, "the script has failed"
    facts = json.loads(html.unescape(found[1]))
    assert facts["tip"].startswith("Stream.enqueue_async")
    for name in ("launched", "the GPU began", "the GPU was done", "noticed", "resumed"):
        assert name in facts["tip"]
    assert facts["zoom"] > 1.1
    assert facts["button"] > 1.1
    assert facts["timeline"] > 0.75, "the names leave room for the timeline"
    assert facts["overflow"] <= 0
    assert facts["rows"] == 1, "by loop"


def test_what_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        trace.record(tmp_path / "trace.txt")
    with pytest.raises(ValueError, match="limit"):
        trace.record(limit=0)
    with pytest.raises(FileNotFoundError):
        trace.record(tmp_path / "none" / "trace.json").__enter__()
    (folder := tmp_path / "trace.json").mkdir()
    with pytest.raises(IsADirectoryError):
        trace.record(folder).__enter__()
    assert not internals.observers()
    with trace.record() as recording:
        pass
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        recording.write("trace")


def test_a_block_that_fails_writes_its_trace(tmp_path: Path) -> None:
    """If it cannot be written, the block's own error wins."""
    with pytest.raises(KeyError), trace.record(tmp_path / "{pid}.json"):
        raise KeyError
    written = tmp_path / f"{os.getpid()}.json"
    assert json.loads(written.read_text())["otherData"]["awaits"] == 0
    (folder := tmp_path / "folder").mkdir()
    with pytest.raises(KeyError), trace.record(folder / "trace.json"):
        shutil.rmtree(folder)
        raise KeyError


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    with trace.record(tmp_path / "link.json"):
        pass
    assert (tmp_path / "link.json").is_symlink()
    assert "traceEvents" in (tmp_path / "target.json").read_text()
