"""A soak: everything that the library does, mixed at random for as long as you like, while nothing
may grow.

    python tests/soak.py --for 3600                    # on the simulator, with two devices
    python tests/soak.py --for 3600 --driver gpu       # on the GPUs that are there

It prints a line every ten seconds and a verdict at the end. The exit code is 1 if something grew,
or if an await hung.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import anyio

import aiostream
import awaits
import internals
from aiostream import Device, Stream, StreamClosedError, StreamPool, WaitStrategy, statistics
from installed import installed
from support import PLAIN_LOOPS, Gate, is_at_rest, run_on, settle, spin

LOOPS = installed([*PLAIN_LOOPS, *PLAIN_LOOPS, "asyncio-debug"])
STRATEGIES = list(WaitStrategy)
WAIT_LISTS = 1024  # streams that a context remembers
MOST_CONTEXTS = 100  # the library remembers every context that it has ever met


class HangError(Exception):
    """An await did not end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What must stay flat."""

    memory: int
    """Resident, in KiB."""
    descriptors: int
    threads: int
    handles: int
    """Streams, events and graphs that the library owns."""
    owners: int
    """Tickets that stand for something."""
    leaked: int
    histories: int
    """Prediction histories."""
    waits_made: int
    """Records of waits, each with its event."""
    points: int
    """Points whose memory was made."""


ALLOWED = Sample(
    memory=4096,
    descriptors=12,
    threads=8,
    handles=0,
    owners=0,
    leaked=0,
    histories=64,
    waits_made=256,
    points=1024,
)
"""How far the median of the last third of a soak may lie above that of the middle third."""


def sample() -> Sample:
    """Measures the process now, with nothing pending."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # the allocator keeps more than the program does
    counters = internals.native_counters()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return Sample(
        memory=pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        handles=statistics().handles.open,
        owners=len(internals.owners()),
        leaked=statistics().points.leaked,
        histories=counters[internals.HISTORIES],
        waits_made=counters[internals.WAITS_MADE],
        points=counters[internals.POINTS_MADE],
    )


