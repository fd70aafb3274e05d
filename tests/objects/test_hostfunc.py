"""P14: Python and native host functions of the user's, and what becomes of what they were given."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from aiostream import CudaError, Event, Stream, StreamClosedError, statistics
from support import Gate, held_stream, releasing_threads, settle, spin
from waiters import until


class Witness:
    """Tells in which thread it died."""

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
    with the GIL, on the loop's.
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
    assert settle(lambda: len(deaths) == 4)
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
    stream.close()
    for call in (stream.launch_host_func, stream.add_callback):
        with pytest.raises(StreamClosedError):
            call(print)


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
