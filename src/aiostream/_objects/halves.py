"""Functions in two halves: generators, at whose each `yield` the GPU does what they have enqueued.

`Halves` drives one generator, and is the same for each caller. It never waits. Its caller

1. calls `begin()` with the stream current, or calls the user's function and then `adopt()`, and
   keeps the `Halves` alive together with the function and its arguments.
2. calls `step()` with the stream current, in any thread, one at a time. If it has not `ended` then,
   it is at a `yield`: wait until the GPU has passed the stream's end, and step again. If it has,
   `value` is what it returned. What it raised comes out of `step`.
3. calls `step(error)` if the wait failed, or the next half is refused. The error is thrown in at
   the `yield`. The objects of the `Halves` are kept until the GPU has passed, or leaked.
4. calls `close()` if its task has gone and `is_open`, after the GPU has passed, when no half runs.

The stream stays in use from the call of the function until after the last half or the close: it is
pinned, or a mark lies in `shared.held`. A pool does not use the stream again while a mark is there.
When the mark is gone, the stream may still be busy with what a close has enqueued.

All halves and the close run in one context of variables, in whichever thread: a copy of the
caller's, made at the call.

`drive` does all this but the close for a `Work` (`runs.py`), whose result the `Halves` then is.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any

from aiostream import _native, device
from aiostream._handles.operand import Operand, in_libraries, wait_list_of
from aiostream._runtime.launches import Launches
from aiostream._waits import enqueuing, waiting
from aiostream.errors import CudaError, StreamClosedError

_NAMES = ("current context", "inference mode", "grad mode", "autocast", "current stream")


def _settings(operand: Operand) -> tuple[Any, ...]:
    """Reads what belongs to this thread, by `_NAMES`. Each half does so twice."""
    depth, torch = len(device._blocks.entered), sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_inference_mode_enabled"):
        return (depth,)
    stream = None
    if torch.cuda.is_initialized():  # otherwise to ask would begin to use the GPU
        ordinal = operand.context._device_ordinal()
        # A number, which costs a tenth of what a torch stream costs.
        number = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        library = getattr(torch, "accelerator", torch.cuda)
        stream = number(ordinal) if number else library.current_stream(ordinal)
    inference = torch.is_inference_mode_enabled()
    return depth, inference, torch.is_grad_enabled(), torch.is_autocast_enabled(), stream


class Halves:
    """One generator. See the module. `call` is the user's function with its arguments."""

    def __init__(
        self, operand: Operand, call: Callable[[], Any], context: contextvars.Context | None = None
    ) -> None:
        self.operand, self.call = operand, call
        # Of variables. A task that is left at a `yield` must not keep what the halves have set.
        self.context = contextvars.copy_context() if context is None else context
        self.generator: Any = None
        self.ended = False
        self.is_idle = False  # the stream, when it had ended
        self.value: Any = None
        self.taken: list[object] = []
        # What lies in `shared.held`. Not this object, which may refer to a loop: the loop of a task
        # that is lost would never be garbage, and the generator never closed.
        self.mark = object()

    @property
    def is_open(self) -> bool:
        """Whether it is at a `yield`, or has not begun, and was not closed."""
        return self.generator is not None and self.generator.gi_frame is not None

    def begin(self) -> Any:
        """Calls the function, and runs the first half if that returns a generator."""
        result = self.context.run(self.call)
        if type(result) is GeneratorType:
            self.adopt(result)
            self.step()
        return result

    def adopt(self, generator: Generator[object, None, Any]) -> None:
        """From now on the stream is in use."""
        self.generator = generator
        self.operand.shared.held.append(self.mark)

    def step(self, error: BaseException | None = None) -> None:
        """Runs the next half, or throws an error in at the `yield`. Then `ended` says what is next.

        Raises:
            TypeError: It has yielded something. Thrown in at the `yield`, as the next one.
            RuntimeError: It has left open what belongs to the thread.
            BaseException: What the generator raised.
        """
        generator, before, run = self.generator, _settings(self.operand), self.context.run
        try:
            if error is None:
                yielded = run(generator.send, None)
            else:
                self.take()
                yielded = run(generator.throw, error)
            now = _settings(self.operand)
            differs: list[str] = []
            if now != before:  # torch may have been imported in this half
                differs = [n for n, a, b in zip(_NAMES, before, now, strict=False) if a != b]
            if self.takes(yielded) and not differs:
                return
            self.take()
            error = self.misuse(yielded, differs)
            run(generator.throw, error)  # at which a block puts back what it has changed
            raise error  # it has yielded once more
        except StopIteration as stop:
            self.value, self.ended = stop.value, True
        finally:
            error = None  # its traceback refers to this frame
            if generator.gi_frame is None:
                self._end()

    def takes(self, yielded: object) -> bool:
        """Whether the function may yield this."""
        return yielded is None

    def misuse(self, yielded: object, differs: list[str]) -> Exception:
        """Returns what is thrown in at a `yield` that is not right."""
        name = self.generator.__qualname__
        if yielded is not None:
            return TypeError(
                f"{name} yields nothing, not {type(yielded).__name__}: write `yield`, "
                "and `return` the result behind it"
            )
        return RuntimeError(
            f"{name} has changed the {' and the '.join(differs)} of its thread at a `yield`, for "
            "all other tasks. End such a block before the `yield`. Or decorate the function, as "
            "with @torch.inference_mode(), which begins anew for each half"
        )

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
        try:
            if generator is not None:
                self.context.run(generator.close)
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self.operand.shared.held.remove(self.mark)
        except ValueError:  # this is repeated
            pass


