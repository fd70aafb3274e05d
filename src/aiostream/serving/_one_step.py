"""One step of `Steps`: its two halves, and the future that native code settles behind its work.

The task of the steps launches it, in whose first half `first` runs. The drain of the loop settles
it, in the order of the launches. Then the task calls `finish`. If the steps have ended meanwhile,
`discard` closes the halves. If the loop is gone, a thread of the library does that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from aiostream import _native
from aiostream._handles.operand import wait_list_of
from aiostream._objects import halves
from aiostream._runtime import process
from aiostream._runtime.observing import hook
from aiostream.serving.results import Active, End, Request, Result, Results

if TYPE_CHECKING:
    from aiostream.serving.steps import Steps

# What the second half returns, and a function in two halves that does.
Outcomes = Mapping[int, Result | End[Result] | BaseException]
Step = Callable[[Active[Request]], Generator[Iterable[int] | None, None, Outcomes[Result]]]


Members = dict[int, Results[Any]]  # by slot


class OneStep(_native.OwnFuture, halves.Halves):
    """See the module. The completion of the work owns it until the GPU has passed that."""

    point: object = None  # native code sets it
    call_name = "Steps.step"  # in `pending()`
    _exception: BaseException | None = None  # of the wait, or of the launch once it has begun

    def __init__(self, steps: Steps[Any, Any], active: Active[Any], members: Members) -> None:
        call = partial(steps._fn, active)
        halves.Halves.__init__(self, steps._stream._operand, call, steps._context.copy())
        self.steps, self.active, self.members = steps, active, members
        self.began = self.passed = False
        self.last: frozenset[int] = frozenset()  # the slots that it has yielded
        self.error: BaseException | None = None  # of a half, or of a launch that has not begun
        for results in members.values():
            results._flying += 1

    def first(self) -> None:
        """Runs the first half, with the stream current. It raises nothing."""
        self.began = True
        try:
            self.begin()
            if self.generator is None or self.ended:
                raise self._wrong("has not yielded")
        except BaseException as error:
            self.error = error

    def has_launched(self) -> None:
        """Notes in its requests what the launch has come to. Not in the frame of the launch.

        If the first half has failed, its error refers to that frame, and the requests to the error.
        """
        for slot, results in self.members.items():
            results._seen |= self.began
            results._last |= self.error is not None or slot in self.last

    def finish(self) -> None:
        """Runs the second half with the stream current, or closes what has failed."""
        operand, held = self.operand, list[bool]()
        waits: _native.WaitList | None = None
        try:
            # Without its stream, the next half gets the error.
            if operand.handle.pin(held):
                waits = wait_list_of(operand)
            if self.error is None:
                try:
                    halves.advance(self, wait_list_of(operand), self._exception, self.step)
                    found = self.value
                    if not (isinstance(found, Mapping) and found.keys() <= self.active.keys()):
                        raise self._wrong(f"has returned {found!r}")
                    self.value = dict(found)  # here, because one of a user's may raise
                except BaseException as error:
                    self.error = error
            if self.is_open:
                halves.close(self, self._exception is not None, waits)
        finally:
            operand.handle.unpin(held)

    def discard(self) -> None:
        """Closes the halves, because the steps have ended. May be repeated."""
        self.error = self.error or GeneratorExit()
        self.finish()

    # What `Halves` asks of a `yield`.

    def takes(self, yielded: Any) -> bool:
        """Whether it is the first `yield`, of nothing or of slots of this step."""
        if self.passed:
            return False
        try:
            self.last = frozenset(() if yielded is None else yielded)
        except TypeError:
            return False
        return self.last <= self.active.keys()

    def misuse(self, yielded: object, differs: list[str]) -> Exception:
        """Says what is wrong with a `yield`."""
        if differs:
            return super().misuse(None, differs)
        return self._wrong("has yielded twice" if self.passed else f"has yielded {yielded!r}")

    def _wrong(self, what: str) -> TypeError:
        return TypeError(
            f"{self.steps._fn_name} {what}. A step yields once, nothing or slots, and returns a "
            f"mapping with results of slots. The slots of this step are {[*self.active]}"
        )

    # What native code and observers ask of a future. It settles in the drain of the loop. A
    # KeyboardInterrupt may cut that short, and the next drain repeats it. So `passed` comes late.

    def done(self) -> bool:
        """Whether the GPU has passed the work, or the wait has failed."""
        return self.passed

    def cancelled(self) -> bool:
        """No."""
        return False

    def _set_result(self, result: object) -> None:
        self.steps._passed(self)
        self.passed = True
        if hook:
            hook.settled(self, None)

    def _set_exception(self, error: BaseException) -> None:
        self._exception = error
        self._set_result(None)

    def _drop(self) -> None:
        # The janitor calls this, because the loop has ended. What the close calls may block.
        process.run_in_releaser(self.discard)
