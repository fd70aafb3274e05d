"""The only module of the tests that uses private names. A rename in `src/` changes no other test.

Scripts in processes of their own may import it too. `tests/project/test_house.py` holds the rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable, Hashable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import aiostream.event as event_module
import nogpu
from aiostream import Context, CudaError, Stream, _native, device, testing
from aiostream._base import clash, driver, hints, stand_ins, turns
from aiostream._base.checks import has_gil as has_gil
from aiostream._handles import interop
from aiostream._handles import operand as _operand
from aiostream._objects import captures, runs
from aiostream._runtime import launchers, loops, observing, process
from aiostream._runtime.loops import bridge as loop_bridge
from aiostream._runtime.loops import on_asyncio, on_trio
from aiostream._runtime.process import run_in_janitor as run_in_janitor
from aiostream._runtime.process import run_in_releaser as run_in_releaser
from aiostream._tools import demo, doctor
from aiostream._waits import enqueuing
from aiostream._waits import ready as _ready
from nogpu import forwarding

if TYPE_CHECKING:
    import pytest  # not in the scripts that import this module, because it takes 0.15 s

    from aiostream._observers.awaits import Observer
    from aiostream.trace import Await

# --------------------------------------------------------------------------------------- the driver


def is_held(stream: Stream) -> bool:
    """Whether something uses the stream that only its own thread can end, as a `run`."""
    return bool(stream._operand.shared.held)


def bindings() -> ModuleType:
    """Loads the driver, if it is not loaded, and returns its bindings."""
    return driver.bindings()


def driver_call(name: str, *args: Any) -> Any:
    """Calls a function of the driver by its name; an error code is raised."""
    return driver.call(name, *args)


def remove_from_driver(patch: pytest.MonkeyPatch, name: str, says: str = "") -> None:
    """The driver lacks a function, as an old one does: the bindings raise an error for it."""

    def function(*_: Any) -> None:
        raise RuntimeError(says or f"Function {name} not found")

    patch.setattr(driver.bindings(), name, function)


def load_forwarding() -> None:
    """Loads the library that sees the calls that block, before the driver."""
    from aiostream._observers import blocked

    blocked.load_forwarding()


def forwarding_path() -> str:
    """That library."""
    return str(forwarding.LIBRARY)


def library_of(address: int | None) -> str:
    """The file whose code lies at an address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            begin, end = (int(each, 16) for each in fields[0].split("-"))
            if begin <= (address or 0) < end:
                return fields[5].strip()
    raise LookupError(f"nothing lies at {address}")


def blocking_kinds() -> tuple[str, ...]:
    """The kinds of calls, as the forwarding library numbers them, and that of long launches."""
    return *forwarding.KINDS, "launches"


def blocking_advice() -> dict[str, str]:
    """What to do, by those kinds."""
    return hints.ADVICE["blocking"]


def forget_places() -> None:
    """What `blocking.install` has counted is forgotten."""
    from aiostream import blocking

    blocking._places.clear()


def simulator_path() -> str:
    """The simulator's library."""
    return str(nogpu.LIBRARY)


def simulator_is_wanted() -> bool:
    """Whether the environment variable AIOSTREAM_SIMULATOR asks for the simulator."""
    return stand_ins.simulator_is_wanted()


def stream_status(stream: Any) -> int:
    """What the driver itself answers when it is asked for a stream: not through the library."""
    cuda = driver.bindings()
    return int(cuda.cuStreamQuery(cuda.CUstream(stream.handle))[0])


def create_context() -> Any:
    """Creates a context on device 0, which is not made current; returns the driver's handle."""
    device = driver_call("cuDeviceGet", 0)
    try:
        handle = driver_call("cuCtxCreate", None, 0, device)
    except TypeError:  # the bindings of CUDA 12 take two arguments
        handle = driver_call("cuCtxCreate", 0, device)
    driver_call("cuCtxPopCurrent")
    return handle


def driver_error(code: int, call: str, stream: str | None = None, hint: Any = None) -> CudaError:
    """Makes the exception for an error code of the driver."""
    return driver.error(code, call, stream)


def native_names() -> dict[str, object]:
    """Returns what the native module has, by name."""
    return dict(vars(_native))


