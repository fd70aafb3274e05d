"""What is refused before the driver is asked, with a `TypeError` or `ValueError` that says what to
do.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
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
    StreamCaptureError,
    StreamClosedError,
    StreamPool,
    statistics,
)
from commands import command
from support import succeed


class Fake:
    """An object with the attributes that a library's has."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


# Whose classes say what they are.
CupyLikeStream, CupyLikeEvent = (
    type(f"CupyLike{kind}", (Fake,), {}) for kind in ("Stream", "Event")
)


def refuses(
    call: Callable[[Any], Any],
    wrongs: Iterable[Any],
    text: str | Callable[[Any], str] = ".",
    error: type[Exception] = TypeError,
) -> None:
    """Each of these arguments raises the error with this text, and changes no count of handles."""
    before = statistics().handles
    for wrong in wrongs:
        with pytest.raises(error, match=text if isinstance(text, str) else text(wrong)):
            call(wrong)
    assert statistics().handles == before


@pytest.fixture
def things() -> Iterator[dict[str, Any]]:
    """Objects of the library, of each kind that has a handle."""
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
    others = [each for name, each in things.items() if name != "stream"]
    connect = r"of another kind: Event\.record\(stream\) and Stream\.wait_event\(event\) connect"
    for place in places_for_a_stream(things):
        refuses(place, others, lambda wrong: f"a CUDA stream is needed.*not {type(wrong).__name__}")
        refuses(place, [things["event"]], connect)
        refuses(place, [Stream], "a CUDA stream is needed, not the class Stream")


def test_a_stream_is_no_event(things: dict[str, Any]) -> None:
    """What people write who know cuda.core's `Stream.wait`."""
    wait, handle = things["stream"].wait_event, things["stream"].handle
    raw = internals.bindings().CUstream(handle)
    refuses(
        wait,
        [things["stream"], raw, CupyLikeStream(ptr=handle)],
        "a CUDA event is needed, .*: record an event on the stream, and wait for that",
    )
    others = [things[name] for name in ("graph", "executable", "context", "device")]
    refuses(wait, others, "a CUDA event is needed.*, not")
    refuses(wait, [Fake(handle=raw), Fake(handle=None)], "a CUDA event is needed")


def test_other_libraries_objects_of_another_kind(things: dict[str, Any]) -> None:
    handle = things["event"].handle
    raw = internals.bindings().CUevent(handle)
    for place in places_for_a_stream(things):
        refuses(
            place, [raw, Fake(handle=raw), CupyLikeEvent(ptr=handle)], "a CUDA stream is needed"
        )


def test_objects_of_cuda_core_of_another_kind(stream: Stream, event: Event) -> None:
    core = pytest.importorskip("cuda.core")
    with stream.context.as_current():
        device = core.Device(0)
        device.set_current()
        theirs = device.create_stream()
        their_event = theirs.record()
    with pytest.raises(
        TypeError, match=r"a CUDA event is needed, not Stream.*: record an event on the stream"
    ):
        stream.wait_event(theirs)
    for place in (Stream.borrow, event.record, stream.copy_attributes):
        with pytest.raises(TypeError, match="a CUDA stream is needed, not Event"):
            place(their_event)
    theirs.close()


def test_an_event_of_torch_that_was_never_recorded(stream: Stream) -> None:
    """torch makes the driver's event at the first record; until then its `cuda_event` is 0."""
    stream.wait_event(Fake(cuda_event=0))
    assert stream.query()
    stream.close()
    with pytest.raises(StreamClosedError):
        stream.wait_event(Fake(cuda_event=0))


def test_graphs_of_the_wrong_kind(things: dict[str, Any]) -> None:
    graph = things["graph"]
    others = [graph, things["stream"], object()]
    refuses(ExecutableGraph.borrow, others, "an executable graph is needed .*, not ")
    others = [*(things[name] for name in ("executable", "stream", "event")), object()]
    refuses(Graph.borrow, others, lambda wrong: f"a graph is needed .*, not {type(wrong).__name__}")
    refuses(
        lambda wrong: things["stream"].begin_capture_to_graph(graph, wrong),
        [5, None, graph],
        "dependencies are in a list or another iterable, not one",
    )


def test_graphs_without_a_handle() -> None:
    for kind, what in ((Graph, "a graph"), (ExecutableGraph, "an executable graph")):
        for taker in (kind.borrow, kind.from_raw):
            refuses(taker, [0], f"^0 is not the handle of {what}$", ValueError)
        of_torch = Fake(raw_cuda_graph=lambda: 0, raw_cuda_graph_exec=lambda: 0)
        empty = [of_torch, Fake(graph=0, graphExec=0)]
        refuses(kind.borrow, empty, f"^0 is not .* {what}, and .* gives it$", ValueError)


