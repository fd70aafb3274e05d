"""An older version of this library as two more peers: it takes its turns in a process of its own.

Two versions of a package cannot be imported by one process. The wheel is unpacked to a temporary
directory that comes first on the `PYTHONPATH` of a process that runs `older.py`. That process takes
its turns between those of the other peers, and waits for its standard input meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from aiostream.bench.peers import Peer

SCRIPT = Path(__file__).with_name("older.py")
START = 120.0  # seconds in which the process must be ready
WAITS = {"older auto": "auto", "older event": "event"}


class Companion:
    """The process with the older library.

    Args:
        wheel: The wheel's path.
        simulator: Whether it runs on the simulator, too.

    Raises:
        OSError: There is no such file.
        RuntimeError: The wheel cannot be unpacked, or its library cannot be used.
    """

    def __init__(self, wheel: Path, *, simulator: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aiostream-older-")
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self._folder.name)
        except zipfile.BadZipFile as error:
            self._folder.cleanup()
            raise RuntimeError(f"{wheel} is no wheel: {error}") from error
        path = os.pathsep.join(filter(None, (self._folder.name, os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, "PYTHONPATH": path, "AIOSTREAM_SIMULATOR": "1" if simulator else ""}
        command = [sys.executable, "-P", str(SCRIPT), self._folder.name]
        self._process = subprocess.Popen(
            [*command, "simulator"] if simulator else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        self.peers = [Older(name, self) for name in WAITS]
        try:
            self.version = str(self._answer(START))
        except RuntimeError:
            self.close()
            raise

    def ask(self, request: dict[str, Any], limit: float) -> Any:
        """Sends a request, and returns what the process answers.

        Raises:
            RuntimeError: The process reports an error, has ended, or does not answer in time.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last answer says why it has ended
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer(limit)

    def _answer(self, limit: float) -> Any:
        assert self._process.stdout is not None
        # Nothing is buffered here between two requests, because each has one line for an answer.
        if not select.select([self._process.stdout], [], [], limit)[0]:
            self._process.kill()
            raise RuntimeError(f"the older library gave no answer within {limit:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the older library's process has ended, exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the older library: {answer['error']}")
        return answer["found"]

    def close(self) -> None:
        """Ends the process and removes the unpacked wheel."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


class Older(Peer):
    """The older library, with one `wait=`. It takes turns only in the measures that know how to ask."""

    def __init__(self, name: str, companion: Companion) -> None:
        self.name = name
        self._companion = companion
        self.summary = f'the older version of --older, Stream(wait="{WAITS[name]}"), in a process of its own'

    def ask(self, loop: str, request: dict[str, Any], limit: float) -> Any:
        """Takes a turn on a loop there."""
        return self._companion.ask({**request, "loop": loop, "wait": WAITS[self.name]}, limit)
