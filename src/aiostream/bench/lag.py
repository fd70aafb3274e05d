"""How late the loop comes to something else beside a load of completions, against the same wake-ups without a GPU.

A timer descriptor fires every millisecond, and what is measured is from its instant to the task that waits for it. Beside it
run 64 streams, each with its task. Their resumptions are noted, and the same pattern is then played back to as many tasks that
wait for plain futures of the loop: once as it is, and once with as much computing at each as a launch took.
"""

from __future__ import annotations

import collections
import ctypes
import os
import statistics
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic_ns, perf_counter_ns
from typing import Any

from aiostream.bench import gpu, stats
from aiostream.bench.gpu import BenchStream
from aiostream.bench.latency import duration
from aiostream.bench.loops import LoopAdapter
from aiostream.bench.peers import Peer
from aiostream.bench.runner import Row, Runner

PLAIN = "plain futures"
PLAIN_BUSY = "plain futures with a launch's computing"
TICK = 1_000_000  # ns


@dataclass(frozen=True)
class Lag:
    """The lag of a loop beside busy streams.

    Attributes:
        loops: Where.
        peers: Who; the first one's wake-ups are also played back without a GPU.
        streams: How many streams.
        length: The kernels' length in ns.
        rounds: How many windows for each peer, in turn.
        window: Seconds.
        warm: Seconds before the window.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    streams: int = 64
    length: int = 5_000_000
    rounds: int = 3
    window: float = 1.0
    warm: float = 0.2

    @property
    def title(self) -> str:
        """What is measured."""
        return f"loop lag beside {self.streams} x {duration(self.length)}"

    def seconds(self) -> float:
        """About how long it will take."""
        each = self.window + self.warm + 0.1
        return len(self.loops) * self.rounds * (len(self.peers) * each + 2 * each)

    def run(self, runner: Runner) -> list[Row]:
        """Measures."""
        lags: dict[tuple[str, str], list[int]] = {}
        counts: dict[tuple[str, str], int] = {}
        for number in range(self.rounds):
            for loop in self.loops:
                peers = runner.taking_part(self.peers, loop)
                bench_streams = {
                    peer.name: runner.bench_streams(peer, self.streams) for peer in peers
                }

                async def measure(
                    adapter: LoopAdapter,
                    peer: Peer,
                    bench_streams: dict[str, list[BenchStream]] = bench_streams,
                ) -> list[tuple[str, _Window]]:
                    window = await self._beside_streams(adapter, peer, bench_streams[peer.name])
                    played = [(peer.name, window)]
                    if peer.name == self.peers[0]:
                        played.append((PLAIN, await self._beside_futures(adapter, window, 0)))
                        played.append(
                            (PLAIN_BUSY, await self._beside_futures(adapter, window, window.launch))
                        )
                    return played

                for _, windows in runner.each_in_turn(loop, peers, number, measure):
                    for name, window in windows:
                        lags.setdefault((loop, name), []).extend(window.lags)
                        counts[loop, name] = counts.get((loop, name), 0) + len(window.resumed)
        return [
            self._row(loop, name, found, counts[loop, name]) for (loop, name), found in lags.items()
        ]

    async def _beside_streams(
        self, adapter: LoopAdapter, peer: Peer, bench_streams: list[BenchStream]
    ) -> _Window:
        window = _Window()
        launching: list[int] = []

        def busy(bench_stream: BenchStream) -> Callable[[], Awaitable[None]]:
            wait = peer.waiter(adapter, bench_stream)

            async def task() -> None:
                while not window.stop:
                    began = perf_counter_ns()
                    bench_stream.spin(self.length)
                    launching.append(perf_counter_ns() - began)
                    await wait()
                    window.resumed.append(monotonic_ns())
                    if peer.blocks:
                        await adapter.checkpoint()

            return task

        with gpu.quiet():
            await adapter.together(
                [*map(busy, bench_streams), *window.watching(adapter, self.warm, self.window)]
            )
        window.launch = round(statistics.median(launching))
        return window

    async def _beside_futures(self, adapter: LoopAdapter, pattern: _Window, launch: int) -> _Window:
        window = _Window()
        waiting: collections.deque[Callable[[], Any]] = collections.deque()

        async def task() -> None:
            while not window.stop:
                done, wake = adapter.plain()
                waiting.append(wake)
                await done
                window.resumed.append(monotonic_ns())
                until = perf_counter_ns() + launch
                while launch and perf_counter_ns() < until:
                    pass

        async def player() -> None:
            started = pattern.resumed[0]
            offset = monotonic_ns() + 1_000_000 - started
            due = collections.deque(when + offset for when in pattern.resumed)
            with _Timer() as timer:
                while due and not window.stop:
                    timer.set(due[0])
                    await adapter.readable(timer.descriptor)
                    timer.take()
                    now = monotonic_ns()
                    while due and due[0] <= now:
                        due.popleft()
                        if waiting:
                            waiting.popleft()()

        async def end() -> None:
            while not window.stop:
                await adapter.sleep(0.01)
            while waiting:
                waiting.popleft()()

        with gpu.quiet():
            tasks = [task] * self.streams
            await adapter.together(
                [*tasks, player, end, *window.watching(adapter, self.warm, self.window)]
            )
        return window

    def _row(self, loop: str, peer: str, lags: list[int], count: int) -> Row:
        micro = [lag / 1e3 for lag in lags]
        return {
            "measure": "lag",
            "loop": loop,
            "peer": peer,
            "streams": self.streams,
            "length_ns": self.length,
            "samples": len(micro),
            "wake_ups_per_second": round(count / (self.rounds * (self.window + self.warm))),
            "p50_us": round(stats.percentile(micro, 50), 1),
            "p99_us": round(stats.percentile(micro, 99), 1),
            "p999_us": round(stats.percentile(micro, 99.9), 1),
            "lag_ns": lags,
        }


@dataclass
class _Window:
    """What one window saw; times in ns of the monotonic clock."""

    resumed: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    launch: int = 0
    recording: bool = False
    stop: bool = False

    def watching(
        self, adapter: LoopAdapter, warm: float, length: float
    ) -> list[Callable[[], Awaitable[None]]]:
        """The two tasks that measure."""

        async def clock() -> None:
            await adapter.sleep(warm)
            self.recording = True
            await adapter.sleep(length)
            self.recording, self.stop = False, True

        async def ticks() -> None:
            with _Timer() as timer:
                due = monotonic_ns() + TICK
                timer.set(due, TICK)
                while not self.stop:
                    await adapter.readable(timer.descriptor)
                    fired = timer.take()  # before the clock is read, or one might fire in between
                    now = monotonic_ns()
                    for _ in range(fired):
                        if self.recording:
                            self.lags.append(now - due)
                        due += TICK

        return [clock, ticks]


class _Timer:
    """Linux's timer descriptor, which is exact where the loops' own timers count milliseconds. Python has it from 3.13 on."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.timerfd_create(
            1, os.O_NONBLOCK | os.O_CLOEXEC
        )  # CLOCK_MONOTONIC
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, when: int, interval: int = 0) -> None:
        """Fires at an instant of the monotonic clock, and then in intervals."""
        second = 1_000_000_000
        setting = struct.pack(
            "4q", interval // second, interval % second, when // second, when % second
        )
        if self._libc.timerfd_settime(self.descriptor, 1, setting, None) != 0:  # TFD_TIMER_ABSTIME
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def take(self) -> int:
        """How often it has fired since the last time."""
        try:
            return int(struct.unpack("Q", os.read(self.descriptor, 8))[0])
        except BlockingIOError:
            return 0

    def __enter__(self) -> _Timer:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.descriptor)
