"""Helpers for the tests of programs that use aiostream, on a GPU and on the simulator.

`spin` and `Gate` keep a stream busy without guessing how long something takes. `ledger` finds what
a test has left behind. `Faults` has the simulated driver fail. The pytest plugin
(`pytest --aiostream=simulator`) uses them all, and `aiostream.blocking` for what blocks a loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from aiostream import _native
from aiostream._base import checks, development, driver
from aiostream._ends import ending, health
from aiostream._handles import interop
from aiostream._handles.operand import call_on
from aiostream._handles.owned import Owned
from aiostream._runtime import completion, process
from aiostream._runtime.statistics import Statistics, statistics
from aiostream._tools import kernels
from aiostream._tools.kernels import launch, spin
from aiostream.device import Context, Device

__all__ = [
    "Faults",
    "Gate",
    "LedgerError",
    "check",
    "launch",
    "ledger",
    "load_kernels",
    "recover",
    "settle",
    "spin",
]


def check(answer: tuple[Any, ...]) -> Any:
    """Unpacks what a function of `cuda.bindings.driver` has returned, and raises its error.

    Returns:
        Nothing, the one output, or a tuple of the outputs.

    Raises:
        CudaError: The code is not 0.
        TypeError: This is no tuple.

    Example:
        >>> from cuda.bindings import driver as cuda
        >>> from aiostream.testing import check
        >>> with aiostream.Device(0).primary_context.as_current():
        ...     memory = check(cuda.cuMemAlloc(1024))
        ...     check(cuda.cuMemFree(memory))
    """
    rule = "check takes the tuple that a function of cuda.bindings.driver returns, not"
    code, *outputs = checks.instance(tuple, answer, rule)
    if int(code) != 0:
        raise driver.error(int(code), "a call of cuda.bindings")
    return driver.unpacked(tuple(outputs))


# ------------------------------------------------------------------------------ kernels


def load_kernels(context: Context) -> None:
    """Loads these kernels now, because the driver may wait for all other work at a later load.

    Args:
        context: Where to load them, such as `stream.context` or `Device(0).primary_context`.

    Raises:
        TypeError: `context` is not a `Context`.
        CudaError: The driver refused.
    """
    rule = "load_kernels takes a Context, such as stream.context or Device(0).primary_context, not"
    kernels.load(checks.instance(Context, context, rule))


# ------------------------------------------------------------------------------ gates


class Gate:
    """Holds streams on the GPU until you open it: use it in place of a sleep.

    A held stream executes nothing that is enqueued later (`cuStreamWaitValue32` on pinned
    memory). It occupies one of the device's hardware queues, 8 by default, so hold few streams.
    The end of a `with` block opens the gate.

    Threads: any.

    Example:
        >>> from aiostream.testing import Gate
        >>> async with aiostream.Stream() as stream:
        ...     with Gate() as gate:
        ...         gate.hold(stream)
        ...         assert not stream.query()
        ...     await stream.synchronize_async()
    """

    _SIZE = 64  # bytes; of each gate, until the process ends, because a stream may still read them

    def __init__(self) -> None:
        context = Device(0).primary_context
        load_kernels(context)  # while a gate is shut, the driver would wait before it loads them
        with context.as_current():
            portable_and_mapped = 3
            self._pointer = int(driver.call("cuMemHostAlloc", self._SIZE, portable_and_mapped))
        self._word = ctypes.c_uint32.from_address(self._pointer)
        self._word.value = 0

    def hold(self, stream: Any) -> None:
        """Later work of the stream waits for `open()`.

        Raises:
            StreamClosedError: You have closed the stream.
            CudaError: The driver refused.
        """
        operand = interop.operand_of(stream)
        cuda = driver.bindings()
        with operand.context.as_current():
            flags = cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value
            pointer = cuda.CUdeviceptr(self._pointer)
            call_on(operand, "cuStreamWaitValue32", pointer, 1, flags)

    def open(self) -> None:
        """Lets everything through, also what is held later, until you shut it.

        The work behind it sees what your thread has written to memory before.
        """
        _native.store_word(self._pointer, 1)

    def shut(self) -> None:
        """Holds what comes from now on. Everything that was held before must be through."""
        _native.store_word(self._pointer, 0)

    def __enter__(self) -> Self:
        """Returns the gate."""
        return self

    def __exit__(self, *_: object) -> None:
        """Opens it."""
        self.open()


class GateOfTest(Gate):
    """The gate of the fixture `cuda_gate`: it opens by itself if a test has forgotten it.

    Otherwise the test would hang: the end of `async with Stream()` waits for the stream's work,
    also if an assertion has failed before the test opens the gate.

    Args:
        seconds: How long after the first `hold` it opens.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.has_given_up: bool = False
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def hold(self, stream: Any) -> None:
        """Holds the stream, and starts the clock."""
        super().hold(stream)
        if self._timer is None and self._word.value == 0:
            self._timer = threading.Timer(self._seconds, self._give_up)
            self._timer.daemon = True  # it must not keep the interpreter at its exit
            self._timer.start()

    def open(self) -> None:
        """Opens it, and stops the clock."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        super().open()

    def _give_up(self) -> None:
        # This runs in the timer's thread. After an `open()` that came at the same time, nothing is
        # held.
        if self._timer is not None:
            self.has_given_up = True
            super().open()


def settle(condition: Callable[..., bool], seconds: float = 10.0) -> bool:
    """Blocks until other threads have made `condition()` true.

    Returns:
        Whether it is true; `False` after that time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


