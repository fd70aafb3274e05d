"""How a strategy is chosen: by argument, by default, by the environment."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import Event, Stream, statistics
from support import STRATEGIES, USUAL, Gate, held_stream, run_script, spin, succeed
from waiters import counts, default_wait, since, until

NAMES = ", ".join(map(repr, STRATEGIES))


def test_strategies_are_chosen_by_name_or_value() -> None:
    name: Any
    for name in STRATEGIES:
        stream = Stream(wait=name)
        assert stream.wait_strategy == aiostream.WaitStrategy(name)
        other = Stream(wait=aiostream.WaitStrategy(name))
        assert other.wait_strategy == stream.wait_strategy
        with default_wait(name):
            assert aiostream.default_wait() == name
            third = Stream()
        assert third.wait_strategy == name
        assert aiostream.default_wait() == "auto"
        for each in (stream, other, third):
            each.close()


def test_unknown_strategy_is_refused() -> None:
    before = statistics().handles.created
    for wrong in ("Spin", "", "poll", 3):
        with pytest.raises(ValueError, match=NAMES) as caught:
            Stream(wait=wrong)  # type: ignore[arg-type]
        assert repr(wrong) in str(caught.value)
        with pytest.raises(ValueError, match=NAMES):
            aiostream.set_default_wait(wrong)  # type: ignore[arg-type]
    assert aiostream.default_wait() == "auto"
    assert statistics().handles.created == before


def test_strategy_from_the_environment(driver_kind: str) -> None:
    script = """
        import asyncio
        from aiostream import Stream, default_wait, set_default_wait, statistics
        from support import spin
        stream = Stream()
        print(stream.wait_strategy, default_wait())
        async def main():
            for _ in range(5):
                spin(stream, 0.001)
                await stream.synchronize_async()
        asyncio.run(main())
        stream.close()
        waits = statistics().waits
        print(waits.watched, waits.spun > 0)
        for name in ("event", None):
            set_default_wait(name)
            print(default_wait())
    """
    said = succeed(driver_kind, script, AIOSTREAM_WAIT="spin", forked=USUAL).splitlines()
    assert said == ["spin spin", "0 True", "event", "spin"]


def test_unknown_strategy_in_the_environment_is_refused(driver_kind: str) -> None:
    done = run_script(driver_kind, "from aiostream import Stream; Stream()", AIOSTREAM_WAIT="fast")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"ValueError: the environment variable AIOSTREAM_WAIT is one of {NAMES}, not 'fast'"
    )


def test_native_table_and_enumeration_have_the_same_strategies() -> None:
    assert sorted(internals.native_strategies()) == sorted(STRATEGIES)


@pytest.mark.parametrize("loop_kind", ["asyncio"])
async def test_native_code_refuses_numbers_of_no_strategy() -> None:
    async with Stream() as stream:
        spin(stream, 0)
        for number in (-2, -1, len(STRATEGIES), 2**31 - 1):
            for wait in (internals.begin_wait, internals.reserve_wait):
                with pytest.raises(ValueError, match=f"no wait strategy {number}$"):
                    wait(stream, number)


async def test_events_wait_with_hostfunc_as_with_auto(cuda_gate: Gate) -> None:
    with default_wait("hostfunc"):
        stream, event = held_stream(cuda_gate), Event()
    event.record(stream)
    before = counts()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(event.synchronize_async)
        await until(lambda: since(before).watched == 1)  # no host function is watched so
        cuda_gate.open()
    assert event.query()
    event.close()
    stream.close()
