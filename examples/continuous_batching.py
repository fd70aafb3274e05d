"""Continuous batching: tokens of a decoder, whose requests join and leave at each step.

    pip install . ./driver torch starlette uvicorn
    python examples/continuous_batching.py               # needs a GPU
    curl -N 'http://127.0.0.1:8000/generate?prompt=7&tokens=20'
    python examples/continuous_batching.py --simulator   # without one, and without torch

The decoder is a small transformer with random weights and a cache of keys and values. One launch of
a CUDA graph computes the next tokens, and leaves them on the GPU for the next launch. `Steps`
launches one step ahead: while the GPU computes it, Python sends the tokens of the step before.

A prompt is one token here. On the simulator the next token is the last one plus its place.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import signal
import sys
from collections.abc import AsyncIterator, Generator
from functools import partial
from typing import Any

import uvicorn
from cuda.bindings import driver as cuda
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import aiostream
from aiostream import serving
from aiostream.testing import check, load_kernels, spin

TOKENS, MOST = 1024, 1024  # the vocabulary, and the places of the cache
WIDTH, HEADS, LAYERS = 512, 8, 4
WAITING, SECONDS = 256, 0.002  # requests that may wait for a slot; a step on the simulator


class Generation:
    """A request: its prompt, and how many steps it still needs."""

    def __init__(self, prompt: int, left: int) -> None:
        self.prompt, self.left = prompt, left


class Decoder:
    """Computes the next token of all slots at once."""

    stream: aiostream.Stream

    def step(self, active: serving.Active[Generation]) -> Generator[Any, None, dict[int, int]]:
        """Two steps may be in flight, and each has a buffer of its own in pinned memory."""
        buffer = active.number % 2
        self._launch({slot: active[slot].prompt for slot in active.new}, buffer)
        for generation in active.values():
            generation.left -= 1
        yield [slot for slot, generation in active.items() if generation.left == 0]
        tokens = self._tokens(buffer)
        return {slot: tokens[slot] for slot in active}

    def _launch(self, prompts: dict[int, int], buffer: int) -> None:
        """Enqueues a step, before which these slots get these tokens. It does not block."""

    def _tokens(self, buffer: int) -> list[int]:
        raise NotImplementedError


async def generate(request: Request) -> Response:
    try:
        prompt = int(request.query_params["prompt"])
        count = int(request.query_params.get("tokens", 10))
        if not (0 <= prompt < TOKENS and 0 < count <= MOST):
            raise ValueError
        results = request.app.state.steps(Generation(prompt, count))
    except (KeyError, ValueError):
        text = f"prompt is a token below {TOKENS}, and tokens is a number from 1 to {MOST}"
        return PlainTextResponse(text, 400)
    except (aiostream.PoolFullError, aiostream.StreamClosedError) as error:
        return PlainTextResponse(str(error), 503)
    # Starlette cancels the generator when the client disconnects.
    return StreamingResponse(events(results), media_type="text/event-stream")


async def events(results: serving.Results[int]) -> AsyncIterator[str]:
    """Yields an event for each token, and for an error, because the headers are sent by then."""
    try:
        async with results:
            async for token in results:
                yield f"data: {token}\n\n"
    except aiostream.StreamClosedError:
        return  # the server ends
    except aiostream.CudaError as error:
        yield f"event: error\ndata: {error.name}\n\n"


async def health(request: Request) -> JSONResponse:
    steps = request.app.state.steps
    return JSONResponse({"steps": steps.launched, "busy": steps.running})


def application(*, slots: int, simulated: bool) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        stop_watching = aiostream.exit_on_context_failed()
        decoder: Decoder = SimulatedDecoder(slots) if simulated else TorchDecoder(slots)
        gc.freeze()  # else each full collection would look at all that torch has made
        steps = serving.Steps(decoder.stream, decoder.step, slots=slots, max_waiting=WAITING)
        async with steps as app.state.steps:
            yield
        stop_watching()

    routes = [Route("/generate", generate), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan)


class Server(uvicorn.Server):
    """uvicorn, which ends all generations at SIGTERM. Otherwise it would wait for the longest."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Called by uvicorn's handler of the signal."""
        if steps := getattr(self.config.app.state, "steps", None):  # type: ignore[union-attr]
            steps.close()
        super().handle_exit(sig, frame)


