"""Work that a worker thread enqueues, because its Python takes too long for the loop.

The worker thread makes the stream's context current, and the stream current in torch and cupy, if
they know it. One native call does that, calls the function, and puts the former ones back in that
thread, also if the function raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar, cast, overload

from aiostream import _native, errors
from aiostream._base import checks
from aiostream._handles.operand import PER_THREAD, Operand, WithOperand, in_libraries, new_wait_list
from aiostream._objects.halves import Halves, close
from aiostream._runtime import launchers, loops, process
from aiostream._runtime.completion import Completion
from aiostream._runtime.observing import hook
from aiostream._waits import enqueuing, pending, strategies
from aiostream.errors import CudaError, StreamClosedError

T = TypeVar("T")

# The marks of generators that a launching thread is to close. Any thread, single list operations.
closing: list[object] = []


class _ThreadCall(Completion):
    """A function that a worker thread calls, and the work that it enqueues.

    It is over when the GPU has passed that work. An event behind the work says so to the loop, also
    if the task has gone. Until then the arguments and the result are kept alive.

    Threads: `work` is called in the worker thread, and the rest in the loop's. Each enters itself
    into `taken`, and one entry succeeds: so either `work` or `cancel` comes first.
    """

    def __init__(
        self,
        operand: Operand,
        function: Callable[[], Any],
        halves: Halves,
        bare: bool = False,
    ) -> None:
        operand.context._ensure_monitored()
        future = loops.current_bridge().new_future()
        super().__init__(future, operand.name, function)
        self.operand = operand
        self.halves = halves  # of the function, if it is one
        self.left_by: pending.Left | None = None
        self.bare = bare  # the function is called without the stream
        self.taken: dict[str, str] = {}
        self.pins: list[bool] = []  # it has pinned the stream
        # Whether nothing of it uses the stream any more, and what is called then.
        self.is_over = False
        self.at_end: Callable[[], object] | None = None
        self.mark = object()  # in `shared.held`: see `Halves`
        # The next two are the worker's until it records the event or fires the ticket, and the
        # loop's from then on. The ticket orders the two, so there is no lock.
        self.raised: BaseException | None = None  # by the function, or before it
        self.lost: BaseException | None = None  # why no event is behind the work

    def begin(self) -> None:
        """Has a launching thread call `work`. From now on `drain` waits for it.

        It makes no driver call. For one it would give up the GIL, which launching threads then
        take, and each time the loop would wait for it.
        """
        operand = self.operand
        self.expect(operand.context._ensure_monitored(), loops.current_bridge().queue)
        operand.shared.held.append(self.mark)
        launchers.call(self.work)

    # ---------------------------------------------------------------------- in the worker thread

    def work(self) -> None:
        """Calls the function, and records the event behind what it has enqueued."""
        if self.taken.setdefault("by", "worker") != "worker":  # the task was cancelled before
            self.fire(0)
            return
        operand, answer = self.operand, 0
        try:
            if self.bare:
                self._call()
            # Until the loop learns of the end, because the task may give the stream away then, and
            # this thread may not have returned yet.
            elif not operand.handle.pin(self.pins):
                raise errors.closed(self.stream)
            else:
                # The watcher alone has the wait, because only the loop's thread may use the loop's
                # timer, and this thread records the event.
                waits, by = _wait_list(operand), strategies.BY_WATCHER
                answer = self.run(waits, by, operand.handle, self._call)
            if answer:
                enqueuing.refuse(answer, operand, "cuEventCreate", "cuEventRecord")
        except BaseException as error:
            if enqueuing.refusal_afterwards(answer):
                self.lost = error.with_traceback(None)  # which refers to this frame
            else:
                self.raised = error
        # Without an event nothing else would ever fire the ticket, and the task would hang.
        self.fire(0 if self.lost is None else enqueuing.UNKNOWN_ERROR)

    def _call(self) -> Any:
        call: Any = None
        try:
            call = in_libraries(self.operand, self.keepalive)
            return _native.plain_result(call())
        except BaseException as error:
            # The task gets it, and raises it when the GPU has passed what was enqueued before it.
            # It is noted before the event is recorded, because the task may be through after that.
            self.raised = error
            return call  # which may hold what the function has returned

    # ---------------------------------------------------------------------- in the loop's thread

    def cancel(self) -> None:
        """Ends the wait, because its task has gone.

        A function that has not begun is not called. One that has begun goes on without the task.
        After an interrupt it is called again.
        """
        if self.taken.setdefault("by", "task") == "task" and not self.fire(0):
            self._close(0)
        super().cancel()

    def complete(self, code: int, orphaned: bool) -> None:
        """Settles the future.

        The GPU has passed what the function has enqueued, or the context has failed, or there was
        no event.
        """
        self._let_go()
        if self.lost is None:
            super().complete(code, orphaned)
        else:
            self.fail(self.lost, orphaned)
        if orphaned or self.is_cancelled:
            # No task will raise the error. Its frames hold objects whose destructors may block, so
            # it must not die in this thread.
            held, self.raised = [self.raised], None
            process.release_in_thread(held)
            self._close(code)

    def _close(self, code: int) -> None:
        # No half runs, and the GPU has passed the last one, or `code` says why that is not known.
        halves = self.halves
        if halves.is_open:
            closing.append(halves.mark)
            launchers.call(partial(self._close_in_thread, code))
        else:
            halves.close()  # it ends the mark of one that the collector has closed with its loop
            self._end()

    def _close_in_thread(self, code: int) -> None:
        operand, pins = self.operand, list[bool]()
        operand.handle.pin(pins)
        try:
            close(self.halves, code, _wait_list(operand) if pins else None)
            # What the close has enqueued. If the stream was closed meanwhile, the query is refused.
            if pins and _native.stream_query(operand.handle) != 0:
                enqueuing.keep_until_passed(operand, self.halves, pinned=True)
        finally:
            operand.handle.unpin(pins)
            closing.remove(self.halves.mark)
            self._end()

    def _end(self) -> None:
        self.is_over = True
        if self.at_end is not None:
            self.at_end()

    def _let_go(self) -> None:
        # There is none after an interrupt before the append, or when this is repeated.
        with contextlib.suppress(ValueError):
            self.operand.shared.held.remove(self.mark)
        self.operand.handle.unpin(self.pins)


def _wait_list(operand: Operand) -> _native.WaitList:
    shared = operand.shared
    # The per-thread stream is another stream in each worker. In one wait list, only the oldest wait
    # would be polled, and the others may end before it.
    if operand.handle.value == PER_THREAD:
        return new_wait_list(operand)
    if shared.thread_waits is None:
        shared.thread_waits = new_wait_list(operand)
    return shared.thread_waits


class ThreadStream(WithOperand):
    """The part of `Stream` that uses worker threads."""

    _place: Callable[[], Any]

    @overload
    async def run_in_thread(
        self,
        fn: Callable[..., Generator[None, None, T]],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def run_in_thread(
        self,
        fn: Callable[..., T],  # a lambda has no inferred type if its first parameter is given
        /,
        *args: Any,
        **kwargs: Any,
    ) -> T: ...
    async def run_in_thread(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `fn(*args, **kwargs)` in a worker thread, and waits until its work is done.

        Use it for a function whose Python takes milliseconds, such as the forward of an eager
        model. The loop runs other tasks meanwhile. As with `run`, `fn` enqueues work and returns.
        `run` costs less if `fn` is quick.

        `fn` runs in a thread of the library, in a copy of your context variables. With the GIL the
        process has two such threads, because more of them would take it from each other and from
        the loop. Calls begin in order. A thread that has been in one call for a second no longer
        counts, and another takes its place, up to 40. So a call that loads or hangs does not stop
        the others, and `fn` may wait for another call.

        The stream's context is current in `fn`, and the stream is torch's or cupy's current one if
        they know it (see `torch()`). Make other settings of a thread in `fn`, such as torch's
        `inference_mode` and `autocast`. The function, its arguments and its result stay alive until
        the GPU has finished what `fn` enqueued.

        Cancellation: raises at once. If `fn` has not begun, it is not called. If it has begun, it
        continues without your task. Until its work is done, the arguments stay alive, a pool does
        not use the stream again, and `drain` waits.
        After you close the stream, or give it back to its pool, its methods raise a
        `StreamClosedError` in `fn`. When Python ends, it waits for two seconds at most until the
        calls that have begun return.

        Threads: call it in a task of a running asyncio or trio loop. On trio it is always a
        checkpoint.

        Args:
            fn: A function that enqueues work, which may be one in two halves, as for `run`.
            *args: Arguments for `fn`.
            **kwargs: Keyword arguments for `fn`.

        Returns:
            What `fn` returned.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or async generator function, or has
                yielded something.
            RuntimeError: No loop runs here.
            StreamClosedError: You have closed the stream.
            StreamCaptureError: The stream is capturing, or `fn` has left it capturing.
            CudaError: The driver refused, or the work has failed.
            BaseException: What `fn` raised. It is raised when the GPU has passed what `fn` had
                enqueued before.

        Example:
            >>> def forward(batch):
            ...     # the slow Python that launches your kernels
            ...     return batch * 2
            >>> async with aiostream.Stream() as stream:
            ...     await stream.run_in_thread(forward, 21)
            42
        """
        if hook and not hook.is_observed():
            name, method = "Stream.run_in_thread", ThreadStream.run_in_thread
            return await hook.observed(name, method, self, fn, *args, **kwargs)
        checks.plain_function(fn, "run_in_thread", halves=True)
        operand = self._operand
        halves = Halves(operand, partial(fn, *args, **kwargs), launchers.copied_context())
        with_own = bool(args) and args[0] is getattr(self._place(), "own", halves)
        del args, kwargs  # this frame would keep what they hold
        step: Any = halves.begin
        bare = False
        try:
            while True:
                try:
                    call = _ThreadCall(operand, step, halves, bare)
                    result = await self._in_thread(call, fn, with_own)
                    if halves.generator is None:
                        return result
                    if halves.ended:
                        return _native.plain_result(halves.value)
                    # If it has caught an error, what it has enqueued since then has no event yet.
                    step, bare = int if bare else halves.step, False
                except (CudaError, StreamClosedError) as problem:
                    if not halves.is_open:
                        raise
                    step, bare = partial(halves.step, problem), True
                except Exception:
                    if halves.is_open:  # it has yielded once more
                        call._close(0)
                    raise
        finally:
            del step, halves  # a traceback refers to this frame

    async def _in_thread(self, call: _ThreadCall, fn: Any, with_own: bool) -> Any:
        future = cast("Any", call.future)
        try:
            call.begin()
            try:
                result = await future
            except CudaError:
                if call.raised is None:
                    raise
        except BaseException as problem:
            if not isinstance(problem, GeneratorExit):  # else it may be any thread
                call.left_by = pending.left_here(fn)
            call.cancel()
            goes_on = call.left_by is not None
            # The work may have failed before, while the task still waited for the thread. The task
            # gets another error, and asyncio would report that no task has read that one.
            if future.done() and not future.cancelled():
                failed = future.exception() is not None
                if isinstance(problem, CudaError):
                    goes_on = False
                else:
                    call._close(enqueuing.UNKNOWN_ERROR if failed else 0)
            if goes_on and (place := self._place()) is not None:
                place.left = call
            raise
        if call.raised is not None:
            raised, call.raised = call.raised, None
            checks.explain_call(raised, "run_in_thread", fn, with_own)
            try:
                raise raised
            finally:
                # The traceback refers to this frame. If the frame referred to the error, they would
                # keep each other alive, and all that the frames hold.
                del raised, call, future
                result = None
        return result

    async def enqueue_in_thread(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Equals `run_in_thread(fn, stream, *args, **kwargs)`: `fn` gets the stream first."""
        return await self.run_in_thread(fn, self, *args, **kwargs)
