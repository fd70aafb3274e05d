"""Streams, host functions, callbacks: as docs/driver.md says of an H200."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import pytest

import nogpu as simulator
from simdriver import Gate, Kernels, callback, code, cu, host, in_thread, ok, run_python, until


def test_a_stream_is_a_queue(stream: Any, kernels: Kernels, gate: Gate) -> None:
    order = []
    gate.hold(stream)
    host(stream, lambda: order.append(1))
    kernels.spin(stream, 0.001)
    host(stream, lambda: order.append(2))
    assert callback(stream, lambda status: order.append(status)) == 0
    assert code(cu.cuStreamQuery(stream)) == 600
    assert order == []
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert order == [1, 2, 0]
    assert code(cu.cuStreamQuery(stream)) == 0


def test_kernels_take_their_time_and_overlap(kernels: Kernels) -> None:
    """One of a few rounds is short, because other processes make some of them long."""
    streams, took = [ok(cu.cuStreamCreate(1)) for _ in range(6)], list[float]()
    while not took or (took[-1] >= 0.4 and len(took) < 8):
        start = time.monotonic()
        for each in streams:
            kernels.spin(each, 0.1)
        for each in streams:
            ok(cu.cuStreamSynchronize(each))
        took.append(time.monotonic() - start)
    assert 0.1 <= min(took) < 0.4
    for each in streams:
        ok(cu.cuStreamDestroy(each))


def test_a_host_function_blocks_later_work_of_its_stream_only(stream: Any) -> None:
    started, release, order = threading.Event(), threading.Event(), []
    host(stream, lambda: (started.set(), release.wait(10), order.append("host")))
    event, other = ok(cu.cuEventCreate(0)), ok(cu.cuStreamCreate(1))
    ok(cu.cuEventRecord(event, stream))
    assert started.wait(10)
    assert code(cu.cuEventQuery(event)) == 600
    free = ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(free, other))
    ok(cu.cuEventSynchronize(free))
    release.set()
    ok(cu.cuEventSynchronize(event))
    assert order == ["host"]


def test_one_thread_per_context_runs_host_functions() -> None:
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    contexts = [ok(cu.cuDevicePrimaryCtxRetain(device)) for device in (0, 1)]
    for device, context in enumerate(contexts):
        ok(cu.cuCtxPushCurrent(context))
        streams = [ok(cu.cuStreamCreate(1)) for _ in range(16)]
        for each in streams:
            host(each, lambda device=device: seen[device].add(threading.get_native_id()))
        ok(cu.cuCtxSynchronize())
        ok(cu.cuCtxPopCurrent())
    assert len(seen[0]) == len(seen[1]) == 1
    assert seen[0] != seen[1]
    for device in (0, 1):
        ok(cu.cuDevicePrimaryCtxRelease(device))


def test_calls_inside_a_host_function(stream: Any) -> None:
    answers = {}

    def ask() -> None:
        answers["event"] = code(cu.cuEventCreate(0))
        answers["alloc"] = code(cu.cuMemAlloc(64))
        answers["record"] = code(cu.cuEventRecord(event, stream))
        answers["query"] = code(cu.cuStreamQuery(stream))
        answers["query of an idle stream"] = code(cu.cuStreamQuery(idle))
        answers["query of a complete event"] = code(cu.cuEventQuery(done))
        answers["synchronize"] = code(cu.cuStreamSynchronize(stream))
        answers["synchronize an idle stream"] = code(cu.cuStreamSynchronize(idle))
        answers["version"] = code(cu.cuDriverGetVersion())
        answers["context"] = code(cu.cuCtxGetCurrent())

    event, done, idle = *(ok(cu.cuEventCreate(0)) for _ in range(2)), ok(cu.cuStreamCreate(1))
    ok(cu.cuEventRecord(done, stream))
    host(stream, ask)
    ok(cu.cuStreamSynchronize(stream))
    assert answers == {
        "event": 800,
        "alloc": 800,
        "record": 800,
        "query": 600,
        "query of an idle stream": 0,
        "query of a complete event": 0,
        "synchronize": 800,
        "synchronize an idle stream": 0,
        "version": 0,
        "context": 800,
    }
    ok(cu.cuStreamDestroy(idle))


def test_a_host_function_enqueues_another(stream: Any) -> None:
    other, ran = ok(cu.cuStreamCreate(1)), []
    host(stream, lambda: host(other, lambda: ran.append(1)))
    ok(cu.cuStreamSynchronize(stream))
    until(lambda: ran == [1])
    ok(cu.cuStreamDestroy(other))


def test_the_handle_may_go_before_the_work(kernels: Kernels, gate: Gate) -> None:
    stream, fired = ok(cu.cuStreamCreate(1)), []
    gate.hold(stream)
    host(stream, lambda: fired.append(1))
    ok(cu.cuStreamDestroy(stream))
    assert code(cu.cuStreamQuery(stream)) == 400
    assert fired == []
    gate.open()
    until(lambda: fired and simulator.pending_work() == 0)


def test_a_reset_waits_for_the_work_and_forgets_the_rest() -> None:
    context = ok(cu.cuDevicePrimaryCtxRetain(1))
    ok(cu.cuCtxPushCurrent(context))
    stream = ok(cu.cuStreamCreate(1))
    fired: list[Any] = []
    event = ok(cu.cuEventCreate(0))
    started, release = threading.Event(), threading.Event()
    host(stream, lambda: (started.set(), release.wait(10), fired.append("host")))
    callback(stream, fired.append)
    started.wait(10)
    threading.Timer(0.05, release.set).start()
    ok(cu.cuDevicePrimaryCtxReset(1))
    assert fired == ["host", 0]
    assert code(cu.cuStreamQuery(stream)) == 400
    assert code(cu.cuEventQuery(event)) == 400
    assert code(cu.cuStreamCreate(0)) == 709
    assert ok(cu.cuDevicePrimaryCtxGetState(1))[1] == 0
    ok(cu.cuCtxPopCurrent())
    ok(cu.cuDevicePrimaryCtxRelease(1))


@pytest.mark.parametrize("handle", [0xDEAD0000, 3, 2**64 - 1])
def test_unknown_handles_are_refused(handle: Any) -> None:
    assert code(cu.cuStreamQuery(cu.CUstream(handle))) == 400
    assert code(cu.cuStreamDestroy(cu.CUstream(handle))) == 400
    assert code(cu.cuEventQuery(cu.CUevent(handle))) == 400
    assert code(cu.cuGraphDestroy(cu.CUgraph(handle))) == 1
    assert code(cu.cuModuleUnload(cu.CUmodule(handle))) == 400


def test_an_event_is_not_a_stream(stream: Any) -> None:
    event = ok(cu.cuEventCreate(0))
    assert code(cu.cuStreamQuery(cu.CUstream(int(event)))) == 400
    assert code(cu.cuEventQuery(cu.CUevent(int(stream)))) == 400
    ok(cu.cuEventDestroy(event))
    assert code(cu.cuEventDestroy(event)) == 400


def test_what_a_stream_says_of_itself() -> None:
    least, greatest = ok(cu.cuCtxGetStreamPriorityRange())
    assert (least, greatest) == (0, -5)
    context = ok(cu.cuCtxGetCurrent())
    for asked, got in ((5, 0), (-3, -3), (-99, -5)):
        stream = ok(cu.cuStreamCreateWithPriority(1, asked))
        assert ok(cu.cuStreamGetPriority(stream)) == got
        assert ok(cu.cuStreamGetFlags(stream)) == 1
        found = ok(cu.cuStreamGetCtx(stream))
        assert int(found[0] if isinstance(found, tuple) else found) == int(context)
        ok(cu.cuStreamDestroy(stream))
    assert code(cu.cuStreamCreate(2)) == 1


def test_ids_are_never_used_again() -> None:
    ids = []
    for _ in range(50):
        stream = ok(cu.cuStreamCreate(0))
        ids.append(ok(cu.cuStreamGetId(stream)))
        ok(cu.cuStreamDestroy(stream))
    assert len(set(ids)) == 50


# --- the legacy stream and its relations


def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it(gate: Gate) -> None:
    blocking, free, order = ok(cu.cuStreamCreate(0)), ok(cu.cuStreamCreate(1)), []
    gate.hold(blocking)
    host(cu.CUstream(1), lambda: order.append("legacy"))
    after = ok(cu.cuStreamCreate(0))
    host(after, lambda: order.append("after"))
    host(free, lambda: order.append("free"))
    ok(cu.cuStreamSynchronize(free))
    assert order == ["free"]
    assert code(cu.cuStreamQuery(cu.CUstream(0))) == 600
    gate.open()
    ok(cu.cuStreamSynchronize(after))
    assert order == ["free", "legacy", "after"]
    ok(cu.cuStreamSynchronize(cu.CUstream(0)))
    for each in (blocking, free, after):
        ok(cu.cuStreamDestroy(each))


def test_synchronizing_the_legacy_stream_covers_the_blocking_ones(kernels: Kernels) -> None:
    blocking = ok(cu.cuStreamCreate(0))
    kernels.spin(blocking, 0.05)
    ok(cu.cuStreamSynchronize(cu.CUstream(0)))
    assert code(cu.cuStreamQuery(blocking)) == 0
    ok(cu.cuStreamDestroy(blocking))


def test_each_thread_has_a_default_stream_of_its_own(gate: Gate) -> None:
    context = ok(cu.cuCtxGetCurrent())
    mine = ok(cu.cuStreamGetId(cu.CUstream(2)))
    assert mine == ok(cu.cuStreamGetId(cu.CUstream(2)))

    def other() -> int:
        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuStreamSynchronize(cu.CUstream(2)))  # not held by the gate
        return int(ok(cu.cuStreamGetId(cu.CUstream(2))))

    gate.hold(cu.CUstream(2))
    assert in_thread(other) not in (mine, ok(cu.cuStreamGetId(cu.CUstream(1))))
    assert code(cu.cuStreamQuery(cu.CUstream(1))) == 600  # per-thread streams are blocking ones
    gate.open()
    ok(cu.cuStreamSynchronize(cu.CUstream(2)))


# --- contexts


def test_without_a_current_context(stream: Any) -> None:
    event = ok(cu.cuEventCreate(0))
    fired = []

    def bare() -> dict[str, int]:
        assert int(ok(cu.cuCtxGetCurrent())) == 0
        answers = {
            "query": code(cu.cuStreamQuery(stream)),
            "record": code(cu.cuEventRecord(event, stream)),
            "event query": code(cu.cuEventQuery(event)) in (0, 600),
            "create": code(cu.cuEventCreate(0)),
            "stream": code(cu.cuStreamCreate(0)),
            "alloc": code(cu.cuMemAlloc(64)),
            "legacy": code(cu.cuStreamQuery(cu.CUstream(0))),
            "special 1": code(cu.cuStreamQuery(cu.CUstream(1))),
            "special 2": code(cu.cuStreamQuery(cu.CUstream(2))),
        }
        host(stream, lambda: fired.append(1))
        answers["synchronize"] = code(cu.cuStreamSynchronize(stream))
        return answers

    assert in_thread(bare) == {
        "query": 0, "record": 0, "event query": True, "synchronize": 0,
        "create": 201, "stream": 201, "alloc": 201, "legacy": 201, "special 1": 201,
        "special 2": 201,
    }  # fmt: skip
    assert fired == [1]


def test_a_stream_of_another_context(stream: Any, kernels: Kernels) -> None:
    context = ok(cu.cuDevicePrimaryCtxRetain(1))
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuCtxPushCurrent(context))
    foreign = ok(cu.cuEventCreate(0))
    fired = []
    assert code(cu.cuStreamQuery(stream)) == 0
    assert code(cu.cuStreamSynchronize(stream)) == 0
    assert code(cu.cuEventRecord(event, stream)) == 0
    assert code(cu.cuEventRecord(foreign, stream)) == 400
    ok(cu.cuEventRecord(foreign, cu.CUstream(0)))
    assert code(cu.cuStreamWaitEvent(stream, foreign, 0)) == 0
    host(stream, lambda: fired.append(1))
    assert code(kernels.launch("empty", stream)) == 400
    ok(cu.cuStreamSynchronize(stream))
    assert fired == [1]
    ok(cu.cuCtxPopCurrent())
    ok(cu.cuDevicePrimaryCtxRelease(1))


def test_module_loading_waits_for_a_host_function(stream: Any) -> None:
    started, release = threading.Event(), threading.Event()
    host(stream, lambda: (started.set(), release.wait(10)))
    assert started.wait(10)
    context, loaded = ok(cu.cuCtxGetCurrent()), threading.Event()

    def load() -> None:
        from simdriver import PTX

        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuModuleLoadData(PTX))
        loaded.set()

    thread = threading.Thread(target=load)
    thread.start()
    assert not loaded.wait(0.05)
    release.set()
    assert loaded.wait(10)
    thread.join()


# --- back-pressure


@pytest.mark.parametrize("what", ["launch", "host function", "callback", "write"])
def test_a_stream_1022_launches_deep_blocks(
    stream: Any, kernels: Kernels, gate: Gate, what: Any
) -> None:
    gate.hold(stream)
    for _ in range(1022):
        ok(kernels.launch("empty", stream))
    context, word, done = ok(cu.cuCtxGetCurrent()), Gate(), threading.Event()

    def one_more() -> None:
        ok(cu.cuCtxSetCurrent(context))
        if what == "launch":
            ok(kernels.launch("empty", stream))
        elif what == "host function":
            host(stream, lambda: None)
        elif what == "callback":
            callback(stream, lambda _: None)
        else:
            ok(cu.cuStreamWriteValue32(stream, word.address, 1, 0))
        done.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert not done.wait(0.05)
    event, other = ok(cu.cuEventCreate(0)), ok(cu.cuStreamCreate(1))
    ok(cu.cuEventRecord(event, other))
    ok(cu.cuStreamWaitEvent(stream, event, 0))
    ok(cu.cuEventRecord(event, stream))  # neither of these blocks
    assert code(cu.cuStreamQuery(stream)) == 600
    assert not done.is_set()
    gate.open()
    assert done.wait(10)
    thread.join()
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuStreamDestroy(other))


def test_thousands_of_host_functions_queue_without_blocking(stream: Any, gate: Gate) -> None:
    gate.hold(stream)
    libc = ctypes.CDLL(None)
    enqueue = __import__("simdriver").raw(
        "cuLaunchHostFunc", 10000, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )
    nothing = ctypes.cast(libc.free, ctypes.c_void_p)
    event = ok(cu.cuEventCreate(0))
    for _ in range(5000):
        assert enqueue(int(stream), nothing, None) == 0
        ok(cu.cuEventRecord(event, stream))
    assert simulator.pending_work() == 10001
    gate.open()
    ok(cu.cuStreamSynchronize(stream))


def test_idle_costs_nothing() -> None:
    """In a process of its own: the suite's has other threads.

    It takes the smallest of several measured times, because other work on a busy machine makes
    some of them larger.
    """
    program = """
        import nogpu as simulator
        simulator.install()
        from simdriver import *
        ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        stream = ok(cu.cuStreamCreate(1))
        Kernels().spin(stream, 0.001); host(stream, lambda: None)
        ok(cu.cuStreamSynchronize(stream))
        costs = []
        for _ in range(5):
            before = time.process_time()
            time.sleep(0.2)
            costs.append(time.process_time() - before)
        print(min(costs))
    """
    done = run_python(program)
    assert float(done.stdout) < 0.0008, done.stderr
