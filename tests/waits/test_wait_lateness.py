"""How late an end is noticed: after other lengths than before, and before a timer is due.

And when the watcher sleeps.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from statistics import median
from typing import Any

import anyio
import pytest

import internals
from aiostream import Stream, statistics
from support import STRATEGIES, Gate, cases_on_loops, settle, spin
from waiters import THINGS, Waiter, counts, since, until

pytestmark = pytest.mark.usefixtures("default_prediction")

LONG, SHORT = 0.008, 0.001
PATTERNS = {
    "shorter for good": [SHORT] * 15,
    "one of three shorter": [LONG, LONG, SHORT] * 8,
    "in turn": [LONG, SHORT] * 12,
}
# seconds, on the median: on an idle machine 0.3 ms, and 7 ms if the timer for a long one is waited
# for
MOST_LATE = 0.002


@pytest.mark.alone
@cases_on_loops(
    "pattern, thing, others",
    [
        (pattern, thing, others)
        for pattern, thing in zip(PATTERNS, itertools.cycle(THINGS))
        for others in (0, 12)
    ],
)
async def test_shorter_waits_after_steady_ones_end_soon(
    pattern: str, thing: str, others: int, loop_kind: str
) -> None:
    """P16: what the library expects does not keep it from noticing an earlier end. With twelve
    other waits the loop polls all together, and the watcher makes no guard polls.
    """
    # One stream, because a gate holds a hardware queue of the GPU, and there are eight.
    with contextlib.closing(Stream()) as stream, Gate() as gate:
        gate.hold(stream)
        async with anyio.create_task_group() as tasks:
            for _ in range(others):
                tasks.start_soon(stream.synchronize_async)
            for _ in range(5):  # other processes may take the cores from one of them
                late = await lateness(pattern, thing)
                allowed = MOST_LATE + 3 * lateness_of_threads()
                if max(late.values()) < allowed:
                    break
            gate.open()
    assert max(late.values()) < allowed, late


async def lateness(pattern: str, thing: str) -> dict[float, float]:
    """How late the end of work of each length is noticed, on the median, if work in the pattern
    follows steady work.
    """
    waiter = Waiter("by timer", thing)
    for _ in range(40):
        waiter.work(LONG)
        await waiter.wait()
    late: dict[float, list[float]] = {LONG: [], SHORT: []}
    for length in PATTERNS[pattern]:
        began = time.perf_counter()
        waiter.work(length)
        await waiter.wait()
        late[length].append(time.perf_counter() - began - length)
    waiter.close()
    return {length: median(each) for length, each in late.items() if each}


def lateness_of_threads() -> float:
    """How late a thread wakes that blocks in the driver, on the median: what other processes of
    this machine do to each step from one thread to the next.
    """
    late = []
    with contextlib.closing(Stream()) as stream:
        for _ in range(15):
            began = time.perf_counter()
            spin(stream, SHORT)
            stream.synchronize()
            late.append(time.perf_counter() - began - SHORT)
    return median(late)


async def test_waits_with_early_ends_serve_again_at_once() -> None:
    """Their timers would still be due. The next waits, in the same memory, meet none of them."""
    waiter = Waiter("by timer")
    for round_ in range(30):
        if round_ % 6 == 0:  # early ends are learnt too
            await waiter.prepare(0.03)
        with Gate() as gate:
            waiter.enclose(gate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                tasks.start_soon(waiter.event.synchronize_async)
                await until(lambda: counts().pending == 2)
                polls = counts().polls
                await until(lambda polls=polls: counts().polls > polls + 1)
                assert waiter.event.query() is False, "they are for the work behind the gate"
                gate.open()
        assert counts().pending == 0
    waiter.close()


# ------------------------------------------------------------------------------ the watcher's sleep


def watcher_thread() -> int:
    """The kernel's number of the watcher thread, which is started anew for that."""
    internals.start()  # the watcher calls the driver
    internals.stop_watcher()
    before = set(os.listdir("/proc/self/task"))
    internals.start_watcher()
    (new,) = set(os.listdir("/proc/self/task")) - before
    return int(new)


def status_of(thread: int, name: str) -> str:
    """What the kernel says of a thread."""
    with open(f"/proc/self/task/{thread}/status") as status:
        (line,) = (line for line in status if line.startswith(f"{name}:"))
    return line.split()[1]


def wake_ups(thread: int) -> int:
    """How often a thread has fallen asleep until now."""
    return int(status_of(thread, "voluntary_ctxt_switches"))


def has_come_to_rest(thread: int) -> bool:
    """Whether the thread sleeps, and did not wake for a while."""
    before = wake_ups(thread)
    time.sleep(0.1)
    # One that was woken and has no core yet has not fallen asleep again either.
    return status_of(thread, "State") == "S" and wake_ups(thread) == before


def sleeps_on(thread: int) -> bool:
    """Whether the thread does not wake for long."""
    before = wake_ups(thread)
    time.sleep(0.4)
    return wake_ups(thread) == before


@pytest.mark.parametrize(
    ("strategy", "loop_kind", "limit"),
    [
        *((name, "asyncio", None) for name in STRATEGIES),
        ("auto", "asyncio", 60),
        ("event", "trio", 60),
    ],
)
async def test_watcher_never_wakes_with_nothing_pending(strategy: Any, limit: float | None) -> None:
    thread, stream = watcher_thread(), Stream(wait=strategy, stalled_after=limit)
    assert settle(lambda: has_come_to_rest(thread))
    passes = statistics().watcher_passes
    for _ in range(20):
        spin(stream, 0.002)
        await stream.synchronize_async()
    assert statistics().watcher_passes == passes or strategy != "spin", "the tasks poll these waits"
    # And a cancelled wait, which the watcher keeps until the GPU has passed it.
    with Gate() as gate:
        gate.hold(stream)
        with anyio.move_on_after(0.01):
            await stream.synchronize_async()
    stream.synchronize()
    assert settle(lambda: has_come_to_rest(thread))
    passes = statistics().watcher_passes
    assert any(sleeps_on(thread) for _ in range(8))  # a process that is stopped wakes all of it
    assert statistics().watcher_passes == passes
    stream.close()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop", "trio"])
async def test_busy_loop_does_not_keep_the_watcher_busy(loop_kind: str) -> None:
    """Its waits' guard polls come later than those of an idle loop.

    The watcher must not run through them until then.
    """
    streams = [Stream() for _ in range(64)]
    end = time.perf_counter() + 0.4

    async def work(stream: Stream) -> None:
        while time.perf_counter() < end:
            spin(stream, 0.002)
            await stream.synchronize_async()
            until_then = time.perf_counter() + 10e-6
            while time.perf_counter() < until_then:
                pass

    before, began = counts(), time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for stream in streams:
            tasks.start_soon(work, stream)
    passes = since(before).passes / (time.perf_counter() - began)
    assert passes < 40_000, "they are 40 us apart, but for exact polls"
    for stream in streams:
        stream.close()
