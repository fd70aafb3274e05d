"""P14: Python and native host functions of the user's, and what becomes of what they were given."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from aiostream import (
    CaptureMode,
    CudaError,
    Event,
    Graph,
    GraphNodeType,
    Stream,
    StreamCaptureError,
    simulator,
    statistics,
)
from internals import bindings, driver_call, native_call_replaced
from support import FULL, Gate, held_stream, releasing_threads, settle, spin
from waiters import until


class Witness:
    """Notes in which thread it died."""

    def __init__(self, deaths: list[int]) -> None:
        self.deaths = deaths

    def __call__(self, *_: Any) -> None:
        pass

    def __del__(self) -> None:
        self.deaths.append(threading.get_ident())


async def test_host_functions_run_in_order_with_their_arguments(stream: Stream) -> None:
    calls: list[Any] = []

    def note(*args: Any, **named: Any) -> None:
        calls.append((*args, named["key"]))

    with Gate() as gate:
        gate.hold(stream)
        for number in range(100):
            if number % 3:
                stream.launch_host_func(note, number, key="text")
            else:
                stream.add_callback(note, number, key="other")
        future = stream.completion_future()
        assert calls == []
        gate.open()
        await future
    assert calls == [
        (number, "text") if number % 3 else (None, number, "other") for number in range(100)
    ]


async def test_a_host_function_runs_between_the_points_round_it(stream: Stream) -> None:
    with Gate() as gate:
        gate.hold(stream)
        order: list[str] = []
        first = stream.completion_future()
        stream.launch_host_func(order.append, "function")
        second = stream.completion_future()
        first.add_done_callback(lambda _: order.append("first"))
        second.add_done_callback(lambda _: order.append("second"))
        gate.open()
        await until(lambda: len(order) == 3)
    assert order[-1] == "second"


def test_it_runs_on_the_drivers_thread_and_needs_no_loop(stream: Stream) -> None:
    threads: list[int] = []
    for _ in range(3):
        stream.launch_host_func(lambda: threads.append(threading.get_ident()))
    stream.synchronize()
    assert settle(lambda: len(threads) == 3)
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "error",
    [ValueError("v"), SystemExit(3), KeyboardInterrupt("k")],
    ids=lambda e: type(e).__name__,
)
async def test_an_exception_is_reported_and_the_stream_or_graph_goes_on(
    stream: Stream, unraisable: list[Any], error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise error

    ran: list[int] = []
    stream.launch_host_func(fail)
    stream.launch_host_func(ran.append, 1)
    stream.add_callback(fail)
    stream.add_callback(lambda _: ran.append(2))
    with stream.capture_executable() as capture:
        stream.launch_host_func(fail)
        stream.launch_host_func(ran.append, 3)
    for _ in range(3):
        capture.executable.launch(stream)
    await stream.synchronize_async()
    assert settle(lambda: len(unraisable) == 5)
    assert ran == [1, 2, 3, 3, 3]
    assert unraisable == [(type(error), str(error), fail)] * 5
    capture.executable.close()


async def test_what_was_given_is_released_by_a_thread_of_the_library(
    stream: Stream, other: Stream
) -> None:
    """Not before it has run; and then neither on the driver's thread, where CUDA is forbidden, nor,
    with the GIL, on the loop's. Who closes an executable that no launch uses ends it at once.
    """
    deaths: list[int] = []
    drivers: list[int] = []
    with Gate() as gate:
        gate.hold(stream)
        argument = Witness(deaths)
        argument_seen = weakref.ref(argument)
        stream.launch_host_func(lambda _: drivers.append(threading.get_ident()), argument)
        stream.launch_host_func(Witness(deaths))
        stream.add_callback(Witness(deaths), argument)
        with other.capture_executable() as capture:
            other.launch_host_func(Witness(deaths))
        capture.executable.launch(stream)
        capture.executable.close()
        del argument
        gc.collect()
        assert argument_seen() is not None
        assert deaths == []
        gate.open()
        await stream.completion_future()
    with other.capture_executable() as idle:
        other.launch_host_func(Witness(deaths))
    idle.executable.launch(other)
    other.synchronize()
    idle.executable.close()
    assert settle(lambda: len(deaths) == 5)
    assert set(deaths) <= releasing_threads()
    assert drivers[0] not in deaths


def test_native_functions_are_called_with_their_data(stream: Stream) -> None:
    """Also `sem_post` of the C library, which no Python touches. Without data they get null."""
    library, value, seen = ctypes.CDLL(None), ctypes.c_int(-1), list[int | None]()
    semaphore = (ctypes.c_char * 64)()
    assert library.sem_init(semaphore, 0, 0) == 0
    address = ctypes.addressof(semaphore)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
    stream.launch_host_func(function)
    stream.launch_host_func(function, None)
    stream.launch_host_func(function, 4711)
    for data in (semaphore, address, ctypes.c_void_p(address), ctypes.pointer(semaphore)):
        stream.launch_host_func(function, data)
        stream.launch_host_func(library.sem_post, data)
    stream.synchronize()
    assert settle(lambda: len(seen) == 7)
    assert seen == [None, None, 4711, *[address] * 4]
    library.sem_getvalue(semaphore, ctypes.byref(value))
    assert value.value == 4


def test_a_native_functions_data_is_kept_until_it_has_run(stream: Stream) -> None:
    seen: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int))(
        lambda data: seen.append(data.contents.value)
    )
    with Gate() as gate:
        gate.hold(stream)
        data = ctypes.c_int(42)
        alive = weakref.ref(data)
        stream.launch_host_func(function, data)
        del data
        gc.collect()
        assert alive() is not None
        gate.open()
        stream.synchronize()
    assert settle(lambda: alive() is None)
    assert seen == [42]


def test_bad_arguments_are_refused_and_nothing_is_enqueued(stream: Stream) -> None:
    before = statistics()
    function = ctypes.CDLL(None).sem_post
    null = ctypes.CFUNCTYPE(None, ctypes.c_void_p)()
    wrong: list[tuple[type[Exception], Any]] = [
        (TypeError, lambda: stream.launch_host_func()),  # type: ignore[call-arg]
        (TypeError, lambda: stream.launch_host_func(function, end="")),
        (ValueError, lambda: stream.launch_host_func(null, 1)),
        (TypeError, lambda: stream.launch_host_func(function, 1, 2)),
        (TypeError, lambda: stream.launch_host_func(function, "text")),
        (TypeError, lambda: stream.launch_host_func(function, [1])),
        (TypeError, lambda: stream.launch_host_func(function, 1.5)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    assert statistics().points.armed == before.points.armed


async def test_what_is_pending_on_a_destroyed_stream_still_comes() -> None:
    for ending in ("close", "drop"):
        calls: list[int] = []
        with Gate() as gate:
            stream = held_stream(gate)
            spin(stream, 0.001)
            for number in range(10):
                stream.launch_host_func(calls.append, number)
                stream.add_callback(lambda error, n, calls=calls: calls.append(n), number)
            futures = [stream.completion_future(), stream.checked_completion_future()]
            if ending == "close":
                stream.close()
            del stream
            gc.collect()
            assert not any(future.done() for future in futures)
            gate.open()
            for future in futures:
                await future
        assert calls == [number for number in range(10) for _ in range(2)]


async def test_the_loop_goes_on_while_a_host_function_runs(stream: Stream) -> None:
    inside, leave = threading.Event(), threading.Event()

    def function() -> None:
        inside.set()
        leave.wait(30)

    stream.launch_host_func(function)
    future = stream.completion_future()
    await until(inside.is_set)
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
    assert not future.done()
    leave.set()
    await future


def test_host_functions_from_many_threads(stream: Stream) -> None:
    """Each thread's calls stay in its order; all come, none twice."""
    calls: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        for number in range(100):
            stream.launch_host_func(calls.append, (thread, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    stream.synchronize()
    assert settle(lambda: len(calls) == 400)
    for index in range(4):
        assert [number for of, number in calls if of == index] == list(range(100))


def test_a_host_function_may_use_the_library_where_that_does_not_call_cuda(stream: Stream) -> None:
    """Statistics are allowed; what calls the driver is refused by the driver (800), not by a
    deadlock.
    """
    answers: list[Any] = []

    def function() -> None:
        answers.append(statistics().balanced)
        try:
            Event()  # a query or a synchronize of what is complete would answer
        except CudaError as error:
            answers.append(error)

    began = time.monotonic()
    stream.launch_host_func(function)
    stream.synchronize()
    assert settle(lambda: len(answers) == 2)
    assert answers[1].code == 800
    assert "A host function or callback must not call CUDA" in str(answers[1])
    assert time.monotonic() - began < 20


# ---------------------------------------------------------------------------------------- in graphs


class Owner:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.arguments: Any = None

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        self.arguments = arguments


def captured_owner(stream: Stream, *arguments: Any) -> tuple[Graph, weakref.ref[Owner]]:
    """A graph that holds the only reference to the owner that it calls."""
    owner = Owner()
    with stream.capture() as capture:
        stream.launch_host_func(owner, *arguments)
    return capture.graph, weakref.ref(owner)


def is_gone(owner: weakref.ref[Owner]) -> bool:
    return settle(lambda: gc.collect() >= 0 and owner() is None)


def living(owner: weakref.ref[Owner]) -> Owner:
    found = owner()
    assert found is not None, "freed early"
    return found


async def test_thousands_of_replays(stream: Stream) -> None:
    """Replayed in flights of 100, each launch awaited with those before it."""
    graph, owner = captured_owner(stream, "argument", 5)
    executable = graph.instantiate()
    graph.close()
    for flight in range(100 if FULL else 20):
        for _ in range(100):
            executable.launch(stream)
        await stream.synchronize_async()
        assert living(owner).calls == (flight + 1) * 100
    assert living(owner).arguments == ("argument", 5)
    executable.close()
    assert is_gone(owner)


def test_graphs_are_dropped_while_launches_are_in_flight(stream: Stream) -> None:
    """Two hundred graphs, dropped in all ways with launches held on the GPU: every launch calls its
    owner, which then dies.
    """
    counts: list[int] = []

    class Counting(Owner):
        def __del__(self) -> None:
            counts.append(self.calls)

    for number in range(100):
        with Gate() as gate:
            gate.hold(stream)
            # Few at a time: with some dozens of launches with host nodes pending, an H200 blocked
            # the next one.
            for each in range(number * 2, number * 2 + 2):
                with stream.capture() as capture:
                    stream.launch_host_func(Counting())
                graph = capture.graph
                executable = (graph.clone() if each % 2 else graph).instantiate()
                for _ in range(3):
                    executable.launch(stream)
                if each % 3 == 0:
                    executable.close()
                if each % 5 == 0:
                    graph.close()
                del graph, executable, capture
            gc.collect()
            assert len(counts) == number * 2, "an owner was freed under a launch"
            gate.open()
            stream.synchronize()
        assert settle(lambda wanted=(number + 1) * 2: len(counts) == wanted), "an owner was lost"
    assert counts == [3] * 200


def test_it_lives_as_long_as_any_graph_that_may_call_it(stream: Stream) -> None:
    graph, owner = captured_owner(stream)
    clone, executable = graph.clone(), graph.instantiate()
    graph.close()
    del graph
    gc.collect()
    copy = clone.instantiate()
    clone.close()
    executable.launch(stream)
    executable.close()
    copy.launch(stream)
    stream.synchronize()
    assert living(owner).calls == 2
    copy.close()
    assert is_gone(owner)


def test_it_lives_in_a_child_graph(stream: Stream) -> None:
    driver = bindings()
    child, owner = captured_owner(stream)
    with Graph() as parent:
        into, added = driver.CUgraph(int(parent)), driver.CUgraph(int(child))
        driver_call("cuGraphAddChildGraphNode", into, [], 0, added)
        child.close()
        assert [node.type for node in parent.nodes] == [GraphNodeType.GRAPH]
        executable = parent.instantiate()
    executable.launch(stream)
    stream.synchronize()
    assert living(owner).calls == 1
    executable.close()
    assert is_gone(owner)


def test_an_update_replaces_the_owners(stream: Stream) -> None:
    first, first_owner = captured_owner(stream)
    second, second_owner = captured_owner(stream)
    executable = first.instantiate()
    first.close()
    with Gate() as gate:
        gate.hold(stream)
        executable.launch(stream)
        executable.update(second)
        second.close()
        executable.launch(stream)
        gc.collect()
        assert first_owner() is not None, "freed under a launch"
        gate.open()
        stream.synchronize()
    assert is_gone(first_owner)
    assert living(second_owner).calls == 1
    executable.close()
    assert is_gone(second_owner)


def test_a_graph_that_is_never_launched(stream: Stream) -> None:
    graph, owner = captured_owner(stream)
    before = statistics().points
    assert before.captured == before.pending == 1
    assert living(owner).calls == 0
    graph.close()
    assert is_gone(owner)
    assert settle(lambda: statistics().points.fired == before.fired + 1)


@pytest.mark.parametrize("how", ["exception", "invalidated", "unjoined"])
def test_a_capture_that_fails_frees_what_it_took_in(
    stream: Stream, other: Stream, event: Event, how: str
) -> None:
    owner = Owner()
    seen = weakref.ref(owner)
    error = ValueError if how == "exception" else StreamCaptureError
    with pytest.raises(error), stream.capture():
        stream.launch_host_func(owner)
        del owner
        if how == "exception":
            raise ValueError("body")
        if how == "invalidated":
            driver = bindings()
            driver.cuStreamQuery(driver.CUstream(stream.handle))
        if how == "unjoined":
            event.record(stream)
            other.wait_event(event)
            other.launch_host_func(print, "never")
    assert is_gone(seen)


def test_a_native_function_is_captured_raw_and_kept_with_its_data(stream: Stream) -> None:
    """The driver is given the user's own pointers. Both live as long as the graph."""
    seen: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int))(
        lambda data: seen.append(data.contents.value)
    )
    data = ctypes.c_int(42)
    addresses = ctypes.cast(function, ctypes.c_void_p).value, ctypes.addressof(data)
    kept = weakref.ref(data), weakref.ref(function)
    with stream.capture() as capture:
        stream.launch_host_func(function, data)
    del data, function
    gc.collect()
    driver = bindings()
    node = driver.CUgraphNode(int(capture.graph.nodes[0]))
    code, parameters = driver.cuGraphHostNodeGetParams(node)
    assert (int(code), int(parameters.fn), int(parameters.userData)) == (0, *addresses)
    with capture.graph as graph, graph.instantiate() as executable:
        for _ in range(3):
            executable.launch(stream)
        stream.synchronize()
        assert seen == [42] * 3
        assert all(reference() is not None for reference in kept)
    assert settle(lambda: gc.collect() >= 0 and all(reference() is None for reference in kept))


