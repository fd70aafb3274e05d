"""Reports to observers what each await does: the seam for metrics and for traces.

While there is no observer, nothing is replaced, and a wait costs nothing more. The first observer
replaces the methods, and the last one that ends puts them back. There is one such mechanism for
all, because two that replace the same methods would put each other's functions back.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

from aiostream import _process
from aiostream._completion import Completion, State
from aiostream._loops import on_asyncio, on_trio
from aiostream.event import Event
from aiostream.graph import ExecutableGraph
from aiostream.pool import StreamPool
from aiostream.stream import Stream

# What is observed: coroutines, and calls that return futures.
_COROUTINES: tuple[tuple[type, str], ...] = (
    (Stream, "synchronize_async"),
    (Stream, "enqueue_in_thread"),
    (Event, "synchronize_async"),
    (ExecutableGraph, "launch_and_wait"),
    (ExecutableGraph, "upload_and_wait"),
    (StreamPool, "acquire"),
)
_FUTURES: tuple[tuple[type, str], ...] = (
    (Stream, "enqueue_async"),
    (Stream, "completion_future"),
    (Stream, "checked_completion_future"),
    (ExecutableGraph, "launch_async"),
    (ExecutableGraph, "upload_async"),
)


class Watch:
    """One await, as one observer sees it. These methods do nothing.

    Threads: the thread of the loop, except where a method says otherwise.
    """

    __slots__ = ()

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

    def noticed(self) -> None:
        """The loop has learned of the end. The janitor's thread, if the loop is gone."""

    def ended(self, outcome: str, error: BaseException | None) -> None:
        """The task goes on, or the callbacks of the future are called. It may come twice."""


# Makes a watch of `call`, from the object whose method it is, and the arguments.
Observer = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Watch]


class _Here(threading.local):
    watches: tuple[Watch, ...] = ()  # of the call or the step that runs in this thread


# Guards changes of the methods. Reentrant, because a signal handler may come to it in the thread
# that holds it.
_lock = threading.RLock()
# By registration, in order. Any thread, single dict operations, which a handler cannot divide.
_observers: dict[object, Observer] = {}
_close_observers: dict[object, Observer] = {}  # those of them that need each step
_here = _Here()
# The watches of a future, while it lives, and whether a call has returned it. If not, it is within
# an await, which may go on when its future is done: a wait is handed back to its task so. Guarded
# by `_watched_lock`, because the janitor asks too.
_watched: weakref.WeakKeyDictionary[Any, tuple[tuple[Watch, ...], bool]]
_watched = weakref.WeakKeyDictionary()
_watched_lock = threading.RLock()


def observe(observer: Observer, *, steps: bool = False) -> Callable[[], None]:
    """Has `observer` called at the beginning of each await from now on, until you call the result.

    Args:
        observer: Makes a `Watch`. Register an object of its own each time.
        steps: Whether its watches need more than `arguments`, `returned` and `ended`.

    Threads: any.
    """
    end = functools.partial(forget, observer)
    try:
        _observers[observer] = observer
        if steps:
            _close_observers[observer] = observer
        _replace_or_put_back()
    except BaseException:
        end()  # the caller gets no function that ends it
        raise
    return end


def forget(observer: Observer) -> None:
    """Ends what `observe` has begun. It may have ended already."""
    _observers.pop(observer, None)
    _close_observers.pop(observer, None)
    _replace_or_put_back()


def _replace_or_put_back() -> None:
    """Replaces what the observers need, and puts back the rest.

    Each step can be repeated, because a KeyboardInterrupt may come after any of them.
    """
    with _lock:
        while True:
            wanted = bool(_observers), bool(_close_observers)
            for owner, name, wrap in _methods():
                _replace(owner, name, wrap) if wanted[0] else _put_back(owner, name)
            for owner, name, wrap in _INSIDE:
                _replace(owner, name, wrap) if wanted[1] else _put_back(owner, name)
            if wanted == (bool(_observers), bool(_close_observers)):
                return  # else a signal handler has changed it meanwhile


def _methods() -> Iterator[tuple[type, str, Callable[[Any], Any]]]:
    for owners, observed in ((_COROUTINES, _coroutine), (_FUTURES, _future)):
        for owner, name in owners:
            yield owner, name, functools.partial(observed, call=f"{owner.__name__}.{name}")


