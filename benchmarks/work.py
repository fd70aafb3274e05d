"""The lengths of the kernels that are awaited. One seed gives the same lengths to each peer."""

from __future__ import annotations

import random

US, MS = 1_000, 1_000_000  # ns
SHORTEST, MEDIAN, LONGEST = 0.2, 2.0, 20.0  # ms: log-normal with a deviation of 1, clipped


def patterns(seed: int, waits: int) -> dict[str, list[int]]:
    """The kernels' lengths in ns of each pattern of work, in the order in which they run.

    Args:
        seed: The same seed gives the same lengths.
        waits: About how many waits each pattern has.
    """
    rng = random.Random(seed)
    request = [30 * MS] + [2 * MS] * 12
    whole = waits + -waits % len(request) if waits > len(request) else waits
    drifting = max(2, waits * 3 // 2)
    return {
        "steady 1 ms": [MS] * waits,
        "steady 5 ms": [5 * MS] * waits,
        "within 10 % of 5 ms": [int(5 * MS * rng.uniform(0.9, 1.1)) for _ in range(waits)],
        "alternating 9 and 0.4 ms": [(9 * MS, 400_000)[k % 2] for k in range(waits)],
        "bimodal 9 or 0.4 ms": [rng.choice((9 * MS, 400_000)) for _ in range(waits)],
        "log-uniform 50 us to 50 ms": [int(10 ** rng.uniform(4.7, 7.7)) for _ in range(waits)],
        "prefill and decode": [request[k % len(request)] for k in range(whole)],
        "drifting from 1 to 4 ms": [
            int(MS * (1 + 3 * k / (drifting - 1))) for k in range(drifting)
        ],
        "steady 1 ms again": [MS] * waits,
        "heavy tail from 0.3 ms": [
            round(MS * min(30.0, 0.3 * rng.paretovariate(1.2))) for _ in range(waits)
        ],
        "falling from 9 to 1 ms": [
            round(MS * (9 - 8 * k / max(1, waits - 1))) for k in range(waits)
        ],
    }


def log_normal(seed: str) -> list[int]:
    """512 kernel lengths in ns, the same for the same seed."""
    generator = random.Random(seed)
    lengths = (MEDIAN * generator.lognormvariate(0, 1) for _ in range(512))
    return [round(MS * min(LONGEST, max(SHORTEST, length))) for length in lengths]


def duration(nanoseconds: int) -> str:
    """`300 us`, `5 ms`."""
    if nanoseconds and nanoseconds % MS == 0:
        return f"{nanoseconds // MS} ms"
    return f"{nanoseconds / US:g} us" if nanoseconds else "0"
