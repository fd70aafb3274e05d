"""The worker of LitServe's server, which a process of its own unpickles by its module and name."""

from __future__ import annotations

from typing import Any

import litserve
from litserve.loops.continuous_batching_loop import ContinuousBatchingLoop, Output
from litserve.utils import LitAPIStatus

from benchmarks.step_model import BUFFERS, SLOTS, busy
from benchmarks.step_servers import EVENT, new_model


class Decoder(litserve.LitAPI):
    """Runs the steps in a thread, as LitServe does with a `step`."""

    def setup(self, device: object) -> None:
        """Loads the model."""
        _, settings, self._model = new_model()
        self._python = settings.python_ms / 1e3
        self._free = list(range(SLOTS))  # by slot, the lowest first
        self._active: dict[str, list[int]] = {}  # by request: slot, prompt or -1, tokens to come
        self._number = 0

    def decode_request(self, request: dict[str, int]) -> dict[str, int]:
        """Takes a request as it is."""
        return request

    def add_request(self, uid: str, request: dict[str, int]) -> None:
        """Gives a request a slot."""
        slot = min(self._free)
        self._free.remove(slot)
        self._active[uid] = [slot, request["prompt"], request["tokens"]]

    def has_capacity(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def has_active_requests(self) -> bool:
        """Whether there is something to do."""
        return bool(self._active)

    def step(self, previous: object) -> list[Any]:
        """Runs a step for all requests."""
        who = list(self._active.items())
        prompts = {slot: prompt for _, (slot, prompt, _) in who if prompt >= 0}
        self._number += 1
        buffer = self._number % BUFFERS
        with self._model.current():
            self._model.launch(prompts, 1 + max(slot for _, (slot, _, _) in who), buffer)
        self._model.synchronize()
        tokens = self._model.read(buffer)
        busy(self._python)
        found = []
        for uid, request in who:
            slot = request[0]
            request[1:] = -1, request[2] - 1
            found.append(Output(uid, EVENT % tokens[slot], LitAPIStatus.OK))
            if not request[2]:
                found.append(Output(uid, "", LitAPIStatus.FINISH_STREAMING))
                del self._active[uid]
                self._free.append(slot)
        return found

    def encode_response(self, output: str) -> str:
        """Sends an event as it is."""
        return output


def new_decoder() -> Decoder:
    """The worker with the loop of LitServe."""
    return Decoder(max_batch_size=SLOTS, stream=True, loop=ContinuousBatchingLoop())
