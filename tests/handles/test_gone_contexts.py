"""Calls on a stream, an event or a graph whose context was destroyed or reset by other code.

A GPU's driver crashes the process at many of them. So the library asks whether the context is still
there, and raises. Each in a process of its own. And contexts that end under what uses them.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import internals
from aiostream import Context, Stream
from support import USUAL, settle, succeed

BEGINNING = """
    import asyncio
    import aiostream
    from aiostream import Context, Device, Event, Graph, Stream, StreamAttribute, StreamPool
    import internals
    from support import settle, spin

    def end(handle):
        if handle is None:
            internals.driver_call("cuDevicePrimaryCtxReset",
                internals.driver_call("cuDeviceGet", 0))
        else:
            internals.driver_call("cuCtxDestroy", handle)
"""
CALLS = (
    BEGINNING
    + """
    async def main():
        handle = internals.create_context() if {how!r} == "destroy" else None
        context = Device(0).primary_context if handle is None else Context.from_handle(int(handle))
        with context.as_current():
            stream, other, shared, capturing = Stream(), Stream(), Stream(), Stream()
            events = [Event(timing=True) for _ in range(4)]
            executable = capture(stream)
            graph = Graph()
            pool, idle_pool = StreamPool(2, wait="event"), StreamPool(2)
        shared.core()
        borrowed = stream.to_borrowed()
        for event in events[:3]:
            event.record(stream)
        for _ in range(12):  # so that a wait skips the query, and the health is known to be good
            spin(stream, 0.0005)
            await stream.synchronize_async()
        taken = await pool.acquire()
        async with idle_pool.stream() as used:
            await used.synchronize_async()
        await stream.enqueue_async(lambda _: None)
        by_host_function = Stream.borrow(stream, wait="hostfunc")
        capturing.begin_capture()
        end(handle)
        if {again}:
            # The driver may use the memory of what is gone for what is made now.
            with Device(0).primary_context.as_current():
                fresh = [Stream() for _ in range(4)] + [Event() for _ in range(4)]
                contexts = [internals.create_context() for _ in range(2)]
        with Device(0).primary_context.as_current():
            new = Stream()
        ran = []
        calls = {{
            "query": stream.query,
            "query of a borrowed one": borrowed.query,
            "synchronize": stream.synchronize,
            "synchronize_async": stream.synchronize_async,
            "synchronize_async by host function": by_host_function.synchronize_async,
            "enqueue_async": lambda: stream.enqueue_async(ran.append),
            "enqueue_async by host function": lambda: by_host_function.enqueue_async(ran.append),
            "enqueue_in_thread": lambda: stream.enqueue_in_thread(ran.append),
            "completion_future": stream.completion_future,
            "checked_completion_future": stream.checked_completion_future,
            "launch_host_func": lambda: stream.launch_host_func(ran.append, 1),
            "add_callback": lambda: stream.add_callback(ran.append),
            "record": lambda: events[0].record(stream),
            "record on a new stream": lambda: events[0].record(new),
            "first record": lambda: events[3].record(new),
            "wait_event": lambda: stream.wait_event(events[0]),
            "wait_event of a new stream": lambda: new.wait_event(events[0]),
            "completion_future_on": lambda: events[0].completion_future_on(new),
            "event query": events[0].query,
            "event synchronize": events[0].synchronize,
            "event synchronize_async": events[0].synchronize_async,
            "await event": lambda: events[1],
            "elapsed_time": lambda: events[0].elapsed_time(events[1]),
            "priority": lambda: stream.priority,
            "flags": lambda: other.flags,
            "id": lambda: other.id,
            "get_attribute": lambda: stream.get_attribute(StreamAttribute.PRIORITY),
            "set_attribute": lambda: stream.set_attribute(StreamAttribute.PRIORITY, -1),
            "copy_attributes": lambda: new.copy_attributes(stream),
            "green_context": lambda: stream.green_context,
            "begin_capture": stream.begin_capture,
            "begin_capture_to_graph": lambda: stream.begin_capture_to_graph(graph),
            "capture_status": stream.capture_status,
            "capture_info": stream.capture_info,
            "end_capture": capturing.end_capture,
            "write_value": lambda: stream.write_value(0x1000, 1),
            "attach_mem_async": lambda: stream.attach_mem_async(0x1000),
            "launch": lambda: executable.launch(stream),
            "launch on a new stream": lambda: executable.launch(new),
            "launch_async": lambda: executable.launch_async(stream),
            "launch_and_wait": lambda: executable.launch_and_wait(stream),
            "upload": lambda: executable.upload(stream),
            "upload_async": lambda: executable.upload_async(stream),
            "update": lambda: executable.update(graph),
            "instantiate": graph.instantiate,
            "as_current": lambda: enter(stream.as_current()),
            "context as_current": lambda: enter(context.as_current()),
            "core": other.core,
            "taken": taken.query,
            # None of its streams was asked, but another call has failed.
            "idle pool": idle_pool.acquire,
            "idle pool again": idle_pool.acquire_nowait,
        }}
        for name, call in calls.items():
            before = internals.uses_of_gone() if {simulated} else None
            outcome = await result_of(call)
            after = internals.uses_of_gone() if {simulated} else None
            if outcome != 709 or before != after:
                print(name, outcome, after if before != after else "")
        assert not ran, ran
        before = internals.uses_of_gone() if {simulated} else None
        pool.release(taken)  # queries the stream, and so learns what has happened
        assert await result_of(pool.acquire) == await result_of(pool.acquire_nowait) == 709
        for thing in (stream, other, shared, capturing, borrowed, by_host_function, *events, graph,
            executable):
            thing.close()
        assert idle_pool.lent == 0
        for each in (pool, idle_pool):
            assert await result_of(each.aclose) == 709 and each.closed
        if before != (internals.uses_of_gone() if {simulated} else None):
            print("closing", internals.uses_of_gone())
        await new.aclose()
        async with StreamPool(2) as fresh_pool, fresh_pool.stream() as used:
            await used.synchronize_async()
        assert settle(lambda: aiostream.statistics().points.pending == 0)
        now = aiostream.statistics()
        assert now.balanced and now.futures.pending == 0 and now.waits.pending == 0, now

    def capture(stream):
        spin(stream, 0)  # loads the kernel, which a capture forbids
        with stream.capture_executable() as captured:
            spin(stream, 0)
        return captured.executable

    def enter(block):
        with block:
            pass

    async def result_of(call):
        try:
            answer = call()
            if hasattr(answer, "__await__"):
                async def wait():
                    await answer
                await asyncio.wait_for(wait(), 10)
            return "no error"
        except aiostream.CudaError as error:
            return error.code if isinstance(error, aiostream.ContextFailedError) else repr(error)
        except Exception as error:
            return repr(error)

    asyncio.run(main())
    import os
    os._exit(0)
