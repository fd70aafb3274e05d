"""What `aiostream.blocking` finds of the idioms of other libraries, as a table.

    python -m benchmarks.blocking_idioms  # on a GPU, with the libraries that are installed
    AIOSTREAM_SIMULATOR=1 python -m benchmarks.blocking_idioms  # what runs on the simulator

Each idiom runs once unwatched, so that what it needs is loaded, and then once watched, behind work
of some milliseconds on the GPU. The exit code is 1 if an idiom was found that does not block, or
was not found although it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiostream import blocking

MS = 20
COST = """
#include <time.h>
double cost(int (*call)(void *), void *stream, long n) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (long i = 0; i < n; i++) call(stream);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n;
}
"""


@dataclass(frozen=True)
class Idiom:
    """One line of a program.

    Attributes:
        blocks: Whether it waits for the GPU. `None`: that depends on the library's version.
        before: Work on the GPU, which runs before it.
    """

    library: str
    text: str
    blocks: bool | None
    run: Callable[[], object]
    before: Callable[[], object]


def of_torch() -> Iterator[Idiom]:
    """Idioms of torch."""
    import torch

    def busy() -> None:
        torch.cuda._sleep(MS * 1_500_000)

    stream, event = torch.cuda.current_stream(), torch.cuda.Event()
    other = torch.cuda.Stream()
    x = torch.rand(512, 512, device="cuda")
    one, mask = x[0, 0], x > 0.5
    host, pinned = torch.rand(512, 512), torch.rand(512, 512).pin_memory()
    large = torch.rand(4096, 4096)
    where: dict[bool | None, dict[str, Callable[[], object]]] = {
        True: {
            "tensor.item()": lambda: one.item(),
            "float(tensor)": lambda: float(one),
            "tensor.cpu()": lambda: x.cpu(),
            "tensor.tolist()": lambda: x[0].tolist(),
            "tensor.cpu().numpy()": lambda: x.cpu().numpy(),
            "print(tensor)": lambda: str(x),
            "if tensor:": lambda: bool(one > 0),
            "tensor.nonzero()": lambda: x.nonzero(),
            "tensor[mask]": lambda: x[mask],
            "torch.unique(tensor)": lambda: torch.unique(x),
            "torch.equal(a, b)": lambda: torch.equal(x, x + 0),
            "torch.cuda.synchronize()": lambda: torch.cuda.synchronize(),
            "stream.synchronize()": lambda: stream.synchronize(),
            "event.synchronize()": lambda: (event.record(), event.synchronize()),
            "host.to('cuda')": lambda: host.to("cuda"),
            "pinned.to('cuda')": lambda: pinned.to("cuda"),
            "torch.tensor([...], device='cuda')": lambda: torch.tensor([1.0, 2.0], device="cuda"),
            "tensor.to('cpu')": lambda: x.to("cpu"),
        },
        None: {
            "large.to('cuda', non_blocking=True)": lambda: large.to("cuda", non_blocking=True),
            "torch.cuda.empty_cache()": lambda: torch.cuda.empty_cache(),
            "tensor.to('cpu', non_blocking=True)": lambda: x.to("cpu", non_blocking=True),
        },
        False: {
            "tensor @ tensor": lambda: x @ x,
            "torch.where(mask, a, b)": lambda: torch.where(mask, x, x),
            "tensor.masked_fill(mask, 0)": lambda: x.masked_fill(mask, 0),
            "torch.empty(..., device='cuda')": lambda: torch.empty(512, 512, device="cuda"),
            "pinned.to('cuda', non_blocking=True)": lambda: pinned.to("cuda", non_blocking=True),
            "pinned.copy_(tensor, non_blocking=True)": lambda: pinned.copy_(x, non_blocking=True),
            "event.record(); event.query()": lambda: (event.record(), event.query()),
            "other.wait_stream(stream)": lambda: other.wait_stream(stream),
            "tensor.argmax(), stays on the GPU": lambda: x.argmax(),
        },
    }
    for blocks, idioms in where.items():
        for text, run in idioms.items():
            yield Idiom("torch", text, blocks, run, busy)


def of_torch_less_known() -> Iterator[Idiom]:
    """Idioms of torch that a reviewer has chosen who had not seen the code."""
    import torch
    from torch.nn import functional

    def busy() -> None:
        torch.cuda._sleep(MS * 1_500_000)

    cuda = torch.device("cuda")
    x, y = torch.randn(1024, device=cuda), torch.rand(1024, device=cuda)
    rows = torch.randn(64, 64, device=cuda)
    definite = rows @ rows.T + 64 * torch.eye(64, device=cuda)
    counts = torch.full((64,), 2, device=cuda)
    labels, negative = torch.arange(64, device=cuda) % 10, x < 0
    index = torch.full((), 3, device=cuda)
    scale, other = torch.full((), 0.5, device=cuda), torch.full((), 0.7, device=cuda)
    probabilities = torch.softmax(rows, dim=-1)
    model = torch.nn.Linear(64, 64).cuda()
    on_host = {name: each.cpu() for name, each in model.state_dict().items()}
    pageable, target = torch.empty(1024), torch.empty(1024, device=cuda)
    repeat = rows.repeat_interleave

    def assign() -> None:
        x[negative] = 0.0

    where: dict[bool, dict[str, Callable[[], object]]] = {
        True: {
            "rows.repeat_interleave(counts)": lambda: repeat(counts, dim=0),
            "one_hot(labels)": lambda: functional.one_hot(labels),
            "torch.bincount(labels, minlength=16)": lambda: torch.bincount(labels, minlength=16),
            "torch.histc(x, bins=16)": lambda: torch.histc(x, bins=16),
            "torch.masked_select(x, mask)": lambda: torch.masked_select(x, negative),
            "x[[0, 3, 5]]": lambda: x[[0, 3, 5]],
            "rows[index], an index of no dimension": lambda: rows[index],
            "x.add(y, alpha=tensor)": lambda: x.add(y, alpha=scale),
            "3 in labels": lambda: 3 in labels,
            "max(tensor, tensor), Python's": lambda: max(scale, other),
            "torch.allclose(a, b)": lambda: torch.allclose(x, y),
            "torch.normal(mean, std)": lambda: torch.normal(x, y),
            "torch.linalg.inv(rows)": lambda: torch.linalg.inv(definite),
            "model.load_state_dict(of the host)": lambda: model.load_state_dict(on_host),
            "pageable.copy_(x, non_blocking=True)": lambda: pageable.copy_(x, non_blocking=True),
        },
        False: {
            "repeat_interleave(..., output_size=128)": lambda: repeat(
                counts, dim=0, output_size=128
            ),
            "one_hot(labels, num_classes=10)": lambda: functional.one_hot(labels, 10),
            "torch.histc(x, bins=16, min=-4, max=4)": lambda: torch.histc(x, 16, -4, 4),
            "x[mask] = 0.0": assign,
            "rows.index_select(0, labels)": lambda: rows.index_select(0, labels),
            "x.mul(tensor).clamp(max=tensor)": lambda: x.mul(scale).clamp(max=scale),
            "torch.multinomial(probabilities, 1)": lambda: torch.multinomial(probabilities, 1),
            "torch.linalg.cholesky_ex(rows)": lambda: torch.linalg.cholesky_ex(definite),
            "torch.quantile(x, 0.9)": lambda: torch.quantile(x, 0.9),
            "copy_(4 KB pageable, non_blocking=True)": lambda: target.copy_(
                pageable, non_blocking=True
            ),
            "torch.cuda.mem_get_info()": lambda: torch.cuda.mem_get_info(),
        },
    }
    for blocks, idioms in where.items():
        for text, run in idioms.items():
            yield Idiom("torch", text, blocks, run, busy)


def of_cupy() -> Iterator[Idiom]:
    """Idioms of cupy."""
    import cupy
    import numpy

    kernel = cupy.RawKernel(SPIN, "wait")
    x = cupy.random.rand(512, 512)
    numbers, mask = cupy.arange(512) % 7, x > 2
    host = numpy.ones((512, 512))
    pinned = cupy.cuda.alloc_pinned_memory(host.nbytes)
    out = numpy.frombuffer(pinned, host.dtype, host.size).reshape(host.shape)

    def busy() -> None:
        kernel((1,), (1,), (cupy.int64(MS * 1_000_000),))

    def assign() -> None:
        x[mask] = 0

    rows: list[tuple[str, bool | None, Callable[[], object]]] = [
        ("array.get()", True, lambda: x.get()),
        ("float(array.sum())", True, lambda: float(x.sum())),
        ("cupy.asnumpy(array)", True, lambda: cupy.asnumpy(x)),
        ("print(array)", True, lambda: str(x[:2])),
        ("Stream.null.synchronize()", True, lambda: cupy.cuda.Stream.null.synchronize()),
        ("Device().synchronize()", True, lambda: cupy.cuda.Device().synchronize()),
        ("cupy.nonzero(array)", True, lambda: cupy.nonzero(x)),
        # From here to the next comment a reviewer has chosen them who had not seen the code.
        ("cupy.unique(numbers)", True, lambda: cupy.unique(numbers)),
        ("cupy.bincount(numbers)", True, lambda: cupy.bincount(numbers)),
        ("cupy.nanmax(array)", True, lambda: cupy.nanmax(x)),
        ("array[mask] = 0", True, assign),
        ("cupy.linalg.norm(array)", False, lambda: cupy.linalg.norm(x)),
        ("cupy.fft.rfft(array)", False, lambda: cupy.fft.rfft(x)),
        # The rest are the developers'.
        ("cupy.asarray(host)", None, lambda: cupy.asarray(host)),
        ("array + array", False, lambda: x + x),
        ("array.get(out=pinned, blocking=False)", False, lambda: x.get(out=out, blocking=False)),
    ]
    for text, blocks, run in rows:
        yield Idiom("cupy", text, blocks, run, busy)


SPIN = """
extern "C" __global__ void wait(long long ns) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - began < ns);
}
"""


def of_numba() -> Iterator[Idiom]:
    """Idioms of numba."""
    import numpy
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def add(a: Any) -> None:
        at = cuda.grid(1)
        if at < a.size:
            a[at] += 1

    @cuda.jit  # type: ignore[untyped-decorator]
    def wait(a: Any, times: int) -> None:
        for _ in range(times):
            a[0] = a[0] * 1.0000001 + 1

    x, held = cuda.to_device(numpy.ones(1024)), cuda.to_device(numpy.ones(1))
    host, stream = numpy.ones(1024), cuda.stream()

    def busy() -> None:
        wait[1, 1](held, 1_000_000)

    rows: list[tuple[str, bool | None, Callable[[], object]]] = [
        ("cuda.synchronize()", True, lambda: cuda.synchronize()),
        ("array.copy_to_host()", True, lambda: x.copy_to_host()),
        ("cuda.to_device(host)", True, lambda: cuda.to_device(host)),
        ("stream.synchronize()", True, lambda: stream.synchronize()),
        ("kernel[blocks, threads](array)", False, lambda: add[8, 128](x)),
    ]
    for text, blocks, run in rows:
        yield Idiom("numba", text, blocks, run, busy)


def of_bindings() -> Iterator[Idiom]:
    """Calls of the driver's bindings, and of this library."""
    from cuda.bindings import driver as cuda

    import aiostream
    from aiostream.testing import check, spin

    held = aiostream.Stream()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    size = 1 << 20
    device = check(cuda.cuMemAlloc(size))
    pinned = int(check(cuda.cuMemHostAlloc(size, 0)))
    host = bytearray(size)
    event = check(cuda.cuEventCreate(0))
    stream, to = cuda.CUstream(held.handle), cuda.CUdeviceptr

    def busy() -> None:
        spin(held, MS / 1000)

    def legacy() -> None:  # on the default stream, for which synchronous copies wait
        spin(aiostream.Stream.legacy(), MS / 1000)

    async def turn() -> None:
        await held

    rows: list[tuple[str, bool | None, Callable[[], object], Callable[[], object]]] = [
        ("cuStreamSynchronize", True, lambda: cuda.cuStreamSynchronize(stream), busy),
        ("cuCtxSynchronize", True, lambda: cuda.cuCtxSynchronize(), busy),
        (
            "cuEventSynchronize",
            True,
            lambda: (cuda.cuEventRecord(event, stream), cuda.cuEventSynchronize(event)),
            busy,
        ),
        ("cuMemcpyDtoH", True, lambda: cuda.cuMemcpyDtoH(host, device, size), legacy),
        ("cuMemcpyHtoD", True, lambda: cuda.cuMemcpyHtoD(device, host, size), legacy),
        ("cuMemFree", None, lambda: cuda.cuMemFree(check(cuda.cuMemAlloc(size))), busy),
        (
            "cuMemcpyDtoHAsync, pageable",
            None,
            lambda: cuda.cuMemcpyDtoHAsync(host, device, size, stream),
            busy,
        ),
        (
            "cuMemcpyDtoHAsync, pinned",
            False,
            lambda: cuda.cuMemcpyDtoHAsync(pinned, device, size, stream),
            busy,
        ),
        (
            "cuMemsetD8Async",
            False,
            lambda: cuda.cuMemsetD8Async(to(int(device)), 0, size, stream),
            busy,
        ),
        (
            "cuEventRecord, cuEventQuery",
            False,
            lambda: (cuda.cuEventRecord(event, stream), cuda.cuEventQuery(event)),
            busy,
        ),
        ("cuStreamQuery", False, lambda: cuda.cuStreamQuery(stream), busy),
        ("aiostream: stream.synchronize()", True, lambda: held.synchronize(), busy),
        ("aiostream: await stream", False, turn, busy),
    ]
    for text, blocks, run, before in rows:
        yield Idiom("bindings", text, blocks, run, before)


