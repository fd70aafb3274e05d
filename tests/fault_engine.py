"""Fails each call that a piece of the library makes, once, at every position, and looks at what is
left.

A `Scenario` uses one public path. Its part that is put to the test stands in a `with faults:`
block. It runs without a fault first. That shows how often it calls each function of the driver, and
of libc if `faulty_libc.c` is preloaded. Then it runs once for each of these calls with that call
failing. After each run the numbers of `statistics()` must add up, and no descriptor, thread
or object of the driver may be left that was not there before. What the scenario does behind the
block shows that the stream and the loop go on.

Programs of `test_faults.py` import this in processes of their own: a fault must not reach the
process that tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import faulthandler
import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from typing import Any

import anyio
import anyio.lowlevel

from aiostream import CudaError, NoDriverError, Statistics, simulator, statistics
from internals import bindings, run_in_janitor, simulated_calls, simulated_objects

# CUDA_ERROR_OPERATING_SYSTEM: it comes and goes, and no part of the library treats it specially
CODE = 304
# As in faulty_libc.c.
LIBC = ["allocation", "eventfd", "epoll_create1", "epoll_ctl", "timerfd_create", "pthread_create"]
ERRNOS = {"allocation": errno.ENOMEM, "epoll_ctl": errno.ENOSPC, "pthread_create": errno.EAGAIN}
DESTROYERS = {"cuStreamDestroy", "cuEventDestroy", "cuGraphDestroy", "cuGraphExecDestroy"}
DESTROYERS |= {"cuUserObjectRelease"}
COMPLETIONS = {"cuLaunchHostFunc", "cuStreamAddCallback", "cuEventQuery"}
MAY_BE_OVERCOME = {
    "allocation": "nothing is predicted, or a pool polls a stream again",
    "cuCtxGetId": "then a context is taken to be there",
    "cuCtxPopCurrent": "by native code, behind what the call is for",
    "cuCtxPushCurrent": "before a destruction, which does not need it",
    "cuEventQuery": "of a wait that was cancelled, or for a pool, which polls again",
    "cuEventRecordWithFlags": "behind work that no wait is for, or for a pool, which polls again",
    "epoll_ctl": "on trio: the janitor serves the run's queue then",
    "cuStreamGetCaptureInfo": "a capture is known by its stream too",
    "cuStreamIsCapturing": "after the enqueue, which has succeeded",
    "cuStreamQuery": "by the watcher, or for a pool, which polls again",
    "cuThreadExchangeStreamCaptureMode": (
        "by native code: the call may end a capture then, and nothing else"
    ),
} | dict.fromkeys(DESTROYERS, "by a finalizer, whose janitor has no caller")
HANG_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Point:
    """The call that fails: the `nth` of a function in a `with faults:` block."""

    name: str
    nth: int

    def __str__(self) -> str:
        return f"{self.name} #{self.nth}"


# -------------------------------------------------------------------------------- sources of faults

_libc = ctypes.CDLL(None)
PRELOADED = hasattr(_libc, "faulty_fail")


def watch_allocations() -> None:
    """From now on the allocations of the native part can fail."""
    if PRELOADED and not (
        _libc.faulty_watch(b"/aiostream/_native.") and _libc.faulty_exempt(b"/nogpu/lib/")
    ):
        raise RuntimeError("the native part, or the simulator, is not loaded")


def _counts() -> dict[str, int]:
    counts = simulated_calls() if simulator.installed() else {}
    if PRELOADED:
        counts |= {name: _libc.faulty_count(number) for number, name in enumerate(LIBC)}
    return counts


def _arm(point: Point) -> None:
    if point.name in LIBC:
        _libc.faulty_fail(LIBC.index(point.name), ctypes.c_long(point.nth))
    else:
        simulator.fail(point.name, CODE, nth=point.nth)


def _disarm() -> bool:
    """Whether the fault that was armed has come."""
    come = False
    if PRELOADED:
        come = sum(_libc.faulty_fail(number, ctypes.c_long(0)) for number in range(len(LIBC))) > 0
    return come or (simulator.installed() and simulator.clear_faults() == 0)


class Faults:
    """The `with faults:` block of a scenario: counts the calls in it, or fails one of them."""

    def __init__(self) -> None:
        self.point: Point | None = None  # the call that fails; None: the block is only counted
        self.counted: dict[str, int] = {}
        self.reached = False
        self.error: Exception | None = None
        self.reports: list[BaseException] = []  # what could only be reported

    def __enter__(self) -> Faults:
        self.error, self.reached = None, False
        self._before = _counts()
        if self.point is not None:
            _arm(self.point)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        self.reached = _disarm()
        self.counted = {
            name: count - self._before.get(name, 0) for name, count in _counts().items()
        }
        self.counted = {name: count for name, count in self.counted.items() if count}
        if self.point is None:
            return False
        self.reached = self.reached and self.counted.get(self.point.name, 0) >= self.point.nth
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None

    def report(self, error: BaseException | None) -> None:
        """Notes an error that nothing could raise."""
        if error is not None:
            self.reports.append(error)


def is_right(error: BaseException, point: Point) -> bool:
    """Whether this is the documented error for that call."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_right(each, point) for each in error.exceptions)
    if point.name == "allocation" and isinstance(error, MemoryError):
        return True
    if point.name in LIBC:
        if point.name == "pthread_create" and isinstance(error, RuntimeError):
            return "can't start new thread" in str(error)
        return isinstance(error, OSError) and error.errno == ERRNOS.get(point.name, errno.EMFILE)
    if point.name in ("cuInit", "cuDeviceGetCount") and isinstance(error, NoDriverError):
        return point.name in str(error)
    if not isinstance(error, CudaError) or error.code != CODE:
        return False
    # A completion reads its context's health (cuStreamQuery), and says which call it is the
    # completion of.
    return _is_call(error.call, point.name) or (
        point.name == "cuStreamQuery" and error.call in COMPLETIONS
    )


