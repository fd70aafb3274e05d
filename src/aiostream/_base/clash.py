"""Finds PyPI's other project called aiostream, whose package has the same import name."""

from __future__ import annotations

import os
import sys

MESSAGE = (
    "Two distributions with a package called `aiostream` are installed side by side: "
    "`aiostream-cuda` (CUDA streams for asyncio and trio, this one) and `aiostream` (operators for "
    "asynchronous iterators, found at {path}). They overwrite each other's files. Run "
    "`pip uninstall aiostream aiostream-cuda`, then install the one you want. Use another virtual "
    "environment for the other one."
)


def other_distribution() -> str | None:
    """Returns the path of the other project's metadata on `sys.path`, or `None`.

    It reads the folders and not what was imported, so it finds the other project in whichever order
    the two were installed.
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
