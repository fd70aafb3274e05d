"""What the tests of stalls share: a listener, and work that is awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiostream
from aiostream import StalledError, Stream
from aiostream.testing import Faults
from support import Gate


class Listener:
    """The stalls that were reported to it."""

    def __init__(self) -> None:
        self.errors: list[StalledError] = []

    def __call__(self, error: StalledError) -> None:
        self.errors.append(error)

    def of(self, text: str) -> list[StalledError]:
        """Those whose text has this in it."""
        return [error for error in self.errors if text in str(error)]

    async def hears(self, text: str = "") -> StalledError:
        while not self.of(text):
            await asyncio.sleep(0.001)
        return self.of(text)[0]


@contextlib.asynccontextmanager
async def awaited_work(stream: Stream) -> AsyncIterator[None]:
    """A task awaits work, which ends with the block."""
    with Gate() as gate:
        gate.hold(stream)
        waiting = asyncio.ensure_future(stream.synchronize_async())
        yield
    await waiting


def hang_next(faults: Faults, call: str) -> None:
    """The next calls do not return: the watcher may make one too, to learn the health.

    The last first, because one that comes in between counts for those that are arranged after it.
    """
    for nth in range(8, 0, -1):
        faults.hang(call, nth=nth)


def says_stalled() -> bool:
    """Whether `health` does. It may name a context that an earlier test has destroyed."""
    return isinstance(aiostream.health(), StalledError)
