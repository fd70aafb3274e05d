"""What one operation takes, in counts: they are the same on a busy machine, where times are not.

`counts.toml` is the table of them, and `PYTHONPATH=tests python tests/waits/test_counts.py` writes
it. It has what the loop's thread runs, the functions of the package by file and the native entries,
and the calls of the driver. Gates put each wait into its stage, so no time decides which way it
takes.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
import threading
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import Event, Stream, StreamPool, simulator
from compiling import ENGINE, PROGRAMS, gcc, run_command
from support import Gate, run_on, settle, spin
from waiters import counts, default_wait, since, until

PACKAGE = f"{Path(aiostream.__file__).parent}/"
NATIVE_MODULE = internals.native_names()["__name__"]
TABLE = Path(__file__).with_name("counts.toml")
COMMAND = "PYTHONPATH=tests python tests/waits/test_counts.py"
LENGTH = 0.003  # seconds of the work that is predicted
LEARNT = 9  # waits from which it is
FEW, MOST = 5, 40  # operations: more than a few only if other things have disturbed those
# What a poll calls, and the watcher when it reads the health. How many polls there are depends on
# the time that they take. The counts of the policy limit them.
POLLS = {"cuCtxGetId", "cuEventQuery", "cuStreamQuery", "cuThreadExchangeStreamCaptureMode"}

Counts = dict[str, str]
"""By file: the functions. By "native" and "driver": what was called, and how often the driver."""
Work = Callable[[Stream], None]


def nothing(*_: Stream) -> None:
    """What `run` and `enqueue_async` call: the work is on the stream already."""


class Ways:
    """The kinds of await. Each calls `work(stream)`, and then waits for that work."""

    def __init__(self, stage: str) -> None:
        with default_wait("auto" if stage == "ready" else stage):
            self.stream, self.event, self.pool = Stream(), Event(), StreamPool(1)
        with self.stream.capture_executable() as capture:
            spin(self.stream, 0)
        self.executable = capture.executable
        self.shared = StreamPool.borrow([self.stream])

    def close(self) -> None:
        for thing in (self.executable, self.pool, self.shared, self.event, self.stream):
            thing.close()

    async def wait_behind(self, begin: Callable[[Ways], Awaitable[Any]], work: Work) -> None:
        work(self.stream)
        await begin(self)

    async def pool_synchronize(self, work: Work) -> None:
        async with self.pool.stream() as stream:
            work(stream)
            await stream.synchronize_async()

    async def pool_run(self, work: Work) -> None:
        await self.shared.run(work, self.stream)

    async def pool_enqueue(self, work: Work) -> None:
        async with self.pool.stream() as stream:
            work(stream)
            await stream.enqueue_async(nothing)


AWAITED: dict[str, Callable[[Ways], Awaitable[Any]]] = {
    "synchronize": lambda ways: ways.stream.synchronize_async(),
    "wait_for_event": lambda ways: ways.event.synchronize_async(),
    "run": lambda ways: ways.stream.run(nothing),
    "enqueue": lambda ways: ways.stream.enqueue_async(nothing),
    "enqueue_in_thread": lambda ways: ways.stream.enqueue_in_thread(nothing),
    "completion_future": lambda ways: ways.stream.completion_future(),
    "launch_and_wait": lambda ways: ways.executable.launch_and_wait(ways.stream),
}

# The loop, the way, and the stage, which is the strategy: the task polls (spin), the watcher does
# (event), or a timer wakes the task for the end that is predicted (auto). "ready" has no work. No
# future is predicted on trio, which decides by chance whether the task or a drain polls it first.
CASES = [
    "asyncio synchronize ready",
    "asyncio synchronize spin",
    "asyncio synchronize event",
    "asyncio synchronize auto",
    "asyncio wait_for_event ready",
    "asyncio wait_for_event event",
    "asyncio run ready",
    "asyncio run event",
    "asyncio run auto",
    "asyncio enqueue event",
    "asyncio enqueue auto",
    "asyncio enqueue_in_thread event",
    "asyncio completion_future hostfunc",
    "asyncio launch_and_wait event",
    "asyncio pool_synchronize auto",
    "asyncio pool_run auto",
    "asyncio pool_enqueue auto",
    "trio synchronize ready",
    "trio synchronize event",
    "trio synchronize auto",
    "trio enqueue event",
    WATCHER := "asyncio watcher",
]
# When the work may end: the wait is where it belongs. A predicted one does not belong there, so it
# is counted only if its task was woken before.
SIGNS = {
    "event": internals.WAITS_WATCHED,
    "auto": internals.WAITS_WATCHED,
    "hostfunc": internals.POINTS_ARMED,
}


class Recorder:
    """Notes what runs in this thread, and what the driver is called for, while it is on."""

    def __init__(self) -> None:
        self.python: set[tuple[str, str]] = set()
        self.native: Counter[str] = Counter()
        self.driver: Counter[str] = Counter()

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call" and not code.co_name.endswith("comp>"):  # no function from 3.12 on
            file = code.co_filename.removeprefix(PACKAGE).removesuffix(".py")
            self.python.add((file.removesuffix("/__init__"), code.co_qualname))
        elif event == "c_call" and argument.__name__ != "__aenter__":  # a call from 3.14 on
            owner = type(argument.__self__)
            if argument.__module__ == NATIVE_MODULE:
                self.native[argument.__name__] += 1
            elif owner.__module__.startswith("aiostream"):
                self.native[f"{owner.__name__}.{argument.__name__}"] += 1

    def on(self) -> None:
        self.driver.subtract(internals.simulated_calls())
        sys.setprofile(self._note)

    def off(self) -> None:
        sys.setprofile(None)
        self.driver.update(internals.simulated_calls())


class Operation:
    """One operation that is recorded. Its work ends when the wait for it is in its stage."""

    def __init__(self, ways: Ways, stage: str, gate: Gate) -> None:
        self.ways, self.stage, self.gate = ways, stage, gate
        self.recorder = Recorder()
        self.stream: Stream | None = None
        self.woken = False
        self.pending = internals.pending_waits()
        self.before = internals.native_counters()

    def work(self, stream: Stream) -> None:
        """Is the user's own, and not recorded."""
        self.recorder.off()
        self.stream = stream
        if self.stage != "ready":
            self.gate.hold(stream)
            self.ways.event.record(stream)
        self.recorder.on()

    def wake(self) -> None:
        """The wait was predicted and comes back to its task, which finds the end at once."""
        stream, self.stream = self.stream, None  # the task is to drop the one that a pool gave it
        if stream is None or self.stage != "auto":
            return
        self.recorder.off()
        self.gate.open()
        assert settle(lambda: internals.stream_status(stream) == 0)
        self.woken, stream = True, None
        self.recorder.on()

    def _is_waiting(self) -> bool:
        if self.stage == "spin":
            return internals.pending_waits() > self.pending
        sign = SIGNS[self.stage]
        return self.woken or internals.native_counters()[sign] > self.before[sign]

    def _open(self) -> None:
        settle(self._is_waiting)
        self.gate.open()

    async def run(self, way: Callable[[Work], Awaitable[None]]) -> bool:
        """Returns whether it counts."""
        self.gate.shut()
        opener = threading.Thread(target=self._open, name="aiostream-opener")
        if self.stage != "ready":
            opener.start()
        self.recorder.on()
        try:
            await way(self.work)
            for _ in range(3):  # the rest, in the loop's next turns
                await anyio.lowlevel.checkpoint()
        finally:
            self.recorder.off()
            if self.stage != "ready":
                opener.join()
        return self.woken or self.stage != "auto"


