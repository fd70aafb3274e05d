"""P14: Python and native host functions of the user's, and what becomes of what they were given."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from typing import Any

import anyio
import pytest

from aiostream import CudaError, Event, Stream, StreamClosedError, statistics
from support import Gate, held_stream, releasing_threads, settle, spin


class Witness:
    """Tells in which thread it died."""

    def __init__(self, deaths: list[int]) -> None:
        self.deaths = deaths

    def __call__(self, *_: Any) -> None:
        pass

    def __del__(self) -> None:
        self.deaths.append(threading.get_ident())


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What went to `sys.unraisablehook`, as (exception's type, its text, object)."""
    seen: list[Any] = []
    monkeypatch.setattr(
        sys,
        "unraisablehook",
        lambda args: seen.append((args.exc_type, str(args.exc_value), args.object)),
    )
    return seen


async def test_host_functions_run_in_order_with_their_arguments() -> None:
    calls: list[Any] = []
    with Gate() as gate:
        stream = held_stream(gate)
        for number in range(100):
            if number % 3:
                stream.launch_host_func(lambda *args: calls.append(args), number, "text")
            else:
                stream.add_callback(lambda error, *args: calls.append((error, *args)), number)
        future = stream.completion_future()
        assert calls == []
        gate.open()
        await future
    assert calls == [(number, "text") if number % 3 else (None, number) for number in range(100)]
    stream.close()


async def test_a_host_function_runs_between_the_points_round_it() -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        order: list[str] = []
        first = stream.completion_future()
        stream.launch_host_func(order.append, "function")
        second = stream.completion_future()
        first.add_done_callback(lambda _: order.append("first"))
        second.add_done_callback(lambda _: order.append("second"))
        gate.open()
        await first
        await second
        while (
            len(order) < 3
        ):  # a future that is done already does not let its callbacks run before the await returns
            await anyio.lowlevel.checkpoint()
    assert sorted(order) == ["first", "function", "second"]
    assert order.index("first") < order.index("second")
    assert order.index("function") < order.index("second")
    stream.close()


def test_it_runs_on_the_drivers_thread_and_needs_no_loop() -> None:
    stream, threads = Stream(), []
    for _ in range(3):
        stream.launch_host_func(lambda: threads.append(threading.get_ident()))
    stream.synchronize()
    assert settle(lambda: len(threads) == 3)
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads
    stream.close()


@pytest.mark.parametrize(
    "error",
    [ValueError("v"), SystemExit(3), KeyboardInterrupt("k")],
    ids=lambda e: type(e).__name__,
)
async def test_an_exception_is_reported_and_the_stream_goes_on(
    unraisable: list[Any], error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise error

    stream = Stream()
    ran: list[int] = []
    stream.launch_host_func(fail)
    stream.launch_host_func(ran.append, 1)
    stream.add_callback(fail)
    stream.add_callback(lambda _: ran.append(2))
    await stream.synchronize_async()
    assert settle(lambda: len(unraisable) == 2)
    assert ran == [1, 2]
    assert unraisable == [(type(error), str(error), fail)] * 2
    stream.close()


async def test_a_wrong_signature_is_an_exception_of_the_function(unraisable: list[Any]) -> None:
    stream = Stream()

    def none_wanted() -> None:
        raise AssertionError("it was called with too many arguments")

    stream.launch_host_func(none_wanted, 1)
    stream.add_callback(none_wanted)
    await stream.synchronize_async()
    assert settle(lambda: len(unraisable) == 2)
    assert {kind for kind, _, _ in unraisable} == {TypeError}
    stream.close()


async def test_what_was_given_is_released_by_a_thread_of_the_library() -> None:
    """Not before it has run; and then neither on the driver's thread, where CUDA is forbidden, nor,
    with the GIL, on the loop's.
    """
    deaths: list[int] = []
    drivers: list[int] = []
    with Gate() as gate:
        stream = held_stream(gate)
        argument = Witness(deaths)
        argument_seen = weakref.ref(argument)
        stream.launch_host_func(lambda _: drivers.append(threading.get_ident()), argument)
        stream.launch_host_func(Witness(deaths))
        stream.add_callback(Witness(deaths), argument)
        del argument
        gc.collect()
        assert argument_seen() is not None
        assert deaths == []
        gate.open()
        await stream.completion_future()
    assert settle(lambda: len(deaths) == 3)
    assert set(deaths) <= releasing_threads()
    assert drivers[0] not in deaths
    stream.close()


async def test_native_functions_are_called_with_their_data() -> None:
    """`sem_post` of the C library, which no Python touches; its data lives as long as the driver
    may use it.
    """
    library = ctypes.CDLL(None)
    semaphore = (ctypes.c_char * 64)()
    assert library.sem_init(semaphore, 0, 0) == 0
    value = ctypes.c_int(-1)
    with Gate() as gate:
        stream = held_stream(gate)
        stream.launch_host_func(library.sem_post, semaphore)
        stream.launch_host_func(library.sem_post, ctypes.addressof(semaphore))
        stream.launch_host_func(library.sem_post, ctypes.c_void_p(ctypes.addressof(semaphore)))
        stream.launch_host_func(library.sem_post, ctypes.pointer(semaphore))
        future = stream.completion_future()
        library.sem_getvalue(semaphore, ctypes.byref(value))
        assert value.value == 0
        gate.open()
        await future
    library.sem_getvalue(semaphore, ctypes.byref(value))
    assert value.value == 4
    stream.close()


def test_a_native_function_without_data_gets_null() -> None:
    seen: list[int | None] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
    stream = Stream()
    stream.launch_host_func(function)
    stream.launch_host_func(function, None)
    stream.launch_host_func(function, 4711)
    stream.synchronize()
    assert settle(lambda: len(seen) == 3)
    assert seen == [None, None, 4711]
    stream.close()


def test_a_native_functions_data_is_kept_until_it_has_run() -> None:
    class Data(ctypes.Structure):
        _fields_ = (("value", ctypes.c_int),)

    seen: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.POINTER(Data))(
        lambda data: seen.append(data.contents.value)
    )
    with Gate() as gate:
        stream = held_stream(gate)
        data = Data(42)
        alive = weakref.ref(data)
        stream.launch_host_func(function, data)
        del data
        gc.collect()
        assert alive() is not None
        gate.open()
        stream.synchronize()
    assert settle(lambda: alive() is None)
    assert seen == [42]
    stream.close()


