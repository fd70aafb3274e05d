"""Stream: its constructors, its properties, how it is closed, ordered and awaited."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast

from aiostream import _native
from aiostream._base import checks, development, driver, hints
from aiostream._handles import interop, operand
from aiostream._handles.operand import Operand, context_of, current_or_default_context
from aiostream._objects import captures
from aiostream._objects.attributes import AttributeMethods
from aiostream._objects.memory import MemoryMethods
from aiostream._objects.runs import RunMethods
from aiostream._objects.shared import SharingMethods, StreamOwn
from aiostream._objects.threads import ThreadStream
from aiostream._runtime import process
from aiostream._runtime.observing import hook
from aiostream._waits import enqueuing, strategies, waiting
from aiostream.capture import CaptureMethods
from aiostream.device import Context, DeviceLike
from aiostream.enums import WaitEventFlags, WaitLike, WaitStrategy
from aiostream.errors import StreamCaptureError
from aiostream.event import Event
from aiostream.futures import CompletionFuture
from aiostream.hostfunc import HostFunctionMethods

__all__ = ["Stream"]

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Stream[Any]")


class Stream(
    CaptureMethods,
    AttributeMethods,
    MemoryMethods,
    RunMethods,
    HostFunctionMethods,
    SharingMethods[StreamOwn],
    ThreadStream,
    checks.AsyncBlock,
    waiting.AwaitedBlock,
):
    """A CUDA stream that you can await.

    You put work on it as on any stream. torch, cupy, numba, cuda.core and the bindings take it as
    it is, or by its handle (`__cuda_stream__`, `int(stream)`). Then you await the work without
    blocking the loop.

    `async with` waits for the stream's work and then destroys it. If you drop a stream, it is
    destroyed in the background, and its work and its futures still finish. In Python's development
    mode (`-X dev`) you then get a `ResourceWarning`.

    Args:
        device: Where to create it: a `Device` or its ordinal. By default in the calling thread's
            current context, else on device 0.
        priority: Lower numbers go first. The driver clamps it to `Device.stream_priority_range`. By
            default 0.
        non_blocking: Whether it runs concurrently with the legacy default stream, without their
            implicit synchronization.
        wait: How `synchronize_async` waits: a `WaitStrategy` or its name. By default
            `default_wait()`.
        name: What errors, traces and `repr` call it. By default its handle.
        stalled_after: Seconds after which it is stalled, if no work ends (`on_stalled`). At least
            0.02.

    Create the streams of a server before it serves, because creating one may block while the GPU is
    busy. On an H200 (driver 580.159, CUDA 13.0), a context with some 34 streams got another one
    only when all work in flight was done.

    Threads: you may call any method in any thread. The library makes the right context current
    where the driver needs it, and puts the old one back. Call the awaitable methods in a thread
    with a running event loop. Several loops in several threads may wait on one stream. But let no
    other thread use a stream while a capture of it begins or ends, because the driver may then
    crash the process.

    Open streams compare equal if they have the same handle in the same context, as a stream and
    what is borrowed from it do. A closed stream equals only itself, because the driver gives its
    handle to a new stream. The hash never changes. So you can use streams as keys of a dict, and it
    never takes a new stream for a closed one.

    You cannot copy or pickle a stream. In a subclass, `borrow`, `from_raw`, `legacy`, `per_thread`
    and `to_borrowed` make instances without calling its `__init__`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or there is no such strategy.
        NoDriverError: There is no CUDA driver.
        CudaError: The driver refused (`cuStreamCreateWithPriority`).

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     stream.launch_host_func(str)  # in place of kernels and copies
        ...     await stream.synchronize_async()
        ...     print(stream.query())
        True
    """

    _instead = "to_borrowed() gives a second object on the same stream"
    _or_else = ". To make it the current stream for a block, write `with stream.as_current():`"
    _destructor = "cuStreamDestroy"

    @hints.answers_keywords
    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        priority: int | None = None,
        non_blocking: bool = True,
        wait: WaitLike | None = None,
        name: str | None = None,
        stalled_after: float | None = None,
    ) -> None:
        limit = checks.limit(stalled_after)
        urgency = 0 if priority is None else checks.priority(priority)
        flags = int(checks.flag("non_blocking", non_blocking))
        strategy = strategies.strategy(wait)
        self._label = checks.label(name)
        process.start()
        context = current_or_default_context(device)
        with context._pushed():
            handle = retired = operand.reuse_retired(context, (flags, urgency))
            if handle is None:
                raw = driver.call("cuStreamCreateWithPriority", flags, urgency)
                kind = _native.HANDLE_STREAM
                handle = driver.owned_handle(kind, int(raw), context.handle, self._destructor)
        own = operand.of_stream(handle, context, self._label)
        self._init_fields(own, True, strategies.MODES[strategy])
        self._operand.shared.make.append((flags, urgency))
        if retired is not None:  # what its former owner's waits have learnt is not of this one's
            operand.share_history([self._operand])
        if limit:
            self._operand.limit_waits(limit)

    def _init_fields(self, own: Operand, owned: bool, mode: int, source: Any = None) -> None:
        # The operand is stored last, because this object's finalizer then destroys the stream.
        # After an earlier error a stream of `from_raw` stays its caller's (`Handle_dealloc`).
        self._note_place()
        self._owned, self._mode, self._source = owned, mode, source
        self._operand = own

    @classmethod
    def _from_handle(
        cls, value: int, context: Context, owned: bool = False, source: Any = None
    ) -> Self:
        process.start()
        stream, handle = cls.__new__(cls), operand.new_handle(value, context, owned)
        own = operand.of_stream(handle, context)
        stream._init_fields(own, owned, strategies.MODES[strategies.default_wait()], source)
        return stream

    # --------------------------------------------------------------------------- other constructors

    @classmethod
    def borrow(
        cls,
        stream: Any,
        *,
        wait: WaitLike | None = None,
        name: str | None = None,
        stalled_after: float | None = None,
    ) -> Self:
        """Returns a `Stream` on another library's stream, so that you can await it.

        It keeps that stream alive and never destroys it. If you borrow a stream of torch or cupy,
        it is their current stream in the functions that `run`, `run_in_thread` and `enqueue_async`
        call, and in a block of `as_current()`.

        Args:
            stream: An object with `__cuda_stream__`, a torch, cupy or numba stream, or a handle as
                an int.
            wait: How to wait on it. By default as the given `Stream` does, else `default_wait()`.
            name: As `Stream` takes it. By default the name of the given `Stream`, if it is one.
            stalled_after: As `Stream` takes it. By default that of the given `Stream`, if it is
                one. Other objects on the same stream of the driver keep their own.

        Raises:
            TypeError: It names no CUDA stream.
            ValueError: The int is not a handle. Or there is no such strategy.
            CudaError: The driver does not know the handle (`cuStreamGetCtx`).

        Example:
            ::

                stream = aiostream.Stream.borrow(torch.cuda.Stream())
                output = await stream.run(model, batch)
        """
        limit = checks.limit(stalled_after)
        if isinstance(stream, Stream):
            borrowed = stream._borrowed_as(cls)
        else:
            value = interop.stream_handle(stream)
            borrowed = cls._from_handle(value, context_of(value), source=stream)
            interop.note_source(borrowed._operand, stream)
        # No other thread has the new object yet, so the two need not be changed in one step.
        if wait is not None:
            borrowed._mode = strategies.MODES[strategies.strategy(wait)]
        if name is not None:
            borrowed._label = checks.label(name)
            own = borrowed._operand
            own.name = operand.name_of(own.handle.value, own.context, name)
        if limit:
            borrowed._operand.limit_waits(limit)
        return borrowed

    @classmethod
    def from_raw(cls, handle: int, *, context: Context | None = None) -> Self:
        """Takes over a `CUstream`, which this object then destroys. The reverse of `into_raw`.

        A stream that another library may know is retired in place of destroyed, as before
        `into_raw`.

        Args:
            handle: A `CUstream`. Nothing else may destroy it from now on.
            context: Its context, if you know it. Otherwise the driver is asked.

        Raises:
            TypeError: `handle` is not an int, or `context` is not a `Context`.
            ValueError: It is not a handle, or it is one of the special handles 0, 1 and 2, which
                have no owner.
            CudaError: The driver does not know the handle (`cuStreamGetCtx`).

        Example:
            >>> handle = aiostream.Stream().into_raw()
            >>> async with aiostream.Stream.from_raw(handle) as stream:
            ...     print(stream.handle == handle)
            True
        """
        value = interop.raw_handle(handle, "a CUDA stream")
        if value <= operand.PER_THREAD:
            raise ValueError(
                f"handle {value} is a special stream without an owner: use Stream.legacy(), "
                "per_thread() or borrow()"
            )
        if context is not None:
            rule = "the context is an aiostream.Context (Context.from_handle makes one), not"
            checks.instance(Context, context, rule)
        stream = cls._from_handle(value, context or context_of(value), owned=True)
        if value in stream.context._given_away:
            stream._operand.handle.share()
        return stream

    @classmethod
    def legacy(cls, device: DeviceLike | None = None) -> Self:
        """The legacy default stream of a device, with which every blocking stream synchronizes."""
        return cls._from_handle(operand.LEGACY, current_or_default_context(device))

    @classmethod
    def per_thread(cls, device: DeviceLike | None = None) -> Self:
        """The per-thread default stream. Each call on it uses the stream of the calling thread."""
        return cls._from_handle(operand.PER_THREAD, current_or_default_context(device))

    def to_borrowed(self) -> Self:
        """Returns a second `Stream` on the same handle, which does not own it.

        It waits as this one does. If you close this one, the second one refuses too.
        """
        return self._borrowed_as(type(self))

    def _borrowed_as(self, kind: type[S]) -> S:
        self._require_open()
        borrowed = kind.__new__(kind)
        borrowed._label = self._label
        # If another thread closes the owner now, the new handle, its child, refuses each use.
        own = replace(self._operand, handle=self._new_borrowed())
        # The source is the owner's object, whose finalizer would otherwise close the handle.
        borrowed._init_fields(own, False, self._mode, source=self)
        return borrowed

    def _new_borrowed(self) -> _native.Handle:
        return self._operand.handle.borrow()

    # ----------------------------------------------------------------------------------- properties

    @property
    def name(self) -> str | None:
        """The name that you gave it. A stream of a pool has that of the pool, as `model[3]`."""
        return self._label

    @property
    def wait_strategy(self) -> WaitStrategy:
        """How `synchronize_async` waits on it."""
        return WaitStrategy(_native.WAIT_STRATEGIES[self._mode])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return self is other or (self._is_same(other) and self.context == other.context)

    def __hash__(self) -> int:
        # The same after a close, because a dict with the stream as a key must still find it.
        return hash((self._operand.handle.value, self.context))

    # -------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Destroys the stream now (`cuStreamDestroy`). You may call this again.

        Work in flight finishes, and its futures still settle. If other threads are in a call on the
        stream, the last of these calls destroys it. A borrowed stream is only let go of. A stream
        that another library may know (`torch()` and its like, `handle`) is retired: see `core`.

        Raises:
            RuntimeError: It is a stream of a pool.
            CudaError: The driver refused. The stream is closed nevertheless.
        """
        self._refuse_in_pool("close")
        self._close()

    def _close(self) -> None:
        if self._owned:
            captures.retire(self._operand, super().close)
        else:
            super().close()

    def shutdown(self, timeout: float | None = None) -> None:
        """Blocks until the work is done, destroys the stream, and raises what went wrong.

        In the thread of an event loop, call `aclose`.

        Args:
            timeout: Seconds to wait for the work at most. `None` sets no limit.

        Raises:
            RuntimeError: It is a stream of a pool.
            TimeoutError: The work was not done by then, and goes on. The stream is closed.
            StreamClosedError: It was closed before.
            StreamCaptureError: The stream was capturing. It is closed, and the capture gives no
                graph.
            CudaError: The work failed, or the driver refused. The stream is closed nevertheless.
        """
        timeout = checks.timeout(timeout)  # first, because a mistake must not close the stream
        self._refuse_in_pool("shutdown")
        try:
            # Another thread may close the stream during the wait, which keeps it pinned.
            self.synchronize(timeout)
        except BaseException as error:
            self._close_after(error)
            raise
        self.close()

    async def aclose(self) -> None:
        """Waits for the work, then destroys the stream. You may call this again.

        It does not wait for a thread that a cancelled `run_in_thread` has left: `drain` does.

        Cancellation: destroys the stream at once, and raises. The work goes on, and its futures
            still settle.

        Raises:
            RuntimeError: It is a stream of a pool.
            StreamCaptureError: The stream was capturing. It is closed, and the capture gives no
                graph.
            CudaError: The work failed. The stream is closed nevertheless.
        """
        self._refuse_in_pool("aclose")
        await self._close_when_done()

    def __del__(
        self,
        run_in_janitor: Callable[[Callable[[], Any]], None] = process.run_in_janitor,
        retire: Callable[[Operand, Callable[[], Any]], None] = captures.retire,
        warn: Callable[..., None] = warnings.warn,
        is_development: bool = sys.flags.dev_mode,
    ) -> None:
        # As `Owned.__del__`. A borrowed one has nothing to end.
        own: Any = getattr(self, "_owned", False) and getattr(self, "_operand", None)
        if not own or not own.handle.is_open:
            return
        try:  # first, because it shows the object as it is before the janitor has closed it
            if is_development:
                made = f". It was made at {self._made[1]}" if self._made else ""
                warn(f"{self!r} was dropped and not closed{made}", ResourceWarning, 2, self)
        finally:  # also if a filter turns the warning into an error
            run_in_janitor(lambda: retire(own, own.handle.drop))

    # ------------------------------------------------------------------------------------- ordering

    def wait_event(self, event: Any, flags: WaitEventFlags = WaitEventFlags.DEFAULT) -> None:
        """Makes later work wait, on the GPU, for a recorded event (`cuStreamWaitEvent`).

        The call never blocks. The event may be of any device. If the event was never recorded, the
        stream does not wait.

        Args:
            event: An `Event`, an event of cuda.core, torch or cupy, or a handle. To wait for a
                stream, record an event on it.
            flags: If the stream captures, `EXTERNAL` makes a node that waits for the event at each
                launch of the graph.

        Raises:
            TypeError: `event` names no CUDA event. A stream, for example, is not an event.
            ValueError: The int is not a handle, or there are no such flags.
            StreamClosedError: The stream or the event is closed.
            CudaError: The driver refused.

        Example:
            >>> async with aiostream.Stream() as copies, aiostream.Stream() as kernels:
            ...     with aiostream.Event() as copied:
            ...         copies.launch_host_func(str)  # in place of a copy
            ...         copied.record(copies)
            ...         kernels.wait_event(copied)
            ...         await kernels.synchronize_async()
            ...     print(copies.query())
            True
        """
        bits = int(checks.member(WaitEventFlags, flags, "flags"))
        name = "cuStreamWaitEvent"
        if isinstance(event, Event):
            owner = event._operand.handle
            # Pinned until the driver has returned, because another thread may close the event.
            with operand.pin(owner, event._operand.name, name) as handle:
                if bits:  # the node of the graph has it
                    event._given.add(owner)
                operand.call_on(self._operand, name, driver.bindings().CUevent(handle), bits)
            return
        handle = interop.event_handle(event)
        if not handle and getattr(event, "cuda_event", None) == 0:
            self._require_open()  # torch makes the driver's event at the first record
        else:
            operand.call_on(self._operand, name, driver.bindings().CUevent(handle), bits)

    def query(self) -> bool:
        """Whether all work is done (`cuStreamQuery`). It does not block.

        The library first checks, without harm to a capture, that the stream does not capture. The
        driver cannot do both at once. If another thread begins a capture on this very stream in
        between, the query invalidates that capture.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures. The capture goes on.
            CudaError: The context has failed.
        """
        # Pinned for the one native call. If another thread closes the stream, it either comes first
        # and this call is refused, or it leaves the destruction to the end of this call.
        own = self._operand
        return driver.is_done(_native.stream_query(own.handle), "cuStreamQuery", own.name)

    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks the thread until all work is done, as `cuStreamSynchronize` does.

        Do not call it in the thread of an event loop: `synchronize_async` is for that. The thread
        waits as `synchronize_async` would, by an event that it polls when the end is near. It
        sleeps in between, and Ctrl-C and the signal handlers of Python reach it.

        Args:
            timeout: Seconds to wait at most. `None` sets no limit.

        Raises:
            TimeoutError: The work was not done by then. It goes on.
            TypeError, ValueError: `timeout` is not a number of seconds.
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures. The capture goes on.
            CudaError: The work failed.

        Example:
            >>> stream = aiostream.Stream()
            >>> stream.launch_host_func(str)  # some work
            >>> stream.synchronize(timeout=10)
            >>> stream.close()
        """
        development.warn_if_blocking("Stream.synchronize")
        waiting.synchronize(self, checks.timeout(timeout))

    # ------------------------------------------------------------------------------------- awaiting

    def completion_future(self) -> CompletionFuture[None]:
        """Returns a future that settles when the GPU has passed the stream's present end.

        It marks a point in the stream by a host function (`cuLaunchHostFunc`). Later work waits for
        this function, which takes some tens of microseconds, and while it is pending it holds one
        of the device's hardware queues. `synchronize_async` is the cheaper wait. If the stream is
        full (1,022 launches on an H200), the call blocks its thread until there is room.

        Cancellation: of the future, or of the task that awaits it, stops the waiting. The GPU goes
            on.

        Threads: call it in the thread of a running asyncio or trio loop. The future settles there.

        Returns:
            A future of `None`, on asyncio the loop's own. If the context fails, the future fails
            with that error.

        Raises:
            RuntimeError: No loop runs in this thread.
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures. The capture goes on.
            CudaError: The driver refused.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     stream.launch_host_func(str)  # some work
            ...     future = stream.completion_future()
            ...     stream.launch_host_func(str)  # later work, which the future does not wait for
            ...     await future
        """
        return self._future("Stream.completion_future", _native.KIND_HOST_FUNCTION)

    def checked_completion_future(self) -> CompletionFuture[None]:
        """The same by a stream callback, which gets the driver's status (`cuStreamAddCallback`).

        All that `completion_future` says holds here too. NVIDIA plans to remove stream callbacks.
        If another thread begins a capture on this very stream between the check and the call of the
        driver, the driver ends that capture.
        """
        return self._future("Stream.checked_completion_future", _native.KIND_CALLBACK)

    synchronize_async: ClassVar[Callable[[Stream], Coroutine[Any, Any, None]]] = (
        waiting.synchronize_async
    )

    def enqueue_async(
        self, fn: Callable[Concatenate[Stream, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> CompletionFuture[T]:
        """Calls `fn(stream, *args, **kwargs)` now, and returns a future of its result.

        Use it if you need a future, such as to have several in flight. `run` is for the common
        case: it calls, waits, and returns the result.

        `fn` enqueues work and returns. The future settles when the GPU has passed that work, and is
        done when you get it if `fn` leaves nothing to wait for, unless the loop needs a turn. Until
        then the callable, its arguments and its result stay alive, even if you drop the future or
        the stream, or the task is cancelled. The library drops them in the next turn of the loop.
        If the driver can no longer prove that the GPU has passed, they stay alive for the life of
        the process, and are counted as leaked.

        `fn` runs with the stream's context current. The future waits as the stream's
        `wait_strategy` says: by an event behind the work, which never blocks, or with `HOSTFUNC` by
        a host function. Futures of one loop that you get from one `Stream`, and from those that are
        borrowed from it, settle in the stream's order, also those of `completion_future`.

        Every refusal comes before `fn` runs, except for a failure of the context in the last
        millisecond. If `fn` raises, this call raises the same, and the arguments stay alive in the
        same way.

        Cancellation: of the future, or of the task that awaits it, stops the waiting. The GPU goes
            on.

        Threads: call it in the thread of a running asyncio or trio loop. The future settles there.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or generator function. Or it has
                returned a coroutine or a generator, whose body would never run.
            RuntimeError: No loop runs in this thread.
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures. Or `fn` has left it capturing.
            CudaError: The driver refused, or the context has failed. If it failed in the last
                millisecond, the calls in `fn` or the future may report it instead.

        Example:
            >>> def scale(stream, numbers):
            ...     stream.launch_host_func(str)  # in place of kernels
            ...     return [2 * number for number in numbers]
            >>> async with aiostream.Stream() as stream:
            ...     await stream.enqueue_async(scale, [1, 2, 3])
            [2, 4, 6]
        """
        if hook and not hook.is_observed():
            name, method = "Stream.enqueue_async", Stream.enqueue_async
            return hook.observed(name, method, self, fn, *args, **kwargs)
        checks.plain_function(fn, "enqueue_async")
        # A partial, because no step of Python then lies between the return of `fn` and the native
        # code that keeps its result: an interrupt there would lose it.
        call = partial(fn, self, *args, **kwargs)
        try:
            future = enqueuing.enqueue(self._operand, self._mode, call, (fn, args, kwargs))
        except TypeError as problem:
            checks.explain_call(problem, "enqueue_async", fn)
            raise
        return cast("CompletionFuture[T]", future)

    # ------------------------------------------------------------------------------------ internals

    def _future(self, call: str, kind: int) -> CompletionFuture[None]:
        if hook and not hook.is_observed():
            return hook.observed(call, Stream._future, self, call, kind)
        return cast("CompletionFuture[None]", enqueuing.complete(self._operand, kind).future)

    def _close_after(self, error: BaseException) -> None:
        """Closes the stream because a wait has raised.

        If it was capturing, that error says that the capture goes on. So this raises another one.
        """
        self._close_quietly()
        if isinstance(error, StreamCaptureError) and self._owned:
            hint = (
                "The stream was capturing. It is closed now, and its capture gives no graph: end a "
                "capture before you close its stream"
            )
            raise driver.error(error.code, error.call, self._name, hint) from None
