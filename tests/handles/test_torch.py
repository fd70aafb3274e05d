"""P18 with the real libraries on a GPU: torch, cupy, numba and cuda.core share streams with us,
both ways, and survive.
"""

from __future__ import annotations

from typing import Any

import pytest

from support import run_script

PREAMBLE = """
import asyncio, gc, os, sys, time
import anyio
import aiostream
from aiostream import Stream, StreamPool, drain, statistics
import torch
"""
END = """
run(main)
gc.collect()
counts = statistics()
assert counts.balanced, counts
print("survived")
"""
RUN = {
    "asyncio": "def run(main): asyncio.run(main())\n",
    "trio": "import trio\ndef run(main): trio.run(main)\n",
}


@pytest.fixture
def survives(driver_kind: str) -> Any:
    """Runs a program with torch in a process of its own."""
    if driver_kind != "gpu":
        pytest.skip("the real libraries need a GPU")
    pytest.importorskip("torch")

    def run(program: str, loop_kind: str = "asyncio", code: int = 0) -> list[str]:
        text = PREAMBLE + RUN[loop_kind] + program + END
        done = run_script("gpu", text, timeout=100, warnings="ignore")
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        if code:
            return done.stderr.splitlines()
        lines = done.stdout.splitlines()
        assert lines[-1] == "survived", lines
        return lines[:-1]

    return run


SHARED = {"given": "Stream()", "borrowed": "Stream.borrow(torch.cuda.Stream())"}
# The last one as torch's own documents share a stream.
WAYS = {
    **{way: (made, "stream.torch()") for way, made in SHARED.items()},
    "raw handle": (SHARED["given"], "torch.cuda.ExternalStream(stream.handle)"),
}


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_is_freed_after_the_stream_was_closed(survives: Any, way: str) -> None:
    """Pinned memory that the stream has written, and a tensor that was recorded on it."""
    made, theirs = WAYS[way]
    survives(f"""
async def main():
    handles = set()
    for turn in range(20):
        device = torch.ones(1 << 22, device="cuda")
        host = torch.empty(1 << 22, pin_memory=True)
        torch.cuda.synchronize()
        async with {made} as stream:
            theirs = {theirs}
            handles.add(theirs.cuda_stream)
            with torch.cuda.stream(theirs):
                product = device * turn
                host.copy_(product, non_blocking=True)
            device.record_stream(theirs)
            await stream.synchronize_async()
        assert host[3].item() == turn
        del host, device, stream, theirs
        for _ in range(5):
            torch.empty(1 << 22, pin_memory=True)
        for _ in range(50):
            torch.empty(1 << 22, device="cuda")
        torch.cuda.synchronize()
        assert product.sum().item() == turn << 22
        del product
        torch.cuda.empty_cache()
    if {way != "borrowed"}:
        assert statistics().handles.retired == 20
        assert len(handles) == 1, handles
""")


@pytest.mark.parametrize("loop_kind", RUN)
@pytest.mark.parametrize("call", ["enqueue_async", "enqueue_in_thread"])
@pytest.mark.parametrize("way", SHARED)
def test_cancelled_requests_do_not_spoil_others(
    survives: Any, way: str, call: str, loop_kind: str
) -> None:
    """Buffers of requests that gave up are used again only when the GPU has passed them: each
    answer is the right one.
    """
    program = f"""
async def main():
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda().eval()
    rows = [torch.full((64, 1024), float(k)).pin_memory() for k in range(7)]
    with torch.inference_mode():
        right = [model(each.cuda()).cpu() for each in rows]
    made = [{SHARED[way]} for _ in range(4)]
    for stream in made:
        stream.torch()
    answers = gave_up = 0

    def forward(stream, number):
        with torch.inference_mode():
            given = rows[number].clone().pin_memory()
            answer = torch.empty(64, 1024, pin_memory=True)
            answer.copy_(model(given.cuda(non_blocking=True)), non_blocking=True)
        return answer

    async with StreamPool.borrow(made) as pool:
        async def request(k):
            nonlocal answers, gave_up
            with anyio.move_on_after(0.0005 * (k % 5) if k % 2 else 60) as scope:
                async with pool.stream() as stream:
                    answer = await stream.{call}(forward, k % 7)
                assert torch.allclose(answer, right[k % 7], atol=1e-4), k
                answers += 1
            gave_up += scope.cancelled_caught

        async with anyio.create_task_group() as group:
            for k in range(200):
                group.start_soon(request, k)
        assert await drain(20)
    assert answers >= 100 and answers + gave_up == 200, (answers, gave_up)
    for stream in made:
        stream.close()
    counts = statistics()
    assert counts.points.leaked == 0 and counts.handles.retired == ({way == "given"}) * 4, counts
"""
    survives(program, loop_kind)


