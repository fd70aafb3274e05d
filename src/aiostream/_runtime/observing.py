"""Reports to observers what each await does, for metrics and for traces.

Each awaitable method first tests whether there are `observers`. If so, it does nothing else, and
this module makes the same call once more and observes it. `is_observed` says so to that second
call. Without observers, the test is all that a wait pays.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Coroutine, Generator
from itertools import starmap
from typing import Any, ClassVar, TypeVar

from aiostream import _native
from aiostream._base import checks, turns
from aiostream.futures import CompletionFuture

T = TypeVar("T")
F = TypeVar("F", bound=CompletionFuture[Any])


class Observation:
    """One await, as one observer sees it. These methods do nothing.

    Threads: the thread of the loop, except where a method says otherwise.
    """

    __slots__ = ()

    # Whether `enters`, `leaves` and `noticed` are called, which costs time in each step.
    sees_steps: ClassVar[bool] = False

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what the method is called with in place of `args`, without `self`."""
        return args

    def enters(self) -> None:
        """The task is about to run a step of the await."""

    def leaves(self, yielded: Any) -> None:
        """The task is suspended, and gives `yielded` to its loop."""

    def returned(self) -> None:
        """The call has returned a future."""

    def refused(self, error: BaseException) -> None:
        """The call has raised this in place of returning a future."""

    def timed(self, what: str, seconds: float | None) -> None:
        """A part of the await has taken this time: see the function `timed`."""

    def noticed(self) -> None:
        """The loop has learned of the end. The janitor's thread, if the loop is gone."""

    def ended(self, outcome: str, error: BaseException | None) -> None:
        """The task goes on, or the callbacks of the future are called. It may come twice."""


Awaiting = Coroutine[Any, Any, T]
Observations = tuple[Observation, ...]  # of one await, by its observers
# Makes an observation of a call, from its name, the object whose method it is, and the arguments.
Observer = Callable[[str, Any, tuple[Any, ...]], Observation]


class _Here(threading.local):
    observations: Observations = ()  # of the step that runs in this thread


# By registration, in order. Any thread, single dict operations.
observers: dict[Observer, None] = {}
_here = _Here()
# While a future lives: the observations of its await, and whether a call has returned the future.
# If not, it lies within a coroutine that is observed. Any thread, single dict operations.
_of_future: weakref.WeakKeyDictionary[Any, tuple[Observations, bool]]
_of_future = weakref.WeakKeyDictionary()


def add_observer(observer: Observer) -> None:
    """Reports each await to an observer, from now on. Any thread."""
    observers[observer] = None
    _native.set_observer(future_reached)


def remove_observer(observer: Observer) -> None:
    """Reports to it no more. May be called again. Any thread."""
    observers.pop(observer, None)
    _native.set_observer(None)
    if observers:  # asked last, because another thread may just have added one
        _native.set_observer(future_reached)


def is_observed() -> bool:
    """Whether the function that asks was called by this module, and so is observed already."""
    caller = sys._getframe(1).f_back
    return caller is not None and caller.f_globals is globals()


# ------------------------------------------------------------------------ the public methods


async def observed(
    call: str, method: Callable[..., Awaiting[T]], target: Any, /, *args: Any, **kwargs: Any
) -> T:
    """Awaits the coroutine `method(target, *args, **kwargs)`, and reports it as `call`."""
    observations, args = _begin(call, target, args)
    try:
        coroutine = method(target, *args, **kwargs)
        if _see_steps(observations):
            # `_steps` must not throw an error into trio's wait for a thread, which goes on, and at
            # whose end trio would wake a task that is over. Other calls run the user's function in
            # this thread, which must stay interruptible.
            protected = call.endswith("in_thread")
            steps = turns.without_interrupts(_steps) if protected else _steps
            coroutine = steps(coroutine, observations)
        result: T = await coroutine
    except GeneratorExit:
        # The coroutine was dropped, and no task waits any more. This may be the garbage collector,
        # anywhere in any thread. An observer could meet a lock there that is held.
        raise
    except BaseException as error:
        outcome = "failed" if isinstance(error, Exception) else "cancelled"
        _each(observations, "ended", outcome, error)
        raise
    _each(observations, "ended", "done", None)
    return result


def observed_future(
    call: str, method: Callable[..., F], target: Any, /, *args: Any, **kwargs: Any
) -> F:
    """Returns the future `method(target, *args, **kwargs)`, and reports it as `call`."""
    observations, args = _begin(call, target, args)
    try:
        future = method(target, *args, **kwargs)
    except BaseException as error:
        _each(observations, "refused", error)
        raise
    if _see_steps(observations):
        _of_future[future] = observations, True
    _each(observations, "returned")
    if future.done():  # the loop has not to say so first
        _future_ended(observations, future)
    else:
        future.add_done_callback(functools.partial(_future_ended, observations))
    return future


def _future_ended(observations: Observations, future: Any) -> None:
    # To ask for the exception would count as retrieving it, and asyncio would not report one that
    # no task takes.
    error: BaseException | None = getattr(future, "_exception", None)
    outcome = "cancelled" if future.cancelled() else "done" if error is None else "failed"
    _each(observations, "ended", outcome, error)


def _begin(call: str, target: Any, args: tuple[Any, ...]) -> tuple[Observations, tuple[Any, ...]]:
    observations = []
    for observer in list(observers):
        try:
            observation = observer(call, target, args)
            args = observation.arguments(args)
        except Exception as error:
            _native.write_unraisable(error, observer)
        else:
            observations.append(observation)
    return tuple(observations), args