def minimum_versions() -> dict[str, int]:
    """Returns the functions that older drivers lack, with the CUDA version that each needs."""
    return driver.MINIMUM


def native_addresses() -> dict[str, int]:
    """Asks the driver for the addresses that native code calls."""
    return driver.native_addresses()


# By owner: names that it lacks, and what to write.
ADVICE = {key: hints.ADVICE[key] for key in hints.ADVICE.keys() - {"driver", "blocking"}}


def start() -> None:
    """Starts the native part and the threads, as the first use does."""
    process.start()


def driver_version() -> int:
    """Returns the CUDA version of the driver, 13010 for 13.1."""
    return driver.driver_version()


_replaced: dict[str, int] = {}  # the addresses that the native part calls in place of the driver's


@contextlib.contextmanager
def native_call_replaced(
    name: str, signature: Any, replace: Callable[[Any], Callable[..., int]]
) -> Iterator[None]:
    """Within the block, the native part calls `replace(original)` for one driver function.

    Blocks for several functions may be nested.
    """
    before = driver.native_addresses() | _replaced
    replacement = signature(replace(signature(before[name])))
    _replaced[name] = _address_of(replacement)
    _native.bind(before | _replaced)
    try:
        yield
    finally:
        _replaced[name] = before[name]
        _native.bind(before)


def block_native_call(name: str) -> None:
    """From now on the native part's calls of a driver function do not return.

    Without Python, whose lock they would need.
    """
    addresses = driver.native_addresses()
    _native.bind({**addresses, name: _address_of(ctypes.CDLL(None).pause)})


keep_work = runs._leave


@contextlib.contextmanager
def blocked_janitor() -> Iterator[None]:
    """Blocks the janitor's thread for a block."""
    ends = threading.Event()
    process.run_in_janitor(ends.wait)
    try:
        yield
    finally:
        ends.set()


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def simulated_calls() -> dict[str, int]:
    """Returns how often each driver function was called that the simulator has."""
    cuda = nogpu._driver()
    name, lacking, count = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_ulong()
    found: dict[str, int] = {}
    index = 0
    while cuda.nogpu_known(index, ctypes.byref(name), ctypes.byref(lacking), ctypes.byref(count)):
        if not lacking.value and name.value is not None:
            found[name.value.decode()] = count.value
        index += 1
    return found


def uses_of_gone() -> tuple[int, str | None]:
    """How many calls have used what went with its context, and the driver function of the latest.

    Only the simulator counts them. A GPU's driver crashes the process at some of them.
    """
    latest = ctypes.c_char_p()
    count = int(nogpu._driver().nogpu_uses_of_gone(ctypes.byref(latest)))
    return count, latest.value.decode() if latest.value is not None else None


def simulated_objects() -> dict[str, int]:
    """Returns how many of the driver's objects there are that a program has to destroy."""
    cuda = nogpu._driver()
    cuda.nogpu_objects.restype = ctypes.c_size_t
    # As in `enum object_kind`.
    kinds = {"streams": 1, "events": 2, "graphs": 6, "executables": 8, "user objects": 9}
    return {name: cuda.nogpu_objects(kind) for name, kind in kinds.items()}


# ------------------------------------------------------------------------------------------ kernels


# Public now, and known to the tests by these names.
launch_kernel, load_kernels, spin = testing.launch, testing.load_kernels, testing.spin


# --------------------------------------------------------------------------------------- interrupts

ENQUEUE_STEPS = {
    function.__code__
    for function in (
        enqueuing.enqueue,
        loop_bridge.Bridge.drain,
        on_asyncio.AsyncioBridge.new_polled_future,
        on_asyncio.AsyncioFuture.cancel,
    )
}
"""The code of all that Python does for a future of `enqueue_async`, in asyncio."""

START_STEPS = {function.__code__ for function in (process.start, process.start_serving)}
"""The code of all that Python does for the library's first use, once the driver is loaded."""

STEPS_WITH_LOCKS = START_STEPS | {
    function.__code__
    for function in (
        driver._load,
        on_asyncio._new_bridge,
        on_trio.current_bridge,
        process.serve_in_janitor,
        Context.from_handle.__func__,  # type: ignore[attr-defined]
        Context._ensure_monitored,
    )
}
"""The code that makes what there is once in a process, a context or a loop."""
QUEUE_STEPS = {function.__code__ for function in (loops.Bridge.__init__, enqueuing.complete)}
"""The code that opens a loop's queue, and that enqueues a host function whose ticket arrives there.
"""