# What the library calls in place of what it says: another form of the same function.
OTHER_FORMS = {"cuEventRecord": "cuEventRecordWithFlags", "cuLaunchHostFunc_v2": "cuLaunchHostFunc"}


def _is_call(said: str, name: str) -> bool:
    base, _, version = said.rpartition("_v")
    plain = base if version.isdigit() else said
    return name in (said, plain, OTHER_FORMS.get(said))


def judged(faults: Faults, point: Point | None) -> tuple[str, list[str]]:
    """What came of a fault, and what is wrong about it. Lets go of the errors, because their
    tracebacks keep objects alive.
    """
    raised = [] if faults.error is None else [faults.error]
    wrong = [
        f"the wrong error: {error!r}"
        for error in [*raised, *faults.reports]
        if point is None or not is_right(error, point)
    ]
    if raised and not faults.reached:
        wrong.append(f"an error without a fault: {raised[0]!r}")
    outcome = "raised" if raised else "reported" if faults.reports else "overcome"
    if faults.reached and outcome == "overcome" and point and point.name not in MAY_BE_OVERCOME:
        wrong.append("nothing was raised or reported")
    faults.error = None
    faults.reports.clear()
    return outcome, wrong


# ------------------------------------------------------------------------------------- what is left


def resources() -> dict[str, int]:
    """Counts what a fault must not leave behind."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        **simulated_objects(),
    }


def _pop_contexts() -> int:
    """Takes off what is left on this thread's stack of contexts; how many they were."""
    driver = bindings()
    count = 0
    while int(driver.cuCtxGetCurrent()[1]):
        driver.cuCtxPopCurrent()
        count += 1
    return count


def _has_ended() -> bool:
    now = statistics()
    return (
        now.balanced
        and now.points.pending == now.points.captured
        and now.futures.pending == 0
        and now.waits.pending == 0
    )


def _differences(before: Statistics, now: Statistics) -> str:
    groups = [
        (name, getattr(before, name), getattr(now, name))
        for name in ("points", "futures", "handles", "waits")
    ]
    fields = [(f"{name}.{field.name}", getattr(then, field.name), getattr(since, field.name))
              for name, then, since in groups for field in dataclasses.fields(then)]  # fmt: skip
    return ", ".join(f"{name} {then} -> {since}" for name, then, since in fields if then != since)


def _growth(before: dict[str, int]) -> dict[str, int]:
    return {
        name: count - before[name] for name, count in resources().items() if count > before[name]
    }


# ---------------------------------------------------------------------------------------- scenarios


@contextlib.asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield None


@dataclasses.dataclass
class Scenario:
    """One public path: `act(faults, kept)`, where `kept` serves all its runs."""

    name: str
    act: Callable[[Faults, Any], Awaitable[None]]
    keep: Callable[[], contextlib.AbstractAsyncContextManager[Any]] = _nothing
    exempt: Set[str] = frozenset()
    """Functions that do not fail here."""


def points_of(counted: Mapping[str, int], most: int, chosen: random.Random) -> list[Point]:
    """The first positions of each function, and a sample of the others, `most` in all."""
    points = []
    for name, count in sorted(counted.items()):
        first = count if count <= most else most - most // 3
        others = sorted(chosen.sample(range(first + 1, count + 1), min(most, count) - first))
        points += [Point(name, nth) for nth in (*range(1, first + 1), *others)]
    return points