def test_bad_arguments_are_refused_and_nothing_is_enqueued() -> None:
    stream, before = Stream(), statistics()
    function = ctypes.CDLL(None).sem_post
    null = ctypes.CFUNCTYPE(None, ctypes.c_void_p)()
    wrong: list[tuple[type[Exception], Any]] = [
        (TypeError, lambda: stream.launch_host_func(3)),  # type: ignore[arg-type]
        (TypeError, lambda: stream.launch_host_func(None)),  # type: ignore[arg-type]
        (TypeError, lambda: stream.launch_host_func()),  # type: ignore[call-arg]
        (TypeError, lambda: stream.add_callback("text")),  # type: ignore[arg-type]
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


async def test_host_functions_of_a_destroyed_stream_still_run() -> None:
    for ending in ("close", "drop"):
        calls: list[int] = []
        with Gate() as gate:
            stream = held_stream(gate)
            spin(stream, 0.001)
            for number in range(10):
                stream.launch_host_func(calls.append, number)
                stream.add_callback(lambda error, n, calls=calls: calls.append(n), number)
            future = stream.completion_future()
            if ending == "close":
                stream.close()
            del stream
            gc.collect()
            gate.open()
            await future
        assert calls == [number for number in range(10) for _ in range(2)]


async def test_the_loop_goes_on_while_a_host_function_runs() -> None:
    import anyio

    inside, leave = threading.Event(), threading.Event()

    def function() -> None:
        inside.set()
        leave.wait(30)

    stream = Stream()
    stream.launch_host_func(function)
    future = stream.completion_future()
    turns = 0
    while not inside.is_set() or turns < 50:
        await anyio.lowlevel.checkpoint()
        turns += 1
    assert not future.done()
    leave.set()
    await future
    stream.close()


def test_host_functions_from_many_threads() -> None:
    """Each thread's calls stay in its order; all come, none twice."""
    stream = Stream()
    calls: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        for number in range(100):
            stream.launch_host_func(calls.append, (thread, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.synchronize()
    assert settle(lambda: len(calls) == 400)
    for index in range(4):
        assert [number for of, number in calls if of == index] == list(range(100))
    stream.close()


def test_a_host_function_may_use_the_library_where_that_does_not_call_cuda() -> None:
    """Statistics are allowed; what calls the driver is refused by the driver (800), not by a
    deadlock.
    """

    answers: list[Any] = []

    def function() -> None:
        answers.append(statistics().balanced)
        try:
            Event()
        except CudaError as error:
            answers.append(error.code)

    stream, began = Stream(), time.monotonic()
    stream.launch_host_func(function)
    stream.synchronize()
    assert settle(lambda: len(answers) == 2)
    assert answers[1] == 800
    assert time.monotonic() - began < 20
    stream.close()


def test_host_functions_take_keyword_arguments() -> None:
    stream = Stream()
    calls: list[Any] = []

    def note(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))

    stream.launch_host_func(note, 1, key="value")
    stream.add_callback(note, 2, key="other")
    stream.synchronize()
    assert settle(lambda: len(calls) == 2)
    assert calls == [((1,), {"key": "value"}), ((None, 2), {"key": "other"})]
    stream.close()


def test_cuda_in_a_host_function_is_refused_with_advice() -> None:
    stream = Stream()
    told: list[CudaError] = []

    def call_cuda() -> None:
        try:
            Event()  # a query or a synchronize of what is complete would answer
        except CudaError as error:
            told.append(error)

    stream.launch_host_func(call_cuda)
    stream.synchronize()
    assert settle(lambda: bool(told))
    assert told[0].code == 800
    assert "A host function or callback must not call CUDA" in str(told[0])
    stream.close()
