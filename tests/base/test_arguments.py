"""What is refused before the driver is asked, with a `TypeError` or `ValueError` that says what to
do.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aiostream
import internals
from aiostream import (
    CaptureMode,
    Context,
    Device,
    Event,
    ExecutableGraph,
    Graph,
    Stream,
    StreamAttribute,
    StreamClosedError,
    StreamPool,
    statistics,
)
from support import Gate, run_script, succeed


class Fake:
    """An object with the attributes that a library's has."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class CupyLikeStream(Fake):
    """Its class says what it is."""


class CupyLikeEvent(Fake):
    """Its class says what it is."""


@pytest.fixture
def things() -> Iterator[dict[str, Any]]:
    """Objects of ours, of each kind that has a handle."""
    stream, event = Stream(), Event()
    with stream.capture() as capture:
        pass
    graph = capture.graph
    owned: dict[str, Any] = {
        "stream": stream,
        "event": event,
        "graph": graph,
        "executable": graph.instantiate(),
    }
    yield {**owned, "context": stream.context, "device": Device(0), "scope": capture}
    for each in owned.values():
        each.close()


def places_for_a_stream(things: dict[str, Any]) -> list[Callable[[Any], Any]]:
    return [
        Stream.borrow,
        things["event"].record,
        things["stream"].copy_attributes,
        things["executable"].launch,
        things["executable"].upload,
        lambda stream: StreamPool.borrow([stream]),
    ]


# ------------------------------------------------------------------------ objects of the wrong kind


def test_our_own_objects_of_another_kind_are_no_streams(things: dict[str, Any]) -> None:
    """Each has a handle, which the driver would have used as a stream's."""
    before = statistics().handles
    for place in places_for_a_stream(things):
        for kind in ("event", "graph", "executable", "context", "device", "scope"):
            with pytest.raises(
                TypeError, match=rf"a CUDA stream is needed.*not {type(things[kind]).__name__}"
            ):
                place(things[kind])
        with pytest.raises(
            TypeError,
            match=r"of another kind: Event\.record\(stream\) and "
            r"Stream\.wait_event\(event\) connect",
        ):
            place(things["event"])
        with pytest.raises(TypeError, match="a CUDA stream is needed, not the class Stream"):
            place(Stream)
    assert statistics().handles == before


def test_a_stream_is_no_event(things: dict[str, Any]) -> None:
    """What people write who know cuda.core's `Stream.wait`."""
    consumer = Stream()
    driver = internals.bindings()
    for stream in (
        things["stream"],
        driver.CUstream(things["stream"].handle),
        CupyLikeStream(ptr=things["stream"].handle),
    ):
        with pytest.raises(
            TypeError,
            match=r"a CUDA event is needed, .*: record an event on the stream, and wait for that",
        ):
            consumer.wait_event(stream)
    for kind in ("graph", "executable", "context", "device"):
        with pytest.raises(TypeError, match=r"a CUDA event is needed.*, not"):
            consumer.wait_event(things[kind])
    consumer.close()


def test_other_libraries_objects_of_another_kind(things: dict[str, Any]) -> None:
    driver = internals.bindings()
    handle = things["event"].handle
    for event in (
        driver.CUevent(handle),
        Fake(handle=driver.CUevent(handle)),
        CupyLikeEvent(ptr=handle),
    ):
        for place in places_for_a_stream(things):
            with pytest.raises(TypeError, match="a CUDA stream is needed"):
                place(event)
    with pytest.raises(TypeError, match="a CUDA event is needed"):
        things["stream"].wait_event(Fake(handle=driver.CUstream(things["stream"].handle)))


