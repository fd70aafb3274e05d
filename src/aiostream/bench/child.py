"""A process of its own that answers JSON lines: one on its standard output for each on its standard input."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

NO_ANSWER = "gave no answer within"
END = 10.0  # seconds in which a process ends that was killed


class Child:
    """Such a process. Each request has one line for an answer, so nothing is left over between two requests.

    Args:
        name: What it is called in errors.
        arguments: Those of the Python interpreter.
        path: A folder whose packages come first there, or `None`.
        simulator: Whether it runs on the simulator.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        path: str | None = None,
        simulator: bool = False,
    ) -> None:
        self._name = name
        known = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
        variables = {
            **os.environ,
            "PYTHONPATH": known,
            "AIOSTREAM_SIMULATOR": "1" if simulator else "",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
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
            raise RuntimeError(
                f"{self._name}'s process has ended, exit code {self._process.wait()}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name}: {answer['error']}")
        return answer["found"]

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # a process that a driver holds may not even die
            self._process.wait(END)

    def close(self, limit: float = 10) -> None:
        """Ends its standard input, on which it ends by itself; kills it if that takes longer than `limit` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()
