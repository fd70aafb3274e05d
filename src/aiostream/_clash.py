"""Finds PyPI's other project called aiostream, whose package has the same import name as ours."""

from __future__ import annotations

import os
import sys

MESSAGE = (
    "Two distributions that both call their package `aiostream` are installed side by side: `aiostream-cuda` (CUDA streams for "
    "asyncio and trio, this one) and `aiostream` (operators for asynchronous iterators, found at {path}). They overwrite each "
    "other's files. Keep one: `pip uninstall aiostream aiostream-cuda`, then install the one you want; use a second virtual "
    "environment for the other."
)


def other_distribution() -> str | None:
    """The path of the other project's metadata on `sys.path`, or `None`.

    It looks at what lies on disk and not at what was imported, so it finds them whichever was installed last.
    """
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("aiostream-") and name.endswith((".dist-info", ".egg-info")):
                return os.path.join(entry, name)
    return None
