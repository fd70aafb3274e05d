"""Small questions to a CUDA driver: the wrong arguments of streams, events and graphs."""

# A lambda with a default has no type.
# mypy: disable-error-code="misc"

from __future__ import annotations

import ctypes
from typing import Any

import cuda.bindings.driver as cu

from probes import (
    LEGACY,
    MIB,
    NULL,
    ONE_ENTRY,
    PER_THREAD,
    RELAXED,
    Probes,
    begin,
    code,
    event,
    group,
    ok,
    place,
    raw,
    stream,
)


@group
def streams() -> Probes:
    begin()
    s = stream()
    yield (
        "cuStreamCreate with flags 2, -1; without a place",
        lambda: [
            raw("cuStreamCreate", place(), 2),
            raw("cuStreamCreate", place(), -1),
            raw("cuStreamCreate", NULL, 0),
        ],
    )
    yield (
        "cuStreamCreateWithPriority with flags 2; without a place; priorities 99, -99",
        lambda: [
            raw("cuStreamCreateWithPriority", place(), 2, 0),
            raw("cuStreamCreateWithPriority", NULL, 0, 0),
            raw("cuStreamCreateWithPriority", place(), 1, 99),
            raw("cuStreamCreateWithPriority", place(), 1, -99),
        ],
    )
    for name in ("cuStreamQuery", "cuStreamSynchronize", "cuStreamDestroy"):
        yield (
            f"{name} of NULL, legacy, per-thread",
            lambda name=name: [raw(name, NULL), raw(name, LEGACY), raw(name, PER_THREAD)],
        )
    for name in (
        "cuStreamGetFlags",
        "cuStreamGetPriority",
        "cuStreamGetDevice",
        "cuStreamIsCapturing",
    ):

        def ask(name: str = name) -> Any:
            found = []
            for handle in (NULL, LEGACY, PER_THREAD, s):
                out = ctypes.c_int(-77)
                answer = raw(name, handle, ctypes.byref(out), version=12080)
                found.append((answer, out.value) if answer == 0 else answer)
            return found

        yield f"{name} of NULL, legacy, per-thread, a stream", ask
    for name in (
        "cuStreamGetFlags",
        "cuStreamGetPriority",
        "cuStreamIsCapturing",
        "cuStreamGetCtx",
        "cuStreamGetId",
        "cuStreamGetDevice",
    ):
        yield f"{name} without a place", lambda name=name: raw(name, s, NULL, version=12080)
    yield (
        "cuStreamGetCtx, cuStreamGetId of NULL, legacy, per-thread",
        lambda: [
            [raw(name, handle, place()) for handle in (NULL, LEGACY, PER_THREAD)]
            for name in ("cuStreamGetCtx", "cuStreamGetId")
        ],
    )
    yield (
        "cuStreamWaitEvent: NULL, flags 2, flags 1",
        lambda: [
            raw("cuStreamWaitEvent", s, NULL, 0),
            raw("cuStreamWaitEvent", s, event(), 2),
            raw("cuStreamWaitEvent", s, event(), 1),
        ],
    )
    yield (
        "cuStreamAddCallback: NULL, flags 1",
        lambda: [
            raw("cuStreamAddCallback", s, NULL, NULL, 0),
            raw(
                "cuStreamAddCallback",
                s,
                ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p),
                NULL,
                1,
            ),
        ],
    )
    yield (
        "cuStreamBeginCapture: modes 3, -1; legacy; NULL",
        lambda: [
            raw("cuStreamBeginCapture", s, 3),
            raw("cuStreamBeginCapture", s, -1),
            raw("cuStreamBeginCapture", LEGACY, RELAXED),
            raw("cuStreamBeginCapture", NULL, RELAXED),
        ],
    )
    yield (
        "cuStreamEndCapture: of none, without a place, of legacy",
        lambda: [
            raw("cuStreamEndCapture", s, place()),
            raw("cuStreamEndCapture", s, NULL),
            raw("cuStreamEndCapture", LEGACY, place()),
        ],
    )

    def capturing(*calls: Any, mode: int = RELAXED) -> Any:
        own = stream()
        found: list[Any] = [raw("cuStreamBeginCapture", own, mode)]
        for call in calls:
            status = ctypes.c_int(-1)
            found.append(call(own))
            raw("cuStreamIsCapturing", own, ctypes.byref(status))
            found.append(("none", "active", "invalid")[status.value])
        return [*found, raw("cuStreamEndCapture", own, place())]

    yield (
        "capturing: begin again",
        lambda: capturing(lambda own: raw("cuStreamBeginCapture", own, RELAXED)),
    )
    yield (
        "capturing: end without a place",
        lambda: capturing(lambda own: raw("cuStreamEndCapture", own, NULL)),
    )
    for mode in (0, 1, 2):
        for name, call in {
            "cuMemAlloc": lambda own: raw("cuMemAlloc", place(), 64),
            "cuEventCreate": lambda own: raw("cuEventCreate", place(), 0),
            "cuStreamCreate": lambda own: raw("cuStreamCreate", place(), 1),
            "cuCtxSynchronize": lambda own: raw("cuCtxSynchronize"),
            "cuEventQuery": lambda own: raw("cuEventQuery", event()),
            "cuStreamQuery of another": lambda own: raw("cuStreamQuery", s),
            "cuMemGetInfo": lambda own: raw("cuMemGetInfo", place(), place()),
            "cuMemHostAlloc": lambda own: raw("cuMemHostAlloc", place(), 64, 0),
            "cuModuleLoadData": lambda own: code(cu.cuModuleLoadData(ONE_ENTRY)),
            "cuMemPoolCreate": lambda own: raw("cuDeviceGetDefaultMemPool", place(), 0),
        }.items():
            yield (
                f"capturing in mode {mode}: {name}",
                lambda mode=mode, call=call: capturing(call, mode=mode),
            )
    yield (
        "cuThreadExchangeStreamCaptureMode: 3, NULL",
        lambda: [
            raw("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(3))),
            raw("cuThreadExchangeStreamCaptureMode", NULL),
        ],
    )
    yield (
        "cuStreamGetCaptureInfo: of none, of legacy, without a place",
        lambda: [
            raw("cuStreamGetCaptureInfo", s, place(), NULL, NULL, NULL, NULL),
            raw("cuStreamGetCaptureInfo", LEGACY, place(), NULL, NULL, NULL, NULL),
            raw("cuStreamGetCaptureInfo", s, NULL, NULL, NULL, NULL, NULL),
        ],
    )
    yield (
        "cuStreamUpdateCaptureDependencies of none",
        lambda: raw("cuStreamUpdateCaptureDependencies", s, NULL, 0, 0),
    )
    yield (
        "capturing: cuStreamUpdateCaptureDependencies with flags 2; with a NULL node",
        lambda: capturing(
            lambda own: raw("cuStreamUpdateCaptureDependencies", own, NULL, 0, 2),
            lambda own: raw(
                "cuStreamUpdateCaptureDependencies", own, (ctypes.c_void_p * 1)(None), 1, 0
            ),
        ),
    )
    yield (
        "cuStreamBeginCaptureToGraph: of NULL, with mode 3",
        lambda: [
            raw("cuStreamBeginCaptureToGraph", s, NULL, NULL, NULL, 0, RELAXED, version=12030),
            raw(
                "cuStreamBeginCaptureToGraph",
                s,
                int(ok(cu.cuGraphCreate(0))),
                NULL,
                NULL,
                0,
                3,
                version=12030,
            ),
        ],
    )
    yield (
        "cuStreamAttachMemAsync: NULL, device memory, flags 0",
        lambda: [
            raw("cuStreamAttachMemAsync", s, NULL, 0, 1),
            raw("cuStreamAttachMemAsync", s, int(ok(cu.cuMemAlloc(64))), 0, 1),
            raw("cuStreamAttachMemAsync", s, int(ok(cu.cuMemAllocManaged(64, 1))), 0, 0),
        ],
    )
    yield (
        "cuStreamCopyAttributes: NULL, legacy, itself",
        lambda: [
            raw("cuStreamCopyAttributes", s, NULL),
            raw("cuStreamCopyAttributes", s, LEGACY),
            raw("cuStreamCopyAttributes", s, s),
        ],
    )
    for which in (0, 1, 2, 3, 4, 8, 9, 10, 15, 99):
        yield (
            f"attribute {which}: get, get without a place, set to zeros",
            lambda which=which: [
                raw("cuStreamGetAttribute", s, which, (ctypes.c_uint64 * 8)()),
                raw("cuStreamGetAttribute", s, which, NULL),
                raw("cuStreamSetAttribute", s, which, (ctypes.c_uint64 * 8)()),
            ],
        )

    word = int(ok(cu.cuMemHostAlloc(64, 0)))
    for bits in (32, 64):
        for kind in ("Write", "Wait"):
            name = f"cuStream{kind}Value{bits}"
            yield (
                f"{name}: flags 0, 1, 2, 3, 4, 99",
                lambda name=name, kind=kind: [
                    raw(name, s, word, 0, flags)
                    for flags in ((0, 1, 2, 99) if kind == "Write" else (0, 99))
                ],
            )
            yield (
                f"{name}: NULL, unknown, misaligned address",
                lambda name=name: [
                    raw(name, s, NULL, 0, 0),
                    raw(name, s, 0x1000, 0, 0),
                    raw(name, s, word + 2, 0, 0),
                ],
            )
    yield (
        "cuStreamBatchMemOp: of none, of 257, flags 1, NULL",
        lambda: [
            raw("cuStreamBatchMemOp", s, 0, (ctypes.c_uint64 * 6)(), 0),
            raw("cuStreamBatchMemOp", s, 257, (ctypes.c_uint64 * (6 * 257))(), 0),
            raw("cuStreamBatchMemOp", s, 0, (ctypes.c_uint64 * 6)(), 1),
            raw("cuStreamBatchMemOp", s, 1, NULL, 0),
        ],
    )


@group
def events() -> Probes:
    begin()
    s = stream()
    yield (
        "cuEventCreate with flags 1, 2, 3, 4, 6, 8, -1",
        lambda: [raw("cuEventCreate", place(), flags) for flags in (1, 2, 3, 4, 6, 8, -1)],
    )
    yield "cuEventCreate without a place", lambda: raw("cuEventCreate", NULL, 0)
    for name in ("cuEventQuery", "cuEventSynchronize", "cuEventDestroy"):
        yield f"{name} of NULL", lambda name=name: raw(name, NULL)
    yield (
        "cuEventQuery, cuEventSynchronize of one that was never recorded",
        lambda: [raw("cuEventQuery", event()), raw("cuEventSynchronize", event())],
    )
    yield (
        "cuEventRecord of NULL; on legacy, per-thread",
        lambda: [
            raw("cuEventRecord", NULL, s),
            raw("cuEventRecord", event(), LEGACY),
            raw("cuEventRecord", event(), PER_THREAD),
        ],
    )
    yield (
        "cuEventRecordWithFlags 1, 2",
        lambda: [raw("cuEventRecordWithFlags", event(), s, flags) for flags in (1, 2)],
    )

    def elapsed(first: int, second: int, records: int) -> int:
        made = [event(first), event(second)]
        for one in made[:records]:
            ok(cu.cuEventRecord(one, s))
        ok(cu.cuStreamSynchronize(s))
        return raw("cuEventElapsedTime", place(), *made)

    yield (
        "elapsed: both, neither, one recorded; without timing",
        lambda: [elapsed(0, 0, 2), elapsed(0, 0, 0), elapsed(0, 0, 1), elapsed(0, 2, 2)],
    )
    yield (
        "elapsed: NULL, without a place, of itself",
        lambda: [
            raw("cuEventElapsedTime", place(), NULL, event(0)),
            raw("cuEventElapsedTime", NULL, event(0), event(0)),
            (
                lambda e: [
                    code(cu.cuEventRecord(e, s)),
                    code(cu.cuEventSynchronize(e)),
                    raw("cuEventElapsedTime", place(), e, e),
                ]
            )(event(0)),
        ],
    )
    yield "cuEventDestroy while it is recorded in a capture", lambda: _destroyed_in_a_capture()


def _destroyed_in_a_capture() -> Any:
    own, recorded = stream(), event()
    ok(cu.cuStreamBeginCapture(own, cu.CUstreamCaptureMode(RELAXED)))
    found = [raw("cuEventRecord", recorded, own), raw("cuEventDestroy", recorded)]
    return [*found, raw("cuStreamEndCapture", own, place())]


@group
def graphs() -> Probes:
    begin()
    s = stream()
    empty = int(ok(cu.cuGraphCreate(0)))
    yield (
        "cuGraphCreate with flags 1; without a place",
        lambda: [raw("cuGraphCreate", place(), 1), raw("cuGraphCreate", NULL, 0)],
    )
    for name in ("cuGraphDestroy", "cuGraphExecDestroy"):
        yield f"{name} of NULL", lambda name=name: raw(name, NULL)
    yield (
        "cuGraphLaunch, cuGraphUpload of NULL",
        lambda: [raw("cuGraphLaunch", NULL, s), raw("cuGraphUpload", NULL, s)],
    )
    for flags in (0, 1, 2, 4, 8, 16, 1 << 20):
        yield (
            f"instantiate an empty graph with flags {flags}",
            lambda flags=flags: raw("cuGraphInstantiateWithFlags", place(), empty, flags),
        )
    yield (
        "instantiate NULL; without a place",
        lambda: [
            raw("cuGraphInstantiateWithFlags", place(), NULL, 0),
            raw("cuGraphInstantiateWithFlags", NULL, empty, 0),
        ],
    )
    yield (
        "an empty node: without a place, of NULL, on NULL",
        lambda: [
            raw("cuGraphAddEmptyNode", NULL, empty, NULL, 0),
            raw("cuGraphAddEmptyNode", place(), NULL, NULL, 0),
            raw("cuGraphAddEmptyNode", place(), empty, (ctypes.c_void_p * 1)(None), 1),
        ],
    )
    yield (
        "a conditional handle: flags 0, 1; of NULL",
        lambda: (
            [
                raw(
                    "cuGraphConditionalHandleCreate",
                    place(),
                    empty,
                    int(ok(cu.cuCtxGetCurrent())),
                    1,
                    flags,
                    version=12030,
                )
                for flags in (0, 1)
            ]
            + [raw("cuGraphConditionalHandleCreate", place(), NULL, NULL, 1, 0, version=12030)]
        ),
    )

    def nodes(*counts: int) -> Any:
        made = ok(cu.cuGraphCreate(0))
        for _ in range(3):
            ok(cu.cuGraphAddEmptyNode(made, [], 0))
        found = []
        for count in counts:
            room, out = ctypes.c_size_t(count), (ctypes.c_void_p * 8)()
            found.append(
                (
                    raw("cuGraphGetNodes", int(made), out, ctypes.byref(room)),
                    room.value,
                    sum(1 for one in out if one),
                )
            )
        return found

    yield "cuGraphGetNodes of three nodes, with room for 0, 2, 3, 5", lambda: nodes(0, 2, 3, 5)
    yield (
        "a fill node: of 0 bytes, elements of 3 bytes, NULL",
        lambda: [
            _fill_node(empty, width, size, address)
            for width, size, address in ((0, 1, None), (4, 3, None), (4, 1, 0))
        ],
    )


def _fill_node(graph: int, width: int, size: int, address: Any) -> int:
    parameters = cu.CUDA_MEMSET_NODE_PARAMS()
    parameters.dst = int(ok(cu.cuMemAlloc(MIB))) if address is None else address
    parameters.elementSize, parameters.width, parameters.height, parameters.value = (
        size,
        width,
        1,
        1,
    )
    return code(
        cu.cuGraphAddMemsetNode(cu.CUgraph(graph), [], 0, parameters, ok(cu.cuCtxGetCurrent()))
    )
