"""Events: points of a stream that can be recorded, awaited and timed."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from aiostream import _native, errors
from aiostream._base import checks, development, driver, hints
from aiostream._handles import interop
from aiostream._handles.operand import Operand, WithOperand, current_or_default_context, pinned
from aiostream._handles.owned import WithBlock
from aiostream._runtime import process
from aiostream._waits import strategies, waiting
from aiostream.device import Context, DeviceLike
from aiostream.futures import CompletionFuture

if TYPE_CHECKING:
    from aiostream.stream import Stream

__all__ = ["Event"]

_BLOCKING_SYNC, _DISABLE_TIMING, _INTERPROCESS = 1, 2, 4
_INVALID_HANDLE = 400


class Event(WithOperand, WithBlock, waiting.AwaitedBlock):
    """A CUDA event: a point of a stream that you can wait for.

    `record(stream)` sets the point. `await event` waits for it without blocking the loop. An event
    belongs to one context. You record it on streams of that context, and streams of every device
    may wait for it.

    `async with Event() as event:` waits for the recorded point at the end of the block, and then
    destroys the event. `with Event() as event:` destroys it at once. If you drop the object, it is
    destroyed in the background. Streams that wait for the event go on waiting. You cannot copy or
    pickle it.

    Args:
        timing: Record times, for `elapsed_time`. This costs a little on the GPU.
        blocking_sync: If another library calls `cuEventSynchronize`, it sleeps in place of
            spinning.
        interprocess: The event can be exported to other processes. It then has no `timing`, and you
            cannot `record` it while a task awaits it.
        device: Where it lives: a `Device` or its ordinal. By default the calling thread's current
            context, else device 0.

    Threads: you may call any method in any thread. Await it in a thread with a running event loop.

    Raises:
        TypeError: A flag is not a bool.
        ValueError: You asked for `timing` and `interprocess` together.
        CudaError: The driver refused (`cuEventCreate`).
        NoDriverError: There is no CUDA driver.

    Example:
        >>> async with aiostream.Stream() as stream, aiostream.Event() as event:
        ...     stream.launch_host_func(str)  # some work
        ...     event.record(stream)
        ...     await event
        ...     print(event.query())
        True
    """

    _destructor = "cuEventDestroy"
    _owned = True

    @hints.answers_keywords
    def __init__(
        self,
        timing: bool = False,
        blocking_sync: bool = False,
        interprocess: bool = False,
        *,
        device: DeviceLike | None = None,
    ) -> None:
        checks.flag("timing", timing, ". Name a device: `Event(device=0)`")
        checks.flag("blocking_sync", blocking_sync)
        checks.flag("interprocess", interprocess)
        if timing and interprocess:
            raise ValueError(
                "an interprocess event cannot record times: leave out timing or interprocess"
            )
        process.start()
        self._note_place()
        context = current_or_default_context(device)
        self._flags = (
            _BLOCKING_SYNC * blocking_sync
            | _DISABLE_TIMING * (not timing)
            | _INTERPROCESS * interprocess
        )
        waits = _native.WaitList(context._ensure_monitored(), _native.History())
        self._mode = strategies.MODES[strategies.default_wait()]
        # Those that other code or the node of a graph has stay valid until the event is closed.
        self._given: set[_native.Handle] = set()  # any thread, single operations
        with context._pushed():
            value = int(driver.call("cuEventCreate", self._flags))
            kind = _native.HANDLE_EVENT
            handle = driver.owned_handle(kind, value, context.handle, self._destructor)
        name = _name_of(value, context)
        self._operand = Operand(handle, context, name, waits, is_event=True)

    @property
    def handle(self) -> int:
        """The driver's handle, as an int. Do not use it after you close this object.

        `record` gives the event a new handle if a task awaits it at that moment. So read the handle
        again after each record. An old handle that you have read stays valid until you close the
        event. It stands for the old record: a stream that waits for it, a graph that contains it
        and a library that has it do not see the new one.

        Raises:
            StreamClosedError: It is closed already.
        """
        self._require_open()
        handle = self._operand.handle
        self._given.add(handle)
        return handle.value

    def record(self, stream: Any) -> None:
        """Records the stream's present end (`cuEventRecord`). A second record replaces the first.

        The call never blocks, not even on a full stream.

        If a task awaits the event at that moment, the task goes on waiting for the old record. The
        event then gets a new `handle` for the new one, because the driver knows only the last
        record of a handle. An interprocess event cannot get one, so the call raises. A wait that
        was cancelled may count until the GPU has passed its record.

        If the stream captures, the event becomes part of the capture. Streams that wait for it join
        the capture. You cannot wait for it in Python.

        Args:
            stream: A `Stream`, or another library's stream of the event's context.

        Raises:
            TypeError: `stream` names no CUDA stream.
            StreamClosedError: The stream or the event is closed.
            StreamCaptureError: `stream` is the legacy stream while another stream captures.
            RuntimeError: A task awaits this interprocess event. Nothing was recorded.
            CudaError: The driver refused. The code is 400 for a stream of another context.
        """
        operand, before = interop.operand_of(stream), self._handle
        code = _native.event_record(self._operand, operand.handle, self._flags)
        if self._handle is not before:
            self._operand.name = _name_of(self._handle.value, self.context)
        if code == _native.RESULT_AWAITED:
            raise RuntimeError(
                f"{self._name} is awaited, and an interprocess event cannot get a new handle for "
                "a new record: record it after the wait, or record another event"
            )
        if code == _native.RESULT_CLOSED and not self._handle.is_open:
            raise errors.closed(self._name)
        if code == _INVALID_HANDLE and operand.context != self.context:
            hint = (
                f"The event lives on {self.context._place()}: an event is recorded on streams of "
                "its own context, and streams of every context may wait for it"
            )
            raise driver.error(code, "cuEventRecord", operand.name, hint)
        driver.raise_for(code, "cuEventRecord", operand.name)

    def query(self) -> bool:
        """Whether the GPU has passed the recorded point (`cuEventQuery`).

        Without a record it is `True`. If you have recorded the event on a capturing stream with
        `record`, this call is refused and the capture goes on. If other code has recorded its raw
        handle there, the library cannot know. Then the driver refuses, and the capture is
        invalidated.

        Raises:
            StreamClosedError: The event is closed.
            StreamCaptureError: It was recorded on a capturing stream.
            CudaError: The context has failed.
        """
        return driver.is_done(_native.event_query(self._handle), "cuEventQuery", self._name)

    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks the thread until the GPU has passed the recorded point, as `cuEventSynchronize`.

        Do not call it in the thread of an event loop. The thread waits as in `Stream.synchronize`.

        Args:
            timeout: Seconds to wait at most. `None` sets no limit.

        Raises:
            TimeoutError: The GPU has not passed it by then.
            TypeError, ValueError: `timeout` is not a number of seconds.
            StreamClosedError: The event is closed.
            StreamCaptureError: It was recorded on a capturing stream.
            CudaError: The context has failed.
        """
        development.warn_if_blocking("Event.synchronize")
        waiting.synchronize(self, checks.timeout(timeout))

    async def synchronize_async(self) -> None:
        """Waits, without blocking the loop, until the GPU has passed the recorded point.

        `await event` and `await event.synchronize_async()` are equivalent. The library polls the
        event as `Stream.synchronize_async` polls its own. The call never blocks, not even if the
        stream is full.

        If you `record` the event again during the wait, this wait is still for the old point. If
        another library records the raw handle again, the wait is for the new point. If you close
        the event during the wait, the driver destroys it when the wait has ended.

        Cancellation: raises at once. The GPU goes on.

        Threads: call it in the thread of a running asyncio or trio loop. On trio it is always a
            checkpoint.

        Raises:
            StreamClosedError: The event is closed.
            StreamCaptureError: It was recorded on a capturing stream.
            CudaError: The context has failed.
            RuntimeError: No loop runs in this thread.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     with aiostream.Event() as event:
            ...         event.record(stream)
            ...         await event.synchronize_async()
        """
        await waiting.synchronize_async(self)

    def __await__(self) -> Generator[Any, None, None]:
        return self.synchronize_async().__await__()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds on the GPU between this event and a later one (`cuEventElapsedTime`).

        Args:
            end: An event that was recorded after this one. You need `timing=True` for both, and the
                GPU must have passed both.

        Raises:
            TypeError: `end` is not an `Event`.
            ValueError: One of the two was made without `timing=True`.
            StreamClosedError: One of the two is closed.
            CudaError: One was never recorded (400), or the GPU has not passed it (600).

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     begin, end = aiostream.Event(timing=True), aiostream.Event(timing=True)
            ...     async with begin, end:
            ...         begin.record(stream)
            ...         stream.launch_host_func(str)  # what you measure
            ...         end.record(stream)
            ...         await end
            ...         print(begin.elapsed_time(end) >= 0)
            True
        """
        checks.instance(Event, end, "the other event must be an aiostream.Event, not")
        if (self._flags | end._flags) & _DISABLE_TIMING:
            raise ValueError("there is no time: make both events with Event(timing=True)")
        cuda, name = driver.bindings(), "cuEventElapsedTime"
        # Pinned, because another thread may close one of the two, and the driver would then read
        # the time of a destroyed event.
        with pinned(self._operand, name) as first, pinned(end._operand, name) as second:
            return float(
                driver.call(name, cuda.CUevent(first), cuda.CUevent(second), stream=self._name)
            )

    def completion_future_on(self, stream: Stream) -> CompletionFuture[None]:
        """Makes a stream wait for this event, and returns a future of the stream's end.

        Equals `stream.wait_event(self)` and then `stream.completion_future()`, with the same
        errors.

        Raises:
            TypeError: `stream` is not a `Stream`.
        """
        return self._followed_by(stream).completion_future()

    def checked_completion_future_on(self, stream: Stream) -> CompletionFuture[None]:
        """The same as `completion_future_on`, with `Stream.checked_completion_future`."""
        return self._followed_by(stream).checked_completion_future()

    def _followed_by(self, stream: Stream) -> Stream:
        if not isinstance(stream, WithOperand) or stream._operand.is_event:
            raise TypeError(
                f"an aiostream.Stream is needed, not {type(stream).__name__}; Stream.borrow makes "
                "one of another library's"
            )
        stream.wait_event(self)
        return stream

    def close(self) -> None:
        """Destroys it now. Work in flight finishes. You may call this again.

        The last call of another thread destroys it, and so does the last task that awaits it.

        Raises:
            CudaError: The driver refused. The object is closed nevertheless.
        """
        handle = self._handle
        self._given.clear()
        super().close()
        if self._handle is not handle:  # `record` in another thread has replaced it meanwhile
            self.close()

    async def aclose(self) -> None:
        """Waits until the GPU has passed the recorded point, then destroys the event.

        You may call this again. If the event was recorded on a capturing stream there is no such
        point, and it is destroyed at once.

        Cancellation: destroys the event at once, and raises.

        Raises:
            CudaError: The context has failed. The event is closed nevertheless.
        """
        if self._handle.is_captured:
            self.close()
        await self._close_when_done()

    def _traits(self) -> list[str]:
        traits = super()._traits()
        return traits if self._flags & _DISABLE_TIMING else ["timing", *traits]


def _name_of(handle: int, context: Context) -> str:
    return f"event {handle:#x} on {context._place()}"
