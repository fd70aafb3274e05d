"""The errors that aiostream raises, and the one table from driver codes to classes.

A call that raises has enqueued nothing, unless its docstring says otherwise. You can continue to
use the stream. The exception is a `ContextFailedError`, after which the driver refuses everything
in this process. Where no caller can get an exception (a host function, a finalizer), it goes to
`sys.unraisablehook`.
"""

from __future__ import annotations

from typing import Any

from aiostream import _native

__all__ = [
    "ContextFailedError",
    "CudaError",
    "GraphUpdateError",
    "NoDriverError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PoolFullError",
    "StalledError",
    "StreamCaptureError",
    "StreamClosedError",
]


class CudaError(RuntimeError):
    """The driver has answered a call with an error, or the work that you awaited has failed.

    All other errors of the driver are subclasses, so you can catch them with this class.

    Attributes:
        code: The driver's number, a `CUresult`.
        name: The driver's name of the code, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        call: The driver call that reported it.
        stream: The object of the call, such as `stream 0x55d0 on device 0`, or `None`.
        meaning: The driver's sentence about the code (`cuGetErrorString`), or `None`.
        hint: What else is known, and what you can do, or `None`.

    Example:
        >>> start, end = aiostream.Event(timing=True), aiostream.Event(timing=True)
        >>> try:
        ...     end.elapsed_time(start)
        ... except aiostream.CudaError as error:
        ...     print(error.code, error.name, "from", error.call)
        400 CUDA_ERROR_INVALID_HANDLE from cuEventElapsedTime
    """

    def __init__(
        self,
        code: int,
        name: str,
        call: str,
        stream: str | None = None,
        hint: str | None = None,
        meaning: str | None = None,
    ) -> None:
        where = f" for {stream}" if stream else ""
        said = f": {meaning}" if meaning else ""
        more = f". {hint}" if hint else ""
        super().__init__(f"{call} reported {name} ({code}){where}{said}{more}")
        self.code = code
        self.name = name
        self.call = call
        self.stream = stream
        self.hint = hint
        self.meaning = meaning

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles its text, attributes and notes, so that it can leave the process."""
        return _restored, (type(self), self.args), dict(self.__dict__)


def _restored(kind: type[CudaError], args: tuple[object, ...]) -> CudaError:
    # `__init__` is not called, because a subclass may have another signature. The attributes
    # follow.
    return kind.__new__(kind, *args)


class OutOfMemoryError(CudaError):
    """The device has no memory left for the call (code 2). You can try again with less."""


class StreamCaptureError(CudaError):
    """The call is not possible while a stream is capturing (codes 900 to 908)."""


class NotSupportedError(CudaError):
    """The driver or the device does not support this (codes 801, 500 and 36)."""


class GraphUpdateError(CudaError):
    """An executable graph could not take another graph's parameters (code 910).

    The executable graph stays as it was, and you can launch it.

    Attributes:
        result: The reason, a `GraphUpdateResult` as a number.
    """

    result: int = 1


class ContextFailedError(CudaError):
    """The context is lost, and every later call in it fails too.

    After a fault of the GPU, every later CUDA call of the process fails, on all devices, and only a
    new process can use CUDA again. `aiostream.exit_on_context_failed()` ends your process for you.
    If a library has destroyed or reset the context (code 709), other contexts go on.
    """


class StalledError(RuntimeError):
    """The GPU, a loop or the driver has not come back within the limit that you have set.

    What waits is still pending, because it may come back yet. `StreamPool(stalled_after=)` sets the
    limit.

    Attributes:
        stream: The name of the stream, such as `stream 'model[3]' on device 0`.
        seconds: For how long it has not come back.
    """

    # The defaults are for a copy, which gets its attributes after it is made of the text.
    def __init__(self, text: str, stream: str = "", seconds: float = 0.0) -> None:
        super().__init__(text)
        self.stream = stream
        self.seconds = seconds


class StreamClosedError(RuntimeError):
    """You have closed the stream, event or graph, or given its handle away with `into_raw()`.

    Or it is a stream of a pool, and you have given it back: its block has ended.
    """


class PoolFullError(RuntimeError):
    """No stream of a pool is free, and no more tasks may wait for one.

    Your server can answer the request with 503.
    """


class NoDriverError(RuntimeError):
    """There is no CUDA driver, or the driver finds no GPU.

    Without a GPU, set `AIOSTREAM_SIMULATOR=1`. Or write `from aiostream import simulator` and
    `simulator.install()` before you use anything else.
    """


CLASSES: dict[int, type[CudaError]] = {
    2: OutOfMemoryError,
    36: NotSupportedError,
    500: NotSupportedError,
    801: NotSupportedError,
    910: GraphUpdateError,
    **dict.fromkeys(range(900, 909), StreamCaptureError),
    **dict.fromkeys(_native.FATAL_CODES, ContextFailedError),
}


def closed(name: str) -> StreamClosedError:
    """The error for an object that is closed."""
    return StreamClosedError(
        f"{name} is closed: its block has ended, or it was closed, given back to a pool, or given "
        "away by into_raw(). Keep the block open while you use it, or make a new one"
    )
