"""Traces: what each await did, and when, as a timeline.

Before `record` is called, and without the environment variable `AIOSTREAM_TRACE`, a wait only tests
a truth value more.
"""

from __future__ import annotations

import atexit
import contextlib
import html
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aiostream import _native
from aiostream._base import checks
from aiostream._handles import interop
from aiostream._handles.operand import Operand
from aiostream._observers import blocked, trace_files
from aiostream._observers.awaits import Observation, add_observer, marked, remove_observer
from aiostream._observers.trace_clock import GpuClock, Moment
from aiostream._runtime import loops, process
from aiostream.device import Context
from aiostream.errors import CudaError, StreamClosedError
from aiostream.pool import StreamPool

__all__ = ["Await", "Recording", "record"]

VARIABLE = "AIOSTREAM_TRACE"
_LIMIT = 50_000
_MOST_UNRESOLVED = 1000  # events that the GPU has not reached yet, such as those of cancelled waits
# Nanoseconds, at the end of a recording, for marks right behind the work that is done. A driver
# whose thread gets no CPU for some milliseconds, such as the simulator's, left such times unknown.
_PATIENCE = 20_000_000
_now = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Await:
    """What one await did. Times are nanoseconds of `time.perf_counter_ns`, or `None`.

    Attributes:
        call: The method, such as `Stream.enqueue_async`.
        stream: The stream, with its device. For `StreamPool.acquire` the pool, and for an event
            that.
        task: The name of the task that made the call.
        loop: The name of the thread whose loop the task runs in.
        launched: When the task made the call.
        gpu_began: About when the GPU began with the work, if the call itself enqueued it.
        gpu_ended: About when the GPU reached the point that the task waits for.
        noticed: When the loop's thread learned of that.
        resumed: When the task went on, or when the callbacks of its future were called.
        outcome: `done`, `failed`, `cancelled`, or `pending` if the recording ended first. `blocked`
            stands for no await, but for a driver call that blocked the loop. `call` is the driver
            function then, and `error` its place and what to write instead. `aiostream.blocking`
            finds them, if it is installed.
        stages: The stages of the wait, each with its beginning: `polls` or `suspended`. The task
            `polls` in each turn of its loop. While it is `suspended`, a timer, the watcher, the
            driver or another thread wakes it. There is none if the await was over at once.
        error: The error's type and text, if it failed.
    """

    call: str
    stream: str
    task: str
    loop: str
    launched: int
    gpu_began: int | None
    gpu_ended: int | None
    noticed: int | None
    resumed: int | None
    outcome: str
    stages: tuple[tuple[str, int], ...]
    error: str | None


_CALLS = ("Stream.enqueue", "Stream.run", "Steps.step")  # what calls a function of the user


