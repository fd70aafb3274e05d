"""The model of `proof --steps`: a step makes the next token of each row, and each token is known.

The next token is the last one plus `ADD`, modulo `VOCABULARY`. On a GPU with torch that is what
comes out of a captured graph of matrix products: the token as a row with a single one, one product
with a permuted unit matrix after another, and an argmax. Its time is that of any matrix of this
size, and its result is exact. Without torch, and on the simulator, a kernel spins in its place, and
the host adds.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import statistics
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda

import aiostream
from aiostream import simulator
from aiostream.testing import check, load_kernels, spin

VOCABULARY, ADD = 4096, 1237
SIZES = (64, 256)  # rows; each has a graph, and a step takes the smallest that has its slots
SLOTS = SIZES[-1]
BUFFERS = 2  # for what is sent and what comes back: one for each step in flight
MATRICES = 16  # distinct ones, of 32 MiB each: more than the GPU's cache
WARM = 3  # forwards before a capture, as torch's manual asks
ALONE, TOGETHER = 0.3, 20  # for these seconds a step is measured alone, 20 with each wait
TRIED = (24, 72)  # matrix products, of which the time of one is known


@dataclass(frozen=True)
class Settings:
    """What each process has to know. JSON can hold it.

    Attributes:
        ms: How long a step of `SIZES[0]` rows takes about.
        python_ms: How long Python works on each step.
        layers: How many matrix products torch has in a step; 0 before they were counted.
        spins: Whether a kernel spins in the place of torch.
    """

    ms: float
    python_ms: float = 0.0
    layers: int = 0
    spins: bool = True

    @property
    def called(self) -> str:
        """The model, in words."""
        if self.spins:
            return f"a kernel that spins for {self.ms:g} ms, and for twice that with 256 rows"
        width = f"{VOCABULARY:,} x {VOCABULARY:,}"
        return f"torch, a captured graph of {self.layers} products with matrices of {width}"


def spins(asked: bool) -> bool:
    """Whether a kernel has to take the place of torch."""
    return asked or simulator.installed() or importlib.util.find_spec("torch") is None


def expected(prompt: int, count: int) -> list[int]:
    """The tokens that follow a prompt."""
    return [(prompt + ADD * number) % VOCABULARY for number in range(1, count + 1)]


def busy(seconds: float) -> None:
    """Works in Python for so long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Model:
    """What the ways share.

    Attributes:
        stream: Where the steps run.
        counts: How many steps of each size were launched, perhaps in a file that others read.
    """

    stream: aiostream.Stream

    def __init__(self, counts: Path | None) -> None:
        self.counts: Any = np.zeros(len(SIZES), np.int64) if counts is None else shared(counts)

    def launch(self, prompts: dict[int, int], rows: int, buffer: int) -> None:
        """Enqueues a step on the stream, which is current.

        Args:
            prompts: The prompts of slots that are new.
            rows: More than the highest slot.
            buffer: Which of the buffers gets the tokens.
        """
        number = next(number for number, size in enumerate(SIZES) if size >= rows)
        self.counts[number] += 1
        self._enqueue(prompts, SIZES[number], buffer)

    def current(self) -> AbstractContextManager[Any]:
        """Has the stream be current, where `aiostream` does not see to that."""
        return contextlib.nullcontext()

    def read(self, buffer: int) -> list[int]:
        """The tokens of all slots, when the GPU is done."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Waits, and blocks the thread."""
        self.stream.synchronize()

    def alone(self, size: int) -> float:
        """How many milliseconds the GPU needs for a step, if nothing else holds it up."""
        with self.current():
            self.launch({}, size, 0)  # the first one after a pause
            self.synchronize()
            found, until = list[float](), time.perf_counter() + ALONE
            while (began := time.perf_counter()) < until:
                for number in range(TOGETHER):
                    self.launch({}, size, number % BUFFERS)
                self.synchronize()
                found.append(time.perf_counter() - began)
        return 1e3 * statistics.median(found) / TOGETHER

    def _enqueue(self, prompts: dict[int, int], size: int, buffer: int) -> None:
        raise NotImplementedError


def shared(path: Path) -> Any:
    """The counts of a server in another process."""
    return np.memmap(path, np.int64, "r+", shape=(len(SIZES),))