def _replace(owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
    # Read once, because a signal handler may replace it here, and then it looks like an own one.
    own = vars(owner).get(name)
    original = own or getattr(owner, name)
    if _origin(original) is None:
        new = wrap(original)
        setattr(new, _ORIGIN, (new, original, own is None))
        setattr(owner, name, new)


def _put_back(owner: type, name: str) -> None:
    origin = _origin(vars(owner).get(name))
    if origin is not None:
        _, original, inherited = origin
        if inherited:
            with contextlib.suppress(AttributeError):  # a signal handler was faster
                delattr(owner, name)
        else:
            setattr(owner, name, original)


# The attribute of a replacement that holds: itself, the original, and whether the class has
# inherited the original. Itself, because functools.wraps copies attributes to other functions.
_ORIGIN = "_aiostream_origin"


def _origin(method: Any) -> tuple[Any, Any, bool] | None:
    origin: tuple[Any, Any, bool] | None = getattr(method, _ORIGIN, None)
    return origin if origin is not None and origin[0] is method else None


# ------------------------------------------------------------------------ the public methods


def _coroutine(original: Any, *, call: str) -> Any:
    @functools.wraps(original)
    async def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        watches, args = _begin(call, self, args, kwargs)
        try:
            if _close_observers:
                result = await _Stepped(original(self, *args, **kwargs), watches)
            else:
                result = await original(self, *args, **kwargs)
        except GeneratorExit:
            # The coroutine was dropped, and no task waits any more. This may be the garbage
            # collector, anywhere in any thread. An observer could meet a lock there that is held.
            raise
        except BaseException as error:
            _end(watches, "failed" if isinstance(error, Exception) else "cancelled", error)
            raise
        _end(watches, "done", None)
        return result

    return observed


def _future(original: Any, *, call: str) -> Any:
    @functools.wraps(original)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        watches, args = _begin(call, self, args, kwargs)
        before, _here.watches = _here.watches, watches
        try:
            future = original(self, *args, **kwargs)
        except BaseException as error:
            _each(watches, "refused", error)
            raise
        finally:
            _here.watches = before
        if _close_observers:
            _watch(future, watches, returned=True)
        _each(watches, "returned")
        future.add_done_callback(functools.partial(_future_ended, watches))
        return future

    return observed


def _future_ended(watches: tuple[Watch, ...], future: Any) -> None:
    if future.cancelled():
        _end(watches, "cancelled", None)
        return
    # To ask for the exception would count as retrieving it, and asyncio would not report one that
    # no task takes.
    error: BaseException | None = getattr(future, "_exception", None)
    _end(watches, "done" if error is None else "failed", error)


def _begin(
    call: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Watch, ...], tuple[Any, ...]]:
    watches = []
    for observer in list(_observers.values()):
        try:
            watch = observer(call, target, args, kwargs)
            args = watch.arguments(args)
        except Exception as error:
            _process.report_unraisable(error, observer)
        else:
            watches.append(watch)
    return tuple(watches), args


def _end(watches: tuple[Watch, ...], outcome: str, error: BaseException | None) -> None:
    _each(watches, "ended", outcome, error)


def _each(watches: tuple[Watch, ...], name: str, *values: Any) -> None:
    for watch in watches:
        try:
            getattr(watch, name)(*values)
        except Exception as error:
            _process.report_unraisable(error, watch)


# ------------------------------------------------------------------------ each step


def _steps(inner: Any, watches: tuple[Watch, ...]) -> Generator[Any, Any, Any]:
    """Awaits `inner`, a coroutine or the iterator of an awaitable, and reports each step."""
    # A generator, because a coroutine does not see what goes through it to the loop. What is
    # yielded says how the task waits: by turns of the loop, or until it is woken.
    step, value = inner.send, None
    while True:
        _each(watches, "enters")
        before, _here.watches = _here.watches, watches
        try:
            yielded = step(value)
        except StopIteration as stop:
            return stop.value
        finally:
            _here.watches = before
            value = None  # an error that refers to this frame would keep itself alive
        _each(watches, "leaves", yielded)
        try:
            value = yield yielded
            step = inner.send
        except GeneratorExit:
            inner.close()
            raise
        except BaseException as error:
            step, value = inner.throw, error
        del yielded  # a future that is over should not live until the next step's end


class _Stepped:
    """Awaits a coroutine by `_steps`."""

    __slots__ = ("_inner", "_watches")

    def __init__(self, inner: Any, watches: tuple[Watch, ...]) -> None:
        self._inner, self._watches = inner, watches

    def __await__(self) -> Generator[Any, Any, Any]:
        return _steps(self._inner, self._watches)


def _awaited(original: Any) -> Any:
    """A future's `__await__`, so that a task that awaits the future is seen to go on."""

    @functools.wraps(original)
    def observed(self: Any) -> Any:
        watches = () if self.done() else _watches_of(self, returned=True)
        inner = original(self)
        return _awaited_steps(self, inner, watches) if watches else inner

    return observed


def _awaited_steps(future: Any, inner: Any, watches: tuple[Watch, ...]) -> Generator[Any, Any, Any]:
    try:
        result = yield from _steps(inner, watches)
    except Exception as error:
        if future.done():  # it is not if this is the wrong loop
            _end(watches, "failed", error)
        raise
    # A cancellation may end this await alone, and not the future: the callback has the outcome.
    _end(watches, "done", None)
    return result


def _made(original: Any) -> Any:
    """`Completion.__init__`: its future belongs to the await whose step makes it."""

    @functools.wraps(original)
    def observed(self: Any, future: Any, *args: Any, **kwargs: Any) -> None:
        original(self, future, *args, **kwargs)
        if _here.watches:
            _watch(future, _here.watches)

    return observed


def _over(original: Any) -> Any:
    """`Completion._end`: the loop has learned that the GPU has passed the point."""

    @functools.wraps(original)
    def observed(self: Any, outcome: State) -> None:
        # A wait that was handed back to its task is not over: the task polls from now on.
        handed_back = getattr(self, "spinning", None) is not None
        if outcome in (State.DONE, State.FAILED) and self.future is not None and not handed_back:
            _each(_watches_of(self.future), "noticed")
        original(self, outcome)

    return observed


def _watch(future: Any, watches: tuple[Watch, ...], *, returned: bool = False) -> None:
    with _watched_lock:
        _watched[future] = watches, returned


def _watches_of(future: Any, *, returned: bool = False) -> tuple[Watch, ...]:
    with _watched_lock:
        watches, was_returned = _watched.get(future, ((), False))
    return watches if was_returned or not returned else ()


_INSIDE: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (Completion, "__init__", _made),
    (Completion, "_end", _over),
    (on_asyncio.AsyncioFuture, "__await__", _awaited),
    (on_asyncio.AsyncioFuture, "__iter__", _awaited),
    (on_trio.TrioFuture, "__await__", _awaited),
)
