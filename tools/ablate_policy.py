"""Says what each constant and each stage of the policy of waits is worth.

    python tools/ablate_policy.py            # all of it, in about ten minutes
    python tools/ablate_policy.py SPIN_NS    # what has this in its name
    python tools/ablate_policy.py --stages   # each stage left out

It compiles `native/engine/policy.c` with one thing changed, and runs the model of the tests
(`tests/native/policy.c`: virtual time, 18 patterns of work, 1 to 128 wait lists, and questions of
`ready`). A constant is halved and doubled. A cell is a median, p90 or p99 of the lateness, the CPU,
or the polls, passes or wake-ups of each wait, and the median of three seeds. It counts as worse or
better if it moves by more than a tenth, and by 3, 5 or 10 us. `refused` is what the model did not
let pass.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENGINE, PROGRAM = ROOT / "src/aiostream/native/engine", ROOT / "tests/native/policy.c"
SEEDS, HISTORIES = (1, 2, 3), 200
# The columns of a table: its number, and by how much a cell has to move at least.
COLUMNS = {0: 3.0, 1: 5.0, 2: 10.0, 4: 0.2, 6: 0.2, 7: 0.2, 8: 0.2}
NUMBERS = re.compile(r"(\d+(?:\.\d+)?)")

# What is left out, and how: a text of policy.c, and what replaces it.
STAGES = {
    "the loop's timer (the watcher wakes the task)": (
        "    return (struct plan){.stage = STAGE_TIMER,\n"
        "                         .at = window->wakes,",
        "    watcher.at = least(watcher.at, window->wakes);\n    return watcher;\n"
        "    return (struct plan){.stage = STAGE_TIMER,\n"
        "                         .at = window->wakes,",
    ),
    "rough windows": (
        "    if (!rough->to || age > rough->to) return NEVER;",
        "    return NEVER;",
    ),
    "learnt leads": (
        "    int64_t lead = history->leads[bucket_of(length)];",
        "    int64_t lead = 0;",
    ),
    "close polls (`dense`)": (
        "    prediction.dense = history->since_true >= TRUE_WITHIN - 1;",
        "    prediction.dense = false;",
    ),
    "`irregular`": (
        "    history->prediction.irregular = ",
        "    history->prediction.irregular = false && ",
    ),
    "`early`": ("    history->prediction.early = ", "    history->prediction.early = false && "),
    "windows that the loop polls": (
        "    return window && !window->narrow && !prediction->irregular && load->alone",
        "    return false && window && !window->narrow && !prediction->irregular && load->alone",
    ),
    "spaced passes": ("    if (lists <= FEW_LISTS) return 0;", "    return 0;"),
    "the last cluster among the longer waits": (
        "bool last_one = end == history->count && !prediction->irregular;",
        "bool last_one = false;",
    ),
    "the margin of a wide window": (
        "    if (!window.narrow) {\n        window.first = low",
        "    if (false) {\n        window.first = low",
    ),
    "the crowd's common polls": (
        "    if (load->waits > FEW_WAITS && load->alone && age < CROWD_AGE_NS)",
        "    if (false)",
    ),
    "turns in which the task polls on": (
        "    if (polls < 2) return true;",
        "    if (polls) return false;",
    ),
}


def run(source: str, folder: Path) -> tuple[dict[str, float], str]:
    """The cells, and what the model refused."""
    # `#include "policy.h"` looks in the folder of the file first.
    (folder / "policy.c").write_text(source)
    binary = folder / "policy"
    compiled = subprocess.run(
        ["gcc", "-std=gnu11", "-O1", f"-I{ENGINE}", PROGRAM, "policy.c", "-lm", "-o", "policy"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if compiled.returncode:
        return {}, compiled.stderr.splitlines()[0]
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        ran = subprocess.run([binary, str(HISTORIES), str(seed)], capture_output=True, text=True)
        if ran.returncode:
            return {}, ran.stderr.strip().splitlines()[-1]
        for name, value in cells(ran.stdout):
            found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}, ""


def cells(printed: str) -> Iterator[tuple[str, float]]:
    """The cells of what the model has printed. A name ends with the least movement that counts."""
    table = ""
    for line in printed.splitlines():
        if " wait" in line and "p50" in line:
            table = " ".join(line[:22].split())
        elif re.match(r".{28} +\d+ ", line):
            numbers = [float(number) for number in line[28:].split()]
            for column, least in COLUMNS.items():
                yield f"{table}|{line[:28].strip()}|{column}|{least}", numbers[column]
        elif line.startswith("ready, "):
            late, questions = NUMBERS.findall(line.rsplit(":", 1)[1])
            yield f"{line.rsplit(':', 1)[0]}|late|10", float(late)
            yield f"{line.rsplit(':', 1)[0]}|questions|0.5", float(questions)
        elif line.startswith(("10 us in", "log-normal, 128 wait")):
            yield f"{line.split(':')[0]}|1", float(NUMBERS.findall(line.split(":")[1])[0])


def compared(before: dict[str, float], after: dict[str, float]) -> str:
    """Says how many cells have moved, and which has most."""
    worse: list[tuple[float, str, float]] = []
    better: list[tuple[float, str, float]] = []
    for name, old in before.items():
        new, least = after.get(name, old), float(name.rsplit("|", 1)[1])
        if abs(new - old) > max(old / 10, least):
            (worse if new > old else better).append((abs(new - old) / max(old, least), name, new))
    most = max(worse, default=None)
    example = f", {most[1].rsplit('|', 1)[0]}: {before[most[1]]:g} to {most[2]:g}" if most else ""
    return f"{len(worse)} worse, {len(better)} better{example}"


def constants(source: str) -> Iterator[tuple[str, str, str]]:
    """The name of each, and the source with half and with twice its value."""
    for match in re.finditer(r"\b([A-Z][A-Z_]{3,}) = (0x[0-9a-f]+|\d+)\b", source):
        name, value = match[1], int(match[2], 0)
        half, twice = (
            source[: match.start(2)] + str(new) + source[match.end(2) :]
            for new in (max(value // 2, 1), value * 2)
        )
        yield name, half, twice


def main() -> None:
    """Prints a line for each change."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="", help="a part of the names")
    parser.add_argument("--stages", action="store_true", help="leave out each stage instead")
    chosen = parser.parse_args()
    source = (ENGINE / "policy.c").read_text()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        before, refused = run(source, folder)
        assert not refused, refused
        print(f"{len(before)} cells", flush=True)

        def say(what: str, changed: str) -> None:
            after, refused = run(changed, folder)
            print(f"{what}: {f'refused: {refused}' if refused else compared(before, after)}")

        for stage, (old, new) in STAGES.items() if chosen.stages else ():
            assert old in source, f"no longer there: {stage}"
            if chosen.name in stage:
                say(stage, source.replace(old, new))
        for name, half, twice in constants(source) if not chosen.stages else ():
            if chosen.name in name:
                say(f"{name} / 2", half)
                say(f"{name} * 2", twice)


if __name__ == "__main__":
    main()
