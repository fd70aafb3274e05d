"""Loops that cannot read a descriptor themselves: the janitor reads their queues for them.

Such loops are asyncio's without `add_reader`, and trio once it has cancelled its system tasks. The
janitor asks them for a drain when something arrives.
"""

from __future__ import annotations

import contextlib
import select
import threading
import weakref
from typing import Any

from aiostream import _native
from aiostream._runtime import process
from aiostream._runtime.loops.bridge import Bridge

# It is held while the one `Readerless` is made, because two threads may need it first at the same
# time. Without it there could be two, each with an epoll that is never closed. It is reentrant,
# because a signal handler may come here in the thread that holds it, and would deadlock with
# itself.
_lock = threading.RLock()


class Readerless:
    """The queues of the loops that cannot read them. The janitor calls `serve`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # It is held while `_bridges` and the epoll change together. Any thread adds, and the
        # janitor forgets. Without it, a late `_forget` could unregister the descriptor that `add`
        # has just registered for the next owner. It is reentrant for signal handlers.
        self._lock = threading.RLock()
        # Descriptor -> bridge. Weak, because only its loop may keep a bridge alive. A descriptor
        # outlives its bridge and goes to another one, because queues are recycled and never closed.
        self._bridges: dict[int, weakref.ref[Bridge]] = {}
        # The rest is the janitor's. Descriptors whose loop could not be asked.
        self._failed: set[int] = set()
        self._ask_all = False  # after an error
        # Descriptors whose loop was asked, and perhaps has not drained yet. If the loop is closed
        # meanwhile, it forgets the request, and nothing else would arrive.
        self._asked: set[int] = set()
        process.serve_in_janitor(self._epoll.fileno(), self.serve)

    def add(self, bridge: Bridge) -> None:
        """Wakes `bridge` from now on when its queue was empty and something arrives.

        Threads: any.
        """
        descriptor = bridge.descriptor

        # Runs in a finalizer when the bridge dies. `serve` forgets a dead bridge when something
        # arrives for its descriptor. But the descriptor's next owner may read that arrival first,
        # and then `serve` never sees it. So the janitor forgets it here too, because a finalizer
        # must not take `_lock`. The default arguments bind the names, because at the interpreter's
        # end the names of the module may be gone.
        def gone(
            reference: weakref.ref[Bridge],
            forget: Any = self._forget,
            run: Any = process.run_in_janitor,
        ) -> None:
            run(lambda: forget(descriptor, reference))

        with self._lock:
            self._bridges[descriptor] = weakref.ref(bridge, gone)
            # Edge-triggered, because only the loop reads the descriptor, and it may come late. The
            # level would keep the janitor spinning until then.
            try:
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            except FileExistsError:  # of an earlier owner, which was not forgotten yet
                self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLET)

    def serve(self) -> bool:
        """Asks the loops for which something has arrived. Returns whether to call it again soon."""
        try:
            self._serve_once()
        except BaseException:
            # An allocation may fail in any line. What the epoll has said may be lost then, and it
            # says nothing twice. So all loops are asked the next time.
            self._ask_all = True
            raise
        # Some could not be asked, and some that were asked may be closed before they drain.
        return bool(self._failed or self._asked)

    def _serve_once(self) -> None:
        if self._ask_all:
            self._failed.update(list(self._bridges))
            self._ask_all = False
        arrived = {descriptor for descriptor, _ in self._epoll.poll(0)}
        # The failed ones again, because native code wakes an epoll once for each batch. Without a
        # retry, what has arrived for them would wait until something else arrives.
        for descriptor in arrived | self._failed:
            self._have_drained(descriptor)
        # The failed ones are left out. If such a loop is closed, the retry above finds that out.
        for descriptor in self._asked - arrived - self._failed:
            self._look_after(descriptor)

    def _look_after(self, descriptor: int) -> None:
        """Closes the bridge of a loop that was asked for a drain and is gone."""
        reference = self._bridges.get(descriptor)
        bridge = reference() if reference is not None else None
        try:
            if bridge is not None and bridge.asked and not bridge.is_gone():
                return
        except BaseException as error:
            # This is as in `_have_drained`. The loop is not looked after again until the next
            # request.
            _native.write_unraisable(error, "aiostream's janitor")
            self._asked.discard(descriptor)
            return
        self._asked.discard(descriptor)
        if bridge is not None and bridge.asked:
            self._forget(descriptor, reference)
            bridge.close()

    def _have_drained(self, descriptor: int) -> None:
        reference = self._bridges.get(descriptor)
        bridge = reference() if reference is not None else None
        try:
            if bridge is not None:
                # This comes before the request, because the loop may drain at once.
                bridge.asked = True
                self._asked.add(descriptor)
            there = bridge is not None and bridge.schedule_drain()
        except BaseException as error:
            # The loop is an application's own class and may raise anything. An error must not end
            # this pass, because the other loops would hang. It is reported once, not each retry.
            if descriptor not in self._failed:
                _native.write_unraisable(error, "aiostream's janitor")
            self._failed.add(descriptor)
            return
        self._failed.discard(descriptor)
        if not there:
            self._asked.discard(descriptor)
            self._forget(descriptor, reference)
            if bridge is not None:
                bridge.close()

    def _forget(self, descriptor: int, reference: weakref.ref[Bridge] | None) -> None:
        # The next owner's loop may read the descriptor itself. If the janitor did so too, each of
        # that owner's arrivals would wake it for nothing.
        with self._lock:
            # Another bridge may have been added meanwhile. To unregister its descriptor would make
            # its loop hang.
            if self._bridges.get(descriptor) is reference:
                self._bridges.pop(descriptor, None)
                with contextlib.suppress(OSError):
                    self._epoll.unregister(descriptor)


_the_readerless: Readerless | None = None  # written once, under _lock


def readerless() -> Readerless:
    """Returns the one of this process. The first call makes it.

    Threads: any.
    """
    global _the_readerless
    with _lock:
        if _the_readerless is None:
            _the_readerless = Readerless()
        return _the_readerless
