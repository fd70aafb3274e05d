"""P13: an interrupt while an object is made leaves nothing in the driver, and nothing counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from aiostream import (
    CaptureMode,
    Context,
    CudaError,
    Event,
    Graph,
    Stream,
    exchange_capture_mode,
    simulator,
    statistics,
)
from internals import driver_call
from interrupts import Striker, ends

pytestmark = pytest.mark.simulator_only("a GPU does not count its calls")

DESTRUCTORS = {
    "cuStreamCreateWithPriority": "cuStreamDestroy",
    "cuEventCreate": "cuEventDestroy",
    "cuGraphCreate": "cuGraphDestroy",
    "cuGraphClone": "cuGraphDestroy",
    "cuGraphInstantiateWithParams": "cuGraphExecDestroy",
}


def left_in_the_driver(create: str) -> int:
    destroy = DESTRUCTORS[create]
    created = [name for name, other in DESTRUCTORS.items() if other == destroy]
    return sum(map(simulator.calls, created)) - simulator.calls(destroy)


@pytest.mark.parametrize("create", DESTRUCTORS)
def test_an_interrupt_while_an_object_is_made(create: str) -> None:
    graph = Graph()
    makers: dict[str, Callable[[], Any]] = {
        "cuStreamCreateWithPriority": Stream,
        "cuEventCreate": Event,
        "cuGraphCreate": Graph,
        "cuGraphClone": graph.clone,
        "cuGraphInstantiateWithParams": graph.instantiate,
    }
    make = makers[create]
    make().close()

    def left() -> tuple[int, int]:
        return left_in_the_driver(create), statistics().handles.open

    before = left()
    number, struck, current = 0, True, Context.get_current()
    while struck:
        number += 1
        with suppress(KeyboardInterrupt), Striker(number) as striker:
            make().close()
        struck = striker.has_struck
        assert ends(lambda: left() == before), (striker.where, left(), before, statistics().handles)
        # See "What is not promised" in docs/reliability.md.
        exchange_capture_mode(CaptureMode.GLOBAL)
        while Context.get_current() != current:
            driver_call("cuCtxPopCurrent")
    assert number > 15
    assert statistics().balanced
    graph.close()


def test_an_interrupt_while_a_stream_is_taken_over() -> None:
    """It stays its owner's if no object has got it, and it is not counted twice."""
    opened = statistics().handles.open
    number, struck, kept = 0, True, 0
    while struck:
        number += 1
        handle = Stream().into_raw()
        with suppress(KeyboardInterrupt), Striker(number) as striker:
            Stream.from_raw(handle).close()
        struck = striker.has_struck
        assert ends(lambda: statistics().handles.open == opened), striker.where
        with suppress(CudaError):  # closed, or dropped when an object had it already
            Stream.from_raw(handle).close()
            kept += 1
    assert kept > 15