class SpinModel(Model):
    """A kernel that takes some time. What it would compute, the host adds."""

    def __init__(self, settings: Settings, counts: Path | None = None) -> None:
        super().__init__(counts)
        self.stream = aiostream.Stream(name="steps")
        load_kernels(self.stream.context)
        with self.stream.context.as_current():
            memory = int(check(cuda.cuMemHostAlloc(2 * BUFFERS * 4 * SLOTS, 3)))
        rows = [(ctypes.c_int32 * SLOTS).from_address(memory + 4 * SLOTS * n) for n in range(4)]
        self._memory = [memory + 4 * SLOTS * number for number in range(2 * BUFFERS)]
        views = [np.ctypeslib.as_array(row) for row in rows]
        self._sent, self._found = views[:BUFFERS], views[BUFFERS:]
        self._last = np.zeros(SLOTS, np.int32)
        self._seconds = {size: settings.ms / 1e3 * (1 + (size > SIZES[0])) for size in SIZES}

    def read(self, buffer: int) -> list[int]:
        found: list[int] = self._found[buffer].tolist()
        return found

    def _enqueue(self, prompts: dict[int, int], size: int, buffer: int) -> None:
        for slot, prompt in prompts.items():
            self._last[slot] = prompt
        self._last[:size] = (self._last[:size] + ADD) % VOCABULARY
        self._sent[buffer][:size] = self._last[:size]
        spin(self.stream, self._seconds[size])
        copied = (self._memory[BUFFERS + buffer], self._memory[buffer], 4 * size)
        check(cuda.cuMemcpyAsync(*copied, self.stream.handle))


class TorchModel(Model):
    """Matrix products."""

    def __init__(self, settings: Settings, counts: Path | None = None) -> None:
        super().__init__(counts)
        self._torch = torch = importlib.import_module("torch")
        torch.set_grad_enabled(False)
        self._theirs = torch.cuda.Stream()
        unit = torch.eye(VOCABULARY, device="cuda", dtype=torch.bfloat16)
        self._matrices = [unit.roll(2 * number + 1, 1) for number in range(MATRICES)]
        self._all = torch.arange(VOCABULARY, device="cuda")
        self._last = torch.zeros(SLOTS, device="cuda", dtype=torch.int64)
        # The prompts of new slots, or -1, and the tokens. They are pinned, so no copy blocks.
        rows = torch.full((2 * BUFFERS, SLOTS), -1, dtype=torch.int64).pin_memory()
        self._sent, self._found = rows[:BUFFERS], rows[BUFFERS:]
        self._prompts = self._sent.numpy()  # the same memory
        self._staged = torch.empty_like(self._last)
        torch.cuda.synchronize()
        self._graphs = {size: self._captured(size, settings.layers) for size in SIZES}
        self.stream = aiostream.Stream.borrow(self._theirs, name="steps")

    def _captured(self, size: int, layers: int) -> Any:
        torch = self._torch
        with torch.cuda.stream(self._theirs):
            for _ in range(WARM):
                self._forward(size, layers)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._theirs, capture_error_mode="thread_local"):
            self._forward(size, layers)
        torch.cuda.synchronize()
        return graph

    def _forward(self, size: int, layers: int) -> None:
        torch, last = self._torch, self._last[:size]
        hidden = (last[:, None] == self._all).to(torch.bfloat16)
        for number in range(layers):
            hidden = torch.relu(hidden @ self._matrices[number % MATRICES])
        added = sum(2 * (number % MATRICES) + 1 for number in range(layers))
        last.copy_((hidden.argmax(1) + (ADD - added) % VOCABULARY) % VOCABULARY)

    def current(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self._theirs)
        return context

    def synchronize(self) -> None:
        self._theirs.synchronize()

    def read(self, buffer: int) -> list[int]:
        found: list[int] = self._found[buffer].tolist()
        return found

    def _enqueue(self, prompts: dict[int, int], size: int, buffer: int) -> None:
        if prompts:
            self._prompts[buffer] = -1
            for slot, prompt in prompts.items():
                self._prompts[buffer, slot] = prompt
            staged = self._staged.copy_(self._sent[buffer], non_blocking=True)
            self._last.copy_(self._torch.where(staged >= 0, staged, self._last))
        self._graphs[size].replay()
        self._found[buffer][:size].copy_(self._last[:size], non_blocking=True)


def model_of(settings: Settings, counts: Path | None = None) -> Model:
    """The model, in a process that uses it."""
    return (SpinModel if settings.spins else TorchModel)(settings, counts)


def counted(settings: Settings) -> Settings:
    """The settings with as many matrix products as make a step of that length."""
    if settings.spins:
        return settings

    def of(layers: int) -> float:
        tried = Settings(settings.ms, layers=layers, spins=False)
        return model_of(tried).alone(SIZES[0])

    few, many = (of(layers) for layers in TRIED)
    each = (many - few) / (TRIED[1] - TRIED[0])
    layers = TRIED[0] + round((settings.ms - few) / each)
    return Settings(settings.ms, settings.python_ms, max(1, layers), spins=False)
