"""An older version of this library as two more peers: it takes its turns in a process of its own.

Two versions of a package cannot be imported by one process. The wheel is unpacked to a temporary
directory that comes first on the `PYTHONPATH` of a process that runs `older.py`. That process takes
its turns between those of the other peers, and waits for its standard input meanwhile.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import Any

from aiostream.bench.child import Child
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
        arguments = [str(SCRIPT), self._folder.name, *(["simulator"] if simulator else [])]
        self._child = Child(
            "the older library", arguments, path=self._folder.name, simulator=simulator
        )
        self.peers = [Older(name, self) for name in WAITS]
        try:
            self.version = str(self._child.answer(START))
        except RuntimeError:
            self.close()
            raise

    @property
    def folder(self) -> str:
        """Where the wheel is unpacked."""
        return self._folder.name

    def ask(self, request: dict[str, Any], limit: float) -> Any:
        """Sends a request, and returns what the process answers.

        Raises:
            RuntimeError: The process reports an error, has ended, or does not answer in time.
        """
        return self._child.ask(request, limit)

    def kill(self) -> None:
        """Ends the process at once."""
        self._child.kill()

    def close(self) -> None:
        """Ends the process and removes the unpacked wheel."""
        self._child.close()
        self._folder.cleanup()


class Older(Peer):
    """The older library, with one `wait=`. It takes turns only in the measures that know how to ask."""

    def __init__(self, name: str, companion: Companion) -> None:
        self.name = name
        self._companion = companion
        self.summary = (
            f'the older version of --older, Stream(wait="{WAITS[name]}"), in a process of its own'
        )

    def ask(self, loop: str, request: dict[str, Any], limit: float) -> Any:
        """Takes a turn on a loop there."""
        return self._companion.ask({**request, "loop": loop, "wait": WAITS[self.name]}, limit)
