"""Clients that leave while a handler waits."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any


@contextlib.asynccontextmanager
async def while_connected(request: Any, /) -> AsyncIterator[None]:
    """A block that is cancelled when the client leaves.

    Servers such as uvicorn and frameworks such as FastAPI let a handler go on when its client has
    disconnected. In this block its wait ends: its item leaves the queue of its `Batches`, or its
    task the queue of its pool. The GPU finishes what it has begun.

    The program goes on behind a block that was cancelled. What you answer there reaches no client.

    Read the body of the request before, with `await request.body()` or as FastAPI does it for the
    parameters of a handler, because the block receives everything that comes after. A client that
    has sent its next request already (HTTP pipelining) may not be noticed, because servers then
    stop reading from its connection until they have answered.

    Args:
        request: A `Request` of Starlette or FastAPI, or the `receive` of an ASGI application.

    Threads: use it in tasks of asyncio or trio.

    Raises:
        TypeError: It is something else, such as a WebSocket, whose messages the block would take.
            Receive these yourself: their end is an exception.
        RuntimeError: The body of the request was not read before, or `receive` is a WebSocket's.
            The block is cancelled first.

    Example:
        >>> from aiostream import serving
        >>> async def receive():
        ...     return {"type": "http.disconnect"}  # the server's, of a client that leaves
        >>> async with serving.while_connected(receive):
        ...     await asyncio.sleep(60)
        ...     print("too late")
    """
    import anyio  # here, because `metrics` imports this module, and must not import anyio

    scope = getattr(request, "scope", None)
    receive = getattr(request, "receive", request)
    if not callable(receive) or (isinstance(scope, dict) and scope.get("type") != "http"):
        raise TypeError(
            f"while_connected takes an HTTP request or its `receive`, not {type(request).__name__}"
        )
    problems: list[BaseException] = []

    async def watch() -> None:
        try:
            while (message := await receive())["type"] != "http.disconnect":
                # The server sends an empty body for a request without one.
                if message["type"] != "http.request":
                    raise RuntimeError(f"while_connected got {message['type']}: it is for HTTP")
                if message.get("body") or message.get("more_body"):
                    raise RuntimeError("read the body of the request before while_connected")
        except Exception as error:
            problems.append(error)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            yield
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # raised below, as if there were no task group
            problems.insert(0, error)
        group.cancel_scope.cancel()
    if problems:
        try:
            raise problems[0]
        finally:
            problems.clear()  # its traceback refers to this frame