def growth(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """What has grown by more than is allowed, from the middle third of the samples to the last:
    `name: (before, after)`.
    """
    third = len(samples) // 3
    grown = {}
    for field in dataclasses.fields(Sample):
        values = [getattr(each, field.name) for each in samples]
        before, after = median(values[third : 2 * third]), median(values[-third:])
        if after > before + getattr(ALLOWED, field.name):
            grown[field.name] = (before, after)
    return grown


class Activities:
    """What tasks do with streams that they share."""

    def __init__(self, seed: int | str, streams: list[Stream]) -> None:
        self.rng = random.Random(seed)
        self.streams = streams
        self.completions = 0  # awaits that have ended as they should, in all threads

    def some_stream(self) -> Stream:
        return self.rng.choice(self.streams)

    def some_work(self, stream: Stream) -> None:
        spin(stream, self.rng.choice([0, 0, 0.00002, 0.0001, 0.0004, 0.002]))

    async def any_await(self) -> None:
        name = self.rng.choice(list(awaits.AWAITS))
        scene, begin = awaits.scene_of(name, self.some_stream().device)
        await begin()
        await scene.serve()
        scene.close()
        self.completions += 6

    async def wait_steadily(self) -> None:
        """Equal work, so that its end is predicted."""
        stream = Stream()
        for _ in range(8):
            spin(stream, 0.001)
            await stream.synchronize_async()
            self.completions += 1
        await stream.aclose()

    async def cancel(self) -> None:
        stream = self.some_stream()
        spin(stream, 0.002)
        waits: list[Callable[[], Awaitable[Any]]] = [
            stream.synchronize_async,
            stream.completion_future,
            lambda: stream.enqueue_async(lambda _, kept: kept, bytearray(1000)),
            lambda: stream.enqueue_in_thread(lambda _, kept: kept, bytearray(1000)),
        ]
        with anyio.move_on_after(self.rng.random() * 0.002):
            await self.rng.choice(waits)()
        future: Any = stream.completion_future()
        future.cancel()

    async def call_host_functions(self) -> None:
        stream = self.some_stream()
        called: list[Any] = []
        for number in range(10):
            stream.launch_host_func(called.append, number)
            stream.add_callback(lambda error: called.append(error))
        await stream.synchronize_async()
        assert len(called) == 20
        self.completions += 21

    async def use_a_pool(self) -> None:
        async with (
            StreamPool(2, max_waiting=4, wait=self.rng.choice(STRATEGIES)) as pool,
            anyio.create_task_group() as group,
        ):
            for _ in range(8):
                group.start_soon(self.one_request, pool)

    async def one_request(self, pool: StreamPool) -> None:
        try:
            with anyio.move_on_after(0.02 if self.rng.random() < 0.3 else 30):
                async with pool.stream() as stream:
                    self.some_work(stream)
                    await stream.enqueue_async(lambda given, kept: kept, bytearray(100))
                    self.completions += 1
        except aiostream.PoolFullError:
            pass

    async def capture(self) -> None:
        stream = Stream()
        called: list[int] = []
        self.some_work(stream)
        with stream.capture(aiostream.CaptureMode.THREAD_LOCAL) as scope:
            stream.launch_host_func(called.append, 1)
        with scope.graph as graph, graph.instantiate() as executable:
            for _ in range(3):
                await executable.launch_async(stream)
            await executable.launch_and_wait(stream)
            self.completions += 4
            with graph.clone() as clone:
                executable.update(clone)
        await stream.aclose()
        assert len(called) == 4

    async def borrow(self) -> None:
        owner = Stream()
        self.some_work(owner)
        handle = owner.to_borrowed()
        foreign = Stream.borrow(owner.handle)
        await handle.synchronize_async()
        await foreign.completion_future()
        self.completions += 2
        handle.close()
        foreign.close()
        Stream.from_raw(owner.into_raw()).close()

    async def end_streams(self) -> None:
        stream, dropped = Stream(wait=self.rng.choice(STRATEGIES)), Stream()
        spin(stream, 0.001)
        spin(dropped, 0.0005)
        future: Any = dropped.completion_future()
        del dropped

        async def wait_for_closed() -> None:
            with contextlib.suppress(StreamClosedError):
                await stream.synchronize_async()

        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_closed)
            if self.rng.random() < 0.5:
                await anyio.lowlevel.checkpoint()
            stream.close()
        await future
        self.completions += 1
        async with Stream() as other:
            self.some_work(other)
        self.completions += 1

    async def leave_pending(self) -> None:
        """The loop may end before these do."""
        stream = self.some_stream()
        spin(stream, 0.001)
        stream.completion_future()
        stream.enqueue_async(lambda _, kept: kept, bytearray(100))

    async def wave(self) -> None:
        """Many short waits, for the number."""
        stream, other = self.streams[0], self.streams[1]
        for _ in range(100):
            await stream.synchronize_async()
            futures: list[Any] = [other.enqueue_async(_nothing) for _ in range(10)]
            for future in futures:
                await future
            self.completions += 11