def test_objects_of_cuda_core_of_another_kind() -> None:
    core = pytest.importorskip("cuda.core")
    mine, event = Stream(), Event()
    with mine.context.as_current():
        device = core.Device(0)
        device.set_current()
        theirs = device.create_stream()
        their_event = theirs.record()
    with pytest.raises(
        TypeError, match=r"a CUDA event is needed, not Stream.*: record an event on the stream"
    ):
        mine.wait_event(theirs)
    for place in (Stream.borrow, event.record, mine.copy_attributes):
        with pytest.raises(TypeError, match="a CUDA stream is needed, not Event"):
            place(their_event)
    theirs.close()
    mine.close()
    event.close()


def test_an_event_of_torch_that_was_never_recorded() -> None:
    """torch makes the driver's event at the first record; until then its `cuda_event` is 0."""
    stream = Stream()
    stream.wait_event(Fake(cuda_event=0))
    assert stream.query()
    stream.close()
    with pytest.raises(StreamClosedError):
        stream.wait_event(Fake(cuda_event=0))


def test_graphs_of_the_wrong_kind(things: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"an executable graph is needed .*, not Graph"):
        ExecutableGraph.borrow(things["graph"])
    for wrong in (things["executable"], things["stream"], things["event"]):
        with pytest.raises(TypeError, match=f"a graph is needed .*, not {type(wrong).__name__}"):
            Graph.borrow(wrong)
    node = Graph().nodes
    assert node == ()
    for dependencies in (5, None, things["graph"]):
        with pytest.raises(TypeError, match="dependencies are nodes in a list or tuple, not one"):
            things["stream"].begin_capture_to_graph(things["graph"], dependencies)


class Graphs:
    """Graphs of libraries, whose handles are 0."""

    def __init__(self) -> None:
        self.graph = self.graphExec = 0  # as cupy's

    def raw_cuda_graph(self) -> int:  # as torch's
        return 0

    raw_cuda_graph_exec = raw_cuda_graph


def test_graphs_without_a_handle() -> None:
    before = statistics().handles
    for kind, what in ((Graph, "a graph"), (ExecutableGraph, "an executable graph")):
        with pytest.raises(ValueError, match=f"^0 is not the handle of {what}$"):
            kind.borrow(0)
        for empty in (Graphs(), Fake(graph=0, graphExec=0)):
            with pytest.raises(ValueError, match=f"^0 is not .* {what}, and .* gives it$"):
                kind.borrow(empty)
    assert statistics().handles == before


def test_a_completion_is_on_a_stream_of_ours(things: dict[str, Any]) -> None:
    event = things["event"]
    for wrong in (None, event, things["stream"].handle):
        for method in (event.completion_future_on, event.checked_completion_future_on):
            with pytest.raises(
                TypeError, match=r"an aiostream\.Stream is needed, not .*; Stream\.borrow makes one"
            ):
                method(wrong)


