"""What streams, events and graphs have in common: a handle that they own or borrow, and its end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

import internals
from aiostream import (
    CudaError,
    Device,
    Event,
    ExecutableGraph,
    Graph,
    Stream,
    StreamClosedError,
    StreamPool,
    simulator,
    statistics,
)
from captures import in_thread
from support import Gate, settle

KINDS: dict[str, Callable[[], Any]] = {
    "Stream": Stream,
    "Event": Event,
    "Graph": Graph,
    "ExecutableGraph": lambda: Graph().instantiate(),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_repr_says_what_an_object_is(kind: str) -> None:
    thing = KINDS[kind]()
    place = " on device 0" if kind in ("Stream", "Event") else ""
    said = f"<aiostream.{kind} {thing.handle:#x}{place}"
    assert repr(thing) == f"{said}>"
    thing.close()
    assert repr(thing) == f"{said}, closed>"


def test_repr_of_an_object_whose_constructor_has_not_ended(kind: str) -> None:
    made: Any = type(KINDS[kind]())
    assert repr(made.__new__(made)) == f"<aiostream.{kind}, not made>"


def test_repr_of_a_pool_whose_constructor_has_failed() -> None:
    """Tools that print the locals of a traceback show it."""
    seen: list[str] = []

    class Shown(StreamPool):
        def __del__(self) -> None:
            seen.append(repr(self))

    with pytest.raises(ValueError, match="at least one stream"):
        Shown(0)
    gc.collect()
    assert seen == ["<aiostream.StreamPool, not made>"]


def test_repr_says_more_of_some() -> None:
    class Mine(Stream):
        """A user's class."""

    with Graph() as graph, graph.instantiate() as executable, Event(timing=True) as event:
        assert repr(Graph.borrow(int(graph))).endswith(", borrowed>")
        assert repr(ExecutableGraph.borrow(int(executable))).endswith(", borrowed>")
        assert repr(event).endswith(" on device 0, timing>")
    assert event.closed
    mine = Mine()
    assert repr(mine).startswith("<test_owned.test_repr_says_more_of_some.<locals>.Mine 0x")
    mine.close()


def test_repr_of_a_context_names_its_device() -> None:
    context = Device(0).primary_context
    assert repr(context) == f"<aiostream.Context {context.handle:#x} on device 0>"


def test_repr_of_a_capture_names_its_stream_and_its_state() -> None:
    with Stream().sync_scope() as stream:
        scope = stream.capture()
        said = f"<aiostream.CaptureScope of stream {stream.handle:#x} on device 0, "
        assert repr(scope) == f"{said}not begun>"
        with scope:
            assert repr(scope) == f"{said}capturing>"
        assert repr(scope) == f"{said}ended>"
        scope.graph.close()


def test_closed_object_refuses_with_its_name(kind: str) -> None:
    """It is destroyed at once, and may be closed again."""
    thing = KINDS[kind]()
    assert settle(internals.janitor_is_idle)  # the graph behind an executable is gone
    before = statistics().handles
    assert int(thing) == thing.handle
    assert not thing.closed
    thing.close()
    thing.close()
    assert thing.closed
    now = statistics().handles
    assert (now.open, now.destroyed) == (before.open - 1, before.destroyed + 1)
    says = r"^(stream|event|graph|executable graph) 0x.* is closed"
    with pytest.raises(StreamClosedError, match=says):
        int(thing)


def test_dropped_object_is_destroyed_once(kind: str) -> None:
    before = statistics().handles
    KINDS[kind]()
    gc.collect()
    assert settle(lambda: statistics().handles.open == before.open)
    now = statistics().handles
    assert now.created - before.created == now.destroyed - before.destroyed


@pytest.mark.parametrize("kind", ["Stream", "Graph", "ExecutableGraph"])
def test_handle_is_given_away_and_taken_over(kind: str) -> None:
    owner = KINDS[kind]()
    made: Any = type(owner)
    gc.collect()
    assert settle(internals.janitor_is_idle)
    before = statistics().handles
    handle = owner.into_raw()
    assert owner.closed
    with pytest.raises(StreamClosedError):
        owner.into_raw()
    borrowed = made.borrow(handle)
    with pytest.raises(ValueError, match="is borrowed"):
        borrowed.into_raw()
    again = made.from_raw(handle)
    if kind != "Stream":
        assert made.borrow(again) is again
    if kind != "ExecutableGraph":  # which equals only itself
        assert made.borrow(again) == again == borrowed != owner
        assert hash(again) == hash(borrowed)
    borrowed.close()
    assert again != borrowed
    again.close()
    again.close()
    now = statistics().handles
    ends = (now.released - before.released, now.destroyed - before.destroyed)
    assert (now.created - before.created, *ends) == (1, 1, 1)


