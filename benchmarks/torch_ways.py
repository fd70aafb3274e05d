"""The ways to await one torch model in a FastAPI handler, for the measure `torch`.

`torch_serving.py` serves them. The model is that of the engines (`engine_servers.py`), eager or
captured. Each answer is compared with the right one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks import engine_servers
from benchmarks.engine_servers import ITEMS, MOST, Model, Replica

Way = Callable[[int], Awaitable[float]]
"""The score of an item."""

CLOSE = 0.1  # how near two scores must be: bfloat16, and kernels that depend on the batch's size


class Kit:
    """The model, and what the ways are made of.

    Args:
        library: The module `aiostream`.
        streams: How many streams each way has. `Batches` has those of the engines.
        captured: Whether the model is a graph for each stream and size.
    """

    def __init__(self, library: Any, streams: int, captured: bool) -> None:
        self.model, self.captured, self.library = Model(), captured, library
        self._expected = self.model.expected()
        # Only one way is in use at a time, so all share the streams and their memory.
        self.replicas = [self._replica((1,)) for _ in range(streams)]
        self.free: asyncio.Queue[Replica] = asyncio.Queue()
        for replica in self.replicas:
            self.free.put_nowait(replica)
        self._pools: list[Any] = []

    def _replica(self, sizes: tuple[int, ...]) -> Replica:
        stream = engine_servers.torch.cuda.Stream()
        return Replica(self.model, stream, self.captured, sizes)

    def pool(self, replicas: list[Replica]) -> Any:
        """A `StreamPool` of the streams of replicas, each with its own."""
        known = {each.stream.cuda_stream: each for each in replicas}
        pool = self.library.StreamPool.borrow(
            [each.stream for each in replicas], each=lambda stream: known[stream.handle]
        )
        self._pools.append(pool)
        return pool

    def checked(self, item: int, score: float) -> float:
        """The score.

        Raises:
            RuntimeError: It is wrong.
        """
        if abs(score - self._expected[item]) > CLOSE * max(1.0, abs(self._expected[item])):
            raise RuntimeError(f"the score of item {item} is wrong: read too early, or another's")
        return score

    async def batches(self, in_thread: bool) -> Way:
        """What awaits an item of `serving.Batches`."""
        from aiostream import serving

        pool = self.pool(
            [self._replica(engine_servers.SIZES) for _ in range(engine_servers.STREAMS)]
        )
        options: dict[str, Any] = {"most": MOST, "in_thread": in_thread}
        return await serving.Batches(pool, Replica.halves, **options).__aenter__()

    def close(self) -> None:
        """Gives the streams back, when the GPU is done."""
        engine_servers.torch.cuda.synchronize()
        while self._pools:
            self._pools.pop().close()


NewWay = Callable[[Kit], Awaitable[Way]]


def _batches(in_thread: bool) -> NewWay:
    return lambda kit: kit.batches(in_thread)


async def _pool_run(kit: Kit) -> Way:
    run = kit.pool(kit.replicas).run

    async def way(item: int) -> float:
        scores: list[float] = await run(Replica.halves, [item])
        return scores[0]

    return way


def _on_a_replica(wait: Callable[[Kit], Callable[[Replica, int], Awaitable[float]]]) -> NewWay:
    """A way that takes a free stream for each request."""

    async def new_way(kit: Kit) -> Way:
        free, score = kit.free, wait(kit)

        async def way(item: int) -> float:
            replica = await free.get()
            try:
                return await score(replica, item)
            finally:
                free.put_nowait(replica)

        return way

    return new_way


def _run(kit: Kit, name: str) -> Callable[[Replica, int], Awaitable[float]]:
    streams = {replica: kit.library.Stream.borrow(replica.stream) for replica in kit.replicas}
    runs = {replica: getattr(stream, name) for replica, stream in streams.items()}

    async def score(replica: Replica, item: int) -> float:
        return float((await runs[replica](replica.launch, [item])).read(1)[0])

    return score


def _polling(kit: Kit) -> Callable[[Replica, int], Awaitable[float]]:
    on = engine_servers.torch.cuda.stream

    async def score(replica: Replica, item: int) -> float:
        with on(replica.stream):
            sized = replica.launch([item])
        event = replica.stream.record_event()
        while not event.query():  # noqa: ASYNC110  # this is what is measured
            await asyncio.sleep(0.001)
        return sized.read(1)[0]

    return score


def _to_thread(kit: Kit, threads: int) -> Callable[[Replica, int], Awaitable[float]]:
    executor = ThreadPoolExecutor(threads)

    async def score(replica: Replica, item: int) -> float:
        loop = asyncio.get_running_loop()
        return (await loop.run_in_executor(executor, replica.score, [item]))[0]

    return score


def _blocking(kit: Kit) -> Callable[[Replica, int], Awaitable[float]]:
    async def score(replica: Replica, item: int) -> float:
        return replica.score([item])[0]

    return score


WAYS: dict[str, tuple[str, NewWay]] = {
    "batches": ("serving.Batches on three streams, at most 32 items", _batches(False)),
    "batches in threads": ("the same with in_thread=True", _batches(True)),
    "pool run": ("StreamPool.run of a function in two halves", _pool_run),
    "run": ("Stream.run", _on_a_replica(partial(_run, name="run"))),
    "run_in_thread": ("Stream.run_in_thread", _on_a_replica(partial(_run, name="run_in_thread"))),
    "sleep 1 ms": ("the model in the loop, event.query and sleep(0.001)", _on_a_replica(_polling)),
    "to_thread 40": (
        "the model and stream.synchronize in 40 threads",
        _on_a_replica(partial(_to_thread, threads=40)),
    ),
    "to_thread 256": ("the same in 256", _on_a_replica(partial(_to_thread, threads=256))),
    "blocking": ("the model and stream.synchronize in the handler", _on_a_replica(_blocking)),
}


def item_of(number: int) -> int:
    """Which item a request asks for: another than its neighbours."""
    return 37 * number % ITEMS
