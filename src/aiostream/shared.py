"""A stream that other libraries use too: what they call it, and how it is made their current one."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Self

from aiostream import interop
from aiostream._reference import Reference, current_in_libraries, pinned
from aiostream.errors import StreamClosedError

__all__: list[str] = []


def _library(name: str, package: str) -> ModuleType:
    """Another library, which is imported now because somebody asks for its stream.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise ImportError(f"{name} is not installed: pip install {package}") from problem


class SharedStream:
    """What a `Stream` does with torch, cupy, numba and cuda.core; it inherits this from here."""

    _reference: Reference  # set by `Stream`

    def core(self) -> Any:
        """Gives a `cuda.core.Stream` on the same handle.

        From now on the stream is shared: `close()` *retires* it. The driver's stream is then not destroyed, because the other
        library may use its handle for as long as it likes, also after everything that you can see is gone: torch, for example,
        records an event on it when pinned memory is freed. A retired stream stays until the process ends. So share streams that
        live long, those of a `StreamPool` for example, and not one for each request.

        On a borrowed or lent stream the owner is retired, too. The object keeps this one alive.

        Raises:
            ImportError: cuda.core is not installed.
            StreamClosedError: The stream is closed.
        """
        module = _library("cuda.core", "cuda-core")
        if not hasattr(module, "Stream"):  # before 1.0
            module = _library("cuda.core.experimental", "cuda-core")
        return self._shared(module.Stream.from_handle)

    def torch(self) -> Any:
        """Gives a `torch.cuda.ExternalStream` on the same handle. Retires the stream at its end, as `core()` says.

        From now on this stream is torch's current one in the functions that `enqueue_async` and `enqueue_in_thread` call, and in
        a block of `as_current()`.

        Do not write `torch.cuda.ExternalStream(stream.handle)` yourself: torch uses the handle after the stream was destroyed,
        and crashes the process.

        Raises:
            ImportError: torch is not installed.
            StreamClosedError: The stream is closed.

        Example:
            ::

                with torch.cuda.stream(stream.torch()):
                    output = model(batch)
                await stream.synchronize_async()
        """
        torch = _library("torch", "torch")
        device = torch.device("cuda", self._reference.context._device_ordinal())
        stream = self._shared(lambda handle: torch.cuda.ExternalStream(handle, device=device))
        # Another object, because that one keeps this stream alive.
        interop.use_torch_stream(
            self._reference, torch, torch.cuda.ExternalStream(stream.cuda_stream, device=device)
        )
        return stream

    def cupy(self) -> Any:
        """Gives a `cupy.cuda.ExternalStream` on the same handle. Retires the stream at its end, as `core()` says.

        From now on this stream is cupy's current one in the functions that `enqueue_async` and `enqueue_in_thread` call, and in a
        block of `as_current()`.

        Raises:
            ImportError: cupy is not installed.
            StreamClosedError: The stream is closed.
        """
        cupy = _library("cupy", "cupy-cuda13x")
        ordinal = self._reference.context._device_ordinal()
        stream = self._shared(lambda handle: cupy.cuda.ExternalStream(handle, ordinal))
        interop.use_cupy_stream(self._reference, cupy.cuda.ExternalStream(stream.ptr, ordinal))
        return stream

    def numba(self) -> Any:
        """Gives a stream of numba-cuda's on the same handle. Retires the stream at its end, as `core()` says.

        Raises:
            ImportError: numba-cuda is not installed.
            StreamClosedError: The stream is closed.
        """
        return self._shared(_library("numba.cuda", "numba-cuda").external_stream)

    @contextlib.contextmanager
    def as_current(self) -> Iterator[Self]:
        """Makes the stream's context current for a `with` block, and the stream torch's or cupy's current one.

        The latter if the stream was borrowed from that library, or given to it by `torch()` or `cupy()`. The end of the block
        puts everything back.

        The block must not await, because all of this is the thread's: the other tasks would use the stream too. (And if blocks
        of two tasks overlap, torch's current stream may stay the wrong one.) Enqueue in the block, and await behind it. Begin
        and end the block in one thread.

        Raises:
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
            RuntimeError: There was an await in the block, at its end. An error of the block itself goes on in its place, with a
                note.

        Example:
            ::

                stream.torch()
                with stream.as_current():
                    output = model(batch)
                await stream.synchronize_async()
        """
        reference = self._reference
        held, mark = reference.common.held, object()
        with (
            pinned(reference),
            reference.context.as_current(),
            current_in_libraries(reference),
        ):
            try:
                held.append(mark)
                yield self
            finally:
                with contextlib.suppress(ValueError):  # an interrupt came before it was there
                    held.remove(mark)

    def _shared(self, make: Callable[[int], Any]) -> Any:
        handle = self._reference.handle
        with pinned(self._reference) as value:
            stream = make(value)  # first, because it may fail
            if not handle.share():
                raise StreamClosedError(
                    f"{self._reference.name} is closed: its handle was destroyed or given away"
                )
        try:
            stream._aiostream = self
        except AttributeError:  # cuda.core's take no attributes
            # Not for torch's: 2.11 does not clear weak references to a stream, which then crash the
            # interpreter at its end.
            weakref.finalize(stream, lambda _: None, self).atexit = False
        return stream