def of_runtime() -> Iterator[Idiom]:
    """Calls of the runtime's bindings."""
    from cuda.bindings import runtime

    import aiostream
    from aiostream.testing import check, spin

    check_first(runtime.cudaFree(0))
    size, kinds = 1 << 20, runtime.cudaMemcpyKind
    device = check(runtime.cudaMalloc(size))
    host = bytearray(size)
    stream = aiostream.Stream.legacy()

    def busy() -> None:
        spin(stream, MS / 1000)

    to_host = kinds.cudaMemcpyDeviceToHost
    rows: list[tuple[str, bool | None, Callable[[], object]]] = [
        ("cudaDeviceSynchronize", True, lambda: runtime.cudaDeviceSynchronize()),
        ("cudaStreamSynchronize", True, lambda: runtime.cudaStreamSynchronize(0)),
        ("cudaMemcpy to the host", True, lambda: runtime.cudaMemcpy(host, device, size, to_host)),
        ("cudaMemsetAsync", False, lambda: runtime.cudaMemsetAsync(device, 0, size, 0)),
    ]
    for text, blocks, run in rows:
        yield Idiom("runtime", text, blocks, run, busy)


def check_first(answer: tuple[Any, ...]) -> None:
    """Raises if the runtime does not work here."""
    if int(answer[0]) != 0:
        raise RuntimeError(f"the runtime answers {answer[0]}")