def test_a_pool_borrows_several_streams(things: dict[str, Any]) -> None:
    for wrong in (None, things["stream"], things["stream"].handle):
        with pytest.raises(TypeError, match="streams are in a list or another iterable, not one"):
            StreamPool.borrow(wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ handles


def test_impossible_handles(things: dict[str, Any]) -> None:
    for_streams = [*places_for_a_stream(things), Stream.from_raw]
    takers = [
        *for_streams,
        things["stream"].wait_event,
        Graph.from_raw,
        Graph.borrow,
        ExecutableGraph.from_raw,
        ExecutableGraph.borrow,
        Context.from_handle,
    ]
    before = statistics().handles
    for taker in takers:
        for wrong in (-1, -5, 2**64, 2**70):
            with pytest.raises(
                ValueError,
                match=f"{wrong} is not a handle of (a|an) .*: a handle is a number from 0 to",
            ):
                taker(wrong)
        # An index in place of a handle. A driver would take it for an address, and crash.
        for wrong in (3, 2**12 - 1, *(() if taker in for_streams else (1, 2))):
            with pytest.raises(
                ValueError, match=f"{wrong} is not a handle of (a|an) .*: a handle is an address"
            ):
                taker(wrong)
        for no_number in (True, 1.5, "5", None, b"5", [5]):
            with pytest.raises(TypeError):
                taker(no_number)
    assert statistics().handles == before


@pytest.mark.parametrize(
    "answer",
    [None, (), (0,), (0, 1, 2), 5, "abc", (0, None), (0, "x"), (0, 1.5), (0, True), (1, 5)],
)
def test_a_protocol_that_gives_no_stream(answer: Any) -> None:
    """`(0, 1.5)` and `(0, True)` were the legacy stream."""
    for protocol in (lambda: answer, answer if answer is not None else ()):
        with pytest.raises(TypeError, match=r"Fake.__cuda_stream__ (gives|is of version)"):
            Stream.borrow(Fake(__cuda_stream__=protocol))


def test_a_protocol_that_gives_an_impossible_handle() -> None:
    for handle in (-1, 3, 2**64):
        with pytest.raises(ValueError, match="is not a handle of a CUDA stream"):
            Stream.borrow(Fake(__cuda_stream__=lambda handle=handle: (0, handle)))


def test_attributes_that_are_no_handles() -> None:
    for wrong in ("foo", 1.5, True, object()):
        for attribute in ("cuda_stream", "ptr", "handle"):
            with pytest.raises(
                TypeError,
                match=f"a CUDA stream is needed, and Fake.{attribute} is not the handle of one",
            ):
                Stream.borrow(Fake(**{attribute: wrong}))


def test_handles_in_the_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    stream, event = Stream(priority=numpy.int32(-1)), Event()
    handle = numpy.uint64(stream.handle)
    assert Stream.borrow(handle) == stream
    assert Stream.borrow(Fake(__cuda_stream__=lambda: (numpy.int64(0), handle))) == stream
    stream.wait_event(numpy.uint64(event.handle))
    stream.set_attribute(StreamAttribute.PRIORITY, numpy.int64(0))
    taken = Stream.from_raw(numpy.uint64(stream.into_raw()))
    taken.close()
    with pytest.raises(TypeError):
        Stream.borrow(numpy.zeros(1, dtype=int))
    pool = StreamPool(numpy.int64(1), max_waiting=numpy.int64(1))
    pool.close()
    event.close()


def test_a_raw_stream_with_a_context_that_is_none() -> None:
    stream = Stream()
    for wrong in ("x", 0, stream.context.handle, Device(0)):
        with pytest.raises(TypeError, match=r"the context is an aiostream\.Context, not"):
            Stream.from_raw(stream.handle, context=wrong)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"0 is no handle of a CUDA context: Context\.get_current\(\)"
    ):
        Context.from_handle(0)
    stream.close()


# -------------------------------------------------------------------------------- numbers and flags


def test_priorities_are_clamped() -> None:
    least, greatest = Device(0).stream_priority_range
    for priority, clamped in ((1 << 40, least), (-(1 << 40), greatest)):
        stream = Stream(priority=priority)
        assert stream.priority == clamped
        stream.set_attribute(StreamAttribute.PRIORITY, priority)
        assert stream.priority == clamped
        stream.close()
    for wrong in (True, "1", 1.0, None):
        stream = Stream()
        with pytest.raises(TypeError, match="a priority is an int"):
            stream.set_attribute(StreamAttribute.PRIORITY, wrong)
        stream.close()


def test_flags_are_bools(things: dict[str, Any]) -> None:
    """`Event(True, 2)` was an event without timing, and `Event(stream)` one with."""
    for wrong in (2, -1, 1, 0, "no", "1", None, things["stream"]):
        with pytest.raises(TypeError, match="non_blocking is True or False, not"):
            Stream(non_blocking=wrong)  # type: ignore[arg-type]
        for number, name in enumerate(("timing", "blocking_sync", "interprocess")):
            arguments: list[Any] = [False, False, False]
            arguments[number] = wrong
            with pytest.raises(TypeError, match=f"{name} is True or False, not"):
                Event(*arguments)