@pytest.mark.parametrize("kind", ["Stream", "Graph", "ExecutableGraph"])
def test_borrowed_object_leaves_the_handle_to_its_owner(kind: str) -> None:
    before = statistics().handles.open
    owner = KINDS[kind]()
    gc.collect()
    assert settle(lambda: statistics().handles.open == before + 1)  # no graph behind an executable
    destroyed = statistics().handles.destroyed
    borrowed = type(owner).borrow(int(owner))
    del borrowed
    gc.collect()
    assert settle(internals.janitor_is_idle)
    borrowed = type(owner).borrow(int(owner))
    borrowed.close()
    assert borrowed.closed
    assert not owner.closed
    assert statistics().handles.destroyed == destroyed
    owner.close()
    assert statistics().handles.destroyed == destroyed + 1


def put_behind(gate: Gate, thing: Any, stream: Stream, event: Event) -> None:
    """Puts the thing and the event behind the gate.

    The gate holds the thing itself, if that is a stream, and else the given stream.
    """
    held = thing if isinstance(thing, Stream) else stream
    gate.hold(held)
    for each in (event, *([thing] if thing is not held else [])):
        each.record(held)


@pytest.mark.parametrize("kind", ["Stream", "Event"])
async def test_end_of_an_async_block_awaits_the_work(
    stream: Stream, event: Event, kind: str
) -> None:
    with Gate() as gate:

        async def open_the_gate() -> None:  # which never runs if the block's end blocks the loop
            gate.open()

        async with anyio.create_task_group() as group:
            async with KINDS[kind]() as thing:
                put_behind(gate, thing, stream, event)
                assert not event.query()
                group.start_soon(open_the_gate)
            assert event.query()
    assert thing.closed
    with pytest.raises(StreamClosedError):
        async with thing:
            raise AssertionError("what is closed was entered")
    for closes in (False, True):
        with pytest.raises(LookupError):  # which wins over the error of closing
            async with KINDS[kind]() as thing:
                if closes:
                    thing.close()
                raise LookupError
        assert thing.closed
    async with KINDS[kind]() as thing:
        thing.close()
    await thing.aclose()


@pytest.mark.parametrize("kind", ["Stream", "Event"])
async def test_cancelled_end_of_an_async_block_destroys_and_raises(
    stream: Stream, event: Event, kind: str
) -> None:
    with Gate() as gate:
        thing = KINDS[kind]()
        put_behind(gate, thing, stream, event)
        with anyio.move_on_after(0.01) as scope:
            async with thing:
                pass
        assert scope.cancelled_caught
        assert thing.closed
        assert not event.query(), "the work goes on"


@pytest.mark.parametrize("kind_", [Stream, Event])
async def test_aclose_while_another_thread_closes(
    kind_: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the question, whether it is closed, and the wait."""
    wait = kind_.synchronize_async

    async def closed_first(self: Any) -> None:
        self.close()
        await wait(self)

    monkeypatch.setattr(kind_, "synchronize_async", closed_first)
    thing = kind_()
    await thing.aclose()
    assert thing.closed


# -------------------------------------------------------------------------------- how a handle ends


async def test_into_raw_in_the_function_of_enqueue_async(stream: Stream) -> None:
    """It is refused, also if its caller uses a borrowed stream."""
    for used in (stream, stream.to_borrowed()):
        with pytest.raises(RuntimeError, match="is in use"):
            await used.enqueue_async(lambda _: stream.into_raw())
        assert await used.enqueue_async(lambda _: 1) == 1  # it is still the stream's owner
    handle = stream.handle
    assert stream.into_raw() == handle
    Stream.from_raw(handle).close()


async def test_into_raw_in_functions_that_call_each_other() -> None:
    """It is refused at any depth."""
    streams = [Stream() for _ in range(40)]

    def nested(stream: Stream, *rest: Stream) -> object:
        return rest[0].enqueue_async(nested, *rest[1:]) if rest else stream.into_raw()

    for depth in (1, 2, 40):
        with pytest.raises(RuntimeError, match="is in use"):
            await streams[0].enqueue_async(nested, *streams[1:depth])
    for stream in streams:  # none of the uses is left
        Stream.from_raw(stream.into_raw()).close()


def test_into_raw_in_a_signal_handler() -> None:
    stream, graph = Stream(), Graph()
    for thing in (stream, graph):
        with internals.pinned(thing):
            with internals.pinned(thing), pytest.raises(RuntimeError, match="is in use"):
                thing.into_raw()
            with pytest.raises(RuntimeError, match="is in use"):
                thing.into_raw()
    Stream.from_raw(stream.into_raw()).close()
    Graph.from_raw(graph.into_raw()).close()


@pytest.mark.parametrize("kind", [Stream, Graph])
def test_into_raw_while_another_thread_uses_the_handle(kind: Any) -> None:
    """It is refused, and the object stays its owner's."""
    thing = kind()
    in_use, leave = threading.Event(), threading.Event()

    def use() -> None:
        with internals.pinned(thing):
            in_use.set()
            assert leave.wait(20)

    with ThreadPoolExecutor(1) as thread:
        user = thread.submit(use)
        assert in_use.wait(20)
        with pytest.raises(RuntimeError, match="is in use"):
            thing.into_raw()
        assert not thing.closed
        leave.set()
    user.result()
    handle = thing.handle
    assert thing.into_raw() == handle
    kind.from_raw(handle).close()


@pytest.mark.simulator_only("a driver refuses no destruction on command")
@pytest.mark.parametrize("end", ["last user", "finalizer"])
async def test_refused_destruction_is_reported(unraisable: list[Any], end: str) -> None:
    """To `sys.unraisablehook`, because no caller is there. What is still there counts as leaked."""
    before, things = statistics().handles, [Stream()]
    simulator.fail("cuStreamDestroy", 999)
    if end == "last user":
        await things[0].enqueue_async(lambda given: given.close())
    else:
        things.clear()
        gc.collect()
    assert settle(lambda: len(unraisable) == 1)
    assert unraisable[0][0] is CudaError
    assert "999" in unraisable[0][1]
    now = statistics().handles
    ended = (now.open - before.open, now.destroyed - before.destroyed, now.leaked - before.leaked)
    assert ended == (0, 0, 1)


def test_no_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="a stream"):
        internals.raise_for(internals.RESULT_NO_MEMORY, "cuEventRecord", "a stream")


