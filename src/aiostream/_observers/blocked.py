"""The reader: a thread that finds the Python line of each driver call that blocks a loop.

The forwarding library notes the calls (`notes.c` of the package `nogpu`). While a call blocks, the
frames of its thread stay as they are, so the reader learns from them which loop runs there, which
task is at work, and which line of the program led to the call. It then reports the call to those
who asked for it.
"""

from __future__ import annotations

import atexit
import ctypes
import dis
import inspect
import linecache
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from types import CodeType
from typing import Any

from aiostream import _native
from aiostream._base import checks, hints, stand_ins
from aiostream._observers.frames import QUESTIONS, Frames, loop_in
from aiostream._runtime import launches, process
from aiostream.errors import NoDriverError

PAGE = "docs/blocking.md"
ALLOW = "allow_blocking"  # in a comment on a line that may block
OTHERS = 0.001  # seconds; of calls that need not wait, shorter ones are ordinary
# What to do, by the kind of the call. Each has a section of the page with this name.
ADVICE = hints.ADVICE["blocking"]
_ADVICE_TO_WATCH = (
    ". Start the program with `python -m aiostream blocking -- PROGRAM`, or set the environment "
    "variable AIOSTREAM_BLOCKING=warn and import aiostream before any library that uses CUDA, or "
    "call `aiostream.blocking.install()` before. For tests use `pytest --aiostream=gpu`"
)


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """A driver call, or a long launch, that blocked the thread of a running loop.

    Attributes:
        call: The driver function, such as `cuStreamSynchronize`, without the number of its version.
            Of a long launch it is the method of aiostream, such as `Stream.run`.
        kind: What it does: `waits`, `copies`, `stages`, `allocates`, `loads`, `enqueues` or
            `begins`. Or it is `launches`: Python that enqueues work, and no driver call.
        seconds: How long it blocked. Of a launch only the time in which its thread had a core, and
            without driver calls that have blocked.
        file: The file of `line`.
        line: The innermost line of your program that led to the call. Of a launch that no line of
            yours has called, such as that of a batch, the first line of the function.
        lines: The file, line and function of each step that led to the call, from the task's first
            one.
        thread: The thread's name.
        loop: The kind of the loop, such as `asyncio`, `uvloop` or `trio`.
        task: The task's name, or `None` in a callback.
        stream: The stream's handle, or `None` if the call has none. 0 is the default stream.
        began: When the call began, in nanoseconds of `time.perf_counter_ns()`.
    """

    call: str
    kind: str
    seconds: float
    file: str
    line: int
    lines: tuple[tuple[str, int, str], ...]
    thread: str
    loop: str
    task: str | None
    stream: int | None
    began: int

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    @property
    def where(self) -> str:
        """The lines that led to the call, as Python prints them."""
        return "".join(traceback.format_list([(*line, None) for line in self.lines])).rstrip()

    @property
    def advice(self) -> str:
        """What to write instead, and where that is explained."""
        return f"{ADVICE[self.kind]} ({PAGE}#{self.kind})."

    def __str__(self) -> str:
        """What happened, where, and what to do."""
        on = "" if self.stream is None else f" on stream {self.stream:#x}"
        by = "a callback" if self.task is None else f"task {self.task!r}"
        text = linecache.getline(self.file, self.line).strip()
        return (
            f"{self.call}{on} blocked the {self.loop} loop of {self.thread} for "
            f"{self.seconds * 1000:.2f} ms in {by}, at {self.place}: {text}\n{self.advice}"
        )


@dataclass(frozen=True, eq=False)
class Subscriber:
    """Which calls to report, and to whom."""

    report: Callable[[BlockingCall], object]
    threshold: float  # seconds; what need not wait counts from `OTHERS` and `launches.LONG` on
    raises: type[BaseException] | None = None  # in the blocked thread, where that is safe


_python = ctypes.PyDLL(None)  # not `ctypes.pythonapi`, whose functions others change
_lock = threading.RLock()  # guards all below; no driver call is made under it
_subscribers: list[Subscriber] = []
# Called for each call that some subscriber counts. Any thread, single list operations.
observers: list[Callable[[BlockingCall], object]] = []
# By note: the number of its call, what it is so far, and whether an exception may be raised there.
_found: dict[int, tuple[int, BlockingCall | None, bool]] = {}
_reader: threading.Thread | None = None
forwarding: Any = None  # the module, once all that it needs is there; any thread may assign it
# The last calls that have ended: their threads, and from when to when.
_ended: deque[tuple[int, int, int]] = deque(maxlen=1000)
missed = 0  # calls whose line could not be read in time
raising: dict[int, BlockingCall] = {}  # by thread: what its exception is about


