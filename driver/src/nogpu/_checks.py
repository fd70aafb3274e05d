"""What arguments are, said in one way."""

from __future__ import annotations

import math
import operator
from numbers import Integral
from typing import Any


def integer(name: str, value: Any, least: float = -math.inf, reason: str = "") -> int:
    """Returns an int for an int, or one of numpy's. It is at least `least`, for this reason."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if operator.index(value) < least:
        raise ValueError(f"{reason}, not {value}")
    return operator.index(value)


def flag(name: str, value: Any) -> bool:
    """Returns a bool. A value that is merely true or false is a mistake."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


def seconds(name: str, value: Any, most: float) -> float:
    """Returns a number of seconds from 0 to `most`."""
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        raise ValueError(f"{name} is a number of seconds, not nan")
    if not 0 <= number <= most:
        raise ValueError(f"{name} is 0 to {most:g} seconds, not {value}")
    return number