@pytest.mark.simulator_only("a driver does not count its calls")
@pytest.mark.parametrize(
    ("make", "destroy"), [(Stream, "cuStreamDestroy"), (Event, "cuEventDestroy")]
)
def test_constructor_without_memory_destroys_once(
    make: Callable[[], Any], destroy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object that was half made is collected, and must not destroy what the constructor did."""
    make().close()
    before, handles = internals.simulated_calls()[destroy], statistics().handles.open
    objects = internals.simulated_objects()
    with monkeypatch.context() as patch:
        internals.fail_references(patch)
        with pytest.raises(MemoryError):
            make()
    gc.collect()
    assert settle(internals.janitor_is_idle)
    make().close()
    assert internals.simulated_calls()[destroy] == before + 2
    assert internals.simulated_objects() == objects
    assert statistics().handles.open == handles


def test_from_raw_without_memory_leaves_the_handle_to_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = Stream().into_raw()
    with monkeypatch.context() as patch:
        internals.fail_references(patch)
        with pytest.raises(MemoryError):
            Stream.from_raw(handle)
    gc.collect()
    assert settle(internals.janitor_is_idle)
    with Stream.from_raw(handle).sync_scope() as again:
        assert again.query()
    again.close()


class Foreign:
    """Another library's stream: it goes with its object, as a stream of cuda.core or cupy does."""

    def __init__(self) -> None:
        self.owner = Stream()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.owner.handle


@pytest.fixture
def source() -> list[Foreign]:
    """The only reference to one."""
    return [Foreign()]


def test_source_of_a_borrowed_stream_lives_until_the_last_use(source: list[Foreign]) -> None:
    """Another thread may be in a call on the handle, and the source destroys it when it dies."""
    gone, borrowed = weakref.ref(source[0]), Stream.borrow(source.pop())
    with internals.pinned(borrowed) as handle:
        assert in_thread(borrowed.close, borrowed) is None
        gc.collect()
        assert borrowed.closed
        alive = gone()
        assert alive is not None
        assert alive.owner.handle == handle
        del alive
    del borrowed
    gc.collect()
    assert gone() is None


def test_source_of_an_unused_borrowed_stream_goes_with_its_close(source: list[Foreign]) -> None:
    gone, borrowed = weakref.ref(source[0]), Stream.borrow(source.pop())
    borrowed.close()
    gc.collect()
    assert gone() is None
    assert borrowed.closed


async def test_source_of_a_pools_stream_lives_until_the_last_use(source: list[Foreign]) -> None:
    gone, pool = weakref.ref(source[0]), StreamPool.borrow([source.pop()])
    taken = await pool.acquire()
    with internals.pinned(taken):
        pool.release(taken)
        pool.close()
        del pool
        gc.collect()
        assert gone() is not None
    del taken
    gc.collect()
    assert gone() is None