def add(
    report: Callable[[BlockingCall], object],
    threshold: float,
    raises: type[BaseException] | None = None,
) -> Callable[[], None]:
    """Reports calls from now on. See `Subscriber`.

    Returns:
        A function that ends this. It may be called again.

    Raises:
        RuntimeError: A driver is loaded already, or none was found. Or gevent is at work.
        OSError: The driver cannot be loaded.
        TypeError, ValueError: `threshold` is not a number of seconds.
    """
    global forwarding
    seconds = checks.real(threshold, "threshold is a number of seconds")
    if not 0 <= seconds < 1e9:
        raise ValueError(f"threshold is a number of seconds, 0 or more, not {threshold!r}")
    process.refuse_green_threads()  # first, because without the reader each call would wait for it
    if forwarding is None:
        module = load_forwarding()
        _native.set_questions(QUESTIONS)
        os.register_at_fork(after_in_child=_begin_again)
        # Without the reader, which Python's end stops, each call would wait for it in vain.
        atexit.register(_end)
        forwarding = module  # last, because after an interrupt the next call does all of it again
    subscriber = Subscriber(report, seconds, raises)
    with _lock:
        _subscribers.append(subscriber)
        _apply()
    return partial(_remove, subscriber)


def _remove(subscriber: Subscriber) -> None:
    """Reports what has ended until now, and nothing later."""
    with _lock:
        deliver()
        if subscriber in _subscribers:
            _subscribers.remove(subscriber)
            _apply()


def load_forwarding() -> Any:
    """Loads the library that sees the calls that block, and returns its module.

    Raises:
        RuntimeError: A driver is loaded already.
        NoDriverError: None was found.
        OSError: A library cannot be loaded.
        ModuleNotFoundError: It is not installed.
    """
    module = stand_ins.of_nogpu("nogpu.forwarding", "aiostream.blocking", "blocking")
    try:
        module.load()
    except RuntimeError as error:
        if module.loaded_driver() is None:
            raise NoDriverError(f"{error}{stand_ins.WITHOUT_DRIVER}") from None
        raise RuntimeError(f"{error}{_ADVICE_TO_WATCH}") from None
    # Of this library's own waits, which make no call of the driver that waits.
    _native.wrap_blocking(module.connect(_native.IS_PYTHON_THREAD, _native.FRAMES_HERE))
    return module


def _begin_again() -> None:
    """In a forked child, which has no reader, and in which another thread held the lock."""
    global _lock, _reader
    _lock, _reader = threading.RLock(), None
    _found.clear()
    _apply()


def _end() -> None:
    while _subscribers:
        _remove(_subscribers[-1])


def _apply() -> None:
    global _reader
    least = min((each.threshold for each in _subscribers), default=-1.0)
    others = max(least, OTHERS) if _subscribers else -1.0
    forwarding.functions().nogpu_forward_limit(int(least * 1e9), int(others * 1e9))
    launches.limit = max(least, launches.LONG) * 1e9 if _subscribers else launches.USUAL_LIMIT
    launches.report = _report_launch if _subscribers else launches.warn
    if not _subscribers:
        _reader = None
    elif _reader is None:
        _reader = threading.Thread(target=_read, name="aiostream-blocking", daemon=True)
        process.start_in_empty_context(_reader)


def _read() -> None:
    me = threading.current_thread()
    while forwarding.functions().nogpu_forward_wait() and _reader is me:
        deliver()


def deliver() -> None:
    """Reports what has ended until now, in this thread. Nothing, without any subscriber."""
    if forwarding is None:
        return
    call = forwarding.Call()
    # The lock is held from the first step on, so that who unsubscribes sees what was taken before.
    with _lock:
        while forwarding.functions().nogpu_forward_next(ctypes.byref(call)):
            _locate(call)


def _locate(call: Any) -> None:
    """Finds out where a call comes from, and reports it if it has ended."""
    global missed
    if call.ended:
        _ended.append((call.thread, call.began, call.ended))
    try:
        number, found, can_raise = _found.get(call.note, (0, None, False))
        if number != call.number:
            frames, here = _here(call)
            if frames is None:
                missed += call.ended != 0
                return
            found, can_raise = _find(call, frames, here)
            _found[call.note] = call.number, found, can_raise
        if call.ended and found is not None:
            _report(call, found, can_raise)
    except Exception as error:  # of a frame whose variables are strange; the reader must go on
        _native.write_unraisable(error, _locate)
    finally:
        # A thread that gets an exception goes on once it has it.
        if call.ended or not any(each.raises for each in _subscribers):
            forwarding.functions().nogpu_forward_done(ctypes.byref(call))


def _goes_on(call: Any) -> bool:
    # A function of the library would not do, because it would let other threads run before it
    # returns.
    return bool(ctypes.c_uint64.from_address(call.note).value == call.number)


def _here(call: Any) -> tuple[Any, list[Any]]:
    """The frames of the call's thread, and what it answers. `None`: they are others by now."""
    if call.frames:
        *lines, name, kind, task, trio_task = ctypes.cast(call.frames, ctypes.py_object).value
        _python.Py_DecRef(ctypes.c_void_p(call.frames))
        return lines, [name, kind, task, trio_task]
    names = (each.name for each in threading.enumerate() if each.ident == call.thread)
    frames: Frames = []
    if _goes_on(call):
        # This is one step, so that no frame of another thread outlives its function.
        frame = next(map(methodcaller("get", call.thread), iter(sys._current_frames, None)))
        while frame is not None:
            frames.append((frame.f_code, frame.f_lineno or 0, frame))
            frame = frame.f_back
    return frames if _goes_on(call) else None, [next(names, None)]