async def measure(case: str, known: Counts) -> Counts:
    """Returns what an operation takes: what at least half of a few run, and the fewest calls of the
    driver. It tries until it finds what is known.
    """
    _, name, stage = case.split()
    found: list[Recorder] = []
    with ExitStack() as resources:
        ways, gate = resources.enter_context(closing(Ways(stage))), Gate()
        now: list[Operation] = []
        patch = resources.enter_context(pytest.MonkeyPatch.context())

        by_drain = "enqueue" in name  # when the loop's timer is due

        def wake(_: Any, go_on: Callable[[], None]) -> None:
            if now:
                if by_drain:
                    now[0].recorder.native["drain"] += 1  # which the interception hides
                now[0].wake()
            go_on()

        intercept = internals.intercept_drain if by_drain else internals.intercept_hand_back
        intercept(patch, wake)
        way = getattr(ways, name, None) or partial(ways.wait_behind, AWAITED[name])
        for done in range(MOST):
            # Before each predicted one, because its own end teaches a wrong length. On a busy
            # machine only long work has lengths that agree.
            length = LENGTH * 4 ** min((done - len(found)) // 4, 2)
            for _ in range(LEARNT if stage == "auto" else not done):
                await way(partial(spin, seconds=length))
            now.append(operation := Operation(ways, stage, gate))
            if await operation.run(way):
                found.append(operation.recorder)
            now.clear()
            enough = len(found) >= (FEW if known else 3 * FEW)
            if enough and (not known or counts_of(found, stage) == known):
                break
    assert len(found) >= FEW, f"no timer has woken the task in {MOST} operations"
    return counts_of(found, stage)


def counts_of(found: list[Recorder], stage: str) -> Counts:
    def usual(items: Iterable[Any]) -> list[Any]:
        return sorted(item for item, count in Counter(items).items() if 2 * count >= len(found))

    names: dict[str, list[str]] = {}
    for file, function in usual(item for one in found for item in one.python):
        names.setdefault(file, []).append(function)
    names["native"] = usual(item for one in found for item in one.native)
    fewest = {call: min(one.driver[call] for one in found) for call in sorted(found[0].driver)}
    names["driver"] = [
        f"{call}*{count}"
        for call, count in fewest.items()
        if count and (stage == "ready" or call not in POLLS)
    ]
    return {file: " ".join(of_file) for file, of_file in names.items()}


async def measure_watcher(case: str, known: Counts) -> Counts:
    """Returns what it takes to end four waits on each of four streams whose work is over."""
    pending = internals.pending_waits()
    with default_wait("event"):
        streams = [Stream() for _ in range(4)]
    recorder = Recorder()
    internals.stop_watcher()
    try:
        with Gate() as gate:
            async with anyio.create_task_group() as tasks:
                for stream in streams:
                    gate.hold(stream)
                    for _ in range(4):
                        tasks.start_soon(stream.synchronize_async)
                await until(lambda: internals.pending_waits() == pending + 16)
                gate.open()
                assert settle(lambda: not any(map(internals.stream_status, streams)))
                before = counts()
                internals.start_watcher()
                assert settle(lambda: since(before).polls > 0)  # counted at the end of its pass
                assert internals.pending_waits() == pending
                recorder.on()
        recorder.off()
    finally:
        internals.start_watcher()
    for stream in streams:
        stream.close()
    return {"watcher": f"polls*{since(before).polls} drains*{recorder.native['drain']}"}


def measure_policy(folder: Path) -> Counts:
    """Returns for each wait, in virtual time, by patterns of work: the polls, the watcher's passes
    and the wake-ups of the loop.
    """
    program = folder / "policy"
    gcc("-O1", PROGRAMS / "policy.c", ENGINE / "policy.c", "-lm", "-o", program)
    title, found = "", {}
    for line in run_command(program, 0).stdout.splitlines():
        if head := re.match(r" *(\w+, +\d+ (?:wait lists?|waits))", line):
            title = " ".join(head[1].split())
        elif row := re.match(r"(\S.*?) {2,}\d.* (\S+) +(\S+) +(\S+)$", line):
            found[f"{title}: {row[1]}"] = f"polls*{row[2]} passes*{row[3]} wakes*{row[4]}"
        elif row := re.match(r"(ready, .*): .* (\S+) questions$", line):
            found[row[1]] = f"questions*{row[2]}"
    return found


# -------------------------------------------------------------------------------------- the table


def numbers(text: str) -> dict[str, float]:
    """The counts of `name*count`, and 1 for each other name."""
    split = (item.partition("*") for item in text.split())
    return {name: float(count or 1) for name, _, count in split}


def compare(case: str, now: Counts) -> None:
    table = read_table().get(case, {})
    more: list[str] = []
    less: list[str] = []
    for key in sorted(now.keys() | table.keys()):
        new, old = numbers(now.get(key, "")), numbers(table.get(key, ""))
        for name in sorted(new.keys() | old.keys()):
            change = f"{key} {name}: {old.get(name, 0):g} -> {new.get(name, 0):g}"
            if new.get(name, 0) != old.get(name, 0):
                (more if new.get(name, 0) > old.get(name, 0) else less).append(change)
    renew = f"write the table anew: {COMMAND}"
    lines = "\n  ".join(["", *more, *less])
    assert not more, f"{case} takes more. If it has to, {renew}{lines}"
    # Which thread drops an object last is up to anyio and asyncio, and differs by their versions.
    less = [change for change in less if ".__del__: " not in change]
    assert not less, f"{case} takes less. Keep it so: {renew}{lines}"


def read_table() -> dict[str, Counts]:
    tables = tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}
    return {
        case: {key: " ".join(names.split()) for key, names in table.items()}
        for case, table in tables.items()
    }


