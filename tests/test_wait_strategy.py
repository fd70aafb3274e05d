"""How a strategy is chosen: by argument, by default, by the environment."""

from __future__ import annotations

import pytest

import aiostream
from aiostream import Stream, statistics
from support import run_script, succeed
from waiters import STRATEGIES, default_wait


def test_strategies_are_chosen_by_name_or_value() -> None:
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
        with pytest.raises(ValueError, match="'auto', 'hostfunc', 'event', 'spin'") as caught:
            Stream(wait=wrong)  # type: ignore[arg-type]
        assert repr(wrong) in str(caught.value)
        with pytest.raises(ValueError, match="'auto', 'hostfunc', 'event', 'spin'"):
            aiostream.set_default_wait(wrong)  # type: ignore[arg-type]
    assert aiostream.default_wait() == "auto"
    assert statistics().handles.created == before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_from_the_environment(driver_kind: str, strategy: str) -> None:
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
        print(waits.watched > 0, waits.spun > 0)
        set_default_wait("event")
        print(default_wait())
        set_default_wait(None)
        print(default_wait())
    """
    watched = {"auto": True, "event": True, "spin": False, "hostfunc": False}[strategy]
    first, stages, *rest = succeed(driver_kind, script, AIOSTREAM_WAIT=strategy).splitlines()
    assert first == f"{strategy} {strategy}"
    assert stages.split()[0] == str(watched)
    if strategy != "auto":
        assert stages.split()[1] == str(strategy == "spin")
    assert rest == ["event", strategy]


def test_unknown_strategy_in_the_environment_is_refused(driver_kind: str) -> None:
    done = run_script(driver_kind, "from aiostream import Stream; Stream()", AIOSTREAM_WAIT="fast")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert (
        last == "ValueError: the environment variable AIOSTREAM_WAIT is one of 'auto', 'hostfunc', "
        "'event', 'spin', not 'fast'"
    )
