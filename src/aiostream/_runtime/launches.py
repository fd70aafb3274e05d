"""The turns of launches: how long the functions of users may keep a loop before it goes on.

A launch is a function that enqueues work, in the thread of a loop. Launches that have kept the loop
for about a millisecond have used up its turn. From then on tasks that want to launch wait in one
queue, first come, first served. A drain of the loop's bridge begins the next turn, and wakes as
many of them as the last launches fitted into one. If these are few, it is the second drain,
and the loop does everything else between the two: a task that the first one woke would come before
the timers that are due, and before most of what has arrived. Where many fit, they are short, and
what the loop does in between would cost more: with 64 tasks that launch for 0.05 ms, a launch took
131 to 136 us of the loop's CPU so, and 107 to 110 with one drain (simulator, 2026-11-28).

The shorter a turn, the fewer requests a server reads and answers in one go, and the more each of
them costs: the client is woken more often, and code and data have left the processor's caches.
With launches of 0.3 ms a server with `pool.run` answered 0.95 times as many as without turns if
these took 1 ms, and 0.97 times with 1.25 or 1.5 ms (simulator, 2026-11-28).

A launch that has used two milliseconds of its thread is long, and is reported to who asks for that.
Its time on the clock says less: while launching threads have the GIL, a short one takes 5 ms.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from time import thread_time_ns
from typing import Any

from aiostream import _native
from aiostream._base import development
from aiostream._runtime import completion

_TURN = 1_250_000  # nanoseconds
_FEW = 7  # launches, which fit into a turn
LONG = 0.002  # seconds
_lines: Counter[str] = Counter()  # of long launches in the development mode


def warn(used: int, _: int, function: Any) -> None:
    """Warns once for each line. Not of its first launch, which may load kernels."""
    line, level = development.caller()
    of = "" if function is None else f" of {completion.name_of(function)}()"
    _lines[line + of] += 1
    if _lines[line + of] == 2:
        text = (
            f"a launch{of} has kept the event loop for {used / 1e6:.1f} ms of CPU: await "
            "stream.run_in_thread(fn), or capture a graph once and launch that"
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=level)
        except RuntimeWarning as error:  # by a filter; the work is on the stream, so it goes on
            _native.write_unraisable(error, warn)


USUAL_LIMIT = LONG * 1e9 if sys.flags.dev_mode else math.inf
# From how many nanoseconds of its thread on a launch is reported, and to what: with these, those on
# the clock, and the function. Any thread, one assignment each.
limit: float = USUAL_LIMIT
report: Callable[[int, int, Any], object] = warn


class Launches:
    """The launches of one loop. It does not refer to the bridge, so waiting tasks may hold it.

    Threads: the loop's thread.
    """

    def __init__(self) -> None:
        self.queue = 0  # the number of the bridge's, which sets it
        # How many drains it takes until the next turn. While there are any, a task that wants to
        # launch has to wait, and the bridge's descriptor is readable, so a drain will come.
        self.wait = 0
        # The stream of a task that has waited for its turn first, and launches in this step.
        self.turn_of: object = None
        self._spent = self.count = 0  # of this turn
        # Whether another launch like the last one does not fit into the turn.
        self.is_over = False
        self._used = 0  # the time of the thread at the last launch or drain, if it is asked for
        self._fitting = 1  # how many launches a turn has time for, by the last ones
        # Whether the first of the woken tasks launches also in a turn that calls of `enqueue_async`
        # have used up. They do not wait, so without this it could wait for good.
        self.owes_one = False
        # Futures of tasks that wait, by ticket, in the order in which the tasks came.
        self.waiting: dict[int, Any] = {}
        self.next_ticket = count(1).__next__

    def note(self, nanoseconds: int, function: Any = None) -> None:
        """Notes how long a launch has kept the loop, of a function if its line is not here."""
        self.count += 1
        self._spent += nanoseconds
        if self._spent + nanoseconds > _TURN:
            self.is_over = True
            if not self.wait:
                self._end_turn()
        if limit < math.inf:
            before, self._used = self._used, thread_time_ns()
            used = min(nanoseconds, self._used - before)
            if used >= limit:
                report(used, nanoseconds, function)

    def _end_turn(self) -> None:
        # The drain is asked for first, because after an interrupt tasks would wait for it in vain.
        _native.queue_wake(self.queue)
        self.wait = 2 if self._fitting <= _FEW else 1

    def drained(self) -> None:
        """A drain of the bridge: begins a turn, and wakes the tasks whose turn it is."""
        if limit < math.inf:
            self._used = thread_time_ns()
        if self.wait > 1:
            _native.queue_wake(self.queue)
            self.wait -= 1
            return
        if self.count:
            self._fitting = max(1, _TURN * self.count // max(1, self._spent))
            self._spent = self.count = 0
            self.is_over = False
        if not self.wait:
            return
        is_full = len(self.waiting) >= self._fitting
        if is_full:
            self._end_turn()
        self.owes_one = True
        for future in [*islice(self.waiting.copy().values(), self._fitting)]:
            if not future.done():  # else its task has yet to run
                completion.set_result(future, None)
        if not is_full:
            self.wait = 0
