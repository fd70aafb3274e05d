"""`python -m nogpu -- -m pytest tests`: runs Python, or another program, on the simulator."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

import nogpu

USAGE = "python -m nogpu [OPTIONS] -- ARGUMENTS OF PYTHON, OR A PROGRAM"


def main() -> None:
    """Takes the place of this process by the program, whose children have the simulator too."""
    parser = argparse.ArgumentParser(
        prog="python -m nogpu",
        usage=USAGE,
        description="Runs a program on a simulated CUDA driver, for example "
        "`python -m nogpu -- -m pytest` or `python -m nogpu -- script.py`.",
    )
    parser.add_argument("--devices", type=int, default=1, help="how many GPUs, 0 to 16 (1)")
    parser.add_argument("--driver-version", type=int, default=13000, help="of CUDA 13.0: 13000")
    parser.add_argument("--seed", type=int, help="shuffles the order of independent streams")
    parser.add_argument("program", nargs="+", help="what follows `python`, or a program's name")
    options = parser.parse_args()
    if not 0 <= options.devices <= nogpu.MOST_DEVICES:
        parser.error(f"--devices is 0 to {nogpu.MOST_DEVICES}, not {options.devices}")
    if options.driver_version < nogpu.OLDEST_DRIVER:
        parser.error(f"--driver-version is {nogpu.OLDEST_DRIVER} or more")
    first = options.program[0]
    is_python = first.startswith("-") or first.endswith(".py")
    program = [sys.executable, *options.program] if is_python else options.program
    if shutil.which(program[0]) is None:
        parser.error(f"there is no program {program[0]}")
    if not nogpu.LIBRARY.exists():
        parser.error(f"{nogpu.LIBRARY} was not built: install the package with a C compiler")
    # The loader looks there before it looks for NVIDIA's driver, in each process that follows.
    folders = [str(nogpu.LIBRARY.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    os.environ["NOGPU_DEVICES"] = str(options.devices)
    os.environ["NOGPU_DRIVER_VERSION"] = str(options.driver_version)
    if options.seed is not None:
        os.environ["NOGPU_SEED"] = str(options.seed % 2**64)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()
