"""Requests per second, latency and CPU of a FastAPI server, by its way to await a torch model.

The processes, the load and the windows are those of `server.py`. What is served is in
`torch_ways.py`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks import torch_ways
from benchmarks.server import Load, Server

STREAMS = 16  # of each way
PEERS = tuple(torch_ways.WAYS)
START = 20.0  # seconds in which the server imports torch, makes the model and tries out the ways
NEEDED = ("torch", "fastapi", "uvicorn")


@dataclass(frozen=True)
class TorchLoad(Load):
    """A closed loop of requests for the model.

    Attributes:
        captured: Whether the model is a graph.
    """

    captured: bool = False

    @property
    def name(self) -> str:
        return f"{'captured' if self.captured else 'eager'}, {self.connections} clients"


EAGER, CAPTURED = TorchLoad(32), TorchLoad(32, captured=True)
LOADS = {each.name: each for each in (EAGER, CAPTURED)}


def missing() -> str | None:
    """Why there can be no torch server here, or `None`."""
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not lacking:
        return None
    names = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'}"
    return f"{names} not installed: pip install torch --group bench"


@dataclass(frozen=True, kw_only=True)
class TorchServer(Server):
    """One load on every way to await the model.

    The trial is long because torch gives each pair of a thread and a stream a workspace for cuBLAS,
    and allocating one stops the GPU for a moment. The windows are to see few of those.
    """

    window: float = 0.7
    trial: float = 1.0
    streams: int = STREAMS

    name = "torch"
    noun = "torch server"
    module = "torch_serving"
    QUICK: ClassVar[dict[str, Any]] = {"rounds": 1, "window": 0.15, "warm": 0.02, "trial": 0.0}

    def seconds(self) -> float:
        return super().seconds() + len(self.loops) * (START - 6)

    def missing(self) -> str | None:
        return missing()

    def settings(self) -> dict[str, Any]:
        return {"captured": getattr(self.load, "captured", False)}

    def load_of(self, number: int, window: float) -> dict[str, Any]:
        """The model is always the same."""
        return {**super().load_of(number, window), "lengths": []}
