"""The model of the measure `torch`, and the ways to await it in a FastAPI handler.

`torch_serving.py` serves them. torch is imported by the caller and passed on, because it is
optional.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

Way = Callable[[int], Awaitable[int]]
"""Answers the request of a number."""
NewWay = Callable[["Kit"], Awaitable[Way]]

# The model scores 1,024 candidates of 64 features each, as a ranking service does. Its 24 residual
# blocks launch five kernels each. With the first and the last layer and the cast that makes 123
# launches, about as many as an encoder of 12 layers has. So an eager forward is bound by its
# Python, as those of many models are: about 1 ms (with tiny layers on a CPU it took 0.8 ms). The
# GPU has 400 GFLOP to do, in bfloat16: with 256 candidates a captured graph would keep the loop
# busy and not the GPU.
ROWS, FEATURES, WIDTH, BLOCKS = 1024, 64, 1024, 24
# Different inputs: a prime, so that a stream's memory never holds the same one twice in a row.
REQUESTS = 61
CHECK_EVERY = 50  # requests: so often an answer is compared with the right one
# How near two scores must be. bfloat16 differs by 0.02 from float32, and two inputs by up to 2.6.
CLOSE = 0.1
WARM = 3  # forwards on a stream before its capture, as torch's manual asks


class Model:
    """A residual multilayer perceptron with random weights, on the GPU."""

    def __init__(self, torch: Any) -> None:
        nn, on = torch.nn, {"device": "cuda", "dtype": torch.bfloat16}
        torch.manual_seed(0)
        self._first = nn.Linear(FEATURES, WIDTH, **on)
        self._blocks = [self._new_block(nn, on) for _ in range(BLOCKS)]
        self._last = nn.Linear(WIDTH, 1, **on)

    @staticmethod
    def _new_block(nn: Any, on: dict[str, Any]) -> Any:
        wide, narrow = nn.Linear(WIDTH, 4 * WIDTH, **on), nn.Linear(4 * WIDTH, WIDTH, **on)
        return nn.Sequential(nn.LayerNorm(WIDTH, **on), wide, nn.GELU(), narrow)

    def __call__(self, rows: Any) -> Any:
        """Launches the forward on torch's current stream."""
        hidden = self._first(rows)
        for block in self._blocks:
            hidden = hidden + block(hidden)
        return self._last(hidden).float()


class Slot:
    """A stream, and the pinned memory of the one request that uses it.

    Memory that is allocated while the stream is torch's current one belongs to this stream in
    torch's allocator. So what a forward leaves behind is used again by this stream only, behind the
    work that may still read it.
    """

    rows_on_gpu: Any  # these three only where there is a graph
    scores_on_gpu: Any
    graph: Any

    def __init__(self, torch: Any, stream: Any) -> None:
        self.stream = stream
        self.rows = torch.empty((ROWS, FEATURES), dtype=torch.bfloat16, pin_memory=True)
        self.scores = torch.empty((ROWS, 1), pin_memory=True)


class Service:
    """The model, the requests and their right answers."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._model = Model(torch)
        self._requests = [torch.randn((ROWS, FEATURES)).to(torch.bfloat16) for _ in range(REQUESTS)]
        with torch.inference_mode():
            self._expected = [self._model(rows.to("cuda")).to("cpu") for rows in self._requests]

    def launch(self, slot: Slot, number: int) -> None:
        """Launches the whole request on torch's current stream: copy, model, copy."""
        with self.torch.inference_mode():
            slot.rows.copy_(self._requests[number % REQUESTS])
            scores = self._model(slot.rows.to("cuda", non_blocking=True))
            slot.scores.copy_(scores, non_blocking=True)

    def launch_on_its_stream(self, slot: Slot, number: int) -> None:
        """`launch` on the slot's own stream."""
        with self.torch.cuda.stream(slot.stream):
            self.launch(slot, number)

    def replay(self, slot: Slot, number: int) -> None:
        """The same by the slot's graph, on the slot's own stream."""
        with self.torch.inference_mode(), self.torch.cuda.stream(slot.stream):
            slot.rows.copy_(self._requests[number % REQUESTS])
            slot.rows_on_gpu.copy_(slot.rows, non_blocking=True)
            slot.graph.replay()
            slot.scores.copy_(slot.scores_on_gpu, non_blocking=True)

    def capture(self, slot: Slot) -> None:
        """Captures the model for one slot.

        Each slot's graph has memory of its own, because the graphs of several slots run at the same
        time. It is captured on the stream on which it is replayed. cuBLAS keeps a workspace for
        each stream, so graphs that were captured on one stream would share it.
        """
        torch = self.torch
        slot.rows_on_gpu = self._requests[0].to("cuda")
        torch.cuda.synchronize()
        with torch.inference_mode():
            with torch.cuda.stream(slot.stream):
                for _ in range(WARM):
                    self._model(slot.rows_on_gpu)
            slot.graph = torch.cuda.CUDAGraph()
            # In the mode "global" a call of any other thread could break the capture.
            with torch.cuda.graph(
                slot.graph, stream=slot.stream, capture_error_mode="thread_local"
            ):
                slot.scores_on_gpu = self._model(slot.rows_on_gpu)
        torch.cuda.synchronize()

    def answer(self, slot: Slot, number: int) -> int:
        """The best candidate. Call it when the stream is done, while the request has the slot.

        Raises:
            RuntimeError: The scores are wrong. One request in `CHECK_EVERY` is checked.
        """
        if number % CHECK_EVERY == 0:
            right = self._expected[number % REQUESTS]
            if not self.torch.allclose(slot.scores, right, atol=CLOSE):
                raise RuntimeError(
                    f"the scores of request {number} are wrong: read too early, "
                    "or those of another request"
                )
        return int(slot.scores.argmax())


