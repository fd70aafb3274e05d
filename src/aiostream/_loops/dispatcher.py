"""The thread that has loops drain which cannot watch a descriptor, and trio once it has cancelled its system tasks."""

from __future__ import annotations

import os
import select
import threading
import weakref

from aiostream import _process
from aiostream._loops.bridge import Bridge

_lock = threading.Lock()  # guards the creation of the dispatcher


class Dispatcher:
    """Watches the queues of the loops that cannot do so themselves."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._stopping = False  # written by stop(), read by the thread
        # Descriptor -> bridge; written by add() in any thread, read and pruned by the dispatcher's. Single dict operations.
        self._bridges: dict[int, weakref.ref[Bridge]] = {}
        self._thread = threading.Thread(target=self._run, name="aiostream-dispatcher", daemon=True)
        self._thread.start()

    def add(self, bridge: Bridge) -> None:
        """From now on, tells `bridge` whenever its queue was empty and something arrives."""
        self._bridges[bridge.descriptor] = weakref.ref(bridge)
        # Edge-triggered: native code writes to the descriptor once per batch, and only the loop reads it.
        try:
            self._epoll.register(bridge.descriptor, select.EPOLLIN | select.EPOLLET)
        except FileExistsError:  # a descriptor that is used again: queues are recycled, never closed
            self._epoll.modify(bridge.descriptor, select.EPOLLIN | select.EPOLLET)

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopping:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake:
                    continue
                reference = self._bridges.get(descriptor)
                bridge = reference() if reference is not None else None
                if bridge is None:
                    continue  # the queue may be another bridge's by now, whose loop watches it itself
                try:
                    bridge.schedule_drain()
                except RuntimeError:  # the loop is closed; trio's RunFinishedError is one too
                    self._bridges.pop(descriptor, None)
                    bridge.close()
                del bridge


_the_dispatcher: Dispatcher | None = None  # made once under _lock


def dispatcher() -> Dispatcher:
    """The one of the process; made when it is first needed."""
    global _the_dispatcher
    with _lock:
        if _the_dispatcher is None:
            _the_dispatcher = Dispatcher()
            _process.at_exit(_the_dispatcher.stop)
        return _the_dispatcher
