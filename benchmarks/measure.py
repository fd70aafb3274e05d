"""What a measure is: settings, a turn of one peer, and a row of figures from a peer's turns.

The turns run in a worker process (`worker.py`), the rest in the process that reports. A new measure
is a dataclass with `name`, `title`, `turn_seconds`, `turn` and `row`, an entry in `plan.py` and a
layout in `tables.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.lanes import Lane
from benchmarks.loops import LoopAdapter
from benchmarks.peers import Peer

if TYPE_CHECKING:
    from benchmarks.runner import Runner

Row = dict[str, Any]  # one row of the results, as it stands in the JSON file
Found = dict[str, Any]  # what one turn has found, as JSON

SHORT_PAUSE = (0.00005, 0.00025)  # s


@dataclass
class Turn:
    """One peer's turn, as the measure sees it in the worker.

    Attributes:
        adapter: The loop, a new one for each turn.
        peer: Who waits.
        number: The round's number.
        lanes: As many as the measure wants.
    """

    adapter: LoopAdapter
    peer: Peer
    number: int
    lanes: Sequence[Lane]

    def launcher(self, lane: Lane) -> Callable[[int], None]:
        """What launches a kernel on a lane, or what notes its length for a peer that launches."""
        return lane.expect if self.peer.launches else lane.spin

    def waiter(self, lane: Lane, *, yields: bool = False) -> Callable[[], Awaitable[Any]]:
        """The peer's wait on a lane.

        Args:
            lane: One of `lanes`.
            yields: Whether a peer that blocks then lets the other tasks run.
        """
        wait, checkpoint = self.peer.on(self.adapter, lane), self.adapter.checkpoint
        if not (yields and self.peer.blocks):
            return wait

        async def wait_and_yield() -> None:
            await wait()
            await checkpoint()

        return wait_and_yield


@dataclass(frozen=True)
class Measure:
    """One setting, measured for several peers in turn.

    Attributes:
        loops: Where.
        peers: Who.
        rounds: In how many turns of each peer.
        streams: On how many streams.
    """

    loops: tuple[str, ...]
    peers: tuple[str, ...]
    _: KW_ONLY
    rounds: int = 1
    streams: int = 1

    name: ClassVar[str]  # that of its rows
    can_block: ClassVar[bool] = True  # whether a peer may stop the loop
    QUICK: ClassVar[dict[str, Any]] = {}  # what shows that it works, in the least time
    known: ClassVar[dict[str, type[Measure]]] = {}  # by the class's name

    def __init_subclass__(cls) -> None:
        """Makes the class known to the workers."""
        Measure.known[cls.__name__] = cls

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        raise NotImplementedError

    @property
    def lanes(self) -> int:
        """How many streams a turn has."""
        return self.streams

    def turn_seconds(self) -> float:
        """About how long one turn takes on a GPU."""
        raise NotImplementedError

    def seconds(self) -> float:
        """About how long the whole takes."""
        turns = len(self.loops) * len(self.peers) * self.rounds
        return float(turns * self.turn_seconds())

    async def turn(self, turn: Turn) -> Found:
        """Measures one peer once."""
        raise NotImplementedError

    def row(self, turns: list[Found]) -> Row:
        """The figures of a peer's turns on one loop."""
        raise NotImplementedError

    def rows(self, peer: str, turns: list[Found]) -> Iterator[Row]:
        """The rows of a peer's turns on one loop. By default it is one."""
        yield {"peer": peer, **self.row(turns)}

    def run(self, runner: Runner) -> list[Row]:
        """Measures, and returns the rows of each peer and loop."""
        return [
            {"measure": self.name, "loop": loop, **row}
            for (loop, peer), turns in runner.turns(self).items()
            for row in self.rows(peer, turns)
        ]

    def request(self) -> dict[str, Any]:
        """What a worker makes the measure of."""
        return {"class": type(self).__name__, "settings": asdict(self)}

    @staticmethod
    def of(request: dict[str, Any]) -> Measure:
        """The measure of such a request. JSON has made lists of the tuples."""
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in request["settings"].items()
        }
        return Measure.known[request["class"]](**settings)


def merged(turns: list[Found], key: str) -> list[Any]:
    """One list of all turns' lists."""
    return [value for turn in turns for value in turn[key]]


# ------------------------------------------------------------------------------ one wait at a time


@dataclass
class Samples:
    """Waits for one kernel at a time; all in ns.

    Latency is host time from launch to resumption less the kernel's own length, so the launch (some
    3 us) and the GPU's own start are in it, the same for every peer. CPU is the process's, all
    threads, while the wait lasts.
    """

    latency_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)

    async def take(
        self, launch: Callable[[int], None], wait: Callable[[], Awaitable[Any]], length: int
    ) -> None:
        """One wait."""
        cpu = process_time_ns()
        began = perf_counter_ns()
        launch(length)
        await wait()
        wall = perf_counter_ns() - began
        self.cpu_ns.append(process_time_ns() - cpu)
        self.wall_ns.append(wall)
        self.latency_ns.append(wall - length)


async def pause(adapter: LoopAdapter, generator: random.Random) -> None:
    """Sleeps for a moment between two samples, and lets the other tasks run.

    The pause is uneven to avoid phase locking, and the CPU is idle meanwhile.
    """
    time.sleep(generator.uniform(*SHORT_PAUSE))  # noqa: ASYNC251  # the loop has nothing else
    await adapter.checkpoint()
