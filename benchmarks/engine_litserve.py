"""The worker of LitServe's server, which a process of its own unpickles by its module and name."""

from __future__ import annotations

import litserve

from benchmarks import engine_servers


class Graphs(litserve.LitAPI):
    """Runs a batch as one graph."""

    captured = True

    def setup(self, device: object) -> None:
        """Loads the model."""
        model = engine_servers.Model()
        stream = engine_servers.torch.cuda.Stream()
        self._replica = engine_servers.Replica(model, stream, self.captured)
        self._replica.score([0])

    def decode_request(self, request: dict[str, int]) -> int:
        """Reads a request."""
        return request["item"]

    def batch(self, items: list[int]) -> list[int]:
        """Takes the items as they are."""
        return list(items)

    def predict(self, items: list[int]) -> list[float]:
        """Runs a batch."""
        return self._replica.score(items)

    def unbatch(self, scores: list[float]) -> list[float]:
        """Gives the scores as they are."""
        return scores

    def encode_response(self, score: float) -> dict[str, float]:
        """Writes an answer."""
        return {"score": score}


class Eager(Graphs):
    """The same without graphs."""

    captured = False
