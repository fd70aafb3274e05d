"""`serving.while_connected`: whose leaving ends a block, and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
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


class Protocol:
    """What RSGI gives an application for an HTTP request, as far as it matters here."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def client_disconnect(self) -> None:
        while await self._client.receive() != LEFT:
            pass


requests_of = pytest.mark.parametrize("request_of", [bare, starlette, Protocol])


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

    async def answer() -> str | None:
        async with while_connected(request_of(client)):
            await turns()
            return "answer"
        return None

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


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
@pytest.mark.parametrize("first", ["client", "task"])
async def test_a_task_that_is_cancelled_as_its_client_leaves_is_cancelled(first: str) -> None:
    client, reached = Client(EMPTY), []

    async def answer() -> None:
        async with asyncio.timeout(60), while_connected(client.receive):
            await asyncio.sleep(60)
        reached.append("behind")

    task = asyncio.ensure_future(answer())
    await until(lambda: client.receiving == 1 and not client.messages)
    if first == "client":
        client.send(LEFT)
        await asyncio.sleep(0)  # it receives now, and cancels the block
    task.cancel()
    client.send(LEFT)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not reached
    assert client.receiving == 0


@requests_of
@pytest.mark.parametrize("has_left", [False, True])
async def test_a_block_leaves_nothing_for_the_garbage_collector(
    request_of: Any, has_left: bool, loop_kind: str
) -> None:
    if has_left and loop_kind == "trio" and sys.version_info >= (3, 12):
        pytest.skip("trio's own frames keep a cancellation there")
    client = Client(EMPTY, *[LEFT] * has_left)
    gc.disable()
    try:
        async with while_connected(request_of(client)):
            await turns()
        gone = weakref.ref(client)
        del client
        assert gone() is None
    finally:
        gc.enable()


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


BODY = {"type": "http.request", "body": b"part", "more_body": False}
MORE = {"type": "http.request", "body": b"", "more_body": True}
SOCKET = {"type": "websocket.receive", "text": "hello"}


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([BODY], "read the body before. If you have, its `receive` replays"),
        ([MORE], "read the body before. If you have, its `receive` replays"),
        ([SOCKET], "got websocket.receive"),
        ([EMPTY, EMPTY], "got a body: .* its `receive` replays it"),
        ([EMPTY, BODY], "got a body: .* its `receive` replays it"),
        ([EMPTY, SOCKET], "got websocket.receive"),
    ],
)
async def test_what_the_block_would_take_from_the_program_is_refused(
    messages: list[dict[str, Any]], error: str
) -> None:
    with pytest.raises(RuntimeError, match=error):
        async with while_connected(Client(*messages).receive):
            await anyio.sleep_forever()


@pytest.mark.parametrize("request_of", [bare, starlette])
@pytest.mark.parametrize("message", [EMPTY, BODY])
@pytest.mark.all_loops
async def test_a_receive_that_replays_does_not_keep_the_loop(
    request_of: Any, message: dict[str, Any]
) -> None:
    """As in a middleware that has read the body: each call is answered at once."""

    class Replay(Client):
        async def receive(self) -> dict[str, Any]:
            return message

    request = request_of(Replay())
    if request_of is starlette:
        await request.body()
    with pytest.raises(RuntimeError, match="its `receive` replays it"):
        async with while_connected(request):
            await anyio.sleep_forever()


@pytest.mark.parametrize("error", [ConnectionError("lost"), asyncio.CancelledError("lost")])
@pytest.mark.all_loops
async def test_an_error_of_receive_is_raised(error: BaseException) -> None:
    """Also one that looks as if the task were cancelled."""

    async def receive() -> Any:
        raise error

    with pytest.raises(type(error), match="lost"):
        async with while_connected(receive):
            await anyio.sleep_forever()


@pytest.mark.parametrize("is_handled", [False, True])
@pytest.mark.parametrize("make", [asyncio.TaskGroup, anyio.create_task_group])
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_a_group_that_fails_in_the_block_is_as_without(make: Any, is_handled: bool) -> None:
    """asyncio's own leaves its cancellation requested, on Python 3.11, if the task waits for it."""
    reached = []

    async def fail() -> None:
        await turns()
        raise KeyError("its own")

    async def answer() -> None:
        async with while_connected(Client(EMPTY).receive):
            try:
                async with make() as group:
                    if make is asyncio.TaskGroup:
                        group.create_task(fail())
                    else:
                        group.start_soon(fail)
            except* KeyError:
                if not is_handled:
                    raise
            reached.append("end")
            await turns()

    if is_handled:
        await answer()
    else:
        with pytest.raises(BaseExceptionGroup) as caught:
            await answer()
        assert repr(caught.value.exceptions[0]) == repr(KeyError("its own"))
    assert reached == ["end"] * is_handled


async def test_only_http_requests_are_taken() -> None:
    websockets = pytest.importorskip("starlette.websockets")

    async def send(message: Any) -> None:
        raise AssertionError

    receive: Callable[[], Awaitable[Any]] = Client().receive
    socket = websockets.WebSocket({"type": "websocket", "headers": []}, receive, send)
    for wrong in (socket, None, {"type": "http"}, WebsocketProtocol(), WebsocketTransport()):
        with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
            async with while_connected(wrong):
                pass
    with pytest.raises(RuntimeError, match="got WebsocketTransport: it is for HTTP"):
        async with while_connected(WebsocketTransport().receive):
            await anyio.sleep_forever()


class WebsocketProtocol:
    """RSGI's, of a WebSocket."""

    async def accept(self) -> Any: ...

    def close(self, status: int | None) -> None: ...


class WebsocketTransport:
    """What its `accept` returns. A message stands for RSGI's, which is no dict either."""

    async def receive(self) -> Any:
        return self