def test_members_of_enumerations_are_named(things: dict[str, Any]) -> None:
    stream, graph = things["stream"], things["graph"]
    memory = 64
    calls: list[tuple[str, Callable[[Any], Any]]] = [
        (
            r"mode is one of CaptureMode\.GLOBAL, CaptureMode\.THREAD_LOCAL, CaptureMode\.RELAXED",
            stream.begin_capture,
        ),
        (r"mode is one of CaptureMode\.GLOBAL", stream.capture),
        (r"mode is one of CaptureMode\.GLOBAL", aiostream.exchange_capture_mode),
        (
            r"flags is one of InstantiateFlags\.DEFAULT",
            lambda wrong: stream.capture_executable(flags=wrong),
        ),
        (
            r"flags is one of InstantiateFlags\.DEFAULT, InstantiateFlags\.AUTO_FREE_ON_LAUNCH",
            graph.instantiate,
        ),
        (r"flags is one of DebugDotFlags\.DEFAULT", lambda wrong: graph.debug_dot(flags=wrong)),
        (
            r"mode is one of DependencyUpdate\.ADD",
            lambda wrong: stream.update_capture_dependencies([], mode=wrong),
        ),
        (
            r"flags is one of WaitEventFlags\.DEFAULT",
            lambda wrong: stream.wait_event(things["event"], wrong),
        ),
        (
            r"sync_mode is one of HostFunctionSync\.BLOCKING",
            lambda wrong: stream.launch_host_func(print, sync_mode=wrong),
        ),
        (r"attribute is one of StreamAttribute\.", stream.get_attribute),
        (r"flags is one of WaitValueFlags\.GEQ", lambda wrong: stream.wait_value(memory, 1, wrong)),
        (
            r"flags is one of WriteValueFlags\.DEFAULT",
            lambda wrong: stream.write_value(memory, 1, wrong),
        ),
        (
            r"flags is one of WaitValueFlags\.GEQ",
            lambda wrong: stream.batch_mem_op([aiostream.WaitValue(memory, 1, wrong)]),
        ),
        (
            r"kind is one of MemoryBarrierType\.SYS",
            lambda wrong: stream.batch_mem_op([aiostream.MemoryBarrier(wrong)]),
        ),
        (
            r"flags is one of MemAttach\.GLOBAL",
            lambda wrong: stream.attach_mem_async(memory, 0, wrong),
        ),
        (r"kind is one of DevResourceType\.SM", stream.dev_resource),
        ("wait is one of 'auto', ", aiostream.set_default_wait),
    ]
    for text, call in calls:
        for wrong in ("x", True, 1.5, -1, 2**70):
            with pytest.raises(ValueError, match=f"^{text}.*, not {wrong!r}$"):
                call(wrong)
    assert stream.capture_status() is aiostream.CaptureStatus.NONE
    assert aiostream.exchange_capture_mode(CaptureMode.GLOBAL) is CaptureMode.GLOBAL


def test_numbers_that_the_driver_has_no_room_for(things: dict[str, Any]) -> None:
    """Never an `OverflowError`, which is neither of the two classes."""
    stream, graph = things["stream"], things["graph"]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    for wrong in (-1, 2**64, 2**70):
        for call in (
            lambda wrong=wrong: stream.wait_value(wrong, 1),
            lambda wrong=wrong: stream.write_value(64, wrong),
            lambda wrong=wrong: stream.batch_mem_op([aiostream.WaitValue(wrong, 1)]),
            lambda wrong=wrong: stream.attach_mem_async(wrong),
            lambda wrong=wrong: stream.attach_mem_async(64, wrong),
            lambda wrong=wrong: stream.launch_host_func(function, wrong),
            lambda wrong=wrong: aiostream.AccessPolicyWindow(wrong, 1),
            lambda wrong=wrong: aiostream.AccessPolicyWindow(64, wrong),
            lambda wrong=wrong: aiostream.MemSyncDomainMap(wrong),
            lambda wrong=wrong: aiostream.GraphEdgeData(from_port=wrong),
            lambda wrong=wrong: aiostream.GraphEdgeData(to_port=wrong),
            lambda wrong=wrong: aiostream.GraphEdgeData(type=wrong),
            lambda wrong=wrong: stream.begin_capture_to_graph(graph, [wrong]),
        ):
            with pytest.raises(ValueError, match=str(wrong)):
                call()
    calls: list[Callable[[], Any]] = [
        lambda: aiostream.AccessPolicyWindow("x"),  # type: ignore[arg-type]
        lambda: aiostream.AccessPolicyWindow(hit_ratio="x"),  # type: ignore[arg-type]
        lambda: aiostream.MemSyncDomainMap(1.5),  # type: ignore[arg-type]
        lambda: aiostream.GraphEdgeData(from_port=None),  # type: ignore[arg-type]
        lambda: stream.batch_mem_op(5),
        lambda: stream.attach_mem_async(64, 1.5),
    ]
    for wrong_call in calls:
        with pytest.raises(TypeError):
            wrong_call()
    assert stream.capture_status() is aiostream.CaptureStatus.NONE


