"""What the public calls accept: one check, and one text, for each kind of mistake."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from enum import Enum
from numbers import Integral
from typing import Any, NoReturn, TypeVar

E = TypeVar("E", bound=Enum)

_MOST_ADDRESS = 2**64 - 1
_LEAST_INT, _MOST_INT, _MOST_FLAGS, _MOST_BYTE = -(2**31), 2**31 - 1, 2**32 - 1, 255  # of C


def is_integer(value: Any) -> bool:
    """Whether it is an int, or one of numpy's. A bool is none, nor is a tensor or a `Device`, which have an `__index__`."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def integer(name: str, value: Any) -> int:
    """An int, or one of numpy's.

    Raises:
        TypeError: It is something else.
    """
    if not is_integer(value):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    return operator.index(value)


def number(name: str, value: Any, least: int, reason: str) -> int:
    """An int that is not too small.

    Raises:
        TypeError: It is no int.
        ValueError: It is too small.
    """
    if integer(name, value) < least:
        raise ValueError(f"{reason}, not {value}")
    return operator.index(value)


def handle(value: Any, what: str) -> int:
    """A handle that was given as a number. Whether the driver knows it is another question.

    Raises:
        TypeError: It is no int.
        ValueError: No handle has that number.
    """
    number = integer(f"the handle of {what}", value)
    if not 0 <= number <= _MOST_ADDRESS:
        raise ValueError(
            f"{number} is no handle of {what}: a handle is a number from 0 to 2**64 - 1"
        )
    return number


def byte(name: str, value: Any) -> int:
    """A number from 0 to 255.

    Raises:
        TypeError: It is no int.
        ValueError: It is out of range.
    """
    if not 0 <= integer(name, value) <= _MOST_BYTE:
        raise ValueError(f"{name} is a number from 0 to {_MOST_BYTE}, not {value}")
    return operator.index(value)


def address(value: int) -> int:
    """An address in memory, or a size of it.

    Raises:
        ValueError: There is none of that number.
    """
    if not 0 <= value <= _MOST_ADDRESS:
        raise ValueError(
            f"{value} is no address or size in memory: these are numbers from 0 to 2**64 - 1"
        )
    return value


def priority(value: Any) -> int:
    """A priority that C's int can hold. The driver clamps it further.

    Raises:
        TypeError: It is no int.
    """
    return min(max(integer("a priority", value), _LEAST_INT), _MOST_INT)


def flag(name: str, value: Any) -> bool:
    """A bool, and nothing that only counts as true or false: a stream in the place of `timing` is a mistake.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


def timeout(value: Any) -> float | None:
    """Seconds, or `None`.

    Raises:
        TypeError: It is no number.
        ValueError: It is not a number in the sense of IEEE 754.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"a timeout is a number of seconds or None, not {type(value).__name__}")
    if math.isnan(seconds := float(value)):
        raise ValueError("a timeout is a number of seconds, not nan")
    return seconds


def member(kind: type[E], value: Any, name: str) -> E:
    """The member of an enumeration, or the flags, that were asked for by themselves or by their value.

    Raises:
        ValueError: There is none; the error names those that there are.
    """
    if not isinstance(value, bool) and not (
        isinstance(value, int) and not 0 <= value <= _MOST_FLAGS
    ):
        try:
            return kind(value)
        except (ValueError, TypeError):  # of flags: a TypeError for what is no int
            pass
    members = kind.__members__.items()  # an iteration of flags leaves out the one that is 0
    names = ", ".join(
        repr(each.value) if isinstance(each.value, str) else f"{kind.__name__}.{key}"
        for key, each in members
    )
    raise ValueError(f"{name} is one of {names}, not {value!r}")


def plain_function(fn: Any, name: str, advice: str = "it cannot await") -> None:
    """Refuses what gives a coroutine or a generator when it is called: its body would never run.

    Raises:
        TypeError: It is not callable, or is one of these.
    """
    if not callable(fn):
        raise TypeError(f"{name} takes a callable, not {type(fn).__name__}")
    for function in (fn, getattr(fn, "__call__", None)):  # noqa: B004
        for kind, is_one in _UNPLAIN.items():
            if is_one(function):
                raise TypeError(
                    f"{name} takes a plain function, not {kind}, whose body would never run: {advice}"
                )


_UNPLAIN: dict[str, Callable[[Any], bool]] = {
    "a coroutine function": inspect.iscoroutinefunction,
    "a generator function": inspect.isgeneratorfunction,
    "an async generator function": inspect.isasyncgenfunction,
}


class NotCopied:
    """What owns something of the driver's. A copy would destroy that a second time, and another process does not have it."""

    _instead = "use the object itself"  # of a copy

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses `copy`, `deepcopy` and `pickle`, which all come here."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: {self._instead}; another process makes its own"
        )


class AsyncBlock:
    """An object with an `async with` block. Without the `async`, the error says so."""

    _or_else = ""  # what else one may have meant by `with`

    def __enter__(self) -> NoReturn:
        """Refuses."""
        raise TypeError(
            f"{type(self).__name__.strip('_')} has no `with` block: write `async with`, whose end "
            f"can await{self._or_else}"
        )

    def __exit__(self, *_: object) -> None:
        """Exists because Python looks for it before it calls `__enter__`."""
