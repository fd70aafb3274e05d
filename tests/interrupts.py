"""KeyboardInterrupt where Python may raise it: at each place of the library's code at which Python
looks for signals.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import itertools
import sys
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aiostream

PACKAGE = str(Path(aiostream.__file__).parent)
LOOKS = (
    "CALL",
    "CALL_KW",
    "CALL_FUNCTION_EX",
    "JUMP_BACKWARD",
)  # after these Python looks for signals
AFTER_AWAIT = 2  # the arguments of RESUME from here on: there it does not
PATIENCE = 10.0
"""Seconds in which what was interrupted must have ended."""

_places: dict[CodeType, frozenset[int]] = {}


def places_of(code: CodeType) -> frozenset[int]:
    """Where in a function a signal's handler may run: the offsets of the instructions before which
    it does.

    Its error belongs to the instruction before. So a place at which a `try` ends is left out,
    because an error that a trace function raises there is not in the `try` any more.
    """
    if code not in _places:
        steps: Any = dis.Bytecode(code)  # its `exception_entries` are not in the stubs
        tries = steps.exception_entries

        def handler_of(step: dis.Instruction) -> list[int]:
            return [entry.target for entry in tries if entry.start <= step.offset < entry.end]

        def looks(step: dis.Instruction) -> bool:
            return step.opname in LOOKS or (
                step.opname == "RESUME" and (step.arg or 0) < AFTER_AWAIT
            )

        def comes_after(step: dis.Instruction, then: dis.Instruction) -> dis.Instruction:
            return by_offset[step.argval] if step.opname == "JUMP_BACKWARD" else then

        by_offset = {step.offset: step for step in steps}
        pairs = [
            (step, comes_after(step, then))
            for step, then in itertools.pairwise(steps)
            if looks(step)
        ]
        _places[code] = frozenset(
            then.offset for step, then in pairs if handler_of(step) == handler_of(then)
        )
    return _places[code]


def is_finalizer(frame: FrameType | None) -> bool:
    """Whether this is called by a finalizer, in which Python reports an interrupt and
    forgets it.
    """
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "gone", "raise_alarm"):  # or of a weak reference
            return True
        frame = frame.f_back
    return False


class Striker:
    """Within a `with` block, raises KeyboardInterrupt at the n-th such place that this thread comes
    to; with 0, only counts.

    With `codes`, only the places of these functions count.
    """

    def __init__(
        self,
        number: int,
        is_protected: Callable[[], bool] = lambda: False,
        codes: Collection[CodeType] | None = None,
    ) -> None:
        self.number = number
        self._codes = codes
        self.passed = 0
        self.where = ""
        self._is_protected = is_protected

    @property
    def has_struck(self) -> bool:
        return bool(self.where)

    def __enter__(self) -> Striker:
        self._former = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """No strike from now on."""
        self.number = -1
        sys.settrace(self._former)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if (
            self.number < 0
            or not frame.f_code.co_filename.startswith(PACKAGE)
            or (self._codes is not None and frame.f_code not in self._codes)
            or is_finalizer(frame)
        ):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if (
            event == "opcode"
            and self.number >= 0
            and frame.f_lasti in places_of(frame.f_code)
            and not self._is_protected()
        ):
            self.passed += 1
            if self.passed == self.number:
                self.number = -1
                file = Path(frame.f_code.co_filename).name
                self.where = f"{file}:{frame.f_lineno} in {frame.f_code.co_qualname}"
                raise KeyboardInterrupt
        return self._step


Function = Callable[[], Coroutine[Any, Any, Any]]


class StuckError(Exception):
    """What was interrupted never ended, or what came after it."""


def run_interrupted(
    kind: str,
    number: int,
    function: Function,
    later: Function,
    *,
    cancels: bool,
    codes: Collection[CodeType] | None = None,
) -> Striker:
    """Runs `function` on a loop with an interrupt at that place, and then `later` on that loop.

    On trio `later` has a run of its own, because an interrupt ends the run.

    Args:
        kind: asyncio, uvloop or trio.
        number: See `Striker`.
        function: What is interrupted.
        later: What must work after it.
        cancels: After the interrupt all tasks are cancelled, as `asyncio.run` does it. Else they go
            on, and must end.
        codes: See `Striker`.
    """
    if kind == "trio":
        return _run_on_trio(number, function, later, codes)
    import uvloop

    loop = uvloop.new_event_loop() if kind == "uvloop" else asyncio.new_event_loop()
    striker = Striker(number, codes=codes)
    _strike(loop, striker, function, cancels)
    striker.end()
    gc.collect()  # what the frames of the interrupt's traceback held
    try:
        complete(loop, asyncio.wait_for(later(), PATIENCE))
    except TimeoutError:
        raise StuckError(f"what comes after an interrupt at {striker.where} hangs") from None
    finally:
        loop.close()
    return striker


def _strike(
    loop: asyncio.AbstractEventLoop, striker: Striker, function: Function, cancels: bool
) -> None:
    # A function of its own, so that nothing refers to the interrupt when it has returned. Its
    # traceback holds the frames, and so what they had in hand.
    async def begin() -> None:
        with striker:
            await function()

    task = loop.create_task(begin())
    try:
        loop.run_until_complete(task)
    except (KeyboardInterrupt, BaseExceptionGroup) as interrupt:
        if not is_interrupt(interrupt):
            raise
        striker.end()
        pending = asyncio.all_tasks(loop) | {task}
        if cancels:
            for each in pending:
                each.cancel()
        finished, unfinished = complete(loop, asyncio.wait(pending, timeout=PATIENCE))
        if unfinished:
            raise StuckError(f"it hangs, interrupted at {striker.where}: {unfinished}") from None
        for each in finished:
            error = None if each.cancelled() else each.exception()
            if error is not None and not is_interrupt(error):
                raise StuckError(f"interrupted at {striker.where}") from error


def is_interrupt(error: BaseException) -> bool:
    """Whether it is an interrupt, or the group that a task group makes of one."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(KeyboardInterrupt)[1] is None
    return isinstance(error, KeyboardInterrupt)


def complete(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine after an interrupt.

    The callback that stops the loop at the former task's end may still be on its way.
    """
    task = loop.create_task(coroutine)
    while True:
        try:
            return loop.run_until_complete(task)
        except RuntimeError as error:
            if task.done() or "stopped before" not in str(error):
                raise


def _run_on_trio(
    number: int, function: Function, later: Function, codes: Collection[CodeType] | None
) -> Striker:
    import trio

    striker = Striker(number, trio.lowlevel.currently_ki_protected, codes)

    async def begin() -> None:
        with striker, trio.fail_after(PATIENCE):
            await function()

    async def bounded() -> None:
        with trio.fail_after(PATIENCE):
            await later()

    try:
        trio.run(begin)
    except KeyboardInterrupt:
        pass
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
    striker.end()
    gc.collect()
    trio.run(bounded)
    return striker
