"""What streams, events and graphs have in common: a handle that they own or borrow."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import internals
from aiostream import (
    Device,
    Event,
    ExecutableGraph,
    Graph,
    Stream,
    StreamClosedError,
    StreamPool,
    statistics,
)
from support import settle

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
            super().__del__()

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
    with pytest.raises(
        StreamClosedError, match=r"^(stream|event|graph|executable graph) 0x.* is closed"
    ):
        int(thing)


def test_dropped_object_is_destroyed_once(kind: str) -> None:
    before = statistics().handles
    KINDS[kind]()
    gc.collect()
    assert settle(lambda: statistics().handles.open == before.open)
    now = statistics().handles
    assert now.created - before.created == now.destroyed - before.destroyed


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
