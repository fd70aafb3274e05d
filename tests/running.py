"""A pytest plugin: which tests run, within which time, and which of them need the machine alone.

pytest-xdist runs the suite in several worker processes. Each worker takes a shared lock for each
test, and an exclusive one for a test marked `alone`: a test of times needs a free core, and is
wrong about the library if another worker computes meanwhile. pytest-timeout fails a test that runs
past its limit by an exception in the main thread. Code that waits without Python never sees that
exception, and a garbage collector's callback loses it. So this plugin compares the time too, and
ends the process of a test that goes on: pytest-xdist then reports the test and goes on without it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

GRACE = 10.0
"""Seconds after its limit at which a test ends its process."""

_BEGAN = pytest.StashKey[float]()
_STDERR = pytest.StashKey[int]()
_LOCKS = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow too")
    parser.addoption(
        "--part", type=part_of, default=(1, 1), metavar="K/N", help="run the K-th of N parts"
    )


def part_of(text: str) -> tuple[int, int]:
    """The numbers in a text such as 1/4."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"a part is one such as 1/4, and not {text!r}")
    return int(match[1]), int(match[2])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long, and runs with --run-slow only")
    config.addinivalue_line("markers", "alone: measures times, and runs while no other test runs")
    config.stash[_STDERR] = os.dup(2)  # the real one, because pytest captures later
    config.add_cleanup(lambda: os.close(config.stash[_STDERR]))
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="aiostream-tests-")
        config.stash[_LOCKS] = folder.name
        config.add_cleanup(folder.cleanup)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` is: two for each core, because many tests wait for a process or a timer."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives each worker of pytest-xdist the place of the locks."""
    node.workerinput["locks"] = node.config.stash[_LOCKS]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = config.getoption("--part")
    slow = config.getoption("--run-slow")
    chosen = [item for item in items if slow or item.get_closest_marker("slow") is None]
    chosen = chosen[part - 1 :: parts]
    # First, because a test that runs alone waits for the tests of all other workers: the early ones
    # are as short as any, and at the end a long one may be left.
    chosen.sort(key=lambda item: item.get_closest_marker("alone") is None)
    kept = set(chosen)
    left_out = [item for item in items if item not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


# Outermost, so that the limit does not count what a test waits for the others.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with _turn(item):
        item.stash[_BEGAN] = time.monotonic()
        limit = _limit_of(item)
        if limit and not item.config.getoption("usepdb"):
            faulthandler.dump_traceback_later(
                limit + GRACE, exit=True, file=item.config.stash[_STDERR]
            )
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    limit, took = _limit_of(item), time.monotonic() - item.stash[_BEGAN]
    if limit and took >= limit:
        pytest.fail(f"took {took:.1f} s, and may take {limit:g} s", pytrace=False)
    return result


def _limit_of(item: pytest.Item) -> float:
    """The limit of pytest-timeout in seconds, 0 for none."""
    marker = item.get_closest_marker("timeout")
    if marker is not None and marker.args:
        return float(marker.args[0])
    return float(item.config.getoption("timeout") or item.config.getini("timeout") or 0)


@pytest.fixture(scope="session")
def made_once(pytestconfig: pytest.Config) -> Callable[[str, Callable[[Path], None]], Path]:
    """`made_once(name, make)` has one worker fill a folder of that name, which all workers read."""
    shared = Path(
        getattr(pytestconfig, "workerinput", {}).get("locks") or pytestconfig.stash[_LOCKS]
    )

    def once(name: str, make: Callable[[Path], None]) -> Path:
        folder = shared / name
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                partial = Path(tempfile.mkdtemp(dir=shared))
                make(partial)
                partial.rename(folder)
        return folder

    return once


@contextlib.contextmanager
def _turn(item: pytest.Item) -> Iterator[None]:
    """Beside other workers' tests, or alone."""
    folder: str | None = getattr(item.config, "workerinput", {}).get("locks")
    if folder is None:
        yield
        return
    alone = item.get_closest_marker("alone") is not None
    with open(Path(folder, "door"), "w") as door, open(Path(folder, "room"), "w") as room:
        # A worker that waits for the room holds the door. Otherwise the others would go on taking
        # turns in the room, and one that wants it alone would wait for all of them.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a forked child may have the file open still
