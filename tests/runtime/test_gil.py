"""P3: nothing on the driver's threads wants the GIL, so Python can neither stall the GPU nor
deadlock with the driver.
"""

from __future__ import annotations

import pytest

from support import USUAL, cases_on_loops, succeed

# A thread keeps the GIL while it waits for the whole context. If code of the library needed the GIL
# on a driver thread, or in a driver call of another thread, this script would hang, and `timeout`
# would end it.
KEEPS_THE_GIL = """
    import ctypes, os, threading, time
    import anyio
    from aiostream import Stream, statistics
    from support import run_on, spin
    {adversary}
    streams = [Stream() for _ in range(4)]
    for stream in streams:
        spin(stream, 0)
        stream.synchronize()
    driver = ctypes.PyDLL("libcuda.so.1")

    def synchronize():
        with streams[0].context.as_current():
            began = time.monotonic()
            code = driver.cuCtxSynchronize()
            took = time.monotonic() - began
            print(f"cuCtxSynchronize with the GIL: {{code}}, {{took * 1000:.0f}} ms")
            assert code == 0
            returned.set()

    returned = threading.Event()

    async def main():
        futures = []
        for stream in streams:
            spin(stream, 0.2)
            futures += [stream.completion_future() for _ in range(5)]
            futures += [stream.checked_completion_future() for _ in range(5)]
            futures.append(stream.enqueue_async(lambda stream: None))
        async with anyio.create_task_group() as group:
            for stream in streams:
                group.start_soon(stream.synchronize_async)
            await anyio.lowlevel.checkpoint()
            {where}
            for future in futures:
                await future
        assert returned.wait(20)
        count = statistics()
        assert count.balanced and count.futures.pending == 0 and count.futures.done >= 44, count

    run_on({kind!r}, main)
"""
LOCKS = """
    from aiostream import simulator
    simulator.install()
    simulator.adversary(driver_lock=True)
"""
with_a_driver_that_locks = pytest.mark.simulator_only(
    "whether a driver holds a lock round host functions cannot be chosen"
)


@cases_on_loops(
    "thread, driver",
    [
        ("of the loop", "as it is"),
        ("another", "as it is"),
        pytest.param("another", "locks", marks=with_a_driver_that_locks),
    ],
)
def test_a_thread_that_keeps_the_gil_across_a_blocking_call(
    driver_kind: str, thread: str, driver: str, loop_kind: str
) -> None:
    where = (
        "threading.Thread(target=synchronize).start()" if thread == "another" else "synchronize()"
    )
    adversary = LOCKS if driver == "locks" else ""
    script = KEEPS_THE_GIL.format(adversary=adversary, where=where, kind=loop_kind)
    print(succeed(driver_kind, script, forked=USUAL))


# ------------------------------------------------------------------------------ enqueues that block

FULL_STREAM = """
    import asyncio, threading, time
    from aiostream import Stream
    from support import Gate, spin

    async def main(call, *arguments):
        entering, progress, filled = threading.Event(), 0, 0
        gate, stream = Gate(), Stream()
        spin(stream, 0)
        stream.synchronize()
        gate.hold(stream)

        def open_later():
            # Needs the GIL thousands of times before it lets the enqueue go on.
            nonlocal progress
            entering.wait(30)
            deadline = time.monotonic() + 0.1
            while time.monotonic() < deadline or progress <= 1000:
                progress += 1
            gate.open()

        def fill():
            nonlocal filled
            for _ in range(1022):
                spin(stream, 0)
                filled += 1

        threads = [threading.Thread(target=function) for function in (open_later, fill)]
        for thread in threads:
            thread.start()
        before = -1
        # or until a launch blocks already, on a GPU that takes fewer than an H200 does
        while before < filled < 1022:
            before = filled
            time.sleep(0.3)
        began = time.monotonic()
        entering.set()
        future = getattr(stream, call)(*arguments)
        blocked = time.monotonic() - began
        await (future or stream.synchronize_async())
        for thread in threads:
            thread.join()
        stream.close()
        print(f"{{call}} was blocked for {{blocked * 1000:.0f}} ms; "
              f"another thread made {{progress}} steps meanwhile")
        return blocked > 0.05

    for call in (["completion_future"], ["checked_completion_future"], ["launch_host_func", int],
            ["add_callback", id]):
        # On a busy machine the stream may not be full yet, or the gate be open already.
        assert any(asyncio.run(main(*call)) for _ in range(5)) or not {must_block}, call
"""


def test_an_enqueue_that_blocks_on_a_full_stream_lets_other_threads_go_on(driver_kind: str) -> None:
    script = FULL_STREAM.format(must_block=driver_kind == "simulator")
    print(succeed(driver_kind, script, forked=USUAL))


LOCKED_HOST_FUNCTION = """
    import asyncio, sys, time
    from aiostream import Stream, simulator
    from support import Gate
    simulator.install()
    simulator.adversary(driver_lock=True)
    stream, other, ran = Stream(), Stream(), []
    gate = Gate()
    gate.hold(other)
    other.launch_host_func(ran.append, 1)

    def function(_):
        # The host function begins now, and waits for the GIL, which this thread does not give up.
        gate.open()
        ends = time.monotonic() + 0.1
        while time.monotonic() < ends:
            pass
        assert not ran

    async def main():
        sys.setswitchinterval(100)
        await stream.enqueue_async(function)
        await other.synchronize_async()
        assert ran

    asyncio.run(main())
    stream.close()
    other.close()
"""


@pytest.mark.needs_gil("a host function waits for it")
@with_a_driver_that_locks
def test_end_of_a_function_while_the_driver_holds_a_lock_for_a_host_function(
    driver_kind: str,
) -> None:
    """The context is popped without the GIL, for which the host function waits."""
    succeed(driver_kind, LOCKED_HOST_FUNCTION, timeout=20, forked=USUAL)
