"""Clients that leave while a handler waits."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

_A_BODY = (
    "while_connected got a body: read the body before. If you have, its `receive` replays it, and "
    "never says that the client leaves: a middleware has to await the server's `receive` after it"
)


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
        RuntimeError: The body of the request was not read before, `receive` gives it a second time,
            or `receive` is a WebSocket's. The block is cancelled first.
        BaseException: What `receive` has raised. The block is cancelled first.

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
    cancelled, receiving = anyio.get_cancelled_exc_class(), anyio.CancelScope()

    async def watch() -> None:
        with receiving:
            try:
                is_empty = False
                while (message := await receive())["type"] != "http.disconnect":
                    if message["type"] != "http.request":
                        raise RuntimeError(f"while_connected got {message['type']}: it is for HTTP")
                    # The server sends one empty body for a request without one.
                    if is_empty or message.get("body") or message.get("more_body"):
                        raise RuntimeError(_A_BODY)
                    is_empty = True
            except BaseException as error:
                # It is -inf if this task is cancelled. Else the cancellation comes from `receive`.
                if isinstance(error, cancelled) and anyio.current_effective_deadline() < 0:
                    raise
                problems.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            yield
        except cancelled:
            raise
        except BaseException as error:  # raised below, as if there were no task group
            problems.insert(0, error)
        # Not the group, which would cancel this task too. On Python 3.11 anyio does not take that
        # back if an asyncio.TaskGroup has failed here, whose own request to cancel remains.
        receiving.cancel()
    if problems:
        try:
            raise problems[0]
        finally:
            problems.clear()  # its traceback refers to this frame
