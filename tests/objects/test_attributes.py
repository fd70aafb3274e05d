"""Attributes as Python values, and the properties of a stream."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import Any

import pytest

import internals
from aiostream import (
    AccessPolicyWindow,
    AccessProperty,
    CaptureMode,
    CaptureStatus,
    CudaError,
    Device,
    MemSyncDomain,
    MemSyncDomainMap,
    NotSupportedError,
    Stream,
    StreamAttribute,
    StreamCaptureError,
    StreamClosedError,
    SynchronizationPolicy,
    enums,
)
from support import succeed

WINDOW = StreamAttribute.ACCESS_POLICY_WINDOW


@pytest.fixture
def memory() -> Any:
    with Device(0).primary_context.as_current():
        pointer = internals.driver_call("cuMemAlloc", 1 << 16)
    yield int(pointer)
    with Device(0).primary_context.as_current():
        internals.driver_call("cuMemFree", pointer)


def test_enumerations_have_the_drivers_values() -> None:
    """Each member that these bindings know has the number that they give it.

    The docstring of each enumeration names the driver's.
    """
    compared = 0
    for name in enums.__all__:
        ours = getattr(enums, name)
        named = re.search(r"`(CU\w+)`", ours.__doc__)
        assert named is not None or name == "WaitStrategy", name
        theirs = getattr(internals.bindings(), named[1], None) if named is not None else None
        if theirs is None:
            continue
        words = [full.replace("_", "/") for full in theirs.__members__]
        prefix = os.path.commonpath(words).replace("/", "_")
        numbers = {
            full.removeprefix(f"{prefix}_").removesuffix("_CAPTURE_DEPENDENCIES"): int(value)
            for full, value in theirs.__members__.items()
        }
        for member in ours:
            if member.name not in numbers and (member == 0 or name == "DevResourceType"):
                continue  # the library's name for no flag, or newer than these bindings
            assert numbers.get(member.name) == int(member), f"{name}.{member.name}"
            compared += 1
    assert compared > 80


def test_attributes_of_a_new_stream(stream: Stream) -> None:
    policy = stream.get_attribute(StreamAttribute.SYNCHRONIZATION_POLICY)
    assert policy in (None, SynchronizationPolicy.AUTO)
    assert stream.get_attribute(StreamAttribute.PRIORITY) == stream.priority == 0
    assert stream.get_attribute(StreamAttribute.MEM_SYNC_DOMAIN) is MemSyncDomain.DEFAULT
    assert stream.get_attribute(StreamAttribute.MEM_SYNC_DOMAIN_MAP) == MemSyncDomainMap(0, 1)
    assert stream.get_attribute(WINDOW).size == 0


def test_each_attribute_can_be_set(stream: Stream, memory: int) -> None:
    _, greatest = Device(0).stream_priority_range
    values: dict[StreamAttribute, list[Any]] = {
        StreamAttribute.SYNCHRONIZATION_POLICY: list(SynchronizationPolicy),
        StreamAttribute.PRIORITY: [greatest, 0],
        StreamAttribute.MEM_SYNC_DOMAIN: list(MemSyncDomain),
        StreamAttribute.MEM_SYNC_DOMAIN_MAP: [MemSyncDomainMap(1, 0), MemSyncDomainMap(0, 1)],
        WINDOW: [
            AccessPolicyWindow(
                memory, 4096, 0.5, AccessProperty.PERSISTING, AccessProperty.STREAMING
            ),
            AccessPolicyWindow(memory, 0),
        ],
    }
    assert set(values) == set(StreamAttribute)
    for attribute, each in values.items():
        for value in each:
            stream.set_attribute(attribute, value)
            got = stream.get_attribute(attribute)
            assert type(got) is type(value)
            if attribute is WINDOW:  # the driver may align it, and need not keep one of no size
                assert value.size == 0 or (got.hit_ratio, got.hit, got.miss) == (
                    value.hit_ratio,
                    value.hit,
                    value.miss,
                )
            else:
                assert got == value


def test_wrong_values_are_refused_before_the_driver_is_asked(stream: Stream) -> None:
    wrong: list[tuple[type[Exception], StreamAttribute, Any]] = [
        (TypeError, WINDOW, 5),
        (TypeError, WINDOW, None),
        (TypeError, StreamAttribute.MEM_SYNC_DOMAIN_MAP, (0, 1)),
        (ValueError, StreamAttribute.SYNCHRONIZATION_POLICY, 77),
        (ValueError, StreamAttribute.MEM_SYNC_DOMAIN, 2),
        (ValueError, 99, 1),  # type: ignore[list-item]
    ]
    for kind, attribute, value in wrong:
        with pytest.raises(kind):
            stream.set_attribute(attribute, value)
    with pytest.raises(ValueError, match="hit_ratio is a number from 0 to 1, not nan"):
        AccessPolicyWindow(0, 0, Decimal("nan"))  # type: ignore[arg-type]
    for ratio in (1.5, -0.1):
        with pytest.raises(ValueError, match="hit_ratio is from 0 to 1"):
            AccessPolicyWindow(0, 0, ratio)


def test_refusals_of_the_driver(stream: Stream) -> None:
    with pytest.raises(CudaError) as caught:
        stream.set_attribute(WINDOW, AccessPolicyWindow(0, 1 << 40, 1.0, AccessProperty.PERSISTING))
    assert caught.value.call == "cuStreamSetAttribute"
    assert caught.value.code == 1


def test_attributes_are_copied(stream: Stream, other: Stream) -> None:
    policy = StreamAttribute.SYNCHRONIZATION_POLICY
    for value in (SynchronizationPolicy.BLOCKING_SYNC, SynchronizationPolicy.YIELD):
        other.set_attribute(policy, value)
        stream.copy_attributes(other)
        assert stream.get_attribute(policy) is value
    other.close()
    with pytest.raises(StreamClosedError):
        stream.copy_attributes(other)
    with pytest.raises(StreamClosedError):
        other.copy_attributes(stream)
    with pytest.raises(TypeError):
        stream.copy_attributes("stream")


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_questions_do_not_disturb_a_capture(stream: Stream, mode: CaptureMode) -> None:
    with stream.capture(mode) as capture:
        for attribute in StreamAttribute:
            stream.get_attribute(attribute)
        stream.set_attribute(StreamAttribute.PRIORITY, 0)
        if internals.driver_version() >= 13010:
            with pytest.raises(StreamCaptureError):
                stream.dev_resource()
        assert stream.priority == 0
        assert stream.green_context is None
        assert stream.context is not None
        assert stream.capture_status() is CaptureStatus.ACTIVE
    capture.graph.close()


def test_stream_of_a_green_context() -> None:
    driver = internals.bindings()
    device = internals.driver_call("cuDeviceGet", 0)
    try:
        resource = internals.driver_call(
            "cuDeviceGetDevResource", device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        )
        groups = internals.driver_call("cuDevSmResourceSplitByCount", 1, resource, 0, 8)[0]
    except NotSupportedError as error:
        pytest.skip(f"this driver has no green contexts: {error}")
    description = internals.driver_call("cuDevResourceGenerateDesc", groups, 1)
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value
    green = internals.driver_call("cuGreenCtxCreate", description, device, flags)
    raw = internals.driver_call("cuGreenCtxStreamCreate", green, 1, 0)
    stream = Stream.from_raw(int(raw))
    assert stream.green_context == int(green)
    stream.synchronize()
    stream.close()


@pytest.mark.simulator_only("plays a newer driver")
def test_functions_of_newer_drivers() -> None:
    """Sync modes of host functions, and recaptures, on a driver of CUDA 13.3."""
    if not hasattr(internals.bindings(), "cuStreamBeginRecaptureToGraph"):
        pytest.skip("these bindings are older")
    script = """
        from aiostream import simulator
        simulator.install(driver_version=13030)
        import aiostream
        from aiostream import HostFunctionSync, RecaptureStatus, Stream
        from support import spin, settle
        stream, calls = Stream(), []
        spin(stream, 0)
        for mode in HostFunctionSync:
            stream.launch_host_func(calls.append, mode.name, sync_mode=mode)
        with stream.capture() as capture:
            spin(stream, 0)
            stream.launch_host_func(calls.append, "captured", sync_mode=HostFunctionSync.SPINWAIT)
        stream.synchronize()
        graph = capture.graph
        asked = []
        def accept(node, status):
            asked.append((node.graph is graph, node.type.name, status))
            return True
        stream.begin_recapture_to_graph(graph, accept)
        spin(stream, 0)
        stream.launch_host_func(calls.append, "again")
        assert stream.end_capture() is graph
        assert [each[:2] for each in asked] == [(True, "HOST")], asked
        with graph.instantiate() as executable:
            executable.launch(stream)
            stream.synchronize()
        print(*calls)
        assert settle(lambda: aiostream.statistics().points.captured == 1)
        async def never(node, status):
            return False
        try:
            stream.begin_recapture_to_graph(graph, never)
        except TypeError as error:
            print(error)
        try:
            with_failure = stream.begin_recapture_to_graph(graph, lambda node, status: False)
            spin(stream, 0)
            stream.launch_host_func(calls.append, "refused")
        except aiostream.CudaError as error:
            print("refused", error.name)
        try:
            stream.end_capture()
        except aiostream.CudaError as error:
            print("ended", error.code)
        graph.close()
        stream.synchronize()
        assert settle(lambda: aiostream.statistics().points.pending == 0), aiostream.statistics()
        print("done")
    """
    out = succeed("simulator", script)
    assert out.splitlines()[0] == "BLOCKING SPINWAIT again"
    assert "not a coroutine function" in out.splitlines()[1]
    assert out.splitlines()[2].startswith("refused")
    assert out.splitlines()[-1] == "done"
