"""The ways of `proof --steps` to run steps for many requests, each as one would write it.

A way is a block on a model, in a loop of asyncio. What it yields takes a prompt and a number of
tokens, and returns the block of a request, in which one iterates over its tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from aiostream import serving
from benchmarks.step_model import BUFFERS, SLOTS, Model, busy

Request = AbstractAsyncContextManager[AsyncIterable[int]]
Answer = Callable[[int, int], Request]
Way = Callable[[Model, float], AbstractAsyncContextManager[Answer]]


# ------------------------------------------------------------------------------ Steps


@dataclass(eq=False)
class Generation:
    """A request: its prompt, and how many tokens it still needs."""

    prompt: int
    left: int


@contextlib.asynccontextmanager
async def with_steps(model: Model, python: float, ahead: int) -> AsyncIterator[Answer]:
    """`serving.Steps`."""

    def step(active: serving.Active[Generation]) -> Generator[list[int], None, dict[int, int]]:
        buffer = active.number % BUFFERS
        model.launch({slot: active[slot].prompt for slot in active.new}, max(active) + 1, buffer)
        last = []
        for slot, generation in active.items():
            generation.left -= 1
            if not generation.left:
                last.append(slot)
        yield last
        tokens = model.read(buffer)
        busy(python)
        return {slot: tokens[slot] for slot in active}

    async with serving.Steps(model.stream, step, slots=SLOTS, ahead=ahead) as steps:
        yield lambda prompt, count: steps(Generation(prompt, count))
        steps.close()


# ------------------------------------------------------------------------------ by hand


class Tokens:
    """The tokens of a request, as they come."""

    def __init__(self, count: int) -> None:
        self.put, self._get = (queue := asyncio.Queue[int]()).put_nowait, queue.get
        self._left = count

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return await self._get()


Who = list[tuple[int, Tokens]]


class ByHand:
    """What the loops by hand share: slots, and queues.

    A slot may be given on while a step that is in flight has it. The queue of the one who has left
    gets the token of that step.
    """

    def __init__(self, model: Model, python: float) -> None:
        self.model, self._python = model, python
        self.active: dict[int, Tokens] = {}
        self.comes = asyncio.Event()
        self._prompts: dict[int, int] = {}
        self._number = 0
        # The lowest slot first, so that few requests need the small graph.
        self._free = asyncio.PriorityQueue[int]()
        for slot in range(SLOTS):
            self._free.put_nowait(slot)
        # Of `in_thread`, whose steps are launched in a thread.
        self._lock = threading.Lock()
        self.has_come = threading.Event()

    @contextlib.asynccontextmanager
    async def answer(self, prompt: int, count: int) -> AsyncIterator[Tokens]:
        """The block of a request."""
        slot, tokens = await self._free.get(), Tokens(count)
        with self._lock:
            self.active[slot], self._prompts[slot] = tokens, prompt
        self.comes.set()
        self.has_come.set()
        try:
            yield tokens
        finally:
            with self._lock:
                del self.active[slot]
                self._prompts.pop(slot, None)
            self._free.put_nowait(slot)

    def launch(self) -> tuple[Who, int]:
        """Enqueues a step, and returns who is in it, and in which buffer their tokens will be."""
        with self._lock:
            who = list(self.active.items())
            prompts, self._prompts = self._prompts, {}
        self._number += 1
        buffer = self._number % BUFFERS
        self.model.launch(prompts, max(self.active, default=0) + 1, buffer)
        return who, buffer

    def read(self, buffer: int) -> list[int]:
        """The tokens, and the Python of a step."""
        tokens = self.model.read(buffer)
        busy(self._python)
        return tokens

    def hand_out(self, who: Who, tokens: list[int]) -> None:
        """Gives each its token."""
        for slot, each in who:
            each.put(tokens[slot])

    async def someone(self) -> None:
        """Waits for a request."""
        while not self.active:
            self.comes.clear()
            await self.comes.wait()


async def one_after_another(hand: ByHand) -> None:
    """Awaits each step."""
    while True:
        await hand.someone()
        who, buffer = await hand.model.stream.run(hand.launch)
        hand.hand_out(who, hand.read(buffer))


async def one_ahead(hand: ByHand) -> None:
    """Launches the next step before it awaits this one."""
    stream = hand.model.stream

    def enqueue() -> tuple[Who, int, asyncio.Future[Any]]:
        with hand.model.current():
            return *hand.launch(), asyncio.ensure_future(stream.synchronize_async())

    while True:
        await hand.someone()
        step: tuple[Who, int, asyncio.Future[Any]] | None = enqueue()
        await asyncio.sleep(0)  # the task of its wait begins
        while step is not None:
            following = None
            if hand.active:
                following = enqueue()
                await asyncio.sleep(0)
            who, buffer, done = step
            await done
            hand.hand_out(who, hand.read(buffer))
            step = following
            await asyncio.sleep(0)


def in_thread(hand: ByHand, loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    """Blocks a thread with each step, and hands its tokens over."""
    while not ended.is_set():
        hand.has_come.wait()
        hand.has_come.clear()
        while hand.active and not ended.is_set():
            with hand.model.current():
                who, buffer = hand.launch()
            hand.model.synchronize()
            tokens = hand.read(buffer)
            loop.call_soon_threadsafe(hand.hand_out, who, tokens)


@contextlib.asynccontextmanager
async def by_hand(
    model: Model, python: float, run: Callable[[ByHand], Coroutine[Any, Any, None]]
) -> AsyncIterator[Answer]:
    """A task that runs the steps."""
    hand = ByHand(model, python)
    task = asyncio.create_task(run(hand))
    yield hand.answer
    task.cancel()
    await asyncio.wait([task])


@contextlib.asynccontextmanager
async def with_thread(model: Model, python: float) -> AsyncIterator[Answer]:
    """A thread that runs the steps."""
    hand, ended = ByHand(model, python), threading.Event()
    of_thread = (hand, asyncio.get_running_loop(), ended)
    thread = threading.Thread(target=in_thread, args=of_thread, daemon=True)
    thread.start()
    yield hand.answer
    ended.set()
    hand.has_come.set()
    await asyncio.to_thread(thread.join)


STEPS = partial(with_steps, ahead=1)
ONE_AHEAD = partial(by_hand, run=one_ahead)
ONE_AFTER_ANOTHER = partial(by_hand, run=one_after_another)
THREAD = with_thread

# Those that are measured without a server.
WAYS: dict[str, Way] = {
    "Steps, ahead=1": STEPS,
    "Steps, ahead=0": partial(with_steps, ahead=0),
    "one ahead by hand": ONE_AHEAD,
    "one after another": ONE_AFTER_ANOTHER,
    "blocking thread": THREAD,
}


async def read_all(answer: Answer, prompts: Iterable[int], count: int) -> list[list[int]]:
    """Has a task for each prompt read its tokens."""

    async def read(prompt: int) -> list[int]:
        async with answer(prompt, count) as tokens:
            return [token async for token in tokens]

    return await asyncio.gather(*(read(prompt) for prompt in prompts))
