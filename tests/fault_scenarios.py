"""The public paths of which `test_faults.py` fails each call: see `fault_engine.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Set
from importlib.util import find_spec
from typing import Any

import aiostream
import waiters
from aiostream import Event, ExecutableGraph, Graph, Stream, StreamPool, WriteValue
from fault_engine import Faults, Scenario
from internals import driver_call, limit_timer
from support import Gate, settle, spin

WITHOUT_LOOP: list[Scenario] = []


def without_loop(
    keep: Callable[[], Any] | None = None, exempt: Set[str] = frozenset()
) -> Callable[..., None]:
    """Registers `def path(faults, kept)`; `keep` makes what serves all its runs.

    The functions in `exempt` do not fail.
    """

    def register(path: Callable[[Faults, Any], None]) -> None:
        async def act(faults: Faults, kept: Any) -> None:
            path(faults, kept)

        WITHOUT_LOOP.append(dataclasses.replace(scenario(path, act, keep), exempt=exempt))

    return register


def scenario(path: Any, act: Any, keep: Any) -> Scenario:
    """A scenario that is called as its function, in plain words."""
    name = path.__name__.strip("_").replace("_", " ")
    if keep is None:
        return Scenario(name, act)

    @contextlib.asynccontextmanager
    async def kept() -> AsyncIterator[Any]:
        with keep() as value:
            yield value

    return Scenario(name, act, kept)


@contextlib.contextmanager
def a_stream(**options: Any) -> Any:
    with contextlib.closing(Stream(**options)) as stream:
        spin(stream, 0)
        stream.synchronize()
        yield stream


@contextlib.contextmanager
def a_graph() -> Any:
    with a_stream() as stream:
        stream.begin_capture()
        spin(stream, 0)
        with stream.end_capture() as graph, graph.instantiate() as executable:
            yield stream, graph, executable


@contextlib.contextmanager
def memory(call: str, *flags: int) -> Any:
    with a_stream() as stream:
        with stream.context.as_current():
            pointer = driver_call(call, 64, *flags)
        yield stream, int(pointer)
        with stream.context.as_current():
            driver_call("cuMemFree", pointer)


def a_waiter(stage: str, thing: str) -> Callable[[], contextlib.AbstractAsyncContextManager[Any]]:
    """What makes a waiter and its gate, which each run shuts."""

    @contextlib.asynccontextmanager
    async def keep() -> AsyncIterator[Any]:
        waiter = waiters.Waiter(stage, thing)
        with Gate() as gate:
            yield waiter, gate
        limit_timer(waiters.MOST_TIMERS)
        with contextlib.suppress(aiostream.CudaError):
            waiter.close()

    return keep


def use(stream: Stream) -> None:
    """The stream serves as before."""
    spin(stream, 0)
    stream.synchronize()
    assert stream.query()


def on_a_stream(path: Callable[[Stream], None]) -> None:
    """Registers what is done with a stream, which serves as before then."""

    @functools.wraps(path)
    def whole(faults: Faults, stream: Stream) -> None:
        with faults:
            path(stream)
        use(stream)

    without_loop(a_stream)(whole)


async def use_async(stream: Stream) -> None:
    """The stream and the loop serve as before."""
    spin(stream, 0)
    await stream.synchronize_async()
    await stream.completion_future()
    assert await stream.enqueue_async(lambda _: 5) == 5
    stream.query()


# ------------------------------------------------------------------------------------------ streams


@without_loop()
def make_and_close_a_stream(faults: Faults, _: None) -> None:
    with faults, contextlib.closing(Stream()):
        pass


@without_loop()
def make_a_stream_of_another_device(faults: Faults, _: None) -> None:
    with faults, contextlib.closing(Stream(device=1, priority=-1, wait="spin")):
        pass


@without_loop()
def close_a_stream(faults: Faults, _: None) -> None:
    stream = Stream()
    with faults:
        stream.close()
    assert stream.closed


@without_loop()
def shut_a_stream_down(faults: Faults, _: None) -> None:
    stream = Stream()
    spin(stream, 0)
    with faults:
        stream.shutdown()
    assert stream.closed


@without_loop()
def drop_a_stream_and_an_event(faults: Faults, _: None) -> None:
    """Their finalizers leave them to the janitor.

    It may still have something of an earlier path, and ends that too.
    """
    stream, event = Stream(), Event()
    with faults:
        open_before = aiostream.statistics().handles.open
        del stream, event
        assert settle(lambda: aiostream.statistics().handles.open <= open_before - 2)


if find_spec("cuda.core"):

    @without_loop(a_stream)
    def use_a_retired_stream_again(faults: Faults, stream: Stream) -> None:
        retired = Stream()
        retired.core()
        retired.close()
        with faults, contextlib.closing(Stream()) as again:
            again.synchronize()
        use(stream)


@on_a_stream
def query(stream: Stream) -> None:
    assert stream.query()


@on_a_stream
def synchronize(stream: Stream) -> None:
    stream.synchronize()


@on_a_stream
def synchronize_for_a_time(stream: Stream) -> None:
    spin(stream, 0.001)
    stream.synchronize(timeout=20)


@on_a_stream
def properties(stream: Stream) -> None:
    fresh = Stream.borrow(stream.handle)
    assert fresh.id == stream.id
    assert fresh.flags == stream.flags
    assert fresh.priority == stream.priority
    assert fresh.device == stream.device
    assert fresh == stream
    assert fresh.device.name
    assert fresh.device.stream_priority_range
    assert fresh.green_context is None
    fresh.close()


@on_a_stream
def borrow(stream: Stream) -> None:
    borrowed = Stream.borrow(stream, wait="event")
    borrowed.synchronize()
    again = borrowed.to_borrowed()
    again.query()
    again.close()
    borrowed.close()


@on_a_stream
def special_streams(stream: Stream) -> None:
    for special in (Stream.legacy(), Stream.per_thread()):
        special.synchronize()
        assert special.query()
        special.close()


@without_loop()
def give_a_handle_away(faults: Faults, _: None) -> None:
    stream = Stream()
    value = stream.into_raw()
    with faults:
        stream = Stream.from_raw(value)
    if faults.error is None:
        assert not stream.closed
        stream.close()
    else:  # it is still the caller's
        Stream.from_raw(value).close()


@without_loop(a_stream)
def host_function(faults: Faults, stream: Stream) -> None:
    called: list[int] = []
    with faults:
        stream.launch_host_func(called.append, 1)
        stream.add_callback(lambda error: called.append(2))
    stream.synchronize()
    assert faults.error is not None or called == [1, 2]
    use(stream)


@on_a_stream
def attributes(stream: Stream) -> None:
    with contextlib.closing(Stream()) as other:
        priority = stream.get_attribute(aiostream.StreamAttribute.PRIORITY)
        stream.set_attribute(aiostream.StreamAttribute.PRIORITY, priority)
        other.copy_attributes(stream)


@without_loop(lambda: memory("cuMemAlloc"))
def memory_operations(faults: Faults, kept: tuple[Stream, int]) -> None:
    stream, pointer = kept
    with faults:
        stream.write_value(pointer, 1)
        stream.wait_value(pointer, 1)
        stream.write_value(pointer, 2, bits=64)
        stream.wait_value(pointer, 2, bits=64)
        stream.batch_mem_op([WriteValue(pointer, 3)])
    use(stream)


@without_loop(lambda: memory("cuMemAllocManaged", aiostream.MemAttach.GLOBAL.value))
def attach_managed_memory(faults: Faults, kept: tuple[Stream, int]) -> None:
    stream, pointer = kept
    with faults:
        stream.attach_mem_async(pointer)
        stream.attach_mem_async(pointer, 64, aiostream.MemAttach.SINGLE)
    use(stream)


@on_a_stream
def make_it_current(stream: Stream) -> None:
    with stream.as_current():
        pass


@on_a_stream
def health(_: Stream) -> None:
    assert aiostream.health() is None


@without_loop()
def make_and_close_a_pool(faults: Faults, _: None) -> None:
    with faults, contextlib.closing(StreamPool(3)):
        pass


@without_loop()
def make_a_pool_with_own_things(faults: Faults, stream: Stream | None) -> None:
    def each(stream: Stream) -> object:
        stream.launch_host_func(str)
        return [stream]

    with faults, contextlib.closing(StreamPool(2, each=each)):
        pass


# ------------------------------------------------------------------------------------------- events


@on_a_stream
def events(stream: Stream) -> None:
    with (
        contextlib.closing(Event(timing=True)) as first,
        contextlib.closing(Event(timing=True, blocking_sync=True)) as second,
    ):
        first.record(stream)
        stream.wait_event(first)
        second.record(stream)
        second.synchronize()
        assert first.query()
        assert first.elapsed_time(second) >= 0


@without_loop()
def close_an_event(faults: Faults, _: None) -> None:
    event = Event()
    with faults:
        event.close()


# ------------------------------------------------------------------------------ captures and graphs


def end_what_is_left(stream: Stream) -> None:
    """A fault may have come before the end of the capture."""
    if stream.capture_status() is not aiostream.CaptureStatus.NONE:
        with contextlib.suppress(aiostream.CudaError):
            stream.end_capture().close()


@without_loop(a_stream)
def capture(faults: Faults, stream: Stream) -> None:
    graph = None
    with faults:
        stream.begin_capture()
        assert stream.capture_info()
        stream.launch_host_func(int)
        graph = stream.end_capture()
    if graph is not None:
        graph.close()
    end_what_is_left(stream)
    use(stream)


@without_loop(a_stream)
def capture_scope(faults: Faults, stream: Stream) -> None:
    captured = stream.capture_executable()
    with faults, captured:
        stream.launch_host_func(int)
    if faults.error is None:
        captured.executable.close()
    del captured
    assert stream.capture_status() is aiostream.CaptureStatus.NONE or faults.error is not None
    end_what_is_left(stream)
    use(stream)


@without_loop(a_stream)
def capture_to_a_graph(faults: Faults, stream: Stream) -> None:
    graph = Graph()
    with faults:
        stream.begin_capture_to_graph(graph)
        stream.launch_host_func(int)
        assert stream.end_capture() is graph
    end_what_is_left(stream)
    graph.close()
    use(stream)


@without_loop(a_graph)
def graph(faults: Faults, kept: tuple[Stream, Graph, ExecutableGraph]) -> None:
    stream, source, _ = kept
    with (
        faults,
        contextlib.closing(source.clone()) as copy,
        contextlib.closing(copy.instantiate(upload_stream=stream)) as made,
    ):
        assert len(copy.nodes) == len(copy.root_nodes) == 1
        assert not copy.nodes[0].dependencies
        assert copy.nodes[0].type is aiostream.GraphNodeType.KERNEL
        made.upload(stream)
        made.launch(stream)
        made.update(source)
    use(stream)


@without_loop()
def make_and_drop_a_graph(faults: Faults, _: None) -> None:
    with faults:
        open_before = aiostream.statistics().handles.open
        made = Graph()
        del made
        assert settle(lambda: aiostream.statistics().handles.open <= open_before)
