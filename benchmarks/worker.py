"""The process in which the peers wait, so that nothing of the report disturbs them.

Of aiostream it uses the public interface only, as far as all versions have it, because `compare`
runs it with an older one too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import aiostream
from benchmarks import child, lanes, latency, loops, patterns, windows
from benchmarks.lanes import Lane
from benchmarks.loops import LoopAdapter
from benchmarks.measure import Found, Measure, Turn
from benchmarks.peers import Peer, all_peers

MEASURES = (latency, patterns, windows)  # imported so that `Measure.of` knows them
TRIAL = 10.0  # seconds in which a peer must have waited for a kernel of 5 us


class Worker:
    """The peers and their streams. Device 0's primary context is current until `close`.

    Args:
        library: The module `aiostream`, of any version.
    """

    def __init__(self, library: Any) -> None:
        self.peers = all_peers()
        self._context = lanes.current(library)
        self._context.__enter__()
        self._kernels = lanes.load()
        self._pools: dict[tuple[str, str], list[Lane]] = {}

    def answer(self, request: dict[str, Any]) -> Any:
        """Does what a request asks for."""
        known = {"prepare": self._prepare, "try": self._try, "turn": self._turn}
        known["close"] = self._close_pool
        return known[request["do"]](request)

    def _prepare(self, request: dict[str, Any]) -> None:
        """Imports what a peer needs."""
        peer = self.peers[request["peer"]]
        if peer.prepare is not None:
            peer.waiter = peer.prepare()

    def _try(self, request: dict[str, Any]) -> None:
        """Has a peer wait twice on a loop."""
        peer = self.peers[request["peer"]]
        lane = self._new_lane(peer)
        try:
            loops.run(request["loop"], self._trial, peer, lane)
        finally:
            lane.close()

    @staticmethod
    async def _trial(adapter: LoopAdapter, peer: Peer, lane: Lane) -> None:
        wait = peer.on(adapter, lane)

        async def twice() -> None:
            for _ in range(2):
                lane.spin(5_000)
                await wait()

        await adapter.within(TRIAL, twice)

    def _turn(self, request: dict[str, Any]) -> Found:
        """A turn of a measure, of its `class` and `settings`."""
        peer, job = self.peers[request["peer"]], Measure.of(request)
        # The streams are made while nothing is in flight, because making them would block then.
        streams = self._pools.setdefault((request["pool"], peer.kind), [])
        while len(streams) < job.lanes:
            streams.append(self._new_lane(peer))

        async def take(adapter: LoopAdapter) -> Found:
            own = streams[: job.lanes]
            return await job.turn(Turn(adapter, peer, request["number"], own))

        with lanes.quiet():
            return dict(loops.run(request["loop"], take))

    def _new_lane(self, peer: Peer) -> Lane:
        return Lane(peer.new_stream(), self._kernels)

    def _close_pool(self, request: dict[str, Any]) -> None:
        """Destroys the streams of a pool."""
        for key in [key for key in self._pools if key[0] == request["pool"]]:
            for lane in self._pools.pop(key):
                lane.close()

    def close(self) -> None:
        """Destroys every stream, and leaves the thread's context and the collector as they were."""
        for pool, _ in list(self._pools):
            self._close_pool({"pool": pool})
        gc.unfreeze()
        self._context.__exit__(None, None, None)


def library(settings: dict[str, Any]) -> Any:
    """The aiostream of this process.

    Args:
        settings: `folder`: where it must lie; `simulator`: whether to install the simulator.

    Raises:
        RuntimeError: Another one was imported.
    """
    package = Path(settings["folder"]).resolve() / "aiostream"
    for module in (aiostream, importlib.import_module("aiostream._native")):
        path = Path(str(module.__file__)).resolve()
        if path.parent != package:
            raise RuntimeError(f"{path} was imported, and not the aiostream in {package.parent}")
    if settings.get("simulator"):
        from aiostream import simulator

        simulator.install()
    return aiostream


def imported(library: Any) -> str:
    """The version of a library, and the file that was imported."""
    return f"{library.__version__} from {library.__file__}"


def main() -> None:
    """Answers until standard input ends."""
    settings = json.loads(sys.argv[1])

    def begin() -> Any:
        worker = Worker(library(settings))
        ended.callback(worker.close)
        from aiostream import simulator
        from benchmarks import results

        hello = {"library": imported(aiostream), "simulator": simulator.installed()}
        return {**hello, "environment": results.environment()}, worker.answer

    with contextlib.ExitStack() as ended:
        child.serve(begin)


if __name__ == "__main__":
    main()
