"""The attributes of streams and kernel nodes; memory operations in batches; what streams say of
their contexts.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import nogpu as simulator
from simdriver import Gate, Kernels, code, cu, ok, raw, run_python

ID = cu.CUlaunchAttributeID
WINDOW = ID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
COOPERATIVE = ID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
POLICY = ID.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
PRIORITY = ID.CU_LAUNCH_ATTRIBUTE_PRIORITY
DOMAIN_MAP = ID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
DOMAIN = ID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN


def get(stream: Any, which: Any) -> Any:
    return ok(cu.cuStreamGetAttribute(stream, which))


def put(stream: Any, which: Any, **fields: Any) -> int:
    value = cu.CUstreamAttrValue()
    for name, content in fields.items():
        setattr(value, name, content)
    return code(cu.cuStreamSetAttribute(stream, which, value))


def window(**fields: Any) -> Any:
    made = cu.CUaccessPolicyWindow()
    made.hitProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
    made.missProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
    for name, content in fields.items():
        setattr(made, name, content)
    return made


def domains(default: Any, remote: Any) -> Any:
    made = cu.CUlaunchMemSyncDomainMap()
    made.default_, made.remote = default, remote
    return made


def test_what_a_stream_begins_with() -> None:
    stream = ok(cu.cuStreamCreateWithPriority(1, -2))
    assert int(get(stream, WINDOW).accessPolicyWindow.num_bytes) == 0
    reported = ctypes.c_int()  # by address: no policy of the bindings is -1
    ask = raw("cuStreamGetAttribute", 11000, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    assert ask(int(stream), int(POLICY), ctypes.addressof(reported)) == 0
    assert reported.value == -1
    assert int(get(stream, PRIORITY).priority) == -2
    assert int(get(stream, DOMAIN).memSyncDomain) == 0
    reported = get(stream, DOMAIN_MAP).memSyncDomainMap
    assert (reported.default_, reported.remote) == (0, 1)


def test_what_is_set_is_reported_and_copied(stream: Any) -> None:
    memory, other = ok(cu.cuMemAlloc(4096)), ok(cu.cuStreamCreate(1))
    assert (
        put(
            stream,
            WINDOW,
            accessPolicyWindow=window(base_ptr=int(memory), num_bytes=4096, hitRatio=0.5),
        )
        == 0
    )
    assert (
        put(stream, POLICY, syncPolicy=cu.CUsynchronizationPolicy.CU_SYNC_POLICY_BLOCKING_SYNC) == 0
    )
    assert put(stream, PRIORITY, priority=-4) == 0
    assert (
        put(stream, DOMAIN, memSyncDomain=cu.CUlaunchMemSyncDomain.CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)
        == 0
    )
    assert put(stream, DOMAIN_MAP, memSyncDomainMap=domains(2, 3)) == 0
    ok(cu.cuStreamCopyAttributes(other, stream))
    for each in (stream, other):
        reported = get(each, WINDOW).accessPolicyWindow
        assert (int(reported.base_ptr), reported.num_bytes, reported.hitRatio) == (
            int(memory),
            4096,
            0.5,
        )
        assert (int(reported.hitProp), int(reported.missProp)) == (2, 1)
        assert int(get(each, POLICY).syncPolicy) == 4
        assert int(get(each, PRIORITY).priority) == int(ok(cu.cuStreamGetPriority(each))) == -4
        assert int(get(each, DOMAIN).memSyncDomain) == 1
        map_reported = get(each, DOMAIN_MAP).memSyncDomainMap
        assert (map_reported.default_, map_reported.remote) == (2, 3)


def test_values_are_checked(stream: Any) -> None:
    set_raw = raw("cuStreamSetAttribute", 11000, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    most = ok(
        cu.cuDeviceGetAttribute(
            cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 0
        )
    )
    assert put(stream, WINDOW, accessPolicyWindow=window(num_bytes=most + 1, hitRatio=1.0)) == 1
    assert put(stream, WINDOW, accessPolicyWindow=window(num_bytes=16, hitRatio=1.5)) == 1
    persisting = cu.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
    assert (
        put(
            stream,
            WINDOW,
            accessPolicyWindow=window(num_bytes=16, hitRatio=0.5, missProp=persisting),
        )
        == 1
    )
    assert put(stream, DOMAIN_MAP, memSyncDomainMap=domains(0, 4)) == 1
    for which, value in (
        (POLICY, 0),
        (POLICY, 5),
        (DOMAIN, 2),
        (COOPERATIVE, 1),
        (ID.CU_LAUNCH_ATTRIBUTE_IGNORE, 0),
    ):
        number = ctypes.c_int(value)
        assert set_raw(int(stream), int(which), ctypes.addressof(number)) == 1
    assert set_raw(int(stream), int(POLICY), None) == 1
    assert code(cu.cuStreamGetAttribute(stream, COOPERATIVE)) == 1
    assert put(stream, PRIORITY, priority=-100) == 0
    assert int(get(stream, PRIORITY).priority) == -5, "clamped"


def test_copies_stay_in_a_context(stream: Any) -> None:
    ok(cu.cuCtxPushCurrent(ok(cu.cuDevicePrimaryCtxRetain(1))))
    other = ok(cu.cuStreamCreate(1))
    assert code(cu.cuStreamCopyAttributes(other, stream)) == 1
    ok(cu.cuCtxPopCurrent())
    ok(cu.cuDevicePrimaryCtxRelease(1))


def test_of_kernel_nodes(stream: Any, kernels: Kernels) -> None:
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
    for _ in range(2):
        ok(kernels.launch("empty", stream))
    graph = ok(cu.cuStreamEndCapture(stream))
    first, second = ok(cu.cuGraphGetNodes(graph, 2))[0]
    value = cu.CUkernelNodeAttrValue()
    value.cooperative = 1
    ok(cu.cuGraphKernelNodeSetAttribute(first, COOPERATIVE, value))
    assert ok(cu.cuGraphKernelNodeGetAttribute(first, COOPERATIVE)).cooperative == 1
    ok(cu.cuGraphKernelNodeCopyAttributes(second, first))
    assert ok(cu.cuGraphKernelNodeGetAttribute(second, COOPERATIVE)).cooperative == 1
    assert code(cu.cuGraphKernelNodeGetAttribute(first, POLICY)) == 1, "of streams alone"
    empty = ok(cu.cuGraphAddEmptyNode(graph, [], 0))
    assert code(cu.cuGraphKernelNodeGetAttribute(empty, PRIORITY)) == 1


# --- memory operations in batches ---


def operation(kind: Any, address: int = 0, value: int = 0, flags: int = 0) -> Any:
    made = cu.CUstreamBatchMemOpParams()
    made.operation = kind
    if kind == KIND.CU_STREAM_MEM_OP_BARRIER:
        made.memoryBarrier.operation, made.memoryBarrier.flags = kind, flags
        return made
    waits = kind in (KIND.CU_STREAM_MEM_OP_WAIT_VALUE_32, KIND.CU_STREAM_MEM_OP_WAIT_VALUE_64)
    word = made.waitValue if waits else made.writeValue
    word.operation, word.address, word.flags = kind, cu.CUdeviceptr(address), flags
    word.value64 = value
    return made


KIND = cu.CUstreamBatchMemOpType


def batch(stream: Any, *operations: Any) -> int:
    return code(cu.cuStreamBatchMemOp(stream, len(operations), list(operations), 0))


def test_a_batch_keeps_its_order(stream: Any, gate: Gate) -> None:
    words = (ctypes.c_uint64 * 4).from_address(gate.address + 16)
    words[:] = [0] * 4
    operations = [
        operation(KIND.CU_STREAM_MEM_OP_WAIT_VALUE_32, gate.address, 1),
        operation(KIND.CU_STREAM_MEM_OP_WRITE_VALUE_64, gate.address + 16, 7 << 40),
        operation(KIND.CU_STREAM_MEM_OP_BARRIER),
        operation(KIND.CU_STREAM_MEM_OP_WAIT_VALUE_64, gate.address + 16, 7 << 40, 1),
        operation(KIND.CU_STREAM_MEM_OP_WRITE_VALUE_32, gate.address + 24, 9),
    ]
    assert batch(stream, *operations) == 0
    assert list(words) == [0] * 4
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert words[:2] == [7 << 40, 9]
    words[:] = [0] * 4
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
    assert batch(stream, *operations) == 0
    graph = ok(cu.cuStreamEndCapture(stream))
    nodes = ok(cu.cuGraphGetNodes(graph, 4))
    assert nodes[-1] == 1
    assert int(ok(cu.cuGraphNodeGetType(nodes[0][0]))) == 12
    ok(cu.cuGraphLaunch(ok(cu.cuGraphInstantiate(graph, 0)), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert words[:2] == [7 << 40, 9]


def test_batches_that_are_refused_do_nothing(stream: Any, gate: Gate) -> None:
    write = operation(KIND.CU_STREAM_MEM_OP_WRITE_VALUE_32, gate.address + 16, 9)
    word = ctypes.c_uint32.from_address(gate.address + 16)
    word.value = 0
    assert batch(stream, write, operation(KIND.CU_STREAM_MEM_OP_WRITE_VALUE_32, 64, 9)) == 1, (
        "no such memory"
    )
    assert (
        batch(stream, write, operation(KIND.CU_STREAM_MEM_OP_WRITE_VALUE_32, gate.address + 2, 9))
        == 1
    ), "misaligned"
    assert batch(stream, write, operation(KIND.CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES)) == 801
    assert batch(stream, *[write] * 256) == 1
    assert code(cu.cuStreamBatchMemOp(stream, 1, [write], 1)) == 1
    assert (
        batch(stream, operation(KIND.CU_STREAM_MEM_OP_WRITE_VALUE_32, gate.address + 16, 9, 1)) == 1
    )
    assert (
        raw(
            "cuStreamBatchMemOp",
            11070,
            ctypes.c_void_p,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_uint,
        )(int(stream), 0, None, 0)
        == 0
    )
    ok(cu.cuStreamSynchronize(stream))
    assert word.value == 0


# --- contexts, memory, sync modes ---


def test_ordinary_streams_have_no_green_context(stream: Any) -> None:
    for handle in (stream, cu.CUstream(1), cu.CUstream(2)):
        assert int(ok(cu.cuStreamGetGreenCtx(handle))) == 0
    context, green = ok(cu.cuStreamGetCtx_v2(stream))
    assert (int(context), int(green)) == (int(ok(cu.cuCtxGetCurrent())), 0)


def test_managed_memory_is_attached_in_stream_order(stream: Any) -> None:
    memory = ok(cu.cuMemAllocManaged(256, 1))
    for flags in (1, 2, 4):
        ok(cu.cuStreamAttachMemAsync(stream, memory, 0, flags))
    assert code(cu.cuStreamAttachMemAsync(stream, memory, 0, 3)) == 1
    assert code(cu.cuStreamAttachMemAsync(stream, memory, 16, 4)) == 1, "all of it or nothing"
    assert code(cu.cuStreamAttachMemAsync(cu.CUstream(0), memory, 0, 4)) == 1, (
        "the legacy stream is no single one"
    )
    pageable = ctypes.create_string_buffer(64)
    address = cu.CUdeviceptr(ctypes.addressof(pageable))
    for bytes_ in (64, 0):
        assert code(cu.cuStreamAttachMemAsync(stream, address, bytes_, 4)) == 1
    assert code(cu.cuStreamAttachMemAsync(stream, ok(cu.cuMemAlloc(64)), 64, 4)) == 1, "not managed"
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
    assert code(cu.cuStreamAttachMemAsync(stream, memory, 0, 4)) == 900
    assert code(cu.cuStreamEndCapture(stream)) == 901
    ok(cu.cuMemFree(memory))


def test_host_functions_with_a_sync_mode_came_with_cuda_13_2() -> None:
    program = """
        import nogpu as simulator
        simulator.install(driver_version=13020)
        import ctypes
        from simdriver import HOST, cu, ok, raw
        ok(cu.cuInit(0))
        ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        stream, fired = ok(cu.cuStreamCreate(1)), []
        native = HOST(lambda _: fired.append(1))
        put = raw("cuLaunchHostFunc", 13020, *[ctypes.c_void_p] * 3, ctypes.c_uint)
        for mode, answer in ((0, 0), (1, 0), (2, 1)):
            assert put(int(stream), ctypes.cast(native, ctypes.c_void_p), None, mode) == answer
        ok(cu.cuStreamSynchronize(stream))
        print(fired)
    """
    ran = run_python(program)
    assert ran.stdout.strip() == "[1, 1]", ran.stderr


def test_what_is_still_lacking_names_itself() -> None:
    graph = ok(cu.cuGraphCreate(0))
    assert code(cu.cuGraphConditionalHandleCreate(graph, ok(cu.cuCtxGetCurrent()), 0, 0)) == 801
    assert simulator.unsupported_calls()["cuGraphConditionalHandleCreate"] >= 1


@pytest.mark.parametrize("mode", [cu.CUstreamCaptureMode(n) for n in range(3)])
def test_attributes_leave_a_capture_alone(stream: Any, mode: Any) -> None:
    ok(cu.cuStreamBeginCapture(stream, mode))
    get(stream, PRIORITY)
    assert put(stream, PRIORITY, priority=-1) == 0
    ok(cu.cuGraphDestroy(ok(cu.cuStreamEndCapture(stream))))
