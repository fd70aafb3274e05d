"""Which settings are measured, for the goals and for the tables, in full and quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.idle import Idle
from benchmarks.lag import Lag
from benchmarks.latency import Latency
from benchmarks.measure import Measure
from benchmarks.patterns import Patterns
from benchmarks.peers import AUTO, ENQUEUE, HOSTFUNC, NO_WAIT, SLEEPING, THREADS, UNPREDICTED
from benchmarks.pending import Memory, Pending
from benchmarks.server import LOADS, PEERS, USUAL, Server
from benchmarks.serving import WAYS
from benchmarks.torch_server import LOADS as TORCH_LOADS
from benchmarks.torch_server import TorchServer
from benchmarks.torch_ways import WAYS as TORCH_WAYS
from benchmarks.windows import Fairness, Full, Mixed, OneCore, Throughput
from benchmarks.work import MS, US

LENGTHS = (5 * US, 20 * US, 100 * US, 300 * US, 1 * MS, 5 * MS, 20 * MS, 100 * MS)
STEADY = LENGTHS[2:]
TRIO_THROUGHPUT = (
    *((1, 0), (8, 500 * US), (32, 500 * US), (64, 0)),
    *((64, 5 * MS), (128, 5 * MS), (256, 5 * MS)),
)  # streams, and the kernels' length
ENQUEUED = (100 * US, 1 * MS, 5 * MS)  # at these lengths it is compared with synchronize_async
TAIL_PEERS = (AUTO, "aiostream event", THREADS[1], "polling", SLEEPING)  # unless others are chosen
CROWDS = (8, 16, 64, 128)  # streams of mixed work
# Streams, and the kernels' length in ns, or 0 for log-normal. 64 x 0.5 ms leave no time to a loop.
FULL = ((16, 5 * MS), (64, 5 * MS), (128, 20 * MS), (64, 500 * US), (16, 0), (64, 0), (128, 0))
FULL_PEERS = (AUTO, "aiostream event", "polling", SLEEPING, NO_WAIT)  # unless others are chosen

TAILS = (
    "patterns",
    "mixed",
    "full",
    "fairness",
    "one-core",
)  # of late ends, and of tasks that suffer
MEASURES = ("goals", *TAILS, "server")
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
        loops: On which loops; the goals are on uvloop where it is among them, and compare trio with
            asyncio.
        peers: Whom to compare in the tables; the goals have peers of their own.
        cut: How much of it.
    """
    found = list(_PLANS[measure](tuple(loops), tuple(peers), cut))
    if cut.quick:
        found = [replace(job, **job.QUICK) for job in found if not job.long]
    if cut.rounds and measure in (*TAILS, *SERVERS):
        found = [_with_rounds(job, cut.rounds) for job in found]
    return found


def _with_rounds(job: Measure, rounds: int) -> Measure:
    if isinstance(job, OneCore):
        return replace(job, parts=tuple(replace(part, rounds=rounds) for part in job.parts))
    return replace(job, rounds=rounds)


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


# ------------------------------------------------------------------------------------------- goals


def _goals(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    main = ("uvloop" if "uvloop" in loops else loops[0],)
    thread = next((name for name in THREADS if name in peers), THREADS[1])
    found: list[Measure] = [
        Latency(main, ("blocking", AUTO, "cupy", thread), length=20 * US, samples=600, rounds=10)
    ]
    for length in STEADY:
        samples = 200 if length > 5 * MS else 400
        for load in ("steady", "varying"):
            ours = (AUTO, ENQUEUE) if load == "steady" and length in ENQUEUED else (AUTO,)
            found.append(Latency(main, (*ours, thread), length=length, load=load, samples=samples))
    unpredictable = partial(Latency, main, length=0, load="unpredictable")
    throughput = partial(Throughput, main)
    many: dict[str, Any] = {
        "streams": 128,
        "length": 5 * MS,
        "window": 0.7,
        "warm": 0.2,
        "rounds": 7,
    }
    beside: dict[str, Any] = {
        "streams": 126,
        "length": 500 * US,
        "window": 1.0,
        "warm": 0.15,
        "neighbours": 2,
    }
    found += [
        unpredictable((AUTO, HOSTFUNC, UNPREDICTED), samples=400, rounds=10),
        Latency(main, (AUTO, HOSTFUNC), length=100 * MS, load="fresh", samples=200),
        throughput((AUTO, "polling", HOSTFUNC, thread), **many),
        throughput((AUTO, "polling", "cupy"), streams=64, rounds=9, window=0.5),
        throughput((AUTO, "polling"), rounds=7, **beside),
    ]
    for length, samples in ((100 * US, 300), (1 * MS, 300), (20 * MS, 100)):
        found.append(Idle(main, (AUTO,), length=length, samples=samples))
    found += [
        Idle(main, (AUTO, UNPREDICTED), length=60 * MS, samples=40, rounds=4, busy=True),
        Lag(main, (AUTO,), rounds=5),
        Pending(main, (AUTO,)),
        Memory(("asyncio",), (AUTO,)),
    ]
    return found + (_trio_against_asyncio() if "trio" in loops else [])


def _trio_against_asyncio() -> list[Measure]:
    both: tuple[Names, Names] = (("asyncio", "trio"), (AUTO,))
    found: list[Measure] = []
    for length in LENGTHS:
        samples = 40 if length == 100 * MS else 100 if length > 1 * MS else 200
        found.append(Latency(*both, length=length, samples=samples, rounds=4))
    for streams, length in TRIO_THROUGHPUT:
        found.append(Throughput(*both, streams=streams, length=length, rounds=5, window=0.4))
    return found


# -------------------------------------------------------------------------------------- the others


def _patterns(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    return [Patterns(loops, peers, words=cut.words)]


def _mixed(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    found = [Mixed(loops, peers, streams=streams, window=0.6) for streams in CROWDS]
    return list(found[:1] if cut.quick else found)


def _full(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    found = [Full(loops, peers, streams=streams, length=length) for streams, length in FULL]
    return list(found[:1] if cut.quick else found)


def _one_core(loops: Names, peers: Names, cut: Cut) -> list[Measure]:
    parts: list[Measure] = [
        Patterns(loops, peers, words=cut.words, waits=40),
        Fairness(loops, peers),
    ]
    if cut.quick:
        parts = [replace(part, **part.QUICK) for part in parts]
    return [OneCore(loops, peers, parts=tuple(parts))]


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
    "goals": _goals,
    "patterns": _patterns,
    "mixed": _mixed,
    "full": _full,
    "fairness": lambda loops, peers, cut: [Fairness(loops, peers)],
    "one-core": _one_core,
    "server": _server,
    "torch": _torch,
}
