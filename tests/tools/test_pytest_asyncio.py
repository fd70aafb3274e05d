"""People test their own code with pytest-asyncio: its loops are as good as any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aiostream import Stream


@pytest_asyncio.fixture
async def stream() -> AsyncIterator[Stream]:
    async with Stream() as made:
        yield made


@pytest.mark.asyncio
async def test_a_stream_from_a_fixture(stream: Stream) -> None:
    future = stream.completion_future()
    assert isinstance(future, asyncio.Future)
    await asyncio.gather(stream.synchronize_async(), future)
