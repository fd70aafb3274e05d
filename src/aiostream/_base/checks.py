"""Checks of arguments: one check and one message for each kind of mistake.

Each returns the value as the library uses it. It raises a `TypeError` if the value is of a wrong
kind, and a `ValueError` if it is out of range.
"""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from numbers import Integral
from types import FunctionType, MethodType, ModuleType
from typing import Any, NoReturn, TypeVar

from aiostream._base import clash, hints

# Here, because each public module imports this one early. If the other project's `__init__` runs in
# place of this package's, `from aiostream import trace` still gets the module of this package.
if (_found := clash.other_distribution()) is not None:
    raise ImportError(clash.MESSAGE.format(path=_found))

E = TypeVar("E", bound=Enum)
T = TypeVar("T")

# Whether only one thread at a time runs Python. On a free-threaded Python an import may switch the
# GIL on, so it is asked each time.
has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)

STREAM = "a CUDA stream"
_MOST_ADDRESS = 2**64 - 1
# The first page of memory holds nothing in any process.
_LEAST_ADDRESS = 4096
_LEAST_LIMIT = 0.02  # seconds: four beats
_MOST_SPECIAL_STREAM = 2  # 0 and 1 are the legacy stream, and 2 is the per-thread stream
# The limits of C's types.
_LEAST_INT, _MOST_INT, _MOST_FLAGS, _MOST_BYTE = -(2**31), 2**31 - 1, 2**32 - 1, 255


def is_integer(value: Any) -> bool:
    """Whether a value is an int, or one of numpy's.

    A bool is not, and neither is a tensor or a `Device`, although these have an `__index__`.
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def instance(kind: type, value: T, rule: str) -> T:
    """Returns a value that is of a kind.

    Args:
        kind: A class.
        value: What is given.
        rule: The error without the name of the value's class, such as "a name is a str, not".
    """
    if not isinstance(value, kind):
        raise TypeError(f"{rule} {type(value).__name__}")
    return value


def several(name: str, values: Iterable[T]) -> Iterable[T]:
    """Returns the values, which are not one alone. A str is one."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise TypeError(f"{name} are in a list or another iterable, not one {kind}")
    return values


def integer(name: str, value: Any) -> int:
    """Returns an int for an int, or one of numpy's."""
    if not is_integer(value):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    return operator.index(value)


def number(name: str, value: Any, least: int, reason: str) -> int:
    """Returns an int that is not too small."""
    if integer(name, value) < least:
        raise ValueError(f"{reason}, not {value}")
    return operator.index(value)


def handle(value: Any, what: str) -> int:
    """Returns a handle that is given as a number. The driver may still not know it."""
    number = integer(f"the handle of {what}", value)
    special = range((_MOST_SPECIAL_STREAM if what == STREAM else 0) + 1)
    # Such as an index. The driver does not check a handle: it reads at that address, and crashes.
    if number not in special and not _LEAST_ADDRESS <= number <= _MOST_ADDRESS:
        raise ValueError(
            f"{number} is not a handle of {what}: a handle is an address of the driver, from "
            f"{_LEAST_ADDRESS} to 2**64 - 1"
        )
    return number


def byte(name: str, value: Any) -> int:
    """Returns a number from 0 to 255."""
    if not 0 <= integer(name, value) <= _MOST_BYTE:
        raise ValueError(f"{name} is a number from 0 to {_MOST_BYTE}, not {value}")
    return operator.index(value)


def address(value: int) -> int:
    """Returns an address or a size in memory."""
    if not 0 <= value <= _MOST_ADDRESS:
        raise ValueError(
            f"{value} is not an address or size in memory: these are from 0 to 2**64 - 1"
        )
    return value


def priority(value: Any) -> int:
    """Returns a priority that C's int can hold. The driver limits it further."""
    return min(max(integer("a priority", value), _LEAST_INT), _MOST_INT)


def label(value: Any) -> str | None:
    """Returns what the user calls a stream or a pool, or `None`."""
    return None if value is None else instance(str, value, "a name is a str, not")


