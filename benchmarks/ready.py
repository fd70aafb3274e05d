"""Compares `aiostream.ready` with a loop around `sleep(0.001)`: lateness and CPU, in turns.

Each task waits, one time after another, for a moment that only a function knows. `ready` and the
loop have the same function. The rounds of the two alternate, and the medians of the rounds are
printed, because other programs may use the machine too. Lower is better.

    python -m benchmarks ready --rounds 7
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable

import aiostream
from benchmarks.stats import percentile

Query = Callable[[], bool]
# The lengths of waits, in ms.
WORK: dict[str, Callable[[random.Random], float]] = {
    "steady 1 ms": lambda _: 1,
    "steady 5 ms": lambda _: 5,
    "steady 20 ms": lambda _: 20,
    "within 10 % of 5 ms": lambda chance: chance.uniform(4.5, 5.5),
    "log-normal around 5 ms": lambda chance: chance.lognormvariate(1.6, 0.7),
}


async def ready(query: Query) -> None:
    """Waits by this library."""
    await aiostream.ready(query)


async def sleep(query: Query) -> None:
    """Waits as one does without it."""
    while not query():  # noqa: ASYNC110, the function is all there is
        await asyncio.sleep(0.001)


async def measure(
    wait: Callable[[Query], Awaitable[None]], work: str, queries: int, seconds: float
) -> tuple[float, float, float]:
    """Returns the median and p99 of the lateness, and the CPU of each wait, in us."""
    late: list[float] = []
    until = time.monotonic() + seconds

    async def one(chance: random.Random) -> None:
        await asyncio.sleep(chance.random() * 0.02)  # so that they do not end together
        while not late or time.monotonic() < until:
            ends = time.monotonic() + WORK[work](chance) / 1e3
            await wait(lambda ends=ends: time.monotonic() >= ends)  # type: ignore[misc]
            late.append(time.monotonic() - ends)

    cpu = time.process_time()
    await asyncio.gather(*(one(random.Random(seed)) for seed in range(queries)))
    cpu = time.process_time() - cpu
    return (
        1e6 * statistics.median(late),
        1e6 * float(percentile(late, 99)),
        1e6 * cpu / len(late),
    )


def main(arguments: list[str] | None = None) -> int:
    """Measures, and prints a row for each kind of work."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ready", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--work", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args(arguments)
    run = asyncio.run
    if options.uvloop:
        import uvloop

        run = uvloop.run
    print(f"{'':34}{'ready: p50, p99, CPU':>24}{'sleep(0.001): same':>24}{'ratios: p50, CPU':>18}")
    run(measure(ready, options.work[0], 1, 0.01))  # the first wait starts the library
    for work in options.work:
        for queries in options.queries:
            rounds = [
                [run(measure(wait, work, queries, options.seconds)) for wait in (ready, sleep)]
                for _ in range(options.rounds)
            ]
            ours, theirs = (
                [statistics.median(row[way][of] for row in rounds) for of in range(3)]
                for way in (0, 1)
            )
            cells = "".join(f"{value:8.0f}" for value in (*ours, *theirs))
            shares = f"{ours[0] / theirs[0]:9.2f}{ours[2] / theirs[2]:9.2f}"
            print(f"{work:24}{queries:>10}{cells}{shares}", flush=True)
    return 0
