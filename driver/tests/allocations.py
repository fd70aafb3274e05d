"""Uses most of the simulator while its own allocations fail.

    python allocations.py once | for-good N | limit

`once` fails each allocation, one at a time. `for-good N` fails the N-th and all that follow.
`limit` uses memory until the system gives no more. `test_sim_allocations.py` preloads
`faulty_libc.c` for the first two.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path
from typing import Any

import nogpu as simulator

simulator.install(devices=2)
from simdriver import HOST, PTX, Gate, code, cu, objects, ok, raw, until  # noqa: E402
from simgraphs import RELAXED, copy_params, fill_params, host_params, kernel_params  # noqa: E402

ALLOCATION = 0  # in faulty_libc.c
OUT_OF_MEMORY = 2
VARIABLE = (
    b".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .u32 box = 7;\n" + PTX[44:]
)
nothing = HOST(lambda _: None)
libc = ctypes.CDLL(None)


class RefusedError(Exception):
    """A call has answered that there is no memory."""


def do(result: tuple[Any, ...]) -> Any:
    if code(result) == OUT_OF_MEMORY:
        raise RefusedError
    return ok(result)


def done(result: int) -> None:
    do((result,))


def scenario() -> None:
    """Makes and destroys every kind of object, of work and of node. Nothing may refuse to free."""
    with contextlib.ExitStack() as stack:

        def own(made: Any, destroy: Any) -> Any:
            stack.callback(lambda: ok(destroy(made)))
            return made

        streams = [own(do(cu.cuStreamCreate(1)), cu.cuStreamDestroy) for _ in range(3)]
        stack.callback(lambda: [ok(cu.cuStreamSynchronize(stream)) for stream in streams])
        first, second, third = streams
        memory = own(do(cu.cuMemAlloc(1 << 16)), cu.cuMemFree)
        word = own(do(cu.cuMemHostAlloc(64, 0)), cu.cuMemFreeHost)
        ctypes.c_uint32.from_address(int(word)).value = 1
        event = own(do(cu.cuEventCreate(0)), cu.cuEventDestroy)
        # --- work
        pageable = bytes(1 << 16)
        do(cu.cuMemcpyHtoDAsync(memory, pageable, len(pageable), first))
        do(cu.cuMemsetD8Async(memory, 1, 100, first))
        do(cu.cuMemsetD2D8Async(memory, 512, 1, 16, 8, second))
        do(cu.cuMemcpyDtoDAsync(memory, int(memory) + 512, 64, cu.CUstream(2)))
        do(cu.cuStreamWaitValue32(first, word, 1, 0))
        do(cu.cuStreamWriteValue32(first, word, 1, 0))
        do(cu.cuEventRecord(event, first))
        do(cu.cuStreamWaitEvent(second, event, 0))
        done(enqueue_host(int(second), native(nothing), None))
        done(add_callback(int(second), native(nothing), None, 0))
        pool = own(do(cu.cuMemPoolCreate(pool_properties())), cu.cuMemPoolDestroy)
        taken = do(cu.cuMemAllocFromPoolAsync(4096, pool, first))
        stack.callback(lambda: cu.cuMemFree(taken))
        # --- modules
        module = own(do(cu.cuModuleLoadData(VARIABLE)), cu.cuModuleUnload)
        kernel = do(cu.cuModuleGetFunction(module, b"empty"))
        do(cu.cuModuleGetGlobal(module, b"box"))
        library = own(do(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0)), cu.cuLibraryUnload)
        do(cu.cuLibraryGetKernel(library, b"empty"))
        do(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, first, ((), ()), 0))
        # --- a captured graph
        do(cu.cuStreamBeginCapture(third, RELAXED))
        try:
            do(cu.cuMemsetD8Async(memory, 1, 100, third))
            done(enqueue_host(int(third), native(nothing), None))
            do(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, third, ((), ()), 0))
        finally:
            captured = own(ok(cu.cuStreamEndCapture(third)), cu.cuGraphDestroy)
        # --- a built graph
        graph = own(do(cu.cuGraphCreate(0)), cu.cuGraphDestroy)
        context = ok(cu.cuCtxGetCurrent())
        empty = do(cu.cuGraphAddEmptyNode(graph, (), 0))
        do(cu.cuGraphAddHostNode(graph, (empty,), 1, host_params(nothing)))
        do(cu.cuGraphAddMemsetNode(graph, (empty,), 1, fill_params(memory, 1, 8), context))
        do(cu.cuGraphAddMemcpyNode(graph, (empty,), 1, copy_params(memory, memory, 8), context))
        do(cu.cuGraphAddKernelNode(graph, (empty,), 1, kernel_params(kernel)))
        do(cu.cuGraphAddChildGraphNode(graph, (empty,), 1, captured))
        do(cu.cuGraphAddEventRecordNode(graph, (), 0, event))
        do(cu.cuGraphAddEventWaitNode(graph, (), 0, event))
        thing = do(cu.cuUserObjectCreate(0, cu.CUhostFn(native(nothing)), 1, 1))
        try:
            do(cu.cuGraphRetainUserObject(graph, thing, 1, 0))
        finally:
            ok(cu.cuUserObjectRelease(thing, 1))
        own(do(cu.cuGraphClone(graph)), cu.cuGraphDestroy)
        executable = own(do(cu.cuGraphInstantiate(graph, 0)), cu.cuGraphExecDestroy)
        do(cu.cuGraphLaunch(executable, first))
        do(cu.cuGraphLaunch(executable, second))
        do(cu.cuGraphExecUpdate(executable, graph))
        do(cu.cuGraphGetNodes(graph, 64))


def native(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def pool_properties() -> Any:
    made = cu.CUmemPoolProps()
    made.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return made


def settled() -> dict[str, int]:
    until(lambda: simulator.pending_work() == 0)
    return objects()


def once() -> None:
    """Fails each allocation. Then the next use must succeed and leave nothing behind."""
    if not libc.faulty_watch(b"/nogpu/lib/"):
        raise RuntimeError("the simulator is not loaded")
    for _ in range(2):
        scenario()
    clean = settled()
    before = libc.faulty_count(ALLOCATION)
    scenario()
    settled()
    total = libc.faulty_count(ALLOCATION) - before
    refused = overcome = reached = 0
    for nth in range(1, total + 1):
        libc.faulty_fail(ALLOCATION, ctypes.c_long(nth))
        try:
            scenario()
            overcome += 1
        except RefusedError:
            refused += 1
        assert settled() == clean, (nth, settled(), clean)
        reached += libc.faulty_fail(ALLOCATION, ctypes.c_long(0))
    scenario()
    assert settled() == clean
    print(f"{reached} of {total} allocations failed: {refused} refused, {overcome} overcome")


def for_good(nth: int) -> None:
    """The N-th allocation fails, and all that follow. The process may end with a message."""
    libc.faulty_watch(b"/nogpu/lib/")
    scenario()
    settled()
    libc.faulty_fail_on(ALLOCATION, ctypes.c_long(nth))
    try:
        scenario()
    except RefusedError:
        print("refused")


def limit() -> None:
    """Small pieces of work until the system gives no more memory. Then all goes on."""
    write = raw(
        "cuStreamWriteValue32",
        11070,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_uint32,
        ctypes.c_uint,
    )
    # The simulator's threads use memory for the first time here, and glibc maps 64 MiB for each. A
    # limit that the test read before that would be exceeded from the start.
    scenario()
    settled()
    gate, stream, event = Gate(), ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0))
    gate.hold(stream)
    handle, word = int(stream), gate.address + 32
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20), hard))
    enqueued = 0
    while (answer := write(handle, word, 1, 0)) == 0:
        enqueued += 1
    large = code(cu.cuMemcpyHtoDAsync(gate.address, bytes(8), 8, stream))
    query = code(cu.cuEventQuery(event))
    gate.open()
    end = code(cu.cuStreamSynchronize(stream))
    after = write(handle, word, 1, 0)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert (answer, large, query, end, after) == (2, 2, 0, 0, 0), (answer, large, query, end, after)
    assert enqueued > 10000
    ok(cu.cuStreamSynchronize(stream))


ok(cu.cuInit(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
POINTER = ctypes.c_void_p
enqueue_host = raw("cuLaunchHostFunc", 10000, POINTER, POINTER, POINTER)
add_callback = raw("cuStreamAddCallback", 5000, POINTER, POINTER, POINTER, ctypes.c_uint)

if __name__ == "__main__":
    {"once": once, "for-good": lambda: for_good(int(sys.argv[2])), "limit": limit}[sys.argv[1]]()