# ----------------------------------------------------------------------------------------- counters

POINTS_ARMED = _native.COUNTERS.index("POINTS_ARMED")
"""Index in `native_counters()`: host functions and callbacks that were enqueued."""
WAITS_WATCHED = _native.COUNTERS.index("WAITS_WATCHED")
"""Index in `native_counters()`: how often a wait was left to the watcher."""
WAITS_HANDED_BACK = _native.COUNTERS.index("WAITS_HANDED_BACK")
"""Index in `native_counters()`: how often the watcher has handed a wait back to its task."""
WAITS_BY_TIMER = _native.COUNTERS.index("WAITS_BY_TIMER")
"""Index in `native_counters()`: how often a wait was left to a timer of its loop."""
EVENT_POLLS = _native.COUNTERS.index("EVENT_POLLS")
"""Index in `native_counters()`: polls of events by the watcher."""
POINTS_MADE = _native.COUNTERS.index("POINTS_MADE")
"""Index in `native_counters()`: the points whose memory was made. It is recycled, not freed."""
WAITS_MADE = _native.COUNTERS.index("WAITS_MADE")
"""Index in `native_counters()`: the waits whose memory and event were made. Both are recycled."""
HISTORIES = _native.COUNTERS.index("HISTORIES")
"""Index in `native_counters()`: prediction histories that exist now."""


def pending_waits() -> int:
    """Returns how many waits have a task."""
    return _native.pending_waits()[0]


def native_counters() -> list[int]:
    """Returns the native part's counters, without the checks of `statistics()`."""
    return _native.counters()


# -------------------------------------------------------------------------------------------- waits


def native_strategies() -> tuple[str, ...]:
    """The names of the wait strategies in native code's table."""
    return _native.WAIT_STRATEGIES


def begin_wait(stream: Stream, strategy: int) -> Any:
    """Begins a wait with the strategy of that number."""
    reference = stream._operand
    wait_list = _operand.wait_list_of(reference)
    return wait_list.begin(reference.handle, current_bridge().queue, strategy)


class _Reserved:
    def __init__(self, *of: Any) -> None:
        self.completion = _native.Completion(*of)

    def __del__(self) -> None:
        self.completion.fire(0)


def reserve_wait(stream: Stream, strategy: int) -> Any:
    """Reserves a wait with the strategy of that number, until what it returns is dropped."""
    reference, queue = stream._operand, current_bridge().queue
    reserved = _Reserved(None, reference.name)
    reserved.completion.expect(reference.context._ensure_monitored(), queue)
    wait_list = _operand.wait_list_of(reference)

    def refuse() -> None:  # so nothing is recorded
        raise LookupError

    with contextlib.suppress(LookupError):
        reserved.completion.run(wait_list, strategy, reference.handle, refuse)
    return reserved


def set_prediction(enabled: bool) -> None:
    """Switches the prediction of waits on or off."""
    _native.predict(enabled)


def limit_timer(most: int) -> int:
    """Sets how many waits a loop's timer takes; returns the limit before."""
    return _native.limit_timer(most)


def register_context(context: Context) -> int:
    """Returns the watcher's number of a context, which is registered with it if it was not."""
    return context._ensure_monitored()


def refuse_contexts(patch: pytest.MonkeyPatch) -> None:
    """The watcher refuses every new context, as if there were too many."""

    def context_register(*_: object) -> int:
        raise RuntimeError("this process has used 4096 CUDA contexts")

    patch.setattr(_native, "context_register", context_register)


def use_wait_list(context: Context, stream_id: int) -> None:
    """Looks up the wait list of a stream, as each wait does; makes it if there is none."""
    context._wait_list(stream_id)


def wait_list_count(context: Context) -> int:
    """Returns how many streams' wait lists a context keeps."""
    return len(context._wait_lists)


def start_watcher() -> None:
    """Starts the watcher thread."""
    _native.watcher_start()


def stop_watcher() -> None:
    """Stops the watcher thread and waits for the end of its current pass."""
    _native.watcher_stop(False)


