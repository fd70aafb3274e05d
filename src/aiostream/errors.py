"""The errors that aiostream raises, and the one table from driver codes to classes.

What holds after a raise: a call that raises has enqueued nothing, except where its docstring says otherwise; the stream can be
used on, unless the error is a `ContextFailedError`, after which the driver refuses everything in this process. Where nothing
can be raised (a host function, a finalizer), the exception goes to `sys.unraisablehook`.
"""

from __future__ import annotations

from collections.abc import Callable

from aiostream import _native

__all__ = [
    "ContextFailedError",
    "CudaError",
    "GraphUpdateError",
    "NoDriverError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PoolFullError",
    "StreamCaptureError",
    "StreamClosedError",
]


class CudaError(RuntimeError):
    """The driver answered a call with an error, or the work that was awaited failed.

    Attributes:
        code: The driver's number, a `CUresult`.
        name: Its name, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        call: The driver call that reported it.
        stream: What it was called for, such as `stream 0x55d0 on device 0`, or `None`.
        meaning: The driver's sentence about the code (`cuGetErrorString`), or `None`.
        hint: What else is known, and what to do, or `None`.
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

    def __reduce__(
        self,
    ) -> tuple[
        Callable[..., CudaError], tuple[type[CudaError], tuple[object, ...]], dict[str, object]
    ]:
        """Copies and pickles its text, attributes and notes, so that it can cross a process boundary."""
        return _restored, (type(self), self.args), dict(self.__dict__)


def _restored(kind: type[CudaError], args: tuple[object, ...]) -> CudaError:
    """An error without its `__init__`, which a subclass may have changed. Its attributes follow."""
    return kind.__new__(kind, *args)


class OutOfMemoryError(CudaError):
    """The device has no memory left for the call (code 2)."""


class StreamCaptureError(CudaError):
    """The call is not possible while a stream captures (codes 900 to 908)."""


class NotSupportedError(CudaError):
    """The driver, or the device, cannot do this (codes 801, 500 and 36)."""


class GraphUpdateError(CudaError):
    """An executable graph could not take another graph's parameters (code 910); it stays as it was.

    Attributes:
        result: Why: a `GraphUpdateResult`, as its number.
    """

    result: int = 1


class ContextFailedError(CudaError):
    """A sticky error: the context is lost, and with it every CUDA call of this process.

    Nothing but a new process helps. A fault on one device concerns every device of the process.
    """


class StreamClosedError(RuntimeError):
    """The stream (or event, or graph) was closed, or its handle was given away with `into_raw()`."""


class PoolFullError(RuntimeError):
    """No stream of a pool is free, and no more tasks may wait for one. A server answers 503 then."""


class NoDriverError(RuntimeError):
    """There is no CUDA driver, or it finds no GPU.

    Without a GPU, set `AIOSTREAM_SIMULATOR=1` or call `aiostream.simulator.install()` before the first use.
    """


_CLASSES: dict[int, type[CudaError]] = {
    2: OutOfMemoryError,
    36: NotSupportedError,
    500: NotSupportedError,
    801: NotSupportedError,
    910: GraphUpdateError,
    **dict.fromkeys(range(900, 909), StreamCaptureError),
    **dict.fromkeys(_native.FATAL_CODES, ContextFailedError),
}


def class_for(code: int) -> type[CudaError]:
    """The class of a driver code."""
    return _CLASSES.get(code, CudaError)


def closed(name: str) -> StreamClosedError:
    """The error for an object that is closed."""
    return StreamClosedError(f"{name} is closed: its handle was destroyed or given away")
