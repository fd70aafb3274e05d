"""What worker processes are given to do: `multiprocessing` must be able to import it."""

from __future__ import annotations

import asyncio

from aiostream import Stream, statistics


def wait_for(number: int) -> int:
    """Awaits a stream of this process; returns the number."""

    async def main() -> int:
        async with Stream() as stream:
            await stream.synchronize_async()
            await stream.completion_future()
            return await stream.enqueue_async(lambda _, value: value, number)

    result = asyncio.run(main())
    assert statistics().balanced
    return result
