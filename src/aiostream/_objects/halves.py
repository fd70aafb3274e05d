"""Functions in two halves: generators, at whose each `yield` the GPU does what they have enqueued.

`Halves` drives one generator, and is the same for each caller. It never waits. Its caller

1. calls the user's function with the stream current. If that returned a `GeneratorType`, it makes a
   `Halves` of it, and keeps that alive together with the function and its arguments.
2. calls `step()` with the stream current, in any thread, one at a time. If it has not `ended` then,
   it is at a `yield`: wait until the GPU has passed the stream's end, and step again. If it has,
   `value` is what it returned. What it raised comes out of `step`.
3. calls `take()` and then `step(error)` if the wait failed, or the next half is refused. The error
   is thrown in at the `yield`. The objects of the `Halves` are kept until the GPU has passed, or
   leaked.
4. calls `close()` if its task has gone and `is_open`, after the GPU has passed, when no half runs.

The stream stays in use from the call of the function until after the last half or the close: it is
pinned, or a mark lies in `shared.held`. A pool does not use the stream again while a mark is there.
When the mark is gone, the stream may still be busy with what a close has enqueued.

`drive` does all this but the close for a `Work` (`runs.py`), whose result the `Halves` then is.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any

from aiostream import _native, device
from aiostream._base import driver
from aiostream._handles.operand import Operand, in_libraries, wait_list_of
from aiostream._runtime import loops
from aiostream._waits import waiting
from aiostream.errors import CudaError, StreamClosedError

# Blocks of torch's inference mode that put it back. torch ends one when the object dies.
_put_back: list[Any] = []


def _put_inference_mode(torch: Any, was: bool) -> None:
    _put_back.append(torch.inference_mode(was))
    _put_back[-1].__enter__()


_NAMES = ("current context", "inference mode", "grad mode", "autocast", "current stream")


def _settings(operand: Operand) -> list[Any]:
    """Reads what belongs to this thread, by `_NAMES`. Each half does so twice."""
    found: list[Any] = [len(device._blocks.entered)]
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "is_inference_mode_enabled"):
        found.append(torch.is_inference_mode_enabled())
        found.append(torch.is_grad_enabled())
        found.append(torch.is_autocast_enabled())
        if torch.cuda.is_initialized():  # otherwise to ask would begin to use the GPU
            found.append(_torch_streams(torch).current_stream(operand.context._device_ordinal()))
    return found


def _torch_streams(torch: Any) -> Any:
    return getattr(torch, "accelerator", torch.cuda)


def _put_settings(before: list[Any], now: list[Any]) -> None:
    """Puts back what differs."""
    torch = sys.modules["torch"] if len(now) > 1 else None
    # A block takes its context off the stack by itself, when the error comes to it.
    put: list[Callable[[Any], object]] = [lambda _: None]
    if torch is not None:
        put += [partial(_put_inference_mode, torch), torch.set_grad_enabled]
        put += [torch.set_autocast_enabled, _torch_streams(torch).set_stream]
    for was, changed, put_back in zip(before, now, put, strict=False):
        if was != changed:
            put_back(was)


class Halves:
    """One generator. See the module."""

    def __init__(
        self,
        operand: Operand,
        generator: Generator[object, None, Any] | None,
        context: contextvars.Context,
    ) -> None:
        self.operand = operand
        self.generator: Any = generator
        self.ended = self.threw = False  # `threw`: an error was thrown in last
        self.value: Any = None
        self.taken: list[object] = []
        # What lies in `shared.held`. Not this object, which may refer to a loop: the loop of a task
        # that is lost would never be garbage, and the generator never closed.
        self.mark = object()
        self.context = context  # in which it is closed

    @property
    def is_open(self) -> bool:
        """Whether it is at a `yield`, or has not begun, and was not closed."""
        return self.generator is not None and self.generator.gi_frame is not None

    def step(self, error: BaseException | None = None) -> None:
        """Runs the next half, or throws an error in at the `yield`. Then `ended` says what is next.

        Raises:
            TypeError: It has yielded something. Thrown in at the `yield`, as the next one.
            RuntimeError: It has left open what belongs to the thread.
            BaseException: What the generator raised.
        """
        generator, before = self.generator, _settings(self.operand)
        self.threw = error is not None
        try:
            yielded = generator.send(None) if error is None else generator.throw(error)
            now = _settings(self.operand)
            if yielded is None and now == before:
                return
            self.take()
            # torch may have been imported in this half.
            differs = [n for n, a, b in zip(_NAMES, before, now, strict=False) if a != b]
            if yielded is None and not differs:
                return
            error, self.threw = _misuse(generator.__qualname__, yielded, differs), True
            try:
                generator.throw(error)
            finally:
                _put_settings(before, _settings(self.operand))
            raise error  # it has yielded once more
        except StopIteration as end:
            self.value, self.ended = end.value, True
        finally:
            error = None  # its traceback refers to this frame

    def take(self) -> None:
        """Keeps what the variables of its frame hold, which die when an error is thrown in."""
        # A decorator such as torch's makes a generator of its own, which holds the user's.
        found: list[object] = [self.generator]
        seen = set[int]()
        for each in found:
            if isinstance(each, GeneratorType) and each.gi_frame and id(each) not in seen:
                seen.add(id(each))
                found += [*each.gi_frame.f_locals.values(), each.gi_yieldfrom]
        self.taken += found

    def close(self) -> None:
        """Closes the generator at its `yield`.

        Raises:
            BaseException: What the generator raised, or that it has yielded once more.
        """
        generator, self.generator = self.generator, None
        if generator is not None:
            generator.close()


def _misuse(name: str, yielded: object, differs: list[str]) -> Exception:
    if yielded is not None:
        return TypeError(f"{name} yields nothing, not {type(yielded).__name__}: write `yield`")
    return RuntimeError(
        f"{name} has changed the {' and the '.join(differs)} of its thread at a `yield`, for all "
        "other tasks. End such a block before the `yield`. Or decorate the function, as with "
        "@torch.inference_mode(), which begins anew for each half"
    )


def _advance(work: _native.Work, error: Exception | None) -> None:
    """Runs the next half with the stream current. `error`: what is thrown in."""
    halves: Halves = work.result
    operand = halves.operand
    try:
        if error is None:
            try:
                waiting.require_ready(operand, recent=True)
            except Exception as refused:
                error = refused
        if error is not None:
            halves.take()
        call = in_libraries(operand, partial(halves.step, error))
        refusal = _native.call_in_context(operand.handle, wait_list_of(operand), call)
        if refusal:
            halves.take()
            halves.step(error or driver.error(refusal, "cuCtxPushCurrent", operand.name))
    finally:
        error = None  # its traceback refers to this frame


async def drive(work: _native.Work) -> Any:
    """Runs the halves, and waits for the GPU after each. Returns what the generator returned.

    The result of `work` is the generator, and from now on a `Halves`. If this raises, or an error
    was thrown in last, the work has not ended, and the caller leaves it.
    """
    work.result = halves = Halves(work._operand, work.result, contextvars.copy_context())
    held, launches = halves.operand.shared.held, loops.current_bridge().launches
    held.append(halves.mark)  # until the generator has ended or was closed
    failed: Exception | None = None
    try:
        while True:
            if launches.wait:
                await waiting.launch_turn(launches)
            began = waiting.now()
            try:
                _advance(work, failed)
            finally:
                launches.note(waiting.now() - began)
            if halves.ended and halves.threw:
                return halves.value
            failed, work.in_halves = None, not halves.ended
            try:
                await waiting.synchronize_async(work)
            except (CudaError, StreamClosedError) as error:
                if halves.ended:
                    raise
                failed = error
            if halves.ended:
                work.end()
                return halves.value
    finally:
        failed = None  # its traceback refers to this frame
        work.in_halves = halves.is_open
        if work.in_halves:
            halves.context = contextvars.copy_context()
        else:
            with contextlib.suppress(ValueError):  # it was closed before this frame died
                held.remove(halves.mark)


def close(halves: Halves, code: int, waits: _native.WaitList | None) -> None:
    """Closes a generator whose task has gone, with the stream current if it is pinned.

    Args:
        halves: Of the generator.
        code: 0 if the GPU has passed, or else an error.
        waits: A wait list of the stream, which is pinned; or `None`.
    """
    operand, run = halves.operand, halves.context.run
    if code:
        halves.take()
    call = partial(run, in_libraries(operand, halves.close))
    try:
        if waits is None or _native.call_in_context(operand.handle, waits, call):
            run(halves.close)  # without its stream, which is gone
    except KeyboardInterrupt:  # this is the thread of the loop, which has to end
        raise
    except BaseException as error:
        _native.write_unraisable(error, "the close of a function in two halves")