async def test_timeouts_that_no_float_holds() -> None:
    """Never an `OverflowError`."""
    async with Stream() as stream:
        for seconds in (10**400, -(10**400)):
            future = stream.completion_future()
            await future
            assert (await aiostream.wait([future], timeout=seconds))[0] == {future}
            assert await aiostream.drain(seconds)
            async for done in aiostream.as_completed([future], timeout=seconds):
                assert done is future


# ---------------------------------------------------------------------------------------- functions


async def coroutine_function(*_: Any) -> None:
    """Its body does not run when it is called."""


def generator_function(*_: Any) -> Iterator[int]:
    """Its body does not run when it is called."""
    yield 1


async def async_generator_function(*_: Any) -> Any:
    """Its body does not run when it is called."""
    yield 1


class CallableAsync:
    """An instance is as a coroutine function."""

    async def __call__(self, *_: Any) -> None:
        """Does not run when it is called."""


class CallablePlain:
    """An instance is as a plain function."""

    def __call__(self, *_: Any) -> str:
        """Runs when it is called."""
        return "called"


NOT_PLAIN = [
    coroutine_function,
    functools.partial(coroutine_function, 1),
    CallableAsync(),
    CallableAsync().__call__,
    generator_function,
    async_generator_function,
]


async def test_functions_whose_body_would_never_run() -> None:
    stream, before = Stream(), statistics()
    for fn in NOT_PLAIN:
        for call in (
            stream.enqueue_async,
            stream.launch_host_func,
            stream.add_callback,
            aiostream.on_context_failed,
        ):
            with pytest.raises(
                TypeError,
                match=r"takes a plain function, not an? .*function, whose body would never run",
            ):
                call(fn)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes a plain function"):
            await stream.enqueue_in_thread(fn)  # type: ignore[arg-type]
    for wrong in (None, 5, "text"):
        for call in (
            stream.enqueue_async,
            stream.launch_host_func,
            stream.add_callback,
            aiostream.on_context_failed,
        ):
            with pytest.raises(TypeError, match="takes a callable, not"):
                call(wrong)  # type: ignore[arg-type]
    assert statistics().points.armed == before.points.armed
    assert await stream.enqueue_async(CallablePlain()) == "called"
    assert await stream.enqueue_async(functools.partial(CallablePlain())) == "called"
    await stream.aclose()


# ------------------------------------------------------------------------------------------- blocks


async def test_a_block_without_async(things: dict[str, Any]) -> None:
    pool = StreamPool(1)
    for thing, name in (
        (things["stream"], "Stream"),
        (pool, "StreamPool"),
        (pool.stream(), r"pool\.stream\(\)"),
    ):
        with (
            pytest.raises(TypeError, match=f"{name} has no `with` block: write `async with`"),
            thing,
        ):
            pass
    assert pool.idle == 1
    await pool.aclose()


def test_an_event_has_a_block() -> None:
    with Event() as event:
        assert not event.closed
    assert event.closed