# ------------------------------------------------------------------------------ the ledger


class LedgerError(AssertionError):
    """Something that a block began has not ended with it."""


@contextlib.contextmanager
def ledger(*, leaks: int = 0, seconds: float = 5.0) -> Iterator[None]:
    """A `with` block at whose end everything must have ended that it began.

    That is: every stream, event and graph is closed, no future or wait is pending, no object is
    kept alive for work whose end the driver cannot prove, and the counters of `statistics()` add
    up. If something is left, garbage is collected first. If the block raises, nothing is checked.

    Args:
        leaks: How many points the block leaves leaked. A context that fails leaks what was
            pending in it.
        seconds: How long to wait at the end while something is pending. What ends in this time
            counts as ended, such as work that the block has left on the GPU. If nothing is pending,
            what is open has half a second.

    Raises:
        LedgerError: Something is left. It says what, and where open objects were made.

    Example:
        >>> from aiostream.testing import ledger, spin
        >>> with ledger():
        ...     async with aiostream.Stream() as stream:
        ...         spin(stream, 0.001)
    """
    before, settled, began = statistics(), completion.settled_futures(), time.perf_counter()
    noted, development.notes_places = development.notes_places, True
    try:
        yield
    finally:
        development.notes_places = noted

    def has_ended() -> bool:
        return not _left_since(before, settled, leaks)

    if not has_ended():
        _collect()  # only now, because it takes long where much is imported
    # What is pending may end. If nothing is, only another thread could still close what is open.
    settle(lambda: has_ended() or not ending.anything_pending(), seconds)
    if not has_ended():
        _collect()  # what was pending has held garbage, such as the task of a loop that is closed
    if not settle(has_ended, min(seconds, _PATIENCE)):
        left = "; ".join(_left_since(before, settled, leaks)) or "it ended too late"
        raise LedgerError("\n".join([left, *_open_since(began)]))


_PATIENCE = 0.5  # seconds


def _open_since(began: float) -> list[str]:
    """What was made since and is open, and where it was made."""
    noted = [it for it in gc.get_objects() if issubclass(type(it), Owned) and it._made]
    return [
        f"  {each!r}, made at {each._made[1]}: close it, or use it in `async with`"
        for each in noted
        if each._made[0] >= began and each._owned and not each.closed
    ]


def forget_failed_test() -> None:
    """Destroys what a failed test has left, so that it cannot end in the middle of the next test.

    There it would count against what that test leaves behind, and hide it.
    """
    _collect()  # the frames of its traceback may lie in a cycle
    settle(lambda: not ending.anything_pending(), 1)


def _collect() -> None:
    process.finish_leftovers()  # the library's threads may still hold garbage that has just ended
    gc.collect()
    process.finish_leftovers()  # finalizers leave the destruction to the janitor


def _left_since(before: Statistics, settled: int, leaks: int) -> list[str]:
    # If the block is in a coroutine, its loop does not run now. So a future that is done, and of
    # which its task has yet to learn, does not count. Read last, because another loop may deliver
    # one meanwhile. It then counts too much here, and the next count corrects it.
    now = statistics()
    settled = completion.settled_futures() - settled
    pending = now.futures.pending - before.futures.pending
    counts = {
        "streams, events or graphs are open": now.handles.open - before.handles.open,
        "host functions are pending": now.points.host_functions - before.points.host_functions,
        "host functions are in graphs": now.points.captured - before.points.captured,
        "futures are pending": pending - settled,
        "waits are pending": now.waits.pending - before.waits.pending,
    }
    left = [f"{count} more {what}" for what, count in counts.items() if count > 0]
    leaked = now.points.leaked - before.points.leaked
    if leaked != leaks:
        were = "point was" if leaked == 1 else "points were"
        left.append(
            f"{leaked} {were} leaked, and not {leaks}. If the test loses a context, mark it "
            f"@pytest.mark.cuda_leaks({leaked})"
        )
    if not now.balanced:
        left.append(f"the counters do not add up:\n{now!r}")
    return left


# ------------------------------------------------------------------------------ faults


