"""Continuous batching: one task for the GPU, and requests that join and leave at each step.

    pip install . ./driver torch starlette uvicorn
    python examples/continuous_batching.py               # needs a GPU
    curl -N 'http://127.0.0.1:8000/generate?prompt=7&tokens=20'
    python examples/continuous_batching.py --simulator   # without one, and without torch

The decoder is a small transformer with random weights and a cache of keys and values. It computes
the next token of all slots in one launch of a CUDA graph. One task launches and awaits these steps.
Between two of them it gives free slots to requests that wait, takes back those of requests that are
complete or whose client has left, and hands each request its token, which is sent at once.

To see what the GPU waits for between two steps, write a trace:

    AIOSTREAM_TRACE=trace.html python examples/continuous_batching.py --simulator

Each await of the row `decode` is a step. In the gaps the GPU waits for this Python: the tokens that
it hands out, and the requests that it admits.

On the simulator a kernel of some milliseconds and a sum take the place of the model: the next token
is the last one plus its place. A prompt is one token here, so there is no prefill.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import aiostream

TOKENS, MOST = 1024, 1024  # the vocabulary, and the places of the cache
WIDTH, HEADS, LAYERS = 512, 8, 4
WAITING = 256  # requests that may wait for a slot; one more gets 503
SECONDS = 0.002  # of a step on the simulator


class Decoder(Protocol):
    """Computes the next token of all slots at once."""

    stream: aiostream.Stream

    def launch(self, tokens: list[int], places: list[int]) -> None:
        """Enqueues a step: each slot's last token, and its place. It does not block."""

    def next_tokens(self) -> list[int]:
        """What the last step has computed."""


# ------------------------------------------------------------------------------ the engine


@dataclass(eq=False)
class Generation:
    """One request."""

    token: int
    left: int
    """Tokens that are still to come. 0: it is complete, or its client has left."""
    place: int = 0
    made: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    """Its tokens. `None` is the end."""


class Engine:
    """Runs the steps. Everything is in the loop's thread, so nothing here has a lock."""

    def __init__(self, decoder: Decoder, slots: int) -> None:
        self._decoder = decoder
        self._waiting: deque[Generation] = deque()
        self._slots: list[Generation | None] = [None] * slots
        self._work = asyncio.Event()
        self._stopping = False
        self.steps = 0

    @property
    def busy(self) -> int:
        """Slots in use."""
        return sum(each is not None for each in self._slots)

    async def generate(self, prompt: int, count: int) -> AsyncIterator[int]:
        """Yields one token after another, each as soon as the GPU has it.

        Cancellation: gives the slot back at the next step.
        """
        if self._stopping:
            return
        generation = Generation(prompt, count)
        self._waiting.append(generation)
        self._work.set()
        try:
            while (token := await generation.made.get()) is not None:
                yield token
        finally:
            generation.left = 0

    def is_full(self) -> bool:
        """Whether no more requests may wait."""
        return self._stopping or len(self._waiting) >= WAITING

    def stop(self) -> None:
        """Ends all generations after the step that runs."""
        self._stopping = True
        self._work.set()

    async def run(self) -> None:
        """Runs one step after another while there is work, until `stop`."""
        while not self._stopping:
            self._admit()
            if not self.busy:
                self._work.clear()
                await self._work.wait()
                continue
            slots = [each or Generation(0, 0) for each in self._slots]
            await self._decoder.stream.run(
                self._decoder.launch, [each.token for each in slots], [each.place for each in slots]
            )
            self.steps += 1
            for generation, token in zip(self._slots, self._decoder.next_tokens(), strict=True):
                if generation is not None and generation.left:
                    generation.token = token
                    generation.place += 1
                    generation.left -= 1
                    generation.made.put_nowait(token)
        for each in (*self._slots, *self._waiting):
            if each is not None:
                each.made.put_nowait(None)

    def _admit(self) -> None:
        """Takes back the slots of those that are through, and gives them to those that wait."""
        for slot, generation in enumerate(self._slots):
            if generation is not None and not generation.left:
                generation.made.put_nowait(None)
                self._slots[slot] = generation = None
            while generation is None and self._waiting:
                generation = self._waiting.popleft()
                if not generation.left:  # its client has left before it got a slot
                    generation = None
            self._slots[slot] = generation


