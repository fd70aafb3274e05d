"""What the commands know of the terminal: whether it shows colours, and which characters."""

from __future__ import annotations

import os
import sys


def can_print(text: str) -> bool:
    """Whether the encoding of the standard output has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def colour(code: str, text: str) -> str:
    """The text in a colour, unless the output is no terminal, or the environment refuses."""
    wanted = sys.stdout.isatty() or os.environ.get("FORCE_COLOR")
    plain = not wanted or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