class _Entry(Observation):
    """One await while it is recorded. All fields belong to the thread of its loop."""

    sees_steps = True

    def __init__(self, recorder: Recording, call: str, name: str, stream: Operand | None) -> None:
        self.recorder, self.call = recorder, call
        self.name = name  # of the stream, the event or the pool
        self.stream = stream  # until the await is over, because the stream need not outlive it here
        self.clock = clock = None if stream is None else recorder._clock_of(stream)
        task = loops.task_here()
        self.task = "a callback" if task is None else loops.task_name(task)
        self.loop = threading.current_thread().name
        self.is_launch = call.startswith("ExecutableGraph.")  # the call itself enqueues a graph
        self.calls = call.startswith(_CALLS)
        self.stages: list[tuple[str, int]] = []
        self.first: Moment | None = None  # before the work
        self.last: Moment | None = None  # behind it
        self.noticed_at: int | None = None
        self.resumed: int | None = None
        self.outcome = "pending"
        self.error: str | None = None
        self.range: Any = None
        if recorder._nvtx is not None:
            text = f"{call} · {name} · {self.task}"
            self.range = recorder._nvtx.start_range(message=text, domain="aiostream")
        self.launched = self.entered = _now()  # `entered`: the step that runs now
        if clock is None or stream is None or self.calls:
            return
        if self.is_launch:
            self.first = clock.mark(stream)
        # The library records its own event at this place of the stream, right after this one. An
        # idle stream is left alone: with a mark it would be busy, and the await not over at once.
        elif call != "Stream.synchronize_async" or _native.stream_query(stream.handle) != 0:
            self.last = clock.mark(stream)

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Puts marks before and behind what the function enqueues."""
        clock, stream = self.clock, self.stream
        if clock is None or stream is None or not self.calls:
            return args

        def begins() -> None:
            self.first = clock.mark(stream)

        def launched(_: object) -> None:
            self.last, self.noticed_at = clock.mark(stream), None

        in_halves = self.call.startswith("Stream.run")
        return (marked(args[0], in_halves, begins, launched, lambda: None), *args[1:])

    def returned(self) -> None:
        """Marks the end of a graph that was launched."""
        if self.is_launch and self.clock and self.stream and self.last is None:
            self.last = self.clock.mark(self.stream)

    def enters(self) -> None:
        """See `Observation`."""
        self.entered = _now()

    def leaves(self, yielded: Any) -> None:
        """Notes the stage: asyncio's tasks yield `None` for a turn, or a future."""
        self.noticed_at = None  # it waits for more
        if not self.stages:
            self.returned()
        # trio's tasks yield an object with an abort function when they are to be woken.
        waits = yielded is not None and (
            hasattr(yielded, "_asyncio_future_blocking") or hasattr(yielded, "abort_func")
        )
        stage = "suspended" if waits else "polls"
        if not self.stages or self.stages[-1][0] != stage:
            self.stages.append((stage, _now()))

    def noticed(self) -> None:
        """See `Observation`."""
        if self.noticed_at is None:
            self.noticed_at = _now()

    def refused(self, error: BaseException) -> None:
        """See `Observation`."""
        self.ended("failed" if isinstance(error, Exception) else "cancelled", error)

    def ended(self, outcome: str, error: BaseException | None, result: Any = None) -> None:
        """See `Observation`."""
        if self.outcome != "pending":
            return
        if outcome == "done" and not self.stages:
            self.returned()  # a graph that was over before the task could leave
        self.resumed = _now()
        if outcome == "cancelled":
            self.noticed_at = error = None
        else:
            # A task that polls sees the end in the step in which it goes on. One that never left
            # has made the call in that step, and sees the end behind it.
            polled = self.stages and self.stages[-1][0] == "polls"
            self.noticed_at = self.noticed_at or (self.entered if polled else self.resumed)
        self.error = None if error is None else f"{type(error).__name__}: {error}"
        self.outcome = outcome
        self.stream = None
        self.recorder._ended(self)

    def resolve(self) -> bool:
        """Asks for the times on the GPU. Returns `False` if it has not got there yet."""
        # The mark behind a graph comes after the event that the task has seen.
        seen = self.noticed_at if self.outcome == "done" and not self.is_launch else None
        clock = self.clock
        return clock is None or all(clock.resolve(each, seen) for each in self._moments())

    @property
    def uncertainty(self) -> float:
        """By how many nanoseconds its times on the GPU may be wrong."""
        epochs = [moment.epoch for moment in self._moments()]
        return max((each.uncertainty for each in epochs if each), default=0.0)

    def _moments(self) -> list[Moment]:
        return [each for each in (self.first, self.last) if each is not None]

    def public(self) -> Await:
        """Returns what it knows now, with the times on the GPU between those of the host."""
        latest = self.noticed_at if self.outcome == "done" else None
        times: list[int | None] = []
        earliest = self.launched
        for moment in (self.first, self.last):
            at = None if moment is None else moment.host_time
            if at is not None:
                earliest = at = max(earliest, at if latest is None else min(latest, at))
            times.append(at)
        who = self.call, self.name, self.task, self.loop, self.launched
        after = self.noticed_at, self.resumed, self.outcome
        return Await(*who, times[0], times[1], *after, tuple(self.stages), self.error)


