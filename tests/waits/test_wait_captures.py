"""Waits and captures: a capturing stream refuses waits, and no wait invalidates a capture."""

from __future__ import annotations

import itertools
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Event, Stream, StreamCaptureError, statistics
from captures import CAPTURES, MODES
from support import STRATEGIES, Gate, cases_on_loops, spin
from waiters import CASES, Waiter, counts, since, turns

pytestmark = pytest.mark.usefixtures("default_prediction")


@cases_on_loops("strategy, mode", zip(STRATEGIES, itertools.cycle(MODES)))
async def test_capturing_stream_refuses_its_waits_untouched(
    strategy: Any, mode: int, driver_kind: str
) -> None:
    """Also if the stream was so busy that no wait queries it first. The capture is then noticed
    after the record, which takes the library's event into the capture. That harms neither.
    """
    stream, event = Stream(wait=strategy), Event()
    spin(stream, 0)
    for busy in (0, 40, 20):
        for _ in range(busy):
            spin(stream, 0.0002)
            await stream.synchronize_async()
        stream.synchronize()
        before, armed = counts(), statistics().points.armed
        with stream.capture(aiostream.CaptureMode(mode)) as capture:
            spin(stream, 0)
            for _ in range(20):
                with pytest.raises(StreamCaptureError) as refused:
                    await stream.synchronize_async()
                assert refused.value.code == 900
            event.record(stream)
            with pytest.raises(StreamCaptureError) as refused:
                await event.synchronize_async()
            assert refused.value.code == 907
            spin(stream, 0)
            assert stream.capture_status() is aiostream.CaptureStatus.ACTIVE
        assert len(capture.graph.nodes) == 2
        capture.graph.close()
        now = since(before)
        assert (now.ready, now.spun, now.watched, now.pending) == (0, 0, 0, 0)
        assert statistics().points.armed == armed
    stream.close()
    event.close()


@cases_on_loops("where, mode", itertools.product(CAPTURES, MODES))
async def test_waits_in_all_stages_invalidate_no_capture(where: str, mode: int) -> None:
    """P6, also by the library's threads that poll."""
    waiters = [Waiter(stage, thing) for stage, thing in CASES]
    captured = Stream()
    spin(captured, 0)
    for waiter in waiters:
        waiter.work(0)
        await waiter.wait()
        await waiter.prepare()
    groups = -(-len(waiters) // 3)
    before = counts()
    async with anyio.create_task_group() as tasks:
        # Three held streams at a time, because each holds a hardware queue. In different stages:
        # the watcher polls one of them.
        for number in range(groups):
            gate = Gate()
            for waiter in waiters[number::groups]:
                gate.hold(waiter.stream)
                waiter.event.record(waiter.stream)
            capture = CAPTURES[where](captured, mode)
            for waiter in waiters[number::groups]:
                tasks.start_soon(waiter.wait)
            spin(captured, 0)
            polls = counts().polls
            passes = statistics().watcher_passes
            while counts().polls < polls + 8 or statistics().watcher_passes < passes + 2:
                await anyio.lowlevel.checkpoint()
            gate.open()
            await turns()
            assert capture.end() == 1
    assert since(before).watched > 0
    for waiter in waiters:
        waiter.close()
    captured.close()
