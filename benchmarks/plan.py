"""Which settings are measured, in full and quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.measure import Measure
from benchmarks.patterns import Patterns
from benchmarks.peers import AUTO, NO_WAIT, SLEEPING, THREADS
from benchmarks.server import LOADS, PEERS, USUAL, Server
from benchmarks.serving import WAYS
from benchmarks.torch_server import LOADS as TORCH_LOADS
from benchmarks.torch_server import TorchServer
from benchmarks.torch_ways import WAYS as TORCH_WAYS
from benchmarks.windows import Fairness, Full, Mixed
from benchmarks.work import MS, US

TAIL_PEERS = (AUTO, "aiostream event", THREADS[1], "polling", SLEEPING)  # unless others are chosen
CROWDS = (8, 16, 64, 128)  # streams of mixed work
# Streams, and the kernels' length in ns, or 0 for log-normal. 64 x 0.5 ms leave no time to a loop.
FULL = ((16, 5 * MS), (64, 5 * MS), (128, 20 * MS), (64, 500 * US), (16, 0), (64, 0), (128, 0))
FULL_PEERS = (AUTO, "aiostream event", "polling", SLEEPING, NO_WAIT)  # unless others are chosen

TAILS = ("patterns", "mixed", "full", "fairness")  # of late ends, and of tasks that suffer
MEASURES = (*TAILS, "server")
ON_REQUEST = ("torch",)  # not among "all": these need libraries and minutes of their own
SERVERS = ("server", "torch")

Names = tuple[str, ...]


@dataclass(frozen=True)
class Cut:
    """How much of the measures is wanted.

    Attributes:
        quick: As little of everything as shows that it works.
        rounds: Of the measures of `TAILS` and `SERVERS`; by default as many as give each percentile
            its samples.
        words: Which patterns, by words of their names; all by default.
        loads: Which loads of a server, by words of their names; by default the usual ones.
    """

    quick: bool = False
    rounds: int | None = None
    words: Names = ()
    loads: Names = ()


def jobs(measure: str, loops: Sequence[str], peers: Sequence[str], cut: Cut) -> list[Measure]:
    """The settings of one of `MEASURES` or `ON_REQUEST`.

    Args:
        measure: Its name.
        loops: On which loops.
        peers: Whom to compare.
        cut: How much of it.
    """
    found = list(_PLANS[measure](tuple(loops), tuple(peers), cut))
    if cut.quick:
        found = [replace(job, **job.QUICK) for job in found]
    if cut.rounds:
        found = [replace(job, rounds=cut.rounds) for job in found]
    return found


def peers_of(measure: str, chosen: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The peers of a measure: those that were chosen, or its own.

    Args:
        measure: Its name.
        chosen: The peers that were asked for, or `None`.
        known: All of this version.
    """
    if measure == "torch":
        return [name for name in chosen or TORCH_WAYS if name in TORCH_WAYS]
    if measure == "server":
        return [name for name in chosen or PEERS if name in WAYS]
    own = FULL_PEERS if measure == "full" else TAIL_PEERS if measure in TAILS else known
    return [name for name in chosen or own if name in known]


def _patterns(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    return [Patterns(loops, peers, words=cut.words)]


def _mixed(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    found = [Mixed(loops, peers, streams=streams, window=0.6) for streams in CROWDS]
    return list(found[:1] if cut.quick else found)


def _full(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    found = [Full(loops, peers, streams=streams, length=length) for streams, length in FULL]
    return list(found[:1] if cut.quick else found)


def _server(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    asked = [load for name, load in LOADS.items() if any(word in name for word in cut.loads)]
    loads = asked or list(USUAL)
    if cut.quick:  # the last of the usual loads shows nothing that the others do not
        loads = loads[: len(USUAL) - 1]
    return [Server(loops, peers, load=load) for load in loads]


def _torch(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    words = cut.loads or ("",)
    loads = [load for name, load in TORCH_LOADS.items() if any(word in name for word in words)]
    return [TorchServer(loops, peers, load=load) for load in loads[: 1 if cut.quick else None]]


_PLANS: dict[str, Callable[[Names, Names, Cut], list[Measure]]] = {
    "patterns": _patterns,
    "mixed": _mixed,
    "full": _full,
    "fairness": lambda loops, peers, cut: [Fairness(loops, peers)],
    "server": _server,
    "torch": _torch,
}