def intercept_hand_back(
    patch: pytest.MonkeyPatch, act: Callable[[Any, Callable[[], None]], object]
) -> None:
    """Calls `act(wait, hand_back)` where a wait is handed back; `hand_back()` carries it out."""

    def intercept(future: Any, answer: Any, set_result: Callable[[], None]) -> None:
        def hand_back() -> None:
            if not future.done():  # or `act` has cancelled it, and the wait is dropped
                set_result()

        if isinstance(answer, _native.Wait):
            act(answer, hand_back)
        else:
            set_result()

    class Intercepted(asyncio.Future[Any]):
        def set_result(self, answer: Any) -> None:
            intercept(self, answer, lambda: asyncio.Future.set_result(self, answer))

    def set_result(future: Any, answer: Any) -> None:
        intercept(future, answer, lambda: original(future, answer))

    original, bridge = on_trio.TrioFuture._set_result, on_asyncio.AsyncioBridge
    make: Any = bridge.new_future
    patch.setattr(bridge, "new_future", lambda self: Intercepted(loop=make(self).get_loop()))
    patch.setattr(on_trio.TrioFuture, "_set_result", set_result)


def current_bridge() -> Any:
    """Returns the running loop's bridge to native code: `queue`, `descriptor`, `drain()`."""
    return loops.current_bridge()


def schedules_drain_by(token: Any) -> bool:
    """Has the running trio loop's bridge ask for a drain by another `TrioToken`."""
    from unittest import mock

    bridge = loops.current_bridge()
    with mock.patch.object(bridge, "_token", token):
        return bridge.call_soon(bridge.drain)


def loop_kind() -> str:
    """Returns to which kind of loop a call of this place belongs: asyncio or trio."""
    return "trio" if isinstance(loops.current_bridge(), on_trio.TrioBridge) else "asyncio"


def trio_without_its_name() -> contextlib.AbstractContextManager[Any]:
    """Within the block trio does not say where it is at work, as a later release may not."""
    from unittest import mock

    import trio

    return mock.patch.object(turns, "at_work", turns._Asked(trio))


def is_drain(callback: Any) -> bool:
    """Whether a loop's callback is a bridge's `drain` method."""
    return getattr(callback, "__func__", None) is loop_bridge.Bridge.drain


def readerless_descriptors() -> set[int]:
    """Returns the loops' descriptors that the janitor watches, by what the kernel says."""
    with open(f"/proc/self/fdinfo/{process._epoll.fileno()}") as info:
        return {int(line.split()[1]) for line in info if line.startswith("tfd:")}


def janitor_is_idle() -> bool:
    """Whether the janitor thread has done all its tasks, also the one that it was doing."""
    done = threading.Event()
    process.run_in_janitor(done.set)
    return done.wait(1)


def intercept_drain(
    patch: pytest.MonkeyPatch, act: Callable[[bool, Callable[[], None]], object]
) -> None:
    """Calls `act(orphaned, drain)` in place of each drain; `drain()` carries it out."""
    original = _native.drain

    def drain(queue: int) -> None:
        act(queue == process.ORPHANS, lambda: original(queue))

    patch.setattr(_native, "drain", drain)


def owners() -> list[Any]:
    """Returns what the points of the process stand for."""
    return _native.owners()


def describe(owner: Any) -> str:
    """Says what a point stands for."""
    names = ("is_pending", "stream", "future", "order", "taken")
    return f"{type(owner).__name__} {[getattr(owner, name, None) for name in names]}"


def pending_completion(future: Any, orphaned: bool = False) -> _native.Completion:
    """Makes a pending completion that no driver call belongs to, of the loop that runs here."""
    made, used = _native.Completion(future, "a stream"), operand_of(Stream.legacy())
    queue = process.ORPHANS if orphaned else loops.current_bridge().queue
    made.expect(used.context._ensure_monitored(), queue)
    return made


def arrive(completion: _native.Completion) -> None:
    """Has the point of such a completion arrive."""
    completion.fire(0)


def fail_future(future: Any, error: BaseException) -> None:
    """Settles a future of the library with an exception."""
    own = isinstance(future, _native.OwnFuture)
    (future._set_exception if own else future.set_exception)(error)


def operand_of(stream: Any) -> Any:
    """How the library uses a stream of another library, or its address."""
    return interop.operand_of(stream)


