"""BentoML's services, which its processes import by this module's name.

BentoML makes batches of what one service asks of another, so the model has a service of its own.
"""

from __future__ import annotations

from typing import Any

import bentoml

from benchmarks import engine_servers

OPTIONS: Any = {"traffic": {"timeout": 60}, "logging": {"access": {"enabled": False}}}


@bentoml.service(**OPTIONS, threads=1)  # one batch at a time has the replica
class Scorer:
    """Runs a batch."""

    def __init__(self) -> None:
        model = engine_servers.Model()
        stream = engine_servers.torch.cuda.Stream()
        self._replica = engine_servers.Replica(model, stream, captured=True)

    @bentoml.api(batchable=True, max_batch_size=engine_servers.MOST, max_latency_ms=1000)
    def score(self, items: list[int]) -> list[float]:
        """Runs a batch."""
        return self._replica.score(items)


@bentoml.service(**OPTIONS)
class Front:
    """Reads requests, and writes answers."""

    scorer = bentoml.depends(Scorer)

    @bentoml.api
    async def predict(self, item: int) -> dict[str, float]:
        """Called by BentoML."""
        return {"score": (await self.scorer.to_async.score([item]))[0]}
