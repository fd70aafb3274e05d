"""The peers that can be had, the processes in which they wait, and whose turn it is."""

from __future__ import annotations

import contextlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import loops
from benchmarks.child import Child
from benchmarks.measure import Found, Measure, Row
from benchmarks.peers import OLDER, all_peers

START = 120.0  # seconds in which a worker must be ready
TRIAL = 20.0  # seconds in which a peer must have waited on a loop


@contextlib.contextmanager
def unpacked(wheel: Path) -> Iterator[str]:
    """The folder of another version's wheel, unpacked.

    Raises:
        OSError: There is no such file.
        ValueError: It is no wheel.
    """
    with tempfile.TemporaryDirectory(prefix="aiostream-older-") as folder:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        except zipfile.BadZipFile as error:
            raise ValueError(f"--older: {wheel} is no wheel: {error}") from error
        yield folder


class Runner:
    """The peers and their workers. It never touches the driver itself.

    Args:
        loop_names: The loops that are wanted.
        peer_names: The peers that are wanted; all of this version by default.
        say: Prints a line.
        advance: Is called with seconds that an estimate had for what is now done.
        older: The folder of the older library.
        core: Whether the worker is bound to one core.
        simulator: Whether it runs on the simulator; by default as the environment says.
    """

    def __init__(
        self,
        loop_names: Sequence[str],
        peer_names: Sequence[str] | None = None,
        *,
        say: Callable[[str], None] = print,
        advance: Callable[[float], None] = lambda seconds: None,
        older: str | None = None,
        core: bool = False,
        simulator: bool | None = None,
    ) -> None:
        known = all_peers()
        names = [name for name in known if name not in OLDER] if peer_names is None else peer_names
        self.peers = {name: known[name] for name in names}
        self.loops = tuple(loop_names)
        self.not_run: list[Row] = []
        self.older, self.advance = older, advance
        self._say, self._core, self._wants_simulator = say, core, simulator
        self._out: set[tuple[str, str]] = set()
        self.workers: list[Any] = []  # of this version, and of the older one
        try:
            self.workers.append(self.new_worker())
            hello = self.workers[0].answer(START)
            self.simulator, self.environment = hello["simulator"], hello["environment"]
            if older is not None:
                self.peers.update((name, known[name]) for name in OLDER)
                self.workers.append(self._new_older(older))
                self.older_version = str(self.workers[1].answer(START)["version"])
        except BaseException:
            self.close()
            raise

    def new_worker(self) -> Any:
        """A process with this version of aiostream."""
        settings = json.dumps({"core": self._core})
        return Child("the worker", "worker", settings, simulator=self._wants_simulator)

    def _new_older(self, folder: str) -> Child:
        settings = json.dumps({"folder": folder, "simulator": self.simulator})
        return Child("the older library", "worker", settings, path=folder, simulator=self.simulator)

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
                self._ask(peer.name, {"do": "prepare", "peer": peer.name}, START)
            except RuntimeError as error:
                self._drop_everywhere(peer.name, str(error))
                continue
            for loop in self.loops:
                if loop not in peer.loops:
                    self.drop(peer.name, loop, f"it does not know {loop}")
                    continue
                try:
                    self._ask(peer.name, {"do": "try", "peer": peer.name, "loop": loop}, TRIAL)
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
                        turn = self._ask(name, *self._request(job, loop, name, number))
                    except RuntimeError as error:
                        self.drop(name, loop, str(error))
                    else:
                        found.setdefault((loop, name), []).append(turn)
                    self.advance(job.turn_seconds())
        if not job.shares:
            for loop in job.loops:
                self._close_pool(f"{job.title} on {loop}")
        return found

    def alone(self, job: Measure, loop: str, name: str) -> Found:
        """One turn in a worker of its own.

        Raises:
            RuntimeError: It failed.
        """
        with contextlib.closing(self.new_worker()) as worker:
            worker.answer(START)
            return dict(worker.ask(*self._request(job, loop, name, 0)))

    @staticmethod
    def _request(job: Measure, loop: str, name: str, number: int) -> tuple[dict[str, Any], float]:
        pool = "" if job.shares else f"{job.title} on {loop}"
        turn = {"loop": loop, "peer": name, "number": number, "pool": pool}
        return {"do": "turn", **job.request(), **turn}, 60 + 10 * job.turn_seconds()

    def _ask(self, name: str, request: dict[str, Any], limit: float) -> Any:
        worker = self.workers[1 if name in OLDER else 0]
        try:
            return worker.ask(request, limit)
        finally:
            if worker.ended and name not in OLDER:  # the other peers still have their turns
                worker.close()
                self.workers[0] = self.new_worker()
                self.workers[0].answer(START)

    def _close_pool(self, pool: str) -> None:
        for worker in self.workers:
            with contextlib.suppress(RuntimeError):  # its peers are left out where they failed
                worker.ask({"do": "close", "pool": pool}, TRIAL)

    @contextlib.contextmanager
    def on_one_core(self, names: Sequence[str], loop_names: Sequence[str]) -> Iterator[Runner]:
        """The same peers in a worker that is bound to one core."""
        bound = Runner(
            *(loop_names, names),
            say=lambda line: None,
            advance=self.advance,
            core=True,
            simulator=self.simulator,
        )
        try:
            bound.try_out()
            yield bound
        finally:
            bound.close()
            for entry in bound.not_run:
                self.leave_out(f"{entry['peer']} on one core", entry["loop"], entry["reason"])

    def close(self) -> None:
        """Ends the workers."""
        for worker in self.workers:
            worker.close()


def in_turn(names: Sequence[str], number: int) -> Sequence[str]:
    """Those of a round, in each beginning with another."""
    start = number % max(1, len(names))
    return (*names[start:], *names[:start])
