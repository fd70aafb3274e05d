"""The simulator's answers to the questions of `answers.py`, and an H200's.

`answers.txt` has the simulator's. If you change the simulator, write it again:
`python -m nogpu -- answers.py > answers.txt`.
`answers_h200.txt` has those of an H200 (driver 580.159.04, CUDA 13.0, cuda-bindings 13.3.1,
2026-11-22). docs/driver.md explains each difference between the two files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CRASHES = {
    "managed memory: attach: length 0, all, half, flags 0, 3",
    "pools: the device's pool: default, set, is it, used of 64 bytes, free, destroyed, default "
    "again",
    "streams: cuStreamAttachMemAsync: NULL, device memory, flags 0",
    "streams: cuStreamBatchMemOp: of none, of 257, flags 1, NULL",
    "streams: cuThreadExchangeStreamCaptureMode: 3, NULL",
    *(
        f"streams: attribute {which}: get, get without a place, set to zeros"
        for which in (1, 3, 8, 9, 10)
    ),
}
"""The H200's driver ends the process with SIGSEGV, and the simulator answers."""

REFUSED = {
    "allocations: pointer attribute IS_LEGACY_CUDA_IPC_CAPABLE",
    "graphs: a conditional handle: flags 0, 1; of NULL",
}
"""The simulator does not have what is asked about."""


@pytest.mark.slow
def test_answers_are_those_of_the_table() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "answers.py"), "--at-once", "2"],
        env={**os.environ, "NOGPU_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known = (HERE / "answers.txt").read_text().splitlines()
    assert len(known) > 400
    assert done.stdout.splitlines() == known


def question_of(line: str) -> str:
    """The line itself, if it is that of no known difference."""
    return next((one for one in CRASHES | REFUSED if line.startswith(f"{one}: ")), line)


def test_every_difference_from_an_h200_is_known() -> None:
    here = (HERE / "answers.txt").read_text().splitlines()
    there = (HERE / "answers_h200.txt").read_text().splitlines()
    pairs = zip(here, there, strict=True)
    different = {question_of(ours): theirs for ours, theirs in pairs if ours != theirs}
    assert set(different) == CRASHES | REFUSED
    assert {q for q, theirs in different.items() if theirs.endswith("SIGSEGV")} == CRASHES
