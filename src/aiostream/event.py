"""Events: points of a stream that can be recorded, waited for and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from aiostream import _arguments, _driver, _native, _process, hostfunc, interop, waiting
from aiostream.device import Context, Device, DeviceLike
from aiostream.errors import StreamClosedError
from aiostream.futures import CompletionFuture

if TYPE_CHECKING:
    from aiostream.stream import Stream

__all__ = ["Event"]

_BLOCKING_SYNC, _DISABLE_TIMING, _INTERPROCESS = 1, 2, 4
_INVALID_HANDLE, _NOT_READY = 400, 600


class Event(_arguments.NotCopied):
    """A CUDA event: a snapshot of a stream's end, taken by `record`.

    It belongs to a context, and is recorded on streams of that context only; streams of every device may wait for it.

    Args:
        timing: Record times, for `elapsed_time`. Costs a little on the GPU.
        blocking_sync: `synchronize()` sleeps instead of spinning.
        interprocess: Can be exported to other processes; excludes `timing`.
        device: Where it lives: a `Device` or its ordinal. By default the calling thread's current context, else device 0.

    Threads: any method may be called from any thread.

    `with Event() as event:` closes it at the end of the block. Dropping it does too. An event cannot be copied or pickled.

    Raises:
        TypeError: A flag is not a bool.
        ValueError: `timing` and `interprocess` together.
        CudaError: The driver refused (`cuEventCreate`).
        NoDriverError: There is no CUDA driver.
    """

    def __init__(
        self,
        timing: bool = False,
        blocking_sync: bool = False,
        interprocess: bool = False,
        *,
        device: DeviceLike | None = None,
    ) -> None:
        for name, chosen in (
            ("timing", timing),
            ("blocking_sync", blocking_sync),
            ("interprocess", interprocess),
        ):
            _arguments.flag(name, chosen)
        if timing and interprocess:
            raise ValueError(
                "an interprocess event cannot record times: leave out timing or interprocess"
            )
        _process.start()
        self._context = interop.current_or_default_context(device)
        flags = (
            _BLOCKING_SYNC * blocking_sync
            | _DISABLE_TIMING * (not timing)
            | _INTERPROCESS * interprocess
        )
        self._context._ensure_monitored()
        self._timing = timing
        self._mode = waiting.mode_of(waiting.default_wait())
        self._captured = False  # last recorded on a capturing stream; any thread, last writer wins as with the record itself
        history = _native.History()
        with _driver.unless_owned("cuEventDestroy") as made:
            with self._context._pushed():
                made.append(_driver.call("cuEventCreate", flags))
            value = int(made[0])
            handle = _native.Handle(_native.HANDLE_EVENT, value, self._context.handle, True, False)
            try:
                self._name = f"event {value:#x} on {self._context._place()}"
                self._reference = interop.Reference(
                    handle, self._context, self._name, history=history, is_event=True
                )
            except BaseException:
                handle.release()  # `unless_owned` destroys the event
                raise
            # Last, because from here on the finalizer of this object destroys the event.
            self._handle = handle

    @property
    def handle(self) -> int:
        """The driver's `CUevent`, as an int. Raises `StreamClosedError` once closed."""
        if not self._handle.is_open:
            raise StreamClosedError(f"{self._name} is closed")
        return self._handle.value

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._handle.is_open

    @property
    def context(self) -> Context:
        """The context in which it lives."""
        return self._context

    @property
    def device(self) -> Device:
        """The device on which it lives."""
        return self._context.device

    def record(self, stream: Any) -> None:
        """Takes a snapshot of a stream's current end (`cuEventRecord`); a second record replaces the first.

        Never blocks, also on a stream that is full. (If a task awaits the event at that moment, a private stream takes over what
        it waits for. To make one more of these may block while the GPU is busy.)

        On a capturing stream the event becomes part of the capture. Streams can wait for it, which joins them to the capture.
        The host cannot.

        Args:
            stream: A `Stream`, or another library's stream of the event's context.

        Raises:
            TypeError: `stream` names no CUDA stream.
            StreamClosedError: The stream or the event is closed.
            StreamCaptureError: `stream` is the legacy stream while another one captures.
            CudaError: The driver refused; 400 for a stream of another context.
        """
        reference = interop.reference_to(stream)
        code, captured = _native.event_record(
            self._handle, reference.handle, 0, self._context._ensure_monitored()
        )
        if code == _native.RESULT_CLOSED and not self._handle.is_open:
            raise StreamClosedError(f"{self._name} is closed")
        if code == _INVALID_HANDLE and reference.context != self._context:
            raise _driver.error(
                code,
                "cuEventRecord",
                reference.name,
                f"The event lives on {self._context._place()}: {_ELSEWHERE}",
            )
        hostfunc.raise_for(code, "cuEventRecord", reference.name)
        self._captured = captured

    def query(self) -> bool:
        """Whether the GPU has passed the recorded point; `True` if nothing was recorded (`cuEventQuery`).

        It is known of a `record` of this object whether the stream captured, and such an event is refused without a harm to the
        capture. If other code records the event's raw handle on a capturing stream, the library cannot know it: the driver
        then refuses this call, and invalidates that capture.

        Raises:
            StreamClosedError: The event is closed.
            StreamCaptureError: It was recorded on a capturing stream.
            CudaError: The context has failed.
        """
        self._refuse_captured("cuEventQuery")
        code = _native.event_query(self._handle)
        if code == _NOT_READY:
            return False
        hostfunc.raise_for(code, "cuEventQuery", self._name)
        return True

    def synchronize(self) -> None:
        """Blocks the calling thread until the GPU has passed the recorded point (`cuEventSynchronize`). Not for a loop's thread.

        Raises:
            StreamClosedError: The event is closed.
            StreamCaptureError: It was recorded on a capturing stream.
            CudaError: The context has failed.
        """
        self._refuse_captured("cuEventSynchronize")
        hostfunc.raise_for(
            _native.event_synchronize(self._handle), "cuEventSynchronize", self._name
        )

    async def synchronize_async(self) -> None:
        """Waits, without blocking the loop, until the GPU has passed the point that is recorded now.

        The event is polled as `Stream.synchronize_async` polls its own. A later `record` of this object does not prolong the
        wait. (A record through the raw handle, by another library, does.) If you close the event meanwhile, the driver destroys
        it when the wait has ended. Never blocks, also when the event was recorded on a full stream.

        Cancellation: raises at once; the GPU goes on.

        Threads: in the thread of a running asyncio or trio loop; always a checkpoint on trio.

        Raises:
            StreamClosedError: The event is closed.
            StreamCaptureError: It was recorded on a capturing stream.
            CudaError: The context has failed.
            RuntimeError: No loop runs here.
        """
        self._refuse_captured("cuEventQuery")
        await waiting.synchronize_async(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds on the GPU between this event and a later one (`cuEventElapsedTime`).

        Args:
            end: Recorded after this one. Both need `timing=True`, and must have been passed.

        Raises:
            TypeError: `end` is not an `Event`.
            ValueError: One of the two was made without `timing=True`.
            CudaError: One was never recorded (400) or is not complete (600).
        """
        if not isinstance(end, Event):
            raise TypeError(f"the other event must be an aiostream.Event, not {type(end).__name__}")
        if not (self._timing and end._timing):
            raise ValueError("both events must be created with timing=True")
        driver = _driver.bindings()
        return float(
            _driver.call(
                "cuEventElapsedTime",
                driver.CUevent(self.handle),
                driver.CUevent(end.handle),
                stream=self._name,
            )
        )

    def completion_future_on(self, stream: Stream) -> CompletionFuture[None]:
        """A future that settles when `stream` has waited for this event: `stream.wait_event(event)`, then its end.

        Equals `stream.wait_event(self); stream.completion_future()`, with the same errors.

        Raises:
            TypeError: `stream` is not a `Stream`.
        """
        _require_ours(stream)
        stream.wait_event(self)
        return stream.completion_future()

    def checked_completion_future_on(self, stream: Stream) -> CompletionFuture[None]:
        """The same by stream callback: `stream.wait_event(self); stream.checked_completion_future()`."""
        _require_ours(stream)
        stream.wait_event(self)
        return stream.checked_completion_future()

    def close(self) -> None:
        """Destroys the event (`cuEventDestroy`); streams that wait for it go on waiting. May be called again.

        Raises:
            CudaError: The driver refused; the event is closed all the same.
        """
        hostfunc.raise_for(self._handle.close(), "cuEventDestroy", self._name)

    def _refuse_captured(self, call: str) -> None:
        if self._captured:
            raise _driver.error(
                907,
                call,
                self._name,
                "It was recorded on a capturing stream: it has no time of its own",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __int__(self) -> int:
        return self.handle

    def __repr__(self) -> str:
        return (
            f"<aiostream.Event {self._handle.value:#x}{'' if self._handle.is_open else ' closed'}>"
        )

    def __del__(
        self, run_in_janitor: Callable[..., None] = _process.run_in_janitor
    ) -> None:  # as in Stream
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.is_open:
            run_in_janitor(handle.drop)


_ELSEWHERE = "an event is recorded on streams of its own context, and streams of every context may wait for it"


def _require_ours(stream: Any) -> None:
    if not isinstance(stream, interop.HasReference) or stream._reference.is_event:
        raise TypeError(
            f"an aiostream.Stream is needed, not {type(stream).__name__}; Stream.borrow makes one of another library's"
        )
