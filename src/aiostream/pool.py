"""StreamPool: a fixed number of streams for any number of tasks."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from aiostream import _loops, futures, interop, waiting
from aiostream.device import Device
from aiostream.errors import CudaError, StreamClosedError
from aiostream.stream import Stream

__all__ = ["StreamPool"]


class StreamPool:
    """A fixed number of streams, lent to one task at a time each.

    `async with pool.stream() as stream:` waits for one to be free. They are lent in turn, so that the one that was given back
    longest ago comes next; tasks that wait are served in order. Streams are made here, once, since making one may block while the
    GPU is busy. `async with StreamPool(8) as pool:` awaits their work at its end, and destroys them.

    Args:
        size: How many.
        device: Where to create them; as `Stream` takes it.
        **options: What else `Stream` takes.

    Threads: tasks of one loop at a time.

    Raises:
        ValueError: `size` is less than 1.
        CudaError: The driver refused.
    """

    def __init__(self, size: int, device: Device | int | None = None, **options: Any) -> None:
        if size < 1:
            raise ValueError(f"a pool has at least one stream, not {size}")
        # All of these by the loop's thread alone.
        self._idle = deque(Stream(device, **options) for _ in range(size))
        interop.share_history(stream._reference for stream in self._idle)
        self._lent: dict[int, tuple[Stream, Stream]] = {}  # by the id of what was lent: that, and the stream itself
        self._waiting: deque[Any] = deque()  # futures of the loop
        self._size = size
        self._closed = False

    @property
    def size(self) -> int:
        """How many streams it has."""
        return self._size

    @property
    def idle(self) -> int:
        """How many are free now; their work may still be in flight."""
        return len(self._idle)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[Stream]:
        """Lends a stream for an `async with` block; equals `acquire` and `release`.

        The block's end does not wait for the stream's work: await what must be done.
        """
        stream = await self.acquire()
        try:
            yield stream
        finally:
            self.release(stream)

    async def acquire(self) -> Stream:
        """Waits until a stream is free, and lends it. `release` gives it back.

        Cancellation: raises at once; nothing is lent.

        Returns:
            A borrowed `Stream`: closing it harms nobody, and it is closed when it is given back.

        Raises:
            RuntimeError: No loop runs here.
            StreamClosedError: The pool is closed, or was while this waited.
        """
        self._require_open()
        if self._idle and not self._waiting:
            stream = self._idle.popleft()
            try:
                await waiting.checkpoint()
            except BaseException:
                self._put_back(stream)
                raise
        else:
            stream = await self._in_turn()
        lent = stream.to_borrowed()
        self._lent[id(lent)] = lent, stream
        return lent

    def release(self, stream: Stream) -> None:
        """Gives back a stream, to whoever waits longest. It is closed then, and its work goes on.

        Raises:
            ValueError: It was not lent by this pool, or was given back before.
        """
        if self._lent.get(id(stream), (None,))[0] is not stream:
            raise ValueError(f"{stream!r} was not lent by this pool, or was given back before")
        lent, own = self._lent.pop(id(stream))
        lent.close()
        self._put_back(own)

    def close(self) -> None:
        """Destroys the streams at once, those that are lent when they come back; their work goes on. May be called again.

        Whoever waits for one gets a `StreamClosedError`.

        Raises:
            CudaError: The driver refused; the others are closed all the same.
        """
        self._closed = True
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done() and not _loops.is_dead(future):
                futures.set_exception(future, StreamClosedError("the pool was closed"))
        with contextlib.ExitStack() as each:  # closes all, whatever one of them raises
            while self._idle:
                each.callback(self._idle.popleft().close)

    async def aclose(self) -> None:
        """Waits for the work of the streams that are free, then destroys them; the rest is as `close` says.

        Cancellation: destroys at once, and raises.

        Raises:
            CudaError: The work of one failed; all are closed all the same.
        """
        self._closed = True
        try:
            await waiting.checkpoint()
            for stream in list(self._idle):
                await stream.synchronize_async()
        finally:
            self.close()

    async def __aenter__(self) -> StreamPool:
        self._require_open()
        await waiting.checkpoint()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            await self.aclose()
        except (CudaError, StreamClosedError):
            if error is None:
                raise
            # The body's own error says what went wrong first.

    def __repr__(self) -> str:
        return f"<aiostream.StreamPool of {self._size}, {len(self._lent)} lent{', closed' if self._closed else ''}>"

    async def _in_turn(self) -> Stream:
        future: Any = _loops.current_bridge().new_future()
        self._waiting.append(future)
        try:
            stream: Stream = await future
        except BaseException:
            if future in self._waiting:
                self._waiting.remove(future)
            elif future.done() and not future.cancelled() and future.exception() is None:
                self._put_back(future.result())  # it was our turn, but we are cancelled
            raise
        return stream

    def _put_back(self, stream: Stream) -> None:
        if self._closed:
            stream.close()
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done() and not _loops.is_dead(future):
                futures.set_result(future, stream)
                return
        self._idle.append(stream)

    def _require_open(self) -> None:
        if self._closed:
            raise StreamClosedError("the pool is closed")