class Kit:
    """What the ways are made of.

    Args:
        library: The module `aiostream`.
        torch: The module.
        streams: How many streams each way has.
    """

    def __init__(self, library: Any, torch: Any, streams: int) -> None:
        self.service, self._library, self._streams = Service(torch), library, streams
        # Only one way is in use at a time, so those with torch's own streams share them.
        self.free: asyncio.Queue[Slot] = asyncio.Queue()
        for _ in range(streams):
            self.free.put_nowait(Slot(torch, torch.cuda.Stream()))
        self._pools: list[Any] = []

    async def pool(self) -> tuple[Any, dict[int, Slot]]:
        """A `StreamPool`, and a slot for each of its streams by the stream's handle."""
        pool, torch = self._library.StreamPool(self._streams), self.service.torch
        self._pools.append(pool)
        lent = [await pool.acquire() for _ in range(self._streams)]
        # Each call of torch() makes an object, so they are made here and not in each request.
        slots = {stream.handle: Slot(torch, stream.torch()) for stream in lent}
        for stream in lent:
            pool.release(stream)
        return pool, slots

    def close(self) -> None:
        """Destroys the pools, when the GPU is done."""
        self.service.torch.cuda.synchronize()
        while self._pools:
            self._pools.pop().close()


# -------------------------------------------------------------------------------- with torch alone


async def _blocking(kit: Kit) -> Way:
    service, current_stream = kit.service, kit.service.torch.cuda.current_stream
    slot = Slot(service.torch, current_stream())

    async def way(number: int) -> int:
        service.launch(slot, number)
        current_stream().synchronize()
        return service.answer(slot, number)

    return way


def _on_a_slot(wait: Callable[[Service, Slot, int], Awaitable[None]]) -> NewWay:
    """Launches and waits on a stream of torch's own."""

    async def new_way(kit: Kit) -> Way:
        service, free = kit.service, kit.free

        async def way(number: int) -> int:
            slot = await free.get()
            try:
                await wait(service, slot, number)
                return service.answer(slot, number)
            finally:
                free.put_nowait(slot)

        return way

    return new_way


async def _to_thread_all(service: Service, slot: Slot, number: int) -> None:
    def serve() -> None:
        service.launch_on_its_stream(slot, number)
        slot.stream.synchronize()

    await asyncio.to_thread(serve)


async def _launch_and_to_thread(service: Service, slot: Slot, number: int) -> None:
    service.launch_on_its_stream(slot, number)
    await asyncio.to_thread(slot.stream.synchronize)


async def _launch_and_query(service: Service, slot: Slot, number: int) -> None:
    service.launch_on_its_stream(slot, number)
    event = slot.stream.record_event()
    while not event.query():  # noqa: ASYNC110  # this is what is measured
        await asyncio.sleep(0.001)


# -- with aiostream


def _on_a_pool(*, threads: int = 0, graph: bool = False) -> NewWay:
    """Launches the model or its graph on a stream of a pool, in the loop or in so many threads."""

    async def new_way(kit: Kit) -> Way:
        service, (pool, slots) = kit.service, await kit.pool()
        own = service.replay if graph else service.launch
        for slot in slots.values() if graph else ():
            service.capture(slot)
        limiter = {"limiter": anyio.CapacityLimiter(threads)} if threads else {}

        def launch(stream: Any, slot: Slot, number: int) -> None:
            own(slot, number)

        async def way(number: int) -> int:
            async with pool.stream() as stream:
                slot = slots[stream.handle]
                enqueue = stream.enqueue_in_thread if threads else stream.enqueue_async
                await enqueue(launch, slot, number, **limiter)
                return service.answer(slot, number)

        return way

    return new_way


BLOCKING, TO_THREAD = "blocking", "to_thread all"
LAUNCH, GRAPH = "aiostream launch", "aiostream graph"
THREADS, THREAD = "aiostream threads", "aiostream one thread"
_MODEL = "of the model, on a stream of a StreamPool"
_GRAPH = "enqueue_async of a captured graph's replay, on a stream of a StreamPool"
WAYS: dict[str, tuple[str, NewWay]] = {
    LAUNCH: (f"enqueue_async {_MODEL}", _on_a_pool()),
    GRAPH: (_GRAPH, _on_a_pool(graph=True)),
    THREADS: (f"enqueue_in_thread {_MODEL}", _on_a_pool(threads=40)),
    THREAD: ("the same with a limiter of one thread", _on_a_pool(threads=1)),
    BLOCKING: ("the model and current_stream().synchronize() in the handler", _blocking),
    TO_THREAD: ("to_thread(the model and stream.synchronize())", _on_a_slot(_to_thread_all)),
    "launch + to_thread": (
        "the model in the loop, to_thread(stream.synchronize)",
        _on_a_slot(_launch_and_to_thread),
    ),
    "launch + query": (
        "the model in the loop, event.query() and sleep(0.001)",
        _on_a_slot(_launch_and_query),
    ),
}
