"""Nothing grows while everything goes on (`soak.py`), ten thousand waits are pending at once, and
devices do not mix.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest

import soak
from aiostream import Device, Event, Stream, statistics
from commands import python
from support import BACKENDS, Gate, held_stream, settle, spin
from waiters import until

SECONDS = float(os.environ.get("AIOSTREAM_SOAK_SECONDS", "20"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 240)
def test_soak(driver_kind: str) -> None:
    """`AIOSTREAM_SOAK_SECONDS` says how long.

    It runs in a process of its own, whose memory is then the library's.
    """
    options = ["--for", str(SECONDS), "--driver", driver_kind, "--seed", "1"]
    done = python(*("none", soak.__file__, *options), timeout=SECONDS + 200, PYTHONFAULTHANDLER="1")
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("loop_kind", BACKENDS)
async def test_ten_thousand_waits_pending_at_once(loop_kind: str) -> None:
    count, ended = 10_000, 0
    with Gate() as gate:
        streams = [held_stream(gate, wait=wait) for wait in ("auto", "event") * 2]
        events = [Event() for _ in streams]
        for stream, event in zip(streams, events, strict=True):
            event.record(stream)

        async def wait(number: int) -> None:
            nonlocal ended
            stream = streams[number % 4]
            kind = number // 4 % 3
            if kind == 0:
                await stream.synchronize_async()
            elif kind == 1:
                await events[number % 4].synchronize_async()
            else:
                assert await stream.enqueue_async(lambda _, value: value, number) == number
            ended += 1

        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(wait, number)
            await until(lambda: statistics().waits.pending >= count)
            assert ended == 0
            gate.open()
            with anyio.fail_after(60):
                while ended < count:
                    await anyio.sleep(0.01)
    for stream in streams:
        await stream.aclose()
    for event in events:
        event.close()
    assert settle(lambda: statistics().waits.pending == 0)


async def test_waits_of_two_devices_in_one_loop() -> None:
    """Each wait ends with its own device's work: one device is idle, and the other goes on."""
    if Device.count() < 2:
        pytest.skip("two devices are needed")
    devices = [Device(0), Device(1)]
    ended: list[tuple[int, Any]] = []

    async def wait(device: int, number: int) -> None:
        stream = streams[device]
        if number % 3 == 0:
            await stream.synchronize_async()
        elif number % 3 == 1:
            await stream.completion_future()
        else:
            await stream.enqueue_async(lambda _: None)
        ended.append((device, number))

    with Gate() as gate:
        streams = [held_stream(gate, device=devices[0]), Stream(device=devices[1])]
        async with anyio.create_task_group() as group:
            for number in range(30):
                spin(streams[1], 0.0001)
                group.start_soon(wait, 0, number)
                group.start_soon(wait, 1, number)
            await until(lambda: len(ended) >= 30)
            assert {device for device, _ in ended} == {1}
            gate.open()
    assert len(ended) == 60
    for stream in streams:
        await stream.aclose()
