"""`examples/torch_server.py` checks itself, with a stand-in for torch where there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from servers import ROOT, environment

STAND_INS = ROOT / "tests" / "stand_ins"


def check(driver_kind: str, **variables: str) -> subprocess.CompletedProcess[str]:
    there = driver_kind == "gpu" and importlib.util.find_spec("torch") is not None
    paths = [] if there else [str(STAND_INS), str(ROOT)]
    search = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    options = ("--check", "--seconds", "0.5", "--connections", "8")
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "torch_server.py"), *options],
        capture_output=True,
        text=True,
        timeout=110,
        env={**environment(driver_kind), "PYTHONPATH": search, **variables},
        check=False,
    )


def test_torch_server_answers_right_in_every_way(driver_kind: str) -> None:
    done = check(driver_kind)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:-1]] == [
        [way, kind] for kind in ("closed", "open") for way in ("score", "eager", "to_thread")
    ]
    assert lines[-1] == "all answers right"
