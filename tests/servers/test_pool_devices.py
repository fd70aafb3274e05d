"""StreamPool on several devices: the least loaded one is used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from aiostream import ContextFailedError, Device, Stream, StreamPool
from support import USUAL, Gate, recover, spin, succeed
from waiters import until, use_once


@pytest.fixture(autouse=True)
def two_devices() -> None:
    if Device.count() < 2:
        pytest.skip("two devices are needed")


def devices_of(streams: list[Stream]) -> list[int]:
    return [int(stream.device) for stream in streams]


async def test_streams_are_spread_evenly() -> None:
    async with StreamPool(5, devices=[Device(1), "cuda:0"]) as pool:
        held = [await pool.acquire() for _ in range(5)]
        assert Counter(devices_of(held)) == {1: 3, 0: 2}
        assert devices_of(held) == [1, 0, 1, 0, 1]
        for stream in held:
            spin(stream, 0)
            await stream.synchronize_async()
            pool.release(stream)
    assert pool.closed


async def test_task_gets_a_stream_of_the_least_loaded_device() -> None:
    async with StreamPool(8, devices=[0, 1]) as pool:
        held = [await pool.acquire() for _ in range(6)]
        for stream in [each for each in held if each.device == Device(1)]:
            pool.release(stream)
            held.remove(stream)
        # Three streams are in use on device 0, and none on device 1.
        more = [await pool.acquire() for _ in range(4)]
        assert devices_of(more) == [1, 1, 1, 0]
        for stream in held + more:
            pool.release(stream)


async def test_work_of_earlier_tasks_counts_as_load() -> None:
    with Gate() as gate:
        async with StreamPool(6, devices=[0, 1]) as pool:
            held = [await pool.acquire() for _ in range(4)]
            for stream in held:
                if stream.device == Device(0):
                    gate.hold(stream)
                pool.release(stream)
            assert (pool.idle, pool.busy) == (4, 2)
            more = [pool.acquire_nowait() for _ in range(3)]
            assert devices_of(more) == [1, 1, 0]
            gate.open()
            for stream in more:
                pool.release(stream)


async def test_equally_loaded_devices_take_turns() -> None:
    async with StreamPool(4, devices=[0, 1]) as pool:
        seen = []
        for _ in range(8):
            async with pool.stream() as stream:
                seen.append((int(stream.device), stream.handle))
        assert [device for device, _ in seen] == [0, 1] * 4
        assert len(set(seen)) == 2  # of each the one that was used last


async def test_waiting_task_gets_the_first_free_stream_of_any_device() -> None:
    async with StreamPool(2, devices=[0, 1]) as pool:
        for device in (0, 1):
            held = {int(stream.device): stream for stream in [await pool.acquire() for _ in "ab"]}
            served: list[int] = []

            async def wait(served: list[int] = served) -> None:
                async with pool.stream() as stream:
                    served.append(int(stream.device))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await until(lambda: pool.waiting == 1)
                pool.release(held[device])
            assert served == [device]
            pool.release(held[1 - device])


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
async def test_lost_context_wakes_waiting_tasks_and_names_the_devices(breakable: Any) -> None:
    """Also while the task that has the streams waits for something else."""
    pool, errors = StreamPool(2, devices=[0, 1]), []
    held = [await pool.acquire() for _ in range(2)]

    async def wait() -> None:
        with pytest.raises(ContextFailedError, match="a pool of 2 streams on devices 0, 1") as seen:
            await pool.acquire()
        errors.append(seen.value)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(wait)
        await until(lambda: pool.waiting == 3)
        breakable.break_context(700)
    assert len({id(error) for error in errors}) == 3
    assert {error.code for error in errors} == {700}
    for refuse in (pool.acquire, pool.stream().__aenter__):
        with pytest.raises(ContextFailedError):
            await refuse()
    with pytest.raises(ContextFailedError):
        pool.acquire_nowait()
    for stream in held:
        pool.release(stream)
    recover()
    await use_once(pool)
    await pool.aclose()


@pytest.mark.simulator_only("resets a device's context")
def test_the_error_names_the_device_that_is_lost(driver_kind: str) -> None:
    printed = succeed(
        driver_kind,
        """
        import asyncio
        import aiostream
        from aiostream import simulator

        simulator.install(devices=2)
        from cuda.bindings import driver

        async def main():
            pool = aiostream.StreamPool(2, devices=[0, 1])
            assert int(driver.cuDevicePrimaryCtxReset(1)[0]) == 0
            held = [await pool.acquire() for _ in range(2)]
            for stream in held:
                pool.release(stream)
            try:
                await pool.acquire()
            except aiostream.ContextFailedError as error:
                print(error)

        asyncio.run(main())
        """,
        forked=USUAL,
    )
    assert "a pool of 2 streams on devices 0, 1, whose device 1 is lost: " in printed


def test_wrong_devices_are_refused() -> None:
    for error, devices, words in (
        (TypeError, "cuda:0", "devices are in a list"),
        (TypeError, 0, "devices are in a list"),
        (ValueError, [], "at least one device"),
        (ValueError, [0, "cuda:0"], "names a device twice"),
        (ValueError, [0, 99], "there is no device 99"),
    ):
        with pytest.raises(error, match=words):
            StreamPool(2, devices=devices)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="device or devices, not both"):
        StreamPool(2, 0, devices=[0, 1])
    with pytest.raises(ValueError, match="1 streams are fewer than 2 devices"):
        StreamPool(1, devices=[0, 1])
