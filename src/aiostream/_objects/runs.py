"""`Stream.run`: a call and a wait, and what becomes of the call's objects if the task leaves."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._handles.reference import (
    PER_THREAD,
    Reference,
    in_libraries,
    limit_waits,
    wait_list_of,
)
from aiostream._runtime import process
from aiostream._runtime.observing import is_observed, observed, observers
from aiostream._waits import waiting
from aiostream.errors import CudaError, StreamClosedError

__all__: list[str] = []

P = ParamSpec("P")
T = TypeVar("T")


class Frame:
    """Lives as long as the frame of a call, which alone refers to it."""

    __slots__ = ("__weakref__",)


# Those that have begun and not ended. The collector must not see what they hold as garbage, because
# it calls finalizers before anything could keep it. Any thread, single set operations.
_begun: set[Work] = set()


class Work(waiting.Target):
    """A call on a stream, with all that it uses, until its task has seen the end of the work.

    If the task leaves before, the GPU may still use all of it. `keep` then hands it over.

    Threads: the loop's, and the janitor's if the call's frame is gone before it could do so.
    """

    __slots__ = ("call", "frame", "pins", "results", "thread")

    def __init__(self, reference: Reference, mode: int, call: Callable[[], Any]) -> None:
        self._reference = reference  # these two are a Target's
        self._mode = mode
        # The way into torch and cupy holds the result too.
        self.call = in_libraries(reference, call) if reference.common.currents else call
        self.thread = threading.get_ident()
        self.results: list[Any] = []
        # One item while it pins the stream, so that a close does not destroy what `keep` needs.
        self.pins: list[bool] = []
        self.frame: weakref.ref[Frame] | None = None

    def begin(self) -> Frame:
        """Refuses what the wait would refuse, and calls the function.

        The caller keeps the answer in its frame, and nowhere else.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream is capturing.
            CudaError: The driver refused, or the context has failed.
        """
        reference, frame = self._reference, Frame()
        wait_list = reference.wait_list or wait_list_of(reference)
        _begun.add(self)
        self.frame = weakref.ref(frame, self.gone)
        # It is there before the pin, because `into_raw` would otherwise wait for this task.
        reference.common.held.append(self)
        refusal = _native.call_in_context(
            reference.handle, self.call, self.results, wait_list, self.pins
        )
        if refusal:
            self.end()
            captures = refusal <= _native.RESULT_CAPTURING
            refused = "cuStreamIsCapturing" if captures else "cuCtxPushCurrent"
            driver.raise_for(refusal, refused, reference.name)
        return frame

    def end(self) -> Any:
        """Lets go of the stream. Returns what the function has returned, in a list."""
        held = self._reference.common.held
        if self in held:
            held.remove(self)
        # No call lies between the two, so no interrupt comes in between.
        pins, self.pins = self.pins, []
        if pins:
            self._reference.handle.let_go()
        self.frame = None
        _begun.discard(self)
        return self.results

    def keep(self) -> None:
        """Keeps everything until the GPU has passed the stream's present end. Repeatable.

        Another thread has another per-thread stream, so from there nothing proves that.
        """
        # Taken, because the collector has both the coroutine and `gone` come here, in two threads.
        # No call lies between the two, so nothing comes in between.
        pins, self.pins = self.pins, []
        objects = self.call, self.results
        per_thread = self._reference.handle.value == PER_THREAD
        if pins:
            try:
                if per_thread and self.thread != threading.get_ident():
                    _native.leak(objects)
                else:
                    waiting.keep_until_passed(self._reference, objects)
            finally:
                self.pins = pins
        self.end()

    def gone(self, _: object) -> None:
        """The frame has died. An interrupt has cut `keep` short, or the task's loop is dead.

        Threads: any, in a finalizer.
        """
        process.run_in_janitor(self.keep)


class RunMethods:
    """The part of `Stream` that makes something and waits for it in one."""

    _reference: Reference  # these two are set by `Stream`
    _mode: int

    if TYPE_CHECKING:

        def synchronize(self, timeout: float | None = None) -> None: ...

    def __await__(self) -> Generator[Any, Any, None]:
        """Equals `await stream.synchronize_async()`."""
        return waiting.synchronize_async(self).__await__()

    @contextlib.contextmanager
    def sync_scope(self, timeout: float | None = None) -> Iterator[Self]:
        """A `with` block that always synchronizes the stream at its end.

        Equals `try: ... finally: stream.synchronize(timeout)`. But if both the body and the
        synchronization fail, you get the body's error. The end of the block blocks its thread, so
        do not use it in the thread of an event loop.

        Example:
            >>> stream = aiostream.Stream()
            >>> with stream.sync_scope():
            ...     stream.launch_host_func(str)  # some work
            >>> stream.query()
            True
            >>> stream.close()
        """
        timeout = checks.timeout(timeout)
        try:
            yield self
        except BaseException:
            with contextlib.suppress(CudaError, StreamClosedError, TimeoutError):
                self.synchronize(timeout)
            raise
        self.synchronize(timeout)

    @contextlib.contextmanager
    def may_take(self, seconds: float | None) -> Iterator[None]:
        """Sets another `stalled_after` for a block, such as for a load that takes long.

        Args:
            seconds: As `Stream` takes `stalled_after`.

        Raises:
            TypeError, ValueError: `seconds` is not a number above 0, or `None`.

        Example:
            >>> async with aiostream.Stream(stalled_after=5) as stream:
            ...     with stream.may_take(60):
            ...         await stream.synchronize_async()  # in place of a load
        """
        before = self._reference.common.stalled_after
        limit_waits(self._reference, checks.limit(seconds))
        try:
            yield
        finally:
            limit_waits(self._reference, before)

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `fn(*args, **kwargs)`, waits until the GPU has done the work, returns the result.

        This is the call for the common case: `fn` enqueues work and returns, such as the forward
        pass of a model. It equals `fn(*args, **kwargs)` with the stream current, and then
        `await stream.synchronize_async()`. Use `run_in_thread` if the Python of `fn` takes
        milliseconds, and `enqueue_async` if you need a future.

        The stream's context is current in `fn`. The stream is torch's or cupy's current one if they
        know it: if you have borrowed it from them, or called `torch()` or `cupy()`. The function,
        its arguments and its result stay alive until the GPU has passed the work, also if the task
        is cancelled or `fn` raises. If the driver can no longer prove that the GPU has passed, they
        stay alive for the life of the process, and are counted as leaked.

        Every refusal of the library comes before `fn` runs, except for a failure of the context in
        the last millisecond. If `fn` returns a `Stream`, you get that stream, and it is not
        awaited.

        Cancellation: raises at once. The GPU goes on with the work.

        Threads: call it in a task of a running asyncio or trio loop. `fn` runs in that thread. On
        trio it is always a checkpoint.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or generator function.
            RuntimeError: No loop runs here.
            StreamClosedError: The stream is closed. Or `fn`, or a thread during it, has closed it.
            StreamCaptureError: The stream captures. Or `fn` has left it capturing.
            CudaError: The driver refused, or the work or the context has failed.
            BaseException: What `fn` raised. It is raised at once.

        Example:
            >>> def scale(numbers, factor):
            ...     # launch kernels here
            ...     return [factor * number for number in numbers]
            >>> async with aiostream.Stream() as stream:
            ...     await stream.run(scale, [1, 2, 3], factor=2)
            [2, 4, 6]
        """
        if observers and not is_observed():
            result: T = await observed("Stream.run", RunMethods.run, self, fn, *args, **kwargs)
            return result
        checks.plain_function(fn, "run")
        work = Work(self._reference, self._mode, partial(fn, *args, **kwargs))
        try:
            frame = work.begin()  # noqa: F841, because it dies with this one
            await waiting.synchronize_async(work)
        except BaseException as problem:
            work.keep()
            checks.explain_call(problem, "run")
            raise
        return cast("T", work.end()[0])
