"""The tests of a service that awaits CUDA work, with the pytest plugin and nothing else.

    pip install . ./driver pytest
    pytest -c /dev/null --aiostream=simulator examples/test_with_plugin.py

(`-c /dev/null` is for a clone: it leaves out the settings of the library's own tests. With
`--aiostream-devices=2` the simulator has two GPUs, and the last test runs too.)

The plugin brings a simulated driver, so the tests need no GPU. After each test it looks at what is
open: an open stream, a wait that does not end or a leak that a test leaves behind fails that test,
and so does a call that blocks the loop. `cuda_gate` holds the GPU's work until the test opens it,
and `cuda_faults` makes calls of the driver fail and loses the context.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import aiostream
from aiostream.testing import Faults, Gate, spin


class Service:
    """What is tested: it answers with twice the number, when the GPU has worked."""

    def __init__(self, streams: int = 2, waiting: int | None = None) -> None:
        self.pool = aiostream.StreamPool(streams, max_waiting=waiting)  # allow_blocking: the start

    async def __aenter__(self) -> Service:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.pool.aclose()

    async def answer(self, number: int) -> int:
        """Waits for 1 ms of work."""
        async with self.pool.stream() as stream:
            await stream.run(spin, stream, 0.001)
        return 2 * number


def test_one_answer() -> None:
    async def main() -> None:
        async with Service() as service:
            assert await service.answer(21) == 42

    asyncio.run(main())


def test_many_answers_at_once() -> None:
    async def main() -> None:
        async with Service() as service:
            answers = await asyncio.gather(*(service.answer(n) for n in range(20)))
            assert answers == [2 * n for n in range(20)]

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_any_loop(backend: str) -> None:
    async def main() -> None:
        async with Service() as service:
            assert await service.answer(1) == 2

    anyio.run(main, backend=backend)


def test_a_request_that_gives_up_leaves_nothing(cuda_gate: Gate) -> None:
    async def main() -> None:
        async with Service(streams=1) as service:
            async with service.pool.stream() as stream:
                cuda_gate.hold(stream)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await service.answer(1)
            cuda_gate.open()
            assert await service.answer(2) == 4

    asyncio.run(main())


def test_a_full_service_refuses(cuda_gate: Gate) -> None:
    async def main() -> None:
        async with Service(streams=1, waiting=0) as service:
            async with service.pool.stream() as stream:
                cuda_gate.hold(stream)
            with pytest.raises(aiostream.PoolFullError):
                await service.answer(1)
            cuda_gate.open()

    asyncio.run(main())


def test_no_memory_is_reported(cuda_faults: Faults) -> None:
    cuda_faults.fail("cuStreamCreateWithPriority", 2, nth=2)
    with pytest.raises(aiostream.OutOfMemoryError):
        Service(streams=2)


def test_the_health_of_a_lost_context(cuda_faults: Faults) -> None:
    async def main() -> None:
        async with Service() as service:
            assert await service.answer(1) == 2
            cuda_faults.lose_context(700)
            lost = aiostream.health()
            assert isinstance(lost, aiostream.ContextFailedError)
            assert lost.code == 700
            with pytest.raises(aiostream.ContextFailedError):
                await service.answer(1)
            with pytest.raises(aiostream.ContextFailedError):
                await service.pool.aclose()

    asyncio.run(main())
    assert aiostream.statistics().points.leaked == 0


def test_the_context_is_well_again() -> None:
    async def main() -> None:
        async with Service() as service:
            assert await service.answer(1) == 2

    asyncio.run(main())
    assert aiostream.health() is None


@pytest.mark.cuda_blocking("shows that shutdown() may block where nothing else runs")
def test_allowed_to_block() -> None:
    async def main() -> None:
        aiostream.Stream().shutdown()

    asyncio.run(main())


def test_two_devices(cuda_simulator: Any) -> None:
    assert cuda_simulator.installed()
    if aiostream.Device.count() < 2:
        pytest.skip("needs --aiostream-devices=2")
    assert aiostream.Device.count() == 2
