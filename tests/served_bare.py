"""`examples/bare_server.py` with what tests need, for uvicorn, hypercorn and granian.

An item is a number, and its batch takes the seconds that the fractions of its items say, or 1 ms.
`/tokens` streams an answer while its client is there. `/statistics` shows what is left.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import aiostream
from aiostream import serving, testing

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import bare_server

bare_server.TIMEOUT = float(os.environ.get("BARE_TIMEOUT", "10"))
bare_server.WAITING = int(os.environ.get("BARE_WAITING", "256"))
bare_server.STALLED = 2.0  # as in `faulty_app.py`
served = Counter[float]()  # by item


def score(stream: aiostream.Stream, items: list[float]) -> Generator[None, None, list[float]]:
    """Counts the items."""
    served.update(items)
    testing.spin(stream, max(0.001, *(item % 1 for item in items)))
    yield
    return [2.0 * item for item in items]


bare_server.score = score


class Application(bare_server.Application):
    """Has more paths."""

    def __init__(self) -> None:
        self.statuses = Counter[str]()

    async def answer(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        """See `bare_server`."""
        if path == "/statistics":
            return 200, "application/json", json.dumps(self.counts()).encode()
        if path == "/infer":
            await self.pool.run(lambda _: None)
            return 200, "application/json", json.dumps({"worker": os.getpid()}).encode()
        if path in ("/fault", "/hang"):
            async with self.pool.stream() as stream:
                if path == "/fault":
                    testing.launch(stream, "trap")
                else:
                    await stream.run(testing.spin, stream, 60.0)
            return 200, "application/json", json.dumps({"worker": os.getpid()}).encode()
        found = await super().answer(path, body)
        self.statuses[f"{path} {found[0]}"] += 1
        return found

    def counts(self) -> dict[str, Any]:
        """What is there now, and what there was."""
        statistics = aiostream.statistics()
        pending = [
            kind.pending for kind in (statistics.points, statistics.futures, statistics.waits)
        ]
        return {
            "waiting": self.scored.waiting,
            "used": self.pool.lent + self.pool.busy,
            "pending": sum(pending),
            "streaming": self.steps.running + self.steps.waiting,
            "twice": sum(count > 1 for count in served.values()),
            "served": len(served),
            **self.statuses,
        }

    async def begin(self) -> None:
        """See `bare_server`."""
        await super().begin()
        stream = await self.stack.enter_async_context(aiostream.Stream(name="decode"))

        def step(active: serving.Active[None]) -> Generator[None, None, dict[int, int]]:
            testing.spin(stream, 0.001)
            yield
            return dict.fromkeys(active, active.number)

        steps = serving.Steps(stream, step, slots=8)
        self.steps = await self.stack.enter_async_context(steps)

    async def tokens(self, connection: Any, send: Callable[[bytes], Any]) -> None:
        """Sends tokens until the client leaves."""
        async with serving.while_connected(connection), self.steps(None) as results:
            async for number in results:
                await send(b"data: %d\n\n" % number)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See `bare_server`."""
        if scope.get("path") != "/tokens":
            await super().__call__(scope, receive, send)
            return

        async def send_token(token: bytes) -> None:
            await send({"type": "http.response.body", "body": token, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.tokens(receive, send_token)

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """See `bare_server`."""
        if scope.path == "/tokens":
            await self.tokens(protocol, protocol.response_stream(200, []).send_bytes)
        else:
            await super().__rsgi__(scope, protocol)


app = Application()
