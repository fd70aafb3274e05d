"""How tasks wait on a stream: the strategies, and which one counts."""

from __future__ import annotations

import os
from typing import Any

from aiostream import _native
from aiostream._base import checks
from aiostream._handles.operand import WithOperand
from aiostream.enums import WaitLike, WaitStrategy

__all__ = ["default_wait", "set_default_wait"]

# The number of each strategy in native code. Streams look it up once, because a lookup in each wait
# would take longer than all else.
MODES = {WaitStrategy(name): number for number, name in enumerate(_native.WAIT_STRATEGIES)}
BY_HOST_FUNCTION = MODES[WaitStrategy.HOSTFUNC]
# For what no loop's thread may poll.
BY_WATCHER = MODES[WaitStrategy.EVENT]
_VARIABLE = "AIOSTREAM_WAIT"
_default: WaitStrategy | None = None  # any thread; one assignment


def default_wait() -> WaitStrategy:
    """Returns the strategy of streams and events that you make without one.

    It is the strategy that you gave to `set_default_wait`. If you gave none, it is the one in the
    environment variable `AIOSTREAM_WAIT`, and otherwise `AUTO`.

    Raises:
        ValueError: The environment variable names no strategy.

    Example:
        >>> aiostream.set_default_wait("event")
        >>> aiostream.default_wait()
        <WaitStrategy.EVENT: 'event'>
        >>> aiostream.set_default_wait(None)
    """
    if _default is not None:
        return _default
    named = os.environ.get(_VARIABLE, "")
    return strategy(named, f"the environment variable {_VARIABLE}") if named else WaitStrategy.AUTO


def set_default_wait(wait: WaitLike | None) -> None:
    """Sets this process's default strategy, for streams and events that you make later.

    Args:
        wait: A strategy or its name. `None` goes back to `AIOSTREAM_WAIT` and `AUTO`.

    Raises:
        ValueError: There is no such strategy.

    Example:
        >>> aiostream.set_default_wait("event")
        >>> async with aiostream.Stream() as stream:
        ...     stream.wait_strategy
        <WaitStrategy.EVENT: 'event'>
        >>> aiostream.set_default_wait(None)
    """
    global _default
    _default = None if wait is None else strategy(wait)


def strategy(wait: str | None, source: str = "wait") -> WaitStrategy:
    """Returns the strategy that the caller has named, or the default."""
    return default_wait() if wait is None else checks.member(WaitStrategy, wait, source)


def mode_for(stream: Any) -> int:
    """Returns the mode of any stream. Another library's stream has the default one."""
    return stream._mode if isinstance(stream, WithOperand) else MODES[default_wait()]
