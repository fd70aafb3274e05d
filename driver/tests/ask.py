"""Asks one group of questions: `python ask.py GROUP FIRST`. `answers.py` starts it.

Prints the question before it asks, so that the last line names the question that ended the process.
"""

from __future__ import annotations

import os
import sys

import cuda.bindings.driver as cu

import probes_launches
import probes_memory
import probes_rows
import probes_streams
from probes import GROUPS, ok

ASKED = (probes_launches, probes_memory, probes_rows, probes_streams)
"""The modules that add their groups to those of `probes`."""

LOST = 99
"""The exit code of a process whose context has failed."""


def main() -> None:
    if len(sys.argv) == 1:
        print(*GROUPS, sep="\n")
        return
    if sys.argv[1] == "--devices":
        ok(cu.cuInit(0))
        print(int(ok(cu.cuDeviceGetCount())))
        return
    group, first = sys.argv[1], int(sys.argv[2])
    for number, (name, question) in enumerate(GROUPS[group]()):
        if number < first:
            continue
        print(name, end="", flush=True)
        try:
            answer = question()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        (left,) = cu.cuCtxSynchronize()
        if int(left):  # an error that stays: the next question needs a new process
            print(f"\t{answer}, and the context is lost: {int(left)}", flush=True)
            os._exit(LOST)
        print(f"\t{answer}", flush=True)
    os._exit(0)  # a driver may wait at exit for work that a question left


if __name__ == "__main__":
    main()
