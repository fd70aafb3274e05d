"""P9, at random: processes that end at any moment with much under way end within seconds,
quietly, and with the right status.

`AIOSTREAM_EXITS` says how many programs of `exits.py` run: by default 2, and 60 in the large form.
`AIOSTREAM_EXITS_SEED` says which is the first. A failure names its seed, and
`python tests/exits.py SEED` carries that program out.
"""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import exits
from commands import python
from support import FULL

COUNT = int(os.environ.get("AIOSTREAM_EXITS", "60" if FULL else "2"))
FIRST = int(os.environ.get("AIOSTREAM_EXITS_SEED", "1"))
BOUND = 3.0
"""Seconds from the beginning of the end.

Two processes run at once, and each ends threads and a loop.
"""


def end_of(seed: int, driver_kind: str) -> tuple[str | None, float]:
    """Runs one program; what was wrong with its end, and how long it took."""
    plan = exits.program(seed)
    options = ["-W", "error", "-X", "faulthandler"]
    try:
        done = python(driver_kind, *options, exits.__file__, str(seed), timeout=40)
    except subprocess.TimeoutExpired as hang:
        return f"{plan} did not end: {hang.stderr!r}", 40.0
    ended = time.monotonic()
    begun = done.stdout.split()
    if done.returncode != plan.expected or done.stderr:
        return f"{plan} ended with {done.returncode}, not {plan.expected}: {done.stderr}", 0.0
    if not begun:
        return f"{plan} never came to its end", 0.0
    took = ended - float(begun[-1]) - plan.waits_in_handlers
    return f"{plan} took {took:.1f} s to end" if took > BOUND else None, took


@pytest.mark.timeout(COUNT * 5 + 120)
def test_exits_at_random_moments(driver_kind: str) -> None:
    def quickest_end_of(seed: int) -> tuple[str | None, float]:
        """Other processes may delay some of a few ends. What is wrong counts at once."""
        for _ in range(3):
            problem, took = end_of(seed, driver_kind)
            if problem is None or "s to end" not in problem:
                break
        return problem, took

    seeds = range(FIRST, FIRST + COUNT)
    with ThreadPoolExecutor(2) as two_at_a_time:
        answers = [*two_at_a_time.map(quickest_end_of, seeds)]
    wrong = [problem for problem, _ in answers if problem is not None]
    print(
        f"{COUNT} programs from seed {FIRST}: {len(wrong)} wrong, the slowest took "
        f"{max(took for _, took in answers):.2f} s"
    )
    assert not wrong, "\n\n".join(wrong)
