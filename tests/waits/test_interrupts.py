"""KeyboardInterrupt at every place of every await: nothing is lost, nothing hangs, and the stream
serves on.

`AIOSTREAM_INTERRUPTS=all` strikes at all places, which takes some minutes. A number says at how
many places of each case. `AIOSTREAM_INTERRUPTS_SEED` chooses other places.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import aiostream
import internals
from aiostream import CaptureMode, Context, Stream, metrics, statistics, trace
from aiostream.testing import Gate
from awaits import AWAITS, scene_of
from internals import WAITS_MADE, driver_call, native_counters
from interrupts import PLACES, Striker, ends, run_interrupted, sample
from support import EVENT_STRATEGIES, PLAIN_LOOPS, Kept, is_at_rest, run_on, spin
from waiters import take_spares, until


def put_back_what_is_not_promised() -> None:
    """See "What is not promised" in docs/reliability.md."""
    while Context.get_current() is not None:
        driver_call("cuCtxPopCurrent")
    aiostream.exchange_capture_mode(CaptureMode.GLOBAL)


def strike(kind: str, name: str, number: int, *, cancels: bool) -> Striker:
    scene, begin = scene_of(name)
    striker = run_interrupted(kind, number, begin, scene.serve, cancels=cancels)
    scene.close()
    return striker


def measured() -> AbstractContextManager[Any]:
    """Each wait has its time taken for a metric."""
    ends = contextlib.ExitStack()
    ends.callback(metrics.on_wait(lambda wait: None))
    return ends


OBSERVERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": contextlib.nullcontext,
    "trace": trace.record,
    "metrics": measured,
}


def interrupt(kind: str, name: str, number: int, *, cancels: bool, observer: str = "") -> Striker:
    """One await with one interrupt; checks that nothing is left of it."""
    before = statistics()
    with OBSERVERS[observer]():
        striker = strike(kind, name, number, cancels=cancels)
    put_back_what_is_not_promised()

    assert ends(lambda: is_at_rest() and statistics().handles.open == before.handles.open), (
        f"{name} on {kind}, interrupted at place {number}, {striker.where}: {before} -> "
        f"{statistics()}"
    )
    assert statistics().points.leaked == before.points.leaked, (
        f"{name} on {kind} leaks if interrupted at {striker.where}"
    )
    return striker


slow = pytest.mark.slow
OBSERVED = [
    *(("", "asyncio"), ("", "trio"), pytest.param("", "uvloop", marks=slow)),
    *(("trace", "asyncio"), pytest.param("metrics", "asyncio", marks=slow)),
    *(("metrics", "trio"), pytest.param("trace", "trio", marks=slow)),
    *(pytest.param(observer, "uvloop", marks=slow) for observer in ("trace", "metrics")),
]


# Struck between the making of a coroutine and its first step, or when a stream of a pool has no
# variable yet.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.* was dropped and not given back:ResourceWarning")
@pytest.mark.timeout(1800 if PLACES == "all" else 120)
@pytest.mark.parametrize("name", AWAITS)
@pytest.mark.parametrize(("observer", "kind"), OBSERVED)
def test_interrupt_at_any_place_of_an_await_loses_nothing(
    kind: str, name: str, observer: str
) -> None:
    """At some of its places, as `sample` chooses them."""
    count = interrupt(kind, name, 0, cancels=False, observer=observer).passed
    assert count > 25, "the striker does not see the library's code"
    struck = 0
    for number in sample(count, 1 if observer else 4, f"{kind} {name}"):
        for cancels in (True, False) if PLACES == "all" else (number % 2 == 0,):
            # An interrupt in a done callback loses the callback: a task that goes on waits
            # without end, as in `asyncio.wait`.
            struck += interrupt(
                kind, name, number, cancels=cancels or name == "aiostream.wait", observer=observer
            ).has_struck
    # A task that polls comes to more places, or to fewer.
    assert struck > 0 or observer, "no place was reached again"
    print(f"{struck} interrupts, {count} places")


# Struck between the making of a coroutine and its first step.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("default_prediction")
@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
def test_interrupts_lose_no_record_of_a_wait(strategy: Any) -> None:
    stream, other = Stream(wait=strategy), Stream()

    async def wait() -> None:
        spin(stream, 0.0003)
        await stream.synchronize_async()

    async def take() -> list[Any]:
        return take_spares(other)

    def strike(number: int) -> Striker:
        striker = run_interrupted("asyncio", number, wait, stream.synchronize_async, cancels=True)
        stream.synchronize()  # because interrupted waits would pile up
        put_back_what_is_not_promised()
        return striker

    count = strike(0).passed
    spare, made = run_on("asyncio", take), native_counters()[WAITS_MADE]
    struck = sum(strike(number).has_struck for number in sample(count, 80, strategy))
    # A few more than in use at once: the watcher gives a wait's memory back after the next wait has
    # begun, if it is late. What an interrupt loses never comes back.
    lost = native_counters()[WAITS_MADE] - made
    assert lost <= struck // 10, f"the memory of {lost} waits was lost by {struck} interrupts"
    spare.clear()
    stream.close()
    other.close()


# --------------------------------------------------------------------------- observers of each step


@pytest.mark.parametrize("kind", PLAIN_LOOPS)
@pytest.mark.parametrize("moment", ["enters", "leaves"])
def test_ctrl_c_in_a_step_ends_the_wait(kind: str, moment: str) -> None:
    """The watcher may hold the wait until its work ends, and no longer."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def wait() -> None:
        before = statistics().waits.pending
        async with Stream() as stream:
            with Gate() as gate:
                gate.hold(stream)
                with (
                    internals.observer_that_acts(moment, 1, interrupt),
                    pytest.raises(KeyboardInterrupt) as interrupted,
                ):
                    await stream.synchronize_async()
            # While the traceback keeps the frames of the wait.
            assert interrupted.tb is not None
            assert await aiostream.drain(timeout=20)
            await until(lambda: statistics().waits.pending == before)
            await stream.synchronize_async()

    run_on(kind, wait)


def test_a_traced_call_in_a_thread_protects_no_later_function_from_ctrl_c() -> None:
    pytest.importorskip("trio")

    def interrupted() -> bool:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return True

    async def main() -> None:
        async with Stream() as stream:
            with trace.record():
                await stream.run_in_thread(int)
                assert await stream.run(interrupted)

    run_on("trio", main)


def test_ctrl_c_behind_the_function_of_a_traced_run_frees_nothing() -> None:
    watched: list[weakref.ref[Kept]] = []
    striker = Striker(1)

    def launch() -> Kept:
        result = Kept()
        watched.append(weakref.ref(result))
        striker.__enter__()  # it strikes in the trace, which marks the end of the work
        return result

    async def run() -> None:
        with trace.record(), Gate() as gate:
            gate.hold(stream)
            with pytest.raises(KeyboardInterrupt):
                await stream.run(launch)
            striker.end()
            gc.collect()
            assert watched[0]() is not None, striker.where

    stream = Stream()
    try:
        run_on("asyncio", run)
    finally:
        striker.end()
    assert "trace" in striker.where
    stream.synchronize()
    assert ends(lambda: watched[0]() is None)
    stream.close()
