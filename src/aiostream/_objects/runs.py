"""`Stream.run`: a call and a wait, and what becomes of the call's objects if the task leaves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar, cast

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._handles.operand import PER_THREAD, Operand, in_libraries, wait_list_of
from aiostream._runtime import loops, process
from aiostream._runtime.observing import is_observed, observed, observers
from aiostream._waits import waiting
from aiostream.errors import CudaError, StreamClosedError

P = ParamSpec("P")
T = TypeVar("T")


def _keep(work: _native.Work) -> None:
    """Keeps everything until the GPU has passed the stream's present end. Repeatable.

    After an interrupt in here the work is as before, and its frame gives it to `_give_up`.
    """
    if _native.is_forked():  # the parent has the work
        return
    objects = work.objects
    if objects is not None:
        operand: Operand = work._operand
        # Another thread has another per-thread stream, so from there nothing proves the end.
        if operand.handle.value == PER_THREAD and work.thread != threading.get_ident():
            _native.leak(objects)
        else:
            waiting.keep_until_passed(operand, objects)
    work.end()


# The defaults bind what is called, because at the interpreter's end the module's names may be gone.
def _give_up(
    work: _native.Work,
    run_in_janitor: Callable[[Callable[[], Any]], None] = process.run_in_janitor,
    keep: Callable[[_native.Work], None] = _keep,
) -> None:
    """The frame of a task has died before the end of its work.

    Threads: any, in a finalizer.
    """
    run_in_janitor(lambda: keep(work))


class RunMethods:
    """The part of `Stream` that makes something and waits for it in one."""

    _operand: Operand  # these three are of `Stream`
    _mode: int
    synchronize: Callable[[float | None], None]

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

        Several blocks may be open, of different tasks too. Then the longest limit counts.

        Args:
            seconds: As `Stream` takes `stalled_after`.

        Raises:
            RuntimeError: This is a forked child.
            TypeError, ValueError: `seconds` is not a number above 0, or `None`.

        Example:
            >>> async with aiostream.Stream(stalled_after=5) as stream:
            ...     with stream.may_take(60):
            ...         await stream.synchronize_async()  # in place of a load
        """
        driver.refuse_forked()
        longer, limit = self._operand.shared.longer, checks.limit(seconds)
        longer.append(limit)
        try:
            self._operand.limit_waits()
            yield
        finally:
            longer.remove(limit)
            self._operand.limit_waits()

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
        operand = self._operand
        launches = loops.current_bridge().launches
        if launches.wait:
            await waiting.launch_turn(launches)
        call: Callable[[], T] = partial(fn, *args, **kwargs)
        # The way into torch and cupy holds the result too.
        if operand.shared.currents:
            call = in_libraries(operand, call)
        # Only this frame refers to it: see its type.
        work = _native.Work(operand, self._mode, call, _give_up)
        try:
            wait_list = operand.wait_list or wait_list_of(operand)
            began = waiting.now()
            try:
                refusal = work.begin(operand.handle, wait_list, operand.shared.held)
            finally:
                launches.note(waiting.now() - began)
            if refusal:
                captures = refusal <= _native.RESULT_CAPTURING
                refused = "cuStreamIsCapturing" if captures else "cuCtxPushCurrent"
                driver.raise_for(refusal, refused, operand.name)
            await waiting.synchronize_async(work)
        except BaseException as problem:
            _keep(work)
            checks.explain_call(problem, "run")
            raise
        return cast("T", work.end())