@dataclasses.dataclass
class Findings:
    """What all scenarios of a process have found."""

    tried: int = 0
    reached: int = 0
    outcomes: Counter[tuple[str, str, str]] = dataclasses.field(default_factory=Counter)
    violations: list[str] = dataclasses.field(default_factory=list)


class Explorer:
    """Runs scenarios with each of their calls failing.

    Args:
        pause: Lets the loop and other threads go on a little; awaited.
        most: How many positions of one function are tried in a scenario; the first ones, and a
            sample of the others.
        seed: Of that sample.
    """

    def __init__(self, pause: Callable[[], Awaitable[None]], most: int, seed: int) -> None:
        self._pause, self._most, self._random = pause, most, random.Random(seed)
        self.faults = Faults()
        self.findings = Findings()

    async def explore(self, scenario: Scenario) -> None:
        """Tries all the scenario's faults."""
        began = time.monotonic()
        print("#", scenario.name, flush=True)
        points = None
        while points is None or points:  # anew after a violation, which may have left anything
            async with scenario.keep() as kept:
                if points is None:
                    try:
                        points = await self._points(scenario, kept)
                    except Exception as error:
                        self.findings.violations += [f"{scenario.name}: without a fault: {error!r}"]
                        return
                while points:
                    point = points.pop(0)
                    if not await self._try(scenario, kept, point):
                        break
        print(f"# {time.monotonic() - began:.2f} s", flush=True)

    async def _points(self, scenario: Scenario, kept: Any) -> list[Point]:
        most: Counter[str] = Counter()
        # What is made at the first use is made then; and counts vary where threads poll.
        for _ in range(3):
            await self._run(scenario, kept, None)
            most |= Counter(self.faults.counted)
            await self._until(_has_ended)
        calls = {name: most[name] for name in most if name not in scenario.exempt}
        return points_of(calls, self._most, self._random)

    async def _try(self, scenario: Scenario, kept: Any, point: Point) -> bool:
        """False: something was wrong."""
        self.findings.tried += 1
        wrong: list[str] = []
        growing = set(resources())
        if point.name in DESTROYERS:  # what the driver refuses to destroy is still there
            growing -= set(simulated_objects())
        # What is kept for later, such as the memory of a wait, does not grow each time.
        for attempt in range(4):
            before = resources()
            wrong += await self._attempt(scenario, kept, point, attempt == 0)
            if not wrong:
                await self._until(
                    lambda before=before, growing=growing: not growing & _growth(before).keys(), 0.5
                )
            growing &= _growth(before).keys()
            if wrong or not growing:
                break
        else:
            wrong.append(f"leaves more {' and '.join(sorted(growing))} each time")
        self.findings.violations += [f"{scenario.name}: {point}: {each}" for each in wrong]
        return not wrong

    async def _attempt(self, scenario: Scenario, kept: Any, point: Point, count: bool) -> list[str]:
        before = statistics()
        try:
            await self._run(scenario, kept, point)
        except TimeoutError:
            return ["hangs"]
        except Exception as error:
            _pop_contexts()
            return [f"cannot go on: {error!r} (raised first: {self.faults.error!r})"]
        # The janitor reports an error after `statistics()` has counted it. Without the GIL the next
        # attempt could begin in between, and take the report for its own.
        has_reported = threading.Event()
        run_in_janitor(has_reported.set)
        await self._until(has_reported.is_set)
        faults = self.faults
        what, wrong = judged(faults, point)
        if _pop_contexts() and point.name != "cuCtxPopCurrent":
            wrong.append("leaves a context current")
        refused = point.name in DESTROYERS  # then the object is still there
        # Fewer may be open than before, because the janitor may still have had an object of the
        # last attempt. That none is counted twice is a part of `balanced`.
        if not await self._until(
            lambda: _has_ended() and (refused or statistics().handles.open <= before.handles.open)
        ):
            wrong.append(f"statistics(): {_differences(before, statistics())}")
        leaked = statistics().points.leaked - before.points.leaked
        if count and faults.reached:
            self.findings.reached += 1
            outcome = f"{what}, {leaked} leaked" if leaked else what
            self.findings.outcomes[scenario.name, point.name, outcome] += 1
        return wrong

    async def _run(self, scenario: Scenario, kept: Any, point: Point | None) -> None:
        self.faults.point = point
        self.faults.reports.clear()
        faulthandler.dump_traceback_later(3 * HANG_SECONDS, exit=True)
        try:
            is_in_loop = self._pause is not sleepless
            with anyio.fail_after(HANG_SECONDS) if is_in_loop else contextlib.nullcontext():
                await scenario.act(self.faults, kept)
        finally:
            faulthandler.cancel_dump_traceback_later()
            _disarm()

    async def _until(self, condition: Callable[..., bool], seconds: float = 10.0) -> bool:
        began = time.monotonic()
        collect_at = 0.02
        while not condition():
            passed = time.monotonic() - began
            if passed > collect_at:  # again, because a thread may have let go of a cycle since
                gc.collect()
                collect_at = 4 * passed
            if passed > seconds:
                return False
            await self._pause()
        return True


