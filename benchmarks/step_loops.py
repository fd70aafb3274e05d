"""The steps of `proof --steps` without a server, in a process of their own.

    python -m benchmarks.step_loops SETTINGS

`steps.py` starts it. Each JSON request is a round of one way, or asks how long a step takes the GPU
alone.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

from benchmarks import child, lanes, loops
from benchmarks.measure import Row
from benchmarks.step_model import SIZES, Model, Settings, counted, expected, model_of
from benchmarks.step_ways import WAYS, Way, read_all


async def measured(model: Model, way: Way, readers: int, steps: int, python_ms: float) -> Row:
    """The figures of a round: so many tasks that each read a token of each step.

    Raises:
        RuntimeError: A token was wrong, or is missing.
    """
    prompts = range(readers)
    async with way(model, python_ms / 1e3) as answer:
        await read_all(answer, prompts, 3)
        launched, began = int(model.counts.sum()), time.perf_counter()
        found = await read_all(answer, prompts, steps)
        took, launched = time.perf_counter() - began, int(model.counts.sum()) - launched
    for prompt, tokens in zip(prompts, found, strict=True):
        if tokens != expected(prompt, steps):
            raise RuntimeError(f"the tokens of prompt {prompt} are wrong: {tokens[:5]}...")
    return {"step_ms": 1e3 * took / launched, "tokens_per_second": readers * steps / took}


def begin() -> tuple[Any, Any]:
    """Loads the model, and returns what the process says, and what answers."""
    settings = counted(Settings(**json.loads(sys.argv[1])))
    loop = next(name for name in loops.LOOPS if not loops.missing(name))
    model = model_of(settings)
    model.alone(SIZES[0])  # the clocks of a GPU that was idle rise

    def answer(request: Row) -> Row:
        with lanes.quiet():
            if "way" not in request:
                return {str(size): model.alone(size) for size in SIZES}
            way, numbers = WAYS[request["way"]], (request["readers"], request["steps"])

            async def round_(_: object) -> Row:
                return await measured(model, way, *numbers, request["python_ms"])

            found: Row = loops.run(loop, round_)
            return found

    return {"settings": dataclasses.asdict(settings), "loop": loop}, answer


if __name__ == "__main__":
    child.serve(begin)