class Faults:
    """Has the simulated driver fail on command, and undoes it at the end of a `with` block.

    The block also finds out whether what you arranged has happened. A fault that never happened
    tests nothing.

    Args:
        patience: Seconds after which what hangs goes on by itself, so that the test ends. The block
            fails then.

    Raises:
        RuntimeError: The simulator is not this process's driver.
        AssertionError: At the end of the block, some arranged faults have not happened. Or
            something has hung for `patience`.

    Example:
        >>> from aiostream.testing import Faults
        >>> with Faults() as faults:
        ...     faults.fail("cuStreamCreateWithPriority", 2)
        ...     try:
        ...         aiostream.Stream()
        ...     except aiostream.OutOfMemoryError:
        ...         print("refused")
        refused
    """

    def __init__(self, patience: float = 30.0) -> None:
        from aiostream import simulator

        if not simulator.installed():
            raise RuntimeError(
                "faults are made on the simulator, and it is not this process's driver"
            )
        self._simulator = simulator
        self._patience, self._has_given_up = patience, False
        self._undo = contextlib.ExitStack()
        self._arranged: list[tuple[str, int, int]] = []  # the call, which one, and its count before

    def fail(self, call: str, code: int, *, nth: int = 1) -> None:
        """The `nth` coming call of a driver function answers `code`, once, and does nothing.

        Raises:
            TypeError, ValueError: As `simulator.fail` says.
        """
        __tracebackhide__ = True
        self._simulator.fail(call, code, nth=nth)
        self._arranged.append((call, nth, self._simulator.calls(call)))

    def hang(self, call: str, *, nth: int = 1) -> None:
        """The `nth` coming call of a driver function does not return until the block ends.

        If the thread of the loop makes that call, as it does for `cuEventQuery` and most others, no
        task runs meanwhile, and no timeout of a task ends it: use `endless_kernel` for that.

        Raises:
            TypeError, ValueError: As `simulator.hang` says.
        """
        __tracebackhide__ = True
        self._simulator.hang(call, nth=nth)
        self._start_clock(self._simulator.clear_faults)
        self._arranged.append((call, nth, self._simulator.calls(call)))

    def endless_kernel(self, stream: Any) -> None:
        """Later work of the stream waits until the block ends, as behind an endless kernel.

        Raises:
            StreamClosedError: You have closed the stream.
        """
        gate = self._undo.enter_context(Gate())
        gate.hold(stream)
        self._start_clock(gate.open)

    def _start_clock(self, go_on: Callable[[], object]) -> None:
        timer = threading.Timer(self._patience, self._give_up, [go_on])
        timer.daemon = True  # it must not keep the interpreter at its exit
        timer.start()
        self._undo.callback(timer.cancel)

    def _give_up(self, go_on: Callable[[], object]) -> None:
        self._has_given_up = True
        go_on()

    def lose_context(self, code: int = 700) -> None:
        """Fails every context of the process, as an illegal address does, until the block ends.

        A GPU that has fallen off the bus is 46, 719 or 999.

        Raises:
            ValueError: The code loses no context. `fail` has one call answer any code.
        """
        self._simulator.break_context(code)
        self._undo.callback(recover)  # not before, because a code that is refused breaks nothing

    def adversary(self, **modes: Any) -> None:
        """Makes the driver nastier until the end of the block, as `simulator.adversary` says."""
        self._simulator.adversary(**modes)

    def __enter__(self) -> Faults:
        """Returns this object."""
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Undoes everything."""
        self._simulator.adversary()
        left = self._simulator.clear_faults()  # first, because `recover` calls the driver
        self._undo.close()
        if self._has_given_up and error is None:
            raise AssertionError(
                f"what hangs has kept the test for {self._patience:g} s, so it went on by itself: "
                "it has hung in the thread of the loop, or the test waits for it without a timeout"
            )
        if left and error is None:
            count = self._simulator.calls
            since = [(call, nth, count(call) - before) for call, nth, before in self._arranged]
            said = [f"{call} (nth={nth}, called {n} times)" for call, nth, n in since if n < nth]
            raise AssertionError(f"{left} of the arranged faults did not happen: {', '.join(said)}")


def recover() -> None:
    """Makes the simulator's lost contexts healthy again, which no GPU can. Drops pending work.

    What waits for that work fails first (`simulator.recover`). Afterwards the library forgets the
    errors that it met: the listeners of `on_context_failed` are called again for the next one. A
    process that `exit_on_context_failed` has begun to end still ends. So test that function in a
    process of its own.

    Raises:
        RuntimeError: The simulator is not this process's driver.
    """
    from aiostream import simulator

    simulator.recover()
    # So that contexts that were destroyed have been met, too. Else the watcher would meet them
    # after the next line, and report them as new.
    health.health()
    # What the watcher has met is over now, and must not be reported later.
    _native.failures_forget()
    # The janitor may be about to report what native code met before. Without this, it could notify
    # a listener twice.
    process.finish_leftovers()
    # This is done again, because a driver call of the janitor may have begun before the recovery.
    _native.failures_forget()
    health.forget_failures()
