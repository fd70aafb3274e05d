"""What most tests share: loops, gates that hold streams, and scripts in processes of their own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import commands
from aiostream import Stream, WaitStrategy, statistics
from aiostream.testing import Gate as Gate
from aiostream.testing import recover as recover
from aiostream.testing import settle as settle
from aiostream.testing import spin as spin
from installed import installed, missing_of
from internals import has_gil, is_drain

if TYPE_CHECKING:
    import pytest  # not in the scripts that import this module, because it takes 0.15 s

FULL = bool(os.environ.get("AIOSTREAM_TEST_FULL"))
"""Whether the tests run in their large form."""


def chosen_seconds(default: float) -> float:
    """How long a random test lasts: `AIOSTREAM_TEST_SECONDS`, if that is set."""
    return float(os.environ.get("AIOSTREAM_TEST_SECONDS", default))


def chosen_seed() -> int:
    """Where a random test begins: `AIOSTREAM_TEST_SEED`, else 1."""
    return int(os.environ.get("AIOSTREAM_TEST_SEED", "1"))


LIMIT = 110 + 10 * chosen_seconds(0)
"""Seconds after which a random test that runs for `chosen_seconds` hangs.

Sanitizers and busy machines are slow.
"""

LOOPS = ["asyncio", "asyncio-debug", "uvloop", "asyncio-eager", "trio"]
"""The kinds of loops of each `async def` test. A new kind stands here, below and in `run_on`."""
if sys.version_info < (3, 12):
    LOOPS.remove("asyncio-eager")  # eager tasks came with Python 3.12

PLAIN_LOOPS = ["asyncio", "uvloop", "trio"]
"""Each loop as it comes, for tests that take long."""

ASYNCIO_LOOPS = ["asyncio", "uvloop"]
"""The loops with asyncio's interface, for tests of asyncio's futures."""

BACKENDS = ["asyncio", "trio"]
"""One loop for each file of `_loops`, for tests that take very long."""


def cases_on_loops(names: str, cases: Iterable[Any]) -> pytest.MarkDecorator:
    """Runs each case on one of asyncio, uvloop and trio. With `--run-slow` it also runs on another
    one of these, and in asyncio's debug mode or with eager tasks.

    Args:
        names: The names of the arguments, with commas between them.
        cases: The values of the arguments, or a `pytest.param` of them.
    """
    import pytest

    plain = installed(PLAIN_LOOPS)
    more = [kind for kind in LOOPS if kind not in PLAIN_LOOPS]
    chosen = []
    for number, case in enumerate(cases):
        # Not in turn: each of two equally long lists, of which the cases are all pairs, would then
        # have a loop of its own.
        at = number.bit_count()
        kinds = plain[at % len(plain)], plain[(at + 1) % len(plain)], more[at % len(more)]
        for kind in dict.fromkeys(kinds):
            values = getattr(case, "values", case)
            marks = [*getattr(case, "marks", ()), *([pytest.mark.slow] if kind != kinds[0] else [])]
            name = "-".join(map(str, (*values, kind))).replace(" ", "-")
            chosen.append(pytest.param(*values, kind, marks=marks, id=name))
    return pytest.mark.parametrize(f"{names}, loop_kind", chosen)


STRATEGIES = [strategy.value for strategy in WaitStrategy]
"""The names of all wait strategies."""

USUAL = ("asyncio", "anyio", *installed(["trio"]), "cuda.bindings.driver", "support")
"""What most scripts import."""

EVENT_STRATEGIES = [name for name in STRATEGIES if name != "hostfunc"]
"""Those of the strategies that record an event."""


class Kept:
    """Something whose life a test watches."""


class Blind(asyncio.SelectorEventLoop):
    """A loop that cannot watch descriptors for others, as asyncio's proactor loop cannot."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        if is_drain(callback):
            raise NotImplementedError
        super().add_reader(fd, callback, *args)


