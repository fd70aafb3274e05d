"""What helps while a program is written: in Python's development mode and in asyncio's debug mode.

`testing.ledger` uses it too.
"""

from __future__ import annotations

import sys
import warnings

from aiostream._base import turns

# Whether objects note where they are made. Any thread, one assignment.
notes_places: bool = sys.flags.dev_mode


def caller() -> tuple[str, int]:
    """Returns the line of the program that has called the library, and how many frames up it is."""
    level, frame = 1, sys._getframe(1)
    own = ("aiostream", "contextlib")
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in own:
        level, frame = level + 1, frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", level


def warn_if_blocking(name: str) -> None:
    """Warns of a call that waits for the GPU in the thread of a running loop."""
    if turns.warns_here():
        text = f"{name} blocks the event loop until the GPU is done: await synchronize_async()"
        warnings.warn(text, RuntimeWarning, stacklevel=caller()[1])
