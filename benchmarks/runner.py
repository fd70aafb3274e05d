"""The peers that can be had, the processes in which they wait, and whose turn it is."""

from __future__ import annotations

import contextlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiostream
from benchmarks import loops
from benchmarks.child import Child
from benchmarks.measure import Found, Measure, Row
from benchmarks.peers import all_peers

START = 120.0  # seconds in which a worker must be ready
NATIVE = "aiostream/_native."
TRIAL = 20.0  # seconds in which a peer must have waited on a loop


@contextlib.contextmanager
def unpacked(wheel: Path) -> Iterator[str]:
    """The folder of another version's wheel, unpacked, or a folder that has it built.

    Raises:
        OSError: There is no such file.
        ValueError: It is no wheel of this library.
    """
    if wheel.is_dir():
        if not any(wheel.glob(f"{NATIVE}*")):
            raise ValueError(f"--older: {wheel} has no {NATIVE}*: build it there")
        yield str(wheel.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="aiostream-older-") as folder:
        try:
            with zipfile.ZipFile(wheel) as archive:
                # PyPI's aiostream is another library, and has no native part.
                if not any(name.startswith(NATIVE) for name in archive.namelist()):
                    raise ValueError(f"--older: {wheel} has no {NATIVE}*: it is no aiostream-cuda")
                archive.extractall(folder)
        except zipfile.BadZipFile as error:
            raise ValueError(f"--older: {wheel} is no wheel: {error}") from error
        yield folder


class Runner:
    """The peers and their worker. It never touches the driver itself.

    Args:
        loop_names: The loops that are wanted.
        peer_names: The peers that are wanted; all of this version by default.
        say: Prints a line.
        older: The folder of an older library, which is measured in place of this one.
        simulator: Whether it runs on the simulator; by default as the environment says.
    """

    def __init__(
        self,
        loop_names: Sequence[str],
        peer_names: Sequence[str] | None = None,
        *,
        say: Callable[[str], None] = print,
        older: str | None = None,
        simulator: bool | None = None,
    ) -> None:
        known = all_peers()
        self.peers = {name: known[name] for name in (known if peer_names is None else peer_names)}
        self.loops = tuple(loop_names)
        self.not_run: list[Row] = []
        self.path = older
        self.folder = older or str(Path(str(aiostream.__file__)).parents[1])
        self._say, self.simulator = say, simulator
        self._out: set[tuple[str, str]] = set()
        self.worker = self.new_worker()
        try:
            hello = self.worker.answer(START)
        except BaseException:
            self.close()
            raise
        self.simulator, self.environment = hello["simulator"], hello["environment"]
        self.library = str(hello["library"])

    def new_worker(self) -> Any:
        """A process with the library that is measured."""
        return self.child("the worker", "worker", {})

    def child(self, name: str, module: str, settings: dict[str, Any]) -> Child:
        """A process that imports the library, and ends if it finds another one.

        Args:
            name: What errors call it.
            module: The module of this package that it runs.
            settings: What it is asked for.
        """
        known = {**settings, "folder": self.folder, "simulator": self.simulator}
        path, simulator = self.path, self.simulator
        return Child(name, module, json.dumps(known), path=path, simulator=simulator)

    # ------------------------------------------------------------------------------ who takes part

    def try_out(self) -> None:
        """Imports what the peers need and has each wait on each loop."""
        for loop in [loop for loop in self.loops if loops.missing(loop)]:
            self.leave_out("every peer", loop, str(loops.missing(loop)))
        self.loops = tuple(loop for loop in self.loops if not loops.missing(loop))
        for peer in self.peers.values():
            if self.simulator and peer.runtime:
                reason = "it needs CUDA's runtime library, and the simulator is a driver only"
                self._drop_everywhere(peer.name, reason)
                continue
            try:
                self._ask({"do": "prepare", "peer": peer.name}, START)
            except RuntimeError as error:
                self._drop_everywhere(peer.name, str(error))
                continue
            for loop in self.loops:
                try:
                    self._ask({"do": "try", "peer": peer.name, "loop": loop}, TRIAL)
                except RuntimeError as error:
                    self.drop(peer.name, loop, str(error))

    def drop(self, peer: str, loop: str, reason: str) -> None:
        """Leaves a peer out on one loop from now on, and says why."""
        if (peer, loop) not in self._out:
            self._out.add((peer, loop))
            self.leave_out(peer, loop, reason)

    def _drop_everywhere(self, peer: str, reason: str) -> None:
        self._out.update((peer, loop) for loop in self.loops)
        self.leave_out(peer, "every loop", reason)

    def leave_out(self, what: str, loop: str, reason: str) -> None:
        """Notes that something is not run, on a loop if it is one's own, and says so."""
        self.not_run.append({"peer": what, "loop": loop, "reason": reason})
        self._say(f"not run: {what}{' on ' + loop if loop else ''}: {reason}")

    def taking_part(self, wanted: Iterable[str], loop: str) -> list[str]:
        """The peers of those wanted that can be had on a loop."""
        return [name for name in wanted if name in self.peers and (name, loop) not in self._out]

    # --------------------------------------------------------------------------------------- turns

    def turns(self, job: Measure) -> dict[tuple[str, str], list[Found]]:
        """Has each peer take its turns. A peer that fails is left out.

        Returns:
            What the turns of each loop and peer have found.
        """
        found: dict[tuple[str, str], list[Found]] = {}
        for number in range(job.rounds):
            for loop in job.loops:
                names = [
                    name
                    for name in self.taking_part(job.peers, loop)
                    if job.can_block or not self.peers[name].blocks
                ]
                for name in in_turn(names, number):
                    try:
                        turn = self._ask(*self._request(job, loop, name, number))
                    except RuntimeError as error:
                        self.drop(name, loop, str(error))
                    else:
                        found.setdefault((loop, name), []).append(turn)
        for loop in job.loops:
            self._close_pool(f"{job.title} on {loop}")
        return found

    @staticmethod
    def _request(job: Measure, loop: str, name: str, number: int) -> tuple[dict[str, Any], float]:
        turn = {"loop": loop, "peer": name, "number": number, "pool": f"{job.title} on {loop}"}
        return {"do": "turn", **job.request(), **turn}, 60 + 10 * job.turn_seconds()

    def _ask(self, request: dict[str, Any], limit: float) -> Any:
        try:
            return self.worker.ask(request, limit)
        finally:
            if self.worker.ended:  # the other peers still have their turns
                self.worker.close()
                self.worker = self.new_worker()
                self.worker.answer(START)

    def _close_pool(self, pool: str) -> None:
        with contextlib.suppress(RuntimeError):  # its peers are left out where they failed
            self.worker.ask({"do": "close", "pool": pool}, TRIAL)

    def close(self) -> None:
        """Ends the worker."""
        self.worker.close()


def in_turn(names: Sequence[str], number: int) -> Sequence[str]:
    """Those of a round, in each beginning with another."""
    start = number % max(1, len(names))
    return (*names[start:], *names[:start])