def test_streams_of_ours_and_several_of_them(things: dict[str, Any]) -> None:
    event, handle = things["event"], things["stream"].handle
    for method in (event.completion_future_on, event.checked_completion_future_on):
        needed = r"an aiostream\.Stream is needed, not .*; Stream\.borrow makes one"
        refuses(method, [None, event, handle], needed)
    several = "streams are in a list or another iterable, not one"
    refuses(StreamPool.borrow, [None, things["stream"], handle], several)


# ------------------------------------------------------------------------------------------ handles


def test_impossible_handles(things: dict[str, Any]) -> None:
    for_streams = [*places_for_a_stream(things), Stream.from_raw]
    takers: list[Callable[[Any], Any]] = [
        *(Graph.from_raw, Graph.borrow, ExecutableGraph.from_raw, ExecutableGraph.borrow),
        *(*for_streams, things["stream"].wait_event, Context.from_handle),
    ]

    def said(wrong: int) -> str:
        return f"{wrong} is not a handle of (a|an) .*: a handle is an address"

    for taker in takers:
        # An index in place of a handle. A driver would take it for an address, and crash.
        indices = (3, 2**12 - 1, *(() if taker in for_streams else (1, 2)))
        refuses(taker, (-1, -5, 2**64, 2**70, *indices), said, ValueError)
        refuses(taker, (True, 1.5, "5", None, b"5", [5]), "(is needed|is an int)")


@pytest.mark.parametrize(
    "answer",
    [None, (), (0,), (0, 1, 2), 5, "abc", (0, None), (0, "x"), (0, 1.5), (0, True), (1, 5)],
)
def test_a_protocol_that_gives_no_stream(answer: Any) -> None:
    """`(0, 1.5)` and `(0, True)` were the legacy stream."""
    protocols = (lambda: answer, answer if answer is not None else ())
    fakes = [Fake(__cuda_stream__=protocol) for protocol in protocols]
    refuses(Stream.borrow, fakes, r"Fake.__cuda_stream__ (gives|is of version)")


def test_attributes_that_are_no_handles() -> None:
    for attribute in ("cuda_stream", "ptr", "handle"):
        fakes = [Fake(**{attribute: wrong}) for wrong in ("foo", 1.5, True, object())]
        said = f"a CUDA stream is needed, and Fake.{attribute} is not the handle of one"
        refuses(Stream.borrow, fakes, said)
    fakes = [Fake(__cuda_stream__=lambda wrong=wrong: (0, wrong)) for wrong in (-1, 3, 2**64)]
    refuses(Stream.borrow, fakes, "is not a handle of a CUDA stream", ValueError)


def test_handles_in_the_numbers_of_numpy(event: Event) -> None:
    numpy = pytest.importorskip("numpy")
    stream = Stream(priority=numpy.int32(-1))
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


def test_a_raw_stream_with_a_context_that_is_none(things: dict[str, Any]) -> None:
    context, handle = things["context"], things["stream"].handle
    refuses(
        lambda wrong: Stream.from_raw(handle, context=wrong),
        ["x", 0, context.handle, Device(0)],
        r"the context is an aiostream\.Context \(.*\), not",
    )
    none = r"0 is no handle of a CUDA context: Context\.get_current\(\)"
    refuses(Context.from_handle, [0], none, ValueError)


# -------------------------------------------------------------------------------- numbers and flags


def test_priorities_are_clamped(stream: Stream) -> None:
    least, greatest = Device(0).stream_priority_range
    for asked, got in ((greatest - 10, greatest), (-(1 << 40), greatest), (1 << 40, least), (0, 0)):
        with contextlib.closing(Stream(priority=asked)) as other:
            assert other.priority == got
        stream.set_attribute(StreamAttribute.PRIORITY, asked)
        assert stream.get_attribute(StreamAttribute.PRIORITY) == stream.priority == got
    for place in (
        lambda wrong: Stream(priority=wrong),
        lambda wrong: stream.set_attribute(StreamAttribute.PRIORITY, wrong),
    ):
        refuses(place, (True, "1", 1.0), "a priority is an int")


def test_flags_are_bools(things: dict[str, Any]) -> None:
    """`Event(True, 2)` was an event without timing, and `Event(stream)` one with."""
    wrongs = (2, -1, 1, 0, "no", "1", None, things["stream"])
    said = "is True or False, not"
    refuses(lambda wrong: Stream(non_blocking=wrong), wrongs, f"non_blocking {said}")
    refuses(lambda wrong: Event(wrong, False, False), wrongs, f"timing {said}")
    refuses(lambda wrong: Event(False, wrong, False), wrongs, f"blocking_sync {said}")
    refuses(lambda wrong: Event(False, False, wrong), wrongs, f"interprocess {said}")


