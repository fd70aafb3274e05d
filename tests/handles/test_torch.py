"""P18 with the real libraries on a GPU: torch, cupy, numba and cuda.core share streams with us,
both ways, and survive.
"""

from __future__ import annotations

from typing import Any

import pytest

from support import run_script

PREAMBLE = """
import asyncio, gc, sys, time
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

    def run(program: str, loop_kind: str = "asyncio") -> list[str]:
        done = run_script(
            "gpu", PREAMBLE + RUN[loop_kind] + program + END, timeout=100, warnings="ignore"
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        lines = done.stdout.splitlines()
        assert lines[-1] == "survived", lines
        return lines[:-1]

    return run


SHARED = {"given": "Stream()", "borrowed": "Stream.borrow(torch.cuda.Stream())"}


@pytest.mark.parametrize("way", SHARED)
def test_pinned_memory_that_is_freed_after_the_stream_was_closed(survives: Any, way: str) -> None:
    survives(
        f"""
async def main():
    device = torch.ones(1 << 22, device="cuda")
    host = torch.empty(1 << 22, pin_memory=True)
    async with {SHARED[way]} as stream:
        stream.torch()
        with stream.as_current():
            host.copy_(device * 2, non_blocking=True)
        await stream.synchronize_async()
    assert host[3].item() == 2
    del host
    for _ in range(5):
        torch.empty(1 << 22, pin_memory=True)
    torch.cuda.synchronize()
"""
    )


@pytest.mark.parametrize("way", SHARED)
def test_recorded_tensor_that_is_freed_after_the_stream_was_closed(survives: Any, way: str) -> None:
    survives(
        f"""
async def main():
    device = torch.ones(1 << 22, device="cuda")
    async with {SHARED[way]} as stream:
        theirs = stream.torch()
        with torch.cuda.stream(theirs):
            product = device * 2
        device.record_stream(theirs)
        await stream.synchronize_async()
    del device
    for _ in range(50):
        torch.empty(1 << 22, device="cuda")
    torch.cuda.synchronize()
    assert product.sum().item() == 2 << 22
    del product
    torch.cuda.empty_cache()
"""
    )


OF_A_HANDLE = "torch.cuda.ExternalStream(stream.handle)"


def test_pinned_memory_that_was_used_on_a_raw_handle_and_is_freed_later(survives: Any) -> None:
    """As torch's own documents share a stream: by its handle."""
    survives(
        f"""
async def main():
    device = torch.ones(1 << 22, device="cuda")
    for turn in range(20):
        host = torch.empty(1 << 22, pin_memory=True)
        async with Stream() as stream:
            with torch.cuda.stream({OF_A_HANDLE}):
                host.copy_(device * turn, non_blocking=True)
            await stream.synchronize_async()
        assert host[3].item() == turn
        del host, stream
        for _ in range(5):
            torch.empty(1 << 22, pin_memory=True)
        torch.cuda.synchronize()
    assert statistics().handles.retired == 20
"""
    )


def test_tensor_that_was_recorded_on_a_raw_handle_and_is_freed_later(survives: Any) -> None:
    survives(
        f"""
async def main():
    handles = set()
    for turn in range(20):
        device = torch.ones(1 << 22, device="cuda")
        torch.cuda.synchronize()
        async with Stream() as stream:
            theirs = {OF_A_HANDLE}
            handles.add(theirs.cuda_stream)
            with torch.cuda.stream(theirs):
                product = device * turn
            device.record_stream(theirs)
            await stream.synchronize_async()
        del device, stream, theirs
        for _ in range(50):
            torch.empty(1 << 22, device="cuda")
        torch.cuda.synchronize()
        assert product.sum().item() == turn << 22
        del product
        torch.cuda.empty_cache()
    assert len(handles) == 1, handles
"""
    )


@pytest.mark.parametrize("loop_kind", RUN)
@pytest.mark.parametrize("call", ["enqueue_async", "enqueue_in_thread"])
@pytest.mark.parametrize("way", SHARED)
def test_cancelled_requests_do_not_spoil_others(
    survives: Any, way: str, call: str, loop_kind: str
) -> None:
    """Buffers of requests that gave up are used again only when the GPU has passed them: each
    answer is the right one.
    """
    survives(
        f"""
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
""",
        loop_kind,
    )


def test_pinned_memory_is_freed_while_others_wait_and_torch_captures(survives: Any) -> None:
    survives(
        """
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
"""
    )


def test_graph_that_torch_has_captured_is_launched_and_awaited(survives: Any) -> None:
    survives(
        """
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
"""
    )


def test_current_streams_of_torch_and_cupy(survives: Any) -> None:
    pytest.importorskip("cupy")
    survives(
        """
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
"""
    )


def test_numba_and_cuda_core_use_a_stream_after_it_was_closed(survives: Any) -> None:
    pytest.importorskip("numba.cuda")
    pytest.importorskip("cuda.core")
    survives(
        """
from numba import cuda
async def main():
    async with Stream() as stream:
        theirs, core = stream.numba(), stream.core()
        array = cuda.device_array(10, stream=theirs)
        await stream.synchronize_async()
    theirs.synchronize()
    core.sync()
    del array
"""
    )


def test_pool_of_torch_notices_that_streams_come_again(survives: Any) -> None:
    survives(
        """
async def main():
    StreamPool.borrow(torch.cuda.Stream() for _ in range(32)).close()
    try:
        StreamPool.borrow(torch.cuda.Stream() for _ in range(33))
    except ValueError as error:
        assert "are one" in str(error), error
    else:
        raise AssertionError("33 streams of torch were taken for 33")
"""
    )


def test_device_by_its_torch_name(survives: Any) -> None:
    survives(
        """
async def main():
    for name in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
        async with Stream(name) as stream:
            assert int(stream.device) == 0
"""
    )


@pytest.mark.parametrize("told_by", ["listener", "health", "exit"])
def test_fault_of_torch_that_nothing_awaits(survives: Any, driver_kind: str, told_by: str) -> None:
    """P19: a device-side assertion, while the loop only sleeps.

    The listener is told within 1.2 seconds.
    """
    ways = {
        "listener": """
    told = []
    aiostream.on_context_failed(lambda error: told.append((time.monotonic() - begin, error.code)))
    await fault()
    with anyio.fail_after(5):
        while not told:
            await anyio.sleep(0.01)
    print(*told[0])
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
{ways[told_by]}
    sys.stdout.flush()
    import os
    print("survived", flush=True)
    os._exit(0)
"""
    if told_by == "exit":
        survives  # noqa: B018  # skips without a GPU
        done = run_script(
            "gpu", PREAMBLE + RUN["asyncio"] + program + END, timeout=100, warnings="ignore"
        )
        assert done.returncode == 71, f"exit code {done.returncode}\n{done.stderr}"
        assert "the CUDA context is lost" in done.stderr
        return
    seconds, code = survives(program)[0].split()
    assert int(code) == 710
    assert float(seconds) < 1.2