def test_pinned_memory_is_freed_while_others_wait_and_torch_captures(survives: Any) -> None:
    survives("""
async def main():
    stop = False
    model = torch.nn.Linear(512, 512).cuda()
    rows = torch.randn(64, 512, device="cuda")
    done = 0

    async def busy():
        nonlocal done
        async with Stream() as stream:
            stream.torch()
            with torch.inference_mode():
                while not stop:
                    def launch(_):
                        host = torch.empty(64, 512, pin_memory=True)
                        host.copy_(model(rows), non_blocking=True)
                    await stream.enqueue_async(launch)
                    done += 1

    captured = 0
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(busy)
        await anyio.sleep(0.3)
        mine = torch.cuda.Stream()
        awaited = Stream.borrow(mine)
        for _ in range(10):
            graph = torch.cuda.CUDAGraph()
            with torch.inference_mode(), torch.cuda.graph(graph, stream=mine,
                    capture_error_mode="thread_local"):
                product = model(rows) * 2
            await awaited.enqueue_async(lambda _: graph.replay())
            captured += 1
            await anyio.sleep(0.01)
        stop = True
    assert captured == 10 and done > 50, (captured, done)
""")


def test_graph_that_torch_has_captured_is_launched_and_awaited(survives: Any) -> None:
    survives("""
async def main():
    rows = torch.ones(1024, device="cuda")
    mine = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=mine, capture_error_mode="thread_local"):
        rows += 1
    stream = Stream.borrow(mine)
    executable = aiostream.Graph.borrow(graph).instantiate()
    for _ in range(3):
        await executable.launch_async(stream)
    assert rows.sum().item() == 4 * 1024
    executable.close()
""")


def test_current_streams_of_torch_and_cupy(survives: Any) -> None:
    pytest.importorskip("cupy")
    survives("""
import cupy
async def main():
    before = torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr
    async with Stream() as stream:
        stream.torch()
        stream.cupy()
        def look(_):
            return torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr
        assert await stream.enqueue_async(look) == (stream.handle,) * 2
        assert await stream.enqueue_in_thread(look) == (stream.handle,) * 2
        with stream.as_current():
            assert look(None) == (stream.handle,) * 2
            x = cupy.arange(1000) * 2
        await stream.synchronize_async()
        assert int(x.sum()) == 999000
        try:
            await stream.enqueue_async(lambda _: 1 / 0)
        except ZeroDivisionError:
            pass
    assert (torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr) == before
    borrowed = Stream.borrow(cupy.cuda.Stream(non_blocking=True))
    total = await borrowed.enqueue_async(lambda _: cupy.arange(100).sum())
    assert int(total) == 4950
""")


def test_numba_and_cuda_core_use_a_stream_after_it_was_closed(survives: Any) -> None:
    pytest.importorskip("numba.cuda")
    pytest.importorskip("cuda.core")
    survives("""
from numba import cuda
async def main():
    async with Stream() as stream:
        theirs, core = stream.numba(), stream.core()
        array = cuda.device_array(10, stream=theirs)
        await stream.synchronize_async()
    theirs.synchronize()
    core.sync()
    del array
""")


def test_pool_of_torch_notices_that_streams_come_again(survives: Any) -> None:
    survives("""
async def main():
    StreamPool.borrow(torch.cuda.Stream() for _ in range(32)).close()
    try:
        StreamPool.borrow(torch.cuda.Stream() for _ in range(33))
    except ValueError as error:
        assert "are one" in str(error), error
    else:
        raise AssertionError("33 streams of torch were taken for 33")
""")


def test_device_by_its_torch_name(survives: Any) -> None:
    survives("""
async def main():
    for name in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
        async with Stream(name) as stream:
            assert int(stream.device) == 0
""")


@pytest.mark.parametrize("reported_by", ["listener", "health", "exit"])
def test_fault_of_torch_that_nothing_awaits(survives: Any, reported_by: str) -> None:
    """P19: a device-side assertion, while the loop only sleeps.

    The listener is called within 1.2 seconds.
    """
    ways = {
        "listener": """
    seen = []
    aiostream.on_context_failed(lambda error: seen.append((time.monotonic() - begin, error.code)))
    await fault()
    with anyio.fail_after(5):
        while not seen:
            await anyio.sleep(0.01)
    print(*seen[0])
""",
        "health": """
    await fault()
    with anyio.fail_after(5):
        while aiostream.health() is None:
            await anyio.sleep(0.01)
    print(time.monotonic() - begin, aiostream.health().code)
""",
        "exit": """
    aiostream.exit_on_context_failed(71)
    await fault()
    await anyio.sleep(5)
""",
    }
    program = f"""
begin = 0.0
async def main():
    async with Stream() as stream:
        await stream.synchronize_async()
    rows = torch.zeros(8, device="cuda")
    index = torch.tensor([1 << 40], device="cuda")
    torch.cuda.synchronize()
    async def fault():
        global begin
        begin = time.monotonic()
        rows[index]
{ways[reported_by]}
    sys.stdout.flush()
    print("survived", flush=True)
    os._exit(0)
"""
    if reported_by == "exit":
        assert "the CUDA context is lost" in "\n".join(survives(program, code=71))
        return
    seconds, code = survives(program)[0].split()
    assert int(code) == 710
    assert float(seconds) < 1.2
