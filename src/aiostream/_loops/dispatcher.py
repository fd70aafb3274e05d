"""The thread that has loops drain which cannot watch a descriptor, and trio once it has cancelled its system tasks."""

from __future__ import annotations

import contextlib
import contextvars
import select
import threading
import weakref
from typing import Any

from aiostream import _process
from aiostream._loops.bridge import Bridge

_RETRY_SECONDS = 0.05  # after which a loop that could not be had drain is asked again
_lock = (
    threading.RLock()
)  # guards the creation of the dispatcher; a signal handler may interrupt its holder


class Dispatcher:
    """Watches the queues of the loops that cannot do so themselves."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lock = threading.RLock()  # makes one step of what is done to the two that follow
        # Descriptor -> bridge. A descriptor outlives its bridge and becomes another's: queues are
        # recycled, never closed.
        self._bridges: dict[int, weakref.ref[Bridge]] = {}
        self._failed: set[int] = set()  # whose loop could not be had drain; by the thread alone
        thread = threading.Thread(target=self._run, name="aiostream-dispatcher", daemon=True)
        # Never stopped: loops may run until the very end, in functions that atexit calls after
        # ours. An empty context, because some Pythons give a thread the context of the task that
        # starts it, and what that holds would never die.
        try:
            contextvars.Context().run(thread.start)
        except (
            RuntimeError
        ):  # from Python 3.12 on no thread can be started in the functions that atexit calls
            _process.watch_in_janitor(self._epoll.fileno(), lambda: self._serve(0))

    def add(self, bridge: Bridge) -> None:
        """From now on, has `bridge` drain whenever its queue was empty and something arrives."""
        descriptor = bridge.descriptor

        # The thread may never see an arrival for the descriptor's next owner, who can be faster. So
        # the bridge's end counts too. The names are bound here, because at the interpreter's end
        # those of the module may be gone.
        def gone(
            reference: weakref.ref[Bridge],
            forget: Any = self._forget,
            run: Any = _process.run_in_janitor,
        ) -> None:
            run(lambda: forget(descriptor, reference))

        with self._lock:
            self._bridges[descriptor] = weakref.ref(bridge, gone)
            # Edge-triggered: native code writes to the descriptor once per batch, and only the loop
            # reads it.
            try:
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            except FileExistsError:
                self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLET)

    def _run(self) -> None:
        _process.block_signals()  # they are for the program's threads
        while True:
            self._serve(_RETRY_SECONDS if self._failed else None)

    def _serve(self, timeout: float | None) -> None:
        arrived = {descriptor for descriptor, _ in self._epoll.poll(timeout)}
        for descriptor in arrived | self._failed:
            self._have_drained(descriptor)

    def _have_drained(self, descriptor: int) -> None:
        reference = self._bridges.get(descriptor)
        bridge = reference() if reference is not None else None
        try:
            there = bridge is not None and bridge.schedule_drain()
        except BaseException as error:  # a loop of somebody's: the others must not wait for it, and it may yet come round
            if descriptor not in self._failed:
                _process.report_unraisable(error, "aiostream's dispatcher")
            self._failed.add(descriptor)
            return
        self._failed.discard(descriptor)
        if not there:
            self._forget(descriptor, reference)
            if bridge is not None:
                bridge.close()

    def _forget(self, descriptor: int, reference: weakref.ref[Bridge] | None) -> None:
        """Or its next owner's arrivals, who watches it himself, would wake this thread."""
        with self._lock:
            if (
                self._bridges.get(descriptor) is reference
            ):  # or another bridge has been added meanwhile
                self._bridges.pop(descriptor, None)
                with contextlib.suppress(OSError):
                    self._epoll.unregister(descriptor)


_the_dispatcher: Dispatcher | None = None  # made once under _lock


def dispatcher() -> Dispatcher:
    """The one of the process; made when it is first needed."""
    global _the_dispatcher
    with _lock:
        if _the_dispatcher is None:
            _the_dispatcher = Dispatcher()
        return _the_dispatcher
