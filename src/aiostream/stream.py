"""Stream: its life, its order, its waits."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from aiostream import _arguments, _driver, _native, _process, capture, hostfunc, interop, waiting
from aiostream.attributes import AttributedStream
from aiostream.capture import CapturingStream
from aiostream.device import Context, Device, DeviceLike
from aiostream.enums import HostFunctionSync, StreamFlags, WaitEventFlags, WaitStrategy
from aiostream.errors import CudaError, StreamCaptureError, StreamClosedError
from aiostream.event import Event
from aiostream.futures import CompletionFuture
from aiostream.memory import MemoryStream
from aiostream.shared import SharedStream
from aiostream.threads import ThreadStream

__all__ = ["Stream"]

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Stream")

_NOT_READY = 600
_NOT_PLAIN = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class Stream(
    CapturingStream,
    AttributedStream,
    MemoryStream,
    SharedStream,
    ThreadStream,
    _arguments.NotCopied,
    _arguments.AsyncBlock,
):
    """A CUDA stream that coroutines can await.

    Work is put on it by whoever launches it: torch, cupy, numba, cuda.core and the bindings take it as it is or by its handle
    (`__cuda_stream__`, `int(stream)`). `async with` awaits its work and then destroys it; a stream that is dropped is destroyed
    in the background, and its work and completions still finish.

    Args:
        device: Where to create it: a `Device` or its ordinal. By default in the calling thread's current context, else on
            device 0.
        priority: Lower numbers go first; clamped to `Device.stream_priority_range` as the driver does. By default 0.
        non_blocking: Run beside the legacy default stream without the implicit synchronization with it.
        wait: How `synchronize_async` waits on it, a `WaitStrategy` or its name; by default `default_wait()`.

    Creating a stream may block while the GPU is busy: measured on an H200 (driver 580.159, CUDA 13.0), once a context has some 34
    streams the driver makes another only when all work in flight is done. So make a server's streams before it serves.

    Threads: any method may be called from any thread; the right context is made current where the driver needs one, and put
    back. Call the awaitable methods from a thread with a running event loop. Several loops in several threads may wait on
    one stream.

    Open streams compare equal if they have the same handle in the same context, as a stream and what is borrowed from it do.
    A closed stream equals only itself, because the driver gives its handle to a new stream. So a dict or set with streams as
    keys never takes a new stream for a closed one. The hash never changes.

    A stream cannot be copied or pickled. Of a subclass, `borrow`, `from_raw`, `legacy`, `per_thread` and `to_borrowed` make
    instances without calling its `__init__`.

    Raises:
        TypeError, ValueError: An argument is not of these.
        NoDriverError: There is no CUDA driver.
        CudaError: The driver refused (`cuStreamCreateWithPriority`).
    """

    _instead = "to_borrowed() gives a second object on the same stream"

    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        priority: int | None = None,
        non_blocking: bool = True,
        wait: WaitStrategy | str | None = None,
    ) -> None:
        urgency = 0 if priority is None else _arguments.priority(priority)
        flags = int(_arguments.flag("non_blocking", non_blocking))
        strategy = waiting.strategy(wait)
        _process.start()
        context = interop.current_or_default_context(device)
        with _driver.unless_owned("cuStreamDestroy") as made:
            with context._pushed():
                made.append(_driver.call("cuStreamCreateWithPriority", flags, urgency))
            self._init_fields(int(made[0]), context, owned=True, wait=strategy)

    def _init_fields(
        self,
        value: int,
        context: Context,
        *,
        owned: bool,
        source: Any = None,
        parent: _native.Handle | None = None,
        wait: WaitStrategy | None = None,
    ) -> None:
        context._ensure_monitored()  # here, where a stream is made anyway, and not in the first wait
        self._context = context
        self._owned = owned
        self._constants: dict[
            str, int
        ] = {}  # of the driver's call; any thread, single dict operations
        self._source = source  # the object from which the handle was borrowed
        self._name = interop.name_of(value, context)
        self._wait = wait if wait is not None else waiting.default_wait()
        self._mode = waiting.mode_of(self._wait)
        handle = interop.new_handle(value, context, owned=owned, parent=parent)
        try:
            self._reference = interop.Reference(handle, context, self._name)
            if source is not None:
                interop.note_source(self._reference, source)
        except BaseException:
            handle.release()  # the caller still owns the stream, and destroys it or goes on using it
            raise
        # Last, because from here on the finalizer of this object destroys the stream.
        self._handle = handle

    @classmethod
    def _from_handle(
        cls, value: int, context: Context, *, owned: bool, source: Any = None, parent: Any = None
    ) -> Self:
        _process.start()
        stream = cls.__new__(cls)
        stream._init_fields(value, context, owned=owned, source=source, parent=parent)
        return stream

    # -------------------------------------------------------------------------------------------- other ways to get one

    @classmethod
    def borrow(cls, stream: Any, *, wait: WaitStrategy | str | None = None) -> Self:
        """Gives a `Stream` on another library's stream, to await it here. It keeps that one alive and never destroys it.

        A stream of torch or cupy is their current one in the functions that `enqueue_async` and `enqueue_in_thread` call, and in
        a block of `as_current()`.

        Args:
            stream: An object with `__cuda_stream__`, a torch, cupy or numba stream, or a handle as an int.
            wait: How it is waited for; by default as by a `Stream` that is given, else `default_wait()`.

        Raises:
            TypeError: It names no CUDA stream.
            ValueError: The int is no handle. Or there is no such strategy.
            CudaError: The driver does not know the handle (`cuStreamGetCtx`).

        Example:
            ::

                stream = aiostream.Stream.borrow(torch.cuda.Stream())
                output = await stream.enqueue_async(lambda _: model(batch))
        """
        if isinstance(stream, Stream):
            borrowed = stream._borrowed_as(cls)
        else:
            value = interop.stream_handle(stream)
            borrowed = cls._from_handle(
                value, interop.context_of(value), owned=False, source=stream
            )
        if wait is not None:
            borrowed._wait = waiting.strategy(wait)
            borrowed._mode = waiting.mode_of(borrowed._wait)
        return borrowed

    @classmethod
    def from_raw(cls, handle: int, *, context: Context | None = None) -> Self:
        """Takes over a handle, and with it the duty to destroy it; the reverse of `into_raw`.

        Args:
            handle: A `CUstream` that nobody else will destroy.
            context: Its context, if known; else the driver is asked.

        Raises:
            TypeError: `handle` is not an int, or `context` not a `Context`.
            ValueError: It is no handle, or one of the special handles 0, 1 and 2, which have no owner.
            CudaError: The driver does not know the handle (`cuStreamGetCtx`).
        """
        value = interop.raw_handle(handle, "a CUDA stream")
        if value <= interop.PER_THREAD:
            raise ValueError(
                f"handle {value} is a special stream without an owner: use Stream.legacy(), per_thread() or borrow()"
            )
        if context is not None and not isinstance(context, Context):
            raise TypeError(
                f"the context is an aiostream.Context, not {type(context).__name__}; Context.from_handle makes one"
            )
        return cls._from_handle(value, context or interop.context_of(value), owned=True)

    @classmethod
    def legacy(cls, device: DeviceLike | None = None) -> Self:
        """The legacy default stream of a device's context, which synchronizes with every blocking stream."""
        return cls._from_handle(
            interop.LEGACY, interop.current_or_default_context(device), owned=False
        )

    @classmethod
    def per_thread(cls, device: DeviceLike | None = None) -> Self:
        """The per-thread default stream: in each call, that of the calling thread."""
        return cls._from_handle(
            interop.PER_THREAD, interop.current_or_default_context(device), owned=False
        )

    def to_borrowed(self) -> Self:
        """A second `Stream` on the same handle that does not own it. It waits as this one does.

        It refuses, as this one does, once this one is closed.
        """
        return self._borrowed_as(type(self))

    def _borrowed_as(self, kind: type[S]) -> S:
        if not self._handle.is_open:
            raise self._closed_error()
        # A pool does this for each request, so nothing is looked up that is the same.
        context, owner = self._context, self._handle
        borrowed = kind.__new__(kind)
        borrowed._context = context
        borrowed._owned = False
        borrowed._constants = self._constants
        borrowed._source = self
        borrowed._name = self._name
        borrowed._handle = handle = interop.new_handle(owner.value, context, False, owner)
        borrowed._wait = self._wait
        borrowed._mode = self._mode
        reference = self._reference
        borrowed._reference = interop.Reference(
            handle, context, self._name, reference.wait_list, common=reference.common
        )
        return borrowed

    # -------------------------------------------------------------------------------------------- what it is

    @property
    def handle(self) -> int:
        """The driver's `CUstream`, as an int. It is the caller's care not to use it once the stream is closed.

        Raises:
            StreamClosedError: It is closed already.
        """
        self._require_open()
        return self._handle.value

    @property
    def closed(self) -> bool:
        """Whether it was closed, or given away by `into_raw`."""
        return not self._handle.is_open

    @property
    def context(self) -> Context:
        """The context in which it lives (`cuStreamGetCtx`)."""
        return self._context

    @property
    def device(self) -> Device:
        """The device on which it lives; what `cuStreamGetDevice` tells, which would end a capture, asked of the context."""
        return self._context.device

    @property
    def green_context(self) -> int | None:
        """The handle of the green context in which it was created, a `CUgreenCtx`; else `None` (`cuStreamGetCtx_v2`).

        Raises:
            NotSupportedError: The driver is older than CUDA 12.5.
        """
        _, green = self._call("cuStreamGetCtx_v2")
        return int(green) or None

    @property
    def flags(self) -> StreamFlags:
        """How it was created (`cuStreamGetFlags`)."""
        return StreamFlags(self._constant("cuStreamGetFlags"))

    @property
    def priority(self) -> int:
        """Its priority, after clamping (`cuStreamGetPriority`)."""
        return int(
            self._call("cuStreamGetPriority")
        )  # no constant: set_attribute changes it; and harmless under capture

    @property
    def id(self) -> int:
        """A number that no other stream of this process ever has (`cuStreamGetId`)."""
        return self._constant("cuStreamGetId")

    @property
    def wait_strategy(self) -> WaitStrategy:
        """How `synchronize_async` waits on it."""
        return self._wait

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which other libraries take this stream: `(0, handle)`."""
        return 0, self.handle

    def __int__(self) -> int:
        return self.handle

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        if self is other:
            return True
        mine, its = self._handle, other._handle
        # The driver gives the handle of a destroyed stream to the next one, so a closed stream must
        # not equal that.
        return (
            mine.value == its.value
            and mine.is_open
            and its.is_open
            and self._context == other._context
        )

    def __hash__(self) -> int:
        return hash(
            (self._handle.value, self._context)
        )  # also once it is closed: a dict that has it must find it

    def __repr__(self) -> str:
        kind = "" if self._owned else " borrowed"
        return f"<aiostream.Stream {self._handle.value:#x}{kind}{' closed' if self.closed else ''}>"

    # -------------------------------------------------------------------------------------------- its ends

    def close(self) -> None:
        """Destroys the stream at once; work in flight finishes, and its completions still arrive (`cuStreamDestroy`).

        A borrowed stream is only let go of, and one that was given to another library (`torch()` and its like) is retired: see
        `core`. Calls in other threads finish first: the last of them destroys. May be called
        again, and does nothing then.

        Raises:
            CudaError: The driver refused; the stream is closed all the same.
        """
        if self._owned and self._handle.is_shared:
            _end_capture(self._reference)
        code = self._handle.close()
        self._source = None
        if self._owned:
            capture.forget(self._reference)
        hostfunc.raise_for(code, "cuStreamDestroy", self._name)

    def shutdown(self) -> None:
        """Blocks until the work is done, destroys the stream, and raises what went wrong. Not for a loop's thread.

        Raises:
            StreamCaptureError: The stream was capturing. It is closed, and the capture gives no graph.
            CudaError: The work failed, else the destruction did. The stream is closed all the same.
        """
        try:
            self.synchronize()
        except BaseException as error:
            self._close_quietly()
            if isinstance(error, StreamCaptureError) and self._owned:
                raise self._closed_capturing(error) from None
            raise
        self.close()

    async def aclose(self) -> None:
        """Waits for the work, then destroys the stream. May be called again.

        It does not wait for a thread that a cancelled `enqueue_in_thread` has left behind: `drain` does.

        Cancellation: destroys at once, and raises; the work goes on and its completions still arrive.

        Raises:
            StreamCaptureError: The stream was capturing. It is closed, and the capture gives no graph.
            CudaError: The work failed. The stream is closed all the same.
        """
        if self.closed:
            await waiting.checkpoint()
            return
        try:
            await self.synchronize_async()
        except BaseException as error:
            self._close_quietly()
            if isinstance(error, StreamCaptureError) and self._owned:
                raise self._closed_capturing(error) from None
            raise
        self.close()

    async def __aenter__(self) -> Stream:
        self._require_open()
        await waiting.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except (CudaError, StreamClosedError):
            if error is None:
                raise
            # The body's own error says what went wrong first.

    def into_raw(self) -> int:
        """Gives the handle away, and with it the duty to destroy it. Waits for the calls of other threads to finish.

        Ctrl-C ends the waiting, and the stream is yours as before.

        If the stream was given to another library too (`torch()` and its like), do not destroy it, nor give it to `from_raw`.

        Returns:
            The `CUstream`, as an int.

        Raises:
            StreamClosedError: It was closed before.
            ValueError: It is borrowed, so there is nothing to give.
            RuntimeError: A block of `as_current`, or a call of `enqueue_in_thread`, uses it. Or this thread does: the function
                that `enqueue_async` calls has called this.
        """
        if not self._owned:
            raise ValueError(
                "a borrowed stream's handle belongs to somebody else: read it with .handle"
            )
        if self._reference.common.held:
            raise RuntimeError(
                f"{self._name} is in use, in a block of as_current() or by enqueue_in_thread: give it away after that"
            )
        if not self._handle.release():
            raise self._closed_error()
        return self._handle.value

    def __del__(
        self,
        run_in_janitor: Callable[..., None] = _process.run_in_janitor,
        is_noted: Callable[..., bool] = capture.is_noted,
    ) -> None:
        # A finalizer may run anywhere, also inside a host function: the janitor closes. Its
        # function is bound here, because the interpreter's end empties modules before the last
        # objects die.
        handle = getattr(self, "_handle", None)
        if handle is not None and self._owned and handle.is_open:
            reference = self._reference
            plain = not handle.is_shared and not is_noted(reference)
            run_in_janitor(handle.drop if plain else lambda: _retire(reference))

    # -------------------------------------------------------------------------------------------- its order

    def wait_event(self, event: Any, flags: WaitEventFlags = WaitEventFlags.DEFAULT) -> None:
        """Makes later work of this stream wait, on the GPU, for the point that `event` has recorded (`cuStreamWaitEvent`).

        Never blocks. An event of any device will do; one that was never recorded holds nothing up.

        Args:
            event: An `Event`, or an event of cuda.core, torch or cupy, or a handle. To wait for a stream, record an event on it.
            flags: `EXTERNAL` makes it, under capture, a node that waits for the event at each launch of the graph.

        Raises:
            TypeError: `event` names no CUDA event; a stream, for example.
            ValueError: The int is no handle, or there are no such flags.
            StreamClosedError: The stream or the event is closed.
            CudaError: The driver refused.
        """
        bits = int(_arguments.member(WaitEventFlags, flags, "flags"))
        owner = event._handle if isinstance(event, Event) else None
        held: list[bool] = []
        try:
            if owner is not None and not owner.pin(held):
                raise StreamClosedError(f"{event._name} is closed")
            handle = owner.value if owner is not None else interop.event_handle(event)
            if not handle and interop.is_unmade(event):
                self._require_open()
                return
            self._call("cuStreamWaitEvent", _driver.bindings().CUevent(handle), bits)
        finally:
            if owner is not None and held:
                owner.unpin()

    def query(self) -> bool:
        """Whether all work is done (`cuStreamQuery`), without blocking.

        It is checked first, under the driver's RELAXED mode, that the stream does not capture. The driver has no way to do
        both at once: a capture that another thread begins on this very stream in the instant between is invalidated.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures; it was not touched.
            CudaError: The context has failed.
        """
        code = _native.stream_query(self._handle)
        if code == _NOT_READY:
            return False
        hostfunc.raise_for(code, "cuStreamQuery", self._name)
        return True

    def synchronize(self) -> None:
        """Blocks the calling thread until all work is done (`cuStreamSynchronize`). Not for a loop's thread.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures; it was not touched.
            CudaError: The work failed.
        """
        hostfunc.raise_for(
            _native.stream_synchronize(self._handle), "cuStreamSynchronize", self._name
        )

    @contextlib.contextmanager
    def sync_scope(self) -> Iterator[Stream]:
        """A `with` block that always synchronizes the stream on its way out; an error of the body wins.

        Equals `try: ... finally: stream.synchronize()`, except that a failure to synchronize does not replace the body's
        error. Blocks: not for a loop's thread.
        """
        try:
            yield self
        except BaseException:
            with contextlib.suppress(CudaError, StreamClosedError):
                self.synchronize()
            raise
        self.synchronize()

    # -------------------------------------------------------------------------------------------- its waits

    def completion_future(self) -> CompletionFuture[None]:
        """A future that settles in this loop when the GPU has passed the stream's present end (`cuLaunchHostFunc`).

        It is a point in the stream: later work waits for the host function, which costs the GPU some tens of microseconds and
        one of the device's hardware queues while it is pending. `synchronize_async` is the cheaper wait.

        It may block the calling thread when the stream is full (1,022 launches on an H200), as every enqueue may.

        Cancellation: of the future, or of the task that awaits it: stops waiting, not the GPU.

        Threads: in the thread of a running asyncio or trio loop, in which it settles.

        Returns:
            A future of `None`; on asyncio the loop's own. If the context fails, it fails with that error.

        Raises:
            RuntimeError: No loop runs here.
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures; it was not touched.
            CudaError: The driver refused.
        """
        return self._future(_native.KIND_HOST_FUNCTION)

    def checked_completion_future(self) -> CompletionFuture[None]:
        """The same by stream callback, whose status the driver itself gives (`cuStreamAddCallback`).

        Everything that `completion_future` says holds here too. NVIDIA means to remove stream callbacks one day. A capture that
        another thread begins on this very stream between the check and the enqueue is ended by the driver, as it ends any that
        is given a callback.
        """
        return self._future(_native.KIND_CALLBACK)

    synchronize_async = waiting.synchronize_async

    def enqueue_async(
        self, fn: Callable[Concatenate[Stream, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> CompletionFuture[T]:
        """Calls `fn(stream, *args, **kwargs)` now, which enqueues work, and returns a future of its result.

        The future settles when the GPU has passed what `fn` enqueued. Callable, arguments and result stay alive until then,
        whatever becomes of the future, the task, the loop or this object. The library lets go of them in the turn of the loop
        after that. If the driver can no longer prove that the GPU has passed, they stay alive for the life of the process, and
        are counted as leaked.

        `fn` runs with the stream's context current. How the future waits is the stream's `wait_strategy`: as
        `synchronize_async`, by an event behind the work, which never blocks, or with `HOSTFUNC` by a host function. Futures of
        one stream and one loop settle in the stream's order.

        Every refusal comes before `fn` runs, except for a failure of the context in the last millisecond. If `fn` raises, so does
        this call, and its arguments are kept in the same way.

        Cancellation and threads: as `completion_future`.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or generator function.
            RuntimeError: No loop runs here.
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures; or `fn` has left it capturing.
            CudaError: The driver refused, or the context has failed. A failure of the last millisecond may be told by `fn`'s own
                calls, or by the future.
        """
        if type(fn) is not FunctionType or fn.__code__.co_flags & _NOT_PLAIN or fn.__dict__:
            _arguments.plain_function(fn, "enqueue_async")
        handle, held = self._handle, list[bool]()
        try:
            if not handle.pin(held):
                raise self._closed_error()
            work = (fn, args, kwargs)
            call = partial(
                fn, self, *args, **kwargs
            )  # no step of Python lies between fn's return and whoever keeps its result
            if self._mode == waiting.BY_HOST_FUNCTION:
                hostfunc.require_ready(self._reference)
                return cast(
                    "CompletionFuture[T]", hostfunc.enqueue(self._reference, call, work).future
                )
            return cast(
                "CompletionFuture[T]",
                waiting.enqueue(self._reference, self._mode, call, work).future,
            )
        finally:
            if held:
                handle.unpin()

    def launch_host_func(
        self,
        fn: Callable[..., object],
        /,
        *args: Any,
        sync_mode: HostFunctionSync | None = None,
        **kwargs: Any,
    ) -> None:
        """Enqueues a function that the driver calls, on a thread of its own, when the GPU gets there (`cuLaunchHostFunc`).

        A Python function runs with the GIL on the driver's thread: while it waits for the GIL and runs, this stream stands
        still and no other host function of the context runs; a thread that keeps the GIL across a blocking CUDA call makes it a
        deadlock. It must not call CUDA, nor wait for anything that does: the driver answers 800 there, also to `close()`. Prefer
        `completion_future` and ordinary code. A ctypes function pointer is called without Python; the driver's one argument is
        `args[0]`, an address or a ctypes object.

        It is not called once the context has failed, nor once the interpreter is ending. An exception goes to
        `sys.unraisablehook`, and the stream goes on. A thread of the library drops the library's references to the callable and
        its arguments. If the function has run before this call returns, the last references may be the caller's.

        On a capturing stream it becomes a node of the graph, and is called at each launch. Callable and arguments then live as
        long as the graph, its clones and executables, and launches in flight.

        It may block the calling thread when the stream is full.

        Args:
            fn: A callable, or a ctypes function pointer.
            *args: What it is called with.
            sync_mode: How the GPU waits for it; needs a driver of CUDA 13.2.
            **kwargs: What else it is called with.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or generator function.
            ValueError: There is no such `sync_mode`.
            StreamClosedError: The stream is closed.
            StreamCaptureError: Its capture was invalidated; or it is the legacy stream, while another one captures.
            NotSupportedError: The driver is too old for `sync_mode`.
            CudaError: The driver refused.
        """
        hostfunc.launch(self._handle, self._context, self._name, fn, args, kwargs, sync_mode)

    def add_callback(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
        """Enqueues `fn(error, *args, **kwargs)`, which the driver calls also after a failure (`cuStreamAddCallback`).

        `error` is `None` or a `CudaError`. Everything else is as `launch_host_func` says.
        """
        hostfunc.add_callback(self._handle, self._context, self._name, fn, args, kwargs)

    # -------------------------------------------------------------------------------------------- inside

    def _future(self, kind: int) -> CompletionFuture[None]:
        completion = hostfunc.arm_completion(self._handle, self._context, self._name, kind)
        return cast("CompletionFuture[None]", completion.future)

    def _constant(self, name: str) -> int:
        """A number that never changes. The driver is asked once, and not while the stream captures: that ends the capture."""
        self._require_open()
        known = self._constants.get(name)
        if known is None:
            hostfunc.raise_for(_native.capture_refusal(self._handle), name, self._name)
            known = int(self._call(name))
            if self._handle.value != interop.PER_THREAD:  # in each thread another stream
                self._constants[name] = known
        return known

    def _require_open(self) -> None:
        if not self._handle.is_open:
            raise self._closed_error()

    def _closed_error(self) -> StreamClosedError:
        return StreamClosedError(f"{self._name} is closed: its handle was destroyed or given away")

    def _closed_capturing(self, error: CudaError) -> CudaError:
        """In place of the error of a wait, which says that the capture goes on."""
        hint = "The stream was capturing. It is closed now, and its capture gives no graph: end a capture before the stream"
        return _driver.error(error.code, error.call, self._name, hint)

    def _close_quietly(self) -> None:
        """Closes when another error is on its way already."""
        with contextlib.suppress(CudaError):
            self.close()

    def _pinned(self) -> contextlib.AbstractContextManager[int]:
        return interop.pinned(self._reference)

    def _call(self, name: str, *args: Any) -> Any:
        """Calls the driver through the bindings on this stream, pinned, in its context if it is a special one."""
        return interop.call_on(self._reference, name, *args)


def _end_capture(reference: interop.Reference) -> None:
    """Before a shared stream is retired: nobody could end its capture any more, and no destruction does."""
    if reference.context.health() == 0:  # a stream whose context was destroyed must not be touched
        with contextlib.suppress(StreamClosedError):
            capture.end_left(reference)


def _retire(reference: interop.Reference) -> None:
    """In the janitor's thread, of a dropped stream that was shared, or that has begun a capture."""
    if reference.handle.is_shared:
        _end_capture(reference)
    reference.handle.drop()
    capture.forget(reference)
