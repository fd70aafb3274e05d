"""Prints what a CUDA driver answers to many small questions, one line for each: `name: answer`.

    python answers.py                     # on a GPU
    python -m nogpu -- answers.py         # on the simulator
    diff answers.txt gpu.txt              # what a GPU does otherwise

The answers do not depend on time or chance, so two runs on the same driver print the same.
`answers.txt` has those of the simulator, and a test compares it. Words after the command choose
groups of questions. Each group is a process of its own, which must end in time. If a question ends
the process, the answer says so, and the next question goes on in a new process.

`--programs FOLDER` also runs the judge programs of a folder, `p*.py`, which check what they see.
`judges_common.py` is the module `common` that they import.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
LIMIT, PROGRAMS_LIMIT = 30.0, 90.0
"""Seconds for one process of questions, and for one program."""

SIZES = {"p13": ["40"], "p15": ["3"]}
"""Arguments of the random programs, so that they take few seconds."""

LOST = 99
"""`ask.py` ends with it if the context has failed. The next question goes on in a new process."""

PAIRS = ("p08",)
"""Programs that need two GPUs."""


def run(arguments: list[str], limit: float, folder: Path = HERE) -> tuple[str, str]:
    """What the process printed, and how it ended, or nothing if it ended well."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what it starts ends with it
    )
    try:
        printed, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, errors = process.communicate()
        return printed, f"did not end within {limit:.0f} s"
    if process.returncode < 0:
        return printed, f"ended by {signal.Signals(-process.returncode).name}"
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or ["nothing said"]
        return printed, f"ended with {process.returncode}: {last[0]}"
    return printed, ""


def ask(group: str) -> list[str]:
    """The answers of a group. A question that ends its process is answered by how it ended."""
    lines: list[str] = []
    while True:
        begun = len(lines)
        printed, ended = run(["ask.py", group, str(begun)], LIMIT)
        asked = printed.splitlines()
        lines += [line for line in asked if "\t" in line]
        if ended.startswith(f"ended with {LOST}") and lines:
            continue
        if not ended:
            return [f"{group}: {line.replace(chr(9), ': ')}" for line in lines]
        if not asked or "\t" in asked[-1]:
            lines.append(f"question {len(lines)} or what comes before it\t{ended}")
            return [f"{group}: {line.replace(chr(9), ': ')}" for line in lines]
        lines.append(f"{asked[-1]}\t{ended}")


def judge(program: Path) -> list[str]:
    """What a judge program found. Times, addresses and counts of rounds are left out."""
    begin = program.stem.partition("_")[0]
    if begin in PAIRS and not has_two_devices():
        return [f"{program.stem}: needs two devices"]
    printed, ended = run([program.name, *SIZES.get(begin, [])], PROGRAMS_LIMIT, program.parent)
    found = [line.strip() for line in printed.splitlines()]
    shown = [line for line in found if line and not re.match(r"rounds \[|.*\btook\b", line)]
    if ended:
        shown.append(f"it {ended}")
    hidden = [re.sub(r"\d+\.\d+|0x[0-9a-f]+|\d{7,}", "#", line) for line in shown]
    return [f"{program.stem}: {line.replace(chr(9), ': ')}" for line in hidden]


def has_two_devices() -> bool:
    printed, _ = run(["ask.py", "--devices"], LIMIT)
    return printed.strip() not in ("", "0", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", help="parts of names of groups")
    parser.add_argument("--at-once", type=int, default=4, help="processes at a time")
    parser.add_argument("--programs", type=Path, help="the folder of the judge programs")
    options = parser.parse_args()
    printed, ended = run(["ask.py"], LIMIT)
    if ended:
        raise SystemExit(f"the questions cannot be asked: {ended}")
    work: list[tuple[Callable[..., list[str]], object]] = [
        (ask, group)
        for group in printed.splitlines()
        if not options.groups or any(word in group for word in options.groups)
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        if options.programs:
            shutil.copy(HERE / "judges_common.py", Path(folder) / "common.py")
            for program in sorted(options.programs.glob("p*.py")):
                copied = shutil.copy(program, folder)
                if not options.groups or any(word in program.stem for word in options.groups):
                    work.append((judge, Path(copied)))
        for lines in pool.map(lambda item: item[0](item[1]), work):
            print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
