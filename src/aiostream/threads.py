"""Work that a worker thread enqueues, because the Python that launches it takes too long for the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Self, TypeVar

from aiostream import _loops, _native, _points, _process, hostfunc, interop, waiting
from aiostream.errors import CudaError
from aiostream.futures import Completion, State, leak, set_exception

__all__: list[str] = []

T = TypeVar("T")


class _ThreadCall(Completion):
    """A function that a worker thread calls, and what it enqueues. It is over when the GPU has passed that.

    An event behind the work says so to the loop, also if the task has gone. Until then what the function got and gave is kept
    alive; and if the task has gone before the function returned, the limiter's token is taken.

    `begin`, `cancel` and what tells the loop run in the loop's thread, `run` in the worker's. Which of `run` and `cancel` comes
    first is decided by who takes the one item of `unstarted`.
    """

    __slots__ = ("limiter", "raised", "reference", "refusal", "reserved", "tell", "unstarted")

    def __init__(self, reference: interop.Reference, function: Callable[[], Any], limiter: Any) -> None:
        bridge = _loops.current_bridge()
        context_id = reference.context._ensure_monitored()
        super().__init__(bridge.new_future(), reference.name, "cuEventQuery", context_id, keepalive=function)
        self.reference = reference
        self.tell = bridge.thread_call()
        self.limiter = limiter
        self.unstarted = [True]
        self.raised: BaseException | None = None  # by the function; written by the worker before it tells the loop
        self.refusal = 0  # of the event behind the work; likewise
        common = reference.common
        if common.thread_waits is None:
            common.thread_waits = _native.WaitList(context_id, _native.History())
        # Left to the watcher in any case: only the loop's thread may use its timer.
        reserved = common.thread_waits.reserve(bridge.queue, _native.WAIT_EVENT)
        if isinstance(reserved, int):
            hostfunc.raise_for(reserved, "cuEventCreate", reference.name)
            raise AssertionError("a reservation is refused with an error")
        self.reserved: _native.Reserved | None = reserved

    def begin(self) -> None:
        """From now on `cancel` or `run` ends it. The stream lives until then."""
        assert self.reserved is not None
        if not self.reference.handle.pin():
            hostfunc.raise_for(_native.RESULT_CLOSED, "cuEventRecord", self.stream)
        _points.registry[self.reserved.ticket] = self
        _native.set_state(self, State.PENDING, _native.FUTURES_CREATED)

    # -------------------------------------------------------------------------------------------- in the worker thread

    def run(self) -> None:
        """Calls the function, and records the event behind what it has enqueued."""
        try:
            self.unstarted.pop()
        except IndexError:  # the task was cancelled before
            return
        results: list[Any] = []
        self.result = results
        try:
            refusal = interop.call_with(self.reference, self.keepalive, results)
            hostfunc.raise_for(refusal, "cuCtxPushCurrent", self.stream)
        except BaseException as error:  # for the task
            self.raised = error
        assert self.reserved is not None
        try:
            self.refusal, _ = self.reserved.record(self.reference.handle)
        finally:
            self.reference.handle.unpin()
        if not self.reserved.is_recorded:
            try:
                self.tell(self._end_without_event)
            except RuntimeError:  # the loop is closed
                self._end_without_event(orphaned=True)

    # -------------------------------------------------------------------------------------------- in the loop's thread

    def cancel(self) -> None:
        """The task has gone. What was not begun is not called any more; what was goes on without it."""
        try:
            self.unstarted.pop()
        except IndexError:
            super().cancel()
            return
        self.reference.handle.unpin()
        self._unreserve()
        super().cancel()
        self.give_back()

    def complete(self, code: int, orphaned: bool) -> None:
        """The GPU has passed what the function enqueued, or its context has failed."""
        if code == 0:
            if self.state is not State.PENDING:
                # It was cancelled. Nobody asks for the error, whose frames hold what was on them.
                raised, self.raised = self.raised, None
                _process.release_in_janitor(raised)
            super().complete(0, orphaned)
        else:
            self._fail(self.error(code), orphaned)
        if not orphaned:
            self.give_back()

    def _end_without_event(self, orphaned: bool = False) -> None:
        """Nothing will tell when the GPU has passed."""
        self._unreserve()
        try:
            hostfunc.raise_for(self.refusal, "cuEventRecord", self.stream)
        except Exception as error:
            self._fail(error, orphaned)
        if not orphaned:
            self.give_back()

    def _fail(self, error: Exception, orphaned: bool) -> None:
        if self.state is State.PENDING:
            future = self.future
            if not orphaned and future is not None and not future.done():
                set_exception(future, error)
            self._end(State.DROPPED if orphaned else State.FAILED)
        if self.keepalive is not None:
            leak((self.keepalive, self.result))
        self.keepalive = self.result = None

    def _unreserve(self) -> None:
        if self.reserved is not None:
            _points.registry.pop(self.reserved.ticket, None)
            self.reserved = None

    def give_back(self) -> None:
        """Gives the limiter its token, once."""
        limiter, self.limiter = self.limiter, None
        if limiter is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed, or an interrupt came in between and it was done before
                limiter.release_on_behalf_of(self)


class ThreadStream:
    """What a `Stream` does with worker threads; it inherits this from here."""

    _reference: interop.Reference  # set by `Stream`

    async def enqueue_in_thread(
        self, fn: Callable[Concatenate[Self, ...], T], /, *args: Any, limiter: Any = None, **kwargs: Any
    ) -> T:
        """Calls `fn(stream, *args, **kwargs)` in a worker thread, and waits in the loop until its work is done.

        For functions whose Python takes milliseconds, such as the forward of an eager model: the loop goes on meanwhile. `fn`
        enqueues work and returns, as with `enqueue_async`, which is the cheaper call if `fn` is quick.

        The thread is one of anyio's. `fn` runs in it with the stream's context current, and with the stream current in torch or
        cupy if they know it (see `torch()`). Other settings of a library that belong to a thread, as torch's `inference_mode` and
        `autocast`, must be made in `fn`.

        The limiter's token is taken until `fn` has returned. Callable, arguments and result stay alive until the GPU has finished
        what `fn` enqueued.

        Cancellation: raises at once. If the thread has begun, it goes on without its task. Until its work is done, the token
        stays taken, the arguments stay alive, a pool does not use the stream again, and `drain` waits. If the thread has not
        begun, `fn` is not called.

        Threads: in a task of a running asyncio or trio loop; always a checkpoint on trio.

        Args:
            fn: A plain function that enqueues work.
            *args: What it is called with, after the stream.
            limiter: An `anyio.CapacityLimiter` that bounds the threads; by default anyio's own, of 40 threads.
            **kwargs: What else it is called with.

        Returns:
            What `fn` returned.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine function; or `limiter` is no limiter.
            RuntimeError: No loop runs here.
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures; or `fn` has left it capturing.
            CudaError: The driver refused, or the work has failed.
            BaseException: What `fn` has raised, when the GPU has passed what it had enqueued.

        Example:
            ::

                def forward(stream, batch):
                    with torch.inference_mode():
                        return model(batch)

                async with pool.stream() as stream:
                    output = await stream.enqueue_in_thread(forward, batch)
        """
        import anyio.to_thread  # on first use: importing aiostream does not import anyio

        waiting.require_plain(fn, "enqueue_in_thread")
        reference = self._reference
        hostfunc.require_ready(reference)
        if limiter is None:
            limiter = anyio.to_thread.current_default_thread_limiter()
        elif not hasattr(limiter, "acquire_on_behalf_of"):
            raise TypeError(f"a limiter is an anyio.CapacityLimiter, not {type(limiter).__name__}")
        call = _ThreadCall(reference, partial(fn, self, *args, **kwargs), limiter)
        await limiter.acquire_on_behalf_of(call)
        try:
            call.begin()
        except BaseException:
            limiter.release_on_behalf_of(call)
            raise
        future: Any = call.future
        try:
            # The limiter was asked above: one that is given here gets its token back when the task is cancelled.
            await anyio.to_thread.run_sync(call.run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
            call.give_back()
            try:
                results: list[T] = await future
            except CudaError:
                if call.raised is None:
                    raise
        except BaseException:
            call.cancel()
            raise
        if call.raised is not None:
            raised, call.raised = call.raised, None
            try:
                raise raised
            finally:
                del raised, call  # or its frames and the error hold each other
        return results[0]
