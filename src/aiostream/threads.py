"""Work that a worker thread enqueues, because the Python that launches it takes too long for the loop."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from aiostream import (
    _arguments,
    _arming,
    _driver,
    _loops,
    _native,
    _points,
    _process,
)
from aiostream._completion import Completion, State, drop, leak, set_exception
from aiostream._reference import PER_THREAD, Reference, call_with
from aiostream.errors import CudaError

__all__: list[str] = []

T = TypeVar("T")

_UNKNOWN_ERROR = 999


_lost_lock = threading.RLock()  # a signal handler may come to it in the thread that holds it
# By limiter: calls whose loop was closed before they were over. Only a running loop may give their
# tokens back.
_lost: weakref.WeakKeyDictionary[Any, list[_ThreadCall]] = (
    weakref.WeakKeyDictionary()
)  # guarded by _lost_lock


class _ThreadCall(Completion):
    """A function that a worker thread calls, and what it enqueues. It is over when the GPU has passed that.

    An event behind the work says so to the loop, also if the task has gone. Until then what the function got and gave is kept
    alive; and if the task has gone before the function returned, the limiter's token is taken.

    `run` is the worker thread's, all else the loop's. Which of `run` and `cancel` comes first is decided by who takes the one
    item of `unstarted`.
    """

    __slots__ = ("limiter", "pins", "raised", "reference", "refusal", "reserved", "unstarted")

    def __init__(self, reference: Reference, function: Callable[[], Any], limiter: Any) -> None:
        context_id = reference.context._ensure_monitored()
        super().__init__(
            _loops.current_bridge().new_future(),
            reference.name,
            "cuEventQuery",
            context_id,
            keepalive=function,
        )
        self.reference = reference
        self.limiter = limiter
        self.unstarted = [True]
        self.pins: list[bool] = []  # one item while it pins the stream
        self.raised: BaseException | None = (
            None  # by the function; written by the worker before the ticket is fired
        )
        self.refusal = 0  # of the event behind the work; likewise
        self.reserved: _native.Reserved | None = None

    def begin(self) -> None:
        """Takes what `run` needs. From now on that or `cancel` ends it, and the stream lives until then."""
        reference = self.reference
        _arming.require_healthy(reference)  # again: the token may have taken long
        # Left to the watcher in any case: only the loop's thread may use its timer.
        reserved = _wait_list(reference).reserve(_loops.current_bridge().queue, _native.WAIT_EVENT)
        if isinstance(reserved, int):
            _driver.raise_for(reserved, "cuEventCreate", reference.name)
            raise AssertionError("a reservation is refused with an error")
        self.reserved = reserved
        del reserved  # an exception keeps this frame, and a reservation counts as a pending wait
        if not reference.handle.hold(self.pins):
            _driver.raise_for(_native.RESULT_CLOSED, "cuEventRecord", self.stream)
        reference.common.held.append(self)
        _points.registry[self.reserved.ticket] = self
        _native.set_state(self, State.PENDING, _native.FUTURES_CREATED)

    # -------------------------------------------------------------------------------------------- in the worker thread

    def run(self) -> None:
        """Calls the function, and records the event behind what it has enqueued."""
        try:
            self.unstarted.pop()
        except IndexError:  # the task was cancelled before
            return
        reserved = self.reserved
        assert reserved is not None
        results: list[Any] = []
        self.result = results
        try:
            refusal = call_with(self.reference, self.keepalive, results)
            _driver.raise_for(refusal, "cuCtxPushCurrent", self.stream)
        except BaseException as error:  # for the task
            self.raised = error
        try:
            self.refusal, _ = reserved.record(self.reference.handle)
        finally:
            self._unpin()
            if not reserved.is_recorded:
                self.refusal = self.refusal or _UNKNOWN_ERROR
                reserved.fire(_UNKNOWN_ERROR)

    # -------------------------------------------------------------------------------------------- in the loop's thread

    def cancel(self) -> None:
        """The task has gone. What was not begun is not called any more; what was goes on without it."""
        try:
            self.unstarted.pop()
        except IndexError:
            super().cancel()
            return
        if self.reserved is not None:
            _points.registry.pop(self.reserved.ticket, None)
            self.reserved = None
        self._unpin()
        super().cancel()
        self.give_back()

    def complete(self, code: int, orphaned: bool) -> None:
        """The GPU has passed what the function enqueued; or its context has failed, or no event could be recorded."""
        if self.refusal:
            try:
                _driver.raise_for(
                    self.refusal, "cuEventRecord", self.stream, _arming.LEFT_CAPTURING
                )
            except Exception as error:
                self._fail(error, orphaned)
        elif code:
            self._fail(self.error(code), orphaned)
        else:
            if orphaned or self.state is State.CANCELLED:
                # Nobody asks for the error, whose frames hold what was on them.
                raised, self.raised = self.raised, None
                _process.release_in_thread(raised)
            super().complete(0, orphaned)
        self.reserved = None
        if orphaned:  # in the janitor's thread
            self._lose_token()
        else:
            self.give_back()

    def give_back(self) -> None:
        """Gives the limiter its token, once."""
        if self.limiter is not None:
            with contextlib.suppress(
                RuntimeError
            ):  # it was never taken; or the loop is closed; or an interrupt came, and it was done
                self.limiter.release_on_behalf_of(self)
            self.limiter = None

    # -------------------------------------------------------------------------------------------- in any thread

    def _unpin(self) -> None:
        if self.pins:
            self.pins.pop()
            with contextlib.suppress(ValueError):  # an interrupt came before the mark
                self.reference.common.held.remove(self)
            self.reference.handle.let_go()

    def _fail(self, error: Exception, orphaned: bool) -> None:
        if self.state is State.PENDING:
            future = self.future
            if orphaned:
                drop(future)
            elif future is not None and not future.done():
                set_exception(future, error)
            self._end(State.DROPPED if orphaned else State.FAILED)
        if self.keepalive is not None:
            leak((self.keepalive, self.result))
        self.keepalive = self.result = None

    def _lose_token(self) -> None:
        limiter, self.limiter = self.limiter, None  # or the dict's value would keep its key alive
        if limiter is not None:
            with (
                _lost_lock,
                contextlib.suppress(TypeError),
            ):  # a limiter of somebody's own may take no weak references
                _lost.setdefault(limiter, []).append(self)


def _give_back_lost(limiter: Any) -> None:
    """A limiter that outlives its loop gets the tokens of the calls that died with that."""
    with _lost_lock:
        calls = _lost.pop(limiter, ()) if _lost else ()
    for call in calls:
        with contextlib.suppress(RuntimeError):  # it had given its token back before
            limiter.release_on_behalf_of(call)


def _take_at_once(limiter: Any, call: _ThreadCall) -> bool:
    """Takes a token that is free. To await one would lose it: when cancelled, anyio before 4.16 releases another borrower's."""
    try:
        limiter.acquire_on_behalf_of_nowait(call)
    except Exception as error:
        if type(error).__name__ != "WouldBlock":  # anyio's, or trio's
            raise
        return False
    return True


