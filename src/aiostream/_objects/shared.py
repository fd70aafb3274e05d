"""Streams that others use too: libraries, as an object or as the current stream, and pools."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from aiostream import errors
from aiostream._base import checks
from aiostream._handles import interop
from aiostream._handles.operand import WithOperand, current_in_libraries, pinned
from aiostream._handles.owned import Transferable

if TYPE_CHECKING:
    import typing_extensions as typing

    StreamOwn = typing.TypeVar("StreamOwn", default=Any)
    Own = typing.TypeVar("Own", default=None)
    Made = typing.TypeVar("Made", default=None)
else:
    StreamOwn, Own, Made = TypeVar("StreamOwn"), TypeVar("Own"), TypeVar("Made")


class SharingMethods(WithOperand, Transferable, Generic[StreamOwn]):
    """What a `Stream` does with torch, cupy, numba and cuda.core. It inherits this from here."""

    # Returns its place in a pool: see `_pools/pool_places.py`. A place keeps its stream, so the
    # stream refers to it weakly. Without one it is a dead reference, which answers `None` for less
    # than a function.
    _place: Callable[[], Any] = weakref.ref(set())

    @property
    def own(self) -> StreamOwn:
        """What belongs to this stream of a pool: what `StreamPool(each=)` made for it.

        Raises:
            AttributeError: The pool has no `each`, or the stream is not of a pool.
            StreamClosedError: You have given the stream back.
        """
        own: StreamOwn | None = getattr(self._place(), "own", None)
        if own is None:
            raise AttributeError(
                f"nothing belongs to {self._name}: `StreamPool(4, each=Replica)` calls "
                "`Replica(stream)` once for each of its streams, and that is `stream.own`",
                name="own",
            )
        return own

    def _refuse_in_pool(self, call: str) -> None:
        if self._place() is not None and self._handle.is_open:
            raise RuntimeError(
                f"{self._name} belongs to a pool, which closes it, so {call}() is refused: give it "
                "back with pool.release(stream), or at the end of its block"
            )

    @property
    def handle(self) -> int:
        """The driver's handle, as an int. Do not use it after you close the stream.

        torch and cupy may use it then. So if you read it while one of them is loaded, the stream is
        retired at its end, as after `torch()`: see `core`. This includes `int(stream)`, and
        `__cuda_stream__`, by which other libraries read it. If neither is loaded, the stream is
        destroyed.

        Raises:
            StreamClosedError: It is closed already.
        """
        # torch records events on streams of which it has only the handle. What became of the number
        # that this returns cannot be known.
        if sys.modules.get("torch") or sys.modules.get("cupy"):
            self._handle.share()
        return super().handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which other libraries take this stream: `(0, handle)`."""
        return 0, self.handle

    def into_raw(self) -> int:
        """Gives the handle away, and returns it.

        From then on you have to destroy the stream, or to pass the handle to `from_raw`.

        If another library may know the stream (`torch()` and its like, `handle`), do not destroy it
        yourself, because that library may use the handle for as long as it likes. Pass it to
        `from_raw`, which retires it at its end. If such streams were retired before, this holds for
        every stream, because it may be one of them: see `core`.

        Returns:
            The `CUstream`, as an int.

        Raises:
            StreamClosedError: It was closed before.
            ValueError: It is borrowed, so it is not yours to give.
            RuntimeError: It is in use: in a call in any thread, also one that a function of
                `enqueue_async` makes, in a block of `as_current`, or until a call of `run` or
                `run_in_thread` has ended. Or it is a stream of a pool.
        """
        self._refuse_in_pool("into_raw")
        # A call of `run_in_thread` that no thread has begun does not use the handle yet.
        if self._owned and self._operand.shared.held:
            raise self._in_use()
        if self._owned and self._handle.is_shared:
            self._operand.context._given_away.add(self._handle.value)
        return super().into_raw()

    def core(self) -> Any:
        """Returns a `cuda.core.Stream` on the same handle. It keeps this stream alive.

        From now on the stream is shared, and `close()` *retires* it in place of destroying it. The
        other library may use its handle for as long as it likes, even after everything that you can
        see is gone. torch, for example, records an event on it when pinned memory is freed.

        A retired stream stays until the process ends. The next `Stream` with the same context,
        `non_blocking` and `priority` uses it again, if it is idle then, and is retired in its turn.
        So of each kind there are never more than were open or busy at once. Streams that came from
        `from_raw`, or whose attributes were changed, are not used again.

        If the stream is borrowed, its owner is retired too.

        Raises:
            ImportError: cuda.core is not installed.
            StreamClosedError: The stream is closed.
        """
        module = checks.library("cuda.core", "cuda-core")
        if not hasattr(module, "Stream"):  # before 1.0
            module = checks.library("cuda.core.experimental", "cuda-core")
        return self._shared(module.Stream.from_handle)

    def torch(self) -> Any:
        """Returns a `torch.cuda.ExternalStream` on the same handle.

        At its end this stream is retired, as `core()` says. From now on this stream is torch's
        current one in the functions that `run`, `run_in_thread` and `enqueue_async` call, and in a
        block of `as_current()`.

        `torch.cuda.ExternalStream(stream.handle)` is safe too, because that read of `handle` shares
        the stream. But that object does not keep this stream alive, and this stream does not become
        torch's current one.

        Raises:
            ImportError: torch is not installed.
            StreamClosedError: The stream is closed.

        Example:
            ::

                with torch.cuda.stream(stream.torch()):
                    output = model(batch)
                await stream.synchronize_async()
        """
        torch = checks.library("torch", "torch")
        device = torch.device("cuda", self._operand.context._device_ordinal())
        stream = self._shared(lambda handle: torch.cuda.ExternalStream(handle, device=device))
        # Another object, because the one that is returned keeps this stream alive. If the stream
        # kept that one alive, it would never be dropped.
        interop.use_torch_stream(
            self._operand, torch, torch.cuda.ExternalStream(stream.cuda_stream, device=device)
        )
        return stream

    def cupy(self) -> Any:
        """Returns a `cupy.cuda.Stream` on the same handle, or before cupy 14 an `ExternalStream`.

        At its end this stream is retired, as `core()` says. From now on this stream is cupy's
        current one in the functions that `run`, `run_in_thread` and `enqueue_async` call, and in a
        block of `as_current()`.

        Raises:
            ImportError: cupy is not installed.
            StreamClosedError: The stream is closed.
        """
        cupy = checks.library("cupy", "cupy-cuda13x")
        ordinal = self._operand.context._device_ordinal()

        def make(handle: int) -> Any:
            # cupy 14 has it, and warns of the other one. It destroys no stream of others.
            from_external = getattr(cupy.cuda.Stream, "from_external", None)
            if from_external is None:
                return cupy.cuda.ExternalStream(handle, ordinal)
            stream = from_external(SimpleNamespace(__cuda_stream__=lambda: (0, handle)))
            stream.device_id = ordinal  # cupy then refuses it on another device
            return stream

        stream = self._shared(make)
        interop.use_cupy_stream(self._operand, make(stream.ptr))
        return stream

    def numba(self) -> Any:
        """Returns a stream of numba-cuda on the same handle.

        At its end this stream is retired, as `core()` says.

        Raises:
            ImportError: numba-cuda is not installed.
            StreamClosedError: The stream is closed.
        """
        return self._shared(checks.library("numba.cuda", "numba-cuda").external_stream)

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
        operand = self._operand
        held, mark = operand.shared.held, object()
        with pinned(operand), operand.context.as_current(), current_in_libraries(operand):
            held.append(mark)  # a pool does not use the stream while this is there
            try:
                yield self
            finally:
                held.remove(mark)

    def _shared(self, make: Callable[[int], Any]) -> Any:
        handle = self._operand.handle
        # Pinned until it counts as shared, because a close in another thread would destroy the
        # handle that the other library has just taken.
        with pinned(self._operand) as value:
            stream = make(value)  # before it counts as shared, because this may fail
            if not handle.share():
                raise errors.closed(self._operand.name)
        try:
            stream._aiostream = self
        except AttributeError:  # cuda.core's streams take no attributes
            # An attribute for torch's streams, because torch 2.11 does not clear weak references
            # to a stream, and the interpreter then crashes at its end.
            weakref.finalize(stream, lambda _: None, self).atexit = False
        return stream