def _find(call: Any, frames: Frames, here: list[Any]) -> tuple[BlockingCall | None, bool]:
    """What led to the call. `None`: no loop runs there, or a line says that it may block."""
    in_call = False
    for code, _, frame in frames[:1]:
        at = None if frame is None else dis.opname[code.co_code[frame.f_lasti]]
        in_call = at in _CALLS and not code.co_filename.startswith(_of_loops())
        del frame  # `_in_loop` empties `frames`
    which = call.name.decode(), forwarding.KINDS[call.kind], 0.0
    stream = call.stream if call.stream != forwarding.NO_STREAM else None
    found = _in_loop(frames, here, which, stream, call.began)
    return found, in_call and found is not None and found.task is not None


def _in_loop(
    frames: Frames, here: list[Any], call: tuple[str, str, float], *rest: Any, of: Any = None
) -> BlockingCall | None:
    running = loop_in(frames, here)
    if running is None:
        return None
    outermost, loop, task = running
    lines = [(code, line) for code, line, _ in frames[:outermost] or frames[:1]]
    del frames[:]  # they would keep the program's variables alive while files are read
    # In a task of the library no line is the program's, and a batch's may be that of one item.
    is_ours = all(code.co_filename.startswith(_LIBRARIES) for code, _ in lines)
    if is_ours or any(code.co_name == "within" for code, _ in lines):
        lines[:0] = [(code, code.co_firstlineno) for code in _code_of(of)]
    if (place := _place(lines)) is None:
        return None
    return BlockingCall(*call, *place, here[0] or "a thread", loop, task, *rest)


def _code_of(function: Any) -> list[CodeType]:
    function = inspect.unwrap(getattr(function, "func", function))  # of a `functools.partial`
    found = (getattr(each, "__code__", None) for each in (function, type(function).__call__))
    return [code for code in found if isinstance(code, CodeType)][:1]


def _of_loops() -> tuple[str, ...]:
    paths = [path for name in _LOOPS for path in getattr(sys.modules.get(name), "__path__", ())]
    return tuple(f"{path}/" for path in paths)


def _place(
    lines: list[tuple[CodeType, int]],
) -> tuple[str, int, tuple[tuple[str, int, str], ...]] | None:
    """The innermost line of the program, and all lines. `None`: one says that it may block."""
    loops = _of_loops()
    inside = [each for each in lines if not each[0].co_filename.startswith(loops)] or lines[:1]
    if any(ALLOW in linecache.getline(code.co_filename, line) for code, line in inside):
        return None
    of_program = (each for each in inside if not each[0].co_filename.startswith(_LIBRARIES))
    own, line = next(of_program, inside[0])
    steps = tuple((code.co_filename, n, code.co_name) for code, n in reversed(inside))
    return own.co_filename, line, steps


_LAUNCHES = ("Stream.run", "Stream.enqueue_async", "Graph.launch_async", "Graph.upload_async")
_LOOPS = ("asyncio", "trio", "anyio", "uvloop")
_FOLDERS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_LIBRARIES = ("<frozen", *(f"{folder}/" for folder in [*_FOLDERS, Path(__file__).parents[1]]))
# Python looks for an exception when these return, so it comes in their line. After other
# instructions it may come later, in the loop's own code.
_CALLS = ("PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX")


def _report(call: Any, found: BlockingCall, can_raise: bool) -> None:
    made = replace(found, seconds=(call.ended - call.began) / 1e9)
    counting = _report_to(0.0 if call.kind < forwarding.WAITING else OTHERS, made)
    raises = next((w.raises for w in counting if w.raises is not None), None)
    if raises is not None and can_raise and _goes_on(call):
        raising[call.thread] = made
        _python.PyThreadState_SetAsyncExc(ctypes.c_ulong(call.thread), ctypes.py_object(raises))


def _report_to(least: float, made: BlockingCall) -> list[Subscriber]:
    counting = [each for each in _subscribers if made.seconds >= max(each.threshold, least)]
    for report in [*(w.report for w in counting), *(observers if counting else ())]:
        try:
            report(made)
        except Exception as error:
            _native.write_unraisable(error, report)
    return counting


def _report_launch(used: int, nanoseconds: int, function: Any) -> None:
    """Reports a long launch of this thread, whose method has called this.

    Without the driver calls in it that have blocked, because those are reported by themselves.
    """
    frames, here = (found := _native.frames_here()[2:])[:-4], found[-4:]  # not its own and `note`
    names = (code.co_qualname.replace("RunMethods", "Stream") for code, *_ in frames)
    call = next((each for each in names if each.endswith(_LAUNCHES)), "Stream.run")
    began, me = time.perf_counter_ns() - nanoseconds, threading.get_ident()
    with _lock:
        deliver()
        # By their ends, because the launch began a little sooner than that.
        others = sum(end - start for of, start, end in _ended if of == me and end > began)
        which = call, "launches", min(used, nanoseconds - others) / 1e9
        if made := _in_loop(frames, here, which, None, began, of=function):
            _report_to(launches.LONG, made)