def _wait_list(reference: Reference) -> _native.WaitList:
    common, context_id = reference.common, reference.context._ensure_monitored()
    if (
        reference.handle.value == PER_THREAD
    ):  # in each worker another stream, without an order among them
        return _native.WaitList(context_id, _native.History())
    if common.thread_waits is None:
        common.thread_waits = _native.WaitList(context_id, _native.History())
    return common.thread_waits


class ThreadStream:
    """What a `Stream` does with worker threads; it inherits this from here."""

    _reference: Reference  # set by `Stream`

    async def enqueue_in_thread(
        self,
        fn: Callable[..., T],  # a lambda has no inferred type if its first parameter is given
        /,
        *args: Any,
        limiter: Any = None,
        **kwargs: Any,
    ) -> T:
        """Calls `fn(stream, *args, **kwargs)` in a worker thread, and waits in the loop until its work is done.

        For functions whose Python takes milliseconds, such as the forward of an eager model: the loop goes on meanwhile. `fn`
        enqueues work and returns, as with `enqueue_async`, which is the cheaper call if `fn` is quick.

        The thread is one of anyio's. `fn` runs in it with the stream's context current, and with the stream current in torch or
        cupy if they know it (see `torch()`). Other settings of a library that belong to a thread, as torch's `inference_mode` and
        `autocast`, must be made in `fn`.

        The limiter's token is taken until `fn` has returned. Callable, arguments and result stay alive until the GPU has finished
        what `fn` enqueued.

        Cancellation: raises at once. If `fn` has begun, it goes on without its task. Until its work is done, the arguments stay
        alive, a pool does not use the stream again, and `drain` waits; and if `fn` had not returned, the token stays taken. But a
        stream of a pool is closed for `fn` when the task gives it back, as any stream after `close()`: its methods then raise a
        `StreamClosedError` in `fn`. If `fn` has not begun, it is not called.

        Threads: in a task of a running asyncio or trio loop; always a checkpoint on trio.

        Args:
            fn: A plain function that enqueues work.
            *args: What it is called with, after the stream.
            limiter: An `anyio.CapacityLimiter`, or trio's, that bounds the threads; by default anyio's own, of 40 threads. Use it
                in one loop at a time.
            **kwargs: What else it is called with.

        Returns:
            What `fn` returned.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or generator function; or `limiter` is no limiter.
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

        _arguments.plain_function(fn, "enqueue_in_thread")
        reference = self._reference
        _arming.require_ready(reference)
        if limiter is None:
            limiter = anyio.to_thread.current_default_thread_limiter()
        elif not hasattr(limiter, "acquire_on_behalf_of_nowait"):
            raise TypeError(f"a limiter is an anyio.CapacityLimiter, not {type(limiter).__name__}")
        call = _ThreadCall(reference, partial(fn, self, *args, **kwargs), limiter)
        future: Any = call.future
        _give_back_lost(limiter)
        try:
            if not _take_at_once(limiter, call):
                await limiter.acquire_on_behalf_of(call)
            call.begin()
            # The limiter was asked above: one that is given here gets its token back when the task
            # is cancelled.
            await anyio.to_thread.run_sync(
                call.run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
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
