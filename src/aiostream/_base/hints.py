"""What to write in place of names that other libraries have, or that are guessed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, ParamSpec

P = ParamSpec("P")

_RUN = "`await stream.run(fn, *args)`"
_TIMEOUT = "`async with asyncio.timeout(1):` around the await"
_ERRORS = "PoolFull OutOfMemory NoDriver StreamClosed ContextFailed Stalled StreamCapture"
# By class, or for the package itself: names, and what to write in their place.
_ADVICE = {
    "Stream": {
        "launch enqueue submit call to_thread": _RUN,
        "wait join sync wait_async async_done drain": "`await stream.synchronize_async()`",
        "timeout wait_for": _TIMEOUT,
        "wait_stream": "`event.record(other)`, and then `stream.wait_event(event)`",
        "record record_event": "`event.record(stream)`",
        "cuda_stream ptr value": "`stream.handle`",
        "done is_done idle is_idle is_ready": "`stream.query()`",
        "add_done_callback": "`stream.completion_future().add_done_callback(fn)`",
        "memcpy memcpy_async copy copy_async memset memset_async": f"{_RUN} with a function",
        "use activate": "`with stream.as_current():`",
        "destroy free": "`stream.close()`",
        "owned replica buffers": "`stream.own`, of a stream of `StreamPool(4, each=Replica)`",
    },
    "StreamPool": {
        "get take connection lease": "`async with pool.stream() as stream:`",
        "get_nowait": "`pool.acquire_nowait()`",
        "put give_back": "`pool.release(stream)`",
        "launch enqueue enqueue_async submit call map to_thread": "`await pool.run(fn, *args)`",
        "shutdown join wait": "`await pool.aclose()`",
        "drain flush synchronize synchronize_async": "`await aiostream.drain()`",
        "resize grow expand set_size": "`aiostream.StreamPool(16)`: a pool keeps its size",
        "get_size maxsize max_size min_size capacity": "`pool.size`",
        "get_idle_size free available qsize": "`pool.idle`",
        "timeout wait_for": _TIMEOUT,
        "own owned state": "`stream.own`, and `StreamPool(4, each=Replica)` makes it",
    },
    "Event": {
        "wait": "`await event`, or `stream.wait_event(event)` for a wait on the GPU",
        "cuda_event ptr": "`event.handle`",
        "done is_done is_set is_ready": "`event.query()`",
        "set record_event": "`event.record(stream)`",
    },
    "aiostream": {
        "Pool create_pool Semaphore CapacityLimiter": "`aiostream.StreamPool(8)`",
        "PoolTimeout PoolTimeoutError TimeoutError": "`TimeoutError`, which is Python's own",
        "timeout fail_after move_on_after wait_for": _TIMEOUT,
        "device_count num_devices is_available": "`aiostream.Device.count()`, which needs a driver",
        "get_device_name set_device": "`aiostream.Device(0).name`, or `aiostream.Stream(0)`",
        "current_device current_context": "`aiostream.Context.get_current()`",
        "CUDAGraph": "`with stream.capture() as scope:`",
        "run launch enqueue submit": _RUN,
        "to_thread run_in_thread run_in_executor": "`await stream.run_in_thread(fn, *args)`",
        "gather": "`await asyncio.gather(...)`, or `await aiostream.wait(...)` on every loop",
        "synchronize": "`await stream.synchronize_async()`, or `await aiostream.drain()` for all",
        "current_stream": "`aiostream.Stream.borrow(torch.cuda.current_stream())`",
        "default_stream": "`aiostream.Stream.legacy()`",
        "ExternalStream from_torch borrow": "`aiostream.Stream.borrow(stream)`",
        "CUDAError CudaErrors Error": "`aiostream.CudaError`",
        **{name: f"`aiostream.{name}Error`" for name in _ERRORS.split()},
        "waiting tasks all_tasks hanging stuck": "`aiostream.pending()`",
        "record": "`aiostream.trace.record(...)`",
        "Gate spin": "`from aiostream.testing import Gate, spin`",
        "Batcher Batches batch": "`aiostream.serving.Batches(fn, most=32)`",
        "while_connected": "`aiostream.serving.while_connected(...)`",
    },
    "()": {  # keywords of the constructors
        "timeout acquire_timeout pool_timeout command_timeout": _TIMEOUT,
        "max_queue queue_size max_pending max_waiters backlog": "`StreamPool(8, max_waiting=64)`",
        "max_size min_size maxsize pool_size max_workers num_streams": "`StreamPool(8)`",
        "streams": "`aiostream.StreamPool.borrow(streams)`",
        "init setup factory initializer": "`StreamPool(4, each=Replica)`",
        "ptr handle stream": "`aiostream.Stream.borrow(stream)`",
        "null ptds": "`aiostream.Stream.legacy()`, or `aiostream.Stream.per_thread()`",
        "enable_timing disable_timing": "`Event(timing=True)` for one that measures time",
        "blocking block flags": "`Event(blocking_sync=True)`, or `Stream(non_blocking=False)`",
        "device_id gpu": "`device=0`",
    },
}


def _advice(owner: str, name: str) -> str:
    """The end of the error for a name that `owner`, a key of the table, does not have."""
    for names, advice in _ADVICE[owner].items():
        if name in names.split():
            return f": write {advice}"
    return ""


def missing(owner: str, said: str, name: str) -> AttributeError:
    """Makes the error for an attribute that `owner`, a key of the table, does not have."""
    advice = _advice(owner, name)
    error = AttributeError(f"{said} has no attribute {name!r}{advice}")
    if advice:
        error.name = name  # Python would otherwise add a name that is spelled alike
    return error


def answers_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """Has the errors for keywords that a constructor does not take say what to write."""
    guesses = set(" ".join(_ADVICE["()"]).split())

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in guesses.intersection(kwargs):
            said = f"{init.__qualname__}() takes no keyword {name!r}"
            raise TypeError(said + _advice("()", name))
        init(*args, **kwargs)

    return checked


class Hinted:
    """Has the errors for missing attributes say what to write."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report these names themselves

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # a property has raised an AttributeError of its own
                object.__getattribute__(self, name)
            kinds = [kind.__name__ for kind in type(self).__mro__]
            said = f"{kinds[0]!r} object"
            if name.startswith("_"):  # finalizers ask for these, when modules may be empty
                raise AttributeError(f"{said} has no attribute {name!r}")
            raise missing(next(kind for kind in kinds if kind in _ADVICE), said, name)