def of_core() -> Iterator[Idiom]:
    """Idioms of cuda.core."""
    from cuda.core import Device, Stream

    import aiostream
    from aiostream.testing import spin

    device = Device(0)
    device.set_current()
    ours = aiostream.Stream()
    stream = Stream.from_handle(ours.handle)

    def busy() -> None:
        spin(ours, MS / 1000)

    rows: list[tuple[str, bool | None, Callable[[], object]]] = [
        ("stream.sync()", True, lambda: stream.sync()),
        ("event.sync()", True, lambda: stream.record().sync()),
        ("stream.record()", False, lambda: stream.record()),
    ]
    if not os.environ.get("AIOSTREAM_SIMULATOR"):  # a call of the runtime
        rows.insert(0, ("device.sync()", True, lambda: device.sync()))
    for text, blocks, run in rows:
        yield Idiom("cuda.core", text, blocks, run, busy)


LIBRARIES = (
    of_bindings,
    of_core,
    of_runtime,
    of_torch,
    of_torch_less_known,
    of_cupy,
    of_numba,
)


async def found_of(idiom: Idiom) -> list[blocking.BlockingCall]:
    """Runs an idiom in a task of its own, once unwatched, and once watched."""

    async def body() -> None:
        done = idiom.run()
        if asyncio.iscoroutine(done):
            await done

    await body()
    idiom.before()
    with blocking.watch() as found:
        await asyncio.create_task(body(), name=idiom.text)
    return found


