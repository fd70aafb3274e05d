"""What owns something of the driver's is not copied, and a closed one is not taken for the next one
with its handle.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aiostream
import internals
from aiostream import Device, Event, Graph, Stream, StreamClosedError, StreamPool, statistics
from support import USUAL, Gate, succeed

COPIERS: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    pickle.dumps,
    lambda thing: copy.deepcopy({"a": [thing]}),
]


@pytest.fixture
def owners() -> Iterator[list[Any]]:
    stream = Stream()
    with stream.capture() as capture:
        pass
    graph = capture.graph
    things: list[Any] = [
        stream,
        stream.to_borrowed(),
        Event(),
        graph,
        graph.instantiate(),
        StreamPool(1),
    ]
    yield things
    for thing in things:
        thing.close()


@pytest.mark.parametrize("copier", COPIERS)
def test_owners_are_not_copied(owners: list[Any], copier: Callable[[Any], Any]) -> None:
    """A copy would have destroyed the original's handle when it was dropped."""
    before = statistics().handles
    advice = [
        *[r"to_borrowed\(\) gives a second object on the same stream"] * 2,
        "use the object itself",
        r"clone\(\) copies the graph",
        r"Graph\.instantiate\(\) makes another one",
        "",
        "",
    ]
    for thing, says in zip((*owners, Device(0).primary_context), advice, strict=True):
        message = rf"^{type(thing).__name__} cannot be copied or pickled: .*{says}"
        with pytest.raises(TypeError, match=rf"{message}.*\. Another process makes its own$"):
            copier(thing)
    gc.collect()
    assert not any(thing.closed for thing in owners)
    assert statistics().handles == before


async def test_futures_are_not_copied(stream: Stream) -> None:
    with Gate() as gate:
        gate.hold(stream)
        for future in (stream.completion_future(), stream.enqueue_async(lambda _: None)):
            for copier in COPIERS:
                with pytest.raises(TypeError, match=r"cannot (be copied or )?pickle"):
                    copier(future)
        gate.open()
        await future


async def test_iterators_of_futures_are_not_copied(stream: Stream) -> None:
    """A copy took the callbacks of the original away when it died, and the original waited."""
    iterator = aiostream.as_completed([stream.completion_future()])
    for copier in COPIERS:
        with pytest.raises(TypeError, match=r"call as_completed\(\) again"):
            copier(iterator)
    gc.collect()
    assert [future.done() async for future in iterator] == [True]


def test_what_owns_nothing_is_copied() -> None:
    assert pickle.loads(pickle.dumps(Device(0))) == copy.deepcopy(Device(0)) == Device(0)


# -------------------------------------------------------------------------- handles that come again


def next_with_handle(handle: int, make: Callable[[], Any]) -> Any:
    """The next object with a handle that was closed, or `None`: the driver gives a handle again
    when it likes.
    """
    with contextlib.ExitStack() as others:
        for _ in range(200):
            made = make()
            if made.handle == handle:
                return made
            others.callback(made.close)
    return None


@pytest.mark.parametrize("kind", [Stream, Graph])
def test_a_closed_object_equals_only_itself(kind: Any) -> None:
    closed, owner = kind(), kind()
    handle, borrowed = closed.handle, kind.borrow(owner.handle)
    hashes = [hash(closed), hash(owner), hash(borrowed)]
    known = {closed: "of the closed one"}
    closed.close()
    successor = next_with_handle(handle, kind)
    if successor is not None:
        assert closed != successor
        assert hash(closed) == hash(successor), "as it was"
        assert known.get(successor) is None
        successor.close()
    assert known[closed] == "of the closed one", "a dict still finds it"
    second = kind.borrow(owner.handle)
    assert second == owner == borrowed
    second.close()
    assert second != owner
    assert second == second
    owner.close()
    assert owner != borrowed
    assert [hash(closed), hash(owner), hash(borrowed)] == hashes


# ------------------------------------------------------------------------------------------- errors


class Detailed(aiostream.CudaError):
    """A user's subclass, whose `__init__` takes something else."""

    def __init__(self, detail: str) -> None:
        super().__init__(2, "CUDA_ERROR_OUT_OF_MEMORY", "cuMemAlloc", hint="Free some")
        self.detail = detail


def errors() -> list[BaseException]:
    lost = internals.driver_error(719, "cuStreamQuery", "stream 0x10")
    refused = aiostream.GraphUpdateError(
        910, "NAME", "cuGraphExecUpdate", "g", "The driver's reason: ERROR_TOPOLOGY_CHANGED"
    )
    refused.result = 2
    made: list[BaseException] = [
        lost,
        refused,
        Detailed("more"),
        StreamClosedError("closed"),
        aiostream.PoolFullError("full"),
    ]
    for error in made:
        error.add_note("a note")
    return made


@pytest.mark.parametrize(
    "copier", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_errors_are_copied_with_all_that_they_say(copier: Callable[[Any], Any]) -> None:
    for error in errors():
        same = copier(error)
        assert type(same) is type(error)
        assert (str(same), same.args, same.__dict__) == (str(error), error.args, error.__dict__)
        assert same.__notes__ == ["a note"]


def test_a_foreign_stream_can_be_the_first_that_the_library_sees(driver_kind: str) -> None:
    """The native part was called before it was bound, and the process crashed."""
    script = """
        import internals
        driver = internals.bindings()
        context = internals.driver_call("cuDevicePrimaryCtxRetain",
            internals.driver_call("cuDeviceGet", 0))
        internals.driver_call("cuCtxPushCurrent", context)
        handle = int(internals.driver_call("cuStreamCreate", 1))
        reference = internals.operand_of(handle)
        print(reference.handle.value == handle)
        """
    assert succeed(driver_kind, script, forked=USUAL).strip() == "True"
