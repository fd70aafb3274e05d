"""Each driver call, descriptor, thread and native allocation of each public path fails once, and
nothing is lost.

`fault_engine.py` says how. `fault_scenarios.py`, `fault_waits.py` and `fault_loops.py` have the
paths, and `awaits.py` has each kind of await. Each program here tries a sample: the first positions
of each function, and some later ones by a seed. By default it tries one position of each function
in each path, and with `--run-slow` up to 6. With `AIOSTREAM_TEST_FULL=1` too it tries up to 30,
which are nearly all, and more loops.
`pytest -s` shows how many faults were tried.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

import compiling
import internals
from aiostream import Stream
from commands import TESTS, python
from support import FULL, LOOPS

MOST, SEED = 30 if FULL else 6, 1
KINDS = ["none", *(LOOPS if FULL else ["asyncio", "trio"])]
ENOUGH = {
    ("none", 1): 200,
    ("none", MOST): 350,
    ("start", 1): 25,
    ("asyncio", MOST): 300,
    ("trio", MOST): 250,
    ("start", MOST): 150,
}  # points that must be reached at least
# The kind of the paths, how many positions, and the name of the paths if not all are tried.
SAMPLES = [
    ("none", 1, ""),
    ("start", 1, "without a loop"),
    *(pytest.param(kind, MOST, "", marks=pytest.mark.slow) for kind in (*KINDS, "start")),
]

pytestmark = [
    pytest.mark.simulator_only("no GPU's driver fails on command"),
    pytest.mark.timeout(3600 if FULL else 900),
]


@pytest.fixture(scope="module")
def faulty_libc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes allocations, descriptors and threads fail: to be preloaded."""
    return compiling.faulty_libc(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(("kind", "most", "name"), SAMPLES)
def test_each_call_of_each_path_fails_once(
    driver_kind: str, kind: str, most: int, name: str, faulty_libc: Path
) -> None:
    """Without a loop, in one, and at the first use: the right error, numbers that add up, and a
    stream and a loop that go on.

    Each first use has a process of its own for each fault. The second use must succeed, and leave
    as many descriptors and threads behind as one without a fault.
    """
    done = python(
        driver_kind,
        *(str(TESTS / "fault_program.py"), kind, str(most), str(SEED), name),
        path=[TESTS],
        timeout=3000 if FULL else 800,
        LD_PRELOAD=str(faulty_libc),
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    found = re.search(
        r"^(\d+) fault points, of which (\d+) were reached; 0 wrong$", done.stdout, re.MULTILINE
    )
    assert found, done.stdout
    print(f"{kind}: {found[0]}")
    assert int(found[2]) >= ENOUGH.get((kind, most), 1)


def test_trio_whose_epoll_is_full(driver_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of the run is then drained at the janitor's request, and the run goes on."""
    import trio

    async def refuse(descriptor: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def main() -> None:
        monkeypatch.setattr(trio.lowlevel, "wait_readable", refuse)
        async with Stream() as stream:
            for _ in range(3):
                await stream.completion_future()

    trio.run(main)


def test_run_that_has_crashed_is_given_up(driver_kind: str) -> None:
    """To wake such a run of trio raises OSError, because its descriptor is closed.

    The janitor does not ask it again.
    """
    import trio

    class Crashed:
        def run_sync_soon(self, function: Any, **options: Any) -> None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    async def main() -> None:
        assert not internals.schedules_drain_by(Crashed())

    trio.run(main)
