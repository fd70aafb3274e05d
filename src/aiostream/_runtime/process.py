"""What runs once per process: the native part, its threads, and the end by exit or fork.

The janitor serves what ended loops, finalizers and cancelled waits have left behind, in a thread
that may call the driver. The releaser drops the users' objects, whose destructors may block, and
has the process's files saved. Both run until the process ends, because an `atexit` handler that
the application registered before its first use of the library runs after `_stop`, and may await.
The thread that calls listeners begins with the first of them, and then runs as long.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import contextvars
import logging
import queue
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from aiostream import _native
from aiostream._base import driver

ORPHANS = 0  # the number of the queue that gets what arrives on closed queues

# It is held in `start` alone, because two threads may use the library first at the same time. It is
# reentrant, because a signal handler, or a finalizer in a garbage collection, may come to `start`
# in the thread that holds it. It then does the whole start, because each step can be repeated.
_lock = threading.RLock()
# It is written under _lock, after everything runs, and read without it, because each use of the
# library asks.
_started = False
# What `__init__` has to have done before the library is used first. Each may be called again.
before_first_use: list[Callable[[], None]] = []
# Seconds that the interpreter's end waits for these threads, because a destructor may block.
_EXIT_PATIENCE = 1.0
_PAUSE = 0.05  # seconds

# The threads that serve, by name. Each thread enters itself by `dict.setdefault`, which lets one
# thread win. So a start that a KeyboardInterrupt has cut short can be repeated, whether its thread
# had begun or not. Without this, a repeated start would run two janitors on one queue.
_serving: dict[str, object] = {}


def block_signals() -> None:
    """Blocks the process's signals in this thread. Call it first in a thread.

    Signals are for the application's own threads. If this thread took one, it would take it away
    from a thread that waits for it with `sigwait`. The signals of faults stay, because they belong
    to the thread that raises them.
    """
    faults = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGABRT"}
    wanted = {each for each in signal.valid_signals() if getattr(each, "name", None) not in faults}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)


def refuse_green_threads() -> None:
    """Refuses a process in which gevent or eventlet replaces what the library's threads need.

    Such a thread would run in the thread that starts it, and block that without end.

    Raises:
        RuntimeError: This is such a process.
    """
    for module, name in ((_thread, "start_new_thread"), (queue, "SimpleQueue"), (select, "epoll")):
        owner = getattr(getattr(module, name, None), "__module__", "gevent")  # it removes epoll
        if owner.partition(".")[0] in {"gevent", "eventlet"}:  # debuggers replace some of them too
            raise RuntimeError(
                f"{module.__name__}.{name} is not Python's own, as after gevent.monkey.patch_all() "
                "or eventlet.monkey_patch(), and aiostream needs threads of the system: use it in "
                "a process without such a patch, such as gunicorn's workers of another kind"
            )


def start_in_empty_context(thread: threading.Thread) -> None:
    """Starts a thread of the library.

    A free-threaded Python gives a thread the context of the one that starts it. The values of a
    request's variables would live as long as the thread.

    Raises:
        RuntimeError: Python has no thread left. Or it would be a green thread.
    """
    refuse_green_threads()
    contextvars.Context().run(thread.start)


def start_serving(name: str, serve: Callable[[], None]) -> None:
    # Returns when the thread has begun.
    if name in _serving:
        return
    has_begun = threading.Event()

    def run() -> None:
        first = False
        try:
            block_signals()
            # Another thread of this name may be there, because an interrupted start was repeated.
            first = _serving.setdefault(name, has_begun) is has_begun
        finally:
            has_begun.set()
        while first and not _native.is_forked():  # a listener may fork
            # No error ends it, not even SystemExit, because without the janitor closed queues
            # would never be delivered and streams never destroyed. An allocation may fail in any
            # line.
            try:
                serve()
            except BaseException as error:
                survive(error, name)

    # A daemon, because the interpreter would wait for any other thread before it runs `_stop`.
    start_in_empty_context(threading.Thread(target=run, name=f"aiostream-{name}", daemon=True))
    # Waited for, because the thread blocks its signals first. Until then it could take one.
    has_begun.wait()
    if name not in _serving:
        raise RuntimeError(f"the thread aiostream-{name} has ended at its beginning")


def survive(error: BaseException, name: str) -> None:
    """Reports an error that would end a thread of the library, which has to go on.

    It pauses then, because the error may come again at once.
    """
    # There may be no memory for these either. Without the pause the thread could take a whole core.
    try:
        _native.write_unraisable(error, f"the thread aiostream-{name}")
    except BaseException:
        pass
    try:
        time.sleep(_PAUSE)
    except BaseException:
        pass


# -------------------------------------------------------------------------------- the janitor

# Any thread appends, finalizers too, and the janitor removes. A deque, because its operations are
# atomic and take no lock that the thread under a finalizer could hold.
_tasks: deque[Callable[[], Any]] = deque()
# Descriptor -> what the janitor calls when it is readable. Any thread adds and the janitor removes,
# under _lock, because this and the epoll change together.
_served: dict[int, Callable[[bool], bool]] = {}
_epoll: Any = None  # a `select.epoll`; written once, by the start


def _clean() -> None:
    # An error may have ended the last pass after it had read the descriptor.
    _native.queue_wake(ORPHANS)
    arrived = set(_served.copy())  # what the epoll has said is lost then, and it says nothing twice
    soon: set[int] = set()  # those to call again after a pause, also if nothing arrives
    while True:
        for descriptor in arrived | soon:
            serve = _served.get(descriptor)
            again = serve is not None and serve(descriptor in arrived)
            (soon.add if again else soon.discard)(descriptor)
        arrived = {descriptor for descriptor, _ in _epoll.poll(_PAUSE if soon else None)}


def _serve_orphans(_: bool) -> bool:
    # The tasks come after the drain, which reads the descriptor. It would otherwise take away the
    # wake-up of a task that was appended meanwhile.
    _native.drain(ORPHANS)
    driver.report_failures()
    while (refusal := _native.drop_abandoned()) is not None:
        error = driver.error(*refusal)
        log("a handle leaked, because the driver did not destroy it: %s", error)
        where = "the last user of a closed handle, which the driver did not destroy"
        _native.write_unraisable(error, where)
    again = []
    while _tasks:
        task = _tasks.popleft()
        if _report_from(task, task) is False:  # `Handle.drop`, while a graph is in use
            again.append(task)
        # What the task held dies here. A reference in this frame would keep it until the next task,
        # perhaps for hours.
        task = None  # type: ignore[assignment]
    _tasks.extend(again)
    return bool(again)


def _report_from(where: object, function: Callable[[], Any]) -> Any:
    # An error of one task must not keep the others from being done.
    try:
        return _native.plain_result(function())
    except BaseException as error:
        _native.write_unraisable(error, where)
        return None


def log(message: str, *values: object) -> None:
    """Logs what an operator must know, if the application has configured logging.

    Without a handler, Python would print it to stderr, where the program's own output may be.
    """
    logger = logging.getLogger("aiostream")
    if logger.hasHandlers():
        logger.error(message, *values)


def run_in_janitor(task: Callable[[], Any]) -> None:
    """Has the janitor call `task`.

    Does nothing in a forked child, which has no janitor.

    Threads: any, also in a finalizer.
    """
    if _started and not _native.is_forked():
        # The append first, because the janitor may run right after the wake-up. The other way round
        # it would find no task and sleep.
        _tasks.append(task)
        _native.queue_wake(ORPHANS)


def serve_in_janitor(descriptor: int, function: Callable[[bool], bool], edge: int = 0) -> None:
    """Has the janitor call `function(True)` when a descriptor is readable. It must not block.

    While it returns true, the janitor calls `function(False)` every 50 ms too. It replaces an
    earlier function.

    Args:
        descriptor: A file descriptor.
        function: What to call.
        edge: `EPOLLET` if another thread reads the descriptor, and may come late. The level would
            keep the janitor spinning until then.

    Threads: any.
    """
    with _lock:
        _served[descriptor] = function
        try:
            _epoll.register(descriptor, select.EPOLLIN | edge)
        except FileExistsError:  # of an earlier function
            _epoll.modify(descriptor, select.EPOLLIN | edge)


def stop_serving(descriptor: int, function: Callable[[bool], bool]) -> None:
    """Ends `serve_in_janitor`, unless another function was passed since.

    Threads: the janitor's.
    """
    with _lock:
        # To unregister the descriptor of another function would make its loop hang.
        if _served.get(descriptor) == function:
            del _served[descriptor]
            with contextlib.suppress(OSError):
                _epoll.unregister(descriptor)


# -------------------------------------------------------------------------------- the listeners

# The listeners that are to be called, in order. Any thread puts, and their own thread gets.
_calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()


def call_in_order(function: Callable[[], Any]) -> None:
    """Has a thread call `function`, after all that were passed here before. It may block.

    The thread begins with the first of them. In the janitor's thread, closed queues and dropped
    streams would wait for a listener that blocks.

    Threads: any, also in a finalizer.
    """
    run_in_janitor(partial(call_listener, function))


def call_listener(function: Callable[[], Any]) -> None:
    """The same, also while the janitor is blocked.

    Threads: any in which a thread may be started.
    """
    _calls.put(function)
    try:
        start_serving("listener", _call_next)
    except (RuntimeError, MemoryError):  # the process has no thread left, or Python ends
        with contextlib.suppress(queue.Empty):  # the thread has begun, and called it
            _call_next(waits=False)


def _call_next(waits: bool = True) -> None:
    function = _calls.get(waits)
    _report_from(function, function)


def _run_after_calls(task: Callable[[], Any]) -> None:
    # This runs in the janitor's thread.
    if "listener" in _serving:
        _calls.put(task)
    else:
        task()


# -------------------------------------------------------------------------------- the releaser

# A SimpleQueue, because finalizers and signal handlers may call its `put`. `queue.Queue` takes a
# lock, and a finalizer in the thread that has it would deadlock.
_to_release: queue.SimpleQueue[Any] = queue.SimpleQueue()
# What writes a file that has to be there however the process ends. The releaser calls each about
# once a second, with `False`, and each decides whether it writes. `True` asks for all that is
# there. Filled before the releaser begins.
savers: list[Callable[[bool], None]] = []
_SAVE_SECONDS = 1.0
_SAVE_PATIENCE = 5.0  # seconds, because a user's destructor may hold the releaser


def _release() -> None:
    while True:
        held: Any = None
        with contextlib.suppress(queue.Empty):
            held = _to_release.get(timeout=_SAVE_SECONDS)
        _save(False)
        if held is not None:
            _report_from(held, held)
        del held


def _save(all_of_it: bool) -> None:
    for each in savers:
        _report_from(each, partial(each, all_of_it))


def save_soon() -> Callable[[], bool]:
    """Has the releaser save all that is there, because the process may be about to end.

    Returns:
        A function that says whether that is done, or has taken too long.
    """
    if not (savers and _started):
        return lambda: True
    saved, deadline = threading.Event(), time.monotonic() + _SAVE_PATIENCE
    run_in_releaser(partial(_save, True))
    run_in_releaser(saved.set)
    return lambda: saved.is_set() or time.monotonic() > deadline


def save_at_sigterm(save: Callable[[], object]) -> None:
    """Has the main thread call `save` when SIGTERM comes, before what handled that until now.

    Python runs no `atexit` handler if the signal ends the process. uvicorn ends itself by it, after
    its shutdown, with the handler that was there before its own.
    """
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        if not _native.is_forked():
            save()
        signal.signal(number, before)
        # A loop reads each signal from a descriptor, has read this one, and would count a second.
        before(number, frame) if callable(before) else signal.raise_signal(number)

    # Only the main thread can, and a handler that is not Python's could not be put back.
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handle)


def save_now() -> None:
    """Has the releaser save all that is there, and waits for that, for some seconds at most."""
    is_done = save_soon()
    while not is_done():
        time.sleep(_PAUSE / 10)


def release_in_thread(held: list[Any]) -> None:
    """Drops the last reference to users' objects in the releaser's thread, which clears the list.

    The caller has no other reference to them, because it could drop the last one then.

    Their destructors may block there. In the janitor's thread, queues, streams and the beginning of
    `on_context_failed`'s listeners would wait for them. Without the GIL, CPython may free an object
    later, in the thread that has made it.

    Threads: any, also in a finalizer.
    """
    # The destructors run in its `clear`. Not where the list dies, because without the GIL that may
    # be the thread that has made it.
    run_in_releaser(held.clear)


def run_in_releaser(task: Callable[[], Any]) -> None:
    """Has the releaser call `task`, which may block. Does nothing in a forked child.

    Threads: any, also in a finalizer.
    """
    if _started and not _native.is_forked():
        _to_release.put(task)


# -------------------------------------------------------------------------------- start and end


def start() -> None:
    """Starts the native part and the threads, once. If it fails, the next call tries again.

    Threads: any.

    Raises:
        NoDriverError: There is no CUDA driver.
        OSError: The process has no descriptor or thread left.
        RuntimeError: This is a forked child, or Python has no thread left, or no threads of the
            system.
        ValueError: An environment variable of the library makes no sense.
    """
    global _started, _epoll
    # `_started` is set last, because other threads read it without the lock and rely on the rest. A
    # flag that they see late costs them only the steps before the lock.
    if _started and not _native.is_forked():
        return
    refuse_green_threads()
    # Without the lock, because a call of the driver may wait for a thread that waits for the lock.
    for prepare in before_first_use:
        prepare()
    addresses = driver.native_addresses()
    with _lock:
        if _started:
            return
        # Each of these steps can be repeated, because an interrupt or an error may come after any
        # of them, and the next call then does all of them again.
        _native.set_callbacks(driver.error, release_in_thread)
        _native.bind(addresses)
        _epoll = _epoll or select.epoll()
        serve_in_janitor(_native.open_orphans(), _serve_orphans)
        _native.watcher_start()
        start_serving("janitor", _clean)
        start_serving("releaser", _release)
        atexit.register(_stop)
        _started = True


def _stop() -> None:
    # The interpreter ends. A driver's thread that asks for the GIL from now on would hang or crash.
    # What `atexit` handlers await later is still served, because completions need no GIL. The
    # watcher is stopped when Python has ended (`Py_AtExit`).
    if _native.is_forked():
        return
    _native.exit_disarm(0)
    try:
        _native.end_callbacks()
    finally:
        finish_leftovers()


def finish_leftovers() -> None:
    """Waits until the threads have done what was left to them, for a second at most."""
    if not _started or _native.is_forked():
        return  # there are no such threads
    cleaned, released = threading.Event(), threading.Event()
    run_in_janitor(partial(_run_after_calls, cleaned.set))
    deadline = time.monotonic() + _EXIT_PATIENCE
    if cleaned.wait(_EXIT_PATIENCE):
        _to_release.put(released.set)  # now, because the janitor has given it objects
        released.wait(deadline - time.monotonic())
