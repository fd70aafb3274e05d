"""The end of a program: it waits until nothing of the library is pending."""

from __future__ import annotations

import gc
from collections.abc import Callable

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._objects import threads
from aiostream._runtime import loops, process, statistics
from aiostream._runtime.completion import Completion
from aiostream._waits import waiting
from aiostream._waits.several import time_limit

__all__ = ["drain"]

_SHORTEST_NAP = 0.0005
_LONGEST_NAP = 0.02
_COLLECTS_EACH = 10  # naps


async def drain(timeout: float | None = None) -> bool:
    """Waits until nothing of the library is pending in this process, such as at a server's end.

    It waits until every future has settled in its loop, if that loop runs, and until the GPU has
    passed every host function, every callback, all work of `run` and `enqueue_async`, and what
    cancelled waits have waited for. It also waits for what is left on the streams of a pool, for
    calls of `run_in_thread` that have not begun, and for what other tasks and threads begin during
    the call. It does not wait for tasks that wait for a stream of a pool or for their turn to
    launch: await your tasks first. It also does not wait for host functions in graphs, and for work
    that no await or future of the library followed, such as a kernel or `executable.launch(stream)`
    alone. For that work, synchronize the stream. Do not hold a token that such a call waits for. If
    `AIOSTREAM_TRACE` is set, `drain` then waits until the trace is written.

    Args:
        timeout: Seconds to wait at most. `None` sets no limit.

    Cancellation: raises at once.

    Threads: call it in the thread of a running loop. On trio it is always a checkpoint.

    Returns:
        Whether nothing is pending. `False` after the timeout.

    Raises:
        TypeError, ValueError: `timeout` is not a number of seconds.
        RuntimeError: No loop runs here. Or this is a forked child.

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     future = stream.completion_future()
        ...     await aiostream.drain(timeout=10)
        ...     future.done()
        True
        True
    """
    import anyio

    # It polls, because any thread may begin and end work. If each of them had to notify those that
    # drain, every completion would pay for it.
    nap, naps, over = _SHORTEST_NAP, 0, False
    saved: Callable[[], bool] | None = None  # once nothing is pending: a signal may come next
    seconds = checks.timeout(timeout)
    driver.refuse_forked()  # the counts are the parent's there, and never change
    with time_limit(anyio.move_on_after, seconds):
        await waiting.checkpoint()
        while anything_pending() or not (saved := saved or process.save_soon())():
            await anyio.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
            naps += 1
            if naps % _COLLECTS_EACH == 0 and loops.left_behind():
                gc.collect()  # such a loop may be garbage, with tasks that wait in it
        over = True
    return over or not anything_pending()


def anything_pending() -> bool:
    """Whether `drain` would wait."""
    now = statistics.statistics()
    # The host functions in graphs are armed as long as their graph is there, so they do not count.
    return bool(
        now.points.pending > now.points.captured
        or now.futures.pending > _left_behind(now.futures.pending)
        or now.waits.pending > 0
        or threads.closing
        or any(isinstance(each, _native.Work) for each in _native.owners())  # to be closed
    )


def _left_behind(most: int) -> int:
    """Counts the futures that the GPU has passed in loops that do not run. Frees what they keep.

    Such a loop may have been dropped without a `close()`, and never run again.
    """
    points = [each for each in loops.left_behind() if isinstance(each, Completion)] if most else []
    for point in points:
        process.release_in_thread(point.take())
    return sum(point.is_pending for point in points)
