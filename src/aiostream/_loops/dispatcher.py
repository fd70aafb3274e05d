"""The dispatcher: a thread that wakes loops which cannot watch a descriptor themselves.

Such loops are asyncio's without `add_reader`, and trio once it has cancelled its system tasks.
"""

from __future__ import annotations

import contextlib
import contextvars
import select
import threading
import weakref
from typing import Any

from aiostream import _process, _stuck
from aiostream._loops.bridge import Bridge

# Seconds until the thread asks a loop again whose `schedule_drain` has raised an error, and until
# it looks whether a loop that was asked is gone.
_RETRY_SECONDS = 0.05
# Held while the dispatcher is made, because two threads may need it first at the same time. Without
# it there could be two, each with a thread and an epoll that are never closed. Reentrant, because a
# signal handler may come here in the thread that holds it, and would deadlock with itself.
_lock = threading.RLock()


class Dispatcher:
    """Watches the queues of the loops that cannot do so themselves."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # Held while `_bridges` and the epoll change together. Any thread adds, and the dispatcher
        # and the janitor forget. Without it, a late `_forget` could unregister the descriptor that
        # `add` has just registered for the next owner. Reentrant for signal handlers.
        self._lock = threading.RLock()
        # Descriptor -> bridge. Weak, because only its loop may keep a bridge alive. A descriptor
        # outlives its bridge and goes to another one, because queues are recycled and never closed.
        self._bridges: dict[int, weakref.ref[Bridge]] = {}
        # Descriptors whose loop could not be asked. Used by the thread that serves, alone.
        self._failed: set[int] = set()
        self._ask_all = False  # after an error; used by that thread
        # Descriptors whose loop was asked, and perhaps has not drained yet. If the loop is closed
        # meanwhile, it forgets the request, and nothing else would arrive. Used by that thread.
        self._asked: set[int] = set()
        # A daemon that is never stopped, because loops may run until the very end, in functions
        # that atexit calls after ours.
        thread = threading.Thread(target=self._run, name="aiostream-dispatcher", daemon=True)
        # In an empty context, because some Pythons give a thread the context of the task that
        # starts it. What that task's variables hold would then never die.
        try:
            contextvars.Context().run(thread.start)
        except RuntimeError:
            # From Python 3.12 on, no thread can be started in the functions that atexit calls. The
            # janitor runs by then and does this work. Without it, these loops would hang.
            _process.watch_in_janitor(self._epoll.fileno(), lambda: self._serve(0))

    def add(self, bridge: Bridge) -> None:
        """Wakes `bridge` from now on when its queue was empty and something arrives.

        Threads: any.
        """
        descriptor = bridge.descriptor

        # Runs in a finalizer when the bridge dies. The thread forgets a dead bridge when something
        # arrives for its descriptor. But the descriptor's next owner may read that arrival first,
        # and then the thread never sees it. So the janitor forgets it too. It runs there, because a
        # finalizer must not take `_lock`. The default arguments bind the names, because at the
        # interpreter's end the names of the module may be gone.
        def gone(
            reference: weakref.ref[Bridge],
            forget: Any = self._forget,
            run: Any = _process.run_in_janitor,
        ) -> None:
            run(lambda: forget(descriptor, reference))

        with self._lock:
            self._bridges[descriptor] = weakref.ref(bridge, gone)
            # Edge-triggered, because only the loop reads the descriptor, and it may come late. The
            # level would keep this thread spinning until then.
            try:
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            except FileExistsError:  # of an earlier owner, which was not forgotten yet
                self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLET)

    def _run(self) -> None:
        _process.block_signals()
        while True:
            try:
                waits = not (self._failed or self._asked or self._ask_all)
                self._serve(None if waits else _RETRY_SECONDS)
            except BaseException as error:
                _process.survive(error, "dispatcher")

    def _serve(self, timeout: float | None) -> None:
        try:
            self._serve_once(timeout)
        except BaseException:
            # An allocation may fail in any line. What the epoll has said may be lost then, and it
            # says nothing twice. So all loops are asked the next time.
            self._ask_all = True
            raise

    def _serve_once(self, timeout: float | None) -> None:
        if self._ask_all:
            self._failed.update(list(self._bridges))
            self._ask_all = False
        arrived = {descriptor for descriptor, _ in self._epoll.poll(timeout)}
        # The failed ones again, because native code wakes an epoll once for each batch. Without a
        # retry, what has arrived for them would wait until something else arrives.
        for descriptor in arrived | self._failed:
            self._have_drained(descriptor)
        # Not the failed ones. If such a loop is closed, the retry above finds that out.
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
            # As in `_have_drained`. The loop is not looked after again until the next request.
            _process.report_unraisable(error, "aiostream's dispatcher")
            self._asked.discard(descriptor)
            return
        self._asked.discard(descriptor)
        if bridge is not None and bridge.asked:
            self._forget(descriptor, reference)
            bridge.close()

    def _have_drained(self, descriptor: int) -> None:
        reference = self._bridges.get(descriptor)
        bridge = reference() if reference is not None else None
        _stuck.begin("dispatcher")
        try:
            if bridge is not None:
                # Before the request, because the loop may drain at once.
                bridge.asked = True
                self._asked.add(descriptor)
            there = bridge is not None and bridge.schedule_drain()
        except BaseException as error:
            # The loop is an application's own class and may raise anything. An error must not end
            # this thread, because the other loops would hang. It is reported once, not each retry.
            if descriptor not in self._failed:
                _process.report_unraisable(error, "aiostream's dispatcher")
            self._failed.add(descriptor)
            return
        finally:
            _stuck.end()
        self._failed.discard(descriptor)
        if not there:
            self._asked.discard(descriptor)
            self._forget(descriptor, reference)
            if bridge is not None:
                bridge.close()

    def _forget(self, descriptor: int, reference: weakref.ref[Bridge] | None) -> None:
        # The next owner of the descriptor may watch it itself. If the thread did so too, each of
        # that owner's arrivals would wake this thread for nothing.
        with self._lock:
            # Another bridge may have been added meanwhile. To unregister its descriptor would make
            # its loop hang.
            if self._bridges.get(descriptor) is reference:
                self._bridges.pop(descriptor, None)
                with contextlib.suppress(OSError):
                    self._epoll.unregister(descriptor)


_the_dispatcher: Dispatcher | None = None  # written once, under _lock


def dispatcher() -> Dispatcher:
    """Returns the dispatcher of this process. The first call makes it.

    Threads: any.
    """
    global _the_dispatcher
    with _lock:
        if _the_dispatcher is None:
            _the_dispatcher = Dispatcher()
        return _the_dispatcher
