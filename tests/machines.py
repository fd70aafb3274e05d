"""What the state machines share: a loop in a thread of its own, tasks in it, gates, and how
hypothesis runs them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.from_thread
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import aiostream
from aiostream import Stream, WaitStrategy, statistics
from support import Gate, chosen_seconds, chosen_seed, is_at_rest, settle
from waiters import turns

STRATEGIES = st.sampled_from(list(WaitStrategy))


class Waiter:
    """A task that awaits something, and what became of it."""

    def __init__(self, machine: OnLoop, function: Callable[[], Awaitable[Any]]) -> None:
        self.function = function
        self.scope: Any = None  # as soon as it runs
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.end = machine.portal.start_task_soon(self.run)
        machine.turn()

    async def run(self) -> None:
        try:
            with anyio.CancelScope() as self.scope:
                try:
                    self.result = await self.function()
                except BaseException as error:
                    self.error = error
                    if self.scope.cancel_called:
                        raise
        finally:
            self.done = True


class OnLoop(RuleBasedStateMachine):
    """A machine with an event loop in a thread of its own.

    All that concerns the library happens in that thread.
    """

    backend = "asyncio"
    before: aiostream.Statistics  # as the test began

    def __init__(self) -> None:
        super().__init__()
        self.manager = anyio.from_thread.start_blocking_portal(self.backend)
        self.portal = self.manager.__enter__()
        self.gates: dict[int, Gate] = {}
        self.opened: set[int] = set()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        async def in_loop() -> Any:
            return function(*args)

        return self.portal.call(in_loop)

    def turn(self) -> None:
        """Lets the loop's tasks do what they can do at once."""
        self.portal.call(turns, 5)

    def until(self, condition: Callable[..., bool], complaint: str) -> None:
        """Lets the loop run until what must come has come."""

        async def wait() -> bool:
            with anyio.move_on_after(20):
                while not condition():
                    await anyio.sleep(0.0005)
            return condition()

        assert self.portal.call(wait), f"{complaint}: {statistics()}"

    def must_end(self, waiter: Waiter) -> None:
        """What a task waits for must come now."""
        self.until(lambda: waiter.done, "an await goes on")
        assert waiter.error is None

    def must_cancel(self, waiter: Waiter) -> None:
        """A cancelled task ends."""
        self.call(waiter.scope.cancel)
        self.until(lambda: waiter.done, "a cancelled await goes on")

    # Gates: at most three are shut, because each shut one holds a hardware queue.

    def may_hold(self) -> bool:
        return len(self.gates) - len(self.opened) < 3

    def new_gate(self, stream: Stream) -> int:
        number = len(self.gates)
        self.gates[number] = Gate()
        self.gates[number].hold(stream)
        return number

    @precondition(lambda self: set(self.gates) - self.opened)
    @rule(data=st.data())
    def open_gate(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(set(self.gates) - self.opened)))
        self.gates[number].open()
        self.opened.add(number)
        self.after_opening()

    def after_opening(self) -> None: ...

    def is_due(self, ahead: frozenset[int]) -> bool:
        return ahead <= self.opened

    def finish(self) -> None:
        """What is left ends when all gates are open."""

    def teardown(self) -> None:
        for number, gate in self.gates.items():
            gate.open()
            self.opened.add(number)
        try:
            if sys.exc_info()[0] is None:
                self.after_opening()
                self.finish()
        finally:
            # A step has failed, or hypothesis ends the example.
            ended_early = sys.exc_info()[0] is not None
            self.manager.__exit__(*sys.exc_info())  # cancels what is left then
        if ended_early:
            self.__dict__.clear()  # the traceback keeps this object, and it would keep its streams
            return
        gc.collect()

        def ended() -> bool:
            now = statistics()
            return (
                is_at_rest()
                and now.handles.open == self.before.handles.open
                and now.points.leaked == self.before.points.leaked
            )

        assert settle(ended), f"{self.before} -> {statistics()}"


def check(machine: type[OnLoop], backend: str, examples: int, steps: int) -> None:
    attributes = {"backend": backend, "before": statistics()}
    chosen = type(f"{machine.__name__}On{backend.title()}", (machine,), attributes)
    # From Python 3.14 on hypothesis asks `gc.get_referrers` who holds its random numbers, so that
    # must see what the fixture `ledger` has frozen. On the others each collection of a test would
    # take as long as the whole heap asks.
    if sys.version_info >= (3, 14):
        gc.unfreeze()
    run_state_machine_as_test(
        seed(chosen_seed())(chosen) if chosen_seed() != 1 else chosen,
        settings=settings(
            max_examples=max(examples, int(examples * chosen_seconds(0) / 12)),
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=chosen_seed() == 1,
            print_blob=False,
            report_multiple_bugs=False,
            # To shrink takes minutes, when each failure is something that does not come.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


only_simulated = pytest.mark.simulator_only(
    "hundreds of streams in steps: on a GPU it would take minutes"
)
