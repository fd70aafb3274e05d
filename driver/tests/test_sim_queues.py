"""Hardware queues: as docs/driver.md says of an H200."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest

import nogpu as simulator
from simdriver import Gate, Kernels, address, code, cu, host, ok, raw, run_python, until

THROUGHPUT = """
    import nogpu as simulator
    simulator.install()
    from simdriver import *
    ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
    kernels = Kernels()
    streams = [ok(cu.cuStreamCreate(1)) for _ in range(128)]
    events = [ok(cu.cuEventCreate(3 if {blocking_sync} else 2)) for _ in streams]
    enqueue = raw("cuLaunchHostFunc", 10000, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
    start = time.monotonic()
    for _ in range({rounds}):
        for stream, event in zip(streams, events):
            kernels.spin(stream, 0.005)
            {behind}
    for stream in streams:
        ok(cu.cuStreamSynchronize(stream))
    print(128 * {rounds} / (time.monotonic() - start))
"""


def best_rate(program: str, enough: float, **variables: Any) -> float:
    """The best of a few runs, because a busy machine makes some of them slow."""
    best = 0.0
    for _ in range(8):
        done = run_python(program, **variables)
        assert done.returncode == 0, done.stderr
        best = max(best, float(done.stdout))
        if best > enough:
            break
    return best


@pytest.mark.alone
@pytest.mark.parametrize(
    ("behind", "blocking_sync", "rounds", "connections", "least", "most"),
    [
        ("enqueue(int(stream), free, None)", False, 6, "8", 1_200, 1_610),
        pytest.param(
            *("enqueue(int(stream), free, None)", False, 12, "32", 3_500, 6_450),
            marks=pytest.mark.slow,
        ),
        ("cu.cuEventRecord(event, stream)", False, 60, "8", 8_000, 25_700),
        ("cu.cuEventRecord(event, stream)", True, 6, "8", 1_200, 1_610),
    ],
)
def test_completions_per_second_of_128_streams(
    behind: Any, blocking_sync: Any, rounds: Any, connections: Any, least: Any, most: Any
) -> None:
    """On the H200: 1,600; 6,350 with 32 connections; 23,250 with events, 1,590 with blocking-sync
    ones.
    """
    program = THROUGHPUT.format(behind=behind, blocking_sync=blocking_sync, rounds=rounds)
    best = best_rate(program, least, CUDA_DEVICE_MAX_CONNECTIONS=connections)
    assert least < best < most


@pytest.mark.alone
def test_without_hardware_queues() -> None:
    program = THROUGHPUT.format(
        behind="enqueue(int(stream), free, None)", blocking_sync=False, rounds=40
    )
    program = program.replace("install()", "install(hardware_queues=False)")
    assert best_rate(program, 6_500) > 6_500


def test_a_few_gates_hold_up_no_one_else() -> None:
    gate, fired = Gate(), []
    held = [ok(cu.cuStreamCreate(1)) for _ in range(7)]
    for stream in held:
        gate.hold(stream)
    for number in range(24):
        stream = ok(cu.cuStreamCreate(1))
        host(stream, lambda number=number: fired.append(number))
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuStreamDestroy(stream))
    assert fired == list(range(24))
    gate.open()
    for stream in held:
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuStreamDestroy(stream))


def test_eight_gates_hold_up_their_neighbours(kernels: Kernels) -> None:
    gate = Gate()
    before = [ok(cu.cuStreamCreate(1)) for _ in range(2)]
    for stream in before:
        kernels.spin(stream, 0.02)
        ok(kernels.launch("empty", stream))  # enqueued before the gates: not behind them
    held = [ok(cu.cuStreamCreate(1)) for _ in range(8)]
    for stream in held:
        gate.hold(stream)
    ninth = ok(cu.cuStreamCreate(1))
    ok(kernels.launch("empty", ninth))
    for stream in before:
        ok(cu.cuStreamSynchronize(stream))
    time.sleep(0.02)
    assert code(cu.cuStreamQuery(ninth)) == 600
    gate.open()
    ok(cu.cuStreamSynchronize(ninth))
    for stream in (*held, *before, ninth):
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuStreamDestroy(stream))


def test_work_behind_events_and_host_functions_never_deadlocks() -> None:
    """Chains across 40 streams, each waiting for the one before it and each with a host
    function.
    """
    enqueue = raw("cuLaunchHostFunc", 10000, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
    streams = [ok(cu.cuStreamCreate(1)) for _ in range(40)]
    helpers = [ok(cu.cuStreamCreate(1)) for _ in range(40)]
    for turn in range(5):
        for number, stream in enumerate(streams if turn % 2 else reversed(streams)):
            event = ok(cu.cuEventCreate(2))
            enqueue(int(stream), free, None)
            ok(cu.cuEventRecord(event, stream))
            ok(cu.cuStreamWaitEvent(helpers[number], event, 0))
            enqueue(int(helpers[number]), free, None)
            ok(cu.cuStreamWaitEvent(streams[(number * 7 + turn) % 40], event, 0))
            ok(cu.cuEventDestroy(event))
    until(lambda: simulator.pending_work() == 0)
    for stream in (*streams, *helpers):
        ok(cu.cuStreamDestroy(stream))
    assert address("cuLaunchHostFunc", 10000)
