"""The server of the measure `torch`: a FastAPI application on uvicorn. `torch_server.py` starts it.

It is the process of `serving.py` with another application. `/wait/<way>` runs the model for one
request and awaits it in that way, and answers with its score. Each way is tried out before
the process listens. One that fails then answers each request with its error.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from time import perf_counter_ns, process_time_ns
from typing import Any

from benchmarks import serving
from benchmarks.torch_ways import WAYS, Kit, Way, item_of

TRIED = 32  # requests at once, which all are checked: twice as many as there are streams


class TorchSite(serving.Site):
    """The model as a FastAPI application.

    Raises:
        RuntimeError: torch sees no GPU.
    """

    def __init__(self, settings: dict[str, Any], library: Any) -> None:
        self._torch: Any = importlib.import_module("torch")
        fastapi = importlib.import_module("fastapi")
        if not self._torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU")
        self._ways = settings["ways"]
        self._kit = Kit(library, settings["streams"], settings["captured"])
        self.libraries = f", FastAPI {fastapi.__version__}, torch {self._torch.__version__}"

    async def application(self) -> Any:
        """Makes the ways, then tries them out: captures empty memory pools, which forwards fill."""
        made = {name: await self._new_way(name) for name in self._ways}
        return application({name: await self._tried(way) for name, way in made.items()})

    async def _new_way(self, name: str) -> Way:
        try:
            way, checked = await WAYS[name][1](self._kit), self._kit.checked
        except Exception as error:
            return _failing(error)

        async def answer(number: int) -> float:
            item = item_of(number)
            score: float = checked(item, await way(item))
            return score

        return answer

    @staticmethod
    async def _tried(way: Way) -> Way:
        found = await asyncio.gather(*map(way, range(TRIED)), return_exceptions=True)
        errors = [error for error in found if isinstance(error, BaseException)]
        return _failing(errors[0]) if errors else way

    def close(self) -> None:
        """Destroys every stream of aiostream, when nothing is pending."""
        self._kit.close()


def _failing(error: BaseException) -> Way:
    async def way(number: int) -> float:
        raise error

    return way


def application(ways: dict[str, Way]) -> Any:
    """The FastAPI application.

    Args:
        ways: What answers a request, by its name.
    """
    from fastapi import FastAPI, HTTPException

    app = FastAPI()
    counts = {"served": 0, "pings": 0}

    @app.get("/ping")
    async def ping() -> str:
        counts["pings"] += 1
        return "pong"

    @app.get("/usage")
    async def usage() -> dict[str, int]:
        return {"cpu_ns": process_time_ns(), "wall_ns": perf_counter_ns(), **counts}

    def add(name: str, way: Way) -> None:
        numbers = itertools.count()

        @app.get(serving.path_of(name))
        async def answer() -> dict[str, float]:
            try:
                score = await way(next(numbers))
            except Exception as error:
                raise HTTPException(500, f"{type(error).__name__}: {error}") from error
            counts["served"] += 1
            return {"score": score}

    for name, way in ways.items():
        add(name, way)
    return app


if __name__ == "__main__":
    serving.main(TorchSite)
