"""`Stream.run`: a call and a wait, and what becomes of the call's objects if the task leaves."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import GeneratorType
from typing import Any, ParamSpec, Self, TypeVar, overload

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._handles.operand import PER_THREAD, Operand, WithOperand, in_libraries, wait_list_of
from aiostream._objects import halves
from aiostream._runtime import loops, process
from aiostream._runtime.observing import hook
from aiostream._waits import enqueuing, pending, strategies, waiting
from aiostream.errors import CudaError, StreamClosedError

P = ParamSpec("P")
T = TypeVar("T")


def _leave(work: _native.Work, here: bool = False) -> None:
    """Has an event behind the work own it, because its task has gone. Repeatable.

    After an interrupt in here the work is as before, and its frame gives it to `_end`. `here`: this
    is the thread of its loop.
    """
    if work.is_left or _native.is_forked():  # an event, or the parent has the work
        return
    if work.is_over:
        work.end()
        return
    operand: Operand = work._operand
    handle = operand.handle
    # Another thread has another per-thread stream, so from there nothing proves the end.
    elsewhere = handle.value == PER_THREAD and work.thread != threading.get_ident()
    queue = loops.current_bridge().queue if here and work.in_loop else process.ORPHANS
    waits, mode = wait_list_of(operand), strategies.BY_WATCHER
    if elsewhere or not _native.watch(handle, waits, queue, mode, work):
        _end(work, enqueuing.UNKNOWN_ERROR, not here)


# The defaults bind what is called, because at the interpreter's end the module's names may be gone.
def _end(
    work: _native.Work,
    code: int | None = None,
    orphaned: bool = True,
    run_in_janitor: Callable[[Callable[[], Any]], None] = process.run_in_janitor,
    leave: Callable[[_native.Work], None] = _leave,
    release: Callable[[list[Any]], None] = process.release_in_thread,
) -> None:
    """The GPU has passed the event (`code` is 0), or nothing proves that. Native code calls this.

    Without a code, the frame of a task has died before the end of its work, and this is a
    finalizer, in any thread.
    """
    if code is None:
        run_in_janitor(lambda: leave(work))
    elif code < 0:  # the wait was handed back just now
        work.is_left = False
        _leave(work, not orphaned)
    elif work.in_halves:
        close = partial(_close, work, code, not orphaned)
        if orphaned:  # this is the janitor's thread, and what the close calls may block
            process.run_in_releaser(close)
        else:
            close()
    elif not work.is_over:
        (_native.leak if code else release)(work.take())
        if work.at_end is not None:
            work.at_end()


def _close(work: _native.Work, code: int, here: bool) -> None:
    driven: halves.Halves = work.result
    waits = driven.operand.wait_list or wait_list_of(driven.operand)
    halves.close(driven, code, waits)
    work.is_left = work.in_halves = False
    # The close seldom enqueues more.
    if here and _native.limited_query(driven.operand.handle, waits) == 0:
        _end(work, 0)
    else:
        _leave(work, here)


def _give_up_garbage(phase: str, _: object) -> None:
    # Called before and after each collection. A Work is in this list if only garbage refers to it,
    # and it refers to some of that garbage, of which nothing has been finalized.
    if phase == "stop" and gc.garbage:
        for work in [each for each in gc.garbage if type(each) is _native.Work]:
            _end(work)
        gc.garbage[:] = [each for each in gc.garbage if type(each) is not _native.Work]


def _find_garbage() -> None:
    if _give_up_garbage not in gc.callbacks:
        gc.callbacks.append(_give_up_garbage)


process.before_first_use.append(_find_garbage)


class RunMethods(WithOperand):
    """The part of `Stream` that makes something and waits for it in one."""

    synchronize: Callable[[float | None], None]  # these two are of `Stream`
    _place: Callable[[], Any]

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
        operand, limit = self._operand, checks.limit(seconds)  # not that of a loan that has ended
        operand.shared.longer.append(limit)
        try:
            operand.limit_waits()
            yield
        except BaseException:
            operand.shared.left = limit
            raise
        finally:
            operand.shared.longer.remove(limit)
            operand.limit_waits()

    @overload
    async def run(
        self, fn: Callable[P, Generator[None, None, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
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

        `fn` may be a generator function, or return a generator: a function in two halves. It runs
        to its `yield`, the GPU does the work, and it goes on behind the `yield`, with the stream
        current. What it returns is the result. It may yield several times, and always yields
        `None`. Its variables live until the GPU has passed the work. An unnamed temporary dies
        before the `yield`. If the work fails or the stream refuses, the error is raised at the
        `yield`. Nothing that belongs to the thread may stay open over a `yield`, such as a block of
        torch's `inference_mode`: decorate the function in place of that.

        The context variables of a function in two halves are its own, as a task's are. All halves
        and the close run in one copy of yours, made at the call, and you see nothing of what they
        set. Any other function shares yours.

        Other tasks may run between this call and `fn`: if launches have kept the loop for about a
        millisecond, this one waits for its turn, first come, first served. The state of the stream
        is asked after that.

        Cancellation: raises at once. If `fn` has not begun, it is not called. Otherwise the GPU
        goes on with the work. When the GPU has passed it, a
        generator is closed in the loop's thread, or in one of the library's if the loop is closed.
        What the close raises goes to `sys.unraisablehook`.

        Threads: call it in a task of a running asyncio or trio loop. `fn` runs in that thread. On
        trio it is always a checkpoint.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or async generator function. Or it
                has yielded something.
            RuntimeError: No loop runs here. Or something of the thread was open over a `yield`.
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

            >>> def score(rows):
            ...     results = bytearray(rows)  # pinned memory that a copy from the GPU fills
            ...     yield  # other tasks run until the GPU has done the work
            ...     return sum(results)
            >>> async with aiostream.Stream() as stream:
            ...     await stream.run(score, 3)
            0
        """
        if hook and not hook.is_observed():
            return await hook.observed("Stream.run", RunMethods.run, self, fn, *args, **kwargs)
        is_generator = checks.plain_function(fn, "run", halves=True)
        launches, place = loops.current_bridge().launches, self._place()
        work: _native.Work | None = None
        driven: halves.Halves | None = None
        try:
            if launches.wait and launches.turn_of is not self:
                await waiting.launch_turn(launches)
            launches.turn_of = None
            operand = self._operand
            call: Callable[[], Any] = partial(fn, *args, **kwargs)
            if is_generator:  # the first half is a part of the call
                driven = halves.Halves(operand, call)
                call = driven.begin
            # The way into torch and cupy holds the result too.
            if operand.shared.currents:
                call = in_libraries(operand, call)
            # Only this frame refers to it: see its type.
            work = _native.Work(operand, self._mode, call, _end)
            if is_generator or place is not None:  # a close, or the pool, is the loop's
                work.in_loop = True
            wait_list = operand.wait_list or wait_list_of(operand)
            began = waiting.now()
            try:
                refusal = work.begin(operand.handle, wait_list)
            finally:
                launches.note(waiting.now() - began, fn)
            if isinstance(refusal, GeneratorType):
                driven = driven or halves.Halves(operand, call)
                result = _native.plain_result(await halves.drive(work, driven, launches, fn))
                if not work.is_over:
                    if place is not None:
                        place.left = work
                    _leave(work, here=True)
                return result
            if refusal:
                enqueuing.refuse(refusal, operand, "cuCtxPushCurrent")
            await waiting.synchronize_async(work)
            return work.end()
        except BaseException as problem:
            # A coroutine may be closed in any thread, also by the collector.
            if work is not None:
                is_here = not isinstance(problem, GeneratorExit)
                if is_here:
                    work.left_by = pending.left_here(fn)
                    if place is not None:
                        place.left = work
                if not work.is_left:  # else the event of its wait has it
                    if driven is not None:  # it is closed when the GPU has passed
                        work.result, work.in_halves = driven, driven.is_open
                    _leave(work, is_here)
            if isinstance(problem, Exception):
                with_own = bool(args) and args[0] is getattr(place, "own", problem)
                checks.explain_call(problem, "run", fn, with_own)
            raise