def test_members_of_enumerations_are_named(things: dict[str, Any]) -> None:
    stream, graph, event = things["stream"], things["graph"], things["event"]
    calls: dict[str, list[Callable[[Any], Any]]] = {
        "mode is one of CaptureMode.GLOBAL, CaptureMode.THREAD_LOCAL, CaptureMode.RELAXED": [
            stream.begin_capture,
            stream.capture,
            aiostream.exchange_capture_mode,
        ],
        "flags is one of InstantiateFlags.DEFAULT, InstantiateFlags.AUTO_FREE_ON_LAUNCH": [
            lambda wrong: stream.capture_executable(flags=wrong),
            graph.instantiate,
        ],
        "flags is one of DebugDotFlags.DEFAULT": [lambda wrong: graph.debug_dot(flags=wrong)],
        "mode is one of DependencyUpdate.ADD": [
            lambda wrong: stream.update_capture_dependencies([], mode=wrong)
        ],
        "flags is one of WaitEventFlags.DEFAULT": [lambda wrong: stream.wait_event(event, wrong)],
        "sync_mode is one of HostFunctionSync.BLOCKING": [
            lambda wrong: stream.launch_host_func(print, sync_mode=wrong)
        ],
        "attribute is one of StreamAttribute.": [stream.get_attribute],
        "flags is one of WaitValueFlags.GEQ": [
            lambda wrong: stream.wait_value(64, 1, wrong),
            lambda wrong: stream.batch_mem_op([aiostream.WaitValue(64, 1, wrong)]),
        ],
        "flags is one of WriteValueFlags.DEFAULT": [lambda wrong: stream.write_value(64, 1, wrong)],
        "kind is one of MemoryBarrierType.SYS": [
            lambda wrong: stream.batch_mem_op([aiostream.MemoryBarrier(wrong)])
        ],
        "flags is one of MemAttach.GLOBAL": [lambda wrong: stream.attach_mem_async(64, 0, wrong)],
        "kind is one of DevResourceType.SM": [stream.dev_resource],
        "wait is one of 'auto', ": [aiostream.set_default_wait],
    }
    wrongs = ("x", True, 1.5, -1, 2**70)
    for text, each in calls.items():
        for call in each:

            def said(wrong: Any, text: str = text) -> str:
                return f"^{re.escape(text)}.*, not {wrong!r}$"

            refuses(call, wrongs, said, ValueError)
    assert stream.capture_status() is aiostream.CaptureStatus.NONE
    assert aiostream.exchange_capture_mode(CaptureMode.GLOBAL) is CaptureMode.GLOBAL


def test_numbers_that_the_driver_has_no_room_for(things: dict[str, Any]) -> None:
    """Never an `OverflowError`, which is neither of the two classes."""
    stream, graph = things["stream"], things["graph"]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    calls: list[Callable[[Any], Any]] = [
        lambda wrong: stream.wait_value(wrong, 1),
        lambda wrong: stream.write_value(64, wrong),
        lambda wrong: stream.batch_mem_op([aiostream.WaitValue(wrong, 1)]),
        stream.attach_mem_async,
        lambda wrong: stream.attach_mem_async(64, wrong),
        lambda wrong: stream.launch_host_func(function, wrong),
        lambda wrong: aiostream.AccessPolicyWindow(wrong, 1),
        lambda wrong: aiostream.AccessPolicyWindow(64, wrong),
        aiostream.MemSyncDomainMap,
        lambda wrong: aiostream.GraphEdgeData(from_port=wrong),
        lambda wrong: aiostream.GraphEdgeData(to_port=wrong),
        lambda wrong: aiostream.GraphEdgeData(type=wrong),
        lambda wrong: stream.begin_capture_to_graph(graph, [wrong]),
    ]
    for call in calls:
        refuses(call, (-1, 2**64, 2**70), str, ValueError)
    refuses(aiostream.AccessPolicyWindow, ["x"])
    refuses(lambda wrong: aiostream.AccessPolicyWindow(hit_ratio=wrong), ["x"])
    refuses(aiostream.MemSyncDomainMap, [1.5])
    refuses(lambda wrong: aiostream.GraphEdgeData(from_port=wrong), [None])
    refuses(stream.batch_mem_op, [5])
    refuses(lambda wrong: stream.attach_mem_async(64, wrong), [1.5])
    assert stream.capture_status() is aiostream.CaptureStatus.NONE


async def test_timeouts_that_no_float_holds(stream: Stream) -> None:
    """Never an `OverflowError`."""
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


