"""The reader: a thread that finds the Python line of each driver call that blocks a loop.

The forwarding library notes the calls (`src/aiostream/forward/watch.c`). While a call blocks, the
frames of its thread stay as they are, so the reader learns from them which loop runs there, which
task is at work, and which line of the program led to the call. It then reports the call to those
who watch.
"""

from __future__ import annotations

import atexit
import ctypes
import linecache
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from aiostream import _native
from aiostream._base import forwarding, turns
from aiostream._runtime import loops, process

PAGE = "docs/blocking.md"
ALLOW = "allow_blocking"  # in a comment on a line that may block

ADVICE = {
    "waits": "Await the stream instead: `await stream.run(fn)`. In place of `.item()` and `.cpu()`,"
    " copy to pinned memory with `non_blocking=True` in `fn`",
    "copies": "Copy in `await stream.run(fn)`, asynchronously and with pinned memory",
    "stages": "Pin the host memory, because the driver copies pageable memory through its own",
    "allocates": "Allocate before you serve: warm up the allocator, or keep the memory",
    "loads": "Load before you serve: run each kernel and each graph once at the start",
    "enqueues": "Await the stream before you enqueue more, if it was full. If the kernel was loaded"
    " now, run it once at the start",
    "begins": "Do this before you serve, or in a thread: it may wait for the whole device",
}
"""What to do, by the kind of the call. Each has a section of the page with this name."""


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """A driver call that blocked the thread of a running loop."""

    call: str
    """The driver function, such as `cuStreamSynchronize`, without the number of its version."""
    kind: str
    """What it does: `waits`, `copies`, `stages`, `allocates`, `loads`, `enqueues` or `begins`."""
    seconds: float
    """How long it blocked."""
    file: str
    """The file of `line`."""
    line: int
    """The innermost line of your program that led to the call."""
    where: str
    """The lines that led to the call, from the task's first one."""
    thread: str
    """The thread's name."""
    loop: str
    """The kind of the loop, such as `asyncio`, `uvloop` or `trio`."""
    task: str | None
    """The task's name, or `None` in a callback."""
    stream: int | None
    """The stream's handle, or `None` if the call has none. 0 is the default stream."""
    began: int
    """When the call began, in nanoseconds of `time.perf_counter_ns()`."""

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

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


class Watch(NamedTuple):
    """Which calls to report, and to whom. Times are in seconds."""

    report: Callable[[BlockingCall], object]
    waits: float
    """From how long on a call counts that waits by its nature."""
    others: float
    """From how long on each other call counts."""
    raises: type[BaseException] | None = None
    """What is raised in the blocked thread."""


class _Found(NamedTuple):
    """What the frames of a blocked thread say."""

    file: str
    line: int
    where: str
    loop: str
    task: str | None


_lock = threading.RLock()  # guards all below; no driver call is made under it
_watches: list[Watch] = []
# Called for each call that some watch counts. Any thread, single list operations.
observers: list[Callable[[BlockingCall], object]] = []
_found: dict[int, tuple[int, _Found | None]] = {}  # by note: the number of its call, and what it is
_reader: threading.Thread | None = None
_prepared: list[None] = []  # has an item once the next two are registered
missed = 0  # calls whose line could not be read in time
raising: dict[int, BlockingCall] = {}  # by thread: what its exception is about


def add(watch: Watch) -> None:
    """Reports calls from now on.

    Raises:
        RuntimeError: A driver is loaded already, or none was found.
        OSError: The driver cannot be loaded.
    """
    forwarding.load()
    if not _prepared:
        _prepared.append(None)
        os.register_at_fork(after_in_child=_begin_again)
        # Without the reader, which Python's end stops, each call would wait for it in vain.
        atexit.register(_end)
    with _lock:
        _watches.append(watch)
        _apply()


def remove(watch: Watch) -> None:
    """Reports what has ended until now, and nothing later. May be called again."""
    with _lock:
        deliver()
        if watch in _watches:
            _watches.remove(watch)
            _apply()


def _begin_again() -> None:
    """In a forked child, which has no reader, and in which another thread held the lock."""
    global _lock, _reader
    _lock, _reader = threading.RLock(), None
    _found.clear()
    if _watches:
        _apply()


def _end() -> None:
    while _watches:
        remove(_watches[-1])


