"""Which settings are measured, for the goals and for the tables, in full and quickly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aiostream.bench.footprint import ImportTime, Memory
from aiostream.bench.idle import Idle
from aiostream.bench.lag import Lag
from aiostream.bench.latency import Latency
from aiostream.bench.onecore import OneCore
from aiostream.bench.patterns import Patterns
from aiostream.bench.pending import Pending
from aiostream.bench.runner import Job
from aiostream.bench.server import LOADS, USUAL, Server
from aiostream.bench.throughput import Throughput
from aiostream.bench.torch_server import LOADS as TORCH_LOADS
from aiostream.bench.torch_server import TorchServer
from aiostream.bench.windows import Fairness, Mixed

US, MS = 1_000, 1_000_000  # ns
LENGTHS = (5 * US, 20 * US, 100 * US, 300 * US, 1 * MS, 5 * MS, 20 * MS, 100 * MS)
STEADY = LENGTHS[2:]
STREAM_COUNTS = (1, 8, 32, 64, 128, 256)
KERNELS = (0, 500 * US, 5 * MS)
TRIO_THROUGHPUT = (
    (1, 0),
    (8, 500 * US),
    (32, 500 * US),
    (64, 0),
    (64, 5 * MS),
    (128, 5 * MS),
    (256, 5 * MS),
)
AUTO, UNPREDICTED, HOSTFUNC = "aiostream auto", "aiostream unpredicted", "aiostream hostfunc"
ENQUEUE = "enqueue_async"
ENQUEUED = (100 * US, 1 * MS, 5 * MS)  # at these lengths it is compared with synchronize_async
THREADS = ("to_thread", "to_thread bindings")  # the second stands in where there is no torch
SLEEPING = "sleep 1 ms"
TAIL_PEERS = (AUTO, "aiostream event", THREADS[1], "polling", SLEEPING)  # unless others are chosen

CROWDS = (8, 16, 64, 128)  # streams of mixed work
TAILS = (
    "patterns",
    "mixed",
    "fairness",
    "one-core",
)  # the measures of late ends, and of tasks that suffer
MEASURES = (
    "goals",
    "latency",
    "busy",
    "throughput",
    "idle",
    "lag",
    "pending",
    "memory",
    "import",
    *TAILS,
    "server",
)
ON_REQUEST = ("torch",)  # not among "all": these need libraries and minutes of their own
SERVERS = ("server", "torch")


def jobs(
    measure: str,
    loops: Sequence[str],
    peers: Sequence[str],
    *,
    quick: bool,
    rounds: int | None = None,
    words: Sequence[str] = (),
    loads: Sequence[str] = (),
) -> list[Job]:
    """The settings of one set of measures.

    Args:
        measure: One of `MEASURES` or `ON_REQUEST`.
        loops: On which loops; the goals are on uvloop where it is among them, and compare trio with asyncio.
        peers: Whom to compare in the tables; the goals have peers of their own.
        quick: As little of everything as shows that it works.
        rounds: In how many rounds the measures of `TAILS` and `SERVERS` are taken; by default in as many as give each
            percentile its samples.
        words: Which patterns, by words of their names; all by default.
        loads: Which loads of a server, by words of their names; by default the usual ones.
    """
    if measure == "torch":
        return _torch(tuple(loops), tuple(peers), quick=quick, rounds=rounds, words=loads)
    if measure == "server":
        return _server(tuple(loops), tuple(peers), quick=quick, rounds=rounds, words=loads)
    if measure in TAILS:
        return _tails(
            measure, tuple(loops), tuple(peers), quick=quick, rounds=rounds, words=tuple(words)
        )
    chosen = (
        _goals(loops, peers) if measure == "goals" else _tables(measure, tuple(loops), tuple(peers))
    )
    return [_quickly(job) for job in chosen if not _long(job)] if quick else chosen


# ------------------------------------------------------------------------------------------------ goals


def _goals(loops: Sequence[str], peers: Sequence[str]) -> list[Job]:
    main = ("uvloop" if "uvloop" in loops else loops[0],)
    thread = (next((name for name in THREADS if name in peers), THREADS[1]),)
    found: list[Job] = [
        Latency(main, ("blocking", AUTO, "cupy", *thread), 20 * US, samples=600, rounds=10)
    ]
    for length in STEADY:
        samples = 200 if length > 5 * MS else 400
        for load in ("steady", "varying"):
            ours = (AUTO, ENQUEUE) if load == "steady" and length in ENQUEUED else (AUTO,)
            found.append(Latency(main, (*ours, *thread), length, load, samples=samples, rounds=5))
    found += [
        Latency(main, (AUTO, HOSTFUNC, UNPREDICTED), 0, "unpredictable", samples=400, rounds=10),
        Latency(main, (AUTO, HOSTFUNC), 100 * MS, "fresh", samples=200),
        Throughput(
            main, (AUTO, "polling", HOSTFUNC, *thread), 128, 5 * MS, rounds=7, window=0.7, warm=0.2
        ),
        Throughput(main, (AUTO, "polling", "cupy"), 64, 0, rounds=9, window=0.5),
        Throughput(
            main, (AUTO, "polling"), 126, 500 * US, rounds=7, window=1.0, warm=0.15, neighbours=2
        ),
    ]
    for length, samples in ((100 * US, 300), (1 * MS, 300), (20 * MS, 100)):
        found.append(Idle(main, (AUTO,), length, samples=samples))
    found += [
        Idle(main, (AUTO, UNPREDICTED), 60 * MS, samples=40, rounds=4, busy=True),
        Lag(main, (AUTO,), rounds=5),
        Pending(main, (AUTO,)),
        Memory(),
    ]
    return found + _trio_against_asyncio(loops)


def _trio_against_asyncio(loops: Sequence[str]) -> list[Job]:
    if "trio" not in loops:
        return []
    both = ("asyncio", "trio")
    found: list[Job] = []
    for length in LENGTHS:
        samples = 40 if length == 100 * MS else 100 if length > 1 * MS else 200
        found.append(Latency(both, (AUTO,), length, samples=samples, rounds=4))
    for streams, length in TRIO_THROUGHPUT:
        found.append(Throughput(both, (AUTO,), streams, length, rounds=5, window=0.4))
    return found


# ------------------------------------------------------------------------------------------------ tables


def _tables(measure: str, loops: tuple[str, ...], peers: tuple[str, ...]) -> list[Job]:
    if measure == "latency":
        return [_table_latency(loops, peers, length) for length in LENGTHS]
    if measure == "busy":
        lengths = (100 * US, 5 * MS)
        return [
            Latency(loops, peers, length, samples=40, rounds=2, warm=3, busy=True)
            for length in lengths
        ]
    if measure == "throughput":
        return [
            Throughput(loops, peers, streams, length)
            for length in KERNELS
            for streams in STREAM_COUNTS
        ]
    if measure == "idle":
        quiet: list[Job] = [
            Idle(loops, peers, length, samples=60, rounds=3)
            for length in (100 * US, 1 * MS, 20 * MS)
        ]
        return [*quiet, Idle(loops, peers, 60 * MS, samples=20, rounds=2, busy=True)]
    if measure == "lag":
        return [Lag(loops, peers, rounds=2)]
    if measure == "pending":
        return [Pending(loops, peers, total=10_000)]
    return [Memory()] if measure == "memory" else [ImportTime()]


def _table_latency(loops: tuple[str, ...], peers: tuple[str, ...], length: int) -> Latency:
    samples, warm = (30, 8) if length > 20 * MS else (60, 10) if length > 1 * MS else (200, 12)
    return Latency(loops, peers, length, samples=samples, rounds=4, warm=warm)


# ------------------------------------------------------------------------------------------------ tails


def _tails(
    measure: str,
    loops: tuple[str, ...],
    peers: tuple[str, ...],
    *,
    quick: bool,
    rounds: int | None,
    words: tuple[str, ...],
) -> list[Job]:
    patterns, fairness = Patterns(loops, peers, words), Fairness(loops, peers)
    mixed = [Mixed(loops, peers, streams, window=0.6) for streams in CROWDS]
    if quick:
        patterns = replace(patterns, waits=3, rounds=2)
        fairness = replace(fairness, streams=8, rounds=2, window=0.05, warm=0.01)
        mixed = [replace(mixed[0], rounds=2, window=0.05, warm=0.01)]
    if rounds:
        patterns, fairness = replace(patterns, rounds=rounds), replace(fairness, rounds=rounds)
        mixed = [replace(job, rounds=rounds) for job in mixed]
    if measure == "patterns":
        return [patterns]
    if measure == "mixed":
        return list(mixed)
    return (
        [fairness]
        if measure == "fairness"
        else [OneCore(replace(patterns, waits=2 * patterns.waits // 5), fairness)]
    )


# ------------------------------------------------------------------------------------------------ server


def _server(
    loops: tuple[str, ...],
    peers: tuple[str, ...],
    *,
    quick: bool,
    rounds: int | None,
    words: Sequence[str],
) -> list[Job]:
    loads = (
        [load for name, load in LOADS.items() if any(word in name for word in words)]
        if words
        else USUAL
    )
    found = [Server(loops, peers, load) for load in loads]
    if quick:  # the last of the usual loads shows nothing that the others do not
        found = [
            replace(job, rounds=1, window=0.06, warm=0.02, trial=0.0)
            for job in found[: len(USUAL) - 1]
        ]
    return [replace(job, rounds=rounds) if rounds else job for job in found]


def _torch(
    loops: tuple[str, ...],
    peers: tuple[str, ...],
    *,
    quick: bool,
    rounds: int | None,
    words: Sequence[str],
) -> list[Job]:
    loads = [
        load
        for name, load in TORCH_LOADS.items()
        if not words or any(word in name for word in words)
    ]
    found = [TorchServer(loops, peers, load) for load in loads]
    if quick:
        found = [replace(job, rounds=1, window=0.15, warm=0.02, trial=0.0) for job in found[:1]]
    return [replace(job, rounds=rounds) if rounds else job for job in found]


# ------------------------------------------------------------------------------------------------ quickly


def _long(job: Job) -> bool:
    """What even once is too long."""
    if isinstance(job, (Latency, Idle)):
        return job.length > 1 * MS or (isinstance(job, Latency) and job.load == "unpredictable")
    if isinstance(job, Throughput):
        return job.streams > 64 or job.neighbours > 0
    return False


def _quickly(job: Job) -> Job:
    if isinstance(job, Latency):
        return replace(job, samples=6, rounds=2, warm=1)
    if isinstance(job, Throughput):
        return replace(job, rounds=2, window=0.03, warm=0.01)
    if isinstance(job, Idle):
        return replace(job, samples=4, rounds=1)
    if isinstance(job, Lag):
        return replace(job, streams=8, rounds=1, window=0.1, warm=0.02)
    if isinstance(job, Pending):
        return replace(job, counts=(20, 200), total=200)
    if isinstance(job, Memory):
        return replace(job, count=200, rounds=1)
    return replace(job, modules=("aiostream",), rounds=1) if isinstance(job, ImportTime) else job