# ------------------------------------------------------------------------------ the server


async def generate(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    try:
        prompt = int(request.query_params["prompt"])
        count = int(request.query_params.get("tokens", 10))
        if not (0 <= prompt < TOKENS and 0 < count <= MOST):
            raise ValueError
    except (KeyError, ValueError):
        text = f"prompt is a token below {TOKENS}, and tokens is a number from 1 to {MOST}"
        return PlainTextResponse(text, 400)
    if engine.is_full():
        return PlainTextResponse("too many requests wait", 503)
    # Starlette cancels the generator when the client disconnects.
    events = (f"data: {token}\n\n" async for token in engine.generate(prompt, count))
    return StreamingResponse(events, media_type="text/event-stream")


async def health(request: Request) -> JSONResponse:
    engine: Engine = request.app.state.engine
    return JSONResponse({"steps": engine.steps, "busy": engine.busy})


def application(*, slots: int, simulated: bool) -> Starlette:
    """The ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        stop_watching = aiostream.exit_on_context_failed()
        decoder: Decoder = SimulatedDecoder(slots) if simulated else TorchDecoder(slots)
        app.state.engine = Engine(decoder, slots)
        gc.collect()
        gc.freeze()  # else each full collection would look at all that torch has made
        async with asyncio.TaskGroup() as group:
            group.create_task(app.state.engine.run())
            yield
            app.state.engine.stop()
        stop_watching()

    return Starlette(
        routes=[Route("/generate", generate), Route("/health", health)], lifespan=lifespan
    )


class Server(uvicorn.Server):
    """uvicorn, which ends all generations at SIGTERM. Otherwise it would wait for the longest."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Called by uvicorn's handler of the signal."""
        engine = getattr(self.config.app.state, "engine", None)  # type: ignore[union-attr]
        if engine is not None:
            asyncio.get_running_loop().call_soon_threadsafe(engine.stop)
        super().handle_exit(sig, frame)


# ------------------------------------------------------------------------------ torch


class TorchDecoder:
    """A transformer with a static cache, so that one CUDA graph serves every step."""

    def __init__(self, slots: int, device: str = "cuda") -> None:
        import torch

        self._torch, on = torch, {"device": device, "dtype": torch.bfloat16}
        nn = torch.nn
        torch.manual_seed(0)
        self._slots, self._per_head = slots, WIDTH // HEADS
        self._token_table, self._place_table = (
            nn.Embedding(many, WIDTH, **on) for many in (TOKENS, MOST)
        )
        self._layers = [
            {
                "in": nn.Sequential(nn.LayerNorm(WIDTH, **on), nn.Linear(WIDTH, 3 * WIDTH, **on)),
                "out": nn.Linear(WIDTH, WIDTH, **on),
                "mlp": nn.Sequential(
                    nn.LayerNorm(WIDTH, **on),
                    nn.Linear(WIDTH, 4 * WIDTH, **on),
                    nn.GELU(),
                    nn.Linear(4 * WIDTH, WIDTH, **on),
                ),
                "keys": torch.zeros(slots, HEADS, MOST, self._per_head, **on),
                "values": torch.zeros(slots, HEADS, MOST, self._per_head, **on),
            }
            for _ in range(LAYERS)
        ]
        self._head = nn.Sequential(nn.LayerNorm(WIDTH, **on), nn.Linear(WIDTH, TOKENS, **on))
        self._rows = torch.arange(slots, device=device)
        self._all_places = torch.arange(MOST, device=device)
        # Each slot's token and place, here and there. With pinned memory a copy does not block.
        pinned = device == "cuda"
        self._state = torch.zeros(2, slots, dtype=torch.int64, pin_memory=pinned)
        self._result = torch.zeros(slots, dtype=torch.int64, pin_memory=pinned)
        self._state_on_gpu = self._state.to(device)
        if pinned:
            self._capture()

    def step(self) -> Any:
        """Launches the kernels of one step on torch's current stream."""
        torch = self._torch
        tokens, places = self._state_on_gpu
        hidden = self._token_table(tokens) + self._place_table(places)
        seen = (self._all_places <= places[:, None])[:, None, None]  # no slot sees an earlier one
        for layer in self._layers:
            parts = layer["in"](hidden).view(self._slots, 3, HEADS, self._per_head)
            query, key, value = parts.unbind(1)
            layer["keys"][self._rows, :, places] = key
            layer["values"][self._rows, :, places] = value
            found = torch.nn.functional.scaled_dot_product_attention(
                query[:, :, None], layer["keys"], layer["values"], attn_mask=seen
            )
            hidden = hidden + layer["out"](found.reshape(self._slots, WIDTH))
            hidden = hidden + layer["mlp"](hidden)
        return self._head(hidden).argmax(-1)

    def _capture(self) -> None:
        torch = self._torch
        theirs = torch.cuda.Stream()
        self.stream = aiostream.Stream.borrow(theirs, name="decode")
        torch.cuda.synchronize()
        with torch.inference_mode():
            with torch.cuda.stream(theirs):
                for _ in range(3):  # as torch's manual asks
                    self.step()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=theirs, capture_error_mode="thread_local"):
                self._next = self.step()
        torch.cuda.synchronize()

    def launch(self, tokens: list[int], places: list[int]) -> None:  # noqa: D102
        torch = self._torch
        with torch.inference_mode():
            self._state.copy_(torch.tensor([tokens, places]))
            self._state_on_gpu.copy_(self._state, non_blocking=True)
            self._graph.replay()
            self._result.copy_(self._next, non_blocking=True)

    def next_tokens(self) -> list[int]:  # noqa: D102
        found: list[int] = self._result.tolist()
        return found


