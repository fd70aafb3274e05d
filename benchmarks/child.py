"""A process of its own that answers each JSON line on its standard input with one on its output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])  # where this package is found
NO_ANSWER = "gave no answer within"
END = 10.0  # seconds in which a process ends that was killed


class Child:
    """Such a process. Each request has one line for an answer, so nothing is left over.

    Args:
        name: What errors call it.
        module: The module of this package that it runs.
        argument: Its argument, or `None`.
        path: A folder whose packages come first there, or `None`.
        simulator: Whether it runs on the simulator; `None` leaves that to the environment.
    """

    def __init__(
        self,
        name: str,
        module: str,
        argument: str | None = None,
        *,
        path: str | None = None,
        simulator: bool | None = None,
    ) -> None:
        self._name = name
        known = os.pathsep.join(filter(None, (path, ROOT, os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, "PYTHONPATH": known}
        if simulator is not None:
            variables["AIOSTREAM_SIMULATOR"] = "1" if simulator else ""
        command = [sys.executable, "-P", "-m", f"benchmarks.{module}"]
        self._process = subprocess.Popen(
            command if argument is None else [*command, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def ask(self, request: dict[str, Any], limit: float) -> Any:
        """Sends a request, and returns what the process answers.

        Args:
            request: What JSON can hold.
            limit: Seconds in which the answer must come. The process is killed if it does not.

        Raises:
            RuntimeError: The process reports an error, has ended, or does not answer in time.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last answer says why it has ended
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self.answer(limit)

    def answer(self, limit: float) -> Any:
        """The next answer, also of a process that says by itself that it is ready.

        Raises:
            RuntimeError: As `ask`.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit)[0]:
            self.kill()
            raise RuntimeError(f"{self._name} {NO_ANSWER} {limit:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeError(f"{self._name}'s process has ended, exit code {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["found"]

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END)  # a process that a driver holds may not even die

    def close(self, limit: float = END) -> None:
        """Ends its standard input, on which it ends by itself. Kills it after `limit` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


# ---------------------------------------------------------------------------------- in the process

Say = Callable[[dict[str, Any]], None]
Begin = Callable[[], tuple[Any, Callable[[Any], Any]]]


def speaker() -> Say:
    """Keeps standard output for answers, because libraries print too; returns what sends one."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    return say


def serve(begin: Begin) -> None:
    """Answers until standard input ends.

    Args:
        begin: Returns what the process says when it is ready, and what answers a request.
    """
    say = speaker()
    try:
        hello, answer = begin()
    except Exception as error:
        say({"error": reason(error)})
        raise SystemExit(1) from None
    say({"found": hello})
    for line in sys.stdin:
        try:
            found = {"found": answer(json.loads(line))}
        except Exception as error:
            found = {"error": reason(error)}
        say(found)


def reason(error: BaseException) -> str:
    """An error in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__