def pinned(owned: Any) -> Any:
    """Keeps the handle of a stream or graph in use until the block ends, as driver calls do."""
    return _operand.pin(owned._handle, owned._name)


RESULT_NO_MEMORY: int = _native.RESULT_NO_MEMORY
"""What native code answers when there is no memory left."""


def raise_for(result: int, call: str, stream: str) -> None:
    """Turns the answer of a native call into its exception."""
    driver.raise_for(result, call, stream)


def replace_captures(patch: pytest.MonkeyPatch, listed: list[Any]) -> None:
    """Replaces the list of the captures that go on, which must be empty."""
    assert not captures._in_progress
    patch.setattr(captures, "_in_progress", listed)


def captures_in_progress() -> int:
    """Returns how many captures the library has listed."""
    return len(captures._in_progress)


def forget_retired() -> None:
    """From now on no retired stream is used again."""
    for context in list(device._contexts.values()):
        context._retired.clear()


def fail_references(patch: pytest.MonkeyPatch) -> None:
    """There is no memory for the object that each stream and event gets behind its handle."""

    def reference(*_: Any, **__: Any) -> Any:
        raise MemoryError

    for module in (event_module, _operand):
        patch.setattr(module, "Operand", reference)


def last_handle_of(node: Any) -> int:
    """Returns a graph node's handle, also after its graph was closed."""
    handle: int = node._handle
    return handle


def adversary_in_force() -> tuple[bool, float, bool, float, bool]:
    """Returns what the simulator's adversary does now; `late_faults` is the fourth."""
    return nogpu._adversary


# ------------------------------------------------------------------------------------- command line


def demo_drawing(recording: Any, beats: list[int]) -> list[str]:
    """Returns the lines that the demo prints for a recording, and the beats of its heart."""
    return demo._drawing(recording, beats)


def doctor_device(name: str, mps: bool) -> str:
    """Returns what `doctor` says about a device."""
    return doctor.shared(name, mps)


def report_problem(what: str, finding: str, remedy: str) -> int:
    """Prints what `doctor` says about one problem; returns its exit code."""
    report = doctor.Report()
    report.problem(what, finding, remedy)
    return report.end()


def other_distribution() -> str | None:
    """Returns where the metadata of PyPI's other aiostream lies, or None."""
    return clash.other_distribution()


# ---------------------------------------------------------------------------------------- launches

LAUNCH_PLACES = launchers._PLACES
call_in_launching_thread = launchers.call
"""How many launching threads call functions at the same time."""


def limit_launch_patience(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """A launching thread may be in a call for `seconds` and keep its place."""
    patch.setattr(launchers, "_PATIENCE", seconds)


def replace_driver_version(monkeypatch: pytest.MonkeyPatch, function: Callable[[], int]) -> None:
    """Has a command ask another function for the driver's version."""
    monkeypatch.setattr(driver, "driver_version", function)


def ordered_completions() -> int:
    """How many completions of the loop that runs here stand in the order of their stream."""
    return sum(getattr(owner, "order", None) is not None for owner in _native.owners())


def observers() -> list[Observer]:
    """What awaits are reported to now."""
    return list(observing.hook)


@contextlib.contextmanager
def observer_that_acts(moment: str, number: int, act: Callable[[], object]) -> Iterator[None]:
    """Has an observer call `act` when it is called for such a moment the n-th time."""
    from aiostream._observers.awaits import Observation

    calls: Iterator[Callable[[], object]] = iter([*[int] * (number - 1), act])

    class Acting(Observation):
        sees_steps = True

    setattr(Acting, moment, lambda *_: next(calls, int)())

    def observer(*_: Any) -> Observation:
        return Acting()

    observing.hook[observer] = None
    try:
        yield
    finally:
        del observing.hook[observer]


def perfetto(awaits: list[Await]) -> str:
    """What a trace of these awaits is in Chrome's format."""
    from aiostream._observers import trace_files

    return trace_files.perfetto(trace_files.Trace(awaits, 0, 0.0, 0, 0.0, 100_000))


def code_of_query(query: Callable[[], Any]) -> Hashable:
    """By what `ready` knows that two of its queries wait for the same kind of work."""
    return _ready._code_of(query)