class Soak(Activities):
    """A run: its long-lived streams and pools, and how far it has come."""

    def __init__(self, seed: int) -> None:
        self.devices = [Device(number) for number in range(Device.count())]
        super().__init__(
            seed,
            [Stream(device=device, wait=wait) for device in self.devices for wait in STRATEGIES],
        )
        self.did: dict[str, int] = {}
        self.contexts = 0
        self.gate = Gate()
        for device in self.devices:
            internals.load_kernels(device.primary_context)
        self.wait_lists = 0
        self.replace_wait_lists()

    def replace_wait_lists(self) -> None:
        """Lets each context remember unused streams in place of those that it has met.

        The streams of a pool share one history. So the number of histories depends on how many
        of the remembered streams were a pool's, and only a number without them can stay flat.
        """
        for device in self.devices:
            for _ in range(WAIT_LISTS):
                self.wait_lists += 1
                internals.use_wait_list(device.primary_context, -self.wait_lists)

    async def use_a_gate(self) -> None:
        """Values in memory that one stream writes and the other waits for; events between
        streams.
        """
        first, second = Stream(), Stream()
        self.gate.shut()
        self.gate.hold(first)
        event = aiostream.Event()
        event.record(first)
        second.wait_event(event)
        future = second.completion_future()
        await anyio.lowlevel.checkpoint()
        assert not future.done()
        self.gate.open()
        await future
        await event.synchronize_async()
        self.completions += 2
        first.close()
        second.close()

    async def use_a_context(self) -> None:
        """A context of its own, made and destroyed."""
        if self.contexts >= MOST_CONTEXTS:
            return
        self.contexts += 1
        handle = internals.create_context()
        context = aiostream.Context.from_handle(int(handle))
        with context.as_current():
            stream = Stream()
        await stream.synchronize_async()
        await stream.enqueue_async(lambda _: None)
        await stream.aclose()
        self.completions += 2
        internals.driver_call("cuCtxDestroy", handle)

    # --------------------------------------------------------------------------------------- rounds

    def activities(self) -> list[Callable[[], Awaitable[None]]]:
        often = [self.wave, self.any_await] * 3
        waits = [self.wait_steadily, self.cancel, self.call_host_functions]
        return [
            *(*often, *waits),
            *(self.use_a_pool, self.capture, self.borrow, self.end_streams, self.leave_pending),
        ]

    async def one_loop(self, number: int) -> None:
        """The life of one loop: several tasks, each with a few activities."""

        async def task() -> None:
            for _ in range(5):
                activity = self.rng.choice(self.activities())
                self.did[activity.__name__] = self.did.get(activity.__name__, 0) + 1
                try:
                    with anyio.fail_after(60):
                        await activity()
                except TimeoutError:
                    raise HangError(activity.__name__) from None

        async with anyio.create_task_group() as group:
            for _ in range(number):
                group.start_soon(task)
            if self.rng.random() < 0.1:
                group.cancel_scope.cancel()
        await self.use_a_gate()
        if self.rng.random() < 0.2:
            await self.use_a_context()

    def round(self) -> None:
        """A few loops at once, one in each thread, and the end of all that they have begun."""
        kinds = [self.rng.choice(LOOPS) for _ in range(self.rng.choice([1, 1, 1, 3]))]
        errors: list[BaseException] = []

        def run(kind: str) -> None:
            try:
                run_on(kind, self.one_loop_alone if len(kinds) > 1 else self.one_loop, 4)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(kind,)) for kind in kinds[1:]]
        for thread in threads:
            thread.start()
        run(kinds[0])
        for thread in threads:
            thread.join(120)
            if thread.is_alive():
                raise HangError("a loop in a thread")
        if errors:
            raise errors[0]

    async def one_loop_alone(self, number: int) -> None:
        """One of several loops: without what takes all the streams for itself."""
        for _ in range(3):
            await self.any_await()
            await self.cancel()
            await self.wave()
            await self.use_a_pool()

    def quiet(self) -> None:
        """Waits until nothing is pending. The numbers of `statistics()` must add up then."""
        if not settle(is_at_rest, 5):
            gc.collect()  # what a dead loop had may be in a cycle
            if not settle(is_at_rest, 60):
                left = [internals.describe(owner) for owner in internals.owners()]
                raise HangError(f"no rest: {statistics()}, {left}")

    def run(self, seconds: float, say: Callable[[str], None]) -> list[Sample]:
        """Goes on for that long, and at least for nine samples. Returns the samples, one a second
        in a long run, but at most 300: they must not grow themselves.
        """
        began = reported = sampled = time.monotonic()
        every = max(min(1.0, seconds / 12), seconds / 300)
        samples: list[Sample] = []
        while (now := time.monotonic()) < began + seconds or len(samples) < 9:
            self.round()
            if now < sampled + every:
                continue
            sampled = now
            self.quiet()
            gc.collect()
            settle(lambda: statistics().handles.open == len(self.streams))
            self.replace_wait_lists()
            samples.append(sample())
            if now >= reported + 10:
                reported = now
                say(f"{now - began:.0f} s, {self.completions} completions, {samples[-1]}")
        self.quiet()
        return samples

    def close(self) -> None:
        """Closes what lived all the time."""
        for stream in self.streams:
            stream.close()
        self.gate.open()


def _nothing(_: Stream) -> None:
    """Enqueues nothing: its future ends when the stream has come to that point."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--driver", choices=["simulator", "gpu"], default="simulator")
    options = parser.parse_args()
    if options.driver == "simulator":
        from aiostream import simulator

        simulator.install(devices=2)
    warnings.simplefilter("error")
    # Debug mode warns of slow callbacks, which a busy machine makes.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    print(
        f"seed {options.seed}, {options.driver}, {Device.count()} devices ({Device(0).name}), "
        f"Python {sys.version.split()[0]}"
    )
    soak = Soak(options.seed)
    samples = soak.run(options.seconds, lambda line: print(line, flush=True))
    grown = growth(samples)
    soak.close()
    print(
        f"{soak.completions} completions in {options.seconds:.0f} s; {soak.did}, contexts: "
        f"{soak.contexts}"
    )
    print(f"{statistics()}")
    print(f"first {samples[0]}\nlast  {samples[-1]}")
    print(f"GREW: {grown}" if grown else "nothing grew")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