def write_table() -> None:
    simulator.install(devices=2)
    lines = [f"# What one operation takes. `{COMMAND}` writes this."]
    for case in [*CASES, "policy"]:
        print(case)
        if case == "policy":
            with tempfile.TemporaryDirectory() as folder:
                found = measure_policy(Path(folder))
        else:
            found = run_on(case.split()[0], measurer(case), case, {})
        lines += ["", f'["{case}"]{summary(found)}']
        for key, value in found.items():
            line = f'"{key}" = "{value}"'
            if len(line) > 100:
                wrapped = textwrap.fill(value, 96, break_on_hyphens=False)
                line = f'"{key}" = """\n{wrapped}"""'
            lines.append(line)
    TABLE.write_text("\n".join([*lines, ""]))


def summary(found: Counts) -> str:
    if "native" not in found:
        return ""
    files = [names.split() for file, names in found.items() if file not in ("native", "driver")]
    native = len(found["native"].split())
    return f" # {sum(map(len, files))} functions in {len(files)} files, {native} native"


def measurer(case: str) -> Callable[[str, Counts], Coroutine[Any, Any, Counts]]:
    return measure_watcher if case == WATCHER else measure


@pytest.mark.simulator_only("only the simulator counts the calls of its functions")
@pytest.mark.parametrize("case", CASES)
def test_an_operation_takes_no_more_than_in_the_table(case: str) -> None:
    if sys.getprofile() is not None:
        pytest.skip("another profiler is active, and a thread has only one")
    compare(case, run_on(case.split()[0], measurer(case), case, read_table().get(case, {})))


def test_a_wait_takes_no_more_polls_than_in_the_table(tmp_path: Path) -> None:
    compare("policy", measure_policy(tmp_path))


def test_the_table_has_no_other_cases() -> None:
    assert read_table().keys() == {*CASES, "policy"}


if __name__ == "__main__":
    write_table()
