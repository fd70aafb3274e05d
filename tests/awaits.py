"""Each kind of await, for tests that interrupt it at any place, and that make its calls fail."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any

import anyio

import aiostream
from aiostream import CaptureMode, Device, Event, Stream, StreamClosedError, StreamPool
from support import EVENT_STRATEGIES, STRATEGIES, spin
from waiters import default_wait


class Scene:
    """What one await uses. Everything is made before it begins."""

    def __init__(
        self, strategy: Any, captures: bool, device: Device | int, shared: Stream | None
    ) -> None:
        self.stream = (
            Stream(wait=strategy, device=device)
            if shared is None
            else Stream.borrow(shared, wait=strategy)
        )
        with default_wait(strategy):
            self.event = Event(device=device)
        self.pool = StreamPool(1)
        self.made: list[Any] = [self.stream, self.event]
        if captures:
            with self.stream.capture_executable(CaptureMode.THREAD_LOCAL) as scope:
                self.stream.launch_host_func(int)
            self.made.append(scope.executable)
        spin(self.stream, 0.0002)
        self.event.record(self.stream)

    @property
    def executable(self) -> Any:
        return self.made[2]

    def work(self, stream: Stream, kept: int) -> int:
        spin(stream, 0.0001)
        return kept

    async def run(self) -> None:
        assert await self.stream.run(self.work, self.stream, 7) == 7

    async def run_in_the_next_turn(self) -> None:
        """A launch before it has used up the turn."""
        launch = self.stream.enqueue_async(lambda _: time.sleep(0.0011))
        assert await self.stream.run(self.work, self.stream, 7) == 7
        await launch

    async def leave_the_next_turn(self) -> None:
        launch = self.stream.enqueue_async(lambda _: time.sleep(0.0011))
        with anyio.move_on_after(0):
            await self.stream.run(self.work, self.stream, 7)
        await launch

    async def run_what_fails(self) -> None:
        await self.expect_an_error(lambda: self.stream.run(self.fail, self.stream))

    async def enqueue_what_fails(self) -> None:
        await self.expect_an_error(lambda: self.stream.enqueue_async(self.fail))

    async def expect_an_error(self, call: Callable[[], Awaitable[Any]]) -> None:
        with contextlib.suppress(LookupError):
            await call()
            raise AssertionError("not raised")

    def fail(self, stream: Stream) -> None:
        spin(stream, 0.0001)
        raise LookupError

    async def leave_a_run(self) -> None:
        """The wait is cancelled when it has begun, and what it uses is handed over."""
        with anyio.move_on_after(0):
            await self.stream.run(spin, self.stream, 0.001)

    def in_halves(self, kept: int) -> Generator[None, None, int]:
        for _ in range(2):
            spin(self.stream, 0.0001)
            yield
        return kept

    async def run_in_halves(self) -> None:
        assert await self.stream.run(self.in_halves, 7) == 7

    async def leave_halves(self) -> None:
        """The wait is cancelled when it has begun, and the generator is closed later."""
        with anyio.move_on_after(0):
            await self.stream.run(self.in_halves, 7)

    async def leave_a_thread(self) -> None:
        """The call is taken back before its thread begins, or left to it."""
        with anyio.move_on_after(0):
            await self.pool.run_in_thread(len, "a")

    async def run_in_pool(self) -> None:
        assert await self.pool.run(lambda kept: kept, 7) == 7

    async def enqueue(self) -> None:
        assert await self.stream.enqueue_async(lambda given, kept: kept, 7) == 7

    async def enqueue_several(self) -> None:
        futures: list[Any] = [
            self.stream.enqueue_async(lambda given, kept: spin(given, 0.0001), bytearray(9))
            for _ in range(3)
        ]
        for future in reversed(futures):
            await future

    async def enqueue_in_thread(self) -> None:
        assert await self.stream.enqueue_in_thread(self.work, 7) == 7

    async def run_halves_in_threads(self) -> None:
        def halves(kept: bytearray) -> Generator[None, None, int]:
            spin(self.stream, 0.0001)
            yield
            return len(kept)

        assert await self.stream.run_in_thread(halves, bytearray(7)) == 7

    async def wait_for_all(self) -> None:
        done, _ = await aiostream.wait(
            [self.stream.completion_future(), self.stream.enqueue_async(lambda given: None)]
        )
        for future in done:
            future.result()

    async def drain(self) -> None:
        self.stream.completion_future()
        assert await aiostream.drain(timeout=20)

    async def acquire_block(self) -> None:
        async with self.pool.acquire() as stream:
            await stream

    async def block(self) -> None:
        async with self.stream as stream:
            spin(stream, 0.0001)

    async def use_pool(self) -> None:
        async with self.pool.stream() as stream:
            await stream.enqueue_async(lambda given: spin(given, 0.0001))

    async def release_idle(self) -> None:
        self.pool.release(await self.pool.acquire())

    async def release_to_a_waiting_task(self) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(self.use_pool)

    async def serve(self) -> None:
        """Everything works as before, also on the stream of the await, unless it was closed."""
        new = Stream()
        self.made.append(new)
        for stream in (self.stream, new):
            if stream.closed:
                continue
            spin(stream, 0.0001)
            try:
                await stream.synchronize_async()
                await stream.completion_future()
                assert await stream.enqueue_async(lambda given: 5) == 5
                assert await stream.run(int, 7) == 7
                assert await stream.enqueue_in_thread(lambda given: 6) == 6
            except StreamClosedError:
                assert stream is self.stream
                assert stream.closed
        if not self.pool.closed:
            # An interrupt may have lost a stream, until the pool is closed. No stream is out twice.
            streams = [await self.pool.acquire() for _ in range(self.pool.idle)]
            assert len({stream.handle for stream in streams}) == len(streams) <= self.pool.size
            for stream in streams:
                self.pool.release(stream)

    def close(self) -> None:
        for each in self.made:
            each.close()
        self.pool.close()


Function = Callable[[Scene], Awaitable[Any]]


def _with_each(
    strategies: Iterable[str], name: str, function: Function
) -> dict[str, tuple[str, Function]]:
    return {f"{name}, {strategy}": (strategy, function) for strategy in strategies}


ON_AUTO_STREAMS: dict[str, Function] = {
    "await stream": lambda scene: scene.stream,
    "run, in the next turn": Scene.run_in_the_next_turn,
    "run, next turn, cancelled": Scene.leave_the_next_turn,
    "run, fails": Scene.run_what_fails,
    "run, cancelled": Scene.leave_a_run,
    "run, in halves": Scene.run_in_halves,
    "run, in halves, cancelled": Scene.leave_halves,
    "pool, run in thread, cancelled": Scene.leave_a_thread,
    "pool, run": Scene.run_in_pool,
    "completion": lambda scene: scene.stream.completion_future(),
    "checked completion": lambda scene: scene.stream.checked_completion_future(),
    "event on stream": lambda scene: scene.event.completion_future_on(scene.stream),
    "checked event on stream": lambda scene: scene.event.checked_completion_future_on(scene.stream),
    "enqueue several": Scene.enqueue_several,
    "enqueue, fails": Scene.enqueue_what_fails,
    "enqueue in thread": Scene.enqueue_in_thread,
    "run in thread, halves": Scene.run_halves_in_threads,
    "aiostream.wait": Scene.wait_for_all,
    "drain": Scene.drain,
    "aclose": lambda scene: scene.stream.aclose(),
    "async with": Scene.block,
    "pool": Scene.use_pool,
    "pool, acquire block": Scene.acquire_block,
    "pool, idle": Scene.release_idle,
    "pool, two tasks": Scene.release_to_a_waiting_task,
    "close pool": lambda scene: scene.pool.aclose(),
    "launch": lambda scene: scene.executable.launch_async(scene.stream),
    "launch and wait": lambda scene: scene.executable.launch_and_wait(scene.stream),
    "launch, upload": lambda scene: scene.executable.upload_async(scene.stream),
    "launch, upload and wait": lambda scene: scene.executable.upload_and_wait(scene.stream),
}
AWAITS: dict[str, tuple[str, Function]] = {
    **_with_each(STRATEGIES, "wait", lambda scene: scene.stream.synchronize_async()),
    **_with_each(EVENT_STRATEGIES, "event", lambda scene: scene.event.synchronize_async()),
    **_with_each(STRATEGIES, "enqueue", Scene.enqueue),
    **_with_each(STRATEGIES, "run", Scene.run),
    **{name: ("auto", function) for name, function in ON_AUTO_STREAMS.items()},
}


def scene_of(
    name: str, device: Device | int = 0, shared: Stream | None = None
) -> tuple[Scene, Callable[[], Awaitable[Any]]]:
    """What an await uses, and what begins it. It may use a stream of that device that others use
    too, unless it is the launch of a graph, which is captured on its stream.
    """
    strategy, function = AWAITS[name]
    captures = name.startswith("launch")
    scene = Scene(strategy, captures, device, None if captures else shared)
    return scene, lambda: function(scene)
