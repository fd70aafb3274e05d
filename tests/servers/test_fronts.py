"""Fronts: `examples/bare_server.py` on uvicorn, hypercorn and granian, with clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from servers import needs_granian, serving
from support import FULL

REQUESTS = 100_000 if FULL else 200
CLIENTS, WAITING = 32, 64
LEAVES = 0.2  # of the requests
HELD = 0.5  # seconds; what an item's fraction asks for

kinds = pytest.mark.parametrize(
    "kind",
    [
        "bare uvicorn",
        "bare hypercorn",
        pytest.param("bare granian ASGI", marks=needs_granian),
        pytest.param("bare granian RSGI", marks=needs_granian),
    ],
)
Connect = Callable[[], "Client"]


class Client:
    """One connection after another to a server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opened: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> asyncio.StreamReader:
        if self._opened is None:
            self._opened = await asyncio.open_connection("127.0.0.1", self._port)
        self._opened[1].write(data)
        return self._opened[0]

    async def ask(self, path: str, body: bytes = b"") -> tuple[int, Any]:
        """Sends a request, and returns the status and what is answered."""
        reader = await self.send(request_of(path, body))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split()[0])
        found = await reader.readexactly(length)
        return int(head.split()[1]), json.loads(found) if b"json" in head else found

    def leave(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
        self._opened = None


def request_of(path: str, body: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def item(number: float) -> bytes:
    return json.dumps({"item": number}).encode()


@contextlib.asynccontextmanager
async def clients_of(port: int) -> AsyncIterator[Connect]:
    """What makes clients of a server. They leave at the end."""
    made: list[Client] = []

    def connect() -> Client:
        made.append(Client(port))
        return made[-1]

    try:
        yield connect
    finally:
        for each in made:
            each.leave()
        await asyncio.sleep(0)  # the loop closes the connections


async def until_answered(client: Client, status: int = 200) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            assert (await client.ask("/health"))[0] == status
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the server does not answer")


async def counts(client: Client, **expected: int) -> dict[str, int]:
    """The server's counts, as soon as some of them are as expected."""
    found: dict[str, int] = {}
    for _ in range(500):
        found = (await client.ask("/statistics"))[1]
        if expected.items() <= found.items():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"not {expected}: {found}")


async def load(connect: Connect) -> list[float]:
    """Each number is asked for once. Some clients leave, at random points. Returns the answers."""
    numbers, answers, points = iter(range(1, REQUESTS + 1)), list[float](), random.Random(75)

    async def ask() -> None:
        client = connect()
        for number in numbers:
            if points.random() < LEAVES:
                data = request_of("/score", item(number))
                await client.send(data[: points.randrange(2 * len(data))])  # often all of it
                await asyncio.sleep(points.choice([0, 0, 0.001, 0.003]))
                client.leave()
                continue
            status, found = await client.ask("/score", item(number))
            assert (status, found) == (200, {"score": 2.0 * number})
            answers.append(number)
        client.leave()

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    return answers


async def check(connect: Connect, server: subprocess.Popen[str]) -> None:
    await until_answered(connect())
    nothing = {"waiting": 0, "used": 0, "pending": 0, "streaming": 0}
    answers = await load(connect)
    client = connect()  # a server closes a connection that asks nothing for seconds
    assert len(answers) > (1 - 2 * LEAVES) * REQUESTS
    found = await counts(client, **nothing, twice=0)
    assert len(answers) <= found["served"] <= REQUESTS

    readers = [connect() for _ in range(8)]
    for each in readers:
        await (await each.send(request_of("/tokens"))).readuntil(b"data: ")
    await counts(client, streaming=8)
    for each in readers:
        each.leave()
    await counts(client, **nothing)

    for wrong in (b"", b"x", b"[]", b'{"item": "x"}', b"{}"):
        assert (await client.ask("/score", wrong))[0] == 400
    assert (await client.ask("/nothing"))[0] == 404
    assert b"aiostream_batches" in (await client.ask("/metrics"))[1]

    # Three batches hold the streams, and as many items wait as may. One of them leaves.
    held = []
    for number in range(1, 4):
        held.append(asyncio.create_task(connect().ask("/score", item(number + HELD))))
        await counts(client, used=number)
    leaves = connect()
    await leaves.send(request_of("/score", item(4)))
    await counts(client, waiting=1)
    held += [asyncio.create_task(connect().ask("/score", item(5))) for _ in range(WAITING - 1)]
    await counts(client, waiting=WAITING)
    assert (await client.ask("/score", item(6)))[0] == 503
    leaves.leave()
    await counts(client, waiting=WAITING - 1)

    server.send_signal(signal.SIGTERM)
    found_last = [answer[1]["score"] for answer in await asyncio.gather(*held)]
    assert found_last == [2 * (1 + HELD), 2 * (2 + HELD), 2 * (3 + HELD)] + [10] * (WAITING - 1)


@kinds
@pytest.mark.timeout(900 if FULL else 120)
def test_a_front_serves_and_forgets_clients_that_leave_and_ends_in_order(
    kind: str, driver_kind: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    async def run(port: int) -> None:
        async with clients_of(port) as connect:
            await check(connect, server)

    with serving(kind, driver_kind, log, BARE_WAITING=str(WAITING)) as (server, url):
        asyncio.run(run(int(url.rpartition(":")[2])))
        # uvicorn raises the signal again, when it has ended in order.
        assert server.wait(30) in (0, -signal.SIGTERM)
    assert "Traceback" not in log.read_text(), log.read_text()


@needs_granian
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="granian uses asyncio's tasks there")
def test_tasks_that_cannot_be_cancelled_are_refused(driver_kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run(port: int) -> None:
        async with clients_of(port) as connect:
            await until_answered(connect(), 500)

    with serving("bare granian, Rust's tasks", driver_kind, log) as (_, url):
        asyncio.run(run(int(url.rpartition(":")[2])))
    assert "start it with --task-impl asyncio" in log.read_text()