def test_from_many_threads_into_many_captures() -> None:
    """Threads that capture, launch and drop, each on its stream, while the others do: every call
    comes, every owner goes.
    """
    rounds, threads = 20, 4
    owners: list[weakref.ref[Owner]] = []
    calls: list[int] = []

    def work(stream: Stream) -> None:
        for _ in range(rounds):
            owner = Owner()
            owners.append(weakref.ref(owner))
            with stream.capture_executable(CaptureMode.THREAD_LOCAL) as capture:
                stream.launch_host_func(owner)
                stream.launch_host_func(calls.append, 1)
            for _ in range(5):
                capture.executable.launch(stream)
            stream.synchronize()
            assert owner.calls == 5
        stream.close()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [Stream() for _ in range(threads)]))
    assert len(calls) == rounds * threads * 5
    assert settle(lambda: gc.collect() >= 0 and all(owner() is None for owner in owners))


def test_a_cycle_through_the_graph_ends_with_its_closing(stream: Stream) -> None:
    graph, owner = captured_owner(stream)
    living(owner).graph = graph  # type: ignore[attr-defined]
    gc.collect()
    assert owner() is not None
    graph.close()
    del graph
    assert is_gone(owner)


REFUSALS = {
    "cuUserObjectCreate": (2, 0),
    "cuGraphRetainUserObject": (2, 1),
    "cuLaunchHostFunc": (2, 1),
    "cuStreamGetCaptureInfo": (999, 0),
}


