"""Which of the loops that asyncio does not bring can be tested here.

Nothing here imports aiostream, because `exits.py` may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec

__all__ = ["MISSING", "installed", "missing_of"]

MISSING = frozenset(name for name in ("trio", "uvloop") if find_spec(name) is None)


def missing_of(text: str) -> list[str]:
    """Returns which of the missing loops a text names, as in `new_uvloop` or `asyncio-trio`."""
    words = re.findall("[a-z]+", text)
    return sorted(MISSING.intersection(words))


def installed(names: Iterable[str]) -> list[str]:
    """Returns those of the names that need no missing loop."""
    return [name for name in names if not missing_of(name)]
