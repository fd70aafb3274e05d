"""KeyboardInterrupt where Python may raise it: at each place of the library's code at which Python
looks for signals.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import itertools
import os
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aiostream
from aiostream.testing import settle
from support import new_uvloop

PACKAGE = f"{Path(aiostream.__file__).parent}/"
# After these Python asks for signals.
CHECKED = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
WHERE_RESUMED = 3  # the bits of RESUME's argument that say after what
AFTER_AWAIT = 2  # from here on Python does not ask
MONITORING: Any = getattr(sys, "monitoring", None)  # Python 3.12 on
TOOL = 4  # which debuggers, coverage, profilers and optimizers do not use
PATIENCE = 10.0
"""Seconds in which what was interrupted must have ended."""
PLACES = os.environ.get("AIOSTREAM_INTERRUPTS")
SEED = os.environ.get("AIOSTREAM_INTERRUPTS_SEED", "1")

_places: dict[int, tuple[CodeType, frozenset[int]]] = {}  # by id, because a code hashes slowly


def places_of(code: CodeType) -> frozenset[int]:
    """Where in a function a signal's handler may run: the offsets of the instructions before which
    it does.

    A place at which a `try` begins or ends is left out. The error of a signal's handler belongs to
    the instruction before. An error that is raised before the next instruction is not in the same
    `try` if that one ends, or another begins, in between.
    """
    if id(code) not in _places:
        _places[id(code)] = code, frozenset(_looks_of(code))
    return _places[id(code)][1]


def _looks_of(code: CodeType) -> Iterator[int]:
    steps: Any = dis.Bytecode(code)  # its `exception_entries` are not in the stubs
    by_offset = {step.offset: step for step in steps}
    # From Python 3.12 on an entry round a whole coroutine makes StopIteration a RuntimeError.
    tries = [
        entry
        for entry in steps.exception_entries
        if by_offset[entry.target].opname != "CALL_INTRINSIC_1"
    ]

    def handler_of(step: dis.Instruction) -> list[int]:
        return [entry.target for entry in tries if entry.start <= step.offset < entry.end]

    for step, behind in itertools.pairwise(steps):
        if step.opname in CHECKED or (
            step.opname == "RESUME" and (step.arg or 0) & WHERE_RESUMED < AFTER_AWAIT
        ):
            then = by_offset[step.argval] if step.opname == "JUMP_BACKWARD" else behind
            # Each `await` of Python 3.12 has a jump to its END_SEND, which only an error that the
            # awaited object turned into a result takes.
            if then.opname != "END_SEND" and handler_of(step) == handler_of(then):
                yield then.offset


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
        self._thread: int | None = None
        self._monitored = dict[int, CodeType]()  # by id

    @property
    def has_struck(self) -> bool:
        return bool(self.where)

    def __enter__(self) -> Striker:
        self._thread = threading.get_ident()
        if MONITORING is None:
            self._former = sys.gettrace()
            sys.settrace(self._enter)
            return self
        events = MONITORING.events
        MONITORING.use_tool_id(TOOL, "interrupts")
        for event in (events.PY_START, events.PY_RESUME):
            MONITORING.register_callback(TOOL, event, self._monitor)
        MONITORING.register_callback(TOOL, events.INSTRUCTION, self._come_to)
        MONITORING.set_events(TOOL, events.PY_START | events.PY_RESUME)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """No strike from now on."""
        self.number = -1
        if self._thread is None:
            return
        self._thread = None
        if MONITORING is None:
            sys.settrace(self._former)
            return
        MONITORING.set_events(TOOL, 0)
        for code in self._monitored.values():
            MONITORING.set_local_events(TOOL, code, 0)
        MONITORING.free_tool_id(TOOL)

    def _counts(self, code: CodeType) -> bool:
        return code.co_filename.startswith(PACKAGE) and (self._codes is None or code in self._codes)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.number < 0 or not self._counts(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self._come_to(frame.f_code, frame.f_lasti)
        return self._step

    def _monitor(self, code: CodeType, _: int) -> None:
        """As `_enter`, from Python 3.12 on: also the call that begins with this event."""
        is_new = threading.get_ident() == self._thread and id(code) not in self._monitored
        if is_new and self._counts(code):
            self._monitored[id(code)] = code
            MONITORING.set_local_events(TOOL, code, MONITORING.events.INSTRUCTION)

    def _come_to(self, code: CodeType, offset: int) -> None:
        if (
            self.number < 0
            or offset not in places_of(code)
            or threading.get_ident() != self._thread
            or self._is_protected()
            or is_finalizer(sys._getframe(1))
        ):
            return
        self.passed += 1
        if self.passed == self.number:
            self.number = -1
            line = next(at for start, end, at in code.co_lines() if start <= offset < end)
            self.where = f"{Path(code.co_filename).name}:{line} in {code.co_qualname}"
            raise KeyboardInterrupt


@contextmanager
def at_line(number: int, action: Callable[[], object], *modules: str) -> Iterator[list[str]]:
    """Calls `action` before the n-th line of the library's code that this thread runs within the
    block, as Python calls a signal's handler: in between.

    Yields the lines that have been run. `modules` are file names: if there are some, only lines of
    these modules count.
    """
    lines: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or (modules and Path(file).name not in modules):
            return None
        if frame.f_code.co_name == "raise_alarm":  # of a weak reference: see `is_finalizer`
            return None
        if event == "line":
            lines.append(f"{Path(file).name}:{frame.f_lineno}")
            if len(lines) == number:
                action()  # Python does not trace what a trace function calls
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(former)


def sample(count: int, most: int, name: str) -> list[int]:
    """At most `most` of the numbers from 1 to `count`, the same ones each time for this name.

    `AIOSTREAM_INTERRUPTS=all` gives all of them, and a number another `most`.
    """
    if PLACES == "all":
        return list(range(1, count + 1))
    most = min(count, int(PLACES or most))
    return sorted(random.Random(f"{SEED} {name}").sample(range(1, count + 1), most))


def ends(condition: Callable[..., bool]) -> bool:
    """Whether it is soon so, if need be after a garbage collection: a traceback may be in a cycle
    with the frames that it holds.
    """
    if not settle(condition, 0.02):
        gc.collect()
    return settle(condition)


Function = Callable[[], Awaitable[Any]]


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
    loop = new_uvloop() if kind == "uvloop" else asyncio.new_event_loop()
    striker = Striker(number, codes=codes)
    try:
        _strike(loop, striker, function, cancels)
    finally:
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
    except (KeyboardInterrupt, BaseExceptionGroup) as interrupt:
        if not is_interrupt(interrupt):
            raise
    striker.end()
    gc.collect()
    trio.run(bounded)
    return striker