def _apply() -> None:
    global _reader
    functions = forwarding.functions()
    if not _watches:
        functions.aiostream_forward_watch(-1, -1, 0)
        _reader = None
        return
    waits = min(each.waits for each in _watches)
    others = min(each.others for each in _watches)
    raises = any(each.raises for each in _watches)
    functions.aiostream_forward_watch(int(waits * 1e9), int(others * 1e9), raises)
    if _reader is None:
        _reader = threading.Thread(target=_read, name="aiostream-blocking", daemon=True)
        process.start_in_empty_context(_reader)


def _read() -> None:
    me = threading.current_thread()
    while forwarding.functions().aiostream_forward_wait() and _reader is me:
        deliver()


def deliver() -> None:
    """Reports what has ended until now, in this thread. Nothing, if nothing was ever watched."""
    if not _prepared:
        return
    call = forwarding.Call()
    # Under the lock from the first step on: who ends a watch sees what was taken before.
    with _lock:
        while forwarding.functions().aiostream_forward_next(ctypes.byref(call)):
            _look_at(call)


def _look_at(call: forwarding.Call) -> None:
    """Finds out where a call comes from, and reports it if it has ended."""
    global missed
    functions = forwarding.functions()
    try:
        number, found = _found.get(call.note, (0, None))
        if number != call.number:
            frames = _frames_of(call)
            if frames is None:
                missed += call.ended != 0
                return
            found = _find(frames)
            del frames  # they keep the variables of the program alive
            _found[call.note] = call.number, found
        if call.ended and found is not None:
            _report(call, found)
    except Exception as error:  # of a frame whose variables are strange; the reader must go on
        _native.write_unraisable(error, _look_at)
    finally:
        functions.aiostream_forward_done(ctypes.byref(call))


def _frames_of(call: forwarding.Call) -> turns.Frames | None:
    if call.frames:
        return _native.frames_take(call.frames)
    frame = sys._current_frames().get(call.thread)
    frames = [] if frame is None else _native.frames_from(frame)
    goes_on = forwarding.functions().aiostream_forward_goes_on(ctypes.byref(call))
    return frames if goes_on else None


def _find(frames: turns.Frames) -> _Found | None:
    """What led to the call. `None`: no loop runs there, or a line says that it may block."""
    running = turns.loop_in(frames)
    if running is None:
        return None
    outermost, loop, task = running
    inside = [
        (frame, line) for frame, line in frames[:outermost] if not _is_of_a_loop(frame)
    ] or frames[:1]
    if any(ALLOW in linecache.getline(f.f_code.co_filename, line) for f, line in inside):
        return None
    own, line = next((each for each in inside if not _is_of_a_library(each[0])), inside[0])
    summary = [
        traceback.FrameSummary(frame.f_code.co_filename, number, frame.f_code.co_name)
        for frame, number in reversed(inside)
    ]
    return _Found(
        own.f_code.co_filename,
        line,
        "".join(traceback.format_list(summary)).rstrip(),
        "native" if loop is None else type(loop).__module__.partition(".")[0],
        None if task is None else loops.task_name(task),
    )


_LOOPS = ("asyncio", "trio", "_core", "anyio", "uvloop")
_FOLDERS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_LIBRARIES = tuple(f"{folder}/" for folder in [*_FOLDERS, Path(__file__).parents[1]])


def _is_of_a_loop(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).parent.name in _LOOPS


def _is_of_a_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))


def _report(call: forwarding.Call, found: _Found) -> None:
    name, kind = call.name.decode(), forwarding.KINDS[call.kind]
    threads = (each.name for each in threading.enumerate() if each.ident == call.thread)
    seconds, stream = (
        (call.ended - call.began) / 1e9,
        call.stream if call.stream != forwarding.NO_STREAM else None,
    )
    where = (found.file, found.line, found.where, next(threads, "a thread"), found.loop, found.task)
    made = BlockingCall(name, kind, seconds, *where, stream, call.began)
    by_nature = call.kind < forwarding.WAITING
    counting = [w for w in _watches if made.seconds >= (w.waits if by_nature else w.others)]
    for report in [*(w.report for w in counting), *(observers if counting else ())]:
        try:
            report(made)
        except Exception as error:
            _native.write_unraisable(error, report)
    for raised in [w.raises for w in counting if w.raises is not None]:
        raising[call.thread] = made
        _native.raise_in(call.thread, raised)
