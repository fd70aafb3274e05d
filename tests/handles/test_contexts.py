"""Contexts that end while they are used, and those that the library cannot take."""

from __future__ import annotations

import re
from typing import Any

import pytest

import internals
from aiostream import Context, Stream
from support import settle, succeed

UNDER_WAITS = """
    import asyncio
    import aiostream
    from aiostream import Context, Device, Event, Stream
    import internals
    from support import settle, spin

    def end(handle):
        if handle is not None:
            internals.driver_call("cuCtxDestroy", handle)
        else:
            internals.driver_call("cuDevicePrimaryCtxReset",
                internals.driver_call("cuDeviceGet", 0))

    async def guarded(name, awaitable):
        try:
            await asyncio.wait_for(awaitable, 20)
            return "done"
        except aiostream.ContextFailedError as error:
            return error.code
        except TimeoutError:
            return name + " hangs"

    async def main():
        handle = None if {how!r} == "reset" else internals.create_context()
        context = Device(0).primary_context if handle is None else Context.from_handle(int(handle))
        with context.as_current():
            streams = {{name: Stream(wait=name) for name in aiostream.WaitStrategy}}
            futures, recorded, event = Stream(), Stream(), Event()
        for _ in range(14):  # then it is left to a timer
            spin(streams["auto"], 0.02)
            await streams["auto"].synchronize_async()
        for stream in (*streams.values(), futures, recorded):
            spin(stream, 0.2)
        event.record(recorded)
        waits = [(name, stream.synchronize_async()) for name, stream in streams.items()]
        waits += [("Event", event.synchronize_async()), ("completion", futures.completion_future())]
        waits += [("checked", futures.checked_completion_future()),
            ("enqueue", futures.enqueue_async(lambda _: 1))]
        tasks = [asyncio.create_task(guarded(name, wait)) for name, wait in waits]
        while internals.pending_waits() < 5:
            await asyncio.sleep(0)
        for _ in range(20):  # the waits that are no records have begun too
            await asyncio.sleep(0)
        if {how!r} == "destroy under polls":  # so the loop's next turn finds the context gone
            end(handle)
        else:
            await asyncio.to_thread(end, handle)
        outcomes = await asyncio.gather(*tasks)
        wrong = [outcome for outcome in outcomes if outcome not in ("done", 709)]
        polled = [
            outcome for outcome, (name, _) in zip(outcomes, waits)
            if name in ("spin", "Event", "enqueue")
        ]
        print(wrong, *polled, *internals.uses_of_gone())
        for stream in (*streams.values(), futures, recorded):
            stream.close()
        event.close()
        assert settle(lambda: aiostream.statistics().points.pending == 0)
        now = aiostream.statistics()
        assert now.balanced and now.futures.pending == 0 and now.waits.pending == 0, now
        with Device(0).primary_context.as_current():
            stream = Stream(wait="event")
        await stream.completion_future()
        await stream.aclose()

    asyncio.run(main())
"""


@pytest.mark.simulator_only(
    "a GPU's driver does not check an event whose context is gone, and may crash the process"
)
@pytest.mark.parametrize("how", ["destroy", "reset", "destroy under polls"])
def test_a_context_that_ends_under_waits_in_each_stage(driver_kind: str, how: str) -> None:
    """Each wait ends: with its work, which the driver finishes first, or with the error that says
    what has happened. None uses what is gone, but for a query of another thread that has begun.
    """
    under_polls = how == "destroy under polls"
    script = UNDER_WAITS.format(how=how)
    out = succeed(driver_kind, script, AIOSTREAM_WAIT="spin" if under_polls else "")
    assert out.startswith("[] 709 709 709" if under_polls else "[] "), out
    assert re.search(r" (0 None|1 cu(Event|Stream)Query)\n$", out), out


@pytest.mark.simulator_only("a GPU's context cannot be broken on command")
def test_a_context_that_ends_while_its_health_is_read(driver_kind: str) -> None:
    """The driver names what it meets first, and that is the library's own stream."""
    script = """
        from aiostream import Context, simulator
        import internals
        for code in (201, 400, 709):
            context = Context.from_handle(int(internals.create_context()))
            assert context.health() == 0
            simulator.fail("cuStreamQuery", code)
            print(context.health(), context.health())
    """
    assert succeed(driver_kind, script) == "709 709\n" * 3


@pytest.mark.simulator_only("a GPU's driver does not say how many streams there are")
def test_a_context_that_is_refused_leaves_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiostream import simulator

    def streams() -> int:
        made = simulator.calls("cuStreamCreate") + simulator.calls("cuStreamCreateWithPriority")
        return made - simulator.calls("cuStreamDestroy")

    handle: Any = internals.create_context()
    before = streams()
    with Context.from_handle(int(handle)).as_current(), monkeypatch.context() as patch:
        internals.refuse_contexts(patch)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="4096"):
                Stream()
    assert settle(lambda: streams() == before)
    with Context.from_handle(int(handle)).as_current():
        Stream().close()
    internals.driver_call("cuCtxDestroy", handle)
