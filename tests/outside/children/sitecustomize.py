"""Gives the simulator to each Python process that other projects' tests start.

`run.py` puts this folder first on PYTHONPATH. Python imports this module when it starts, so a
child process that never heard of this library has the simulator too.
"""

from __future__ import annotations

import contextlib
import importlib.metadata

from aiostream import simulator


def newest_version() -> int:
    """A driver as new as NVRTC, because an older one refuses NVRTC's PTX."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        major, minor, *_ = importlib.metadata.version("nvidia-cuda-nvrtc").split(".")
        return int(major) * 1000 + int(minor) * 10
    return 13000


simulator.install(devices=2, driver_version=newest_version())
