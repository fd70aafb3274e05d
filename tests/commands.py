"""Runs commands of `python -m aiostream`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def command(
    driver_kind: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -W error -m aiostream ...` on the driver under test.

    With the `driver_kind` "none", the command chooses the driver.
    """
    variables = {
        **os.environ,
        "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else "",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "aiostream", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=variables,
        check=False,
    )


def succeed(driver_kind: str, *arguments: str, **environment: str) -> str:
    """Runs a command that must end with code 0 and nothing on stderr. Returns what it printed."""
    done = command(driver_kind, *arguments, **environment)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return done.stdout