class TorchDecoder(Decoder):
    """A transformer with a static cache, so that one CUDA graph serves every step."""

    def __init__(self, slots: int) -> None:
        import torch

        torch.manual_seed(0)
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.bfloat16)
        self._torch, nn, per_head = torch, torch.nn, WIDTH // HEADS
        numbers = partial(torch.zeros, slots, dtype=torch.int64)
        self._embed = [nn.Embedding(many, WIDTH) for many in (TOKENS, MOST)]
        self._layers = [
            (
                nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)),
                [torch.zeros(slots, HEADS, MOST, per_head) for _ in ("keys", "values")],
                nn.Linear(WIDTH, WIDTH),
                nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()),
            )
            for _ in range(LAYERS)
        ]
        self._head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS))
        self._rows, self._all = torch.arange(slots), torch.arange(MOST)
        # Each slot's next token and place, and the prompt that takes their place, or -1.
        self._next, self._places, self._prompts = numbers(), numbers(), numbers()
        # Of each buffer what is sent and what comes back, in pinned memory, so no copy blocks.
        pinned = [numbers(device="cpu", pin_memory=True) for _ in range(4)]
        self._sent, self._found = pinned[:2], pinned[2:]
        theirs, self._graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.inference_mode():
            with torch.cuda.stream(theirs):
                for _ in range(3):  # as torch's manual asks
                    self._forward()
            with torch.cuda.graph(self._graph, stream=theirs, capture_error_mode="thread_local"):
                self._forward()
        self.stream = aiostream.Stream.borrow(theirs, name="decode")

    def _forward(self) -> None:
        torch, is_new, slots = self._torch, self._prompts >= 0, len(self._rows)
        tokens = torch.where(is_new, self._prompts, self._next)
        places = torch.where(is_new, 0, self._places)
        hidden = self._embed[0](tokens) + self._embed[1](places)
        seen = (self._all <= places[:, None])[:, None, None]  # no slot sees what came before it
        for project, cache, out, mlp in self._layers:
            query, *new = project(hidden).view(slots, 3, HEADS, -1).unbind(1)
            for old, now in zip(cache, new, strict=True):
                old[self._rows, :, places] = now
            attend = torch.nn.functional.scaled_dot_product_attention
            found = attend(query[:, :, None], *cache, attn_mask=seen)
            hidden = hidden + out(found.reshape(slots, WIDTH))
            hidden = hidden + mlp(hidden)
        self._next.copy_(self._head(hidden).argmax(-1))
        self._places.copy_((places + 1).clamp(max=MOST - 1))  # slots without a request go on too

    def _launch(self, prompts: dict[int, int], buffer: int) -> None:
        with self._torch.inference_mode():
            sent = self._sent[buffer].fill_(-1)
            for slot, token in prompts.items():
                sent[slot] = token
            self._prompts.copy_(sent, non_blocking=True)
            self._graph.replay()
            self._found[buffer].copy_(self._next, non_blocking=True)

    def _tokens(self, buffer: int) -> list[int]:
        return [*self._found[buffer].tolist()]


class SimulatedDecoder(Decoder):
    """In place of the model: a kernel that takes some time, and a sum."""

    def __init__(self, slots: int) -> None:
        self.stream = aiostream.Stream(name="decode")
        load_kernels(self.stream.context)
        with self.stream.context.as_current():
            memory = int(check(cuda.cuMemHostAlloc(16 * slots, 3)))
        rows = [(ctypes.c_int * slots).from_address(memory + 4 * slots * n) for n in range(4)]
        self._sent, self._found = rows[:2], rows[2:]
        self._state = [(0, 0)] * slots  # each slot's next token and place

    def _launch(self, prompts: dict[int, int], buffer: int) -> None:
        for slot, token in prompts.items():
            self._state[slot] = token, 0
        self._state = [((token + place) % TOKENS, place + 1) for token, place in self._state]
        self._sent[buffer][:] = [token for token, _ in self._state]
        spin(self.stream, SECONDS)
        rows = (ctypes.addressof(each[buffer]) for each in (self._found, self._sent))
        check(cuda.cuMemcpyAsync(*rows, ctypes.sizeof(self._sent[0]), self.stream.handle))

    def _tokens(self, buffer: int) -> list[int]:
        return [*self._found[buffer]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens from a decoder with continuous batching.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--slots", type=int, default=16, help="generations at once")
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    if options.simulator:
        aiostream.simulator.install()
    print(f"driver: {aiostream.Device(0).name}; http://127.0.0.1:{options.port}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again at its end
    app = application(slots=options.slots, simulated=options.simulator)
    Server(uvicorn.Config(app, host="127.0.0.1", port=options.port, log_level="warning")).run()


if __name__ == "__main__":
    main()
