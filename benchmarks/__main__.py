"""`python -m benchmarks`: the ways to wait for the GPU from Python.

The peers take turns in several rounds, so that whatever drifts hits all alike. The figures are
medians with their spread. The results are written after every setting, so that a run that was
interrupted leaves what it had.
"""

from __future__ import annotations

import sys

NEEDED = ("numpy", "rich")


def main() -> int:
    """Runs the benchmark, or says what to install."""
    import importlib.util

    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        names = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'}"
        print(f"{names} not installed: pip install --group bench", file=sys.stderr)
        return 2
    from benchmarks import command, compare, engines, launches, proof, ready, release, steps

    if sys.argv[1:3] == ["proof", "--peers"]:
        return engines.main(sys.argv[3:])
    if sys.argv[1:3] == ["proof", "--steps"]:
        return steps.main(sys.argv[3:])
    for program in (compare, launches, proof, ready, release):
        if sys.argv[1:2] == [program.__name__.rpartition(".")[2]]:
            code: int = program.main(sys.argv[2:])
            return code
    return command.main()


if __name__ == "__main__":
    raise SystemExit(main())
