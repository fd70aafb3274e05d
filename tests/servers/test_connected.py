"""`serving.while_connected`: whose leaving ends a block, and what it refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream.serving import Batches, while_connected
from support import Gate
from waiters import turns, until

EMPTY = {"type": "http.request", "body": b"", "more_body": False}
LEFT = {"type": "http.disconnect"}


class Client:
    """What an ASGI server gives an application as `receive`. It blocks until there is a message."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.comes = anyio.Event()
        self.receiving = 0

    async def receive(self) -> dict[str, Any]:
        self.receiving += 1
        try:
            while not self.messages:
                await self.comes.wait()
            return self.messages.pop(0)
        finally:
            self.receiving -= 1

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.comes.set()


def bare(client: Client) -> Any:
    return client.receive


def starlette(client: Client) -> Any:
    requests = pytest.importorskip("starlette.requests")
    return requests.Request({"type": "http", "method": "GET", "headers": []}, client.receive)


requests_of = pytest.mark.parametrize("request_of", [bare, starlette])


@requests_of
@pytest.mark.all_loops
async def test_a_block_is_cancelled_when_the_client_leaves(request_of: Any) -> None:
    client, reached = Client(EMPTY), []
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            await until(lambda: client.receiving == 1 and not client.messages)
            client.send(LEFT)

        group.start_soon(leave)
        async with while_connected(request_of(client)):
            reached.append("begun")
            await anyio.sleep(60)
            reached.append("too late")
        reached.append("behind")
        await anyio.lowlevel.checkpoint()  # the task itself is not cancelled
    assert reached == ["begun", "behind"]
    assert client.receiving == 0


@requests_of
@pytest.mark.all_loops
async def test_a_block_that_ends_first_is_as_without(request_of: Any) -> None:
    client = Client(EMPTY)

    async def answer() -> str:
        async with while_connected(request_of(client)):
            await turns()
            return "answer"

    assert await answer() == "answer"
    assert client.receiving == 0
    with pytest.raises(KeyError, match="its own"):
        async with while_connected(request_of(client)):
            await turns()
            raise KeyError("its own")

    class Interrupted(BaseException):
        pass

    with pytest.raises(Interrupted):  # not in a group of exceptions
        async with while_connected(request_of(client)):
            await turns()
            raise Interrupted
    assert client.receiving == 0
    with anyio.CancelScope() as scope:
        async with while_connected(request_of(client)):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert client.receiving == 0


async def test_its_item_leaves_the_queue() -> None:
    gate, client = Gate(), Client(EMPTY)
    async with aiostream.Stream() as stream:

        def fn(items: list[int]) -> list[int]:
            gate.hold(stream)
            return items

        pool = aiostream.StreamPool.borrow([stream])
        async with pool, Batches(pool, fn, most=1) as same, anyio.create_task_group() as group:

            async def ask() -> None:
                async with while_connected(client.receive):
                    await same(1)

            group.start_soon(same, 0)
            await until(lambda: same.sizes[1] == 1)
            group.start_soon(ask)
            await until(lambda: same.waiting == 1)
            client.send(LEFT)
            await until(lambda: same.waiting == 0)
            gate.open()
    assert same.sizes == {1: 1}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"type": "http.request", "body": b"part", "more_body": False}, "read the body"),
        ({"type": "http.request", "body": b"", "more_body": True}, "read the body"),
        ({"type": "websocket.receive", "text": "hello"}, "got websocket.receive"),
    ],
)
async def test_what_the_block_would_take_from_the_program_is_refused(
    message: dict[str, Any], error: str
) -> None:
    with pytest.raises(RuntimeError, match=error):
        async with while_connected(Client(message).receive):
            await anyio.sleep_forever()


async def test_an_error_of_receive_is_raised() -> None:
    async def receive() -> Any:
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        async with while_connected(receive):
            await anyio.sleep_forever()


async def test_only_http_requests_are_taken() -> None:
    websockets = pytest.importorskip("starlette.websockets")

    async def send(message: Any) -> None:
        raise AssertionError

    receive: Callable[[], Awaitable[Any]] = Client().receive
    socket = websockets.WebSocket({"type": "websocket", "headers": []}, receive, send)
    for wrong in (socket, None, {"type": "http"}):
        with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
            async with while_connected(wrong):
                pass