@pytest.mark.simulator_only("has a driver call fail on command")
@pytest.mark.parametrize("call", REFUSALS)
def test_a_refused_step_leaves_nothing_behind(stream: Stream, call: str) -> None:
    code, armed = REFUSALS[call]
    owner = Owner()
    seen = weakref.ref(owner)
    before = statistics().points
    with stream.capture() as capture:
        simulator.fail(call, code)
        with pytest.raises(CudaError) as caught:
            stream.launch_host_func(owner)
        assert caught.value.code == code
        del caught, owner
        assert is_gone(seen)
        ran: list[int] = []
        stream.launch_host_func(ran.append, 1)
    assert settle(lambda: statistics().points.fired == before.fired + armed)
    assert statistics().points.armed == before.armed + armed + 1
    with capture.graph as graph, graph.instantiate() as executable:
        assert [node.type for node in graph.nodes] == [GraphNodeType.HOST]
        executable.launch(stream)
        stream.synchronize()
    assert ran == [1]


@pytest.mark.cuda_leaks(1)
def test_a_capture_that_another_thread_ends_in_between_is_quarantined(stream: Stream) -> None:
    """It stays and does nothing, because the stream may still run what was enqueued."""
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    graphs: list[Graph] = []

    def replace(original: Callable[..., int]) -> Callable[..., int]:
        def end_first(asked: int, function: int, data: int) -> int:
            graphs.append(stream.end_capture())
            return original(asked, function, data)

        return end_first

    called: list[int] = []
    stream.begin_capture(CaptureMode.RELAXED)
    refused = pytest.raises(StreamCaptureError, match="began or ended a capture")
    with native_call_replaced("cuLaunchHostFunc", signature, replace), refused:
        stream.launch_host_func(called.append, 1)
    stream.synchronize()
    graphs[0].close()
    assert called in ([], [1])
    assert statistics().balanced


async def test_it_runs_in_a_copy_of_its_callers_context(
    stream: Stream,
) -> None:
    request: ContextVar[str] = ContextVar("request", default="none")
    seen: list[str] = []

    def note(*_: Any) -> None:
        seen.append(request.get())
        request.set("its own")

    request.set("first")
    stream.launch_host_func(note)
    stream.add_callback(note)
    stream.begin_capture()
    stream.launch_host_func(note)
    graph = stream.end_capture()
    request.set("second")
    with graph.instantiate() as executable:
        for _ in range(2):
            executable.launch(stream)
    graph.close()
    stream.launch_host_func(note)
    await stream
    assert seen == ["first"] * 4 + ["second"]
    assert request.get() == "second"


async def test_what_would_never_run_is_reported(stream: Stream, unraisable: list[Any]) -> None:
    async def later() -> None:
        pass

    def halves() -> Any:
        yield

    stream.launch_host_func(lambda: later())
    stream.launch_host_func(lambda: halves())
    await stream
    assert ["would never run" in text for _, text, _ in unraisable] == [True, True]
