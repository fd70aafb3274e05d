"""Loops that cannot read a descriptor themselves: the janitor reads their queues for them.

Such loops are asyncio's without `add_reader`, and trio once it has cancelled its system tasks. The
janitor asks them for a drain when something arrives.
"""

from __future__ import annotations

import select
import weakref
from typing import Any

from aiostream import _native
from aiostream._runtime import process
from aiostream._runtime.loops.bridge import Bridge


def read_for(bridge: Bridge) -> None:
    """Wakes `bridge` from now on when its queue was empty and something arrives.

    Threads: any.
    """
    process.serve_in_janitor(bridge.descriptor, _Readerless(bridge).serve, select.EPOLLET)


class _Readerless:
    """A queue whose loop cannot read it. The janitor calls its methods."""

    def __init__(self, bridge: Bridge) -> None:
        self._descriptor = bridge.descriptor

        # Runs in a finalizer when the bridge dies. `serve` forgets a dead bridge when something
        # arrives for its descriptor. But the descriptor's next owner may read that arrival first,
        # and then `serve` never sees it. So the janitor forgets it here too, because a finalizer
        # must take no lock. The default arguments bind the names, because at the interpreter's end
        # the names of the module may be gone.
        def gone(_: Any, forget: Any = self._forget, run: Any = process.run_in_janitor) -> None:
            run(forget)

        # Weak, because only its loop may keep a bridge alive. The descriptor, or its number, goes
        # to another one then, because queues are recycled.
        self._bridge = weakref.ref(bridge, gone)
        self._failed = False  # the loop could not be asked

    def serve(self, arrived: bool) -> bool:
        """Asks the loop for a drain. Returns whether to call it again soon.

        If it could not be asked, it is asked again, because native code wakes an epoll once for
        each batch. Without that, what has arrived for it would wait until something else arrives.
        If it was asked and is closed before it drains, it forgets the request, and nothing else
        would arrive. So the janitor calls this again until the loop has drained.
        """
        bridge, asks = self._bridge(), arrived or self._failed
        try:
            if bridge is None:
                there = False
            elif asks:
                bridge.asked = True  # before the request, because the loop may drain at once
                there = bridge.call_soon(bridge.drain)
            elif not bridge.asked:
                return False
            else:
                there = not bridge.is_gone()
        except BaseException as error:
            # The loop is an application's own class and may raise anything. An error must not end
            # this pass, because the other loops would hang. It is reported once, not each retry. A
            # loop that cannot say whether it is closed is looked after again at the next request.
            if not self._failed:
                _native.write_unraisable(error, "aiostream's janitor")
            self._failed = asks
            return asks
        self._failed = False
        if not there:
            self._forget()
            if bridge is not None:
                bridge.close()
        return there

    def _forget(self) -> None:
        # The next owner's loop may read the descriptor itself. If the janitor did so too, each of
        # that owner's arrivals would wake it for nothing.
        process.stop_serving(self._descriptor, self.serve)
