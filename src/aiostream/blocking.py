"""Finds what blocks an event loop: every driver call that waits, whichever library makes it.

A call of torch, cupy, numba, cuda.core, the bindings or native code may wait for the GPU in the
thread of a running loop, and then no other task goes on. This module says which call that was, how
long it took, in which task, and which line of your program led to it.

It has to be there before a library loads the CUDA driver. So start your program with
`python -m aiostream blocking -- app.py`, or set `AIOSTREAM_BLOCKING=warn`, or call `install()`
first. On the simulator it works at any time.

Example:
    >>> from aiostream import blocking
    >>> with blocking.watch() as found:
    ...     async with aiostream.Stream() as stream:
    ...         stream.synchronize()
    >>> [(call.call, call.line > 0) for call in found]
    [('cuStreamSynchronize', True)]
"""

from __future__ import annotations

import atexit
import contextlib
import linecache
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiostream._observers import blocked
from aiostream._observers.blocked import OTHERS, BlockingCall
from aiostream._runtime import process

__all__ = [
    "BlockedLoopError",
    "BlockedLoopWarning",
    "BlockingCall",
    "Place",
    "install",
    "places",
    "table",
    "watch",
]

VARIABLE = "AIOSTREAM_BLOCKING"
_ACTIONS = ("warn", "count", "raise")


class BlockedLoopWarning(RuntimeWarning):
    """A driver call has blocked a loop (`install("warn")`)."""


class BlockedLoopError(Exception):
    """A driver call has blocked the loop of this thread (`install("raise")`).

    It is no `RuntimeError`, so that code which expects one of the driver or of torch does not take
    it for that.

    Attributes:
        call: The `BlockingCall`, or `None` if you have made the exception yourself.
    """

    def __init__(self, *args: object) -> None:
        # The reader has it raised by its class alone. It is made in the thread that was blocked.
        self.call: BlockingCall | None = None
        if not args:
            self.call = blocked.raising.pop(threading.get_ident(), None)
            args = () if self.call is None else (str(self.call),)
        super().__init__(*args)


@contextlib.contextmanager
def watch(*, threshold: float = 0.0) -> Iterator[list[BlockingCall]]:
    """Collects the driver calls in a `with` block that block the thread of a running loop.

    A call whose purpose is to wait, such as `cuStreamSynchronize` or `cuMemcpyDtoH`, counts from
    `threshold` on, by default always, so that a test with little work finds it too. All other
    calls, such as a launch or an allocation, count if they take a millisecond or more. A launch of
    aiostream's, the function of `run` or `enqueue_async`, counts if its Python takes two.

    A line with `allow_blocking` in a comment may block, also through what it calls.

    Threads: it sees the calls of all threads. You may nest such blocks.

    Args:
        threshold: Seconds. Shorter calls do not count.

    Raises:
        RuntimeError: A driver was loaded before this module could watch it, or there is none.
        TypeError, ValueError: `threshold` is not a number of seconds.

    Example:
        >>> from aiostream import blocking
        >>> with blocking.watch() as found:
        ...     async with aiostream.Stream() as stream:
        ...         await stream
        ...         stream.synchronize()
        >>> len(found)
        1
    """
    found: list[BlockingCall] = []
    end = blocked.add(found.append, threshold)
    try:
        yield found
    finally:
        end()


# ------------------------------------------------------------------------ for a whole process


@dataclass(frozen=True, slots=True)
class Place:
    """The blocking calls of one driver function from one line of the program, or the launches.

    Attributes:
        call: The driver function, or the method that launches.
        place: `file:line` of the program.
        calls: How many there were.
        seconds: How long they blocked, all together.
        latest: The latest of them.
    """

    call: str
    place: str
    calls: int
    seconds: float
    latest: BlockingCall


# By function and place. Written by the reader, one assignment each; read by any thread.
_places: dict[tuple[str, str], Place] = {}
_installed: list[Callable[[], None]] = []  # what ends it; one at most


def install(action: str = "warn", *, threshold: float = OTHERS) -> Callable[[], None]:
    """Acts on each driver call that blocks the thread of a running loop, from now on.

    Call it before you import a library that uses CUDA. The environment variable
    `AIOSTREAM_BLOCKING` does the same when aiostream is imported, in worker processes too. Its
    value is an action, or `action:threshold`. It also prints `table()` when the process exits.

    `places()`, `table()` and the metrics of `aiostream.metrics.Collector` have what was found.

    Threads: it sees the calls of all threads. A second call replaces the first one.

    Args:
        action: `warn` warns once for each place, with a `BlockedLoopWarning`. `count` only counts.
            `raise` warns too, and has a `BlockedLoopError` raised in the line of the call when the
            call has ended, because native callers get no exception of Python. It raises only in a
            task, and only where the line calls a function that releases the GIL. Anywhere else the
            exception could come in the loop's own code. Of a long launch it only warns.
        threshold: Seconds, as for `watch`. Shorter calls do not count. A call that counts and
            takes less than about 2 ms takes some 0.1 ms longer.

    Returns:
        A function that ends this. You may call it again.

    Raises:
        RuntimeError: A driver was loaded before, or there is none. The message says how to start.
        TypeError, ValueError: There is no such action, or `threshold` is no number of seconds.

    Example:
        >>> from aiostream import blocking
        >>> end = blocking.install("count", threshold=0.0)
        >>> async with aiostream.Stream() as stream:
        ...     stream.synchronize()
        >>> end()
        >>> blocking.places()[-1].call
        'cuStreamSynchronize'
    """
    if action not in _ACTIONS:
        raise ValueError(f"action is one of {', '.join(_ACTIONS)}, not {action!r}")
    act = _count if action == "count" else _warn
    end = blocked.add(act, threshold, BlockedLoopError if action == "raise" else None)
    while _installed:
        _installed.pop()()
    _installed.append(end)
    return end


def _count(call: BlockingCall) -> bool:
    """Returns whether the place is a new one."""
    key = call.call, call.place
    before = _places.get(key) or Place(*key, 0, 0.0, call)
    _places[key] = Place(*key, before.calls + 1, before.seconds + call.seconds, call)
    return before.calls == 0


def _warn(call: BlockingCall) -> None:
    # If a filter makes an error of it, that goes to `sys.unraisablehook`.
    if _count(call):
        warnings.warn_explicit(str(call), BlockedLoopWarning, call.file, call.line)


def places() -> list[Place]:
    """Returns what `install` has counted, the place first that has blocked longest in all."""
    blocked.deliver()
    return sorted(_places.values(), key=lambda each: -each.seconds)


def table(limit: int = 10) -> str:
    """Returns the worst places as a table, for people.

    Args:
        limit: How many.
    """
    worst = places()
    if not worst:
        return "Nothing has blocked a loop."
    lines = [
        f"{'total ms':>9} {'calls':>6} {'mean ms':>8}  driver call, and the line that led to it"
    ]
    for each in worst[:limit]:
        latest = each.latest
        text = linecache.getline(latest.file, latest.line).strip()
        by = "a callback" if latest.task is None else f"task {latest.task!r}"
        mean = each.seconds / each.calls
        lines += [
            f"{each.seconds * 1e3:9.1f} {each.calls:6} {mean * 1e3:8.2f}  {each.call} {each.place}",
            f"{'':26} {text}  ({by})",
            f"{'':26} {latest.advice}",
        ]
    if len(worst) > limit:
        lines.append(f"{len(worst) - limit} more places are not shown.")
    if blocked.missed:
        lines.append(f"{blocked.missed} calls are missing: their lines were not read in time.")
    return "\n".join(lines)


def begin_from_environment(*, always_says: bool = False) -> None:
    """Installs what `AIOSTREAM_BLOCKING` asks for, and prints the table when the process exits.

    Args:
        always_says: Whether it prints the table also if nothing was found.

    Raises:
        ValueError: The variable is neither an action nor `action:threshold`.
        RuntimeError: As for `install`.
    """
    value = os.environ.get(VARIABLE, "")
    action, has_threshold, threshold = value.partition(":")
    try:
        end = install(action, threshold=float(threshold) if has_threshold else OTHERS)
    except ValueError:
        raise ValueError(
            f"the environment variable {VARIABLE} is one of {', '.join(_ACTIONS)}, or one with a "
            f"threshold in seconds, such as warn:0.005, not {value!r}"
        ) from None

    said: list[list[Place]] = []

    def say() -> None:
        if (found := places()) not in said and (found or always_says):
            said.append(found)
            text = table() + ("" if found else " Worker processes print tables of their own.")
            print(f"\naiostream blocking, process {os.getpid()}:\n{text}", file=sys.stderr)

    atexit.register(say)
    atexit.register(end)  # which runs before
    process.save_at_sigterm(say)