# --------------------------------------------------------------------------------------- first uses


def explore_starts(
    uses: dict[str, Callable[[Faults], None]], most: int, seed: int, sample: int
) -> Findings:
    """Each first use of the library, in a child of its own for each fault; the driver must not have
    been used here.

    Of the first use's points all are tried, of each other's `sample`, because they begin alike.
    """
    findings, chosen = Findings(), random.Random(seed)
    for name, use in uses.items():
        counted, sound = _in_child(use, None)
        if counted is None:
            findings.violations.append(f"first use, {name}: without a fault: {sound}")
            continue
        # The bindings keep a look-up that has failed for the life of the process.
        counted.pop("cuGetProcAddress", None)
        if name == "trio":
            # trio registers descriptors too, and which call is whose depends on the load.
            # test_trio_whose_epoll_is_full refuses what the library asks for.
            counted.pop("epoll_ctl", None)
        points = points_of(counted, most, chosen)
        if name != next(iter(uses)):
            points = chosen.sample(points, min(sample, len(points)))
        for point in points:
            findings.tried += 1
            reached, outcome = _in_child(use, point, sound)
            findings.reached += bool(reached)
            if outcome.startswith("WRONG"):
                findings.violations.append(f"first use, {name}: {point}: {outcome[6:]}")
                print("#", findings.violations[-1], flush=True)
            elif reached:
                findings.outcomes[f"first use, {name}", point.name, outcome] += 1
    return findings


def _in_child(
    use: Callable[[Faults], None], point: Point | None, sound: Any = None
) -> tuple[Any, Any]:
    """Runs a first use in a forked child: the counts and what it leaves, or whether the fault was
    reached and its outcome.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        answer: tuple[Any, Any] = (None, "WRONG it did not end")
        try:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            answer = _first_use(use, point, sound)
        except BaseException as error:
            answer = (None, f"WRONG cannot go on: {type(error).__name__}: {error}")
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return tuple(json.loads(said)) if said else (None, f"WRONG the process ended with {status}")


def _first_use(use: Callable[[Faults], None], point: Point | None, sound: Any) -> tuple[Any, Any]:
    faults = Faults()
    faults.point = point
    sys.unraisablehook = lambda report: faults.report(report.exc_value)
    use(faults)
    outcome, wrong = judged(faults, point)
    _pop_contexts()
    counted, reached, faults.point = faults.counted, faults.reached, None
    use(faults)
    use(faults)
    gc.collect()
    began = time.monotonic()
    while (
        not _has_ended()
        or statistics().handles.open
        or (sound is not None and not _is_as_sound(resources(), sound))
    ):
        if time.monotonic() - began > 3:
            wrong.append(f"leaves {resources()} in place of {sound}, {statistics()}")
            break
        time.sleep(0.001)
    if point is None:
        return counted, resources()
    if wrong and point.name not in DESTROYERS:
        return reached, f"WRONG {'; '.join(wrong)}"
    return reached, outcome


def _is_as_sound(now: dict[str, int], sound: dict[str, int]) -> bool:
    """Whether a process holds what one without a fault does; of queues and of the memory of waits
    it may hold a few more.
    """
    more = {name: now[name] - sound[name] for name in sound}
    descriptors, waits = more.pop("descriptors"), more.pop("events")
    each_queue, most_waits = 3, 4
    return descriptors % each_queue == 0 and waits <= most_waits and max(more.values()) <= 0


# ------------------------------------------------------------------------------------------- pauses


async def sleepless() -> None:
    """A pause where no loop runs."""
    time.sleep(0.0002)


async def turn() -> None:
    """A pause in a loop."""
    await anyio.sleep(0.0002)


def run_without_loop(coroutine: Any) -> None:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("it suspended, and no loop runs")


def show(findings: Findings) -> None:
    """Prints what was found; exits with 1 if anything was wrong."""
    for (scenario, name, outcome), count in sorted(findings.outcomes.items()):
        print(f"  {scenario}: {name}: {outcome} ({count})")
    for violation in findings.violations:
        print("WRONG", violation)
    print(
        f"{findings.tried} fault points, of which {findings.reached} were reached; "
        f"{len(findings.violations)} wrong"
    )
    sys.stdout.flush()