async def drive(work: _native.Work, halves: Halves, launches: Launches, fn: Any) -> Any:
    """Runs the halves of `fn`, and waits for the GPU after each. Returns what it returned.

    If this raises, or no wait is possible after an error that the generator has caught, the work
    has not ended, and the caller leaves it.
    """
    operand = halves.operand
    waits = operand.wait_list or wait_list_of(operand)
    error: BaseException | None = None
    has_begun, has_waited = halves.generator is not None, False
    if not has_begun:
        halves.adopt(work.result)
    work.result = halves
    try:
        while True:
            if has_begun:
                if halves.is_idle and has_waited:  # one wait is made, as a checkpoint
                    work.end()
                    return halves.value
                work.in_halves, has_waited = not halves.ended, True
                work.in_loop = True
                try:
                    await waiting.synchronize_async(work)
                except (CudaError, StreamClosedError) as problem:
                    if not halves.ended:
                        error = problem
                    elif error is None:
                        raise
                else:
                    error = None
                if halves.ended:
                    if error is None:
                        work.end()
                    return halves.value
                if launches.wait:
                    await waiting.launch_turn(launches)
            has_begun, began = True, waiting.now()
            try:
                error = advance(halves, waits, error, partial(_step, halves))
            finally:
                launches.note(waiting.now() - began, fn)
    finally:
        error = None  # its traceback refers to this frame


def _step(halves: Halves) -> None:
    halves.step()
    # The last half seldom enqueues more. In here a driver that does not answer is noticed.
    halves.is_idle = halves.ended and _native.stream_query(halves.operand.handle) == 0


def advance(
    halves: Halves,
    waits: _native.WaitList,
    error: BaseException | None,
    step: Callable[[], None],
) -> BaseException | None:
    """Runs the next half with the stream current. Returns the error that was thrown in, if any."""
    operand = halves.operand
    try:
        if error is None:
            call = in_libraries(operand, step)
            refusal = _native.call_in_context(operand.handle, waits, call, True)
            try:
                if refusal:
                    enqueuing.refuse(refusal, operand, "cuCtxPushCurrent")
            except Exception as refused:
                error = refused
        if error is not None:
            throw = partial(halves.step, error)
            if _native.call_in_context(operand.handle, waits, in_libraries(operand, throw), False):
                throw()  # without its stream, which is gone
        return error
    finally:
        error = None  # its traceback refers to this frame


def close(halves: Halves, code: int, waits: _native.WaitList | None) -> None:
    """Closes a generator whose task has gone, with the stream current if it is pinned.

    Args:
        halves: Of the generator.
        code: 0 if the GPU has passed, or else an error.
        waits: A wait list of the stream, which is pinned; or `None`.
    """
    operand = halves.operand
    if code:
        halves.take()
    call = in_libraries(operand, halves.close)
    try:
        if waits is None or _native.call_in_context(operand.handle, waits, call, False):
            halves.close()  # without its stream, which is gone
    except KeyboardInterrupt:  # this is the thread of the loop, which has to end
        raise
    except BaseException as error:
        _native.write_unraisable(error, "the close of a function in two halves")
