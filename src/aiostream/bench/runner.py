"""What all measures share: the peers that can be had, their streams, and how to run something on a loop."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from aiostream import _driver
from aiostream.bench import gpu, loops
from aiostream.bench.gpu import BenchStream
from aiostream.bench.loops import LoopAdapter
from aiostream.bench.peers import Peer, all_peers

Row = dict[str, Any]  # one row of the results, as it stands in the JSON file

TRIAL = 10.0  # seconds in which a peer must have waited for a kernel of 5 us


class Job(Protocol):
    """One setting, measured for several peers in turn."""

    @property
    def title(self) -> str:
        """What is measured, in a few words."""

    def seconds(self) -> float:
        """About how long it will take on a GPU."""

    def run(self, runner: Runner) -> list[Row]:
        """Measures, and returns a row for each peer and loop."""


class Runner:
    """The peers and their streams.

    Args:
        loop_names: The loops that are wanted.
        peer_names: The peers that are wanted; all by default.
        simulator: Whether the driver is the simulator.
        say: What prints a line of progress.
    """

    def __init__(
        self, loop_names: Sequence[str], peer_names: Sequence[str] | None, *, simulator: bool, say: Callable[[str], None]
    ) -> None:
        known = all_peers()
        self.simulator = simulator
        self.peers = {name: known[name] for name in (peer_names or known)}
        self.loops = tuple(loop_names)
        self.not_run: list[Row] = []
        self._say = say
        self._out: set[tuple[str, str]] = set()
        self._pools: dict[str, list[BenchStream]] = {}
        gpu.make_current()

    # -------------------------------------------------------------------------------------------- who takes part

    def try_out(self) -> None:
        """Imports what the peers need and has each wait once on each loop."""
        for loop in [loop for loop in self.loops if loops.missing(loop)]:
            self.leave_out("every peer", loop, str(loops.missing(loop)))
        self.loops = tuple(loop for loop in self.loops if not loops.missing(loop))
        for peer in list(self.peers.values()):
            if self.simulator and peer.runtime:
                self._drop_everywhere(peer, "it needs CUDA's runtime library, and the simulator is a driver only")
                continue
            try:
                peer.prepare()
            except Exception as error:
                self._drop_everywhere(peer, _reason(error))
                continue
            self._try_on_loops(peer)

    def _try_on_loops(self, peer: Peer) -> None:
        for loop in self.loops:
            if loop not in peer.loops:
                self.drop(peer.name, loop, f"it does not know {loop}")
                continue
            bench_stream = BenchStream(peer.new_stream())
            try:
                with peer.selected():
                    loops.run(loop, self._trial, peer, bench_stream)
            except Exception as error:
                self.drop(peer.name, loop, error)
            finally:
                bench_stream.close()

    @staticmethod
    async def _trial(adapter: LoopAdapter, peer: Peer, bench_stream: BenchStream) -> None:
        wait = peer.waiter(adapter, bench_stream)

        async def twice() -> None:
            for _ in range(2):
                bench_stream.spin(5_000)
                await wait()

        await adapter.within(TRIAL, twice)

    def drop(self, peer: str, loop: str, reason: str | Exception) -> None:
        """Leaves a peer out on one loop from now on, and says why."""
        if (peer, loop) not in self._out:
            self._out.add((peer, loop))
            self.leave_out(peer, loop, reason)

    def _drop_everywhere(self, peer: Peer, reason: str) -> None:
        self._out.update((peer.name, loop) for loop in self.loops)
        self.leave_out(peer.name, "every loop", reason)

    def leave_out(self, what: str, loop: str, reason: str | Exception) -> None:
        """Notes that something is not run, on a loop if it is one's own, and says so."""
        text = reason if isinstance(reason, str) else _reason(reason)
        self.not_run.append({"peer": what, "loop": loop, "reason": text})
        self._say(f"not run: {what}{' on ' + loop if loop else ''}: {text}")

    def taking_part(self, wanted: Iterable[str], loop: str) -> list[Peer]:
        """The peers of those wanted that can be had on a loop."""
        return [self.peers[name] for name in wanted if name in self.peers and (name, loop) not in self._out]

    # -------------------------------------------------------------------------------------------- streams and loops

    def bench_streams(self, peer: Peer, count: int) -> list[BenchStream]:
        """So many streams, kept for the whole run. They are made here, while nothing is in flight, or it would block."""
        pool = self._pools.setdefault(peer.kind, [])
        while len(pool) < count:
            pool.append(BenchStream(peer.new_stream()))
        return pool[:count]

    def close(self) -> None:
        """Destroys the streams, and leaves the thread's context and the garbage collector as they were."""
        gc.unfreeze()
        for pool in self._pools.values():
            for bench_stream in pool:
                bench_stream.close()
        self._pools.clear()
        _driver.call("cuCtxPopCurrent")

    def each_in_turn(
        self, loop: str, peers: Sequence[Peer], number: int, measure: Callable[[LoopAdapter, Peer], Any]
    ) -> Iterator[tuple[Peer, Any]]:
        """Runs `measure(adapter, peer)` for each peer, each time beginning with another. A peer that fails is left out.

        Args:
            loop: The loop, a new one for each.
            peers: Those that take part.
            number: The round's number.
            measure: A coroutine function.
        """
        start = number % max(1, len(peers))
        for peer in (*peers[start:], *peers[:start]):
            if (peer.name, loop) in self._out:
                continue
            try:
                with peer.selected():
                    result = loops.run(loop, measure, peer)
            except Exception as error:
                self.drop(peer.name, loop, error)
            else:
                yield peer, result


def pause(generator: random.Random) -> None:
    """A moment between two samples, of uneven length so that nothing falls into step, in which nobody needs the CPU."""
    time.sleep(generator.uniform(0.00005, 0.00025))


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__
