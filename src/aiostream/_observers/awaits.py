"""Reports to observers what each await does: it fills in the hook of `_runtime/observing.py`.

The hook makes the call of a method once more. Each observer that is registered gets the call's
name, the object whose method it is and the arguments, and makes an `Observation` of it.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import starmap
from typing import Any, ClassVar

from aiostream import _native
from aiostream._base import checks
from aiostream._runtime.observing import hook


class Observation:
    """One await, as one observer sees it. These methods do nothing.

    Threads: the thread of the loop, except where a method says otherwise.
    """

    # Whether `enters` and `leaves` are called, which costs time in each step.
    sees_steps: ClassVar[bool] = False

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what the method is called with in place of `args`, without `self`."""
        return args

    def serves(self, others: list[Observation]) -> None:
        """The call does the work of other awaits, such as a batch that of its items."""

    def enters(self) -> None:
        """The task is about to run a step of the await."""

    def leaves(self, yielded: Any) -> None:
        """The task is suspended, and gives `yielded` to its loop."""

    def returned(self) -> None:
        """The call has returned a future."""

    def refused(self, error: BaseException) -> None:
        """The call has raised this in place of returning a future."""

    def noticed(self) -> None:
        """What the task waits for now is over. The await may wait for more."""

    def ended(self, outcome: str, error: BaseException | None, result: Any = None) -> None:
        """The task goes on, or the callbacks of the future are called. It may come twice.

        `result` is what a coroutine has returned.
        """


Observations = tuple[Observation, ...]  # of one await, by its observers
Observer = Callable[[str, Any, tuple[Any, ...]], Observation]


class _Here(threading.local):
    served: list[Observation] | None = None  # by the next call of this thread


_here = _Here()
# What a future has for `seen_by` that no observed call has made.
_NOT_SEEN: tuple[Observations, bool] = (), False


def add_observer(observer: Observer, of_futures: bool = False) -> None:
    """Reports each await to an observer, from now on. Any thread.

    `noticed` of its observations is called if it is one `of_futures`.
    """
    if of_futures:
        hook.of_futures[observer] = None
    hook[observer] = None


def remove_observer(observer: Observer) -> None:
    """Reports to it no more. May be called again. Any thread."""
    hook.pop(observer, None)
    hook.of_futures.pop(observer, None)


# ------------------------------------------------------------------------ the hook


def _is_observed() -> bool:
    caller = sys._getframe(1).f_back
    return caller is not None and caller.f_globals is globals()


def _observed(call: str, method: Any, target: Any, /, *args: Any, **kwargs: Any) -> Any:
    observe = _coroutine if method.__code__.co_flags & inspect.CO_COROUTINE else _future
    return observe(call, method, target, args, kwargs)


async def _coroutine(call: str, method: Any, target: Any, args: Any, kwargs: Any) -> Any:
    observations, args = _begin(call, target, args)
    steps = coroutine = method(target, *args, **kwargs)
    if [each for each in observations if each.sees_steps]:
        steps = _steps(coroutine, *_reports(observations))
    try:
        result = await steps
    except GeneratorExit:
        # The coroutine was dropped, and no task waits any more. This may be the garbage collector,
        # anywhere in any thread. An observer could meet a lock there that is held.
        raise
    except BaseException as error:
        # It is suspended if an observer has raised a KeyboardInterrupt. Its wait would stay pending
        # otherwise, and wake a task on trio that is over, which ends the run.
        coroutine.close()
        outcome = "failed" if isinstance(error, Exception) else "cancelled"
        _each(observations, "ended", outcome, error)
        raise
    _each(observations, "ended", "done", None, result)
    return result


def _future(call: str, method: Any, target: Any, args: Any, kwargs: Any) -> Any:
    observations, args = _begin(call, target, args)
    try:
        future = method(target, *args, **kwargs)
    except BaseException as error:
        _each(observations, "refused", error)
        raise
    # By which observations its await is seen, and that a call has returned it. If not, it lies
    # within a coroutine that is observed. A loop's own kind of future may take no attribute.
    with contextlib.suppress(AttributeError):
        future.seen_by = observations, True
    _each(observations, "returned")
    if future.done():  # the loop has not to say so first
        _future_ended(observations, future)
    elif hasattr(future, "add_done_callback"):
        future.add_done_callback(partial(_future_ended, observations))
    return future


