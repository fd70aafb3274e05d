"""The one hook of those who look on: what began, what ended, on which object, and when.

Each awaitable method first tests whether the `hook` is true. If so, it does nothing else, and the
hook makes the same call once more and observes it. `is_observed` says so to that second call.
Without observers, the test is all that a wait pays.

The library knows no observer. `_observers/awaits.py` fills the hook in, and may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class _Observed(Protocol):
    def __call__(
        self, call: str, method: Callable[..., T], target: Any, /, *args: Any, **kwargs: Any
    ) -> T: ...


class Hook(dict[Any, None]):
    """What the library calls if an observer is registered. Each is a key, and it is true then.

    Threads: any, single dict operations.
    """

    # Those of them that see what becomes of each future for which a task waits, which costs more.
    of_futures: dict[Any, None]
    # Does `method(target, *args, **kwargs)`, which returns a coroutine or a future, and reports it
    # as `call`.
    observed: _Observed
    # Whether `observed` has called the function that asks.
    is_observed: Callable[[], bool]
    # Notes in which call a future is made.
    made: Callable[[Any], None]
    # Notes that a future is settled, and with which result.
    settled: Callable[[Any, Any], None]
    # Returns what awaits a future, from its `__await__` and the iterator that does it otherwise.
    awaited: Callable[[Any, Any], Any]
    # The next call of this thread does the work of others, which have made these futures.
    serves: Callable[[Iterable[Any]], None]


hook = Hook()
hook.of_futures = {}