def flag(name: str, value: Any, advice: str = "") -> bool:
    """Returns a bool. A value that is merely true or false is a mistake, such as a stream."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}{advice}")
    return value


def real(value: Any, rule: str) -> float:
    """Returns a float for a number. One that is too large for a float becomes infinite.

    Args:
        value: What is given. A bool is not a number.
        rule: The beginning of the errors, such as "a timeout is a number of seconds".
    """
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{rule}, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        raise ValueError(f"{rule}, not nan")
    return number


def timeout(value: Any) -> float | None:
    """Returns a timeout in seconds, or `None`."""
    return None if value is None else real(value, "a timeout is a number of seconds or None")


def limit(value: Any) -> float:
    """Returns a time after which something is stalled, in seconds, or 0 for `None`."""
    seconds = 0 if value is None else real(value, "stalled_after is a number of seconds or None")
    if value is not None and not _LEAST_LIMIT <= seconds <= 1e9:
        raise ValueError(
            f"stalled_after is a number of seconds from {_LEAST_LIMIT} on, or None, not {value}"
        )
    return seconds


def member(kind: type[E], value: Any, name: str) -> E:
    """Returns the member of an enumeration, or the flags, for themselves or their value."""
    if not isinstance(value, bool) and not (
        isinstance(value, int) and not 0 <= value <= _MOST_FLAGS
    ):
        try:
            return kind(value)
        except (ValueError, TypeError):  # flags raise a TypeError for a value that is not an int
            pass
    members = kind.__members__.items()  # not an iteration, because that leaves out a flag that is 0
    names = ", ".join(
        repr(each.value) if isinstance(each.value, str) else f"{kind.__name__}.{key}"
        for key, each in members
    )
    raise ValueError(f"{name} is one of {names}, not {value!r}")


def plain_function(
    fn: Any, name: str, advice: str = "it cannot await", halves: bool = False
) -> bool:
    """Refuses a function that returns a coroutine or a generator, because its body would not run.

    Returns whether it is seen to be a generator function. A lambda may return a generator too.

    Args:
        fn: The function.
        name: What takes it.
        advice: What to do instead.
        halves: Whether a generator function is taken.
    """
    # What nearly all are is tested first, because the rest takes longer than a wait: a function, a
    # method, or an object whose class has a `__call__`, such as a model of torch.
    function = getattr(fn, "__func__", fn)
    if type(function) is not FunctionType:
        function = getattr(type(fn), "__call__", None)  # noqa: B004
    if type(function) is FunctionType and not (
        function.__code__.co_flags & (_NOT_HALVES if halves else _NOT_PLAIN)
        or _MARK in function.__dict__
        or _MARK in getattr(fn, "__dict__", ())
    ):
        return bool(function.__code__.co_flags & inspect.CO_GENERATOR)
    if not callable(fn):
        raise TypeError(
            f"{name} takes a callable, not {type(fn).__name__}: pass `fn, *args`, not `fn(*args)`"
        )
    for function in (fn, getattr(fn, "__call__", None)):  # noqa: B004
        for kind, is_one in _UNPLAIN.items():
            if is_one(function) and not (halves and is_one is inspect.isgeneratorfunction):
                raise TypeError(
                    f"{name} takes a plain function, not {kind}, whose body would never run: "
                    f"{advice}"
                )
    return False


_NOT_HALVES = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NOT_PLAIN = _NOT_HALVES | inspect.CO_GENERATOR
_MARK = "_is_coroutine_marker"  # of `inspect.markcoroutinefunction`
_UNPLAIN: dict[str, Callable[[Any], bool]] = {
    "a coroutine function": inspect.iscoroutinefunction,
    "a generator function": inspect.isgeneratorfunction,
    "an async generator function": inspect.isasyncgenfunction,
}


def explain_call(problem: BaseException, name: str, fn: Any, with_own: bool = False) -> None:
    """Adds a note to the TypeError of a function that does not take what `name` calls it with.

    If the function has begun, its frame is among the traceback's, and the error is its own.

    Args:
        problem: What was raised.
        name: What has called the function.
        fn: The function.
        with_own: Whether it gets first what belongs to the stream of a pool (`each`).
    """
    last, inner, said = problem.__traceback__, inspect.unwrap(fn), str(problem)
    code, called = getattr(inner, "__code__", None), f"{getattr(inner, '__qualname__', None)}()"
    if not isinstance(problem, TypeError) or "would never run" in said:
        return
    while last is not None:
        frame = last.tb_frame
        is_others = frame.f_globals.get("__name__", "")[:10] != "aiostream."
        if frame.f_code is code or (is_others and called not in said):  # not of a decorator
            return
        last = last.tb_next
    keywords = hints.ADVICE["run"]
    if keyword := next((each for each in keywords if f"keyword argument '{each}'" in said), None):
        note = f"{name} passes keywords to fn. In place of {keyword}=, write {keywords[keyword]}"
    elif not with_own:
        passes = "*args), without the stream" if name.startswith("run") else "stream, *args)"
        note = f"{name} calls fn({passes}. Names with `enqueue` pass it, others do not"
    else:
        note = "A pool with `each` calls fn(own, *args): what belongs to the stream comes first"
        if isinstance(fn, MethodType):
            name = fn.__func__.__qualname__
            note += f". This method has an object already: write `{name}` alone"
    problem.add_note(note)


def library(name: str, package: str) -> ModuleType:
    """Imports another library, because you ask for it."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise ImportError(f"{name} is not installed: pip install {package}") from problem


class NotCopied:
    """Refuses to be copied, because a copy would destroy the driver's object a second time.

    Another process does not have the driver's object at all.
    """

    _instead = "use the object itself"  # what to do instead of a copy

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses `copy`, `deepcopy` and `pickle`, which all come here."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: {self._instead}. Another process "
            "makes its own"
        )


class AsyncBlock:
    """Has an `async with` block. If you forget the `async`, the error says so."""

    __slots__ = ()

    _block = ""  # what has it, if that is not the class
    _or_else = ""  # what else you may have meant by `with`

    def __enter__(self) -> NoReturn:
        """Refuses."""
        raise TypeError(
            f"{self._block or type(self).__name__} has no `with` block: write `async with`"
            f"{self._or_else}"
        )

    def __exit__(self, *_: object) -> None:
        """Exists because Python looks for it before it calls `__enter__`."""