def _future_ended(observations: Observations, future: Any) -> None:
    # To ask for the exception would count as retrieving it, and asyncio would not report one that
    # no task takes.
    error: BaseException | None = getattr(future, "_exception", None)
    outcome = "cancelled" if future.cancelled() else "done" if error is None else "failed"
    _each(observations, "ended", outcome, error)


def _begin(call: str, target: Any, args: tuple[Any, ...]) -> tuple[Observations, tuple[Any, ...]]:
    observations = []
    if (served := _here.served) is not None:
        _here.served = None
    for observer in [*hook]:
        try:
            observation = observer(call, target, args)
            args = observation.arguments(args)
            if served is not None:
                observation.serves(served)
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


def _made(future: Any) -> None:
    frame: Any = sys._getframe(1)
    while frame is not None:  # the innermost await that is observed, if there is one
        code = frame.f_code
        if frame.f_globals is globals() and "observations" in code.co_varnames:
            future.seen_by = frame.f_locals["observations"], False
            break
        frame = frame.f_back


def _serves(futures: Iterable[Any]) -> None:
    _here.served = [seen for each in futures for seen in getattr(each, "seen_by", _NOT_SEEN)[0]]


def _awaited(future: Any, waits: Any) -> Any:
    observations, was_returned = getattr(future, "seen_by", _NOT_SEEN)
    return _await(future, waits, observations) if was_returned else waits


def _await(future: Any, waits: Any, observations: Observations) -> Generator[Any, Any, Any]:
    try:
        result = yield from _steps(waits, *_reports(observations))
    except Exception as error:
        if future.done():  # it is not if this is the wrong loop
            _each(observations, "ended", "failed", error)
        raise
    finally:
        waits.close()
    # A cancellation may end this await alone, and not the future: the callback has the outcome.
    _each(observations, "ended", "done", None)
    return result


def _settled(future: Any, result: Any) -> None:
    observations, was_returned = getattr(future, "seen_by", _NOT_SEEN)
    if not isinstance(result, _native.Wait):  # else the task polls again
        _each(observations, "noticed")
    if was_returned and not hasattr(future, "add_done_callback"):
        _future_ended(observations, future)


def _reports(observations: Observations) -> Iterator[Callable[..., None]]:
    return (partial(_each, observations, name) for name in ("enters", "leaves"))


@types.coroutine
def _steps(
    inner: Any, enters: Callable[[], object], leaves: Callable[[Any], object]
) -> Generator[Any, Any, Any]:
    """Does what `inner` does, and calls others before each step and with what it has yielded."""
    step, value = inner.send, None
    while True:
        enters()
        try:
            yielded = step(value)
        except StopIteration as stop:
            return stop.value
        finally:
            value = None  # an error that refers to this frame would keep itself alive
        leaves(yielded)
        try:
            step, value = inner.send, (yield yielded)
        except GeneratorExit:
            inner.close()
            raise
        except BaseException as error:
            step, value = inner.throw, error
        del yielded  # a future that is over should not live until the next step's end


hook.observed, hook.is_observed, hook.serves = _observed, _is_observed, _serves
hook.made, hook.settled, hook.awaited = _made, _settled, _awaited


# ------------------------------------------------------------------------ the user's functions


def marked(
    fn: Any,
    in_halves: bool,
    begins: Callable[[], object],
    launched: Callable[[Any], object],
    passed: Callable[[], object],
) -> Any:
    """Returns a function that does what `fn` does, and calls others in between.

    Args:
        fn: A function that enqueues work. What the call refuses is returned.
        in_halves: Whether the call takes a function in two halves.
        begins: Called at the beginning.
        launched: Called behind what the function enqueues, with what it returns or yields.
        passed: Called before each half of a function in halves.
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
        made.extend(starmap(partial(fn, **named), (more,)))
        if type(made[0]) is types.GeneratorType:  # which enqueues its work later
            halves: Any = _steps(made[0], passed, launched)
            halves.__qualname__ = made[0].__qualname__  # in errors
            return halves
        launched(made[0])
        return made[0]

    marker.__qualname__ = getattr(fn, "__qualname__", type(fn).__name__)  # in a future's repr
    marker.__wrapped__ = fn  # type: ignore[attr-defined]  # in notes of errors
    return marker
