"""What to write in place of names that other libraries have, or that are guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

_RUN = "`await stream.run(fn, *args)`"
# By class, or for the package itself: names, and what to write in their place.
_ADVICE = {
    "Stream": {
        "launch enqueue submit call to_thread": _RUN,
        "wait join sync wait_async async_done": "`await stream.synchronize_async()`",
        "wait_stream": "`event.record(other)`, and then `stream.wait_event(event)`",
        "record record_event": "`event.record(stream)`",
        "cuda_stream ptr value": "`stream.handle`",
        "done is_done idle is_idle": "`stream.query()`",
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
        "launch enqueue submit call map": "`await pool.run(fn, *args)`",
        "shutdown join wait": "`await pool.aclose()`",
        "synchronize synchronize_async": "`await aiostream.drain()`",
        "own owned state": "`stream.own`, and `StreamPool(4, each=Replica)` makes it",
    },
    "Event": {
        "wait": "`await event`, or `stream.wait_event(event)` for a wait on the GPU",
        "cuda_event ptr": "`event.handle`",
        "done is_done is_set": "`event.query()`",
        "set record_event": "`event.record(stream)`",
    },
    "aiostream": {
        "Pool": "`aiostream.StreamPool(8)`",
        "run launch enqueue submit": _RUN,
        "to_thread run_in_thread run_in_executor": "`await stream.run_in_thread(fn, *args)`",
        "gather": "`await asyncio.gather(...)`, or `await aiostream.wait(...)` on every loop",
        "synchronize": "`await stream.synchronize_async()`, or `await aiostream.drain()` for all",
        "current_stream": "`aiostream.Stream.borrow(torch.cuda.current_stream())`",
        "default_stream": "`aiostream.Stream.legacy()`",
        "ExternalStream from_torch borrow": "`aiostream.Stream.borrow(stream)`",
        "CUDAError CudaErrors Error": "`aiostream.CudaError`",
        "waiting tasks all_tasks hanging stuck": "`aiostream.pending()`",
        "record": "`aiostream.trace.record(...)`",
        "Gate spin": "`from aiostream.testing import Gate, spin`",
    },
}


def missing(owner: str, said: str, name: str) -> AttributeError:
    """Makes the error for a name that `owner`, a key of the table, does not have."""
    for names, advice in _ADVICE[owner].items():
        if name in names.split():
            # The name goes with it, because Python would otherwise add a name that is spelled
            # alike.
            return AttributeError(f"{said} has no attribute {name!r}: write {advice}", name=name)
    return AttributeError(f"{said} has no attribute {name!r}")


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
