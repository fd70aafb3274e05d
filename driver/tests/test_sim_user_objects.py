"""User objects: destroyed once, after the last of graph, clone, executable and launch has let go,
and in which thread.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

import nogpu as simulator
from simdriver import HOST, Gate, code, cu, host, keep, ok, until

RELAXED = cu.CUstreamCaptureMode(2)
MOVE = int(cu.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE)


class Thing:
    """A user object that counts its destructions."""

    def __init__(self, count: int = 1, destroy: Any = None) -> None:
        self.destroyed: list[int] = []
        native = HOST(
            lambda _: (
                destroy() if destroy else None,
                self.destroyed.append(threading.get_native_id()),
            )
        )
        keep.append(native)
        address = ctypes.cast(native, ctypes.c_void_p).value
        self.handle = ok(cu.cuUserObjectCreate(0, cu.CUhostFn(address), count, 1))

    def give_to(self, graph: Any) -> None:
        ok(cu.cuGraphRetainUserObject(graph, self.handle, 1, MOVE))

    def alive(self) -> bool:
        return not self.destroyed and simulator.pending_work() == 0

    def dies(self) -> bool:
        until(lambda: self.destroyed)
        until(lambda: simulator.pending_work() == 0)
        return len(self.destroyed) == 1


@pytest.fixture
def graph(driver: None) -> Any:
    return ok(cu.cuGraphCreate(0))


def test_it_dies_with_its_last_reference() -> None:
    thing = Thing(2)
    ok(cu.cuUserObjectRetain(thing.handle, 3))
    ok(cu.cuUserObjectRelease(thing.handle, 4))
    assert thing.alive()
    ok(cu.cuUserObjectRelease(thing.handle, 1))
    assert thing.dies()
    assert code(cu.cuUserObjectRelease(thing.handle, 1)) == 400


def test_the_call_that_lets_go_of_the_last_reference_destroys_it(stream: Any) -> None:
    things, graphs = [Thing() for _ in range(4)], [ok(cu.cuGraphCreate(0)) for _ in range(3)]
    for graph, thing in zip(graphs, things[1:], strict=True):
        thing.give_to(graph)
    executable = ok(cu.cuGraphInstantiate(graphs[2], 0))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuUserObjectRelease(things[0].handle, 1))
    ok(cu.cuGraphDestroy(graphs[0]))
    ok(cu.cuGraphReleaseUserObject(graphs[1], things[2].handle, 1))
    ok(cu.cuGraphDestroy(graphs[2]))
    assert not things[3].destroyed
    ok(cu.cuGraphExecDestroy(executable))
    assert [thing.destroyed for thing in things] == [[threading.get_native_id()]] * 4, (
        "before the call returns"
    )


def test_a_thread_of_its_own_destroys_what_a_launch_in_flight_held_last(
    stream: Any, gate: Gate
) -> None:
    host_threads, thing, graph = [], Thing(), ok(cu.cuGraphCreate(0))
    thing.give_to(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    gate.hold(stream)
    host(stream, lambda: host_threads.append(threading.get_native_id()))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(graph))
    assert not thing.destroyed
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert thing.dies()
    assert thing.destroyed[0] not in (threading.get_native_id(), *host_threads)


def test_recovery_destroys_what_a_lost_capture_held(stream: Any) -> None:
    thing = Thing()
    ok(cu.cuStreamBeginCapture(stream, RELAXED))
    host(stream, lambda: None)
    thing.give_to(ok(cu.cuStreamGetCaptureInfo(stream))[2])
    simulator.break_context(700)
    simulator.recover()
    assert thing.dies()


def test_destructors_may_not_call_cuda() -> None:
    answers = []
    thing = Thing(destroy=lambda: answers.append(code(cu.cuEventCreate(0))))
    ok(cu.cuUserObjectRelease(thing.handle, 1))
    assert thing.dies()
    assert answers == [800]


def test_what_cannot_be(graph: Any) -> None:
    thing = Thing(2)
    function = cu.CUhostFn(1)
    assert code(cu.cuUserObjectCreate(0, function, 1, 0)) == 1
    assert code(cu.cuUserObjectCreate(0, function, 0, 1)) == 1
    assert code(cu.cuUserObjectCreate(0, cu.CUhostFn(0), 1, 1)) == 1
    assert code(cu.cuUserObjectRetain(thing.handle, 0)) == 1
    assert code(cu.cuUserObjectRelease(thing.handle, 3)) == 1
    assert code(cu.cuGraphRetainUserObject(graph, thing.handle, 3, MOVE)) == 1
    assert code(cu.cuGraphRetainUserObject(graph, thing.handle, 1, 2)) == 1
    assert code(cu.cuGraphReleaseUserObject(graph, thing.handle, 1)) == 1
    thing.give_to(graph)
    assert code(cu.cuUserObjectRelease(thing.handle, 2)) == 1, "one of them is the graph's"
    assert code(cu.cuGraphReleaseUserObject(graph, thing.handle, 2)) == 1
    ok(cu.cuGraphReleaseUserObject(graph, thing.handle, 1))
    ok(cu.cuUserObjectRelease(thing.handle, 1))
    assert thing.dies()


def test_a_graph_holds_what_it_retained(graph: Any) -> None:
    kept, moved = Thing(), Thing()
    ok(cu.cuGraphRetainUserObject(graph, kept.handle, 2, 0))
    moved.give_to(graph)
    ok(cu.cuUserObjectRelease(kept.handle, 1))
    assert kept.alive()
    assert moved.alive()
    ok(cu.cuGraphDestroy(graph))
    assert kept.dies()
    assert moved.dies()


@pytest.mark.parametrize("last", ["graph", "clone", "executable", "flight"])
def test_destroyed_once_after_the_last_of_all(stream: Any, gate: Gate, last: Any) -> None:
    thing = Thing()
    ok(cu.cuStreamBeginCapture(stream, RELAXED))
    host(stream, lambda: None)
    graph = ok(cu.cuStreamEndCapture(stream))
    thing.give_to(graph)
    clone, executable = ok(cu.cuGraphClone(graph)), ok(cu.cuGraphInstantiate(graph, 0))
    gate.hold(stream)
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphLaunch(executable, stream))

    def land() -> None:
        gate.open()
        ok(cu.cuStreamSynchronize(stream))

    ends = {
        "graph": lambda: ok(cu.cuGraphDestroy(graph)),
        "clone": lambda: ok(cu.cuGraphDestroy(clone)),
        "executable": lambda: ok(cu.cuGraphExecDestroy(executable)),
        "flight": land,
    }
    for name, end in ends.items():
        if name != last:
            end()
            assert not thing.destroyed
    ends[last]()
    assert thing.dies()


def test_a_child_graph_holds_its_own(graph: Any, stream: Any) -> None:
    thing, inner = Thing(), ok(cu.cuGraphCreate(0))
    thing.give_to(inner)
    child = ok(cu.cuGraphAddChildGraphNode(graph, [], 0, inner))
    ok(cu.cuGraphDestroy(inner))
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroyNode(child))
    assert thing.alive()
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert not thing.destroyed
    ok(cu.cuGraphExecDestroy(executable))
    assert thing.dies()


def test_an_update_changes_what_an_executable_holds(stream: Any, gate: Gate) -> None:
    old, new, both = Thing(), Thing(), Thing()
    graphs = [ok(cu.cuGraphCreate(0)) for _ in range(2)]
    for graph, thing in zip(graphs, (old, new), strict=True):
        thing.give_to(graph)
        ok(cu.cuGraphRetainUserObject(graph, both.handle, 1, 0))
    ok(cu.cuUserObjectRelease(both.handle, 1))
    executable = ok(cu.cuGraphInstantiate(graphs[0], 0))
    gate.hold(stream)
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecUpdate(executable, graphs[1]))
    for graph in graphs:
        ok(cu.cuGraphDestroy(graph))
    assert not old.destroyed, "a launch in flight still needs it"
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert old.dies()
    assert new.alive()
    assert both.alive()
    ok(cu.cuGraphExecDestroy(executable))
    assert new.dies()
    assert both.dies()


def test_a_fault_lets_go_of_launches_in_flight(graph: Any, stream: Any, gate: Gate) -> None:
    thing = Thing()
    thing.give_to(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    gate.hold(stream)
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(graph))
    assert not thing.destroyed
    simulator.break_context(700)
    assert thing.dies()
    simulator.recover()


def test_a_fault_does_not_take_from_a_host_node_what_it_still_uses(graph: Any, stream: Any) -> None:
    """A host node that was running when the context broke runs to its end, and what it was given
    lives that long.
    """
    thing, started, release, alive = Thing(), threading.Event(), threading.Event(), []
    native = HOST(lambda _: (started.set(), release.wait(10), alive.append(not thing.destroyed)))
    keep.append(native)
    params = cu.CUDA_HOST_NODE_PARAMS()
    params.fn = cu.CUhostFn(ctypes.cast(native, ctypes.c_void_p).value)
    ok(cu.cuGraphAddHostNode(graph, [], 0, params))
    thing.give_to(graph)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    assert started.wait(10)
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(graph))
    simulator.break_context(700)
    assert not thing.destroyed
    release.set()
    assert thing.dies()
    assert alive == [True]
    simulator.recover()