def _each(observations: Observations, name: str, *values: Any) -> None:
    for observation in observations:
        try:
            getattr(observation, name)(*values)
        except Exception as error:
            _native.write_unraisable(error, observation)


# ------------------------------------------------------------------------ the parts of an await


def belongs_here(future: Any) -> None:
    """A future belongs to the await whose function asks this, which is observed."""
    caller: Any = sys._getframe(1).f_back  # `observed`, or `_steps`
    _of_future[future] = caller.f_locals["observations"], False


def timed(what: str, seconds: dict[Any, float | None]) -> None:
    """Reports how long a part of some awaits took, by futures that belong to them.

    `what` is "queued" or "gpu": see `metrics.Wait`.
    """
    for future, each in seconds.items():
        observations, _ = _of_future.get(future, ((), False))
        _each(observations, "timed", what, each)


class Waited:
    """How long the loop waits for what a function launches: `fn` in place of the function."""

    def __init__(self, fn: Any) -> None:
        self.fn = marked(fn, True, _nothing, self._launched, self.passed)
        self._seconds: float | None = None
        self._since = 0.0  # or the time of the launch

    def _launched(self) -> None:
        self._since = time.perf_counter()

    def passed(self) -> float | None:
        """The wait is over. Returns how long all waits took, or `None` without one."""
        if self._since:
            self._seconds = (self._seconds or 0.0) + time.perf_counter() - self._since
        self._since = 0.0
        return self._seconds


def _nothing() -> None:
    """Is called in between."""


def marked(
    fn: Any,
    in_halves: bool,
    begins: Callable[[], object],
    launched: Callable[[], object],
    passed: Callable[[], object],
) -> Any:
    """Returns a function that does what `fn` does, and calls others in between.

    Args:
        fn: A function that enqueues work. What the call refuses is returned.
        in_halves: Whether the call takes a function in two halves.
        begins: Called at the beginning.
        launched: Called behind what the function enqueues, and behind what each half does.
        passed: Called when the function goes on after a `yield`.
    """
    try:
        checks.plain_function(fn, "run", halves=in_halves)
    except TypeError:  # the call itself raises the error
        return fn

    # What the function returns, in one step with its return. It lives as long as `marker`, also if
    # an interrupt comes before `launched` was called.
    made: list[Any] = []

    def marker(*more: Any, **named: Any) -> Any:
        begins()
        made.extend(starmap(functools.partial(fn, **named), (more,)))
        if type(made[0]) is types.GeneratorType:  # which enqueues its work later
            halves: Any = _halves(made[0], launched, passed)
            halves.__qualname__ = made[0].__qualname__  # in errors
            return halves
        launched()
        return made[0]

    marker.__qualname__ = getattr(fn, "__qualname__", type(fn).__name__)  # in a future's repr
    marker.__wrapped__ = fn  # type: ignore[attr-defined]  # in notes of errors
    return marker


def _halves(
    user: Any, launched: Callable[[], object], passed: Callable[[], object]
) -> Generator[object, None, Any]:
    """The same generator, with a call behind each half, and one before the next."""
    step, value = user.send, None
    while True:
        try:
            yielded = step(value)
        except StopIteration as stop:
            return stop.value
        finally:
            value = None  # the traceback of an error refers to this frame
        launched()
        try:
            step, value = user.send, (yield yielded)
        except GeneratorExit:
            user.close()
            raise
        except BaseException as error:
            step, value = user.throw, error
        passed()


# ------------------------------------------------------------------------ each step


def _see_steps(observations: Observations) -> bool:
    return any(observation.sees_steps for observation in observations)


@types.coroutine
def _steps(inner: Any, observations: Observations) -> Generator[Any, Any, Any]:
    """Awaits `inner`, a coroutine or the iterator of an awaitable, and reports each step."""
    # A generator, because a coroutine does not see what goes through it to the loop. What is
    # yielded says how the task waits: by turns of the loop, or until it is woken.
    step, value = inner.send, None
    try:
        while True:
            _each(observations, "enters")
            before, _here.observations = _here.observations, observations
            try:
                yielded = step(value)
            except StopIteration as stop:
                return stop.value
            finally:
                _here.observations = before
                value = None  # an error that refers to this frame would keep itself alive
            _each(observations, "leaves", yielded)
            try:
                value = yield yielded
                step = inner.send
            except GeneratorExit:
                raise
            except BaseException as error:
                step, value = inner.throw, error
            del yielded  # a future that is over should not live until the next step's end
    finally:
        # It is suspended if an observer has raised a KeyboardInterrupt. Its wait would stay pending
        # otherwise, and wake a task on trio that is over, which ends the run.
        inner.close()


def observed_await(method: Any, future: Any) -> Generator[Any, Any, Any]:
    """Awaits a future by `method`, its `__await__`, so that a task is seen to go on."""
    observations, was_returned = _of_future.get(future, ((), False))
    if not was_returned:
        return (yield from method(future))
    try:
        result = yield from _steps(method(future), observations)
    except Exception as error:
        if future.done():  # it is not if this is the wrong loop
            _each(observations, "ended", "failed", error)
        raise
    # A cancellation may end this await alone, and not the future: the callback has the outcome.
    _each(observations, "ended", "done", None)
    return result


def future_made(future: Any) -> None:
    """A completion has got its future: it belongs to the await whose step this is."""
    if _here.observations:
        _of_future[future] = _here.observations, False


def future_reached(future: Any) -> None:
    """The loop has learned that the GPU has passed the future's point, or has failed."""
    observations, _ = _of_future.get(future, ((), False))
    _each(observations, "noticed")
