"""Streams that other libraries use too: as their objects, and as their current stream."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Self

from aiostream import errors, interop
from aiostream._reference import Reference, current_in_libraries, pinned

__all__: list[str] = []


def _library(name: str, package: str) -> ModuleType:
    """Imports another library, because you ask for its stream.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise ImportError(f"{name} is not installed: pip install {package}") from problem


class SharingMethods:
    """What a `Stream` does with torch, cupy, numba and cuda.core. It inherits this from here."""

    _reference: Reference  # set by `Stream`

    def core(self) -> Any:
        """Returns a `cuda.core.Stream` on the same handle. It keeps this stream alive.

        From now on the stream is shared, and `close()` *retires* it in place of destroying it. The
        other library may use its handle for as long as it likes, even after everything that you can
        see is gone. torch, for example, records an event on it when pinned memory is freed. A
        retired stream stays until the process ends. So share streams that live long, such as those
        of a `StreamPool`, and not one for each request.

        If the stream is borrowed, or lent by a pool, its owner is retired too.

        Raises:
            ImportError: cuda.core is not installed.
            StreamClosedError: The stream is closed.
        """
        module = _library("cuda.core", "cuda-core")
        if not hasattr(module, "Stream"):  # before 1.0
            module = _library("cuda.core.experimental", "cuda-core")
        return self._shared(module.Stream.from_handle)

    def torch(self) -> Any:
        """Returns a `torch.cuda.ExternalStream` on the same handle.

        At its end this stream is retired, as `core()` says. From now on this stream is torch's
        current one in the functions that `enqueue_async` and `enqueue_in_thread` call, and in a
        block of `as_current()`.

        Do not write `torch.cuda.ExternalStream(stream.handle)` yourself. torch would use the handle
        after the stream was destroyed, which crashes the process.

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
        # Another object, because the one that is returned keeps this stream alive. If the stream
        # kept that one alive, it would never be dropped.
        interop.use_torch_stream(
            self._reference, torch, torch.cuda.ExternalStream(stream.cuda_stream, device=device)
        )
        return stream

    def cupy(self) -> Any:
        """Returns a `cupy.cuda.ExternalStream` on the same handle.

        At its end this stream is retired, as `core()` says. From now on this stream is cupy's
        current one in the functions that `enqueue_async` and `enqueue_in_thread` call, and in a
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
        """Returns a stream of numba-cuda on the same handle.

        At its end this stream is retired, as `core()` says.

        Raises:
            ImportError: numba-cuda is not installed.
            StreamClosedError: The stream is closed.
        """
        return self._shared(_library("numba.cuda", "numba-cuda").external_stream)

    @contextlib.contextmanager
    def as_current(self) -> Iterator[Self]:
        """Makes the stream the current one for a `with` block.

        Its context becomes the current context. If torch or cupy know the stream, it becomes their
        current stream too: they know it if you have borrowed it from them, or called `torch()` or
        `cupy()`. The end of the block puts everything back.

        Do not await in the block, because all of this belongs to the thread: the loop's other tasks
        would use the stream too, and torch may keep the wrong stream. Enqueue in the block, and
        await after it. Begin and end the block in one thread.

        Raises:
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
            RuntimeError: The block has awaited. The end of the block raises this. If the block
                itself raises, you get that error with a note.

        Example:
            ::

                stream.torch()  # once: from now on torch knows the stream
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
                # `into_raw` refuses while this is there. It must not wait for the end of the block,
                # because it may be called in it.
                held.append(mark)
                yield self
            finally:
                with contextlib.suppress(ValueError):  # an interrupt came before the append
                    held.remove(mark)

    def _shared(self, make: Callable[[int], Any]) -> Any:
        handle = self._reference.handle
        # Pinned until it counts as shared, because a close in another thread would destroy the
        # handle that the other library has just taken.
        with pinned(self._reference) as value:
            stream = make(value)  # before it counts as shared, because this may fail
            if not handle.share():
                raise errors.closed(self._reference.name)
        try:
            stream._aiostream = self
        except AttributeError:  # cuda.core's streams take no attributes
            # An attribute for torch's streams, because torch 2.11 does not clear weak references
            # to a stream, and the interpreter then crashes at its end.
            weakref.finalize(stream, lambda _: None, self).atexit = False
        return stream