async def table() -> int:
    """Prints the table. Returns how many rows are wrong."""
    wrong = 0
    print(f"{'library':9} {'idiom':40} {'blocks':7} found")
    for library in LIBRARIES:
        name = library.__name__.removeprefix("of_")
        try:
            idioms = list(library())
        except Exception as error:  # not installed, or it needs a GPU
            print(f"{name:9} left out: {type(error).__name__}: {str(error).splitlines()[0][:70]}")
            continue
        for idiom in idioms:
            try:
                found = await found_of(idiom)
            except Exception as error:
                wrong += 1
                text = str(error).splitlines()[0][:70]
                print(f"{idiom.library:9} {idiom.text:40} RAISED {type(error).__name__}: {text}")
                continue
            expected = {True: "yes", False: "no", None: "may"}[idiom.blocks]
            verdict = ""
            if idiom.blocks is not None and idiom.blocks != bool(found):
                wrong, verdict = wrong + 1, "   <-- WRONG"
            elif any(call.task != idiom.text for call in found):
                wrong, verdict = wrong + 1, "   <-- WRONG TASK"
            said = ", ".join(f"{call.call} {call.seconds * 1e3:.2f} ms" for call in found) or "no"
            print(f"{idiom.library:9} {idiom.text:40} {expected:7} {said}{verdict}")
    print(f"\n{wrong} rows are wrong")
    return wrong


