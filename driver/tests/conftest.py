"""Each test begins and ends with a healthy, idle, well-behaved driver of two devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nogpu as simulator


@pytest.fixture(autouse=True)
def driver() -> Iterator[None]:
    try:
        simulator.install(devices=2)
    except RuntimeError as error:
        if "another CUDA driver" not in str(error):
            raise
        pytest.skip("this run has a real driver; the simulator's own tests need the simulator")
    from simdriver import cu, ok, until

    ok(cu.cuInit(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
    # Tests that interrupt a call, or break its context, may have left this thread in RELAXED.
    ok(cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode(0)))
    yield
    failure = None
    try:
        until(lambda: simulator.pending_work() == 0, 2.0)
    except AssertionError:
        failure = f"{simulator.pending_work()} items were still pending"
    simulator.clear_faults()
    simulator.adversary()
    simulator.seed(None)
    simulator.recover()
    ok(cu.cuCtxSetCurrent(cu.CUcontext(0)))
    ok(cu.cuDevicePrimaryCtxRelease(0))
    assert failure is None, failure


@pytest.fixture
def stream(driver: None) -> Iterator[Any]:
    from simdriver import cu, ok

    made = ok(cu.cuStreamCreate(1))
    yield made
    cu.cuStreamDestroy(made)


@pytest.fixture
def kernels(driver: None) -> Any:
    from simdriver import Kernels

    return Kernels()


@pytest.fixture
def gate(driver: None) -> Iterator[Any]:
    from simdriver import Gate

    made = Gate()
    yield made
    made.open()


@pytest.fixture
def build(driver: None) -> Any:
    from simgraphs import Nodes

    return Nodes()
