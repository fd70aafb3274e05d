"""The worker of mosec's server, which mosec finds by its name in processes of its own."""

from __future__ import annotations

from typing import Any

import mosec

from benchmarks import engine_servers


class Scorer(mosec.Worker):
    """Runs a batch."""

    def __init__(self) -> None:
        super().__init__()
        model = engine_servers.Model()
        stream = engine_servers.torch.cuda.Stream()
        self._replica = engine_servers.Replica(model, stream, captured=True)

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, float]]:
        """Called by mosec."""
        scores = self._replica.score([each["item"] for each in data])
        return [{"score": score} for score in scores]