"""
)


@pytest.mark.parametrize("again", [False, True], ids=["alone", "with others"])
@pytest.mark.parametrize("how", ["reset", "destroy"])
def test_each_call_raises_and_touches_nothing(driver_kind: str, how: str, again: bool) -> None:
    pytest.importorskip("cuda.core")
    script = CALLS.format(how=how, again=again, simulated=driver_kind == "simulator")
    assert succeed(driver_kind, script, forked=USUAL) == ""


# ----------------------------------------------------------- contexts that end under what uses them

UNDER_WAITS = (
    BEGINNING
    + """
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
            spin(stream, 0.6 if {how!r} == "destroy under polls" else 0.2)
        event.record(recorded)
        waits = [(name, stream.synchronize_async()) for name, stream in streams.items()]
        waits += [("Event", event.synchronize_async()), ("completion", futures.completion_future())]
        waits += [("checked", futures.checked_completion_future()),
            ("enqueue", futures.enqueue_async(lambda _: 1))]
        tasks = [asyncio.create_task(guarded(name, wait)) for name, wait in waits]
        while internals.pending_waits() < 5:
            await asyncio.sleep(0)
        for _ in range(20):  # the waits without an event have begun too
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
)


@pytest.mark.simulator_only(
    "a GPU's driver does not check an event whose context is gone, and may crash the process"
)
@pytest.mark.parametrize("how", ["destroy", "reset", "destroy under polls"])
def test_a_context_that_ends_under_waits_in_each_stage(driver_kind: str, how: str) -> None:
    """Each wait ends: with its work, which the driver finishes first, or with the error that says
    what has happened. None uses what is gone, but for a query that the loop or the watcher has
    begun meanwhile.
    """
    under_polls = how == "destroy under polls"
    script = UNDER_WAITS.format(how=how)
    wait = "spin" if under_polls else ""
    for _ in range(3):  # on a busy machine the work may be over before the context is gone
        out = succeed(driver_kind, script, AIOSTREAM_WAIT=wait, forked=USUAL)
        if not under_polls or "done" not in out:
            break
    assert out.startswith("[] 709 709 709" if under_polls else "[] "), out
    begun = 1 if under_polls else 2  # here the loop itself ends the context
    assert re.search(rf" (0 None|[1-{begun}] cu(Event|Stream)Query)\n$", out), out


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
    assert succeed(driver_kind, script, forked=USUAL) == "709 709\n" * 3


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
