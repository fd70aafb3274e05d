"""What a recording leaves to the application: its counts; and what is over before a task could
wait.
"""

from __future__ import annotations

import time
from pathlib import Path

from aiostream import Stream, statistics, trace
from aiostream.testing import spin


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


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    with trace.record(tmp_path / "link.json"):
        pass
    assert (tmp_path / "link.json").is_symlink()
    assert "traceEvents" in (tmp_path / "target.json").read_text()


# --------------------------------------------------------------------------- what is over at once


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
