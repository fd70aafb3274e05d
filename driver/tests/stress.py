"""Many threads at once against the simulator, through ctypes alone: what the sanitizer builds run
(see sanitize.sh).

Every thread makes streams and events, enqueues kernels, copies, host functions, callbacks and
gates, waits across threads' streams, captures, launches graphs, frees and destroys, while another
thread breaks the driver in the middle of a fill, recovers it and frees what was being filled.
Nothing is asserted but that all ends, and that what graphs held is destroyed.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time

import nogpu as simulator

NAMES = (b"spin", b"saxpy", b"fill32", b"stamp", b"empty", b"trap")
PTX = (
    b".version 8.0\n.target sm_90\n" + b"".join(b".entry %s(){} " % name for name in NAMES) + b"\0"
)
LARGE = 4 << 20  # a fill of this takes long enough for a fault to come in the middle of it
HANDLE = ctypes.c_void_p
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def main(seconds: float, threads: int) -> None:
    simulator.install(devices=2, library=os.environ.get("NOGPU_LIBRARY"))
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    fired, things = [0, 0], [0, 0]

    def on_host(_: object) -> None:
        fired[0] += 1

    def on_callback(_: object, status: int, __: object) -> None:
        fired[1] += 1

    def on_destroy(_: object) -> None:
        things[1] += 1

    host, callback, destroy = HOST(on_host), CALLBACK(on_callback), HOST(on_destroy)
    contexts = [HANDLE(), HANDLE()]
    for device, context in enumerate(contexts):
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    shared_events: list[HANDLE] = []
    end = time.monotonic() + seconds

    def fly(
        dice: random.Random, streams: list[HANDLE], events: list[HANDLE], memory: HANDLE
    ) -> None:
        """A fork and join captured, with a thing that its graph holds, launched here and there,
        updated, dropped in any order.
        """
        graph, clone, executable, thing, node, scratch = (HANDLE() for _ in range(6))
        driver.cuStreamBeginCapture_v2(streams[0], 2)
        driver.cuLaunchHostFunc(streams[0], host, None)
        driver.cuEventRecord(events[0], streams[0])
        driver.cuStreamWaitEvent(streams[1], events[0], 0)
        driver.cuMemsetD8Async(memory, 3, ctypes.c_size_t(64), streams[1])
        driver.cuLaunchHostFunc(streams[1], host, None)
        if dice.randrange(2):  # a graph that allocates has no clone
            driver.cuMemAllocAsync(ctypes.byref(scratch), ctypes.c_size_t(4096), streams[1])
            driver.cuMemsetD8Async(scratch, 5, ctypes.c_size_t(4096), streams[1])
            driver.cuMemFreeAsync(scratch, streams[1])
        driver.cuEventRecordWithFlags(events[1], streams[1], 1)
        driver.cuEventRecord(events[0], streams[1])
        driver.cuStreamWaitEvent(streams[0], events[0], 0)
        driver.cuStreamEndCapture(streams[0], ctypes.byref(graph))
        if not graph:
            return
        made = driver.cuUserObjectCreate(ctypes.byref(thing), None, destroy, 1, 1) == 0
        if made and driver.cuGraphRetainUserObject(graph, thing, 1, 1) == 0:
            things[0] += 1
        driver.cuGraphClone(ctypes.byref(clone), graph)
        driver.cuGraphAddEmptyNode(ctypes.byref(node), clone, None, ctypes.c_size_t(0))
        driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        info = (ctypes.c_byte * 24)()
        for _ in range(dice.randrange(4)):
            driver.cuGraphLaunch(executable, dice.choice(streams))
            driver.cuGraphExecUpdate_v2(executable, dice.choice([graph, clone]), info)
        ends = [
            (driver.cuGraphDestroy, graph),
            (driver.cuGraphDestroy, clone),
            (driver.cuGraphExecDestroy, executable),
        ]
        dice.shuffle(ends)
        for end_it, handle in ends:
            while handle and end_it(handle) not in (0, 1):
                time.sleep(0.001)  # the driver is broken just now, and will recover

    def worker(number: int) -> None:
        dice = random.Random(number)
        driver.cuCtxSetCurrent(contexts[number % 2])
        module = HANDLE()
        driver.cuModuleLoadData(ctypes.byref(module), PTX)
        functions: dict[bytes, HANDLE] = {}
        for name in (b"spin", b"fill32", b"stamp", b"empty"):
            functions[name] = HANDLE()
            driver.cuModuleGetFunction(ctypes.byref(functions[name]), module, name)
        while time.monotonic() < end:
            streams = [HANDLE() for _ in range(4)]
            for stream in streams:
                driver.cuStreamCreateWithPriority(
                    ctypes.byref(stream), dice.randrange(2), -dice.randrange(8)
                )
            streams += [HANDLE(0), HANDLE(2)]
            pinned, memory = HANDLE(), HANDLE()
            driver.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(4096), 0)
            driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096))
            if not (pinned and memory):
                continue
            word = ctypes.c_uint32.from_address(pinned.value or 0)
            word.value = 0
            events = [HANDLE() for _ in range(3)]
            for event in events:
                driver.cuEventCreate(ctypes.byref(event), dice.choice([0, 1, 2]))
            shared_events.extend(events[:1])
            del shared_events[:-8]
            for _ in range(40):
                stream = dice.choice(streams)
                choice = dice.randrange(13)
                if choice == 0:
                    driver.cuStreamWaitValue32_v2(stream, pinned, 1, 0)
                elif choice == 1:
                    argument = ctypes.c_uint64(dice.randrange(200_000))
                    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
                    driver.cuLaunchKernel(
                        functions[b"spin"], 1, 1, 1, 1, 1, 1, 0, stream, parameters, None
                    )
                elif choice == 2:
                    values = (
                        ctypes.c_uint64(memory.value or 0),
                        ctypes.c_uint32(7),
                        ctypes.c_uint32(64),
                    )
                    parameters3 = (ctypes.c_void_p * 3)(
                        *[ctypes.addressof(value) for value in values]
                    )
                    driver.cuLaunchKernel(
                        functions[b"fill32"], 1, 1, 1, 1, 1, 1, 0, stream, parameters3, None
                    )
                elif choice == 3:
                    driver.cuLaunchHostFunc(stream, host, None)
                elif choice == 4:
                    driver.cuStreamAddCallback(stream, callback, None, 0)
                elif choice == 5:
                    driver.cuEventRecord(dice.choice(events), stream)
                elif choice == 6:
                    driver.cuStreamWaitEvent(stream, dice.choice(events + shared_events[-2:]), 0)
                elif choice == 7:
                    driver.cuEventQuery(dice.choice(events + shared_events[-2:]))
                    driver.cuStreamQuery(stream)
                elif choice == 8:
                    driver.cuMemsetD8Async(memory, 3, ctypes.c_size_t(1024), stream)
                elif choice == 9:
                    offset = HANDLE((pinned.value or 0) + 64)
                    driver.cuMemcpyDtoHAsync_v2(offset, memory, ctypes.c_size_t(512), stream)
                elif choice == 10:
                    late = HANDLE()
                    driver.cuMemAllocAsync(ctypes.byref(late), ctypes.c_size_t(256), stream)
                    driver.cuMemFreeAsync(late, stream)
                elif choice == 11:
                    status = ctypes.c_int()
                    driver.cuStreamIsCapturing(stream, ctypes.byref(status))
                    simulator.pending_work()
                elif dice.random() < 0.5:
                    fly(dice, streams, events, memory)
            word.value = 1
            if dice.random() < 0.5:
                driver.cuStreamSynchronize(dice.choice(streams))
                driver.cuEventSynchronize(dice.choice(events))
            if dice.random() < 0.2:
                driver.cuCtxSynchronize()
            for stream in streams[:4]:
                driver.cuStreamDestroy_v2(stream)
            for event in events:
                driver.cuEventDestroy_v2(event)
            if driver.cuMemFree_v2(memory) == 0 and driver.cuMemFreeHost(pinned) == 0:
                pass

    def breaker() -> None:
        dice = random.Random(-1)
        driver.cuCtxSetCurrent(contexts[0])
        stream = HANDLE()
        driver.cuStreamCreate(ctypes.byref(stream), 1)
        while time.monotonic() < end:
            time.sleep(0.05)
            memory = HANDLE()
            assert driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(LARGE)) == 0
            first = ctypes.c_uint32.from_address(memory.value or 0)
            first.value = 0
            assert driver.cuMemsetD32Async(memory, 3, ctypes.c_size_t(LARGE // 4), stream) == 0
            while first.value != 3:
                time.sleep(0)
            simulator.break_context(700)
            time.sleep(dice.choice([0, 0.005]))
            simulator.recover()
            assert driver.cuMemFree_v2(memory) == 0  # at once: the fill was under way at the fault
        driver.cuStreamDestroy_v2(stream)

    workers = [threading.Thread(target=worker, args=(number,)) for number in range(threads)]
    workers.append(threading.Thread(target=breaker))
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    simulator.recover()
    assert simulator.pending_work() == 0
    assert things[0] <= things[1], things  # one may have been made, and not been given to its graph
    launches = simulator.calls("cuLaunchKernel"), simulator.calls("cuGraphLaunch")
    print(
        f"stress: {fired[0]} host functions, {fired[1]} callbacks, {launches} launches of kernels "
        f"and graphs, {things[1]} things"
    )


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 3.0,
        int(sys.argv[2]) if len(sys.argv) > 2 else 6,
    )