def new_uvloop() -> asyncio.AbstractEventLoop:
    """Returns a new loop of uvloop."""
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_on(loop_kind: str, function: Callable[..., Any], *args: Any) -> Any:
    """Runs a coroutine function to its end on one kind of loop."""
    if loop_kind == "trio":
        import trio

        return trio.run(function, *args)
    if loop_kind == "asyncio-eager":
        eager: Any = getattr(asyncio, "eager_task_factory")  # noqa: B009, of Python 3.12

        async def eagerly() -> Any:
            asyncio.get_running_loop().set_task_factory(eager)
            return await function(*args)

        with asyncio.Runner() as runner:
            return runner.run(eagerly())
    factory = {"uvloop": new_uvloop, "blind": Blind}.get(loop_kind)
    with asyncio.Runner(debug=loop_kind == "asyncio-debug", loop_factory=factory) as runner:
        return runner.run(function(*args))


def run_as_guest(function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
    """Begins a run of trio in the asyncio loop that runs here."""
    import trio

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    trio.lowlevel.start_guest_run(
        function,
        *args,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=ended.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    return ended


def run_together(
    kinds: list[str], function: Callable[..., Any], together: threading.Barrier
) -> None:
    """Runs a coroutine function on loops of these kinds, each in a thread of its own; one that
    fails breaks the barrier.
    """
    errors: list[tuple[str, BaseException]] = []

    def run(kind: str) -> None:
        try:
            run_on(kind, function)
        except BaseException as error:
            errors.append((kind, error))
            together.abort()

    threads = [
        threading.Thread(target=run, args=(kind,), name=f"aiostream-test-{kind}") for kind in kinds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a loop hangs"
    assert not errors, errors


def held_stream(gate: Gate, **options: Any) -> Stream:
    """A new stream on which nothing gets through before the gate is opened."""
    stream = Stream(**options)
    gate.hold(stream)
    return stream


FORKS_WITH_THREADS = "ignore:This process:DeprecationWarning"
"""What Python 3.12 and newer say where a process with threads is forked, as some scripts do."""


def run_script(
    driver_kind: str,
    script: str,
    *,
    timeout: float = 60.0,
    warnings: str = "error",
    folder: Path | None = None,
    forked: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python text in a process of its own, on the driver that is under test.

    Failed contexts, exits and forks cannot be tested in the process that tests. The modules of
    `tests/` can be imported there. The test is skipped if the text imports a loop that is not
    installed.

    With `forked`, such as `USUAL`, the process is forked from one that has imported these modules,
    which takes half the time. `forks.py` says what needs a new process.
    """
    import pytest

    for line in re.findall(r"^ *import .*", script, re.MULTILINE):
        for name in missing_of(line):
            pytest.skip(f"{name} is not installed")
    if forked:
        assert warnings == "error", "as in the process that forks"
        options: dict[str, Any] = {"folder": folder, "timeout": timeout, **environment}
        return commands.forked(driver_kind, textwrap.dedent(script), forked, **options)
    path = environment.pop("PYTHONPATH", os.path.dirname(__file__))
    return commands.python(
        driver_kind,
        *("-W", warnings, "-W", FORKS_WITH_THREADS, "-c", textwrap.dedent(script)),
        folder=folder,
        path=[path],
        timeout=timeout,
        **commands.OF_A_SCRIPT,
        **environment,
    )


def code_of_fork(call: Callable[[], object]) -> int:
    """The exit code of a forked child that calls what it must be refused: 7 if it was refused as
    such a child, 8 after another RuntimeError, and 9 if it was not refused.
    """
    child = os.fork()
    if child == 0:
        try:
            call()
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_at_rest() -> bool:
    """Whether nothing is pending, and the numbers add up."""
    now = statistics()
    return now.balanced and now.points.pending == now.futures.pending == now.waits.pending == 0


def releasing_threads() -> set[int | None]:
    """The threads that may run the destructor of what this thread has made and the library held."""
    own = set() if has_gil() else {threading.get_ident()}
    return own | {each.ident for each in threading.enumerate() if "releaser" in each.name}


def succeed(driver_kind: str, script: str, **options: Any) -> str:
    """Runs a script that must end with code 0 and nothing on stderr; returns what it printed."""
    done = run_script(driver_kind, script, **options)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout
