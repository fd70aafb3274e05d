"""What a loop's future is to a completion, and which completions are pending.

The completion itself is a native object (`native/python/completions.c`). Its point holds
it until the GPU has passed the point, whatever has become of the task, the loop or the
stream, because the GPU may use what it keeps alive until then.
"""

from __future__ import annotations

import copy
from typing import Any

from aiostream import _native

Completion = _native.Completion


def set_result(future: Any, result: Any) -> None:
    """Settles a loop's future with a result."""
    if isinstance(future, _native.OwnFuture):
        future._set_result(result)
    else:
        future.set_result(result)


def copy_of(error: BaseException) -> BaseException:
    """Returns a copy of an error, or the error itself if it cannot be copied.

    Two tasks that raise one object would add their frames to each other's traceback.
    """
    try:
        made = copy.copy(error)
        if type(made) is not type(error) or made.args != error.args:
            return error
    except Exception:  # it has a constructor of its own, or arguments that cannot be compared
        return error
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        made.__notes__ = list(error.__notes__)
    return made.with_traceback(error.__traceback__)


def described(point: Completion | None) -> str:
    """What the `repr` of a future says of its work, such as `, forward() on stream 'a' on ...`."""
    if point is None:
        return ""
    name = function_name(point)
    return f", {name}() on {point.stream}" if name else f", {point.stream}"


def function_name(point: Completion) -> str | None:
    """Returns what the function of `enqueue_async` is called."""
    kept = point.keepalive  # the launch of a graph has none
    return name_of(kept[0]) if isinstance(kept, tuple) and kept else None


def name_of(function: Any) -> str:
    """Returns what a callable is called."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def settled_futures() -> int:
    """Counts those of them that were cancelled, and wait for the end of their point."""
    futures = [point.future for point in pending_points()]
    return sum(future is not None and future.done() for future in futures)


def pending_points() -> set[Completion]:
    """Returns the completions whose futures wait for their point.

    One may end while the caller counts, so the numbers are of about this moment.
    """
    return {each for each in _native.owners() if isinstance(each, Completion) and each.is_pending}
