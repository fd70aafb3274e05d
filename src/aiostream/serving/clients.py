"""Clients that leave while a handler waits."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from aiostream._runtime import loops

_A_BODY = (
    "while_connected got a body: read the body before. If you have, its `receive` replays it, and "
    "never says that the client leaves: a middleware has to await the server's `receive` after it"
)


def while_connected(request: Any, /) -> AbstractAsyncContextManager[None, bool]:
    """A block that is cancelled when the client leaves.

    Servers such as uvicorn and frameworks such as FastAPI let a handler go on when its client has
    disconnected. In this block its wait ends: its item leaves the queue of its `Batches`, or its
    task the queue of its pool. The GPU finishes what it has begun.

    The program goes on behind a block that was cancelled. What you answer there reaches no client.
    A block ends by granian's `RSGIProtocolClosed` in the same way.

    Read the body of the request before, with `await request.body()` or as FastAPI does it for the
    parameters of a handler, because the block receives everything that comes after. A client that
    has sent its next request already (HTTP pipelining) may not be noticed, because servers then
    stop reading from its connection until they have answered.

    Args:
        request: A `Request` of Starlette or FastAPI, the `receive` of an ASGI application, or the
            protocol of an HTTP request of RSGI. The body of the last you may read in the block.

    Cancellation: on asyncio the block is cancelled as one of `asyncio.timeout` is.

    Threads: use it in tasks of asyncio or trio.

    Raises:
        TypeError: It is something else, such as a WebSocket, whose messages the block would take.
            Receive these yourself: their end is an exception.
        RuntimeError: The body of the request was not read before, `receive` gives it a second time,
            or `receive` is a WebSocket's. The block is cancelled first. Or granian runs the tasks
            (`--task-impl rust`), which cannot be cancelled.
        BaseException: What `receive` has raised. The block is cancelled first.

    Example:
        >>> from aiostream import serving
        >>> async def receive():
        ...     return {"type": "http.disconnect"}  # the server's, of a client that leaves
        >>> async with serving.while_connected(receive):
        ...     await asyncio.sleep(60)
        ...     print("too late")
    """
    return _Connected(request)


class _Connected(AbstractAsyncContextManager[None, bool]):
    # No generator and no task group of anyio, with which a request on asyncio takes 30 us more.

    _problem: BaseException | None = None

    def __init__(self, request: Any) -> None:
        receive = getattr(request, "client_disconnect", None)  # RSGI's protocol has it
        if receive is None:
            scope = getattr(request, "scope", None)
            is_http = isinstance(scope, dict) and scope.get("type") == "http"
            receive = getattr(request, "receive", None) if is_http else request
        if not callable(receive):
            raise TypeError(
                "while_connected takes an HTTP request, its `receive`, or RSGI's protocol of an "
                f"HTTP request, not {type(request).__name__}"
            )
        self._receive: Any = receive  # awaited until the client leaves

    async def __aenter__(self) -> None:
        self._block = loops.cancelled_by(self._watch)
        await self._block.__aenter__()

    async def __aexit__(self, *error: Any) -> bool:
        block, self._block = self._block, None  # which refers to this
        has_left = await block.__aexit__(*error)
        if self._problem is not None and (has_left or error[0] is None):
            try:
                raise self._problem
            finally:
                self._problem = None  # its traceback refers to this frame
        # RSGI's protocol may raise it before the block is cancelled.
        return has_left or (error[0] is not None and error[0].__name__ == "RSGIProtocolClosed")

    async def _watch(self) -> None:
        receive, is_empty = self._receive, False
        try:
            while (message := await receive()) is not None:  # RSGI's `client_disconnect` returns it
                kind = message["type"] if isinstance(message, dict) else type(message).__name__
                if kind == "http.disconnect":
                    return
                if kind != "http.request":
                    raise RuntimeError(f"while_connected got {kind}: it is for HTTP")
                # The server sends one empty body for a request without one.
                if is_empty or message.get("body") or message.get("more_body"):
                    raise RuntimeError(_A_BODY)
                is_empty = True
        except BaseException as error:
            if self._block is None:  # then the block's end has cancelled this task
                raise
            self._problem = error