NOT_PLAIN: list[Any] = [
    coroutine_function,
    functools.partial(coroutine_function, 1),
    CallableAsync(),
    CallableAsync().__call__,
    generator_function,
    async_generator_function,
]
if sys.version_info >= (3, 12):
    NOT_PLAIN.append(inspect.markcoroutinefunction(lambda *_: coroutine_function()))


async def test_functions_whose_body_would_never_run(stream: Stream) -> None:
    before = statistics()
    calls: list[Callable[[Any], Any]] = [
        *(stream.enqueue_async, stream.launch_host_func, stream.add_callback),
        aiostream.on_context_failed,
    ]
    for call in calls:
        never = r"takes a plain function, not an? .*function, whose body would never run"
        refuses(call, NOT_PLAIN, never)
        refuses(call, (None, 5, "text"), r"takes a callable, not \w+: pass `fn, \*args`")
    assert statistics().points.armed == before.points.armed
    plain = type("Plain", (), {"__call__": lambda *_: "called"})()
    assert await stream.enqueue_async(plain) == "called"
    assert await stream.enqueue_async(functools.partial(plain)) == "called"


async def test_refusals_come_before_the_function(stream: Stream) -> None:
    called: list[Any] = []
    methods = stream.run, stream.run_in_thread, stream.enqueue_async, stream.enqueue_in_thread

    async def refuses_each(
        error: type[Exception], message: str = ".", fn: Any = called.append
    ) -> None:
        for method in methods:
            # All others drive a generator function.
            if method == stream.enqueue_async or fn is not generator_function:
                with pytest.raises(error, match=message):
                    await method(fn)

    for fn in NOT_PLAIN:
        await refuses_each(TypeError, "takes a plain function.*cannot await", fn)
    await refuses_each(TypeError, "takes a callable", 3)
    await refuses_each(TypeError, r"not NoneType: pass `fn, \*args`, not `fn\(\*args\)`", None)
    stream.begin_capture(CaptureMode.THREAD_LOCAL)
    await refuses_each(StreamCaptureError)
    with pytest.raises(StreamCaptureError):
        await stream
    stream.end_capture().close()
    stream.close()
    await refuses_each(StreamClosedError)
    with pytest.raises(StreamClosedError):
        await stream
    assert not called


# ------------------------------------------------------------------------------------------- blocks


async def test_a_block_without_async(things: dict[str, Any]) -> None:
    pool = StreamPool(1)
    for thing, says in (
        (things["stream"], r"Stream has .*: write `async with`.*`with stream.as_current\(\):`"),
        (pool, "StreamPool has no `with` block: write `async with`"),
        (pool.stream(), r"pool\.stream\(\) has no `with` block: write `async with`"),
    ):
        with pytest.raises(TypeError, match=says), thing:
            pass
    assert pool.idle == 1
    await pool.aclose()


def test_subclasses_get_instances_of_their_own(stream: Stream) -> None:
    """Also of a plain `Stream`; `__init__` is not called."""

    class Mine(Stream):
        def __init__(self) -> None:
            raise AssertionError

    for given in (stream, stream.handle):
        mine = Mine.borrow(given)
        made = [mine, mine.to_borrowed(), Mine.legacy(), Mine.per_thread()]
        assert [type(each) for each in made] == [Mine] * 4
        assert mine == stream
        assert type(Stream.borrow(mine)) is Stream
        mine.close()


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
    script = """
        from aiostream import Device, NoDriverError, simulator
        try:
            Device(0)
        except (NoDriverError, ValueError) as error:
            print(error)
        print(simulator.installed())
        """
    *reported, installed = succeed("none", script, AIOSTREAM_SIMULATOR=said).splitlines()
    assert installed == "False"
    unknown = (
        "the environment variable AIOSTREAM_SIMULATOR is 1 (yes, true, on) or 0 (no, false, off), "
        f"not {said!r}"
    )
    assert (unknown in reported) is (said == "perhaps")


def test_numbers_in_the_environment() -> None:
    script = """
        import os
        from aiostream import simulator
        for variable in ("AIOSTREAM_SIMULATOR_DEVICES", "AIOSTREAM_SIMULATOR_SEED"):
            os.environ[variable] = "two"
            try:
                simulator.install()
            except ValueError as error:
                print(error)
            os.environ[variable] = " "
        simulator.install()
    """
    assert succeed("none", script).splitlines() == [
        f"the environment variable {variable} is a whole number, not 'two'"
        for variable in ("AIOSTREAM_SIMULATOR_DEVICES", "AIOSTREAM_SIMULATOR_SEED")
    ]


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
    done = command("none", "doctor", AIOSTREAM_SIMULATOR="perhaps")
    said = " ".join(done.stdout.split())  # without the breaks of lines
    assert "AIOSTREAM_SIMULATOR is 1 (yes, true, on)" in said
    assert done.stderr == ""
