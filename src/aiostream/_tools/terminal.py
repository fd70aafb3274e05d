"""What the commands know of the terminal: its width and its colours."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from typing import Any

_UNBROKEN: Any = {"break_long_words": False, "break_on_hyphens": False}


def columns() -> int:
    """How wide a line may be: as the terminal, and 100 at most. No picture fits in less than 40."""
    return max(40, min(100, shutil.get_terminal_size((100, 24)).columns))


def wrapped(text: str, first: str = "", others: str = "") -> str:
    """The text in lines that fit. Paths, and commands in backticks, can be copied whole.

    Args:
        text: One paragraph.
        first: What its first line begins with.
        others: What its other lines begin with.
    """
    glued = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\0"), text)
    text = textwrap.fill(
        *(glued, columns()), initial_indent=first, subsequent_indent=others, **_UNBROKEN
    )
    return text.replace("\0", " ")


def colour(code: str, text: str) -> str:
    """The text in a colour, unless the output is no terminal, or the environment refuses."""
    wanted = sys.stdout.isatty() or os.environ.get("FORCE_COLOR")
    plain = not wanted or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