def print_cost() -> None:
    """What a wrapped call takes more: the fastest of 200 rounds, of `cuStreamSynchronize`."""
    if shutil.which("gcc") is None:
        print("no gcc, so the cost of a call was not measured")
        return
    import aiostream

    handle = ctypes.c_void_p(aiostream.Stream().into_raw())
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "cost.c"), Path(folder, "cost.so")
        source.write_text(COST)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", path, source], check=True)
        cost = ctypes.CDLL(str(path)).cost
    cost.restype = ctypes.c_double
    forwarding = ctypes.CDLL("libcuda.so.1")
    real = ctypes.CDLL(real_driver())
    ways = {
        "the real driver": (real, None),
        "off": (forwarding, None),
        "watched": (forwarding, 30.0),
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(200):
        for way, (library, threshold) in ways.items():
            address = ctypes.cast(library.cuStreamSynchronize, ctypes.c_void_p)
            watch = (
                contextlib.nullcontext()
                if threshold is None
                else blocking.watch(threshold=threshold)
            )
            with watch:
                least[way] = min(least[way], cost(address, handle, 1000))
    print(
        "ns for each cuStreamSynchronize of an idle stream:",
        {k: round(v, 1) for k, v in least.items()},
    )


def real_driver() -> str:
    """The path of the driver that the calls are passed on to."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(("libcuda.so", "_libcuda.")):
            return path
    raise RuntimeError("no driver is loaded")


def print_exports() -> None:
    """The functions that only the real driver exports, which `dlsym` does not find."""
    if shutil.which("nm") is None:
        print("no nm, so the exports were not compared")
        return

    def exports(path: str) -> set[str]:
        done = subprocess.run(
            ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
        )
        return {
            line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if " T " in line
        }

    ours = next(
        line.split(maxsplit=5)[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/_forward." in line
    )
    missing = sorted(
        name for name in exports(real_driver()) - exports(ours) if name.startswith("cu")
    )
    print(f"{len(missing)} exports of {real_driver()} are not forwarded: {' '.join(missing)}")


def main() -> int:
    """Prints everything."""
    blocking.install("count")()  # before the first library
    wrong = asyncio.run(table())
    print_cost()
    print_exports()
    print(f"python {sys.version.split()[0]}, driver {real_driver()}")
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(main())