class Recording:
    """What `record` records. Use it with `with`. One recording cannot be entered twice.

    Threads: any. Awaits of all loops and threads of the process are recorded.
    """

    def __init__(self, path: str | os.PathLike[str] | None, gpu: bool, nvtx: Any, limit: int):
        self._path = None if path is None else Path(str(path).replace("{pid}", str(os.getpid())))
        self._gpu = gpu
        self._nvtx = nvtx
        self._lock = threading.RLock()  # guards the next two; held across no driver call
        self._entries: deque[_Entry] = deque(maxlen=limit)
        self._begun = 0
        # Any thread, single operations, as of the next two.
        self._blocked: deque[blocked.BlockingCall] = deque(maxlen=limit)
        self._clocks: dict[Context, GpuClock] = {}
        self._unresolved: deque[_Entry] = deque()  # awaits that are over and whose events are not
        self._process = os.getpid()
        self._started_at: tuple[int, float] = (0, 0.0)
        self._stopped_at: int | None = None  # any thread, one assignment
        self._final: trace_files.Trace | None = None  # what ends later changes nothing
        self._is_unsaved = False  # an await began or ended since; any thread, one assignment
        self._saving = threading.RLock()  # held while the file is written; guards the next
        self._next_save = 0

    def __repr__(self) -> str:
        return f"<aiostream.trace.Recording of {len(self.awaits)} awaits>"

    def _repr_html_(self) -> str:
        """What Jupyter shows: the timeline."""
        page = html.escape(trace_files.html(self._trace()))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 30em; border: 0"></iframe>'

    @property
    def awaits(self) -> list[Await]:
        """The awaits so far, by the times of their calls. At most `limit`, the latest ones."""
        return list(self._trace().awaits)

    @property
    def dropped(self) -> int:
        """How many awaits were dropped, the earliest ones, because there were more than `limit`."""
        return self._trace().dropped

    @property
    def gpu_uncertainty(self) -> float:
        """By how many nanoseconds the times on the GPU may be wrong, at worst."""
        return self._trace().uncertainty

    def _trace(self) -> trace_files.Trace:
        """Returns what was recorded so far, or in all if the recording has ended."""
        if self._final is not None:
            return self._final
        with self._lock:
            entries, dropped = list(self._entries), self._begun - len(self._entries)
        awaits = [*(each.public() for each in entries), *map(_as_await, self._blocked.copy())]
        return trace_files.Trace(
            sorted(awaits, key=lambda each: each.launched),
            dropped,
            max((each.uncertainty for each in entries), default=0.0),
            *self._started_at,
            self._stopped_at or _now(),
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes what was recorded so far.

        Args:
            path: A file that ends with `.json` or `.html`.

        Raises:
            ValueError: It ends otherwise.
            OSError: The file cannot be written.
        """
        kind = _kind_of(path)
        trace = self._trace()
        text = trace_files.html(trace) if kind == ".html" else trace_files.perfetto(trace)
        # An earlier file stays until this one is whole, also if the process is killed meanwhile.
        real = os.path.realpath(path)  # not a link in its place
        partial = Path(f"{real}.{os.getpid()}-{threading.get_native_id()}")
        with trace_files.errors_name(path):
            try:
                partial.write_text(text, encoding="utf-8")
                partial.replace(real)
            finally:
                partial.unlink(missing_ok=True)

    def _save(self, all_of_it: bool) -> None:
        """Writes what was recorded so far, unless the file has it, or that would cost too much."""
        with self._saving:
            began = _now()
            is_wanted = self._is_unsaved and (all_of_it or began > self._next_save)
            if is_wanted and self._path and self._stopped_at is None:
                self._is_unsaved = False
                try:
                    self.write(self._path)
                except BaseException:
                    self._is_unsaved = True
                    raise
                finally:
                    # A second later, or 50 times as long as it took, as it competes for the GIL.
                    self._next_save = _now() + max(1_000_000_000, 50 * (_now() - began))

    def __enter__(self) -> Self:
        if self._started_at[0]:
            raise RuntimeError("this recording has begun before: call record() for each block")
        if self._path is not None:
            trace_files.require_writable(self._path)
        self._started_at = (_now(), time.time())
        add_observer(self._observe, of_futures=True)
        blocked.observers.append(self._blocked.append)
        return self

    def __exit__(self, *error: object) -> None:
        if self._stopped_at is not None or self._is_forked():  # a child leaves the file alone
            return
        self._stopped_at = _now()
        remove_observer(self._observe)
        blocked.deliver()
        blocked.observers.remove(self._blocked.append)
        patience = _now() + _PATIENCE
        for each in self._unresolved.copy():
            # The mark behind a graph comes after the event that its await has waited for.
            while not each.resolve() and each.outcome == "done" and _now() < patience:
                pass
        for clock in self._clocks.copy().values():
            clock.close()
        self._final = self._trace()
        self._entries.clear()
        self._unresolved.clear()
        if self._path is not None:
            # Behind the releaser, which may be writing what was there before. If the body has
            # raised, its error says what went wrong.
            with self._saving, contextlib.suppress(*([OSError] if any(error) else [])):
                self.write(self._path)

    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    # ------------------------------------------------------------------------ for its entries

    def _observe(self, call: str, target: Any, args: tuple[Any, ...]) -> Observation:
        # The recording belongs to the parent, and the driver refuses the marks in a forked child.
        # The call itself says so. A lock that another thread held at the fork stays held here.
        if self._is_forked():
            return Observation()
        stream: Operand | None = getattr(target, "_operand", None)
        if call.startswith("ExecutableGraph."):
            # If it is no stream, the call itself raises the error.
            with contextlib.suppress(TypeError, ValueError, CudaError, StreamClosedError):
                stream = interop.operand_of(args[0])
        name = target._called if stream is None else stream.name
        if isinstance(target, StreamPool):
            name = f"pool{name} of {target.size} streams"
        made = _Entry(self, call, name, None if stream is None or stream.is_event else stream)
        with self._lock:
            self._begun += 1
            self._entries.append(made)
        self._is_unsaved = True
        return made

    def _clock_of(self, stream: Operand) -> GpuClock | None:
        # In a forked child, a recording of its own has no marks, because the driver refuses them.
        if not self._gpu or _native.is_forked():
            return None
        clock = self._clocks.get(stream.context)
        if clock is None:
            try:
                made = GpuClock(stream.context)
            except (CudaError, StreamClosedError):
                return None  # the call itself raises the error
            clock = self._clocks.setdefault(stream.context, made)
            # Another thread was first, or the recording's end, which has closed those that it saw.
            if clock is not made or self._stopped_at is not None:
                made.close()
        return clock

    def _ended(self, entry: _Entry) -> None:
        if self._is_forked():  # an await that began before the fork
            return
        if entry.range is not None:
            self._nvtx.end_range(entry.range)
            entry.range = None
        self._is_unsaved = True
        entries = [entry]
        with contextlib.suppress(IndexError):
            for _ in range(2):
                entries.append(self._unresolved.popleft())
        for each in entries:
            if not each.resolve():
                self._unresolved.append(each)
        while len(self._unresolved) > _MOST_UNRESOLVED:
            for moment in self._unresolved.popleft()._moments():
                moment.event = None


def _as_await(call: blocked.BlockingCall) -> Await:
    end, said = call.began + int(call.seconds * 1e9), f"{call.place}: {call.advice}"
    task, stream = call.task or "a callback", "calls that block a loop"
    times = (call.began, None, None, end, end)
    return Await(call.call, stream, task, call.thread, *times, "blocked", (), said)


def record(
    path: str | os.PathLike[str] | None = None,
    *,
    gpu: bool = True,
    nvtx: bool = False,
    limit: int = _LIMIT,
) -> Recording:
    """Records what each await does in a `with` block, and writes it to a file at the block's end.

    It records the awaitable methods of `Stream`, `Event` and `ExecutableGraph`, and
    `StreamPool.acquire`, of all loops and threads of the process. Outside of such a block, a wait
    only tests a truth value more.

    The environment variable `AIOSTREAM_TRACE=file` does the same from the first use of the library
    until the process exits. It also writes the file once a second and at the end of `drain`.

    Threads: the block may begin and end in any thread.

    Args:
        path: A file that ends with `.html`, for a timeline in any browser, or with `.json`, for
            ui.perfetto.dev. `{pid}` in it becomes the number of the process. Without it, read
            `awaits` or call `write`.
        gpu: Record timing events around the work, to learn when the GPU was done. They cost some
            microseconds of the host for each await.
        nvtx: Give each await an NVTX range too, in the domain `aiostream`. It needs the package
            `nvtx`.
        limit: How many awaits are kept. If there are more, the earliest ones are dropped, and the
            file says how many.

    Raises:
        ValueError: `path` ends otherwise, or `limit` is less than 1.
        ImportError: `nvtx` is not installed.
        OSError: At the block's beginning, the file cannot be written.

    Example:
        >>> from aiostream import trace
        >>> with trace.record() as recording:  # or trace.record("trace.html")
        ...     async with aiostream.Stream() as stream:
        ...         await stream.enqueue_async(lambda stream: "launched")
        'launched'
        >>> first = recording.awaits[0]
        >>> first.call, first.outcome
        ('Stream.enqueue_async', 'done')
        >>> first.launched <= first.noticed <= first.resumed
        True
    """
    if path is not None:
        _kind_of(path)
    checks.number("limit", limit, 1, "limit is 1 or more")
    ranges = checks.library("nvtx", "nvtx") if nvtx else None
    return Recording(path, gpu, ranges, limit)


def _kind_of(path: str | os.PathLike[str], what: str = "a trace's file") -> str:
    kind = Path(path).suffix
    if kind not in (".json", ".html"):
        raise ValueError(f"{what} ends with .json or .html, unlike {os.fspath(path)!r}")
    return kind


# ------------------------------------------------------------------------ the environment variable

_CANNOT_WRITE = (
    f"the environment variable {VARIABLE} names a file that cannot be written ({{}}): name a file "
    "in a folder that exists, or unset the variable"
)


def begin_from_environment() -> None:
    """Records from the library's first use on, until the process exits.

    That use raises a `ValueError` or an `OSError` if `AIOSTREAM_TRACE` names no file of a known
    kind, or one that cannot be written.
    """
    process.save_at_sigterm(process.save_now)  # now, because only the main thread can do it
    process.before_first_use.append(_begin)


def _begin() -> None:
    path = os.environ.get(VARIABLE)
    if not path or process.savers:  # it has begun
        return
    _kind_of(path, f"the file that the environment variable {VARIABLE} names")
    recording = Recording(path, True, None, _LIMIT)
    with trace_files.errors_name(path, _CANNOT_WRITE):
        recording.__enter__()
    process.savers.append(recording._save)
    atexit.register(recording.__exit__)