@pytest.mark.parametrize(
    "make",
    [lambda kind, stream: kind.borrow(stream), lambda kind, stream: kind.borrow(stream.handle)],
)
def test_subclasses_get_instances_of_their_own(
    make: Callable[[type[Stream], Stream], Stream],
) -> None:
    """Also of a plain `Stream`; `__init__` is not called."""

    class Mine(Stream):
        def __init__(self) -> None:
            raise AssertionError

    stream = Stream()
    mine = make(Mine, stream)
    assert (
        type(mine)
        is type(mine.to_borrowed())
        is type(Mine.legacy())
        is type(Mine.per_thread())
        is Mine
    )
    assert mine == stream
    assert type(Stream.borrow(mine)) is Stream
    mine.close()
    stream.close()


# --------------------------------------------------------------------- variables of the environment


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("1", True), ("true", True), ("YES", True), (" on ", True)]
    + [(said, False) for said in ("", "0", "false", "No", "off", " ")],
)
def test_the_simulator_is_asked_for_in_words(
    monkeypatch: pytest.MonkeyPatch, said: str, wanted: bool
) -> None:
    monkeypatch.setenv("AIOSTREAM_SIMULATOR", said)
    assert internals.simulator_is_wanted() is wanted


@pytest.mark.parametrize("said", ["false", "perhaps"])
def test_the_simulator_is_never_installed_unasked(said: str) -> None:
    script = f"""
        import os
        os.environ["AIOSTREAM_SIMULATOR"] = {said!r}
        from aiostream import Device, NoDriverError, simulator
        try:
            Device(0)
        except (NoDriverError, ValueError) as error:
            print(error)
        print(simulator.installed())
        """
    *told, installed = succeed("none", script).splitlines()
    assert installed == "False"
    unknown = (
        "the environment variable AIOSTREAM_SIMULATOR is 1 (yes, true, on) or 0 (no, false, off), "
        f"not {said!r}"
    )
    assert (unknown in told) is (said == "perhaps")


@pytest.mark.parametrize("variable", ["AIOSTREAM_SIMULATOR_DEVICES", "AIOSTREAM_SIMULATOR_SEED"])
def test_numbers_in_the_environment(variable: str) -> None:
    environment: dict[str, Any] = {variable: "two"}
    done = run_script("none", "from aiostream import simulator; simulator.install()", **environment)
    assert (
        f"ValueError: the environment variable {variable} is a whole number, not 'two'"
        in done.stderr
    )
    script = "from aiostream import simulator; simulator.install(); print('ok')"
    assert succeed("none", script, **{variable: " "}) == "ok\n"


def test_a_trace_that_cannot_be_written_names_the_variable(driver_kind: str) -> None:
    script = """
        import aiostream
        for _ in range(2):
            try:
                aiostream.Stream()
            except FileNotFoundError as error:
                print(error)
        """
    said = succeed(driver_kind, script, AIOSTREAM_TRACE="/nonexistent/x.html").splitlines()
    assert len(said) == 2
    for line in said:
        assert "environment variable AIOSTREAM_TRACE names a file that cannot be written" in line
        assert "No such file or directory" in line
        assert "/nonexistent/x.html" in line


def test_the_doctor_names_the_variable() -> None:
    script = """
        import os, sys
        os.environ["AIOSTREAM_SIMULATOR"] = "perhaps"
        from aiostream.__main__ import main
        sys.exit(main(["doctor"]))
        """
    done = run_script("none", script)
    said = " ".join(done.stdout.split())  # without the breaks of lines
    assert "AIOSTREAM_SIMULATOR is 1 (yes, true, on)" in said
    assert done.stderr == ""


def test_ctypes_data_is_still_taken() -> None:
    """What numba has as a handle."""
    stream = Stream()
    assert Stream.borrow(Fake(handle=ctypes.c_void_p(stream.handle))) == stream
    with Gate() as gate:
        gate.hold(stream)
    stream.close()
