"""What all measures share: the peers that can be had, their streams, and how to run something on a loop."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from aiostream import _driver
from aiostream.bench import gpu, loops, turns
from aiostream.bench.companion import Companion, Older
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
        self,
        loop_names: Sequence[str],
        peer_names: Sequence[str] | None,
        *,
        simulator: bool,
        say: Callable[[str], None],
    ) -> None:
        known = all_peers()
        self.simulator = simulator
        self.peers = {name: known[name] for name in (known if peer_names is None else peer_names)}
        self.loops = tuple(loop_names)
        self.not_run: list[Row] = []
        self._say = say
        self._out: set[tuple[str, str]] = set()
        self._pools: dict[tuple[str, str], list[BenchStream]] = {}
        self._companion: Companion | None = None
        gpu.make_current()

    # -------------------------------------------------------------------------------------------- who takes part

    def add(self, companion: Companion) -> None:
        """Adds the peers of an older library. `close` ends its process."""
        self._companion = companion
        self.peers.update((peer.name, peer) for peer in companion.peers)

    @property
    def older_folder(self) -> str:
        """Where the older library is unpacked.

        Raises:
            RuntimeError: There is none.
        """
        if self._companion is None:
            raise RuntimeError("there is no older library: --older names its wheel")
        return self._companion.folder

    def try_out(self) -> None:
        """Imports what the peers need and has each wait once on each loop."""
        for loop in [loop for loop in self.loops if loops.missing(loop)]:
            self.leave_out("every peer", loop, str(loops.missing(loop)))
        self.loops = tuple(loop for loop in self.loops if not loops.missing(loop))
        for peer in list(self.peers.values()):
            if self.simulator and peer.runtime:
                self._drop_everywhere(
                    peer, "it needs CUDA's runtime library, and the simulator is a driver only"
                )
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
            if isinstance(peer, Older):
                self._try_older(peer, loop)
                continue
            bench_stream = BenchStream(peer.new_stream())
            try:
                with peer.selected():
                    loops.run(loop, self._trial, peer, bench_stream)
            except Exception as error:
                self.drop(peer.name, loop, error)
            finally:
                bench_stream.close()

    def _try_older(self, peer: Older, loop: str) -> None:
        request = {
            "turn": "waits",
            "pool": "trial",
            "streams": 1,
            "lengths": [],
            "warm": [5_000] * 2,
            "seed": 0,
        }
        try:
            peer.ask(loop, request, TRIAL)
        except RuntimeError as error:
            self.drop(peer.name, loop, error)

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
        return [
            self.peers[name]
            for name in wanted
            if name in self.peers and (name, loop) not in self._out
        ]

    # -------------------------------------------------------------------------------------------- streams and loops

    def bench_streams(self, peer: Peer, count: int, pool: str = "") -> list[BenchStream]:
        """So many streams, kept until `close_pool` or `close`.

        They are made here, while nothing is in flight, because making them would block then.

        Args:
            peer: Peers of the same kind share streams.
            count: How many.
            pool: The name of a group of streams that no other measure uses; by default those of the whole run.
        """
        streams = self._pools.setdefault((pool, peer.kind), [])
        while len(streams) < count:
            streams.append(BenchStream(peer.new_stream()))
        return streams[:count]

    def close_pool(self, pool: str) -> None:
        """Destroys the streams of a pool, the older library's too."""
        for key in [key for key in self._pools if key[0] == pool]:
            for bench_stream in self._pools.pop(key):
                bench_stream.close()
        if self._companion is not None:
            with contextlib.suppress(RuntimeError):  # its peers are left out where they failed
                self._companion.ask({"turn": "close", "pool": pool}, TRIAL)

    def close(self) -> None:
        """Destroys the streams, and leaves the thread's context and the garbage collector as they were."""
        gc.unfreeze()
        if self._companion is not None:
            self._companion.close()
            self._companion = None
        for pool in {pool for pool, _ in self._pools}:
            self.close_pool(pool)
        _driver.call("cuCtxPopCurrent")

    def each_in_turn(
        self,
        loop: str,
        peers: Sequence[Peer],
        number: int,
        measure: Callable[[LoopAdapter, Peer], Any],
    ) -> Iterator[tuple[Peer, Any]]:
        """Runs `measure(adapter, peer)` for each peer, each time beginning with another. A peer that fails is left out.

        Args:
            loop: The loop, a new one for each.
            peers: Those that take part.
            number: The round's number.
            measure: A coroutine function.
        """
        yield from self._in_turn(loop, peers, number, lambda peer: loops.run(loop, measure, peer))

    def take_turns(
        self, loop: str, names: Iterable[str], number: int, request: dict[str, Any], seconds: float
    ) -> Iterator[tuple[Peer, Any]]:
        """Has each peer take a turn of `turns.py`, the older library's peers too. A peer that fails is left out.

        Args:
            loop: The loop, a new one for each.
            names: The peers that are wanted.
            number: The round's number.
            request: `turn`, its settings, and on how many `streams` of which `pool`.
            seconds: About how long one turn takes.
        """
        peers = self.taking_part(names, loop)
        for peer in peers:
            if not isinstance(peer, Older):
                self.bench_streams(peer, request["streams"], request["pool"])

        def take(peer: Peer) -> Any:
            if isinstance(peer, Older):
                return peer.ask(loop, request, 60 + 10 * seconds)
            return loops.run(loop, self._turn, peer, request)

        yield from self._in_turn(loop, peers, number, take)

    async def _turn(self, adapter: LoopAdapter, peer: Peer, request: dict[str, Any]) -> Any:
        bench_streams = self.bench_streams(peer, request["streams"], request["pool"])
        with gpu.quiet():
            return await turns.take(
                adapter, [_lane(adapter, peer, each) for each in bench_streams], request
            )

    def _in_turn(
        self, loop: str, peers: Sequence[Peer], number: int, take: Callable[[Peer], Any]
    ) -> Iterator[tuple[Peer, Any]]:
        start = number % max(1, len(peers))
        for peer in (*peers[start:], *peers[:start]):
            if (peer.name, loop) in self._out:
                continue
            try:
                with peer.selected():
                    result = take(peer)
            except Exception as error:
                self.drop(peer.name, loop, error)
            else:
                yield peer, result


def _lane(adapter: LoopAdapter, peer: Peer, bench_stream: BenchStream) -> turns.Lane:
    wait = peer.waiter(adapter, bench_stream)
    if not peer.blocks:
        return bench_stream.spin, wait

    async def wait_and_yield() -> None:
        await wait()
        await adapter.checkpoint()

    return bench_stream.spin, wait_and_yield


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__