# ------------------------------------------------------------------------------ the simulator


class SimulatedDecoder:
    """In place of the model: a kernel that takes some time, and a sum."""

    def __init__(self, slots: int) -> None:
        from cuda.bindings import driver as cuda

        from aiostream.testing import check, load_kernels

        self.stream = aiostream.Stream(name="decode")
        load_kernels(self.stream.context)
        with self.stream.context.as_current():
            self._pointer = int(check(cuda.cuMemHostAlloc(8 * slots, 3)))  # portable, mapped
        self._numbers = (ctypes.c_float * (2 * slots)).from_address(self._pointer)
        self._slots = slots

    def launch(self, tokens: list[int], places: list[int]) -> None:  # noqa: D102
        from aiostream.testing import launch, spin

        self._numbers[:] = [*map(float, tokens), *map(float, places)]
        spin(self.stream, SECONDS)
        source, result = self._pointer, self._pointer + 4 * self._slots
        pointers = ctypes.c_uint64(source), ctypes.c_uint64(result)
        launch(self.stream, "saxpy", ctypes.c_float(1), *pointers, ctypes.c_uint32(self._slots))

    def next_tokens(self) -> list[int]:  # noqa: D102
        return [round(number) % TOKENS for number in self._numbers[self._slots :]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens from a decoder with continuous batching.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--slots", type=int, default=16, help="generations at once (default: 16)")
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    if options.simulator:
        from aiostream import simulator

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPU too
        simulator.install()
    try:
        print(f"driver: {aiostream.Device(0).name}; http://127.0.0.1:{options.port}", flush=True)
    except aiostream.NoDriverError as error:
        raise SystemExit(str(error)) from None
    # uvicorn raises the signal again when it has shut down: an orderly end here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = application(slots=options.slots, simulated=options.simulator)
    Server(uvicorn.Config(app, host="127.0.0.1", port=options.port, log_level="warning")).run()


if __name__ == "__main__":
    main()
